//! Why a model cannot be used.

use std::path::PathBuf;

use impasto_graph::GraphError;
use impasto_weights::{TensorProblems, WeightsError};

use crate::NoiseError;
use crate::families::SUPPORTED;

/// A model that cannot be used. Every message names the file, what is wrong with it, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file cannot be read.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Nothing was named.
    #[error("no model was named: give one file or folder with --model, or the diffusion model with --diffusion-model")]
    NothingNamed,
    /// It holds something else than was asked for.
    #[error("{}: has no {wanted}; found: {found}. Supported are {SUPPORTED}", path.display())]
    Unknown {
        /// The file or folder.
        path: PathBuf,
        /// What was looked for.
        wanted: &'static str,
        /// What is there instead.
        found: String,
    },
    /// Networks that nobody has given.
    #[error("{from}: {}", missing_parts(.parts))]
    MissingParts {
        /// What the user named.
        from: String,
        /// Each missing network, and the flag that gives it.
        parts: Vec<(&'static str, &'static str)>,
    },
    /// Tensors of a network that are missing or of another shape.
    #[error("{}: {part}: {problems}", path.display())]
    Tensors {
        /// The file.
        path: PathBuf,
        /// The network.
        part: &'static str,
        /// One sentence for each tensor.
        problems: TensorProblems,
    },
    /// Tensors under a network's names that its structure has no place for: without them it would make other pictures.
    #[error(
        "{}: {part}: {} that the network has no place for: {}. The file is damaged, incomplete or of a kind that is not supported",
        path.display(), count(.tensors.len()), few(.tensors)
    )]
    UnknownTensors {
        /// The file.
        path: PathBuf,
        /// The network.
        part: &'static str,
        /// Their names.
        tensors: Vec<String>,
    },
    /// Layers whose sizes do not fit together.
    #[error("{}: {part}: its layers do not fit together: {source}", path.display())]
    Graph {
        /// The file.
        path: PathBuf,
        /// The network.
        part: &'static str,
        /// What does not fit.
        source: Box<GraphError>,
    },
    /// A JSON file beside the weights that cannot be read.
    #[error("{}: {problem}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A setting of the model that is wrong, or that is not supported.
    #[error("{}: {field}: {problem}", path.display())]
    Setting {
        /// The file.
        path: PathBuf,
        /// The field.
        field: String,
        /// What it says, and what can be used.
        problem: String,
    },
    /// Noise that a model cannot have been trained with.
    #[error(transparent)]
    Noise(#[from] NoiseError),
    /// Networks that do not belong together.
    #[error("{0}")]
    Mismatch(String),
    /// A LoRA that does not belong to the model.
    #[error("{}: {problem}", path.display())]
    Lora {
        /// The file.
        path: PathBuf,
        /// Why not.
        problem: String,
    },
    /// A known kind of model that is not supported.
    #[error("{}: {what}. Supported are {SUPPORTED}", path.display())]
    Unsupported {
        /// The file or folder.
        path: PathBuf,
        /// What it is.
        what: String,
    },
    /// Rules for the types of tensors that cannot be read.
    #[error("--tensor-type-rules: {problem}")]
    TypeRules {
        /// What is wrong with them.
        problem: String,
    },
}

fn count(tensors: usize) -> String {
    if tensors == 1 { "has a tensor".into() } else { format!("has {tensors} tensors") }
}

/// The first few names of many.
fn few(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(4).map(|name| format!("'{name}'")).collect();
    shown.join(", ") + if names.len() > 4 { ", ..." } else { "" }
}

fn missing_parts(parts: &[(&str, &str)]) -> String {
    let parts: Vec<String> = parts.iter().map(|(part, flag)| format!("no {part}, give one with {flag}")).collect();
    parts.join("; ")
}
