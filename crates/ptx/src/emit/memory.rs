//! Memory: buffers are global, workgroup arrays shared, private arrays local memory. Elements lie by the rules of std430 everywhere, so that neighbours
//! are read and written as vectors of up to 16 bytes.

use impasto_kernel::ir::{Access, DataLayout, Kernel, MemoryId, Scalar, Space, Ty, Value};
use impasto_kernel::{Atomic, param_offsets, shared_offsets};

use super::text::{Class, Operand, braces, imm, show};
use super::{Emit, STATIC_SHARED};

/// Bytes of a private array, which is cleared 16 bytes at a time.
pub(super) fn private_bytes(k: &Kernel, ty: Ty, n: u32) -> u64 {
    (u64::from(n) * u64::from(k.lay_out(ty).stride())).next_multiple_of(16)
}

/// Bytes of private arrays that are cleared without a loop.
const CLEARED_AT_ONCE: u64 = 256;

/// The state space of a memory.
pub(super) fn space(space: Space) -> &'static str {
    match space {
        Space::Buffer(_) => "global",
        Space::Workgroup(_) => "shared",
        Space::Private(_) | Space::Registers(_) | Space::Pointed { .. } => "local",
    }
}

/// An address: a register, and bytes from there.
#[derive(Clone, Copy)]
pub(super) struct Address(pub(super) Operand, pub(super) u32);

impl Address {
    pub(super) fn plus(self, bytes: u32) -> Address {
        Address(self.0, self.1 + bytes)
    }

    pub(super) fn show(self) -> String {
        match self.1 {
            0 => format!("[{}]", show(self.0)),
            n => format!("[{}+{n}]", show(self.0)),
        }
    }
}

/// The scalars of an element that are moved together: the first, how many, and where they lie.
fn pieces(layout: &DataLayout) -> Vec<(usize, usize, u32)> {
    let bytes = |s: Scalar| if s == Scalar::Bool { 4 } else { s.bytes() };
    let scalars = &layout.scalars;
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < scalars.len() {
        let (offset, size) = (scalars[at].0, bytes(scalars[at].1));
        let together = |n: usize| {
            let whole = size * n as u32;
            let lies =
                |i: usize| scalars.get(at + i).is_some_and(|&(o, s)| o == offset + i as u32 * size && bytes(s) == size);
            whole <= 16 && layout.align.is_multiple_of(whole) && offset.is_multiple_of(whole) && (1..n).all(lies)
        };
        let n = [4, 2].into_iter().find(|&n| together(n)).unwrap_or(1);
        pieces.push((at, n, offset));
        at += n;
    }
    pieces
}

impl Emit<'_> {
    /// Makes known where a memory begins, and clears private arrays.
    pub(super) fn base(&mut self, m: MemoryId) {
        let k = self.k;
        let base = match k.memory(m).space {
            Space::Buffer(_) => {
                let given = self.t.reg(Class::B64);
                self.t.line(format_args!("ld.param.u64 {}, [buffer${}]", show(given), self.bindings[m.index()]));
                self.t.make(Class::B64, "cvta.to.global.u64", &[given])
            }
            Space::Workgroup(_) => {
                let (offsets, all) = shared_offsets(k);
                let whole = self.t.reg(Class::B32);
                let name = if all > STATIC_SHARED { "dynamic$" } else { "shared$" };
                self.t.line(format_args!("mov.u32 {}, {name}", show(whole)));
                match offsets[m.index()] {
                    0 => whole,
                    at => self.t.make(Class::B32, "add.u32", &[whole, imm(at as u32)]),
                }
            }
            Space::Private(n) => {
                let base = self.t.reg(Class::B32);
                self.t.line(format_args!("mov.u32 {}, private${}", show(base), m.index()));
                self.clear(base, private_bytes(k, k.memory(m).ty, n));
                base
            }
            Space::Registers(n) => return self.register_array(m, n),
            Space::Pointed { .. } => return,
        };
        self.bases[m.index()] = Some(base);
    }

    fn clear(&mut self, base: Operand, bytes: u64) {
        let zeros = braces(&[imm(0); 4]);
        if bytes <= CLEARED_AT_ONCE {
            for at in (0..bytes as u32).step_by(16) {
                self.t.line(format_args!("st.local.v4.b32 {}, {zeros}", Address(base, at).show()));
            }
            return;
        }
        let (at, begin) = (self.t.reg(Class::B32), self.t.label());
        self.t.mov(at, imm(0));
        self.t.place_head(begin);
        let place = self.t.make(Class::B32, "add.u32", &[base, at]);
        self.t.line(format_args!("st.local.v4.b32 {}, {zeros}", Address(place, 0).show()));
        let next = self.t.make(Class::B32, "add.u32", &[at, imm(16)]);
        let more = self.t.make(Class::Pred, "setp.lt.u32", &[next, imm(bytes as u32)]);
        self.t.mov(at, next);
        self.t.bra_if(more, true, begin);
    }

    /// Where an element begins, `stride` bytes each.
    pub(super) fn element(&mut self, m: MemoryId, index: Operand, stride: u32) -> Address {
        let base = self.bases[m.index()].unwrap_or(imm(0));
        let known = index.constant().and_then(|i| i.checked_mul(stride.into())).filter(|&b| b < 1 << 30);
        match known {
            Some(bytes) => Address(base, bytes as u32),
            None if base.class() == Class::B64 => {
                Address(self.t.make(Class::B64, "mad.wide.u32", &[index, imm(stride), base]), 0)
            }
            None => Address(self.t.make(Class::B32, "mad.lo.u32", &[index, imm(stride), base]), 0),
        }
    }

    /// The instruction that reads a memory: buffers that nobody writes go through the read-only cache.
    pub(super) fn loads(&self, m: MemoryId) -> String {
        let of = self.k.memory(m).space;
        format!("ld.{}{}", space(of), if of == Space::Buffer(Access::Read) { ".nc" } else { "" })
    }

    pub(super) fn load(&mut self, m: MemoryId, index: Value) -> Vec<Operand> {
        if let Some(from) = self.array_register(m, index) {
            // A copy: the array may change while the value lives.
            let to = self.t.reg(from.class());
            self.t.mov(to, from);
            return vec![to];
        }
        let layout = self.k.lay_out(self.k.memory(m).ty);
        let at = self.element(m, self.scalar(index), layout.stride());
        let op = self.loads(m);
        let mut made = Vec::with_capacity(layout.scalars.len());
        for (first, n, offset) in pieces(&layout) {
            let class = |s: Scalar| if s == Scalar::Bool { Class::B32 } else { Class::of(s) };
            let read: Vec<Operand> =
                layout.scalars[first..first + n].iter().map(|&(_, s)| self.t.reg(class(s))).collect();
            self.load_piece(&op, &read, at.plus(offset));
            for (&(_, s), o) in layout.scalars[first..first + n].iter().zip(read) {
                let is_bool = s == Scalar::Bool;
                made.push(if is_bool { self.t.make(Class::Pred, "setp.ne.u32", &[o, imm(0)]) } else { o });
            }
        }
        made
    }

    /// Loads one register, or several that lie together.
    pub(super) fn load_piece(&mut self, op: &str, to: &[Operand], at: Address) {
        let bits = to[0].class().bits();
        match to {
            [one] => self.t.line(format_args!("{op}.{bits} {}, {}", show(*one), at.show())),
            all => self.t.line(format_args!("{op}.v{}.{bits} {}, {}", all.len(), braces(all), at.show())),
        }
    }

    /// Stores one operand, or several that lie together.
    pub(super) fn store_piece(&mut self, m: MemoryId, from: &[Operand], at: Address) {
        let from: Vec<Operand> =
            from.iter().map(|&o| if o.class() == Class::B16 { self.t.in_reg(o) } else { o }).collect();
        let (of, bits) = (space(self.k.memory(m).space), from[0].class().bits());
        match &from[..] {
            [one] => self.t.line(format_args!("st.{of}.{bits} {}, {}", at.show(), show(*one))),
            all => self.t.line(format_args!("st.{of}.v{}.{bits} {}, {}", all.len(), at.show(), braces(all))),
        }
    }

    pub(super) fn store(&mut self, m: MemoryId, index: Value, value: Value) {
        if let Some(to) = self.array_register(m, index) {
            let from = self.scalar(value);
            return self.t.mov(to, from);
        }
        let layout = self.k.lay_out(self.k.memory(m).ty);
        let at = self.element(m, self.scalar(index), layout.stride());
        let value = self.value(value).to_vec();
        for (first, n, offset) in pieces(&layout) {
            let mut from = Vec::with_capacity(n);
            for &o in &value[first..first + n] {
                from.push(if o.class() == Class::Pred { self.select(o, imm(1), imm(0)) } else { o });
            }
            self.store_piece(m, &from, at.plus(offset));
        }
    }

    /// An element changed in one step. Sums of floats are the device's own: in buffers they flush what is subnormal.
    pub(super) fn atomic(&mut self, m: MemoryId, f: Atomic, args: &[Value]) -> Operand {
        let ty = self.k.memory(m).ty;
        let at = self.element(m, self.scalar(args[0]), 4).show();
        let signed = ty.as_scalar() == Some(Scalar::I32);
        let op = match f {
            Atomic::Add if ty.as_scalar() == Some(Scalar::F32) => "add.f32",
            Atomic::Add => "add.u32",
            Atomic::Min if signed => "min.s32",
            Atomic::Min => "min.u32",
            Atomic::Max if signed => "max.s32",
            Atomic::Max => "max.u32",
            Atomic::And => "and.b32",
            Atomic::Or => "or.b32",
            Atomic::Xor => "xor.b32",
            Atomic::Exchange => "exch.b32",
            Atomic::CompareExchange => "cas.b32",
        };
        let of = space(self.k.memory(m).space);
        let d = self.t.reg(Class::B32);
        let x = self.scalar(args[1]);
        let x = show(self.t.in_reg(x));
        match args.get(2) {
            Some(&new) => {
                let new = self.scalar(new);
                let new = show(self.t.in_reg(new));
                self.t.line(format_args!("atom.{of}.{op} {}, {at}, {x}, {new}", show(d)));
            }
            None => self.t.line(format_args!("atom.{of}.{op} {}, {at}, {x}", show(d))),
        }
        d
    }

    /// Elements of a buffer, from its bytes.
    pub(super) fn len(&mut self, m: MemoryId) -> Operand {
        let stride = u64::from(self.k.lay_out(self.k.memory(m).ty).stride());
        let bytes = self.t.reg(Class::B64);
        self.t.line(format_args!("ld.param.u64 {}, [lengths$+{}]", show(bytes), 8 * self.bindings[m.index()]));
        let n = self.t.make(Class::B64, "div.u64", &[bytes, Operand::Imm(Class::B64, stride.max(1))]);
        self.t.make(Class::B32, "cvt.u32.u64", &[n])
    }

    /// One scalar parameter.
    pub(super) fn param(&mut self, p: u32) -> Operand {
        let class = Class::of(self.k.params()[p as usize].ty);
        let at = param_offsets(self.k)[p as usize];
        let d = self.t.reg(class);
        self.t.line(format_args!("ld.param.{} {}, [scalars$+{at}]", class.bits(), show(d)));
        d
    }
}
