//! Matrices of a subgroup as fragments of `mma.sync`.
//!
//! A matrix is made of blocks of 8x8, of which each lane holds two neighbours. With `row = lane / 4` and `pair = 2 (lane % 4)`, of a left factor or of
//! sums that is element `(row, pair)` and the next in its row, of a right factor `(pair, row)` and the next in its column. Numbers of 16 bits
//! are one register for both, those of 32 bits one each. Blocks come in the order in which the instruction lists them: two below each other,
//! then to the right of them; those of a right factor down each column of blocks.

use impasto_kernel::ir::{Matrix, MatrixLayout, MatrixUse, MemoryId, OpId, OpKind, Scalar, Space, Value};

use super::Emit;
use super::memory::Address;
use super::text::{Class, Operand, braces, imm, show};

/// Registers of a lane.
pub(super) fn registers(m: Matrix) -> u32 {
    m.rows.div_ceil(8) * m.columns.div_ceil(8) * if m.scalar == Scalar::F32 { 2 } else { 1 }
}

/// The first row and column of each block, in order.
fn blocks(m: Matrix) -> Vec<[u32; 2]> {
    let mut all = Vec::new();
    let height = if m.role == MatrixUse::B { m.rows } else { 16 };
    for row in (0..m.rows).step_by(height as usize) {
        for column in (0..m.columns).step_by(8) {
            all.extend((row..(row + height).min(m.rows)).step_by(8).map(|row| [row, column]));
        }
    }
    all
}

/// Where the lines of a matrix lie: the first line and the elements of this lane before it, and from one line to the next.
struct Lines {
    memory: MemoryId,
    bytes: u32,
    first: Operand,
    stride: Operand,
    known: Vec<(u32, Address)>,
}

impl Emit<'_> {
    /// `x * y + z` of indices.
    fn index(&mut self, x: Operand, y: Operand, z: Operand) -> Operand {
        match (x.constant(), y.constant(), z.constant()) {
            (Some(0), _, _) | (_, Some(0), _) => z,
            (Some(x), Some(y), Some(z)) => imm((x as u32).wrapping_mul(y as u32).wrapping_add(z as u32)),
            _ => self.t.make(Class::B32, "mad.lo.u32", &[x, y, z]),
        }
    }

    /// Two halves as one register, the first in its lower bits.
    fn pack(&mut self, low: Operand, high: Operand) -> Operand {
        let (low, high) = (self.t.in_reg(low), self.t.in_reg(high));
        let d = self.t.reg(Class::B32);
        self.t.line(format_args!("mov.b32 {}, {}", show(d), braces(&[low, high])));
        d
    }

    /// The two halves of a register.
    fn unpack(&mut self, x: Operand) -> [Operand; 2] {
        let halves = [self.t.reg(Class::B16), self.t.reg(Class::B16)];
        self.t.line(format_args!("mov.b32 {}, {}", braces(&halves), show(x)));
        halves
    }

    /// An op that makes, uses or stores a matrix.
    pub(super) fn matrix_op(&mut self, op: OpId) -> Vec<Operand> {
        let k = self.k;
        let args = k.args(op);
        let shape = |v: Value| k.matrix(k.ty(v));
        let made = k.results(op).next().and_then(shape);
        match (k.kind(op), made) {
            (OpKind::MatrixLoad(m, layout), Some(shape)) => self.matrix_load(m, layout, shape, args),
            (OpKind::MatrixStore(m, layout), _) => {
                if let Some(shape) = shape(args[2]) {
                    self.matrix_store(m, layout, shape, args);
                }
                Vec::new()
            }
            (OpKind::MatrixMulAdd, Some(c)) => self.mul_add(args, c),
            (OpKind::MatrixFill, Some(shape)) => {
                let x = self.scalar(args[0]);
                let x = if shape.scalar == Scalar::F32 { self.t.in_reg(x) } else { self.pack(x, x) };
                vec![x; registers(shape) as usize]
            }
            (OpKind::MatrixScale, Some(shape)) => {
                let by = self.scalar(args[1]);
                let by = if shape.scalar == Scalar::F32 { by } else { self.pack(by, by) };
                let x = self.value(args[0]).to_vec();
                let op = if shape.scalar == Scalar::F32 { "mul.rn.f32" } else { "mul.rn.f16x2" };
                x.into_iter().map(|x| self.t.make(Class::B32, op, &[x, by])).collect()
            }
            (OpKind::Binary(f), Some(shape)) => {
                let op = format!("{}.rn.{}", f.name(), if shape.scalar == Scalar::F32 { "f32" } else { "f16x2" });
                let (x, y) = (self.value(args[0]).to_vec(), self.value(args[1]).to_vec());
                x.into_iter().zip(y).map(|(x, y)| self.t.make(Class::B32, &op, &[x, y])).collect()
            }
            (_, Some(to)) => self.matrix_convert(args[0], to),
            _ => Vec::new(),
        }
    }

    fn matrix_convert(&mut self, from: Value, to: Matrix) -> Vec<Operand> {
        let s = self.k.scalar_of(self.k.ty(from)).unwrap_or(to.scalar);
        let from = self.value(from).to_vec();
        if s == to.scalar {
            return from;
        }
        let numbers: Vec<Operand> = match s {
            Scalar::F32 => from,
            _ => from.into_iter().flat_map(|x| self.unpack(x)).collect(),
        };
        let mut made = Vec::new();
        for two in numbers.chunks_exact(2) {
            if to.scalar == Scalar::F16 && s == Scalar::F32 && self.ptx.is_ampere() {
                made.push(self.t.make(Class::B32, "cvt.rn.f16x2.f32", &[two[1], two[0]]));
                continue;
            }
            let [x, y] = [two[0], two[1]].map(|x| self.convert(s, to.scalar, x));
            match to.scalar {
                Scalar::F32 => made.extend([x, y]),
                _ => made.push(self.pack(x, y)),
            }
        }
        made
    }

    fn mul_add(&mut self, args: &[Value], c: Matrix) -> Vec<Operand> {
        let Some(a) = self.k.matrix(self.k.ty(args[0])) else { return Vec::new() };
        let [x, y, mut sums] = [0, 1, 2].map(|i| self.value(args[i]).to_vec());
        let depth = (a.columns / 8) as usize;
        let (factor, result) = (a.scalar.name(), c.scalar.name());
        let (across, own) = ((c.columns / 8) as usize, if c.scalar == Scalar::F32 { 4 } else { 2 });
        for (block, sum) in sums.chunks_mut(own).enumerate() {
            let (row, column) = (block / across, block % across);
            let mut at = 0;
            while at < depth {
                let n = if self.ptx.is_ampere() && at + 2 <= depth { 2 } else { 1 };
                let left = &x[2 * (row * depth + at)..][..2 * n];
                let right = &y[column * depth + at..][..n];
                let next: Vec<Operand> = sum.iter().map(|_| self.t.reg(Class::B32)).collect();
                let lists = [&next[..], left, right, sum].map(braces).join(", ");
                self.t.line(format_args!(
                    "mma.sync.aligned.m16n8k{}.row.col.{result}.{factor}.{factor}.{result} {lists}",
                    8 * n
                ));
                sum.copy_from_slice(&next);
                at += n;
            }
        }
        sums
    }

    /// The lines of a matrix, from the element of this lane that is `line` lines and `rest` elements after the first.
    fn lines(&mut self, m: MemoryId, shape: Matrix, args: &[Value], line: Operand, rest: Operand) -> Lines {
        // Index and stride count elements of the memory, which may be vectors.
        let held = imm(self.k.memory(m).ty.lanes().map_or(1, |(_, n)| n));
        let (index, stride) = (self.scalar(args[0]), self.scalar(args[1]));
        let stride = if held == imm(1) { stride } else { self.index(stride, held, imm(0)) };
        let begin = if held == imm(1) { index } else { self.index(index, held, imm(0)) };
        let begin = self.index(imm(1), begin, rest);
        let first = self.index(line, stride, begin);
        Lines { memory: m, bytes: shape.scalar.bytes(), first, stride, known: Vec::new() }
    }

    /// The address of an element, so many lines and elements after the first.
    fn line_place(&mut self, lines: &mut Lines, line: u32, rest: u32) -> Address {
        let known = lines.stride.constant().map(|s| s.saturating_mul(line.into()) * u64::from(lines.bytes));
        let (line, offset) = match known.filter(|&bytes| bytes < 1 << 30) {
            Some(bytes) => (0, bytes as u32),
            None => (line, 0),
        };
        let found = lines.known.iter().find(|k| k.0 == line).map(|k| k.1);
        let at = found.unwrap_or_else(|| {
            let index = self.index(imm(line), lines.stride, lines.first);
            let at = self.element(lines.memory, index, lines.bytes);
            lines.known.push((line, at));
            at
        });
        at.plus(offset + rest * lines.bytes)
    }

    /// Whether the two neighbours that a lane holds lie together in memory.
    fn is_together(shape: Matrix, layout: MatrixLayout) -> bool {
        (shape.role == MatrixUse::B) == (layout == MatrixLayout::Column)
    }

    /// For each pair of neighbours, where the first and the second lie.
    fn pairs(&mut self, m: MemoryId, layout: MatrixLayout, shape: Matrix, args: &[Value]) -> Vec<[Address; 2]> {
        let Some((row, pair)) = self.fragment else { return Vec::new() };
        let together = Self::is_together(shape, layout);
        let twice = self.t.make(Class::B32, "shl.b32", &[pair, imm(1)]);
        let (line, rest) = if together { (row, twice) } else { (twice, row) };
        let mut lines = self.lines(m, shape, args, line, rest);
        let mut found = Vec::new();
        for [row, column] in blocks(shape) {
            let (line, rest) = Matrix::place(layout, row, column);
            let next = if together { (line, rest + 1) } else { (line + 1, rest) };
            found.push([(line, rest), next].map(|(line, rest)| self.line_place(&mut lines, line, rest)));
        }
        found
    }

    fn matrix_load(&mut self, m: MemoryId, layout: MatrixLayout, shape: Matrix, args: &[Value]) -> Vec<Operand> {
        if matches!(self.k.memory(m).space, Space::Workgroup(_)) && shape.scalar != Scalar::F32 {
            return self.load_blocks(m, layout, shape, args);
        }
        let together = Self::is_together(shape, layout);
        let op = self.loads(m);
        let mut made = Vec::new();
        for [first, second] in self.pairs(m, layout, shape, args) {
            let class = if shape.scalar == Scalar::F32 { Class::B32 } else { Class::B16 };
            if together && class == Class::B16 {
                let both = self.t.reg(Class::B32);
                self.load_piece(&op, &[both], first);
                made.push(both);
                continue;
            }
            let two = [self.t.reg(class), self.t.reg(class)];
            if together {
                self.load_piece(&op, &two, first);
            } else {
                self.load_piece(&op, &two[..1], first);
                self.load_piece(&op, &two[1..], second);
            }
            match class {
                Class::B16 => made.push(self.pack(two[0], two[1])),
                _ => made.extend(two),
            }
        }
        made
    }

    /// Blocks of 16-bit numbers from shared memory, up to four with one instruction: each lane names a line of eight.
    fn load_blocks(&mut self, m: MemoryId, layout: MatrixLayout, shape: Matrix, args: &[Value]) -> Vec<Operand> {
        let origins: Vec<(u32, u32)> =
            blocks(shape).into_iter().map(|[row, column]| Matrix::place(layout, row, column)).collect();
        let n = [4, 2].into_iter().find(|n| origins.len().is_multiple_of(*n)).unwrap_or(1);
        let lane = self.lane();
        let (mut line, mut rest) = (self.t.make(Class::B32, "and.b32", &[lane, imm(7)]), imm(0));
        for (bit, block) in [(3, 1), (4, 2)].into_iter().filter(|b| b.1 < n) {
            let (down, along) = (origins[block].0 - origins[0].0, origins[block].1 - origins[0].1);
            let moved = self.t.make(Class::B32, "shr.u32", &[lane, imm(bit)]);
            let moved = self.t.make(Class::B32, "and.b32", &[moved, imm(1)]);
            line = self.index(moved, imm(down), line);
            rest = self.index(moved, imm(along), rest);
        }
        let mut lines = self.lines(m, shape, args, line, rest);
        let trans = if Self::is_together(shape, layout) { "" } else { ".trans" };
        let mut made = Vec::new();
        for group in origins.chunks(n) {
            let at = self.line_place(&mut lines, group[0].0, group[0].1).show();
            let own: Vec<Operand> = group.iter().map(|_| self.t.reg(Class::B32)).collect();
            self.t.line(format_args!("ldmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 {}, {at}", braces(&own)));
            made.extend(own);
        }
        made
    }

    fn matrix_store(&mut self, m: MemoryId, layout: MatrixLayout, shape: Matrix, args: &[Value]) {
        let together = Self::is_together(shape, layout);
        let wide = shape.scalar == Scalar::F32;
        let value = self.value(args[2]).to_vec();
        let pairs = self.pairs(m, layout, shape, args);
        for ([first, second], own) in pairs.into_iter().zip(value.chunks(if wide { 2 } else { 1 })) {
            if together {
                self.store_piece(m, own, first);
                continue;
            }
            let two = if wide { [own[0], own[1]] } else { self.unpack(own[0]) };
            self.store_piece(m, &two[..1], first);
            self.store_piece(m, &two[1..], second);
        }
    }
}
