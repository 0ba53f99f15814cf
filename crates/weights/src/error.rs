//! What can be wrong with a model file.

use std::path::PathBuf;

use crate::{FileError, TensorProblems};

/// A model file that cannot be used. Every message names the file.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// It cannot be opened.
    #[error("{}: cannot be opened: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// It is not what it was when it was opened, or cannot be read any more.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is something else than a model file.
    #[error("{}: {problem}", path.display())]
    NotAModel {
        /// The file or folder.
        path: PathBuf,
        /// What was found, and what is needed.
        problem: String,
    },
    /// The part before the tensors is damaged.
    #[error("{}: byte {offset}: {problem}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// Where in the file.
        offset: u64,
        /// What is wrong there.
        problem: String,
    },
    /// A tensor is described wrongly.
    #[error("{}: tensor '{tensor}' at byte {offset}: {problem}", path.display())]
    TensorInfo {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where its bytes should begin in the file.
        offset: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// A pickle names something of Python that no weights need. Nothing of it was run.
    #[error(
        "{}: byte {offset}: this pickle names '{global}', which could run code where Python opens the file and which no weights need: it is refused, and nothing of it was run. Get the model as .safetensors, or from somebody you trust",
        path.display()
    )]
    Global {
        /// The file.
        path: PathBuf,
        /// Where in the file.
        offset: u64,
        /// Module and name.
        global: String,
    },
    /// Tensors that are missing or do not fit.
    #[error("{}: {problems}", path.display())]
    Tensors {
        /// The file.
        path: PathBuf,
        /// Which, and why.
        problems: TensorProblems,
    },
    /// The same tensor in two shards.
    #[error("tensor '{tensor}' stands in {} and in {}; each tensor belongs to one file", first.display(), second.display())]
    Twice {
        /// The tensor.
        tensor: String,
        /// The first file.
        first: PathBuf,
        /// The second file.
        second: PathBuf,
    },
    /// A shard lacks a tensor that the index says it has.
    #[error("{}: the index says that tensor '{tensor}' is in {shard}, which does not have it", path.display())]
    Missing {
        /// The index.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shard.
        shard: String,
    },
}
