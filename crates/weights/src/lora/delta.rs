//! The arithmetic of adapters, in `f32`, on some rows of a parameter at a time.

use super::LoraFile;
use super::adapter::{Adapter, Factors, Form, LengthAxis, Side, WeightDelta};
use crate::ParamError;

/// A product of two matrices that is not multiplied out.
#[derive(Debug)]
struct Product {
    /// `(rows, rank)`.
    left: Vec<f32>,
    /// `(rank, columns)`.
    right: Vec<f32>,
    columns: usize,
}

/// Adds the sum of `factors[i] * rows[i]` to `out`, four rows at a time.
fn add_rows(factors: &[f32], rows: &[f32], scale: f32, out: &mut [f32]) {
    let columns = out.len();
    let (fours, rest) = factors.as_chunks::<4>();
    for (f, rows) in fours.iter().zip(rows.chunks_exact(4 * columns)) {
        let (a, b) = rows.split_at(2 * columns);
        let ((a, b), (c, d)) = (a.split_at(columns), b.split_at(columns));
        let f = f.map(|x| x * scale);
        for ((((out, a), b), c), d) in out.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *out += (f[0] * a + f[1] * b) + (f[2] * c + f[3] * d);
        }
    }
    let done = 4 * fours.len() * columns;
    for (f, row) in rest.iter().zip(rows[done..].chunks_exact(columns)) {
        out.iter_mut().zip(row).for_each(|(out, x)| *out += f * scale * x);
    }
}

impl Product {
    fn load(file: &LoraFile, factors: &Factors) -> Result<Product, ParamError> {
        let Factors { rows, columns, .. } = *factors;
        let (mut left, right) = (file.numbers(&factors.left)?, file.numbers(&factors.right)?);
        let rank = left.len() / rows;
        if factors.turned {
            left = (0..left.len()).map(|i| left[(i % rank) * rows + i / rank]).collect();
        }
        let right = match &factors.core {
            None => right,
            Some(core) => {
                // (rank, inner, kernel) times (inner, inputs) is (rank, inputs, kernel).
                tucker(&file.numbers(core)?, &right, [rank, factors.inner])
            }
        };
        Ok(Product { left, right, columns })
    }

    /// Adds some rows of it.
    fn add(&self, first: usize, scale: f32, out: &mut [f32]) {
        let rank = self.right.len() / self.columns;
        for (i, out) in out.chunks_exact_mut(self.columns).enumerate() {
            add_rows(&self.left[(first + i) * rank..][..rank], &self.right, scale, out);
        }
    }
}

/// A core `(rank, inner, kernel)` with its second dimension multiplied by `right (inner, inputs)`: `(rank, inputs, kernel)`.
fn tucker(core: &[f32], right: &[f32], [rank, inner]: [usize; 2]) -> Vec<f32> {
    let (kernel, inputs) = (core.len() / (rank * inner), right.len() / inner);
    let mut out = vec![0.0; rank * inputs * kernel];
    for (core, out) in core.chunks_exact(inner * kernel).zip(out.chunks_exact_mut(inputs * kernel)) {
        for (core, right) in core.chunks_exact(kernel).zip(right.chunks_exact(inputs)) {
            for (out, x) in out.chunks_exact_mut(kernel).zip(right) {
                out.iter_mut().zip(core).for_each(|(out, c)| *out += c * x);
            }
        }
    }
    out
}

/// The difference of a parameter, in memory.
#[derive(Debug)]
enum Delta {
    LowRank(Product),
    Hadamard([Product; 2]),
    Kronecker { left: Vec<f32>, right: Vec<f32>, right_rows: usize, right_columns: usize },
    Full(Vec<f32>),
}

impl Delta {
    fn load(file: &LoraFile, delta: &WeightDelta) -> Result<Delta, ParamError> {
        let side = |side: &Side| match side {
            Side::Whole { name, .. } => file.numbers(name),
            Side::Product(factors) => {
                let mut out = vec![0.0; factors.rows * factors.columns];
                Product::load(file, factors)?.add(0, 1.0, &mut out);
                Ok(out)
            }
        };
        Ok(match &delta.form {
            Form::LowRank(factors) => Delta::LowRank(Product::load(file, factors)?),
            Form::Hadamard([a, b]) => Delta::Hadamard([Product::load(file, a)?, Product::load(file, b)?]),
            Form::Full(name) => Delta::Full(file.numbers(name)?),
            Form::Kronecker([a, b]) => {
                let (right_rows, right_columns) = b.size();
                Delta::Kronecker { left: side(a)?, right: side(b)?, right_rows, right_columns }
            }
        })
    }

    /// Adds some rows of it, times `scale`.
    fn add(&self, first: usize, columns: usize, scale: f32, out: &mut [f32]) {
        match self {
            Delta::LowRank(product) => product.add(first, scale, out),
            Delta::Hadamard([a, b]) => {
                let mut both = [vec![0.0; out.len()], vec![0.0; out.len()]];
                a.add(first, scale, &mut both[0]);
                b.add(first, 1.0, &mut both[1]);
                out.iter_mut().zip(&both[0]).zip(&both[1]).for_each(|((out, a), b)| *out += a * b);
            }
            Delta::Full(numbers) => {
                out.iter_mut().zip(&numbers[first * columns..]).for_each(|(out, x)| *out += scale * x);
            }
            Delta::Kronecker { left, right, right_rows, right_columns } => {
                let left_columns = columns / right_columns;
                for (row, out) in (first..).zip(out.chunks_exact_mut(columns)) {
                    let left = &left[row / right_rows * left_columns..][..left_columns];
                    let right = &right[row % right_rows * right_columns..][..*right_columns];
                    for (out, f) in out.chunks_exact_mut(*right_columns).zip(left) {
                        out.iter_mut().zip(right).for_each(|(out, x)| *out += scale * f * x);
                    }
                }
            }
        }
    }

    /// Numbers that it holds.
    fn len(&self) -> usize {
        let product = |p: &Product| p.left.len() + p.right.len();
        match self {
            Delta::LowRank(one) => product(one),
            Delta::Hadamard([a, b]) => product(a) + product(b),
            Delta::Full(numbers) => numbers.len(),
            Delta::Kronecker { left, right, .. } => left.len() + right.len(),
        }
    }
}

/// DoRA: the lengths that rows or columns should have, and for columns those that they have.
#[derive(Debug)]
struct Lengths {
    wanted: Vec<f32>,
    /// Of each column of all rows.
    columns: Option<Vec<f32>>,
}

/// What a LoRA does to one parameter, in memory.
#[derive(Debug)]
pub(super) struct Patch {
    delta: Delta,
    /// What the difference is multiplied with, the strength not counted.
    scale: f32,
    strength: f32,
    lengths: Option<Lengths>,
    /// The adapter's row that is the parameter's first.
    first_row: usize,
}

/// Below this a length counts as zero, as PyTorch's programs have it.
const LEAST_LENGTH: f32 = f32::EPSILON;

impl Patch {
    /// The patch of a parameter of this shape by the part that begins at `first_row` of an adapter that fits.
    pub(super) fn load(
        file: &LoraFile,
        adapter: &Adapter,
        bias: bool,
        strength: f32,
        (first_row, parts): (usize, usize),
        shape: &[usize],
    ) -> Result<Patch, ParamError> {
        if let (true, Some((name, _))) = (bias, &adapter.bias) {
            let delta = Delta::Full(file.numbers(name)?);
            return Ok(Patch { delta, scale: 1.0, strength, lengths: None, first_row });
        }
        let nothing = || ParamError::Wrong { name: file.path().display().to_string(), problem: "says nothing".into() };
        let weight = adapter.weight.as_ref().ok_or_else(nothing)?;
        let rows = shape.first().copied().unwrap_or(1) * parts;
        let lengths = match &weight.lengths {
            None => None,
            Some((name, lengths)) => {
                let axis = LengthAxis::of(lengths, rows, shape, parts);
                // Filled in when the other numbers of the parameter are known.
                let columns = (axis == Some(LengthAxis::Columns)).then(Vec::new);
                Some(Lengths { wanted: file.numbers(name)?, columns })
            }
        };
        Ok(Patch { delta: Delta::load(file, weight)?, scale: weight.scale, strength, lengths, first_row })
    }

    /// Whether the lengths of columns must be told first.
    pub(super) fn needs_columns(&self) -> bool {
        self.lengths.as_ref().is_some_and(|lengths| lengths.columns.is_some())
    }

    pub(super) fn set_columns(&mut self, squares: &[f64]) {
        if let Some(lengths) = &mut self.lengths {
            lengths.columns = Some(squares.iter().map(|sum| sum.sqrt() as f32).collect());
        }
    }

    /// Adds the squares of what some rows would be with the difference, by input; `kernel` numbers are of one input.
    pub(super) fn add_squares(&self, first: usize, columns: usize, kernel: usize, rows: &[f32], sums: &mut [f64]) {
        let mut changed = rows.to_vec();
        self.delta.add(self.first_row + first, columns, self.scale, &mut changed);
        for row in changed.chunks_exact(columns) {
            for (sum, input) in sums.iter_mut().zip(row.chunks_exact(kernel)) {
                *sum += input.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
            }
        }
    }

    /// Changes some rows of the parameter, each of `columns` numbers, from row `first` on; `kernel` numbers are of one input.
    pub(super) fn apply(&self, first: usize, columns: usize, kernel: usize, rows: &mut [f32]) {
        let at = self.first_row + first;
        let Some(lengths) = &self.lengths else {
            return self.delta.add(at, columns, self.strength * self.scale, rows);
        };
        let mut changed = rows.to_vec();
        self.delta.add(at, columns, self.scale, &mut changed);
        match &lengths.columns {
            Some(now) => changed.chunks_exact_mut(columns).for_each(|row| {
                for ((input, now), wanted) in row.chunks_exact_mut(kernel).zip(now).zip(&lengths.wanted) {
                    input.iter_mut().for_each(|x| *x *= wanted / (now + LEAST_LENGTH));
                }
            }),
            None => changed.chunks_exact_mut(columns).zip(&lengths.wanted[at..]).for_each(|(row, wanted)| {
                let now = row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt() as f32;
                row.iter_mut().for_each(|x| *x *= wanted / (now + LEAST_LENGTH));
            }),
        }
        rows.iter_mut().zip(&changed).for_each(|(x, changed)| *x += self.strength * (changed - *x));
    }

    /// The rank of the product that it is, if it is one.
    pub(super) fn rank(&self) -> Option<usize> {
        match &self.delta {
            Delta::LowRank(product) => Some(product.right.len() / product.columns),
            _ => None,
        }
    }

    /// The factor on the side of the inputs of a product, `(rank, columns)`.
    pub(super) fn down(&self) -> &[f32] {
        if let Delta::LowRank(product) = &self.delta { &product.right } else { &[] }
    }

    /// A row of the factor on the side of the outputs of a product, `(rank)`, and what it is multiplied with.
    pub(super) fn up(&self, row: usize) -> (&[f32], f32) {
        let rank = self.rank().unwrap_or(0);
        let left = if let Delta::LowRank(product) = &self.delta { &product.left[..] } else { &[] };
        (&left[(self.first_row + row) * rank..][..rank], self.strength * self.scale)
    }

    /// Bytes that it holds.
    pub(super) fn bytes(&self) -> usize {
        4 * (self.delta.len() + self.lengths.as_ref().map_or(0, |lengths| 2 * lengths.wanted.len()))
    }
}
