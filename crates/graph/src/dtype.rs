//! Element types of tensors, and the ways in which parameters are stored.

use std::fmt;
use std::str::FromStr;

/// The element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// 32-bit float.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an `f32`.
    BF16,
    /// 32-bit signed integer: token ids and positions.
    I32,
}

impl DType {
    /// Every element type, in the order of this enum.
    pub const ALL: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::I32];

    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
        }
    }

    /// Whether this is one of the float types.
    pub const fn is_float(self) -> bool {
        !matches!(self, DType::I32)
    }

    /// The name in the textual form.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I32 => "i32",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        DType::ALL
            .into_iter()
            .find(|d| d.name() == text)
            .ok_or_else(|| format!("'{text}' is no element type (f32, f16, bf16, i32)"))
    }
}

/// How the bytes of a parameter are stored in its file. A quantised parameter is a tensor of floats whose rows
/// are cut into blocks that share scales; the graph sees its logical shape. The names and layouts of blocks are those of GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types, reason = "the variants are the names that files and users have for them")]
pub enum Storage {
    /// One element after the other.
    Dense(DType),
    /// Blocks of 32: an `f16` scale, then four-bit numbers with offset 8 (low nibbles first).
    Q4_0,
    /// Blocks of 32: `f16` scale and minimum, then four-bit numbers.
    Q4_1,
    /// Blocks of 32: an `f16` scale, then the fifth bits, then the lower four of numbers with offset 16.
    Q5_0,
    /// Blocks of 32: `f16` scale and minimum, then the fifth bits, then the lower four.
    Q5_1,
    /// Blocks of 32: an `f16` scale, then 32 signed bytes.
    Q8_0,
    /// Blocks of 256 in groups of 16 with four-bit scales and minimums, two-bit numbers.
    Q2_K,
    /// Blocks of 256 in groups of 16 with signed six-bit scales, three-bit numbers with offset 4.
    Q3_K,
    /// Blocks of 256 in groups of 32 with six-bit scales and minimums, four-bit numbers.
    Q4_K,
    /// Blocks of 256 in groups of 32 with six-bit scales and minimums, five-bit numbers.
    Q5_K,
    /// Blocks of 256 in groups of 16 with signed eight-bit scales, six-bit numbers with offset 32.
    Q6_K,
    /// Blocks of 32: an `f16` scale, then four-bit indices into a table of 16 uneven steps.
    IQ4_NL,
    /// Blocks of 256 in groups of 32 with signed six-bit scales, indices as in [`Storage::IQ4_NL`].
    IQ4_XS,
    /// Blocks of 32: a power of two, then four-bit floats.
    MXFP4,
    /// Eight-bit floats with four bits of exponent: no infinity, at most 448.
    F8_E4M3,
    /// Eight-bit floats with five bits of exponent: the upper half of an `f16`.
    F8_E5M2,
}

impl Storage {
    /// Every storage, dense ones first.
    pub const ALL: [Storage; 19] = [
        Storage::Dense(DType::F32),
        Storage::Dense(DType::F16),
        Storage::Dense(DType::BF16),
        Storage::Dense(DType::I32),
        Storage::Q4_0,
        Storage::Q4_1,
        Storage::Q5_0,
        Storage::Q5_1,
        Storage::Q8_0,
        Storage::Q2_K,
        Storage::Q3_K,
        Storage::Q4_K,
        Storage::Q5_K,
        Storage::Q6_K,
        Storage::IQ4_NL,
        Storage::IQ4_XS,
        Storage::MXFP4,
        Storage::F8_E4M3,
        Storage::F8_E5M2,
    ];

    /// Those of floats: what weights can be.
    pub const FLOATS: [Storage; 18] = {
        let mut floats = [Storage::Dense(DType::F32); 18];
        let (mut from, mut to) = (0, 0);
        while from < Storage::ALL.len() {
            if Storage::ALL[from].is_float() {
                floats[to] = Storage::ALL[from];
                to += 1;
            }
            from += 1;
        }
        floats
    };

    /// The storage of smaller blocks with as many bits or more, for rows that are no whole blocks of this one.
    pub const fn in_smaller_blocks(self) -> Option<Storage> {
        match self {
            Storage::Q2_K | Storage::Q3_K | Storage::IQ4_XS => Some(Storage::IQ4_NL),
            Storage::Q4_K => Some(Storage::Q5_0),
            Storage::Q5_K => Some(Storage::Q5_1),
            Storage::Q6_K => Some(Storage::Q8_0),
            _ => None,
        }
    }

    /// Its name, the elements of a block, and the bytes of a block.
    const fn layout(self) -> (&'static str, u64, u64) {
        match self {
            Storage::Dense(d) => (d.name(), 1, d.bytes()),
            Storage::Q4_0 => ("q4_0", 32, 18),
            Storage::Q4_1 => ("q4_1", 32, 20),
            Storage::Q5_0 => ("q5_0", 32, 22),
            Storage::Q5_1 => ("q5_1", 32, 24),
            Storage::Q8_0 => ("q8_0", 32, 34),
            Storage::Q2_K => ("q2_k", 256, 84),
            Storage::Q3_K => ("q3_k", 256, 110),
            Storage::Q4_K => ("q4_k", 256, 144),
            Storage::Q5_K => ("q5_k", 256, 176),
            Storage::Q6_K => ("q6_k", 256, 210),
            Storage::IQ4_NL => ("iq4_nl", 32, 18),
            Storage::IQ4_XS => ("iq4_xs", 256, 136),
            Storage::MXFP4 => ("mxfp4", 32, 17),
            Storage::F8_E4M3 => ("f8_e4m3", 1, 1),
            Storage::F8_E5M2 => ("f8_e5m2", 1, 1),
        }
    }

    /// The name in the textual form.
    pub const fn name(self) -> &'static str {
        self.layout().0
    }

    /// Elements that share a block (1 where there are no blocks).
    pub const fn block_elements(self) -> u64 {
        self.layout().1
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> u64 {
        self.layout().2
    }

    /// Bytes of so many elements, the last block whole. None where they cannot be counted.
    pub const fn bytes_of(self, elements: u64) -> Option<u64> {
        elements.div_ceil(self.block_elements()).checked_mul(self.block_bytes())
    }

    /// Whether it holds floats.
    pub const fn is_float(self) -> bool {
        !matches!(self, Storage::Dense(DType::I32))
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Storage {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Storage::ALL.into_iter().find(|s| s.name() == text).ok_or_else(|| {
            let names = Storage::ALL.map(Storage::name).join(", ");
            format!("'{text}' is no parameter storage ({names})")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Graphs name storages in text; a name that two share, or that does not read back, would change a saved graph.
    #[test]
    fn every_storage_reads_back_from_its_name() {
        for storage in Storage::ALL {
            assert_eq!(storage.name().parse(), Ok(storage));
        }
        assert_eq!(Storage::Q4_K.bytes_of(257), Some(288));
        assert_eq!(Storage::Q8_0.bytes_of(u64::MAX), None);
        assert!("q9".parse::<Storage>().expect_err("there is none").contains("q2_k"));
    }
}
