//! A bound on the size of an adjoint, before any of it is written: what no module could hold is refused at once and not after minutes of work.

use impasto_kernel::KernelError;
use impasto_kernel::ir::{BinaryOp, Kernel, OpKind, RegionId};

use crate::activity::{Activity, Places};
use crate::plan::Plan;

/// Ops that an adjoint may have: each takes an id, and a SPIR-V module has no more.
pub const MAX_ADJOINT_OPS: u64 = 4_194_303;

/// Refuses a kernel whose adjoint would have more ops than this.
pub(super) fn check(
    k: &Kernel,
    places: &Places,
    activity: &Activity,
    plan: &Plan,
    limit: u64,
) -> Result<(), KernelError> {
    let count = adjoint_ops(k, places, activity, plan);
    match count > limit {
        true => Err(KernelError::TooManyOps { kernel: format!("{}_grad", k.name), count, limit }),
        false => Ok(()),
    }
}

/// About how many ops the adjoint has, rather fewer: values that are needed, again in each run of a loop with a tape; an op for each partial
/// derivative that is no 1; one for each sum of adjoints. Memory, tapes and loops come on top.
fn adjoint_ops(k: &Kernel, places: &Places, activity: &Activity, plan: &Plan) -> u64 {
    let mut uses = vec![0u32; k.value_count()];
    let mut partials = 0;
    for (op, from) in activity.active_edges() {
        if let Some(v) = from {
            uses[v.index()] += 1;
        }
        partials += u64::from(match k.kind(op) {
            OpKind::Unary(_) | OpKind::Fma => true,
            OpKind::Binary(f) => f != BinaryOp::Add,
            _ => false,
        });
    }
    let sums: u64 = uses.iter().map(|&n| u64::from(n.saturating_sub(1))).sum();
    // Regions are counted once each: how often their ops run for the tape.
    let mut runs: Vec<Option<u64>> = vec![None; k.region_count()];
    let mut primal = 0;
    for &op in &places.ops {
        let home = places.home[op.index()];
        let needed = k.results(op).any(|v| plan.first[v.index()]);
        if needed {
            primal += *runs[home.index()].get_or_insert_with(|| {
                let taped = |r: RegionId| {
                    places.owner[r.index()].and_then(|o| plan.loops.get(&o)).is_some_and(|l| l.words != [0, 0])
                };
                1 + places.around(home).filter(|&r| taped(r)).count() as u64
            });
        }
    }
    primal + partials + sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Differentiate;
    use crate::normal;
    use impasto_kernel::Builder;

    /// A chain of products and sums in a loop.
    fn chain(n: u32) -> Kernel {
        let kernel = Builder::kernel("chain", [1, 1, 1], |k| {
            let (x, y, sum) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"), k.var(1f32));
            k.for_(0u32, 50u32, |_, i| {
                for j in 0..n {
                    sum.set((sum.get() * x.load(j) + x.load(i)).sin());
                }
            });
            y.store(0, sum.get());
        });
        kernel.unwrap()
    }

    #[test]
    fn an_adjoint_is_estimated_to_be_no_larger_than_it_is_and_refused_above_the_limit() {
        for n in [40, 200] {
            let (flat, _) = crate::prepared(&chain(n), true).unwrap();
            let normal = normal::normal(&flat).unwrap();
            let k = &normal.kernel;
            let places = Places::new(k);
            let activity = Activity::new(k, &places, &|_| true);
            let plan = Plan::new(&normal, &places, &activity);
            let (estimate, real) =
                (adjoint_ops(k, &places, &activity, &plan), chain(n).grad().unwrap().kernel.op_count() as u64);
            assert!(estimate <= real && 2 * estimate >= real, "{n}: {estimate} of {real}");
            assert!(check(k, &places, &activity, &plan, estimate).is_ok());
            let refused = check(k, &places, &activity, &plan, estimate - 1).unwrap_err();
            assert!(matches!(&refused, KernelError::TooManyOps { kernel, .. } if kernel == "chain_grad"), "{refused}");
        }
    }
}
