//! Emphasis and chunks against webui's rules. What a user would lose: the prompts of other people, which mean the same here.

use impasto_generate::prompt::{Chunk, PromptError, PromptSpan, Tokenizer, chunks, emphasise, parse};
use serde_json::Value;

/// Weights are text in the fixture, so that no bit of them is lost.
fn weight(value: &Value) -> f64 {
    value.as_str().and_then(|text| text.parse().ok()).expect("a weight")
}

fn piece(value: &Value) -> PromptSpan {
    match value {
        Value::Null => PromptSpan::Break,
        value => PromptSpan::Text { text: value[0].as_str().expect("a text").into(), weight: weight(&value[1]) },
    }
}

#[test]
fn prompts_are_read_as_webui_reads_them() {
    let clip = Tokenizer::clip();
    let (mut prompts, mut long) = (0, 0);
    for line in include_str!("fixtures/webui_prompts.jsonl").lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let prompt = line[0].as_str().expect("a prompt");
        let pieces = parse(prompt);
        let want: Vec<PromptSpan> = line[1].as_array().expect("pieces").iter().map(piece).collect();
        assert_eq!(pieces, want, "{prompt:?}");
        let got = chunks(&clip, &pieces, 77, clip.pad()).expect("77 is a length");
        let want = line[2].as_array().expect("chunks");
        assert_eq!(got.len(), want.len(), "{prompt:?}");
        for (got, want) in got.iter().zip(want) {
            let words = want[0].as_array().expect("tokens").iter().map(|n| n.as_i64().expect("a token") as i32);
            let mut ids: Vec<i32> = std::iter::once(49_406).chain(words).collect();
            ids.resize(77, 49_407);
            let runs = want[1].as_array().expect("weights").iter();
            let mut weights = vec![1.0];
            for run in runs {
                let count = run[1].as_u64().expect("a count") as usize;
                weights.extend(std::iter::repeat_n(weight(&run[0]) as f32, count));
            }
            weights.resize(77, 1.0);
            assert_eq!(*got, Chunk { ids, weights, length: got.length }, "{prompt:?}");
        }
        prompts += 1;
        long += usize::from(got.len() > 1);
    }
    assert!(prompts > 400 && long > 50, "{prompts} prompts, {long} of several chunks");
}

#[test]
fn where_webui_fails_a_prompt_is_still_read() {
    let text = |text: &str, weight| PromptSpan::Text { text: text.into(), weight };
    assert_eq!(parse("(a:1.2.3)"), [text("a:1.2.3", 1.1)]);
    assert_eq!(parse("(a:.)"), [text("a:.", 1.1)]);
    assert_eq!(parse("(a BREAK b)"), [text("a", 1.1), PromptSpan::Break, text("b", 1.1)]);
    assert_eq!(parse(&format!("(a:{})", "9".repeat(400))), [text("a", 1e6)]);
    assert_eq!(parse(&format!("((a:{}):0)", "9".repeat(400))), [text("a", 0.0)]);
}

#[test]
fn a_megabyte_of_anything_is_read() {
    // Each of these takes minutes or the whole stack if a step is quadratic or recursive.
    let deep = format!("{}{}", "(a".repeat(200_000), ")".repeat(200_000));
    let both = "([a)]".repeat(200_000);
    for prompt in [
        "(", "[", ")", "\\", ":", ":1", "(a:1.1)", "a)", "BREAK ", "(a", "\\(a", "a", "é", "!", "1", " ", ": 1",
        "\u{301}",
    ]
    .map(|s| s.repeat(1_000_000 / s.len()))
    .iter()
    .chain([&deep, &both])
    {
        let pieces = parse(prompt);
        let clip = Tokenizer::clip();
        let chunks = chunks(&clip, &pieces, 77, clip.pad()).expect("77 is a length");
        assert!(chunks.iter().all(|c| c.ids.len() == 77 && c.weights.iter().all(|w| w.is_finite())));
    }
}

#[test]
fn padding_and_lengths_are_the_models() {
    let clip = Tokenizer::clip();
    let pieces = parse("(a:2) cat");
    let got = chunks(&clip, &pieces, 6, 0).expect("6 is a length");
    assert_eq!(
        got,
        [Chunk { ids: vec![49_406, 320, 2368, 49_407, 0, 0], weights: vec![1.0, 2.0, 1.0, 1.0, 1.0, 1.0], length: 4 }]
    );
    assert_eq!(chunks(&clip, &pieces, 3, 0).expect("3 is a length").len(), 2);
    let empty = Chunk { ids: vec![49_406, 49_407, 0, 0], weights: vec![1.0; 4], length: 2 };
    assert_eq!(Chunk::empty(&clip, 4, 0).expect("4 is a length"), empty);
    assert_eq!(chunks(&clip, &[], 4, 0).expect("4 is a length"), [empty]);
    for length in [0, 2, 65_537, usize::MAX] {
        let error = chunks(&clip, &pieces, length, 0).expect_err("no encoder has it");
        assert!(error.to_string().contains(&length.to_string()), "{error}");
    }
    assert!(matches!(chunks(&clip, &pieces, 77, u32::MAX), Err(PromptError::Token { id: u32::MAX })));
}

#[test]
fn emphasis_keeps_the_mean() {
    let numbers: Vec<f32> = (0..60).map(|i| (i as f32 * 0.7).sin() + 0.3).collect();
    let mut same = numbers.clone();
    emphasise(&mut same, &[1.0; 5]).expect("5 rows of 12");
    assert_eq!(same, numbers, "bit for bit");

    let weights = [1.0, 1.3, 0.5, 1.0, 2.0];
    let mut got = numbers.clone();
    emphasise(&mut got, &weights).expect("5 rows of 12");
    let mean = |numbers: &[f32]| numbers.iter().map(|&x| f64::from(x)).sum::<f64>() / 60.0;
    assert!((mean(&got) - mean(&numbers)).abs() < 1e-6);
    let scale = got[0] / numbers[0];
    for (i, (g, n)) in got.iter().zip(&numbers).enumerate() {
        assert!((g - n * weights[i / 12] * scale).abs() < 1e-5, "number {i}: {g}");
    }

    let mut nothing = [1.0, 2.0];
    emphasise(&mut nothing, &[0.0, 0.0]).expect("2 rows of 1");
    assert_eq!(nothing, [0.0, 0.0], "no mean is left to restore");
    assert!(emphasise(&mut nothing, &[]).is_err());
    let error = emphasise(&mut nothing, &[1.0, 1.0, 1.0]).expect_err("2 numbers are not 3 rows").to_string();
    assert!(error.contains("2 numbers") && error.contains("3 tokens"), "{error}");
}
