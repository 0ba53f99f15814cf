//! Words that a model was never shown.

use impasto_backend::WeightSource;
use impasto_model::{ClipConfig, Part};

use crate::GenerateError;
use crate::prompt::{Piece, Tokenizer};

/// The words of a prompt that mean nothing to a text encoder: one of their tokens has a row of zeros in its table. Models that were trained
/// on what people write have no such rows.
pub(crate) fn unknown_words(
    part: &Part<ClipConfig>,
    tokenizer: &Tokenizer,
    prompt: &[Piece],
) -> Result<Vec<String>, GenerateError> {
    let table = part
        .read("text_model.embeddings.token_embedding.weight")
        .map_err(|source| GenerateError::Backend { module: "te", source })?;
    let row = table.bytes.len() / part.config.vocabulary.max(1);
    let is_known = |id: u32| {
        table.bytes.get(id as usize * row..(id as usize + 1) * row).is_some_and(|r| r.iter().any(|&b| b != 0))
    };

    let (mut unknown, mut word, mut known) = (vec![], String::new(), true);
    for piece in prompt {
        let Piece::Text { text, .. } = piece else { continue };
        for id in tokenizer.encode(text) {
            let Some(token) = tokenizer.token(id) else { continue };
            word += &token.text;
            known &= is_known(id);
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
