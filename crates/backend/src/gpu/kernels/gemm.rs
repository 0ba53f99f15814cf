//! Products of matrices: linear layers, convolutions, products of computed matrices.
//!
//! The left side is rows that lie in a tensor, or the pixels under a window of an image: then `k` has a segment for each tap of the
//! window, and nothing is unfolded. The right side is `(k, n)`, or `(n, k)` transposed.

use impasto_graph::{DType, Unary};
use impasto_kernel::{Builder, Kernel, KernelError, Val};

use super::{F, U, groups, piece, scalar, unary};
use crate::shapes::Window;

/// Where the rows of the left side lie.
#[derive(Clone, Copy)]
pub(crate) enum Left {
    /// One after the other.
    Rows,
    /// The pixels under a window.
    Window(Window),
}

/// What is added to a column.
#[derive(Clone, Copy)]
pub(crate) struct Bias {
    pub(crate) dtype: DType,
    /// Rows that share a bias, if not all do.
    pub(crate) rows: Option<u32>,
}

/// A product, and what becomes of each sum: `activation(scale * sum + bias) + residual`.
///
/// Buffers in order: left, right, bias, residual, result.
#[derive(Clone, Copy)]
pub(crate) struct Gemm {
    /// Products one after the other, each of its own matrices.
    pub(crate) batch: u32,
    pub(crate) m: u32,
    pub(crate) n: u32,
    /// Taps of a window, and what each adds to `k`.
    pub(crate) segments: u32,
    pub(crate) depth: u32,
    pub(crate) left: Left,
    pub(crate) left_type: DType,
    pub(crate) right_type: DType,
    pub(crate) right_transposed: bool,
    /// The right side has `2 n` columns, values and then their gates, and a result is `value * gelu(gate)`. Only warpgroups compute that.
    pub(crate) geglu: bool,
    /// By which each sum is multiplied first.
    pub(crate) scale: f32,
    pub(crate) bias: Option<Bias>,
    pub(crate) activation: Option<Unary>,
    pub(crate) residual: Option<DType>,
    pub(crate) out: DType,
}

/// A workgroup computes a square of this side, an invocation every 16th row and column of it.
const TILE: u32 = 64;
const SIDE: u32 = 16;
const EACH: u32 = TILE / SIDE;
/// Of `k` at a time.
const DEPTH: u32 = 16;
/// From one row of a tile to the next: one more than needed, so that neighbours lie in different banks.
const PITCH: u32 = TILE + 1;

impl Gemm {
    /// A product of rows with the rows of the right side, `[m, n, depth]`, of factors of these types, into f32, and nothing becomes of its sums.
    pub(crate) fn of_rows([m, n, depth]: [u32; 3], [left_type, right_type]: [DType; 2]) -> Gemm {
        Gemm {
            batch: 1,
            m,
            n,
            segments: 1,
            depth,
            left: Left::Rows,
            left_type,
            right_type,
            right_transposed: true,
            geglu: false,
            scale: 1.0,
            bias: None,
            activation: None,
            residual: None,
            out: DType::F32,
        }
    }

    pub(super) fn k(&self) -> u32 {
        self.segments * self.depth
    }

    fn tiles(&self) -> [u32; 2] {
        [self.m.div_ceil(TILE), self.n.div_ceil(TILE)]
    }

    pub(crate) fn groups(&self) -> [u32; 3] {
        let [down, across] = self.tiles();
        groups(u64::from(self.batch) * u64::from(down) * u64::from(across))
    }

    pub(crate) fn kernel(&self) -> Result<Kernel, KernelError> {
        Builder::kernel("gemm", [SIDE, SIDE, 1], |k| self.write(k))
    }

    fn write(&self, k: &Builder) {
        let a = k.stored::<f32>("a", scalar(self.left_type));
        let b = k.stored::<f32>("b", scalar(self.right_type));
        let bias = self.bias.map(|bias| k.stored::<f32>("bias", scalar(bias.dtype)));
        let residual = self.residual.map(|dtype| k.stored::<f32>("residual", scalar(dtype)));
        let out = k.stored_mut::<f32>("out", scalar(self.out));
        let [down, across] = self.tiles();
        let number = piece(k);
        k.if_(number.ge(self.batch * down * across), || k.return_());
        let (product, tile) = (number / (down * across), number % (down * across));
        let (row0, column0) = (tile / across * TILE, tile % across * TILE);
        let (tile_a, tile_b) = (k.shared::<f32>("tile_a", DEPTH * PITCH), k.shared::<f32>("tile_b", DEPTH * PITCH));
        let (x, y, t) = (k.local_id(0), k.local_id(1), k.local_index());
        let sums: Vec<_> = (0..EACH * EACH).map(|_| k.var(0f32)).collect();

        // An invocation brings one of `k` of every 16th row of the left tile, so neighbours read what lies together.
        let (a_k, a_row) = (t % DEPTH, t / DEPTH);
        // Of the right tile, what lies together is a column of `(n, k)`, or a row of `(k, n)`.
        let (b_k, b_column) = if self.right_transposed { (t % DEPTH, t / DEPTH) } else { (t / TILE, t % TILE) };
        let b_step = if self.right_transposed { [0, SIDE] } else { [EACH, 0] };
        k.for_(0u32, self.segments, |_, segment| {
            let rows: Vec<_> = (0..EACH).map(|i| self.place(k, product, row0 + a_row + i * SIDE, segment)).collect();
            k.for_step(0u32, self.depth, DEPTH, |_, from| {
                for (i, &(start, inside)) in (0..EACH).zip(&rows) {
                    let at = from + a_k;
                    let inside = if self.depth.is_multiple_of(DEPTH) { inside } else { inside & at.lt(self.depth) };
                    let value = k.if_value(inside, || a.load(start + at), || k.lit(0f32));
                    tile_a.store(a_k * PITCH + a_row + i * SIDE, value);
                }
                for i in 0..EACH {
                    let (at, column) = (b_k + i * b_step[0], b_column + i * b_step[1]);
                    let (depth, n) = (from + at, column0 + column);
                    let inside = depth.lt(self.depth) & n.lt(self.n);
                    let deep = segment * self.depth + depth;
                    let place = if self.right_transposed { n * self.k() + deep } else { deep * self.n + n };
                    let place = product * (self.k() * self.n) + place;
                    tile_b.store(at * PITCH + column, k.if_value(inside, || b.load(place), || k.lit(0f32)));
                }
                k.barrier();
                k.for_(0u32, DEPTH, |_, i| {
                    let left: Vec<F> = (0..EACH).map(|r| tile_a.load(i * PITCH + y + r * SIDE)).collect();
                    let right: Vec<F> = (0..EACH).map(|c| tile_b.load(i * PITCH + x + c * SIDE)).collect();
                    for (n, sum) in sums.iter().enumerate() {
                        let (r, c) = (n / EACH as usize, n % EACH as usize);
                        sum.set(left[r].mul_add(right[c], sum.get()));
                    }
                });
                k.barrier();
            });
        });

        // Written once for all sums: an activation is long, and compilers of drivers are slow.
        let kept = k.private::<f32>("kept", EACH * EACH);
        for (n, sum) in (0u32..).zip(&sums) {
            kept.store(n, sum.get());
        }
        k.for_(0u32, EACH * EACH, |_, n| {
            let (row, column) = (row0 + y + n / EACH * SIDE, column0 + x + n % EACH * SIDE);
            k.if_(row.lt(self.m) & column.lt(self.n), || {
                let at = product * (self.m * self.n) + row * self.n + column;
                let bias = bias.map(|bias| bias.load(self.bias_place(k, row, column)));
                out.store(at, self.ended(k, kept.load(n), bias, residual.map(|r| r.load(at))));
            });
        });
    }

    /// Where the bias of an element lies.
    pub(super) fn bias_place<'k>(&self, k: &'k Builder, row: U<'k>, column: U<'k>) -> U<'k> {
        let picture = self.bias.and_then(|bias| bias.rows).map_or(k.lit(0u32), |rows| row / rows);
        picture * self.n + column
    }

    /// What becomes of a sum.
    pub(super) fn ended<'k>(&self, k: &'k Builder, sum: F<'k>, bias: Option<F<'k>>, residual: Option<F<'k>>) -> F<'k> {
        let scaled = if self.scale == 1.0 { sum } else { sum * self.scale };
        let shifted = bias.map_or(scaled, |bias| scaled + bias);
        let active = self.activation.map_or(shifted, |f| unary(k, f, shifted));
        residual.map_or(active, |residual| active + residual)
    }

    /// Where a row of the left side begins in this segment, and whether it is there at all.
    pub(super) fn place<'k>(
        &self,
        k: &'k Builder,
        product: U<'k>,
        row: U<'k>,
        segment: U<'k>,
    ) -> (U<'k>, Val<'k, bool>) {
        let there = row.lt(self.m);
        match self.left {
            Left::Rows => ((product * self.m + row) * self.depth, there),
            Left::Window(w) => {
                let [h, width, c] = [w.height, w.width, w.channels].map(|n| n as u32);
                let [out_h, out_w] = [w.out_height, w.out_width].map(|n| n as u32);
                let [stride, enlarged, across] = [w.stride, w.upsample, w.kernel[1]].map(|n| n as u32);
                let (picture, pixel) = (row / (out_h * out_w), row % (out_h * out_w));
                // Above and left of the image these wrap to numbers beyond its end.
                let up = pixel / out_w * stride + segment / across - k.lit(w.padding[0] as u32);
                let along = pixel % out_w * stride + segment % across - k.lit(w.padding[1] as u32);
                let there = there & up.lt(h * enlarged) & along.lt(width * enlarged);
                (((picture * h + up / enlarged) * width + along / enlarged) * c, there)
            }
        }
    }
}
