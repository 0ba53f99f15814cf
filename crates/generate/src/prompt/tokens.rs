//! Text to tokens, equal to transformers' `CLIPTokenizerFast` (5.23, tokenizers 0.23), as `tools/compare_tokens.py` shows.
//!
//! It is the one that gives the same on every machine. `CLIPTokenizer`, the slow one, differs on rare text, and in two ways:
//! - where the Python package ftfy is installed: curly quotes become straight ones, full-width letters, ligatures and HTML entities plain
//!   ones, control characters go, and text that was decoded wrongly is repaired;
//! - where it is not: control and format characters and U+FFFD go (so an emoji joined by U+200D falls apart), and each Chinese
//!   character is a word of its own;
//! - in both, a capital sigma at the end of a word becomes the final one, and an added token is found in its own case only.
//!
//! Plain prompts, with accents, emoji and contractions, are the same tokens in all three.

use std::cmp::Reverse;
use std::sync::{Arc, LazyLock};

use regex::Regex;
use unicode_normalization_alignments::UnicodeNormalization;

use super::vocabulary::Vocabulary;

/// How the token that a prompt begins with is written.
pub(super) const START: &str = "<|startoftext|>";
/// How the token that a prompt ends with is written.
pub(super) const STOP: &str = "<|endoftext|>";

/// Cuts text into the tokens of a text encoder.
#[derive(Clone)]
pub struct Tokenizer {
    vocabulary: Arc<Vocabulary>,
    /// Tokens that are found in the text before it is cut into words, the longest first.
    specials: Vec<Special>,
    start: u32,
    end: u32,
    pad: u32,
    comma: Option<u32>,
}

/// A token that is found as it is written, whatever stands around it.
#[derive(Clone, Debug)]
pub(super) struct Special {
    text: String,
    id: u32,
    /// What is looked for, if it is looked for in normalised text: its own normal form.
    normal: Option<String>,
}

impl Special {
    pub(super) fn new(text: &str, id: u32, normalised: bool) -> Special {
        Special { text: text.into(), id, normal: normalised.then(|| normalise(text)) }
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// What is looked for in text that is normalised, or in text that is not yet.
    fn looked_for(&self, normalised: bool) -> Option<&str> {
        match &self.normal {
            Some(normal) => normalised.then_some(normal),
            None => (!normalised).then_some(&self.text),
        }
    }
}

/// What a token stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenText {
    /// Its text. A token may hold a part of a letter: that shows as U+FFFD.
    pub text: String,
    /// Whether a word ends with it.
    pub ends_word: bool,
}

impl Tokenizer {
    /// OpenAI's, which the text encoders of Stable Diffusion 1, 2 and XL have. It pads with the end.
    pub fn clip() -> Tokenizer {
        static VOCABULARY: LazyLock<Arc<Vocabulary>> = LazyLock::new(|| Arc::new(Vocabulary::clip()));
        let (start, end) = (49_406, 49_407);
        let specials = vec![Special::new(START, start, true), Special::new(STOP, end, true)];
        Tokenizer { vocabulary: VOCABULARY.clone(), specials, start, end, pad: end, comma: Some(267) }
    }

    /// Of parts that a folder gave.
    pub(super) fn of(
        vocabulary: Vocabulary,
        mut specials: Vec<Special>,
        [start, end, pad]: [u32; 3],
        comma: Option<u32>,
    ) -> Tokenizer {
        specials.retain(|s| !s.text.is_empty());
        specials.sort_by_key(|s| Reverse(s.text.len()));
        Tokenizer { vocabulary: Arc::new(vocabulary), specials, start, end, pad, comma }
    }

    /// The same as Stable Diffusion 2 and the second encoder of XL have it: it pads with `!`, token 0. Being a special token, a `!` in a
    /// prompt is then token 0 too, not 256, as transformers has it.
    pub fn clip_padded_with_zero() -> Tokenizer {
        let mut tokenizer = Tokenizer::clip();
        tokenizer.specials.push(Special::new("!", 0, false));
        tokenizer.pad = 0;
        tokenizer
    }

    /// The tokens of a text, without start and end.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = vec![];
        cut_specials(&self.looked_for(false), text, &mut ids, |text, ids| {
            let normal = normalise(text);
            cut_specials(&self.looked_for(true), &normal, ids, |text, ids| {
                words(text).for_each(|word| ids.extend(self.vocabulary.word(word)));
            });
        });
        ids
    }

    /// The token that a prompt begins with.
    pub fn start(&self) -> u32 {
        self.start
    }

    /// The token that a prompt ends with.
    pub fn end(&self) -> u32 {
        self.end
    }

    /// The token that fills what the prompt leaves.
    pub fn pad(&self) -> u32 {
        self.pad
    }

    /// The comma, if it is a token.
    pub fn comma(&self) -> Option<u32> {
        self.comma
    }

    /// What a token stands for, if it is one of this tokeniser's.
    pub fn token(&self, id: u32) -> Option<TokenText> {
        if let Some(special) = self.specials.iter().find(|s| s.id == id) {
            return Some(TokenText { text: special.text.clone(), ends_word: true });
        }
        let (bytes, ends_word) = self.vocabulary.piece(id)?;
        Some(TokenText { text: String::from_utf8_lossy(bytes).into_owned(), ends_word })
    }

    /// The text of tokens, words apart by spaces: lower case and normalised, as the encoder reads it.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = vec![];
        for &id in ids {
            if let Some(special) = self.specials.iter().find(|s| s.id == id) {
                bytes.extend(special.text.bytes().chain(*b" "));
            } else if let Some((piece, ends_word)) = self.vocabulary.piece(id) {
                bytes.extend(piece.iter().chain(ends_word.then_some(&b' ')));
            }
        }
        String::from_utf8_lossy(&bytes).trim_end().into()
    }

    /// The pairs that become one token, in the order of their ranks.
    pub fn merges(&self) -> Vec<(u32, u32)> {
        self.vocabulary.merges()
    }

    /// What is looked for in text that is normalised, or in text that is not yet, with its id.
    fn looked_for(&self, normalised: bool) -> Vec<(u32, &str)> {
        self.specials.iter().filter_map(|s| s.looked_for(normalised).map(|text| (s.id, text))).collect()
    }
}

/// Special tokens to their ids, what is between them, where there is anything, to `rest`. The leftmost is taken, of those the one that stands
/// first in the list.
pub(super) fn cut_specials(
    specials: &[(u32, &str)],
    text: &str,
    ids: &mut Vec<u32>,
    mut rest: impl FnMut(&str, &mut Vec<u32>),
) {
    let mut from = 0;
    let mut at = 0;
    let mut between = |text: &str, ids: &mut Vec<u32>| {
        if !text.is_empty() {
            rest(text, ids);
        }
    };
    while let Some(next) = text[at..].chars().next() {
        let Some((id, found)) = specials.iter().find(|(_, special)| text[at..].starts_with(special)) else {
            at += next.len_utf8();
            continue;
        };
        between(&text[from..at], ids);
        ids.push(*id);
        at += found.len();
        from = at;
    }
    between(&text[from..], ids);
}

/// Letters composed (NFC), runs of white space as one space, lower case. Letter by letter: no final sigma.
fn normalise(text: &str) -> String {
    let mut normal = String::with_capacity(text.len());
    for (c, _) in text.nfc() {
        if !c.is_whitespace() {
            normal.extend(c.to_lowercase());
        } else if !normal.ends_with(' ') {
            normal.push(' ');
        }
    }
    normal
}

/// The words of a text: an English ending after an apostrophe, a run of letters, a digit, or a run of anything else that is no white space.
fn words(text: &str) -> impl Iterator<Item = &str> {
    static WORDS: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+")
            .expect("the program's own pattern")
    });
    // A special token that is not looked for (in another case, say) is cut from what follows it, and then into words itself.
    WORDS.find_iter(text).map(|word| word.as_str()).flat_map(|word| {
        let (head, rest) = word.split_at(if [START, STOP].contains(&word) { "<|".len() } else { word.len() });
        let (middle, tail) = rest.split_at(rest.len().saturating_sub("|>".len()));
        [head, middle, tail].into_iter().filter(|word| !word.is_empty())
    })
}
