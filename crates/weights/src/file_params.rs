//! A set of named parameters in model files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use impasto_graph::{DType, Storage};
use serde::{Deserialize, Serialize};

use crate::view::ParamView;
use crate::{
    Checkpoint, ElementType, FileError, FileStamp, Origin, ParamError, ParamInfo, TensorInfo, WeightSource,
    WeightsError,
};

/// How a parameter is read from a stored tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TensorView {
    /// All of it, whatever its dimensions of one.
    Whole,
    /// One of so many equal parts of its rows: `(part, parts)`.
    Rows(usize, usize),
    /// All of it, rows and columns exchanged.
    Transposed,
}

/// Where a parameter is, and its shape in the graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParamLocation {
    /// The tensor in the file.
    pub tensor: String,
    /// What of it.
    pub take: TensorView,
    /// The parameter's shape.
    pub shape: Vec<usize>,
    /// As what it is read, converted on the way: dense, or quantised. None is as the file has it, as far as that can be.
    #[serde(default, with = "storage_name", skip_serializing_if = "Option::is_none")]
    pub read_as: Option<Storage>,
}

impl ParamLocation {
    /// A tensor as the file has it.
    pub fn new(tensor: impl Into<String>, take: TensorView, shape: impl Into<Vec<usize>>) -> ParamLocation {
        ParamLocation { tensor: tensor.into(), take, shape: shape.into(), read_as: None }
    }
}

/// A storage by its name.
mod storage_name {
    use impasto_graph::Storage;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(storage: &Option<Storage>, serializer: S) -> Result<S::Ok, S::Error> {
        storage.map(Storage::name).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Storage>, D::Error> {
        let name = Option::<String>::deserialize(deserializer)?;
        name.map(|name| name.parse().map_err(D::Error::custom)).transpose()
    }
}

/// Parameters in model files under the names of a graph, whatever the files call them.
#[derive(Clone)]
pub struct FileParams {
    id: u64,
    path: PathBuf,
    checkpoint: Arc<Checkpoint>,
    params: BTreeMap<String, ParamLocation>,
    fingerprint: Arc<OnceLock<u64>>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// Tensors that are missing or do not fit, a sentence for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorProblems(pub Vec<String>);

impl fmt::Display for TensorProblems {
    /// The first few of many, and how many there are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().take(4).map(String::as_str).collect::<Vec<_>>().join("; "))?;
        match self.0.len() {
            0..=4 => Ok(()),
            n => write!(f, "; and {} more", n - 4),
        }
    }
}

/// Parameters in model files, described so that another process finds them there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileOrigin {
    /// The files that they are in.
    pub files: Vec<FileStamp>,
    /// Where in them each is, by its name in the graph.
    pub params: BTreeMap<String, ParamLocation>,
}

impl FileOrigin {
    /// The parameters, in files that are open: those of [`FileOrigin::files`].
    pub fn open(&self, checkpoint: &Arc<Checkpoint>) -> Result<FileParams, WeightsError> {
        let path = self.files.first().map(|file| file.path.clone()).unwrap_or_default();
        let wrong = |problems| WeightsError::Tensors { path: path.clone(), problems };
        FileParams::find(&path, checkpoint, self.params.clone()).map_err(wrong)
    }
}

impl FileParams {
    /// Finds every parameter in the file, in its shape, before anything is packed. `path` is the file, or the folder of its shards.
    pub fn find(
        path: &Path,
        checkpoint: &Arc<Checkpoint>,
        params: BTreeMap<String, ParamLocation>,
    ) -> Result<FileParams, TensorProblems> {
        let problem = |location: &ParamLocation| match checkpoint.tensor(&location.tensor) {
            Some(tensor) => fits(checkpoint, tensor, location).err(),
            None => Some(format!("tensor '{}' {:?} is missing", location.tensor, location.shape)),
        };
        let problems: Vec<String> = params.values().filter_map(problem).collect();
        match problems.is_empty() {
            true => {
                let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
                let (path, checkpoint, fingerprint) = (path.into(), checkpoint.clone(), Arc::default());
                Ok(FileParams { id, path, checkpoint, params, fingerprint })
            }
            false => Err(TensorProblems(problems)),
        }
    }

    /// The same parameters, some of them converted while they are read, as `of` says by name and shape.
    pub fn read_as(&self, of: &dyn Fn(&str, &[usize]) -> Option<Storage>) -> Result<FileParams, TensorProblems> {
        let convert = |(name, location): (&String, &ParamLocation)| {
            let read_as = of(name, &location.shape).or(location.read_as);
            (name.clone(), ParamLocation { read_as, ..location.clone() })
        };
        FileParams::find(&self.path, &self.checkpoint, self.params.iter().map(convert).collect())
    }

    /// A number that no other parameters of this process have, nor will: clones of these alone.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether the files are still those that were opened.
    pub fn is_unchanged(&self) -> bool {
        self.checkpoint.is_unchanged()
    }

    /// The file, or the folder of its shards.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The dense float that a graph should say of parameters that it keeps dense: that of most dense bytes, or `f16` where most bytes are quantised.
    /// How each is stored is in [`WeightSource::describe`].
    pub fn storage(&self) -> Storage {
        let mut bytes: BTreeMap<Storage, u64> = BTreeMap::new();
        for location in self.params.values() {
            if let Some(view) = self.view(location) {
                let dense = matches!(view.storage, Storage::Dense(_));
                let storage = if dense { view.storage } else { Storage::Dense(DType::F16) };
                *bytes.entry(storage).or_default() += view.bytes();
            }
        }
        bytes.into_iter().max_by_key(|(_, n)| *n).map_or(Storage::Dense(DType::F32), |(storage, _)| storage)
    }

    /// Bytes that its parameters take as they are read, by storage.
    pub fn bytes_by_storage(&self) -> BTreeMap<Storage, u64> {
        let mut bytes = BTreeMap::new();
        for info in self.params.keys().filter_map(|name| self.describe(name).ok()) {
            *bytes.entry(info.storage).or_default() += info.bytes;
        }
        bytes
    }

    /// Bytes that its parameters take in the file.
    pub fn bytes(&self) -> u64 {
        let parts = |p: &ParamLocation| if let TensorView::Rows(_, parts) = p.take { parts as u64 } else { 1 };
        self.params.values().map(|p| self.checkpoint.tensor(&p.tensor).map_or(0, |t| t.bytes() / parts(p))).sum()
    }

    /// A number that tells this network from others: of names and shapes, and of some bytes of every tensor, read when it is first asked for.
    pub fn fingerprint(&self) -> Result<u64, FileError> {
        if let Some(known) = self.fingerprint.get() {
            return Ok(*known);
        }
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let mut take = |bytes: &[u8]| {
            bytes.iter().for_each(|b| hash = (hash ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
        };
        for (name, location) in &self.params {
            take(name.as_bytes());
            location.shape.iter().for_each(|d| take(&(*d as u64).to_le_bytes()));
            location.read_as.iter().for_each(|storage| take(storage.name().as_bytes()));
            if let Some(tensor) = self.checkpoint.tensor(&location.tensor) {
                let some = &mut [0; 64][..tensor.bytes().min(64) as usize];
                let rest = tensor.bytes() - some.len() as u64;
                for at in [0, rest / 2, rest] {
                    self.checkpoint.read(tensor, at, some)?;
                    take(some);
                }
            }
        }
        Ok(*self.fingerprint.get_or_init(|| hash))
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
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        self.params.values().map(|p| p.tensor.as_str())
    }
}

/// Whether a tensor of a file holds a parameter of this shape, and can be read as it should be.
fn fits(checkpoint: &Checkpoint, tensor: &TensorInfo, location: &ParamLocation) -> Result<(), String> {
    let ParamLocation { take, shape, read_as, .. } = location;
    let without_ones = |shape: &[usize]| shape.iter().copied().filter(|&d| d != 1).collect::<Vec<_>>();
    let mut want = shape.clone();
    let name = &tensor.name;
    match (*take, want.first_mut()) {
        (TensorView::Whole, _) => {}
        (TensorView::Rows(part, parts), _) if part >= parts => return Err(format!("tensor '{name}' has no such part")),
        (TensorView::Rows(_, parts), Some(rows)) => *rows = rows.saturating_mul(parts),
        (TensorView::Rows(..), None) => return Err("a number has no rows".into()),
        (TensorView::Transposed, _) => want.reverse(),
    }
    if without_ones(&tensor.shape) != without_ones(&want) {
        return Err(format!("tensor '{name}' has the shape {:?}, {want:?} is needed", tensor.shape));
    }
    let view = ParamView::new(checkpoint, tensor, *take, shape, *read_as);
    match view.map_err(|problem| format!("tensor '{name}' {problem}"))?.storage {
        Storage::Dense(DType::I32) => {
            Err(format!("tensor '{name}' is stored as i32; {} can be computed with", ElementType::usable()))
        }
        _ => Ok(()),
    }
}

impl FileParams {
    /// A parameter whose tensor fits, as all did when they were found.
    fn view<'a>(&'a self, location: &'a ParamLocation) -> Option<ParamView<'a>> {
        let tensor = self.checkpoint.tensor(&location.tensor)?;
        ParamView::new(&self.checkpoint, tensor, location.take, &location.shape, location.read_as).ok()
    }

    fn find_param(&self, name: &str) -> Result<(&ParamLocation, ParamView<'_>), ParamError> {
        let unknown = || ParamError::Wrong { name: name.into(), problem: "is no parameter of this network".into() };
        let location = self.params.get(name).ok_or_else(unknown)?;
        Ok((location, self.view(location).ok_or_else(unknown)?))
    }
}

impl WeightSource for FileParams {
    fn describe(&self, name: &str) -> Result<ParamInfo, ParamError> {
        let (location, view) = self.find_param(name)?;
        Ok(ParamInfo { storage: view.storage, shape: location.shape.clone(), bytes: view.bytes() })
    }

    fn row_scales(&self, name: &str) -> Result<Option<Vec<f32>>, ParamError> {
        self.find_param(name)?.1.row_scales()
    }

    fn read_into(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), ParamError> {
        self.find_param(name)?.1.read(offset, out)
    }

    fn in_memory(&self, name: &str) -> Option<&[u8]> {
        self.view(self.params.get(name)?)?.in_memory()
    }

    fn check(&self) -> Result<(), ParamError> {
        self.checkpoint.check()
    }

    fn origin(&self) -> Option<Origin> {
        Some(Origin::Files(FileOrigin { files: self.checkpoint.stamps()?, params: self.params.clone() }))
    }
}
