//! The types of the language as Rust types.

use std::marker::PhantomData;

use half::{bf16, f16};

use super::{Builder, Val};
use crate::ir::{Kernel, Scalar, Shape, Ty};

/// A type that values can have.
pub trait Type: Copy + 'static {
    /// What a comparison of it gives: a truth value, or one for each component.
    type Bool: Type;
    /// The type in the table of a kernel.
    fn ty(kernel: &mut Kernel) -> Ty;
}

/// A scalar, which has constants.
pub trait Lit: Type<Bool = bool> {
    /// Which one.
    const SCALAR: Scalar;
    /// The bits of a constant.
    fn bits(self) -> u64;
}

/// Types with `+ - * /`, `min`, `max` and comparisons.
pub trait Num: Type {}
/// Whole numbers, and vectors of them.
pub trait Int: Num {}
/// Floats that can be computed with, and vectors of them.
pub trait Float: Num {}
/// Whole numbers and truth values, and vectors of them: `& | ^ !`.
pub trait Logic: Type {}
/// Whole numbers of 32 bits, which have atomics.
pub trait Shared32: Lit {}

/// What can stand for a value: the value, or a constant of Rust.
pub trait IntoVal<'k, T> {
    /// The value.
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
    ($ty:ty, $scalar:ident, |$x:ident| $bits:expr $(, $marker:ident)*) => {
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
        }
        impl<'k> IntoVal<'k, $ty> for $ty {
            fn into_val(self, k: &'k Builder) -> Val<'k, $ty> {
                k.lit(self)
            }
        }
        $(impl $marker for $ty {})*
    };
}

scalar!(bool, Bool, |x| x.into(), Logic);
scalar!(i32, I32, |x| (x as u32).into(), Num, Int, Logic, Shared32);
scalar!(u32, U32, |x| x.into(), Num, Int, Logic, Shared32);
scalar!(i64, I64, |x| x as u64, Num, Int, Logic);
scalar!(u64, U64, |x| x, Num, Int, Logic);
scalar!(f16, F16, |x| x.to_bits().into(), Num, Float);
scalar!(bf16, Bf16, |x| x.to_bits().into());
scalar!(f32, F32, |x| x.to_bits().into(), Num, Float);

/// `N` scalars of the same type, 2 to 4.
#[derive(Clone, Copy, Debug)]
pub struct Vector<T, const N: usize>(PhantomData<T>);

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
#[derive(Clone, Copy, Debug)]
pub struct Array<T, const N: usize>(PhantomData<T>);

impl<T: Type, const N: usize> Type for Array<T, N> {
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
