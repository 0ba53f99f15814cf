//! The element types that files have.

use std::fmt;

use impasto_graph::{DType, Storage};

/// An element type of a file. Those without a [`Storage`] can be listed; some of them can be converted while they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the variants are the names in files")]
#[allow(non_camel_case_types, reason = "the variants are the names in files")]
pub enum ElementType {
    F64,
    F32,
    F16,
    BF16,
    F8_E5M2,
    F8_E4M3,
    F8_E8M0,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    BOOL,
    C64,
    C128,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    Q1_0,
    /// A number that GGUF gives to a type that came after this program.
    Unknown(u32),
}

use ElementType as E;

/// Every type: its name, the elements and bytes of a block, and its number in GGUF.
const TABLE: [(ElementType, &str, u64, u64, Option<u32>); 44] = [
    (E::F64, "f64", 1, 8, Some(28)),
    (E::F32, "f32", 1, 4, Some(0)),
    (E::F16, "f16", 1, 2, Some(1)),
    (E::BF16, "bf16", 1, 2, Some(30)),
    (E::F8_E5M2, "f8_e5m2", 1, 1, None),
    (E::F8_E4M3, "f8_e4m3", 1, 1, None),
    (E::F8_E8M0, "f8_e8m0", 1, 1, None),
    (E::I64, "i64", 1, 8, Some(27)),
    (E::I32, "i32", 1, 4, Some(26)),
    (E::I16, "i16", 1, 2, Some(25)),
    (E::I8, "i8", 1, 1, Some(24)),
    (E::U64, "u64", 1, 8, None),
    (E::U32, "u32", 1, 4, None),
    (E::U16, "u16", 1, 2, None),
    (E::U8, "u8", 1, 1, None),
    (E::BOOL, "bool", 1, 1, None),
    (E::C64, "c64", 1, 8, None),
    (E::C128, "c128", 1, 16, None),
    (E::Q4_0, "q4_0", 32, 18, Some(2)),
    (E::Q4_1, "q4_1", 32, 20, Some(3)),
    (E::Q5_0, "q5_0", 32, 22, Some(6)),
    (E::Q5_1, "q5_1", 32, 24, Some(7)),
    (E::Q8_0, "q8_0", 32, 34, Some(8)),
    (E::Q8_1, "q8_1", 32, 40, Some(9)),
    (E::Q2_K, "q2_k", 256, 84, Some(10)),
    (E::Q3_K, "q3_k", 256, 110, Some(11)),
    (E::Q4_K, "q4_k", 256, 144, Some(12)),
    (E::Q5_K, "q5_k", 256, 176, Some(13)),
    (E::Q6_K, "q6_k", 256, 210, Some(14)),
    (E::Q8_K, "q8_k", 256, 292, Some(15)),
    (E::IQ1_S, "iq1_s", 256, 50, Some(19)),
    (E::IQ1_M, "iq1_m", 256, 56, Some(29)),
    (E::IQ2_XXS, "iq2_xxs", 256, 66, Some(16)),
    (E::IQ2_XS, "iq2_xs", 256, 74, Some(17)),
    (E::IQ2_S, "iq2_s", 256, 82, Some(22)),
    (E::IQ3_XXS, "iq3_xxs", 256, 98, Some(18)),
    (E::IQ3_S, "iq3_s", 256, 110, Some(21)),
    (E::IQ4_NL, "iq4_nl", 32, 18, Some(20)),
    (E::IQ4_XS, "iq4_xs", 256, 136, Some(23)),
    (E::TQ1_0, "tq1_0", 256, 54, Some(34)),
    (E::TQ2_0, "tq2_0", 256, 66, Some(35)),
    (E::MXFP4, "mxfp4", 32, 17, Some(39)),
    (E::NVFP4, "nvfp4", 64, 36, Some(40)),
    (E::Q1_0, "q1_0", 128, 18, Some(41)),
];

impl ElementType {
    fn row(self) -> Option<&'static (ElementType, &'static str, u64, u64, Option<u32>)> {
        TABLE.iter().find(|row| row.0 == self)
    }

    /// The type of this number in GGUF, known or not.
    pub fn of_gguf(number: u32) -> ElementType {
        TABLE.iter().find(|row| row.4 == Some(number)).map_or(ElementType::Unknown(number), |row| row.0)
    }

    /// Its number in GGUF, where it has one.
    pub fn gguf_number(self) -> Option<u32> {
        match self {
            ElementType::Unknown(number) => Some(number),
            known => known.row().and_then(|row| row.4),
        }
    }

    /// The type of this name in a safetensors header: those of one element a block.
    pub(crate) fn of_safetensors(name: &str) -> Option<ElementType> {
        let same = |row: &&(ElementType, &str, u64, u64, Option<u32>)| row.2 == 1 && row.1.to_uppercase() == name;
        TABLE.iter().find(same).map(|row| row.0)
    }

    /// Elements and bytes of a block, where they are known. A block is one element where there are no blocks.
    pub fn block(self) -> Option<(u64, u64)> {
        self.row().map(|row| (row.2, row.3))
    }

    /// Bytes of so many elements; none if they are no whole blocks, or cannot be counted.
    pub fn bytes_of(self, elements: u64) -> Option<u64> {
        let (per_block, bytes) = self.block()?;
        elements.is_multiple_of(per_block).then(|| (elements / per_block).checked_mul(bytes))?
    }

    /// As what a graph can use it as it is.
    pub fn storage(self) -> Option<Storage> {
        match self {
            ElementType::Unknown(_) => None,
            // The names are the same ones.
            known => known.row().and_then(|row| row.1.parse().ok()),
        }
    }

    /// The type of a file that holds this storage.
    pub fn of_storage(storage: Storage) -> ElementType {
        let same = |row: &&(ElementType, &str, u64, u64, Option<u32>)| row.1 == storage.name();
        TABLE.iter().find(same).map_or(ElementType::F32, |row| row.0)
    }

    /// The names of those that can be computed with.
    pub(crate) fn usable() -> String {
        let float = |s: &Storage| *s != Storage::Dense(DType::I32);
        Storage::ALL.into_iter().filter(float).map(Storage::name).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.row()) {
            (ElementType::Unknown(number), _) => write!(f, "GGUF type {number}"),
            (_, row) => f.write_str(row.map_or("unknown", |row| row.1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A type whose size differs from its storage's would be read from the wrong place.
    #[test]
    fn types_and_storages_agree() {
        for storage in Storage::ALL {
            let element = ElementType::of_storage(storage);
            assert_eq!(element.storage(), Some(storage));
            assert_eq!(element.block(), Some((storage.block_elements(), storage.block_bytes())), "{storage}");
        }
        for (element, name, ..) in TABLE {
            assert_eq!(element.to_string(), name);
            assert_eq!(format!("{element:?}").to_lowercase(), name);
            assert!(element.gguf_number().is_none_or(|number| ElementType::of_gguf(number) == element));
        }
        assert_eq!(ElementType::of_gguf(99).to_string(), "GGUF type 99");
        assert_eq!((ElementType::Q4_K.bytes_of(512), ElementType::Q4_K.bytes_of(500)), (Some(288), None));
        assert_eq!(ElementType::of_safetensors("Q4_0"), None);
    }
}
