//! Micro kernel for matrix tiles: 32 rows by 32 columns are four tiles of sums, fed by two of A and two of B.
//!
//! The intrinsics are not stable; the instructions are written as assembly. Tile registers belong to nobody in Rust, so
//! their contents survive between the blocks of one function.

use std::arch::asm;
use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
use std::cell::Cell;

use impasto_graph::DType;

use super::{HALF, Near, PANEL, TILE_COLUMNS, Tile, TileRows};
use crate::cpu::math::AVX512_BF16;
use crate::cpu::rows::Ending;
use crate::cpu::rows::body::Row;

/// The layout that `ldtilecfg` reads.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row, by tile.
    columns: [u16; 16],
    /// Rows, by tile.
    rows: [u8; 16],
}

/// Tiles 0 to 3 are sums, 4 and 5 are A, 6 and 7 are B. `low` and `high` are the rows of the upper and the lower half.
const fn config(low: u8, high: u8) -> Config {
    let mut c = Config { palette: 1, start_row: 0, reserved: [0; 14], columns: [0; 16], rows: [0; 16] };
    let mut i = 0;
    while i < 8 {
        c.columns[i] = 64;
        i += 1;
    }
    c.rows = [low, low, high, high, low, high, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0];
    c
}

thread_local! {
    /// Rows that this thread's tiles are set up for; 0 if they are not.
    static CONFIGURED: Cell<[usize; 2]> = const { Cell::new([0; 2]) };
}

/// Whether the processor has the tiles, the system saves them, and this process may use them.
pub(in super::super) fn claimed() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    if __cpuid(0).eax < 7 {
        return false;
    }
    let features = __cpuid_count(7, 0).edx;
    let (bf16, tile) = (features & (1 << 22) != 0, features & (1 << 24) != 0);
    let os_saves = __cpuid(1).ecx & (1 << 27) != 0;
    if !bf16 || !tile || !os_saves {
        return false;
    }
    // SAFETY: OSXSAVE is set, so `xgetbv` exists.
    let enabled = unsafe {
        let (low, _high): (u32, u32);
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _high, options(nomem, nostack));
        low
    };
    const TILE_STATE: u32 = 0b11 << 17;
    enabled & TILE_STATE == TILE_STATE && permitted()
}

/// Linux gives the large tile state only to processes that ask for it.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call changes nothing but this permission.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// Set the thread's tiles up for the rows of the upper and the lower half, unless they are.
///
/// # Safety
/// The machine has tiles, and `begin` was called.
pub(in super::super) unsafe fn configure(rows: [usize; 2]) {
    if CONFIGURED.get() == rows {
        return;
    }
    let config = config(rows[0] as u8, rows[1].max(1) as u8);
    // SAFETY: the configuration is valid for palette 1, and the machine has tiles.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly)) };
    CONFIGURED.set(rows);
}

pub(super) unsafe fn begin() {
    CONFIGURED.set([0; 2]);
}

/// Give the tiles back: a thread that holds them makes its switches dearer.
pub(super) unsafe fn end() {
    if CONFIGURED.replace([0; 2]) != [0; 2] {
        // SAFETY: the machine has tiles.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

pub(super) unsafe fn bf16(t: &Tile) {
    // SAFETY: the caller's.
    unsafe { bf16_ending(t, &[None; 2], None) }
}

/// See [`super::Beside`].
pub(super) unsafe fn bf16_ending(t: &Tile, parts: &[Option<TileRows>; 2], waiting: Option<&TileRows>) {
    let ending = waiting.or(parts[0].as_ref()).and_then(|part| part.finish.ending());
    // SAFETY: the caller vouches for the instructions and the pointers.
    unsafe {
        configure(t.rows);
        match ending {
            Some(Ending::Narrow) | None => tile::<{ Ending::Narrow as u8 }>(t, parts, waiting),
            Some(Ending::NarrowPlusNarrow) => tile::<{ Ending::NarrowPlusNarrow as u8 }>(t, parts, waiting),
            Some(Ending::NarrowPlusWide) => tile::<{ Ending::NarrowPlusWide as u8 }>(t, parts, waiting),
            Some(Ending::Wide) => tile::<{ Ending::Wide as u8 }>(t, parts, waiting),
            Some(Ending::WidePlusWide) => tile::<{ Ending::WidePlusWide as u8 }>(t, parts, waiting),
            Some(Ending::Gated) => tile::<{ Ending::Gated as u8 }>(t, parts, waiting),
        }
    }
}

/// Steps of 32 numbers at the beginning of each segment for which the operand that is used again soon is left in the nearest
/// cache: 24 KB of it, half of that cache, since two threads may share it.
const NEAR_STEPS: usize = 12;

/// How a step loads A and B: through L1, or past it. What is not used again soon would only drive out what is.
const NEAR_A: u8 = 0;
const NEAR_B: u8 = 1;
const PAST_BOTH: u8 = 2;

/// Where a tile has come to: A's upper and lower half, B's left and right panel, and what is fetched on the way.
struct TileCursor {
    a: *const u8,
    below: *const u8,
    b: *const u8,
    right: *const u8,
    fetch: *const u8,
}

impl TileCursor {
    fn new(t: &Tile) -> TileCursor {
        TileCursor { a: t.a[0], below: t.a[1], b: t.b, right: t.b.wrapping_add(t.panel_stride), fetch: t.fetch }
    }

    /// Go to the beginning of a segment of `k`; its panels follow those of the one before.
    ///
    /// # Safety
    /// There is one.
    #[inline(always)]
    unsafe fn go_to(&mut self, t: &Tile, segment: usize) {
        // SAFETY: the caller's.
        [self.a, self.below] = t.a.map(|a| unsafe { a.add(*t.segments.add(segment)) });
    }

    /// Go on by 32 numbers of `k`, for which so many lines were fetched.
    #[inline(always)]
    fn go_on(&mut self, lines: usize) {
        [self.a, self.below] = [self.a, self.below].map(|a| a.wrapping_add(64));
        [self.b, self.right] = [self.b, self.right].map(|b| b.wrapping_add(1024));
        self.fetch = self.fetch.wrapping_add(64 * lines);
    }
}

/// Rows of a result that are still to be asked for, and of what is added to it; by bytes.
#[derive(Clone, Copy)]
struct Expected {
    rows: usize,
    out: *const u8,
    residual: *const u8,
    strides: [usize; 2],
}

impl Expected {
    fn new(part: &Option<TileRows>) -> Expected {
        match part {
            // What goes past the caches is not fetched to be overwritten.
            Some(TileRows { rows, finish, .. }) if !finish.streamed => {
                let (out, residual, strides) = finish.places();
                Expected { rows: *rows, out, residual, strides }
            }
            _ => Expected { rows: 0, out: std::ptr::null(), residual: std::ptr::null(), strides: [0; 2] },
        }
    }
}

/// What a tile does between its products, a row at a time: ask for its own result, whose lines arrive meanwhile, and finish the tile before.
struct Turns {
    expected: [Expected; 2],
    row: Row,
    left: usize,
}

impl Turns {
    /// `ENDING` as in [`Row::finish`].
    ///
    /// # Safety
    /// The rows are there.
    #[inline(always)]
    unsafe fn take<const ENDING: u8>(&mut self) {
        let e = &mut self.expected[0];
        if e.rows > 0 {
            ask_to_write(e.out);
            let ending = Ending::of(ENDING);
            if ending.is_wide() {
                ask_to_write(e.out.wrapping_add(64));
            }
            if let Some(dtype) = ending.residual() {
                fetch_near(e.residual);
                if dtype == DType::F32 {
                    fetch_near(e.residual.wrapping_add(64));
                }
            }
            (e.out, e.residual) = (e.out.wrapping_add(e.strides[0]), e.residual.wrapping_add(e.strides[1]));
            e.rows -= 1;
            if e.rows == 0 {
                self.expected.swap(0, 1);
            }
        }
        if self.left > 0 {
            self.left -= 1;
            // SAFETY: the caller vouches for the rows.
            unsafe { self.row.finish::<AVX512_BF16, ENDING>(TILE_COLUMNS) };
        }
    }

    /// Finish the rows that had no turn.
    #[inline(always)]
    unsafe fn finish_all<const ENDING: u8>(&mut self) {
        for _ in 0..self.left {
            // SAFETY: the caller's.
            unsafe { self.row.finish::<AVX512_BF16, ENDING>(TILE_COLUMNS) };
        }
        self.left = 0;
    }
}

/// Fetch a line that will be overwritten into L1.
#[inline(always)]
fn ask_to_write(line: *const u8) {
    // SAFETY: reads and writes nothing; the processors that have tiles have it.
    unsafe { asm!("prefetchw [{}]", in(reg) line, options(nostack, readonly, preserves_flags)) };
}

#[inline(always)]
fn fetch_near(line: *const u8) {
    // SAFETY: reads and writes nothing.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
}

/// Go on by `steps` times 32 numbers of `k`. A's upper and lower half pass through tiles 4 and 5, B's left and right panel through 6 and 7, the
/// sums are in 0 to 3. `OFTEN`: a turn after each product, else after each step.
#[inline(always)]
unsafe fn advance<const LOADS: u8, const OFTEN: bool, const ENDING: u8>(
    t: &Tile,
    at: &mut TileCursor,
    steps: usize,
    turns: &mut Turns,
) {
    macro_rules! four_sums {
        ($load_a:literal, $load_b:literal) => {
            for _ in 0..steps {
                asm!(
                    concat!($load_a, " tmm4, [{a} + {sa}*1]"),
                    concat!($load_b, " tmm6, [{b} + {sb}*1]"),
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "prefetcht1 [{fetch}]",
                    "prefetcht1 [{fetch} + 64]",
                    a = in(reg) at.a, b = in(reg) at.b, sa = in(reg) t.a_stride, sb = in(reg) 64usize, fetch = in(reg) at.fetch,
                    options(nostack, readonly)
                );
                if OFTEN {
                    turns.take::<ENDING>();
                }
                asm!(
                    concat!($load_b, " tmm7, [{b} + {sb}*1]"),
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    b = in(reg) at.right, sb = in(reg) 64usize,
                    options(nostack, readonly)
                );
                // Two lines are fetched by every step, the further ones are spread over it.
                if t.fetch_lines > 2 {
                    fetch_lines(at.fetch, 2, t.fetch_lines.min(5));
                }
                if OFTEN {
                    turns.take::<ENDING>();
                }
                asm!(
                    concat!($load_a, " tmm5, [{a} + {sa}*1]"),
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    a = in(reg) at.below, sa = in(reg) t.a_stride,
                    options(nostack, readonly)
                );
                if t.fetch_lines > 5 {
                    fetch_lines(at.fetch, 5, 8);
                }
                if OFTEN {
                    turns.take::<ENDING>();
                }
                asm!("tdpbf16ps tmm3, tmm5, tmm7", options(nostack, nomem));
                turns.take::<ENDING>();
                at.go_on(t.fetch_lines);
            }
        };
    }
    // SAFETY: the caller vouches for the rows of A and the panels of B; fetching and asking read nothing.
    unsafe {
        match LOADS {
            NEAR_A => four_sums!("tileloadd", "tileloaddt1"),
            NEAR_B => four_sums!("tileloaddt1", "tileloadd"),
            _ => four_sums!("tileloaddt1", "tileloaddt1"),
        }
    }
}

/// Fetch some of the lines after an address into L2.
#[inline(always)]
fn fetch_lines(at: *const u8, from: usize, to: usize) {
    for line in from..to {
        // SAFETY: reads and writes nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(64 * line).cast()) };
    }
}

/// The sums of `t` into tiles 0 to 3, or zeros.
#[inline(always)]
unsafe fn open_sums<const LOW: bool, const RIGHT: bool>(t: &Tile) {
    if !t.accumulate {
        // SAFETY: the tiles are configured.
        unsafe { asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem)) };
        return;
    }
    let ([c00, c01, c10, c11], s) = (quarters(t), 4 * t.c_stride);
    // SAFETY: offsets lie inside C: 32 rows by 32 columns, as far as `LOW` and `RIGHT` say.
    unsafe {
        asm!("tileloadd tmm0, [{c} + {s}*1]", c = in(reg) c00, s = in(reg) s, options(nostack, readonly));
        if RIGHT {
            asm!("tileloadd tmm1, [{c} + {s}*1]", c = in(reg) c01, s = in(reg) s, options(nostack, readonly));
        }
        if LOW {
            asm!("tileloadd tmm2, [{c} + {s}*1]", c = in(reg) c10, s = in(reg) s, options(nostack, readonly));
        }
        if LOW && RIGHT {
            asm!("tileloadd tmm3, [{c} + {s}*1]", c = in(reg) c11, s = in(reg) s, options(nostack, readonly));
        }
    }
}

/// Tiles 0 to 3 to where the sums of `t` are.
#[inline(always)]
unsafe fn store_sums<const LOW: bool, const RIGHT: bool>(t: &Tile) {
    let ([c00, c01, c10, c11], s) = (quarters(t), 4 * t.c_stride);
    // SAFETY: as in `open_sums`.
    unsafe {
        asm!("tilestored [{c} + {s}*1], tmm0", c = in(reg) c00, s = in(reg) s, options(nostack));
        if RIGHT {
            asm!("tilestored [{c} + {s}*1], tmm1", c = in(reg) c01, s = in(reg) s, options(nostack));
        }
        if LOW {
            asm!("tilestored [{c} + {s}*1], tmm2", c = in(reg) c10, s = in(reg) s, options(nostack));
        }
        if LOW && RIGHT {
            asm!("tilestored [{c} + {s}*1], tmm3", c = in(reg) c11, s = in(reg) s, options(nostack));
        }
    }
}

/// Where the sums of the four tiles begin.
#[inline(always)]
fn quarters(t: &Tile) -> [*mut f32; 4] {
    [0, PANEL, HALF * t.c_stride, HALF * t.c_stride + PANEL].map(|at| t.c.wrapping_add(at))
}

/// `ENDING` as in [`Row::finish`].
#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn tile<const ENDING: u8>(t: &Tile, parts: &[Option<TileRows>; 2], waiting: Option<&TileRows>) {
    // SAFETY: the caller vouches for C, the rows of A, the panels of B, and the tile that waits; the tiles are configured for the number of rows.
    unsafe {
        let mut turns = Turns {
            expected: [Expected::new(&parts[0]), Expected::new(&parts[1])],
            row: waiting.map_or(Row::NOWHERE, |part| Row::new(part.sums, &part.finish)),
            left: waiting.map_or(0, |part| part.rows),
        };
        match (t.rows[1] > 0, t.panels > 1) {
            (true, true) => whole_tile::<ENDING>(t, turns),
            (low, right) => {
                turns.finish_all::<ENDING>();
                match (low, right) {
                    (true, _) => tile_at_end::<true, false>(t),
                    (false, true) => tile_at_end::<false, true>(t),
                    (false, false) => tile_at_end::<false, false>(t),
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn whole_tile<const ENDING: u8>(t: &Tile, mut turns: Turns) {
    let steps = t.segment_k / 32;
    let near = steps.min(NEAR_STEPS);
    // Rows that have no turn after a step have one after a product.
    let often = steps * t.segment_count < 2 * HALF;
    let mut at = TileCursor::new(t);
    // SAFETY: the caller's.
    unsafe {
        open_sums::<true, true>(t);
        for s in 0..t.segment_count {
            at.go_to(t, s);
            match (t.near, often) {
                (Near::A, true) => advance::<NEAR_A, true, ENDING>(t, &mut at, near, &mut turns),
                (Near::A, false) => advance::<NEAR_A, false, ENDING>(t, &mut at, near, &mut turns),
                (Near::B, true) => advance::<NEAR_B, true, ENDING>(t, &mut at, near, &mut turns),
                (Near::B, false) => advance::<NEAR_B, false, ENDING>(t, &mut at, near, &mut turns),
            }
            match often {
                true => advance::<PAST_BOTH, true, ENDING>(t, &mut at, steps - near, &mut turns),
                false => advance::<PAST_BOTH, false, ENDING>(t, &mut at, steps - near, &mut turns),
            }
        }
        // Their place may be the one of this tile's sums.
        turns.finish_all::<ENDING>();
        store_sums::<true, true>(t);
    }
}

/// A tile at the end of rows or columns, which has fewer than four sums.
#[inline(always)]
unsafe fn tile_at_end<const LOW: bool, const RIGHT: bool>(t: &Tile) {
    let mut at = TileCursor::new(t);
    let (sa, sb) = (t.a_stride, 64usize);
    // SAFETY: the caller's.
    unsafe {
        open_sums::<LOW, RIGHT>(t);
        for s in 0..t.segment_count {
            at.go_to(t, s);
            for _ in 0..t.segment_k / 32 {
                asm!(
                    "tileloadd tmm4, [{a} + {sa}*1]",
                    "tileloadd tmm6, [{b} + {sb}*1]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    a = in(reg) at.a, b = in(reg) at.b, sa = in(reg) sa, sb = in(reg) sb, options(nostack, readonly)
                );
                if RIGHT {
                    asm!(
                        "tileloadd tmm7, [{b} + {sb}*1]",
                        "tdpbf16ps tmm1, tmm4, tmm7",
                        b = in(reg) at.right, sb = in(reg) sb, options(nostack, readonly)
                    );
                }
                if LOW {
                    asm!(
                        "tileloadd tmm5, [{a} + {sa}*1]",
                        "tdpbf16ps tmm2, tmm5, tmm6",
                        a = in(reg) at.below, sa = in(reg) sa, options(nostack, readonly)
                    );
                }
                fetch_lines(at.fetch, 0, 2);
                at.go_on(2);
            }
        }
        store_sums::<LOW, RIGHT>(t);
    }
}

/// As [`bf16`] for 32 rows and one segment, with a piece of other work after each product: vectors and tiles compute at the same time if what
/// they do stands near each other. `RIGHT`: there are two panels.
///
/// # Safety
/// As [`super::Kernel::run`], and the tiles are configured for 32 rows.
#[inline(always)]
pub(in super::super) unsafe fn bf16_beside<const RIGHT: bool>(t: &Tile, mut work: impl FnMut()) {
    // SAFETY: as in `tile`.
    unsafe {
        open_sums::<true, RIGHT>(t);
        let ([mut a, mut below], mut b) = (t.a, t.b);
        let (sa, sb) = (t.a_stride, 64usize);
        for _ in 0..t.segment_k / 32 {
            asm!(
                "tileloadd tmm4, [{a} + {sa}*1]",
                "tileloaddt1 tmm6, [{b} + {sb}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                a = in(reg) a, b = in(reg) b, sa = in(reg) sa, sb = in(reg) sb, options(nostack, readonly)
            );
            work();
            if RIGHT {
                asm!(
                    "tileloaddt1 tmm7, [{b} + {sb}*1]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    b = in(reg) b.wrapping_add(t.panel_stride), sb = in(reg) sb, options(nostack, readonly)
                );
                work();
            }
            asm!(
                "tileloadd tmm5, [{a} + {sa}*1]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                a = in(reg) below, sa = in(reg) sa, options(nostack, readonly)
            );
            work();
            if RIGHT {
                asm!("tdpbf16ps tmm3, tmm5, tmm7", options(nostack, readonly));
                work();
            }
            (a, below, b) = (a.wrapping_add(64), below.wrapping_add(64), b.wrapping_add(1024));
        }
        store_sums::<true, RIGHT>(t);
    }
}

/// Tile products in registers only; returns the operations done.
pub(super) unsafe fn peak(turns: usize) -> u64 {
    // SAFETY: the machine has tiles; zeros in, zeros out.
    unsafe {
        begin();
        configure([16, 16]);
        asm!("tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7", options(nostack, nomem));
        asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
        for _ in 0..turns {
            asm!(
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                options(nostack, nomem)
            );
        }
        end();
    }
    operations(turns)
}

/// As [`peak`], with the factors loaded from L1: as fast, where nobody else uses the core.
pub(super) unsafe fn near_peak(turns: usize) -> u64 {
    let factors = Near8K([0; 8192]);
    let at = factors.0.as_ptr();
    // SAFETY: the machine has tiles; all loads lie inside the factors.
    unsafe {
        begin();
        configure([16, 16]);
        asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
        for turn in 0..turns {
            let at = at.add(turn % 2 * 4096);
            asm!(
                "tileloadd tmm4, [{at} + {s}*1]",
                "tileloadd tmm6, [{at} + {s}*1 + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{at} + {s}*1 + 3072]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{at} + {s}*1 + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                at = in(reg) at,
                s = in(reg) 64usize,
                options(nostack, readonly)
            );
        }
        end();
    }
    operations(turns)
}

#[repr(align(4096))]
struct Near8K([u8; 8192]);

/// What four products of whole tiles are, `turns` times.
fn operations(turns: usize) -> u64 {
    turns as u64 * 4 * 16 * 16 * 32 * 2
}
