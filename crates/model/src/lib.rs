//! Models: networks as graphs, found in files, and put together by their [`Family`].
//!
//! A network is a plain function that builds a [`Graph`](impasto_graph::Graph) from a configuration and a size. Its parameters carry the names of a diffusers folder (`down_blocks.0.resnets.0.conv1.weight`) in the shapes that files
//! have: `(out, in)` for a linear layer, `(out, in, height, width)` for a convolution.
//!
//! ```
//! use impasto_model::{ElementTypes, UnetConfig, unet};
//! let graph = unet(&UnetConfig::sd15(), 2, [64, 64], 77, ElementTypes::F32)?;
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
mod lora;
mod model;
mod networks;
mod open_network;
mod prediction;
mod source;

pub use blocks::{ElementTypes, NetBuilder};
pub use discovery::{Discovered, NetworkInFile, TextEncoderInFile};
pub use error::ModelError;
pub use families::autoencoder::LatentScale;
pub use families::latent_diffusion::LatentDiffusion;
pub use families::{
    AssembledModel, Condition, Defaults, EncodedText, FAMILIES, Family, Gaussian, Inputs, Latents, Levels, NetworkId,
    NoisyLatent, Pipeline, RunOptions, TextEncoder, TextRole, TokenLayout, TokenizerKind, VocabularySource,
};
pub use impasto_weights::TensorView;
pub use latent::{LatentShape, channels_first, channels_last};
pub use layout::{CheckpointLayout, TensorRef};
pub use levels::{BetaSchedule, NoiseError, NoiseLevels, TrainingNoise};
pub use lora::{ChangedModel, LoraPlacement, LoraReport};
pub use model::{Model, ModelPaths, layer_storage};
pub use networks::{
    CLIP, Clip, ClipConfig, ClipLayout, FLUX, FLUX2, FindNetwork, Flux, Flux2, Flux2Config, FluxConfig, Heads,
    HiddenState, IncompleteNetwork, LLM, Llm, LlmConfig, LlmLayout, LlmStates, Network, NetworkKind, OriginalNames,
    PrefixedTensors, QWEN_IMAGE, QWEN_VAE, QwenImage, QwenImageConfig, QwenVae, QwenVaeConfig, QwenVaeLayout,
    RecognisedNetwork, Recogniser, SD3, Sd3, Sd3Config, T5, T5_ENCODER, T5Config, T5Layout, TAESD, Taesd, TaesdConfig,
    TensorProblem, TensorShapes, UNET, Unet, UnetConfig, VAE, Vae, VaeConfig, Z_IMAGE, ZImage, ZImageConfig, clip,
    foreign_kind, original_names, qwen_vae_decoder, qwen_vae_encoder, recognise, taesd_decoder, taesd_encoder, unet,
    usage, vae_decoder, vae_encoder,
};
pub use open_network::OpenNetwork;
pub use prediction::Prediction;
pub use source::weight_files;
