//! Rows that are copied for the next block between the products of this one.

use super::Number;
use crate::cpu::memory::ALIGNMENT;
use crate::cpu::rows::{Rows, Src};

/// Numbers that follow each other, to be copied into the compute type.
#[derive(Clone, Copy)]
pub(in super::super) struct Stretch {
    pub(in super::super) from: Src,
    pub(in super::super) to: *mut u8,
    pub(in super::super) numbers: usize,
}

impl Stretch {
    /// # Safety
    /// Both places have so many numbers.
    pub(in super::super) unsafe fn copy(&self, rows: &Rows, number: Number) {
        // SAFETY: the caller's.
        unsafe {
            match number {
                Number::F32 => (rows.load)(self.from, std::slice::from_raw_parts_mut(self.to.cast(), self.numbers)),
                Number::Bf16 => (rows.to_bf16)(self.from, std::slice::from_raw_parts_mut(self.to.cast(), self.numbers)),
            }
        }
    }
}

/// What a matrix kernel copies on its way, stretch after stretch: whole cache lines of bf16, from bf16 or f32.
pub(in super::super) struct Ahead<'a> {
    stretches: &'a mut dyn Iterator<Item = Stretch>,
    /// What is left of the stretch that is being copied.
    stretch: Option<Stretch>,
    /// Lines to copy with each step of 32 numbers of `k`.
    per_step: usize,
}

/// Numbers of bf16 in a cache line.
const LINE: usize = ALIGNMENT as usize / Number::Bf16.bytes();

impl<'a> Ahead<'a> {
    /// The stretches have so many `numbers` in all; the block that they are copied beside has so many steps.
    ///
    /// # Safety
    /// What the stretches say is there, as long as this.
    pub(in super::super) unsafe fn new(
        stretches: &'a mut dyn Iterator<Item = Stretch>,
        numbers: usize,
        steps: usize,
    ) -> Ahead<'a> {
        let stretch = stretches.next();
        let per_step = if stretch.is_some() { (numbers / LINE).div_ceil(steps.max(1)) } else { 0 };
        Ahead { stretches, stretch, per_step }
    }

    /// Copy the lines of a step.
    ///
    /// # Safety
    /// The machine has AVX512-BF16.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) unsafe fn step(&mut self) {
        use impasto_graph::DType;
        use std::arch::x86_64::*;
        for _ in 0..self.per_step {
            let Some(stretch) = &mut self.stretch else {
                self.per_step = 0;
                return;
            };
            // SAFETY: the stretches are whole lines, and vouched for by who made them; asking ahead reads nothing.
            unsafe {
                let from = stretch.from.ptr;
                match stretch.from.dtype {
                    DType::F32 => {
                        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(2 * AHEAD_BYTES).cast());
                        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(2 * AHEAD_BYTES + 64).cast());
                        let [low, high] = [0, 64].map(|at| _mm512_loadu_ps(from.add(at).cast()));
                        stretch.to.cast::<__m512bh>().write_unaligned(_mm512_cvtne2ps_pbh(high, low));
                    }
                    _ => {
                        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD_BYTES).cast());
                        stretch.to.cast::<__m512i>().write_unaligned(_mm512_loadu_si512(from.cast()));
                    }
                }
                stretch.from = stretch.from.at(LINE);
                stretch.to = stretch.to.add(ALIGNMENT as usize);
            }
            stretch.numbers -= LINE;
            if stretch.numbers == 0 {
                self.stretch = self.next();
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn next(&mut self) -> Option<Stretch> {
        self.stretches.next()
    }

    /// Copy what is left.
    ///
    /// # Safety
    /// As [`Ahead::new`].
    pub(in super::super) unsafe fn finish(self, rows: &Rows) {
        // SAFETY: the caller's.
        self.stretch.into_iter().chain(self.stretches).for_each(|stretch| unsafe { stretch.copy(rows, Number::Bf16) });
    }
}

/// How far ahead of the copying its source is asked for: 16 lines take as many steps, or a third of a microsecond.
#[cfg(target_arch = "x86_64")]
const AHEAD_BYTES: usize = 1024;
