//! The header of a safetensors file: eight bytes of length, then JSON that describes each tensor.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{FileContents, MAX_RANK, MAX_TENSORS, TensorInfo, Wrong, check_apart, foreign_format, shape_of};
use crate::file::ModelFile;
use crate::{ElementType, WeightsError};

/// No real header comes near this; a larger length is a lie.
const MAX_HEADER: u64 = 100 << 20;
/// A description has a type, two offsets and eight dimensions.
const MAX_ENTRY: usize = 4096;
/// Training programs write some hundred.
const MAX_METADATA: usize = 10_000;

/// A tensor as the JSON has it.
#[derive(Deserialize)]
struct Entry<'a> {
    dtype: &'a str,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// A JSON object in the order of the file, names that stand twice included; none of its values is read yet.
struct Pairs<'a, const MOST: usize>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a, const MOST: usize> Deserialize<'de> for Pairs<'a, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect<const MOST: usize>;
        impl<'de, const MOST: usize> Visitor<'de> for Collect<MOST> {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object with a description of each tensor")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut pairs = vec![];
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                    if pairs.len() > MOST {
                        return Err(M::Error::custom(format!("it has more than {MOST} members")));
                    }
                }
                Ok(pairs)
            }
        }
        deserializer.deserialize_map(Collect::<MOST>).map(Pairs)
    }
}

/// Reads the header of a file and checks all that it says against the file's size.
pub(super) fn read(source: &ModelFile, file: usize) -> Result<FileContents, WeightsError> {
    let wrong = Wrong(&source.path);
    let Some(rest) = source.len().checked_sub(8) else {
        return Err(wrong.at(0, format!("the file has {} bytes, too few for a model", source.len())));
    };
    let mut length = [0; 8];
    source.read_at(0, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER || length > rest {
        if let Some(kind) = foreign_format(source)? {
            return Err(WeightsError::NotAModel { path: source.path.clone(), problem: kind.into() });
        }
        let problem = format!(
            "as a safetensors file, its header claims {length} bytes, and the file has {rest} after that length; it is cut off, or no model file"
        );
        return Err(wrong.at(0, problem));
    }
    let (json, data) = (source.read(8..8 + length as usize)?, rest - length);
    let Pairs::<MAX_TENSORS>(pairs) = serde_json::from_slice(&json)
        .map_err(|e| wrong.at(8, format!("the header is no JSON as safetensors has it: {e}")))?;

    let start = 8 + length;
    let mut contents = FileContents::default();
    for (name, value) in pairs {
        if name == "__metadata__" {
            contents.metadata =
                metadata(value.get()).map_err(|e| wrong.at(8, format!("__metadata__ is no list of texts: {e}")))?;
            continue;
        }
        let described = |problem: String| wrong.tensor(&name, 8, format!("its description is wrong: {problem}"));
        if value.get().len() > MAX_ENTRY {
            return Err(described(format!("it has {} bytes", value.get().len())));
        }
        let entry: Entry = serde_json::from_str(value.get()).map_err(|e| described(e.to_string()))?;
        let element = ElementType::of_safetensors(entry.dtype)
            .ok_or_else(|| described(format!("'{}' is no known element type", entry.dtype)))?;
        let place = check(&entry, element, data);
        let (shape, range) =
            place.map_err(|problem| wrong.tensor(&name, start.saturating_add(entry.data_offsets.0), problem))?;
        let range = start as usize + range.start as usize..start as usize + range.end as usize;
        contents.tensors.push(TensorInfo::new(name, shape, element, file, range));
    }
    check_apart(&source.path, &mut contents.tensors)?;
    // A header whose length is off by its padding still reads well, and every tensor would be read from the wrong place.
    let end = contents.tensors.iter().map(|t| t.range.end as u64).max().unwrap_or(start);
    match source.len() {
        length if length == end => Ok(contents),
        length => {
            Err(wrong.at(end, format!("the last tensor ends here, and the file at byte {length}: it is damaged")))
        }
    }
}

fn metadata(json: &str) -> serde_json::Result<BTreeMap<String, String>> {
    let Pairs::<MAX_METADATA>(pairs) = serde_json::from_str(json)?;
    pairs.into_iter().map(|(key, value)| Ok((key, serde_json::from_str(value.get())?))).collect()
}

/// A tensor's bytes must lie inside the file and be as many as its shape has.
fn check(entry: &Entry, element: ElementType, available: u64) -> Result<(Vec<usize>, std::ops::Range<u64>), String> {
    let (begin, end) = entry.data_offsets;
    if begin > end || end > available {
        return Err(format!("its bytes {begin} to {end} do not lie inside the {available} bytes of data"));
    }
    if entry.shape.len() > MAX_RANK {
        return Err(format!("it has {} dimensions, at most {MAX_RANK} are possible", entry.shape.len()));
    }
    let shape = shape_of(&entry.shape);
    let need = shape.as_ref().and_then(|(_, elements)| element.bytes_of(*elements));
    match (shape, need) {
        (Some((shape, _)), Some(need)) if need == end - begin => Ok((shape, begin..end)),
        _ => {
            let need = need.map_or("more than can be counted".to_string(), |n| n.to_string());
            Err(format!("{element} {:?} needs {need} bytes, it has {}", entry.shape, end - begin))
        }
    }
}
