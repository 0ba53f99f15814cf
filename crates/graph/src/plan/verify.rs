//! A proof, independent of how the plan was made, that every op finds its operands unharmed.

use std::collections::BTreeMap;

use crate::graph::{Graph, Value};
use crate::op::Op;

use super::lifetime::pieces;
use super::{Capabilities, Location, Plan, Span};

impl Plan {
    /// Execute the plan on an arena that remembers only whose bytes lie where: every operand must still be whole when
    /// it is read, every result when the run ends.
    pub fn verify(&self, graph: &Graph, device: &dyn Capabilities) -> Result<(), String> {
        let (mut memory, mut host) = (Occupancy::default(), Occupancy::default());
        let mut owner: Vec<Option<Value>> = vec![None; graph.nodes().len()];
        for value in graph.values() {
            match (&graph.node(value).op, self.place(value)) {
                (Op::Input { .. }, Location::Arena(span)) => {
                    self.inside(span, device)?;
                    memory.write(span, value);
                    owner[value.index()] = Some(value);
                }
                (Op::Param { .. }, Location::Weight(root)) if root == value => owner[value.index()] = Some(value),
                _ => {}
            }
        }
        // A view has the bytes of what it was made from, wherever that is in the order; a piece that was computed where it is
        // wanted belongs to the whole once that is there.
        let resolve = |owner: &[Option<Value>], mut value: Value| loop {
            match owner[value.index()] {
                Some(v) if v == value => return Some(v),
                Some(v) => value = v,
                None => value = *graph.node(value).inputs.first()?,
            }
        };
        let readable = |memory: &Occupancy, host: &Occupancy, owner: &[Option<Value>], value: Value| {
            let Some(root) = resolve(owner, value) else {
                return Err(format!("{value} is read before it is computed"));
            };
            match self.place(value) {
                Location::Weight(_) => Ok(()),
                Location::Arena(span) if memory.holds(span, root) => Ok(()),
                Location::Host(span) if host.holds(span, root) => Ok(()),
                Location::Arena(_) | Location::Host(_) => {
                    Err(format!("the bytes of {value} are overwritten before they are read"))
                }
                Location::Nowhere => Err(format!("{value} is read and has no place")),
            }
        };

        for step in self.steps() {
            let value = step.value;
            let node = graph.node(value);
            let result = match self.place(value) {
                Location::Arena(result) if node.op != Op::Rest => result,
                Location::Host(span) if node.op == Op::Rest => {
                    readable(&memory, &host, &owner, node.inputs[0]).map_err(|e| format!("{value}: {e}"))?;
                    self.inside_of(self.host_bytes, span, device)?;
                    host.write(span, value);
                    owner[value.index()] = Some(value);
                    continue;
                }
                place => return Err(format!("{value} is computed and lies at {place:?}")),
            };
            self.inside(result, device)?;
            if result.bytes != node.ty.bytes() {
                return Err(format!("{value} has {} bytes, {} are planned", node.ty.bytes(), result.bytes));
            }
            // Pieces that lie where they are wanted are not written; parts of them may still be read.
            let slot = |(piece, at): (Value, u64)| {
                let slot = Span { offset: result.offset + at, bytes: graph.ty(piece).bytes() };
                (slot.bytes < result.bytes && self.place(piece) == Location::Arena(slot)).then_some((piece, slot))
            };
            let housed: Vec<(Value, Span)> = pieces(graph, value).into_iter().filter_map(slot).collect();
            let inside =
                |part: Span, all: Span| part.offset >= all.offset && part.offset + part.bytes <= all.offset + all.bytes;
            for (i, &input) in node.inputs.iter().enumerate() {
                readable(&memory, &host, &owner, input).map_err(|e| format!("{value}: {e}"))?;
                if let Location::Arena(operand) = self.place(input)
                    && overlap(operand, result)
                    && !(operand == result && device.may_overwrite(graph, value, i))
                    && !housed.iter().any(|&(_, slot)| inside(operand, slot))
                {
                    return Err(format!("{value} is written over its operand {input}, which it still reads"));
                }
            }
            if let Some(scratch) = step.scratch {
                self.inside(scratch, device)?;
                let mut others = node.inputs.iter().map(|&i| self.place(i)).chain([Location::Arena(result)]);
                if others.any(|p| matches!(p, Location::Arena(s) if overlap(s, scratch))) {
                    return Err(format!("the scratch memory of {value} overlaps its operands or its result"));
                }
                memory.spoil(scratch);
            }
            let asks = if node.op.is_copy() { 0 } else { device.scratch_bytes(graph, value) };
            if step.scratch.map_or(0, |s| s.bytes) != asks {
                return Err(format!("{value} does not get the scratch memory it asks for"));
            }
            memory.write(result, value);
            owner[value.index()] = Some(value);
            housed.iter().for_each(|(piece, _)| owner[piece.index()] = Some(value));
        }
        for output in graph.outputs() {
            readable(&memory, &host, &owner, output.value).map_err(|e| format!("output '{}': {e}", output.name))?;
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
