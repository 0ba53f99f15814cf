//! A set of named parameters in model files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use impasto_graph::{DType, Storage};
use serde::{Deserialize, Serialize};

use crate::lora::{AppliedLora, Fnv, LoraBranches, LoraOrigin, MergedParam, PatchCache};
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
    /// Rows from one on, of so many: `(first, of)`. For parts that are not equal.
    RowsFrom(usize, usize),
    /// The last of so many taps in time of the windows of a video's convolution, `(out, in, taps, height, width)`: all that a single picture meets, since
    /// what lies before it is zero.
    LastTap(usize),
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
    /// What changes them, in this order.
    loras: Vec<AppliedLora>,
    /// What blocks become that are changed.
    half: DType,
    cache: Arc<PatchCache>,
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileOrigin {
    /// The files that they are in.
    pub files: Vec<FileStamp>,
    /// Where in them each is, by its name in the graph.
    pub params: BTreeMap<String, ParamLocation>,
    /// What changes them, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loras: Vec<LoraOrigin>,
}

impl FileOrigin {
    /// The parameters, in files that are open: those of [`FileOrigin::files`].
    pub fn open(&self, checkpoint: &Arc<Checkpoint>) -> Result<FileParams, WeightsError> {
        let path = self.files.first().map(|file| file.path.clone()).unwrap_or_default();
        let wrong = |problems| WeightsError::Tensors { path: path.clone(), problems };
        let params = FileParams::find(&path, checkpoint, self.params.clone()).map_err(wrong)?;
        let loras = self.loras.iter().map(LoraOrigin::open).collect::<Result<Vec<_>, _>>()?;
        if loras.is_empty() { Ok(params) } else { params.with_loras(loras).map_err(wrong) }
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
                let (loras, half, cache) = (vec![], DType::F16, Arc::default());
                Ok(FileParams { id, path, checkpoint, params, loras, half, cache, fingerprint })
            }
            false => Err(TensorProblems(problems)),
        }
    }

    /// The same parameters, some of them converted while they are read, as `of` says by name and place.
    pub fn read_as(&self, of: &dyn Fn(&str, &ParamLocation) -> Option<Storage>) -> Result<FileParams, TensorProblems> {
        let convert = |(name, location): (&String, &ParamLocation)| {
            let read_as = of(name, location).or(location.read_as);
            (name.clone(), ParamLocation { read_as, ..location.clone() })
        };
        let converted = FileParams::find(&self.path, &self.checkpoint, self.params.iter().map(convert).collect())?;
        Ok(FileParams { loras: self.loras.clone(), ..converted })
    }

    /// The same parameters, changed by LoRAs while they are read: dense ones in their own storage, quantised ones as dense halves, since a sum of
    /// blocks is no block.
    pub fn with_loras(&self, loras: Vec<AppliedLora>) -> Result<FileParams, TensorProblems> {
        let shape = |param: &str| self.params.get(param).map(|location| location.shape.clone());
        let problems: Vec<String> = loras.iter().flat_map(|lora| lora.problems(shape)).collect();
        if !problems.is_empty() {
            return Err(TensorProblems(problems));
        }
        let (id, cache, fingerprint) = (NEXT_ID.fetch_add(1, Ordering::Relaxed), Arc::default(), Arc::default());
        let loras = [self.loras.clone(), loras].concat();
        Ok(FileParams { id, cache, fingerprint, loras, half: self.usual_half(), ..self.clone() })
    }

    /// LoRAs as branches beside the weights of these `products`, and those parts of them that can only be merged ([`FileParams::with_loras`]).
    pub fn branches(
        &self,
        loras: Vec<AppliedLora>,
        products: &BTreeSet<String>,
    ) -> (Option<LoraBranches>, Vec<AppliedLora>) {
        LoraBranches::split(loras, products, |param| self.params.get(param).map(|location| location.shape.clone()))
    }

    /// Whether a parameter is stored in blocks.
    pub fn is_quantised(&self, param: &str) -> bool {
        self.describe(param).is_ok_and(|info| !matches!(info.storage, Storage::Dense(_)))
    }

    /// The names of the parameters, and their shapes.
    pub fn params(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.params.iter().map(|(name, location)| (name.as_str(), location.shape.as_slice()))
    }

    /// A number that no other parameters of this process have, nor will: clones of these alone.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether the files are still those that were opened.
    pub fn is_unchanged(&self) -> bool {
        self.checkpoint.is_unchanged() && self.loras.iter().all(|lora| lora.file.is_unchanged())
    }

    /// The file, or the folder of its shards.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The dense float that a graph should say of parameters that it keeps dense: that of most dense bytes, or `f16` where most bytes are quantised.
    /// How each is stored is in [`WeightSource::describe`].
    pub fn storage(&self) -> Storage {
        let mut bytes: BTreeMap<Storage, u64> = BTreeMap::new();
        for (name, location) in &self.params {
            if let Some(view) = self.view(location) {
                let storage = if self.is_changed(name) { self.merged_storage(&view, location) } else { view.storage };
                let dense = matches!(storage, Storage::Dense(_));
                let bytes_of = storage.bytes_of(view.elements() as u64).unwrap_or(0);
                *bytes.entry(if dense { storage } else { Storage::Dense(DType::F16) }).or_default() += bytes_of;
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
        let bytes = |p: &ParamLocation| {
            let of_tensor = self.checkpoint.tensor(&p.tensor)?.bytes();
            Some(match p.take {
                TensorView::Whole | TensorView::Transposed => of_tensor,
                TensorView::Rows(_, parts) | TensorView::LastTap(parts) => of_tensor / parts as u64,
                TensorView::RowsFrom(_, of) => of_tensor / of as u64 * p.shape.first().copied().unwrap_or(1) as u64,
            })
        };
        self.params.values().filter_map(bytes).sum()
    }

    /// A number that tells this network from others: of names and shapes, and of some bytes of every tensor, read when it is first asked for.
    pub fn fingerprint(&self) -> Result<u64, FileError> {
        if let Some(known) = self.fingerprint.get() {
            return Ok(*known);
        }
        let mut hash = Fnv::default();
        for (name, location) in &self.params {
            hash.take(name.as_bytes());
            location.shape.iter().for_each(|d| hash.take(&(*d as u64).to_le_bytes()));
            location.read_as.iter().for_each(|storage| hash.take(storage.name().as_bytes()));
            if let Some(tensor) = self.checkpoint.tensor(&location.tensor) {
                hash.take_bytes(&self.checkpoint, tensor)?;
            }
        }
        self.loras.iter().try_for_each(|lora| lora.take_into(&mut hash))?;
        Ok(*self.fingerprint.get_or_init(|| hash.0))
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
        (TensorView::RowsFrom(first, of), Some(rows)) => match first.checked_add(*rows) {
            Some(end) if end <= of => *rows = of,
            _ => return Err(format!("tensor '{name}' has no such rows")),
        },
        (TensorView::Rows(..) | TensorView::RowsFrom(..), None) => return Err("a number has no rows".into()),
        (TensorView::LastTap(taps), _) if shape.len() == 4 && taps > 0 => want.insert(2, taps),
        (TensorView::LastTap(_), _) => return Err(format!("tensor '{name}' is no window in time")),
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

impl FileParams {
    /// Whether a LoRA changes this parameter.
    fn is_changed(&self, name: &str) -> bool {
        self.loras.iter().any(|lora| lora.targets.contains_key(name))
    }

    /// As what a parameter is read that is changed: blocks become halves, unless blocks were asked for.
    fn merged_storage(&self, view: &ParamView, location: &ParamLocation) -> Storage {
        match view.storage {
            dense @ Storage::Dense(_) => dense,
            blocks if location.read_as.is_some() => blocks,
            _ => Storage::Dense(self.half),
        }
    }

    /// The halves that the file has most of.
    fn usual_half(&self) -> DType {
        let views = || self.params.values().filter_map(|location| self.view(location));
        let bytes = |dtype| views().filter(|v| v.storage == Storage::Dense(dtype)).map(|v| v.bytes()).sum::<u64>();
        if bytes(DType::BF16) > bytes(DType::F16) { DType::BF16 } else { DType::F16 }
    }

    /// A parameter with what changes it; nothing if nothing does.
    fn merged<'a>(&'a self, name: &'a str) -> Result<Option<MergedParam<'a>>, ParamError> {
        if !self.is_changed(name) {
            return Ok(None);
        }
        let (location, view) = self.find_param(name)?;
        let storage = self.merged_storage(&view, location);
        let (shape, loras, cache) = (&location.shape, &self.loras, &*self.cache);
        Ok(Some(MergedParam { view, name, shape, storage, loras, cache }))
    }
}

impl WeightSource for FileParams {
    fn describe(&self, name: &str) -> Result<ParamInfo, ParamError> {
        if let Some(merged) = self.merged(name)? {
            return Ok(ParamInfo { storage: merged.storage, shape: merged.shape.to_vec(), bytes: merged.bytes() });
        }
        let (location, view) = self.find_param(name)?;
        Ok(ParamInfo { storage: view.storage, shape: location.shape.clone(), bytes: view.bytes() })
    }

    fn row_scales(&self, name: &str) -> Result<Option<Vec<f32>>, ParamError> {
        if self.is_changed(name) { Ok(None) } else { self.find_param(name)?.1.row_scales() }
    }

    fn read_into(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), ParamError> {
        match self.merged(name)? {
            Some(merged) => merged.read(offset, out),
            None => self.find_param(name)?.1.read(offset, out),
        }
    }

    fn in_memory(&self, name: &str) -> Option<&[u8]> {
        if self.is_changed(name) { None } else { self.view(self.params.get(name)?)?.in_memory() }
    }

    fn check(&self) -> Result<(), ParamError> {
        self.checkpoint.check()?;
        self.loras.iter().try_for_each(|lora| lora.file.check())
    }

    fn origin(&self) -> Option<Origin> {
        let loras = self.loras.iter().map(AppliedLora::origin).collect::<Option<_>>()?;
        Some(Origin::Files(FileOrigin { files: self.checkpoint.stamps()?, params: self.params.clone(), loras }))
    }
}
