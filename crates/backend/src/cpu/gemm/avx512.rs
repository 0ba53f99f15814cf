//! Micro kernels for 512-bit vectors: 12 rows by 32 columns fill 24 of 32 registers with sums.

use std::arch::x86_64::*;

use super::{PANEL, Tile, portable};
use crate::cpu::math::FUSED;

pub(super) const ROWS: usize = 12;

/// A tile of R rows and P panels, in `f32` or in pairs of bf16.
macro_rules! tile_kernel {
    ($name:ident, $feature:literal, $step:literal, $broadcast:expr, $multiply:expr) => {
        #[target_feature(enable = $feature)]
        unsafe fn $name<const R: usize, const P: usize>(t: &Tile) {
            // SAFETY: the caller vouches for the pointers; offsets lie inside the rows of A and the panels of B.
            unsafe {
                let mut sums = [[_mm512_setzero_ps(); P]; R];
                if t.accumulate {
                    for (r, row) in sums.iter_mut().enumerate() {
                        for (p, sum) in row.iter_mut().enumerate() {
                            *sum = _mm512_loadu_ps(t.c.add(r * t.c_stride + p * PANEL));
                        }
                    }
                }
                let mut b = t.b;
                for s in 0..t.segment_count {
                    let mut a = t.a[0].add(*t.segments.add(s));
                    for _ in 0..t.segment_k / $step {
                        let mut columns = [_mm512_setzero_ps(); P];
                        for (p, column) in columns.iter_mut().enumerate() {
                            *column = _mm512_loadu_ps(b.add(p * t.panel_stride).cast());
                        }
                        b = b.add(64);
                        for (r, row) in sums.iter_mut().enumerate() {
                            let x = $broadcast(a.add(r * t.a_stride));
                            for (sum, &column) in row.iter_mut().zip(&columns) {
                                *sum = $multiply(*sum, x, column);
                            }
                        }
                        a = a.add(4);
                    }
                }
                for (r, row) in sums.iter().enumerate() {
                    for (p, sum) in row.iter().enumerate() {
                        _mm512_storeu_ps(t.c.add(r * t.c_stride + p * PANEL), *sum);
                    }
                }
            }
        }
    };
}

tile_kernel!(
    tile_f32,
    "avx512f",
    1,
    |a: *const u8| _mm512_set1_ps(a.cast::<f32>().read_unaligned()),
    |sum, x, column| _mm512_fmadd_ps(x, column, sum)
);
tile_kernel!(
    tile_bf16,
    "avx512f,avx512bf16",
    2,
    |a: *const u8| _mm512_set1_epi32(a.cast::<i32>().read_unaligned()),
    |sum, x: __m512i, column: __m512| _mm512_dpbf16_ps(
        sum,
        std::mem::transmute::<__m512i, __m512bh>(x),
        std::mem::transmute::<__m512, __m512bh>(column)
    )
);

macro_rules! by_size {
    ($t:expr, $kernel:ident) => {
        match ($t.panels, $t.rows[0]) {
            (1, 1) => $kernel::<1, 1>($t),
            (1, 2) => $kernel::<2, 1>($t),
            (1, 3) => $kernel::<3, 1>($t),
            (1, 4) => $kernel::<4, 1>($t),
            (1, 5) => $kernel::<5, 1>($t),
            (1, 6) => $kernel::<6, 1>($t),
            (1, 7) => $kernel::<7, 1>($t),
            (1, 8) => $kernel::<8, 1>($t),
            (1, 9) => $kernel::<9, 1>($t),
            (1, 10) => $kernel::<10, 1>($t),
            (1, 11) => $kernel::<11, 1>($t),
            (1, _) => $kernel::<12, 1>($t),
            (_, 1) => $kernel::<1, 2>($t),
            (_, 2) => $kernel::<2, 2>($t),
            (_, 3) => $kernel::<3, 2>($t),
            (_, 4) => $kernel::<4, 2>($t),
            (_, 5) => $kernel::<5, 2>($t),
            (_, 6) => $kernel::<6, 2>($t),
            (_, 7) => $kernel::<7, 2>($t),
            (_, 8) => $kernel::<8, 2>($t),
            (_, 9) => $kernel::<9, 2>($t),
            (_, 10) => $kernel::<10, 2>($t),
            (_, 11) => $kernel::<11, 2>($t),
            (_, _) => $kernel::<12, 2>($t),
        }
    };
}

#[target_feature(enable = "avx512f")]
pub(super) unsafe fn f32(t: &Tile) {
    // SAFETY: the caller's.
    unsafe { by_size!(t, tile_f32) }
}

#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn bf16(t: &Tile) {
    // SAFETY: the caller's.
    unsafe { by_size!(t, tile_bf16) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(super) unsafe fn emulated_bf16(t: &Tile) {
    // SAFETY: the caller's.
    unsafe { portable::bf16_with::<FUSED>(t) }
}

/// Fused multiply-add in registers only; returns the operations done.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn peak_f32(turns: usize) -> u64 {
    let mut sums = [_mm512_set1_ps(1.0); 24];
    let (a, b) = (_mm512_set1_ps(std::hint::black_box(0.999)), _mm512_set1_ps(std::hint::black_box(1e-3)));
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(a, *sum, b);
        }
    }
    std::hint::black_box(sums);
    turns as u64 * 24 * 16 * 2
}

/// bf16 products in registers only; returns the operations done.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn peak_bf16(turns: usize) -> u64 {
    let mut sums = [_mm512_set1_ps(1.0); 24];
    // SAFETY: any bits are a vector of bf16.
    let x: __m512bh = unsafe { std::mem::transmute(_mm512_set1_epi32(std::hint::black_box(0x3c00_3c00))) };
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = _mm512_dpbf16_ps(*sum, x, x);
        }
    }
    std::hint::black_box(sums);
    turns as u64 * 24 * 32 * 2
}
