//! Words, ids, types and constants of a module. The same code counts ids first and writes words second, so the count is what is written.
//!
//! Types and constants are the module's, and known by what they are made of; memory, inputs and parameters are a kernel's.

use std::collections::BTreeMap;
use std::sync::Arc;

use rspirv::spirv;

use super::foreign::SourceIds;
use impasto_kernel::hash::Map;
use impasto_kernel::ir::{Kernel, Matrix, Scalar, Shape, Ty};
use impasto_kernel::param_offsets;

use crate::import::foreign::Foreign;

/// What a type, a constant or an input is, to write each once. Numbers are ids of what it is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Global {
    Void,
    Function,
    Scalar(Scalar),
    /// An integer of 16 bits: how bf16 lies in memory.
    Short,
    /// bf16 as the float that matrices are made of.
    Bfloat,
    Matrix(Matrix),
    Vector(u32, u32),
    Array(u32, u32),
    Struct(Vec<u32>),
    /// An array in a buffer, with its stride; a struct, with the places of its members.
    LaidArray(u32, u32, u32),
    LaidStruct(Vec<u32>, Vec<u32>),
    /// The elements of a buffer, with their stride, in the block that holds them.
    Buffer(u32, u32),
    Parameters(Vec<u32>, Vec<u32>),
    Pointer(u32, u32),
    Const(Scalar, u64),
    Splat(u32, u32, u32),
    Null(u32),
    Undef(u32),
    Composite(u32, Vec<u32>),
    Builtin(u32),
}

/// What a walk through the kernels is for.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Mode {
    /// To count ids; nothing is written.
    Count,
    /// To say what takes the ids, of kernels that have too many.
    Tally,
    /// To write words.
    Write,
}

/// The parts of a module, in the order of the specification.
#[derive(Default)]
pub(super) struct Sections {
    pub(super) decorations: Vec<u32>,
    pub(super) globals: Vec<u32>,
    pub(super) functions: Vec<u32>,
}

/// What belongs to one kernel of a module.
#[derive(Default)]
pub(super) struct KernelIds {
    pub(super) main: u32,
    /// Inputs that it reads.
    pub(super) interface: Vec<u32>,
    /// The variable of each memory, and of the parameters; 0 where there is none yet.
    pub(super) memories: Vec<u32>,
    pub(super) params: u32,
    /// The id of each type of the kernel, by its number.
    types: Vec<u32>,
    /// What the kernel has of the module that it was imported from.
    foreign: Option<Arc<Foreign>>,
    /// The floats that it computes with.
    pub(super) floats: [bool; 2],
    /// What takes the ids; known after a tally.
    pub(super) tally: BTreeMap<&'static str, u64>,
}

pub(super) struct Words {
    mode: Mode,
    pub(super) ids: u64,
    pub(super) parts: Sections,
    pub(super) globals: Map<Global, u32>,
    pub(super) glsl: Option<u32>,
    /// Whether this is under the Vulkan memory model, where accesses say that others see them, and not the older one.
    pub(super) vulkan_model: bool,
    pub(super) own: KernelIds,
    /// The module that the kernels were imported from.
    pub(super) outer: Option<SourceIds>,
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

impl Words {
    pub(super) fn new(mode: Mode) -> Words {
        Words {
            mode,
            vulkan_model: false,
            ids: 1,
            parts: Sections::default(),
            globals: Map::default(),
            glsl: None,
            own: KernelIds::default(),
            outer: None,
        }
    }

    /// Begins a kernel.
    pub(super) fn begin(&mut self, k: &Kernel) {
        self.own = KernelIds {
            memories: vec![0; k.memories().len()],
            types: vec![0; k.type_count()],
            foreign: Foreign::shared(k),
            ..KernelIds::default()
        };
    }

    /// A new id, taken by this kind of thing.
    pub(super) fn id(&mut self, by: &'static str) -> u32 {
        let id = self.ids;
        self.ids += 1;
        if self.mode == Mode::Tally {
            *self.own.tally.entry(by).or_default() += 1;
        }
        // Only a count goes beyond 32 bits: nothing is written unless the bound is far below.
        id as u32
    }

    pub(super) fn decorate(&mut self, id: u32, operands: &[u32]) {
        if self.mode == Mode::Write {
            instruction(&mut self.parts.decorations, spirv::Op::Decorate, &[&[id], operands]);
        }
    }

    fn member_offsets(&mut self, of: u32, offsets: &[u32]) {
        if self.mode == Mode::Write {
            for (member, &offset) in (0..).zip(offsets) {
                let operands = [of, member, spirv::Decoration::Offset as u32, offset];
                instruction(&mut self.parts.decorations, spirv::Op::MemberDecorate, &[&operands]);
            }
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
            instruction(&mut self.parts.functions, op, operands);
        }
    }

    /// The place of the next word of the function.
    pub(super) fn place(&self) -> usize {
        self.parts.functions.len()
    }

    /// Changes a word that was written before its value was known.
    pub(super) fn patch(&mut self, place: usize, word: u32) {
        if let Some(w) = self.parts.functions.get_mut(place) {
            *w = word;
        }
    }

    pub(super) fn once(&mut self, key: Global, by: &'static str, write: impl FnOnce(&mut Self, u32)) -> u32 {
        if let Some(&id) = self.globals.get(&key) {
            return id;
        }
        if let Some(old) = self.outer.as_ref().and_then(|o| o.known(&key)) {
            return self.outside(old);
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

    /// The type of values of a scalar. bf16 is a format of storage: a value is its bits in a word.
    pub(super) fn scalar(&mut self, s: Scalar) -> u32 {
        self.lanes(s, 1)
    }

    /// The scalar of values, or a vector of it.
    pub(super) fn lanes(&mut self, s: Scalar, n: u32) -> u32 {
        let s = value_scalar(s);
        let ty = Ty::vector(s, n).unwrap_or(Ty::scalar(s));
        let number = ty.number();
        if self.own.types[number] == 0 {
            self.own.types[number] = if let Some(old) = self.own.foreign.as_ref().and_then(|f| f.type_id(ty)) {
                self.outside(old)
            } else if n == 1 {
                self.new_scalar(s)
            } else {
                let of = self.scalar(s);
                self.vector(of, n)
            };
        }
        self.own.types[number]
    }

    fn new_scalar(&mut self, s: Scalar) -> u32 {
        if let Some(i) = [Scalar::F16, Scalar::F32].iter().position(|&f| f == s) {
            self.own.floats[i] = true;
        }
        self.once(Global::Scalar(s), "types", |w, id| match s {
            Scalar::Bool => w.global(spirv::Op::TypeBool, &[id]),
            Scalar::F16 | Scalar::F32 => w.global(spirv::Op::TypeFloat, &[id, s.bits()]),
            _ => w.global(spirv::Op::TypeInt, &[id, s.bits(), s.is_signed().into()]),
        })
    }

    pub(super) fn vector(&mut self, of: u32, n: u32) -> u32 {
        self.once(Global::Vector(of, n), "types", |w, id| w.global(spirv::Op::TypeVector, &[id, of, n]))
    }

    /// The type of values.
    pub(super) fn ty(&mut self, k: &Kernel, ty: Ty) -> u32 {
        if let Some((s, n)) = ty.lanes() {
            return self.lanes(s, n);
        }
        if self.own.types[ty.number()] == 0 {
            self.own.types[ty.number()] = match k.shape(ty) {
                Shape::Array(t, n) => {
                    let of = self.ty(k, t);
                    self.array(of, n)
                }
                Shape::Struct(members) => {
                    let of = members.into_iter().map(|t| self.ty(k, t)).collect();
                    self.structure(of)
                }
                Shape::Scalar(s) | Shape::Vector(s, _) => self.scalar(s),
                Shape::Matrix(m) => self.matrix(m),
                Shape::Foreign(old, _) => self.outside(old),
            };
        }
        self.own.types[ty.number()]
    }

    pub(super) fn array(&mut self, of: u32, n: u32) -> u32 {
        let n = self.constant(Scalar::U32, n.into());
        self.once(Global::Array(of, n), "types", |w, id| w.global(spirv::Op::TypeArray, &[id, of, n]))
    }

    pub(super) fn structure(&mut self, of: Vec<u32>) -> u32 {
        self.once(Global::Struct(of.clone()), "types", |w, id| {
            w.global(spirv::Op::TypeStruct, &[&[id][..], &of].concat())
        })
    }

    /// An array in a buffer.
    pub(super) fn laid_array(&mut self, of: u32, n: u32, stride: u32) -> u32 {
        let n = self.constant(Scalar::U32, n.into());
        self.once(Global::LaidArray(of, n, stride), "types", |w, id| {
            w.global(spirv::Op::TypeArray, &[id, of, n]);
            w.decorate(id, &[spirv::Decoration::ArrayStride as u32, stride]);
        })
    }

    /// A struct in a buffer.
    pub(super) fn laid_struct(&mut self, of: Vec<u32>, offsets: Vec<u32>) -> u32 {
        self.once(Global::LaidStruct(of.clone(), offsets.clone()), "types", |w, id| {
            w.global(spirv::Op::TypeStruct, &[&[id][..], &of].concat());
            w.member_offsets(id, &offsets);
        })
    }

    /// The block of a buffer of such elements.
    pub(super) fn buffer(&mut self, element: u32, stride: u32) -> u32 {
        if let Some(&id) = self.globals.get(&Global::Buffer(element, stride)) {
            return id;
        }
        let elements = self.id("interface");
        self.global(spirv::Op::TypeRuntimeArray, &[elements, element]);
        self.decorate(elements, &[spirv::Decoration::ArrayStride as u32, stride]);
        self.once(Global::Buffer(element, stride), "interface", |w, id| {
            w.global(spirv::Op::TypeStruct, &[id, elements]);
            w.decorate(id, &[spirv::Decoration::Block as u32]);
            w.member_offsets(id, &[0]);
        })
    }

    pub(super) fn short(&mut self) -> u32 {
        self.once(Global::Short, "types", |w, id| w.global(spirv::Op::TypeInt, &[id, 16, 0]))
    }

    pub(super) fn pointer(&mut self, class: spirv::StorageClass, to: u32) -> u32 {
        let key = Global::Pointer(class as u32, to);
        self.once(key, "types", |w, id| w.global(spirv::Op::TypePointer, &[id, class as u32, to]))
    }

    pub(super) fn constant(&mut self, s: Scalar, bits: u64) -> u32 {
        let s = value_scalar(s);
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
                let (t, c) = (self.lanes(s, n), self.constant(s, bits));
                self.once(Global::Splat(t, c, n), "constants", |w, id| {
                    w.global(spirv::Op::ConstantComposite, &[&[t, id][..], &vec![c; n as usize]].concat());
                })
            }
            Some((s, _)) => self.constant(s, bits),
            None => 0,
        }
    }

    /// Zeros of any type.
    pub(super) fn null(&mut self, ty: u32) -> u32 {
        self.once(Global::Null(ty), "constants", |w, id| w.global(spirv::Op::ConstantNull, &[ty, id]))
    }

    /// The variable of an input that the device gives.
    pub(super) fn builtin(&mut self, b: spirv::BuiltIn, t: u32) -> u32 {
        let pointer = self.pointer(spirv::StorageClass::Input, t);
        let id = self.once(Global::Builtin(b as u32), "interface", |w, id| {
            w.global(spirv::Op::Variable, &[pointer, id, spirv::StorageClass::Input as u32]);
            w.decorate(id, &[spirv::Decoration::BuiltIn as u32, b as u32]);
        });
        self.own.interface.push(id);
        id
    }

    /// The variable of the scalar parameters.
    pub(super) fn params(&mut self, k: &Kernel) -> u32 {
        if self.own.params != 0 {
            return self.own.params;
        }
        let types: Vec<Scalar> = k.params().iter().map(|p| p.ty).collect();
        let members: Vec<u32> =
            types.iter().map(|&s| if s == Scalar::Bf16 { self.short() } else { self.scalar(s) }).collect();
        let offsets = param_offsets(k);
        let block = self.once(Global::Parameters(members.clone(), offsets.clone()), "interface", |w, id| {
            w.global(spirv::Op::TypeStruct, &[&[id][..], &members].concat());
            w.decorate(id, &[spirv::Decoration::Block as u32]);
            w.member_offsets(id, &offsets);
        });
        let class = spirv::StorageClass::PushConstant;
        let (pointer, id) = (self.pointer(class, block), self.id("interface"));
        self.global(spirv::Op::Variable, &[pointer, id, class as u32]);
        self.own.params = id;
        id
    }
}

/// The scalar that values of this one are.
fn value_scalar(s: Scalar) -> Scalar {
    if s == Scalar::Bf16 { Scalar::U32 } else { s }
}
