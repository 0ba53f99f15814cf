//! Where stores go: whether two of them, or two iterations of one, can write the same element. Cost: linear in stores and in the ops that make
//! their indices.

use std::collections::HashMap;

use impasto_kernel::ir::{BinaryOp, Kernel, MemoryId, OpId, OpKind, RegionId, Value};

use super::activity::Places;

/// Sums of more parts are not looked at.
const MOST_PARTS: usize = 8;
/// Stores with the same index that are compared with each other.
const MOST_ALIKE: usize = 8;

/// A sum of values times constants, and a constant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Sum {
    /// Sorted by value.
    parts: Vec<(Value, u32)>,
    constant: u32,
}

impl Sum {
    fn add(&mut self, other: &Sum, by: u32) {
        self.constant = self.constant.wrapping_add(other.constant.wrapping_mul(by));
        for &(v, c) in &other.parts {
            let more = c.wrapping_mul(by);
            match self.parts.binary_search_by_key(&v, |p| p.0) {
                Ok(i) => self.parts[i].1 = self.parts[i].1.wrapping_add(more),
                Err(i) => self.parts.insert(i, (v, more)),
            }
        }
        self.parts.retain(|p| p.1 != 0);
    }
}

fn sum(k: &Kernel, places: &Places, v: Value, depth: usize) -> Sum {
    let whole = Sum { parts: vec![(v, 1)], constant: 0 };
    let Some(op) = places.def[v.index()].filter(|_| depth < MOST_PARTS) else { return whole };
    let args = k.args(op);
    let constant = |v: Value| match places.def[v.index()].map(|d| k.kind(d)) {
        Some(OpKind::Const(c)) => Some(k.const_bits(c) as u32),
        _ => None,
    };
    match k.kind(op) {
        OpKind::Const(c) => Sum { parts: Vec::new(), constant: k.const_bits(c) as u32 },
        OpKind::Binary(f @ (BinaryOp::Add | BinaryOp::Sub)) => {
            let mut all = sum(k, places, args[0], depth + 1);
            let by = if f == BinaryOp::Add { 1 } else { u32::MAX };
            all.add(&sum(k, places, args[1], depth + 1), by);
            if all.parts.len() > MOST_PARTS { whole } else { all }
        }
        OpKind::Binary(BinaryOp::Mul) => match (constant(args[0]), constant(args[1])) {
            (_, Some(c)) | (Some(c), _) => {
                let other = if constant(args[1]).is_some() { args[0] } else { args[1] };
                let mut all = Sum::default();
                all.add(&sum(k, places, other, depth + 1), c);
                all
            }
            _ => whole,
        },
        // From i32 to u32 and back: the same bits.
        OpKind::Convert if k.ty(args[0]).as_scalar().is_some_and(|s| s.is_int() && s.bits() == 32) => {
            sum(k, places, args[0], depth + 1)
        }
        _ => whole,
    }
}

/// Whether the iterations of the loops around a store go to different elements.
fn turns_differ(k: &Kernel, places: &Places, op: OpId, index: &Sum) -> bool {
    let constant = |v: Value| match places.def[v.index()].map(|d| k.kind(d)) {
        Some(OpKind::Const(c)) => Some(i64::from(k.const_bits(c) as u32 as i32)),
        _ => None,
    };
    // Of each loop around: how far an iteration moves, and how many iterations there are where that is known.
    let mut moves: Vec<(u64, Option<u64>)> = Vec::new();
    for r in places.around(places.home[op.index()]) {
        let Some(owner) = places.owner[r.index()] else { break };
        match k.kind(owner) {
            OpKind::For(step) => {
                let Some(i) = k.region_args(r).next() else { return false };
                let Some(&(_, by)) = index.parts.iter().find(|p| p.0 == i) else { return false };
                // What else the index is made of must be the same in each iteration.
                let others = index.parts.iter().filter(|p| p.0 != i && places.def[p.0.index()].is_some());
                if others.into_iter().any(|p| places.inside(places.scope[p.0.index()], r)) {
                    return false;
                }
                let args = k.args(owner);
                let trip_count = constant(args[0]).zip(constant(args[1]));
                let trip_count = trip_count.map(|(a, b)| (b - a).max(0).unsigned_abs().div_ceil(u64::from(step)));
                moves.push((u64::from(by).saturating_mul(u64::from(step)), trip_count));
            }
            OpKind::Loop => return false,
            _ => {}
        }
    }
    moves.sort_unstable();
    let mut reach = 0u64;
    for (i, &(by, trip_count)) in moves.iter().enumerate() {
        if by <= reach {
            return false;
        }
        match trip_count {
            Some(n) => reach = reach.saturating_add(by.saturating_mul(n.saturating_sub(1))),
            None if i + 1 < moves.len() => return false,
            None => {}
        }
    }
    true
}

/// Whether two ops stand in different regions of one `if` or `switch`, so that never both run.
fn exclusive(k: &Kernel, places: &Places, a: OpId, b: OpId) -> bool {
    let path = |op: OpId| -> Vec<RegionId> {
        let mut all: Vec<RegionId> = places.around(places.home[op.index()]).collect();
        all.reverse();
        all
    };
    let (a, b) = (path(a), path(b));
    let fork = a.iter().zip(&b).find(|(x, y)| x != y);
    fork.is_some_and(|(x, y)| {
        let (p, q) = (places.owner[x.index()], places.owner[y.index()]);
        p == q && p.is_some_and(|p| matches!(k.kind(p), OpKind::If | OpKind::Switch(_)))
    })
}

/// Whether an invocation writes no element of a memory twice, as far as can be told.
pub(super) fn once(k: &Kernel, places: &Places, m: MemoryId) -> bool {
    let stores: Vec<OpId> = places.ops.iter().copied().filter(|&op| k.kind(op) == OpKind::Store(m)).collect();
    let looped = |op: OpId| {
        let around = places.around(places.home[op.index()]);
        around.filter_map(|r| places.owner[r.index()]).any(|o| matches!(k.kind(o), OpKind::Loop | OpKind::For(_)))
    };
    let index = |op: OpId| sum(k, places, k.args(op)[0], 0);
    if let [only] = stores[..] {
        return !looped(only) || turns_differ(k, places, only, &index(only));
    }
    if stores.iter().any(|&op| looped(op)) {
        return false;
    }
    let mut alike: HashMap<Sum, Vec<OpId>> = HashMap::new();
    stores.iter().for_each(|&op| alike.entry(index(op)).or_default().push(op));
    let mut symbols = alike.keys().map(|s| &s.parts);
    let first = symbols.next();
    let same = symbols.all(|s| Some(s) == first);
    let apart = |list: &Vec<OpId>| {
        list.len() <= MOST_ALIKE
            && list.iter().enumerate().all(|(i, &a)| list[..i].iter().all(|&b| exclusive(k, places, a, b)))
    };
    same && alike.values().all(apart)
}
