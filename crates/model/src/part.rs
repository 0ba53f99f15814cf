//! One network and the file that it is in: a source of parameters under our names.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use impasto_backend::{BackendError, ParamBytes, WeightSource};
use impasto_graph::{DType, Storage};
use impasto_weights::{Checkpoint, Stamp, Tensor};
use serde::{Deserialize, Serialize};

use crate::{Found, ModelError, Shapes, Take};

/// One network, and the file that it is in.
///
/// It gives parameters under the names of the graphs ([`unet`](crate::unet()) and the others), whatever the file calls them. Bytes
/// are borrowed from the mapped file; only a matrix that the file has turned is copied.
#[derive(Clone)]
pub struct Part<C> {
    /// What distinguishes it from others of its kind.
    pub config: C,
    path: PathBuf,
    checkpoint: Arc<Checkpoint>,
    params: BTreeMap<String, Place>,
}

/// Where a parameter is, and its shape in the graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    tensor: String,
    take: Take,
    shape: Vec<usize>,
}

/// A network of files, described so that another process finds it there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    files: Vec<Stamp>,
    params: BTreeMap<String, Place>,
}

impl Origin {
    /// The files that it is in.
    pub fn files(&self) -> &[Stamp] {
        &self.files
    }

    /// The network, in files that are open: those of [`Origin::files`].
    pub fn open(self, checkpoint: &Arc<Checkpoint>) -> Result<Part<()>, ModelError> {
        let path = self.files.first().map(|file| file.path.clone()).unwrap_or_default();
        let problem = |place: &Place| match checkpoint.tensor(&place.tensor) {
            Some(_) if place.shape.is_empty() && matches!(place.take, Take::Rows(..)) => {
                Some("a number has no rows".into())
            }
            Some(_) if matches!(place.take, Take::Rows(part, parts) if part >= parts) => {
                Some(format!("tensor '{}' has no such part", place.tensor))
            }
            Some(tensor) => fits(tensor, place.take, &place.shape).err(),
            None => Some(format!("tensor '{}' is missing", place.tensor)),
        };
        let problems: Vec<String> = self.params.values().filter_map(problem).collect();
        match problems.is_empty() {
            true => Ok(Part { config: (), path, checkpoint: checkpoint.clone(), params: self.params }),
            false => Err(ModelError::Tensors { path, part: "network", problems }),
        }
    }
}

impl<C> Part<C> {
    /// Find every parameter of `found` in the file, in its shape, before anything is packed.
    pub(crate) fn new(
        config: C,
        what: &'static str,
        found: &Found,
        path: &Path,
        checkpoint: &Arc<Checkpoint>,
        shapes: &Shapes,
    ) -> Result<Part<C>, ModelError> {
        let graphs = found.graphs().map_err(|source| ModelError::Graph {
            path: path.into(),
            part: what,
            source: source.into(),
        })?;
        let (mut params, mut problems) = (BTreeMap::new(), vec![]);
        for graph in &graphs {
            for (name, value) in graph.params() {
                let stored = found.stored(name, shapes);
                let shape = graph.ty(value).shape.clone();
                match checkpoint.tensor(&stored.name) {
                    None => problems.push(format!("tensor '{}' {:?} is missing", stored.name, shape)),
                    Some(tensor) => problems.extend(fits(tensor, stored.take, &shape).err()),
                }
                params.insert(name.to_string(), Place { tensor: stored.name, take: stored.take, shape });
            }
        }
        match problems.is_empty() {
            true => Ok(Part { config, path: path.into(), checkpoint: checkpoint.clone(), params }),
            false => Err(ModelError::Tensors { path: path.into(), part: what, problems }),
        }
    }

    /// The file, or the folder of its shards.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How most of its bytes are stored: what [`Numbers::storage`](crate::Numbers::storage) should be. Single parameters may be
    /// stored in another way.
    pub fn storage(&self) -> Storage {
        let mut bytes: BTreeMap<&'static str, (u64, Storage)> = BTreeMap::new();
        for tensor in self.params.values().filter_map(|p| self.checkpoint.tensor(&p.tensor)) {
            if let Some(storage) = tensor.element.storage() {
                bytes.entry(storage.name()).or_insert((0, storage)).0 += tensor.bytes();
            }
        }
        bytes.values().max_by_key(|(n, _)| *n).map_or(Storage::Dense(DType::F32), |(_, storage)| *storage)
    }

    /// Bytes that its parameters take in the file.
    pub fn bytes(&self) -> u64 {
        let elements = |p: &Place| p.shape.iter().product::<usize>() as u64;
        self.params
            .values()
            .map(|p| self.checkpoint.tensor(&p.tensor).map_or(0, |t| elements(p) * t.element.bytes()))
            .sum()
    }

    /// A number that tells this network from others: of names and shapes, and of some bytes of every tensor.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let mut take = |bytes: &[u8]| {
            bytes.iter().for_each(|b| hash = (hash ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
        };
        for (name, place) in &self.params {
            take(name.as_bytes());
            place.shape.iter().for_each(|d| take(&(*d as u64).to_le_bytes()));
            if let Some(tensor) = self.checkpoint.tensor(&place.tensor) {
                let bytes = self.checkpoint.bytes(tensor);
                let some = bytes.len().min(64);
                [0, (bytes.len() - some) / 2, bytes.len() - some].iter().for_each(|&at| take(&bytes[at..at + some]));
            }
        }
        hash
    }

    /// How many parameters it has, as tensors of the graph.
    pub fn len(&self) -> usize {
        self.params.len()
    }

    /// Whether it has none, which no network does.
    pub fn is_empty(&self) -> bool {
        self.params.is_empty()
    }

    /// The names of its tensors in the file.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &str> {
        self.params.values().map(|p| p.tensor.as_str())
    }
}

/// Whether a tensor of a file holds a parameter of this shape.
fn fits(tensor: &Tensor, take: Take, shape: &[usize]) -> Result<(), String> {
    let without_ones = |shape: &[usize]| shape.iter().copied().filter(|&d| d != 1).collect::<Vec<_>>();
    let mut want = shape.to_vec();
    match take {
        Take::Whole => {}
        Take::Rows(_, parts) => want[0] = want[0].saturating_mul(parts),
        Take::Transposed => want.reverse(),
    }
    let name = &tensor.name;
    if without_ones(&tensor.shape) != without_ones(&want) {
        return Err(format!("tensor '{name}' has the shape {:?}, {want:?} is needed", tensor.shape));
    }
    match tensor.element.storage() {
        Some(Storage::Dense(dtype)) if dtype.is_float() => Ok(()),
        _ => Err(format!("tensor '{name}' is stored as {}; f32, f16 and bf16 can be computed with", tensor.element)),
    }
}

impl<C> WeightSource for Part<C> {
    fn read(&self, name: &str) -> Result<ParamBytes<'_>, BackendError> {
        let wrong = |problem: String| BackendError::Param { name: name.into(), problem };
        let place = self.params.get(name).ok_or_else(|| wrong("is no parameter of this network".into()))?;
        let ParamBytes { storage, bytes, shape: stored } = self.checkpoint.read(&place.tensor)?;
        let bytes = match (place.take, bytes) {
            (Take::Rows(part, parts), Cow::Borrowed(bytes)) => {
                let each = bytes.len() / parts;
                Cow::Borrowed(&bytes[part * each..(part + 1) * each])
            }
            (Take::Transposed, bytes) => Cow::Owned(transposed(&bytes, &stored)),
            (_, bytes) => bytes,
        };
        Ok(ParamBytes { storage, shape: place.shape.clone(), bytes })
    }

    fn origin(&self) -> Option<impasto_backend::Origin> {
        let origin = Origin { files: self.checkpoint.stamps()?, params: self.params.clone() };
        serde_json::to_string(&origin).ok().map(impasto_backend::Origin::Model)
    }

    fn release(&self, name: &str) {
        if let Some(place) = self.params.get(name) {
            self.checkpoint.release(&place.tensor);
        }
    }
}

/// A matrix with its rows and columns exchanged.
fn transposed(bytes: &[u8], shape: &[usize]) -> Vec<u8> {
    let [rows, columns] = *shape else { return bytes.to_vec() };
    let size = bytes.len() / (rows * columns).max(1);
    let mut out = Vec::with_capacity(bytes.len());
    for column in 0..columns {
        for row in 0..rows {
            let at = (row * columns + column) * size;
            out.extend_from_slice(&bytes[at..at + size]);
        }
    }
    out
}
