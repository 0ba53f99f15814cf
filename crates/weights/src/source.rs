//! Where parameters come from.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use impasto_graph::{HostTensor, Storage};
use serde::{Deserialize, Serialize};

use crate::{BranchOrigin, FileError, FileOrigin};

/// Why a parameter cannot be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParamError {
    /// The source does not have it, or has it in another shape or storage.
    #[error("parameter '{name}': {problem}")]
    Wrong {
        /// The parameter.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Somebody asked to stop.
    #[error("{reader}: interrupted")]
    Interrupted {
        /// Who was reading.
        reader: String,
    },
    /// The file that it is in has changed, or cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// What holds the parameters is gone, or fails.
    #[error("{reason}")]
    Gone {
        /// What was seen.
        reason: String,
    },
}

/// How a source has one parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamInfo {
    /// How it is stored.
    pub storage: Storage,
    /// The shape.
    pub shape: Vec<usize>,
    /// Bytes that it takes so.
    pub bytes: u64,
}

/// Where parameters come from: a model file, or memory. A parameter of floats may be stored in another way than the graph says, since
/// files mix element types; a backend converts it. Several threads read at once.
pub trait WeightSource: Sync {
    /// How the parameter of this name is stored.
    fn describe(&self, name: &str) -> Result<ParamInfo, ParamError>;

    /// A scale for each row of the parameter (its first dimension), if it has them: a true weight is what is stored times the scale of its row. Only
    /// eight-bit floats have them; scales of other storages are applied while they are read.
    fn row_scales(&self, _name: &str) -> Result<Option<Vec<f32>>, ParamError> {
        Ok(None)
    }

    /// Fills `out` with the parameter's bytes from `offset` on, as a model file stores them (little endian).
    fn read_into(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), ParamError>;

    /// All bytes of the parameter, where they are in memory anyway and need not be copied to be looked at.
    fn in_memory(&self, _name: &str) -> Option<&[u8]> {
        None
    }

    /// Makes sure that what is read is what was opened: called before the first read of a load and after its last.
    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }

    /// The parameter of this name in new memory.
    fn read_all(&self, name: &str) -> Result<(ParamInfo, Vec<u8>), ParamError> {
        let info = self.describe(name)?;
        let mut bytes = vec![0; info.bytes as usize];
        self.read_into(name, 0, &mut bytes)?;
        Ok((info, bytes))
    }

    /// The parameter of this name as the backend has packed it before, where it is kept so.
    fn packed(&self, _name: &str) -> Option<&[u8]> {
        None
    }

    /// The parameters as the backend has packed them before into host memory that its device reaches, in a form of its own.
    fn host_mapped(&self) -> Option<&(dyn Any + Send + Sync)> {
        None
    }

    /// Where another process finds the same parameters, if it can.
    fn origin(&self) -> Option<Origin> {
        None
    }

    /// So many elements of a parameter were read, by this process or by another where this source has them. An error is a wish to stop.
    fn was_read(&self, _name: &str, _elements: u64) -> Result<(), ParamError> {
        Ok(())
    }
}

/// Where another process finds the parameters of a source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Origin {
    /// In model files.
    Files(FileOrigin),
    /// In LoRA files, as branches beside the products of a network.
    Branches(BranchOrigin),
    /// That process holds them itself, packed, under a number that it was given with them.
    Packed(u64),
}

/// A source of parameters that several threads may read.
pub type SharedSource = Arc<dyn WeightSource + Send + Sync>;

/// Parameters in memory, by name.
///
/// ```
/// use impasto_graph::HostTensor;
/// use impasto_weights::{Params, WeightSource};
/// let mut params = Params::new();
/// params.insert("w", HostTensor::f32([2], vec![1.0, 2.0])?);
/// assert_eq!(params.describe("w")?.bytes, 8);
/// assert!(params.describe("b").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Params(HashMap<String, HostTensor>);

impl Params {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Add one.
    pub fn insert(&mut self, name: &str, tensor: HostTensor) {
        self.0.insert(name.into(), tensor);
    }

    /// The parameter of this name.
    pub fn get(&self, name: &str) -> Option<&HostTensor> {
        self.0.get(name)
    }
}

impl Params {
    fn find(&self, name: &str) -> Result<&HostTensor, ParamError> {
        let missing = || ParamError::Wrong { name: name.into(), problem: "is missing from the model".into() };
        self.0.get(name).ok_or_else(missing)
    }
}

impl WeightSource for Params {
    fn describe(&self, name: &str) -> Result<ParamInfo, ParamError> {
        let tensor = self.find(name)?;
        let (storage, bytes) = (Storage::Dense(tensor.ty().dtype), tensor.ty().bytes());
        Ok(ParamInfo { storage, shape: tensor.shape().to_vec(), bytes })
    }

    fn read_into(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), ParamError> {
        let size = out.len();
        let outside = || ParamError::Wrong { name: name.into(), problem: format!("has no {size} bytes at {offset}") };
        let filled = self.find(name)?.data().copy_bytes(offset as usize, out);
        filled.then_some(()).ok_or_else(outside)
    }
}
