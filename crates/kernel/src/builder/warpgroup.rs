//! Copies and products that go on while other ops run, in the language.
//!
//! ```
//! use half::f16;
//! use impasto_kernel::{Builder, MatrixLayout, Scalar, LeftTile, Vec4};
//! // A warpgroup multiplies (64, 64) by (64, 64): both are rows of 64 f16, the right one of its columns.
//! let kernel = Builder::kernel("product", [128, 1, 1], |k| {
//!     let (x, y, z) = (k.buffer::<Vec4<u32>>("x"), k.buffer::<Vec4<u32>>("y"), k.buffer_mut::<f32>("z"));
//!     let (a, b) = (k.shared::<Vec4<u32>>("a", 64 * 8), k.shared::<Vec4<u32>>("b", 64 * 8));
//!     let sums = k.registers::<f32>("sums", 32);
//!     k.for_step(k.local_index(), 64 * 8u32, 128, |_, i| {
//!         let to = i ^ (i / 8u32 % 8u32);
//!         k.async_copy(a, to, x, i, true);
//!         k.async_copy(b, to, y, i, true);
//!     });
//!     k.async_commit();
//!     k.async_wait(0);
//!     k.barrier();
//!     k.warpgroup_mul_add(sums, LeftTile::At(a, k.lit(0)), (b, k.lit(0)), [64, 4], Scalar::F16, MatrixLayout::Column, false);
//!     k.warpgroup_wait(0);
//!     for i in 0..32 {
//!         z.store(k.local_index() * 32u32 + i, sums.load(i));
//!     }
//! })?;
//! # Ok::<(), impasto_kernel::KernelError>(())
//! ```

use super::types::{IntoVal, Type};
use super::{Buf, BufMut, Builder, Val};
use crate::ir::{MatrixLayout, OpKind, Scalar, Space, WarpgroupProduct};

/// The left tile of a product of a warpgroup.
#[derive(Clone, Copy, Debug)]
pub enum LeftTile<'k, T> {
    /// In workgroup memory, from this element on.
    At(BufMut<'k, T>, Val<'k, u32>),
    /// In registers, two factors in each.
    Registers(BufMut<'k, u32>),
}

impl Builder {
    /// An array of each invocation in registers: every index is a constant. It holds nothing until it is written.
    pub fn registers<T: Type>(&self, name: &str, elements: u32) -> BufMut<'_, T> {
        BufMut { k: self, id: self.memory::<T>(name, Space::Registers(elements)), ty: std::marker::PhantomData }
    }

    /// Two numbers rounded to floats of 16 bits (f16 or bf16), the first in the lower half.
    #[track_caller]
    pub fn pack<'k>(&'k self, half: Scalar, [a, b]: [Val<'k, f32>; 2]) -> Val<'k, u32> {
        self.emit(OpKind::Pack(half), &[a.id, b.id])
    }

    /// Starts to copy 16 bytes to workgroup memory; zeros where `valid` is false.
    #[track_caller]
    pub fn async_copy<'k, T: Type, F: Type>(
        &'k self,
        to: BufMut<'k, T>,
        to_index: impl IntoVal<'k, u32>,
        from: Buf<'k, F>,
        from_index: impl IntoVal<'k, u32>,
        valid: impl IntoVal<'k, bool>,
    ) {
        let (to_index, from_index) = (to_index.into_val(self), from_index.into_val(self));
        let valid = valid.into_val(self);
        self.act(OpKind::AsyncCopy(to.id, from.id), &[to_index.id, from_index.id, valid.id]);
    }

    /// Makes a group of the copies since the last one.
    #[track_caller]
    pub fn async_commit(&self) {
        self.act(OpKind::AsyncCommit, &[]);
    }

    /// Waits until all but the last `most` groups of copies are done. What others copied is there after a barrier.
    #[track_caller]
    pub fn async_wait(&self, most: u32) {
        self.act(OpKind::AsyncWait(most), &[]);
    }

    /// Starts `sums = a * b`, with `add` true `sums += a * b`, of `[n, steps]`: [`WarpgroupProduct`] says how tiles and sums lie.
    #[track_caller]
    #[allow(clippy::too_many_arguments, reason = "a product has two factors, each with its place and form")]
    pub fn warpgroup_mul_add<'k, T: Type>(
        &'k self,
        sums: BufMut<'k, f32>,
        a: LeftTile<'k, T>,
        (b, b_index): (BufMut<'k, T>, Val<'k, u32>),
        [n, steps]: [u32; 2],
        factor: Scalar,
        layout: MatrixLayout,
        add: impl IntoVal<'k, bool>,
    ) {
        let add = add.into_val(self);
        let (left, mut args) = match a {
            LeftTile::At(memory, index) => (memory.id, vec![index.id]),
            LeftTile::Registers(memory) => (memory.id, vec![]),
        };
        args.extend([b_index.id, add.id]);
        // What does not fit is refused by the verifier as too large.
        let (n, steps) = (u16::try_from(n).unwrap_or(u16::MAX), u8::try_from(steps).unwrap_or(u8::MAX));
        let product = WarpgroupProduct { sums: sums.id, a: left, b: b.id, n, steps, factor, layout };
        self.act(OpKind::WarpgroupMulAdd(product), &args);
    }

    /// Waits until all but the last `most` products of the warpgroup are done.
    #[track_caller]
    pub fn warpgroup_wait(&self, most: u32) {
        self.act(OpKind::WarpgroupWait(most), &[]);
    }
}
