//! Memories that nothing uses are taken out. Cost: linear.

use impasto_kernel::ir::{Kernel, MemoryId, OpId, OpKind};
use impasto_kernel::passes::rewrite::{Rewrite, Rule};

use super::Purpose;

struct Trim {
    memories: Vec<MemoryId>,
}

/// The kernel with the memories that it uses, and the purposes of those that are buffers.
pub(super) fn trim(k: &Kernel, purposes: &[Option<Purpose>]) -> (Kernel, Vec<Purpose>) {
    let mut used = vec![false; k.memories().len()];
    let mut open = vec![k.body()];
    while let Some(r) = open.pop() {
        for &op in k.region_ops(r) {
            open.extend_from_slice(k.regions(op));
            if let OpKind::Load(m) | OpKind::Store(m) | OpKind::Atomic(m, _) | OpKind::Len(m) = k.kind(op) {
                used[m.index()] = true;
            }
        }
    }
    let mut header = k.header();
    header.memories_mut().clear();
    let (mut kept, mut memories) = (Vec::new(), Vec::new());
    for (i, m) in k.memories().iter().enumerate() {
        memories.push(MemoryId(header.memories().len() as u32));
        if used[i] {
            header.memories_mut().push(m.clone());
            kept.extend(purposes[i]);
        }
    }
    (Rewrite::run_with(k, header, &mut Trim { memories }), kept)
}

impl Rule for Trim {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let new = |m: MemoryId| self.memories[m.index()];
        let kind = match rw.old.kind(op) {
            OpKind::Load(m) => OpKind::Load(new(m)),
            OpKind::Store(m) => OpKind::Store(new(m)),
            OpKind::Atomic(m, f) => OpKind::Atomic(new(m), f),
            OpKind::Len(m) => OpKind::Len(new(m)),
            _ => return rw.copy(self, op),
        };
        let (args, types) = (rw.args(op), rw.result_types(op));
        let made = rw.asm.push(kind, &args, &types);
        rw.results(op, made);
    }
}
