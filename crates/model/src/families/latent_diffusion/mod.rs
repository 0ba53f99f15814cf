//! Latent diffusion with a UNet and CLIP: what Stable Diffusion 1, 2 and XL share.

mod assemble;
mod prediction;

use std::sync::Arc;

use impasto_graph::{Graph, GraphError, HostTensor, Unary};

pub(super) use assemble::{assemble, clip_in_role, is_second, unet_of};
pub(super) use prediction::looks_like_v;

use super::autoencoder::{KlAutoencoder, LatentCoder as _, LatentScale};
use super::{
    Condition, Defaults, EncodedText, Gaussian, Inputs, Latents, Levels, NetworkId, NoisyLatent, Pipeline, RunOptions,
    TextEncoder, TextRole, TokenLayout, TokenizerKind,
};
use crate::discovery::NetworkInFile;
use crate::latent::{LatentShape, channels_first, channels_last};
use crate::networks::{Clip, ClipConfig, HiddenState, TaesdConfig, UnetConfig, VaeConfig, clip, unet};
use crate::{ElementTypes, ModelError, NoiseLevels, Prediction, TrainingNoise};

/// What a version of Stable Diffusion says of itself.
pub(super) struct Version {
    pub name: &'static str,
    /// Its text encoders.
    pub encoders: &'static [EncoderRole],
    /// Which state of a text encoder the denoiser was trained with.
    pub hidden: fn(&Clip) -> HiddenState,
    /// What sd-cli's users call that state.
    pub clip_skip: usize,
    /// It was trained with zeros where there is no negative prompt; diffusers, webui and sd-cli all do this.
    pub zero_empty_negative: bool,
    /// Whether weights that say nothing else are those of a model that predicts the velocity.
    pub looks_like_v: fn(&NetworkInFile, &UnetConfig) -> Result<bool, ModelError>,
    /// The usual factor of latents.
    pub factor: f32,
    /// Red, green and blue for each channel of a latent, and where there is none of any. Fitted by users to what the autoencoders give.
    pub preview: [[f32; 3]; 5],
    /// The side of pictures that suits a model of this prediction, made for few steps or not.
    pub side: fn(Prediction, bool) -> usize,
}

/// What a text encoder is to a version.
pub(super) struct EncoderRole {
    pub name: &'static str,
    /// The flag that names its file.
    pub flag: &'static str,
    pub activation: Unary,
    /// The denoiser reads its pooled text. Otherwise the layers after the wanted state need not be computed.
    pub pooled: bool,
}

pub(super) const CLIP_L: EncoderRole =
    EncoderRole { name: "text encoder (CLIP-L)", flag: "--clip_l", activation: Unary::QuickGelu, pooled: false };
pub(super) const OPEN_CLIP_G: EncoderRole =
    EncoderRole { name: "text encoder (OpenCLIP-G)", flag: "--clip_g", activation: Unary::Gelu, pooled: true };
pub(super) const OPEN_CLIP_H: EncoderRole =
    EncoderRole { name: "text encoder (OpenCLIP-H)", flag: "--clip_g", activation: Unary::Gelu, pooled: false };

/// A model of Stable Diffusion 1, 2 or XL.
pub struct LatentDiffusion {
    /// The denoiser.
    pub unet: UnetConfig,
    /// The text encoders: CLIP-L, then OpenCLIP-G; or OpenCLIP-H alone.
    pub text: Vec<ClipConfig>,
    /// Which state of each text encoder the denoiser was trained with.
    pub hidden: Vec<HiddenState>,
    /// What the denoiser predicts.
    pub prediction: Prediction,
    /// It was trained on a schedule that ends in pure noise, and wants one.
    pub zero_snr: bool,
    /// It was made to be sampled in a few steps without guidance, as far as its name or its files say so.
    pub turbo: bool,
    autoencoder: KlAutoencoder,
    version: &'static Version,
    encoders: Vec<TextEncoder>,
    levels: NoiseLevels,
    latents: Latents,
    defaults: Defaults,
}

/// What distinguishes one model of a version from another.
pub(super) struct Sizes {
    pub unet: UnetConfig,
    pub text: Vec<(ClipConfig, HiddenState)>,
    pub vae: VaeConfig,
    pub taesd: Option<TaesdConfig>,
    pub scale: LatentScale,
    pub noise: NoiseSettings,
    pub turbo: bool,
}

/// What a model's files say of its noise.
pub(super) struct NoiseSettings {
    pub prediction: Prediction,
    /// The schedule ends in pure noise.
    pub zero_snr: bool,
    /// The schedule's name, where a folder's scheduler says one.
    pub schedule: Option<&'static str>,
    pub steps_offset: usize,
}

impl LatentDiffusion {
    pub(super) fn new(version: &'static Version, sizes: Sizes) -> Result<LatentDiffusion, ModelError> {
        let Sizes { unet, text, vae, taesd, scale, noise, turbo } = sizes;
        let NoiseSettings { prediction, zero_snr, steps_offset, .. } = noise;
        let (text, hidden): (Vec<ClipConfig>, Vec<HiddenState>) = text.into_iter().unzip();
        let encoder = |config: &ClipConfig| TextEncoder {
            tokenizer: match config.activation {
                // OpenCLIP, which has the exact GELU, fills up with zeros, CLIP with the end of the text.
                Unary::Gelu => TokenizerKind::ClipPaddedWithZero,
                _ => TokenizerKind::Clip,
            },
            tokens: TokenLayout::Chunks(config.tokens),
            table: "text_model.embeddings.token_embedding.weight",
        };
        let latents = Latents {
            channels: vae.latent,
            pixels: vae.factor(),
            autoencoder_pixels: vae.factor(),
            multiple: vae.factor(),
            preview: version.preview.to_vec(),
        };
        let defaults = Defaults {
            size: [(version.side)(prediction, turbo); 2],
            steps: if turbo { 4 } else { 20 },
            guidance: if turbo { 1.0 } else { 7.0 },
            method: "euler_a",
            schedule: noise.schedule,
            clip_skip: version.clip_skip,
            distilled_guidance: None,
        };
        Ok(LatentDiffusion {
            encoders: text.iter().map(encoder).collect(),
            levels: NoiseLevels::new(&TrainingNoise {
                zero_terminal_snr: zero_snr,
                steps_offset,
                ..TrainingNoise::default()
            })?,
            unet,
            text,
            hidden,
            autoencoder: KlAutoencoder { vae, taesd, scale },
            prediction,
            zero_snr,
            turbo,
            version,
            latents,
            defaults,
        })
    }

    /// The autoencoder.
    pub fn vae(&self) -> &VaeConfig {
        &self.autoencoder.vae
    }

    /// The tiny autoencoder.
    pub fn taesd(&self) -> Option<&TaesdConfig> {
        self.autoencoder.taesd.as_ref()
    }

    /// The scale of latents.
    pub fn scale(&self) -> LatentScale {
        self.autoencoder.scale
    }

    /// A published model: networks in their true sizes, and the usual values for all else.
    pub(super) fn published(version: &'static Version, unet: UnetConfig, text: &[ClipConfig]) -> Arc<dyn Pipeline> {
        let state = HiddenState { skip: 0, norm: true };
        let sizes = Sizes {
            unet,
            text: text.iter().map(|config| (config.clone(), state)).collect(),
            vae: VaeConfig::sd(),
            taesd: None,
            scale: LatentScale { factor: version.factor, shift: 0.0 },
            noise: NoiseSettings { prediction: Prediction::Epsilon, zero_snr: false, schedule: None, steps_offset: 1 },
            turbo: false,
        };
        match LatentDiffusion::new(version, sizes) {
            Ok(pipeline) => Arc::new(pipeline),
            Err(error) => unreachable!("the noise of Stable Diffusion is tested: {error}"),
        }
    }

    /// What XL's denoiser reads besides the text: the pooled text, then the sizes as waves, `(width)`.
    fn size_conditioning(pooled: &[f32], width: usize, [height, across]: [usize; 2]) -> Vec<f32> {
        let waves = width.saturating_sub(pooled.len()) / 6;
        // Size of the original, what was cut off above and left, and the size of the target.
        let sizes = [height, across, 0, 0, height, across];
        let mut numbers = pooled.to_vec();
        for size in sizes {
            let half = waves / 2;
            let angle = |i: usize| size as f64 * (-(10_000f64.ln()) * i as f64 / half as f64).exp();
            numbers.extend((0..half).map(|i| angle(i).cos() as f32));
            numbers.extend((0..half).map(|i| angle(i).sin() as f32));
        }
        numbers
    }
}

impl Pipeline for LatentDiffusion {
    fn name(&self) -> &'static str {
        self.version.name
    }

    fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    fn text(&self) -> &[TextEncoder] {
        &self.encoders
    }

    fn clip_layers(&self) -> usize {
        let layers = self.text.iter().zip(&self.hidden);
        let most =
            layers.map(|(config, usual)| (self.defaults.clip_skip + config.layers).saturating_sub(1 + usual.skip));
        most.min().unwrap_or(0)
    }

    /// The state that the denoiser was trained with, or as many layers away from that as the user says.
    fn text_encoder(
        &self,
        encoder: usize,
        [sequences, _]: [usize; 2],
        options: &RunOptions,
        numbers: ElementTypes,
    ) -> Result<Graph, GraphError> {
        let usual = self.hidden[encoder];
        let extra = options.clip_skip as isize - self.defaults.clip_skip as isize;
        let hidden = HiddenState { skip: usual.skip.saturating_add_signed(extra), ..usual };
        clip(&self.text[encoder], sequences, hidden, numbers)
    }

    fn text_inputs(&self, _: usize, ids: HostTensor, _: &[usize]) -> Result<Inputs, GraphError> {
        Ok(vec![("ids", ids)])
    }

    /// The states of all encoders side by side, and for XL the pooled text of the last with the sizes.
    fn condition(&self, text: &[EncodedText], role: TextRole, options: &RunOptions) -> Result<Condition, GraphError> {
        let blank = self.version.zero_empty_negative && role == TextRole::Negative { empty: true };
        let zeroed = |numbers: Vec<f32>| if blank { vec![0.0; numbers.len()] } else { numbers };
        let states: Vec<Vec<f32>> = text.iter().map(|encoded| encoded.outputs[0].to_f32()).collect();
        let tokens = text.first().map_or(0, |encoded| encoded.ids.len());
        let mut context = vec![];
        for token in 0..tokens {
            for (config, states) in self.text.iter().zip(&states) {
                context.extend(states.get(token * config.width..(token + 1) * config.width).unwrap_or_default());
            }
        }
        let width = context.len() / tokens.max(1);
        let mut condition = Condition::default();
        condition.0.insert("context", HostTensor::f32([tokens, width], zeroed(context))?);
        if let Some(width) = self.unet.added {
            let pooled = text.iter().rev().find_map(|text| text.at_end(1)).unwrap_or_default();
            let numbers = LatentDiffusion::size_conditioning(&zeroed(pooled), width, options.size);
            condition.0.insert("added", HostTensor::f32([numbers.len()], numbers)?);
        }
        Ok(condition)
    }

    fn reads_negative(&self, guidance: f32) -> bool {
        guidance != 1.0
    }

    fn denoiser(
        &self,
        batch: usize,
        latent: LatentShape,
        tokens: &[usize],
        numbers: ElementTypes,
    ) -> Result<Graph, GraphError> {
        unet(&self.unet, batch, [latent.height, latent.width], tokens[0], numbers)
    }

    fn denoiser_inputs(
        &self,
        latent: &NoisyLatent,
        conditions: &[Condition],
        options: &RunOptions,
    ) -> Result<Inputs, GraphError> {
        let (n, LatentShape { height, width, .. }) = (conditions.len(), latent.shape);
        let mut seen = options.prediction.input(latent.values, latent.sigma);
        seen.extend(latent.extra.unwrap_or_default());
        let channels = seen.len() / latent.shape.area();
        let seen = channels_last(&seen, channels).repeat(n);
        let mut inputs = vec![
            ("latent", HostTensor::f32([n, height, width, channels], seen)?),
            ("time", HostTensor::f32([n], vec![self.levels.timestep(latent.sigma); n])?),
            ("context", Condition::batch(conditions, "context")?),
        ];
        if self.unet.added.is_some() {
            inputs.push(("added", Condition::batch(conditions, "added")?));
        }
        Ok(inputs)
    }

    fn predictions(&self, output: &HostTensor, latent: LatentShape) -> Vec<Vec<f32>> {
        output.to_f32().chunks_exact(latent.len()).map(|one| channels_first(one, latent.channels)).collect()
    }

    fn prediction(&self) -> Prediction {
        self.prediction
    }

    fn levels(&self, _: LatentShape, _: usize, _: Option<f32>) -> Levels {
        Levels::Training(self.levels.clone())
    }

    fn latents(&self) -> &Latents {
        &self.latents
    }

    fn inpaints(&self) -> bool {
        self.unet.in_channels == 2 * self.vae().latent + 1
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
