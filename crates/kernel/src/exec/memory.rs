//! What ops do to memory: buffers, and the arrays of a workgroup and of its invocations.

use std::ops::Range;

use super::Launch;
use super::data::BufferData;
use super::machine::Executor;
use crate::ir::{Atomic, BinaryOp, Compare, MemoryId, OpId, Scalar, Space};

impl Executor<'_> {
    /// The element that an op names, if it exists.
    pub(super) fn element(&self, op: OpId, m: MemoryId, lane: usize, buffers: &[BufferData]) -> Result<usize, String> {
        self.place(m, self.get(self.k.args(op)[0], lane) as usize, lane, buffers)
    }

    /// An element that exists: its index in a buffer, or where its first scalar stands in an array.
    pub(super) fn place(
        &self,
        m: MemoryId,
        index: usize,
        lane: usize,
        buffers: &[BufferData],
    ) -> Result<usize, String> {
        let mem = self.k.memory(m);
        let width = self.widths[m.index()];
        let (n, at) = match mem.space {
            Space::Buffer(_) => (self.places[m.index()].elements(&buffers[self.buffers[m.index()]]), index),
            Space::Workgroup(n) => (n as usize, index * width),
            Space::Private(n) | Space::Registers(n) => (n as usize, (n as usize * lane + index) * width),
            Space::Pointed { .. } => (0, 0),
        };
        if index >= n {
            return Err(format!("index {index} is outside of '{}', which has {n} elements", mem.name));
        }
        Ok(at)
    }

    pub(super) fn load(&mut self, op: OpId, m: MemoryId, lane: usize, launch: &Launch) -> Result<(), String> {
        let at = self.element(op, m, lane, &launch.buffers)?;
        let column = self.columns[self.k.result(op).index()];
        for i in 0..self.widths[m.index()] {
            let bits = self.take(m, at, i, launch)?;
            let to = self.at(column + i as u32, lane);
            self.regs[to] = bits;
        }
        Ok(())
    }

    /// One scalar of an element.
    pub(super) fn take(&self, m: MemoryId, at: usize, scalar: usize, launch: &Launch) -> Result<u64, String> {
        match self.k.memory(m).space {
            Space::Buffer(_) => Ok(self.places[m.index()].get(&launch.buffers[self.buffers[m.index()]], at, scalar)),
            _ => self.arrays[m.index()][at + scalar].ok_or_else(|| {
                let name = &self.k.memory(m).name;
                format!("nobody has written this element of '{name}', or what is written there is still on its way")
            }),
        }
    }

    /// Writes one scalar of an element.
    pub(super) fn put(&mut self, m: MemoryId, at: usize, scalar: usize, bits: u64, launch: &mut Launch) {
        match self.k.memory(m).space {
            Space::Buffer(_) => {
                self.places[m.index()].put(&mut launch.buffers[self.buffers[m.index()]], at, scalar, bits)
            }
            _ => self.arrays[m.index()][at + scalar] = Some(bits),
        }
    }

    /// Gives scalars of an array their values.
    pub(super) fn write_registers(&mut self, m: MemoryId, from: usize, values: &[u64]) {
        for (slot, &bits) in self.arrays[m.index()][from..].iter_mut().zip(values) {
            *slot = Some(bits);
        }
    }

    /// Makes elements of an array ones that nobody has written.
    pub(super) fn unwrite(&mut self, m: MemoryId, scalars: Range<usize>) {
        self.arrays[m.index()][scalars].fill(None);
    }

    pub(super) fn store(&mut self, op: OpId, m: MemoryId, lane: usize, launch: &mut Launch) -> Result<(), String> {
        let at = self.element(op, m, lane, &launch.buffers)?;
        self.pending.check_write(self.k, m, at..at + self.widths[m.index()])?;
        let column = self.columns[self.k.args(op)[1].index()];
        for i in 0..self.widths[m.index()] {
            let bits = self.regs[self.at(column + i as u32, lane)];
            self.put(m, at, i, bits, launch);
        }
        Ok(())
    }

    pub(super) fn atomic(
        &mut self,
        op: OpId,
        m: MemoryId,
        f: Atomic,
        lane: usize,
        launch: &mut Launch,
    ) -> Result<(), String> {
        self.load(op, m, lane, launch)?;
        let args = self.k.args(op);
        let s = self.k.memory(m).ty.as_scalar().unwrap_or(Scalar::U32);
        let (old, x) = (self.get(self.k.result(op), lane), self.get(args[1], lane));
        let new = match f {
            Atomic::Add => self.arithmetic.binary(BinaryOp::Add, s, old, x),
            Atomic::Min => self.arithmetic.binary(BinaryOp::Min, s, old, x),
            Atomic::Max => self.arithmetic.binary(BinaryOp::Max, s, old, x),
            Atomic::And => old & x,
            Atomic::Or => old | x,
            Atomic::Xor => old ^ x,
            Atomic::Exchange => x,
            Atomic::CompareExchange if self.arithmetic.compare(Compare::Eq, s, old, x) => self.get(args[2], lane),
            Atomic::CompareExchange => old,
        };
        let at = self.element(op, m, lane, &launch.buffers)?;
        self.put(m, at, 0, new, launch);
        Ok(())
    }
}
