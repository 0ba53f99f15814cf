//! Memories that nothing uses are taken out. Cost: linear.

use crate::ir::{Assembler, Kernel, MemoryId, OpId, OpKind, RegionId, Ty, Value};

use super::Role;

struct Trim<'a> {
    old: &'a Kernel,
    asm: Assembler,
    map: Vec<Value>,
    targets: Vec<RegionId>,
    memories: Vec<MemoryId>,
}

fn memory(kind: OpKind) -> Option<MemoryId> {
    match kind {
        OpKind::Load(m) | OpKind::Store(m) | OpKind::Atomic(m, _) | OpKind::Len(m) => Some(m),
        _ => None,
    }
}

/// The kernel with the memories that it uses, and the roles of those that are buffers.
pub(super) fn trim(k: &Kernel, roles: &[Option<Role>]) -> (Kernel, Vec<Role>) {
    let mut used = vec![false; k.memories().len()];
    let mut open = vec![k.body()];
    while let Some(r) = open.pop() {
        for &op in k.region_ops(r) {
            open.extend_from_slice(k.regions(op));
            if let Some(m) = memory(k.kind(op)) {
                used[m.index()] = true;
            }
        }
    }
    let mut header = k.header();
    header.memories.clear();
    let mut kept = Vec::new();
    let mut memories = Vec::new();
    for (i, m) in k.memories().iter().enumerate() {
        memories.push(MemoryId(header.memories.len() as u32));
        if used[i] {
            header.memories.push(m.clone());
            kept.extend(roles[i]);
        }
    }
    let mut t = Trim {
        old: k,
        asm: Assembler::new(header),
        map: vec![Value(u32::MAX); k.value_count()],
        targets: vec![RegionId(u32::MAX); k.region_count()],
        memories,
    };
    t.region(k.body());
    (t.asm.finish(), kept)
}

impl Trim<'_> {
    fn region(&mut self, r: RegionId) {
        let old = self.old;
        old.region_ops(r).iter().for_each(|&op| self.op(op));
    }

    fn op(&mut self, op: OpId) {
        let old = self.old;
        let args: Vec<Value> = old.args(op).iter().map(|v| self.map[v.index()]).collect();
        let mut regions = Vec::new();
        for &r in old.regions(op) {
            let types: Vec<Ty> = old.region_args(r).map(|v| old.ty(v)).collect();
            let new = self.asm.open(&types);
            self.targets[r.index()] = new;
            old.region_args(r).zip(self.asm.kernel.region_args(new)).for_each(|(a, b)| self.map[a.index()] = b);
            self.region(r);
            regions.push(self.asm.close());
        }
        let new = |m: MemoryId| self.memories[m.index()];
        let kind = match old.kind(op) {
            OpKind::Const(c) => OpKind::Const(self.asm.const_number(old.const_bits(c))),
            OpKind::Switch(t) => OpKind::Switch(self.asm.case_table(old.switch_cases(t).to_vec())),
            OpKind::Continue(r) => OpKind::Continue(self.targets[r.index()]),
            OpKind::Break(r) => OpKind::Break(self.targets[r.index()]),
            OpKind::Load(m) => OpKind::Load(new(m)),
            OpKind::Store(m) => OpKind::Store(new(m)),
            OpKind::Atomic(m, f) => OpKind::Atomic(new(m), f),
            OpKind::Len(m) => OpKind::Len(new(m)),
            kind => kind,
        };
        let types: Vec<Ty> = old.results(op).map(|v| old.ty(v)).collect();
        let made = self.asm.push_structure(kind, &args, &types, &regions);
        old.results(op).zip(self.asm.kernel.results(made)).for_each(|(a, b)| self.map[a.index()] = b);
    }
}
