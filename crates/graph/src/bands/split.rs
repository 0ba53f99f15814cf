//! The graph in bands, written op by op.
//!
//! A value of the graph that is cut stands for one value (whole) or several (its bands). Everything is written when it is first needed and
//! remembered; [`order`] only decides what is asked for first: band by band as far as possible, so that a plan in the written order holds few
//! bands of what flows between two norms.

use std::collections::HashMap;
use std::ops::Range;

use crate::error::GraphError;
use crate::graph::{Graph, Value};
use crate::op::Op;

use super::extents::Extents;
use super::rows::Window;
use super::{Banded, Cut, Cuts, Cutting};

type Made = Result<Value, GraphError>;

pub(super) fn split(graph: &Graph, cutting: &Cutting, extents: &Extents) -> Result<Banded, GraphError> {
    let mut splitter = Splitter {
        from: graph,
        to: Graph::new(),
        axis: cutting.axis,
        extents,
        whole: vec![None; graph.nodes().len()],
        parts: HashMap::new(),
        statistics: HashMap::new(),
        factors: HashMap::new(),
        groups: norms(graph),
    };
    let mut inputs = vec![];
    // Inputs and parameters first, as they stand: the caller's names keep their order.
    for value in graph.values().filter(|&v| graph.node(v).op.is_source()) {
        match (&graph.node(value).op, splitter.ranges(value)) {
            (Op::Input { name }, Some(ranges)) => {
                inputs.push(Cut { name: name.clone(), parts: named(name, &ranges) });
                for i in 0..ranges.len() {
                    splitter.band(value, i)?;
                }
            }
            _ => {
                splitter.whole(value)?;
            }
        }
    }
    for (value, band) in order(graph, &splitter) {
        match band {
            Some(i) => splitter.band(value, i)?,
            None => splitter.whole(value)?,
        };
    }
    let mut outputs = vec![];
    for output in graph.outputs() {
        let large = graph.ty(output.value).bytes() > cutting.buffer_bytes;
        match splitter.ranges(output.value).filter(|_| large) {
            Some(ranges) => {
                let parts = named(&output.name, &ranges);
                for (i, (name, _)) in parts.iter().enumerate() {
                    let band = splitter.band(output.value, i)?;
                    splitter.to.output(name, band)?;
                }
                outputs.push(Cut { name: output.name.clone(), parts });
            }
            None => {
                let whole = splitter.whole(output.value)?;
                splitter.to.output(&output.name, whole)?;
            }
        }
    }
    let cuts = Cuts { axis: cutting.axis, levels: extents.levels().rev().collect(), inputs, outputs };
    Ok(Banded { graph: splitter.to, cuts })
}

fn named(name: &str, ranges: &[Range<usize>]) -> Vec<(String, Range<usize>)> {
    ranges.iter().map(|r| (format!("{name}[{}..{}]", r.start, r.end), r.clone())).collect()
}

/// By value: the groups of the norms that read it.
fn norms(graph: &Graph) -> Vec<Vec<usize>> {
    let mut groups = vec![vec![]; graph.nodes().len()];
    for node in graph.nodes() {
        if let Op::GroupNorm { groups: n, .. } = node.op {
            let list: &mut Vec<usize> = &mut groups[node.inputs[0].index()];
            if !list.contains(&n) {
                list.push(n);
            }
        }
    }
    groups
}

/// Whether an op needs all of an operand at once.
fn all_at_once(op: &Op, operand: usize) -> bool {
    match op {
        Op::GroupNorm { .. } => operand == 0,
        Op::Attention { .. } | Op::MatMul { .. } => operand > 0,
        _ => false,
    }
}

/// What is asked for first. A stage ends where something needs all of a value at once; inside a stage all that belongs to the upper rows comes
/// before what belongs to the lower ones.
fn order(graph: &Graph, splitter: &Splitter) -> Vec<(Value, Option<usize>)> {
    let needed = needed(graph);
    let stages = stages(graph, splitter.extents, &needed);
    let mut asked = vec![];
    for value in graph.values().filter(|&v| needed[v.index()] && !graph.node(v).op.is_source()) {
        let stage = stages[value.index()];
        match splitter.ranges(value) {
            // Compared as shares of the image, in 64-bit floats: it is only an order.
            Some(ranges) => asked.extend(ranges.iter().enumerate().map(|(i, r)| {
                let share = r.end as f64 / ranges[ranges.len() - 1].end as f64;
                (stage, share, value, Some(i))
            })),
            None => asked.push((stage, 0.0, value, None)),
        }
    }
    // Where these agree, what is written first comes first.
    asked.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    asked.into_iter().map(|(_, _, value, band)| (value, band)).collect()
}

/// Which values the results depend on.
fn needed(graph: &Graph) -> Vec<bool> {
    let mut needed = vec![false; graph.nodes().len()];
    graph.outputs().iter().for_each(|o| needed[o.value.index()] = true);
    for value in graph.values().rev() {
        if needed[value.index()] {
            graph.node(value).inputs.iter().for_each(|i| needed[i.index()] = true);
        }
    }
    needed
}

/// By value: the stage in which it is computed, as early as it can be; but what reads something that stays until a later stage anyway (the
/// shortcut around two convolutions) waits for that stage, band by band, so that the one replaces the other.
fn stages(graph: &Graph, extents: &Extents, needed: &[bool]) -> Vec<usize> {
    let cut = |value: Value| extents.level(value).is_some();
    let waits = |value: Value, i: usize| {
        let input = graph.node(value).inputs[i];
        usize::from(cut(input) && (all_at_once(&graph.node(value).op, i) || !cut(value)))
    };
    let mut stages = vec![0; graph.nodes().len()];
    let mut readers: Vec<Vec<(Value, usize)>> = vec![vec![]; graph.nodes().len()];
    for value in graph.values().filter(|v| needed[v.index()]) {
        for (i, &input) in graph.node(value).inputs.iter().enumerate() {
            stages[value.index()] = stages[value.index()].max(stages[input.index()] + waits(value, i));
            readers[input.index()].push((value, i));
        }
    }
    for value in graph.values().filter(|&v| needed[v.index()] && cut(v)) {
        let latest = readers[value.index()].iter().map(|&(reader, i)| stages[reader.index()] - waits(reader, i)).min();
        let stays = |input: Value| {
            let others = readers[input.index()].iter().filter(|(reader, _)| *reader != value);
            others.map(|(reader, _)| stages[reader.index()]).max().unwrap_or(0)
        };
        let until = graph.node(value).inputs.iter().filter(|&&i| cut(i)).map(|&i| stays(i)).min();
        if let (Some(latest), Some(until)) = (latest, until) {
            stages[value.index()] = stages[value.index()].max(until.min(latest));
        }
    }
    stages
}

struct Splitter<'a> {
    from: &'a Graph,
    to: Graph,
    axis: usize,
    extents: &'a Extents,
    /// By value of the graph that is cut: all of it.
    whole: Vec<Option<Value>>,
    /// Parts of values, by where they begin and end on the axis.
    parts: HashMap<(Value, usize, usize), Value>,
    /// Statistics of bands (or of a whole), by the number of groups.
    statistics: HashMap<(Value, usize), Value>,
    /// Factors of group norms, by the norm's value.
    factors: HashMap<Value, Value>,
    /// By value: the groups of the norms that read it.
    groups: Vec<Vec<usize>>,
}

impl Splitter<'_> {
    /// The places of the axis that each band of a value has; `None` where it is whole.
    fn ranges(&self, value: Value) -> Option<Vec<Range<usize>>> {
        let (level, extent) = (self.extents.level(value)?, self.extents.of(value)?);
        Some(level.ranges().map(|r| r.start * extent.unit..r.end * extent.unit).collect())
    }

    /// All of a value.
    fn whole(&mut self, value: Value) -> Made {
        if let Some(known) = self.whole[value.index()] {
            return Ok(known);
        }
        let node = self.from.node(value);
        let made = match (&node.op, self.ranges(value)) {
            (Op::Param { name, storage }, _) => self.to.param(name, node.ty.shape.clone(), *storage)?,
            (_, Some(ranges)) => {
                let bands = (0..ranges.len()).map(|i| self.band(value, i)).collect::<Result<Vec<_>, _>>()?;
                self.to.concat(self.axis, &bands)?
            }
            (Op::Input { name }, None) => self.to.input(name, node.ty.shape.clone(), node.ty.dtype)?,
            (op, None) => {
                let operands = node.inputs.iter().map(|&i| self.whole(i)).collect::<Result<Vec<_>, _>>()?;
                self.to.push(op.clone(), &operands, Some(node.ty.dtype))?
            }
        };
        self.whole[value.index()] = Some(made);
        Ok(made)
    }

    /// One band of a value that is cut.
    fn band(&mut self, value: Value, i: usize) -> Made {
        let ranges = self.ranges(value).unwrap_or_default();
        let band = self.part(value, ranges[i].clone())?;
        for groups in self.groups[value.index()].clone() {
            // Taken while the band is at hand.
            self.statistics(band, groups)?;
        }
        Ok(band)
    }

    /// The op of a value, for some places of the axis only.
    fn part(&mut self, value: Value, places: Range<usize>) -> Made {
        let key = (value, places.start, places.end);
        if let Some(&known) = self.parts.get(&key) {
            return Ok(known);
        }
        let made = self.write(value, places)?;
        self.parts.insert(key, made);
        Ok(made)
    }

    /// Some places of a value, wherever they lie now.
    fn places(&mut self, value: Value, places: Range<usize>) -> Made {
        let size = self.from.ty(value).shape[self.axis];
        let Some(ranges) = self.ranges(value) else {
            let whole = self.whole(value)?;
            return self.slice(whole, places.start, places.len(), size);
        };
        let mut pieces = vec![];
        for (i, range) in ranges.into_iter().enumerate() {
            let (start, end) = (range.start.max(places.start), range.end.min(places.end));
            if start >= end {
                continue;
            }
            let piece = if (start..end) != range && is_cheap(&self.from.node(value).op) {
                // A few rows again are less than keeping a band until its neighbour has read it.
                self.part(value, start..end)?
            } else {
                let band = self.band(value, i)?;
                self.slice(band, start - range.start, end - start, range.len())?
            };
            pieces.push(piece);
        }
        match pieces[..] {
            [one] => Ok(one),
            _ => self.to.concat(self.axis, &pieces),
        }
    }

    fn slice(&mut self, value: Value, start: usize, len: usize, size: usize) -> Made {
        if len == size { Ok(value) } else { self.to.slice(value, self.axis, start, len) }
    }

    fn write(&mut self, value: Value, places: Range<usize>) -> Made {
        let node = self.from.node(value);
        let dtype = Some(node.ty.dtype);
        let inputs = &node.inputs;
        let mut shape = node.ty.shape.clone();
        shape[self.axis] = places.len();
        let (op, operands) = match &node.op {
            Op::Input { name } => {
                return self.to.input(&format!("{name}[{}..{}]", places.start, places.end), shape, node.ty.dtype);
            }
            Op::Conv2d { stride, padding, upsample, fused } => {
                let side = self.axis - 1;
                let need = Window {
                    kernel: self.from.ty(inputs[1]).shape[2 + side],
                    stride: *stride,
                    upsample: *upsample,
                    before: padding[side],
                    rows: self.from.ty(inputs[0]).shape[self.axis],
                }
                .need(places.clone());
                let mut padding = *padding;
                (padding[side], padding[side + 2]) = (need.before, need.after);
                let mut operands = vec![self.places(inputs[0], need.rows)?];
                self.rest(inputs, fused.residual, places, &mut operands)?;
                (Op::Conv2d { stride: *stride, padding, upsample: *upsample, fused: *fused }, operands)
            }
            Op::Linear { fused, .. } => {
                let mut operands = vec![self.places(inputs[0], places.clone())?];
                self.rest(inputs, fused.residual, places, &mut operands)?;
                (node.op.clone(), operands)
            }
            Op::GroupNorm { activation, .. } => {
                let factors = self.factors(value)?;
                let x = self.places(inputs[0], places)?;
                (Op::Normalise { activation: *activation }, vec![x, factors])
            }
            Op::Upsample { factor } => return self.upsample(value, *factor, places),
            Op::Attention { .. }
            | Op::MatMul { .. }
            | Op::Normalise { .. }
            | Op::LayerNorm { .. }
            | Op::RmsNorm { .. } => {
                let mut operands = vec![self.places(inputs[0], places)?];
                for &input in &inputs[1..] {
                    operands.push(self.whole(input)?);
                }
                (node.op.clone(), operands)
            }
            Op::Reshape { .. } => {
                let unit = |v: Value| self.extents.of(v).map_or(1, |e| e.unit);
                let (from, to) = (unit(inputs[0]), unit(value));
                let x = self.places(inputs[0], places.start / to * from..places.end / to * from)?;
                (Op::Reshape { shape }, vec![x])
            }
            Op::Binary(_) => (node.op.clone(), self.broadcast_operands(value, &places)?),
            op => {
                let operands = inputs.iter().map(|&i| self.places(i, places.clone())).collect::<Result<Vec<_>, _>>()?;
                (op.clone(), operands)
            }
        };
        self.to.push(op, &operands, dtype)
    }

    /// Whole rows enlarged, of which the places are taken.
    fn upsample(&mut self, value: Value, factor: usize, places: Range<usize>) -> Made {
        let node = self.from.node(value);
        let rows = places.start / factor..places.end.div_ceil(factor);
        let (skipped, size) = (places.start - rows.start * factor, rows.len() * factor);
        let x = self.places(node.inputs[0], rows)?;
        let larger = self.to.push(node.op.clone(), &[x], Some(node.ty.dtype))?;
        self.slice(larger, skipped, places.len(), size)
    }

    /// The operands of an op that broadcasts. Shapes are aligned from the right; what stretches along the axis, or does not have it, is the
    /// same for all bands.
    fn broadcast_operands(&mut self, value: Value, places: &Range<usize>) -> Result<Vec<Value>, GraphError> {
        let node = self.from.node(value);
        let shape = &node.ty.shape;
        let mut operands = vec![];
        for &input in &node.inputs {
            let own = &self.from.ty(input).shape;
            let axis = (self.axis + own.len()).checked_sub(shape.len());
            operands.push(match axis.filter(|&axis| own[axis] == shape[self.axis]) {
                Some(axis) if axis == self.axis => self.places(input, places.clone())?,
                Some(axis) => {
                    let whole = self.whole(input)?;
                    self.to.slice(whole, axis, places.start, places.len())?
                }
                None => self.whole(input)?,
            });
        }
        Ok(operands)
    }

    /// Weights and bias of a product whole, its residual for these places.
    fn rest(
        &mut self,
        inputs: &[Value],
        residual: bool,
        places: Range<usize>,
        operands: &mut Vec<Value>,
    ) -> Result<(), GraphError> {
        for (i, &input) in inputs.iter().enumerate().skip(1) {
            operands.push(match residual && i + 1 == inputs.len() {
                true => self.places(input, places.clone())?,
                false => self.whole(input)?,
            });
        }
        Ok(())
    }

    fn statistics(&mut self, of: Value, groups: usize) -> Made {
        if let Some(&known) = self.statistics.get(&(of, groups)) {
            return Ok(known);
        }
        let made = self.to.push(Op::LineStatistics { groups }, &[of], None)?;
        self.statistics.insert((of, groups), made);
        Ok(made)
    }

    /// What a group norm does to each channel, from all lines of its operand.
    fn factors(&mut self, norm: Value) -> Made {
        if let Some(&known) = self.factors.get(&norm) {
            return Ok(known);
        }
        let node = self.from.node(norm);
        let Op::GroupNorm { groups, eps, .. } = node.op else { unreachable!("called for group norms") };
        let x = node.inputs[0];
        let pieces = match self.ranges(x) {
            Some(ranges) => (0..ranges.len()).map(|i| self.band(x, i)).collect::<Result<Vec<_>, _>>()?,
            None => vec![self.whole(x)?],
        };
        let stats = pieces.into_iter().map(|piece| self.statistics(piece, groups)).collect::<Result<Vec<_>, _>>()?;
        let stats = if let [one] = stats[..] { one } else { self.to.concat(1, &stats)? };
        let pixels = self.from.ty(x).shape[2..self.from.ty(x).shape.len() - 1].iter().product();
        let (gamma, beta) = (self.whole(node.inputs[1])?, self.whole(node.inputs[2])?);
        let made = self.to.push(Op::NormFactors { pixels, eps }, &[stats, gamma, beta], None)?;
        self.factors.insert(norm, made);
        Ok(made)
    }
}

/// Ops that touch each element once.
fn is_cheap(op: &Op) -> bool {
    matches!(
        op,
        Op::GroupNorm { .. }
            | Op::Normalise { .. }
            | Op::LayerNorm { .. }
            | Op::RmsNorm { .. }
            | Op::Unary(_)
            | Op::Affine { .. }
            | Op::Cast
    )
}
