//! The model inside the program: small, trained by us, and enough for a first picture on any machine.

use impasto_model::{Model, ModelError};
use impasto_weights::Checkpoint;

/// How it was trained: `models/README.md`.
static FILE: &[u8] = include_bytes!("../../../models/default.safetensors.zst");

/// Open the model inside the program.
///
/// ```
/// let model = impasto::default_model()?;
/// assert_eq!(model.size, [256, 256]);
/// # Ok::<(), impasto::model::ModelError>(())
/// ```
pub fn default_model() -> Result<Model, ModelError> {
    let checkpoint = Checkpoint::from_bytes("the model inside impasto", FILE)?;
    Model::from_checkpoint("default", checkpoint)
}
