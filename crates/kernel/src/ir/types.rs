//! The types of values. Scalars and vectors have fixed numbers, so that asking for them needs no table; arrays and structs are
//! interned in the kernel that uses them.

use std::fmt;

/// A number or a truth value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the variants are the types' names")]
#[repr(u8)]
pub enum Scalar {
    Bool,
    I32,
    U32,
    I64,
    U64,
    F16,
    Bf16,
    F32,
}

impl Scalar {
    /// All scalar types, in the order of their numbers.
    pub const ALL: [Scalar; 8] =
        [Scalar::Bool, Scalar::I32, Scalar::U32, Scalar::I64, Scalar::U64, Scalar::F16, Scalar::Bf16, Scalar::F32];

    /// The name in the textual form.
    pub fn name(self) -> &'static str {
        ["bool", "i32", "u32", "i64", "u64", "f16", "bf16", "f32"][self as usize]
    }

    /// Bits of a number of this type; a truth value has one.
    pub fn bits(self) -> u32 {
        [1, 32, 32, 64, 64, 16, 16, 32][self as usize]
    }

    /// Bytes in a buffer. A truth value has no place in one.
    pub fn bytes(self) -> u32 {
        self.bits() / 8
    }

    /// Whether this is a whole number.
    pub fn is_int(self) -> bool {
        matches!(self, Scalar::I32 | Scalar::U32 | Scalar::I64 | Scalar::U64)
    }

    /// Whether this is a whole number with a sign.
    pub fn is_signed(self) -> bool {
        matches!(self, Scalar::I32 | Scalar::I64)
    }

    /// Whether this is a float.
    pub fn is_float(self) -> bool {
        matches!(self, Scalar::F16 | Scalar::Bf16 | Scalar::F32)
    }

    /// Whether there is arithmetic on this type. `bf16` is a format of storage: convert it to `f32` to compute.
    pub fn is_arithmetic(self) -> bool {
        self.is_int() || matches!(self, Scalar::F16 | Scalar::F32)
    }

    /// The bits that a number of this type may have set.
    pub fn mask(self) -> u64 {
        if self.bits() == 64 { u64::MAX } else { (1 << self.bits()) - 1 }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The type of a value, as a number. What it is, [`Kernel::shape`](crate::Kernel::shape) tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ty(pub(crate) u32);

/// The first number of a type that stands in the kernel's table.
const TABLE: u32 = 32;

impl Ty {
    /// A scalar.
    pub const fn scalar(s: Scalar) -> Ty {
        Ty(s as u32)
    }

    /// A vector of 2, 3 or 4 scalars; nothing else is one.
    pub fn vector(s: Scalar, n: u32) -> Option<Ty> {
        (2..=4).contains(&n).then(|| Ty(8 + s as u32 * 3 + n - 2))
    }

    /// The scalar, if it is one.
    pub fn as_scalar(self) -> Option<Scalar> {
        Scalar::ALL.get(self.0 as usize).copied()
    }

    /// The scalar and the number of components, if it is a scalar (one component) or a vector.
    pub fn lanes(self) -> Option<(Scalar, u32)> {
        match self.0 {
            n @ 0..8 => Some((Scalar::ALL[n as usize], 1)),
            n @ 8..TABLE => Some((Scalar::ALL[(n as usize - 8) / 3], (n - 8) % 3 + 2)),
            _ => None,
        }
    }

    /// The same number of components of another scalar.
    pub(crate) fn with_scalar(self, s: Scalar) -> Option<Ty> {
        match self.lanes()? {
            (_, 1) => Some(Ty::scalar(s)),
            (_, n) => Ty::vector(s, n),
        }
    }

    /// Below [`Kernel::type_count`](crate::ir::Kernel::type_count).
    pub(crate) fn number(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn from_table(index: usize) -> Ty {
        Ty(TABLE + index as u32)
    }

    pub(crate) fn table_index(self) -> Option<usize> {
        self.0.checked_sub(TABLE).map(|i| i as usize)
    }
}

/// What a type is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// One scalar.
    Scalar(Scalar),
    /// 2, 3 or 4 of the same scalar.
    Vector(Scalar, u32),
    /// A fixed number of the same type.
    Array(Ty, u32),
    /// Members of any types.
    Struct(Vec<Ty>),
}
