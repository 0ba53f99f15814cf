//! Prompts of any length, in the lengths that a text encoder reads.

use super::{PromptError, PromptSpan, SequenceTokenizer, Tokenizer};

/// How many tokens a chunk may give up so that it ends at a comma: webui's default.
const BACKTRACK: usize = 20;

/// More tokens than any text encoder reads: a larger number is a damaged configuration.
const LONGEST: usize = 1 << 16;

/// What a text encoder reads at once: start, tokens, end, padding.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// The tokens, as many as the encoder reads.
    pub ids: Vec<i32>,
    /// The weight of each, for [`emphasise`].
    pub weights: Vec<f32>,
    /// How many of the tokens are text, not padding.
    pub length: usize,
}

impl Chunk {
    /// A chunk without words. A prompt and its negative prompt need equally many chunks: the shorter one is filled up with these.
    pub fn empty(tokenizer: &Tokenizer, length: usize, pad: u32) -> Result<Chunk, PromptError> {
        Filling::new(tokenizer, length, pad).map(|filling| filling.chunk(&[]))
    }
}

impl Chunk {
    /// A text without weights, cut to what one chunk holds.
    pub fn of_text(tokenizer: &Tokenizer, text: &str, length: usize, pad: u32) -> Result<Chunk, PromptError> {
        let filling = Filling::new(tokenizer, length, pad)?;
        let ids = tokenizer.encode(text).into_iter().take(length - 2);
        let tokens = ids.map(|id| Ok((signed(id)?, 1.0))).collect::<Result<Vec<_>, PromptError>>()?;
        Ok(filling.chunk(&tokens))
    }
}

/// Cut a prompt into chunks of `length` tokens (77 for CLIP), padded with `pad`: the end or 0, as the model was trained.
///
/// A chunk that is full ends at its last comma, if that is among its last 20 tokens: what follows the comma moves on. A break begins a
/// new chunk, even if this one is empty. There is always a chunk.
pub fn chunks(
    tokenizer: &Tokenizer,
    pieces: &[PromptSpan],
    length: usize,
    pad: u32,
) -> Result<Vec<Chunk>, PromptError> {
    let filling = Filling::new(tokenizer, length, pad)?;
    let room = length - 2;
    let mut chunks = vec![];
    let mut open: Vec<(i32, f32)> = vec![];
    let mut comma: Option<usize> = None;
    for piece in pieces {
        let (text, weight) = match piece {
            PromptSpan::Text { text, weight } => (text, *weight as f32),
            PromptSpan::Break => {
                chunks.push(filling.chunk(&open));
                open.clear();
                comma = None;
                continue;
            }
        };
        for id in tokenizer.encode(text) {
            if Some(id) == tokenizer.comma() {
                comma = Some(open.len());
            } else if let Some(at) = comma.filter(|at| open.len() == room && room - at <= BACKTRACK) {
                chunks.push(filling.chunk(&open[..=at]));
                open.drain(..=at);
                comma = None;
            }
            if open.len() == room {
                chunks.push(filling.chunk(&open));
                open.clear();
                comma = None;
            }
            open.push((signed(id)?, weight));
        }
    }
    if !open.is_empty() || chunks.is_empty() {
        chunks.push(filling.chunk(&open));
    }
    Ok(chunks)
}

/// Cut texts into one sequence each, all of the longest one's length: at least `least` and at most `most` tokens. Weights are all 1.
pub fn sequences(
    tokenizer: &SequenceTokenizer,
    texts: &[String],
    least: usize,
    most: usize,
) -> Result<Vec<Chunk>, PromptError> {
    if !(1..=LONGEST).contains(&most) {
        return Err(PromptError::Length { length: most });
    }
    let ids = |text: &String| tokenizer.encode(text, most).into_iter().map(signed).collect();
    let cut: Vec<Vec<i32>> = texts.iter().map(ids).collect::<Result<_, PromptError>>()?;
    let tokens = cut.iter().map(Vec::len).max().unwrap_or(0).max(least.clamp(1, most));
    let pad = signed(tokenizer.pad())?;
    let padded = |mut ids: Vec<i32>| {
        let length = ids.len();
        ids.resize(tokens, pad);
        Chunk { ids, weights: vec![1.0; tokens], length }
    };
    Ok(cut.into_iter().map(padded).collect())
}

/// Multiply the row of each token by its weight, and everything so that the mean stays, as webui and stable-diffusion.cpp do.
///
/// `hidden` is one chunk out of the text encoder, `(tokens, width)`. Where all weights are 1 it is left as it is, bit for bit.
pub fn emphasise(hidden: &mut [f32], weights: &[f32]) -> Result<(), PromptError> {
    if weights.is_empty() || !hidden.len().is_multiple_of(weights.len()) {
        return Err(PromptError::Shape { numbers: hidden.len(), tokens: weights.len() });
    }
    let width = hidden.len() / weights.len();
    if width == 0 || weights.iter().all(|&w| w == 1.0) {
        return Ok(());
    }
    let sum = |numbers: &[f32]| numbers.iter().map(|&x| f64::from(x)).sum::<f64>();
    let before = sum(hidden);
    for (row, &weight) in hidden.chunks_exact_mut(width).zip(weights) {
        row.iter_mut().for_each(|x| *x *= weight);
    }
    let restore = (before / sum(hidden)) as f32;
    // A mean of nothing cannot be restored.
    if restore.is_finite() {
        hidden.iter_mut().for_each(|x| *x *= restore);
    }
    Ok(())
}

/// The tokens that stand in every chunk.
struct Filling {
    length: usize,
    start: i32,
    end: i32,
    pad: i32,
}

impl Filling {
    fn new(tokenizer: &Tokenizer, length: usize, pad: u32) -> Result<Filling, PromptError> {
        if !(3..=LONGEST).contains(&length) {
            return Err(PromptError::Length { length });
        }
        Ok(Filling { length, start: signed(tokenizer.start())?, end: signed(tokenizer.end())?, pad: signed(pad)? })
    }

    fn chunk(&self, tokens: &[(i32, f32)]) -> Chunk {
        let mut ids = Vec::with_capacity(self.length);
        ids.push(self.start);
        ids.extend(tokens.iter().map(|t| t.0));
        ids.push(self.end);
        ids.resize(self.length, self.pad);
        let mut weights = vec![1.0; self.length];
        weights.iter_mut().skip(1).zip(tokens).for_each(|(w, t)| *w = t.1);
        Chunk { ids, weights, length: (tokens.len() + 2).min(self.length) }
    }
}

fn signed(id: u32) -> Result<i32, PromptError> {
    i32::try_from(id).map_err(|_| PromptError::Token { id })
}
