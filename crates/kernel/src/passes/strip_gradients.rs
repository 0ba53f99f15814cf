//! Removes custom derivatives: `custom v, x, dx` becomes `v`, and dead code elimination takes out what computed `dx`. Modules compute values only, and
//! differentiation looks at a kernel before this. Cost: linear.

use super::rewrite::{Rewrite, Rule};
use crate::ir::{Kernel, OpId, OpKind};

struct Values;

impl Rule for Values {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        if rw.old.kind(op) != OpKind::Custom {
            return rw.copy(self, op);
        }
        let value = rw.get(rw.old.args(op)[0]);
        rw.replace(op, value);
    }
}

pub(super) fn run(k: &Kernel) -> Option<Kernel> {
    k.kinds().any(|kind| kind == OpKind::Custom).then(|| Rewrite::run(k, &mut Values))
}
