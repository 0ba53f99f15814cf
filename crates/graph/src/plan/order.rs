//! The order of execution: of several topological orders, the one with the smallest peak, then improved where its
//! peak is.
//!
//! Finding the best order is NP-hard; networks are chains with shortcuts, for which two candidates and a few local
//! moves suffice. Cost: a few dozen passes over the graph.

use crate::graph::{Graph, Value};

use super::lifetime::{Analysis, Lifetimes};

/// Rounds of improvement. Each lowers the peak at one place; networks repeat the same block a few times.
const ROUNDS: usize = 24;
/// Moves that are tried in a round, the most promising first.
const MOVES: usize = 24;

/// The order in which the steps are executed.
pub(super) fn choose(graph: &Graph, analysis: &Analysis) -> Vec<Value> {
    let written: Vec<Value> = analysis.steps().collect();
    let on_demand = on_demand(graph, analysis);
    let peak = |order: &[Value]| Lifetimes::new(graph, analysis, order).peak_bytes();
    // The order in which the model is written wins a tie: it is the one that a reader expects.
    let best = if peak(&on_demand) < peak(&written) { on_demand } else { written };
    improve(graph, analysis, best)
}

/// Depth first from the results: each value is computed when it is first needed.
fn on_demand(graph: &Graph, analysis: &Analysis) -> Vec<Value> {
    let mut order = vec![];
    let mut done = vec![false; graph.nodes().len()];
    let mut stack: Vec<(Value, bool)> = graph.outputs().iter().rev().map(|o| (o.value, false)).collect();
    while let Some((value, operands_done)) = stack.pop() {
        if operands_done {
            if analysis.is_step(value) {
                order.push(value);
            }
        } else if !std::mem::replace(&mut done[value.index()], true) {
            stack.push((value, true));
            stack.extend(graph.node(value).inputs.iter().rev().map(|&i| (i, false)));
        }
    }
    order
}

/// Move steps away from the moment where most is live, as long as that lowers it.
fn improve(graph: &Graph, analysis: &Analysis, mut order: Vec<Value>) -> Vec<Value> {
    let mut lifetimes = Lifetimes::new(graph, analysis, &order);
    for _ in 0..ROUNDS {
        let peak = lifetimes.peak_bytes();
        let better = moves(graph, analysis, &order, &lifetimes)
            .into_iter()
            .take(MOVES)
            .map(|(from, to)| {
                let mut moved = order.clone();
                let value = moved.remove(from);
                moved.insert(to, value);
                let lifetimes = Lifetimes::new(graph, analysis, &moved);
                (lifetimes.peak_bytes(), moved, lifetimes)
            })
            .min_by_key(|(bytes, ..)| *bytes);
        match better {
            Some((bytes, moved, after)) if bytes < peak => (order, lifetimes) = (moved, after),
            _ => break,
        }
    }
    order
}

/// Moves that may lower the peak: `(from, to)`, positions in the order, `to` counted after the removal.
fn moves(graph: &Graph, analysis: &Analysis, order: &[Value], lifetimes: &Lifetimes) -> Vec<(usize, usize)> {
    let mut position = vec![usize::MAX; graph.nodes().len()];
    for (i, v) in order.iter().enumerate() {
        position[v.index()] = i;
    }
    // The first and last step of a value's neighbours; sources are there from the start.
    let ready = |v: Value| {
        let inputs = graph.node(v).inputs.iter().map(|&i| analysis.origin(i));
        inputs.map(|r| position[r.index()]).filter(|&p| p != usize::MAX).max()
    };
    let mut first_use = vec![usize::MAX; graph.nodes().len()];
    for (i, v) in order.iter().enumerate().rev() {
        for &input in &graph.node(*v).inputs {
            first_use[analysis.origin(input).index()] = i;
        }
    }

    let peak = lifetimes.peak_step();
    let mut live = vec![false; graph.nodes().len()];
    for v in lifetimes.live_at(peak) {
        live[v.index()] = true;
    }
    let mut moves: Vec<(u64, usize, usize)> = vec![];
    // Compute later what is only waiting at the peak.
    for (i, &v) in order.iter().enumerate().take(peak) {
        let used = first_use[v.index()];
        if live[v.index()] && used != usize::MAX && used > peak {
            moves.push((graph.ty(v).bytes(), i, used - 1));
        }
    }
    // Compute earlier what waits to read a tensor that is live at the peak, so that the tensor dies before it.
    for (i, &v) in order.iter().enumerate().skip(peak + 1) {
        let reads = graph.node(v).inputs.iter().filter_map(|&x| analysis.arena_root(x));
        let held: u64 = reads.filter(|r| live[r.index()]).map(|r| graph.ty(r).bytes()).sum();
        let earliest = ready(v).map_or(0, |p| p + 1);
        if held > 0 && earliest <= peak {
            moves.push((held, i, earliest));
        }
    }
    moves.sort_by_key(|&(bytes, from, _)| (std::cmp::Reverse(bytes), from));
    moves.into_iter().map(|(_, from, to)| (from, to)).collect()
}
