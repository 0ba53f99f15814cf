//! Texts as one sequence of tokens, by whichever tokenizer an encoder has.

use impasto_model::{TokenizerKind, VocabularySource};

use super::bytes::BytePairs;
use super::unigram::Unigram;
use super::{PromptError, Tokenizer};

/// A tokenizer of any kind.
#[derive(Clone)]
pub enum SequenceTokenizer {
    /// CLIP's.
    Clip(Tokenizer),
    /// T5's, which ends a text with a token of its own.
    Unigram(Unigram),
    /// Qwen's and Mistral's.
    BytePairs(BytePairs),
}

impl SequenceTokenizer {
    /// The one that a family asks for.
    pub fn open(kind: &TokenizerKind) -> Result<SequenceTokenizer, PromptError> {
        Ok(match kind {
            TokenizerKind::Clip => SequenceTokenizer::Clip(Tokenizer::clip()),
            TokenizerKind::ClipPaddedWithZero => SequenceTokenizer::Clip(Tokenizer::clip_padded_with_zero()),
            TokenizerKind::Folder(folder) => SequenceTokenizer::Clip(Tokenizer::from_folder(folder)?),
            TokenizerKind::T5(source) => {
                brought(source, "T5")?.unwrap_or_else(|| SequenceTokenizer::Unigram(Unigram::t5()))
            }
            TokenizerKind::Qwen(source) => {
                brought(source, "Qwen")?.unwrap_or_else(|| SequenceTokenizer::BytePairs(BytePairs::qwen()))
            }
            TokenizerKind::Mistral(source) => {
                brought(source, "Mistral")?.ok_or(PromptError::NotBrought { encoder: "Mistral" })?
            }
        })
    }

    /// The tokens of a text, at most so many. The end that T5 puts after a text is among them.
    pub fn encode(&self, text: &str, most: usize) -> Vec<u32> {
        match self {
            SequenceTokenizer::Clip(clip) => truncated(clip.encode(text), most),
            SequenceTokenizer::BytePairs(pairs) => truncated(pairs.encode(text), most),
            SequenceTokenizer::Unigram(unigram) => {
                let mut ids = truncated(unigram.encode(text), most.saturating_sub(1));
                ids.push(unigram.end());
                ids
            }
        }
    }

    /// The token that fills what a text leaves.
    pub fn pad(&self) -> u32 {
        match self {
            SequenceTokenizer::Clip(clip) => clip.pad(),
            SequenceTokenizer::Unigram(unigram) => unigram.pad(),
            SequenceTokenizer::BytePairs(pairs) => pairs.pad(),
        }
    }

    /// The token that ends a text.
    pub fn end(&self) -> u32 {
        match self {
            SequenceTokenizer::Clip(clip) => clip.end(),
            SequenceTokenizer::Unigram(unigram) => unigram.end(),
            SequenceTokenizer::BytePairs(pairs) => pairs.end(),
        }
    }

    /// CLIP's, if it is that.
    pub fn clip(&self) -> Option<&Tokenizer> {
        match self {
            SequenceTokenizer::Clip(clip) => Some(clip),
            _ => None,
        }
    }
}

fn truncated(mut ids: Vec<u32>, most: usize) -> Vec<u32> {
    ids.truncate(most);
    ids
}

/// The tokenizer that files bring, if they do.
fn brought(source: &VocabularySource, encoder: &'static str) -> Result<Option<SequenceTokenizer>, PromptError> {
    let found = match source {
        VocabularySource::Embedded => None,
        VocabularySource::Folder(folder) => Some(SequenceTokenizer::from_folder(folder)?),
        VocabularySource::ModelFile(path) => SequenceTokenizer::from_model_file(path)?,
    };
    let fits = match &found {
        None => true,
        Some(SequenceTokenizer::Clip(_)) => false,
        Some(SequenceTokenizer::Unigram(_)) => encoder == "T5",
        Some(SequenceTokenizer::BytePairs(_)) => encoder != "T5",
    };
    if fits { Ok(found) } else { Err(PromptError::OtherKind { encoder }) }
}
