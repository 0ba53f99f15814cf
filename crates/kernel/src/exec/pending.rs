//! What goes on while other ops run: copies to workgroup memory, and products of warpgroups. A copy is there when it was waited for, and its place
//! holds nothing before that; a product is computed at once, but its sums cannot be read and its tiles not be written until it was waited for.

use std::collections::VecDeque;
use std::ops::Range;

use super::Launch;
use super::machine::{Executor, Stop};
use super::mask::Mask;
use crate::eval;
use crate::ir::{BinaryOp, Kernel, MatrixLayout, MemoryId, OpId, OpKind, Scalar, Space, Value, WarpgroupProduct};

/// The bits that an element of an array is going to have.
struct PendingCopy {
    to: MemoryId,
    /// The first of its scalars in the array.
    at: usize,
    bits: Vec<u64>,
}

/// A product whose tiles are still read, and whose sums are still written.
struct PendingProduct {
    /// Tiles, each with its scalars.
    tiles: Vec<(MemoryId, Range<usize>)>,
    sums: MemoryId,
    /// The sums of each invocation of the warpgroup.
    values: Vec<Vec<u64>>,
}

/// Copies of each invocation, in groups, the last of which is open; and products of each warpgroup.
#[derive(Default)]
pub(super) struct Pending {
    copies: Vec<VecDeque<Vec<PendingCopy>>>,
    products: Vec<VecDeque<PendingProduct>>,
}

impl Pending {
    pub(super) fn new(lanes: usize) -> Pending {
        let warpgroups = lanes.div_ceil(WarpgroupProduct::INVOCATIONS as usize);
        Pending {
            copies: (0..lanes).map(|_| VecDeque::from([Vec::new()])).collect(),
            products: (0..warpgroups).map(|_| VecDeque::new()).collect(),
        }
    }

    /// Refuses to write what a product still reads.
    pub(super) fn check_write(&self, k: &Kernel, m: MemoryId, scalars: Range<usize>) -> Result<(), String> {
        let overlaps = |r: &Range<usize>| r.start < scalars.end && scalars.start < r.end;
        let mut tiles = self.products.iter().flatten().flat_map(|p| &p.tiles);
        match tiles.any(|(tile, r)| *tile == m && overlaps(r)) {
            true => Err(format!("a product that was not waited for still reads this part of '{}'", k.memory(m).name)),
            false => Ok(()),
        }
    }
}

impl Executor<'_> {
    /// Scalars of 16 bytes of a memory.
    fn scalars_of_16_bytes(&self, m: MemoryId) -> usize {
        let (s, _) = self.k.memory(m).ty.lanes().unwrap_or((Scalar::U32, 1));
        (16 / s.bytes().max(1)) as usize
    }

    /// Where the scalars of 16 bytes from this element on lie: element and scalar in it.
    fn places_of_16_bytes(&self, m: MemoryId, index: usize, launch: &Launch) -> Result<Vec<(usize, usize)>, String> {
        let held = self.k.memory(m).ty.lanes().map_or(1, |(_, n)| n as usize);
        let n = self.scalars_of_16_bytes(m);
        if !(index * held).is_multiple_of(n) {
            return Err(format!("element {index} of '{}' begins at no multiple of 16 bytes", self.k.memory(m).name));
        }
        (0..n).map(|i| Ok((self.place(m, index + i / held, 0, &launch.buffers)?, i % held))).collect()
    }

    pub(super) fn async_copy(
        &mut self,
        op: OpId,
        to: MemoryId,
        from: MemoryId,
        lane: usize,
        launch: &Launch,
    ) -> Result<(), String> {
        let [to_index, from_index, valid] = [0, 1, 2].map(|i| self.get(self.k.args(op)[i], lane));
        let places = self.places_of_16_bytes(to, to_index as usize, launch)?;
        let bytes: Vec<u8> = if valid == 0 {
            vec![0; 16]
        } else {
            let width = 16 / self.scalars_of_16_bytes(from);
            let mut bytes = Vec::with_capacity(16);
            for (at, scalar) in self.places_of_16_bytes(from, from_index as usize, launch)? {
                bytes.extend_from_slice(&self.take(from, at, scalar, launch)?.to_le_bytes()[..width]);
            }
            bytes
        };
        let (first, n) = (places[0].0 + places[0].1, places.len());
        self.pending.check_write(self.k, to, first..first + n)?;
        self.unwrite(to, first..first + n);
        let width = 16 / n;
        let bits = bytes.chunks(width).map(|c| {
            let mut word = [0; 8];
            word[..width].copy_from_slice(c);
            u64::from_le_bytes(word)
        });
        let copy = PendingCopy { to, at: first, bits: bits.collect() };
        if let Some(group) = self.pending.copies[lane].back_mut() {
            group.push(copy);
        }
        Ok(())
    }

    /// Closes the open group of an invocation's copies, or waits for all but the last so many.
    pub(super) fn order_copies(&mut self, kind: OpKind, lane: usize, launch: &mut Launch) {
        let OpKind::AsyncWait(most) = kind else {
            self.pending.copies[lane].push_back(Vec::new());
            return;
        };
        while self.pending.copies[lane].len() > most as usize + 1 {
            for copy in self.pending.copies[lane].pop_front().unwrap_or_default() {
                for (i, bits) in copy.bits.into_iter().enumerate() {
                    self.put(copy.to, copy.at + i, 0, bits, launch);
                }
            }
        }
    }

    /// The first invocations of the warpgroups that do an op, which must be whole.
    fn whole_warpgroups(&self, op: OpId, mask: Mask) -> Result<impl Iterator<Item = usize> + use<>, Stop> {
        let whole = self.whole_groups(op, mask, WarpgroupProduct::INVOCATIONS as usize, "warpgroup")?;
        Ok(whole.into_iter().map(|lanes| lanes.start))
    }

    pub(super) fn warpgroup_mul_add(
        &mut self,
        op: OpId,
        p: WarpgroupProduct,
        mask: Mask,
        launch: &Launch,
    ) -> Result<(), Stop> {
        for first in self.whole_warpgroups(op, mask)? {
            let width = WarpgroupProduct::INVOCATIONS as usize;
            for &v in self.k.args(op) {
                if let Some(l) = (first..first + width).find(|&l| self.get(v, l) != self.get(v, first)) {
                    return Err(Stop(op, l, "an operand is not the same in the whole warpgroup".to_owned()));
                }
            }
            let product = self.product(op, p, first, launch).map_err(|problem| Stop(op, first, problem))?;
            for lane in first..first + width {
                let n = usize::from(p.n) / 2;
                self.unwrite(p.sums, n * lane..n * (lane + 1));
            }
            self.pending.products[first / width].push_back(product);
        }
        Ok(())
    }

    pub(super) fn warpgroup_wait(&mut self, op: OpId, most: u32, mask: Mask) -> Result<(), Stop> {
        let width = WarpgroupProduct::INVOCATIONS as usize;
        for first in self.whole_warpgroups(op, mask)? {
            while self.pending.products[first / width].len() > most as usize {
                let Some(done) = self.pending.products[first / width].pop_front() else { break };
                // A later product may write the same sums: then they are on their way again.
                if self.pending.products[first / width].iter().any(|p| p.sums == done.sums) {
                    continue;
                }
                for (i, values) in done.values.into_iter().enumerate() {
                    let from = values.len() * (first + i);
                    self.write_registers(done.sums, from, &values);
                }
            }
        }
        Ok(())
    }

    /// Two factors of a tile in workgroup memory that begins at this element.
    fn factors(&self, m: MemoryId, begin: usize, word: u32, launch: &Launch) -> Result<[u64; 2], String> {
        let held = self.k.memory(m).ty.lanes().map_or(1, |(_, n)| n as usize);
        let at = self.place(m, begin + word as usize / held, 0, &launch.buffers)?;
        let bits = self.take(m, at, word as usize % held, launch)?;
        Ok([bits & 0xffff, bits >> 16])
    }

    /// Scalars of a tile, which begins at a multiple of [`WarpgroupProduct::ALIGNMENT`] bytes.
    fn tile(&self, m: MemoryId, begin: usize, rows: u32) -> Result<(MemoryId, Range<usize>), String> {
        let held = self.k.memory(m).ty.lanes().map_or(1, |(_, n)| n as usize);
        let first = begin * held;
        if !first.is_multiple_of(WarpgroupProduct::ALIGNMENT as usize / 4) {
            let name = &self.k.memory(m).name;
            return Err(format!("a tile begins at a multiple of 1024 bytes, not at element {begin} of '{name}'"));
        }
        Ok((m, first..first + 32 * rows as usize))
    }

    fn product(&self, op: OpId, p: WarpgroupProduct, first: usize, launch: &Launch) -> Result<PendingProduct, String> {
        let args: Vec<usize> = self.k.args(op).iter().map(|&v: &Value| self.get(v, first) as usize).collect();
        let (add, n, depth) = (args[args.len() - 1] != 0, u32::from(p.n), 16 * u32::from(p.steps));
        let float = |bits: u64| f32::from_bits(eval::convert(p.factor, Scalar::F32, bits) as u32);
        let mut tiles = Vec::new();
        let mut a = vec![0f32; (WarpgroupProduct::ROWS * depth) as usize];
        if let Space::Registers(own) = self.k.memory(p.a).space {
            for invocation in 0..WarpgroupProduct::INVOCATIONS {
                for i in 0..own {
                    // Each step of 16 columns is 8 elements of an invocation, two to a register.
                    let at = own as usize * (first + invocation as usize) + i as usize;
                    let bits = self.take(p.a, at, 0, launch)?;
                    for half in 0..2 {
                        let [row, column] = WarpgroupProduct::place(invocation, 2 * i + half);
                        a[(row * depth + column) as usize] = float(bits >> (16 * half) & 0xffff);
                    }
                }
            }
        } else {
            tiles.push(self.tile(p.a, args[0], WarpgroupProduct::ROWS)?);
            for row in 0..WarpgroupProduct::ROWS {
                for pair in 0..depth / 2 {
                    let two = self.factors(p.a, args[0], WarpgroupProduct::word(row, pair), launch)?;
                    let at = (row * depth + 2 * pair) as usize;
                    (a[at], a[at + 1]) = (float(two[0]), float(two[1]));
                }
            }
        }
        // Columns of b one after the other.
        let (begin, mut b) = (args[args.len() - 2], vec![0f32; (n * depth) as usize]);
        match p.layout {
            MatrixLayout::Column => {
                tiles.push(self.tile(p.b, begin, n)?);
                for column in 0..n {
                    for pair in 0..depth / 2 {
                        let two = self.factors(p.b, begin, WarpgroupProduct::word(column, pair), launch)?;
                        let at = (column * depth + 2 * pair) as usize;
                        (b[at], b[at + 1]) = (float(two[0]), float(two[1]));
                    }
                }
            }
            MatrixLayout::Row => {
                tiles.push(self.tile(p.b, begin, depth * n.div_ceil(WarpgroupProduct::WIDTH))?);
                for row in 0..depth {
                    for pair in 0..n / 2 {
                        let (block, pair) = (pair / 32, pair % 32);
                        let word = block * depth * 32 + WarpgroupProduct::word(row, pair);
                        let two = self.factors(p.b, begin, word, launch)?;
                        let column = block * WarpgroupProduct::WIDTH + 2 * pair;
                        b[(column * depth + row) as usize] = float(two[0]);
                        b[((column + 1) * depth + row) as usize] = float(two[1]);
                    }
                }
            }
        }
        let before = self.sums_before(p.sums, first, add, n, launch)?;
        let values = (0..WarpgroupProduct::INVOCATIONS)
            .map(|invocation| {
                (0..n / 2)
                    .map(|i| {
                        let [row, column] = WarpgroupProduct::place(invocation, i);
                        let (x, y) = ((row * depth) as usize, (column * depth) as usize);
                        let mut sum = before[invocation as usize][i as usize];
                        for j in 0..depth as usize {
                            let product = eval::binary(
                                BinaryOp::Mul,
                                Scalar::F32,
                                a[x + j].to_bits().into(),
                                b[y + j].to_bits().into(),
                            );
                            sum = eval::binary(BinaryOp::Add, Scalar::F32, sum, product);
                        }
                        sum
                    })
                    .collect()
            })
            .collect();
        Ok(PendingProduct { tiles, sums: p.sums, values })
    }

    /// What the sums are before a product: those of the last one that is on its way, those in registers, or zeros.
    fn sums_before(
        &self,
        sums: MemoryId,
        first: usize,
        add: bool,
        n: u32,
        launch: &Launch,
    ) -> Result<Vec<Vec<u64>>, String> {
        let (width, n) = (WarpgroupProduct::INVOCATIONS as usize, n as usize / 2);
        if !add {
            return Ok(vec![vec![0; n]; width]);
        }
        if let Some(last) = self.pending.products[first / width].iter().rfind(|p| p.sums == sums) {
            return Ok(last.values.clone());
        }
        let own = |lane: usize| (0..n).map(|i| self.take(sums, n * (first + lane) + i, 0, launch)).collect();
        (0..width).map(own).collect()
    }
}
