//! Branches and loops as pairs of calls around what they contain, so that it stays Rust code of the same function.

use std::marker::PhantomData;
use std::ops::RangeInclusive;

use super::super::types::{IntoVal, Shared32};
use super::super::{Builder, Val};
use super::{Dead, Lift, Results};
use crate::ir::{OpKind, RegionId, Value};

/// Values that one arm of a `match` may stand for; a larger range is an `if`.
const MAX_RANGE: u64 = 64;

/// What a branch asks: a value of the kernel, or of Rust.
#[diagnostic::on_unimplemented(
    message = "a `match` is on a `u32` or an `i32`, not on `{Self}`",
    note = "write an `if`"
)]
pub trait Selector<'k>: Copy {
    /// What patterns are made of.
    type Of: Pattern;
    /// The value, if the kernel computes it.
    fn computed(self) -> Option<Value>;
    /// Whether Rust's value is among these; false for the kernel's.
    fn among(self, patterns: &[RangeInclusive<Self::Of>]) -> bool;
}

/// What a pattern can be made of.
pub trait Pattern: Copy + PartialOrd {
    /// The bits as cases of a `switch`, or nothing if there are too many.
    fn cases(range: &RangeInclusive<Self>) -> Option<Vec<u64>>;
}

/// What an `if` asks.
#[diagnostic::on_unimplemented(message = "a condition is a `bool`, not `{Self}`", label = "this is no `bool`")]
pub trait BranchCondition<'k>: Selector<'k, Of = bool> {}
impl<'k> BranchCondition<'k> for bool {}
impl<'k> BranchCondition<'k> for Val<'k, bool> {}

/// What an arm that ends with an `A` gives, when the whole branch is an `O`.
#[diagnostic::on_unimplemented(message = "the arms are of different types: `{O}` and `{A}`")]
pub trait Gives<'k, A, O>: Selector<'k> {
    /// Ends an arm.
    #[track_caller]
    fn give(branch: &mut Branch<'k, Self, O>, a: A);
    /// Ends the branch.
    #[track_caller]
    fn finish(branch: Branch<'k, Self, O>) -> O;
}

impl<'k, T, A: Lift<'k, O>, O: Results<'k>> Gives<'k, A, O> for Val<'k, T>
where
    Val<'k, T>: Selector<'k>,
{
    fn give(branch: &mut Branch<'k, Self, O>, a: A) {
        let mut values = Vec::new();
        a.lift(branch.k).values(&mut values);
        branch.close(&values);
    }
    fn finish(branch: Branch<'k, Self, O>) -> O {
        branch.structure()
    }
}

macro_rules! selectors {
    (plain: $($t:ty)*) => { $(
        impl<'k> Selector<'k> for $t {
            type Of = $t;
            fn computed(self) -> Option<Value> {
                None
            }
            fn among(self, patterns: &[RangeInclusive<$t>]) -> bool {
                patterns.iter().any(|p| p.contains(&self))
            }
        }
        impl<'k, O> Gives<'k, O, O> for $t {
            fn give(branch: &mut Branch<'k, $t, O>, a: O) {
                branch.given = Some(a);
            }
            fn finish(branch: Branch<'k, $t, O>) -> O {
                branch.given.expect("the macro writes an arm for every value, and each of them gives")
            }
        }
        impl<'k, A: Literal<'k, O>, O> GivesLiteral<'k, A, O> for $t {
            fn give_literal(branch: &mut Branch<'k, $t, O>, a: A) {
                branch.given = Some(a.literal(branch.k));
            }
        }
    )* };
    (computed: $($t:ty)*) => { $(
        impl<'k> Selector<'k> for Val<'k, $t> {
            type Of = $t;
            fn computed(self) -> Option<Value> {
                Some(self.id)
            }
            fn among(self, _: &[RangeInclusive<$t>]) -> bool {
                false
            }
        }
    )* };
    (cases: $($t:ty)*) => { $(
        impl Pattern for $t {
            fn cases(range: &RangeInclusive<$t>) -> Option<Vec<u64>> {
                let few = range.end().wrapping_sub(*range.start()) as u64;
                (range.is_empty() || few < MAX_RANGE).then(|| range.clone().map(|v| u64::from(v as u32)).collect())
            }
        }
    )* };
    (no cases: $($t:ty)*) => { $(
        impl Pattern for $t {
            fn cases(_: &RangeInclusive<$t>) -> Option<Vec<u64>> {
                None
            }
        }
    )* };
}
selectors!(plain: bool i32 u32 i64 u64 usize);
selectors!(computed: bool i32 u32);
selectors!(cases: i32 u32);
selectors!(no cases: bool i64 u64 usize);

/// A literal in a branch that Rust decides: it is what the other arms are, a number of Rust or of the kernel.
#[diagnostic::on_unimplemented(message = "the arms are of different types: `{O}` and `{Self}`")]
pub trait Literal<'k, O> {
    /// It.
    #[track_caller]
    fn literal(self, k: &'k Builder) -> O;
}

macro_rules! literals {
    (plain: $($t:ty)*) => { $(impl<'k> Literal<'k, $t> for $t {
        fn literal(self, _: &'k Builder) -> $t {
            self
        }
    })* };
    (value: $($t:ty)*) => { $(impl<'k> Literal<'k, Val<'k, $t>> for $t {
        fn literal(self, k: &'k Builder) -> Val<'k, $t> {
            k.lit(self)
        }
    })* };
}
literals!(plain: bool i32 u32 i64 u64 usize f32 f64);
literals!(value: bool i32 u32 i64 u64 f32);

/// What an arm gives that ends with a literal, where others do not.
#[diagnostic::on_unimplemented(message = "the arms are of different types: `{O}` and `{A}`")]
pub trait GivesLiteral<'k, A, O>: Selector<'k> {
    /// Ends an arm.
    #[track_caller]
    fn give_literal(branch: &mut Branch<'k, Self, O>, a: A);
}

impl<'k, T, A: Lift<'k, O>, O: Results<'k>> GivesLiteral<'k, A, O> for Val<'k, T>
where
    Val<'k, T>: Selector<'k>,
{
    fn give_literal(branch: &mut Branch<'k, Self, O>, a: A) {
        <Self as Gives<'k, A, O>>::give(branch, a);
    }
}

/// An `if` or a `match` that is being written. Each arm is asked for; if it is to be written, what it contains follows, and then
/// [`give`](Branch::give) or [`leave`](Branch::leave).
#[derive(Debug)]
pub struct Branch<'k, S, O> {
    k: &'k Builder,
    selector: S,
    computed: Option<Value>,
    two_ways: bool,
    regions: Vec<RegionId>,
    cases: Vec<(u64, u32)>,
    /// For what Rust decides: whether the arm that is taken was written, and what it gave.
    decided: bool,
    given: Option<O>,
}

impl<'k, S: Selector<'k>, O> Branch<'k, S, O> {
    /// `match selector {`
    pub fn on(k: &'k Builder, selector: S) -> Self {
        Branch {
            k,
            selector,
            computed: selector.computed(),
            two_ways: false,
            regions: Vec::new(),
            cases: Vec::new(),
            decided: false,
            given: None,
        }
    }

    /// `if condition {`
    pub fn when(k: &'k Builder, condition: S) -> Self
    where
        S: BranchCondition<'k>,
    {
        // The first of the two ways is taken unless it is decided that it is not.
        Branch { two_ways: true, decided: !condition.among(&[true..=true]), ..Branch::on(k, condition) }
    }

    /// The arm with these patterns.
    pub fn arm(&mut self, patterns: &[RangeInclusive<S::Of>]) -> bool {
        if self.computed.is_none() {
            let written = !self.decided && self.selector.among(patterns);
            self.decided |= written;
            return written;
        }
        for p in patterns {
            match S::Of::cases(p) {
                // As in Rust, the first arm that fits is taken.
                Some(cases) => {
                    for bits in cases {
                        if self.cases.iter().all(|c| c.0 != bits) {
                            self.cases.push((bits, self.regions.len() as u32));
                        }
                    }
                }
                None => self.k.fail(format!(
                    "a range in a match has more than {MAX_RANGE} values: write an if, or several smaller ones"
                )),
            }
        }
        self.k.state.borrow_mut().asm.open(&[]);
        true
    }

    /// Ends an arm with its value.
    #[track_caller]
    pub fn give<A>(&mut self, a: A)
    where
        S: Gives<'k, A, O>,
    {
        S::give(self, a);
    }

    /// Ends an arm with its value, a literal, where other arms end with something else.
    #[track_caller]
    pub fn give_literal<A>(&mut self, a: A)
    where
        S: GivesLiteral<'k, A, O>,
    {
        S::give_literal(self, a);
    }

    /// `}` where all arms give.
    #[track_caller]
    pub fn finish(self) -> O
    where
        S: Gives<'k, O, O>,
    {
        S::finish(self)
    }

    /// `}` where some arms give, and the others do not come to their ends.
    #[track_caller]
    pub fn finish_some(mut self) -> O
    where
        S: Gives<'k, O, O>,
        O: Dead<'k>,
    {
        if self.computed.is_none() && self.given.is_none() {
            self.given = Some(O::dead(self.k));
        }
        S::finish(self)
    }
}

// Without bounds, so that a wrong selector is told once.
impl<'k, S, O> Branch<'k, S, O> {
    /// `{` of an `if`.
    pub fn then(&mut self) -> bool {
        match self.computed {
            Some(_) => self.default(),
            None => {
                self.decided = !self.decided;
                self.decided
            }
        }
    }

    /// `_ =>`, or `else {`
    pub fn default(&mut self) -> bool {
        if self.computed.is_none() {
            return !std::mem::replace(&mut self.decided, true);
        }
        self.k.state.borrow_mut().asm.open(&[]);
        true
    }

    /// Ends an arm that gives nothing, or does not come to its end.
    #[track_caller]
    pub fn leave(&mut self) {
        if self.computed.is_some() {
            self.close(&[]);
        }
    }

    #[track_caller]
    fn close(&mut self, values: &[Value]) {
        self.k.act(OpKind::Yield, values);
        self.regions.push(self.k.state.borrow_mut().asm.close());
    }

    #[track_caller]
    fn structure(self) -> O
    where
        O: Results<'k>,
    {
        let k = self.k;
        let mut types = Vec::new();
        O::types(k, &mut types);
        let args: Vec<Value> = self.computed.into_iter().collect();
        let kind = match self.two_ways {
            true => OpKind::If,
            false => OpKind::Switch(k.state.borrow_mut().asm.case_table(self.cases)),
        };
        let op = k.structure(kind, &args, &types, &self.regions);
        let mut results = k.state.borrow().asm.kernel.results(op);
        O::collect(k, &mut results)
    }
}

impl<S> Branch<'_, S, ()> {
    /// `}` of a statement.
    #[track_caller]
    pub fn end(self) {
        if self.computed.is_some() {
            self.structure();
        }
    }
}

/// A loop that is being written, or what a `return` from a kernel function leaves; `O` is what it gives.
#[derive(Debug)]
pub struct Repeat<'k, O> {
    k: &'k Builder,
    region: RegionId,
    kind: OpKind,
    args: Vec<Value>,
    gives: PhantomData<O>,
}

impl<'k, O: Results<'k>> Repeat<'k, O> {
    /// `loop {`
    pub fn begin(k: &'k Builder) -> Self {
        let region = k.state.borrow_mut().asm.open(&[]);
        Repeat { k, region, kind: OpKind::Loop, args: Vec::new(), gives: PhantomData }
    }

    /// `continue`
    #[track_caller]
    pub fn next(&self) {
        self.k.act(OpKind::Continue(self.region), &[]);
    }

    /// `break x`
    #[track_caller]
    pub fn leave_with(&self, x: impl Lift<'k, O>) {
        let mut values = Vec::new();
        x.lift(self.k).values(&mut values);
        self.k.act(OpKind::Break(self.region), &values);
    }

    /// `}`
    #[track_caller]
    pub fn end(self) -> O {
        self.next();
        self.k.state.borrow_mut().asm.close();
        let mut types = Vec::new();
        O::types(self.k, &mut types);
        let op = self.k.structure(self.kind, &self.args, &types, &[self.region]);
        let mut results = self.k.state.borrow().asm.kernel.results(op);
        O::collect(self.k, &mut results)
    }
}

impl<'k> Repeat<'k, ()> {
    /// `for index in (from..to).step_by(step) {`, and its index.
    #[track_caller]
    pub fn range<T: Shared32>(
        k: &'k Builder,
        from: impl IntoVal<'k, T>,
        to: impl IntoVal<'k, T>,
        step: u32,
    ) -> (Self, Val<'k, T>) {
        let args = vec![from.into_val(k).id, to.into_val(k).id];
        let ty = k.ty_of::<T>();
        let region = k.state.borrow_mut().asm.open(&[ty]);
        let mut index = k.state.borrow().asm.kernel.region_args(region);
        let index = Val::collect(k, &mut index);
        (Repeat { k, region, kind: OpKind::For(step), args, gives: PhantomData }, index)
    }

    /// `for index in (from..to).rev() {`, and its index.
    #[track_caller]
    pub fn backwards<T: Shared32 + super::super::Num>(
        k: &'k Builder,
        from: impl IntoVal<'k, T>,
        to: impl IntoVal<'k, T>,
    ) -> (Self, Val<'k, T>) {
        let (from, to) = (from.into_val(k), to.into_val(k));
        let last = from + to - k.lit(T::nearest(1.0));
        let (repeat, index) = Repeat::range(k, from, to, 1);
        (repeat, last - index)
    }

    /// `break`
    #[track_caller]
    pub fn leave(&self) {
        self.leave_with(());
    }

    /// `while condition {`, after the beginning of the loop.
    #[track_caller]
    pub fn only_if(&self, condition: impl BranchCondition<'k>) {
        let mut branch = Branch::<_, ()>::when(self.k, condition);
        if branch.then() {
            branch.leave();
        }
        if branch.default() {
            self.leave();
            branch.leave();
        }
        branch.end();
    }
}
