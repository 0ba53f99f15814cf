//! Matrices of a subgroup. Each lane holds the whole matrix; an op is computed once for a subgroup, and its lanes must agree on everything.

use std::ops::Range;

use super::Launch;
use super::machine::{Executor, Stop};
use super::mask::Mask;
use crate::eval;
use crate::ir::{BinaryOp, Matrix, MatrixLayout, MemoryId, OpId, OpKind, Scalar, Value};

/// A multiple of this many elements is aligned as devices need it: 16 bytes, or all that lies together.
fn alignment(m: Matrix, layout: MatrixLayout) -> u32 {
    (16 / m.scalar.bytes()).min(m.run(layout))
}

impl Executor<'_> {
    /// The subgroups that are active, which must be whole.
    pub(super) fn whole_subgroups(&self, op: OpId, mask: Mask, launch: &Launch) -> Result<Vec<Range<usize>>, Stop> {
        self.whole_groups(op, mask, launch.subgroup as usize, "subgroup")
    }

    /// The groups of so many lanes that are active, which must be whole: every lane there is, and none missing.
    pub(super) fn whole_groups(
        &self,
        op: OpId,
        mask: Mask,
        width: usize,
        name: &str,
    ) -> Result<Vec<Range<usize>>, Stop> {
        let mut whole = Vec::new();
        for first in (0..self.lanes).step_by(width) {
            let lanes = first..first + width;
            if !lanes.clone().any(|l| mask.has(l)) {
                continue;
            }
            if let Some(l) = lanes.clone().find(|&l| l >= self.lanes || !mask.has(l)) {
                let problem = format!("not all {width} invocations of the {name} reach this");
                return Err(Stop(op, l.min(self.lanes - 1), problem));
            }
            whole.push(lanes);
        }
        Ok(whole)
    }

    /// The elements of a matrix, in the order of rows.
    fn elements(&self, v: Value, lane: usize) -> Vec<u64> {
        let n = self.k.matrix(self.k.ty(v)).map_or(1, Matrix::elements);
        (0..n).map(|i| self.regs[self.at(self.columns[v.index()] + i, lane)]).collect()
    }

    pub(super) fn matrix(&mut self, op: OpId, kind: OpKind, mask: Mask, launch: &mut Launch) -> Result<(), Stop> {
        let k = self.k;
        let args = k.args(op);
        for lanes in self.whole_subgroups(op, mask, launch)? {
            let first = lanes.start;
            for &v in args.iter().filter(|&&v| k.matrix(k.ty(v)).is_none()) {
                if let Some(l) = lanes.clone().find(|&l| self.get(v, l) != self.get(v, first)) {
                    return Err(Stop(op, l, "an operand is not the same in the whole subgroup".to_owned()));
                }
            }
            let made = match kind {
                OpKind::MatrixLoad(m, layout) => {
                    let places = self.places(op, k.result(op), m, layout, first, launch);
                    places.and_then(|all| all.into_iter().map(|(at, lane)| self.take(m, at, lane, launch)).collect())
                }
                OpKind::MatrixStore(m, layout) => self.places(op, args[2], m, layout, first, launch).map(|places| {
                    for ((at, lane), bits) in places.into_iter().zip(self.elements(args[2], first)) {
                        self.put(m, at, lane, bits, launch);
                    }
                    Vec::new()
                }),
                OpKind::MatrixScale => {
                    let s = k.scalar_of(k.ty(args[1])).unwrap_or(Scalar::F32);
                    let by = self.get(args[1], first);
                    Ok(self
                        .elements(args[0], first)
                        .into_iter()
                        .map(|x| eval::binary(BinaryOp::Mul, s, x, by))
                        .collect())
                }
                OpKind::MatrixMulAdd => Ok(self.mul_add(args, first)),
                _ => {
                    let n = k.matrix(k.ty(k.result(op))).map_or(0, Matrix::elements);
                    Ok(vec![self.get(args[0], first); n as usize])
                }
            };
            for (i, bits) in made.map_err(|problem| Stop(op, first, problem))?.into_iter().enumerate() {
                let from = self.at(self.columns[k.result(op).index()] + i as u32, first);
                self.regs[from..from + lanes.len()].fill(bits);
            }
        }
        Ok(())
    }

    /// Where the elements lie in memory, in the order of rows: in which element of it, and as which component.
    fn places(
        &self,
        op: OpId,
        matrix: Value,
        m: MemoryId,
        layout: MatrixLayout,
        lane: usize,
        launch: &Launch,
    ) -> Result<Vec<(usize, usize)>, String> {
        let args = self.k.args(op);
        let held = self.k.memory(m).ty.lanes().map_or(1, |(_, n)| u64::from(n));
        let (index, stride) = (self.get(args[0], lane) * held, self.get(args[1], lane) * held);
        let Some(shape) = self.k.matrix(self.k.ty(matrix)) else { return Ok(Vec::new()) };
        let align = u64::from(alignment(shape, layout));
        if !index.is_multiple_of(align) || !stride.is_multiple_of(align) {
            return Err(format!(
                "index {index} and stride {stride} must be multiples of {align}, for {shape} in layout {}",
                layout.name()
            ));
        }
        let together = u64::from(shape.run(layout));
        if matches!(self.k.kind(op), OpKind::MatrixStore(..)) && stride < together {
            return Err(format!("with a stride of {stride}, runs of {together} elements overwrite each other"));
        }
        let mut places = Vec::new();
        for row in 0..shape.rows {
            for column in 0..shape.columns {
                let (strides, rest) = Matrix::place(layout, row, column);
                let at = index + u64::from(strides) * stride + u64::from(rest);
                places.push((self.place(m, (at / held) as usize, lane, &launch.buffers)?, (at % held) as usize));
            }
        }
        Ok(places)
    }

    fn mul_add(&self, args: &[Value], lane: usize) -> Vec<u64> {
        let k = self.k;
        let shape = |i: usize| k.matrix(k.ty(args[i]));
        let (Some(a), Some(b), Some(c)) = (shape(0), shape(1), shape(2)) else { return Vec::new() };
        let wide = |i: usize, s: Scalar| -> Vec<u64> {
            self.elements(args[i], lane).into_iter().map(|x| eval::convert(s, Scalar::F32, x)).collect()
        };
        let (x, y, z) = (wide(0, a.scalar), wide(1, b.scalar), wide(2, c.scalar));
        let mut made = Vec::with_capacity(z.len());
        for row in 0..c.rows as usize {
            for column in 0..c.columns as usize {
                let mut sum = z[row * c.columns as usize + column];
                for i in 0..a.columns as usize {
                    let (p, q) = (x[row * a.columns as usize + i], y[i * b.columns as usize + column]);
                    let product = eval::binary(BinaryOp::Mul, Scalar::F32, p, q);
                    sum = eval::binary(BinaryOp::Add, Scalar::F32, sum, product);
                }
                made.push(eval::convert(Scalar::F32, c.scalar, sum));
            }
        }
        made
    }
}
