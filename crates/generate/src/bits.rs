//! Numbers as the hexadecimal digits of their bits: what is stored is read back to the last bit, in any format, NaN too, and is
//! shorter than decimal digits.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use serde_json::{Value, json};

/// Eight digits for each word.
pub(crate) fn to_hex(words: impl Iterator<Item = u32>) -> String {
    words.fold(String::new(), |mut text, word| {
        // Writing to a string does not fail.
        let _ = write!(text, "{word:08x}");
        text
    })
}

/// The words of `to_hex`.
pub(crate) fn from_hex(text: &str) -> Result<Vec<u32>, String> {
    let bytes = text.as_bytes();
    if !bytes.len().is_multiple_of(8) {
        return Err(format!("{} hexadecimal digits are not a number of words of 8", bytes.len()));
    }
    let digit = |byte: &u8| (*byte as char).to_digit(16).ok_or_else(|| "expected hexadecimal digits".to_string());
    bytes.chunks_exact(8).map(|word| word.iter().try_fold(0, |sum, byte| Ok(sum << 4 | digit(byte)?))).collect()
}

/// Floating-point numbers, stored by their bits as an object with this one key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Numbers(#[serde(with = "as_bits")] pub Vec<f32>);

/// The key of [`Numbers`].
const BITS: &str = "f32_bits";

mod as_bits {
    use super::*;

    #[derive(Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Bits {
        f32_bits: String,
    }

    pub fn serialize<S: Serializer>(numbers: &[f32], serializer: S) -> Result<S::Ok, S::Error> {
        Bits { f32_bits: to_hex(numbers.iter().map(|x| x.to_bits())) }.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f32>, D::Error> {
        let words = from_hex(&Bits::deserialize(deserializer)?.f32_bits).map_err(D::Error::custom)?;
        Ok(words.into_iter().map(f32::from_bits).collect())
    }
}

/// Moves every [`Numbers`] of a value to `tensors`, by the path of its keys, and leaves that name in its place.
pub(crate) fn take_tensors(value: &mut Value, path: &str, tensors: &mut BTreeMap<String, Vec<f32>>) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::Object(map) => {
            let words = map.get(BITS).filter(|_| map.len() == 1).and_then(Value::as_str).and_then(|t| from_hex(t).ok());
            match words {
                Some(words) => {
                    tensors.insert(path.to_owned(), words.into_iter().map(f32::from_bits).collect());
                    *value = json!({ TENSOR: path });
                }
                None => map.iter_mut().for_each(|(key, value)| take_tensors(value, &below(key), tensors)),
            }
        }
        Value::Array(list) => {
            (0..).zip(list).for_each(|(i, value): (usize, _)| take_tensors(value, &below(&i.to_string()), tensors));
        }
        _ => {}
    }
}

/// The key under which a value names a tensor.
const TENSOR: &str = "tensor";

/// Puts back what [`take_tensors`] has taken. A name that no tensor has stays, and is no number to whoever reads it.
pub(crate) fn put_back_tensors(value: &mut Value, tensors: &BTreeMap<String, Vec<f32>>) {
    match value {
        Value::Object(map) => {
            let named = map.get(TENSOR).filter(|_| map.len() == 1).and_then(Value::as_str);
            match named.and_then(|name| tensors.get(name)) {
                Some(numbers) => *value = json!({ BITS: to_hex(numbers.iter().map(|x| x.to_bits())) }),
                None => map.values_mut().for_each(|value| put_back_tensors(value, tensors)),
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| put_back_tensors(value, tensors)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_come_back() {
        let words = [0, 1, 0x8000_0000, 0x7fc0_0001, u32::MAX, 0x1234_abcd];
        assert_eq!(from_hex(&to_hex(words.into_iter())), Ok(words.to_vec()));
        assert!(from_hex("1234567").is_err() && from_hex("1234567g").is_err() && from_hex("éééé").is_err());
    }
    #[test]
    fn numbers_become_tensors_and_come_back() {
        let numbers = |x: f32| serde_json::to_value(Numbers(vec![x, f32::NAN])).expect("a value");
        let whole = json!({ "a": numbers(1.0), "list": [numbers(2.0), 3], "none": null });
        let (mut value, mut tensors) = (whole.clone(), BTreeMap::new());
        take_tensors(&mut value, "", &mut tensors);
        assert_eq!(tensors.keys().collect::<Vec<_>>(), ["a", "list.0"]);
        assert_eq!(value["list"][0], json!({ "tensor": "list.0" }));
        put_back_tensors(&mut value, &tensors);
        assert_eq!(value, whole);
        tensors.remove("a");
        take_tensors(&mut value, "", &mut BTreeMap::new());
        put_back_tensors(&mut value, &tensors);
        assert!(
            serde_json::from_value::<Numbers>(value["a"].clone()).is_err(),
            "a tensor that is missing is no number"
        );
    }
}
