//! Linear layers that end with GEGLU: the product lies in scratch memory until a second kernel makes the result of it.

use std::ops::Range;

use impasto_graph::{Capabilities, DType, Graph, Op, TensorType, Value};

use super::GpuProfile;
use super::kernels::elementwise::gated_gelu;
use super::kernels::gemm::Gemm;
use super::kernels::groups_of_lines;
use super::linear::{gates_sums, product, sums_bytes};
use super::session::Env;
use super::{Binding, Run, Runs};
use crate::shapes::epilogue;

/// Bytes of a product above which it is computed in parts of its rows: as one tensor it would be the largest of a network.
const MOST_BYTES: u64 = 32 << 20;
/// Parts begin at multiples of these rows, so that they begin where a kernel can reach, whatever a row has.
const ROWS: usize = 128;

/// A product that waits for its gates.
pub(super) struct Ungated {
    pub(super) dtype: DType,
    columns: usize,
    /// All rows, and those of a part.
    rows: usize,
    part: usize,
}

impl Ungated {
    pub(super) fn of(device: &GpuProfile, graph: &Graph, value: Value) -> Option<Ungated> {
        let node = graph.node(value);
        let Op::Linear { fused, geglu: true } = node.op else { return None };
        let x = graph.ty(node.inputs[0]);
        if gates_sums(device, x.dtype, [x.rows(), node.ty.channels(), x.channels()]) {
            return None;
        }
        // As it would be stored between two ops; but a result in more than 16 bits is made of as many.
        let dtype = if device.number() == node.ty.dtype { node.ty.dtype } else { DType::F32 };
        let (rows, columns) = (node.ty.rows(), 2 * node.ty.channels());
        // A bias for each picture is found by the row of the whole.
        let whole = fused.bias && graph.ty(node.inputs[2]).shape.len() == 2;
        let most = if whole { u64::MAX } else { MOST_BYTES.min(device.limits().max_binding).max(1) };
        // A power of two divides what networks have: then all parts have one kernel.
        let parts = TensorType::new([rows, columns], dtype).bytes().div_ceil(most).next_power_of_two();
        let part = rows.div_ceil(parts.min(rows as u64) as usize).next_multiple_of(ROWS).min(rows);
        Some(Ungated { dtype, columns, rows, part })
    }

    /// A part of it.
    pub(super) fn ty(&self) -> TensorType {
        TensorType::new([self.part, self.columns], self.dtype)
    }

    fn parts(&self) -> impl Iterator<Item = Range<usize>> {
        (0..self.rows).step_by(self.part).map(|row| row..self.rows.min(row + self.part))
    }

    /// Bytes of a part, such that what follows it is aligned.
    fn bytes(&self, device: &GpuProfile) -> u64 {
        self.ty().bytes().next_multiple_of(device.alignment())
    }

    /// Bytes of a part, and for parts of sums.
    pub(super) fn scratch(&self, device: &GpuProfile, gemm: &Gemm) -> u64 {
        let sums = self.parts().map(|rows| sums_bytes(device, &Gemm { m: rows.len() as u32, ..*gemm }));
        self.bytes(device) + sums.max().unwrap_or(0)
    }

    /// The runs, part after part.
    pub(super) fn runs(&self, env: &Env, value: Value, gemm: &Gemm, [left, right]: [Binding; 2]) -> Runs {
        let (device, graph) = (env.profile, env.graph);
        let Op::Linear { fused, .. } = graph.node(value).op else { unreachable!("only linear layers have gates") };
        let (bias, residual) = epilogue(graph, value, fused);
        let x = graph.node(value).inputs[0];
        let rows_of = |part: Binding, v: Value, rows: &Range<usize>| {
            let row = graph.ty(v).channels() as u64 * graph.ty(v).dtype.bytes();
            part.within(rows.start as u64 * row, rows.len() as u64 * row)
        };
        let mut runs = vec![];
        for rows in self.parts() {
            let gemm = Gemm { m: rows.len() as u32, ..*gemm };
            let wide = env.scratch(0, rows.len() as u64 * self.columns as u64 * self.dtype.bytes());
            let sums = env.scratch(self.bytes(device), sums_bytes(device, &gemm));
            let factors = [rows_of(left, x, &rows), right];
            let rest = bias.map(|b| env.binding(b)).into_iter().chain([wide]).collect();
            runs.extend(product(device, &gemm, factors, rest, sums)?);
            let residual = residual.map(|r| (rows_of(env.binding(r), r, &rows), graph.ty(r).dtype));
            let ty = TensorType::new([rows.len(), self.columns / 2], graph.ty(value).dtype);
            runs.push(gate((wide, self.dtype), residual, rows_of(env.binding(value), value, &rows), &ty)?);
        }
        Ok(runs)
    }
}

/// GEGLU of numbers, plus others, into a tensor of this type.
pub(super) fn gate(
    x: (Binding, DType),
    residual: Option<(Binding, DType)>,
    out: Binding,
    ty: &TensorType,
) -> Result<Run, impasto_kernel::KernelError> {
    let added = residual.as_ref().map(|r| r.1);
    let kernel = gated_gelu(ty.rows() as u32, ty.channels() as u32, x.1, added, ty.dtype)?;
    let bindings = [x.0].into_iter().chain(residual.map(|r| r.0)).chain([out]).collect();
    Ok(Run { kernel, bindings, groups: groups_of_lines(ty.elements()) })
}
