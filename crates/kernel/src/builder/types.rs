//! The types of the language as Rust types.

use half::{bf16, f16};

use super::{Builder, Val};
use crate::ir::{Kernel, Scalar, Shape, Ty};

/// A type that values can have.
pub trait Type: Copy + 'static {
    /// What a comparison of it gives: a bool, or one for each component.
    type Bool: Type;
    /// The type in the table of a kernel.
    fn ty(kernel: &mut Kernel) -> Ty;
}

/// A scalar, which has constants.
pub trait Lit: Type<Bool = bool> + for<'k> IntoVal<'k, Self> {
    /// Which one.
    const SCALAR: Scalar;
    /// The bits of a constant.
    fn bits(self) -> u64;
    /// The number nearest to this one.
    fn nearest(x: f64) -> Self;
}

/// Types with `+ - * /`, `min`, `max` and comparisons.
pub trait Num: Type {}
/// Types with `==` and `!=`.
pub trait Equal: Type {}
impl<T: Num> Equal for T {}
impl Equal for bool {}
/// Whole numbers, and vectors of them.
pub trait Int: Num {}
/// Floats that can be computed with, and vectors of them.
pub trait Float: Num {}
/// Whole numbers and bools, and vectors of them: `& | ^ !`.
pub trait Logic: Type {}
/// Whole numbers of 32 bits, which count loops and have atomics.
#[diagnostic::on_unimplemented(message = "`{Self}` is no integer of 32 bits", note = "this works on `u32` and `i32`")]
pub trait Shared32: Lit {}

/// What can stand for a value: the value, or a constant of Rust.
#[diagnostic::on_unimplemented(
    message = "expected a `{T}`, found `{Self}`",
    label = "this is no `{T}`",
    note = "numbers convert with `as`"
)]
pub trait IntoVal<'k, T> {
    /// The value.
    #[track_caller]
    fn into_val(self, k: &'k Builder) -> Val<'k, T>;
}

impl<'k, T> IntoVal<'k, T> for Val<'k, T> {
    fn into_val(self, k: &'k Builder) -> Val<'k, T> {
        if !std::ptr::eq(self.k, k) {
            k.fail("a value of another kernel was used".to_owned());
        }
        self
    }
}

macro_rules! scalar {
    ($ty:ty, $scalar:ident, |$x:ident| $bits:expr, $nearest:expr $(, $marker:ident)*) => {
        impl Type for $ty {
            type Bool = bool;
            fn ty(_: &mut Kernel) -> Ty {
                Ty::scalar(Scalar::$scalar)
            }
        }
        impl Lit for $ty {
            const SCALAR: Scalar = Scalar::$scalar;
            fn bits(self) -> u64 {
                let $x = self;
                $bits
            }
            fn nearest($x: f64) -> $ty {
                $nearest
            }
        }
        impl<'k> IntoVal<'k, $ty> for $ty {
            fn into_val(self, k: &'k Builder) -> Val<'k, $ty> {
                k.lit(self)
            }
        }
        $(impl $marker for $ty {})*
    };
}

scalar!(bool, Bool, |x| x.into(), x != 0.0, Logic);
scalar!(i32, I32, |x| (x as u32).into(), x as i32, Num, Int, Logic, Shared32);
scalar!(u32, U32, |x| x.into(), x as u32, Num, Int, Logic, Shared32);
scalar!(i64, I64, |x| x as u64, x as i64, Num, Int, Logic);
scalar!(u64, U64, |x| x, x as u64, Num, Int, Logic);
scalar!(f16, F16, |x| x.to_bits().into(), f16::from_f64(x), Num, Float);
scalar!(bf16, Bf16, |x| x.to_bits().into(), bf16::from_f64(x));
scalar!(f32, F32, |x| x.to_bits().into(), x as f32, Num, Float);

/// `N` scalars of the same type, 2 to 4.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vector<T, const N: usize>(pub [T; N]);
/// Two scalars.
pub type Vec2<T> = Vector<T, 2>;
/// Three scalars; a buffer cannot hold them.
pub type Vec3<T> = Vector<T, 3>;
/// Four scalars.
pub type Vec4<T> = Vector<T, 4>;

impl<T: Lit, const N: usize> Type for Vector<T, N> {
    type Bool = Vector<bool, N>;
    fn ty(_: &mut Kernel) -> Ty {
        const { assert!(N >= 2 && N <= 4, "a vector has 2, 3 or 4 components") };
        Ty::vector(T::SCALAR, N as u32).unwrap_or(Ty::scalar(T::SCALAR))
    }
}
impl<T: Lit + Num, const N: usize> Num for Vector<T, N> {}
impl<T: Lit + Int, const N: usize> Int for Vector<T, N> {}
impl<T: Lit + Float, const N: usize> Float for Vector<T, N> {}
impl<T: Lit + Logic, const N: usize> Logic for Vector<T, N> {}

/// `N` values of the same type, as one value.
pub type Array<T, const N: usize> = [T; N];

impl<T: Type, const N: usize> Type for [T; N] {
    type Bool = bool;
    fn ty(kernel: &mut Kernel) -> Ty {
        let t = T::ty(kernel);
        kernel.intern(Shape::Array(t, N as u32)).unwrap_or(t)
    }
}

impl<A: Type, B: Type> Type for (A, B) {
    type Bool = bool;
    fn ty(kernel: &mut Kernel) -> Ty {
        let members = vec![A::ty(kernel), B::ty(kernel)];
        let first = members[0];
        kernel.intern(Shape::Struct(members)).unwrap_or(first)
    }
}
