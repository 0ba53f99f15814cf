//! The unigram tokenizer of T5, equal to tokenizers' own with the parts that T5's `tokenizer.json` names: letters replaced by the precompiled
//! table, white space at the end gone, runs of spaces and spaces to `▁`, one before the text, and the likeliest pieces of each word.

use std::collections::HashMap;
use std::sync::Arc;

use super::charsmap::Charsmap;
use super::tokens::cut_specials;

/// What stands for a space.
const SPACE: char = '▁';
/// How much less likely a letter that no piece has is than the least likely piece.
const UNKNOWN_PENALTY: f64 = 10.0;

/// Cuts text into the likeliest pieces.
#[derive(Clone)]
pub struct Unigram {
    charsmap: Charsmap,
    /// Piece to id and logarithm of its probability.
    pieces: Arc<HashMap<String, (u32, f64)>>,
    /// Bytes of the longest piece.
    longest: usize,
    unknown_score: f64,
    unknown: u32,
    /// Tokens that are found as they are written, the longest first.
    specials: Vec<(u32, String)>,
    /// A space is put before a text that begins after a special token too.
    always_prefixed: bool,
    /// White space of every kind is a space.
    splits_white: bool,
    pad: u32,
    end: u32,
}

/// The parts of a [`Unigram`], as files have them.
pub(super) struct UnigramParts {
    pub(super) charsmap: Charsmap,
    /// Pieces and scores, in the order of their ids.
    pub(super) pieces: Vec<(String, f64)>,
    pub(super) unknown: u32,
    pub(super) specials: Vec<(u32, String)>,
    pub(super) always_prefixed: bool,
    pub(super) splits_white: bool,
    pub(super) pad: u32,
    pub(super) end: u32,
}

impl Unigram {
    pub(super) fn new(parts: UnigramParts) -> Unigram {
        let UnigramParts { charsmap, pieces, unknown, mut specials, always_prefixed, splits_white, pad, end } = parts;
        specials.sort_by_key(|(_, text)| std::cmp::Reverse(text.len()));
        let lowest = pieces.iter().map(|(_, score)| *score).fold(f64::INFINITY, f64::min);
        Unigram {
            charsmap,
            longest: pieces.iter().map(|(piece, _)| piece.len()).max().unwrap_or(0),
            unknown_score: lowest - UNKNOWN_PENALTY,
            // Of a piece that stands twice, the last one counts.
            pieces: Arc::new(pieces.into_iter().zip(0..).map(|((piece, score), id)| (piece, (id, score))).collect()),
            unknown,
            specials,
            always_prefixed,
            splits_white,
            pad,
            end,
        }
    }

    /// The tokens of a text, without the end.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let specials: Vec<(u32, &str)> = self.specials.iter().map(|(id, text)| (*id, text.as_str())).collect();
        let mut ids = vec![];
        cut_specials(&specials, text, &mut ids, |text, ids| {
            let text = self.normalise(text, ids.is_empty() || self.always_prefixed);
            let mut from = 0;
            for (at, _) in text.char_indices().filter(|(at, c)| *at > 0 && *c == SPACE) {
                self.word(&text[from..at], ids);
                from = at;
            }
            self.word(&text[from..], ids);
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

    fn normalise(&self, text: &str, prefixed: bool) -> String {
        let replaced = self.charsmap.replace(text);
        let mut out = String::with_capacity(replaced.len() + SPACE.len_utf8());
        let mut letters = replaced.trim_end().chars().peekable();
        let is_space = |letter: char| letter == ' ' || self.splits_white && letter.is_whitespace();
        while let Some(letter) = letters.next() {
            if is_space(letter) {
                while letters.next_if(|next| is_space(*next)).is_some() {}
            }
            out.push(if is_space(letter) { SPACE } else { letter });
        }
        if prefixed && !out.is_empty() && !out.starts_with(SPACE) {
            out.insert(0, SPACE);
        }
        out
    }

    /// The likeliest pieces of a word. Unknown letters in a row are one token.
    fn word(&self, word: &str, ids: &mut Vec<u32>) {
        /// The likeliest way to a place: its score, and its last piece with where that begins.
        type Best = Option<(f64, u32, usize)>;
        let mut best: Vec<Best> = vec![None; word.len() + 1];
        best[0] = Some((0.0, self.unknown, 0));
        for (start, letter) in word.char_indices() {
            let Some((score, ..)) = best[start] else { continue };
            let mut take = |end: usize, id: u32, score: f64| {
                if best[end].is_none_or(|(before, ..)| score > before) {
                    best[end] = Some((score, id, start));
                }
            };
            let ends = word[start..].char_indices().map(|(at, c)| start + at + c.len_utf8());
            let mut alone = false;
            for end in ends.take_while(|end| end - start <= self.longest) {
                if let Some(&(id, own)) = self.pieces.get(&word[start..end]) {
                    take(end, id, own + score);
                    alone |= end - start == letter.len_utf8();
                }
            }
            if !alone {
                take(start + letter.len_utf8(), self.unknown, self.unknown_score + score);
            }
        }
        let first = ids.len();
        let mut at = word.len();
        while let Some((_, id, start)) = best[at].filter(|_| at > 0) {
            if id != self.unknown || ids.len() == first || ids.last() != Some(&self.unknown) {
                ids.push(id);
            }
            at = start;
        }
        ids[first..].reverse();
    }
}
