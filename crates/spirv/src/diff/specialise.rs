//! Specialisation constants: what a host says before it launches a module. Where nobody says anything, many modules make no sense, such as those
//! whose workgroup has the size of a constant, so that a comparison chooses them as it chooses other inputs.

use std::collections::{BTreeMap, BTreeSet};

use rspirv::spirv::{Decoration, Op as S};

use crate::import::{ImportError, Source, size_constants};

/// Invocations of a workgroup whose size its host chooses.
const COMMON_SIZE: u32 = 64;

/// Values of specialisation constants by their `constant_id`; all others are what the module says.
pub(super) type Specialisation = BTreeMap<u32, u32>;

/// A specialisation constant: an integer of 32 bits or a bool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SpecConstant {
    pub(super) id: u32,
    /// What the module says. If that is several things, it counts on its host.
    pub(super) values: BTreeSet<u32>,
    pub(super) is_bool: bool,
    /// Whether a side of the workgroup is as long as it says.
    pub(super) is_size: bool,
}

impl SpecConstant {
    /// Whether the module counts on its host to say something: it says several things itself, or that a workgroup is one invocation.
    pub(super) fn is_open(&self) -> bool {
        self.values.len() > 1 || self.is_size && self.values.contains(&1)
    }

    /// What is tried after others.
    pub(super) fn candidates(&self) -> Vec<u32> {
        let first = self.first();
        match (self.is_bool, self.is_size) {
            (true, _) => vec![0, 1],
            (_, true) => vec![first, 32, 64, 128, 256],
            _ => vec![first, first.saturating_mul(2), first / 2, 0, 1, 2, 3, 4, 8],
        }
    }

    /// What is tried first.
    pub(super) fn first(&self) -> u32 {
        let largest = self.values.last().copied().unwrap_or(0);
        if self.is_size && largest == 1 { COMMON_SIZE } else { largest }
    }
}

/// The constants of a module, by their place: the word, the `constant_id`, the value, and whether it is a bool.
fn places(s: &Source) -> impl Iterator<Item = (u32, u32, u32, bool)> {
    s.preamble.iter().filter_map(|&at| {
        let w = s.operands(at);
        let id = || s.decoration(*w.get(1)?, Decoration::SpecId);
        match (s.op(at), w) {
            (S::SpecConstantTrue, _) => Some((at, id()?, 1, true)),
            (S::SpecConstantFalse, _) => Some((at, id()?, 0, true)),
            (S::SpecConstant, &[ty, _, n]) if matches!(s.made(ty), Some((S::TypeInt, &[_, 32, _]))) => {
                Some((at, id()?, n, false))
            }
            _ => None,
        }
    })
}

/// The specialisation constants of a module.
pub(super) fn spec_constants(words: &[u32]) -> Result<Vec<SpecConstant>, ImportError> {
    let mut found: BTreeMap<u32, SpecConstant> = BTreeMap::new();
    let s = Source::read(words)?;
    let sizes = size_constants(&s);
    for (at, id, n, is_bool) in places(&s) {
        let new = SpecConstant { id, values: BTreeSet::new(), is_bool, is_size: false };
        let known = found.entry(id).or_insert(new);
        known.values.insert(n);
        known.is_size |= sizes.contains(&s.operands(at)[1]);
    }
    Ok(found.into_values().collect())
}

/// The module as a host specialises it.
pub(super) fn specialised(words: &[u32], values: &Specialisation) -> Result<Vec<u32>, ImportError> {
    let s = Source::read(words)?;
    let mut made = s.words.clone();
    for (at, id, _, is_bool) in places(&s) {
        let at = at as usize;
        match values.get(&id) {
            Some(&n) if is_bool => {
                let op = if n != 0 { S::SpecConstantTrue } else { S::SpecConstantFalse };
                made[at] = made[at] & !0xFFFF | op as u32;
            }
            Some(&n) => made[at + 3] = n,
            None => {}
        }
    }
    made[3] = s.bound;
    Ok(made)
}
