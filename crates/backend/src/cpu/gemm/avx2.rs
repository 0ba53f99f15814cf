//! Micro kernels for 256-bit vectors: 6 rows by 16 columns fill 12 of 16 registers with sums.

use std::arch::x86_64::*;

use super::{PANEL, Tile, portable};
use crate::cpu::math::FUSED;

pub(super) const ROWS: usize = 6;

#[target_feature(enable = "avx2,fma")]
unsafe fn rows_f32<const R: usize>(t: &Tile, b: *const u8, c: *mut f32) {
    // SAFETY: the caller vouches for the pointers; offsets lie inside the rows of A and the panels of B.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); 2]; R];
        if t.accumulate {
            for (r, row) in sums.iter_mut().enumerate() {
                let c = c.add(r * t.c_stride);
                *row = [_mm256_loadu_ps(c), _mm256_loadu_ps(c.add(8))];
            }
        }
        let mut b = b.cast::<f32>();
        for s in 0..t.segment_count {
            let a = t.a[0].add(*t.segments.add(s));
            for k in 0..t.segment_k {
                let (b0, b1) = (_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(8)));
                b = b.add(PANEL);
                for (r, row) in sums.iter_mut().enumerate() {
                    let x = _mm256_broadcast_ss(&*a.add(r * t.a_stride + 4 * k).cast());
                    row[0] = _mm256_fmadd_ps(x, b0, row[0]);
                    row[1] = _mm256_fmadd_ps(x, b1, row[1]);
                }
            }
        }
        for (r, row) in sums.iter().enumerate() {
            let c = c.add(r * t.c_stride);
            _mm256_storeu_ps(c, row[0]);
            _mm256_storeu_ps(c.add(8), row[1]);
        }
    }
}

#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn f32(t: &Tile) {
    for panel in 0..t.panels {
        // SAFETY: the caller's; there are `panels` panels and as many groups of columns.
        unsafe {
            let (b, c) = (t.b.add(panel * t.panel_stride), t.c.add(panel * PANEL));
            match t.rows[0] {
                1 => rows_f32::<1>(t, b, c),
                2 => rows_f32::<2>(t, b, c),
                3 => rows_f32::<3>(t, b, c),
                4 => rows_f32::<4>(t, b, c),
                5 => rows_f32::<5>(t, b, c),
                _ => rows_f32::<6>(t, b, c),
            }
        }
    }
}

#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn emulated_bf16(t: &Tile) {
    // SAFETY: the caller's.
    unsafe { portable::bf16_with::<FUSED>(t) }
}

/// Fused multiply-add in registers only; returns the operations done.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn peak_f32(turns: usize) -> u64 {
    let mut sums = [_mm256_set1_ps(1.0); 12];
    let (a, b) = (_mm256_set1_ps(std::hint::black_box(0.999)), _mm256_set1_ps(std::hint::black_box(1e-3)));
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(a, *sum, b);
        }
    }
    std::hint::black_box(sums);
    turns as u64 * 12 * 8 * 2
}
