//! The one matrix product under linear layers, convolutions and attention.
//!
//! `C (m, n) = A (m, k) B (k, n)`. Two layouts meet here:
//!
//! - **A** is rows of `k` contiguous numbers of the compute type, equally far apart. A tensor often has that form
//!   already; else the rows of a block are converted or gathered into scratch memory first. `k` may consist of
//!   several *segments* at different offsets from a row's start: the taps of a convolution. So an image is never
//!   unfolded.
//! - **B** is packed into panels of [`PANEL`] columns: for each panel, all of `k` in turn, a vector of columns for each
//!   (for bf16, a vector of column pairs for each two). Weights are packed once when they are loaded.
//!
//! A micro kernel computes a tile of C, up to `rows` by two panels, in registers over one chunk of `k`. Vector kernels
//! keep a tile's rows of a chunk in L1 and go through the panels. Matrix kernels take long chunks, since
//! their sums are dear to spill; the caches hold what is used again, and all else is led past the nearest one.

#[cfg(target_arch = "x86_64")]
pub(super) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(super) mod drive;
mod matrix;
pub(super) mod pack;
mod portable;
pub(super) mod share;

use impasto_graph::DType;

use super::Isa;
use super::rows::Finish;

/// Columns of a packed panel.
pub(super) const PANEL: usize = 16;
/// Rows of half a matrix tile.
pub(super) const HALF: usize = 16;
/// Columns of a tile: two panels.
pub(super) const TILE_COLUMNS: usize = 2 * PANEL;

/// The element type that products are computed in; sums are always `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProductType {
    /// 32-bit floats.
    F32,
    /// bf16 factors, rounded to nearest.
    Bf16,
}

impl ProductType {
    /// The element type that tensors of such numbers have.
    pub const fn dtype(self) -> DType {
        match self {
            ProductType::F32 => DType::F32,
            ProductType::Bf16 => DType::BF16,
        }
    }

    pub(super) const fn bytes(self) -> usize {
        self.dtype().bytes() as usize
    }

    /// `k` is padded with zeros to a multiple of this, which is what one matrix tile takes.
    pub(super) const fn granule(self) -> usize {
        match self {
            ProductType::F32 => 1,
            ProductType::Bf16 => 32,
        }
    }
}

/// The operand of which a part is used again by the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Near {
    A,
    B,
}

/// Rows of a tile that follow each other, and what is done to them when their sums are complete.
#[derive(Clone, Copy)]
pub(super) struct TileRows {
    pub(super) sums: *mut f32,
    pub(super) rows: usize,
    pub(super) finish: Finish,
}

impl TileRows {
    /// Whether a matrix kernel can finish it beside other products.
    fn may_wait(&self) -> bool {
        self.finish.activation.is_none() && self.finish.ending().is_some()
    }

    /// Ask for the lines of a result of so many columns, and of what is added to it, before the tile is computed: they arrive meanwhile. A
    /// matrix kernel asks bit by bit instead.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "only this processor is asked"))]
    fn ask(&self, columns: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};
            let columns = if self.finish.gated { columns - PANEL } else { columns };
            let lines = |dtype: DType, stride: usize| {
                let size = dtype.bytes() as usize;
                (0..self.rows)
                    .flat_map(move |row| (0..columns * size).step_by(64).map(move |i| row * stride * size + i))
            };
            let (out, stride) = self.finish.out;
            // SAFETY: a prefetch reads and writes nothing.
            lines(out.dtype, stride)
                .for_each(|at| unsafe { _mm_prefetch::<_MM_HINT_ET0>(out.ptr.wrapping_add(at).cast_const().cast()) });
            if let Some((residual, stride)) = self.finish.residual {
                // SAFETY: as above.
                lines(residual.dtype, stride)
                    .for_each(|at| unsafe { _mm_prefetch::<_MM_HINT_T0>(residual.ptr.wrapping_add(at).cast()) });
            }
        }
    }
}

/// One call of a micro kernel.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "some fields are for matrix kernels"))]
pub(super) struct Tile {
    /// Rows of C: a matrix kernel takes up to 16 and up to 16 more, a vector kernel the first number only.
    pub(super) rows: [usize; 2],
    /// Panels of B: 1 or 2.
    pub(super) panels: usize,
    /// First row of A, and of its lower half.
    pub(super) a: [*const u8; 2],
    /// Bytes from one row of A to the next.
    pub(super) a_stride: usize,
    /// What to keep in L1; a matrix kernel leads the rest past it.
    pub(super) near: Near,
    /// What a matrix kernel fetches into L2 on the way, and how many lines for each 32 of `k`: 2, 3, 4 or 8.
    pub(super) fetch: *const u8,
    pub(super) fetch_lines: usize,
    /// Byte offsets of the segments of `k` from a row's start.
    pub(super) segments: *const usize,
    pub(super) segment_count: usize,
    /// Numbers in each segment, a multiple of the granule.
    pub(super) segment_k: usize,
    /// First panel of B, at the chunk's first `k`.
    pub(super) b: *const u8,
    /// Bytes from one panel to the next.
    pub(super) panel_stride: usize,
    /// The sums: `rows` by `16 panels`; the lower half begins at row 16.
    pub(super) c: *mut f32,
    /// Numbers from one row of C to the next.
    pub(super) c_stride: usize,
    /// Add to what is there, else overwrite.
    pub(super) accumulate: bool,
}

/// A micro kernel with what the driver must know of it.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    /// Most rows of a tile.
    pub(super) rows: usize,
    /// Preferred length of a chunk of `k`.
    pub(super) chunk: usize,
    /// Threads that share an L2: each holds its part in it.
    pub(super) sharing: usize,
    /// A matrix kernel's tiles come in halves of 16 rows. It computes one and finishes another between its products.
    pub(super) matrix: Option<Beside>,
    /// Compute a tile.
    ///
    /// # Safety
    /// The machine has the instructions, `begin` was called on this thread, and all pointers are good.
    pub(super) run: unsafe fn(&Tile),
    /// Called on a thread before a series of tiles, and after it.
    pub(super) begin: unsafe fn(),
    pub(super) end: unsafe fn(),
}

/// Compute a tile, ask for what its parts will need, and meanwhile finish a whole tile before it, whose sums may have the same place.
///
/// # Safety
/// As [`Kernel::run`].
pub(super) type Beside = unsafe fn(&Tile, &[Option<TileRows>; 2], Option<&TileRows>);

unsafe fn nothing() {}

impl Kernel {
    /// The kernel of an instruction path for a compute type.
    pub(super) fn of(isa: Isa, number: ProductType) -> Kernel {
        let plain =
            |rows, chunk, run| Kernel { rows, chunk, sharing: 1, matrix: None, run, begin: nothing, end: nothing };
        match (isa, number) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx, ProductType::Bf16) => Kernel {
                rows: 32,
                chunk: 4096,
                sharing: 1,
                matrix: Some(amx::bf16_ending),
                run: amx::bf16,
                begin: amx::begin,
                end: amx::end,
            },
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512Bf16, ProductType::Bf16) => plain(avx512::ROWS, 1024, avx512::bf16),
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx | Isa::Avx512Bf16 | Isa::Avx512, ProductType::F32) => plain(avx512::ROWS, 512, avx512::f32),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, ProductType::Bf16) => plain(portable::ROWS, 512, avx512::emulated_bf16),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, ProductType::F32) => plain(avx2::ROWS, 384, avx2::f32),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, ProductType::Bf16) => plain(portable::ROWS, 512, avx2::emulated_bf16),
            (_, ProductType::F32) => plain(portable::ROWS, 256, portable::f32),
            (_, ProductType::Bf16) => plain(portable::ROWS, 512, portable::bf16),
        }
    }

    pub(super) fn is_matrix(&self) -> bool {
        self.matrix.is_some()
    }

    /// The rows of a tile where `rows` are left.
    pub(super) fn halves(&self, rows: usize) -> [usize; 2] {
        let rows = rows.min(self.rows);
        let upper = if self.is_matrix() { rows.min(HALF) } else { rows };
        [upper, rows - upper]
    }

    /// The fastest loop without memory: how many operations a second this kernel could reach at most.
    ///
    /// # Safety
    /// The machine has the instructions.
    pub(super) unsafe fn peak_loop(isa: Isa, number: ProductType) -> unsafe fn(usize) -> u64 {
        match (isa, number) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx, ProductType::Bf16) => amx::peak,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512Bf16, ProductType::Bf16) => avx512::peak_bf16,
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx | Isa::Avx512Bf16 | Isa::Avx512, _) => avx512::peak_f32,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, _) => avx2::peak_f32,
            _ => portable::peak_f32,
        }
    }

    /// The same with factors from L1, where that is known to be as fast as long as nobody else uses the core.
    pub(super) fn near_peak_loop(isa: Isa, number: ProductType) -> Option<unsafe fn(usize) -> u64> {
        match (isa, number) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx, ProductType::Bf16) => Some(amx::near_peak),
            _ => None,
        }
    }
}

/// Compute a small product of awkward size on a path and compare it with plain arithmetic: the trial of the path.
pub(super) fn self_test(isa: Isa) -> Result<(), String> {
    let (m, n, k) = (45, 37, 96);
    for number in [ProductType::F32, ProductType::Bf16] {
        let kernel = Kernel::of(isa, number);
        let rows = super::rows::Rows::of(isa);
        // Small integers: exact in bf16, and their sums exact in f32.
        let a: Vec<f32> = (0..m * k).map(|i| ((i * 7 + i / k) % 15) as f32 - 7.0).collect();
        let b: Vec<f32> = (0..n * k).map(|i| ((i * 5 + i / k) % 13) as f32 - 6.0).collect();
        let mut packed = vec![0u64; pack::packed_bytes(n, k, number).div_ceil(8) + 8];
        let mut converted = vec![0u64; (m * k * number.bytes()).div_ceil(8)];
        let mut sums = vec![0f32; 64 * TILE_COLUMNS];
        // SAFETY: the buffers have the sizes that the layouts need; if the machine lacks the instructions, this is the
        // child process that finds out.
        unsafe {
            use super::rows::Src;
            let src = |v: &[f32]| Src { ptr: v.as_ptr().cast(), dtype: DType::F32 };
            let panels = packed.as_mut_ptr().cast::<u8>();
            for panel in 0..n.div_ceil(PANEL) {
                let columns = PANEL.min(n - panel * PANEL);
                let to = panels.add(panel * pack::panel_bytes(k, number));
                pack::pack_rows(rows, number, src(&b[panel * PANEL * k..]), k, columns, k, to);
            }
            let ptr = converted.as_mut_ptr().cast::<u8>();
            match number {
                ProductType::F32 => (rows.load)(src(&a), std::slice::from_raw_parts_mut(ptr.cast(), m * k)),
                ProductType::Bf16 => (rows.to_bf16)(src(&a), std::slice::from_raw_parts_mut(ptr.cast(), m * k)),
            }
            for column in (0..n).step_by(TILE_COLUMNS) {
                for row in (0..m).step_by(kernel.rows) {
                    let count = kernel.rows.min(m - row);
                    (kernel.begin)();
                    (kernel.run)(&Tile {
                        rows: kernel.halves(m - row),
                        panels: (n - column).min(TILE_COLUMNS).div_ceil(PANEL),
                        a: [row, (row + HALF).min(m - 1)].map(|r| ptr.add(r * k * number.bytes()).cast_const()),
                        a_stride: k * number.bytes(),
                        near: Near::A,
                        fetch: panels,
                        fetch_lines: 4,
                        segments: &0,
                        segment_count: 1,
                        segment_k: k,
                        b: panels.add(column / PANEL * pack::panel_bytes(k, number)),
                        panel_stride: pack::panel_bytes(k, number),
                        c: sums.as_mut_ptr(),
                        c_stride: TILE_COLUMNS,
                        accumulate: false,
                    });
                    (kernel.end)();
                    for (i, j) in (0..count).flat_map(|i| (0..(n - column).min(TILE_COLUMNS)).map(move |j| (i, j))) {
                        let (x, y) = (&a[(row + i) * k..][..k], &b[(column + j) * k..][..k]);
                        let want: f32 = x.iter().zip(y).map(|(x, y)| x * y).sum();
                        let got = sums[i * TILE_COLUMNS + j];
                        if got != want {
                            return Err(format!("computed {got} instead of {want} in {number:?}"));
                        }
                    }
                }
            }
        }
    }
    Ok(())
}
