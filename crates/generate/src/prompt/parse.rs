//! Emphasis in the syntax of webui.
//!
//! | Written | Meaning |
//! |---|---|
//! | `(a)` | weight times 1.1 |
//! | `(a:1.3)` | weight times 1.3 |
//! | `[a]` | weight divided by 1.1 |
//! | `\(` `\)` `\[` `\]` `\\` | the character itself |
//! | `BREAK` | what follows begins a new chunk |
//!
//! Brackets nest. A bracket that is never closed counts to the end of the prompt, one that was never opened is text. A backslash before
//! anything else vanishes. Pieces of equal weight are one text: `(a)(b)` is `ab`, as in webui, where a weight of its own cuts a word.
//!
//! This differs from webui in three places, where webui fails: a `BREAK` in brackets is a break too, not the word "break" with a
//! negative weight; a weight that is no number (`1.2.3`) is text, not an error; weights end at a million. Digits of a weight are 0 to 9.

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum PromptSpan {
    /// Text of one weight. It may be empty.
    Text {
        /// The text, without brackets and escapes.
        text: String,
        /// How much it counts: 1 is as it is.
        weight: f64,
    },
    /// What follows begins a new chunk.
    Break,
}

/// What a pair of round brackets multiplies by, and a pair of square ones divides by.
const STEP: f64 = 1.1;
/// The largest weight. Sums stay finite with it, and a picture is long lost.
const LARGEST: f64 = 1e6;
/// Brackets that count within each other. 145 of them are the largest weight. A bound keeps the time linear in the length.
const DEPTH: usize = 256;

/// Read a prompt. Every text is one, and there is always a piece.
///
/// ```
/// use impasto_generate::prompt::{PromptSpan, parse};
/// let text = |text: &str, weight| PromptSpan::Text { text: text.into(), weight };
/// assert_eq!(parse("an (important) word"), [text("an ", 1.0), text("important", 1.1), text(" word", 1.0)]);
/// ```
pub fn parse(prompt: &str) -> Vec<PromptSpan> {
    let mut reading = Reading::default();
    let mut rest = prompt;
    while let Some(first) = rest.chars().next() {
        let mut length = first.len_utf8();
        match first {
            '\\' => {
                let escaped = rest[1..].chars().next().filter(|c| r"\()[]".contains(*c));
                length += usize::from(escaped.is_some());
                reading.text(&rest[1..length]);
            }
            '(' => reading.round.open(reading.pieces.len()),
            '[' => reading.square.open(reading.pieces.len()),
            ')' if reading.round.is_open() => reading.close_round(STEP),
            ']' if reading.square.is_open() => reading.close_square(),
            ':' => match weight(rest) {
                Some((factor, whole)) => {
                    length = whole;
                    match reading.round.is_open() {
                        true => reading.close_round(factor),
                        false => reading.text(&rest[..length]),
                    }
                }
                None => reading.text(":"),
            },
            ')' | ']' => reading.text(&rest[..length]),
            _ => {
                length = rest.find(['\\', '(', ')', '[', ']', ':']).unwrap_or(rest.len());
                reading.text_with_breaks(&rest[..length]);
            }
        }
        rest = &rest[length..];
    }
    reading.finish()
}

/// `:1.3)` at the beginning of `text`: the number, and the length of it all.
fn weight(text: &str) -> Option<(f64, usize)> {
    let number = text.strip_prefix(':')?.trim_start();
    let digits =
        number.strip_prefix(['+', '-']).unwrap_or(number).trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
    let after = digits.trim_start().strip_prefix(')')?;
    let factor = number[..number.len() - digits.len()].parse().ok()?;
    Some((factor, text.len() - after.len()))
}

#[derive(Default)]
struct Reading {
    pieces: Vec<PromptSpan>,
    round: Brackets,
    square: Brackets,
}

impl Reading {
    fn text(&mut self, text: &str) {
        self.pieces.push(PromptSpan::Text { text: text.into(), weight: 1.0 });
    }

    /// Text that may have the word `BREAK` in it; white space around it belongs to it.
    fn text_with_breaks(&mut self, text: &str) {
        let in_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let mut rest = text;
        for (at, word) in text.match_indices("BREAK") {
            let after = &text[at + word.len()..];
            if in_word(text[..at].chars().next_back()) || in_word(after.chars().next()) {
                continue;
            }
            // `rest` begins after the white space of the last break, which this one may follow at once.
            let before = &rest[..rest.len() - (text.len() - at)];
            self.text(before.trim_end());
            self.pieces.push(PromptSpan::Break);
            rest = after.trim_start();
        }
        self.text(rest);
    }

    fn close_round(&mut self, factor: f64) {
        if let Some(from) = self.round.close() {
            self.multiply(from, factor);
        }
    }

    fn close_square(&mut self) {
        if let Some(from) = self.square.close() {
            self.multiply(from, 1.0 / STEP);
        }
    }

    /// Everything since piece `from`.
    fn multiply(&mut self, from: usize, factor: f64) {
        for piece in self.pieces.iter_mut().skip(from) {
            if let PromptSpan::Text { weight, .. } = piece {
                *weight = (*weight * factor).clamp(-LARGEST, LARGEST);
            }
        }
    }

    fn finish(mut self) -> Vec<PromptSpan> {
        for from in std::mem::take(&mut self.round.open) {
            self.multiply(from, STEP);
        }
        for from in std::mem::take(&mut self.square.open) {
            self.multiply(from, 1.0 / STEP);
        }
        let mut merged: Vec<PromptSpan> = vec![];
        for piece in self.pieces {
            match (merged.last_mut(), &piece) {
                (Some(PromptSpan::Text { text, weight }), PromptSpan::Text { text: more, weight: same })
                    if weight == same =>
                {
                    text.push_str(more);
                }
                _ => merged.push(piece),
            }
        }
        if merged.is_empty() {
            merged.push(PromptSpan::Text { text: String::new(), weight: 1.0 });
        }
        merged
    }
}

/// Open brackets of one shape.
#[derive(Default)]
struct Brackets {
    /// The piece that each begins with.
    open: Vec<usize>,
    /// Those that are open beyond `DEPTH`, and count for nothing.
    deeper: usize,
}

impl Brackets {
    fn open(&mut self, at: usize) {
        match self.open.len() < DEPTH {
            true => self.open.push(at),
            false => self.deeper += 1,
        }
    }

    fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Where the innermost begins, unless it counts for nothing.
    fn close(&mut self) -> Option<usize> {
        if self.deeper > 0 {
            self.deeper -= 1;
            return None;
        }
        self.open.pop()
    }
}
