//! The tape: one buffer of floats and one of integers, in which each invocation has slots. A loop takes as many as its words times its
//! iterations, above those of the loops beside it and around it, and gives them back when what is around it was taken backwards: so nested loops add up
//! and never multiply.
//!
//! An iteration for which there is no room is not written, and a loop of which an iteration was not written is not taken backwards: what was needed
//! is noted in `status`, which the host reads. This cannot be turned off.

use impasto_kernel::ir::{Assembler, Atomic, BinaryOp, Builtin, Compare, MemoryId, OpKind, Scalar, Ty, UnaryOp, Value};

use super::write::{F32, U32};

/// The tapes of a kernel that is being written, and what every access to them uses.
#[derive(Clone, Copy)]
pub(super) struct Tape {
    pub(super) memories: [Option<MemoryId>; 2],
    pub(super) status: Option<MemoryId>,
    /// The place of this invocation among all, and their number.
    place: Value,
    count: Value,
    /// Slots of an invocation in each tape; after the first run forward, without those of the log.
    limits: [Value; 2],
    /// Slots of the log, and whether it is whole, once the first run forward is done.
    log: Option<([Value; 2], Value)>,
}

/// What a loop has on the tape.
#[derive(Clone, Copy)]
pub(super) struct Record {
    pub(super) base: [Value; 2],
    /// Turns for which there is room.
    pub(super) room: Value,
    pub(super) words: [u32; 2],
}

/// The place of this invocation among all, and their number.
fn place(asm: &mut Assembler) -> (Value, Value) {
    let threads = asm.kernel.workgroup.iter().product();
    let axis = |asm: &mut Assembler, b: Builtin, i: u8| asm.value(OpKind::Builtin(b, i), &[], U32);
    let (mut at, mut count) = (None, None);
    for i in [2, 1, 0] {
        let (id, n) = (axis(asm, Builtin::WorkgroupId, i), axis(asm, Builtin::NumWorkgroups, i));
        at = Some(match at {
            None => id,
            Some(before) => {
                let row = asm.times(before, n);
                asm.plus(row, id)
            }
        });
        count = Some(match count {
            None => n,
            Some(before) => asm.times(before, n),
        });
    }
    let threads = asm.number(threads);
    let zero = asm.number(0);
    let first = asm.times(at.unwrap_or(zero), threads);
    let local = axis(asm, Builtin::LocalIndex, 0);
    (asm.plus(first, local), asm.times(count.unwrap_or(zero), threads))
}

impl Tape {
    /// Writes what every access uses, at the start of a kernel.
    pub(super) fn new(asm: &mut Assembler, memories: [Option<MemoryId>; 2], status: Option<MemoryId>) -> Tape {
        let (place, count) = place(asm);
        let limits = memories.map(|m| match m {
            Some(m) => {
                let length = asm.value(OpKind::Len(m), &[], U32);
                asm.binary(BinaryOp::Div, length, count)
            }
            None => asm.number(0),
        });
        Tape { memories, status, place, count, limits, log: None }
    }

    /// Room for a loop above these slots.
    pub(super) fn record(&self, asm: &mut Assembler, base: [Value; 2], words: [u32; 2]) -> Record {
        let mut room = asm.number(u32::MAX);
        for t in (0..2).filter(|&t| words[t] > 0) {
            let free = asm.binary(BinaryOp::Sub, self.limits[t], base[t]);
            let words = asm.number(words[t]);
            let trip_count = asm.binary(BinaryOp::Div, free, words);
            room = asm.binary(BinaryOp::Min, room, trip_count);
        }
        Record { base, room, words }
    }

    fn element(&self, asm: &mut Assembler, record: &Record, tape: usize, iteration: Value, word: u32) -> Value {
        let words = asm.number(record.words[tape]);
        let row = asm.times(iteration, words);
        let slot = asm.plus(record.base[tape], row);
        let word = asm.number(word);
        let slot = asm.plus(slot, word);
        let first = asm.times(slot, self.count);
        asm.plus(first, self.place)
    }

    /// Writes a value of an iteration.
    pub(super) fn put(&self, asm: &mut Assembler, record: &Record, iteration: Value, first: u32, v: Value) {
        self.write(asm, v, |asm, tape, word| self.element(asm, record, tape, iteration, first + word));
    }

    /// Writes the words of a value, each where `at` says.
    fn write(&self, asm: &mut Assembler, v: Value, at: impl Fn(&mut Assembler, usize, u32) -> Value) {
        let ty = asm.kernel.ty(v);
        let Some((s, n)) = ty.lanes() else { return };
        let tape = usize::from(!s.is_float());
        let Some(m) = self.memories[tape] else { return };
        let mut word = 0;
        for i in 0..n {
            let x = asm.component(v, i);
            for x in halves(asm, s, x) {
                let at = at(asm, tape, word);
                asm.push(OpKind::Store(m), &[at, x], &[]);
                word += 1;
            }
        }
    }

    /// Reads a value of an iteration.
    pub(super) fn take(&self, asm: &mut Assembler, record: &Record, iteration: Value, first: u32, ty: Ty) -> Value {
        self.read(asm, ty, |asm, tape, word| self.element(asm, record, tape, iteration, first + word))
    }

    /// The log grows from the other end of the tapes: the element of a word of it.
    fn log_element(&self, asm: &mut Assembler, end: Value, at: Value, word: u32) -> Value {
        let word = asm.number(word + 1);
        let slot = asm.plus(at, word);
        let slot = asm.binary(BinaryOp::Sub, end, slot);
        let first = asm.times(slot, self.count);
        asm.plus(first, self.place)
    }

    /// Writes a value into the log, in the first run forward. What there is no room for is noted when it ends.
    pub(super) fn put_log(&self, asm: &mut Assembler, at: Value, v: Value) {
        let (tape, n) = super::plan::words(asm.kernel.ty(v));
        let n = asm.number(n);
        let end = saturating_plus(asm, at, n);
        let fits = asm.compare(Compare::Le, end, self.limits[tape]);
        asm.when(fits, |asm| self.write(asm, v, |asm, tape, word| self.log_element(asm, self.limits[tape], at, word)));
    }

    /// Reads a value from the log.
    pub(super) fn take_log(&self, asm: &mut Assembler, at: Value, ty: Ty) -> Value {
        let Some((ends, whole)) = self.log else { return asm.zero(ty) };
        asm.open(&[]);
        let v = self.read(asm, ty, |asm, tape, word| self.log_element(asm, ends[tape], at, word));
        asm.push(OpKind::Yield, &[v], &[]);
        let then = asm.close();
        asm.open(&[]);
        let zero = asm.zero(ty);
        asm.push(OpKind::Yield, &[zero], &[]);
        let other = asm.close();
        let op = asm.push_structure(OpKind::If, &[whole], &[ty], &[then, other]);
        asm.kernel.result(op)
    }

    /// The first run forward is done: the log has this many words, and loops have taken the slots up to `top`. Whether both had room.
    pub(super) fn end_log(&mut self, asm: &mut Assembler, total: [Value; 2], top: [Value; 2]) -> Value {
        let ends = self.limits;
        let mut whole = asm.constant(Scalar::Bool, 1);
        for t in (0..2).filter(|&t| self.memories[t].is_some()) {
            let needed = saturating_plus(asm, total[t], top[t]);
            let fits = asm.compare(Compare::Le, needed, ends[t]);
            whole = asm.binary(BinaryOp::And, whole, fits);
            if let Some(status) = self.status {
                let (zero, at) = (asm.number(0), asm.number(t as u32));
                let lacking = asm.select(fits, zero, needed);
                asm.value(OpKind::Atomic(status, Atomic::Max), &[at, lacking], U32);
            }
            // Where there was no room for both, there is none for more.
            let rest = asm.binary(BinaryOp::Sub, ends[t], total[t]);
            self.limits[t] = asm.select(fits, rest, top[t]);
        }
        self.log = Some((ends, whole));
        whole
    }

    /// Reads the words of a value, each where `at` says.
    fn read(&self, asm: &mut Assembler, ty: Ty, at: impl Fn(&mut Assembler, usize, u32) -> Value) -> Value {
        let (s, n) = ty.lanes().unwrap_or((Scalar::U32, 1));
        let tape = usize::from(!s.is_float());
        let each = if s.bits() == 64 { 2 } else { 1 };
        let mut components = Vec::new();
        for i in 0..n {
            let mut parts = Vec::new();
            for j in 0..each {
                let at = at(asm, tape, i * each + j);
                let word = if tape == 0 { F32 } else { U32 };
                parts.push(match self.memories[tape] {
                    Some(m) => asm.value(OpKind::Load(m), &[at], word),
                    None => asm.zero(word),
                });
            }
            components.push(joined(asm, s, &parts));
        }
        asm.whole(&components, ty)
    }

    /// The iterations of a loop that can be taken backwards: all or none. Notes what would have been needed.
    pub(super) fn settle(&self, asm: &mut Assembler, record: &Record, trip_count: Value) -> (Value, [Value; 2]) {
        let fits = asm.compare(Compare::Le, trip_count, record.room);
        let zero = asm.number(0);
        let back = asm.select(fits, trip_count, zero);
        if let Some(status) = self.status {
            let over = asm.value(OpKind::Unary(UnaryOp::Not), &[fits], Ty::scalar(Scalar::Bool));
            asm.when(over, |asm| {
                for t in (0..2).filter(|&t| record.words[t] > 0) {
                    let size = saturating_times(asm, trip_count, record.words[t]);
                    let needed = saturating_plus(asm, record.base[t], size);
                    let lacks = asm.compare(Compare::Gt, needed, self.limits[t]);
                    let needed = match self.log {
                        Some((ends, _)) => {
                            let log = asm.binary(BinaryOp::Sub, ends[t], self.limits[t]);
                            saturating_plus(asm, needed, log)
                        }
                        None => needed,
                    };
                    let lacking = asm.select(lacks, needed, zero);
                    let at = asm.number(t as u32);
                    asm.value(OpKind::Atomic(status, Atomic::Max), &[at, lacking], U32);
                }
            });
        }
        let mut top = record.base;
        for t in (0..2).filter(|&t| record.words[t] > 0) {
            let words = asm.number(record.words[t]);
            let size = asm.times(back, words);
            top[t] = asm.plus(top[t], size);
        }
        (back, top)
    }
}

/// The iterations of a `for`.
pub(super) fn trip_count(asm: &mut Assembler, from: Value, to: Value, step: u32) -> Value {
    let some = asm.compare(Compare::Lt, from, to);
    let distance = asm.binary(BinaryOp::Sub, to, from);
    let distance = asm.value(OpKind::Convert, &[distance], U32);
    let (one, zero, step) = (asm.number(1), asm.number(0), asm.number(step));
    let last = asm.binary(BinaryOp::Sub, distance, one);
    let last = asm.binary(BinaryOp::Div, last, step);
    let n = asm.plus(last, one);
    asm.select(some, n, zero)
}

/// The number of an iteration, from 0.
pub(super) fn iteration(asm: &mut Assembler, index: Value, from: Value, step: u32) -> Value {
    let distance = asm.binary(BinaryOp::Sub, index, from);
    let distance = asm.value(OpKind::Convert, &[distance], U32);
    let step = asm.number(step);
    asm.binary(BinaryOp::Div, distance, step)
}

pub(super) fn saturating_plus(asm: &mut Assembler, a: Value, b: Value) -> Value {
    let sum = asm.plus(a, b);
    let over = asm.compare(Compare::Lt, sum, a);
    let most = asm.number(u32::MAX);
    asm.select(over, most, sum)
}

pub(super) fn saturating_times(asm: &mut Assembler, a: Value, n: u32) -> Value {
    let (most, limit, n) = (asm.number(u32::MAX), asm.number(u32::MAX / n.max(1)), asm.number(n));
    let product = asm.times(a, n);
    let over = asm.compare(Compare::Gt, a, limit);
    asm.select(over, most, product)
}

/// A scalar as words: floats as f32, integers as u32.
fn halves(asm: &mut Assembler, s: Scalar, x: Value) -> Vec<Value> {
    match s {
        Scalar::F32 | Scalar::U32 => vec![x],
        Scalar::F16 | Scalar::Bf16 => vec![asm.value(OpKind::Convert, &[x], F32)],
        Scalar::Bool | Scalar::I32 => vec![asm.value(OpKind::Convert, &[x], U32)],
        Scalar::I64 | Scalar::U64 => {
            let low = asm.value(OpKind::Convert, &[x], U32);
            let by = asm.constant(s, 32);
            let high = asm.binary(BinaryOp::Shr, x, by);
            vec![low, asm.value(OpKind::Convert, &[high], U32)]
        }
    }
}

fn joined(asm: &mut Assembler, s: Scalar, parts: &[Value]) -> Value {
    let ty = Ty::scalar(s);
    match (s, parts) {
        (Scalar::Bool, &[x, ..]) => {
            let zero = asm.number(0);
            asm.compare(Compare::Ne, x, zero)
        }
        (_, &[low, high]) => {
            let (low, high) = (asm.value(OpKind::Convert, &[low], ty), asm.value(OpKind::Convert, &[high], ty));
            let by = asm.constant(s, 32);
            let high = asm.binary(BinaryOp::Shl, high, by);
            asm.binary(BinaryOp::Or, low, high)
        }
        (Scalar::F32 | Scalar::U32, &[x, ..]) => x,
        (_, &[x, ..]) => asm.value(OpKind::Convert, &[x], ty),
        (_, &[]) => asm.zero(ty),
    }
}
