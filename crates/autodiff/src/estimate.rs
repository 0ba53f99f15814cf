//! A bound on the size of an adjoint, before any of it is written: what no module could hold is refused at once and not after minutes of work.

use impasto_kernel::KernelError;
use impasto_kernel::hash::Map;
use impasto_kernel::ir::{BinaryOp, Kernel, OpId, OpKind, RegionId, Space, Value};

use crate::activity::{Activity, Places};
use crate::normal;
use crate::plan::Plan;

/// Ops that an adjoint may have: each takes an id, and a SPIR-V module has no more.
pub const MAX_ADJOINT_OPS: u64 = 4_194_303;

/// Ops of an adjoint for one of its kernel, at most: smaller kernels need no early look.
const SMALL: u64 = 16;

/// Refuses a kernel whose adjoint would have more ops than this.
pub(super) fn check(
    k: &Kernel,
    places: &Places,
    activity: &Activity,
    plan: &Plan,
    limit: u64,
) -> Result<(), KernelError> {
    refuse(k, adjoint_ops(k, places, activity, plan, &|_| true), limit)
}

fn refuse(k: &Kernel, count: u64, limit: u64) -> Result<(), KernelError> {
    match count > limit {
        true => Err(KernelError::TooManyOps { kernel: format!("{}_grad", k.name), count, limit }),
        false => Ok(()),
    }
}

/// Refuses such a kernel before it is prepared, which takes seconds where there are a million ops. `ssa` is the kernel in SSA form; where it has
/// arrays or structs, its ops do not tell how many there will be.
pub(super) fn check_early(ssa: &Kernel, wrt: &dyn Fn(&str) -> bool, limit: u64) -> Result<(), KernelError> {
    let composite = ssa.shape_count() > 0 || ssa.memories().iter().any(|m| matches!(m.space, Space::Private(_)));
    if composite || (ssa.op_count() as u64) < limit / SMALL {
        return Ok(());
    }
    let Ok(normal) = normal::normal(ssa) else { return Ok(()) };
    let k = &normal.kernel;
    let places = Places::new(k);
    let activity = Activity::new(k, &places, wrt);
    let plan = Plan::new(&normal, &places, &activity);
    let distinct = distinct(k, &places);
    let count = adjoint_ops(k, &places, &activity, &plan, &|op| distinct[op.index()]);
    // Cleaning may find a little more; what is that close to the limit is prepared and counted again.
    refuse(k, count - count / 32, limit)
}

/// Which ops stay when equal ones are computed once and those that compute nothing are left out, as cleaning does it.
fn distinct(k: &Kernel, places: &Places) -> Vec<bool> {
    let mut stays = vec![false; k.op_count()];
    let mut same: Vec<Value> = (0..k.value_count()).map(|v| Value(v as u32)).collect();
    let mut constant: Vec<Option<u64>> = vec![None; k.value_count()];
    let mut known: Map<(OpKind, [Value; 3]), Value> = Map::default();
    for &op in &places.ops {
        let args = k.args(op);
        let pure = matches!(
            k.kind(op),
            OpKind::Const(_)
                | OpKind::Unary(_)
                | OpKind::Binary(_)
                | OpKind::Compare(_)
                | OpKind::Fma
                | OpKind::Load(_)
        );
        if !pure {
            stays[op.index()] = true;
            continue;
        }
        let mut key = [Value(u32::MAX); 3];
        key.iter_mut().zip(args).for_each(|(to, v)| *to = same[v.index()]);
        let result = k.result(op);
        let first = *known.entry((k.kind(op), key)).or_insert(result);
        same[result.index()] = first;
        if let OpKind::Const(c) = k.kind(op) {
            constant[result.index()] = Some(k.const_bits(c));
        }
        let one = u64::from(1f32.to_bits());
        let folds = |v: &Value| constant[v.index()].is_some_and(|bits| bits == 0 || bits == one || args.len() == 1);
        let loads = matches!(k.kind(op), OpKind::Load(_));
        stays[op.index()] = first == result && (loads || !args.iter().any(folds));
    }
    stays
}

/// About how many ops the adjoint has, rather fewer: values that are needed, again in each run of a loop with a tape; an op for each partial
/// derivative that is no 1; one for each sum of adjoints. Memory, tapes and loops come on top.
fn adjoint_ops(k: &Kernel, places: &Places, activity: &Activity, plan: &Plan, counts: &dyn Fn(OpId) -> bool) -> u64 {
    let mut uses = vec![0u32; k.value_count()];
    let mut partials = 0;
    for (op, from) in activity.active_edges().filter(|e| counts(e.0)) {
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
    for &op in places.ops.iter().filter(|&&op| counts(op)) {
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
            let (estimate, real) = (
                adjoint_ops(k, &places, &activity, &plan, &|_| true),
                chain(n).grad().unwrap().kernel.op_count() as u64,
            );
            assert!(estimate <= real && 2 * estimate >= real, "{n}: {estimate} of {real}");
            assert!(check(k, &places, &activity, &plan, estimate).is_ok());
            let refused = check(k, &places, &activity, &plan, estimate - 1).unwrap_err();
            assert!(matches!(&refused, KernelError::TooManyOps { kernel, .. } if kernel == "chain_grad"), "{refused}");
        }
    }

    #[test]
    fn a_kernel_that_is_too_large_is_refused_before_it_is_prepared() {
        let before = crate::PREPARED.get();
        let refused = crate::gradient_below(&chain(200), &|_| true, 1000).unwrap_err();
        assert!(matches!(&refused, KernelError::TooManyOps { limit: 1000, .. }), "{refused}");
        assert_eq!(crate::PREPARED.get(), before, "it was prepared");
        crate::gradient_below(&chain(200), &|_| true, MAX_ADJOINT_OPS).unwrap();
        assert_eq!(crate::PREPARED.get(), before + 1);
        // The early look is close, and never larger than what the kernel turns out to need.
        for n in [40, 200] {
            let written = chain(n);
            let (flat, _) = crate::prepared(&written, true).unwrap();
            let normal = normal::normal(&flat).unwrap();
            let places = Places::new(&normal.kernel);
            let activity = Activity::new(&normal.kernel, &places, &|_| true);
            let plan = Plan::new(&normal, &places, &activity);
            let estimate = adjoint_ops(&normal.kernel, &places, &activity, &plan, &|_| true);
            let ssa = impasto_kernel::passes::values(&written).unwrap();
            assert!(check_early(&ssa, &|_| true, estimate).is_ok());
            assert!(check_early(&ssa, &|_| true, estimate * 9 / 10).is_err());
        }
    }
}
