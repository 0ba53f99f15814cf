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
/// are cut into blocks of 32 that share a scale; the graph sees its logical shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Storage {
    /// One element after the other.
    Dense(DType),
    /// Blocks of 32: an `f16` scale, then 32 signed bytes.
    Q8_0,
    /// Blocks of 32: an `f16` scale, then 32 four-bit numbers with offset 8 (low nibbles first).
    Q4_0,
}

impl Storage {
    /// Elements that share a block (1 where there are no blocks).
    pub const fn block_elements(self) -> u64 {
        match self {
            Storage::Dense(_) => 1,
            Storage::Q8_0 | Storage::Q4_0 => 32,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> u64 {
        match self {
            Storage::Dense(d) => d.bytes(),
            Storage::Q8_0 => 34,
            Storage::Q4_0 => 18,
        }
    }

    /// The name in the textual form.
    pub const fn name(self) -> &'static str {
        match self {
            Storage::Dense(d) => d.name(),
            Storage::Q8_0 => "q8_0",
            Storage::Q4_0 => "q4_0",
        }
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
        match text {
            "q8_0" => Ok(Storage::Q8_0),
            "q4_0" => Ok(Storage::Q4_0),
            other => other
                .parse()
                .map(Storage::Dense)
                .map_err(|_| format!("'{other}' is no parameter storage (f32, f16, bf16, i32, q8_0, q4_0)")),
        }
    }
}
