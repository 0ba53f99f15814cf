//! Numbers as the hexadecimal digits of their bits: what is stored is read back to the last bit, in any format, NaN too, and is
//! shorter than decimal digits.

use std::fmt::Write;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

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

/// Floating-point numbers, stored by their bits.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Numbers(pub Vec<f32>);

impl Serialize for Numbers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&to_hex(self.0.iter().map(|x| x.to_bits())))
    }
}

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Numbers, D::Error> {
        let words = from_hex(&String::deserialize(deserializer)?).map_err(D::Error::custom)?;
        Ok(Numbers(words.into_iter().map(f32::from_bits).collect()))
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
}
