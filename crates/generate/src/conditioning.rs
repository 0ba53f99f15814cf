//! The prompt as the numbers that the diffusion model reads.

use std::sync::Arc;

use impasto_graph::{HostTensor, Unary};
use impasto_model::{ClipConfig, Family, Hidden, Model, Part, clip};

use crate::module::{Module, built, load};
use crate::pipeline::Watcher;
use crate::place::{Bounds, Place};
use crate::prompt::{Chunk, Piece, Tokenizer, chunks, emphasise, parse};
use crate::unknown::unknown_words;
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

/// The prompt and for guidance the negative prompt, cut into tokens for each of the encoders.
pub(crate) struct Words(Vec<Arc<Read>>);

/// What one encoder reads.
struct Read {
    tokenizer: Tokenizer,
    prompt: Vec<Piece>,
    /// The chunks of each text, as many for each.
    texts: Vec<Vec<Chunk>>,
}

impl Words {
    /// Cut the prompts of a job. Of the model only what is known of its encoders is needed.
    pub fn cut(job: &Job, model: &Model) -> Result<Words, GenerateError> {
        let texts = texts(job);
        let read = (0..model.text.len()).map(|i| Ok(Arc::new(Read::cut(i, &texts, model)?)));
        let read = read.collect::<Result<Vec<_>, GenerateError>>()?;
        match read.is_empty() {
            true => Err(GenerateError::Asked("this model has no text encoder".into())),
            false => Ok(Words(read)),
        }
    }

    /// How long they are.
    pub fn lengths(&self) -> Lengths {
        Lengths { texts: self.0[0].texts.len(), chunks: self.0.iter().map(|read| read.texts[0].len()).collect() }
    }

    /// Words of the prompt that the model was never shown.
    pub fn unknown(&self, model: &Model) -> Result<Vec<String>, GenerateError> {
        unknown_words(&model.text[0], &self.0[0].tokenizer, &self.0[0].prompt)
    }
}

/// How long the texts of a job are, which is all of them that plans need to know.
pub(crate) struct Lengths {
    /// How many there are: two with guidance.
    pub texts: usize,
    /// Chunks of each text, by encoder.
    chunks: Vec<usize>,
}

impl Lengths {
    /// The lengths of a job's texts. No vocabulary is needed where texts are short: a token has at least one letter.
    pub fn of(job: &Job, model: &Model) -> Result<Lengths, GenerateError> {
        let room = model.text.iter().map(|part| part.config.tokens.saturating_sub(2)).min().unwrap_or(0);
        let short = |text: &str| text.is_ascii() && text.len() <= room && !text.contains("BREAK");
        match short(&job.prompt) && short(&job.negative) && !model.text.is_empty() {
            true => Ok(Lengths { texts: texts(job).len(), chunks: vec![1; model.text.len()] }),
            false => Ok(Words::cut(job, model)?.lengths()),
        }
    }

    /// The tokens of each text, as the diffusion model reads them.
    pub fn tokens(&self, model: &Model) -> usize {
        self.chunks[0] * model.text[0].config.tokens
    }
}

/// What is encoded: the prompt, and for guidance the negative prompt.
fn texts(job: &Job) -> Vec<&str> {
    let guided = job.guidance != 1.0;
    [Some(job.prompt.as_str()), guided.then_some(job.negative.as_str())].into_iter().flatten().collect()
}

/// The encoders as modules, for texts of these lengths.
pub(crate) fn encoders(
    job: &Job,
    model: &Model,
    place: &Place,
    lengths: &Lengths,
) -> Result<Vec<Module>, GenerateError> {
    let module = |(index, &chunks): (usize, &usize)| {
        let part = &model.text[index];
        let build = |numbers| clip(&part.config, lengths.texts * chunks, hidden(job, model, index), numbers);
        Module::of("te", place, Arc::new(part.clone()), part.storage(), Bounds::EXACT, &build)
    };
    lengths.chunks.iter().enumerate().map(module).collect()
}

impl Read {
    fn cut(index: usize, texts: &[&str], model: &Model) -> Result<Read, GenerateError> {
        let config = &model.text[index].config;
        let tokenizer = match model.tokenizers.get(index).and_then(Option::as_ref) {
            Some(folder) => Tokenizer::from_folder(folder)?,
            // OpenCLIP, which has the exact GELU, fills up with zeros, CLIP with the end of the text.
            None if config.activation == Unary::Gelu => Tokenizer::clip_padded_with_zero(),
            None => Tokenizer::clip(),
        };
        let (length, pad) = (config.tokens, tokenizer.pad());
        let mut parsed: Vec<Vec<Piece>> = texts.iter().map(|text| parse(text)).collect();
        let cut = parsed.iter().map(|pieces| chunks(&tokenizer, pieces, length, pad));
        let mut texts = cut.collect::<Result<Vec<_>, _>>()?;
        let longest = texts.iter().map(Vec::len).max().unwrap_or(1);
        for text in &mut texts {
            text.resize(longest, Chunk::empty(&tokenizer, length, pad)?);
        }
        Ok(Read { prompt: parsed.swap_remove(0), tokenizer, texts })
    }
}

/// The encoders of the prompts, planned.
pub(crate) struct Texts {
    encoders: Vec<Encoder>,
    /// XL was trained with zeros where there is no negative prompt; diffusers, webui and sd-cli all do this.
    zero_negative: bool,
}

/// One encoder with what it reads.
struct Encoder {
    module: Module,
    config: ClipConfig,
    read: Arc<Read>,
}

impl Texts {
    /// Plan the encoders; nothing is loaded yet.
    pub fn plan(job: &Job, model: &Model, place: &Place, words: &Words) -> Result<Texts, GenerateError> {
        let modules = encoders(job, model, place, &words.lengths())?;
        let encoder = |((module, read), part): ((Module, &Arc<Read>), &Part<ClipConfig>)| Encoder {
            module,
            config: part.config.clone(),
            read: read.clone(),
        };
        let encoders = modules.into_iter().zip(&words.0).zip(&model.text).map(encoder).collect();
        Ok(Texts { encoders, zero_negative: model.family == Family::Sdxl && job.negative.is_empty() })
    }

    /// The encoders as modules.
    pub fn modules(&self) -> impl Iterator<Item = &Module> {
        self.encoders.iter().map(|encoder| &encoder.module)
    }

    /// The same, to be changed.
    pub fn modules_mut(&mut self) -> impl Iterator<Item = &mut Module> {
        self.encoders.iter_mut().map(|encoder| &mut encoder.module)
    }

    /// Encode them: the prompt, then the negative prompt. Encoders are loaded one after the other and given back at once.
    pub fn encode(&mut self, watch: &mut Watcher) -> Result<Vec<Condition>, GenerateError> {
        let mut conditions: Vec<Condition> = vec![];
        for encoder in &mut self.encoders {
            let encoded = encoder.encode(watch)?;
            encoder.module.let_go();
            conditions = match conditions.is_empty() {
                true => encoded,
                false => conditions.into_iter().zip(encoded).map(|(a, b)| beside(a, b)).collect(),
            };
        }
        if let Some(negative) = conditions.get_mut(1).filter(|_| self.zero_negative) {
            negative.context.fill(0.0);
            negative.pooled.iter_mut().for_each(|p| p.fill(0.0));
        }
        Ok(conditions)
    }
}

impl Encoder {
    fn encode(&mut self, watch: &mut Watcher) -> Result<Vec<Condition>, GenerateError> {
        let ClipConfig { tokens, width, projection, .. } = self.config;
        let texts = &self.read.texts;
        let all: Vec<&Chunk> = texts.iter().flatten().collect();
        let ids = all.iter().flat_map(|c| c.ids.iter().copied()).collect();
        let ids = HostTensor::i32([all.len(), tokens], ids).map_err(built("te"))?;
        load(&mut self.module, watch)?;
        let outputs = self.module.run(&[("ids", &ids)])?;

        let mut states = outputs[0].to_f32(); // (chunks of all texts, tokens, width)
        for (chunk, rows) in all.iter().zip(states.chunks_exact_mut(tokens * width)) {
            emphasise(rows, &chunk.weights)?;
        }
        let pooled = outputs.get(1).map(HostTensor::to_f32); // (chunks of all texts, tokens, projection)
        let each = texts[0].len() * tokens;
        let condition = |(i, text): (usize, &Vec<Chunk>)| Condition {
            context: states[i * each * width..][..each * width].to_vec(),
            tokens: each,
            // The row of the first end of text, in the first chunk.
            pooled: pooled.as_ref().zip(projection).map(|(pooled, size)| {
                let end =
                    text[0].ids.iter().position(|&id| id == self.read.tokenizer.end() as i32).unwrap_or(tokens - 1);
                pooled[(i * each + end) * size..][..size].to_vec()
            }),
        };
        Ok(texts.iter().enumerate().map(condition).collect())
    }
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
pub(crate) fn added(pooled: &[f32], width: usize, [height, across]: [usize; 2]) -> Vec<f32> {
    let waves = width.saturating_sub(pooled.len()) / 6;
    // Size of the original, what was cut off above and left, and the size of the target.
    let sizes = [height, across, 0, 0, height, across];
    let mut added = pooled.to_vec();
    for size in sizes {
        let half = waves / 2;
        let angle = |i: usize| size as f64 * (-(10_000f64.ln()) * i as f64 / half as f64).exp();
        added.extend((0..half).map(|i| angle(i).cos() as f32));
        added.extend((0..half).map(|i| angle(i).sin() as f32));
    }
    added
}
