//! Where the scalars of an element lie in a buffer: the rules of std430.
//!
//! A scalar is aligned to its size. A vector of 2 is aligned to two scalars; vectors of 3 and of 4 to four, so that after a vector of 3
//! there is a gap of one scalar, which the next member of a struct may fill if it is small enough. An array is aligned as its elements, and
//! each of them begins at a multiple of their alignment. A struct is aligned as its widest member.

use super::kernel::Kernel;
use super::types::{Matrix, Members, Scalar, Shape, Ty};

/// Scalars in one value: larger arrays belong into memory.
pub(crate) const MAX_SCALARS: u64 = 256;

/// Where the scalars of an element lie, so that hosts can fill buffers.
///
/// ```
/// let kernel: impasto_kernel::Kernel = "kernel k(1, 1, 1) {
///   buffer x: {f32x3, f16, [u64; 2]} read
///   return
/// }".parse()?;
/// let layout = kernel.layout(kernel.memories()[0].ty).unwrap();
/// let offsets: Vec<u32> = layout.scalars.iter().map(|s| s.0).collect();
/// assert_eq!(offsets, [0, 4, 8, 12, 16, 24]);
/// assert_eq!((layout.align, layout.size, layout.stride()), (16, 32, 32));
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataLayout {
    /// An element begins at a multiple of this many bytes.
    pub align: u32,
    /// Bytes from its first to after its last scalar.
    pub size: u32,
    /// The place of each scalar in bytes, in the order of members and components, and its type.
    pub scalars: Vec<(u32, Scalar)>,
}

impl DataLayout {
    /// Bytes from one element to the next.
    pub fn stride(&self) -> u32 {
        self.size.next_multiple_of(self.align)
    }

    /// Elements in so many bytes.
    pub fn elements(&self, bytes: u64) -> u64 {
        bytes / u64::from(self.stride())
    }
}

/// Bytes of a scalar in memory. A bool has no place in a buffer; elsewhere it counts as a word.
fn bytes(s: Scalar) -> u32 {
    if s == Scalar::Bool { 4 } else { s.bytes() }
}

impl Kernel {
    /// Where the scalars of an element of this type lie in a buffer. There is no place for a bool, nor for more scalars than a value
    /// may have.
    pub fn layout(&self, ty: Ty) -> Option<DataLayout> {
        let fits = self.scalars(ty) <= MAX_SCALARS && !self.any_scalar(ty, |s| s == Scalar::Bool);
        fits.then(|| self.lay_out(ty))
    }

    /// Scalars in a value of this type.
    pub fn scalars(&self, ty: Ty) -> u64 {
        match self.shape(ty) {
            Shape::Scalar(_) => 1,
            Shape::Vector(_, n) => n.into(),
            Shape::Array(of, n) => self.scalars(of).saturating_mul(n.into()),
            Shape::Struct(members) => members.iter().fold(0, |sum: u64, &m| sum.saturating_add(self.scalars(m))),
            Shape::Matrix(m) => u64::from(m.rows) * u64::from(m.columns),
            Shape::Foreign(_, Members::None) => 1,
            Shape::Foreign(_, Members::Same(of, n) | Members::Lanes(of, n)) => {
                self.scalars(of).saturating_mul(n.into())
            }
            Shape::Foreign(_, Members::Each(members)) => {
                members.iter().fold(0, |sum: u64, &m| sum.saturating_add(self.scalars(m)))
            }
        }
    }

    /// The layout of a type that is known to be small.
    pub fn lay_out(&self, ty: Ty) -> DataLayout {
        match self.shape(ty) {
            Shape::Scalar(s) => DataLayout { align: bytes(s), size: bytes(s), scalars: vec![(0, s)] },
            // A matrix lies in memory by its elements, and is no element of any.
            Shape::Matrix(m) => self.lay_out(Ty::scalar(m.scalar)),
            // Imported modules say themselves where their members lie.
            Shape::Foreign(..) => DataLayout { align: 1, size: 1, scalars: Vec::new() },
            Shape::Vector(s, n) => DataLayout {
                align: bytes(s) * n.next_power_of_two(),
                size: bytes(s) * n,
                scalars: (0..n).map(|i| (i * bytes(s), s)).collect(),
            },
            Shape::Array(of, n) => {
                let of = self.lay_out(of);
                let mut all = DataLayout { align: of.align, size: of.stride() * n, scalars: Vec::new() };
                for i in 0..n {
                    all.scalars.extend(of.scalars.iter().map(|&(at, s)| (at + i * of.stride(), s)));
                }
                all
            }
            Shape::Struct(members) => {
                let mut all = DataLayout { align: 1, size: 0, scalars: Vec::new() };
                for (member, at) in members.iter().zip(self.member_offsets(&members)) {
                    let one = self.lay_out(*member);
                    all.align = all.align.max(one.align);
                    all.size = at + one.size;
                    all.scalars.extend(one.scalars.iter().map(|&(inner, s)| (at + inner, s)));
                }
                all.size = all.size.next_multiple_of(all.align);
                all
            }
        }
    }

    /// The places of the members of a struct, in bytes.
    pub fn member_offsets(&self, members: &[Ty]) -> Vec<u32> {
        let mut end = 0u32;
        let place = |&ty: &Ty| {
            let one = self.lay_out(ty);
            let at = end.next_multiple_of(one.align);
            end = at + one.size;
            at
        };
        members.iter().map(place).collect()
    }

    /// Whether any scalar of a type is such a one.
    pub fn any_scalar(&self, ty: Ty, is: fn(Scalar) -> bool) -> bool {
        match self.shape(ty) {
            Shape::Scalar(s) | Shape::Vector(s, _) | Shape::Matrix(Matrix { scalar: s, .. }) => is(s),
            Shape::Array(of, _) => self.any_scalar(of, is),
            Shape::Struct(members) => members.iter().any(|&m| self.any_scalar(m, is)),
            Shape::Foreign(..) => false,
        }
    }
}
