//! Matrices of a subgroup, in the language. A product is `(m, k) * (k, n) + (m, n)`; rustc checks that sizes and types fit.
//!
//! It is the programmer's duty that all invocations of a subgroup do the same matrix ops with the same operands, that workgroups are made of
//! full subgroups, and that a barrier stands between writing memory and loading a matrix from it, as between storing one and reading
//! it. What can be seen of that in the kernel is refused when it is built; the executor stops at the rest.

use std::marker::PhantomData;

use half::{bf16, f16};

use super::types::{Float, IntoVal, Lit, Type, Vector};
use super::{Buf, BufMut, Builder, Val};
use crate::ir::{BinaryOp, Kernel, Matrix, MatrixLayout, MatrixUse, MemoryId, OpKind, Shape, Ty};

/// What a matrix may be in a product, as a type.
pub trait Role: Copy + std::fmt::Debug + 'static {
    /// Which one.
    const USE: MatrixUse;
}

macro_rules! roles {
    ($($(#[$doc:meta])* $name:ident $role:ident),*) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}
        impl Role for $name {
            const USE: MatrixUse = MatrixUse::$role;
        })*
    };
}
roles!(
    /// The left factor.
    RoleA A,
    /// The right factor.
    RoleB B,
    /// What products are added to.
    RoleAccumulator Accumulator
);

/// A matrix that the invocations of a subgroup hold together: [`MatrixA`], [`MatrixB`] or [`Accumulator`].
#[derive(Clone, Copy, Debug)]
pub struct MatrixOf<U, T, const ROWS: usize, const COLUMNS: usize>(PhantomData<(U, T)>);

/// A left factor.
pub type MatrixA<T, const M: usize, const K: usize> = MatrixOf<RoleA, T, M, K>;
/// A right factor.
pub type MatrixB<T, const K: usize, const N: usize> = MatrixOf<RoleB, T, K, N>;
/// What products are added to.
pub type Accumulator<T, const M: usize, const N: usize> = MatrixOf<RoleAccumulator, T, M, N>;

/// Element types of factors whose products can be added up in `S`: f16 in f32 and f16, bf16 in f32.
pub trait Factor<S>: Lit {}
impl Factor<f32> for f16 {}
impl Factor<f16> for f16 {}
impl Factor<f32> for bf16 {}

impl<U: Role, T: Lit, const ROWS: usize, const COLUMNS: usize> Type for MatrixOf<U, T, ROWS, COLUMNS> {
    type Bool = bool;
    fn ty(kernel: &mut Kernel) -> Ty {
        let matrix = Matrix { role: U::USE, scalar: T::SCALAR, rows: ROWS as u32, columns: COLUMNS as u32 };
        kernel.intern(Shape::Matrix(matrix)).unwrap_or(Ty::scalar(T::SCALAR))
    }
}

/// A type of matrix.
pub trait MatrixType: Type {
    /// The type of its elements.
    type Element: Lit;
}
impl<U: Role, T: Lit, const ROWS: usize, const COLUMNS: usize> MatrixType for MatrixOf<U, T, ROWS, COLUMNS> {
    type Element = T;
}

/// Memory that matrices can be loaded from: of their scalars, or of vectors of them.
pub trait Elements<T>: Copy {
    /// Which memory.
    fn memory(self) -> MemoryId;
}
macro_rules! elements {
    ($($memory:ident of $t:ty $(, $n:ident)?;)*) => {
        $(impl<T: Lit $(, const $n: usize)?> Elements<T> for $memory<'_, $t> {
            fn memory(self) -> MemoryId {
                self.id
            }
        })*
    };
}
elements!(Buf of T; BufMut of T; Buf of Vector<T, N>, N; BufMut of Vector<T, N>, N;);

impl Builder {
    /// A matrix from memory: element (0, 0) lies at `index`, and each row (or column, in that layout) `stride` elements after the one before.
    ///
    /// Index and stride are multiples of 16 bytes, or of a whole row where that is shorter; in memory of vectors they count vectors.
    ///
    /// ```
    /// use half::f16;
    /// use impasto_kernel::{Accumulator, Builder, MatrixLayout, MatrixA, MatrixB};
    /// let kernel = Builder::kernel("product", [32, 1, 1], |k| {
    ///     let (x, y) = (k.buffer::<f16>("x"), k.buffer::<f16>("y"));
    ///     let z = k.buffer_mut::<f32>("z");
    ///     let n = k.param::<u32>("n");
    ///     let sum = k.var(k.matrix_fill::<Accumulator<f32, 16, 16>>(0.0));
    ///     k.for_step(0u32, n, 16, |_, i| {
    ///         let a = k.matrix_load::<MatrixA<f16, 16, 16>>(x, i, n, MatrixLayout::Row);
    ///         let b = k.matrix_load::<MatrixB<f16, 16, 16>>(y, i, n, MatrixLayout::Column);
    ///         sum.set(k.matrix_mul_add(a, b, sum.get()));
    ///     });
    ///     k.matrix_store(z, 0, 16, MatrixLayout::Row, sum.get().scaled(0.5));
    /// })?;
    /// # Ok::<(), impasto_kernel::KernelError>(())
    /// ```
    #[track_caller]
    pub fn matrix_load<'k, M: MatrixType>(
        &'k self,
        from: impl Elements<M::Element>,
        index: impl IntoVal<'k, u32>,
        stride: impl IntoVal<'k, u32>,
        layout: MatrixLayout,
    ) -> Val<'k, M> {
        let (index, stride) = (index.into_val(self), stride.into_val(self));
        self.emit(OpKind::MatrixLoad(from.memory(), layout), &[index.id, stride.id])
    }

    /// A matrix to memory, as [`matrix_load`](Builder::matrix_load) would find it. The stride is no shorter than a row.
    #[track_caller]
    pub fn matrix_store<'k, M: MatrixType>(
        &'k self,
        to: BufMut<'k, M::Element>,
        index: impl IntoVal<'k, u32>,
        stride: impl IntoVal<'k, u32>,
        layout: MatrixLayout,
        matrix: Val<'k, M>,
    ) {
        let (index, stride) = (index.into_val(self), stride.into_val(self));
        self.act(OpKind::MatrixStore(to.id, layout), &[index.id, stride.id, matrix.id]);
    }

    /// A matrix with one number in every element.
    #[track_caller]
    pub fn matrix_fill<'k, M: MatrixType>(&'k self, x: impl IntoVal<'k, M::Element>) -> Val<'k, M> {
        let x = x.into_val(self);
        self.emit(OpKind::MatrixFill, &[x.id])
    }

    /// `a * b + c`, added up in f32. A device may add in another order than the executor, within its bounds.
    #[track_caller]
    pub fn matrix_mul_add<'k, T: Factor<S>, S: Lit, const M: usize, const N: usize, const K: usize>(
        &'k self,
        a: Val<'k, MatrixA<T, M, K>>,
        b: Val<'k, MatrixB<T, K, N>>,
        c: Val<'k, Accumulator<S, M, N>>,
    ) -> Val<'k, Accumulator<S, M, N>> {
        self.emit(OpKind::MatrixMulAdd, &[a.id, b.id, c.id])
    }
}

impl<'k, U: Role, T: Lit, const ROWS: usize, const COLUMNS: usize> Val<'k, MatrixOf<U, T, ROWS, COLUMNS>> {
    /// The same matrix with elements of another type.
    #[track_caller]
    pub fn elements_as<S: Lit>(self) -> Val<'k, MatrixOf<U, S, ROWS, COLUMNS>> {
        self.k.emit(OpKind::Convert, &[self.id])
    }
}

// Methods and no operators: more types with `+` would make rustc guess the types of literals otherwise in kernels without matrices.
impl<'k, U: Role, T: Lit + Float, const ROWS: usize, const COLUMNS: usize> Val<'k, MatrixOf<U, T, ROWS, COLUMNS>> {
    #[track_caller]
    fn by_elements(self, f: BinaryOp, other: Self) -> Self {
        self.k.emit(OpKind::Binary(f), &[self.id, other.id])
    }

    /// The sum, element by element.
    #[track_caller]
    pub fn plus(self, other: Self) -> Self {
        self.by_elements(BinaryOp::Add, other)
    }

    /// The difference, element by element.
    #[track_caller]
    pub fn minus(self, other: Self) -> Self {
        self.by_elements(BinaryOp::Sub, other)
    }

    /// The product, element by element.
    #[track_caller]
    pub fn times(self, other: Self) -> Self {
        self.by_elements(BinaryOp::Mul, other)
    }

    /// Each element times a number.
    #[track_caller]
    pub fn scaled(self, by: impl IntoVal<'k, T>) -> Self {
        let by = by.into_val(self.k);
        self.k.emit(OpKind::MatrixScale, &[self.id, by.id])
    }
}
