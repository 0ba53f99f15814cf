//! Values of both stages: lifted, compared, converted, indexed, taken apart.

use std::marker::PhantomData;

use super::super::types::{Equal, IntoVal, Lit, Num, Type, Vector};
use super::super::{Buf, BufMut, Builder, StoredBuf, StoredBufMut, Val};
use super::Dead;
use crate::ir::{Compare, Kernel, OpKind, Scalar, Shape, Ty, Value};

/// What can be given where `O` is expected: a value, a plain number for one, tuples of both.
#[diagnostic::on_unimplemented(message = "expected `{O}`, found `{Self}`", label = "this is no `{O}`")]
pub trait Lift<'k, O> {
    /// The value.
    #[track_caller]
    fn lift(self, k: &'k Builder) -> O;
}

impl<'k, T, A: IntoVal<'k, T>> Lift<'k, Val<'k, T>> for A {
    fn lift(self, k: &'k Builder) -> Val<'k, T> {
        self.into_val(k)
    }
}

impl<'k> Lift<'k, ()> for () {
    fn lift(self, _: &'k Builder) {}
}

/// What a region can give: values, and tuples of them.
#[diagnostic::on_unimplemented(message = "`{Self}` is no value of a kernel")]
pub trait Results<'k>: Sized {
    /// Their types, in order.
    fn types(k: &'k Builder, out: &mut Vec<Ty>);
    /// Their values, in order.
    fn values(&self, out: &mut Vec<Value>);
    /// From the results of an op.
    #[track_caller]
    fn collect(k: &'k Builder, values: &mut dyn Iterator<Item = Value>) -> Self;
}

impl<'k, T: Type> Results<'k> for Val<'k, T> {
    fn types(k: &'k Builder, out: &mut Vec<Ty>) {
        out.push(k.ty_of::<T>());
    }
    fn values(&self, out: &mut Vec<Value>) {
        out.push(self.id);
    }
    fn collect(k: &'k Builder, values: &mut dyn Iterator<Item = Value>) -> Self {
        match values.next() {
            Some(id) => Val { k, id, ty: PhantomData },
            None => Val::dead(k),
        }
    }
}

impl<'k> Results<'k> for () {
    fn types(_: &'k Builder, _: &mut Vec<Ty>) {}
    fn values(&self, _: &mut Vec<Value>) {}
    fn collect(_: &'k Builder, _: &mut dyn Iterator<Item = Value>) {}
}

macro_rules! tuple {
    ($($a:ident $o:ident $n:tt),*) => {
        impl<'k, $($a: Lift<'k, $o>, $o),*> Lift<'k, ($($o,)*)> for ($($a,)*) {
            fn lift(self, k: &'k Builder) -> ($($o,)*) {
                ($(self.$n.lift(k),)*)
            }
        }
        impl<'k, $($o: Results<'k>),*> Results<'k> for ($($o,)*) {
            fn types(k: &'k Builder, out: &mut Vec<Ty>) {
                $($o::types(k, out);)*
            }
            fn values(&self, out: &mut Vec<Value>) {
                $(self.$n.values(out);)*
            }
            fn collect(k: &'k Builder, values: &mut dyn Iterator<Item = Value>) -> Self {
                ($($o::collect(k, values),)*)
            }
        }
        impl<'k, $($o: Dead<'k>),*> Dead<'k> for ($($o,)*) {
            fn dead(k: &'k Builder) -> Self {
                ($($o::dead(k),)*)
            }
        }
    };
}
tuple!(A0 O0 0, A1 O1 1);
tuple!(A0 O0 0, A1 O1 1, A2 O2 2);
tuple!(A0 O0 0, A1 O1 1, A2 O2 2, A3 O3 3);
tuple!(A0 O0 0, A1 O1 1, A2 O2 2, A3 O3 3, A4 O4 4);
tuple!(A0 O0 0, A1 O1 1, A2 O2 2, A3 O3 3, A4 O4 4, A5 O5 5);

/// `x` where `O` is expected.
#[track_caller]
pub fn lift<'k, O>(k: &'k Builder, x: impl Lift<'k, O>) -> O {
    x.lift(k)
}

/// `==` and `!=`.
#[diagnostic::on_unimplemented(message = "cannot compare `{Self}` with `{B}`", note = "numbers convert with `as`")]
pub trait Equality<B> {
    /// `bool`, or a value that is one.
    type Out;
    /// `==`, or `!=`.
    #[track_caller]
    fn equality(&self, c: Compare, b: &B) -> Self::Out;
}

/// `<`, `<=`, `>`, `>=`.
#[diagnostic::on_unimplemented(message = "cannot compare `{Self}` with `{B}`", note = "numbers convert with `as`")]
pub trait Order<B> {
    /// `bool`, or a value that is one.
    type Out;
    /// One of them.
    #[track_caller]
    fn order(&self, c: Compare, b: &B) -> Self::Out;
}

impl<A: PartialEq> Equality<A> for A {
    type Out = bool;
    fn equality(&self, c: Compare, b: &A) -> bool {
        if c == Compare::Eq { self == b } else { self != b }
    }
}

impl<A: PartialOrd> Order<A> for A {
    type Out = bool;
    fn order(&self, c: Compare, b: &A) -> bool {
        match c {
            Compare::Lt => self < b,
            Compare::Le => self <= b,
            Compare::Gt => self > b,
            _ => self >= b,
        }
    }
}

impl<'k, T: Equal, B: IntoVal<'k, T> + Copy> Equality<B> for Val<'k, T> {
    type Out = Val<'k, T::Bool>;
    fn equality(&self, c: Compare, b: &B) -> Val<'k, T::Bool> {
        self.compare(c, *b)
    }
}

impl<'k, T: Num, B: IntoVal<'k, T> + Copy> Order<B> for Val<'k, T> {
    type Out = Val<'k, T::Bool>;
    fn order(&self, c: Compare, b: &B) -> Val<'k, T::Bool> {
        self.compare(c, *b)
    }
}

macro_rules! compares {
    ($trait:ident $method:ident: $($t:ty)*) => { $(
        impl<'k> $trait<Val<'k, $t>> for $t {
            type Out = Val<'k, bool>;
            #[track_caller]
            fn $method(&self, c: Compare, b: &Val<'k, $t>) -> Val<'k, bool> {
                b.k.lit(*self).compare(c, *b)
            }
        }
    )* };
}
compares!(Equality equality: bool i32 u32 i64 u64 half::f16 f32);
compares!(Order order: i32 u32 i64 u64 half::f16 f32);

macro_rules! comparison {
    ($($(#[$doc:meta])* $name:ident $trait:ident $method:ident $op:ident),*) => {
        $($(#[$doc])* #[track_caller] pub fn $name<A: $trait<B>, B>(a: A, b: B) -> A::Out {
            a.$method(Compare::$op, &b)
        })*
    };
}
comparison!(
    /// `a == b`
    eq Equality equality Eq,
    /// `a != b`
    ne Equality equality Ne,
    /// `a < b`
    lt Order order Lt,
    /// `a <= b`
    le Order order Le,
    /// `a > b`
    gt Order order Gt,
    /// `a >= b`
    ge Order order Ge
);

/// A bool of either stage.
#[diagnostic::on_unimplemented(message = "`&&` and `||` are of `bool`, not of `{Self}`", label = "this is no `bool`")]
pub trait Truth<'k>: IntoVal<'k, bool> {
    /// It.
    fn of(k: &'k Builder, x: bool) -> Self;
}
impl<'k> Truth<'k> for bool {
    fn of(_: &'k Builder, x: bool) -> bool {
        x
    }
}
impl<'k> Truth<'k> for Val<'k, bool> {
    fn of(k: &'k Builder, x: bool) -> Self {
        k.lit(x)
    }
}

/// `&&` and `||`: `b` counts only if `self` does not decide.
#[diagnostic::on_unimplemented(message = "`&&` and `||` are of `bool`, not of `{Self}` and `{B}`")]
pub trait ShortCircuit<'k, B> {
    /// `bool`, or a value that is one.
    type Out;
    /// `if self == decided { decided } else { b() }`. A `b` without effects may be computed always.
    #[track_caller]
    fn short_circuit(self, k: &'k Builder, decided: bool, pure: bool, b: impl FnOnce() -> B) -> Self::Out;
}

impl<'k, B: Truth<'k>> ShortCircuit<'k, B> for bool {
    type Out = B;
    fn short_circuit(self, k: &'k Builder, decided: bool, _: bool, b: impl FnOnce() -> B) -> B {
        if self == decided { B::of(k, decided) } else { b() }
    }
}

impl<'k, B: Truth<'k>> ShortCircuit<'k, B> for Val<'k, bool> {
    type Out = Val<'k, bool>;
    fn short_circuit(self, k: &'k Builder, decided: bool, pure: bool, b: impl FnOnce() -> B) -> Val<'k, bool> {
        match (pure, decided) {
            (true, true) => self | b().into_val(k),
            (true, false) => self & b().into_val(k),
            (false, true) => k.if_value(self, || k.lit(true), || b().into_val(k)),
            (false, false) => k.if_value(self, || b().into_val(k), || k.lit(false)),
        }
    }
}

/// `a && b`
#[track_caller]
pub fn and<'k, A: ShortCircuit<'k, B>, B>(k: &'k Builder, a: A, pure: bool, b: impl FnOnce() -> B) -> A::Out {
    a.short_circuit(k, false, pure, b)
}

/// `a || b`
#[track_caller]
pub fn or<'k, A: ShortCircuit<'k, B>, B>(k: &'k Builder, a: A, pure: bool, b: impl FnOnce() -> B) -> A::Out {
    a.short_circuit(k, true, pure, b)
}

/// `x as U`
#[diagnostic::on_unimplemented(message = "`{Self}` does not convert to `{U}`")]
pub trait Cast<U> {
    /// `U`, or a value that is one.
    type Out;
    /// It.
    #[track_caller]
    fn cast(self) -> Self::Out;
}

impl<'k, T: Lit, U: Lit> Cast<U> for Val<'k, T> {
    type Out = Val<'k, U>;
    fn cast(self) -> Val<'k, U> {
        self.to()
    }
}

macro_rules! casts {
    ($($from:ty)*; $to:tt) => { $(casts!(@ $from; $to);)* };
    (@ $from:ty; ($($to:ty)*)) => { $(impl Cast<$to> for $from {
        type Out = $to;
        fn cast(self) -> $to {
            self as $to
        }
    })* };
    (any: $($from:ty)*) => { $(impl<U: Lit> Cast<U> for $from {
        type Out = U;
        fn cast(self) -> U {
            U::nearest(self.into())
        }
    })* };
}
casts!(i32 u32 i64 u64 usize; (i32 u32 i64 u64 usize f32 f64));
casts!(bool; (i32 u32 i64 u64 usize));
casts!(f32 f64; (usize f64));
casts!(any: f32 f64);

/// `x as U`
#[track_caller]
pub fn cast<U, A: Cast<U>>(x: A) -> A::Out {
    x.cast()
}

/// `a[i]`, read.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no element `{I}`",
    note = "buffers and arrays in memory are indexed by a `u32`; array values and vectors by a number that is known while the \
            kernel is written. `private::<T>(n)` is an array that can be indexed by what a kernel computes"
)]
pub trait At<'k, I> {
    /// An element.
    type Out;
    /// It.
    #[track_caller]
    fn at(self, k: &'k Builder, i: I) -> Self::Out;
}

/// `a[i] = x`
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no element `{I}` that can become `{V}`",
    note = "only `&mut [T]`, `shared` and `private` arrays, and `let mut` variables can be written"
)]
pub trait Put<'k, I, V> {
    /// Nothing for memory; for a value, the value with another element.
    type Out;
    /// It.
    #[track_caller]
    fn put(self, k: &'k Builder, i: I, x: V) -> Self::Out;
}

macro_rules! indexed {
    (memory $bound:ident $t:ident) => {
        impl<'k, T: $bound, I: IntoVal<'k, u32>> At<'k, I> for $t<'k, T> {
            type Out = Val<'k, T>;
            fn at(self, _: &'k Builder, i: I) -> Val<'k, T> {
                self.load(i)
            }
        }
    };
    (value $bound:ident $t:ty) => {
        impl<'k, T: $bound, const N: usize> At<'k, u32> for Val<'k, $t> {
            type Out = Val<'k, T>;
            fn at(self, _: &'k Builder, i: u32) -> Val<'k, T> {
                self.k.emit(OpKind::Extract(i), &[self.id])
            }
        }
        impl<'k, T: $bound, V: IntoVal<'k, T>, const N: usize> Put<'k, u32, V> for Val<'k, $t> {
            type Out = Self;
            fn put(self, k: &'k Builder, i: u32, x: V) -> Self {
                let x = x.into_val(k);
                self.k.emit(OpKind::Insert(i), &[self.id, x.id])
            }
        }
    };
}
indexed!(memory Type Buf);
indexed!(memory Type BufMut);
indexed!(memory Lit StoredBuf);
indexed!(memory Lit StoredBufMut);
indexed!(value Type [T; N]);
indexed!(value Lit Vector<T, N>);

impl<'k, T: Type, I: IntoVal<'k, u32>, V: IntoVal<'k, T>> Put<'k, I, V> for BufMut<'k, T> {
    type Out = ();
    fn put(self, _: &'k Builder, i: I, x: V) {
        self.store(i, x);
    }
}

impl<'k, T: Lit, I: IntoVal<'k, u32>, V: IntoVal<'k, T>> Put<'k, I, V> for StoredBufMut<'k, T> {
    type Out = ();
    fn put(self, _: &'k Builder, i: I, x: V) {
        self.store(i, x);
    }
}

/// `a[i]`
#[track_caller]
pub fn at<'k, A: At<'k, I>, I>(k: &'k Builder, a: A, i: I) -> A::Out {
    a.at(k, i)
}

/// `a[i] = x`
#[track_caller]
pub fn put<'k, A: Put<'k, I, V>, I, V>(k: &'k Builder, a: A, i: I, x: V) -> A::Out {
    a.put(k, i, x)
}

impl<'k, T> From<BufMut<'k, T>> for Buf<'k, T> {
    fn from(b: BufMut<'k, T>) -> Self {
        Buf { k: b.k, id: b.id, ty: PhantomData }
    }
}

/// Which member of an `S` a name means, and that it is a `T`.
#[derive(Debug)]
pub struct Member<S, T> {
    index: u32,
    ty: PhantomData<fn() -> (S, T)>,
}

impl<S, T> Clone for Member<S, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S, T> Copy for Member<S, T> {}

impl<S, T> Member<S, T> {
    /// The member with this number.
    pub const fn new(index: u32) -> Self {
        Member { index, ty: PhantomData }
    }
}

/// A type with named members: vectors, and what `#[derive(KernelStruct)]` makes of a struct.
///
/// ```
/// use impasto_kernel::prelude::*;
/// #[derive(Clone, Copy, KernelStruct)]
/// struct Complex { re: f32, im: f32 }
///
/// #[kernel]
/// fn square(x: &mut [Vec2<f32>]) {
///     let i = global_id(0);
///     let mut z = Complex { re: x[i].x, im: x[i].y };
///     z = Complex { re: z.re * z.re - z.im * z.im, im: 2.0 * z.re * z.im };
///     x[i] = vec2(z.re, z.im);
/// }
/// square()?;
/// # Ok::<(), KernelError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no members",
    note = "members belong to vectors (`x`, `y`, `z`, `w`) and to structs with `#[derive(KernelStruct)]`; what Rust computes while \
            the kernel is written is read in `comptime!(..)`"
)]
pub trait KernelStruct: Type {
    /// A struct with the same names.
    type Members;
    /// The members by name.
    const MEMBERS: Self::Members;
    /// The names, in order.
    const NAMES: &'static [&'static str];
}

macro_rules! components {
    ($(#[$doc:meta])* $name:ident $n:literal: $($c:ident $i:literal),*) => {
        $(#[$doc])*
        #[derive(Debug)]
        #[allow(missing_docs, reason = "the names say it")]
        pub struct $name<T> {
            $(pub $c: Member<Vector<T, $n>, T>),*
        }
        impl<T: Lit> KernelStruct for Vector<T, $n> {
            type Members = $name<T>;
            const MEMBERS: $name<T> = $name { $($c: Member::new($i)),* };
            const NAMES: &'static [&'static str] = &[$(stringify!($c)),*];
        }
    };
}
components!(
    /// The components of a vector of two.
    Xy 2: x 0, y 1);
components!(
    /// The components of a vector of three.
    Xyz 3: x 0, y 1, z 2);
components!(
    /// The components of a vector of four.
    Xyzw 4: x 0, y 1, z 2, w 3);

/// `v.name`
#[track_caller]
pub fn member<'k, S: KernelStruct, T: Type>(
    v: Val<'k, S>,
    which: impl FnOnce(S::Members) -> Member<S, T>,
) -> Val<'k, T> {
    v.k.emit(OpKind::Extract(which(S::MEMBERS).index), &[v.id])
}

/// `v` after `v.name = x`.
#[track_caller]
pub fn with_member<'k, S: KernelStruct, T: Type>(
    v: Val<'k, S>,
    which: impl FnOnce(S::Members) -> Member<S, T>,
    x: impl IntoVal<'k, T>,
) -> Val<'k, S> {
    let x = x.into_val(v.k);
    v.k.emit(OpKind::Insert(which(S::MEMBERS).index), &[v.id, x.id])
}

/// `S { name: value, .. }`. The closure is never called: its body is the literal as the user wrote it, with a [`type_of`] each value,
/// so that rustc checks names and types.
#[track_caller]
pub fn make<'k, S: KernelStruct>(k: &'k Builder, _: impl FnOnce() -> S, values: &[(&str, Value)]) -> Val<'k, S> {
    let by_name = |name: &&str| values.iter().find(|v| v.0 == *name).map(|v| v.1);
    let members: Vec<Value> = S::NAMES.iter().filter_map(by_name).collect();
    k.emit(OpKind::Make, &members)
}

/// The id of a value.
pub fn id<T>(v: Val<'_, T>) -> Value {
    v.id
}

/// A plain value of the type of `v`, for code that is checked and never runs.
pub fn type_of<T>(_: Val<'_, T>) -> T {
    unreachable!("only the type of this is used")
}

/// `[a, b, ..]`
#[track_caller]
pub fn array<'k, T: Type, const N: usize>(k: &'k Builder, elements: [Val<'k, T>; N]) -> Val<'k, [T; N]> {
    k.array(elements)
}

/// The type of structs with these members.
pub fn struct_type(kernel: &mut Kernel, members: Vec<Ty>) -> Ty {
    // Only an empty struct is none, and the macro refuses those.
    kernel.intern(Shape::Struct(members)).unwrap_or(Ty::scalar(Scalar::Bool))
}
