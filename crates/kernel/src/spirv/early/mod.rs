//! Kernels that need too many ids are refused before time is spent on them: a look at a kernel as it was written counts what no pass takes out.
//!
//! What others see stays where it is surely reached, and so does what it is made of ([`look`] finds it). Of that, an op counts if no pass can
//! make a constant or another value of it ([`values`]): loads, arithmetic on such values, what branches and loops bring together. Equal ones
//! count once, and so do places in memory and constants. What is unsure does not count, so the number is at most what emission would take.
//! Cost: linear, times the depth of loops; kernels that cannot be too large are not looked at.

mod class;
mod decided;
mod look;
mod loops;
mod members;
mod needs;
mod stays;
mod tally;
mod values;

use std::collections::BTreeMap;

use super::too_many;
use crate::error::KernelError;
use crate::ir::Kernel;
use look::{Look, MOST_DEPTH};
use needs::Needs;
use tally::Tally;

/// The stage that a refusal names. It counts what is needed at least, and no further than it must.
pub(crate) const EARLY: &str = "any translation to SPIR-V";

/// Ops of the outermost region that are looked at before it is asked whether they are too many already.
const PART: usize = 1 << 19;

/// Refuses kernels that need more ids than this, if that can be seen at once. `values`: variables will be values, with joins where they meet.
pub(crate) fn refuse_early(kernels: &[Kernel], values: bool, limit: u32) -> Result<(), KernelError> {
    let ops: usize = kernels.iter().map(|k| k.op_count() + 1).sum();
    let most = |depth: usize| 2 * ops * (1 + depth) <= limit as usize;
    if most(MOST_DEPTH) || most(0) && most(kernels.iter().map(depth).max().unwrap_or(0)) {
        return Ok(());
    }
    let found = counted(kernels, values, limit.into());
    let count = found.sum();
    if count <= u64::from(limit) {
        return Ok(());
    }
    let worst = kernels.iter().zip(&found.kernels).max_by_key(|(_, n)| **n).map(|(k, _)| k);
    Err(too_many(worst, EARLY, count, limit, found.tallies))
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
    counted(kernels, true, u64::MAX).sum()
}

/// Ids that are surely needed.
#[derive(Default)]
struct Counted {
    /// Of each kernel.
    kernels: Vec<u64>,
    /// Of constants, which are the module's.
    constants: u64,
    /// What takes them.
    tallies: Vec<(String, u64)>,
}

impl Counted {
    /// The bound of the module: one more than there are.
    fn sum(&self) -> u64 {
        self.kernels.iter().sum::<u64>() + self.constants + 1
    }
}

/// Counts until there are more than the limit: then it is no use to go on.
fn counted(kernels: &[Kernel], values: bool, limit: u64) -> Counted {
    let (mut counted, mut constants) = (Counted::default(), Tally::new());
    for k in kernels {
        let of = if kernels.len() == 1 { String::new() } else { format!(" of '{}'", k.name) };
        let (found, own) = of_one(k, values, limit.saturating_sub(counted.sum()));
        counted.kernels.push(found.values().sum::<u64>());
        counted.tallies.extend(found.into_iter().map(|(what, n)| (format!("{what}{of}"), n)));
        constants.absorb(own);
        if counted.sum() > limit {
            break;
        }
    }
    counted.constants = constants.counted(1).0.into_values().sum();
    counted.tallies.push((needs::CONSTANTS.to_owned(), counted.constants));
    counted
}

/// The ids of one kernel, and its constants.
fn of_one(k: &Kernel, values: bool, limit: u64) -> (BTreeMap<&'static str, u64>, Tally) {
    // First as if loops with constant ends were not unrolled. They are not, if enough is found in them.
    let found = walked(k, true, values, limit).or_else(|| walked(k, false, values, limit));
    found.unwrap_or_else(|| (BTreeMap::new(), Tally::new()))
}

/// `counted`: also through loops with constant ends; nothing, if one of them may be unrolled.
fn walked(k: &Kernel, counted: bool, values: bool, limit: u64) -> Option<(BTreeMap<&'static str, u64>, Tally)> {
    let mut look = Look::at(k, counted);
    let mut needs = Needs::of(&look, values);
    for part in k.region_ops(k.body()).chunks(PART) {
        look.part(part);
        needs.take(&look);
        if needs.exceeds(limit) {
            break;
        }
    }
    needs.counted(&look)
}
