//! Which values have rows, which ops can be computed row by row, and how each level is cut.

use std::collections::BTreeMap;

use crate::graph::{Graph, Value};
use crate::op::Op;

use super::{Cutting, Level};

/// The rows of a value: its axis has `rows * unit` places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Rows of the image that it is, or was before it became a list of tokens.
    pub(super) rows: usize,
    /// Places of the axis for each row: 1 for an image, its width for a list of its pixels.
    pub(super) unit: usize,
}

/// How the values of a graph lie along the axis that is cut.
pub(super) struct Extents {
    /// By value.
    extents: Vec<Option<Extent>>,
    /// By value: its op can be computed for some of its rows.
    by_rows: Vec<bool>,
    /// Levels that are cut, by their rows.
    levels: BTreeMap<usize, Level>,
}

impl Extents {
    pub(super) fn new(graph: &Graph, cutting: &Cutting) -> Extents {
        let mut extents = vec![None; graph.nodes().len()];
        let mut by_rows = vec![false; graph.nodes().len()];
        for value in graph.values() {
            let inherited = inherit(graph, value, cutting.axis, &extents);
            by_rows[value.index()] = inherited.is_some();
            let size = graph.ty(value).shape.get(cutting.axis).copied();
            // What is computed whole, or comes from outside, has as many rows as its axis has places.
            let is_param = matches!(graph.node(value).op, Op::Param { .. });
            let own = || size.filter(|_| !is_param && graph.ty(value).shape.len() > cutting.axis + 1);
            extents[value.index()] = inherited.or_else(|| own().map(|rows| Extent { rows, unit: 1 }));
            if matches!(graph.node(value).op, Op::Input { .. }) {
                by_rows[value.index()] =
                    graph.ty(value).bytes() > cutting.buffer_bytes && extents[value.index()].is_some();
            }
        }
        let mut all = Extents { extents, by_rows, levels: BTreeMap::new() };
        let mut largest: BTreeMap<usize, u64> = BTreeMap::new();
        for value in graph.values() {
            if let Some(extent) = all.cuttable(value) {
                let most = largest.entry(extent.rows).or_default();
                *most = (*most).max(graph.ty(value).bytes());
            }
        }
        for (rows, bytes) in largest {
            let bands = bytes.div_ceil(cutting.band_bytes.max(1)).min(rows as u64) as usize;
            let height = rows.div_ceil(bands.max(1));
            if height < rows {
                all.levels.insert(rows, Level { rows, height });
            }
        }
        all
    }

    pub(super) fn of(&self, value: Value) -> Option<Extent> {
        self.extents[value.index()]
    }

    /// How a value is cut; `None` where it is whole.
    pub(super) fn level(&self, value: Value) -> Option<Level> {
        self.levels.get(&self.cuttable(value)?.rows).copied()
    }

    pub(super) fn levels(&self) -> impl DoubleEndedIterator<Item = Level> + '_ {
        self.levels.values().copied()
    }

    /// Bytes of the largest value that can be cut.
    pub(super) fn largest(&self, graph: &Graph) -> u64 {
        graph.values().filter(|&v| self.cuttable(v).is_some()).map(|v| graph.ty(v).bytes()).max().unwrap_or(0)
    }

    fn cuttable(&self, value: Value) -> Option<Extent> {
        self.extents[value.index()].filter(|_| self.by_rows[value.index()])
    }
}

/// The rows of a value whose op can be computed for some of them; `None` where it cannot.
fn inherit(graph: &Graph, value: Value, axis: usize, extents: &[Option<Extent>]) -> Option<Extent> {
    let node = graph.node(value);
    let of = |i: usize| extents[node.inputs[i].index()];
    let shape = |i: usize| &graph.ty(node.inputs[i]).shape;
    let rank = node.ty.shape.len();
    if rank <= axis + 1 {
        return None;
    }
    let new = Extent { rows: node.ty.shape[axis], unit: 1 };
    match &node.op {
        Op::Linear { fused, .. } if !fused.bias || axis > 0 => of(0),
        Op::Unary(_) | Op::Affine { .. } | Op::Geglu | Op::Cast | Op::Softmax => of(0),
        // Pictures may have factors of their own.
        Op::LayerNorm { .. } | Op::RmsNorm { .. } if axis > 0 || shape(1).len() == 1 => of(0),
        // Statistics are by line: the second axis.
        Op::GroupNorm { .. } | Op::Normalise { .. } if axis == 1 => of(0),
        Op::Conv2d { .. } if axis == 1 || axis == 2 => Some(new),
        Op::Upsample { .. } if axis == 1 || axis == 2 => Some(new),
        // A bias by query would have to be cut with them.
        Op::Attention { causal: false, bias, .. } if axis == 1 && (!bias || shape(3)[2] == 1) => of(0),
        Op::MatMul { .. } if axis + 2 == rank => of(0),
        Op::Binary(_) => {
            // Broadcast from the right; an operand that stretches along the axis has no rows to say.
            let fits = |i: &usize| shape(*i).len() == rank && shape(*i)[axis] == node.ty.shape[axis];
            (0..2).filter(fits).find_map(of)
        }
        Op::Concat { axis: along } if *along != axis => (0..node.inputs.len()).find_map(of),
        Op::Slice { axis: along, .. } if *along != axis => of(0),
        Op::Permute { axes } if axes[axis] == axis => of(0),
        Op::Reshape { .. } => {
            // What lies before the axis stays; then each row keeps its elements.
            let extent = of(0)?;
            let (from, to) = (shape(0), &node.ty.shape);
            let same = from.len() > axis && from[..axis] == to[..axis] && to[axis].is_multiple_of(extent.rows);
            same.then(|| Extent { rows: extent.rows, unit: to[axis] / extent.rows })
        }
        _ => None,
    }
}
