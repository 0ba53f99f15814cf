//! A picture, made: from settings and a model's files to pixels.
//!
//! [`settings`] is the one table of settings; [`Job`] decides what nobody asked for; an [`Engine`] keeps devices and
//! models, runs jobs and tells what happens. Noise is drawn on the host in the two ways that users know, so that the same seed gives the same picture on every device.
//!
//! ```
//! use impasto_generate::{Noise, NoiseKind};
//! let mut noise = Noise::new(NoiseKind::Cpu, 42);
//! let first = noise.draw(4 * 64 * 64);
//! assert_eq!(first[0], 1.9269154);
//! ```

mod again;
mod autoencoder;
mod begin;
mod bits;
mod conditioning;
mod denoise;
pub mod engine;
mod error;
mod failover;
mod job;
mod loras;
mod module;
mod networks;
mod noise;
mod output;
mod overview;
mod phases;
pub mod picture;
mod pipeline;
pub mod place;
mod preview;
pub mod prompt;
mod run_files;
pub mod sampling;
mod saved_run;
pub mod settings;
mod split;
mod tiles;
mod unknown;

pub use again::{Inside, inside};
pub use engine::{Engine, EngineOptions};
pub use error::GenerateError;
pub use job::{Job, Start};
pub use module::Module;
pub use noise::{Noise, NoiseKind};
pub use output::OutputFiles;
pub use overview::plan;
pub use pipeline::{Event, Watcher, decode, run};
pub use saved_run::{Run, SavedRun, SavedRunError, run_file};
pub use split::{Split, Tile};
pub use tiles::Tiles;
