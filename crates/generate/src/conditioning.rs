//! The prompts as what the denoiser reads: cut into tokens, encoded, and put together by the family.

use std::sync::Arc;

use impasto_graph::{GraphError, HostTensor};
use impasto_model::{
    Condition, EncodedText, Model, NetworkId, Pipeline, RunOptions, TextEncoder, TextRole, TokenLayout,
};

use crate::module::{Module, built, load};
use crate::pipeline::Watcher;
use crate::place::{Bounds, Place};
use crate::prompt::{Chunk, PromptSpan, SequenceTokenizer, chunks, emphasise, parse, sequences};
use crate::unknown::unknown_words;
use crate::{GenerateError, Job};

/// The texts of a job, cut into tokens for each of the encoders.
pub(crate) struct TokenizedPrompts(Vec<Arc<TokenizedTexts>>);

/// The texts of a job as one encoder reads them.
struct TokenizedTexts {
    tokenizer: SequenceTokenizer,
    prompt: Vec<PromptSpan>,
    /// The sequences of each text, as many and as long for each.
    texts: Vec<Vec<Chunk>>,
}

impl TokenizedPrompts {
    /// Cut the prompts of a job. Of the model only what is known of its encoders is needed.
    pub fn new(job: &Job, model: &Model) -> Result<TokenizedPrompts, GenerateError> {
        let texts = texts(job, model);
        let cut = model.pipeline.text().iter().map(|encoder| Ok(Arc::new(TokenizedTexts::new(encoder, &texts)?)));
        let cut = cut.collect::<Result<Vec<_>, GenerateError>>()?;
        match cut.is_empty() {
            true => Err(GenerateError::Asked("this model has no text encoder".into())),
            false => Ok(TokenizedPrompts(cut)),
        }
    }

    /// How long they are.
    pub fn lengths(&self) -> Lengths {
        let length = |cut: &Arc<TokenizedTexts>| [cut.texts[0].len(), cut.texts[0].first().map_or(0, |c| c.ids.len())];
        Lengths { texts: self.0[0].texts.len(), sequences: self.0.iter().map(length).collect() }
    }

    /// Words of the prompt that the model was never shown.
    pub fn unknown(&self, model: &Model) -> Result<Vec<String>, GenerateError> {
        let id = NetworkId::TextEncoder(0);
        match (model.pipeline.text().first(), model.network(id), self.0[0].tokenizer.clip()) {
            (Some(encoder), Some(network), Some(tokenizer)) => {
                let words = unknown_words(&***network, encoder.table, tokenizer, &self.0[0].prompt);
                words.map_err(|source| GenerateError::Backend { module: id, source })
            }
            _ => Ok(vec![]),
        }
    }
}

/// How long the texts of a job are, which is all of them that plans need to know.
pub(crate) struct Lengths {
    /// How many there are: two with a negative prompt.
    pub texts: usize,
    /// Sequences of each text and tokens of each sequence, by encoder.
    sequences: Vec<[usize; 2]>,
}

impl Lengths {
    /// The lengths of a job's texts. No vocabulary is needed where texts are short: a token has at least one letter.
    pub fn of(job: &Job, model: &Model) -> Result<Lengths, GenerateError> {
        let texts = texts(job, model);
        let one_chunk = |encoder: &TextEncoder| match encoder.tokens {
            TokenLayout::Chunks(tokens) => {
                let short =
                    |text: &str| text.is_ascii() && text.len() <= tokens.saturating_sub(2) && !text.contains("BREAK");
                (short(&job.prompt) && short(&job.negative)).then_some([1, tokens])
            }
            TokenLayout::Single(tokens) => Some([1, tokens]),
            TokenLayout::Sequence { least, most, .. } => (least == most).then_some([1, most]),
        };
        let sequences: Option<Vec<_>> = model.pipeline.text().iter().map(one_chunk).collect();
        match sequences.filter(|sequences| !sequences.is_empty()) {
            Some(sequences) => Ok(Lengths { texts: texts.len(), sequences }),
            None => Ok(TokenizedPrompts::new(job, model)?.lengths()),
        }
    }

    /// The tokens of each text, by encoder.
    pub fn tokens(&self) -> Vec<usize> {
        self.sequences.iter().map(|[sequences, tokens]| sequences * tokens).collect()
    }
}

/// What is encoded: the prompt, and where the denoiser reads it the negative prompt.
fn texts<'a>(job: &'a Job, model: &Model) -> Vec<(&'a str, TextRole)> {
    let negative = (job.negative.as_str(), TextRole::Negative { empty: job.negative.is_empty() });
    let negative = model.pipeline.reads_negative(job.guidance).then_some(negative);
    [(job.prompt.as_str(), TextRole::Prompt)].into_iter().chain(negative).collect()
}

/// The encoders as modules, for texts of these lengths.
pub(crate) fn encoders(
    job: &Job,
    model: &Model,
    place: &Place,
    lengths: &Lengths,
) -> Result<Vec<Module>, GenerateError> {
    let options = job.options();
    let module = |(index, &[sequences, tokens]): (usize, &[usize; 2])| {
        let ids = [lengths.texts * sequences, tokens];
        let build = |numbers| model.pipeline.text_encoder(index, ids, &options, numbers);
        let shape = format!("{ids:?} {}", options.clip_skip);
        Ok(Module::new(NetworkId::TextEncoder(index), model, place, Bounds::EXACT, shape, &[&build])?.0)
    };
    lengths.sequences.iter().enumerate().map(module).collect()
}

impl TokenizedTexts {
    fn new(encoder: &TextEncoder, texts: &[(&str, TextRole)]) -> Result<TokenizedTexts, GenerateError> {
        let tokenizer = SequenceTokenizer::open(&encoder.tokenizer)?;
        let not_clip = || GenerateError::Asked("only the text encoders of CLIP read texts in chunks".into());
        match encoder.tokens {
            TokenLayout::Single(length) => {
                let clip = tokenizer.clip().ok_or_else(not_clip)?;
                let prompt = vec![PromptSpan::Text { text: texts[0].0.into(), weight: 1.0 }];
                let cut = texts.iter().map(|(text, _)| Ok(vec![Chunk::of_text(clip, text, length, clip.pad())?]));
                let texts = cut.collect::<Result<_, GenerateError>>()?;
                Ok(TokenizedTexts { prompt, tokenizer, texts })
            }
            TokenLayout::Chunks(length) => {
                let clip = tokenizer.clip().ok_or_else(not_clip)?;
                let pad = clip.pad();
                let mut parsed: Vec<Vec<PromptSpan>> = texts.iter().map(|(text, _)| parse(text)).collect();
                let cut = parsed.iter().map(|pieces| chunks(clip, pieces, length, pad));
                let mut texts = cut.collect::<Result<Vec<_>, _>>()?;
                let longest = texts.iter().map(Vec::len).max().unwrap_or(1);
                for text in &mut texts {
                    text.resize(longest, Chunk::empty(clip, length, pad)?);
                }
                Ok(TokenizedTexts { prompt: parsed.swap_remove(0), tokenizer, texts })
            }
            TokenLayout::Sequence { template, least, most } => {
                let prompt = vec![PromptSpan::Text { text: texts[0].0.into(), weight: 1.0 }];
                let texts: Vec<String> = texts.iter().map(|(text, role)| template(text, *role)).collect();
                let cut = sequences(&tokenizer, &texts, least, most)?;
                Ok(TokenizedTexts { prompt, tokenizer, texts: cut.into_iter().map(|one| vec![one]).collect() })
            }
        }
    }

    /// The ids of all sequences, `(sequences of all texts, tokens)`.
    fn ids(&self) -> Result<HostTensor, GraphError> {
        let all: Vec<&Chunk> = self.texts.iter().flatten().collect();
        let ids = all.iter().flat_map(|c| c.ids.iter().copied()).collect();
        let tokens = all.first().map_or(0, |c| c.ids.len());
        HostTensor::i32([all.len(), tokens], ids)
    }
}

/// The encoders of the prompts, planned.
pub(crate) struct Texts {
    encoders: Vec<Encoder>,
    pipeline: Arc<dyn Pipeline>,
    options: RunOptions,
    roles: Vec<TextRole>,
}

/// One encoder with what it reads.
struct Encoder {
    module: Module,
    read: Arc<TokenizedTexts>,
}

impl Texts {
    /// Plan the encoders; nothing is loaded yet.
    pub fn plan(job: &Job, model: &Model, place: &Place, prompts: &TokenizedPrompts) -> Result<Texts, GenerateError> {
        let modules = encoders(job, model, place, &prompts.lengths())?;
        let encoder = |(module, read): (Module, &Arc<TokenizedTexts>)| Encoder { module, read: read.clone() };
        Ok(Texts {
            encoders: modules.into_iter().zip(&prompts.0).map(encoder).collect(),
            pipeline: model.pipeline.clone(),
            options: job.options(),
            roles: texts(job, model).into_iter().map(|(_, role)| role).collect(),
        })
    }

    /// Everything that the conditioning depends on.
    pub fn key(&self, job: &Job, place: &Place) -> String {
        let networks: Vec<(u64, Option<u64>)> = self.encoders.iter().map(|encoder| encoder.module.network()).collect();
        let Job { prompt, negative, .. } = job;
        format!("{networks:?} {prompt:?} {negative:?} {:?} {:?} on {}", self.roles, self.options, place.identity())
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
        // By text, what each encoder made of it.
        let mut encoded: Vec<Vec<EncodedText>> = vec![vec![]; self.roles.len()];
        for (index, encoder) in self.encoders.iter_mut().enumerate() {
            let texts = encoder.encode(&*self.pipeline, index, watch)?;
            encoder.module.give_back();
            encoded.iter_mut().zip(texts).for_each(|(all, one)| all.push(one));
        }
        let condition = |(text, role): (Vec<EncodedText>, &TextRole)| {
            self.pipeline.condition(&text, *role, &self.options).map_err(built(NetworkId::Denoiser))
        };
        encoded.into_iter().zip(&self.roles).map(condition).collect()
    }
}

impl Encoder {
    fn encode(
        &mut self,
        pipeline: &dyn Pipeline,
        index: usize,
        watch: &mut Watcher,
    ) -> Result<Vec<EncodedText>, GenerateError> {
        let wrong = || built(NetworkId::TextEncoder(index));
        let texts = &self.read.texts;
        let lengths: Vec<usize> = texts.iter().flatten().map(|chunk| chunk.length).collect();
        let inputs = self.read.ids().and_then(|ids| pipeline.text_inputs(index, ids, &lengths)).map_err(wrong())?;
        let inputs: Vec<(&str, &HostTensor)> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
        load(&mut self.module, watch)?;
        let mut outputs = self.module.run(&inputs)?; // each (sequences of all texts, tokens, ...)
        if let Some(first) = outputs.first_mut() {
            let mut states = first.to_f32();
            let each = states.len() / texts.iter().map(Vec::len).sum::<usize>().max(1);
            for (chunk, rows) in texts.iter().flatten().zip(states.chunks_exact_mut(each)) {
                emphasise(rows, &chunk.weights)?;
            }
            *first = HostTensor::f32(first.shape().to_vec(), states).map_err(wrong())?;
        }
        let text = |(i, text): (usize, &Vec<Chunk>)| {
            let rows = i * text.len()..(i + 1) * text.len();
            let outputs = outputs.iter().map(|output| output.slice(0, rows.clone()));
            Ok(EncodedText {
                outputs: outputs.collect::<Result<Vec<_>, _>>().map_err(wrong())?,
                ids: text.iter().flat_map(|chunk| chunk.ids.iter().copied()).collect(),
                lengths: text.iter().map(|chunk| chunk.length).collect(),
                end: self.read.tokenizer.end() as i32,
            })
        };
        texts.iter().enumerate().map(text).collect()
    }
}
