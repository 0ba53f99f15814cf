//! Micro kernel for matrix tiles: 32 rows by 32 columns are four tiles of sums, fed by two of A and two of B.
//!
//! The intrinsics are not stable; the instructions are written as assembly. Tile registers belong to nobody in Rust, so
//! their contents survive between the blocks of one function.

use std::arch::asm;
use std::cell::Cell;

use super::{Expected, HALF, Near, PANEL, Tile};

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
    // SAFETY: the caller vouches for the instructions and the pointers.
    unsafe {
        configure(t.rows);
        match (t.rows[1] > 0, t.panels > 1) {
            (true, true) => match t.fetch_lines {
                8 => tile::<true, true, 8>(t),
                4 => tile::<true, true, 4>(t),
                3 => tile::<true, true, 3>(t),
                _ => tile::<true, true, 2>(t),
            },
            (true, false) => tile::<true, false, 2>(t),
            (false, true) => tile::<false, true, 2>(t),
            (false, false) => tile::<false, false, 2>(t),
        }
    }
}

/// Steps of 32 numbers at the beginning of each segment for which the operand that is used again soon is left in the nearest
/// cache: 24 KB of it, half of that cache, since two threads may share it.
const NEAR_STEPS: usize = 12;

/// How a step loads A and B: by the nearest cache, or past it. What is not used again soon would only drive out what is.
#[derive(Clone, Copy)]
enum Loads {
    NearA,
    NearB,
    PastBoth,
}

/// Where a tile has come to: A's upper and lower half, B's left panel, and what is fetched on the way.
struct Place {
    a: *const u8,
    below: *const u8,
    b: *const u8,
    fetch: *const u8,
}

/// What two requests for lines of a result go to, and as many for what is added to it: one row of `f32`, two of bf16.
#[derive(Clone, Copy)]
struct Request {
    out: *const u8,
    residual: *const u8,
    /// Bytes to the second line, and to the next request's first.
    second: usize,
    next: usize,
}

/// The rows that are still to be asked for.
struct Requests {
    halves: [Expected; 2],
    /// Where there is nothing to ask for: a line that is near in any case.
    idle: *const u8,
}

impl Requests {
    /// The request that the next step begins with, and for how many of `steps` it goes on.
    #[inline(always)]
    fn take(&mut self, steps: usize) -> (Request, usize) {
        let Some(e) = self.halves.iter_mut().find(|e| e.rows > 0) else {
            return (Request { out: self.idle, residual: self.idle, second: 0, next: 0 }, steps);
        };
        let (second, rows) = if e.bytes <= 64 { (e.stride, 2) } else { (64, 1) };
        let request = Request { out: e.out, residual: e.residual, second, next: rows * e.stride };
        let count = steps.min(e.rows.div_ceil(rows));
        [e.out, e.residual] = [e.out, e.residual].map(|p| p.wrapping_add(count * request.next));
        e.rows = e.rows.saturating_sub(count * rows);
        (request, count)
    }
}

/// Go on by `steps` times 32 numbers of `k`, fetching so many `LINES` with each. A's upper and lower half pass through tiles 4 and 5, B's left
/// and right panel through 6 and 7, the sums are in 0 to 3. `LOW`: there is a lower half. `RIGHT`: there are two panels.
#[inline(always)]
unsafe fn advance<const LOW: bool, const RIGHT: bool, const LINES: usize>(
    t: &Tile,
    at: &mut Place,
    steps: usize,
    loads: Loads,
    request: Request,
) {
    macro_rules! through_k {
        ($($line:expr),* $(,)?) => {
            asm!(
                "2:",
                $($line,)*
                "prefetcht1 [{fetch}]",
                "prefetcht1 [{fetch} + 64]",
                "prefetchw [{out}]",
                "prefetchw [{out} + {second}]",
                "prefetcht0 [{residual}]",
                "prefetcht0 [{residual} + {second}]",
                "add {out}, {next}",
                "add {residual}, {next}",
                "add {fetch}, {fetched}",
                "add {a}, 64",
                "add {below}, 64",
                "add {b}, 1024",
                "add {right}, 1024",
                "dec {n}",
                "jnz 2b",
                a = inout(reg) at.a,
                below = inout(reg) at.below,
                b = inout(reg) at.b,
                right = inout(reg) at.b.wrapping_add(t.panel_stride) => _,
                fetch = inout(reg) at.fetch,
                fetched = const 64 * LINES,
                out = inout(reg) request.out => _,
                residual = inout(reg) request.residual => _,
                second = in(reg) request.second,
                next = in(reg) request.next,
                sa = in(reg) t.a_stride,
                sb = in(reg) 64usize,
                n = inout(reg) steps => _,
                options(nostack, readonly)
            )
        };
    }
    // Two lines are fetched by every step, the further ones are spread over it.
    macro_rules! four_sums {
        ($load_a:literal, $load_b:literal) => {
            match LINES {
                8 => four_sums!(
                    $load_a, $load_b,
                    ["prefetcht1 [{fetch} + 128]", "prefetcht1 [{fetch} + 192]", "prefetcht1 [{fetch} + 256]"],
                    ["prefetcht1 [{fetch} + 320]", "prefetcht1 [{fetch} + 384]", "prefetcht1 [{fetch} + 448]"]
                ),
                4 => four_sums!($load_a, $load_b, ["prefetcht1 [{fetch} + 128]"], ["prefetcht1 [{fetch} + 192]"]),
                3 => four_sums!($load_a, $load_b, ["prefetcht1 [{fetch} + 128]"], []),
                _ => four_sums!($load_a, $load_b, [], []),
            }
        };
        ($load_a:literal, $load_b:literal, [$($first:literal),*], [$($second:literal),*]) => {
            through_k!(
                concat!($load_a, " tmm4, [{a} + {sa}*1]"),
                concat!($load_b, " tmm6, [{b} + {sb}*1]"),
                "tdpbf16ps tmm0, tmm4, tmm6",
                $($first,)*
                concat!($load_b, " tmm7, [{right} + {sb}*1]"),
                "tdpbf16ps tmm1, tmm4, tmm7",
                $($second,)*
                concat!($load_a, " tmm5, [{below} + {sa}*1]"),
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
            )
        };
    }
    // SAFETY: the caller vouches for the rows of A and the panels of B; fetching and asking read nothing.
    unsafe {
        match (LOW, RIGHT, loads) {
            (true, true, Loads::NearA) => four_sums!("tileloadd", "tileloaddt1"),
            (true, true, Loads::NearB) => four_sums!("tileloaddt1", "tileloadd"),
            (true, true, Loads::PastBoth) => four_sums!("tileloaddt1", "tileloaddt1"),
            (true, false, _) => through_k!(
                "tileloadd tmm4, [{a} + {sa}*1]",
                "tileloaddt1 tmm6, [{b} + {sb}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{below} + {sa}*1]",
                "tdpbf16ps tmm2, tmm5, tmm6",
            ),
            (false, true, _) => through_k!(
                "tileloadd tmm4, [{a} + {sa}*1]",
                "tileloadd tmm6, [{b} + {sb}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{right} + {sb}*1]",
                "tdpbf16ps tmm1, tmm4, tmm7",
            ),
            (false, false, _) => through_k!(
                "tileloadd tmm4, [{a} + {sa}*1]",
                "tileloadd tmm6, [{b} + {sb}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
            ),
        }
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

#[inline(always)]
unsafe fn tile<const LOW: bool, const RIGHT: bool, const LINES: usize>(t: &Tile) {
    // SAFETY: the caller vouches for C, the rows of A and the panels of B; the tiles are configured for the number of rows.
    unsafe {
        open_sums::<LOW, RIGHT>(t);
        let mut at = Place { a: t.a[0], below: t.a[1], b: t.b, fetch: t.fetch };
        let mut requests = Requests { halves: t.expected, idle: t.c.cast() };
        let steps = t.segment_k / 32;
        let near = steps.min(NEAR_STEPS);
        let loads = match t.near {
            Near::A => Loads::NearA,
            Near::B => Loads::NearB,
        };
        for s in 0..t.segment_count {
            [at.a, at.below] = t.a.map(|a| a.add(*t.segments.add(s)));
            for (mut left, loads) in [(near, loads), (steps - near, Loads::PastBoth)] {
                while left > 0 {
                    let (request, count) = requests.take(left);
                    advance::<LOW, RIGHT, LINES>(t, &mut at, count, loads, request);
                    left -= count;
                }
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

/// As [`peak`], with the factors loaded from the nearest cache: as fast, where nobody else uses the core.
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
