//! Micro kernels in plain Rust; the compiler makes of them what it can. The bf16 kernel is also what paths without
//! bf16 instructions use: a bf16 is the upper half of an `f32`, so widening it costs a shift.

use super::{PANEL, Tile};
use crate::cpu::math::{FUSED, PLAIN, fma};

/// Rows of a tile: with 16 columns its sums fill the registers of a machine with 32 of 4 numbers.
pub(super) const ROWS: usize = 4;

/// Compute a tile panel by panel, in groups of rows of a fixed number, so that sums stay in registers.
///
/// # Safety
/// As [`super::Kernel::run`].
#[inline(always)]
unsafe fn tile(t: &Tile, body: impl Fn(&Tile, usize, *const u8, *mut f32)) {
    for panel in 0..t.panels {
        // SAFETY: there are `panels` panels and as many groups of columns.
        let (b, c) = unsafe { (t.b.add(panel * t.panel_stride), t.c.add(panel * PANEL)) };
        body(t, t.rows[0], b, c);
    }
}

#[inline(always)]
unsafe fn load<const R: usize>(t: &Tile, c: *const f32) -> [[f32; PANEL]; R] {
    let mut sums = [[0.0; PANEL]; R];
    if t.accumulate {
        for (r, row) in sums.iter_mut().enumerate() {
            // SAFETY: C has R rows of 16 columns here.
            *row = unsafe { c.add(r * t.c_stride).cast::<[f32; PANEL]>().read_unaligned() };
        }
    }
    sums
}

#[inline(always)]
unsafe fn save<const R: usize>(t: &Tile, c: *mut f32, sums: [[f32; PANEL]; R]) {
    for (r, row) in sums.into_iter().enumerate() {
        // SAFETY: C has R rows of 16 columns here.
        unsafe { c.add(r * t.c_stride).cast::<[f32; PANEL]>().write_unaligned(row) };
    }
}

#[inline(always)]
unsafe fn rows_f32<const R: usize, const L: u8>(t: &Tile, b: *const u8, c: *mut f32) {
    // SAFETY: the caller's; segment offsets and lengths lie inside the rows of A and the panels of B.
    unsafe {
        let mut sums = load::<R>(t, c);
        let mut b = b.cast::<[f32; PANEL]>();
        for s in 0..t.segment_count {
            let a = t.a[0].add(*t.segments.add(s));
            for k in 0..t.segment_k {
                let columns = b.read_unaligned();
                b = b.add(1);
                for (r, row) in sums.iter_mut().enumerate() {
                    let x = *a.add(r * t.a_stride).cast::<f32>().add(k);
                    for i in 0..PANEL {
                        row[i] = fma::<L>(x, columns[i], row[i]);
                    }
                }
            }
        }
        save::<R>(t, c, sums);
    }
}

#[inline(always)]
unsafe fn rows_bf16<const R: usize, const L: u8>(t: &Tile, b: *const u8, c: *mut f32) {
    // SAFETY: as above.
    unsafe {
        let mut sums = load::<R>(t, c);
        let mut b = b.cast::<[u32; PANEL]>();
        for s in 0..t.segment_count {
            let a = t.a[0].add(*t.segments.add(s));
            for pair in 0..t.segment_k / 2 {
                let columns = b.read_unaligned();
                b = b.add(1);
                for (r, row) in sums.iter_mut().enumerate() {
                    let x = a.add(r * t.a_stride).cast::<u32>().add(pair).read_unaligned();
                    let (even, odd) = (f32::from_bits(x << 16), f32::from_bits(x & 0xffff_0000));
                    for i in 0..PANEL {
                        row[i] = fma::<L>(even, f32::from_bits(columns[i] << 16), row[i]);
                        row[i] = fma::<L>(odd, f32::from_bits(columns[i] & 0xffff_0000), row[i]);
                    }
                }
            }
        }
        save::<R>(t, c, sums);
    }
}

/// # Safety
/// As [`super::Kernel::run`].
#[inline(always)]
pub(super) unsafe fn f32_with<const L: u8>(t: &Tile) {
    // SAFETY: the caller's.
    unsafe {
        tile(t, |t, rows, b, c| match rows {
            1 => rows_f32::<1, L>(t, b, c),
            2 => rows_f32::<2, L>(t, b, c),
            3 => rows_f32::<3, L>(t, b, c),
            _ => rows_f32::<4, L>(t, b, c),
        });
    }
}

/// # Safety
/// As [`super::Kernel::run`].
#[inline(always)]
pub(super) unsafe fn bf16_with<const L: u8>(t: &Tile) {
    // SAFETY: the caller's.
    unsafe {
        tile(t, |t, rows, b, c| match rows {
            1 => rows_bf16::<1, L>(t, b, c),
            2 => rows_bf16::<2, L>(t, b, c),
            3 => rows_bf16::<3, L>(t, b, c),
            _ => rows_bf16::<4, L>(t, b, c),
        });
    }
}

const LEVEL: u8 = if cfg!(target_arch = "aarch64") { FUSED } else { PLAIN };

pub(super) unsafe fn f32(t: &Tile) {
    // SAFETY: the caller's.
    unsafe { f32_with::<LEVEL>(t) }
}

pub(super) unsafe fn bf16(t: &Tile) {
    // SAFETY: the caller's.
    unsafe { bf16_with::<LEVEL>(t) }
}

/// Multiply and add in registers only; returns the operations done.
pub(super) unsafe fn peak_f32(turns: usize) -> u64 {
    let mut sums = [[1.0f32; 8]; 4];
    let (a, b) = (std::hint::black_box(0.999_f32), std::hint::black_box([1e-3_f32; 8]));
    for _ in 0..turns {
        for row in &mut sums {
            for i in 0..8 {
                row[i] = fma::<LEVEL>(a, row[i], b[i]);
            }
        }
    }
    std::hint::black_box(sums);
    turns as u64 * 4 * 8 * 2
}
