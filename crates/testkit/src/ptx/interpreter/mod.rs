//! PTX on the CPU, as its manual says it works: so that what the emitter writes can be run where there is no GPU.
//!
//! The lanes of a warp run in lockstep; where they part, those that are furthest behind in the text go first, so that they meet again where control
//! flow joins. What the manual leaves open (division by zero, shuffles from lanes that are not there) is an error, as is an address outside of its
//! memory or not aligned. Only what the emitter writes is known.

mod numbers;
mod parse;
mod warp;

use impasto_kernel::{BufferData, CompiledModule, Kernel, Launch, param_bytes};
pub use parse::Program;
use parse::{Ins, Operand};

/// The first address of a buffer, by its number from 1.
const BUFFER: u32 = 40;
/// The first address of shared and of local memory.
const INSIDE: u64 = 1 << 16;
/// More instructions than any test needs.
const MOST: u64 = 1 << 22;

#[derive(Clone, Default)]
struct Thread {
    /// Registers by size: p, h, r, l.
    regs: [Vec<u64>; 4],
    pc: usize,
    done: bool,
    /// It waits for the others of its block.
    waits: bool,
    local: Vec<u8>,
}

struct Machine<'a> {
    program: &'a Program,
    buffers: Vec<Vec<u8>>,
    lengths: Vec<u8>,
    scalars: Vec<u8>,
    shared: Vec<u8>,
    threads: Vec<Thread>,
    size: [u32; 3],
    groups: [u32; 3],
    group: [u32; 3],
}

type Done<T = ()> = Result<T, String>;

/// A launch on bytes.
pub struct RawLaunch {
    pub buffers: Vec<Vec<u8>>,
    pub scalars: Vec<u8>,
    /// Bytes of shared memory.
    pub shared: usize,
    pub groups: [u32; 3],
}

/// What the buffers hold after a launch of an entry point of this module.
pub fn run(module: &CompiledModule, kernel: &Kernel, launch: &Launch) -> Done<Vec<BufferData>> {
    let text = std::str::from_utf8(&module.bytes).map_err(|e| e.to_string())?;
    let program = Program::parse(text, &kernel.name)?;
    let entry = module.entries.iter().find(|e| e.name == kernel.name).ok_or("no such entry")?;
    let bytes = |d: &BufferData| -> Vec<u8> {
        d.bits.iter().flat_map(|b| b.to_le_bytes()[..d.ty.bytes() as usize].to_vec()).collect()
    };
    let raw = RawLaunch {
        buffers: launch.buffers.iter().map(bytes).collect(),
        scalars: param_bytes(kernel, &launch.scalars).map_err(|e| e.to_string())?,
        shared: entry.shared as usize,
        groups: launch.groups,
    };
    let after = run_raw(&program, raw)?;
    let back = |(d, bytes): (&BufferData, &Vec<u8>)| {
        let number = |c: &[u8]| c.iter().rev().fold(0u64, |a, &b| a << 8 | u64::from(b));
        BufferData { ty: d.ty, bits: bytes.chunks_exact(d.ty.bytes() as usize).map(number).collect() }
    };
    Ok(launch.buffers.iter().zip(&after).map(back).collect())
}

/// What the buffers hold after a launch on bytes.
pub fn run_raw(program: &Program, launch: RawLaunch) -> Done<Vec<Vec<u8>>> {
    let RawLaunch { buffers, scalars, shared, groups } = launch;
    let mut machine = Machine {
        lengths: buffers.iter().flat_map(|b| (b.len() as u64).to_le_bytes()).collect(),
        buffers,
        scalars,
        shared: vec![0xAA; shared],
        threads: Vec::new(),
        size: program.size,
        groups,
        group: [0; 3],
        program,
    };
    for z in 0..groups[2] {
        for y in 0..groups[1] {
            for x in 0..groups[0] {
                machine.group = [x, y, z];
                machine.block()?;
            }
        }
    }
    Ok(machine.buffers)
}

impl Machine<'_> {
    fn block(&mut self) -> Done {
        let program = self.program;
        let thread = Thread {
            regs: program.registers.map(|n| vec![0; n]),
            local: vec![0xBB; program.local as usize],
            ..Thread::default()
        };
        self.shared.fill(0xAA);
        self.threads = vec![thread; self.size.iter().product::<u32>() as usize];
        let mut steps = 0u64;
        loop {
            let mut moved = false;
            for warp in 0..self.threads.len().div_ceil(32) {
                let lanes = 32 * warp..(32 * warp + 32).min(self.threads.len());
                while let Some(pc) =
                    lanes.clone().map(|l| &self.threads[l]).filter(|t| !t.done && !t.waits).map(|t| t.pc).min()
                {
                    moved = true;
                    let all = |l: &usize| {
                        let t = &self.threads[*l];
                        !t.done && !t.waits && t.pc == pc
                    };
                    let active: Vec<usize> = lanes.clone().filter(all).collect();
                    let ins = program.code.get(pc).ok_or("control ran past the end")?;
                    self.step(ins, &active).map_err(|e| format!("{}: {e}", ins.text))?;
                    steps += 1;
                    if steps > MOST {
                        return Err("it does not end".into());
                    }
                }
            }
            if self.threads.iter().all(|t| t.done) {
                return Ok(());
            }
            if self.threads.iter().any(|t| t.done) {
                return Err("some invocations ended, others wait at a barrier".into());
            }
            if !moved {
                return Err("nothing moves".into());
            }
            self.threads.iter_mut().for_each(|t| t.waits = false);
        }
    }

    /// One instruction for the lanes of a warp that are there.
    fn step(&mut self, ins: &Ins, active: &[usize]) -> Done {
        let parts: Vec<&str> = ins.op.iter().map(String::as_str).collect();
        match parts[..] {
            ["bra"] => {
                for &l in active {
                    let taken = match ins.guard {
                        Some((p, when)) => (self.threads[l].regs[0][p] != 0) == when,
                        None => true,
                    };
                    self.threads[l].pc = if taken { ins.target } else { self.threads[l].pc + 1 };
                }
                return Ok(());
            }
            ["ret"] => {
                active.iter().for_each(|&l| self.threads[l].done = true);
                return Ok(());
            }
            ["bar", "sync"] => active.iter().for_each(|&l| self.threads[l].waits = true),
            ["trap"] => return Err("it was reached".into()),
            ["ld" | "st" | "atom", ..] => active.iter().try_for_each(|&l| self.memory(&parts, ins, l))?,
            _ => {
                if !self.together(&parts, ins, active)? {
                    active.iter().try_for_each(|&l| self.plain(&parts, ins, l))?;
                }
            }
        }
        active.iter().for_each(|&l| self.threads[l].pc += 1);
        Ok(())
    }

    fn get(&self, o: &Operand, lane: usize) -> u64 {
        match *o {
            Operand::Reg(class, n) => self.threads[lane].regs[class][n],
            Operand::Number(n) => n,
            _ => 0,
        }
    }

    fn set(&mut self, o: &Operand, lane: usize, bits: u64) {
        if let Operand::Reg(class, n) = *o {
            let mask = [1, 0xFFFF, 0xFFFF_FFFF, u64::MAX][class];
            self.threads[lane].regs[class][n] = bits & mask;
        }
    }

    /// The bytes that an address names.
    fn bytes(&mut self, space: &str, o: &Operand, lane: usize, n: usize) -> Done<&mut [u8]> {
        let Operand::Address(base, offset) = o else { return Err("no address".into()) };
        let (memory, at) = match (space, &**base) {
            ("param", Operand::Name(name)) => (
                match name.as_str() {
                    "lengths$" => &mut self.lengths,
                    "scalars$" => &mut self.scalars,
                    _ => return Err(format!("no parameter {name}")),
                },
                *offset,
            ),
            ("global", base) => {
                let address = self.get(base, lane) + offset;
                let number = (address >> BUFFER) as usize;
                let memory = self.buffers.get_mut(number.wrapping_sub(1)).ok_or("outside of all buffers")?;
                (memory, address & ((1 << BUFFER) - 1))
            }
            (space, base) => {
                let at = (self.get(base, lane) + offset).checked_sub(INSIDE).ok_or("below the arrays")?;
                (if space == "shared" { &mut self.shared } else { &mut self.threads[lane].local }, at)
            }
        };
        if at % n as u64 != 0 {
            return Err(format!("address {at} is not aligned to {n}"));
        }
        let (at, size) = (at as usize, memory.len());
        memory.get_mut(at..at + n).ok_or_else(|| format!("address {at} is outside of {size} bytes"))
    }

    fn memory(&mut self, parts: &[&str], ins: &Ins, lane: usize) -> Done {
        let number = |b: &[u8]| b.iter().rev().fold(0u64, |a, &b| a << 8 | u64::from(b));
        let width = parse::bits(parts[parts.len() - 1])? / 8;
        match *parts {
            ["ld", "param", ..] if matches!(&ins.operands[1], Operand::Address(b, _) if matches!(&**b, Operand::Name(n) if n.starts_with("buffer$"))) =>
            {
                let Operand::Address(base, _) = &ins.operands[1] else { return Err("no address".into()) };
                let Operand::Name(name) = &**base else { return Err("no name".into()) };
                let n: u64 = name["buffer$".len()..].parse().map_err(|_| "no number")?;
                self.set(&ins.operands[0], lane, (n + 1) << BUFFER);
            }
            ["ld", space, ..] => {
                let to = ins.operands[0].list();
                let bytes = self.bytes(space, &ins.operands[1], lane, width * to.len())?.to_vec();
                for (o, b) in to.iter().zip(bytes.chunks_exact(width)) {
                    self.set(o, lane, number(b));
                }
            }
            ["st", space, ..] => {
                let from: Vec<u64> = ins.operands[1].list().iter().map(|o| self.get(o, lane)).collect();
                let to = self.bytes(space, &ins.operands[0], lane, width * from.len())?;
                for (b, x) in to.chunks_exact_mut(width).zip(from) {
                    b.copy_from_slice(&x.to_le_bytes()[..width]);
                }
            }
            ["atom", space, f, ty] => {
                let x = self.get(&ins.operands[2], lane);
                let new = ins.operands.get(3).map(|o| self.get(o, lane));
                let place = self.bytes(space, &ins.operands[1], lane, 4)?;
                let old = number(place);
                let next = match f {
                    "exch" => x,
                    "cas" => {
                        if old == x {
                            new.unwrap_or(old)
                        } else {
                            old
                        }
                    }
                    f => numbers::binary(f, ty, old, x)?,
                };
                place.copy_from_slice(&(next as u32).to_le_bytes());
                self.set(&ins.operands[0], lane, old);
            }
            _ => return Err("unknown".into()),
        }
        Ok(())
    }

    /// An instruction of each lane by itself.
    fn plain(&mut self, parts: &[&str], ins: &Ins, lane: usize) -> Done {
        let x: Vec<u64> = ins.operands[1..].iter().map(|o| self.get(o, lane)).collect();
        let made = match *parts {
            ["mov", "u32"] => match &ins.operands[1] {
                Operand::Special(name, axis) => {
                    let [sx, sy, _] = self.size;
                    let i = lane as u32;
                    let local = [i % sx, i / sx % sy, i / (sx * sy)];
                    let all = match name.as_str() {
                        "tid" => local,
                        "ctaid" => self.group,
                        _ => self.groups,
                    };
                    all[*axis].into()
                }
                Operand::Name(name) => INSIDE + self.program.arrays.get(name).copied().ok_or("no such array")?,
                _ => return Err("unknown".into()),
            },
            ["mov", _] => match (&ins.operands[0], &ins.operands[1]) {
                (Operand::List(to), from) => {
                    let bits = self.get(from, lane);
                    self.set(&to[0], lane, bits);
                    self.set(&to[1], lane, bits >> 16);
                    return Ok(());
                }
                (_, Operand::List(from)) => self.get(&from[0], lane) | self.get(&from[1], lane) << 16,
                _ => x[0],
            },
            ["cvta", ..] => x[0],
            _ => numbers::compute(parts, &x)?,
        };
        self.set(&ins.operands[0], lane, made);
        Ok(())
    }
}
