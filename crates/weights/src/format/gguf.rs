//! GGUF, versions 2 and 3: values by key, then descriptions of tensors, then their bytes.
//!
//! Values stay in the file until somebody asks: the words of a tokenizer are megabytes. Short ones are kept as text for whoever lists a file.

use std::collections::{BTreeMap, BTreeSet};

use super::cursor::Cursor;
use super::{FileContents, MAX_TENSORS, TensorInfo, Wrong, check_apart, shape_of};
use crate::file::ModelFile;
use crate::{ElementType, WeightsError};

/// Files have some hundred keys, and one more for each tensor whose shape they note.
const MAX_KEYS: u64 = 100_000;
/// Names are shorter than 200 bytes; this many are hostile.
const MAX_NAME: u64 = 4096;
/// Texts of this length are shown; longer ones are read when they are asked for.
const SHOWN: u64 = 4096;
/// Arrays of arrays of arrays: more says nothing.
const MAX_DEPTH: u32 = 4;
/// Elements of arrays that are read at once: the largest vocabularies have a quarter of a million words.
const MAX_ELEMENTS: u64 = 4 << 20;
/// The dimensions that the format has room for.
const MAX_DIMS: u32 = 4;
/// Before this comes the name of a tensor whose true shape a key tells.
const TRUE_SHAPE: &str = "comfy.gguf.orig_shape.";

/// Where a value is in its file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueLocation {
    kind: Kind,
    file: usize,
    offset: u64,
}

/// A value of a GGUF file's metadata.
#[derive(Clone, Debug, PartialEq)]
pub enum MetadataValue {
    /// A whole number.
    Integer(i128),
    /// A float.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// A text. Bytes that are no UTF-8 are replaced.
    Text(String),
    /// An array of texts.
    Texts(Vec<String>),
    /// An array of numbers.
    Numbers(Vec<f64>),
    /// An array of arrays or of truth values.
    Array(Vec<MetadataValue>),
}

impl MetadataValue {
    /// The text.
    pub fn text(&self) -> Option<&str> {
        match self {
            MetadataValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The whole number, if it is one that is not negative.
    pub fn unsigned(&self) -> Option<u64> {
        match self {
            MetadataValue::Integer(number) => (*number).try_into().ok(),
            _ => None,
        }
    }
}

/// The types of values, in the order of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    const ALL: [Kind; 13] = [
        Kind::U8,
        Kind::I8,
        Kind::U16,
        Kind::I16,
        Kind::U32,
        Kind::I32,
        Kind::F32,
        Kind::Bool,
        Kind::Text,
        Kind::Array,
        Kind::U64,
        Kind::I64,
        Kind::F64,
    ];

    /// Bytes of a value, where all have the same.
    fn bytes(self) -> Option<u64> {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => Some(1),
            Kind::U16 | Kind::I16 => Some(2),
            Kind::U32 | Kind::I32 | Kind::F32 => Some(4),
            Kind::U64 | Kind::I64 | Kind::F64 => Some(8),
            Kind::Text | Kind::Array => None,
        }
    }
}

/// A cursor over a GGUF file.
struct Reader<'a> {
    cursor: Cursor<'a>,
    wrong: Wrong<'a>,
    /// Elements that may still be read into memory.
    elements_left: u64,
}

impl<'a> Reader<'a> {
    fn new(source: &'a ModelFile, at: u64) -> Reader<'a> {
        Reader { cursor: Cursor::new(source, at), wrong: Wrong(&source.path), elements_left: MAX_ELEMENTS }
    }

    fn kind(&mut self) -> Result<Kind, WeightsError> {
        let at = self.cursor.at;
        let number = self.cursor.u32()?;
        let known = Kind::ALL.get(number as usize).copied();
        known.ok_or_else(|| self.wrong.at(at, format!("{number} is no type of a value (0 to 12)")))
    }

    /// A name of a key or a tensor.
    fn name(&mut self, what: &str) -> Result<String, WeightsError> {
        let at = self.cursor.at;
        let length = self.cursor.u64()?;
        if length > MAX_NAME {
            return Err(self.wrong.at(at, format!("the name of a {what} claims {length} bytes")));
        }
        let bytes = self.cursor.bytes(length)?;
        String::from_utf8(bytes).map_err(|_| self.wrong.at(at, format!("the name of a {what} is no UTF-8")))
    }

    fn text(&mut self) -> Result<String, WeightsError> {
        let length = self.cursor.u64()?;
        let bytes = self.cursor.bytes(length)?;
        Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
    }

    /// The type and the number of an array's elements.
    fn array(&mut self) -> Result<(Kind, u64), WeightsError> {
        Ok((self.kind()?, self.cursor.u64()?))
    }

    /// Moves behind a value.
    fn skip(&mut self, kind: Kind, depth: u32) -> Result<(), WeightsError> {
        match kind {
            Kind::Text => {
                let length = self.cursor.u64()?;
                self.cursor.skip(length)
            }
            Kind::Array => {
                let at = self.cursor.at;
                let (kind, count) = self.array()?;
                if depth == 0 {
                    return Err(self.wrong.at(at, format!("arrays are nested more than {MAX_DEPTH} deep")));
                }
                match kind.bytes() {
                    Some(bytes) => self.cursor.skip(count.saturating_mul(bytes)),
                    // Each takes bytes of the file, so that the file's end ends this.
                    None => (0..count).try_for_each(|_| self.skip(kind, depth - 1)),
                }
            }
            fixed => self.cursor.skip(fixed.bytes().unwrap_or(0)),
        }
    }

    fn value(&mut self, kind: Kind, depth: u32) -> Result<MetadataValue, WeightsError> {
        let c = &mut self.cursor;
        Ok(match kind {
            Kind::U8 => MetadataValue::Integer(c.take::<1>()?[0].into()),
            Kind::I8 => MetadataValue::Integer(i8::from_le_bytes(c.take()?).into()),
            Kind::U16 => MetadataValue::Integer(u16::from_le_bytes(c.take()?).into()),
            Kind::I16 => MetadataValue::Integer(i16::from_le_bytes(c.take()?).into()),
            Kind::U32 => MetadataValue::Integer(c.u32()?.into()),
            Kind::I32 => MetadataValue::Integer(i32::from_le_bytes(c.take()?).into()),
            Kind::U64 => MetadataValue::Integer(c.u64()?.into()),
            Kind::I64 => MetadataValue::Integer(i64::from_le_bytes(c.take()?).into()),
            Kind::F32 => MetadataValue::Float(f32::from_le_bytes(c.take()?).into()),
            Kind::F64 => MetadataValue::Float(f64::from_le_bytes(c.take()?)),
            Kind::Bool => {
                let at = c.at;
                match c.take::<1>()?[0] {
                    byte @ 0..=1 => MetadataValue::Bool(byte == 1),
                    byte => return Err(self.wrong.at(at, format!("{byte} is neither true nor false"))),
                }
            }
            Kind::Text => MetadataValue::Text(self.text()?),
            Kind::Array => self.elements(depth)?,
        })
    }

    fn elements(&mut self, depth: u32) -> Result<MetadataValue, WeightsError> {
        let at = self.cursor.at;
        let (kind, count) = self.array()?;
        if depth == 0 {
            return Err(self.wrong.at(at, format!("arrays are nested more than {MAX_DEPTH} deep")));
        }
        // Texts and values of any kind take more memory than numbers.
        let cost = count.saturating_mul(if matches!(kind, Kind::Bool | Kind::Array | Kind::Text) { 4 } else { 1 });
        match self.elements_left.checked_sub(cost) {
            Some(left) if count <= self.cursor.left() => self.elements_left = left,
            _ => return Err(self.wrong.at(at, format!("an array claims {count} elements"))),
        }
        let capacity = count as usize;
        match kind {
            Kind::Text => {
                let mut texts = Vec::with_capacity(capacity);
                (0..count).try_for_each(|_| self.text().map(|text| texts.push(text)))?;
                Ok(MetadataValue::Texts(texts))
            }
            Kind::Bool | Kind::Array => {
                let mut values = Vec::with_capacity(capacity);
                (0..count).try_for_each(|_| self.value(kind, depth - 1).map(|value| values.push(value)))?;
                Ok(MetadataValue::Array(values))
            }
            number => {
                let mut numbers = Vec::with_capacity(capacity);
                for _ in 0..count {
                    match self.value(number, 0)? {
                        MetadataValue::Integer(n) => numbers.push(n as f64),
                        MetadataValue::Float(x) => numbers.push(x),
                        _ => {}
                    }
                }
                Ok(MetadataValue::Numbers(numbers))
            }
        }
    }
}

/// Reads one value of a file's metadata.
pub(crate) fn value(
    files: &[ModelFile],
    ValueLocation { kind, file, offset }: ValueLocation,
) -> Result<MetadataValue, WeightsError> {
    Reader::new(&files[file], offset).value(kind, MAX_DEPTH)
}

/// The number of a value's type, and its bytes.
pub(crate) fn raw_value(
    files: &[ModelFile],
    ValueLocation { kind, file, offset }: ValueLocation,
) -> Result<(u32, Vec<u8>), WeightsError> {
    let mut reader = Reader::new(&files[file], offset);
    reader.skip(kind, MAX_DEPTH)?;
    Ok((kind as u32, files[file].read(offset as usize..reader.cursor.at as usize)?))
}

/// A tensor as the header describes it.
struct Entry {
    name: String,
    dims: Vec<u64>,
    element: ElementType,
    offset: u64,
    /// Where the description is.
    at: u64,
}

/// Reads the header of a file and checks all that it says against the file's size.
pub(super) fn read(source: &ModelFile, file: usize) -> Result<FileContents, WeightsError> {
    let mut reader = Reader::new(source, 4);
    let wrong = reader.wrong;
    let version = reader.cursor.u32()?;
    if !(2..=3).contains(&version) {
        let problem = match version.swap_bytes() {
            1..=3 => "it is for machines with the other order of bytes".to_string(),
            _ => format!("it has version {version} of GGUF; 2 and 3 can be read"),
        };
        return Err(wrong.at(4, problem));
    }
    let (tensors, keys) = (reader.cursor.u64()?, reader.cursor.u64()?);
    if tensors > MAX_TENSORS as u64 || keys > MAX_KEYS {
        return Err(wrong.at(8, format!("it claims {tensors} tensors and {keys} keys, more than any model has")));
    }
    let mut contents = FileContents::default();
    let shapes = read_values(&mut reader, keys, file, source, &mut contents)?;
    let entries = (0..tensors).map(|_| read_entry(&mut reader)).collect::<Result<Vec<_>, _>>()?;
    let alignment = match contents.values.get("general.alignment") {
        None => 32,
        Some(location) => {
            let said = contents.metadata.get("general.alignment").and_then(|text| text.parse::<u64>().ok());
            said.filter(|n| n.is_power_of_two() && *n <= 1 << 30)
                .ok_or_else(|| wrong.at(location.offset, "general.alignment is no power of two"))?
        }
    };
    let data = reader.cursor.at.next_multiple_of(alignment);
    contents.tensors = place(&entries, source, file, data, alignment)?;
    for tensor in &mut contents.tensors {
        if let Some((shape, at)) = shapes.get(&tensor.name) {
            let true_shape = shape_of(shape).filter(|(_, elements)| *elements == tensor.elements());
            tensor.shape = true_shape.map(|(shape, _)| shape).ok_or_else(|| {
                let problem =
                    format!("its shape is {:?}, and should be {shape:?}, which is of another size", tensor.shape);
                wrong.tensor(&tensor.name, *at, problem)
            })?;
        }
    }
    check_apart(&source.path, &mut contents.tensors)?;
    Ok(contents)
}

/// True shapes of tensors, by name, and where they are said.
type TrueShapes = BTreeMap<String, (Vec<u64>, u64)>;

fn read_values(
    reader: &mut Reader,
    keys: u64,
    file: usize,
    source: &ModelFile,
    contents: &mut FileContents,
) -> Result<TrueShapes, WeightsError> {
    let mut shapes = TrueShapes::new();
    for _ in 0..keys {
        let at = reader.cursor.at;
        let key = reader.name("key")?;
        let location = ValueLocation { kind: reader.kind()?, file, offset: reader.cursor.at };
        reader.skip(location.kind, MAX_DEPTH)?;
        let read = || Reader::new(source, location.offset).value(location.kind, MAX_DEPTH);
        let bytes = reader.cursor.at - location.offset;
        if let Some(tensor) = key.strip_prefix(TRUE_SHAPE) {
            // A shape is an array of a few small numbers.
            let shape = if bytes > 128 { None } else { Some(read()?) };
            let shape = match shape {
                Some(MetadataValue::Numbers(dims)) if dims.iter().all(|d| *d >= 0.0 && d.fract() == 0.0) => dims,
                _ => return Err(reader.wrong.at(location.offset, format!("{key} is no shape"))),
            };
            shapes.insert(tensor.into(), (shape.iter().map(|&d| d as u64).collect(), location.offset));
        } else if location.kind != Kind::Array && bytes <= SHOWN {
            let text = match read()? {
                MetadataValue::Integer(n) => n.to_string(),
                MetadataValue::Float(x) => x.to_string(),
                MetadataValue::Bool(b) => b.to_string(),
                MetadataValue::Text(text) => text,
                _ => continue,
            };
            contents.metadata.insert(key.clone(), text);
        }
        if contents.values.insert(key.clone(), location).is_some() {
            return Err(reader.wrong.at(at, format!("the key '{key}' stands twice")));
        }
    }
    Ok(shapes)
}

fn read_entry(reader: &mut Reader) -> Result<Entry, WeightsError> {
    let at = reader.cursor.at;
    let name = reader.name("tensor")?;
    let rank = reader.cursor.u32()?;
    if rank > MAX_DIMS {
        return Err(reader.wrong.tensor(
            &name,
            at,
            format!("it has {rank} dimensions, at most {MAX_DIMS} are possible"),
        ));
    }
    // The fastest dimension comes first.
    let mut dims = (0..rank).map(|_| reader.cursor.u64()).collect::<Result<Vec<_>, _>>()?;
    dims.reverse();
    let element = ElementType::of_gguf(reader.cursor.u32()?);
    Ok(Entry { name, dims, element, offset: reader.cursor.u64()?, at })
}

/// Finds the bytes of each tensor. Those of a type of unknown size reach to the next tensor.
fn place(
    entries: &[Entry],
    source: &ModelFile,
    file: usize,
    data: u64,
    alignment: u64,
) -> Result<Vec<TensorInfo>, WeightsError> {
    let available = source.len().saturating_sub(data);
    let starts: BTreeSet<u64> = entries.iter().map(|entry| entry.offset).collect();
    let mut tensors = vec![];
    for entry in entries {
        let wrong = |problem: String| Wrong(&source.path).tensor(&entry.name, entry.at, problem);
        let uncounted = || wrong(format!("its elements {:?} cannot be counted", entry.dims));
        let (shape, elements) = shape_of(&entry.dims).ok_or_else(uncounted)?;
        let row = entry.dims.last().copied().unwrap_or(1);
        if entry.element.block().is_some_and(|(per_block, _)| !row.is_multiple_of(per_block)) {
            return Err(wrong(format!("its rows of {row} elements are no whole blocks of {}", entry.element)));
        }
        if !entry.offset.is_multiple_of(alignment) {
            return Err(wrong(format!("it begins at {}, which is no multiple of {alignment}", entry.offset)));
        }
        let end = match entry.element.block() {
            Some(_) => {
                let bytes = entry.element.bytes_of(elements).ok_or_else(uncounted)?;
                entry.offset.checked_add(bytes)
            }
            None => starts.range(entry.offset.saturating_add(1)..).next().copied().or(Some(available)),
        };
        match end.filter(|&end| end <= available && end >= entry.offset) {
            Some(end) => {
                let range = (data + entry.offset) as usize..(data + end) as usize;
                tensors.push(TensorInfo::new(entry.name.clone(), shape, entry.element, file, range));
            }
            None => {
                let (offset, element) = (entry.offset, entry.element);
                let problem = format!(
                    "{element} {:?} at {offset} does not lie inside the {available} bytes of data: the file is cut off",
                    entry.dims
                );
                return Err(wrong(problem));
            }
        }
    }
    Ok(tensors)
}
