//! The language: a kernel as Rust values. [`Builder`] hands out [`Val`]s, [`Buf`]fers and [`Var`]iables whose types rustc checks; control
//! flow is closures. [`lang`] is what `#[kernel]` rewrites syntax into: the same as pairs of calls, for values of both times.
//!
//! What types cannot prevent (a value used outside of its region, a name used twice) is an error of [`Builder::kernel`], never a panic:
//! after the first mistake everything goes on without effect.

mod control;
pub mod lang;
mod matrix;
mod stored;
mod types;
mod value;
mod warpgroup;

use std::cell::{RefCell, RefMut};
use std::marker::PhantomData;
use std::panic::Location;

use crate::error::KernelError;
use crate::hash::Map;
use crate::ir::{
    Access, Assembler, Builtin, Kernel, MemoryDecl, MemoryId, OpId, OpKind, RegionId, ScalarParam, Sources, Space, Ty,
    Value, VarId,
};
use crate::verify::verify;
pub use control::{Arms, Loop};
pub use matrix::{
    Accumulator, Elements, Factor, MatrixA, MatrixB, MatrixOf, MatrixType, Role, RoleA, RoleAccumulator, RoleB,
};
pub use stored::{StoredBuf, StoredBufMut};
pub use types::{Array, Equal, Float, Int, IntoVal, Lit, Logic, Num, Shared32, Type, Vec2, Vec3, Vec4, Vector};
pub use warpgroup::LeftTile;

/// Writes one kernel.
///
/// ```
/// use impasto_kernel::Builder;
/// let kernel = Builder::kernel("saxpy", [64, 1, 1], |k| {
///     let (n, a) = (k.param::<u32>("n"), k.param::<f32>("a"));
///     let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
///     let i = k.global_id(0);
///     k.if_(i.lt(n), || y.store(i, a * x.load(i) + y.load(i)));
/// })?;
/// assert!(kernel.to_string().contains("store y[%2]"));
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
#[derive(Debug)]
pub struct Builder {
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    asm: Assembler,
    problem: Option<String>,
    /// Kernel functions that are being written into each other.
    calls: u32,
    /// The numbers of the places that were met.
    places: Map<usize, u32>,
}

/// A value of type `T`: a number that the kernel computes when it runs.
#[derive(Debug)]
pub struct Val<'k, T> {
    k: &'k Builder,
    id: Value,
    ty: PhantomData<T>,
}

impl<T> Clone for Val<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Val<'_, T> {}

/// Elements that a kernel reads.
#[derive(Clone, Copy, Debug)]
pub struct Buf<'k, T> {
    k: &'k Builder,
    id: MemoryId,
    ty: PhantomData<T>,
}

/// Elements that a kernel reads and writes: a buffer, a workgroup array or a private array.
#[derive(Clone, Copy, Debug)]
pub struct BufMut<'k, T> {
    k: &'k Builder,
    id: MemoryId,
    ty: PhantomData<T>,
}

/// A variable. It lives to the end of the block that declares it.
#[derive(Clone, Copy, Debug)]
pub struct Var<'k, T> {
    k: &'k Builder,
    id: VarId,
    ty: PhantomData<T>,
}

impl Builder {
    /// A kernel with workgroups of this size; `body` writes it.
    pub fn kernel(name: &str, workgroup: [u32; 3], body: impl FnOnce(&Builder)) -> Result<Kernel, KernelError> {
        let mut header = Kernel::empty(name, workgroup);
        header.sources = Sources::recorded();
        let state = State { asm: Assembler::new(header), problem: None, calls: 0, places: Map::default() };
        let k = Builder { state: RefCell::new(state) };
        body(&k);
        let mut state = k.state.into_inner();
        if let Some(problem) = state.problem {
            return Err(KernelError::Build { kernel: name.to_owned(), problem });
        }
        state.asm.push(OpKind::Return, &[], &[]);
        let kernel = state.asm.finish();
        verify(&kernel)?;
        Ok(kernel)
    }

    /// Remembers the first mistake.
    fn fail(&self, problem: String) {
        self.state.borrow_mut().problem.get_or_insert(problem);
    }

    fn ty_of<T: Type>(&self) -> Ty {
        T::ty(&mut self.state.borrow_mut().asm.kernel)
    }

    /// What is added next was written where the caller stands.
    #[track_caller]
    fn here(&self) -> RefMut<'_, State> {
        let place = Location::caller();
        let mut state = self.state.borrow_mut();
        let s = &mut *state;
        match s.places.get(&std::ptr::from_ref(place).addr()) {
            Some(&number) => s.asm.at_number(number),
            None => drop(s.places.insert(std::ptr::from_ref(place).addr(), s.asm.at(place))),
        }
        state
    }

    #[track_caller]
    fn emit<T: Type>(&self, kind: OpKind, args: &[Value]) -> Val<'_, T> {
        let ty = self.ty_of::<T>();
        let id = self.here().asm.value(kind, args, ty);
        Val { k: self, id, ty: PhantomData }
    }

    #[track_caller]
    fn act(&self, kind: OpKind, args: &[Value]) {
        self.here().asm.push(kind, args, &[]);
    }

    #[track_caller]
    fn structure(&self, kind: OpKind, args: &[Value], results: &[Ty], regions: &[RegionId]) -> OpId {
        let asm = &mut self.here().asm;
        let op = asm.push_structure(kind, args, results, regions);
        if !asm.falls_through(op) {
            asm.push(OpKind::Unreachable, &[], &[]);
        }
        op
    }

    fn name(&self, name: &str) {
        let s = self.state.borrow();
        let taken = s.asm.kernel.params.iter().map(|p| &p.name).chain(s.asm.kernel.memories.iter().map(|m| &m.name));
        let twice = taken.into_iter().any(|t| t == name);
        drop(s);
        if twice {
            self.fail(format!("the name '{name}' is used twice"));
        }
        let mut letters = name.chars();
        if !letters.next().is_some_and(|c| c.is_ascii_alphabetic())
            || !letters.all(|c| c.is_ascii_alphanumeric() || c == '_')
        {
            self.fail(format!("'{name}' is no name: letters, digits and _, a letter first"));
        }
    }

    /// A name that no parameter and no memory has: this one, or this one with a number.
    fn unused_name(&self, wish: &str) -> String {
        let wish = wish.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
        let kernel = &self.state.borrow().asm.kernel;
        let taken = |n: &str| kernel.params.iter().any(|p| p.name == n) || kernel.memories.iter().any(|m| m.name == n);
        let numbered = (2..).map(|i| format!("{wish}{i}"));
        std::iter::once(wish.to_owned()).chain(numbered).find(|n| !taken(n)).unwrap_or_default()
    }

    fn memory<T: Type>(&self, name: &str, space: Space) -> MemoryId {
        let ty = self.ty_of::<T>();
        self.memory_of(name, ty, space)
    }

    fn memory_of(&self, name: &str, ty: Ty, space: Space) -> MemoryId {
        self.name(name);
        let memories = &mut self.state.borrow_mut().asm.kernel.memories;
        memories.push(MemoryDecl { name: name.to_owned(), ty, space });
        MemoryId(memories.len() as u32 - 1)
    }

    /// A number that the caller gives at launch.
    #[track_caller]
    pub fn param<T: Lit>(&self, name: &str) -> Val<'_, T> {
        self.name(name);
        let mut state = self.here();
        state.asm.kernel.params.push(ScalarParam { name: name.to_owned(), ty: T::SCALAR });
        let number = state.asm.kernel.params.len() as u32 - 1;
        let id = state.asm.value(OpKind::Param(number), &[], Ty::scalar(T::SCALAR));
        Val { k: self, id, ty: PhantomData }
    }

    /// A buffer that is read.
    pub fn buffer<T: Type>(&self, name: &str) -> Buf<'_, T> {
        Buf { k: self, id: self.memory::<T>(name, Space::Buffer(Access::Read)), ty: PhantomData }
    }

    /// A buffer that is read and written.
    pub fn buffer_mut<T: Type>(&self, name: &str) -> BufMut<'_, T> {
        BufMut { k: self, id: self.memory::<T>(name, Space::Buffer(Access::ReadWrite)), ty: PhantomData }
    }

    /// An array that the invocations of a workgroup share. It holds nothing until it is written.
    pub fn shared<T: Type>(&self, name: &str, elements: u32) -> BufMut<'_, T> {
        BufMut { k: self, id: self.memory::<T>(name, Space::Workgroup(elements)), ty: PhantomData }
    }

    /// An array of each invocation, zero at the start.
    pub fn private<T: Type>(&self, name: &str, elements: u32) -> BufMut<'_, T> {
        BufMut { k: self, id: self.memory::<T>(name, Space::Private(elements)), ty: PhantomData }
    }

    /// A variable with its first value.
    #[track_caller]
    pub fn var<'k, T: Type>(&'k self, first: impl IntoVal<'k, T>) -> Var<'k, T> {
        let first = first.into_val(self);
        let ty = self.ty_of::<T>();
        let id = {
            let vars = &mut self.state.borrow_mut().asm.kernel.vars;
            vars.push(ty);
            VarId(vars.len() as u32 - 1)
        };
        self.act(OpKind::Var(id), &[first.id]);
        Var { k: self, id, ty: PhantomData }
    }

    /// A constant.
    #[track_caller]
    pub fn lit<T: Lit>(&self, x: T) -> Val<'_, T> {
        let id = self.here().asm.constant(T::SCALAR, x.bits());
        Val { k: self, id, ty: PhantomData }
    }

    #[track_caller]
    fn builtin(&self, b: Builtin, axis: u8) -> Val<'_, u32> {
        self.emit(OpKind::Builtin(b, axis), &[])
    }

    /// The place of this invocation among all; axes are 0, 1, 2.
    #[track_caller]
    pub fn global_id(&self, axis: u8) -> Val<'_, u32> {
        self.builtin(Builtin::GlobalId, axis)
    }

    /// The place of this invocation in its workgroup.
    #[track_caller]
    pub fn local_id(&self, axis: u8) -> Val<'_, u32> {
        self.builtin(Builtin::LocalId, axis)
    }

    /// The place of the workgroup.
    #[track_caller]
    pub fn workgroup_id(&self, axis: u8) -> Val<'_, u32> {
        self.builtin(Builtin::WorkgroupId, axis)
    }

    /// The number of workgroups.
    #[track_caller]
    pub fn num_workgroups(&self, axis: u8) -> Val<'_, u32> {
        self.builtin(Builtin::NumWorkgroups, axis)
    }

    /// The place in the workgroup as one number.
    #[track_caller]
    pub fn local_index(&self) -> Val<'_, u32> {
        self.builtin(Builtin::LocalIndex, 0)
    }

    /// Invocations in a subgroup.
    #[track_caller]
    pub fn subgroup_size(&self) -> Val<'_, u32> {
        self.builtin(Builtin::SubgroupSize, 0)
    }

    /// The place in the subgroup.
    #[track_caller]
    pub fn subgroup_lane(&self) -> Val<'_, u32> {
        self.builtin(Builtin::SubgroupLane, 0)
    }

    /// The place of the subgroup in the workgroup.
    #[track_caller]
    pub fn subgroup_id(&self) -> Val<'_, u32> {
        self.builtin(Builtin::SubgroupId, 0)
    }

    /// All invocations of the workgroup wait for each other.
    #[track_caller]
    pub fn barrier(&self) {
        self.act(OpKind::Barrier, &[]);
    }

    /// All invocations of the subgroup wait for each other.
    #[track_caller]
    pub fn subgroup_barrier(&self) {
        self.act(OpKind::SubgroupBarrier, &[]);
    }

    /// A vector of `N` components, 2 to 4.
    #[track_caller]
    pub fn vector<'k, T: Lit, const N: usize>(&'k self, components: [Val<'k, T>; N]) -> Val<'k, Vector<T, N>> {
        self.emit(OpKind::Make, &components.map(|v| v.id))
    }

    /// An array as a value.
    #[track_caller]
    pub fn array<'k, T: Type, const N: usize>(&'k self, elements: [Val<'k, T>; N]) -> Val<'k, Array<T, N>> {
        self.emit(OpKind::Make, &elements.map(|v| v.id))
    }

    /// A struct of two members.
    #[track_caller]
    pub fn pair<'k, A: Type, B: Type>(&'k self, a: Val<'k, A>, b: Val<'k, B>) -> Val<'k, (A, B)> {
        self.emit(OpKind::Make, &[a.id, b.id])
    }
}
