//! Z-Image and Z-Image-Turbo: Qwen3-4B's state before the last layer, text and picture in one row, the autoencoder of FLUX.1.

use std::collections::BTreeMap;
use std::sync::Arc;

use impasto_graph::{Graph, GraphError, HostTensor};

use super::autoencoder::{KlAutoencoder, LatentScale, open_autoencoder, open_tiny};
use super::flow::{
    EncoderSlot, FlowFamily, FlowModel, PatchOrder, all_encoders, check_channels, even_levels, patches, pixels,
    previews, shift_by_factor, vocabulary, with_end,
};
use super::{
    AssembledModel, Condition, Defaults, EncodedText, Family, Inputs, Latents, NetworkId, NoisyLatent, Pipeline,
    RunOptions, TextEncoder, TextRole, TokenLayout, TokenizerKind, VocabularySource,
};
use crate::discovery::Discovered;
use crate::latent::LatentShape;
use crate::layout::CheckpointLayout;
use crate::networks::{
    FILLED, LLM, Llm, LlmConfig, LlmLayout, LlmStates, Network, Recogniser, TAESD, VAE, VaeConfig, Z_IMAGE, ZImage,
    ZImageConfig,
};
use crate::{ElementTypes, ModelError};

/// Z-Image.
pub struct ZImageModels;

const NAME: &str = "Z-Image";
const SCALE: LatentScale = LatentScale { factor: 0.3611, shift: 0.1159 };
const SLOTS: [EncoderSlot; 1] =
    [EncoderSlot { name: "text encoder (Qwen3-4B)", flag: "--llm", accepts: |pick| pick.network::<Llm>().is_some() }];

/// Noise levels are shifted by this, whatever the size.
const SHIFT: f32 = 3.0;

fn template(text: &str, _: TextRole) -> String {
    format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")
}

impl Family for ZImageModels {
    fn networks(&self) -> Vec<&'static Recogniser> {
        vec![&LLM, &Z_IMAGE, &VAE, &TAESD]
    }

    fn recognises(&self, denoiser: &dyn Network) -> Option<&'static str> {
        denoiser.downcast::<ZImage>().map(|_| NAME)
    }

    fn open(&self, files: &mut Discovered) -> Result<AssembledModel, ModelError> {
        let pick = files.denoiser.clone().ok_or_else(|| files.no_denoiser())?;
        let transformer = pick.network::<ZImage>().ok_or_else(|| files.no_denoiser())?;
        let denoiser = pick.open(transformer.clone(), "diffusion model")?;
        let encoders = all_encoders(files, NAME, &SLOTS)?;
        let [(llm_pick, words)] = &encoders[..] else { unreachable!("a slot for each") };
        let llm = Llm::of(llm_pick)?.ok_or_else(|| files.no_denoiser())?;
        if llm.config.width != transformer.config.text {
            return Err(ModelError::Mismatch(format!(
                "{}: gives {} numbers a token, the diffusion model reads {}: Z-Image reads Qwen3-4B",
                llm_pick.path().display(),
                llm.config.width,
                transformer.config.text
            )));
        }
        let (vae_pick, vae, vae_network, scale) = open_autoencoder(files, "AutoencoderKL", SCALE)?;
        check_channels(&vae_pick, vae.latent, transformer.config.channels / 4)?;
        let tiny = open_tiny(files, [vae.latent, vae.factor()])?;
        let shift = files.scheduler.as_ref().map(|json| json.number("shift")).transpose()?.flatten();
        let turbo = files.title().to_lowercase().contains("turbo");
        let tokenizer = TokenizerKind::Qwen(vocabulary(words.as_ref(), llm_pick));
        let mut networks: BTreeMap<_, _> = [
            (NetworkId::TextEncoder(0), llm_pick.open(llm.clone(), SLOTS[0].name)?),
            (NetworkId::Denoiser, denoiser),
            (NetworkId::VaeEncoder, vae_network.clone()),
            (NetworkId::VaeDecoder, vae_network),
        ]
        .into();
        let taesd = tiny.as_ref().map(|(config, _)| config.clone());
        networks.extend(tiny.map(|(_, network)| (NetworkId::TinyDecoder, network)));
        let family = ZImageFamily { transformer, llm, shift: shift.unwrap_or(SHIFT) };
        let autoencoder = KlAutoencoder { vae, taesd, scale };
        Ok(AssembledModel { pipeline: family.pipeline(tokenizer, autoencoder, turbo), networks })
    }

    fn published(&self) -> Vec<(&'static str, Arc<dyn Pipeline>)> {
        let transformer = ZImage { config: ZImageConfig::published(), layout: CheckpointLayout::Original };
        let llm = Llm { config: LlmConfig::qwen3_4b(), layout: LlmLayout::Transformers };
        let family = ZImageFamily { transformer, llm, shift: SHIFT };
        let autoencoder = KlAutoencoder { vae: VaeConfig::sixteen_channels(), taesd: None, scale: SCALE };
        vec![("z-image", family.pipeline(TokenizerKind::Qwen(VocabularySource::Embedded), autoencoder, true))]
    }
}

/// The networks of a model.
struct ZImageFamily {
    transformer: ZImage,
    llm: Llm,
    shift: f32,
}

impl ZImageFamily {
    fn pipeline(self, tokenizer: TokenizerKind, autoencoder: KlAutoencoder, turbo: bool) -> Arc<dyn Pipeline> {
        let text = vec![TextEncoder {
            tokenizer,
            tokens: TokenLayout::Sequence { template, least: 1, most: 512 },
            table: "embed_tokens.weight",
        }];
        let (channels, factor) = (autoencoder.vae.latent, autoencoder.vae.factor());
        let latents = Latents {
            channels,
            pixels: factor,
            autoencoder_pixels: factor,
            multiple: 2 * factor,
            preview: previews::FLUX_1.to_vec(),
        };
        let defaults = Defaults {
            size: [1024; 2],
            steps: if turbo { 8 } else { 50 },
            guidance: if turbo { 1.0 } else { 5.0 },
            method: "euler",
            schedule: None,
            distilled_guidance: None,
            clip_skip: 1,
        };
        FlowModel { family: self, text, autoencoder: Box::new(autoencoder), latents, defaults }.shared()
    }

    fn states(&self) -> LlmStates {
        LlmStates { after: vec![self.llm.config.layers.saturating_sub(1)], norm: false, masked: false }
    }
}

impl FlowFamily for ZImageFamily {
    fn name(&self) -> &'static str {
        NAME
    }

    fn text_encoder(&self, _: usize, ids: [usize; 2], numbers: ElementTypes) -> Result<Graph, GraphError> {
        self.llm.graph(ids, &self.states(), numbers)
    }

    fn text_inputs(&self, _: usize, ids: HostTensor, lengths: &[usize]) -> Result<Inputs, GraphError> {
        self.llm.inputs(ids, lengths, &self.states())
    }

    fn condition(&self, text: &[EncodedText], _: TextRole) -> Result<Condition, GraphError> {
        let (states, length) = text[0].states_from(0)?;
        Ok(Condition([("text", states), ("length", HostTensor::f32([1], vec![length as f32])?)].into()))
    }

    /// Where the picture stands depends on the length of the text.
    fn texts_together(&self) -> bool {
        false
    }

    fn denoiser(
        &self,
        batch: usize,
        latent: LatentShape,
        tokens: &[usize],
        numbers: ElementTypes,
    ) -> Result<Graph, GraphError> {
        let filled = [latent.area() / 4, tokens[0]].map(|n| n.next_multiple_of(FILLED));
        self.transformer.graph(batch, filled, numbers)
    }

    fn denoiser_inputs(
        &self,
        latent: &NoisyLatent,
        conditions: &[Condition],
        _: &RunOptions,
    ) -> Result<Inputs, GraphError> {
        let shape = latent.shape;
        let text = Condition::batch(conditions, "text")?; // (1, tokens, width)
        let length = Condition::batch(conditions, "length")?.to_f32()[0] as usize;
        let (tokens, texts, width) = (shape.area() / 4, text.shape()[1], text.shape()[2]);
        let [of_picture, of_text] = [tokens, texts].map(|n| n.next_multiple_of(FILLED));
        let mut numbers = patches(latent.values, PatchOrder::ChannelsLast, shape);
        numbers.resize(of_picture * 4 * shape.channels, 0.0);
        let mut states = text.to_f32();
        states.resize(of_text * width, 0.0);
        let all = of_picture + of_text;
        let fills = |at: usize| at >= tokens && at < of_picture || at >= of_picture + length;
        let end = of_picture + length.next_multiple_of(FILLED);
        let hidden = (0..all).map(|at| if at < end { 0.0 } else { f32::NEG_INFINITY }).collect();
        let [cos, sin] = self.transformer.tables(length, [shape.height / 2, shape.width / 2])?;
        let pairs = self.transformer.config.head / 2;
        let table = |of: HostTensor| {
            let mut numbers = of.to_f32();
            numbers.resize(all * pairs, 0.0);
            HostTensor::f32([all, pairs], numbers)
        };
        let filled = (0..all).map(|at| if fills(at) { 1.0 } else { 0.0 }).collect();
        Ok(vec![
            ("tokens", HostTensor::f32([1, of_picture, 4 * shape.channels], numbers)?),
            ("text", HostTensor::f32([1, of_text, width], states)?),
            // Its time runs from noise to picture.
            ("time", HostTensor::f32([1], vec![1000.0 * (1.0 - latent.sigma)])?),
            ("filled", HostTensor::f32([1, all, 1], filled)?),
            ("hidden", HostTensor::f32([1, 1, 1, all], hidden)?),
            ("cos", table(cos)?),
            ("sin", table(sin)?),
        ])
    }

    /// It predicts the way to the picture: the velocity's opposite.
    fn predictions(&self, output: &HostTensor, latent: LatentShape) -> Vec<Vec<f32>> {
        let velocity: Vec<f32> = output.to_f32().iter().map(|x| -x).collect();
        vec![pixels(&velocity, PatchOrder::ChannelsLast, latent)]
    }

    fn levels(&self, _: LatentShape, steps: usize, shift: Option<f32>) -> Vec<f32> {
        let factor = f64::from(shift.unwrap_or(self.shift));
        with_end(even_levels(steps).into_iter().map(|s| shift_by_factor(factor, s)).collect())
    }
}
