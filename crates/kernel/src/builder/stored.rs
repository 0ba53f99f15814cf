//! Buffers whose elements are kept as another type than they are computed with, one that is chosen while the kernel is written: a kernel is
//! the same function for tensors of every storage type.

use std::marker::PhantomData;

use super::types::{IntoVal, Lit};
use super::{Builder, Val};
use crate::ir::{Access, MemoryId, OpKind, Scalar, Space, Ty};

/// A buffer that is read as `T`.
#[derive(Clone, Copy, Debug)]
pub struct StoredBuf<'k, T> {
    k: &'k Builder,
    id: MemoryId,
    scalar: Scalar,
    ty: PhantomData<T>,
}

/// A buffer that is read and written as `T`.
#[derive(Clone, Copy, Debug)]
pub struct StoredBufMut<'k, T>(StoredBuf<'k, T>);

impl Builder {
    /// A buffer of elements of type `scalar` that is read as `T`.
    pub fn stored<T: Lit>(&self, name: &str, scalar: Scalar) -> StoredBuf<'_, T> {
        let id = self.memory_of(name, Ty::scalar(scalar), Space::Buffer(Access::Read));
        StoredBuf { k: self, id, scalar, ty: PhantomData }
    }

    /// A buffer of elements of type `scalar` that is read and written as `T`.
    pub fn stored_mut<T: Lit>(&self, name: &str, scalar: Scalar) -> StoredBufMut<'_, T> {
        let id = self.memory_of(name, Ty::scalar(scalar), Space::Buffer(Access::ReadWrite));
        StoredBufMut(StoredBuf { k: self, id, scalar, ty: PhantomData })
    }
}

impl<'k, T: Lit> StoredBuf<'k, T> {
    /// The element at an index.
    #[track_caller]
    pub fn load(self, i: impl IntoVal<'k, u32>) -> Val<'k, T> {
        let i = i.into_val(self.k);
        if self.scalar == T::SCALAR {
            return self.k.emit(OpKind::Load(self.id), &[i.id]);
        }
        let kept = self.k.here().asm.value(OpKind::Load(self.id), &[i.id], Ty::scalar(self.scalar));
        self.k.emit(OpKind::Convert, &[kept])
    }
}

impl<'k, T: Lit> StoredBufMut<'k, T> {
    /// The element at an index.
    #[track_caller]
    pub fn load(self, i: impl IntoVal<'k, u32>) -> Val<'k, T> {
        self.0.load(i)
    }

    /// Writes the element at an index.
    #[track_caller]
    pub fn store(self, i: impl IntoVal<'k, u32>, x: impl IntoVal<'k, T>) {
        let StoredBuf { k, id, scalar, .. } = self.0;
        let (i, x) = (i.into_val(k), x.into_val(k));
        let kept =
            if scalar == T::SCALAR { x.id } else { k.here().asm.value(OpKind::Convert, &[x.id], Ty::scalar(scalar)) };
        k.act(OpKind::Store(id), &[i.id, kept]);
    }
}
