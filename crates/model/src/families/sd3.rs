//! Stable Diffusion 3 and 3.5: CLIP-L and OpenCLIP-G side by side, T5-XXL after them, each of which may be absent; 16 latent channels.

use std::collections::BTreeMap;
use std::sync::Arc;

use impasto_graph::{Graph, GraphError, HostTensor, Unary};

use super::autoencoder::{KlAutoencoder, LatentScale, open_autoencoder, open_tiny};
use super::flow::{
    EncoderSlot, FlowFamily, FlowModel, PatchOrder, check_channels, encoders_by_slot, pixels, previews,
    shift_by_factor, vocabulary, with_end,
};
use super::latent_diffusion::{clip_in_role, is_second};
use super::{
    AssembledModel, Condition, Defaults, EncodedText, Family, Inputs, Latents, NetworkId, NoisyLatent, Pipeline,
    RunOptions, TextEncoder, TextRole, TokenLayout, TokenizerKind, VocabularySource,
};
use crate::discovery::Discovered;
use crate::latent::{LatentShape, channels_last};
use crate::layout::CheckpointLayout;
use crate::networks::{
    CLIP, Clip, ClipConfig, ClipLayout, HiddenState, Network, Recogniser, SD3, Sd3, Sd3Config, T5, T5_ENCODER,
    T5Config, T5Layout, TAESD, VAE, VaeConfig, clip,
};
use crate::{ElementTypes, ModelError};

/// Stable Diffusion 3.
pub struct StableDiffusion3;

const NAME: &str = "Stable Diffusion 3";
const SCALE: LatentScale = LatentScale { factor: 1.5305, shift: 0.0609 };
const SLOTS: [EncoderSlot; 3] = [
    EncoderSlot { name: "text encoder (CLIP-L)", flag: "--clip_l", accepts: is_first_clip },
    EncoderSlot {
        name: "text encoder (OpenCLIP-G)",
        flag: "--clip_g",
        accepts: |pick| pick.network::<Clip>().is_some() && is_second(pick),
    },
    EncoderSlot { name: "text encoder (T5-XXL)", flag: "--t5xxl", accepts: |pick| pick.network::<T5>().is_some() },
];
const SHIFT: f32 = 3.0;
const CLIP_TOKENS: usize = 77;
const T5_TOKENS: usize = 256;

/// Both encoders of CLIP have a projection here; the names of OpenCLIP tell the second, else their order does.
fn is_first_clip(pick: &crate::discovery::NetworkInFile) -> bool {
    pick.network::<Clip>().is_some_and(|clip| clip.layout != ClipLayout::OpenClip)
}

impl Family for StableDiffusion3 {
    fn networks(&self) -> Vec<&'static Recogniser> {
        vec![&CLIP, &T5_ENCODER, &SD3, &VAE, &TAESD]
    }

    fn recognises(&self, denoiser: &dyn Network) -> Option<&'static str> {
        denoiser.downcast::<Sd3>().map(|_| NAME)
    }

    fn open(&self, files: &mut Discovered) -> Result<AssembledModel, ModelError> {
        let pick = files.denoiser.clone().ok_or_else(|| files.no_denoiser())?;
        let transformer = pick.network::<Sd3>().ok_or_else(|| files.no_denoiser())?;
        let denoiser = pick.open(transformer.clone(), "diffusion model")?;
        let found = encoders_by_slot(files, NAME, &SLOTS)?;
        if found.iter().all(Option::is_none) {
            let parts: Vec<_> = SLOTS.iter().map(|slot| (slot.name, slot.flag)).collect();
            return Err(files.missing(&parts));
        }
        let (mut networks, mut encoders) = (BTreeMap::new(), vec![]);
        for (slot, found) in found.iter().enumerate() {
            let Some((pick, words)) = found else { continue };
            let id = NetworkId::TextEncoder(encoders.len());
            let (encoder, tokenizer) = match slot {
                2 => {
                    let t5 = T5::of(pick)?.ok_or_else(|| files.no_denoiser())?;
                    networks.insert(id, pick.open(t5.clone(), SLOTS[slot].name)?);
                    (Encoder::T5(t5), TokenizerKind::T5(vocabulary(words.as_ref(), pick)))
                }
                _ => {
                    let activation = if slot == 0 { Unary::QuickGelu } else { Unary::Gelu };
                    let clip = clip_in_role(pick, activation, true)?.ok_or_else(|| files.no_denoiser())?;
                    networks.insert(id, pick.open(clip.clone(), SLOTS[slot].name)?);
                    let usual = [TokenizerKind::Clip, TokenizerKind::ClipPaddedWithZero][slot].clone();
                    let tokenizer = words.clone().map_or(usual, TokenizerKind::Folder);
                    (Encoder::Clip(clip.config, slot), tokenizer)
                }
            };
            encoders.push((encoder, tokenizer));
        }
        let (vae_pick, vae, vae_network, scale) = open_autoencoder(files, "AutoencoderKL", SCALE)?;
        check_channels(&vae_pick, vae.latent, transformer.config.channels)?;
        let tiny = open_tiny(files, [vae.latent, vae.factor()])?;
        let shift = files.scheduler.as_ref().map(|json| json.number("shift")).transpose()?.flatten();
        let turbo = files.title().to_lowercase().contains("turbo");
        networks.insert(NetworkId::Denoiser, denoiser);
        networks.extend([NetworkId::VaeEncoder, NetworkId::VaeDecoder].map(|id| (id, vae_network.clone())));
        let taesd = tiny.as_ref().map(|(config, _)| config.clone());
        networks.extend(tiny.map(|(_, network)| (NetworkId::TinyDecoder, network)));
        let family = Sd3Family::new(transformer, &encoders, shift.unwrap_or(SHIFT))?;
        let autoencoder = KlAutoencoder { vae, taesd, scale };
        Ok(AssembledModel { pipeline: family.pipeline(encoders, autoencoder, turbo), networks })
    }

    fn published(&self) -> Vec<(&'static str, Arc<dyn Pipeline>)> {
        let transformer = Sd3 { config: Sd3Config::large(), layout: CheckpointLayout::Original };
        let clip_l = ClipConfig { projection: Some(768), ..ClipConfig::clip_l() };
        let t5 = T5 { config: T5Config::xxl(), layout: T5Layout::Transformers };
        let encoders = vec![
            (Encoder::Clip(clip_l, 0), TokenizerKind::Clip),
            (Encoder::Clip(ClipConfig::open_clip_g(), 1), TokenizerKind::ClipPaddedWithZero),
            (Encoder::T5(t5), TokenizerKind::T5(VocabularySource::Embedded)),
        ];
        let autoencoder = KlAutoencoder { vae: VaeConfig::sixteen_channels(), taesd: None, scale: SCALE };
        match Sd3Family::new(transformer, &encoders, SHIFT) {
            Ok(family) => vec![("sd35-large", family.pipeline(encoders, autoencoder, false))],
            Err(error) => unreachable!("its networks belong together: {error}"),
        }
    }
}

/// A text encoder, and which of CLIP's it is.
#[derive(Clone)]
enum Encoder {
    Clip(ClipConfig, usize),
    T5(T5),
}

/// The networks of a model.
struct Sd3Family {
    transformer: Sd3,
    encoders: Vec<Encoder>,
    /// Widths of the two encoders of CLIP: of a token and of the pooled text. Those of an absent one are what the others leave.
    widths: [[usize; 2]; 2],
    shift: f32,
}

impl Sd3Family {
    fn new(transformer: Sd3, encoders: &[(Encoder, TokenizerKind)], shift: f32) -> Result<Sd3Family, ModelError> {
        let encoders: Vec<Encoder> = encoders.iter().map(|(encoder, _)| encoder.clone()).collect();
        let config = &transformer.config;
        let mut widths = [[0; 2]; 2];
        for encoder in &encoders {
            match encoder {
                Encoder::Clip(clip, slot) => {
                    let Some(projection) = clip.projection else {
                        let name = SLOTS[*slot].name;
                        return Err(ModelError::Mismatch(format!(
                            "{name}: has no text projection, which {NAME} reads"
                        )));
                    };
                    widths[*slot] = [clip.width, projection];
                }
                Encoder::T5(t5) if t5.config.width != config.text => {
                    let (gives, reads) = (t5.config.width, config.text);
                    let problem = format!("T5 gives {gives} numbers a token, the diffusion model reads {reads}");
                    return Err(ModelError::Mismatch(format!("{problem}: they belong to different models")));
                }
                Encoder::T5(_) => {}
            }
        }
        let pooled: usize = widths.iter().map(|[_, pooled]| pooled).sum();
        match widths.iter().position(|[width, _]| *width == 0) {
            // What is absent is zero: as wide as the other leaves room for.
            Some(absent) if pooled <= config.pooled => widths[absent][1] = config.pooled - pooled,
            None if pooled == config.pooled => {}
            _ => {
                return Err(ModelError::Mismatch(format!(
                    "the text encoders pool {pooled} numbers, the diffusion model reads {}: they belong to different models",
                    config.pooled
                )));
            }
        }
        Ok(Sd3Family { transformer, encoders, widths, shift })
    }

    fn pipeline(
        self,
        encoders: Vec<(Encoder, TokenizerKind)>,
        autoencoder: KlAutoencoder,
        turbo: bool,
    ) -> Arc<dyn Pipeline> {
        let text = encoders.into_iter().map(|(encoder, tokenizer)| match encoder {
            Encoder::Clip(clip, _) => TextEncoder {
                tokenizer,
                tokens: TokenLayout::Single(clip.tokens),
                table: "text_model.embeddings.token_embedding.weight",
            },
            Encoder::T5(_) => TextEncoder {
                tokenizer,
                tokens: TokenLayout::Sequence { template: |text, _| text.into(), least: T5_TOKENS, most: T5_TOKENS },
                table: "shared.weight",
            },
        });
        let (channels, factor) = (autoencoder.vae.latent, autoencoder.vae.factor());
        let latents = Latents {
            channels,
            pixels: factor,
            autoencoder_pixels: factor,
            multiple: 2 * factor,
            preview: previews::SD3.to_vec(),
        };
        let defaults = Defaults {
            size: [1024; 2],
            steps: if turbo { 4 } else { 28 },
            guidance: if turbo { 1.0 } else { 4.5 },
            method: "euler",
            schedule: None,
            distilled_guidance: None,
            clip_skip: 1,
        };
        let text = text.collect();
        FlowModel { family: self, text, autoencoder: Box::new(autoencoder), latents, defaults }.shared()
    }

    /// Tokens of the text as the transformer reads it: those of CLIP, then those of T5; zeros where one is absent.
    fn tokens(&self, tokens: &[usize]) -> usize {
        let of = |wanted: fn(&Encoder) -> bool, absent: usize| {
            self.encoders.iter().position(wanted).and_then(|i| tokens.get(i).copied()).unwrap_or(absent)
        };
        of(|encoder| matches!(encoder, Encoder::Clip(..)), CLIP_TOKENS) + of(|e| matches!(e, Encoder::T5(_)), T5_TOKENS)
    }
}

impl FlowFamily for Sd3Family {
    fn name(&self) -> &'static str {
        NAME
    }

    fn text_encoder(&self, encoder: usize, ids: [usize; 2], numbers: ElementTypes) -> Result<Graph, GraphError> {
        match &self.encoders[encoder] {
            Encoder::Clip(config, _) => clip(config, ids[0], HiddenState { skip: 1, norm: false }, numbers),
            Encoder::T5(t5) => t5.graph(ids, false, numbers),
        }
    }

    fn text_inputs(&self, encoder: usize, ids: HostTensor, _: &[usize]) -> Result<Inputs, GraphError> {
        match &self.encoders[encoder] {
            Encoder::Clip(..) => Ok(vec![("ids", ids)]),
            Encoder::T5(t5) => t5.inputs(ids, None),
        }
    }

    /// The states of CLIP's encoders beside each other, filled up to the width of T5's, which follow them; and both pooled texts.
    fn condition(&self, text: &[EncodedText], _: TextRole) -> Result<Condition, GraphError> {
        let width = self.transformer.config.text;
        let total = self.tokens(&text.iter().map(|one| one.ids.len()).collect::<Vec<_>>());
        let mut states = vec![0.0; total * width];
        let mut pooled = vec![0.0; self.transformer.config.pooled];
        let mut clip_tokens = CLIP_TOKENS;
        for (encoder, text) in self.encoders.iter().zip(text) {
            let Encoder::Clip(config, slot) = encoder else { continue };
            clip_tokens = text.ids.len();
            let (beside, before) = if *slot == 0 { (0, 0) } else { (self.widths[0][0], self.widths[0][1]) };
            for (to, from) in states.chunks_exact_mut(width).zip(text.outputs[0].to_f32().chunks_exact(config.width)) {
                to.iter_mut().skip(beside).zip(from).for_each(|(to, from)| *to = *from);
            }
            let own = text.at_end(1).unwrap_or_default();
            pooled.iter_mut().skip(before).zip(own).for_each(|(to, from)| *to = from);
        }
        for (encoder, text) in self.encoders.iter().zip(text) {
            if matches!(encoder, Encoder::T5(_)) {
                let from = text.outputs[0].to_f32();
                states.iter_mut().skip(clip_tokens * width).zip(from).for_each(|(to, from)| *to = from);
            }
        }
        let condition =
            [("pooled", HostTensor::f32([pooled.len()], pooled)?), ("text", HostTensor::f32([total, width], states)?)];
        Ok(Condition(condition.into()))
    }

    fn denoiser(
        &self,
        batch: usize,
        latent: LatentShape,
        tokens: &[usize],
        numbers: ElementTypes,
    ) -> Result<Graph, GraphError> {
        self.transformer.graph(batch, [latent.height, latent.width], self.tokens(tokens), numbers)
    }

    fn denoiser_inputs(
        &self,
        latent: &NoisyLatent,
        conditions: &[Condition],
        _: &RunOptions,
    ) -> Result<Inputs, GraphError> {
        let (n, LatentShape { channels, height, width }) = (conditions.len(), latent.shape);
        let values = channels_last(latent.values, channels).repeat(n);
        Ok(vec![
            ("latent", HostTensor::f32([n, height, width, channels], values)?),
            ("text", Condition::batch(conditions, "text")?),
            ("pooled", Condition::batch(conditions, "pooled")?),
            ("time", HostTensor::f32([n], vec![1000.0 * latent.sigma; n])?),
            ("places", self.transformer.places([height / 2, width / 2])?),
        ])
    }

    fn predictions(&self, output: &HostTensor, latent: LatentShape) -> Vec<Vec<f32>> {
        let output = output.to_f32();
        output.chunks_exact(latent.len()).map(|one| pixels(one, PatchOrder::ChannelsLast, latent)).collect()
    }

    /// Evenly from 1 to the least level of the training, which is shifted already, and shifted once more.
    fn levels(&self, _: LatentShape, steps: usize, shift: Option<f32>) -> Vec<f32> {
        let factor = f64::from(shift.unwrap_or(self.shift));
        let least = shift_by_factor(factor, 0.001);
        let even = |i: usize| 1.0 + (least - 1.0) * i as f64 / (steps.max(2) - 1) as f64;
        with_end((0..steps).map(|i| shift_by_factor(factor, even(i))).collect())
    }
}
