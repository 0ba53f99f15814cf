//! Words, ids, types and constants of a module. The same code counts ids first and writes words second, so the count is what is written.

use std::collections::BTreeMap;

use rspirv::spirv;

use crate::hash::Map;
use crate::ir::{Kernel, Scalar, Shape, Space, Ty};

/// What a type or constant is, to write each once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Global {
    Void,
    Function,
    Type(Ty),
    /// bf16 as 16 bits, and as the float that matrices are made of.
    Half,
    Bfloat,
    Pointer(u32, u32),
    Const(Scalar, u64),
    Splat(Ty, u64),
    Null(u32),
    Memory(u32),
    Block,
    Builtin(u32),
}

/// What a walk through a kernel is for.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Mode {
    /// To count ids; nothing is written.
    Count,
    /// To say what takes the ids, of a kernel that has too many.
    Tally,
    /// To write words.
    Write,
}

/// The parts of a module, in the order of the specification.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) decorations: Vec<u32>,
    pub(super) globals: Vec<u32>,
    pub(super) function: Vec<u32>,
}

pub(super) struct Words<'a> {
    pub(super) k: &'a Kernel,
    mode: Mode,
    pub(super) ids: u64,
    tally: BTreeMap<&'static str, u64>,
    pub(super) parts: Parts,
    pub(super) globals: Map<Global, u32>,
    /// The ids of types, by their numbers, where they are known: they are asked for more than all else.
    types: Vec<u32>,
    pub(super) capabilities: BTreeMap<u32, ()>,
    pub(super) interface: Vec<u32>,
    pub(super) glsl: Option<u32>,
    /// Whether this is under the Vulkan memory model, where accesses say that others see them, and not the older one.
    pub(super) vulkan_model: bool,
}

/// One instruction: its length and number, then its operands, in parts that follow each other.
pub(super) fn instruction(to: &mut Vec<u32>, op: spirv::Op, operands: &[&[u32]]) {
    let length: usize = operands.iter().map(|part| part.len()).sum();
    to.push(((length as u32 + 1) << 16) | op as u32);
    operands.iter().for_each(|part| to.extend_from_slice(part));
}

/// Text as words: bytes, a zero, and zeros to the end of the word.
pub(super) fn text(s: &str) -> Vec<u32> {
    let mut bytes = s.as_bytes().to_vec();
    bytes.resize(s.len() / 4 * 4 + 4, 0);
    bytes.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
}

impl<'a> Words<'a> {
    pub(super) fn new(k: &'a Kernel, mode: Mode) -> Words<'a> {
        Words {
            k,
            mode,
            ids: 1,
            tally: BTreeMap::new(),
            parts: Parts::default(),
            globals: Map::default(),
            types: Vec::new(),
            capabilities: BTreeMap::from([(spirv::Capability::Shader as u32, ())]),
            interface: Vec::new(),
            glsl: None,
            vulkan_model: false,
        }
    }

    /// A new id, taken by this kind of thing.
    pub(super) fn id(&mut self, by: &'static str) -> u32 {
        let id = self.ids;
        self.ids += 1;
        if self.mode == Mode::Tally {
            *self.tally.entry(by).or_default() += 1;
        }
        // Only a count goes beyond 32 bits: nothing is written unless the bound is far below.
        id as u32
    }

    /// What takes ids, the largest first; known after a tally.
    pub(super) fn largest(&self) -> Vec<(String, u64)> {
        let mut largest: Vec<(String, u64)> = self.tally.iter().map(|(&name, &n)| (name.to_owned(), n)).collect();
        largest.sort_by_key(|l| std::cmp::Reverse(l.1));
        largest
    }

    pub(super) fn capability(&mut self, c: spirv::Capability) {
        self.capabilities.insert(c as u32, ());
    }

    pub(super) fn decorate(&mut self, id: u32, operands: &[u32]) {
        if self.mode == Mode::Write {
            instruction(&mut self.parts.decorations, spirv::Op::Decorate, &[&[id], operands]);
        }
    }

    pub(super) fn global(&mut self, op: spirv::Op, operands: &[u32]) {
        if self.mode == Mode::Write {
            instruction(&mut self.parts.globals, op, &[operands]);
        }
    }

    /// An instruction of the function.
    pub(super) fn push(&mut self, op: spirv::Op, operands: &[u32]) {
        self.push_parts(op, &[operands]);
    }

    /// An instruction of the function, of operands in parts that follow each other.
    pub(super) fn push_parts(&mut self, op: spirv::Op, operands: &[&[u32]]) {
        if self.mode == Mode::Write {
            instruction(&mut self.parts.function, op, operands);
        }
    }

    /// The place of the next word of the function.
    pub(super) fn place(&self) -> usize {
        self.parts.function.len()
    }

    /// Changes a word that was written before its value was known.
    pub(super) fn patch(&mut self, place: usize, word: u32) {
        if let Some(w) = self.parts.function.get_mut(place) {
            *w = word;
        }
    }

    pub(super) fn once(&mut self, key: Global, by: &'static str, write: impl FnOnce(&mut Self, u32)) -> u32 {
        if let Some(&id) = self.globals.get(&key) {
            return id;
        }
        let id = self.id(by);
        self.globals.insert(key, id);
        write(self, id);
        id
    }

    pub(super) fn void(&mut self) -> u32 {
        self.once(Global::Void, "types", |w, id| w.global(spirv::Op::TypeVoid, &[id]))
    }

    pub(super) fn function_type(&mut self) -> u32 {
        let void = self.void();
        self.once(Global::Function, "types", |w, id| w.global(spirv::Op::TypeFunction, &[id, void]))
    }

    pub(super) fn scalar(&mut self, s: Scalar) -> u32 {
        use spirv::Capability as C;
        if s == Scalar::Bf16 {
            // bf16 is a format of storage: 16 bits that are computed with as integers.
            self.capability(C::Int16);
            return self.once(Global::Half, "types", |w, id| w.global(spirv::Op::TypeInt, &[id, 16, 0]));
        }
        self.once(Global::Type(Ty::scalar(s)), "types", |w, id| match s {
            Scalar::Bool => w.global(spirv::Op::TypeBool, &[id]),
            Scalar::F16 | Scalar::F32 => {
                if s == Scalar::F16 {
                    w.capability(C::Float16);
                }
                w.global(spirv::Op::TypeFloat, &[id, s.bits()]);
            }
            _ => {
                if s.bits() == 64 {
                    w.capability(C::Int64);
                }
                w.global(spirv::Op::TypeInt, &[id, s.bits(), s.is_signed().into()]);
            }
        })
    }

    /// Whether the module has values of this type.
    pub(super) fn has(&self, s: Scalar) -> bool {
        self.globals.contains_key(&Global::Type(Ty::scalar(s)))
    }

    pub(super) fn ty(&mut self, ty: Ty) -> u32 {
        let number = ty.index();
        if self.types.len() <= number {
            self.types.resize(number + 1, 0);
        }
        if self.types[number] == 0 {
            self.types[number] = self.declare(ty);
        }
        self.types[number]
    }

    fn declare(&mut self, ty: Ty) -> u32 {
        match self.k.shape(ty) {
            Shape::Scalar(s) => self.scalar(s),
            Shape::Vector(s, n) => {
                let of = self.scalar(s);
                self.once(Global::Type(ty), "types", |w, id| w.global(spirv::Op::TypeVector, &[id, of, n]))
            }
            Shape::Array(t, n) => {
                let (of, n) = (self.ty(t), self.constant(Scalar::U32, n.into()));
                self.once(Global::Type(ty), "types", |w, id| w.global(spirv::Op::TypeArray, &[id, of, n]))
            }
            Shape::Struct(members) => {
                let of: Vec<u32> = members.into_iter().map(|t| self.ty(t)).collect();
                self.once(Global::Type(ty), "types", |w, id| {
                    w.global(spirv::Op::TypeStruct, &[&[id][..], &of].concat())
                })
            }
            Shape::Matrix(m) => self.matrix(ty, m),
        }
    }

    pub(super) fn pointer(&mut self, class: spirv::StorageClass, to: u32) -> u32 {
        let key = Global::Pointer(class as u32, to);
        self.once(key, "types", |w, id| w.global(spirv::Op::TypePointer, &[id, class as u32, to]))
    }

    pub(super) fn constant(&mut self, s: Scalar, bits: u64) -> u32 {
        let ty = self.scalar(s);
        self.once(Global::Const(s, bits), "constants", |w, id| match s {
            Scalar::Bool if bits != 0 => w.global(spirv::Op::ConstantTrue, &[ty, id]),
            Scalar::Bool => w.global(spirv::Op::ConstantFalse, &[ty, id]),
            _ if s.bits() == 64 => w.global(spirv::Op::Constant, &[ty, id, bits as u32, (bits >> 32) as u32]),
            _ => w.global(spirv::Op::Constant, &[ty, id, bits as u32]),
        })
    }

    /// A constant of a scalar type, or a vector of it.
    pub(super) fn splat(&mut self, ty: Ty, bits: u64) -> u32 {
        match ty.lanes() {
            Some((s, n)) if n > 1 => {
                let (t, c) = (self.ty(ty), self.constant(s, bits));
                self.once(Global::Splat(ty, bits), "constants", |w, id| {
                    w.global(spirv::Op::ConstantComposite, &[&[t, id][..], &vec![c; n as usize]].concat());
                })
            }
            Some((s, _)) => self.constant(s, bits),
            None => 0,
        }
    }

    /// The variable of an input that the device gives.
    pub(super) fn builtin(&mut self, b: spirv::BuiltIn, ty: Ty) -> u32 {
        let t = self.ty(ty);
        let pointer = self.pointer(spirv::StorageClass::Input, t);
        self.once(Global::Builtin(b as u32), "interface", |w, id| {
            w.global(spirv::Op::Variable, &[pointer, id, spirv::StorageClass::Input as u32]);
            w.decorate(id, &[spirv::Decoration::BuiltIn as u32, b as u32]);
            w.interface.push(id);
        })
    }

    /// The variable of the scalar parameters, and their places in it.
    pub(super) fn params(&mut self) -> u32 {
        if let Some(&id) = self.globals.get(&Global::Block) {
            return id;
        }
        let types: Vec<Scalar> = self.k.params().iter().map(|p| p.ty).collect();
        let members: Vec<u32> = types.iter().map(|&s| self.scalar(s)).collect();
        if types.iter().any(|s| s.bits() == 16) {
            self.capability(spirv::Capability::StoragePushConstant16);
        }
        let block = self.id("interface");
        self.global(spirv::Op::TypeStruct, &[&[block][..], &members].concat());
        self.decorate(block, &[spirv::Decoration::Block as u32]);
        for (i, (&offset, _)) in super::param_offsets(self.k).iter().zip(&types).enumerate() {
            self.member_offset(block, i as u32, offset);
        }
        let pointer = self.pointer(spirv::StorageClass::PushConstant, block);
        self.once(Global::Block, "interface", |w, id| {
            w.global(spirv::Op::Variable, &[pointer, id, spirv::StorageClass::PushConstant as u32]);
        })
    }

    fn member_offset(&mut self, block: u32, member: u32, offset: u32) {
        if self.mode == Mode::Write {
            let operands = [block, member, spirv::Decoration::Offset as u32, offset];
            instruction(&mut self.parts.decorations, spirv::Op::MemberDecorate, &[&operands]);
        }
    }

    /// The variable of a buffer or a workgroup array; `binding` counts buffers. Private arrays are the function's.
    pub(super) fn memory(&mut self, number: u32, binding: u32) -> u32 {
        if let Some(&id) = self.globals.get(&Global::Memory(number)) {
            return id;
        }
        let m = &self.k.memories()[number as usize];
        let (ty, space) = (m.ty, m.space);
        let element = self.ty(ty);
        let (pointer, class) = match space {
            Space::Workgroup(n) | Space::Private(n) => {
                let n = self.constant(Scalar::U32, n.into());
                let array = self.id("types");
                self.global(spirv::Op::TypeArray, &[array, element, n]);
                let class = if let Space::Workgroup(_) = space {
                    spirv::StorageClass::Workgroup
                } else {
                    spirv::StorageClass::Function
                };
                (self.pointer(class, array), class)
            }
            Space::Buffer(_) => {
                let (s, n) = ty.lanes().unwrap_or((Scalar::U32, 1));
                if s.bits() == 16 {
                    self.capability(spirv::Capability::StorageBuffer16BitAccess);
                }
                let (array, block) = (self.id("interface"), self.id("interface"));
                self.global(spirv::Op::TypeRuntimeArray, &[array, element]);
                self.global(spirv::Op::TypeStruct, &[block, array]);
                self.decorate(array, &[spirv::Decoration::ArrayStride as u32, s.bytes() * n]);
                self.decorate(block, &[spirv::Decoration::Block as u32]);
                self.member_offset(block, 0, 0);
                (self.pointer(spirv::StorageClass::StorageBuffer, block), spirv::StorageClass::StorageBuffer)
            }
        };
        if let Space::Private(_) = space {
            // Zero at the start, and a variable of the function: the first words of its first block.
            let array = self.globals.iter().find_map(|(k, &id)| match k {
                Global::Pointer(_, to) if id == pointer => Some(*to),
                _ => None,
            });
            let array = array.unwrap_or(0);
            let null =
                self.once(Global::Null(array), "constants", |w, id| w.global(spirv::Op::ConstantNull, &[array, id]));
            return self.once(Global::Memory(number), "interface", |w, id| {
                w.push(spirv::Op::Variable, &[pointer, id, class as u32, null]);
            });
        }
        self.once(Global::Memory(number), "interface", |w, id| {
            w.global(spirv::Op::Variable, &[pointer, id, class as u32]);
            if let Space::Buffer(access) = space {
                w.decorate(id, &[spirv::Decoration::DescriptorSet as u32, 0]);
                w.decorate(id, &[spirv::Decoration::Binding as u32, binding]);
                if access == crate::ir::Access::Read {
                    w.decorate(id, &[spirv::Decoration::NonWritable as u32]);
                }
            }
        })
    }
}
