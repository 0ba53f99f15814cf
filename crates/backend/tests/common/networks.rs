//! Networks as small as they can be: every kind of layer, and all the ways around them.

use impasto_graph::{Graph, GraphError};
use impasto_model::{ElementTypes, Heads, UnetConfig, VaeConfig, unet, vae_decoder, vae_encoder};

/// An autoencoder for pictures of any size.
pub fn tiny_vae() -> VaeConfig {
    VaeConfig { latent: 4, channels: vec![32, 64], resnets: 1, quant_conv: true }
}

/// Both kinds of UNet, a decoder and an encoder.
pub fn tiny_networks(numbers: ElementTypes) -> Result<[Graph; 4], GraphError> {
    let config = UnetConfig {
        in_channels: 4,
        out_channels: 4,
        channels: vec![32, 64],
        depth: vec![1, 1],
        mid_depth: 1,
        resnets: 1,
        heads: Heads::Count(2),
        context: 24,
        linear_projection: false,
        added: None,
    };
    let xl = UnetConfig { heads: Heads::Width(16), linear_projection: true, added: Some(10), ..config.clone() };
    Ok([
        unet(&config, 2, [6, 10], 5, numbers)?,
        unet(&xl, 1, [8, 8], 7, numbers)?,
        vae_decoder(&tiny_vae(), 1, [5, 7], numbers)?,
        vae_encoder(&tiny_vae(), 2, [8, 12], numbers)?,
    ])
}
