//! Exact bands: the same computation with large images cut into bands of rows, each a value of its own.
//!
//! [`Banded::new`] reads a graph and writes an equivalent one. `extents` finds which values have rows and how each level of resolution is
//! cut; `rows` is the bookkeeping of windows, strides and enlargement; `split` writes the new graph. What each op becomes:
//!
//! - a **convolution** reads the rows under its window from the neighbouring bands and pads only where the image ends;
//! - **group norm** takes the statistics of each line where the line lies, combines them in the order of the lines, and norms each band;
//! - **attention** takes the queries of a band; keys and values stay whole;
//! - what works on each row or element by itself works on each band;
//! - anything else is computed whole, from bands put together.
//!
//! Nothing is computed twice but element-wise ops and norms of the few rows that a neighbour's window reads. Every sum is added up in the
//! same order as before, so a backend whose sums do not depend on the number of rows yields the same bits.
//!
//! Inputs and outputs keep their types, unless one alone is larger than a buffer may be. Then it is several inputs or outputs, one for
//! each band, called `name[start..end]`; [`Cuts`] says which.
//!
//! ```
//! use impasto_graph::{Anything, Banded, Cutting, DType, Epilogue, Graph, Storage, Window};
//! let mut g = Graph::new();
//! let x = g.input("x", [1, 64, 64, 16], DType::F32)?;
//! let w = g.param("w", [16, 16, 3, 3], Storage::Dense(DType::F32))?;
//! let y = g.conv2d(x, w, Window::pad(1), Epilogue::new())?;
//! let y = g.affine(y, 2.0, 0.0)?;
//! g.output("y", y)?;
//! let banded = Banded::new(&g, &Cutting { band_bytes: 64 * 1024, ..Cutting::default() })?;
//! assert_eq!(banded.cuts.bands(), 4);
//! # Ok::<(), impasto_graph::GraphError>(())
//! ```

mod cuts;
mod extents;
mod rows;
mod split;

use std::ops::Range;

use crate::error::{GraphError, PlanError};
use crate::graph::Graph;
use crate::plan::{Capabilities, May, Need, Plan};

pub use cuts::{Cut, Cuts};
use extents::Extents;

/// How large a band may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cutting {
    /// The axis that is cut: 1 for the rows of images.
    pub axis: usize,
    /// Bytes that a band should not exceed. A value with fewer stays whole, unless another one of its resolution is cut.
    pub band_bytes: u64,
    /// Bytes that an input or output may have; a larger one is several of them.
    pub buffer_bytes: u64,
}

impl Default for Cutting {
    /// Rows, and no limits.
    fn default() -> Self {
        Cutting { axis: 1, band_bytes: u64::MAX, buffer_bytes: u64::MAX }
    }
}

impl Cutting {
    /// So many bands of the largest value that can be cut, and of the others as many as their share.
    pub fn bands(graph: &Graph, bands: u64) -> Cutting {
        let whole = Cutting::default();
        let largest = Extents::new(graph, &whole).largest(graph);
        Cutting { band_bytes: largest.div_ceil(bands.max(1)).max(1), ..whole }
    }
}

/// How values of one resolution are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Rows of the whole.
    pub rows: usize,
    /// Rows of a band; the last may have fewer.
    pub height: usize,
}

impl Level {
    /// Bands of this level.
    pub fn bands(&self) -> usize {
        self.rows.div_ceil(self.height)
    }

    /// The rows of each band.
    pub fn ranges(&self) -> impl DoubleEndedIterator<Item = Range<usize>> + use<> {
        let Level { rows, height } = *self;
        (0..rows.div_ceil(height)).map(move |i| i * height..rows.min((i + 1) * height))
    }
}

/// A graph in bands.
#[derive(Clone, Debug)]
pub struct Banded {
    /// The graph.
    pub graph: Graph,
    /// How it was cut.
    pub cuts: Cuts,
}

/// No more bands than this: with more, the rows between bands cost more than they save.
const MOST_BANDS: u64 = 128;

impl Banded {
    /// Cut a graph.
    pub fn new(graph: &Graph, cutting: &Cutting) -> Result<Banded, GraphError> {
        let extents = Extents::new(graph, cutting);
        split::split(graph, cutting, &extents)
    }

    /// The largest bands that fit a device, with their plan: as few as the device's limits allow, and at least so many. The refusal, if
    /// there is one, is that of the smallest bands.
    pub fn fit(graph: &Graph, device: &dyn Capabilities, least: u64, may: May) -> Result<(Banded, Plan), PlanError> {
        let limits = device.limits();
        let buffer_bytes = limits.max_binding.min(limits.max_allocation);
        let largest = Extents::new(graph, &Cutting::default()).largest(graph);
        let attempt = |bands: u64| -> Result<(Banded, Plan), PlanError> {
            let cutting = Cutting { buffer_bytes, ..Cutting::bands(graph, bands) };
            let banded = Banded::new(graph, &cutting).map_err(|e| PlanError::Unsupported {
                label: "bands".into(),
                op: "graph",
                reason: e.to_string(),
            })?;
            // The last refusal is told; the others only guide the search.
            let need = if bands >= MOST_BANDS { Need::Exact } else { Need::LowerBound };
            let (graph, plan) = Plan::fit_or_refuse(banded.graph, device, may, need)?;
            Ok((Banded { graph, ..banded }, plan))
        };
        // Fewer bands than this cannot fit one buffer each.
        let least = largest.div_ceil(buffer_bytes.max(1)).max(least).clamp(1, MOST_BANDS);
        let (mut too_few, mut bands) = (least - 1, least);
        let mut fits = loop {
            match attempt(bands) {
                Ok(found) => break found,
                Err(e) if bands >= MOST_BANDS || e.is_fault() => return Err(e),
                Err(_) => (too_few, bands) = (bands, (2 * bands).min(MOST_BANDS)),
            }
        };
        while bands - too_few > 1 {
            let middle = too_few + (bands - too_few) / 2;
            match attempt(middle) {
                Ok(found) => (fits, bands) = (found, middle),
                Err(e) if e.is_fault() => return Err(e),
                Err(_) => too_few = middle,
            }
        }
        Ok(fits)
    }
}
