//! Impasto as a library: what other programs use, and what the `impasto` command is a thin layer over.
//!
//! The first line of an embedding program's `main` must be [`probe_hook`]: drivers and instruction sets that have not
//! proved themselves are tried in a short-lived child process, which is the same program started again.
//!
//! ```
//! use impasto::generate::settings::Settings;
//! use impasto::{Engine, EngineOptions, Event, Job};
//!
//! impasto::probe_hook();
//! let mut settings = Settings::default();
//! settings.set("steps", "2")?;
//! settings.set("gpu", "disable")?;
//! let engine = Engine::new(EngineOptions::new(&settings)?);
//! let model = impasto::open_model(&engine, &settings)?;
//! let (mut pictures, mut steps) = (vec![], 0);
//! for prompt in ["a red house", "a blue tree by the sea"] {
//!     settings.set("prompt", prompt)?;
//!     engine.run(&Job::new(&settings, &model)?, &mut |event| {
//!         match event {
//!             Event::Step { done, of, .. } => steps += usize::from(done > 0 && done <= of),
//!             Event::Picture { picture, .. } => pictures.push(picture.clone()),
//!             _ => {}
//!         }
//!         Ok(true)
//!     })?;
//! }
//! assert_eq!((pictures.len(), steps, engine.work().loads), (2, 4, 3)); // three networks, loaded once
//! // `false` stops a run.
//! assert!(engine.run(&Job::new(&settings, &model)?, &mut |_| Ok(false)).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod bench;
mod components;
mod default_model;
mod inspect;

pub use impasto_autodiff as autodiff;
pub use impasto_backend as backend;
pub use impasto_device as device;
pub use impasto_generate as generate;
pub use impasto_graph as graph;
pub use impasto_kernel as kernel;
pub use impasto_model as model;
pub use impasto_server as server;
pub use impasto_spirv as spirv;
pub use impasto_weights as weights;
pub use impasto_worker as worker;

pub use components::{ComponentChoice, file_part, folder_metadata, model_parts};
pub use default_model::{default_model, open_model};
pub use impasto_generate::engine::{
    BackendOptions, imagined_machine, machine, open_device, probe_hook, survey_options,
};
pub use impasto_generate::{Engine, EngineOptions, Event, Job};
pub use inspect::{Inspection, TensorGroup, TextEncoderSizes, inspect};
