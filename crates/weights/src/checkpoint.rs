//! The tensors of a model, from one file or several.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::file::{FileError, FileFault, FileStamp, ModelFile, open_file};
use crate::header::{self, TensorInfo};
use crate::{ElementType, ParamError, ParamInfo, WeightSource, WeightsError};

/// An opened model: tensors by name, their bytes read when they are asked for.
pub struct Checkpoint {
    files: Vec<ModelFile>,
    tensors: BTreeMap<String, TensorInfo>,
    metadata: BTreeMap<String, String>,
}

/// No real index comes near this.
const MAX_INDEX: u64 = 100 << 20;

/// `model.safetensors.index.json`.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Open a `.safetensors` file, plain or compressed with zstd (then it is unpacked in memory), the `.index.json` of one in shards, or a folder that has one of them.
    pub fn open(path: &Path) -> Result<Checkpoint, WeightsError> {
        if path.is_dir() {
            return Checkpoint::open(&in_folder(path)?);
        }
        match path.extension().and_then(|e| e.to_str()) {
            Some("json") => Checkpoint::open_shards(path),
            _ => Checkpoint::open_file(path),
        }
    }

    /// A model that is in memory already, such as one in the program itself. Compressed bytes are unpacked.
    ///
    /// ```
    /// use impasto_weights::Checkpoint;
    /// let bytes = [&2u64.to_le_bytes()[..], b"{}"].concat();
    /// assert_eq!(Checkpoint::from_bytes("embedded", bytes)?.tensors().count(), 0);
    /// # Ok::<(), impasto_weights::WeightsError>(())
    /// ```
    pub fn from_bytes(name: &str, bytes: impl Into<Cow<'static, [u8]>>) -> Result<Checkpoint, WeightsError> {
        let mut checkpoint = Checkpoint::empty();
        checkpoint.add(ModelFile::of(name, bytes.into())?)?;
        Ok(checkpoint)
    }

    fn empty() -> Checkpoint {
        Checkpoint { files: vec![], tensors: BTreeMap::new(), metadata: BTreeMap::new() }
    }

    fn open_file(path: &Path) -> Result<Checkpoint, WeightsError> {
        let mut checkpoint = Checkpoint::empty();
        checkpoint.add(ModelFile::open(path)?)?;
        Ok(checkpoint)
    }

    fn open_shards(path: &Path) -> Result<Checkpoint, WeightsError> {
        let wrong = |problem: String| WeightsError::NotAModel { path: path.into(), problem };
        let mut text = vec![];
        let read = open_file(path).and_then(|file| file.take(MAX_INDEX + 1).read_to_end(&mut text));
        read.map_err(|source| WeightsError::Open { path: path.into(), source })?;
        if text.len() as u64 > MAX_INDEX {
            return Err(wrong(format!("has more than {MAX_INDEX} bytes, which no index of a model in shards has")));
        }
        let index: Index = serde_json::from_slice(&text)
            .map_err(|e| wrong(format!("is no index of a model in shards (with a weight_map): {e}")))?;
        let mut checkpoint = Checkpoint::empty();
        let mut shards: Vec<&String> = index.weight_map.values().collect();
        shards.sort();
        shards.dedup();
        for shard in shards {
            // A name, not a path: an index must not reach outside its own folder.
            if Path::new(shard).file_name() != Some(shard.as_ref()) {
                return Err(wrong(format!("names the shard '{shard}', which is no plain file name")));
            }
            checkpoint.add(ModelFile::open(&path.with_file_name(shard))?)?;
        }
        for (tensor, shard) in index.weight_map {
            let found = checkpoint
                .tensors
                .get(&tensor)
                .is_some_and(|t| checkpoint.files[t.file].path.file_name().is_some_and(|name| name == shard.as_str()));
            if !found {
                return Err(WeightsError::Missing { path: path.into(), tensor, shard });
            }
        }
        Ok(checkpoint)
    }

    /// The files as they were when they were opened, if all of them are read as they are: what [`Checkpoint::reopen`] takes.
    pub fn stamps(&self) -> Option<Vec<FileStamp>> {
        self.files.iter().map(|file| file.stamp().cloned()).collect()
    }

    /// Whether all files are still those that were opened.
    pub fn is_unchanged(&self) -> bool {
        self.files.iter().filter_map(ModelFile::stamp).all(|stamp| stamp.is_current())
    }

    /// Open the files that another process has opened. One that has changed since is an error.
    pub fn reopen(stamps: &[FileStamp]) -> Result<Checkpoint, WeightsError> {
        let mut checkpoint = Checkpoint::empty();
        for stamp in stamps {
            let file = ModelFile::open(&stamp.path).map_err(|error| match error {
                WeightsError::Open { path, source } if source.kind() == std::io::ErrorKind::NotFound => {
                    FileError { path, fault: FileFault::Missing }.into()
                }
                // It was no empty file when the other process opened it.
                WeightsError::NotAModel { path, .. } => FileError { path, fault: FileFault::Overwritten }.into(),
                other => other,
            })?;
            file.check_same(stamp)?;
            checkpoint.add(file)?;
        }
        Ok(checkpoint)
    }

    /// Take in the tensors of one more file.
    fn add(&mut self, file: ModelFile) -> Result<(), WeightsError> {
        let header = header::read(&file, self.files.len());
        // A header that was read while the file changed is none, whatever it says.
        file.check()?;
        let header = header?;
        for tensor in header.tensors {
            if let Some(other) = self.tensors.get(&tensor.name) {
                let first = self.files[other.file].path.clone();
                return Err(WeightsError::Twice { tensor: tensor.name, first, second: file.path });
            }
            self.tensors.insert(tensor.name.clone(), tensor);
        }
        self.metadata.extend(header.metadata);
        self.files.push(file);
        Ok(())
    }

    /// The tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.values()
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// Fills `out` with the bytes of a tensor of this checkpoint, from `offset` on, as they stand in the file.
    pub fn read(&self, tensor: &TensorInfo, offset: u64, out: &mut [u8]) -> Result<(), FileError> {
        let file = &self.files[tensor.file];
        let end = offset.checked_add(out.len() as u64).filter(|&end| end <= tensor.bytes());
        end.ok_or_else(|| FileError { path: file.path.clone(), fault: FileFault::Truncated })?;
        file.read_at(tensor.range.start as u64 + offset, out)
    }

    /// The bytes of a tensor of this checkpoint, as they stand in the file.
    pub fn read_all(&self, tensor: &TensorInfo) -> Result<Vec<u8>, FileError> {
        self.files[tensor.file].read(tensor.range.clone())
    }

    /// What the files say of themselves.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The files, in the order in which they were opened.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|f| f.path.as_path())
    }
}

impl Checkpoint {
    fn find(&self, name: &str) -> Result<&TensorInfo, ParamError> {
        let missing = || ParamError::Wrong { name: name.into(), problem: "is missing from the model file".into() };
        self.tensor(name).ok_or_else(missing)
    }
}

impl WeightSource for Checkpoint {
    fn describe(&self, name: &str) -> Result<ParamInfo, ParamError> {
        let tensor = self.find(name)?;
        let storage = tensor.element.storage().ok_or_else(|| {
            let usable = [ElementType::F32, ElementType::F16, ElementType::BF16].map(|e| e.to_string()).join(", ");
            let problem = format!("is stored as {}; {usable} can be computed with", tensor.element);
            ParamError::Wrong { name: name.into(), problem }
        })?;
        Ok(ParamInfo { storage, shape: tensor.shape.clone(), bytes: tensor.bytes() })
    }

    fn read_into(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), ParamError> {
        Ok(self.read(self.find(name)?, offset, out)?)
    }

    fn in_memory(&self, name: &str) -> Option<&[u8]> {
        let tensor = self.tensor(name)?;
        self.files[tensor.file].in_memory(tensor.range.clone())
    }

    fn check(&self) -> Result<(), ParamError> {
        Ok(self.files.iter().try_for_each(ModelFile::check)?)
    }
}

/// The model file of a folder: an index, else the one safetensors file.
fn in_folder(folder: &Path) -> Result<PathBuf, WeightsError> {
    let open = |source| WeightsError::Open { path: folder.into(), source };
    let mut files = vec![];
    for entry in std::fs::read_dir(folder).map_err(open)? {
        files.push(entry.map_err(open)?.path());
    }
    files.sort();
    let named = |end: &str| -> Vec<&PathBuf> {
        files.iter().filter(|f| f.file_name().is_some_and(|n| n.to_string_lossy().ends_with(end))).collect()
    };
    let indices = named(".safetensors.index.json");
    let models = [named(".safetensors"), named(".safetensors.zst")].concat();
    match (&indices[..], &models[..]) {
        ([one], _) | ([], [one]) => Ok((*one).clone()),
        (many, others) => {
            let found: Vec<String> = many
                .iter()
                .chain(others)
                .filter_map(|f| f.file_name().map(|n| n.to_string_lossy().into_owned()))
                .collect();
            let problem = match found.len() {
                0 => "has no .safetensors file in it".to_string(),
                _ => format!("has several models in it, name one of them: {}", found.join(", ")),
            };
            Err(WeightsError::NotAModel { path: folder.into(), problem })
        }
    }
}
