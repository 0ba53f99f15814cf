//! File formats: what each says of its tensors, checked against the file's size. A file is recognised by its bytes.

mod cursor;
pub(crate) mod gguf;
mod pickle;
mod safetensors;
mod zip;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use crate::file::ModelFile;
use crate::scales::Quantised;
use crate::{ElementType, WeightsError};

/// More dimensions than any tensor of a model has.
const MAX_RANK: usize = 8;
/// More tensors than any model has, so that a list of them cannot fill memory.
const MAX_TENSORS: usize = 100_000;

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
    pub(crate) range: Range<usize>,
    /// How its elements become weights, where other tensors or the metadata say something of it.
    pub(crate) quantised: Quantised,
}

impl TensorInfo {
    pub(crate) fn new(
        name: String,
        shape: Vec<usize>,
        element: ElementType,
        file: usize,
        range: Range<usize>,
    ) -> TensorInfo {
        TensorInfo { name, shape, element, file, range, quantised: Quantised::Plain }
    }

    /// Bytes that it takes in the file.
    pub fn bytes(&self) -> u64 {
        self.range.len() as u64
    }

    /// How many elements it has.
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|&d| d as u64).product()
    }
}

/// What a file says of itself.
#[derive(Debug, Default)]
pub(crate) struct FileContents {
    /// The format, as users know it.
    pub(crate) format: &'static str,
    pub(crate) tensors: Vec<TensorInfo>,
    /// What is said in short texts.
    pub(crate) metadata: BTreeMap<String, String>,
    /// Where the values of a GGUF file are.
    pub(crate) values: BTreeMap<String, gguf::ValueLocation>,
    /// Bytes of tensors that do not lie in the file as they are: they follow those of the file.
    pub(crate) copied: Vec<u8>,
}

/// Reads what a file of any format says of its tensors.
pub(crate) fn read(source: &ModelFile, file: usize) -> Result<FileContents, WeightsError> {
    let start = &mut [0; 16][..source.len().min(16) as usize];
    source.read_at(0, start)?;
    // The header of a safetensors file is an object of JSON; before it stands its length.
    let object = start.get(8) == Some(&b'{');
    let (format, contents) = match start {
        _ if object => ("safetensors", safetensors::read(source, file)),
        [b'G', b'G', b'U', b'F', ..] => ("GGUF", gguf::read(source, file)),
        [b'P', b'K', 3, 4, ..] => ("PyTorch", pickle::read_zip(source, file)),
        [0x80, 0..=5, ..] => ("PyTorch, before 1.6", pickle::read_legacy(source, file)),
        _ => ("safetensors", safetensors::read(source, file)),
    };
    Ok(FileContents { format, ..contents? })
}

/// What a file is that no reader takes, by its first bytes.
fn foreign_format(source: &ModelFile) -> Result<Option<&'static str>, WeightsError> {
    let start = &mut [0; 265][..source.len().min(265) as usize];
    source.read_at(0, start)?;
    if start.get(257..262) == Some(b"ustar") {
        return Ok(Some("this is a tar file; if it is a model, save it with a newer PyTorch, or unpack it"));
    }
    let formats: [(&[u8], &str); 9] = [
        (b"FUGG", "this is a GGUF file for machines with the other order of bytes; convert it first"),
        (b"PK", "this is a zip file that is empty or in several parts; download the model again"),
        (b"\x89HDF", "this is an HDF5 file; impasto cannot read it. Take the model as .safetensors"),
        (b"\x1f\x8b", "this is a gzip file; unpack it first"),
        (b"7z\xbc\xaf", "this is a 7z file; unpack it first"),
        (b"Rar!", "this is a RAR file; unpack it first"),
        (b"\x89PNG", "this is a picture, no model file"),
        (b"version https://", "this is a pointer of Git LFS, no model file; download the file that it stands for"),
        (b"<", "this is a web page, no model file; download the file again, perhaps after logging in"),
    ];
    Ok(formats.into_iter().find(|(magic, _)| start.starts_with(magic)).map(|(_, problem)| problem))
}

/// Errors about one file.
#[derive(Clone, Copy)]
struct Wrong<'a>(&'a Path);

impl Wrong<'_> {
    fn at(self, offset: u64, problem: impl Into<String>) -> WeightsError {
        WeightsError::Header { path: self.0.into(), offset, problem: problem.into() }
    }

    fn tensor(self, tensor: &str, offset: u64, problem: impl Into<String>) -> WeightsError {
        WeightsError::TensorInfo { path: self.0.into(), tensor: tensor.into(), offset, problem: problem.into() }
    }
}

/// A shape as files have it, where its elements can be counted.
fn shape_of(dims: &[u64]) -> Option<(Vec<usize>, u64)> {
    let elements = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d))?;
    // With a zero among them, the others are not bounded by the product.
    let shape = dims.iter().map(|&d| usize::try_from(d).ok().filter(|&d| d <= isize::MAX as usize));
    Some((shape.collect::<Option<_>>()?, elements))
}

/// Names stand once, and no two tensors share bytes.
fn check_apart(path: &Path, tensors: &mut [TensorInfo]) -> Result<(), WeightsError> {
    let error = |t: &TensorInfo, problem: String| Wrong(path).tensor(&t.name, t.range.start as u64, problem);
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
