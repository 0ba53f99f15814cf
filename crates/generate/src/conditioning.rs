//! The prompt as the numbers that the diffusion model reads.

use std::sync::Arc;

use impasto_backend::{Backend, WeightSource};
use impasto_graph::{HostTensor, Unary};
use impasto_model::{ClipConfig, Family, Hidden, Model, Part, clip};

use crate::module::Module;
use crate::networks::{load, numbers};
use crate::pipeline::Watcher;
use crate::prompt::{Chunk, Tokenizer, chunks, emphasise, parse};
use crate::{GenerateError, Job};

/// A text, encoded.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    /// `(tokens, width)`, the widths of all encoders side by side.
    pub context: Vec<f32>,
    /// Tokens: 77 for each chunk of the text.
    pub tokens: usize,
    /// The text as one vector, where the model has one (XL).
    pub pooled: Option<Vec<f32>>,
}

/// The prompt, and for guidance the negative prompt.
pub(crate) struct Conditions {
    pub positive: Condition,
    pub negative: Option<Condition>,
}

/// Encode the prompts of a job. Encoders are loaded one after the other and given back at once: nobody needs them again.
pub(crate) fn encode(
    job: &Job,
    model: &Model,
    backend: &Arc<dyn Backend>,
    watch: &mut Watcher,
) -> Result<Conditions, GenerateError> {
    let guided = job.guidance != 1.0;
    let texts: Vec<&str> =
        [Some(job.prompt.as_str()), guided.then_some(job.negative.as_str())].into_iter().flatten().collect();
    let mut conditions: Vec<Condition> = vec![];
    for (i, part) in model.text.iter().enumerate() {
        let encoded = encode_by(part, i, &texts, job, model, backend, watch)?;
        conditions = match i {
            0 => encoded,
            _ => conditions.into_iter().zip(encoded).map(|(a, b)| beside(a, b)).collect(),
        };
    }
    let mut conditions = conditions.into_iter();
    let missing = || GenerateError::Asked("this model has no text encoder".into());
    let positive = conditions.next().ok_or_else(missing)?;
    let mut negative = conditions.next();
    if let Some(negative) = &mut negative
        && model.family == Family::Sdxl
        && job.negative.is_empty()
    {
        // XL was trained with zeros where there is no text; diffusers, webui and sd-cli all do this.
        negative.context.fill(0.0);
        negative.pooled.iter_mut().for_each(|p| p.fill(0.0));
    }
    Ok(Conditions { positive, negative })
}

/// The texts by one encoder.
fn encode_by(
    part: &Part<ClipConfig>,
    index: usize,
    texts: &[&str],
    job: &Job,
    model: &Model,
    backend: &Arc<dyn Backend>,
    watch: &mut Watcher,
) -> Result<Vec<Condition>, GenerateError> {
    let config = &part.config;
    let tokenizer = match model.tokenizers.get(index).and_then(Option::as_ref) {
        Some(folder) => Tokenizer::from_folder(folder)?,
        // OpenCLIP, which has the exact GELU, fills up with zeros, CLIP with the end of the text.
        None if config.activation == Unary::Gelu => Tokenizer::clip_padded_with_zero(),
        None => Tokenizer::clip(),
    };
    let (length, pad) = (config.tokens, tokenizer.pad());
    let mut texts =
        texts.iter().map(|text| chunks(&tokenizer, &parse(text), length, pad)).collect::<Result<Vec<_>, _>>()?;
    let longest = texts.iter().map(Vec::len).max().unwrap_or(1);
    for text in &mut texts {
        text.resize(longest, Chunk::empty(&tokenizer, length, pad)?);
    }
    let all: Vec<&Chunk> = texts.iter().flatten().collect();

    let graph = clip(config, all.len(), hidden(job, model, index), numbers(&**backend, part.storage()))
        .map_err(|source| GenerateError::Graph { module: "te", source })?;
    let mut module = Module::new("te", backend, Arc::new(part.clone()) as Arc<dyn WeightSource>, graph)?;
    load(&mut module, watch)?;
    let ids = all.iter().flat_map(|c| c.ids.iter().copied()).collect();
    let ids = HostTensor::i32([all.len(), config.tokens], ids)
        .map_err(|source| GenerateError::Graph { module: "te", source })?;
    let outputs = module.run(&[("ids", &ids)])?;

    let (tokens, width) = (config.tokens, config.width);
    let mut states = outputs[0].to_f32();
    for (chunk, rows) in all.iter().zip(states.chunks_exact_mut(tokens * width)) {
        emphasise(rows, &chunk.weights)?;
    }
    let pooled = outputs.get(1).map(HostTensor::to_f32);
    let n = longest;
    Ok(texts
        .iter()
        .enumerate()
        .map(|(i, text)| Condition {
            context: states[i * n * tokens * width..][..n * tokens * width].to_vec(),
            tokens: n * tokens,
            // The row of the first end of text, in the first chunk.
            pooled: pooled.as_ref().zip(config.projection).map(|(pooled, size)| {
                let end = text[0].ids.iter().position(|&id| id == tokenizer.end() as i32).unwrap_or(tokens - 1);
                pooled[(i * n * tokens + end) * size..][..size].to_vec()
            }),
        })
        .collect())
}

/// Which state of the encoder the diffusion model reads: the one it was trained with, or as many layers away from that as the user
/// says.
fn hidden(job: &Job, model: &Model, index: usize) -> Hidden {
    let usual = model.hidden[index];
    let extra = job.clip_skip as isize - usual_clip_skip(model.family) as isize;
    Hidden { skip: usual.skip.saturating_add_signed(extra), ..usual }
}

/// What sd-cli's users call the state that a family was trained with.
pub(crate) fn usual_clip_skip(family: Family) -> usize {
    if family == Family::Sd1 { 1 } else { 2 }
}

/// Two encodings of one text, side by side.
fn beside(a: Condition, b: Condition) -> Condition {
    let (wide, other) = (a.context.len() / a.tokens, b.context.len() / b.tokens);
    let rows = a.context.chunks_exact(wide).zip(b.context.chunks_exact(other));
    let context = rows.flat_map(|(x, y)| x.iter().chain(y).copied()).collect();
    Condition { context, tokens: a.tokens, pooled: b.pooled.or(a.pooled) }
}

/// What XL's diffusion model is told besides the text: the pooled text, then the sizes as waves, `(width)`.
pub(crate) fn added(pooled: &[f32], width: usize, job: &Job) -> Vec<f32> {
    let waves = width.saturating_sub(pooled.len()) / 6;
    // Size of the original, what was cut off above and left, and the size of the target.
    let sizes = [job.height, job.width, 0, 0, job.height, job.width];
    let mut added = pooled.to_vec();
    for size in sizes {
        let half = waves / 2;
        let angle = |i: usize| size as f64 * (-(10_000f64.ln()) * i as f64 / half as f64).exp();
        added.extend((0..half).map(|i| angle(i).cos() as f32));
        added.extend((0..half).map(|i| angle(i).sin() as f32));
    }
    added
}
