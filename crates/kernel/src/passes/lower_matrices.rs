//! Lowers matrices to scalars, for devices that have none of that shape: each lane of a subgroup holds every `size`-th element, so that a matrix is
//! an array of scalars, and only a product makes lanes meet. For it the factors are laid out in workgroup memory, as f32, one place for
//! each subgroup, between two barriers of the subgroup; then each lane adds up its own elements, in the order that the op table gives. Results
//! are those of the matrices, bit by bit.
//!
//! The size of a subgroup is known when the kernel runs; here only the smallest is. A share is as large as that needs, and its last elements
//! may lie after the end of the matrix: they are read as the last element, and not written.
//!
//! Cost: linear in what is written, which is the elements of a share for each matrix op.

use super::rewrite::{Rewrite, Rule};
use crate::error::KernelError;
use crate::hash::Map;
use crate::ir::{
    BinaryOp, Builtin, Compare, Kernel, MAX_SCALARS, Matrix, MatrixLayout, MemoryDecl, MemoryId, OpId, OpKind,
    RegionId, Scalar, Shape, Space, Ty, Value,
};
use crate::verify::verify;

const U32: Ty = Ty::scalar(Scalar::U32);
const F32: Ty = Ty::scalar(Scalar::F32);
const BOOL: Ty = Ty::scalar(Scalar::Bool);

/// One element of a lane's share.
#[derive(Clone, Copy)]
struct Element {
    /// Its number in the order of rows, and whether there is one.
    number: Value,
    exists: Value,
    row: Value,
    column: Value,
}

struct Matrices {
    /// The lane's share of matrices with so many rows and columns.
    shares: Map<(u32, u32), Vec<Element>>,
    /// Where factors are laid out, and where in it this subgroup's place begins.
    scratch: Option<(MemoryId, Value)>,
}

/// Elements in a lane's share.
fn share(m: Matrix, smallest: u32) -> u32 {
    m.elements().div_ceil(smallest)
}

fn binary(rw: &mut Rewrite<'_>, f: BinaryOp, ty: Ty, a: Value, b: Value) -> Value {
    rw.asm.value(OpKind::Binary(f), &[a, b], ty)
}

fn number(rw: &mut Rewrite<'_>, x: u32) -> Value {
    rw.asm.constant(Scalar::U32, x.into())
}

/// `x * y + z` of indices.
fn index(rw: &mut Rewrite<'_>, x: Value, y: Value, z: Value) -> Value {
    let product = binary(rw, BinaryOp::Mul, U32, x, y);
    binary(rw, BinaryOp::Add, U32, product, z)
}

/// `if condition { .. }`
fn when(rw: &mut Rewrite<'_>, condition: Value, body: impl FnOnce(&mut Rewrite<'_>)) {
    rw.asm.open(&[]);
    body(rw);
    rw.asm.push(OpKind::Yield, &[], &[]);
    let then = rw.asm.close();
    rw.asm.open(&[]);
    rw.asm.push(OpKind::Yield, &[], &[]);
    let other = rw.asm.close();
    rw.asm.push_structure(OpKind::If, &[condition], &[], &[then, other]);
}

fn convert(rw: &mut Rewrite<'_>, x: Value, from: Scalar, to: Scalar) -> Value {
    if from == to {
        return x;
    }
    // bf16 converts by way of f32.
    let middle = if from == Scalar::Bf16 || to == Scalar::Bf16 { Scalar::F32 } else { to };
    let x = if from == middle { x } else { rw.asm.value(OpKind::Convert, &[x], Ty::scalar(middle)) };
    if to == middle { x } else { rw.asm.value(OpKind::Convert, &[x], Ty::scalar(to)) }
}

/// A scalar of a memory of scalars or vectors.
fn scalar_at(rw: &mut Rewrite<'_>, m: MemoryId, held: u32, at: Value) -> Value {
    let ty = rw.old.memory(m).ty;
    if held == 1 {
        return rw.asm.value(OpKind::Load(m), &[at], ty);
    }
    let lanes = number(rw, held);
    let place = binary(rw, BinaryOp::Div, U32, at, lanes);
    let lane = binary(rw, BinaryOp::Rem, U32, at, lanes);
    let vector = rw.asm.value(OpKind::Load(m), &[place], ty);
    let of = ty.lanes().map_or(F32, |(s, _)| Ty::scalar(s));
    let mut found = rw.asm.value(OpKind::Extract(0), &[vector], of);
    for i in 1..held {
        let this = number(rw, i);
        let is_it = rw.asm.value(OpKind::Compare(Compare::Eq), &[lane, this], BOOL);
        let component = rw.asm.value(OpKind::Extract(i), &[vector], of);
        found = rw.asm.value(OpKind::Select, &[is_it, component, found], of);
    }
    found
}

impl Matrices {
    /// Where this lane's elements are, at the front of the kernel.
    fn begin(&mut self, rw: &mut Rewrite<'_>, smallest: u32) {
        let lane = rw.asm.value(OpKind::Builtin(Builtin::SubgroupLane, 0), &[], U32);
        let size = rw.asm.value(OpKind::Builtin(Builtin::SubgroupSize, 0), &[], U32);
        for i in 0..rw.old.shape_count() {
            let Some(m) = rw.old.matrix(Ty::from_table(i)) else { continue };
            if self.shares.contains_key(&(m.rows, m.columns)) {
                continue;
            }
            let (end, last) = (number(rw, m.elements()), number(rw, m.elements() - 1));
            let columns = number(rw, m.columns);
            let mut elements = Vec::new();
            for i in 0..share(m, smallest) {
                let iteration = number(rw, i);
                let raw = index(rw, iteration, size, lane);
                let exists = rw.asm.value(OpKind::Compare(Compare::Lt), &[raw, end], BOOL);
                let number = binary(rw, BinaryOp::Min, U32, raw, last);
                let row = binary(rw, BinaryOp::Div, U32, number, columns);
                let column = binary(rw, BinaryOp::Rem, U32, number, columns);
                elements.push(Element { number, exists, row, column });
            }
            self.shares.insert((m.rows, m.columns), elements);
        }
    }

    fn share(&self, m: Matrix) -> &[Element] {
        self.shares.get(&(m.rows, m.columns)).map_or(&[], |s| s)
    }

    /// The elements of a matrix that this lane holds.
    fn take(&self, rw: &mut Rewrite<'_>, m: Matrix, v: Value) -> Vec<Value> {
        let extract = |i| rw.asm.value(OpKind::Extract(i), &[v], Ty::scalar(m.scalar));
        (0..self.share(m).len() as u32).map(extract).collect()
    }

    /// Where the elements lie in memory, counted in scalars.
    fn places(&self, rw: &mut Rewrite<'_>, m: Matrix, layout: MatrixLayout, from: Value, stride: Value) -> Vec<Value> {
        let mut places = Vec::new();
        for e in self.share(m) {
            let (strides, rest) = if layout == MatrixLayout::Row { (e.row, e.column) } else { (e.column, e.row) };
            let begin = index(rw, strides, stride, from);
            places.push(binary(rw, BinaryOp::Add, U32, begin, rest));
        }
        places
    }

    /// Lays a factor out where the whole subgroup sees it.
    fn lay_out(&self, rw: &mut Rewrite<'_>, m: Matrix, v: Value, to: MemoryId, begin: Value) {
        for (e, x) in self.share(m).iter().zip(self.take(rw, m, v)) {
            let x = convert(rw, x, m.scalar, Scalar::F32);
            let at = binary(rw, BinaryOp::Add, U32, begin, e.number);
            when(rw, e.exists, |rw| {
                rw.asm.push(OpKind::Store(to), &[at, x], &[]);
            });
        }
    }

    fn mul_add(&self, rw: &mut Rewrite<'_>, shapes: [Matrix; 3], args: &[Value]) -> Vec<Value> {
        let Some((scratch, begin)) = self.scratch else { return Vec::new() };
        let [a, b, c] = shapes;
        let (size, zero) = (number(rw, a.elements()), number(rw, 0));
        let b_begin = binary(rw, BinaryOp::Add, U32, begin, size);
        // Nobody may still be reading the factors of the product before.
        rw.asm.push(OpKind::SubgroupBarrier, &[], &[]);
        self.lay_out(rw, a, args[0], scratch, begin);
        self.lay_out(rw, b, args[1], scratch, b_begin);
        rw.asm.push(OpKind::SubgroupBarrier, &[], &[]);
        let (length, columns) = (number(rw, a.columns), number(rw, b.columns));
        let rows: Vec<Value> = self.share(c).iter().map(|e| index(rw, e.row, length, begin)).collect();
        let sums = self.take(rw, c, args[2]);
        let sums = sums.into_iter().map(|x| convert(rw, x, c.scalar, Scalar::F32));
        let all: Vec<Value> = [zero, length].into_iter().chain(sums).collect();
        let types = vec![F32; rows.len()];
        let region = rw.asm.open(&[&[U32][..], &types].concat());
        let inner: Vec<Value> = rw.asm.kernel.region_args(region).collect();
        let line = index(rw, inner[0], columns, b_begin);
        let mut next = Vec::new();
        for ((e, row), &sum) in self.share(c).iter().zip(rows).zip(&inner[1..]) {
            let left = binary(rw, BinaryOp::Add, U32, row, inner[0]);
            let right = binary(rw, BinaryOp::Add, U32, line, e.column);
            let x = rw.asm.value(OpKind::Load(scratch), &[left], F32);
            let y = rw.asm.value(OpKind::Load(scratch), &[right], F32);
            let product = binary(rw, BinaryOp::Mul, F32, x, y);
            next.push(binary(rw, BinaryOp::Add, F32, sum, product));
        }
        rw.asm.push(OpKind::Continue(region), &next, &[]);
        rw.asm.close();
        let done = rw.asm.push_structure(OpKind::For(1), &all, &types, &[region]);
        let sums: Vec<Value> = rw.asm.kernel.results(done).collect();
        sums.into_iter().map(|x| convert(rw, x, Scalar::F32, c.scalar)).collect()
    }

    /// What an op on matrices makes: this lane's elements, if it makes any.
    fn elements(&self, rw: &mut Rewrite<'_>, op: OpId, of: Matrix) -> Vec<Value> {
        let old = rw.old;
        let args = rw.args(op);
        let shape = |i: usize| old.matrix(old.ty(old.args(op)[i])).unwrap_or(of);
        let element = Ty::scalar(of.scalar);
        match old.kind(op) {
            OpKind::MatrixLoad(m, layout) => {
                let held = old.memory(m).ty.lanes().map_or(1, |(_, n)| n);
                let [from, stride] = [args[0], args[1]].map(|v| match held {
                    1 => v,
                    _ => {
                        let by = number(rw, held);
                        binary(rw, BinaryOp::Mul, U32, v, by)
                    }
                });
                let places = self.places(rw, of, layout, from, stride);
                places.into_iter().map(|at| scalar_at(rw, m, held, at)).collect()
            }
            OpKind::MatrixFill => vec![args[0]; self.share(of).len()],
            OpKind::MatrixMulAdd => self.mul_add(rw, [shape(0), shape(1), of], &args),
            OpKind::Convert => {
                let all = self.take(rw, shape(0), args[0]);
                all.into_iter().map(|x| convert(rw, x, shape(0).scalar, of.scalar)).collect()
            }
            kind => {
                let x = self.take(rw, of, args[0]);
                let (f, y) = match kind {
                    OpKind::Binary(f) => (f, self.take(rw, of, args[1])),
                    _ => (BinaryOp::Mul, vec![args[1]; x.len()]),
                };
                x.into_iter().zip(y).map(|(x, y)| binary(rw, f, element, x, y)).collect()
            }
        }
    }

    fn store(&self, rw: &mut Rewrite<'_>, op: OpId, to: MemoryId, layout: MatrixLayout) {
        let args = rw.args(op);
        let Some(m) = rw.old.matrix(rw.old.ty(rw.old.args(op)[2])) else { return };
        let places = self.places(rw, m, layout, args[0], args[1]);
        let elements = self.take(rw, m, args[2]);
        for ((e, at), x) in self.share(m).iter().zip(places).zip(elements) {
            when(rw, e.exists, |rw| {
                rw.asm.push(OpKind::Store(to), &[at, x], &[]);
            });
        }
    }
}

impl Rule for Matrices {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let old = rw.old;
        let made = old.results(op).next().and_then(|v| old.matrix(old.ty(v)));
        match (old.kind(op), made) {
            (OpKind::MatrixStore(m, layout), _) => self.store(rw, op, m, layout),
            (kind, Some(of)) if kind.is_matrix() || matches!(kind, OpKind::Binary(_) | OpKind::Convert) => {
                let elements = self.elements(rw, op, of);
                let whole = rw.asm.value(OpKind::Make, &elements, old.ty(old.result(op)));
                rw.replace(op, whole);
            }
            _ => rw.copy(self, op),
        }
    }
}

/// The most elements that the factors of one product have.
fn largest_factors(k: &Kernel, r: RegionId) -> u32 {
    let of = |&op: &OpId| {
        let own = match (k.kind(op), k.args(op)) {
            (OpKind::MatrixMulAdd, args) => {
                args[..2].iter().filter_map(|&v| k.matrix(k.ty(v))).map(Matrix::elements).sum()
            }
            _ => 0,
        };
        k.regions(op).iter().map(|&r| largest_factors(k, r)).fold(own, u32::max)
    };
    k.region_ops(r).iter().map(of).max().unwrap_or(0)
}

/// The kernel without matrices, for any device whose subgroups have at least `smallest` invocations: each lane holds a share, and products
/// go through workgroup memory. It gives the same results as the executor does with the matrices, bit by bit.
///
/// ```
/// use half::f16;
/// use impasto_kernel::{Accumulator, Builder, MatrixA, MatrixB, MatrixLayout, Feature, Target, lower_matrices};
/// let kernel = Builder::kernel("product", [32, 1, 1], |k| {
///     let (x, z) = (k.buffer::<f16>("x"), k.buffer_mut::<f32>("z"));
///     let a = k.matrix_load::<MatrixA<f16, 16, 16>>(x, 0, 16, MatrixLayout::Row);
///     let b = k.matrix_load::<MatrixB<f16, 16, 16>>(x, 256, 16, MatrixLayout::Row);
///     k.matrix_store(z, 0, 16, MatrixLayout::Row, k.matrix_mul_add(a, b, k.matrix_fill::<Accumulator<f32, 16, 16>>(0.0)));
/// })?;
/// let target = Target::LEAST.with(Feature::F16).with(Feature::Storage16);
/// let error = target.check(&kernel, |_| "").unwrap_err().to_string();
/// assert!(error.contains("16x16x16 of f16 into f32"), "{error}");
/// target.check(&lower_matrices(&kernel, 8)?, |_| "")?;
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
pub fn lower_matrices(kernel: &Kernel, smallest: u32) -> Result<Kernel, KernelError> {
    verify(kernel)?;
    if !kernel.knows_matrices() {
        return Ok(kernel.clone());
    }
    let refuse = |problem: String| KernelError::Build { kernel: kernel.name.clone(), problem };
    if !smallest.is_power_of_two() || smallest > 128 {
        return Err(refuse(format!("a subgroup has a power of two invocations up to 128, not {smallest}")));
    }
    for m in (0..kernel.shape_count()).filter_map(|i| kernel.matrix(Ty::from_table(i))) {
        if u64::from(share(m, smallest)) > MAX_SCALARS {
            let problem = format!(
                "a share of {m} in subgroups of {smallest} is more than {MAX_SCALARS} elements; use smaller matrices, or \
                 devices with larger subgroups"
            );
            return Err(refuse(problem));
        }
    }
    let mut rw = Rewrite::new(kernel, kernel.header());
    let mut rule = Matrices { shares: Map::default(), scratch: None };
    rule.begin(&mut rw, smallest);
    let each = largest_factors(kernel, kernel.body());
    if each > 0 {
        let subgroups = kernel.workgroup.iter().product::<u32>().div_ceil(smallest);
        let taken = |name: &String| {
            kernel.memories().iter().map(|m| &m.name).chain(kernel.params().iter().map(|p| &p.name)).any(|n| n == name)
        };
        let names = (0..).map(|i| if i == 0 { "factors".to_owned() } else { format!("factors_{i}") });
        let name = names.into_iter().find(|n| !taken(n)).unwrap_or_default();
        let memories = &mut rw.asm.kernel.memories;
        memories.push(MemoryDecl { name, ty: F32, space: Space::Workgroup(subgroups.saturating_mul(each)) });
        let memory = MemoryId(memories.len() as u32 - 1);
        let id = rw.asm.value(OpKind::Builtin(Builtin::SubgroupId, 0), &[], U32);
        let each = number(&mut rw, each);
        rule.scratch = Some((memory, binary(&mut rw, BinaryOp::Mul, U32, id, each)));
    }
    rw.region(&mut rule, kernel.body());
    let mut made = rw.asm.finish();
    made.replace_matrices(|m| Shape::Array(Ty::scalar(m.scalar), share(m, smallest)));
    verify(&made)?;
    Ok(made)
}
