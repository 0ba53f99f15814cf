//! What can be done with values, buffers and variables.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};

use half::f16;

use super::types::{Array, Equal, Float, Int, IntoVal, Lit, Logic, Num, Shared32, Type, Vector};
use super::{Buf, BufMut, Val, Var};
use crate::ir::{Atomic, BinaryOp, Compare, OpKind, Subgroup, UnaryOp};

impl<'k, T: Type> Val<'k, T> {
    #[track_caller]
    fn unary(self, f: UnaryOp) -> Val<'k, T> {
        self.k.emit(OpKind::Unary(f), &[self.id])
    }

    #[track_caller]
    fn binary(self, f: BinaryOp, other: impl IntoVal<'k, T>) -> Val<'k, T> {
        let other = other.into_val(self.k);
        self.k.emit(OpKind::Binary(f), &[self.id, other.id])
    }

    #[track_caller]
    pub(super) fn compare(self, c: Compare, other: impl IntoVal<'k, T>) -> Val<'k, T::Bool> {
        let other = other.into_val(self.k);
        self.k.emit(OpKind::Compare(c), &[self.id, other.id])
    }

    #[track_caller]
    fn subgroup(self, f: Subgroup) -> Val<'k, T> {
        self.k.emit(OpKind::Subgroup(f), &[self.id])
    }
}

// One impl for all that can stand on the right, so that rustc knows the result before it knows what that is.
macro_rules! binary {
    ($trait:ident $method:ident $op:ident for $bound:ident: $($lit:ty)*) => {
        impl<'k, T: $bound, R: IntoVal<'k, T>> $trait<R> for Val<'k, T> {
            type Output = Val<'k, T>;
            #[track_caller]
            fn $method(self, other: R) -> Val<'k, T> {
                self.binary(BinaryOp::$op, other)
            }
        }
        $(impl<'k> $trait<Val<'k, $lit>> for $lit {
            type Output = Val<'k, $lit>;
            #[track_caller]
            fn $method(self, other: Val<'k, $lit>) -> Val<'k, $lit> {
                other.k.lit(self).binary(BinaryOp::$op, other)
            }
        })*
    };
}

binary!(Add add Add for Num: i32 u32 i64 u64 f16 f32);
binary!(Sub sub Sub for Num: i32 u32 i64 u64 f16 f32);
binary!(Mul mul Mul for Num: i32 u32 i64 u64 f16 f32);
binary!(Div div Div for Num: i32 u32 i64 u64 f16 f32);
binary!(Rem rem Rem for Int: i32 u32 i64 u64);
binary!(BitAnd bitand And for Logic: i32 u32 i64 u64 bool);
binary!(BitOr bitor Or for Logic: i32 u32 i64 u64 bool);
binary!(BitXor bitxor Xor for Logic: i32 u32 i64 u64 bool);
binary!(Shl shl Shl for Int: i32 u32 i64 u64);
binary!(Shr shr Shr for Int: i32 u32 i64 u64);

impl<'k, T: Num> Neg for Val<'k, T> {
    type Output = Val<'k, T>;
    #[track_caller]
    fn neg(self) -> Val<'k, T> {
        self.unary(UnaryOp::Neg)
    }
}

impl<'k, T: Logic> Not for Val<'k, T> {
    type Output = Val<'k, T>;
    #[track_caller]
    fn not(self) -> Val<'k, T> {
        self.unary(UnaryOp::Not)
    }
}

macro_rules! methods {
    ($bound:ident, unary: $($(#[$d1:meta])* $u:ident $uop:ident),*; binary: $($(#[$d2:meta])* $b:ident $bop:ident),*; compare: $($(#[$d3:meta])* $c:ident $cop:ident),*) => {
        impl<'k, T: $bound> Val<'k, T> {
            $($(#[$d1])* #[track_caller] pub fn $u(self) -> Val<'k, T> { self.unary(UnaryOp::$uop) })*
            $($(#[$d2])* #[track_caller] pub fn $b(self, other: impl IntoVal<'k, T>) -> Val<'k, T> { self.binary(BinaryOp::$bop, other) })*
            $($(#[$d3])* #[track_caller] pub fn $c(self, other: impl IntoVal<'k, T>) -> Val<'k, T::Bool> { self.compare(Compare::$cop, other) })*
        }
    };
}

methods!(Equal,
    unary:;
    binary:;
    compare:
        /// `==`
        eq Eq,
        /// `!=`
        ne Ne);
methods!(Num,
    unary:
        /// The absolute value; refused for unsigned numbers.
        abs Abs;
    binary:
        /// The smaller one, `self` if neither is.
        min Min,
        /// The larger one, `self` if neither is.
        max Max;
    compare:
        /// `<`
        lt Lt,
        /// `<=`
        le Le,
        /// `>`
        gt Gt,
        /// `>=`
        ge Ge);
methods!(Float,
    unary:
        /// Down to a whole number.
        floor Floor,
        /// Up to a whole number.
        ceil Ceil,
        /// Towards zero.
        trunc Trunc,
        /// To the nearest, ties to even.
        round_even RoundEven,
        /// The square root.
        sqrt Sqrt,
        /// One over the square root.
        inverse_sqrt InverseSqrt,
        /// e to this power.
        exp Exp,
        /// Two to this power.
        exp2 Exp2,
        /// The natural logarithm.
        log Log,
        /// The sine.
        sin Sin,
        /// The cosine.
        cos Cos,
        /// The hyperbolic tangent.
        tanh Tanh;
    binary:
        /// To this power.
        pow Pow;
    compare:);

impl<'k, T: Float> Val<'k, T> {
    /// `self * b + c`, rounded as the device likes.
    #[track_caller]
    pub fn mul_add(self, b: impl IntoVal<'k, T>, c: impl IntoVal<'k, T>) -> Val<'k, T> {
        let (b, c) = (b.into_val(self.k), c.into_val(self.k));
        self.k.emit(OpKind::Fma, &[self.id, b.id, c.id])
    }
}

impl<'k, T: Type> Val<'k, T> {
    /// The same value, through which no derivative flows.
    #[track_caller]
    pub fn stop_gradient(self) -> Val<'k, T> {
        self.k.emit(OpKind::Custom, &[self.id])
    }
}

impl<'k, T: Float> Val<'k, T> {
    /// The same value with derivatives of your own: for each pair, the second is the derivative by the first. Differentiation looks at
    /// nothing else of how the value was made.
    ///
    /// ```
    /// # use impasto_kernel::Builder;
    /// // A step, with the derivative of a ramp.
    /// let kernel = Builder::kernel("k", [1, 1, 1], |k| {
    ///     let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
    ///     let x = x.load(0);
    ///     let step = x.gt(0.0).select(k.lit(1f32), k.lit(0f32));
    ///     y.store(0, step.with_derivatives(&[(x, k.lit(1f32))]));
    /// })?;
    /// assert!(kernel.to_string().contains("custom"));
    /// # Ok::<(), impasto_kernel::KernelError>(())
    /// ```
    #[track_caller]
    pub fn with_derivatives(self, pairs: &[(Val<'k, T>, Val<'k, T>)]) -> Val<'k, T> {
        let ids: Vec<_> = std::iter::once(self.id).chain(pairs.iter().flat_map(|p| [p.0.id, p.1.id])).collect();
        self.k.emit(OpKind::Custom, &ids)
    }
}

impl<'k, T: Shared32> Val<'k, T> {
    /// Bits that are set.
    #[track_caller]
    pub fn count_ones(self) -> Val<'k, T> {
        self.unary(UnaryOp::CountOnes)
    }

    /// The bits in the other order.
    #[track_caller]
    pub fn reverse_bits(self) -> Val<'k, T> {
        self.unary(UnaryOp::ReverseBits)
    }
}

impl<'k> Val<'k, bool> {
    /// `if self { a } else { b }`; both are computed.
    #[track_caller]
    pub fn select<T: Type>(self, a: impl IntoVal<'k, T>, b: impl IntoVal<'k, T>) -> Val<'k, T> {
        let (a, b) = (a.into_val(self.k), b.into_val(self.k));
        self.k.emit(OpKind::Select, &[self.id, a.id, b.id])
    }

    /// Whether it is true in all active invocations of the subgroup.
    #[track_caller]
    pub fn subgroup_all(self) -> Val<'k, bool> {
        self.subgroup(Subgroup::All)
    }

    /// Whether it is true in any active invocation of the subgroup.
    #[track_caller]
    pub fn subgroup_any(self) -> Val<'k, bool> {
        self.subgroup(Subgroup::Any)
    }
}

impl<'k, T: Lit> Val<'k, T> {
    /// As another type: floats to integers saturate, integers to integers keep the low bits.
    #[track_caller]
    pub fn to<U: Lit>(self) -> Val<'k, U> {
        self.k.emit(OpKind::Convert, &[self.id])
    }

    /// The same bits as another type of the same size.
    #[track_caller]
    pub fn bits_as<U: Lit>(self) -> Val<'k, U> {
        self.k.emit(OpKind::Bitcast, &[self.id])
    }

    /// The sum over the active invocations of the subgroup.
    #[track_caller]
    pub fn subgroup_add(self) -> Val<'k, T> {
        self.subgroup(Subgroup::Add)
    }

    /// The smallest in the subgroup.
    #[track_caller]
    pub fn subgroup_min(self) -> Val<'k, T> {
        self.subgroup(Subgroup::Min)
    }

    /// The largest in the subgroup.
    #[track_caller]
    pub fn subgroup_max(self) -> Val<'k, T> {
        self.subgroup(Subgroup::Max)
    }

    /// The sum over the invocations of the subgroup before this one.
    #[track_caller]
    pub fn subgroup_exclusive_add(self) -> Val<'k, T> {
        self.subgroup(Subgroup::ExclusiveAdd)
    }

    /// The value of the first active invocation of the subgroup.
    #[track_caller]
    pub fn subgroup_broadcast_first(self) -> Val<'k, T> {
        self.subgroup(Subgroup::BroadcastFirst)
    }

    /// The value of the invocation whose lane is this one's xor `mask`.
    #[track_caller]
    pub fn subgroup_shuffle_xor(self, mask: impl IntoVal<'k, u32>) -> Val<'k, T> {
        let mask = mask.into_val(self.k);
        self.k.emit(OpKind::Subgroup(Subgroup::ShuffleXor), &[self.id, mask.id])
    }
}

impl<'k, T: Lit, const N: usize> Val<'k, Vector<T, N>> {
    /// One component.
    #[track_caller]
    pub fn component(self, i: u32) -> Val<'k, T> {
        self.k.emit(OpKind::Extract(i), &[self.id])
    }

    /// With one component replaced.
    #[track_caller]
    pub fn with(self, i: u32, x: impl IntoVal<'k, T>) -> Self {
        let x = x.into_val(self.k);
        self.k.emit(OpKind::Insert(i), &[self.id, x.id])
    }
}

impl<'k, T: Type, const N: usize> Val<'k, Array<T, N>> {
    /// One element.
    #[track_caller]
    pub fn element(self, i: u32) -> Val<'k, T> {
        self.k.emit(OpKind::Extract(i), &[self.id])
    }

    /// With one element replaced.
    #[track_caller]
    pub fn with(self, i: u32, x: impl IntoVal<'k, T>) -> Self {
        let x = x.into_val(self.k);
        self.k.emit(OpKind::Insert(i), &[self.id, x.id])
    }
}

impl<'k, A: Type, B: Type> Val<'k, (A, B)> {
    /// The first member.
    #[track_caller]
    pub fn first(self) -> Val<'k, A> {
        self.k.emit(OpKind::Extract(0), &[self.id])
    }

    /// The second member.
    #[track_caller]
    pub fn second(self) -> Val<'k, B> {
        self.k.emit(OpKind::Extract(1), &[self.id])
    }
}

macro_rules! reading {
    ($buf:ident) => {
        impl<'k, T: Type> $buf<'k, T> {
            /// The element at an index.
            #[track_caller]
            pub fn load(self, i: impl IntoVal<'k, u32>) -> Val<'k, T> {
                let i = i.into_val(self.k);
                self.k.emit(OpKind::Load(self.id), &[i.id])
            }

            /// The number of elements of a buffer.
            #[track_caller]
            pub fn len(self) -> Val<'k, u32> {
                self.k.emit(OpKind::Len(self.id), &[])
            }
        }
    };
}
reading!(Buf);
reading!(BufMut);

impl<'k, T: Type> BufMut<'k, T> {
    /// Writes the element at an index.
    #[track_caller]
    pub fn store(self, i: impl IntoVal<'k, u32>, x: impl IntoVal<'k, T>) {
        let (i, x) = (i.into_val(self.k), x.into_val(self.k));
        self.k.act(OpKind::Store(self.id), &[i.id, x.id]);
    }
}

macro_rules! atomics {
    ($($(#[$doc:meta])* $name:ident $op:ident),*) => {
        impl<'k, T: Shared32> BufMut<'k, T> {
            $($(#[$doc])* #[track_caller] pub fn $name(self, i: impl IntoVal<'k, u32>, x: impl IntoVal<'k, T>) -> Val<'k, T> {
                let (i, x) = (i.into_val(self.k), x.into_val(self.k));
                self.k.emit(OpKind::Atomic(self.id, Atomic::$op), &[i.id, x.id])
            })*

            /// Stores `new` where the element is `expected`; gives the element as it was.
            #[track_caller]
            pub fn atomic_compare_exchange(
                self,
                i: impl IntoVal<'k, u32>,
                expected: impl IntoVal<'k, T>,
                new: impl IntoVal<'k, T>,
            ) -> Val<'k, T> {
                let (i, e, n) = (i.into_val(self.k), expected.into_val(self.k), new.into_val(self.k));
                self.k.emit(OpKind::Atomic(self.id, Atomic::CompareExchange), &[i.id, e.id, n.id])
            }
        }
    };
}
atomics!(
    /// Adds in one step; gives the element as it was.
    atomic_add Add,
    /// Takes the smaller in one step; gives the element as it was.
    atomic_min Min,
    /// Takes the larger in one step; gives the element as it was.
    atomic_max Max,
    /// Takes the bits in both in one step; gives the element as it was.
    atomic_and And,
    /// Takes the bits in either in one step; gives the element as it was.
    atomic_or Or,
    /// Takes the bits in one of them in one step; gives the element as it was.
    atomic_xor Xor,
    /// Replaces in one step; gives the element as it was.
    atomic_exchange Exchange
);

impl<'k> BufMut<'k, f32> {
    /// Adds in one step.
    #[track_caller]
    pub fn atomic_sum(self, i: impl IntoVal<'k, u32>, x: impl IntoVal<'k, f32>) {
        let (i, x) = (i.into_val(self.k), x.into_val(self.k));
        self.k.emit::<f32>(OpKind::Atomic(self.id, Atomic::Add), &[i.id, x.id]);
    }
}

impl<'k, T: Type> Var<'k, T> {
    /// The value now.
    #[track_caller]
    pub fn get(self) -> Val<'k, T> {
        self.k.emit(OpKind::Get(self.id), &[])
    }

    /// Gives it another value.
    #[track_caller]
    pub fn set(self, x: impl IntoVal<'k, T>) {
        let x = x.into_val(self.k);
        self.k.act(OpKind::Set(self.id), &[x.id]);
    }
}
