//! Autoencoders as families have them: between the numbers that the autoencoder knows and those that the denoiser knows.

use std::sync::Arc;

use impasto_graph::{Graph, GraphError};

use super::{Gaussian, NetworkId};
use crate::discovery::{Discovered, NetworkInFile};
use crate::latent::{LatentShape, channels_first, channels_last};
use crate::networks::{Taesd, TaesdConfig, Vae, VaeConfig, taesd_decoder, vae_decoder, vae_encoder};
use crate::{ElementTypes, ModelError, OpenNetwork};

/// Latents to what decoders read, and what an encoder gives to latents.
pub(super) trait LatentCoder: Send + Sync {
    /// The graph of one half for a grid of `[height, width]` of its own pixels of latents.
    fn graph(&self, network: NetworkId, grid: [usize; 2], numbers: ElementTypes) -> Result<Graph, GraphError>;

    /// A latent as a decoder reads it: `(height, width, channels)` on its own grid.
    fn decoder_input(&self, network: NetworkId, latent: &[f32], shape: LatentShape) -> Vec<f32>;

    /// The latent of a picture, from the encoder's output `(height, width, channels)` on its own grid.
    fn encoder_output(&self, output: &[f32], shape: LatentShape) -> Gaussian;
}

/// Between the numbers that the autoencoder knows and those that the denoiser knows: `denoiser = (autoencoder - shift) * factor`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentScale {
    /// The factor.
    pub factor: f32,
    /// The shift.
    pub shift: f32,
}

/// The autoencoder of Stable Diffusion and FLUX.1, with one scale for all channels.
pub(super) struct KlAutoencoder {
    pub vae: VaeConfig,
    pub taesd: Option<TaesdConfig>,
    pub scale: LatentScale,
}

impl LatentCoder for KlAutoencoder {
    fn graph(&self, network: NetworkId, grid: [usize; 2], numbers: ElementTypes) -> Result<Graph, GraphError> {
        match (network, &self.taesd) {
            (NetworkId::TinyDecoder, Some(taesd)) => taesd_decoder(taesd, 1, grid, numbers),
            (NetworkId::VaeEncoder, _) => vae_encoder(&self.vae, 1, grid.map(|n| n * self.vae.factor()), numbers),
            _ => vae_decoder(&self.vae, 1, grid, numbers),
        }
    }

    /// The tiny decoder takes latents as the denoiser has them.
    fn decoder_input(&self, network: NetworkId, latent: &[f32], shape: LatentShape) -> Vec<f32> {
        let mut pixels = channels_last(latent, shape.channels);
        if network != NetworkId::TinyDecoder {
            let LatentScale { factor, shift } = self.scale;
            pixels.iter_mut().for_each(|z| *z = *z / factor + shift);
        }
        pixels
    }

    fn encoder_output(&self, output: &[f32], shape: LatentShape) -> Gaussian {
        let LatentScale { factor, shift } = self.scale;
        let moments = channels_first(output, 2 * shape.channels);
        let (means, logs) = moments.split_at(shape.len());
        Gaussian {
            mean: means.iter().map(|m| (m - shift) * factor).collect(),
            deviation: logs.iter().map(|log| (0.5 * log.clamp(-30.0, 20.0)).exp() * factor).collect(),
        }
    }
}

/// The autoencoder that was found, and the scale of its latents: what its file says, else the usual one. `class` is what diffusers calls it.
pub(super) fn open_autoencoder(
    files: &mut Discovered,
    class: &str,
    usual: LatentScale,
) -> Result<(NetworkInFile, VaeConfig, Arc<OpenNetwork>, LatentScale), ModelError> {
    let missing = |files: &Discovered| files.missing(&[("autoencoder", "--vae")]);
    let pick = files.autoencoder.take().ok_or_else(|| missing(files))?;
    let vae = pick.network::<Vae>().ok_or_else(|| missing(files))?;
    let (factor, shift) = match pick.source.config_of(class)? {
        Some(json) => {
            vae.config.check(json)?;
            VaeConfig::scale(json)?
        }
        None => (None, None),
    };
    let scale = LatentScale { factor: factor.unwrap_or(usual.factor), shift: shift.unwrap_or(usual.shift) };
    let (config, network) = (vae.config.clone(), pick.open(vae, "autoencoder")?);
    Ok((pick, config, network, scale))
}

/// The tiny autoencoder, where there is one; it must know the latents of the large one.
pub(super) fn open_tiny(
    files: &mut Discovered,
    [channels, factor]: [usize; 2],
) -> Result<Option<(TaesdConfig, Arc<OpenNetwork>)>, ModelError> {
    let Some(pick) = files.tiny_autoencoder.take() else { return Ok(None) };
    let tiny = pick.network::<Taesd>().ok_or_else(|| files.missing(&[("tiny autoencoder", "--taesd")]))?;
    let config = tiny.config.clone();
    if [config.latent, config.factor()] != [channels, factor] {
        return Err(ModelError::Mismatch(format!(
            "{}: is a tiny autoencoder for {} channels at 1/{}; the model has {channels} at 1/{factor}",
            pick.path().display(),
            config.latent,
            config.factor(),
        )));
    }
    Ok(Some((config, pick.open(tiny, "tiny autoencoder")?)))
}
