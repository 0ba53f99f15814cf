//! Loop-invariant code motion: a pure op whose operands come from outside of the loop is written before it. Constants go to the front of
//! the kernel. Every pure op is total, so computing one that would not have run is safe. Cost: linear.

use super::rewrite::{Rewrite, Rule};
use crate::ir::{Effect, Kernel, OpId, OpKind, RegionId};

struct Licm {
    /// The open region that each new value stands in, and which of the open regions are bodies of loops.
    levels: Vec<u32>,
    loops: Vec<bool>,
    /// Whether an op that is no constant was hoisted.
    hoisted: bool,
}

pub(super) fn run(k: &Kernel) -> Option<Kernel> {
    let mut licm = Licm { levels: Vec::new(), loops: vec![false], hoisted: false };
    let mut made = Rewrite::run(k, &mut licm);
    // A loop may have no iterations.
    made.speculated |= licm.hoisted;
    Some(made)
}

impl Licm {
    /// New values, since the last call, stand at this level.
    fn note(&mut self, rw: &Rewrite<'_>, level: usize) {
        self.levels.resize(rw.asm.kernel.value_count(), level as u32);
    }
}

impl Rule for Licm {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let old = rw.old;
        let here = rw.asm.depth() - 1;
        if old.kind(op).effect() != Effect::Pure {
            rw.copy(self, op);
            return self.note(rw, here);
        }
        let inputs = old.args(op).iter().map(|&v| self.levels[rw.get(v).index()] as usize).max().unwrap_or(0);
        let mut level = here;
        while level > inputs && self.loops[level] {
            level -= 1;
        }
        if let OpKind::Const(_) | OpKind::ForeignConst(_) | OpKind::Undef = old.kind(op) {
            level = 0;
        } else {
            self.hoisted |= level < here;
        }
        rw.copy_to(level, op);
        self.note(rw, level);
    }

    fn enter(&mut self, rw: &mut Rewrite<'_>, op: OpId, _: RegionId) {
        self.loops.push(matches!(rw.old.kind(op), OpKind::Loop | OpKind::For(_)));
        self.note(rw, rw.asm.depth() - 1);
    }

    fn leave(&mut self, _: &mut Rewrite<'_>) {
        self.loops.pop();
    }
}
