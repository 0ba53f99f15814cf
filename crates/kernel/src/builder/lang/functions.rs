//! The functions of the language. In a kernel they are called without the builder: `global_id(0)`.

use super::super::matrix::{Accumulator, Elements, Factor, MatrixA, MatrixB, MatrixType};
use super::super::types::{IntoVal, Lit, Type, Vector};
use super::super::{BufMut, Builder, Val};
use super::Repeat;
use crate::ir::MatrixLayout;

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident($($axis:ident)?)),*) => {
        $($(#[$doc])* #[track_caller] pub fn $name(k: &Builder $(, $axis: u8)?) -> Val<'_, u32> {
            k.$name($($axis)?)
        })*
    };
}
numbers!(
    /// The place of this invocation among all; axes are 0, 1, 2.
    global_id(axis),
    /// The place of this invocation in its workgroup.
    local_id(axis),
    /// The place of the workgroup.
    workgroup_id(axis),
    /// The number of workgroups.
    num_workgroups(axis),
    /// The place in the workgroup as one number.
    local_index(),
    /// Invocations in a subgroup.
    subgroup_size(),
    /// The place in the subgroup.
    subgroup_lane(),
    /// The place of the subgroup in the workgroup.
    subgroup_id()
);

/// All invocations of the workgroup wait for each other, and see what the others wrote.
#[track_caller]
pub fn barrier(k: &Builder) {
    k.barrier();
}

/// All invocations of the subgroup wait for each other, and see what the others wrote.
#[track_caller]
pub fn subgroup_barrier(k: &Builder) {
    k.subgroup_barrier();
}

/// [`Builder::matrix_load`].
#[track_caller]
pub fn matrix_load<'k, M: MatrixType>(
    k: &'k Builder,
    from: impl Elements<M::Element>,
    index: impl IntoVal<'k, u32>,
    stride: impl IntoVal<'k, u32>,
    layout: MatrixLayout,
) -> Val<'k, M> {
    k.matrix_load(from, index, stride, layout)
}

/// [`Builder::matrix_store`].
#[track_caller]
pub fn matrix_store<'k, M: MatrixType>(
    k: &'k Builder,
    to: BufMut<'k, M::Element>,
    index: impl IntoVal<'k, u32>,
    stride: impl IntoVal<'k, u32>,
    layout: MatrixLayout,
    matrix: Val<'k, M>,
) {
    k.matrix_store(to, index, stride, layout, matrix);
}

/// [`Builder::matrix_fill`].
#[track_caller]
pub fn matrix_fill<'k, M: MatrixType>(k: &'k Builder, x: impl IntoVal<'k, M::Element>) -> Val<'k, M> {
    k.matrix_fill(x)
}

/// [`Builder::matrix_mul_add`].
#[track_caller]
pub fn matrix_mul_add<'k, T: Factor<S>, S: Lit, const M: usize, const N: usize, const K: usize>(
    k: &'k Builder,
    a: Val<'k, MatrixA<T, M, K>>,
    b: Val<'k, MatrixB<T, K, N>>,
    c: Val<'k, Accumulator<S, M, N>>,
) -> Val<'k, Accumulator<S, M, N>> {
    k.matrix_mul_add(a, b, c)
}

/// An array that the invocations of a workgroup share. It holds nothing until it is written.
pub fn shared<T: Type>(k: &Builder, elements: u32) -> BufMut<'_, T> {
    k.shared(&k.unused_name("shared"), elements)
}

/// An array of this invocation, zero where it is declared.
#[track_caller]
pub fn private<T: Lit>(k: &Builder, elements: u32) -> BufMut<'_, T> {
    let array = k.private(&k.unused_name("private"), elements);
    // The arrays of an invocation are zero when it begins, and this may be reached more than once.
    if k.state.borrow().asm.depth() > 1 {
        let (repeat, i) = Repeat::range(k, 0u32, elements, 1);
        array.store(i, k.lit(T::nearest(0.0)));
        repeat.end();
    }
    array
}

/// Gives an array the name of the variable that holds it, in messages and in the textual form.
pub fn named<'k, T>(array: BufMut<'k, T>, name: &str) -> BufMut<'k, T> {
    let k = array.k;
    let name = k.unused_name(name);
    k.state.borrow_mut().asm.kernel.memories[array.id.index()].name = name;
    array
}

/// The number of type `T` nearest to `x`, for kernels that are generic.
#[track_caller]
pub fn lit<T: Lit>(k: &Builder, x: f64) -> Val<'_, T> {
    k.lit(T::nearest(x))
}

/// A vector of two.
#[track_caller]
pub fn vec2<'k, T: Lit>(k: &'k Builder, x: impl IntoVal<'k, T>, y: impl IntoVal<'k, T>) -> Val<'k, Vector<T, 2>> {
    k.vector([x.into_val(k), y.into_val(k)])
}

/// A vector of three.
#[track_caller]
pub fn vec3<'k, T: Lit>(
    k: &'k Builder,
    x: impl IntoVal<'k, T>,
    y: impl IntoVal<'k, T>,
    z: impl IntoVal<'k, T>,
) -> Val<'k, Vector<T, 3>> {
    k.vector([x.into_val(k), y.into_val(k), z.into_val(k)])
}

/// A vector of four.
#[track_caller]
pub fn vec4<'k, T: Lit>(
    k: &'k Builder,
    x: impl IntoVal<'k, T>,
    y: impl IntoVal<'k, T>,
    z: impl IntoVal<'k, T>,
    w: impl IntoVal<'k, T>,
) -> Val<'k, Vector<T, 4>> {
    k.vector([x.into_val(k), y.into_val(k), z.into_val(k), w.into_val(k)])
}

/// A vector of four times the same number.
#[track_caller]
pub fn splat4<'k, T: Lit>(k: &'k Builder, x: impl IntoVal<'k, T>) -> Val<'k, Vector<T, 4>> {
    let x = x.into_val(k);
    k.vector([x, x, x, x])
}

/// The size of a workgroup: three numbers, or fewer where the others are 1.
pub trait Workgroup {
    /// All three.
    fn size(self) -> [u32; 3];
}

impl Workgroup for u32 {
    fn size(self) -> [u32; 3] {
        [self, 1, 1]
    }
}
impl Workgroup for [u32; 2] {
    fn size(self) -> [u32; 3] {
        [self[0], self[1], 1]
    }
}
impl Workgroup for [u32; 3] {
    fn size(self) -> [u32; 3] {
        self
    }
}

/// The size of a workgroup.
pub fn workgroup(size: impl Workgroup) -> [u32; 3] {
    size.size()
}
