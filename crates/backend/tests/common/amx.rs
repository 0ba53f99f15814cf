//! Matrix tiles in software, so that the AMX path is tested on every machine with AVX512-BF16: the processor refuses each
//! tile instruction with SIGILL, and the handler does what it should have done. Thousands of times slower, and exact.

use std::cell::UnsafeCell;

/// The tile registers of a thread: rows, bytes of a row, and contents.
struct Tiles {
    rows: [usize; 8],
    columns: [usize; 8],
    data: [[[u8; 64]; 16]; 8],
}

thread_local! {
    // Const and without a destructor: a signal handler may touch it.
    static TILES: UnsafeCell<Tiles> =
        const { UnsafeCell::new(Tiles { rows: [0; 8], columns: [0; 8], data: [[[0; 64]; 16]; 8] }) };
}

/// From now on, tile instructions work in this process.
pub fn install() {
    // SAFETY: the handler has the signature that SA_SIGINFO asks for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut()), 0);
    }
}

extern "C" fn handle(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands out a valid context; `step` reads the instruction that it points to.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        // One trap serves a run of tile instructions: a trap costs tens of microseconds in a virtual machine.
        let known = TILES.with(|tiles| {
            let tiles = &mut *tiles.get();
            let known = step(registers, tiles);
            while known.is_some() && step(registers, tiles).is_some() {}
            known
        });
        if known.is_none() {
            // Somebody else's illegal instruction: let it kill us as it would have.
            libc::signal(libc::SIGILL, libc::SIG_DFL);
        }
    }
}

/// Execute the instruction at the instruction pointer, and move on; `None` if it is no tile instruction.
unsafe fn step(registers: &mut [i64; 23], tiles: &mut Tiles) -> Option<()> {
    let rip = registers[libc::REG_RIP as usize] as *const u8;
    // SAFETY: the processor has just read these bytes as an instruction; operands are what the program says they are.
    unsafe {
        let byte = |i: usize| *rip.add(i);
        // All of them have the three-byte VEX prefix, map 0F38, W0, 128 bits.
        if byte(0) != 0xc4 || byte(1) & 0x1f != 2 || byte(2) & 0x84 != 0 {
            return None;
        }
        let (prefix, opcode, modrm) = (byte(2) & 3, byte(3), byte(4));
        let (register, in_registers) = ((modrm >> 3 & 7) as usize, modrm >> 6 == 3);
        let mut length = 5;
        match (opcode, prefix, in_registers) {
            (0x49, 0, true) => {
                tiles.rows = [0; 8];
                tiles.columns = [0; 8];
            }
            (0x49, 3, true) => tiles.data[register] = [[0; 64]; 16],
            (0x49, 0, false) => {
                let memory = Address::decode(rip, registers);
                let config = memory.start as *const u8;
                for i in 0..8 {
                    tiles.columns[i] = config.add(16 + 2 * i).cast::<u16>().read_unaligned() as usize;
                    tiles.rows[i] = *config.add(48 + i) as usize;
                }
                tiles.data = [[[0; 64]; 16]; 8];
                length = memory.length;
            }
            (0x4b, 1..=3, false) => {
                let memory = Address::decode(rip, registers);
                assert!(tiles.rows[register] > 0, "a tile is used before it is configured");
                for row in 0..tiles.rows[register] {
                    let at = memory.start.wrapping_add(row as i64 * memory.stride) as *mut u8;
                    let tile = tiles.data[register][row].as_mut_ptr();
                    match prefix {
                        2 => at.copy_from(tile, tiles.columns[register]),
                        _ => {
                            tiles.data[register][row] = [0; 64];
                            tile.copy_from(at, tiles.columns[register]);
                        }
                    }
                }
                length = memory.length;
            }
            (0x5c, 2, true) => multiply(tiles, register, (modrm & 7) as usize, (!byte(2) >> 3 & 7) as usize),
            _ => return None,
        }
        registers[libc::REG_RIP as usize] += length;
        Some(())
    }
}

/// `c += a b`, pairs of bf16, sums in f32. Numbers too small to be normal are taken for zero.
fn multiply(tiles: &mut Tiles, c: usize, a: usize, b: usize) {
    let number = |row: &[u8; 64], i: usize| {
        let x = f32::from_bits(u32::from_le_bytes([0, 0, row[2 * i], row[2 * i + 1]]));
        if x.is_subnormal() { 0.0 } else { x }
    };
    assert!(tiles.rows[c] == tiles.rows[a] && tiles.rows[b] * 4 == tiles.columns[a], "tiles of shapes that do not fit");
    for m in 0..tiles.rows[c] {
        for n in 0..tiles.columns[c] / 4 {
            let mut sum = f32::from_le_bytes(tiles.data[c][m][4 * n..4 * n + 4].try_into().expect("four bytes"));
            for k in 0..tiles.rows[b] {
                for i in 0..2 {
                    sum += number(&tiles.data[a][m], 2 * k + i) * number(&tiles.data[b][k], 2 * n + i);
                }
            }
            tiles.data[c][m][4 * n..4 * n + 4].copy_from_slice(&sum.to_le_bytes());
        }
    }
}

/// A memory operand: where it begins, bytes from one row to the next, and the length of the whole instruction.
struct Address {
    start: i64,
    stride: i64,
    length: i64,
}

impl Address {
    /// # Safety
    /// `rip` points to an instruction with a three-byte VEX prefix and a memory operand.
    unsafe fn decode(rip: *const u8, registers: &[i64; 23]) -> Address {
        // SAFETY: the caller's.
        unsafe {
            let extended = !*rip.add(1);
            let (index_high, base_high) = (extended >> 3 & 8, extended >> 2 & 8);
            let modrm = *rip.add(4);
            let (mode, rm) = (modrm >> 6, modrm & 7);
            let (base, index, mut length) = match rm {
                4 => {
                    let sib = *rip.add(5);
                    let index = (sib >> 3 & 7) | index_high;
                    // Register 4 as an index means none.
                    let stride = if index == 4 { 0 } else { register(registers, index) << (sib >> 6) };
                    ((sib & 7) | base_high, stride, 6)
                }
                _ => (rm | base_high, 0, 5),
            };
            let displacement = match mode {
                0 => {
                    assert!(base & 7 != 5, "addresses without a base are not used here");
                    0
                }
                1 => i64::from(rip.add(length).cast::<i8>().read()),
                _ => i64::from(rip.add(length).cast::<i32>().read_unaligned()),
            };
            length += [0, 1, 4][mode as usize];
            let start = register(registers, base).wrapping_add(displacement);
            // A general operand adds its index to the address; a tile's is the distance of its rows.
            let is_tile = *rip.add(3) == 0x4b;
            Address { start: if is_tile { start } else { start + index }, stride: index, length: length as i64 }
        }
    }
}

/// The value of a register by its number in instructions.
fn register(registers: &[i64; 23], number: u8) -> i64 {
    use libc::{REG_RAX, REG_RBP, REG_RBX, REG_RCX, REG_RDI, REG_RDX, REG_RSI, REG_RSP};
    let low = [REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI];
    match number {
        0..8 => registers[low[number as usize] as usize],
        _ => registers[libc::REG_R8 as usize + number as usize - 8],
    }
}
