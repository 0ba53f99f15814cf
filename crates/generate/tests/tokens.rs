//! Tokens against transformers' own. What a user would lose: a prompt that means here what it means elsewhere.

use std::fs;
use std::path::Path;

use impasto_generate::prompt::{PromptError, TokenText, Tokenizer};
use serde_json::{Value, json};
use tempfile::TempDir;

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("a list").iter().map(|n| n.as_u64().expect("a token") as u32).collect()
}

#[test]
fn tokens_are_those_of_transformers() {
    let (clip, padded) = (Tokenizer::clip(), Tokenizer::clip_padded_with_zero());
    let mut wrong = vec![];
    let mut prompts = 0;
    for line in include_str!("fixtures/clip_tokens.jsonl").lines().skip(1) {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let prompt = line[0].as_str().expect("a prompt");
        for (tokenizer, want) in [(&clip, &line[1]), (&padded, line.get(2).unwrap_or(&line[1]))] {
            let (got, want) = (tokenizer.encode(prompt), ids(want));
            if got != want {
                wrong.push(format!("{prompt:?} (padded with {}): {got:?}, not {want:?}", tokenizer.pad()));
            }
        }
        prompts += 1;
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(prompts > 1_000, "{prompts} prompts");
    assert_eq!((clip.start(), clip.end(), clip.pad(), padded.pad()), (49_406, 49_407, 49_407, 0));
}

#[test]
fn the_vocabulary_is_the_published_one() {
    let first = include_str!("fixtures/clip_tokens.jsonl").lines().next().expect("a line");
    let want: Value = serde_json::from_str(first).expect("JSON");
    let merges = Tokenizer::clip().merges();
    // FNV-1a, as in tools/tokenizer_fixtures.py.
    let sum = merges.iter().flat_map(|&(a, b)| [a, b]).flat_map(u32::to_le_bytes);
    let sum = sum.fold(0xcbf2_9ce4_8422_2325_u64, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    assert_eq!(json!({"merges": merges.len(), "fnv": format!("{sum:016x}")}), want);
}

#[test]
fn a_token_says_its_text() {
    let clip = Tokenizer::clip();
    let token = |text: &str, ends_word| Some(TokenText { text: text.into(), ends_word });
    assert_eq!(clip.token(2368), token("cat", true));
    assert_eq!(clip.token(0), token("!", false));
    assert_eq!(clip.token(49_407), token("<|endoftext|>", true));
    assert_eq!(clip.token(49_408), None);
    let ids = clip.encode("A donaudampfschiff, “naïve” 😀");
    assert_eq!(clip.decode(&ids), "a donaudampfschiff , “ naïve ” 😀");
    let parts: Vec<String> =
        clip.encode("donaudampfschiff").iter().filter_map(|&id| clip.token(id)).map(|t| t.text).collect();
    assert!(parts.len() > 1 && parts.concat() == "donaudampfschiff", "{parts:?}");
}

/// A tokeniser of a few words: all bytes, then `ab`, `abc</w>`, the comma and the special tokens.
fn folder(change: impl Fn(&Path, &mut Value)) -> (TempDir, Result<Tokenizer, PromptError>) {
    let folder = TempDir::new().expect("a temporary folder");
    let mut vocab = serde_json::Map::new();
    for c in [
        "a",
        "b",
        "c",
        "!",
        "a</w>",
        "b</w>",
        "c</w>",
        "!</w>",
        ",</w>",
        "ab",
        "abc</w>",
        "<|startoftext|>",
        "<|endoftext|>",
    ] {
        let id = vocab.len();
        vocab.insert(c.into(), id.into());
    }
    let mut vocab = Value::Object(vocab);
    fs::write(folder.path().join("merges.txt"), "#version: 0.2\na b\nab c</w>\n").expect("writable");
    change(folder.path(), &mut vocab);
    fs::write(folder.path().join("vocab.json"), vocab.to_string()).expect("writable");
    let tokenizer = Tokenizer::from_folder(folder.path());
    (folder, tokenizer)
}

fn write(folder: &Path, name: &str, text: &str) {
    fs::write(folder.join(name), text).expect("writable");
}

#[test]
fn a_folder_is_a_tokeniser() {
    let good = |change: &dyn Fn(&Path)| folder(|path, _| change(path)).1.expect("it is good");
    let plain = good(&|_| ());
    assert_eq!(plain.encode("ABC ab, a!b <|endoftext|>"), [10, 0, 5, 8, 4, 7, 5, 12]);
    assert_eq!(plain.encode("z"), [12], "a byte that is no token is the unknown one");
    assert_eq!((plain.start(), plain.end(), plain.pad(), plain.comma()), (11, 12, 12, Some(8)));
    // An older folder whose padding is the end, by its text alone: as it is written.
    let one = good(&|path| {
        let end = r#"{"content":"<|endoftext|>","normalized":true}"#;
        let map = format!(
            r#"{{"pad_token":"<|endoftext|>","bos_token":{{"content":"<|startoftext|>","normalized":true}},"eos_token":{end}}}"#
        );
        write(path, "special_tokens_map.json", &map);
    });
    assert_eq!(one.encode("<|StartOfText|>a<|endoftext|>"), [11, 4, 12]);
    assert_eq!(one.encode("<|EndOfText|>").len(), plain.encode("<|EndOfText|>").len());
    assert!(one.encode("<|EndOfText|>").len() > 1);
    // Stable Diffusion 2: the map overrules the older config. XL: the config lists its tokens.
    let two = good(&|path| {
        write(path, "tokenizer_config.json", r#"{"pad_token":"<|endoftext|>","model_max_length":77}"#);
        write(
            path,
            "special_tokens_map.json",
            r#"{"pad_token":"!","eos_token":{"content":"<|endoftext|>","normalized":true},"unk_token":{"content":"<|endoftext|>","normalized":true}}"#,
        );
    });
    let xl = good(&|path| {
        let tokens = r#""0":{"content":"!","normalized":false,"special":true},"12":{"content":"<|endoftext|>","normalized":true}"#;
        write(path, "tokenizer_config.json", &format!(r#"{{"pad_token":"!","added_tokens_decoder":{{{tokens}}}}}"#));
        write(path, "special_tokens_map.json", r#"{"pad_token":"a"}"#);
    });
    for tokenizer in [two, xl] {
        assert_eq!(tokenizer.pad(), 3);
        assert_eq!(tokenizer.encode("a!!<|ENDOFTEXT|>b"), [4, 3, 3, 12, 5]);
    }
    // A token that was added is found in any case if it is normalised, else as it is written.
    let added = good(&|path| {
        let tokens = r#""13":{"content":"<A>","normalized":true},"14":{"content":"<B>","normalized":false}"#;
        write(path, "tokenizer_config.json", &format!(r#"{{"added_tokens_decoder":{{{tokens}}}}}"#));
    });
    assert_eq!(added.encode("b<A>b<a>b<B>b"), [5, 13, 5, 13, 5, 14, 5]);
    assert_eq!(added.encode("<b>"), [12, 5, 12], "in its own case only");
    assert_eq!(added.token(13), Some(TokenText { text: "<A>".into(), ends_word: true }));
}

#[test]
fn a_broken_folder_is_said() {
    type Change = fn(&Path, &mut Value);
    let cases: [(Change, &[&str]); 9] = [
        (
            |path, _| fs::remove_file(path.join("merges.txt")).expect("ours"),
            &["merges.txt", "cannot be opened", "vocab.json and"],
        ),
        (|path, _| write(path, "merges.txt", "#version\na b\na\n"), &["merges.txt", "line 3", "'a'"]),
        (|path, _| write(path, "merges.txt", "#version\nb a\n"), &["merges.txt", "line 2", "'ba'", "vocab.json"]),
        (|path, _| fs::write(path.join("merges.txt"), [255, 254]).expect("ours"), &["merges.txt", "no text"]),
        (|_, vocab| *vocab = json!([1]), &["vocab.json", "JSON"]),
        (|_, vocab| vocab["a"] = json!(-1), &["vocab.json", "JSON"]),
        (
            |_, vocab| drop(vocab.as_object_mut().expect("a map").remove("<|endoftext|>")),
            &["vocab.json", "'<|endoftext|>'"],
        ),
        (|path, _| write(path, "tokenizer_config.json", r#"{"pad_token":7}"#), &["tokenizer_config.json", "JSON"]),
        (
            |path, _| {
                write(
                    path,
                    "tokenizer_config.json",
                    r#"{"added_tokens_decoder":{"0":{"content":"a","single_word":true}}}"#,
                )
            },
            &["tokenizer_config.json", "'a'", "single word"],
        ),
    ];
    for (change, words) in cases {
        let text = folder(change).1.err().expect("it is refused").to_string();
        words.iter().for_each(|w| assert!(text.contains(w), "'{w}' is not in: {text}"));
    }
    let text = Tokenizer::from_folder("no such folder".as_ref()).err().expect("it is refused").to_string();
    assert!(text.contains("vocab.json: cannot be opened"), "{text}");
}
