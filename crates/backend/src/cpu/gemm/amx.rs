//! Micro kernel for matrix tiles: 32 rows by 32 columns are four tiles of sums, fed by two of A and two of B.
//!
//! The intrinsics are not stable; the instructions are written as assembly. Tile registers belong to nobody in Rust, so
//! their contents survive between the blocks of one function.

use std::arch::asm;
use std::cell::Cell;

use super::{PANEL, Tile};

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

unsafe fn configure(rows: [usize; 2]) {
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
            (true, true) => tile::<true, true>(t),
            (true, false) => tile::<true, false>(t),
            (false, true) => tile::<false, true>(t),
            (false, false) => tile::<false, false>(t),
        }
    }
}

/// The instructions of one step through `k`, by what they do. A's upper and lower half are in tiles 4 and 5, B's left and right
/// panel in 6 and 7, the sums in 0 to 3.
macro_rules! load {
    (upper with $load:literal) => {
        concat!($load, " tmm4, [{a} + {sa}*1]")
    };
    (lower with $load:literal) => {
        concat!($load, " tmm5, [{below} + {sa}*1]")
    };
    (left) => {
        "tileloadd tmm6, [{b} + {sb}*1]"
    };
    (right) => {
        "tileloadd tmm7, [{right} + {sb}*1]"
    };
}

/// `LOW`: there is a lower half. `RIGHT`: there are two panels.
#[inline(always)]
unsafe fn tile<const LOW: bool, const RIGHT: bool>(t: &Tile) {
    let c_bytes = 4 * t.c_stride;
    // SAFETY: offsets lie inside C (32 rows by 32 columns, as far as `LOW` and `RIGHT` say), the rows of A and the
    // panels of B; the tiles are configured for the number of rows.
    unsafe {
        let c01 = t.c.add(PANEL);
        let c10 = t.c.add(16 * t.c_stride);
        let c11 = c10.add(PANEL);
        if t.accumulate {
            asm!("tileloadd tmm0, [{c} + {s}*1]", c = in(reg) t.c, s = in(reg) c_bytes, options(nostack, readonly));
            if RIGHT {
                asm!("tileloadd tmm1, [{c} + {s}*1]", c = in(reg) c01, s = in(reg) c_bytes, options(nostack, readonly));
            }
            if LOW {
                asm!("tileloadd tmm2, [{c} + {s}*1]", c = in(reg) c10, s = in(reg) c_bytes, options(nostack, readonly));
            }
            if LOW && RIGHT {
                asm!("tileloadd tmm3, [{c} + {s}*1]", c = in(reg) c11, s = in(reg) c_bytes, options(nostack, readonly));
            }
        } else {
            asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
        }

        let (mut b, mut fetch) = (t.b, t.fetch);
        for s in 0..t.segment_count {
            let [a, below] = t.a.map(|a| a.add(*t.segments.add(s)));
            let steps = t.segment_k / 32;
            // Go through the segment, 32 numbers at a time, fetching four lines on the way; returns where B and that have come to.
            macro_rules! through_k {
                ($($line:expr),* $(,)?) => {{
                    let (b_end, fetch_end): (*const u8, *const u8);
                    asm!(
                        "2:",
                        $($line,)*
                        "prefetcht1 [{fetch}]",
                        "prefetcht1 [{fetch} + 64]",
                        "prefetcht1 [{fetch} + 128]",
                        "prefetcht1 [{fetch} + 192]",
                        "add {fetch}, 256",
                        "add {a}, 64",
                        "add {below}, 64",
                        "add {b}, 1024",
                        "add {right}, 1024",
                        "dec {n}",
                        "jnz 2b",
                        a = inout(reg) a => _,
                        below = inout(reg) below => _,
                        b = inout(reg) b => b_end,
                        right = inout(reg) b.wrapping_add(t.panel_stride) => _,
                        fetch = inout(reg) fetch => fetch_end,
                        sa = in(reg) t.a_stride,
                        sb = in(reg) 64usize,
                        n = inout(reg) steps => _,
                        options(nostack, readonly)
                    );
                    (b_end, fetch_end)
                }};
            }
            macro_rules! four_sums {
                ($load:literal) => {
                    through_k!(
                        load!(upper with $load),
                        load!(left),
                        "tdpbf16ps tmm0, tmm4, tmm6",
                        load!(right),
                        "tdpbf16ps tmm1, tmm4, tmm7",
                        load!(lower with $load),
                        "tdpbf16ps tmm2, tmm5, tmm6",
                        "tdpbf16ps tmm3, tmm5, tmm7",
                    )
                };
            }
            (b, fetch) = match (LOW, RIGHT) {
                (true, true) if t.stream_a => four_sums!("tileloaddt1"),
                (true, true) => four_sums!("tileloadd"),
                (true, false) => through_k!(
                    load!(upper with "tileloadd"),
                    load!(left),
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    load!(lower with "tileloadd"),
                    "tdpbf16ps tmm2, tmm5, tmm6",
                ),
                (false, true) => through_k!(
                    load!(upper with "tileloadd"),
                    load!(left),
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    load!(right),
                    "tdpbf16ps tmm1, tmm4, tmm7",
                ),
                (false, false) => {
                    through_k!(load!(upper with "tileloadd"), load!(left), "tdpbf16ps tmm0, tmm4, tmm6")
                }
            };
        }

        asm!("tilestored [{c} + {s}*1], tmm0", c = in(reg) t.c, s = in(reg) c_bytes, options(nostack));
        if RIGHT {
            asm!("tilestored [{c} + {s}*1], tmm1", c = in(reg) c01, s = in(reg) c_bytes, options(nostack));
        }
        if LOW {
            asm!("tilestored [{c} + {s}*1], tmm2", c = in(reg) c10, s = in(reg) c_bytes, options(nostack));
        }
        if LOW && RIGHT {
            asm!("tilestored [{c} + {s}*1], tmm3", c = in(reg) c11, s = in(reg) c_bytes, options(nostack));
        }
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
    turns as u64 * 4 * 16 * 16 * 32 * 2
}
