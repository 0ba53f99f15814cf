//! Model files, opened.
//!
//! [`Checkpoint::open`] takes what people have: safetensors (also with scaled fp8 or int8), GGUF, and checkpoints of PyTorch, each as one file, in shards or
//! parts, or as the folder of one component; any of them may be compressed (`.safetensors.zst`). A file is recognised by its bytes. Opening reads the header;
//! a parameter's bytes are read when a backend packs it, by position, on as many threads as it likes. A checkpoint is a [`WeightSource`].
//!
//! [`FileParams`] has the parameters of a network under its own names, each as the file stores it or converted while it is read ([`ParamLocation`]);
//! [`decode`] and [`encode`] are the blocks of every [`Storage`](impasto_graph::Storage). A [`Conversion`] writes a model anew, in another format or in other
//! types.
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
mod convert;
mod element;
mod error;
mod file;
mod file_params;
mod format;
mod lora;
mod packed;
mod scales;
mod source;
mod view;

pub use blocks::{decode, decode_from, encode, scale_rows};
pub use checkpoint::Checkpoint;
pub use convert::{
    Conversion, ConversionReport, ConvertError, ConvertOptions, ModelPart, OutputFormat, TypeFallback, TypeRules,
    TypeTotal, architecture_of, parse_storage,
};
pub use element::ElementType;
pub use error::WeightsError;
pub use file::{FileError, FileFault, FileStamp, open_file};
pub use file_params::{FileOrigin, FileParams, ParamLocation, TensorProblems, TensorView};
pub use format::TensorInfo;
pub use format::gguf::MetadataValue;
pub use lora::{AppliedLora, BranchOrigin, BranchedLayer, LoraBranches, LoraFile, LoraOrigin, LoraTarget};
pub use source::{Origin, ParamError, ParamInfo, Params, SharedSource, WeightSource};
