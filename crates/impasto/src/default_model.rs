//! The model inside the program: small, trained by us, and enough for a first picture on any machine. The feature `default-model`, which is on
//! by default, puts it there.

use std::sync::Arc;

use impasto_generate::settings::Settings;
use impasto_generate::{Engine, GenerateError};
use impasto_model::{Model, ModelError};

/// Opens the model that settings name, or the one inside the program where they name none.
pub fn open_model(engine: &Engine, settings: &Settings) -> Result<Arc<Model>, GenerateError> {
    let paths = settings.model_paths();
    match paths.is_empty() {
        true => engine.open_with(&paths, || default_model()?.read_as(&paths)),
        false => engine.open(&paths),
    }
}

/// Open the model inside the program.
///
/// ```
/// let model = impasto::default_model()?;
/// assert_eq!(model.pipeline.defaults().size, [256, 256]);
/// # Ok::<(), impasto::model::ModelError>(())
/// ```
#[cfg(feature = "default-model")]
pub fn default_model() -> Result<Model, ModelError> {
    /// How it was trained: `models/README.md`.
    static FILE: &[u8] = include_bytes!("../../../models/default.safetensors.zst");
    let checkpoint = impasto_weights::Checkpoint::from_bytes("the model inside impasto", FILE)?;
    Model::from_checkpoint("default", checkpoint)
}

/// There is no model inside this program.
#[cfg(not(feature = "default-model"))]
pub fn default_model() -> Result<Model, ModelError> {
    Err(ModelError::NothingNamed)
}
