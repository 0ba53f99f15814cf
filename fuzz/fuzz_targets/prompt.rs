//! Any text as a prompt: the first byte chooses the tokeniser and the length, the rest is the text.
#![no_main]

#[path = "../../crates/generate/tests/checks.rs"]
mod checks;

use std::sync::LazyLock;

use impasto_generate::prompt::Tokenizer;
use libfuzzer_sys::fuzz_target;

static TOKENIZERS: LazyLock<[Tokenizer; 2]> = LazyLock::new(|| [Tokenizer::clip(), Tokenizer::clip_padded_with_zero()]);

fuzz_target!(|bytes: &[u8]| {
    let Some((first, text)) = bytes.split_first() else { return };
    let length = if first & 2 == 0 { 77 } else { 3 + usize::from(first >> 2) };
    checks::check(&TOKENIZERS[usize::from(first & 1)], &String::from_utf8_lossy(text), length);
});
