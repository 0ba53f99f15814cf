//! Words that a model was never shown.

use impasto_backend::{BackendError, WeightSource};

use crate::prompt::{PromptSpan, Tokenizer};

/// The words of a prompt that mean nothing to a text encoder: one of their tokens has a row of zeros in its `table`. Models that were trained
/// on what people write have no such rows.
pub(crate) fn unknown_words(
    encoder: &dyn WeightSource,
    table: &str,
    tokenizer: &Tokenizer,
    prompt: &[PromptSpan],
) -> Result<Vec<String>, BackendError> {
    let info = encoder.describe(table)?;
    let mut row = vec![0; info.bytes as usize / info.shape.first().copied().unwrap_or(1).max(1)];
    let mut is_known = |id: u32| {
        let at = u64::from(id) * row.len() as u64;
        if at + row.len() as u64 > info.bytes {
            return Ok::<bool, BackendError>(false);
        }
        encoder.read_into(table, at, &mut row)?;
        Ok(row.iter().any(|&b| b != 0))
    };

    let (mut unknown, mut word, mut known) = (vec![], String::new(), true);
    for piece in prompt {
        let PromptSpan::Text { text, .. } = piece else { continue };
        for id in tokenizer.encode(text) {
            let Some(token) = tokenizer.token(id) else { continue };
            word += &token.text;
            known &= is_known(id)?;
            if token.ends_word {
                let word = std::mem::take(&mut word);
                // Marks between words are no words.
                let is_word = word.chars().any(char::is_alphanumeric);
                if !std::mem::replace(&mut known, true) && is_word && !unknown.contains(&word) {
                    unknown.push(word);
                }
            }
        }
    }
    Ok(unknown)
}
