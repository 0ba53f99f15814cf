//! A set of named parameters in model files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use impasto_graph::{DType, Storage};
use serde::{Deserialize, Serialize};

use crate::{Checkpoint, FileError, FileStamp, Origin, ParamError, ParamInfo, TensorInfo, WeightSource, WeightsError};

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
            Some(tensor) => fits(tensor, location.take, &location.shape).err(),
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

    /// How most of its bytes are stored: what a graph of them should say. Single parameters may be stored in another way.
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
        let elements = |p: &ParamLocation| p.shape.iter().product::<usize>() as u64;
        self.params
            .values()
            .map(|p| self.checkpoint.tensor(&p.tensor).map_or(0, |t| elements(p) * t.element.bytes()))
            .sum()
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

/// Whether a tensor of a file holds a parameter of this shape.
fn fits(tensor: &TensorInfo, take: TensorView, shape: &[usize]) -> Result<(), String> {
    let without_ones = |shape: &[usize]| shape.iter().copied().filter(|&d| d != 1).collect::<Vec<_>>();
    let mut want = shape.to_vec();
    let name = &tensor.name;
    match (take, want.first_mut()) {
        (TensorView::Whole, _) => {}
        (TensorView::Rows(part, parts), _) if part >= parts => return Err(format!("tensor '{name}' has no such part")),
        (TensorView::Rows(_, parts), Some(rows)) => *rows = rows.saturating_mul(parts),
        (TensorView::Rows(..), None) => return Err("a number has no rows".into()),
        (TensorView::Transposed, _) => want.reverse(),
    }
    if without_ones(&tensor.shape) != without_ones(&want) {
        return Err(format!("tensor '{name}' has the shape {:?}, {want:?} is needed", tensor.shape));
    }
    match tensor.element.storage() {
        Some(Storage::Dense(dtype)) if dtype.is_float() => Ok(()),
        _ => Err(format!("tensor '{name}' is stored as {}; f32, f16 and bf16 can be computed with", tensor.element)),
    }
}

impl FileParams {
    fn find_param(&self, name: &str) -> Result<&ParamLocation, ParamError> {
        let unknown = || ParamError::Wrong { name: name.into(), problem: "is no parameter of this network".into() };
        self.params.get(name).ok_or_else(unknown)
    }
}

impl WeightSource for FileParams {
    fn describe(&self, name: &str) -> Result<ParamInfo, ParamError> {
        let location = self.find_param(name)?;
        let ParamInfo { storage, bytes, .. } = self.checkpoint.describe(&location.tensor)?;
        let parts = if let TensorView::Rows(_, parts) = location.take { parts as u64 } else { 1 };
        Ok(ParamInfo { storage, shape: location.shape.clone(), bytes: bytes / parts })
    }

    fn read_into(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), ParamError> {
        let (location, bytes) = (self.find_param(name)?, self.describe(name)?.bytes);
        // What comes after a view of a tensor's rows is another parameter's.
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > bytes) {
            let problem = format!("has no {} bytes at {offset}", out.len());
            return Err(ParamError::Wrong { name: name.into(), problem });
        }
        match location.take {
            TensorView::Whole => self.checkpoint.read_into(&location.tensor, offset, out),
            TensorView::Rows(part, _) => self.checkpoint.read_into(&location.tensor, bytes * part as u64 + offset, out),
            TensorView::Transposed => read_transposed(&self.checkpoint, &location.tensor, offset, out),
        }
    }

    fn in_memory(&self, name: &str) -> Option<&[u8]> {
        let location = self.params.get(name)?;
        let bytes = self.checkpoint.in_memory(&location.tensor)?;
        match location.take {
            TensorView::Whole => Some(bytes),
            TensorView::Rows(part, parts) => {
                let each = bytes.len() / parts;
                bytes.get(part * each..(part + 1) * each)
            }
            TensorView::Transposed => None,
        }
    }

    fn check(&self) -> Result<(), ParamError> {
        self.checkpoint.check()
    }

    fn origin(&self) -> Option<Origin> {
        Some(Origin::Files(FileOrigin { files: self.checkpoint.stamps()?, params: self.params.clone() }))
    }
}

/// Bytes of a stored matrix that are read at a time to be transposed.
const PIECE: usize = 256 << 10;

/// Fills `out` with bytes from `offset` on of a matrix with its rows and columns exchanged.
fn read_transposed(source: &Checkpoint, tensor: &str, offset: u64, out: &mut [u8]) -> Result<(), ParamError> {
    let info = source.describe(tensor)?;
    let without_ones: Vec<usize> = info.shape.iter().copied().filter(|&d| d != 1).collect();
    let [rows, columns] = without_ones[..] else { return source.read_into(tensor, offset, out) };
    let size = (info.bytes / (rows * columns) as u64) as usize;
    let row_bytes = columns * size;
    let mut piece = vec![0; (PIECE / row_bytes).clamp(1, rows) * row_bytes];
    // Elements of the transposed matrix, of which the first and the last may be wanted in part.
    let (begin, end) = (offset as usize, offset as usize + out.len());
    let first_row = |at: usize| at / size / rows;
    for first in (0..rows).step_by(piece.len() / row_bytes) {
        let count = (rows - first).min(piece.len() / row_bytes);
        let piece = &mut piece[..count * row_bytes];
        source.read_into(tensor, (first * row_bytes) as u64, piece)?;
        for column in first_row(begin)..(first_row(end.saturating_sub(1)) + 1).min(columns) {
            for row in 0..count {
                let at = (column * rows + first + row) * size;
                let from = &piece[row * row_bytes + column * size..][..size];
                if at >= begin && at + size <= end {
                    out[at - begin..][..size].copy_from_slice(from);
                } else {
                    (at..at + size)
                        .zip(from)
                        .filter(|(at, _)| (begin..end).contains(at))
                        .for_each(|(at, b)| out[at - begin] = *b);
                }
            }
        }
    }
    Ok(())
}
