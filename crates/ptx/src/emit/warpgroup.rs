//! Copies and products that go on while other instructions run: `cp.async`, and `wgmma` on Hopper.

use impasto_kernel::ir::{Kernel, MatrixLayout, MemoryId, OpId, OpKind, Scalar, Space, Value, WarpgroupProduct};
use impasto_kernel::shared_offsets;

use super::Emit;
use super::text::{Class, Operand, braces, imm, show};
use crate::target::PtxTarget;

/// Shared memory of a multiprocessor, and what each block takes of it for itself.
const SHARED_OF_SM: u64 = 228 * 1024;
const SHARED_OF_BLOCK: u64 = 1024;
const REGISTERS_OF_SM: u32 = 65536;
/// Registers that an invocation needs beside its arrays.
const OTHER_REGISTERS: u32 = 40;

/// Whether a kernel has products of warpgroups.
pub(super) fn is_used(k: &Kernel) -> bool {
    k.kinds().any(|kind| matches!(kind, OpKind::WarpgroupMulAdd(_)))
}

/// Blocks that a multiprocessor should hold at once, for which the compiler keeps registers free: one works while another waits.
pub(super) fn resident(k: &Kernel) -> Option<u32> {
    if !is_used(k) {
        return None;
    }
    let threads: u32 = k.workgroup.iter().product();
    let arrays: u32 = k.memories().iter().map(|m| if let Space::Registers(n) = m.space { n } else { 0 }).sum();
    let by_shared = SHARED_OF_SM / (shared_offsets(k).1 + SHARED_OF_BLOCK);
    let by_registers = REGISTERS_OF_SM / (threads * (arrays + OTHER_REGISTERS).next_multiple_of(8));
    Some(by_registers.min(by_shared as u32).clamp(1, 4))
}

impl Emit<'_> {
    /// Registers for an array. They are written in place, so they begin with a move.
    pub(super) fn register_array(&mut self, m: MemoryId, n: u32) {
        self.arrays[m.index()] = (0..n)
            .map(|_| {
                let register = self.t.reg(Class::B32);
                self.t.mov(register, imm(0));
                register
            })
            .collect();
    }

    /// The register of an element, if the memory is a register array.
    pub(super) fn array_register(&self, m: MemoryId, index: Value) -> Option<Operand> {
        let at = self.scalar(index).constant()?;
        self.arrays[m.index()].get(at as usize).copied()
    }

    /// Makes what was written to tiles by ordinary instructions visible to `wgmma`, which reads by another way.
    pub(super) fn fence_tiles(&mut self) {
        if is_used(self.k) {
            self.t.line(format_args!("fence.proxy.async.shared::cta"));
        }
    }

    pub(super) fn asynchronous(&mut self, op: OpId) {
        let args = self.k.args(op);
        match self.k.kind(op) {
            OpKind::AsyncCopy(to, from) => self.async_copy(to, from, args),
            OpKind::AsyncCommit => self.t.line(format_args!("cp.async.commit_group")),
            OpKind::AsyncWait(n) => self.t.line(format_args!("cp.async.wait_group {n}")),
            OpKind::WarpgroupMulAdd(product) => self.warpgroup_mul_add(product, args),
            OpKind::WarpgroupWait(n) => self.t.line(format_args!("wgmma.wait_group.sync.aligned {n}")),
            _ => {}
        }
    }

    fn async_copy(&mut self, to: MemoryId, from: MemoryId, args: &[Value]) {
        let stride = |m: MemoryId| self.k.lay_out(self.k.memory(m).ty).stride();
        let (to_stride, from_stride) = (stride(to), stride(from));
        let to = self.element(to, self.scalar(args[0]), to_stride);
        let from = self.element(from, self.scalar(args[1]), from_stride);
        let bytes = self.select(self.scalar(args[2]), imm(16), imm(0));
        // A line of L2 at a time: neighbours are asked for by the next invocations.
        let hint = if self.ptx.isa() >= (7, 4) { ".L2::128B" } else { "" };
        let (to, from) = (to.show(), from.show());
        self.t.line(format_args!("cp.async.cg.shared.global{hint} {to}, {from}, 16, {}", show(bytes)));
    }

    fn warpgroup_mul_add(&mut self, p: WarpgroupProduct, args: &[Value]) {
        debug_assert_eq!(self.ptx, PtxTarget::Sm90a);
        let (add, indices) = (args[args.len() - 1], &args[..args.len() - 1]);
        let add = self.scalar(add);
        let add = show(self.t.in_reg(add));
        let depth = 16 * u32::from(p.steps);
        let (b_index, a_index) = (indices[indices.len() - 1], indices.first().filter(|_| indices.len() == 2));
        // From one step to the next, in units of 16 bytes; and from one block of 64 columns to the next.
        let (b_step, blocks, transposed) = match p.layout {
            MatrixLayout::Column => (2, 1, 0),
            MatrixLayout::Row => (128, depth * 8, 1),
        };
        let b = self.descriptor(p.b, b_index, blocks);
        let a = a_index.map(|&index| self.descriptor(p.a, index, 1));
        let sums = braces(&self.arrays[p.sums.index()]);
        let ty = if p.factor == Scalar::Bf16 { "bf16" } else { "f16" };
        let name = format!("wgmma.mma_async.sync.aligned.m64n{}k16.f32.{ty}.{ty}", p.n);
        self.t.line(format_args!("wgmma.fence.sync.aligned"));
        for step in 0..u32::from(p.steps) {
            // The first step starts anew where nothing is added to.
            let adds = if step == 0 { add.clone() } else { show(self.t.in_reg(Operand::Imm(Class::Pred, 1))) };
            let b = show(self.moved(b, step * b_step));
            match a {
                Some(a) => {
                    let a = show(self.moved(a, step * 2));
                    self.t.line(format_args!("{name} {sums}, {a}, {b}, {adds}, 1, 1, 0, {transposed}"));
                }
                None => {
                    let at = 4 * step as usize;
                    let a = braces(&self.arrays[p.a.index()][at..at + 4]);
                    self.t.line(format_args!("{name} {sums}, {a}, {b}, {adds}, 1, 1, {transposed}"));
                }
            }
        }
        self.t.line(format_args!("wgmma.commit_group.sync.aligned"));
    }

    /// What tells `wgmma` where a tile of rows of 128 bytes lies, swizzled: its lower half, which has the address, and its upper half. Blocks of
    /// columns are so many units of 16 bytes apart.
    fn descriptor(&mut self, m: MemoryId, index: Value, blocks: u32) -> (Operand, Operand) {
        let stride = self.k.lay_out(self.k.memory(m).ty).stride();
        let at = self.element(m, self.scalar(index), stride);
        let address = match at.1 {
            0 => at.0,
            n => self.t.make(Class::B32, "add.u32", &[at.0, imm(n)]),
        };
        let units = self.t.make(Class::B32, "shr.u32", &[address, imm(4)]);
        let low = self.t.make(Class::B32, "or.b32", &[units, imm(blocks << 16)]);
        // Eight rows are 1,024 bytes; a swizzle of 128 bytes is kind 1.
        (low, imm(64 | 1 << 30))
    }

    /// A descriptor so many units of 16 bytes further.
    fn moved(&mut self, (low, high): (Operand, Operand), units: u32) -> Operand {
        let low = if units == 0 { low } else { self.t.make(Class::B32, "add.u32", &[low, imm(units)]) };
        let whole = self.t.reg(Class::B64);
        self.t.line(format_args!("mov.b64 {}, {}", show(whole), braces(&[low, high])));
        whole
    }
}
