//! Tokens of T5 and Qwen against transformers' own, whatever the tokenizer comes from. What a user would lose: a prompt that means here what it
//! means elsewhere.

use std::path::{Path, PathBuf};

use impasto_generate::prompt::{SequenceTokenizer, sequences};
use impasto_model::{TokenizerKind, VocabularySource};
use serde_json::{Value, json};

const LONG: usize = 1 << 16;

fn t5() -> SequenceTokenizer {
    SequenceTokenizer::open(&TokenizerKind::T5(VocabularySource::Embedded)).expect("the program has it")
}

fn qwen() -> SequenceTokenizer {
    SequenceTokenizer::open(&TokenizerKind::Qwen(VocabularySource::Embedded)).expect("the program has it")
}

/// Every line of a fixture: how many there are.
fn compare(tokenizer: &SequenceTokenizer, fixture: &str) -> usize {
    let mut wrong = vec![];
    for line in fixture.lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let text = line[0].as_str().expect("a prompt");
        let got = tokenizer.encode(text, LONG);
        if json!(got) != line[1] {
            wrong.push(format!("{text:?}: {got:?}, not {}", line[1]));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong[..wrong.len().min(20)].join("\n"));
    fixture.lines().count()
}

#[test]
fn tokens_are_those_of_transformers() {
    assert!(compare(&t5(), include_str!("fixtures/t5_tokens.jsonl")) > 400);
    assert!(compare(&qwen(), include_str!("fixtures/qwen_tokens.jsonl")) > 400);
}

/// Against the files of `tools/sequence_fixtures.py VOCABULARIES FOLDER 10000`.
#[test]
#[ignore = "needs a folder of fresh fixtures, named by IMPASTO_TOKENS"]
fn tokens_of_ten_thousand_prompts() {
    let folder = std::env::var("IMPASTO_TOKENS").expect("IMPASTO_TOKENS names the folder");
    for (tokenizer, name) in [(t5(), "t5"), (qwen(), "qwen")] {
        let text = std::fs::read_to_string(Path::new(&folder).join(format!("{name}_tokens.jsonl"))).expect("the file");
        assert!(compare(&tokenizer, &text) >= 10_000);
    }
}

#[test]
fn texts_are_cut_and_padded() {
    let texts = ["a cat".to_string(), String::new()];
    // T5 keeps its end when it is cut.
    let cut = sequences(&t5(), &["a cat sat on the mat".into()], 1, 4).expect("4 is a length");
    assert_eq!((cut[0].ids.as_slice(), cut[0].length), (&[3, 9, 1712, 1][..], 4));
    let cut = sequences(&t5(), &texts, 6, 8).expect("8 is a length");
    assert_eq!((cut[0].ids.as_slice(), cut[0].length), (&[3, 9, 1712, 1, 0, 0][..], 4));
    assert_eq!((cut[1].ids.as_slice(), cut[1].length), (&[1, 0, 0, 0, 0, 0][..], 1));
    // Qwen pads with the end of a text, and says what is padding.
    let cut = sequences(&qwen(), &texts, 1, 512).expect("512 is a length");
    assert_eq!((cut[0].ids.as_slice(), cut[0].length), (&[64, 8251][..], 2));
    assert_eq!((cut[1].ids.as_slice(), cut[1].length), (&[151_643, 151_643][..], 0));
}

/// The folder that `tools/brought_fixtures.py` wrote.
fn brought(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/brought").join(name)
}

#[test]
fn tokenizers_that_files_bring() {
    let folder = |name| VocabularySource::Folder(brought(name));
    let file = |name| VocabularySource::ModelFile(brought(name));
    let only_spiece = tempfile::tempdir().expect("a folder");
    let spiece = only_spiece.path().join("spiece.model");
    std::fs::copy(brought("t5/spiece.model"), spiece).expect("it can be copied");
    let only_spiece = VocabularySource::Folder(only_spiece.path().into());
    let cases = [
        (1, TokenizerKind::T5(folder("t5"))),
        (1, TokenizerKind::T5(only_spiece)),
        (1, TokenizerKind::T5(file("t5.gguf"))),
        (2, TokenizerKind::Qwen(folder("qwen"))),
        (2, TokenizerKind::Qwen(folder("qwen_parts"))),
        (2, TokenizerKind::Qwen(file("qwen.gguf"))),
        (3, TokenizerKind::Mistral(file("tekken.safetensors"))),
    ];
    for (column, kind) in cases {
        let tokenizer = SequenceTokenizer::open(&kind).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
        for line in include_str!("fixtures/brought/tokens.jsonl").lines() {
            let line: Value = serde_json::from_str(line).expect("JSON");
            let text = line[0].as_str().expect("a prompt");
            assert_eq!(json!(tokenizer.encode(text, LONG)), line[column], "{text:?} by {kind:?}");
        }
        let ends = [(0, 1), (600, 602), (9, 2)][column - 1];
        assert_eq!((tokenizer.pad(), tokenizer.end()), ends, "{kind:?}");
    }
}

#[test]
fn tokenizers_that_do_not_fit_are_refused() {
    let refused = |kind: TokenizerKind, why: &str| {
        let error = SequenceTokenizer::open(&kind).err().unwrap_or_else(|| panic!("{kind:?} is taken")).to_string();
        assert!(error.contains(why), "{error}");
    };
    refused(TokenizerKind::T5(VocabularySource::Folder(brought("qwen"))), "another kind");
    refused(TokenizerKind::Qwen(VocabularySource::ModelFile(brought("t5.gguf"))), "another kind");
    refused(TokenizerKind::Mistral(VocabularySource::Embedded), "tekken_model");
    let folder = tempfile::tempdir().expect("a folder");
    let source = || TokenizerKind::T5(VocabularySource::Folder(folder.path().into()));
    refused(source(), "spiece.model");
    // Whatever is in the file: an error, and no panic.
    let whole = std::fs::read(brought("t5/spiece.model")).expect("the fixture");
    let mut damaged = whole.clone();
    for at in (0..whole.len()).step_by(97) {
        damaged[at] ^= 0x55;
        std::fs::write(folder.path().join("spiece.model"), &damaged[..whole.len() - at / 2]).expect("it is written");
        if let Ok(tokenizer) = SequenceTokenizer::open(&source()) {
            tokenizer.encode("a ﬁne day, e\u{301} ½\u{3000}", LONG);
        }
    }
    let json = std::fs::read_to_string(brought("qwen/tokenizer.json")).expect("the fixture");
    // Each is done by the reference, and changes the tokens.
    let steps = [
        ("Isolated", "Removed"),
        ("\"use_regex\":false", "\"use_regex\":true"),
        ("\"byte_fallback\":false", "\"byte_fallback\":true"),
    ];
    for (from, to) in
        [("BPE", "WordPiece"), ("NFC", "Lowercase"), ("\"re\":", "\"rx\":"), ("{", "[")].into_iter().chain(steps)
    {
        assert!(json.contains(from));
        std::fs::write(folder.path().join("tokenizer.json"), json.replace(from, to)).expect("it is written");
        let kind = TokenizerKind::Qwen(VocabularySource::Folder(folder.path().into()));
        let error = SequenceTokenizer::open(&kind).err().unwrap_or_else(|| panic!("{from} as {to} is taken"));
        assert!(error.to_string().contains("tokenizer.json"), "{error}");
    }
}
