//! Compiled modules as words.

use impasto_kernel::CompiledModule;
use rspirv::binary::Disassemble;

/// SPIR-V modules as the words that they are.
pub trait Words {
    /// The words.
    fn words(&self) -> Vec<u32>;

    /// The bound on ids: all are below it, and all from 1 are used.
    fn bound(&self) -> u32;

    /// The words as the assembly language of SPIR-V.
    fn disassemble(&self) -> Result<String, String>;
}

impl Words for CompiledModule {
    fn words(&self) -> Vec<u32> {
        from_bytes(&self.bytes)
    }

    fn bound(&self) -> u32 {
        self.bytes.get(12..16).map_or(0, |b| from_bytes(b)[0])
    }

    fn disassemble(&self) -> Result<String, String> {
        rspirv::dr::load_words(self.words()).map(|module| module.disassemble()).map_err(|error| error.to_string())
    }
}

/// Words of bytes in little-endian order; what is left over at the end is dropped.
pub(crate) fn from_bytes(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect()
}
