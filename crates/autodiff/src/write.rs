//! Types that derivatives are made of, and what stands for the values of a kernel that another one is written from.

use impasto_kernel::ir::{Kernel, OpId, RegionId, Scalar, Ty, Value};

pub(crate) const U32: Ty = Ty::scalar(Scalar::U32);
pub(crate) const BOOL: Ty = Ty::scalar(Scalar::Bool);
pub(crate) const F32: Ty = Ty::scalar(Scalar::F32);

/// A kernel that another one is written from: what stands there for its values and its loops.
pub(crate) struct CopyMap<'a> {
    pub(crate) old: &'a Kernel,
    pub(crate) map: Vec<Value>,
    pub(crate) targets: Vec<RegionId>,
}

impl<'a> CopyMap<'a> {
    /// Each value is this one at first.
    pub(crate) fn new(old: &'a Kernel, first: Value) -> CopyMap<'a> {
        let targets = vec![RegionId(u32::MAX); old.region_count()];
        CopyMap { old, map: vec![first; old.value_count()], targets }
    }

    /// What stands for the operands of an op.
    pub(crate) fn args(&self, op: OpId) -> Vec<Value> {
        self.old.args(op).iter().map(|v| self.map[v.index()]).collect()
    }

    pub(crate) fn types(&self, values: impl Iterator<Item = Value>) -> Vec<Ty> {
        values.map(|v| self.old.ty(v)).collect()
    }

    /// Says what stands for values.
    pub(crate) fn bind(&mut self, old: impl Iterator<Item = Value>, new: impl Iterator<Item = Value>) {
        old.zip(new).for_each(|(a, b)| self.map[a.index()] = b);
    }
}
