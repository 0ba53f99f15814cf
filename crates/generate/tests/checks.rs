//! What holds of every prompt, whatever is in it. The damage loop and the fuzzer of `fuzz/` check it.

use impasto_generate::prompt::{Chunk, PromptSpan, Tokenizer, chunks, emphasise, parse};
use unicode_normalization_alignments::UnicodeNormalization;

/// Read, cut and weigh a prompt, for an encoder that reads `length` tokens.
pub fn check(tokenizer: &Tokenizer, prompt: &str, length: usize) {
    let pieces = parse(prompt);
    if prompt.matches(['(', '[']).count() < 256 {
        assert_eq!(pieces, plainly(prompt), "{prompt:?}");
    }
    let mut words: Vec<(i32, f32)> = vec![];
    for piece in &pieces {
        let PromptSpan::Text { text, weight } = piece else { continue };
        let ids = tokenizer.encode(text);
        // Nothing of the text is lost, and nothing is made up.
        let read = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
        let small: String = text.nfc().flat_map(|(letter, _)| letter.to_lowercase()).collect();
        assert_eq!(read(&tokenizer.decode(&ids)), read(&small), "{text:?}");
        assert!(ids.iter().all(|&id| tokenizer.token(id).is_some()));
        words.extend(ids.iter().map(|&id| (id as i32, *weight as f32)));
    }

    let (start, end, pad) = (tokenizer.start() as i32, tokenizer.end() as i32, tokenizer.pad() as i32);
    let cut = chunks(tokenizer, &pieces, length, tokenizer.pad()).expect("a length that encoders have");
    let breaks = pieces.iter().filter(|p| **p == PromptSpan::Break).count();
    assert!(cut.len() >= breaks.max(1), "{prompt:?}: {} chunks, {breaks} breaks", cut.len());
    let mut read = vec![];
    for Chunk { ids, weights, .. } in &cut {
        assert_eq!((ids.len(), weights.len(), ids[0]), (length, length, start));
        let to = ids.iter().position(|&id| id == end).expect("a chunk has an end");
        read.extend(ids[1..to].iter().copied().zip(weights[1..to].iter().copied()));
        // Someone who writes the end or the padding in a prompt makes chunks that cannot be told apart.
        if words.iter().all(|w| w.0 != end && w.0 != pad) {
            assert!(ids[to + 1..].iter().all(|&id| id == pad), "{prompt:?}: {ids:?}");
            assert!(weights[to..].iter().all(|&w| w == 1.0), "{prompt:?}: {weights:?}");
        }
    }
    if words.iter().all(|w| w.0 != end && w.0 != pad) {
        assert_eq!(read, words, "{prompt:?}");
    }

    for Chunk { weights, .. } in cut.iter().take(2) {
        let mut hidden: Vec<f32> = (0..length * 2).map(|i| (i as f32).sin() + 0.1).collect();
        emphasise(&mut hidden, weights).expect("rows of two");
        assert!(hidden.iter().all(|x| x.is_finite()), "{weights:?}");
    }
}

/// webui's rules said in the plainest way, in time that grows with the square: which brackets stand around a text, inner ones first.
fn plainly(prompt: &str) -> Vec<PromptSpan> {
    let letters: Vec<char> = prompt.chars().collect();
    let mut texts: Vec<Option<String>> = vec![];
    let (mut round, mut square) = (vec![], vec![]);
    let mut around: Vec<(usize, usize, f64)> = vec![];
    let mut at = 0;
    while at < letters.len() {
        let c = letters[at];
        let number = number(&letters[at..]);
        let mut taken = 1;
        match (c, number) {
            ('\\', _) => {
                let escaped = letters.get(at + 1).filter(|c| matches!(c, '\\' | '(' | ')' | '[' | ']'));
                taken += usize::from(escaped.is_some());
                texts.push(Some(escaped.into_iter().collect()));
            }
            ('(', _) => round.push(texts.len()),
            ('[', _) => square.push(texts.len()),
            (':', Some((factor, length))) if !round.is_empty() => {
                taken = length;
                around.extend(round.pop().map(|from| (from, texts.len(), factor)));
            }
            (')', _) if !round.is_empty() => around.extend(round.pop().map(|from| (from, texts.len(), 1.1))),
            (']', _) if !square.is_empty() => around.extend(square.pop().map(|from| (from, texts.len(), 1.0 / 1.1))),
            (':', Some((_, length))) => {
                taken = length;
                texts.push(Some(letters[at..at + length].iter().collect()));
            }
            (':' | ')' | ']', _) => texts.push(Some(c.into())),
            _ => {
                let plain = |c: &&char| !matches!(c, '\\' | '(' | ')' | '[' | ']' | ':');
                taken = letters[at..].iter().take_while(plain).count();
                texts.extend(with_breaks(&letters[at..at + taken]));
            }
        }
        at += taken;
    }
    around.extend(round.into_iter().map(|from| (from, texts.len(), 1.1)));
    around.extend(square.into_iter().map(|from| (from, texts.len(), 1.0 / 1.1)));
    let mut pieces: Vec<PromptSpan> = vec![];
    for (i, text) in texts.into_iter().enumerate() {
        let Some(text) = text else {
            pieces.push(PromptSpan::Break);
            continue;
        };
        let factors = around.iter().filter(|(from, to, _)| (*from..*to).contains(&i)).map(|a| a.2);
        let weight = factors.fold(1.0, |w, factor| (w * factor).clamp(-1e6, 1e6));
        match pieces.last_mut() {
            Some(PromptSpan::Text { text: before, weight: same }) if *same == weight => *before += &text,
            _ => pieces.push(PromptSpan::Text { text, weight }),
        }
    }
    if pieces.is_empty() { vec![PromptSpan::Text { text: String::new(), weight: 1.0 }] } else { pieces }
}

/// `:1.3)`: the number and how many letters it takes.
fn number(letters: &[char]) -> Option<(f64, usize)> {
    let end = letters.iter().position(|&c| c == ')')?;
    let text: String = letters[..end].iter().collect();
    let text = text.strip_prefix(':')?.trim();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let only_digits = digits.chars().all(|c| c == '.' || c.is_ascii_digit());
    only_digits.then(|| text.parse().ok()).flatten().map(|factor| (factor, end + 1))
}

/// Texts around the word BREAK and the white space that belongs to it.
fn with_breaks(letters: &[char]) -> Vec<Option<String>> {
    let in_word = |c: Option<&char>| c.is_some_and(|c| c.is_alphanumeric() || *c == '_');
    let mut found = vec![];
    let mut text = String::new();
    let mut at = 0;
    while at < letters.len() {
        let alone = !in_word(letters[..at].last()) && !in_word(letters.get(at + 5));
        if alone && letters[at..].starts_with(&['B', 'R', 'E', 'A', 'K']) {
            found.extend([Some(text.trim_end().to_string()), None]);
            text.clear();
            at += 5;
            at += letters[at..].iter().take_while(|c| c.is_whitespace()).count();
        } else {
            text.push(letters[at]);
            at += 1;
        }
    }
    found.push(Some(text));
    found
}
