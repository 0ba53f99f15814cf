//! Flow matching with a transformer: what FLUX, Z-Image, Stable Diffusion 3 and Qwen-Image share.

mod encoders;
mod patches;
pub(super) mod previews;
mod schedule;

use std::sync::Arc;

use impasto_graph::{Graph, GraphError, HostTensor};

pub(super) use encoders::{EncoderSlot, all_encoders, check_channels, encoders_by_slot, vocabulary};
pub(super) use patches::{PatchOrder, patches, pixels};
pub(super) use schedule::{even_levels, shift_by_factor, shift_exponentially, with_end};

use super::autoencoder::LatentCoder;
use super::{
    Condition, Defaults, EncodedText, Gaussian, Inputs, Latents, Levels, NetworkId, NoisyLatent, Pipeline, RunOptions,
    TextEncoder, TextRole,
};
use crate::latent::LatentShape;
use crate::{ElementTypes, Prediction};

/// What one family of flow matching is: its texts, its transformer, its noise levels.
pub(super) trait FlowFamily: Send + Sync + 'static {
    /// The family, in the user's words.
    fn name(&self) -> &'static str;

    fn text_encoder(&self, encoder: usize, ids: [usize; 2], numbers: ElementTypes) -> Result<Graph, GraphError>;

    fn text_inputs(&self, encoder: usize, ids: HostTensor, lengths: &[usize]) -> Result<Inputs, GraphError>;

    fn condition(&self, text: &[EncodedText], role: TextRole) -> Result<Condition, GraphError>;

    /// Whether texts have one length, so that several may go through the transformer at once.
    fn texts_together(&self) -> bool {
        true
    }

    fn denoiser(
        &self,
        batch: usize,
        latent: LatentShape,
        tokens: &[usize],
        numbers: ElementTypes,
    ) -> Result<Graph, GraphError>;

    fn denoiser_inputs(
        &self,
        latent: &NoisyLatent,
        conditions: &[Condition],
        options: &RunOptions,
    ) -> Result<Inputs, GraphError>;

    fn predictions(&self, output: &HostTensor, latent: LatentShape) -> Vec<Vec<f32>>;

    fn guide(&self, [prompt, negative]: [&[f32]; 2], _: LatentShape, guidance: f32) -> Vec<f32> {
        prompt.iter().zip(negative).map(|(with, without)| without + guidance * (with - without)).collect()
    }

    /// The noise levels of a run of so many steps, the last 0, with the shift that is asked for.
    fn levels(&self, latent: LatentShape, steps: usize, shift: Option<f32>) -> Vec<f32>;
}

/// A model of such a family.
pub(super) struct FlowModel<F> {
    pub family: F,
    pub text: Vec<TextEncoder>,
    pub autoencoder: Box<dyn LatentCoder>,
    pub latents: Latents,
    pub defaults: Defaults,
}

impl<F: FlowFamily> FlowModel<F> {
    /// It as a pipeline.
    pub(super) fn shared(self) -> Arc<dyn Pipeline> {
        Arc::new(self)
    }
}

impl<F: FlowFamily> Pipeline for FlowModel<F> {
    fn name(&self) -> &'static str {
        self.family.name()
    }

    fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    fn text(&self) -> &[TextEncoder] {
        &self.text
    }

    fn text_encoder(
        &self,
        encoder: usize,
        ids: [usize; 2],
        _: &RunOptions,
        numbers: ElementTypes,
    ) -> Result<Graph, GraphError> {
        self.family.text_encoder(encoder, ids, numbers)
    }

    fn text_inputs(&self, encoder: usize, ids: HostTensor, lengths: &[usize]) -> Result<Inputs, GraphError> {
        self.family.text_inputs(encoder, ids, lengths)
    }

    fn condition(&self, text: &[EncodedText], role: TextRole, _: &RunOptions) -> Result<Condition, GraphError> {
        self.family.condition(text, role)
    }

    fn reads_negative(&self, guidance: f32) -> bool {
        guidance != 1.0
    }

    fn texts_together(&self) -> bool {
        self.family.texts_together()
    }

    fn denoiser(
        &self,
        batch: usize,
        latent: LatentShape,
        tokens: &[usize],
        numbers: ElementTypes,
    ) -> Result<Graph, GraphError> {
        self.family.denoiser(batch, latent, tokens, numbers)
    }

    fn denoiser_inputs(
        &self,
        latent: &NoisyLatent,
        conditions: &[Condition],
        options: &RunOptions,
    ) -> Result<Inputs, GraphError> {
        self.family.denoiser_inputs(latent, conditions, options)
    }

    fn predictions(&self, output: &HostTensor, latent: LatentShape) -> Vec<Vec<f32>> {
        self.family.predictions(output, latent)
    }

    fn guide(&self, predictions: [&[f32]; 2], latent: LatentShape, guidance: f32) -> Vec<f32> {
        self.family.guide(predictions, latent, guidance)
    }

    fn prediction(&self) -> Prediction {
        Prediction::Flow
    }

    fn levels(&self, latent: LatentShape, steps: usize, shift: Option<f32>) -> Levels {
        Levels::Fixed(self.family.levels(latent, steps, shift))
    }

    fn latents(&self) -> &Latents {
        &self.latents
    }

    fn autoencoder(&self, network: NetworkId, grid: [usize; 2], numbers: ElementTypes) -> Result<Graph, GraphError> {
        self.autoencoder.graph(network, grid, numbers)
    }

    fn decoder_input(&self, network: NetworkId, latent: &[f32], shape: LatentShape) -> Vec<f32> {
        self.autoencoder.decoder_input(network, latent, shape)
    }

    fn encoder_output(&self, output: &[f32], shape: LatentShape) -> Gaussian {
        self.autoencoder.encoder_output(output, shape)
    }
}
