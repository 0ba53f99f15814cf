//! Words that a model was never shown.

use impasto_backend::WeightSource;
use impasto_model::Model;

use crate::prompt::{Piece, Tokenizer, parse};
use crate::{GenerateError, Job};

/// The words of the prompt that mean nothing to the model: one of their tokens has a row of zeros in the table of the text encoder.
/// Models that were trained on what people write have no such rows.
pub fn unknown_words(model: &Model, job: &Job) -> Result<Vec<String>, GenerateError> {
    let Some(text) = model.text.first() else { return Ok(vec![]) };
    let tokenizer = match model.tokenizers.first().and_then(Option::as_ref) {
        Some(folder) => Tokenizer::from_folder(folder)?,
        None => Tokenizer::clip(),
    };
    let table = text
        .read("text_model.embeddings.token_embedding.weight")
        .map_err(|source| GenerateError::Backend { module: "te", source })?;
    let row = table.bytes.len() / text.config.vocabulary.max(1);
    let is_known = |id: u32| {
        table.bytes.get(id as usize * row..(id as usize + 1) * row).is_some_and(|r| r.iter().any(|&b| b != 0))
    };

    let (mut unknown, mut word, mut known) = (vec![], String::new(), true);
    for piece in parse(&job.prompt) {
        let Piece::Text { text, .. } = piece else { continue };
        for id in tokenizer.encode(&text) {
            let Some(token) = tokenizer.token(id) else { continue };
            word += &token.text;
            known &= is_known(id);
            if token.ends_word {
                let word = std::mem::take(&mut word);
                // Marks between words are no words.
                if !std::mem::replace(&mut known, true)
                    && word.chars().any(char::is_alphanumeric)
                    && !unknown.contains(&word)
                {
                    unknown.push(word);
                }
            }
        }
    }
    Ok(unknown)
}
