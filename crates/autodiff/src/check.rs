//! What is refused, each with the op and what to do. Cost: linear.

use impasto_kernel::KernelError;
use impasto_kernel::ir::{Access, Atomic, Builtin, Kernel, MemoryId, OpId, OpKind, Scalar, Space, Subgroup, Value};

use super::activity::{Activity, Edge, Places, differentiable, reach};
use super::flatten::MOST_ELEMENTS;
use super::normal::NormalForm;
use super::plan::Plan;
use super::{Refusal, is_f32};

const NOTHING: &str =
    "no buffer that it writes depends, by floats, on a buffer or parameter that it is differentiated by";

/// Whether an error says that no derivative flows.
pub(super) fn says_nothing(e: &KernelError) -> bool {
    matches!(e, KernelError::Gradient { problem, .. } if problem == NOTHING)
}

/// Refuses what would not be right.
pub(super) fn check(normal: &NormalForm, places: &Places, activity: &Activity, plan: &Plan) -> Result<(), Refusal> {
    let k = &normal.kernel;
    if let Some(op) = activity.through_numbers(k, places) {
        return Err((op, THROUGH_NUMBERS.to_owned()));
    }
    if !(0..k.value_count()).any(|v| activity.value(Value(v as u32))) {
        return Err((k.terminator(k.body()).unwrap_or(OpId(0)), NOTHING.to_owned()));
    }
    let divergent = Divergence::new(k, places);
    for &op in &places.ops {
        refuse_op(normal, places, activity, plan, op)?;
        let raced = |m: MemoryId| activity.memory(m) && shared(k, m) && divergent.all_store(k, places, op);
        if let OpKind::Store(m) = k.kind(op)
            && raced(m)
        {
            let name = &k.memory(m).name;
            let problem = format!(
                "all invocations of a workgroup store to the same element of '{name}', a data race: each would take its adjoint. Let one \
                 of them store, as in `if local_index == 0`"
            );
            return Err((op, problem));
        }
    }
    Ok(())
}

pub(super) const THROUGH_NUMBERS: &str = "a float that depends on an input becomes an integer here, and that is written or becomes a float again: \
     no derivative comes through. If none is meant, write `x.stop_gradient()`; if one is, give it with `with_derivatives`";

fn shared(k: &Kernel, m: MemoryId) -> bool {
    matches!(k.memory(m).space, Space::Buffer(Access::ReadWrite) | Space::Workgroup(_))
}

fn refuse_op(normal: &NormalForm, places: &Places, activity: &Activity, plan: &Plan, op: OpId) -> Result<(), Refusal> {
    let k = &normal.kernel;
    let kept = is_kept(normal, places, op);
    let refuse = |problem: String| Err((op, problem));
    let (needed, first) = (|v: Value| plan.needed[v.index()], |v: Value| plan.first[v.index()]);
    let name = |m: MemoryId| &k.memory(m).name;
    match k.kind(op) {
        OpKind::Loop if activity.holds.contains(&op) => refuse(
            "a derivative flows through a loop without a bound, which cannot be taken backwards: state one with `while_bounded`, or \
             with a `for` that breaks"
                .to_owned(),
        ),
        OpKind::Load(m) | OpKind::Store(m) | OpKind::Atomic(m, _) if activity.memory(m) && !is_f32(k.memory(m).ty) => {
            refuse(format!(
                "a derivative flows through '{}', whose floats have 16 bits: invocations would add to its adjoint at once, and there is \
                 no atomic for that. Hold it as f32, or leave it out with `grad_of`",
                name(m)
            ))
        }
        OpKind::Load(m) | OpKind::Store(m) if activity.memory(m) && matches!(k.memory(m).space, Space::Private(_)) => {
            refuse(format!(
                "a derivative flows through the private array '{}', which has more than {MOST_ELEMENTS} elements: make it smaller, or \
                 use a buffer",
                name(m)
            ))
        }
        OpKind::Load(m) if first(k.result(op)) && !plan.repeatable(k, m) => match k.memory(m).space {
            Space::Workgroup(_) | Space::Buffer(Access::Scratch)
                if kept || !needed(k.result(op)) =>
            {
                Ok(())
            }
            Space::Buffer(Access::Scratch) => refuse(format!(
                "its value is needed to go backwards, but '{}', the adjoint of a tape, changes while it is used: a loop with a tape can be \
                 differentiated twice, not three times. Take the third derivative forward, with `jvp`",
                name(m)
            )),
            Space::Buffer(_) => refuse(format!(
                "its value is needed to go backwards, but this launch also writes '{}', so it may be overwritten: write to another buffer, \
                 or split the kernel in two",
                name(m)
            )),
            Space::Workgroup(_) => refuse(format!(
                "its value is needed to go backwards, but it is read from '{}', memory of the workgroup, inside of a loop without a bound, \
                 and may be overwritten: state a bound with `while_bounded`, or read it outside",
                name(m)
            )),
            Space::Private(_) | Space::Registers(_) | Space::Pointed { .. } => refuse(format!(
                "its value is needed to go backwards, and the private array '{}' has more than {MOST_ELEMENTS} elements: make it smaller",
                name(m)
            )),
        },
        OpKind::Atomic(m, f) if k.memory(m).space != Space::Buffer(Access::Tape) => {
            refuse_atomic(normal, places, activity, plan, op, m, f)
        }
        OpKind::Subgroup(Subgroup::ShuffleXor) if activity.value(k.result(op)) => {
            match places.def[k.args(op)[1].index()].map(|d| k.kind(d)) {
                Some(OpKind::Const(_)) => Ok(()),
                _ => refuse("the mask must be a constant, so that it is known which lane takes from which".to_owned()),
            }
        }
        OpKind::AsyncCopy(..) | OpKind::WarpgroupMulAdd(_) => refuse(
            "asynchronous copies and products of warpgroups have no derivative: write the kernel with plain loads, or give it a gradient \
             of its own"
                .to_owned(),
        ),
        OpKind::Param(p) if activity.value(k.result(op)) && k.params()[p as usize].ty != Scalar::F32 => {
            refuse("only parameters of f32 have derivatives".to_owned())
        }
        _ => Ok(()),
    }
}

/// Refuses an atomic that has no derivative, or whose result is needed.
fn refuse_atomic(
    normal: &NormalForm,
    places: &Places,
    activity: &Activity,
    plan: &Plan,
    op: OpId,
    m: MemoryId,
    f: Atomic,
) -> Result<(), Refusal> {
    let k = &normal.kernel;
    let kept = is_kept(normal, places, op);
    let refuse = |problem: String| Err((op, problem));
    let (needed, first) = (|v: Value| plan.needed[v.index()], |v: Value| plan.first[v.index()]);
    let result = k.result(op);
    let zero = |v: Value| match places.def[v.index()].map(|d| k.kind(d)) {
        Some(OpKind::Const(c)) => k.const_bits(c) == 0,
        _ => false,
    };
    if first(result) && f == Atomic::Exchange && is_f32(k.memory(m).ty) {
        // An adjoint that was taken from memory: of the workgroup's it can be taken again, in order.
        return match k.memory(m).space {
            Space::Workgroup(_) if kept || !needed(result) => Ok(()),
            _ => refuse(format!(
                "its value is needed to go backwards, and it is the adjoint of an element of '{}' as it was between two writes of this \
                 launch, which nothing keeps: the kernel that was differentiated before may write an element more than once, or \
                 reads what it writes. Let it write each element once, to a buffer that it does not read",
                k.memory(m).name
            )),
        };
    }
    if first(result) || (activity.value(result) && f == Atomic::Add) {
        return refuse(
            "what an atomic gives back depends on the order of invocations, and here a derivative depends on it"
                .to_owned(),
        );
    }
    let plain = f == Atomic::Add || zero(k.args(op)[1]);
    if activity.memory(m) && !(differentiable(f) && plain) {
        return refuse(format!("{} has no derivative here: use an atomic sum", f.name()));
    }
    Ok(())
}

/// Whether the result of an op can be had again: it stays in sight, or is in the log.
fn is_kept(normal: &NormalForm, places: &Places, op: OpId) -> bool {
    places.home[op.index()] == normal.kernel.body() || normal.logged.contains_key(&op)
}

/// Which values may differ between the invocations of a workgroup.
struct Divergence {
    values: Vec<bool>,
    alone: bool,
}

impl Divergence {
    fn new(k: &Kernel, places: &Places) -> Divergence {
        let mut edges = Vec::new();
        let mut start = Vec::new();
        for &op in &places.ops {
            let kind = k.kind(op);
            let own = matches!(
                kind,
                OpKind::Builtin(
                    Builtin::GlobalId
                        | Builtin::LocalId
                        | Builtin::LocalIndex
                        | Builtin::SubgroupLane
                        | Builtin::SubgroupId,
                    _
                ) | OpKind::Atomic(..)
                    | OpKind::Subgroup(_)
            );
            let memory = matches!(kind, OpKind::Load(m) if !matches!(k.memory(m).space, Space::Buffer(_)));
            if own || memory {
                start.extend(k.results(op).map(Value::index));
            }
            // What a structure is controlled by, and what is handed to it, decides about all that it gives. An op is a node of its own, so
            // that operands and results are not paired.
            let to = match kind {
                OpKind::Yield => places.owner[places.home[op.index()].index()],
                OpKind::Continue(r) | OpKind::Break(r) => places.owner[r.index()],
                _ => Some(op),
            };
            let Some(to) = to else { continue };
            let node = |op: OpId| k.value_count() as u32 + op.0;
            edges.extend(k.args(op).iter().map(|v| Edge { op, from: v.0, to: node(to) }));
            let given = k.results(op).chain(k.regions(op).iter().flat_map(|&r| k.region_args(r)));
            edges.extend(given.map(|t| Edge { op, from: node(op), to: t.0 }));
        }
        let values = reach(k.value_count() + k.op_count(), &edges, start.into_iter(), false);
        Divergence { values, alone: k.workgroup == [1; 3] }
    }

    /// Whether a store is surely done by all invocations of a workgroup, to one element.
    fn all_store(&self, k: &Kernel, places: &Places, op: OpId) -> bool {
        let uniform = |v: Value| !self.values[v.index()];
        let reached = places.around(places.home[op.index()]).filter_map(|r| places.owner[r.index()]).all(|owner| {
            let control = if let OpKind::For(_) = k.kind(owner) { 2 } else { 1 };
            k.args(owner).iter().take(control).all(|&v| uniform(v))
        });
        !self.alone && uniform(k.args(op)[0]) && reached
    }
}
