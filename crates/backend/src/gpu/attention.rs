//! Scaled-dot-product attention.

use impasto_graph::{Capabilities, DType, Graph, Op, Value};
use impasto_kernel::KernelError;

use super::GpuProfile;
use super::kernels::flash::Flash;
use super::kernels::gemm::Gemm;
use super::kernels::warpgroup::MatrixProduct;
use super::kernels::warpgroup_flash::WarpgroupFlash;
use super::kernels::{attention, groups, norm};
use super::session::Env;
use super::{Binding, Run, Runs};
use crate::shapes::Heads;

/// Bytes of scores that wide heads may take at a time.
const MOST_SCORES: u64 = 64 << 20;

pub(super) fn prepare(env: &Env, value: Value) -> Runs {
    let heads = Heads::of(env.graph, value);
    let [q, k, v] = [0, 1, 2].map(|i| env.ty(env.operand(value, i)).dtype);
    let to = env.ty(value).dtype;
    if let Some(wide) = Wide::new(env.profile, env.graph, value) {
        return wide.runs(env, value);
    }
    if env.profile.units().is_some_and(|units| units.warpgroups)
        && let Some(flash) = WarpgroupFlash::new(&heads, [q, k, v])
    {
        return Ok(env.run(value, flash.kernel(to)?, flash.groups()));
    }
    if let Some(flash) = env.profile.units().and_then(|units| Flash::new(&heads, [q, k, v], units)) {
        return Ok(env.run(value, flash.kernel(to)?, flash.groups()));
    }
    let kernel = attention::attention(&heads, [q, k, v, to])?;
    Ok(env.run(value, kernel, attention::workgroups(&heads)))
}

pub(super) fn scratch(device: &GpuProfile, graph: &Graph, value: Value) -> u64 {
    Wide::new(device, graph, value).map_or(0, |wide| wide.bytes().iter().sum())
}

/// One head that is too wide for a running softmax: scores of some queries, their softmax, and the values, one after the other, with
/// matrix units.
struct Wide {
    heads: Heads,
    /// Queries at a time.
    rows: usize,
    scores: MatrixProduct,
    values: MatrixProduct,
}

impl Wide {
    fn new(device: &GpuProfile, graph: &Graph, value: Value) -> Option<Wide> {
        let h = Heads::of(graph, value);
        let types = [0, 1, 2].map(|i| graph.ty(graph.node(value).inputs[i]).dtype);
        // Parts of tensors begin where a binding may begin.
        let whole = |rows: usize, width: usize| ((2 * rows * width) as u64).is_multiple_of(device.alignment());
        let few = (MOST_SCORES / (4 * h.keys.max(1) as u64)).next_power_of_two() / 2;
        let rows = (few.max(64) as usize).min(h.queries);
        let aligned = whole(rows, h.width) && whole(h.queries, h.width) && whole(h.keys, h.width);
        let aligned =
            aligned && whole(rows, h.value_width) && whole(h.queries, h.value_width) && whole(h.keys, h.value_width);
        if h.heads != 1
            || h.causal
            || h.bias.is_some()
            || h.width <= 160
            || types != [device.number(); 3]
            || device.number() == DType::F32
            || !aligned
            || !h.queries.is_multiple_of(rows)
        {
            return None;
        }
        let [m, keys, width, value_width] = [rows, h.keys, h.width, h.value_width].map(|n| n as u32);
        let scores = Gemm { scale: h.scale, ..Gemm::of_rows([m, keys, width], [device.number(); 2]) };
        let out = graph.ty(value).dtype;
        let values = Gemm { n: value_width, depth: keys, right_transposed: false, scale: 1.0, out, ..scores };
        let units = device.units()?;
        Some(Wide {
            heads: h,
            rows,
            scores: MatrixProduct::new(&scores, units)?,
            values: MatrixProduct::new(&values, units)?,
        })
    }

    /// Scores, weights, and parts of split sums.
    fn bytes(&self) -> [u64; 3] {
        let scores = (self.rows * self.heads.keys) as u64;
        let parts = self.scores.scratch_bytes().max(self.values.scratch_bytes());
        [4 * scores, 2 * scores, parts].map(|bytes| bytes.next_multiple_of(256))
    }

    fn runs(&self, env: &Env, value: Value) -> Runs {
        let h = &self.heads;
        let [for_scores, for_weights, for_parts] = self.bytes();
        let scores = env.scratch(0, for_scores);
        let weights = env.scratch(for_scores, for_weights);
        let parts = env.scratch(for_scores + for_weights, for_parts);
        let [q, k, v] = [0, 1, 2].map(|i| env.binding(env.operand(value, i)));
        let out = env.binding(value);
        let out_bytes = env.ty(value).dtype.bytes() as usize;
        let softmax =
            norm::by_row(&Op::Softmax, [self.rows as u32, h.keys as u32, 1], &[DType::F32], env.profile.number())?;
        let some = |part: Binding, first: usize, rows: usize, bytes: usize| {
            part.within((first * bytes) as u64, (rows * bytes) as u64)
        };
        let mut runs: Vec<Run> = vec![];
        for picture in 0..h.batch {
            let keys = some(k, picture * h.keys, h.keys, 2 * h.width);
            let values = some(v, picture * h.keys, h.keys, 2 * h.value_width);
            for first in (0..h.queries).step_by(self.rows) {
                let at = picture * h.queries + first;
                let queries = some(q, at, self.rows, 2 * h.width);
                let result = some(out, at, self.rows, out_bytes * h.value_width);
                runs.extend(self.scores.runs([queries, keys], vec![scores], parts)?);
                let (kernel, groups) = (softmax.clone(), groups(self.rows as u64));
                runs.push(Run { kernel, bindings: vec![scores, weights], groups });
                runs.extend(self.values.runs([weights, values], vec![result], parts)?);
            }
        }
        Ok::<_, KernelError>(runs)
    }
}
