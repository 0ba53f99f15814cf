//! What a plan promises, found out anew from the plan's public face: a second opinion beside `Plan::verify`.

use impasto_graph::{Capabilities, Graph, Location, Op, Plan, Span, Value};

/// A tensor with memory of its own, and the steps between which it is needed.
struct Tenant {
    value: Value,
    span: Span,
    first: usize,
    last: usize,
}

/// Panics where the plan is wrong.
pub fn audit(graph: &Graph, plan: &Plan, device: &dyn Capabilities) {
    let step_of = |v: Value| plan.steps().iter().position(|s| s.value == v);
    let needed = needed(graph);
    for value in graph.values() {
        match (needed[value.index()], plan.place(value)) {
            (false, Location::Nowhere) => assert!(step_of(value).is_none(), "{value} is dead and executed"),
            (false, place) if !matches!(graph.node(value).op, Op::Param { .. }) => {
                panic!("{value} is dead and lies at {place:?}")
            }
            (true, Location::Nowhere) => panic!("{value} is needed and has no place"),
            _ => {}
        }
    }
    let computed: Vec<Value> = graph.values().filter(|&v| needed[v.index()] && !is_view(graph, plan, v)).collect();
    for &value in computed.iter().filter(|&&v| !graph.node(v).op.is_source()) {
        let times = plan.steps().iter().filter(|s| s.value == value).count();
        assert_eq!(times, 1, "{value} is executed {times} times");
    }

    // Who lives when.
    let root = |mut value: Value| {
        while is_view(graph, plan, value) {
            value = graph.node(value).inputs[0];
        }
        value
    };
    let mut tenants: Vec<Tenant> = vec![];
    for &value in &computed {
        if let Location::Arena(span) = plan.place(value) {
            assert_eq!(span.bytes, graph.ty(value).bytes(), "{value} has another size");
            let first = step_of(value).unwrap_or(0);
            tenants.push(Tenant { value, span, first, last: first });
        }
    }
    // Pieces that are computed where a concatenation has them live in its bytes, from the first of them on.
    let homes: Vec<(Value, Value)> = computed
        .iter()
        .flat_map(|&whole| pieces(graph, whole).into_iter().map(move |(piece, at)| (piece, at, whole)))
        .filter(|&(piece, at, whole)| match (plan.place(piece), plan.place(whole)) {
            (Location::Arena(piece), Location::Arena(whole)) => {
                piece.offset == whole.offset + at && piece.bytes < whole.bytes
            }
            _ => false,
        })
        .map(|(piece, _, whole)| (piece, whole))
        .collect();
    let home = |mut value: Value| {
        while let Some(&(_, whole)) = homes.iter().find(|(piece, _)| *piece == value && step_of(value).is_some()) {
            value = whole;
        }
        value
    };
    let mut first_of: Vec<(Value, usize)> = vec![];
    tenants.retain(|t| {
        let stays = home(t.value) == t.value;
        if !stays {
            first_of.push((home(t.value), t.first));
        }
        stays
    });
    for (whole, first) in first_of {
        let t = tenants.iter_mut().find(|t| t.value == whole).expect("a whole has a place");
        t.first = t.first.min(first);
    }
    for (at, step) in plan.steps().iter().enumerate() {
        for &input in &graph.node(step.value).inputs {
            let computed = step_of(root(input));
            assert!(computed.is_none_or(|before| before < at), "{input} is read before it is computed");
        }
    }
    let mut keep = |value: Value, at: usize| {
        if let Some(t) = tenants.iter_mut().find(|t| t.value == home(root(value))) {
            t.last = t.last.max(at);
        }
    };
    for (at, step) in plan.steps().iter().enumerate() {
        graph.node(step.value).inputs.iter().for_each(|&i| keep(i, at));
    }
    graph.outputs().iter().for_each(|o| keep(o.value, plan.steps().len()));

    nobody_overlaps(graph, plan, device, &tenants);
    assert_eq!(plan.lower_bound(), most_live(plan, &tenants), "the lower bound is the largest sum of live bytes");
    assert!(plan.arena_bytes() >= plan.lower_bound());
    let spans: Vec<Span> =
        tenants.iter().map(|t| t.span).chain(plan.steps().iter().filter_map(|s| s.scratch)).collect();
    blocks_hold(plan, device, &spans);
}

/// Which values the results depend on.
fn needed(graph: &Graph) -> Vec<bool> {
    let mut needed = vec![false; graph.nodes().len()];
    graph.outputs().iter().for_each(|o| needed[o.value.index()] = true);
    for value in graph.values().rev().filter(|v| !graph.node(*v).inputs.is_empty()) {
        if needed[value.index()] {
            graph.node(value).inputs.iter().for_each(|i| needed[i.index()] = true);
        }
    }
    needed
}

/// A needed value that is neither a source nor executed is another name for bytes of its operand: the right ones?
fn is_view(graph: &Graph, plan: &Plan, value: Value) -> bool {
    let node = graph.node(value);
    if node.op.is_source() || plan.steps().iter().any(|s| s.value == value) {
        return false;
    }
    let from = graph.ty(node.inputs[0]);
    let offset = match &node.op {
        Op::Reshape { .. } => 0,
        Op::Cast => {
            assert_eq!(from.dtype, node.ty.dtype, "{value} changes the element type and is no view");
            0
        }
        Op::Permute { axes } => {
            let moved: Vec<usize> = axes.iter().copied().filter(|&a| from.shape[a] != 1).collect();
            assert!(moved.is_sorted(), "{value} changes the order in memory and is no view");
            0
        }
        Op::Slice { axis, start, .. } => {
            assert!(from.shape[..*axis].iter().all(|&d| d == 1), "{value} takes pieces and is no view");
            let row: usize = from.shape[axis + 1..].iter().product();
            (start * row) as u64 * from.dtype.bytes()
        }
        op => panic!("{value} is needed, and {} is neither executed nor a view", op.name()),
    };
    match (plan.place(node.inputs[0]), plan.place(value)) {
        (Location::Arena(whole), Location::Arena(part)) => {
            assert_eq!(part, Span { offset: whole.offset + offset, bytes: node.ty.bytes() }, "{value} is a wrong view");
        }
        (Location::Weight(a), Location::Weight(b)) => {
            assert!(a == b && offset == 0 && from.bytes() == node.ty.bytes(), "{value} is part of a parameter");
        }
        places => panic!("{value} is a view that lies elsewhere: {places:?}"),
    }
    true
}

/// The operands of a concatenation along its slowest axis, and where each begins.
fn pieces(graph: &Graph, value: Value) -> Vec<(Value, u64)> {
    let node = graph.node(value);
    let Op::Concat { axis } = node.op else { return vec![] };
    if node.ty.shape[..axis].iter().any(|&d| d != 1) {
        return vec![];
    }
    let mut end = 0;
    let mut pieces = vec![];
    for &piece in &node.inputs {
        pieces.push((piece, end));
        end += graph.ty(piece).bytes();
    }
    pieces
}

fn overlap(a: Span, b: Span) -> bool {
    a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes
}

/// Two that live at the same time have their own bytes, but for a result that takes the place of an operand where the
/// device allows it.
fn nobody_overlaps(graph: &Graph, plan: &Plan, device: &dyn Capabilities, tenants: &[Tenant]) {
    for (i, a) in tenants.iter().enumerate() {
        for b in &tenants[i + 1..] {
            if a.last < b.first || b.last < a.first || !overlap(a.span, b.span) {
                continue;
            }
            let (operand, result) = if a.last == b.first { (a, b) } else { (b, a) };
            let step = plan.steps().get(result.first).filter(|s| s.value == result.value);
            assert!(
                operand.last == result.first && step.is_some() && operand.span == result.span,
                "{} and {} live at the same time in the same bytes",
                a.value,
                b.value
            );
            for (j, &input) in graph.node(result.value).inputs.iter().enumerate() {
                if matches!(plan.place(input), Location::Arena(s) if overlap(s, result.span)) {
                    let allowed = device.may_overwrite(graph, result.value, j);
                    assert!(allowed, "{} overwrites its operand {input}", result.value);
                }
            }
        }
    }
    for (at, step) in plan.steps().iter().enumerate() {
        assert_eq!(step.scratch.map_or(0, |s| s.bytes), device.scratch_bytes(graph, step.value));
        for t in tenants.iter().filter(|t| t.first <= at && at <= t.last) {
            let clear = step.scratch.is_none_or(|s| !overlap(s, t.span));
            assert!(clear, "the scratch memory of {} lies on {}", step.value, t.value);
        }
    }
}

/// The largest number of different bytes in use at one step, or after the last.
fn most_live(plan: &Plan, tenants: &[Tenant]) -> u64 {
    let live_at = |at: usize| {
        let tenants = tenants.iter().filter(|t| t.first <= at && at <= t.last).map(|t| t.span);
        let mut spans: Vec<Span> = tenants.chain(plan.steps().get(at).and_then(|s| s.scratch)).collect();
        spans.sort_by_key(|s| s.offset);
        spans.dedup();
        spans.iter().map(|s| s.bytes).sum::<u64>()
    };
    (0..=plan.steps().len()).map(live_at).max().unwrap_or(0)
}

/// Blocks cover the arena without gaps, each fits one allocation, and no tensor straddles two.
fn blocks_hold(plan: &Plan, device: &dyn Capabilities, spans: &[Span]) {
    let blocks: Vec<Span> = plan.blocks().collect();
    let mut end = 0;
    for block in &blocks {
        assert_eq!(block.offset, end, "blocks leave no gap");
        assert!(block.bytes > 0 && block.bytes <= device.limits().max_allocation);
        end += block.bytes;
    }
    assert_eq!(end, plan.arena_bytes(), "blocks are the arena");
    for span in spans {
        assert!(span.offset.is_multiple_of(device.alignment()), "{span:?} is not aligned");
        let holds = |b: &Span| b.offset <= span.offset && span.offset + span.bytes <= b.offset + b.bytes;
        assert!(blocks.iter().any(holds), "{span:?} straddles blocks or lies outside the arena");
    }
}
