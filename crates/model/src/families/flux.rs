//! FLUX.1: dev, Krea and schnell. Pooled CLIP-L, T5-XXL in one row with the picture, 16 latent channels, four pixels a token.

use std::collections::BTreeMap;
use std::sync::Arc;

use impasto_graph::{Graph, GraphError, HostTensor, Unary};

use super::autoencoder::{KlAutoencoder, LatentScale, open_autoencoder, open_tiny};
use super::flow::{
    EncoderSlot, FlowFamily, FlowModel, PatchOrder, all_encoders, check_channels, even_levels, patches, pixels,
    previews, shift_exponentially, vocabulary, with_end,
};
use super::latent_diffusion::clip_in_role;
use super::{
    AssembledModel, Condition, Defaults, EncodedText, Family, Inputs, Latents, NetworkId, NoisyLatent, Pipeline,
    RunOptions, TextEncoder, TextRole, TokenLayout, TokenizerKind, VocabularySource,
};
use crate::discovery::{Discovered, NetworkInFile};
use crate::latent::LatentShape;
use crate::layout::CheckpointLayout;
use crate::networks::{
    CLIP, Clip, ClipConfig, FLUX, Flux, FluxConfig, HiddenState, Network, Recogniser, T5, T5_ENCODER, T5Config,
    T5Layout, TAESD, VAE, VaeConfig, clip,
};
use crate::{ElementTypes, ModelError};

/// FLUX.1.
pub struct Flux1;

const NAME: &str = "FLUX.1";
const SCALE: LatentScale = LatentScale { factor: 0.3611, shift: 0.1159 };
const SLOTS: [EncoderSlot; 2] = [
    EncoderSlot { name: "text encoder (CLIP-L)", flag: "--clip_l", accepts: |pick| pick.network::<Clip>().is_some() },
    EncoderSlot { name: "text encoder (T5-XXL)", flag: "--t5xxl", accepts: |pick| pick.network::<T5>().is_some() },
];

impl Family for Flux1 {
    fn networks(&self) -> Vec<&'static Recogniser> {
        vec![&CLIP, &T5_ENCODER, &FLUX, &VAE, &TAESD]
    }

    fn recognises(&self, denoiser: &dyn Network) -> Option<&'static str> {
        denoiser.downcast::<Flux>().map(|_| NAME)
    }

    fn open(&self, files: &mut Discovered) -> Result<AssembledModel, ModelError> {
        let pick = files.denoiser.clone().ok_or_else(|| files.no_denoiser())?;
        let flux = pick.network::<Flux>().ok_or_else(|| files.no_denoiser())?;
        refuse_variants(files, &pick, &flux.config)?;
        let denoiser = pick.open(flux.clone(), "diffusion model")?;
        let encoders = all_encoders(files, NAME, &SLOTS)?;
        let [(clip_pick, clip_words), (t5_pick, t5_words)] = &encoders[..] else { unreachable!("a slot for each") };
        let clip = clip_in_role(clip_pick, Unary::QuickGelu, false)?.ok_or_else(|| files.no_denoiser())?;
        let t5 = T5::of(t5_pick)?.ok_or_else(|| files.no_denoiser())?;
        check_widths(&flux.config, &clip.config, &t5.config)?;
        let (vae_pick, vae, vae_network, scale) = open_autoencoder(files, "AutoencoderKL", SCALE)?;
        check_channels(&vae_pick, vae.latent, flux.config.out_channels / 4)?;
        let tiny = open_tiny(files, [vae.latent, vae.factor()])?;

        let dynamic = files.scheduler.as_ref().map(|json| json.flag("use_dynamic_shifting")).transpose()?.flatten();
        let shifted = dynamic.unwrap_or(flux.config.guidance);
        let mut networks: BTreeMap<_, _> = [
            (NetworkId::TextEncoder(0), clip_pick.open(clip.clone(), SLOTS[0].name)?),
            (NetworkId::TextEncoder(1), t5_pick.open(t5.clone(), SLOTS[1].name)?),
            (NetworkId::Denoiser, denoiser),
            (NetworkId::VaeEncoder, vae_network.clone()),
            (NetworkId::VaeDecoder, vae_network),
        ]
        .into();
        let taesd = tiny.as_ref().map(|(config, _)| config.clone());
        networks.extend(tiny.map(|(_, network)| (NetworkId::TinyDecoder, network)));
        let family = FluxFamily { flux, clip: clip.config, t5, shifted };
        let words = [
            clip_words.clone().map_or(TokenizerKind::Clip, TokenizerKind::Folder),
            TokenizerKind::T5(vocabulary(t5_words.as_ref(), t5_pick)),
        ];
        Ok(AssembledModel { pipeline: family.pipeline(words, KlAutoencoder { vae, taesd, scale }), networks })
    }

    fn published(&self) -> Vec<(&'static str, Arc<dyn Pipeline>)> {
        let flux = Flux { config: FluxConfig::dev(), layout: CheckpointLayout::Original };
        let family = FluxFamily {
            flux,
            clip: ClipConfig::clip_l(),
            t5: T5 { config: T5Config::xxl(), layout: T5Layout::Transformers },
            shifted: true,
        };
        let words = [TokenizerKind::Clip, TokenizerKind::T5(VocabularySource::Embedded)];
        let autoencoder = KlAutoencoder { vae: VaeConfig::sixteen_channels(), taesd: None, scale: SCALE };
        vec![("flux-dev", family.pipeline(words, autoencoder))]
    }
}

/// Kin that read more than text.
fn refuse_variants(files: &Discovered, pick: &NetworkInFile, config: &FluxConfig) -> Result<(), ModelError> {
    let names = [files.title(), pick.metadata("modelspec.architecture").unwrap_or_default().into()];
    let named = |word: &str| names.iter().any(|name| name.to_lowercase().contains(word));
    let what = match config.in_channels / config.out_channels.max(1) {
        _ if named("kontext") => "FLUX.1 Kontext, which changes a picture by words",
        1 => return Ok(()),
        6 => "FLUX.1 Fill, which paints into a picture",
        2 => "FLUX.1 Canny or Depth, which is guided by a picture",
        _ => "a variant of FLUX.1 that reads more than text",
    };
    Err(ModelError::Unsupported { path: files.named.clone(), what: format!("it is {what}: not supported yet") })
}

/// What the encoders give must be what the transformer reads.
fn check_widths(flux: &FluxConfig, clip: &ClipConfig, t5: &T5Config) -> Result<(), ModelError> {
    if (clip.width, t5.width) == (flux.pooled, flux.text) {
        return Ok(());
    }
    Err(ModelError::Mismatch(format!(
        "the text encoders give {} (CLIP-L) and {} (T5) numbers a token, the diffusion model reads {} and {}: they belong to different models",
        clip.width, t5.width, flux.pooled, flux.text
    )))
}

/// The sizes of a model's networks.
struct FluxFamily {
    flux: Flux,
    clip: ClipConfig,
    t5: T5,
    /// Noise levels are shifted by the size of the picture; schnell's are not.
    shifted: bool,
}

impl FluxFamily {
    fn pipeline(self, [clip, t5]: [TokenizerKind; 2], autoencoder: KlAutoencoder) -> Arc<dyn Pipeline> {
        let guided = self.flux.config.guidance;
        let longest = if guided { 512 } else { 256 };
        let text = vec![
            TextEncoder {
                tokenizer: clip,
                tokens: TokenLayout::Single(self.clip.tokens),
                table: "text_model.embeddings.token_embedding.weight",
            },
            TextEncoder {
                tokenizer: t5,
                tokens: TokenLayout::Sequence { template: |text, _| text.into(), least: longest, most: longest },
                table: "shared.weight",
            },
        ];
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
            steps: if guided { 28 } else { 4 },
            guidance: 1.0,
            method: "euler",
            schedule: None,
            distilled_guidance: guided.then_some(3.5),
            clip_skip: 1,
        };
        FlowModel { family: self, text, autoencoder: Box::new(autoencoder), latents, defaults }.shared()
    }
}

impl FlowFamily for FluxFamily {
    fn name(&self) -> &'static str {
        NAME
    }

    fn text_encoder(&self, encoder: usize, ids: [usize; 2], numbers: ElementTypes) -> Result<Graph, GraphError> {
        match encoder {
            0 => clip(&self.clip, ids[0], HiddenState { skip: 0, norm: true }, numbers),
            _ => self.t5.graph(ids, false, numbers),
        }
    }

    fn text_inputs(&self, encoder: usize, ids: HostTensor, _: &[usize]) -> Result<Inputs, GraphError> {
        match encoder {
            0 => Ok(vec![("ids", ids)]),
            // What fills a text up is read like the text.
            _ => self.t5.inputs(ids, None),
        }
    }

    fn condition(&self, text: &[EncodedText], _: TextRole) -> Result<Condition, GraphError> {
        let pooled = text[0].at_end(0).unwrap_or_default();
        let states = &text[1].outputs[0]; // (1, tokens, text)
        let condition = [
            ("pooled", HostTensor::f32([pooled.len()], pooled)?),
            ("text", HostTensor::f32(states.shape()[1..].to_vec(), states.to_f32())?),
        ];
        Ok(Condition(condition.into()))
    }

    fn denoiser(
        &self,
        batch: usize,
        latent: LatentShape,
        tokens: &[usize],
        numbers: ElementTypes,
    ) -> Result<Graph, GraphError> {
        self.flux.graph(batch, [latent.area() / 4, tokens[1]], numbers)
    }

    fn denoiser_inputs(
        &self,
        latent: &NoisyLatent,
        conditions: &[Condition],
        options: &RunOptions,
    ) -> Result<Inputs, GraphError> {
        let (n, shape) = (conditions.len(), latent.shape);
        let tokens = patches(latent.values, PatchOrder::ChannelsFirst, shape).repeat(n);
        let text = Condition::batch(conditions, "text")?;
        let [cos, sin] = self.flux.tables(text.shape()[1], [shape.height / 2, shape.width / 2])?;
        let each = |number: f32| HostTensor::f32([n], vec![1000.0 * number; n]);
        let mut inputs = vec![
            ("tokens", HostTensor::f32([n, shape.area() / 4, 4 * shape.channels], tokens)?),
            ("text", text),
            ("pooled", Condition::batch(conditions, "pooled")?),
            ("time", each(latent.sigma)?),
            ("cos", cos),
            ("sin", sin),
        ];
        if self.flux.config.guidance {
            inputs.push(("guidance", each(options.distilled_guidance)?));
        }
        Ok(inputs)
    }

    fn predictions(&self, output: &HostTensor, latent: LatentShape) -> Vec<Vec<f32>> {
        let output = output.to_f32();
        output.chunks_exact(latent.len()).map(|one| pixels(one, PatchOrder::ChannelsFirst, latent)).collect()
    }

    /// The more tokens, the more noise: a line through 0.5 at 256 and 1.15 at 4096.
    fn levels(&self, latent: LatentShape, steps: usize, shift: Option<f32>) -> Vec<f32> {
        let by_size = 0.5 + (1.15 - 0.5) * ((latent.area() / 4) as f64 - 256.0) / (4096.0 - 256.0);
        let mu = shift.map_or(if self.shifted { by_size } else { 0.0 }, f64::from);
        with_end(even_levels(steps).into_iter().map(|s| shift_exponentially(mu, s)).collect())
    }
}
