//! Checkpoints of PyTorch (`.ckpt`, `.pt`, `.pth`, `.bin`): a pickle that describes tensors, and their storages, in a zip archive or one after the other.
//!
//! The pickle is read by a machine that executes nothing ([`machine`]); [`globals`] says which names it may mention.

mod flatten;
mod globals;
mod machine;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::cursor::Cursor;
use super::zip::Archive;
use super::{FileContents, MAX_RANK, TensorInfo, Wrong, shape_of};
use crate::file::ModelFile;
use crate::{ElementType, WeightsError};
use flatten::{Named, flatten};
use machine::{Fault, Machine, Tensor, Value};

/// Longer names are none.
const MAX_NAME: usize = 4096;
/// What the machine may take besides the file's own size.
const MEMORY: u64 = 40 << 20;
/// The pickle of a large model with its optimiser has some megabytes.
const MAX_PICKLE: u64 = 256 << 20;
/// The number that files written before 2020 begin with.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
const PROTOCOL: i64 = 1001;

fn fault(source: &ModelFile, start: u64, fault: Fault) -> WeightsError {
    match fault {
        Fault::Cut => Wrong(&source.path).at(start, "the pickle that begins here is cut off"),
        Fault::At(at, problem) => Wrong(&source.path).at(start + at as u64, problem),
        Fault::Global(at, global) => {
            WeightsError::Global { path: source.path.clone(), offset: start + at as u64, global }
        }
    }
}

/// Memory for the machine: with the pickle itself, not more than the file has and some.
fn memory(source: &ModelFile, pickle: u64) -> usize {
    usize::try_from(MEMORY + (source.len() - pickle).min(1 << 30)).unwrap_or(usize::MAX)
}

/// Reads a checkpoint in a zip archive.
pub(super) fn read_zip(source: &ModelFile, file: usize) -> Result<FileContents, WeightsError> {
    let wrong = Wrong(&source.path);
    let archive = Archive::open(source)?;
    let none = |problem: &str| WeightsError::NotAModel { path: source.path.clone(), problem: problem.into() };
    let mut pickles = archive.names().filter(|name| name.rsplit('/').next() == Some("data.pkl"));
    let (Some(pickle), None) = (pickles.next(), pickles.next()) else {
        return Err(none("this is a zip file, and no checkpoint of PyTorch: it has no data.pkl; unpack it first"));
    };
    let folder = pickle.strip_suffix("data.pkl").unwrap_or_default();
    let entry = |name: &str| archive.find(&format!("{folder}{name}"));
    if let Some(range) = entry("byteorder")? {
        let order = source.read(range.start as usize..(range.start + (range.end - range.start).min(16)) as usize)?;
        if order.trim_ascii() != b"little" {
            return Err(none("this checkpoint was saved on a machine with the other order of bytes"));
        }
    }
    let range = entry("data.pkl")?.unwrap_or(0..0);
    let length = range.end - range.start;
    if length > MAX_PICKLE {
        return Err(wrong.at(range.start, format!("its pickle claims {length} bytes")));
    }
    let bytes = source.read(range.start as usize..range.end as usize)?;
    let mut machine = Machine::new(&bytes, memory(source, length));
    let root = machine.run().map_err(|f| fault(source, range.start, f))?;
    let named = flatten(&machine, root).map_err(|problem| none(&problem))?;
    let mut places: HashMap<u32, Range<u64>> = HashMap::new();
    for &tensor in named.values() {
        let number = machine.tensors[tensor as usize].storage;
        if let std::collections::hash_map::Entry::Vacant(place) = places.entry(number) {
            let storage = &machine.storages[number as usize];
            let found = entry(&format!("data/{}", storage.key))?;
            place.insert(found.ok_or_else(|| {
                wrong.at(range.start, format!("the storage '{}' is missing from the archive", storage.key))
            })?);
        }
    }
    contents(source, file, range.start, &machine, named, &places)
}

/// Reads a checkpoint as it was written before 2020: five pickles, then the storages.
pub(super) fn read_legacy(source: &ModelFile, file: usize) -> Result<FileContents, WeightsError> {
    // The pickles say nowhere how long they are.
    let mut length = 1 << 20;
    loop {
        let known = source.len().min(length);
        let bytes = source.read(0..known as usize)?;
        match read_pickles(source, file, &bytes) {
            Err(Failure::Pickle(Fault::Cut)) if known < source.len() && length < MAX_PICKLE => {
                length = (8 * length).min(MAX_PICKLE)
            }
            Err(Failure::Pickle(f)) => return Err(fault(source, 0, f)),
            Err(Failure::File(error)) => return Err(error),
            Ok(contents) => return Ok(contents),
        }
    }
}

enum Failure {
    Pickle(Fault),
    File(WeightsError),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Failure {
        Failure::Pickle(fault)
    }
}

impl From<WeightsError> for Failure {
    fn from(error: WeightsError) -> Failure {
        Failure::File(error)
    }
}

fn read_pickles(source: &ModelFile, file: usize, bytes: &[u8]) -> Result<FileContents, Failure> {
    let none = |problem: &str| WeightsError::NotAModel { path: source.path.clone(), problem: problem.into() };
    let mut machine = Machine::new(bytes, memory(source, bytes.len() as u64));
    let magic = machine.run()?;
    if machine.bytes_of(magic) != Some(&MAGIC) {
        return Err(none(
            "this is a pickle, and no checkpoint of PyTorch: save the model's state_dict with torch.save",
        )
        .into());
    }
    if !matches!(machine.run()?, Value::Integer(PROTOCOL)) {
        return Err(none("this checkpoint has a protocol of PyTorch's that is not known").into());
    }
    machine.run()?;
    let root = machine.run()?;
    let keys = machine.run()?;
    let named = flatten(&machine, root).map_err(|problem| none(&problem))?;
    let wrong = Wrong(&source.path);
    let numbers: HashMap<&str, u32> = machine.storages.iter().zip(0..).map(|(s, i)| (s.key.as_str(), i)).collect();
    let mut cursor = Cursor::new(source, machine.position() as u64);
    let mut places = HashMap::new();
    for &key in machine.values_of(keys).unwrap_or_default() {
        let at = cursor.at;
        let known = match key {
            Value::Integer(n) => numbers.get(n.to_string().as_str()).copied(),
            text => machine.text_of(text).and_then(|key| numbers.get(key).copied()),
        };
        let number = known.ok_or_else(|| wrong.at(at, "a storage follows that no tensor mentions"))?;
        let storage = &machine.storages[number as usize];
        let count = cursor.u64()?;
        let size = storage.element.and_then(ElementType::block).map_or(1, |(_, bytes)| bytes);
        if count != storage.count {
            let problem =
                format!("the storage '{}' has {count} elements here and {} in the pickle", storage.key, storage.count);
            return Err(wrong.at(at, problem).into());
        }
        let start = cursor.at;
        cursor.skip(count.saturating_mul(size))?;
        if places.insert(number, start..cursor.at).is_some() {
            return Err(wrong.at(at, format!("the storage '{}' follows twice", storage.key)).into());
        }
    }
    Ok(contents(source, file, 0, &machine, named, &places)?)
}

/// Finds each tensor in its storage. `start` is where the pickle begins.
fn contents(
    source: &ModelFile,
    file: usize,
    start: u64,
    machine: &Machine,
    named: Named,
    places: &HashMap<u32, Range<u64>>,
) -> Result<FileContents, WeightsError> {
    let mut contents = FileContents { metadata: BTreeMap::new(), ..FileContents::default() };
    for (name, number) in named {
        let tensor = &machine.tensors[number as usize];
        let wrong = |problem: String| Wrong(&source.path).tensor(&name, start + tensor.at as u64, problem);
        let storage = &machine.storages[tensor.storage as usize];
        let element = tensor.element.ok_or_else(|| wrong("its element type is not known".into()))?;
        let place = places.get(&tensor.storage);
        let place = place.ok_or_else(|| wrong(format!("its storage '{}' is not in the file", storage.key)))?;
        let (shape, elements) =
            shape_of(&tensor.shape).ok_or_else(|| wrong("its elements cannot be counted".into()))?;
        let size = element.block().map_or(1, |(_, bytes)| bytes);
        let reach = if elements == 0 { Some(0) } else { reach(tensor) };
        let end = reach.and_then(|reach| reach.checked_add(tensor.offset)).and_then(|end| end.checked_mul(size));
        let begin = tensor.offset.checked_mul(size);
        let (Some(begin), Some(_)) = (begin, end.filter(|&end| end <= place.end - place.start)) else {
            let problem = format!(
                "{element} {shape:?} from element {} on does not lie inside its storage of {} bytes",
                tensor.offset,
                place.end - place.start
            );
            return Err(wrong(problem));
        };
        let range = match is_contiguous(tensor) {
            true => {
                let begin = (place.start + begin) as usize;
                begin..begin + (elements * size) as usize
            }
            false => {
                let (from, bytes) = (place.start + begin, elements.saturating_mul(size));
                // A tensor that repeats its elements can be of any size, and many can share a storage.
                let copied = contents.copied.len() as u64;
                if reach != Some(elements) || copied + 2 * bytes > source.len() + MEMORY {
                    return Err(wrong(format!(
                        "its strides {:?} repeat or skip elements: save a copy of it",
                        tensor.strides
                    )));
                }
                copy(source, from, tensor, size as usize, &mut contents.copied)?;
                let begin = (source.len() + copied) as usize;
                begin..begin + bytes as usize
            }
        };
        contents.tensors.push(TensorInfo::new(name.clone(), shape, element, file, range));
    }
    Ok(contents)
}

/// One more than the largest element of its storage, from its first on, that a tensor has.
fn reach(tensor: &Tensor) -> Option<u64> {
    let steps = tensor.shape.iter().zip(&tensor.strides);
    let last =
        steps.map(|(&d, &s)| d.saturating_sub(1).checked_mul(s)).try_fold(0u64, |sum, step| sum.checked_add(step?));
    last?.checked_add(1)
}

/// Whether elements lie in the order of the shape, one after the other.
fn is_contiguous(tensor: &Tensor) -> bool {
    let mut expected = 1u64;
    let mut dims = tensor.shape.iter().zip(&tensor.strides).rev();
    tensor.shape.contains(&0)
        || dims.all(|(&d, &stride)| {
            let fits = d == 1 || stride == expected;
            expected = expected.saturating_mul(d);
            fits
        })
}

/// Appends the elements of a tensor in the order of its shape: it is one with its dimensions exchanged.
fn copy(source: &ModelFile, from: u64, tensor: &Tensor, size: usize, out: &mut Vec<u8>) -> Result<(), WeightsError> {
    let elements: u64 = tensor.shape.iter().product();
    let stored = source.read(from as usize..from as usize + elements as usize * size)?;
    out.reserve_exact(stored.len());
    let mut index = [0u64; MAX_RANK];
    for _ in 0..elements {
        let at = index.iter().zip(&tensor.strides).map(|(i, s)| i * s).sum::<u64>() as usize * size;
        out.extend_from_slice(&stored[at..at + size]);
        for (i, &d) in index[..tensor.shape.len()].iter_mut().zip(&tensor.shape).rev() {
            *i += 1;
            if *i < d {
                break;
            }
            *i = 0;
        }
    }
    Ok(())
}
