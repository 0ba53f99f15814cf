//! A proof, independent of how the plan was made, that every op finds its operands unharmed.

use std::collections::BTreeMap;

use crate::graph::{Graph, Value};
use crate::op::Op;

use super::lifetime::pieces;
use super::{Capabilities, Location, Plan, Span, Step};

impl Plan {
    /// Execute the plan on an arena that remembers only whose bytes lie where: every operand must still be whole when
    /// it is read, every result when the run ends.
    pub fn verify(&self, graph: &Graph, device: &dyn Capabilities) -> Result<(), String> {
        let mut run = SimulatedRun::new(self, graph, device);
        run.place_sources()?;
        for step in self.steps() {
            run.step(step)?;
        }
        for output in graph.outputs() {
            run.check_read(output.value).map_err(|e| format!("output '{}': {e}", output.name))?;
        }
        Ok(())
    }

    fn inside(&self, span: Span, device: &dyn Capabilities) -> Result<(), String> {
        self.inside_of(self.arena_bytes, span, device)
    }

    fn inside_of(&self, all: u64, span: Span, device: &dyn Capabilities) -> Result<(), String> {
        let (first, last) = (span.offset, span.offset + span.bytes - 1);
        if last >= all {
            return Err(format!("{span:?} lies outside the arena of {all} bytes"));
        }
        if !first.is_multiple_of(device.alignment()) {
            return Err(format!("{span:?} is not aligned to {}", device.alignment()));
        }
        if first / self.block_bytes != last / self.block_bytes {
            return Err(format!("{span:?} straddles two blocks of {} bytes", self.block_bytes));
        }
        Ok(())
    }
}

/// A run of a plan that computes nothing.
struct SimulatedRun<'a> {
    plan: &'a Plan,
    graph: &'a Graph,
    device: &'a dyn Capabilities,
    memory: Occupancy,
    host: Occupancy,
    /// By value: whose bytes it has, once it has been computed.
    owner: Vec<Option<Value>>,
}

impl<'a> SimulatedRun<'a> {
    fn new(plan: &'a Plan, graph: &'a Graph, device: &'a dyn Capabilities) -> SimulatedRun<'a> {
        let (memory, host) = (Occupancy::default(), Occupancy::default());
        SimulatedRun { plan, graph, device, memory, host, owner: vec![None; graph.nodes().len()] }
    }

    /// Inputs and parameters, which are there before the first step.
    fn place_sources(&mut self) -> Result<(), String> {
        for value in self.graph.values() {
            match (&self.graph.node(value).op, self.plan.place(value)) {
                (Op::Input { .. }, Location::Arena(span)) => {
                    self.plan.inside(span, self.device)?;
                    self.memory.write(span, value);
                    self.owner[value.index()] = Some(value);
                }
                (Op::Param { .. }, Location::Weight(root)) if root == value => {
                    self.owner[value.index()] = Some(value);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whose bytes a value has. A view has those of what it was made from, wherever that is in the order; a piece that was computed where
    /// it is wanted belongs to the whole once that is there.
    fn resolve(&self, mut value: Value) -> Option<Value> {
        loop {
            match self.owner[value.index()] {
                Some(v) if v == value => return Some(v),
                Some(v) => value = v,
                None => value = *self.graph.node(value).inputs.first()?,
            }
        }
    }

    fn check_read(&self, value: Value) -> Result<(), String> {
        let Some(root) = self.resolve(value) else {
            return Err(format!("{value} is read before it is computed"));
        };
        match self.plan.place(value) {
            Location::Weight(_) => Ok(()),
            Location::Arena(span) if self.memory.holds(span, root) => Ok(()),
            Location::Host(span) if self.host.holds(span, root) => Ok(()),
            Location::Arena(_) | Location::Host(_) => {
                Err(format!("the bytes of {value} are overwritten before they are read"))
            }
            Location::Nowhere => Err(format!("{value} is read and has no place")),
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        let value = step.value;
        let node = self.graph.node(value);
        let result = match self.plan.place(value) {
            Location::Arena(result) if node.op != Op::Rest => result,
            Location::Host(span) if node.op == Op::Rest => return self.move_to_host(value, span),
            place => return Err(format!("{value} is computed and lies at {place:?}")),
        };
        self.plan.inside(result, self.device)?;
        if result.bytes != node.ty.bytes() {
            return Err(format!("{value} has {} bytes, {} are planned", node.ty.bytes(), result.bytes));
        }
        let in_place = self.pieces_in_place(value, result);
        self.check_operands(value, result, &in_place)?;
        self.use_scratch(step, result)?;
        self.memory.write(result, value);
        self.owner[value.index()] = Some(value);
        in_place.iter().for_each(|(piece, _)| self.owner[piece.index()] = Some(value));
        Ok(())
    }

    fn move_to_host(&mut self, value: Value, span: Span) -> Result<(), String> {
        self.check_read(self.graph.node(value).inputs[0]).map_err(|e| format!("{value}: {e}"))?;
        self.plan.inside_of(self.plan.host_bytes, span, self.device)?;
        self.host.write(span, value);
        self.owner[value.index()] = Some(value);
        Ok(())
    }

    /// Pieces of a result that lie where they are wanted: they are not written; parts of them may still be read.
    fn pieces_in_place(&self, value: Value, result: Span) -> Vec<(Value, Span)> {
        let slot = |(piece, at): (Value, u64)| {
            let slot = Span { offset: result.offset + at, bytes: self.graph.ty(piece).bytes() };
            (slot.bytes < result.bytes && self.plan.place(piece) == Location::Arena(slot)).then_some((piece, slot))
        };
        pieces(self.graph, value).into_iter().filter_map(slot).collect()
    }

    /// Every operand is whole, and stays so while the result is written.
    fn check_operands(&self, value: Value, result: Span, in_place: &[(Value, Span)]) -> Result<(), String> {
        let inside =
            |part: Span, all: Span| part.offset >= all.offset && part.offset + part.bytes <= all.offset + all.bytes;
        for (i, &input) in self.graph.node(value).inputs.iter().enumerate() {
            self.check_read(input).map_err(|e| format!("{value}: {e}"))?;
            if let Location::Arena(operand) = self.plan.place(input)
                && overlap(operand, result)
                && !(operand == result && self.device.may_overwrite(self.graph, value, i))
                && !in_place.iter().any(|&(_, slot)| inside(operand, slot))
            {
                return Err(format!("{value} is written over its operand {input}, which it still reads"));
            }
        }
        Ok(())
    }

    /// The scratch memory of a step is what its op asks for, and apart from what it reads and writes.
    fn use_scratch(&mut self, step: &Step, result: Span) -> Result<(), String> {
        let value = step.value;
        let node = self.graph.node(value);
        if let Some(scratch) = step.scratch {
            self.plan.inside(scratch, self.device)?;
            let mut others = node.inputs.iter().map(|&i| self.plan.place(i)).chain([Location::Arena(result)]);
            if others.any(|p| matches!(p, Location::Arena(s) if overlap(s, scratch))) {
                return Err(format!("the scratch memory of {value} overlaps its operands or its result"));
            }
            self.memory.spoil(scratch);
        }
        let asks = if node.op.is_copy() { 0 } else { self.device.scratch_bytes(self.graph, value) };
        if step.scratch.map_or(0, |s| s.bytes) != asks {
            return Err(format!("{value} does not get the scratch memory it asks for"));
        }
        Ok(())
    }
}

fn overlap(a: Span, b: Span) -> bool {
    a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes
}

/// Whose bytes lie where: from the start of a piece to its end and owner.
#[derive(Default)]
struct Occupancy(BTreeMap<u64, (u64, Value)>);

impl Occupancy {
    fn write(&mut self, span: Span, owner: Value) {
        self.spoil(span);
        self.0.insert(span.offset, (span.offset + span.bytes, owner));
    }

    /// Forget what lies there; pieces that stick out keep their rest.
    fn spoil(&mut self, span: Span) {
        let (from, to) = (span.offset, span.offset + span.bytes);
        let before = self.0.range(..from).next_back().map(|(&s, &(e, o))| (s, e, o));
        let inside: Vec<_> = self.0.range(from..to).map(|(&s, &(e, o))| (s, e, o)).collect();
        for (start, end, owner) in before.into_iter().chain(inside) {
            if end <= from {
                continue;
            }
            self.0.remove(&start);
            if start < from {
                self.0.insert(start, (from, owner));
            }
            if end > to {
                self.0.insert(to, (end, owner));
            }
        }
    }

    fn holds(&self, span: Span, owner: Value) -> bool {
        self.0
            .range(..=span.offset)
            .next_back()
            .is_some_and(|(_, &(end, who))| who == owner && end >= span.offset + span.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{Banded, DType, GraphError, Limits, May, PlanError, Unary, Used};

    /// A device that asks for proofs or does not. One that lies wants more scratch memory when a plan is verified than when it was made.
    struct Device {
        verifies: bool,
        lies: bool,
        asked: Cell<u64>,
    }

    impl Device {
        fn honest(verifies: bool) -> Device {
            Device { verifies, lies: false, asked: Cell::new(0) }
        }

        fn liar(verifies: bool) -> Device {
            Device { lies: true, ..Device::honest(verifies) }
        }
    }

    impl Capabilities for Device {
        fn limits(&self) -> Limits {
            Limits::UNLIMITED
        }

        fn alignment(&self) -> u64 {
            64
        }

        fn supports(&self, _: &Graph, _: Value) -> Result<(), String> {
            Ok(())
        }

        fn scratch_bytes(&self, _: &Graph, _: Value) -> u64 {
            self.asked.set(self.asked.get() + u64::from(self.lies));
            64 * self.asked.get()
        }

        fn may_overwrite(&self, _: &Graph, _: Value, _: usize) -> bool {
            false
        }

        fn param_bytes(&self, graph: &Graph, param: Value, _: Used) -> u64 {
            graph.ty(param).bytes()
        }

        fn verifies_plans(&self) -> bool {
            self.verifies
        }
    }

    /// Two ops one after the other on a picture.
    fn graph() -> Result<Graph, GraphError> {
        let mut graph = Graph::new();
        let x = graph.input("x", [1, 16, 16, 4], DType::F32)?;
        let y = graph.unary(Unary::Silu, x)?;
        let y = graph.unary(Unary::Silu, y)?;
        graph.output("y", y)?;
        Ok(graph)
    }

    #[test]
    fn a_wrong_plan_is_a_fault_where_plans_are_verified() -> Result<(), GraphError> {
        let graph = graph()?;
        let [on, off] = [true, false].map(Device::honest);
        let plan = Plan::new(&graph, &on).expect("it fits");
        let last = plan.steps[1].value;
        let mut swapped = plan.clone();
        swapped.steps.swap(0, 1);
        let mut over = plan.clone();
        over.places[last.index()] = plan.place(plan.steps[0].value);
        let mut outside = plan.clone();
        outside.arena_bytes = 64;
        for (wrong, words) in [
            (swapped, "are overwritten before they are read"),
            (over, "is written over its operand"),
            (outside, "lies outside the arena"),
        ] {
            match wrong.clone().verified(&graph, &on) {
                Err(error @ PlanError::Fault { .. }) => {
                    let text = error.to_string();
                    assert!(text.contains(words) && text.contains("please report it"), "{text}");
                }
                other => panic!("{words}: {other:?}"),
            }
            assert_eq!(wrong.clone().verified(&graph, &off).as_ref(), Ok(&wrong));
        }
        assert_eq!(plan.clone().verified(&graph, &on), Ok(plan));
        Ok(())
    }

    #[test]
    fn every_way_to_a_plan_ends_at_its_first_fault() -> Result<(), GraphError> {
        let graph = graph()?;
        let refused = |planned: Result<(), PlanError>| planned.is_err_and(|error| error.is_fault());
        let may = May { stream: true, rest: true };
        for verifies in [true, false] {
            let device = || Device::liar(verifies);
            assert_eq!(refused(Plan::new(&graph, &device()).map(drop)), verifies);
            assert_eq!(refused(Plan::streamed(&graph, &device()).map(drop)), verifies);
            assert_eq!(refused(Plan::fit(graph.clone(), &device(), may).map(drop)), verifies);
            assert_eq!(refused(Banded::fit(&graph, &device(), 1, may).map(drop)), verifies);
        }
        assert!(cfg!(debug_assertions) == crate::Anything.verifies_plans(), "tests verify");
        Ok(())
    }
}
