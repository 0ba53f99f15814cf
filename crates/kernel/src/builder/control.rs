//! Control flow: closures that write regions. What is written after a `break_`, `continue_` or `return_` in the same block has no effect.

use std::marker::PhantomData;

use super::types::{IntoVal, Shared32, Type};
use super::{Builder, Val};
use crate::ir::{OpKind, RegionId, Ty, Value};

/// A loop that is being written; the handle is its label, for `break` and `continue` from any depth.
#[derive(Clone, Copy, Debug)]
pub struct Loop<'k> {
    k: &'k Builder,
    region: RegionId,
}

impl Loop<'_> {
    /// Leaves the loop.
    #[track_caller]
    pub fn break_(self) {
        self.k.act(OpKind::Break(self.region), &[]);
    }

    /// Begins the next iteration of the loop.
    #[track_caller]
    pub fn continue_(self) {
        self.k.act(OpKind::Continue(self.region), &[]);
    }
}

/// The arms of a `match` on integers.
#[derive(Debug)]
pub struct Arms<'k, T> {
    k: &'k Builder,
    cases: Vec<(u64, u32)>,
    regions: Vec<RegionId>,
    ty: PhantomData<T>,
}

impl<T: Shared32> Arms<'_, T> {
    /// What happens for these values.
    #[track_caller]
    pub fn case(&mut self, values: &[T], body: impl FnOnce()) {
        self.cases.extend(values.iter().map(|v| (v.bits(), self.regions.len() as u32)));
        self.regions.push(self.k.region(body, &[]));
    }
}

impl Builder {
    /// Writes a region that ends by yielding, where it does not end otherwise.
    #[track_caller]
    fn region(&self, body: impl FnOnce(), yields: &[Value]) -> RegionId {
        self.state.borrow_mut().asm.open(&[]);
        body();
        self.act(OpKind::Yield, yields);
        self.state.borrow_mut().asm.close()
    }

    #[track_caller]
    fn yielding<'k, T: Type>(&'k self, body: impl FnOnce() -> Val<'k, T>) -> RegionId {
        self.state.borrow_mut().asm.open(&[]);
        let v = body();
        self.act(OpKind::Yield, &[v.id]);
        self.state.borrow_mut().asm.close()
    }

    /// `if c { .. }`
    #[track_caller]
    pub fn if_<'k>(&'k self, c: Val<'k, bool>, then: impl FnOnce()) {
        self.if_else(c, then, || ());
    }

    /// `if c { .. } else { .. }`
    #[track_caller]
    pub fn if_else<'k>(&'k self, c: Val<'k, bool>, then: impl FnOnce(), otherwise: impl FnOnce()) {
        let regions = [self.region(then, &[]), self.region(otherwise, &[])];
        self.structure(OpKind::If, &[c.id], &[], &regions);
    }

    /// `let x = if c { a } else { b };`
    #[track_caller]
    pub fn if_value<'k, T: Type>(
        &'k self,
        c: Val<'k, bool>,
        then: impl FnOnce() -> Val<'k, T>,
        otherwise: impl FnOnce() -> Val<'k, T>,
    ) -> Val<'k, T> {
        let regions = [self.yielding(then), self.yielding(otherwise)];
        let ty = self.ty_of::<T>();
        let op = self.structure(OpKind::If, &[c.id], &[ty], &regions);
        let id = self.state.borrow().asm.kernel.result(op);
        Val { k: self, id, ty: PhantomData }
    }

    /// `match x { 1 | 2 => .., _ => .. }`
    ///
    /// ```
    /// # use impasto_kernel::Builder;
    /// Builder::kernel("k", [1, 1, 1], |k| {
    ///     let y = k.buffer_mut::<f32>("y");
    ///     k.match_(k.global_id(0), |arms| arms.case(&[1, 2], || y.store(0, 1.0)), || y.store(0, 2.0));
    /// })?;
    /// # Ok::<(), impasto_kernel::KernelError>(())
    /// ```
    #[track_caller]
    pub fn match_<'k, T: Shared32>(
        &'k self,
        x: Val<'k, T>,
        arms: impl FnOnce(&mut Arms<'k, T>),
        default: impl FnOnce(),
    ) {
        let mut list = Arms { k: self, cases: Vec::new(), regions: Vec::new(), ty: PhantomData };
        arms(&mut list);
        list.regions.push(self.region(default, &[]));
        let table = self.state.borrow_mut().asm.case_table(list.cases);
        self.structure(OpKind::Switch(table), &[x.id], &[], &list.regions);
    }

    /// `loop { .. }`
    #[track_caller]
    pub fn loop_<'k>(&'k self, body: impl FnOnce(Loop<'k>)) {
        let l = self.open_loop(&[]);
        body(l);
        self.close_loop(l, OpKind::Loop, &[]);
    }

    /// `while c() { .. }`
    #[track_caller]
    pub fn while_<'k>(&'k self, c: impl FnOnce() -> Val<'k, bool>, body: impl FnOnce(Loop<'k>)) {
        let l = self.open_loop(&[]);
        self.only_if(l, c());
        body(l);
        self.close_loop(l, OpKind::Loop, &[]);
    }

    /// `while c() { .. }` that ends after `bound` iterations at the latest: what differentiation can take backwards.
    #[track_caller]
    pub fn while_bounded<'k>(
        &'k self,
        bound: impl IntoVal<'k, u32>,
        c: impl FnOnce() -> Val<'k, bool>,
        body: impl FnOnce(Loop<'k>),
    ) {
        let (from, to) = (self.lit(0u32), bound.into_val(self));
        let l = self.open_loop(&[self.ty_of::<u32>()]);
        self.only_if(l, c());
        body(l);
        self.close_loop(l, OpKind::For(1), &[from.id, to.id]);
    }

    /// `for i in from..to { .. }`
    #[track_caller]
    pub fn for_<'k, T: Shared32>(
        &'k self,
        from: impl IntoVal<'k, T>,
        to: impl IntoVal<'k, T>,
        body: impl FnOnce(Loop<'k>, Val<'k, T>),
    ) {
        self.for_step(from, to, 1, body);
    }

    /// `for i in (from..to).step_by(step) { .. }`
    #[track_caller]
    pub fn for_step<'k, T: Shared32>(
        &'k self,
        from: impl IntoVal<'k, T>,
        to: impl IntoVal<'k, T>,
        step: u32,
        body: impl FnOnce(Loop<'k>, Val<'k, T>),
    ) {
        let (from, to) = (from.into_val(self), to.into_val(self));
        let l = self.open_loop(&[self.ty_of::<T>()]);
        let index = self.state.borrow().asm.kernel.region_args(l.region).next();
        if let Some(id) = index {
            body(l, Val { k: self, id, ty: PhantomData });
        }
        self.close_loop(l, OpKind::For(step), &[from.id, to.id]);
    }

    fn open_loop(&self, args: &[Ty]) -> Loop<'_> {
        Loop { k: self, region: self.state.borrow_mut().asm.open(args) }
    }

    /// Leaves a loop where this is false.
    #[track_caller]
    fn only_if<'k>(&'k self, l: Loop<'k>, c: Val<'k, bool>) {
        let on = self.region(|| (), &[]);
        self.state.borrow_mut().asm.open(&[]);
        l.break_();
        let off = self.state.borrow_mut().asm.close();
        self.structure(OpKind::If, &[c.id], &[], &[on, off]);
    }

    #[track_caller]
    fn close_loop(&self, l: Loop<'_>, kind: OpKind, args: &[Value]) {
        l.continue_();
        self.state.borrow_mut().asm.close();
        self.structure(kind, args, &[], &[l.region]);
    }

    /// Ends this invocation.
    #[track_caller]
    pub fn return_(&self) {
        self.act(OpKind::Return, &[]);
    }
}
