//! What the lanes of a warp do together.

use half::{bf16, f16};

use super::parse::{Ins, Operand};
use super::{Done, Machine, numbers};

impl Machine<'_> {
    /// The lanes that a mask names, which must all be there.
    fn named(&self, mask: u64, active: &[usize]) -> Done<Vec<usize>> {
        let first = active[0] / 32 * 32;
        let mask = mask as u32;
        // A lane that the block does not have may be named.
        let named: Vec<usize> = (0..32).filter(|l| mask >> l & 1 == 1).map(|l| first + l).collect();
        let there: Vec<usize> = named.into_iter().filter(|&l| l < self.threads.len()).collect();
        if there != active {
            return Err(format!("the mask {mask:#x} names others than the {} lanes that are there", active.len()));
        }
        Ok(there)
    }

    /// An instruction of a warp; whether it is one.
    pub(super) fn together(&mut self, parts: &[&str], ins: &Ins, active: &[usize]) -> Done<bool> {
        let o = &ins.operands;
        let first = active[0] / 32 * 32;
        let values = |m: &Self, i: usize| -> Vec<u64> { active.iter().map(|&l| m.get(&o[i], l)).collect() };
        match *parts {
            ["activemask", _] => {
                let mask = active.iter().fold(0u64, |m, l| m | 1 << (l - first));
                active.iter().for_each(|&l| self.set(&o[0], l, mask));
            }
            ["bar", "warp", "sync"] => {
                self.named(self.get(&o[0], active[0]), active)?;
            }
            ["vote", "sync", how, "pred"] => {
                self.named(self.get(&o[2], active[0]), active)?;
                let all = values(self, 1);
                let yes = if how == "all" { all.iter().all(|&p| p != 0) } else { all.iter().any(|&p| p != 0) };
                active.iter().for_each(|&l| self.set(&o[0], l, yes.into()));
            }
            ["redux", "sync", f, ty] => {
                self.named(self.get(&o[2], active[0]), active)?;
                let mut all = values(self, 1).into_iter();
                let begin = all.next().unwrap_or(0);
                let sum = all.try_fold(begin, |a, b| numbers::binary(f, ty, a, b))?;
                active.iter().for_each(|&l| self.set(&o[0], l, sum));
            }
            ["shfl", "sync", how, "b32"] => {
                self.named(self.get(&o[4], active[0]), active)?;
                let all = values(self, 1);
                let mut made = Vec::new();
                for (&lane, &own) in active.iter().zip(&all) {
                    let (at, by) = ((lane - first) as i64, (self.get(&o[2], lane) & 31) as i64);
                    let clamp = self.get(&o[3], lane);
                    let from = match how {
                        "idx" if clamp == 31 => by,
                        "bfly" if clamp == 31 => at ^ by,
                        "up" if clamp == 0 => at - by,
                        _ => return Err(format!("no {how} with {clamp}")),
                    };
                    made.push(if from < 0 {
                        own
                    } else {
                        let place = active.iter().position(|&l| l - first == from as usize);
                        all[place.ok_or_else(|| format!("lane {from} is not there"))?]
                    });
                }
                active.iter().zip(made).for_each(|(&l, x)| self.set(&o[0], l, x));
            }
            ["ldmatrix", _, _, _, n, ..] => {
                self.named(u64::from(u32::MAX), active)?;
                let n: usize = n[1..].parse().map_err(|_| "how many?")?;
                self.ldmatrix(n, parts.contains(&"trans"), ins, active)?;
            }
            ["mma", _, _, shape, _, _, result, factor, ..] => {
                self.named(u64::from(u32::MAX), active)?;
                self.mma(if shape == "m16n8k16" { 16 } else { 8 }, result == "f32", factor == "bf16", o, active)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn ldmatrix(&mut self, n: usize, trans: bool, ins: &Ins, active: &[usize]) -> Done {
        let mut blocks = vec![[[0u16; 8]; 8]; n];
        for (block, rows) in blocks.iter_mut().enumerate() {
            for (row, numbers) in rows.iter_mut().enumerate() {
                let bytes = self.bytes("shared", &ins.operands[1], active[8 * block + row], 16)?;
                for (x, b) in numbers.iter_mut().zip(bytes.chunks_exact(2)) {
                    *x = u16::from_le_bytes([b[0], b[1]]);
                }
            }
        }
        for (at, &lane) in active.iter().enumerate() {
            for (block, to) in blocks.iter().zip(ins.operands[0].list()) {
                let (row, column) = (at / 4, 2 * (at % 4));
                let two = match trans {
                    false => [block[row][column], block[row][column + 1]],
                    true => [block[column][row], block[column + 1][row]],
                };
                self.set(to, lane, u64::from(two[0]) | u64::from(two[1]) << 16);
            }
        }
        Ok(())
    }

    /// A product of 16 x k and k x 8, added to 16 x 8; the layouts are those of the manual's figures.
    fn mma(&mut self, depth: usize, wide: bool, brain: bool, o: &[Operand], active: &[usize]) -> Done {
        let number = |bits: u64| match brain {
            true => bf16::from_bits(bits as u16).to_f32(),
            false => f16::from_bits(bits as u16).to_f32(),
        };
        let (mut a, mut b, mut c) = (vec![[0f32; 16]; 16], vec![[0f32; 8]; 16], [[0f32; 8]; 16]);
        for (at, &lane) in active.iter().enumerate() {
            let (group, pair) = (at / 4, 2 * (at % 4));
            for (i, reg) in o[1].list().iter().enumerate() {
                for half in 0..2 {
                    let x = number(self.get(reg, lane) >> (16 * half) & 0xFFFF);
                    a[group + 8 * (i % 2)][pair + half + 8 * (i / 2)] = x;
                }
            }
            for (i, reg) in o[2].list().iter().enumerate() {
                for half in 0..2 {
                    b[pair + half + 8 * i][group] = number(self.get(reg, lane) >> (16 * half) & 0xFFFF);
                }
            }
            for row in 0..2 {
                for half in 0..2 {
                    let sums = o[3].list();
                    c[group + 8 * row][pair + half] = match wide {
                        true => f32::from_bits(self.get(&sums[2 * row + half], lane) as u32),
                        false => f16::from_bits((self.get(&sums[row], lane) >> (16 * half)) as u16).to_f32(),
                    };
                }
            }
        }
        for row in 0..16 {
            for column in 0..8 {
                for k in 0..depth {
                    c[row][column] += a[row][k] * b[k][column];
                }
            }
        }
        for (at, &lane) in active.iter().enumerate() {
            let (group, pair) = (at / 4, 2 * (at % 4));
            for row in 0..2 {
                let two = [c[group + 8 * row][pair], c[group + 8 * row][pair + 1]];
                let to = o[0].list();
                if wide {
                    self.set(&to[2 * row], lane, two[0].to_bits().into());
                    self.set(&to[2 * row + 1], lane, two[1].to_bits().into());
                } else {
                    let [low, high] = two.map(|x| u64::from(f16::from_f32(x).to_bits()));
                    self.set(&to[row], lane, low | high << 16);
                }
            }
        }
        Ok(())
    }
}
