//! Memory of arrays and structs, scalar by scalar: each scalar of an element becomes a memory of its own, so that all that follows sees scalars
//! and vectors only. Memory of the workgroup and of an invocation stays so. A buffer is the caller's: what is written in the end reads it
//! and stores to it as it was, and has one adjoint for it, with an f32 for each word of its layout. Cost: linear in scalars.

use impasto_kernel::ir::{Assembler, Kernel, MemoryDecl, MemoryId, OpId, OpKind, Space, Ty, Value};
use impasto_kernel::passes::rewrite::{Rewrite, Rule};

use super::stride;
use super::write::F32;

/// A scalar of the elements of a buffer.
#[derive(Clone, Debug)]
struct BufferScalar {
    of: MemoryId,
    /// The members that lead to it.
    path: Vec<u32>,
    /// Its number among the scalars of an element, and how many there are.
    number: usize,
    count: usize,
    /// Words from one element to the next, and its own among them.
    stride: u32,
    word: u32,
}

/// Which memories are scalars of buffers.
#[derive(Clone, Debug, Default)]
pub(super) struct BufferScalars {
    /// The number of the first of them; after it there are no others.
    first: usize,
    list: Vec<BufferScalar>,
}

/// The name of a memory without the number of its part.
pub(super) fn base(name: &str) -> &str {
    name.split_once('.').map_or(name, |n| n.0)
}

/// The way to each scalar of a type, in order.
fn paths(k: &Kernel, ty: Ty, way: &mut Vec<u32>, out: &mut Vec<(Vec<u32>, Ty)>) {
    if ty.as_scalar().is_some() {
        return out.push((way.clone(), ty));
    }
    for i in 0..k.members(ty) {
        if let Some(member) = k.member(ty, i) {
            way.push(i);
            paths(k, member, way, out);
            way.pop();
        }
    }
}

/// A value of any type from its scalars.
fn whole(asm: &mut Assembler, ty: Ty, scalars: &mut impl Iterator<Item = Value>) -> Value {
    if ty.as_scalar().is_some() {
        return scalars.next().unwrap_or_else(|| asm.zero(ty));
    }
    let types: Vec<Ty> = (0..asm.kernel.members(ty)).filter_map(|i| asm.kernel.member(ty, i)).collect();
    let members: Vec<Value> = types.into_iter().map(|t| whole(asm, t, scalars)).collect();
    asm.value(OpKind::Make, &members, ty)
}

fn member(asm: &mut Assembler, mut v: Value, path: &[u32]) -> Value {
    for &i in path {
        let ty = asm.kernel.member(asm.kernel.ty(v), i).unwrap_or(F32);
        v = asm.value(OpKind::Extract(i), &[v], ty);
    }
    v
}

struct Split {
    /// For each memory of composites, those of its scalars.
    parts: Vec<Vec<MemoryId>>,
    paths: Vec<Vec<(Vec<u32>, Ty)>>,
}

impl Rule for Split {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let old = rw.old;
        match old.kind(op) {
            OpKind::Load(m) if !self.parts[m.index()].is_empty() => {
                let at = rw.get(old.args(op)[0]);
                let scalars: Vec<Value> = (self.parts[m.index()].iter().zip(&self.paths[m.index()]))
                    .map(|(&part, (_, ty))| rw.asm.value(OpKind::Load(part), &[at], *ty))
                    .collect();
                let v = whole(&mut rw.asm, old.ty(old.result(op)), &mut scalars.into_iter());
                rw.replace(op, v);
            }
            OpKind::Store(m) if !self.parts[m.index()].is_empty() => {
                let args = rw.args(op);
                let scalars: Vec<Value> =
                    self.paths[m.index()].iter().map(|(path, _)| member(&mut rw.asm, args[1], path)).collect();
                for (&part, v) in self.parts[m.index()].iter().zip(scalars) {
                    rw.asm.push(OpKind::Store(part), &[args[0], v], &[]);
                }
            }
            _ => rw.copy(self, op),
        }
    }
}

/// The kernel on memories of scalars and vectors, and which of them are parts of buffers.
pub(super) fn split(k: &Kernel) -> (Kernel, BufferScalars) {
    let composite = |m: &MemoryDecl| m.ty.lanes().is_none();
    if !k.memories().iter().any(composite) {
        return (k.clone(), BufferScalars::none(k));
    }
    let mut header = k.header();
    let n = k.memories().len();
    let mut s = Split { parts: vec![Vec::new(); n], paths: vec![Vec::new(); n] };
    let mut parts = BufferScalars::default();
    let buffer = |m: &MemoryDecl| matches!(m.space, Space::Buffer(_));
    for buffers in [false, true] {
        parts.first = header.memories().len();
        for (i, m) in k.memories().iter().enumerate().filter(|(_, m)| composite(m) && buffer(m) == buffers) {
            paths(k, m.ty, &mut Vec::new(), &mut s.paths[i]);
            let layout = k.lay_out(m.ty);
            for (number, (path, ty)) in s.paths[i].iter().enumerate() {
                let own = MemoryDecl { name: format!("{}.{number}", m.name), ty: *ty, space: m.space };
                // The first takes the place of what is the kernel's alone.
                if number == 0 && !buffers {
                    header.memories_mut()[i] = own;
                    s.parts[i].push(MemoryId(i as u32));
                    continue;
                }
                s.parts[i].push(MemoryId(header.memories().len() as u32));
                header.memories_mut().push(own);
                if buffers {
                    let (of, count) = (MemoryId(i as u32), s.paths[i].len());
                    let (stride, word) = (layout.stride() / 4, layout.scalars[number].0 / 4);
                    parts.list.push(BufferScalar { of, path: path.clone(), number, count, stride, word });
                }
            }
        }
    }
    (Rewrite::run_with(k, header, &mut s), parts)
}

impl BufferScalars {
    fn none(k: &Kernel) -> BufferScalars {
        BufferScalars { first: k.memories().len(), list: Vec::new() }
    }

    fn get(&self, m: MemoryId) -> Option<&BufferScalar> {
        self.list.get(m.index().checked_sub(self.first)?)
    }

    /// The memories that a kernel has in the end.
    pub(super) fn header(&self, k: &Kernel) -> Kernel {
        let mut header = k.header();
        header.memories_mut().truncate(self.first);
        header
    }

    /// The memory of the caller that a memory is or belongs to.
    pub(super) fn whole(&self, m: MemoryId) -> MemoryId {
        self.get(m).map_or(m, |p| p.of)
    }

    /// Whether this is the last scalar of its elements, or no part at all.
    pub(super) fn is_last(&self, m: MemoryId) -> bool {
        self.get(m).is_none_or(|p| p.number + 1 == p.count)
    }

    /// Scalars from one element to the next in an adjoint, and those before the first.
    pub(super) fn scale(&self, k: &Kernel, m: MemoryId) -> (u32, u32) {
        self.get(m).map_or((stride(k.memory(m).ty), 0), |p| (p.stride, p.word))
    }

    /// The place of an element's first scalar in an adjoint.
    pub(super) fn place(&self, asm: &mut Assembler, k: &Kernel, m: MemoryId, index: Value) -> Value {
        let (by, more) = self.scale(k, m);
        let mut at = index;
        if by != 1 {
            let by = asm.number(by);
            at = asm.times(at, by);
        }
        if more != 0 {
            let more = asm.number(more);
            at = asm.plus(at, more);
        }
        at
    }

    /// Reads a part from its buffer.
    pub(super) fn load(&self, asm: &mut Assembler, m: MemoryId, index: Value) -> Option<Value> {
        let part = self.get(m)?;
        let ty = asm.kernel.memory(part.of).ty;
        let element = asm.value(OpKind::Load(part.of), &[index], ty);
        Some(member(asm, element, &part.path))
    }

    /// Stores all scalars of an element, in order.
    pub(super) fn store(&self, asm: &mut Assembler, m: MemoryId, index: Value, scalars: Vec<Value>) {
        let Some(part) = self.get(m) else { return };
        let ty = asm.kernel.memory(part.of).ty;
        let element = whole(asm, ty, &mut scalars.into_iter());
        asm.push(OpKind::Store(part.of), &[index, element], &[]);
    }

    /// The adjoint that an earlier part of the same buffer has: they share it.
    pub(super) fn shared(&self, m: MemoryId, adjoints: &[Option<MemoryId>]) -> Option<MemoryId> {
        let part = self.get(m)?;
        let first = m.index() - part.number;
        adjoints.get(first..m.index())?.iter().copied().flatten().next()
    }

    /// Whether this is a part of a buffer.
    pub(super) fn has(&self, m: MemoryId) -> bool {
        self.get(m).is_some()
    }

    /// What holds of all parts of a buffer that `counts` names, if it holds of each.
    pub(super) fn agree(&self, holds: &mut [bool], counts: impl Fn(MemoryId) -> bool) {
        let id = |i: usize| MemoryId((self.first + i) as u32);
        let broken: Vec<MemoryId> =
            (0..self.list.len()).filter(|&i| counts(id(i)) && !holds[id(i).index()]).map(|i| self.list[i].of).collect();
        for (i, part) in self.list.iter().enumerate() {
            holds[id(i).index()] &= !broken.contains(&part.of);
        }
    }
}
