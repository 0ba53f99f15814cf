//! Memory: variables, places of elements, loads and stores.
//!
//! In buffers types have a layout, which types of values must not have, and bf16 is 16 bits wide, which values are not. So what lies in
//! memory otherwise than values do is loaded and stored scalar by scalar, or vector by vector.

use rspirv::spirv::{self, Op as S, StorageClass};

use super::control::Emit;
use super::words::Words;
use impasto_kernel::ir::{Access, Kernel, MemoryId, Scalar, Shape, Space, Ty};

/// The class of a memory, and whether its elements lie in a block.
fn class(space: Space) -> (StorageClass, bool) {
    match space {
        Space::Buffer(_) => (StorageClass::StorageBuffer, true),
        Space::Workgroup(_) => (StorageClass::Workgroup, false),
        Space::Private(_) | Space::Registers(_) | Space::Pointed { .. } => (StorageClass::Function, false),
    }
}

impl Words {
    /// The type of a scalar or vector as it lies in memory.
    fn laid_lanes(&mut self, space: Space, s: Scalar, n: u32) -> u32 {
        match (s, space) {
            (Scalar::Bf16, Space::Buffer(_) | Space::Workgroup(_)) => {
                let of = self.short();
                if n == 1 { of } else { self.vector(of, n) }
            }
            _ => self.lanes(s, n),
        }
    }

    /// The type of elements as they lie in memory.
    fn laid(&mut self, k: &Kernel, space: Space, ty: Ty) -> u32 {
        let buffer = matches!(space, Space::Buffer(_));
        match k.shape(ty) {
            Shape::Scalar(s) => self.laid_lanes(space, s, 1),
            Shape::Vector(s, n) => self.laid_lanes(space, s, n),
            Shape::Array(of, n) => {
                let stride = k.lay_out(of).stride();
                let of = self.laid(k, space, of);
                if buffer { self.laid_array(of, n, stride) } else { self.array(of, n) }
            }
            Shape::Struct(members) => {
                let offsets = k.member_offsets(&members);
                let of = members.into_iter().map(|t| self.laid(k, space, t)).collect();
                if buffer { self.laid_struct(of, offsets) } else { self.structure(of) }
            }
            Shape::Matrix(m) => self.laid_lanes(space, m.scalar, 1),
            Shape::Foreign(old, _) => self.outside(old),
        }
    }

    /// The variable of a memory; `binding` counts buffers.
    fn memory(&mut self, k: &Kernel, m: MemoryId, binding: u32) -> u32 {
        if self.own.memories[m.index()] != 0 {
            return self.own.memories[m.index()];
        }
        let (ty, space) = (k.memory(m).ty, k.memory(m).space);
        let element = self.laid(k, space, ty);
        let (class, _) = class(space);
        let whole = match space {
            Space::Workgroup(n) | Space::Private(n) | Space::Registers(n) => self.array(element, n),
            Space::Buffer(_) => self.buffer(element, k.lay_out(ty).stride()),
            Space::Pointed { .. } => element,
        };
        let pointer = self.pointer(class, whole);
        // A private array is zero at the start, and a variable of the function: the first words of its first block.
        let null = matches!(space, Space::Private(_)).then(|| self.null(whole));
        let id = self.id("interface");
        match null {
            Some(null) => self.push(S::Variable, &[pointer, id, class as u32, null]),
            None => self.global(S::Variable, &[pointer, id, class as u32]),
        }
        if let Space::Buffer(access) = space {
            self.decorate(id, &[spirv::Decoration::DescriptorSet as u32, 0]);
            self.decorate(id, &[spirv::Decoration::Binding as u32, binding]);
            if access == Access::Read {
                self.decorate(id, &[spirv::Decoration::NonWritable as u32]);
            }
        }
        self.own.memories[m.index()] = id;
        id
    }
}

/// A part of an element: the members that lead to it, and how many scalars and vectors stand before it.
struct ElementMember {
    path: Vec<u32>,
    number: u32,
}

impl Emit<'_> {
    pub(super) fn variable(&mut self, m: MemoryId) -> u32 {
        self.w.memory(self.k, m, self.bindings[m.index()])
    }

    /// The place of a part of an element, which lies there as this type; the same place is named once.
    fn place(&mut self, by: &'static str, m: MemoryId, index: u32, part: &ElementMember, laid: u32) -> u32 {
        let key = (m, index, part.number);
        if let Some(&id) = self.places.get(&key) {
            return id;
        }
        let variable = self.variable(m);
        let (class, inside) = class(self.k.memory(m).space);
        let pointer = self.w.pointer(class, laid);
        let first = inside.then(|| self.w.constant(Scalar::U32, 0));
        let path: Vec<u32> = part.path.iter().map(|&i| self.w.constant(Scalar::U32, i.into())).collect();
        let id = self.w.id(by);
        self.w.push_parts(S::AccessChain, &[&[pointer, id, variable], first.as_slice(), &[index], &path]);
        self.places.insert(key, id);
        self.known.push(key);
        id
    }

    /// The place of an element that lies in memory as a value does.
    pub(super) fn element(&mut self, by: &'static str, m: MemoryId, index: u32) -> u32 {
        let laid = self.w.ty(self.k, self.k.memory(m).ty);
        self.place(by, m, index, &ElementMember { path: Vec::new(), number: 0 }, laid)
    }

    /// The place of an element that is a scalar or a vector, as it lies in memory.
    pub(super) fn lanes_place(&mut self, by: &'static str, m: MemoryId, index: u32) -> u32 {
        let (space, (s, n)) = (self.k.memory(m).space, self.k.memory(m).ty.lanes().unwrap_or((Scalar::U32, 1)));
        let laid = self.w.laid_lanes(space, s, n);
        self.place(by, m, index, &ElementMember { path: Vec::new(), number: 0 }, laid)
    }

    /// Whether elements lie in memory as values do.
    fn is_plain(&self, m: MemoryId) -> bool {
        let (ty, space) = (self.k.memory(m).ty, self.k.memory(m).space);
        let bf16 = self.k.any_scalar(ty, |s| s == Scalar::Bf16);
        match space {
            Space::Buffer(_) => ty.lanes().is_some() && !bf16,
            Space::Workgroup(_) => !bf16,
            Space::Private(_) | Space::Registers(_) | Space::Pointed { .. } => true,
        }
    }

    pub(super) fn load(&mut self, by: &'static str, m: MemoryId, index: u32) -> u32 {
        let ty = self.k.memory(m).ty;
        if self.is_plain(m) {
            let at = self.element(by, m, index);
            let (t, id) = (self.w.ty(self.k, ty), self.w.id(by));
            self.w.push_parts(S::Load, &[&[t, id, at], self.seen(m)]);
            return id;
        }
        self.load_part(by, m, index, ty, &mut ElementMember { path: Vec::new(), number: 0 })
    }

    fn load_part(&mut self, by: &'static str, m: MemoryId, index: u32, ty: Ty, part: &mut ElementMember) -> u32 {
        let Some((s, n)) = ty.lanes() else {
            let mut members = Vec::new();
            for i in 0..self.k.members(ty) {
                part.path.push(i);
                let member = self.k.member(ty, i).unwrap_or(ty);
                members.push(self.load_part(by, m, index, member, part));
                part.path.pop();
            }
            return self.make(by, S::CompositeConstruct, ty, &members);
        };
        let laid = self.w.laid_lanes(self.k.memory(m).space, s, n);
        let at = self.place(by, m, index, part, laid);
        part.number += 1;
        let id = self.w.id(by);
        self.w.push_parts(S::Load, &[&[laid, id, at], self.seen(m)]);
        if s == Scalar::Bf16 { self.make(by, S::UConvert, ty, &[id]) } else { id }
    }

    pub(super) fn store(&mut self, by: &'static str, m: MemoryId, index: u32, value: u32) {
        if self.is_plain(m) {
            let at = self.element(by, m, index);
            return self.w.push_parts(S::Store, &[&[at, value], self.seen(m)]);
        }
        let ty = self.k.memory(m).ty;
        self.store_part(by, m, index, ty, value, &mut ElementMember { path: Vec::new(), number: 0 });
    }

    fn store_part(&mut self, by: &'static str, m: MemoryId, index: u32, ty: Ty, value: u32, part: &mut ElementMember) {
        let Some((s, n)) = ty.lanes() else {
            for i in 0..self.k.members(ty) {
                part.path.push(i);
                let member = self.k.member(ty, i).unwrap_or(ty);
                let inner = self.make(by, S::CompositeExtract, member, &[value, i]);
                self.store_part(by, m, index, member, inner, part);
                part.path.pop();
            }
            return;
        };
        let laid = self.w.laid_lanes(self.k.memory(m).space, s, n);
        let at = self.place(by, m, index, part, laid);
        part.number += 1;
        let mut value = value;
        if s == Scalar::Bf16 {
            let id = self.w.id(by);
            self.w.push(S::UConvert, &[laid, id, value]);
            value = id;
        }
        self.w.push_parts(S::Store, &[&[at, value], self.seen(m)]);
    }
}
