//! Kernels that need too many ids are refused before time is spent on them: a look at a kernel as it was written counts what no pass takes out.
//!
//! What others see stays where it is surely reached, and so does what it is made of ([`look`] finds it). Of that, an op counts if no pass can
//! make a constant or another value of it ([`values`]): loads, arithmetic on such values, what branches and loops bring together. Equal ones
//! count once, and so do places in memory and constants. What is unsure does not count, so the number is at most what emission would take.
//! Cost: linear, times the depth of loops; kernels that cannot be too large are not looked at.

mod class;
mod look;
mod loops;
mod needs;
mod values;

use std::collections::BTreeMap;

use super::too_many;
use crate::error::KernelError;
use crate::ir::{Kernel, OpKind};
use class::Hashes;
use look::{Look, MOST_DEPTH};
use needs::Count;

/// Refuses kernels that need more ids than this, if that can be seen at once. `values`: variables will be values, with joins where they meet.
pub(crate) fn refuse_early(kernels: &[Kernel], values: bool, limit: u32) -> Result<(), KernelError> {
    let ops: usize = kernels.iter().map(|k| k.op_count() + 1).sum();
    let most = |depth: usize| 2 * ops * (1 + depth) <= limit as usize;
    if most(MOST_DEPTH) || most(kernels.iter().map(depth).max().unwrap_or(0)) {
        return Ok(());
    }
    let (counts, tallies) = counted(kernels, values);
    let count = counts.iter().sum::<u64>() + 1;
    if count <= u64::from(limit) {
        return Ok(());
    }
    let worst = kernels.iter().zip(&counts).max_by_key(|(_, n)| **n).map(|(k, _)| k);
    Err(too_many(worst, "any translation to SPIR-V", count, limit, tallies.into_iter().collect()))
}

/// How deep regions nest. A value is joined at most once, and carried once, at each level.
fn depth(k: &Kernel) -> usize {
    let mut deepest = 0;
    let mut open = vec![(k.body(), 0)];
    while let Some((r, depth)) = open.pop() {
        deepest = deepest.max(depth);
        for &op in k.region_ops(r) {
            open.extend(k.regions(op).iter().map(|&inner| (inner, depth + 1)));
        }
    }
    deepest
}

/// Ids that a module of these kernels surely needs, however it is optimised. It may need more.
///
/// ```
/// use impasto_kernel::{Builder, compile, least_ids};
/// let kernel = Builder::kernel("chain", [1, 1, 1], |k| {
///     let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
///     let (a, first) = (x.load(0), x.load(1));
///     y.store(0, (0..100).fold(first, |v, _| v * a + 1.5f32));
/// })?;
/// let least = least_ids(&[kernel.clone()]);
/// assert!(least > 200 && least <= compile(&kernel)?.bound.into());
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
pub fn least_ids(kernels: &[Kernel]) -> u64 {
    counted(kernels, true).0.iter().sum::<u64>() + 1
}

/// The ids of each kernel, and what takes them.
fn counted(kernels: &[Kernel], values: bool) -> (Vec<u64>, BTreeMap<String, u64>) {
    let ops: usize = kernels.iter().map(Kernel::op_count).sum();
    let (mut table, mut counts, mut tallies) = (Hashes::of(2 * ops), Vec::new(), BTreeMap::new());
    for (number, k) in kernels.iter().enumerate() {
        let of = if kernels.len() == 1 { String::new() } else { format!(" of '{}'", k.name) };
        let found = of_one(k, &mut table, number as u64, values);
        counts.push(found.values().sum::<u64>());
        for (what, n) in found {
            // Constants are the module's.
            let name = if what == needs::CONSTANTS { what.to_owned() } else { format!("{what}{of}") };
            *tallies.entry(name).or_insert(0u64) += n;
        }
    }
    (counts, tallies)
}

/// The ids of one kernel.
fn of_one(k: &Kernel, table: &mut Hashes, number: u64, values: bool) -> BTreeMap<&'static str, u64> {
    let loops = k.kinds().any(|kind| matches!(kind, OpKind::For(_)));
    // First as if loops with constant ends were not unrolled. They are not, if enough is found in them.
    let found = loops.then(|| Count::of(&Look::at(k, true), table, 2 * number + 1, values)).flatten();
    found.unwrap_or_else(|| Count::of(&Look::at(k, false), table, 2 * number + 2, values).unwrap_or_default())
}
