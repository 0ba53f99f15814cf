//! Byte pair encoding of bytes, equal to tokenizers' `BPE` with `ByteLevel`: Qwen's, and Mistral's (tekken).

use std::collections::HashMap;
use std::sync::Arc;

use regex::Regex;
use unicode_normalization_alignments::UnicodeNormalization;

use super::tokens::cut_specials;
use super::vocabulary::Vocabulary;

/// How Qwen cuts text into words.
pub(super) const QWEN_WORDS: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// What no linear matcher knows: white space that leaves its last letter to the word that follows.
const ALL_BUT_LAST: &str = r"|\s+(?!\S)|\s+";

/// Cuts text into pieces of bytes.
#[derive(Clone)]
pub struct BytePairs {
    words: Regex,
    /// White space gives its last letter to the word that follows.
    leaves_last: bool,
    /// Letters are composed first (NFC).
    composes: bool,
    vocabulary: Arc<Vocabulary>,
    /// Words that are tokens as they are, whatever the merges make of them.
    whole: HashMap<Vec<u8>, u32>,
    /// Tokens that are found as they are written, the longest first.
    specials: Vec<(u32, String)>,
    pad: u32,
    end: u32,
}

/// The parts of a [`BytePairs`], as files have them.
pub(super) struct BytePairParts {
    pub(super) words: String,
    pub(super) composes: bool,
    pub(super) vocabulary: Vocabulary,
    pub(super) whole: HashMap<Vec<u8>, u32>,
    pub(super) specials: Vec<(u32, String)>,
    pub(super) pad: u32,
    pub(super) end: u32,
}

impl BytePairs {
    /// Of parts; an error where the pattern of words is none that can be matched in linear time.
    pub(super) fn new(parts: BytePairParts) -> Result<BytePairs, String> {
        let BytePairParts { words, composes, vocabulary, whole, mut specials, pad, end } = parts;
        specials.sort_by_key(|(_, text)| std::cmp::Reverse(text.len()));
        let leaves_last = words.ends_with(ALL_BUT_LAST);
        let pattern = words.strip_suffix(ALL_BUT_LAST).map_or(words.clone(), |rest| format!(r"{rest}|\s+"));
        let words =
            Regex::new(&pattern).map_err(|_| format!("cuts text into words by {words}, which is not supported"))?;
        let vocabulary = Arc::new(vocabulary);
        Ok(BytePairs { words, leaves_last, composes, vocabulary, whole, specials, pad, end })
    }

    /// The tokens of a text.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let specials: Vec<(u32, &str)> = self.specials.iter().map(|(id, text)| (*id, text.as_str())).collect();
        let mut ids = vec![];
        cut_specials(&specials, text, &mut ids, |text, ids| {
            let composed: String;
            let text = match self.composes {
                true => {
                    composed = text.nfc().map(|(letter, _)| letter).collect();
                    &composed
                }
                false => text,
            };
            let mut at = 0;
            while at < text.len() {
                let found = self.words.find_at(text, at).filter(|found| !found.is_empty());
                let Some(found) = found else {
                    self.word(&text[at..], ids);
                    break;
                };
                // What no word has stands by itself.
                if found.start() > at {
                    self.word(&text[at..found.start()], ids);
                }
                at = found.end();
                let space = self.leaves_last && found.as_str().chars().all(char::is_whitespace);
                let follows = text[at..].chars().next().is_some_and(|c| !c.is_whitespace());
                if let Some((last, letter)) = found.as_str().char_indices().next_back()
                    && space
                    && follows
                    && last > 0
                    && !matches!(letter, '\r' | '\n')
                {
                    at -= letter.len_utf8();
                }
                self.word(&text[found.start()..at], ids);
            }
        });
        ids
    }

    /// The token that fills what the text leaves.
    pub fn pad(&self) -> u32 {
        self.pad
    }

    /// The token that ends a text.
    pub fn end(&self) -> u32 {
        self.end
    }

    fn word(&self, word: &str, ids: &mut Vec<u32>) {
        match self.whole.get(word.as_bytes()) {
            Some(id) => ids.push(*id),
            None => ids.extend(self.vocabulary.inside(word)),
        }
    }
}
