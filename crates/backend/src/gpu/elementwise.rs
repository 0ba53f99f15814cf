//! Arithmetic on each element. Ops that follow each other, and of which nobody else needs what lies between, become one kernel.

use impasto_graph::{DType, Graph, Op, Value};

use super::gated::gate;
use super::kernels::elementwise::{self, Term, Walked};
use super::kernels::groups_of_lines;
use super::session::Env;
use super::{Run, Runs};
use crate::shapes::{broadcast_strides, merge};

pub(super) fn geglu(env: &Env, value: Value) -> Runs {
    let x = env.operand(value, 0);
    Ok(vec![gate((env.binding(x), env.ty(x).dtype), None, env.binding(value), env.ty(value))?])
}

/// A cast of whole numbers to whole numbers, which do not pass through a float: 2^24 and above would be rounded.
pub(super) fn copy(env: &Env, value: Value) -> Runs {
    let elements = env.ty(value).elements();
    Ok(env.run(value, elementwise::copy(elements as u32)?, groups_of_lines(elements)))
}

/// Whether an op is one that chains are made of.
fn is_link(graph: &Graph, value: Value) -> bool {
    let node = graph.node(value);
    let whole = |v: Value| graph.ty(v).dtype == DType::I32;
    match node.op {
        Op::Cast => !whole(value) || !whole(node.inputs[0]),
        _ => matches!(node.op, Op::Unary(_) | Op::Affine { .. } | Op::Binary(_)),
    }
}

/// How many of these steps, which follow each other, one kernel can do: at least one, if the first is a link of a chain.
pub(super) fn chained(env: &Env, steps: &[Value]) -> usize {
    let graph = env.graph;
    let uses = |v: Value| {
        let inside: usize = graph.nodes().iter().map(|n| n.inputs.iter().filter(|i| **i == v).count()).sum();
        inside + graph.outputs().iter().filter(|o| o.value == v).count()
    };
    let mut count = steps.iter().take(1).filter(|v| is_link(graph, **v)).count();
    while 0 < count && count < steps.len() {
        let (last, next) = (steps[count - 1], steps[count]);
        let (before, behind) = (graph.ty(last), graph.ty(next));
        let fits = is_link(graph, next)
            && graph.node(next).inputs.contains(&last)
            && before.shape == behind.shape
            // What is rounded is stored: which steps follow each other differs between a graph and the same in bands.
            && before.dtype == DType::F32
            && uses(last) == 1
            && Chain::of(env, &steps[..=count]).is_safe(env);
        if !fits {
            break;
        }
        count += 1;
    }
    count
}

/// One kernel for a chain of steps.
pub(super) fn chain(env: &Env, steps: &[Value]) -> Runs {
    let chain = Chain::of(env, steps);
    let ty = env.ty(chain.last);
    // Axes that every tensor walks through without a gap are one.
    let (shape, strides) = merge(&ty.shape, &chain.leaves.iter().map(|(_, s)| &s[..]).collect::<Vec<_>>());
    let leaves = chain.leaves.iter().zip(strides).map(|((v, _), strides)| Walked { dtype: env.ty(*v).dtype, strides });
    let leaves: Vec<Walked> = leaves.collect();
    let (kernel, invocations) = match elementwise::chain_by_4(&chain.term, &shape, &leaves, ty.dtype) {
        Some(kernel) => (kernel?, ty.elements() / 4),
        None => (elementwise::chain(&chain.term, &shape, &leaves, ty.dtype)?, ty.elements()),
    };
    let bindings = chain.leaves.iter().map(|(v, _)| *v).chain([chain.last]).map(|v| env.binding(v)).collect();
    Ok(vec![Run { kernel, bindings, groups: groups_of_lines(invocations) }])
}

/// A chain: what it reads, with the strides of each, and what becomes of it.
struct Chain {
    leaves: Vec<(Value, Vec<usize>)>,
    term: Term,
    last: Value,
}

impl Chain {
    fn of(env: &Env, steps: &[Value]) -> Chain {
        let mut leaves = vec![];
        let last = steps[steps.len() - 1];
        let term = term(env, steps, last, &env.ty(last).shape, &mut leaves);
        Chain { leaves, term, last }
    }

    /// Whether no element is overwritten before it is read: the plan lets a result lie where an operand lay that an op in the middle read
    /// last.
    fn is_safe(&self, env: &Env) -> bool {
        let (out, ty) = (env.binding(self.last), env.ty(self.last));
        self.leaves.iter().all(|(leaf, strides)| {
            let (read, from) = (env.binding(*leaf), env.ty(*leaf));
            let apart = !read.overlaps(&out);
            let in_step = read.address == out.address && from.dtype.bytes() == ty.dtype.bytes();
            apart || in_step && *strides == broadcast_strides(&ty.shape, &ty.shape)
        })
    }
}

fn term(env: &Env, steps: &[Value], value: Value, shape: &[usize], leaves: &mut Vec<(Value, Vec<usize>)>) -> Term {
    if !steps.contains(&value) {
        let strides = broadcast_strides(&env.ty(value).shape, shape);
        leaves.push((value, strides));
        return Term::Leaf(leaves.len() - 1);
    }
    let node = env.graph.node(value);
    let mut of = |i: usize| Box::new(term(env, steps, node.inputs[i], shape, leaves));
    match &node.op {
        Op::Binary(f) => Term::Binary(*f, [of(0), of(1)]),
        op => Term::Map(op.clone(), of(0)),
    }
}
