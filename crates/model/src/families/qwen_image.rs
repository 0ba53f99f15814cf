//! Qwen-Image: the last state of Qwen2.5-VL, text and picture with weights of their own, a video's autoencoder for one picture.

use std::collections::BTreeMap;
use std::sync::Arc;

use impasto_graph::{Graph, GraphError, HostTensor};

use super::autoencoder::LatentCoder;
use super::flow::{
    EncoderSlot, FlowFamily, FlowModel, PatchOrder, all_encoders, check_channels, even_levels, patches, pixels,
    previews, shift_exponentially, vocabulary, with_end,
};
use super::{
    AssembledModel, Condition, Defaults, EncodedText, Family, Gaussian, Inputs, Latents, NetworkId, NoisyLatent,
    Pipeline, RunOptions, TextEncoder, TextRole, TokenLayout, TokenizerKind, VocabularySource,
};
use crate::discovery::Discovered;
use crate::latent::{LatentShape, channels_first, channels_last};
use crate::networks::{
    LLM, Llm, LlmConfig, LlmLayout, LlmStates, Network, QWEN_IMAGE, QWEN_VAE, QwenImage, QwenImageConfig, QwenVae,
    QwenVaeConfig, Recogniser, qwen_vae_decoder, qwen_vae_encoder,
};
use crate::{ElementTypes, ModelError};

/// Qwen-Image.
pub struct QwenImageModels;

const NAME: &str = "Qwen-Image";
const SLOTS: [EncoderSlot; 1] = [EncoderSlot {
    name: "text encoder (Qwen2.5-VL-7B)",
    flag: "--llm",
    accepts: |pick| pick.network::<Llm>().is_some(),
}];
/// Tokens of the template before the text, which the denoiser does not see.
const DROPPED: usize = 34;
const MOST_TOKENS: usize = 1024;
/// The level that the last step begins with.
const LAST_LEVEL: f64 = 0.02;

/// An empty negative prompt is one space.
fn template(text: &str, role: TextRole) -> String {
    let text = if role == (TextRole::Negative { empty: true }) { " " } else { text };
    format!(
        "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships of the objects \
         and background:<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    )
}

impl Family for QwenImageModels {
    fn networks(&self) -> Vec<&'static Recogniser> {
        vec![&LLM, &QWEN_IMAGE, &QWEN_VAE]
    }

    fn recognises(&self, denoiser: &dyn Network) -> Option<&'static str> {
        denoiser.downcast::<QwenImage>().map(|_| NAME)
    }

    fn open(&self, files: &mut Discovered) -> Result<AssembledModel, ModelError> {
        let pick = files.denoiser.clone().ok_or_else(|| files.no_denoiser())?;
        let transformer = pick.network::<QwenImage>().ok_or_else(|| files.no_denoiser())?;
        let title = files.title().to_lowercase();
        let marked = |word: &str| pick.source.shapes.keys().any(|name| name.contains(word));
        if title.contains("edit")
            || title.contains("layered")
            || marked("__index_timestep_zero__")
            || marked("addition_t_embedding")
        {
            let what = "it is Qwen-Image-Edit or -Layered, which reads pictures: not supported yet; Qwen-Image is";
            return Err(ModelError::Unsupported { path: files.named.clone(), what: what.into() });
        }
        let denoiser = pick.open(transformer.clone(), "diffusion model")?;
        let encoders = all_encoders(files, NAME, &SLOTS)?;
        let [(llm_pick, words)] = &encoders[..] else { unreachable!("a slot for each") };
        let llm = Llm::of(llm_pick)?.ok_or_else(|| files.no_denoiser())?;
        if llm.config.width != transformer.config.text {
            return Err(ModelError::Mismatch(format!(
                "{}: gives {} numbers a token, the diffusion model reads {}: Qwen-Image reads Qwen2.5-VL-7B",
                llm_pick.path().display(),
                llm.config.width,
                transformer.config.text
            )));
        }
        let missing = |files: &Discovered| files.missing(&[("autoencoder", "--vae")]);
        let vae_pick = files.autoencoder.take().ok_or_else(|| missing(files))?;
        let Some(vae) = vae_pick.network::<QwenVae>() else {
            let (path, there) = (vae_pick.path().display(), &vae_pick.found.network);
            return Err(ModelError::Mismatch(format!(
                "{path}: Qwen-Image needs its own autoencoder (16 latent channels); found: {there}"
            )));
        };
        check_channels(&vae_pick, vae.config.latent, transformer.config.channels / 4)?;
        let autoencoder = QwenAutoencoder::new(vae.config.clone())?;
        let vae_network = vae_pick.open(vae, "autoencoder")?;
        let tokenizer = TokenizerKind::Qwen(vocabulary(words.as_ref(), llm_pick));
        let networks: BTreeMap<_, _> = [
            (NetworkId::TextEncoder(0), llm_pick.open(llm.clone(), SLOTS[0].name)?),
            (NetworkId::Denoiser, denoiser),
            (NetworkId::VaeEncoder, vae_network.clone()),
            (NetworkId::VaeDecoder, vae_network),
        ]
        .into();
        let lightning = title.contains("lightning");
        let family = QwenFamily { transformer, llm, lightning };
        Ok(AssembledModel { pipeline: family.pipeline(tokenizer, autoencoder), networks })
    }

    fn published(&self) -> Vec<(&'static str, Arc<dyn Pipeline>)> {
        let transformer = QwenImage { config: QwenImageConfig::published() };
        let llm = Llm { config: LlmConfig::qwen25_vl_7b(), layout: LlmLayout::Transformers };
        let family = QwenFamily { transformer, llm, lightning: false };
        let words = TokenizerKind::Qwen(VocabularySource::Embedded);
        match QwenAutoencoder::new(QwenVaeConfig::published()) {
            Ok(autoencoder) => vec![("qwen-image", family.pipeline(words, autoencoder))],
            Err(error) => unreachable!("its statistics are of its own: {error}"),
        }
    }
}

/// The networks of a model.
struct QwenFamily {
    transformer: QwenImage,
    llm: Llm,
    /// Made for few steps without guidance, with a shift of its own.
    lightning: bool,
}

impl QwenFamily {
    fn pipeline(self, tokenizer: TokenizerKind, autoencoder: QwenAutoencoder) -> Arc<dyn Pipeline> {
        let text = vec![TextEncoder {
            tokenizer,
            tokens: TokenLayout::Sequence { template, least: DROPPED + 1, most: DROPPED + MOST_TOKENS },
            table: "embed_tokens.weight",
        }];
        let (channels, factor) = (autoencoder.vae.latent, autoencoder.vae.factor());
        let latents = Latents {
            channels,
            pixels: factor,
            autoencoder_pixels: factor,
            multiple: 2 * factor,
            preview: previews::QWEN_IMAGE.to_vec(),
        };
        let defaults = Defaults {
            size: [1024; 2],
            steps: if self.lightning { 8 } else { 50 },
            guidance: if self.lightning { 1.0 } else { 4.0 },
            method: "euler",
            schedule: None,
            distilled_guidance: None,
            clip_skip: 1,
        };
        FlowModel { family: self, text, autoencoder: Box::new(autoencoder), latents, defaults }.shared()
    }

    fn states(&self) -> LlmStates {
        LlmStates { after: vec![self.llm.config.layers], norm: self.llm.config.final_norm, masked: false }
    }
}

impl FlowFamily for QwenFamily {
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
        let (states, length) = text[0].states_from(DROPPED)?;
        Ok(Condition([("text", states), ("length", HostTensor::f32([1], vec![length as f32])?)].into()))
    }

    /// Texts have lengths of their own.
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
        self.transformer.graph(batch, [latent.area() / 4, tokens[0].saturating_sub(DROPPED).max(1)], numbers)
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
        let (tokens, texts) = (shape.area() / 4, text.shape()[1]);
        let hidden = |at: usize| if at >= length && at < texts { f32::NEG_INFINITY } else { 0.0 };
        let [cos, sin] = self.transformer.tables(texts, [shape.height / 2, shape.width / 2])?;
        let numbers = patches(latent.values, PatchOrder::ChannelsFirst, shape);
        Ok(vec![
            ("tokens", HostTensor::f32([1, tokens, 4 * shape.channels], numbers)?),
            ("text", text),
            ("time", HostTensor::f32([1], vec![1000.0 * latent.sigma])?),
            ("hidden", HostTensor::f32([1, 1, 1, texts + tokens], (0..texts + tokens).map(hidden).collect())?),
            ("cos", cos),
            ("sin", sin),
        ])
    }

    fn predictions(&self, output: &HostTensor, latent: LatentShape) -> Vec<Vec<f32>> {
        vec![pixels(&output.to_f32(), PatchOrder::ChannelsFirst, latent)]
    }

    /// Guided, each token keeps the length that it has with the prompt alone.
    fn guide(&self, [prompt, negative]: [&[f32]; 2], latent: LatentShape, guidance: f32) -> Vec<f32> {
        let tokens = |of: &[f32]| patches(of, PatchOrder::ChannelsFirst, latent);
        let (prompt, negative, each) = (tokens(prompt), tokens(negative), 4 * latent.channels);
        let mut guided: Vec<f32> = prompt.iter().zip(&negative).map(|(p, n)| n + guidance * (p - n)).collect();
        for (guided, prompt) in guided.chunks_exact_mut(each).zip(prompt.chunks_exact(each)) {
            let length = |of: &[f32]| of.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            let factor = length(prompt) / length(guided).max(f64::MIN_POSITIVE);
            guided.iter_mut().for_each(|x| *x = (f64::from(*x) * factor) as f32);
        }
        pixels(&guided, PatchOrder::ChannelsFirst, latent)
    }

    /// The more tokens, the more noise: a line through 0.5 at 256 and 0.9 at 8192; then stretched, so that the last step begins at 0.02.
    fn levels(&self, latent: LatentShape, steps: usize, shift: Option<f32>) -> Vec<f32> {
        let by_size = 0.5 + (0.9 - 0.5) * ((latent.area() / 4) as f64 - 256.0) / (8192.0 - 256.0);
        let usual = if self.lightning { 3f64.ln() } else { by_size };
        let mu = shift.map_or(usual, f64::from);
        let levels: Vec<f64> = even_levels(steps).into_iter().map(|s| shift_exponentially(mu, s)).collect();
        let last = levels.last().copied().unwrap_or(0.0);
        let stretch = if self.lightning || last >= 1.0 { 1.0 } else { (1.0 - LAST_LEVEL) / (1.0 - last) };
        with_end(levels.into_iter().map(|s| 1.0 - (1.0 - s) * stretch).collect())
    }
}

/// The autoencoder of Qwen-Image: its latents are normed by channel.
struct QwenAutoencoder {
    vae: QwenVaeConfig,
}

const MEANS: [f32; 16] = [
    -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715, 0.5517, -0.3632, -0.1922,
    -0.9497, 0.2503, -0.2921,
];
const DEVIATIONS: [f32; 16] = [
    2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253,
    2.8251, 1.9160,
];

impl QwenAutoencoder {
    fn new(vae: QwenVaeConfig) -> Result<QwenAutoencoder, ModelError> {
        match vae.latent == MEANS.len() {
            true => Ok(QwenAutoencoder { vae }),
            false => Err(ModelError::Mismatch(format!(
                "the autoencoder has {} latent channels, that of Qwen-Image has {}",
                vae.latent,
                MEANS.len()
            ))),
        }
    }
}

impl LatentCoder for QwenAutoencoder {
    fn graph(&self, network: NetworkId, grid: [usize; 2], numbers: ElementTypes) -> Result<Graph, GraphError> {
        match network {
            NetworkId::VaeEncoder => qwen_vae_encoder(&self.vae, grid.map(|n| n * self.vae.factor()), numbers),
            _ => qwen_vae_decoder(&self.vae, grid, numbers),
        }
    }

    fn decoder_input(&self, _: NetworkId, latent: &[f32], shape: LatentShape) -> Vec<f32> {
        let mut pixels = channels_last(latent, shape.channels);
        for (i, x) in pixels.iter_mut().enumerate() {
            *x = *x * DEVIATIONS[i % shape.channels] + MEANS[i % shape.channels];
        }
        pixels
    }

    fn encoder_output(&self, output: &[f32], shape: LatentShape) -> Gaussian {
        let moments = channels_first(output, 2 * shape.channels);
        let (means, logs) = moments.split_at(shape.len());
        let channel = |i: usize| i / shape.area();
        let of = |i: usize, m: &f32| (m - MEANS[channel(i)]) / DEVIATIONS[channel(i)];
        let spread = |i: usize, log: &f32| (0.5 * log.clamp(-30.0, 20.0)).exp() / DEVIATIONS[channel(i)];
        Gaussian {
            mean: means.iter().enumerate().map(|(i, m)| of(i, m)).collect(),
            deviation: logs.iter().enumerate().map(|(i, log)| spread(i, log)).collect(),
        }
    }
}
