//! vec4 access to tensors: four neighbours of a row at a time, as vectors where rows are of whole vec4s, one by one where they are not.

use half::{bf16, f16};
use impasto_graph::DType;
use impasto_kernel::{Buf, BufMut, Builder, StoredBuf, StoredBufMut, Val, Vec4};

use super::{F, U, scalar};

/// Four neighbours in half precision.
pub(super) type Halves<'k> = Val<'k, Vec4<f16>>;

/// A tensor that is read.
#[derive(Clone, Copy)]
pub(super) enum From4<'k> {
    F32(Buf<'k, Vec4<f32>>),
    F16(Buf<'k, Vec4<f16>>),
    Bf16(Buf<'k, Vec4<bf16>>),
    Ones(StoredBuf<'k, f32>),
}

impl<'k> From4<'k> {
    /// A tensor whose rows have so many elements.
    pub(super) fn new(k: &'k Builder, name: &str, dtype: DType, row: u32) -> From4<'k> {
        match dtype {
            DType::F32 if row.is_multiple_of(4) => From4::F32(k.buffer(name)),
            DType::F16 if row.is_multiple_of(4) => From4::F16(k.buffer(name)),
            DType::BF16 if row.is_multiple_of(4) => From4::Bf16(k.buffer(name)),
            _ => From4::Ones(k.stored(name, scalar(dtype))),
        }
    }

    /// The elements from `i` on, of which `left` are there.
    pub(super) fn at(self, k: &'k Builder, i: U<'k>, left: U<'k>) -> [F<'k>; 4] {
        match self {
            From4::F32(b) => parts(b.load(i / 4u32)),
            From4::F16(b) => parts(b.load(i / 4u32)).map(Val::to),
            From4::Bf16(b) => parts(b.load(i / 4u32)).map(Val::to),
            From4::Ones(s) => [0, 1, 2, 3].map(|j| k.if_value(left.gt(j), || s.load(i + j), || k.lit(0f32))),
        }
    }

    /// The same in half precision, each element times `scale`.
    pub(super) fn halves(self, k: &'k Builder, i: U<'k>, left: U<'k>, scale: f32) -> Halves<'k> {
        match self {
            From4::F16(b) => b.load(i / 4u32),
            _ => k.vector(self.at(k, i, left).map(|x| if scale == 1.0 { x } else { x * scale }.to::<f16>())),
        }
    }
}

/// A tensor that is written.
#[derive(Clone, Copy)]
pub(super) enum To4<'k> {
    F32(BufMut<'k, Vec4<f32>>),
    F16(BufMut<'k, Vec4<f16>>),
    Bf16(BufMut<'k, Vec4<bf16>>),
    Ones(StoredBufMut<'k, f32>),
}

impl<'k> To4<'k> {
    /// A tensor whose rows have so many elements.
    pub(super) fn new(k: &'k Builder, name: &str, dtype: DType, row: u32) -> To4<'k> {
        match dtype {
            DType::F32 if row.is_multiple_of(4) => To4::F32(k.buffer_mut(name)),
            DType::F16 if row.is_multiple_of(4) => To4::F16(k.buffer_mut(name)),
            DType::BF16 if row.is_multiple_of(4) => To4::Bf16(k.buffer_mut(name)),
            _ => To4::Ones(k.stored_mut(name, scalar(dtype))),
        }
    }

    /// The elements from `i` on, of which `left` are there.
    pub(super) fn set(self, k: &'k Builder, i: U<'k>, left: U<'k>, x: [F<'k>; 4]) {
        match self {
            To4::F32(b) => b.store(i / 4u32, k.vector(x)),
            To4::F16(b) => b.store(i / 4u32, k.vector(x.map(Val::to::<f16>))),
            To4::Bf16(b) => b.store(i / 4u32, k.vector(x.map(Val::to::<bf16>))),
            To4::Ones(s) => {
                for (j, x) in (0u32..).zip(x) {
                    k.if_(left.gt(j), || s.store(i + j, x));
                }
            }
        }
    }
}

fn parts<T: impasto_kernel::Lit>(v: Val<'_, Vec4<T>>) -> [Val<'_, T>; 4] {
    [0, 1, 2, 3].map(|i| v.component(i))
}
