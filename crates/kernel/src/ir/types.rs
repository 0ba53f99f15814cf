//! The types of values. Scalars and vectors have fixed numbers, so that asking for them needs no table; arrays, structs and matrices
//! are interned in the kernel that uses them.

use std::fmt;

use super::op::MatrixLayout;

/// A number or a bool.
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

    /// Bits of a number of this type; a bool has one.
    pub fn bits(self) -> u32 {
        [1, 32, 32, 64, 64, 16, 16, 32][self as usize]
    }

    /// Bytes in a buffer. A bool has no place in one.
    pub fn bytes(self) -> u32 {
        self.bits() / 8
    }

    /// Whether this is an integer.
    pub fn is_int(self) -> bool {
        matches!(self, Scalar::I32 | Scalar::U32 | Scalar::I64 | Scalar::U64)
    }

    /// Whether this is an integer with a sign.
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
    pub fn with_scalar(self, s: Scalar) -> Option<Ty> {
        match self.lanes()? {
            (_, 1) => Some(Ty::scalar(s)),
            (_, n) => Ty::vector(s, n),
        }
    }

    /// Below [`Kernel::type_count`](crate::ir::Kernel::type_count).
    pub fn number(self) -> usize {
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
    /// A matrix that the invocations of a subgroup hold together; it has no members.
    Matrix(Matrix),
    /// A type of an imported module, by its id there.
    Foreign(u32, Members),
}

/// The members of a type of an imported module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Members {
    /// It has none, or none that a number names.
    None,
    /// So many of one type, each by itself: an array.
    Same(Ty, u32),
    /// So many of one type that are computed with together: a vector or a matrix.
    Lanes(Ty, u32),
    /// Each of its own type.
    Each(Vec<Ty>),
}

/// What a matrix may be in a product `a * b + c`. Devices lay the three out differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the variants are the places in the product")]
pub enum MatrixUse {
    A,
    B,
    Accumulator,
}

impl MatrixUse {
    /// All of them, with their names in the textual form.
    pub const ALL: [(MatrixUse, &'static str); 3] =
        [(MatrixUse::A, "matrix_a"), (MatrixUse::B, "matrix_b"), (MatrixUse::Accumulator, "accumulator")];
}

/// The type of a matrix that the invocations of a subgroup hold together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// What it may be in a product.
    pub role: MatrixUse,
    /// The type of an element: f16, bf16 or f32.
    pub scalar: Scalar,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
}

impl Matrix {
    /// The number of elements.
    pub fn elements(self) -> u32 {
        self.rows * self.columns
    }

    /// The place of an element in memory, from that of the first: (factor of the stride, rest).
    pub fn place(layout: MatrixLayout, row: u32, column: u32) -> (u32, u32) {
        match layout {
            MatrixLayout::Row => (row, column),
            MatrixLayout::Column => (column, row),
        }
    }

    /// Elements that lie one after the other in memory.
    pub fn run(self, layout: MatrixLayout) -> u32 {
        if layout == MatrixLayout::Row { self.columns } else { self.rows }
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = MatrixUse::ALL[self.role as usize].1;
        write!(f, "{role}({}, {}, {})", self.scalar, self.rows, self.columns)
    }
}

/// A product that a subgroup can compute: (m, k) times (k, n), added to (m, n).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixShape {
    /// The type of the elements of the factors.
    pub factor: Scalar,
    /// The type of the elements of what is added, and of the result.
    pub result: Scalar,
    /// Rows of the result.
    pub m: u32,
    /// Columns of the result.
    pub n: u32,
    /// The length of each sum.
    pub k: u32,
}

impl MatrixShape {
    /// The shape of a product of these, if they fit.
    pub fn of(a: Matrix, b: Matrix, c: Matrix) -> Option<MatrixShape> {
        let roles = (a.role, b.role, c.role) == (MatrixUse::A, MatrixUse::B, MatrixUse::Accumulator);
        let sizes = a.columns == b.rows && a.rows == c.rows && b.columns == c.columns;
        let shape = MatrixShape { factor: a.scalar, result: c.scalar, m: a.rows, n: b.columns, k: a.columns };
        (roles && sizes && a.scalar == b.scalar).then_some(shape)
    }

    /// Whether a matrix can be part of this product.
    pub fn has(self, x: Matrix) -> bool {
        let part = match x.role {
            MatrixUse::A => (self.factor, self.m, self.k),
            MatrixUse::B => (self.factor, self.k, self.n),
            MatrixUse::Accumulator => (self.result, self.m, self.n),
        };
        part == (x.scalar, x.rows, x.columns)
    }
}

impl fmt::Display for MatrixShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{} of {} into {}", self.m, self.n, self.k, self.factor, self.result)
    }
}
