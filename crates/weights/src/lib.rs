//! Model files, opened.
//!
//! [`Checkpoint::open`] takes what people have: one `.safetensors` file, the index of a model in shards, or the folder of one
//! component; any of them may be compressed (`.safetensors.zst`). Files are mapped, not read: opening costs the header, and a parameter's bytes are touched when a backend packs
//! it. A checkpoint is a [`WeightSource`](impasto_backend::WeightSource).
//!
//! Nothing in a file is believed before it is checked against the file's size. A file that is wrong is an error that names the
//! file, the tensor and the offset; it is never a panic, and never a large allocation.
//!
//! ```no_run
//! use impasto_weights::Checkpoint;
//! let file = Checkpoint::open("model.safetensors".as_ref())?;
//! for tensor in file.tensors() {
//!     println!("{} {:?} {}", tensor.name, tensor.shape, tensor.element);
//! }
//! # Ok::<(), impasto_weights::WeightsError>(())
//! ```

mod checkpoint;
mod error;
mod header;
mod mapped;
mod packed;

pub use checkpoint::Checkpoint;
pub use error::WeightsError;
pub use header::{Element, Tensor};
pub use mapped::Stamp;
