//! What is known of a module before its functions are imported: types, and which variables can become values.

use rspirv::spirv::{Capability, Decoration, MemoryAccess, Op as S, StorageClass};

use super::grammar::{self, Role};
use super::module::{At, Source};
use impasto_kernel::hash::{Map, Set};

/// Variables of more scalars stay memory.
const MOST_SCALARS: u64 = 128;
/// Types that nest deeper have no members that we look at.
const MOST_LEVELS: u32 = 64;

/// What is known of the types, by id: scalars in a value, and how deep it nests. Zero scalars where that is not known.
#[derive(Clone, Copy, Default)]
pub(crate) struct TypeFacts {
    pub(crate) scalars: u64,
    pub(crate) levels: u32,
}

pub(crate) struct Facts {
    pub(crate) types: Vec<TypeFacts>,
    /// The variable or parameter that each pointer of a function leads to; 0 of all else.
    roots: Vec<u32>,
    /// Variables and parameters that something else than loads and stores uses, or in a way that numbers do not name.
    pub(crate) memory: Vec<bool>,
    /// Those of them that something else than loads, stores and chains uses.
    pub(crate) escaped: Vec<bool>,
    /// Whether accesses to buffers are to be seen by others at once.
    pub(crate) coherent: bool,
}

impl Facts {
    /// What is known where these functions stay functions.
    pub(crate) fn of(s: &Source, kept: &Set<u32>) -> Facts {
        let mut f = Facts {
            types: vec![TypeFacts::default(); s.bound as usize],
            roots: vec![0; s.bound as usize],
            memory: vec![false; s.bound as usize],
            escaped: vec![false; s.bound as usize],
            coherent: false,
        };
        f.survey_types(s);
        f.coherent = s.decorations.values().flatten().any(|&at| {
            let w = s.operands(at);
            let d = if s.op(at) == S::MemberDecorate { w.get(2) } else { w.get(1) };
            [Some(Decoration::Coherent as u32), Some(Decoration::Volatile as u32)].contains(&d.copied())
        });
        f.survey_variables(s, kept);
        f
    }

    fn survey_types(&mut self, s: &Source) {
        for &at in &s.preamble {
            let w = s.operands(at);
            let of = |id: u32| self.types[id as usize];
            let found = match (s.op(at), w) {
                (S::TypeBool | S::TypeInt | S::TypeFloat | S::TypeCooperativeMatrixKHR, _) => {
                    TypeFacts { scalars: 1, levels: 0 }
                }
                (S::TypePointer, &[_, class, _]) if class == StorageClass::PhysicalStorageBuffer as u32 => {
                    TypeFacts { scalars: 1, levels: 0 }
                }
                (S::TypeVector | S::TypeMatrix, &[_, t, n]) => {
                    TypeFacts { scalars: of(t).scalars.saturating_mul(n.into()), levels: of(t).levels + 1 }
                }
                (S::TypeArray, &[_, t, n]) => {
                    let n = s.constant(n).unwrap_or(0);
                    TypeFacts { scalars: of(t).scalars.saturating_mul(n.into()), levels: of(t).levels + 1 }
                }
                (S::TypeStruct, [_, members @ ..]) => {
                    let mut all = TypeFacts::default();
                    for &m in members {
                        // A pointer, which may be defined further down, has no scalars: a struct with one stays memory.
                        all.scalars =
                            if of(m).scalars == 0 { u64::MAX } else { all.scalars.saturating_add(of(m).scalars) };
                        all.levels = all.levels.max(of(m).levels + 1);
                    }
                    all
                }
                _ => continue,
            };
            self.types[w[0] as usize] = found;
        }
    }

    /// Whether members of this type are named by numbers in our types.
    pub(crate) fn has_members(&self, ty: u32) -> bool {
        let t = self.types[ty as usize];
        t.levels <= MOST_LEVELS && (1..u64::MAX).contains(&t.scalars)
    }

    /// Whether a variable of this type can become values.
    fn can_be_values(&self, ty: u32) -> bool {
        self.has_members(ty) && self.types[ty as usize].scalars <= MOST_SCALARS
    }

    fn survey_variables(&mut self, s: &Source, kept: &Set<u32>) {
        // From the parameter to what is given for it.
        let mut given: Vec<(u32, u32)> = Vec::new();
        for &at in &s.preamble {
            if s.op(at) == S::Variable {
                let w = s.operands(at);
                self.roots[w[1] as usize] = w[1];
                self.declare(s, w);
            }
        }
        for f in &s.functions {
            for &p in &f.params {
                if s.type_of(p).is_some_and(|t| pointee(s, t).is_some()) {
                    self.roots[p as usize] = p;
                    if kept.contains(&f.id) {
                        self.memory[p as usize] = true;
                        self.escaped[p as usize] = true;
                    }
                }
            }
            for b in &f.blocks {
                for &at in b.phis.iter().chain(&b.body).chain([&b.end]) {
                    self.instruction(s, at, &mut given);
                }
            }
        }
        let mut by_param: Map<u32, Vec<u32>> = Map::default();
        for (p, root) in given {
            by_param.entry(p).or_default().push(root);
        }
        for set in [&mut self.memory, &mut self.escaped] {
            let mut work: Vec<u32> = by_param.keys().copied().filter(|&p| set[p as usize]).collect();
            while let Some(p) = work.pop() {
                for &root in by_param.get(&p).into_iter().flatten() {
                    if !std::mem::replace(&mut set[root as usize], true) {
                        work.push(root);
                    }
                }
            }
        }
    }

    fn declare(&mut self, s: &Source, w: &[u32]) {
        let class = [StorageClass::Function as u32, StorageClass::Private as u32].contains(&w[2]);
        let fits = pointee(s, w[0]).is_some_and(|t| self.can_be_values(t));
        if !class || !fits {
            self.memory[w[1] as usize] = true;
        }
    }

    fn instruction(&mut self, s: &Source, at: At, given: &mut Vec<(u32, u32)>) {
        let w = s.operands(at);
        let used_otherwise = |f: &mut Facts, ids: &[u32]| {
            for &id in ids {
                if let Some(&root @ 1..) = f.roots.get(id as usize) {
                    f.memory[root as usize] = true;
                    f.escaped[root as usize] = true;
                }
            }
        };
        match s.op(at) {
            S::Variable => {
                self.roots[w[1] as usize] = w[1];
                self.declare(s, w);
            }
            S::Load if w.get(3).is_none_or(|m| m & MemoryAccess::VOLATILE.bits() == 0) => {}
            S::Store if w.get(2).is_none_or(|m| m & MemoryAccess::VOLATILE.bits() == 0) => {
                used_otherwise(self, &w[1..2])
            }
            S::CopyObject => {
                self.roots[w[1] as usize] = self.roots[w[2] as usize];
            }
            S::AccessChain | S::InBoundsAccessChain => {
                let root = self.roots[w[2] as usize];
                self.roots[w[1] as usize] = root;
                if root != 0 && !self.memory[root as usize] && !by_numbers(s, w) {
                    self.memory[root as usize] = true;
                }
            }
            S::FunctionCall => {
                let callee = s.function_of.get(&w[2]).map(|&f| &s.functions[f]);
                for (&id, &p) in w[3..].iter().zip(callee.map_or(&[][..], |f| &f.params)) {
                    let root = self.roots[id as usize];
                    if root != 0 {
                        given.push((p, root));
                    }
                }
            }
            _ if w.iter().all(|&id| self.roots.get(id as usize).is_none_or(|&root| root == 0)) => {}
            _ => {
                // Some of these words may be numbers that look like ids.
                let words = s.instruction(at);
                let mut ids = Vec::new();
                let _ = grammar::walk(
                    words,
                    |id| s.case_words(id),
                    |i, role| {
                        if role == Role::Use {
                            ids.push(words[i]);
                        }
                    },
                );
                used_otherwise(self, &ids);
            }
        }
    }
}

/// What a pointer type points to.
pub(crate) fn pointee(s: &Source, ty: u32) -> Option<u32> {
    match s.made(ty)? {
        (S::TypePointer, &[_, _, to]) => Some(to),
        _ => None,
    }
}

/// The storage class of a pointer type.
pub(crate) fn class(s: &Source, ty: u32) -> Option<u32> {
    match s.made(ty)? {
        (S::TypePointer, &[_, class, _]) => Some(class),
        _ => None,
    }
}

/// Whether all indices of a chain are numbers, but for the component of a vector.
fn by_numbers(s: &Source, w: &[u32]) -> bool {
    let mut ty = s.type_of(w[2]).and_then(|t| pointee(s, t));
    for (i, &index) in w[3..].iter().enumerate() {
        let Some(of) = ty else { return false };
        match (s.made(of), s.constant(index)) {
            (Some((S::TypeVector, _)), None) if i + 4 == w.len() => return true,
            (Some(_), Some(n)) => ty = s.member(of, n),
            _ => return false,
        }
    }
    ty.is_some()
}

impl Source {
    /// The capabilities that the module says it needs, by their numbers.
    pub(crate) fn capabilities(&self) -> impl Iterator<Item = u32> {
        self.preamble.iter().filter(|&&at| self.op(at) == S::Capability).map(|&at| self.operands(at)[0])
    }

    pub(crate) fn has_capability(&self, capability: Capability) -> bool {
        self.capabilities().any(|c| c == capability as u32)
    }

    /// The number that a plain constant of 32 bits or less is.
    pub(crate) fn constant(&self, id: u32) -> Option<u32> {
        match self.made(id)? {
            (S::Constant, &[ty, _, n]) if matches!(self.made(ty), Some((S::TypeInt, _))) => Some(n),
            (S::ConstantNull, &[ty, _]) if matches!(self.made(ty), Some((S::TypeInt, _))) => Some(0),
            _ => None,
        }
    }

    /// The type of a member.
    pub(crate) fn member(&self, ty: u32, i: u32) -> Option<u32> {
        match self.made(ty)? {
            (S::TypeStruct, members) => members.get(i as usize + 1).copied(),
            (S::TypeVector | S::TypeMatrix, &[_, of, n]) => (i < n).then_some(of),
            (S::TypeArray, &[_, of, n]) => self.constant(n).filter(|&n| i < n).map(|_| of),
            (S::TypeRuntimeArray, &[_, of]) => Some(of),
            _ => None,
        }
    }

    /// The type of a member that a computed index names.
    pub(crate) fn element(&self, ty: u32) -> Option<u32> {
        match self.made(ty)? {
            (S::TypeVector | S::TypeMatrix | S::TypeArray, &[_, of, _]) | (S::TypeRuntimeArray, &[_, of]) => Some(of),
            _ => None,
        }
    }
}
