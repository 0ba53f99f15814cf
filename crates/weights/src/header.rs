//! The header of a safetensors file: eight bytes of length, then JSON that describes each tensor.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use impasto_graph::{DType, Storage};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::WeightsError;
use crate::file::ModelFile;

/// No real header comes near this; a larger length is a lie.
const MAX_HEADER: u64 = 100 << 20;
const MAX_RANK: usize = 8;

/// The element types that files have. Those without a [`Storage`] can be listed, not computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[allow(missing_docs, reason = "the variants are the names in files")]
#[allow(non_camel_case_types, reason = "the variants are the names in files")]
pub enum ElementType {
    F64,
    F32,
    F16,
    BF16,
    F8_E5M2,
    F8_E4M3,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    BOOL,
}

impl ElementType {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            ElementType::F64 | ElementType::I64 | ElementType::U64 => 8,
            ElementType::F32 | ElementType::I32 | ElementType::U32 => 4,
            ElementType::F16 | ElementType::BF16 | ElementType::I16 | ElementType::U16 => 2,
            ElementType::F8_E5M2 | ElementType::F8_E4M3 | ElementType::I8 | ElementType::U8 | ElementType::BOOL => 1,
        }
    }

    /// As what a graph can use it.
    pub const fn storage(self) -> Option<Storage> {
        match self {
            ElementType::F32 => Some(Storage::Dense(DType::F32)),
            ElementType::F16 => Some(Storage::Dense(DType::F16)),
            ElementType::BF16 => Some(Storage::Dense(DType::BF16)),
            ElementType::I32 => Some(Storage::Dense(DType::I32)),
            _ => None,
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Its dimensions, slowest first.
    pub shape: Vec<usize>,
    /// Its element type.
    pub element: ElementType,
    /// Which of the checkpoint's files has it.
    pub(crate) file: usize,
    /// Where its bytes begin and end in that file.
    pub(crate) range: std::ops::Range<usize>,
}

impl TensorInfo {
    /// Bytes that it takes in the file.
    pub fn bytes(&self) -> u64 {
        self.range.len() as u64
    }
}

/// What a header says.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) metadata: BTreeMap<String, String>,
}

/// A tensor as the JSON has it.
#[derive(Deserialize)]
struct Entry {
    dtype: ElementType,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// A JSON object in the order of the file, names that stand twice included.
struct Pairs(Vec<(String, serde_json::Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pairs, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object with a description of each tensor")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Pairs, M::Error> {
                let mut pairs = vec![];
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// Reads the header of a file and checks all that it says against the file's size.
pub(crate) fn read(source: &ModelFile, file: usize) -> Result<Header, WeightsError> {
    let path = &*source.path;
    let wrong = |offset: u64, problem: String| WeightsError::Header { path: path.into(), offset, problem };
    let Some(rest) = source.len().checked_sub(8) else {
        return Err(wrong(0, format!("the file has {} bytes, too few for a safetensors header", source.len())));
    };
    let mut length = [0; 8];
    source.read_at(0, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER || length > rest {
        if let Some(kind) = foreign_format(source)? {
            return Err(WeightsError::NotAModel { path: path.into(), problem: kind.into() });
        }
        let problem = format!(
            "the header claims {length} bytes, the file has {rest} after its length; it is cut off, or no safetensors file"
        );
        return Err(wrong(0, problem));
    }
    let (json, data) = (source.read(8..8 + length as usize)?, rest - length);
    let Pairs(pairs) = serde_json::from_slice(&json)
        .map_err(|e| wrong(8, format!("the header is no JSON as safetensors has it: {e}")))?;

    let start = 8 + length;
    let mut header = Header { tensors: vec![], metadata: BTreeMap::new() };
    for (name, value) in pairs {
        if name == "__metadata__" {
            let metadata = serde_json::from_value(value);
            header.metadata = metadata.map_err(|e| wrong(8, format!("__metadata__ is no list of texts: {e}")))?;
            continue;
        }
        let tensor = |offset: u64, problem: String| WeightsError::TensorInfo {
            path: path.into(),
            tensor: name.clone(),
            offset,
            problem,
        };
        let entry: Entry =
            serde_json::from_value(value).map_err(|e| tensor(8, format!("its description is wrong: {e}")))?;
        let range =
            check(&entry, data).map_err(|problem| tensor(start.saturating_add(entry.data_offsets.0), problem))?;
        let range = start as usize + range.start as usize..start as usize + range.end as usize;
        let shape = entry.shape.iter().map(|&d| d as usize).collect();
        header.tensors.push(TensorInfo { name, shape, element: entry.dtype, file, range });
    }
    check_apart(path, &mut header.tensors)?;
    // A header whose length is off by its padding still reads well, and every tensor would be read from the wrong place.
    let end = header.tensors.iter().map(|t| t.range.end as u64).max().unwrap_or(start);
    match source.len() {
        length if length == end => Ok(header),
        length => Err(wrong(end, format!("the last tensor ends here, and the file at byte {length}: it is damaged"))),
    }
}

/// What a file of another format is, by its first bytes: those of a safetensors file are the length of its header.
fn foreign_format(source: &ModelFile) -> Result<Option<&'static str>, WeightsError> {
    let start = &mut [0; 16][..source.len().min(16) as usize];
    source.read_at(0, start)?;
    let formats: [(&[u8], &str); 10] = [
        (b"GGUF", "this is a GGUF file; impasto cannot read it yet. Take the model as .safetensors"),
        (
            b"PK\x03\x04",
            "this is a PyTorch file (.ckpt, .pt or .bin) or another zip file; impasto cannot read it. Take the model as .safetensors",
        ),
        (
            b"\x80\x02",
            "this is a PyTorch file (.ckpt, .pt or .bin); impasto cannot read it. Take the model as .safetensors",
        ),
        (b"\x89HDF", "this is an HDF5 file; impasto cannot read it. Take the model as .safetensors"),
        (b"\x1f\x8b", "this is a gzip file; unpack it first"),
        (b"7z\xbc\xaf", "this is a 7z file; unpack it first"),
        (b"Rar!", "this is a RAR file; unpack it first"),
        (b"\x89PNG", "this is a picture, no safetensors file"),
        (
            b"version https://",
            "this is a pointer of Git LFS, no safetensors file; download the file that it stands for",
        ),
        (b"<", "this is a web page, no safetensors file; download the file again, perhaps after logging in"),
    ];
    Ok(formats.into_iter().find(|(magic, _)| start.starts_with(magic)).map(|(_, problem)| problem))
}

/// A tensor's bytes must lie inside the file and be as many as its shape has.
fn check(entry: &Entry, available: u64) -> Result<std::ops::Range<u64>, String> {
    let (begin, end) = entry.data_offsets;
    if begin > end || end > available {
        return Err(format!("its bytes {begin} to {end} do not lie inside the {available} bytes of data"));
    }
    if entry.shape.len() > MAX_RANK {
        return Err(format!("it has {} dimensions, at most {MAX_RANK} are possible", entry.shape.len()));
    }
    let need = entry.shape.iter().try_fold(entry.dtype.bytes(), |n, &d| n.checked_mul(d));
    if need != Some(end - begin) {
        let need = need.map_or("more than can be counted".to_string(), |n| n.to_string());
        return Err(format!("{} {:?} needs {need} bytes, it has {}", entry.dtype, entry.shape, end - begin));
    }
    Ok(begin..end)
}

/// Names stand once, and no two tensors share bytes.
fn check_apart(path: &Path, tensors: &mut [TensorInfo]) -> Result<(), WeightsError> {
    let error = |t: &TensorInfo, problem: String| WeightsError::TensorInfo {
        path: path.into(),
        tensor: t.name.clone(),
        offset: t.range.start as u64,
        problem,
    };
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = tensors.windows(2).find(|p| p[0].name == p[1].name) {
        return Err(error(&pair[1], format!("the name stands twice, the first is at byte {}", pair[0].range.start)));
    }
    let mut by_place: Vec<&TensorInfo> = tensors.iter().filter(|t| !t.range.is_empty()).collect();
    by_place.sort_by_key(|t| t.range.start);
    match by_place.windows(2).find(|p| p[1].range.start < p[0].range.end) {
        Some(pair) => Err(error(pair[1], format!("its bytes overlap those of '{}'", pair[0].name))),
        None => Ok(()),
    }
}
