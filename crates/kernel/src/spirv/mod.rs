//! SPIR-V for Vulkan 1.1: version 1.3, the lowest with storage buffers and subgroups, in structured control flow.
//!
//! Ids are numbered while words are written, densely, after they were counted by the same code over the whole module: one over the limit is
//! refused before the first word. Capabilities and extensions are those of what is used. A module has an entry point for each of
//! its kernels, called as the kernel is, also if it is the only one; buffer `i` of a kernel is binding `i` of set 0, scalar parameters
//! are push constants. Kernels with matrices of a subgroup come under the Vulkan memory model, and all others of their module with them.

mod check;
mod control;
mod early;
mod foreign;
mod matrix;
mod memory;
mod ops;
mod words;

use std::collections::BTreeSet;

use rspirv::spirv;

use crate::error::{Contributors, KernelError};
use crate::ir::{Kernel, Scalar, Space};
use crate::target::{Feature, Target};
pub(crate) use check::check;
use control::Emit;
pub use early::least_ids;
pub(crate) use early::{EARLY, refuse_early};
pub(crate) use foreign::{Outer, Written, opcode};
use words::{Mode, Own, Words, instruction, text};

/// The largest bound on ids that every Vulkan driver must accept.
pub const ID_LIMIT: u32 = 4_194_303;

/// The words of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// The words.
    pub words: Vec<u32>,
    /// The bound on ids: all are below it, and all from 1 are used.
    pub bound: u32,
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
    /// Storage buffers, at bindings 0 and on of set 0.
    pub buffers: u32,
    /// Bytes of push constants.
    pub constants: u32,
}

impl Entry {
    pub(crate) fn of(k: &Kernel) -> Entry {
        Entry {
            name: k.name.clone(),
            workgroup: k.workgroup,
            buffers: k.memories().iter().filter(|m| matches!(m.space, Space::Buffer(_))).count() as u32,
            constants: param_size(k),
        }
    }

    /// What a pipeline is made with.
    pub fn interface(&self) -> impasto_vulkan::Interface<'_> {
        let &Entry { ref name, buffers, constants, .. } = self;
        impasto_vulkan::Interface { entry: name, buffers, constants, subgroup: None, uniforms: &[], plain: false }
    }
}

impl Module {
    /// The words as the assembly language of SPIR-V.
    pub fn disassemble(&self) -> Result<String, String> {
        use rspirv::binary::Disassemble;
        rspirv::dr::load_words(&self.words).map(|module| module.disassemble()).map_err(|error| error.to_string())
    }
}

/// Bytes of the push constants of a kernel.
pub(crate) fn param_size(kernel: &Kernel) -> u32 {
    let last = kernel.params().last().zip(param_offsets(kernel).last().copied());
    last.map_or(0, |(p, at)| at + p.ty.bytes())
}

/// Where each scalar parameter lies in the push constants, in bytes: each at the next multiple of its size.
pub fn param_offsets(kernel: &Kernel) -> Vec<u32> {
    let mut end = 0u32;
    let place = |ty: Scalar| {
        let at = end.next_multiple_of(ty.bytes().max(1));
        end = at + ty.bytes();
        at
    };
    kernel.params().iter().map(|p| p.ty).map(place).collect()
}

/// The push constants of a launch with these values of the scalar parameters, given as bits.
///
/// ```
/// use impasto_kernel::{Builder, param_bytes};
/// let kernel = Builder::kernel("k", [1, 1, 1], |k| {
///     let (a, n) = (k.param::<u32>("a"), k.param::<u64>("n"));
///     k.buffer_mut::<u64>("y").store(a, n);
/// })?;
/// assert_eq!(param_bytes(&kernel, &[7, 9])?, [7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
pub fn param_bytes(kernel: &Kernel, values: &[u64]) -> Result<Vec<u8>, KernelError> {
    let params = kernel.params();
    if values.len() != params.len() {
        let problem = format!("it has {} parameters, {} values were given", params.len(), values.len());
        return Err(KernelError::Launch { kernel: kernel.name.clone(), problem });
    }
    let mut bytes = Vec::new();
    for ((p, at), value) in params.iter().zip(param_offsets(kernel)).zip(values) {
        bytes.resize(at as usize, 0);
        bytes.extend_from_slice(&value.to_le_bytes()[..p.ty.bytes() as usize]);
    }
    Ok(bytes)
}

fn too_many(
    kernel: Option<&Kernel>,
    stage: &'static str,
    count: u64,
    limit: u32,
    mut largest: Vec<(String, u64)>,
) -> KernelError {
    largest.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    largest.truncate(4);
    let kernel = kernel.map_or(String::new(), |k| k.name.clone());
    KernelError::TooManyIds { kernel, stage, count, limit, largest: Contributors(largest) }
}

/// Writes the words of a module. Its kernels are valid, and no loop is left by more than one level; variables, if they still have any, are
/// variables of their functions.
pub(crate) fn emit(kernels: &[Kernel], target: &Target, limit: u32) -> Result<Module, KernelError> {
    let entries: Vec<Entry> = kernels.iter().map(Entry::of).collect();
    let mut features = BTreeSet::new();
    for k in kernels {
        features.extend(target.check(k)?);
    }
    let counted = write(kernels, Mode::Count, &features).0.ids;
    if counted > u64::from(limit) {
        let own = write(kernels, Mode::Tally, &features).1;
        // The error names the kernel that takes most, and what takes most in all of them.
        let worst = kernels.iter().zip(&own).max_by_key(|(_, own)| own.tally.values().sum::<u64>());
        let mut largest = Vec::new();
        for (k, own) in kernels.iter().zip(&own) {
            let of = if kernels.len() == 1 { String::new() } else { format!(" of '{}'", k.name) };
            largest.extend(own.tally.iter().map(|(what, &n)| (format!("{what}{of}"), n)));
        }
        return Err(too_many(worst.map(|(k, _)| k), "emission of SPIR-V", counted, limit, largest));
    }
    let (w, own) = write(kernels, Mode::Write, &features);
    let module = assemble(w, &own, entries, features, target);
    match check(&module.words) {
        Ok(()) => Ok(module),
        Err(problem) => Err(KernelError::Words { kernel: module.entries[0].name.clone(), problem }),
    }
}

/// Goes through all kernels. Beside the words is what belongs to each kernel.
fn write(kernels: &[Kernel], mode: Mode, features: &BTreeSet<Feature>) -> (Words, Vec<Own>) {
    let mut w = Words::new(mode);
    w.vulkan_model = features.contains(&Feature::MemoryModel);
    let mut own = Vec::new();
    for k in kernels {
        w = Emit::run(k, w);
        own.push(std::mem::take(&mut w.own));
    }
    (w, own)
}

/// The parts in the order of the specification.
fn assemble(w: Words, own: &[Own], entries: Vec<Entry>, mut features: BTreeSet<Feature>, target: &Target) -> Module {
    // What is optional is asked for where the floats are computed with.
    let modes = [(Feature::SignedZerosF16, Scalar::F16), (Feature::SignedZerosF32, Scalar::F32)];
    let signed = |own: &Own| -> Vec<u32> {
        let used = modes.iter().zip(own.floats).filter(|&(m, used)| used && target.has(m.0));
        used.map(|(m, _)| m.1.bits()).collect()
    };
    let exact = own.iter().any(|own| !signed(own).is_empty());
    if exact {
        features.insert(Feature::SignedZerosF32);
    }
    // The others of subgroups imply it.
    if features.iter().any(|f| (Feature::SubgroupVote..=Feature::SubgroupShuffle).contains(f)) {
        features.remove(&Feature::Subgroup);
    }
    let mut words = vec![spirv::MAGIC_NUMBER, 0x0001_0300, 0, w.ids as u32, 0];
    let capabilities: BTreeSet<u32> = features.iter().map(|f| f.capability() as u32).collect();
    for c in std::iter::once(spirv::Capability::Shader as u32).chain(capabilities) {
        instruction(&mut words, spirv::Op::Capability, &[&[c]]);
    }
    for extension in features.iter().filter_map(|f| f.extension()) {
        instruction(&mut words, spirv::Op::Extension, &[&text(extension)]);
    }
    if let Some(id) = w.glsl {
        instruction(&mut words, spirv::Op::ExtInstImport, &[&[id], &text("GLSL.std.450")]);
    }
    let model = if w.vulkan_model { spirv::MemoryModel::Vulkan } else { spirv::MemoryModel::GLSL450 };
    instruction(&mut words, spirv::Op::MemoryModel, &[&[spirv::AddressingModel::Logical as u32, model as u32]]);
    for (own, entry) in own.iter().zip(&entries) {
        let head = [spirv::ExecutionModel::GLCompute as u32, own.main];
        instruction(&mut words, spirv::Op::EntryPoint, &[&head, &text(&entry.name), &own.interface]);
    }
    for (own, entry) in own.iter().zip(&entries) {
        let [x, y, z] = entry.workgroup;
        let mode = spirv::ExecutionMode::LocalSize as u32;
        instruction(&mut words, spirv::Op::ExecutionMode, &[&[own.main, mode, x, y, z]]);
        for bits in signed(own) {
            let mode = spirv::ExecutionMode::SignedZeroInfNanPreserve as u32;
            instruction(&mut words, spirv::Op::ExecutionMode, &[&[own.main, mode, bits]]);
        }
    }
    let bound = w.ids as u32;
    words.extend(w.parts.decorations);
    words.extend(w.parts.globals);
    words.extend(w.parts.functions);
    Module { words, bound, entries }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::optimise;
    use crate::{Builder, Target};

    fn some(name: &str) -> Kernel {
        let kernel = Builder::kernel(name, [1, 1, 1], |k| {
            let y = k.buffer_mut::<f32>("y");
            let i = k.global_id(0);
            k.for_(0u32, i, |_, j| k.if_(j.gt(3), || y.store(j, y.load(i) + 1.0f32)));
        });
        optimise(&kernel.unwrap()).unwrap()
    }

    #[test]
    fn the_count_is_the_bound_and_one_id_less_is_refused() {
        for kernels in [vec![some("k")], vec![some("a"), some("b"), some("c")]] {
            let module = emit(&kernels, &Target::ANY, ID_LIMIT).unwrap();
            assert_eq!(emit(&kernels, &Target::ANY, module.bound).unwrap(), module);
            match emit(&kernels, &Target::ANY, module.bound - 1) {
                Err(KernelError::TooManyIds { count, limit, largest, .. }) => {
                    assert_eq!((count, limit), (u64::from(module.bound), module.bound - 1));
                    assert!(!largest.0.is_empty());
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn kernels_share_types_and_constants() {
        let bound = |kernels: &[Kernel]| emit(kernels, &Target::ANY, ID_LIMIT).unwrap().bound;
        let (one, two) = (bound(&[some("a")]), bound(&[some("a"), some("b")]));
        // The second has its function, its buffer and what it computes; not its types, constants and inputs.
        assert!(two < 2 * one - 10, "{one} ids for one, {two} for two");
    }

    #[test]
    fn what_is_refused_early_would_be_refused_late() {
        let kernel = Builder::kernel("k", [1, 1, 1], |k| {
            let (y, z) = (k.buffer_mut::<u32>("y"), k.buffer_mut::<u32>("z"));
            for i in 0..40 {
                y.store(i % 20, i);
                z.store(i / 2, k.local_index());
            }
        })
        .unwrap();
        let refused = |limit| match refuse_early(std::slice::from_ref(&kernel), true, limit) {
            Ok(()) => None,
            Err(KernelError::TooManyIds { count, .. }) => Some(count),
            Err(other) => panic!("{other}"),
        };
        // Two buffers with 20 places each, and 40 constants.
        assert_eq!(refused(80), Some(81));
        assert_eq!(refused(81), None);
        let bound = emit(&[optimise(&kernel).unwrap()], &Target::ANY, ID_LIMIT).unwrap().bound;
        assert!(bound >= 81, "{bound}");
    }
}
