//! Families of models, one file each, and the one list of them.
//!
//! To add a model:
//! 1. Write the networks that are not in `networks/` yet: their graphs, what their tensors are called, a [`Recogniser`] for each.
//! 2. Write `families/NAME.rs`: a [`Family`] that tells its denoiser by structure and opens the networks that were found.
//! 3. There, implement [`Pipeline`]: text encoders, denoiser, noise, latents, autoencoder, defaults; give every graph the inputs it has.
//! 4. Put it into [`FAMILIES`]. `generate` asks for nothing else, unless the family needs a new tokenizer ([`TokenizerKind`]).
//! 5. Hold every network to its reference in `tests/parity.rs`, and the whole to a reference picture in `generate/tests/pipelines.rs`.
//! 6. Name it where people look for it: [`SUPPORTED`], the README, `CHANGELOG.md`.

pub mod autoencoder;
mod flow;
mod flux;
mod flux2;
pub mod latent_diffusion;
mod qwen_image;
mod sd;
mod sd3;
mod sdxl;
mod z_image;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use impasto_graph::{Graph, GraphError, HostTensor};

use crate::discovery::Discovered;
use crate::latent::LatentShape;
use crate::networks::{Network, Recogniser};
use crate::{ElementTypes, ModelError, NoiseLevels, OpenNetwork, Prediction};

/// Every family.
pub static FAMILIES: &[&dyn Family] = &[
    &sd::StableDiffusion,
    &sdxl::StableDiffusionXl,
    &flux::Flux1,
    &flux2::Flux2Klein,
    &z_image::ZImageModels,
    &sd3::StableDiffusion3,
    &qwen_image::QwenImageModels,
];

/// The families and the forms of their files, for messages.
pub(crate) const SUPPORTED: &str = "Stable Diffusion 1, 2, XL and 3, FLUX.1, FLUX.2 klein, Z-Image and Qwen-Image, as one file, as a diffusers folder or in parts";

/// A family of models: how its networks are found in files and put together.
pub trait Family: Send + Sync {
    /// The networks that it looks for, in every layout that there are files in.
    fn networks(&self) -> Vec<&'static Recogniser>;

    /// The name of the family or of its version, if this network is its denoiser.
    fn recognises(&self, denoiser: &dyn Network) -> Option<&'static str>;

    /// Put the networks together, and check that they belong together.
    fn open(&self, files: &mut Discovered) -> Result<AssembledModel, ModelError>;

    /// Published models in their true sizes, under the names that benches have for them.
    fn published(&self) -> Vec<(&'static str, Arc<dyn Pipeline>)> {
        vec![]
    }
}

/// A model of a family, put together.
pub struct AssembledModel {
    /// How it makes pictures.
    pub pipeline: Arc<dyn Pipeline>,
    /// Its networks.
    pub networks: BTreeMap<NetworkId, Arc<OpenNetwork>>,
}

/// A network of a model. Displayed as users know its module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NetworkId {
    /// One of the text encoders, in the order of the pipeline.
    TextEncoder(usize),
    /// What tells the picture from the noise.
    Denoiser,
    /// Pictures to latents.
    VaeEncoder,
    /// Latents to pictures.
    VaeDecoder,
    /// Latents to pictures in a fraction of the work.
    TinyDecoder,
}

impl NetworkId {
    /// What users call its module.
    pub const fn name(self) -> &'static str {
        match self {
            NetworkId::TextEncoder(_) => "te",
            NetworkId::Denoiser => "diffusion",
            NetworkId::VaeEncoder | NetworkId::VaeDecoder => "vae",
            NetworkId::TinyDecoder => "taesd",
        }
    }
}

impl fmt::Display for NetworkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Named inputs of a graph.
pub type Inputs = Vec<(&'static str, HostTensor)>;

/// How a model makes pictures: the graphs of its networks, what goes into them and what comes out. It has no weights.
///
/// Latents are `(channels, height, width)` here, as they are sampled; what networks read and write is the family's own layout. Text
/// encoders run first, each for all texts at once; [`condition`](Pipeline::condition) makes of their outputs what the denoiser reads.
pub trait Pipeline: Any + Send + Sync {
    /// The family, in the user's words.
    fn name(&self) -> &'static str;

    /// What suits the model where nobody asks for anything else.
    fn defaults(&self) -> &Defaults;

    // Text.

    /// The text encoders, in order.
    fn text(&self) -> &[TextEncoder];

    /// The largest clip skip: layers of the text encoders, those that a file leaves out included.
    fn clip_layers(&self) -> usize {
        usize::MAX
    }

    /// The graph of a text encoder for sequences of tokens, `[sequences, tokens]`.
    fn text_encoder(
        &self,
        encoder: usize,
        ids: [usize; 2],
        options: &RunOptions,
        numbers: ElementTypes,
    ) -> Result<Graph, GraphError>;

    /// The inputs of that graph for token ids `(sequences, tokens)`, of which so many of each sequence are text and not padding.
    fn text_inputs(&self, encoder: usize, ids: HostTensor, lengths: &[usize]) -> Result<Inputs, GraphError>;

    /// What the denoiser reads of a text, from what each encoder made of it.
    fn condition(&self, text: &[EncodedText], role: TextRole, options: &RunOptions) -> Result<Condition, GraphError>;

    // Denoiser.

    /// Whether guidance needs a second look, with the negative prompt. A model that reads the guidance as an input needs none.
    fn reads_negative(&self, guidance: f32) -> bool;

    /// Whether all texts are of one length, so that several may go through the denoiser at once.
    fn texts_together(&self) -> bool {
        true
    }

    /// The denoiser's graph for latents of this shape and texts of so many tokens, by encoder. Its first output is the prediction.
    fn denoiser(
        &self,
        batch: usize,
        latent: LatentShape,
        tokens: &[usize],
        numbers: ElementTypes,
    ) -> Result<Graph, GraphError>;

    /// The inputs of that graph: one latent with each of the conditions.
    fn denoiser_inputs(
        &self,
        latent: &NoisyLatent,
        conditions: &[Condition],
        options: &RunOptions,
    ) -> Result<Inputs, GraphError>;

    /// What it predicts, from the graph's output: a latent for each of the conditions.
    fn predictions(&self, output: &HostTensor, latent: LatentShape) -> Vec<Vec<f32>>;

    /// The prediction with guidance, from those with the prompt and with the negative prompt, both of this shape.
    fn guide(&self, [prompt, negative]: [&[f32]; 2], _: LatentShape, guidance: f32) -> Vec<f32> {
        prompt.iter().zip(negative).map(|(with, without)| without + guidance * (with - without)).collect()
    }

    // Noise.

    /// What the denoiser was trained to predict.
    fn prediction(&self) -> Prediction;

    /// The noise levels of a run of so many steps, with the shift that is asked for (`--flow-shift`).
    fn levels(&self, latent: LatentShape, steps: usize, shift: Option<f32>) -> Levels;

    // Latents and pictures.

    /// What latents are.
    fn latents(&self) -> &Latents;

    /// Whether the denoiser reads a mask and a masked picture beside the latent.
    fn inpaints(&self) -> bool {
        false
    }

    /// The graph of one half of an autoencoder for a grid of `[height, width]` of its own pixels of latents. A decoder reads `latent` and its
    /// first output is the picture; an encoder reads `picture`. Pictures are `(1, height, width, 3)`, from -1 to 1.
    fn autoencoder(&self, network: NetworkId, grid: [usize; 2], numbers: ElementTypes) -> Result<Graph, GraphError>;

    /// A latent as a decoder reads it: `(height, width, channels)` on its own grid.
    fn decoder_input(&self, network: NetworkId, latent: &[f32], shape: LatentShape) -> Vec<f32>;

    /// The latent of a picture, from the encoder's output `(height, width, channels)` on its own grid.
    fn encoder_output(&self, output: &[f32], shape: LatentShape) -> Gaussian;
}

impl dyn Pipeline {
    /// The pipeline, if it is of this type.
    pub fn downcast<T: Pipeline>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }

    /// The latent of a picture of `[height, width]` pixels.
    pub fn latent_shape(&self, [height, width]: [usize; 2]) -> LatentShape {
        let Latents { channels, pixels, .. } = *self.latents();
        LatentShape { channels, height: height / pixels, width: width / pixels }
    }
}

/// What suits a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Defaults {
    /// The size of pictures, `[height, width]`.
    pub size: [usize; 2],
    /// Steps.
    pub steps: usize,
    /// How much the prompt counts; 1 is without guidance.
    pub guidance: f32,
    /// The sampling method, by its name.
    pub method: &'static str,
    /// The schedule of noise levels, by its name, where the model's files say one.
    pub schedule: Option<&'static str>,
    /// The guidance that the denoiser is told (`--guidance`), where it reads one.
    pub distilled_guidance: Option<f32>,
    /// What users call the text encoders' layer that the denoiser was trained with, counted from the end: 1 is the last.
    pub clip_skip: usize,
}

/// What a run asks of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOptions {
    /// The size of the picture, `[height, width]`.
    pub size: [usize; 2],
    /// How much the prompt counts against the negative prompt.
    pub guidance: f32,
    /// The guidance that the denoiser is told, where it reads one.
    pub distilled_guidance: f32,
    /// The text encoders' layer whose state is taken, counted from the end.
    pub clip_skip: usize,
    /// What the denoiser predicts, as the user or the model says.
    pub prediction: Prediction,
}

/// How a text encoder is given text.
#[derive(Clone, Debug)]
pub struct TextEncoder {
    /// What cuts text into tokens.
    pub tokenizer: TokenizerKind,
    /// How tokens are laid out.
    pub tokens: TokenLayout,
    /// The parameter that is its table of tokens. A token whose row is zero is a word that the model was never shown.
    pub table: &'static str,
}

/// What cuts text into tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenizerKind {
    /// CLIP's, padding with the end of the text.
    Clip,
    /// CLIP's, padding with zeros.
    ClipPaddedWithZero,
    /// CLIP's in this folder.
    Folder(PathBuf),
    /// T5's, which puts an end after a text.
    T5(VocabularySource),
    /// Qwen's.
    Qwen(VocabularySource),
    /// Mistral's, which files must bring.
    Mistral(VocabularySource),
}

/// Where the words of a tokenizer come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VocabularySource {
    /// The program's own.
    #[default]
    Embedded,
    /// The folder of a tokenizer.
    Folder(PathBuf),
    /// The file of the text encoder, which brings them; the program's own where it does not.
    ModelFile(PathBuf),
}

/// How the tokens of a text are laid out.
#[derive(Clone, Debug)]
pub enum TokenLayout {
    /// In as many sequences as the text needs, each of so many tokens with start, end and padding. The syntax of weights holds: the first
    /// output of the encoder is multiplied by them, token by token.
    Chunks(usize),
    /// In one sequence of so many tokens with start, end and padding, as CLIP reads a text that has no weights; longer ones are cut.
    Single(usize),
    /// In one sequence, padded to at least and cut to at most so many tokens.
    Sequence {
        /// The text in its template.
        template: fn(&str, TextRole) -> String,
        /// The least tokens.
        least: usize,
        /// The most tokens.
        most: usize,
    },
}

/// What a text is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextRole {
    /// What to show.
    Prompt,
    /// What not to show, and whether nothing was said of that.
    Negative {
        /// The text is empty.
        empty: bool,
    },
}

/// A text, out of one encoder.
#[derive(Clone, Debug)]
pub struct EncodedText {
    /// The outputs of the graph, each `(sequences, tokens, width)`; the first with the weights of its tokens.
    pub outputs: Vec<HostTensor>,
    /// The tokens of all sequences.
    pub ids: Vec<i32>,
    /// How many tokens of each sequence are text and not padding.
    pub lengths: Vec<usize>,
    /// The token that ends a text.
    pub end: i32,
}

impl EncodedText {
    /// The text as one vector: of one output, the row of the first end of text in the first sequence.
    pub fn at_end(&self, output: usize) -> Option<Vec<f32>> {
        let output = self.outputs.get(output)?; // (sequences, tokens, width)
        let &[_, tokens, width] = output.shape() else { return None };
        let first = self.ids.get(..tokens)?;
        let end = first.iter().position(|&id| id == self.end).unwrap_or(tokens - 1);
        output.to_f32().get(end * width..(end + 1) * width).map(<[f32]>::to_vec)
    }

    /// The first output without its first tokens and without padding, in room for as many tokens as there are with it: `(tokens, width)`, and how many
    /// of the tokens are text.
    pub fn states_from(&self, first: usize) -> Result<(HostTensor, usize), GraphError> {
        let output = &self.outputs[0]; // (1, tokens, width)
        let (tokens, width) = (self.ids.len(), output.shape().last().copied().unwrap_or(1));
        let mut states = output.to_f32();
        let length = self.lengths.first().copied().unwrap_or(tokens);
        states.get_mut(length * width..).into_iter().flatten().for_each(|x| *x = 0.0);
        let first = first.min(tokens.saturating_sub(1));
        let rows = states.split_off(first * width);
        Ok((HostTensor::f32([tokens - first, width], rows)?, length.saturating_sub(first)))
    }
}

/// What the denoiser reads of a text, by the names of its inputs and without their batch dimension. All texts of a run have as many tokens: what
/// shorter ones were padded with is the family's to hide.
#[derive(Clone, Debug, Default)]
pub struct Condition(pub BTreeMap<&'static str, HostTensor>);

impl Condition {
    /// The input of this name for a batch of conditions.
    pub fn batch(conditions: &[Condition], name: &'static str) -> Result<HostTensor, GraphError> {
        let tensors = conditions.iter().filter_map(|condition| condition.0.get(name));
        let shape = tensors.clone().next().map_or(vec![], |tensor| tensor.shape().to_vec());
        let numbers = tensors.flat_map(HostTensor::to_f32).collect();
        HostTensor::f32([vec![conditions.len()], shape].concat(), numbers)
    }
}

/// A latent at a noise level, as it is sampled.
#[derive(Clone, Copy, Debug)]
pub struct NoisyLatent<'a> {
    /// `(channels, height, width)`.
    pub values: &'a [f32],
    /// Its shape.
    pub shape: LatentShape,
    /// The share of noise.
    pub sigma: f32,
    /// Further channels, of inpainting: the mask, then the latent of the masked picture.
    pub extra: Option<&'a [f32]>,
}

/// Noise levels of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Levels {
    /// Those of the training; a schedule says which of them a run visits.
    Training(NoiseLevels),
    /// These, by the family's own rule: strictly falling, the last of them 0.
    Fixed(Vec<f32>),
}

/// What a family's latents are.
#[derive(Clone, Debug, PartialEq)]
pub struct Latents {
    /// Channels while sampling.
    pub channels: usize,
    /// Pixels of a picture for one of a latent while sampling, along a side.
    pub pixels: usize,
    /// Pixels of a picture for one of those that autoencoders read and write.
    pub autoencoder_pixels: usize,
    /// What sides of pictures are multiples of.
    pub multiple: usize,
    /// Red, green and blue for each channel while sampling, then where all are 0: what a latent looks like without a network.
    pub preview: Vec<[f32; 3]>,
}

/// Means and standard deviations of a latent, each `(channels, height, width)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gaussian {
    /// The means.
    pub mean: Vec<f32>,
    /// The standard deviations.
    pub deviation: Vec<f32>,
}
