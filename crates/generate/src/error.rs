//! What can go wrong between a prompt and its picture.

use impasto_backend::BackendError;
use impasto_graph::{GraphError, PlanError};
use impasto_model::{ModelError, NetworkId};

use crate::picture::PictureError;
use crate::place::AssignmentError;
use crate::prompt::PromptError;
use crate::sampling::{SamplingError, StepError};
use crate::saved_run::SavedRunError;
use crate::settings::SettingsError;

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// A setting that cannot be.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Settings that do not go together.
    #[error("{0}")]
    Asked(String),
    /// What was asked for and is not to be had here.
    #[error("{0}")]
    Refused(String),
    /// A device that was named and cannot be.
    #[error(transparent)]
    Assignment(#[from] AssignmentError),
    /// The model's files.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The tokeniser's files.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// Sampling.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// A picture's file.
    #[error(transparent)]
    Picture(#[from] PictureError),
    /// A run's file.
    #[error(transparent)]
    SavedRun(#[from] SavedRunError),
    /// A network that cannot be built.
    #[error("{module}: {source}")]
    Graph {
        /// The module.
        module: NetworkId,
        /// Why.
        source: GraphError,
    },
    /// A network that does not fit the device.
    #[error("{module} on {device}: {source}")]
    Plan {
        /// The module.
        module: NetworkId,
        /// The device.
        device: String,
        /// What does not fit.
        source: PlanError,
    },
    /// A wrong plan, which another device or split would hide.
    #[error("{module} on {device}: {source}")]
    WrongPlan {
        /// The module.
        module: NetworkId,
        /// The device.
        device: String,
        /// What is wrong.
        source: PlanError,
    },
    /// A device that does not open.
    #[error("{module}: {device} does not open: {source}")]
    Open {
        /// The module.
        module: NetworkId,
        /// The device.
        device: String,
        /// Why.
        source: BackendError,
    },
    /// Devices that failed one after the other.
    #[error("{last}; before that: {}", before.join("; "))]
    Tried {
        /// How the last one failed.
        last: Box<GenerateError>,
        /// What was tried before, a line each.
        before: Vec<String>,
    },
    /// A device that failed.
    #[error("{module}: {source}")]
    Backend {
        /// The module.
        module: NetworkId,
        /// How.
        source: BackendError,
    },
    /// NaN or infinity.
    #[error(
        "{module} on {device} gave numbers that are not finite{} in {precision}{}",
        at_step(*step),
        what_that_means(precision)
    )]
    NotFinite {
        /// The module in which it began.
        module: NetworkId,
        /// Where it computed.
        device: String,
        /// The step, from 1.
        step: Option<usize>,
        /// What was computed in.
        precision: String,
    },
    /// A picture of one colour.
    #[error(
        "{module} gave a picture of one colour, which nobody asked for: the model's file is damaged, or it is no model of this family"
    )]
    Flat {
        /// The module in which it began.
        module: NetworkId,
    },
    /// A step that cannot be taken.
    #[error("{0}")]
    Step(String),
    /// Stopped by the user.
    #[error("interrupted")]
    Interrupted,
}

impl GenerateError {
    /// Tells a model that does not fit from a wrong plan.
    pub(crate) fn no_plan(module: NetworkId, device: &str, source: PlanError) -> GenerateError {
        let device = device.to_owned();
        match source.is_fault() {
            true => GenerateError::WrongPlan { module, device, source },
            false => GenerateError::Plan { module, device, source },
        }
    }
}

/// What overflows in half the bits is computed again in all of them; what is no number then never was one.
fn what_that_means(precision: &str) -> &'static str {
    if precision == "f32" { ": the model's file is damaged, or the device computes wrongly" } else { "" }
}

fn at_step(step: Option<usize>) -> String {
    step.map_or(String::new(), |step| format!(" at step {step}"))
}

impl From<StepError<GenerateError>> for GenerateError {
    fn from(error: StepError<GenerateError>) -> GenerateError {
        match error {
            StepError::Denoise { step, cause: GenerateError::NotFinite { module, device, precision, .. }, .. } => {
                GenerateError::NotFinite { module, device, step: Some(step), precision }
            }
            StepError::Denoise { cause, .. } => cause,
            other => GenerateError::Step(other.to_string()),
        }
    }
}
