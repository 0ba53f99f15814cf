//! SPIR-V for Vulkan 1.1: version 1.3, the lowest with storage buffers and subgroups, in structured control flow.
//!
//! Ids are numbered while words are written, densely, after they were counted by the same code over the whole module: one over the limit is
//! refused before the first word. Capabilities and extensions are those of what is used. A module has an entry point for each of
//! its kernels, called as the kernel is, also if it is the only one; buffer `i` of a kernel is binding `i` of set 0, scalar parameters
//! are push constants. Kernels with matrices of a subgroup come under the Vulkan memory model, and all others of their module with them.

mod control;
mod foreign;
mod matrix;
mod memory;
mod ops;
mod words;

use std::collections::BTreeSet;

use impasto_kernel::ir::{Kernel, Scalar};
use impasto_kernel::{Contributors, Entry, Feature, KernelError, Target};
use rspirv::spirv;

use crate::check::check;
use crate::target::{capability, extension, known_as};
use control::Emit;
pub(crate) use foreign::{ForeignWriter, SourceIds, opcode};
use words::{KernelIds, Mode, Words, instruction, text};

/// The largest bound on ids that every Vulkan driver must accept.
pub const ID_LIMIT: u32 = 4_194_303;

fn too_many(kernel: Option<&Kernel>, count: u64, limit: u32, mut largest: Vec<(String, u64)>) -> KernelError {
    largest.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    largest.truncate(4);
    let kernel = kernel.map_or(String::new(), |k| k.name.clone());
    KernelError::TooManyIds {
        kernel,
        stage: "emission of SPIR-V",
        format: "SPIR-V",
        count,
        limit,
        largest: Contributors(largest),
    }
}

/// Writes the words of a module. Its kernels are valid, and no loop is left by more than one level; variables, if they still have any, are
/// variables of their functions.
pub(crate) fn emit(kernels: &[Kernel], target: &Target, limit: u32) -> Result<Vec<u32>, KernelError> {
    let entries: Vec<Entry> = kernels.iter().map(Entry::of).collect();
    let mut features = BTreeSet::new();
    for k in kernels {
        features.extend(target.check(k, known_as)?);
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
        return Err(too_many(worst.map(|(k, _)| k), counted, limit, largest));
    }
    let (w, own) = write(kernels, Mode::Write, &features);
    let words = assemble(w, &own, &entries, features, target);
    match check(&words) {
        Ok(()) => Ok(words),
        Err(problem) => Err(KernelError::Words { kernel: entries[0].name.clone(), problem }),
    }
}

/// Goes through all kernels. Beside the words is what belongs to each kernel.
fn write(kernels: &[Kernel], mode: Mode, features: &BTreeSet<Feature>) -> (Words, Vec<KernelIds>) {
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
fn assemble(
    w: Words,
    own: &[KernelIds],
    entries: &[Entry],
    mut features: BTreeSet<Feature>,
    target: &Target,
) -> Vec<u32> {
    // What is optional is asked for where the floats are computed with.
    let modes = [(Feature::SignedZerosF16, Scalar::F16), (Feature::SignedZerosF32, Scalar::F32)];
    let signed = |own: &KernelIds| -> Vec<u32> {
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
    let capabilities: BTreeSet<u32> = features.iter().map(|&f| capability(f) as u32).collect();
    for c in std::iter::once(spirv::Capability::Shader as u32).chain(capabilities) {
        instruction(&mut words, spirv::Op::Capability, &[&[c]]);
    }
    for extension in features.iter().filter_map(|&f| extension(f)) {
        instruction(&mut words, spirv::Op::Extension, &[&text(extension)]);
    }
    if let Some(id) = w.glsl {
        instruction(&mut words, spirv::Op::ExtInstImport, &[&[id], &text("GLSL.std.450")]);
    }
    let model = if w.vulkan_model { spirv::MemoryModel::Vulkan } else { spirv::MemoryModel::GLSL450 };
    instruction(&mut words, spirv::Op::MemoryModel, &[&[spirv::AddressingModel::Logical as u32, model as u32]]);
    for (own, entry) in own.iter().zip(entries) {
        let head = [spirv::ExecutionModel::GLCompute as u32, own.main];
        instruction(&mut words, spirv::Op::EntryPoint, &[&head, &text(&entry.name), &own.interface]);
    }
    for (own, entry) in own.iter().zip(entries) {
        let [x, y, z] = entry.workgroup;
        let mode = spirv::ExecutionMode::LocalSize as u32;
        instruction(&mut words, spirv::Op::ExecutionMode, &[&[own.main, mode, x, y, z]]);
        for bits in signed(own) {
            let mode = spirv::ExecutionMode::SignedZeroInfNanPreserve as u32;
            instruction(&mut words, spirv::Op::ExecutionMode, &[&[own.main, mode, bits]]);
        }
    }
    words.extend(w.parts.decorations);
    words.extend(w.parts.globals);
    words.extend(w.parts.functions);
    words
}

#[cfg(test)]
mod tests {
    use impasto_kernel::{Builder, optimise};

    use super::*;

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
            let words = emit(&kernels, &Target::ANY, ID_LIMIT).unwrap();
            let bound = words[3];
            assert_eq!(emit(&kernels, &Target::ANY, bound).unwrap(), words);
            match emit(&kernels, &Target::ANY, bound - 1) {
                Err(KernelError::TooManyIds { count, limit, largest, .. }) => {
                    assert_eq!((count, limit), (u64::from(bound), bound - 1));
                    assert!(!largest.0.is_empty());
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Writes to so many places in each of seven buffers: seven ids for each.
    fn places(name: &str, n: u32) -> Kernel {
        let made = Builder::kernel(name, [1, 1, 1], |k| {
            let y = ["a", "b", "c", "d", "e", "f", "g"].map(|y| k.buffer_mut::<u32>(y));
            let i = k.global_id(0);
            for at in 0..n {
                let at = k.lit(at);
                y.iter().for_each(|y| y.store(at, i));
            }
        });
        made.unwrap()
    }

    #[test]
    fn a_refusal_names_the_kernel_that_takes_most() {
        let (small, enormous) = (places("small", 3), places("enormous", 530));
        let two = vec![places("large", 250), small.clone(), places("larger", 310)];
        for (kernels, store) in [
            (vec![enormous.clone()], "store"),
            (vec![small, enormous], "store of 'enormous'"),
            // Neither is too large alone.
            (two, "store of 'larger'"),
        ] {
            let error = emit(&kernels, &Target::ANY, 4000).unwrap_err();
            let text = "ids, and the limit of SPIR-V is 4000; nothing was written. Most ids are taken by store";
            assert!(error.to_string().contains(text), "{error}");
            match &error {
                KernelError::TooManyIds { kernel, count, largest, .. } => {
                    assert!(store.contains(kernel) || kernels.len() == 1, "{error}");
                    assert!(*count > 4000 && largest.0[0].0 == store, "{error}");
                }
                other => panic!("{other}"),
            }
        }
    }

    #[test]
    fn kernels_share_types_and_constants() {
        let bound = |kernels: &[Kernel]| emit(kernels, &Target::ANY, ID_LIMIT).unwrap()[3];
        let (one, two) = (bound(&[some("a")]), bound(&[some("a"), some("b")]));
        // The second has its function, its buffer and what it computes; not its types, constants and inputs.
        assert!(two < 2 * one - 10, "{one} ids for one, {two} for two");
    }
}
