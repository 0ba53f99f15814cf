//! Model files, opened.
//!
//! [`Checkpoint::open`] takes what people have: one `.safetensors` file, the index of a model in shards, or the folder of one
//! component; any of them may be compressed (`.safetensors.zst`). Opening reads the header; a parameter's bytes are read when a backend packs
//! it, by position, on as many threads as it likes. A checkpoint is a [`WeightSource`].
//!
//! Nothing in a file is believed before it is checked against the file's size. A file that is wrong is an error that names the
//! file, the tensor and the offset; it is never a panic, and never a large allocation. A file that changes
//! while it is in use is a [`FileError`] that says what happened to it.
//!
//! ```no_run
//! use impasto_weights::Checkpoint;
//! let file = Checkpoint::open("model.safetensors".as_ref())?;
//! for tensor in file.tensors() {
//!     println!("{} {:?} {}", tensor.name, tensor.shape, tensor.element);
//! }
//! # Ok::<(), impasto_weights::WeightsError>(())
//! ```

mod blocks;
mod checkpoint;
mod error;
mod file;
mod file_params;
mod header;
mod packed;
mod source;

pub use blocks::{decode, decode_from, encode};
pub use checkpoint::Checkpoint;
pub use error::WeightsError;
pub use file::{FileError, FileFault, FileStamp, open_file};
pub use file_params::{FileOrigin, FileParams, ParamLocation, TensorProblems, TensorView};
pub use header::{ElementType, TensorInfo};
pub use source::{Origin, ParamError, ParamInfo, Params, SharedSource, WeightSource};
