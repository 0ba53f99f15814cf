//! The tensors of a model, from one file or several.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::file::{FileError, FileFault, FileStamp, ModelFile, open_file};
use crate::format::gguf::{self, MetadataValue, ValueLocation};
use crate::format::{self, TensorInfo};
use crate::scales;
use crate::view::ParamView;
use crate::{ParamError, ParamInfo, TensorView, WeightSource, WeightsError};

/// An opened model: tensors by name, their bytes read when they are asked for.
pub struct Checkpoint {
    files: Vec<ModelFile>,
    /// The format of each file.
    formats: Vec<&'static str>,
    tensors: BTreeMap<String, TensorInfo>,
    /// Scales and markers of quantised weights, which are no tensors of a network.
    scales: BTreeMap<String, TensorInfo>,
    metadata: BTreeMap<String, String>,
    values: BTreeMap<String, ValueLocation>,
}

/// No real index comes near this.
const MAX_INDEX: u64 = 100 << 20;

/// No model is in more parts.
const MAX_PARTS: u64 = 1000;

/// `model.safetensors.index.json`, or `pytorch_model.bin.index.json`.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Open a model file of any format (safetensors, GGUF, a checkpoint of PyTorch), plain or compressed with zstd (then it is unpacked in memory); the
    /// `.index.json` of one in shards; a GGUF file in parts, by any of them; or a folder that has one of these. The format is found by the file's bytes.
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
        checkpoint.finish()
    }

    fn empty() -> Checkpoint {
        Checkpoint {
            files: vec![],
            formats: vec![],
            tensors: BTreeMap::new(),
            scales: BTreeMap::new(),
            metadata: BTreeMap::new(),
            values: BTreeMap::new(),
        }
    }

    fn open_file(path: &Path) -> Result<Checkpoint, WeightsError> {
        let mut checkpoint = Checkpoint::empty();
        checkpoint.add(ModelFile::open(path)?)?;
        match checkpoint.number("split.count") {
            Some(parts) if parts > 1 => Checkpoint::open_parts(path, parts),
            _ => checkpoint.finish(),
        }
    }

    /// Opens all parts of a GGUF file, of which `path` is one.
    fn open_parts(path: &Path, parts: u64) -> Result<Checkpoint, WeightsError> {
        let wrong = |path: &Path, problem: String| WeightsError::NotAModel { path: path.into(), problem };
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let end = format!("-of-{parts:05}.gguf");
        let stem = name.strip_suffix(&end).and_then(|rest| rest.get(..rest.len().checked_sub(6)?));
        let Some(stem) = stem.filter(|_| parts <= MAX_PARTS) else {
            let problem = format!("is one of {parts} parts of a model, whose names should end in -00001{end}");
            return Err(wrong(path, problem));
        };
        let mut checkpoint = Checkpoint::empty();
        let mut expected = None;
        for part in 1..=parts {
            let path = path.with_file_name(format!("{stem}-{part:05}{end}"));
            checkpoint.add(ModelFile::open(&path)?)?;
            let said = checkpoint.number("split.no").zip(checkpoint.number("split.count"));
            if said != Some((part - 1, parts)) {
                return Err(wrong(
                    &path,
                    format!("does not say that it is part {part} of {parts}: it belongs to another model"),
                ));
            }
            expected = expected.or(checkpoint.number("split.tensors.count"));
        }
        match expected {
            Some(count) if count != checkpoint.tensors.len() as u64 => {
                let problem =
                    format!("should have {count} tensors in all its parts, and has {}", checkpoint.tensors.len());
                Err(wrong(path, problem))
            }
            _ => checkpoint.finish(),
        }
    }

    /// A whole number of the metadata.
    fn number(&self, key: &str) -> Option<u64> {
        self.values.contains_key(key).then(|| self.metadata.get(key)?.parse().ok())?
    }

    /// Looks at all tensors together, when the last file is open.
    fn finish(mut self) -> Result<Checkpoint, WeightsError> {
        let files = &self.files;
        let read = |tensor: &TensorInfo| Ok(files[tensor.file].read(tensor.range.clone())?);
        self.scales = scales::consume(&mut self.tensors, &self.metadata, read)?;
        Ok(self)
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
        checkpoint.finish()
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
        checkpoint.finish()
    }

    /// Take in the tensors of one more file.
    fn add(&mut self, mut file: ModelFile) -> Result<(), WeightsError> {
        let contents = format::read(&file, self.files.len());
        // A header that was read while the file changed is none, whatever it says.
        file.check()?;
        let contents = contents?;
        file.append(contents.copied);
        for tensor in contents.tensors {
            if let Some(other) = self.tensors.get(&tensor.name) {
                let first = self.files[other.file].path.clone();
                return Err(WeightsError::Twice { tensor: tensor.name, first, second: file.path });
            }
            self.tensors.insert(tensor.name.clone(), tensor);
        }
        self.metadata.extend(contents.metadata);
        self.values.extend(contents.values);
        self.files.push(file);
        self.formats.push(contents.format);
        Ok(())
    }

    /// The tensors of networks, by name.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.values()
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// Scales and markers of quantised weights: they are part of how those are stored, and no tensors of a network.
    pub fn scale_tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.scales.values()
    }

    pub(crate) fn scale_tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.scales.get(name)
    }

    /// A tensor's bytes as they stand in the file, where they are in memory.
    pub(crate) fn bytes_in_memory(&self, tensor: &TensorInfo) -> Option<&[u8]> {
        self.files[tensor.file].in_memory(tensor.range.clone())
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

    /// What the files say of themselves in short texts and single numbers.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The keys of GGUF metadata, long texts and arrays included.
    pub fn value_keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// A value of GGUF metadata, read from the file now, such as the words of a tokenizer.
    pub fn value(&self, key: &str) -> Result<Option<MetadataValue>, WeightsError> {
        self.values.get(key).map(|&location| gguf::value(&self.files, location)).transpose()
    }

    /// The type and the bytes of a value of GGUF metadata, as they stand in the file.
    pub(crate) fn raw_value(&self, key: &str) -> Result<Option<(u32, Vec<u8>)>, WeightsError> {
        self.values.get(key).map(|&location| gguf::raw_value(&self.files, location)).transpose()
    }

    /// The files, in the order in which they were opened.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|f| f.path.as_path())
    }

    /// The formats of these files, such as `GGUF`.
    pub fn formats(&self) -> impl Iterator<Item = &'static str> {
        self.formats.iter().copied()
    }
}

impl Checkpoint {
    fn find(&self, name: &str) -> Result<&TensorInfo, ParamError> {
        let missing = || ParamError::Wrong { name: name.into(), problem: "is missing from the model file".into() };
        self.tensor(name).ok_or_else(missing)
    }
}

impl Checkpoint {
    /// A tensor as it is, as a parameter.
    fn view<'a>(&'a self, name: &str) -> Result<ParamView<'a>, ParamError> {
        let tensor = self.find(name)?;
        let wrong = |problem| ParamError::Wrong { name: name.into(), problem };
        ParamView::new(self, tensor, TensorView::Whole, &tensor.shape, None).map_err(wrong)
    }
}

impl WeightSource for Checkpoint {
    fn describe(&self, name: &str) -> Result<ParamInfo, ParamError> {
        let (tensor, view) = (self.find(name)?, self.view(name)?);
        Ok(ParamInfo { storage: view.storage, shape: tensor.shape.clone(), bytes: view.bytes() })
    }

    fn row_scales(&self, name: &str) -> Result<Option<Vec<f32>>, ParamError> {
        self.view(name)?.row_scales()
    }

    fn read_into(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), ParamError> {
        self.view(name)?.read(offset, out)
    }

    fn in_memory(&self, name: &str) -> Option<&[u8]> {
        self.view(name).ok()?.in_memory()
    }

    fn check(&self) -> Result<(), ParamError> {
        Ok(self.files.iter().try_for_each(ModelFile::check)?)
    }
}

/// The model file of a folder: safetensors before other formats, an index before single files.
fn in_folder(folder: &Path) -> Result<PathBuf, WeightsError> {
    let open = |source| WeightsError::Open { path: folder.into(), source };
    let mut files = vec![];
    for entry in std::fs::read_dir(folder).map_err(open)? {
        files.push(entry.map_err(open)?.path());
    }
    files.sort();
    let name = |file: &PathBuf| file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let named = |ends: &[&str]| -> Vec<&PathBuf> {
        files.iter().filter(|file| ends.iter().any(|end| name(file).ends_with(end))).collect()
    };
    // Parts of one GGUF file are one model: its first.
    let later_part = |file: &&PathBuf| name(file).contains("-of-0") && !name(file).contains("-00001-of-0");
    let gguf = named(&[".gguf"]).into_iter().filter(|file| !later_part(file)).collect();
    let choices = [
        named(&[".safetensors.index.json"]),
        named(&[".safetensors", ".safetensors.zst"]),
        gguf,
        named(&[".bin.index.json"]),
        named(&[".ckpt", ".pt", ".pth", ".bin"]),
    ];
    // Shards without their index are several files, and so are different models.
    let problem = match choices.iter().find(|files| !files.is_empty()).map(Vec::as_slice) {
        Some([one]) => return Ok((*one).clone()),
        Some(several) => {
            let names: Vec<String> = several.iter().copied().map(name).collect();
            format!("has several models in it, name one of them: {}", names.join(", "))
        }
        None => "has no model file in it (.safetensors, .gguf, .ckpt, .pt, .pth or .bin)".to_string(),
    };
    Err(WeightsError::NotAModel { path: folder.into(), problem })
}
