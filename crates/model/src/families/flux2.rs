//! FLUX.2 klein: three states of Qwen3 side by side, and latents of 32 channels whose pixels are packed by four and normed by the autoencoder's statistics.

use std::collections::BTreeMap;
use std::sync::Arc;

use impasto_graph::{Graph, GraphError, HostTensor};

use super::autoencoder::{LatentCoder, LatentScale, open_autoencoder, open_tiny};
use super::flow::{
    EncoderSlot, FlowFamily, FlowModel, PatchOrder, all_encoders, check_channels, even_levels, patches, pixels,
    previews, shift_exponentially, vocabulary, with_end,
};
use super::{
    AssembledModel, Condition, Defaults, EncodedText, Family, Gaussian, Inputs, Latents, NetworkId, NoisyLatent,
    Pipeline, RunOptions, TextEncoder, TextRole, TokenLayout, TokenizerKind, VocabularySource,
};
use crate::discovery::{Discovered, NetworkInFile};
use crate::latent::{LatentShape, channels_first, channels_last};
use crate::layout::CheckpointLayout;
use crate::networks::{
    FLUX2, Flux2, Flux2Config, LLM, Llm, LlmConfig, LlmLayout, LlmStates, Network, Recogniser, TAESD, TaesdConfig, VAE,
    VaeConfig, taesd_decoder, vae_decoder, vae_encoder,
};
use crate::{ElementTypes, ModelError};

/// FLUX.2 klein.
pub struct Flux2Klein;

const NAME: &str = "FLUX.2 klein";
const SLOTS: [EncoderSlot; 1] =
    [EncoderSlot { name: "text encoder (Qwen3)", flag: "--llm", accepts: |pick| pick.network::<Llm>().is_some() }];
const TOKENS: usize = 512;
/// The states that the denoiser reads: after so many layers.
const TAKEN: [usize; 3] = [9, 18, 27];
/// Statistics stand in the place of a scale.
const NO_SCALE: LatentScale = LatentScale { factor: 1.0, shift: 0.0 };
/// What keeps the autoencoder's statistics away from zero.
const EPS: f32 = 1e-4;

fn template(text: &str, _: TextRole) -> String {
    format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
}

impl Family for Flux2Klein {
    fn networks(&self) -> Vec<&'static Recogniser> {
        vec![&LLM, &FLUX2, &VAE, &TAESD]
    }

    fn recognises(&self, denoiser: &dyn Network) -> Option<&'static str> {
        denoiser.downcast::<Flux2>().map(|_| NAME)
    }

    fn open(&self, files: &mut Discovered) -> Result<AssembledModel, ModelError> {
        let pick = files.denoiser.clone().ok_or_else(|| files.no_denoiser())?;
        let transformer = pick.network::<Flux2>().ok_or_else(|| files.no_denoiser())?;
        if transformer.config.guidance {
            let what = "it is FLUX.2 dev, which reads Mistral: not supported yet; FLUX.2 klein is";
            return Err(ModelError::Unsupported { path: files.named.clone(), what: what.into() });
        }
        let denoiser = pick.open(transformer.clone(), "diffusion model")?;
        let encoders = all_encoders(files, NAME, &SLOTS)?;
        let [(llm_pick, words)] = &encoders[..] else { unreachable!("a slot for each") };
        let llm = Llm::of(llm_pick)?.ok_or_else(|| files.no_denoiser())?;
        let reads = transformer.config.text;
        if TAKEN.len() * llm.config.width != reads || llm.config.layers < TAKEN[2] {
            return Err(ModelError::Mismatch(format!(
                "{}: gives three times {} numbers a token, the diffusion model reads {reads}: klein 4B reads Qwen3-4B, klein 9B Qwen3-8B",
                llm_pick.path().display(),
                llm.config.width,
            )));
        }
        let (vae_pick, vae, vae_network, _) = open_autoencoder(files, "AutoencoderKLFlux2", NO_SCALE)?;
        check_channels(&vae_pick, vae.latent, transformer.config.channels / 4)?;
        let tiny = open_tiny(files, [vae.latent, vae.factor()])?;
        let taesd = tiny.as_ref().map(|(config, _)| config.clone());
        let autoencoder = PackedAutoencoder::open(&vae_pick, vae, taesd)?;
        let base = files.title().to_lowercase().contains("base");
        let tokenizer = TokenizerKind::Qwen(vocabulary(words.as_ref(), llm_pick));
        let mut networks: BTreeMap<_, _> = [
            (NetworkId::TextEncoder(0), llm_pick.open(llm.clone(), SLOTS[0].name)?),
            (NetworkId::Denoiser, denoiser),
            (NetworkId::VaeEncoder, vae_network.clone()),
            (NetworkId::VaeDecoder, vae_network),
        ]
        .into();
        networks.extend(tiny.map(|(_, network)| (NetworkId::TinyDecoder, network)));
        let family = KleinFamily { transformer, llm };
        Ok(AssembledModel { pipeline: family.pipeline(tokenizer, autoencoder, base), networks })
    }

    fn published(&self) -> Vec<(&'static str, Arc<dyn Pipeline>)> {
        let transformer = Flux2 { config: Flux2Config::klein_4b(), layout: CheckpointLayout::Original };
        let llm = Llm { config: LlmConfig::qwen3_4b(), layout: LlmLayout::Transformers };
        let statistics = [vec![0.0; 128], vec![1.0; 128]];
        let autoencoder = PackedAutoencoder { vae: VaeConfig::flux2(), taesd: None, statistics };
        let words = TokenizerKind::Qwen(VocabularySource::Embedded);
        vec![("klein-4b", KleinFamily { transformer, llm }.pipeline(words, autoencoder, false))]
    }
}

/// The networks of a model.
struct KleinFamily {
    transformer: Flux2,
    llm: Llm,
}

impl KleinFamily {
    fn pipeline(self, tokenizer: TokenizerKind, autoencoder: PackedAutoencoder, base: bool) -> Arc<dyn Pipeline> {
        let text = vec![TextEncoder {
            tokenizer,
            tokens: TokenLayout::Sequence { template, least: TOKENS, most: TOKENS },
            table: "embed_tokens.weight",
        }];
        let factor = autoencoder.vae.factor();
        let latents = Latents {
            channels: 4 * autoencoder.vae.latent,
            pixels: 2 * factor,
            autoencoder_pixels: factor,
            multiple: 2 * factor,
            preview: previews::flux_2(),
        };
        let defaults = Defaults {
            size: [1024; 2],
            steps: if base { 50 } else { 4 },
            guidance: if base { 4.0 } else { 1.0 },
            method: "euler",
            schedule: None,
            distilled_guidance: None,
            clip_skip: 1,
        };
        FlowModel { family: self, text, autoencoder: Box::new(autoencoder), latents, defaults }.shared()
    }

    fn states(&self) -> LlmStates {
        LlmStates { after: TAKEN.to_vec(), norm: false, masked: true }
    }
}

impl FlowFamily for KleinFamily {
    fn name(&self) -> &'static str {
        NAME
    }

    fn text_encoder(&self, _: usize, ids: [usize; 2], numbers: ElementTypes) -> Result<Graph, GraphError> {
        self.llm.graph(ids, &self.states(), numbers)
    }

    fn text_inputs(&self, _: usize, ids: HostTensor, lengths: &[usize]) -> Result<Inputs, GraphError> {
        self.llm.inputs(ids, lengths, &self.states())
    }

    /// What fills a text up is hidden from the text, and read by the denoiser all the same.
    fn condition(&self, text: &[EncodedText], _: TextRole) -> Result<Condition, GraphError> {
        let states = &text[0].outputs[0]; // (1, tokens, 3 width)
        Ok(Condition([("text", HostTensor::f32(states.shape()[1..].to_vec(), states.to_f32())?)].into()))
    }

    fn denoiser(
        &self,
        batch: usize,
        latent: LatentShape,
        tokens: &[usize],
        numbers: ElementTypes,
    ) -> Result<Graph, GraphError> {
        self.transformer.graph(batch, [latent.area(), tokens[0]], numbers)
    }

    fn denoiser_inputs(
        &self,
        latent: &NoisyLatent,
        conditions: &[Condition],
        _: &RunOptions,
    ) -> Result<Inputs, GraphError> {
        let (n, shape) = (conditions.len(), latent.shape);
        let tokens = channels_last(latent.values, shape.channels).repeat(n);
        let text = Condition::batch(conditions, "text")?;
        let [cos, sin] = self.transformer.tables(text.shape()[1], [shape.height, shape.width])?;
        Ok(vec![
            ("tokens", HostTensor::f32([n, shape.area(), shape.channels], tokens)?),
            ("text", text),
            ("time", HostTensor::f32([n], vec![1000.0 * latent.sigma; n])?),
            ("cos", cos),
            ("sin", sin),
        ])
    }

    fn predictions(&self, output: &HostTensor, latent: LatentShape) -> Vec<Vec<f32>> {
        output.to_f32().chunks_exact(latent.len()).map(|one| channels_first(one, latent.channels)).collect()
    }

    /// Fitted by its authors: a line in the steps between two that are lines in the tokens.
    fn levels(&self, latent: LatentShape, steps: usize, shift: Option<f32>) -> Vec<f32> {
        let tokens = latent.area() as f64;
        let (at_10, at_200) = (8.738_095_24e-5 * tokens + 1.898_333_33, 1.692_7e-4 * tokens + 0.456_666_66);
        let slope = (at_200 - at_10) / 190.0;
        let by_size = if tokens > 4300.0 { at_200 } else { slope * steps as f64 + at_200 - 200.0 * slope };
        let mu = shift.map_or(by_size, f64::from);
        with_end(even_levels(steps).into_iter().map(|s| shift_exponentially(mu, s)).collect())
    }
}

/// The autoencoder of FLUX.2: four pixels of its latents are one of the denoiser's, normed by statistics that its file has.
struct PackedAutoencoder {
    vae: VaeConfig,
    taesd: Option<TaesdConfig>,
    /// Means and standard deviations of the packed channels.
    statistics: [Vec<f32>; 2],
}

impl PackedAutoencoder {
    fn open(pick: &NetworkInFile, vae: VaeConfig, taesd: Option<TaesdConfig>) -> Result<PackedAutoencoder, ModelError> {
        let channels = 4 * vae.latent;
        let read = |name: &str| {
            let missing = |problem: &str| {
                let problem = format!("tensor '{}bn.{name}' {problem}", pick.found.prefix);
                ModelError::Mismatch(format!("{}: autoencoder: {problem}", pick.path().display()))
            };
            let numbers = pick.numbers(&format!("bn.{name}"))?.ok_or_else(|| missing("is missing"))?;
            let sane = numbers.len() == channels && numbers.iter().all(|x| x.is_finite());
            if sane { Ok(numbers) } else { Err(missing(&format!("must hold {channels} numbers"))) }
        };
        let (means, variances) = (read("running_mean")?, read("running_var")?);
        let deviations = variances.iter().map(|x| (x.max(0.0) + EPS).sqrt()).collect();
        Ok(PackedAutoencoder { vae, taesd, statistics: [means, deviations] })
    }

    /// The latent's shape before its pixels are packed.
    fn unpacked(shape: LatentShape) -> LatentShape {
        LatentShape { channels: shape.channels / 4, height: 2 * shape.height, width: 2 * shape.width }
    }
}

impl LatentCoder for PackedAutoencoder {
    fn graph(&self, network: NetworkId, grid: [usize; 2], numbers: ElementTypes) -> Result<Graph, GraphError> {
        match (network, &self.taesd) {
            (NetworkId::TinyDecoder, Some(taesd)) => taesd_decoder(taesd, 1, grid, numbers),
            (NetworkId::VaeEncoder, _) => vae_encoder(&self.vae, 1, grid.map(|n| n * self.vae.factor()), numbers),
            _ => vae_decoder(&self.vae, 1, grid, numbers),
        }
    }

    /// The tiny decoder takes latents as the denoiser has them.
    fn decoder_input(&self, network: NetworkId, latent: &[f32], shape: LatentShape) -> Vec<f32> {
        let [means, deviations] = &self.statistics;
        let mut packed = latent.to_vec();
        if network != NetworkId::TinyDecoder {
            for (channel, (mean, deviation)) in packed.chunks_exact_mut(shape.area()).zip(means.iter().zip(deviations))
            {
                channel.iter_mut().for_each(|x| *x = *x * deviation + mean);
            }
        }
        let whole = PackedAutoencoder::unpacked(shape);
        let tokens = channels_last(&packed, shape.channels);
        channels_last(&pixels(&tokens, PatchOrder::ChannelsFirst, whole), whole.channels)
    }

    /// The mean alone: no chance is in it.
    fn encoder_output(&self, output: &[f32], shape: LatentShape) -> Gaussian {
        let whole = PackedAutoencoder::unpacked(shape);
        let moments = channels_first(output, 2 * whole.channels);
        let tokens = patches(&moments[..whole.len()], PatchOrder::ChannelsFirst, whole);
        let mut mean = channels_first(&tokens, shape.channels);
        let [means, deviations] = &self.statistics;
        for (channel, (mean, deviation)) in mean.chunks_exact_mut(shape.area()).zip(means.iter().zip(deviations)) {
            channel.iter_mut().for_each(|x| *x = (*x - mean) / deviation);
        }
        Gaussian { deviation: vec![0.0; mean.len()], mean }
    }
}
