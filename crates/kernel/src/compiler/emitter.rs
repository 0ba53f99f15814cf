//! What the compiler needs of an output format, and what it makes with it.

use std::fmt;

use crate::error::KernelError;
use crate::ir::{Kernel, Space};
use crate::params::{param_size, shared_offsets};
use crate::passes::Pass;
use crate::target::Target;

/// The format of a compiled module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModuleKind {
    /// SPIR-V words in little-endian order.
    SpirV,
    /// The text of a PTX module.
    Ptx,
}

impl ModuleKind {
    /// How files of this format end.
    pub fn extension(self) -> &'static str {
        match self {
            ModuleKind::SpirV => "spv",
            ModuleKind::Ptx => "ptx",
        }
    }
}

/// A compiled module: bytes in the format that a driver takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledModule {
    /// The format of the bytes.
    pub kind: ModuleKind,
    /// What the driver is given.
    pub bytes: Vec<u8>,
    /// Its entry points, in the order of the kernels.
    pub entries: Vec<Entry>,
}

/// A kernel of a module, as a host sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name of the entry point, which is the kernel's.
    pub name: String,
    /// Invocations in a workgroup: x, y, z.
    pub workgroup: [u32; 3],
    /// Buffers, at bindings 0 and on.
    pub buffers: u32,
    /// Bytes of scalar parameters.
    pub constants: u32,
    /// Bytes of the arrays that a workgroup shares, as [`shared_offsets`](crate::shared_offsets) lays them out.
    pub shared: u64,
}

impl Entry {
    /// The entry point of a kernel.
    pub fn of(k: &Kernel) -> Entry {
        Entry {
            name: k.name.clone(),
            workgroup: k.workgroup,
            buffers: k.memories().iter().filter(|m| matches!(m.space, Space::Buffer(_))).count() as u32,
            constants: param_size(k),
            shared: shared_offsets(k).1,
        }
    }
}

/// Writes optimised kernels in one output format.
pub trait Emitter: fmt::Debug + Send + Sync {
    /// The format that it writes.
    fn kind(&self) -> ModuleKind;

    /// Names its sources, so that a cache never gives what another version wrote.
    fn version(&self) -> &'static str;

    /// Passes that take out what the format cannot express. They run after the pipeline, in this order.
    fn lowerings(&self) -> &[Pass];

    /// Writes a module with an entry point for each kernel, or refuses what does not fit the target or the limits of the format.
    fn emit(&self, kernels: &[Kernel], target: &Target) -> Result<Vec<u8>, KernelError>;

    /// Checks bytes that were not just written: whether they are a module of this format. The error says what is wrong.
    fn check(&self, bytes: &[u8]) -> Result<(), String>;
}
