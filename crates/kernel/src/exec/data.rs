//! The contents of buffers.

use crate::ir::{DataLayout, Kernel, Scalar, Ty};

/// What a buffer holds, as the bits of its scalars, where they lie on a device.
///
/// Elements that are scalars or vectors are scalars of their type, and a vector of 3 is followed by one that nobody reads. Elements that are arrays or
/// structs are words of u32, in which their scalars lie as [`Kernel::layout`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferData {
    /// The type of the scalars.
    pub ty: Scalar,
    /// Their bits.
    pub bits: Vec<u64>,
}

impl BufferData {
    /// As many zeros.
    pub fn zeros(ty: Scalar, scalars: usize) -> BufferData {
        BufferData { ty, bits: vec![0; scalars] }
    }

    /// The scalars as f32, if that is what they are.
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        (self.ty == Scalar::F32).then(|| self.bits.iter().map(|&b| f32::from_bits(b as u32)).collect())
    }

    /// Numbers for a launch that computes f32 as f64.
    pub fn wide(x: &[f64]) -> BufferData {
        BufferData { ty: Scalar::F32, bits: x.iter().map(|x| x.to_bits()).collect() }
    }

    /// The numbers of a launch that computed f32 as f64.
    pub fn to_f64(&self) -> Option<Vec<f64>> {
        (self.ty == Scalar::F32).then(|| self.bits.iter().map(|&b| f64::from_bits(b)).collect())
    }

    /// The scalars as u32, if that is what they are.
    pub fn to_u32(&self) -> Option<Vec<u32>> {
        (self.ty == Scalar::U32).then(|| self.bits.iter().map(|&b| b as u32).collect())
    }
}

impl From<&[f32]> for BufferData {
    fn from(x: &[f32]) -> BufferData {
        BufferData { ty: Scalar::F32, bits: x.iter().map(|x| x.to_bits().into()).collect() }
    }
}

impl From<&[u32]> for BufferData {
    fn from(x: &[u32]) -> BufferData {
        BufferData { ty: Scalar::U32, bits: x.iter().map(|&x| x.into()).collect() }
    }
}

impl From<&[i32]> for BufferData {
    fn from(x: &[i32]) -> BufferData {
        BufferData { ty: Scalar::I32, bits: x.iter().map(|&x| x as u32 as u64).collect() }
    }
}

/// What the scalars of [`BufferData`] are for elements of this type, and of how many there must be a multiple.
pub(super) fn unit(ty: Ty) -> (Scalar, u32) {
    match ty.lanes() {
        Some((s, n)) => (s, n.next_power_of_two()),
        None => (Scalar::U32, 1),
    }
}

/// Where the scalars of a buffer's elements lie in its [`BufferData`].
pub(super) struct ScalarOffsets {
    layout: DataLayout,
    unit: u32,
    /// An f32 that is computed as an f64 has all the bits of its place.
    wide: bool,
}

impl ScalarOffsets {
    pub(super) fn new(k: &Kernel, ty: Ty, wide: bool) -> ScalarOffsets {
        let (s, _) = unit(ty);
        ScalarOffsets { layout: k.lay_out(ty), unit: s.bytes().max(1), wide: wide && s == Scalar::F32 }
    }

    pub(super) fn elements(&self, data: &BufferData) -> usize {
        self.layout.elements(data.bits.len() as u64 * u64::from(self.unit)) as usize
    }

    /// The first number of a scalar, the bits before it in that number, and its type.
    fn find(&self, element: usize, scalar: usize) -> (usize, usize, Scalar) {
        let (at, s) = self.layout.scalars[scalar];
        let byte = element * self.layout.stride() as usize + at as usize;
        (byte / self.unit as usize, byte % self.unit as usize * 8, s)
    }

    pub(super) fn get(&self, data: &BufferData, element: usize, scalar: usize) -> u64 {
        let (at, before, s) = self.find(element, scalar);
        if self.wide {
            return data.bits[at];
        }
        let mut bits = data.bits[at] >> before;
        if s.bytes() > self.unit {
            bits |= data.bits[at + 1] << (8 * self.unit);
        }
        bits & s.mask()
    }

    pub(super) fn put(&self, data: &mut BufferData, element: usize, scalar: usize, bits: u64) {
        let (at, before, s) = self.find(element, scalar);
        if self.wide {
            data.bits[at] = bits;
            return;
        }
        let all = data.ty.mask();
        data.bits[at] = data.bits[at] & !(s.mask() << before) & all | (bits << before) & all;
        if s.bytes() > self.unit {
            data.bits[at + 1] = bits >> (8 * self.unit);
        }
    }
}
