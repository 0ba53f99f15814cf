//! Models: networks as graphs, found in files, and put together by their [`Family`].
//!
//! A network is a plain function that builds a [`Graph`](impasto_graph::Graph) from a configuration and a size. Its parameters carry the names of a diffusers folder (`down_blocks.0.resnets.0.conv1.weight`) in the shapes that files
//! have: `(out, in)` for a linear layer, `(out, in, height, width)` for a convolution.
//!
//! ```
//! use impasto_model::{Numbers, UnetConfig, unet};
//! let graph = unet(&UnetConfig::sd15(), 2, [64, 64], 77, Numbers::F32)?;
//! assert_eq!(graph.flops() / 1_000_000_000, 1_606); // one step at 512x512 with guidance
//! # Ok::<(), impasto_graph::GraphError>(())
//! ```

mod blocks;
mod config;
mod discovery;
mod error;
mod families;
mod latent;
mod layout;
mod levels;
mod model;
mod networks;
mod part;
mod prediction;
mod source;

pub use blocks::{Net, Numbers};
pub use discovery::{Discovered, Pick, TextPick};
pub use error::ModelError;
pub use families::latent_diffusion::{LatentDiffusion, LatentScale};
pub use families::{
    Condition, Defaults, EncodedText, FAMILIES, Family, Gaussian, Inputs, Latents, Levels, NetworkId, NoisyLatent,
    OpenNetwork, Opened, Pipeline, RunOptions, TextEncoder, TextRole, TokenLayout, TokenizerKind,
};
pub use impasto_weights::Take;
pub use latent::{LatentShape, channels_first, channels_last};
pub use layout::{Layout, Stored};
pub use levels::{Betas, NoiseError, NoiseLevels, Training};
pub use model::{Model, ModelPaths};
pub use networks::{
    CLIP, Clip, ClipConfig, ClipLayout, Found, Heads, Hidden, Network, NetworkKind, Prefixed, Recogniser, Shapes,
    TAESD, Taesd, TaesdConfig, UNET, Unet, UnetConfig, VAE, Vae, VaeConfig, clip, recognise, taesd_decoder,
    taesd_encoder, unet, usage, vae_decoder, vae_encoder,
};
pub use part::Part;
pub use prediction::Prediction;
pub use source::weight_files;
