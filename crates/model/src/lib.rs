//! Networks as graphs: plain functions that build a [`Graph`](impasto_graph::Graph) from a configuration and a size.
//!
//! Parameters carry the names of a diffusers folder (`down_blocks.0.resnets.0.conv1.weight`) in the shapes that files
//! have: `(out, in)` for a linear layer, `(out, in, height, width)` for a convolution.
//!
//! ```
//! use impasto_model::{Numbers, UnetConfig, unet};
//! let graph = unet(&UnetConfig::sd15(), 2, [64, 64], 77, Numbers::F32)?;
//! assert_eq!(graph.flops() / 1_000_000_000, 1_606); // one step at 512x512 with guidance
//! # Ok::<(), impasto_graph::GraphError>(())
//! ```

mod clip;
mod config;
mod denoise;
mod error;
mod files;
mod layers;
mod layout;
mod part;
mod prediction;
mod recognise;
mod source;
mod taesd;
mod unet;
mod vae;

pub use clip::{ClipConfig, Hidden, clip};
pub use error::ModelError;
pub use files::{LatentScale, Model, ModelPaths};
pub use layers::Numbers;
pub use layout::{Layout, Stored, Take};
pub use part::{Origin, Part};
pub use prediction::Prediction;
pub use recognise::{Family, Found, Network, Shapes, TextLayout, family, kind_of, recognise, usage};
pub use source::weight_files;
pub use taesd::{TaesdConfig, taesd_decoder, taesd_encoder};
pub use unet::{Heads, UnetConfig, unet};
pub use vae::{VaeConfig, vae_decoder, vae_encoder};
