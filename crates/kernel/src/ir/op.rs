//! The one table of operations: everything that can stand in a kernel.
//!
//! A kind holds attributes only; operands, results and nested regions stand in the op. Every operation is total: what other
//! languages leave undefined has a value here (each comment says which), and is lowered so.

use super::kernel::{MemoryId, RegionId, VarId};
use super::types::Scalar;

/// A function of one number, applied to each component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the variants are the functions' names")]
pub enum UnaryOp {
    // Integers wrap; floats flip the sign bit.
    Neg,
    // Truth values, and all bits of integers.
    Not,
    // Floats clear the sign bit; the smallest integer is its own absolute value.
    Abs,
    // Floats, exact.
    Floor,
    Ceil,
    Trunc,
    RoundEven,
    // Floats, within the error bounds of the device.
    Sqrt,
    InverseSqrt,
    Exp,
    Exp2,
    Log,
    Sin,
    Cos,
    Tanh,
    // Integers of 32 bits.
    CountOnes,
    ReverseBits,
}

/// A function of two numbers, applied to each pair of components.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the variants are the functions' names")]
pub enum BinaryOp {
    // Integers wrap. Floats round to the nearest, ties to even; nothing is contracted or reassociated.
    Add,
    Sub,
    Mul,
    // Integers round towards zero; x / 0 = x, x % 0 = 0, MIN / -1 = MIN, MIN % -1 = 0. Floats: Div only, within the device's bounds.
    Div,
    Rem,
    // min(a, b) = if b < a { b } else { a }, max(a, b) = if a < b { b } else { a }: also for NaN and for zeros.
    Min,
    Max,
    // Integers and bools.
    And,
    Or,
    Xor,
    // Integers; the amount is taken modulo the number of bits. Shr keeps the sign of signed integers.
    Shl,
    Shr,
    // Floats, within the device's bounds.
    Pow,
}

/// A comparison; the result is true or false for each component. With a NaN, only `Ne` is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the variants are the comparisons' names")]
pub enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// Where an invocation stands. Three of them have axes, x y z = 0 1 2; the others ignore the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the variants are the names of the numbers")]
pub enum Builtin {
    GlobalId,
    LocalId,
    WorkgroupId,
    NumWorkgroups,
    /// `(z * size_y + y) * size_x + x` of the local id.
    LocalIndex,
    SubgroupSize,
    /// The place within the subgroup.
    SubgroupLane,
    /// The place of the subgroup within the workgroup.
    SubgroupId,
}

/// What an atomic does to the element, an i32 or u32; each returns the element as it was. `Add` and `Exchange` work on f32, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the variants are the functions' names")]
pub enum Atomic {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exchange,
    /// Operands index, expected, new: stores `new` where the element is `expected`.
    CompareExchange,
}

/// A function of the active invocations of a subgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the variants are the functions' names")]
pub enum Subgroup {
    // Reductions. The order of float sums is the device's own.
    Add,
    Min,
    Max,
    // The sum over the lanes before this one.
    ExclusiveAdd,
    // The value of the first active lane.
    BroadcastFirst,
    // The value of lane (own lane xor the second operand, a u32); an inactive lane has none, which is an error in the executor.
    ShuffleXor,
    // Of bools.
    All,
    Any,
}

/// How the elements of a matrix lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the variants say what lies together")]
pub enum MatrixLayout {
    // Each row lies together, the next one a stride further.
    Row,
    // Each column lies together, the next one a stride further.
    Column,
}

/// A product of two tiles that a warpgroup (128 invocations, the first one's local index a multiple of that) adds to its sums:
/// 64 rows, `n` columns, `16 * steps` of k.
///
/// **Tiles** lie in workgroup memory at multiples of 1,024 bytes, in rows of 128 bytes (64 factors). The 16-byte chunk `c` of row `r` lies where chunk
/// `c ^ (r % 8)` would: that is [`WarpgroupProduct::word`]. `a` has a row for each of the 64 rows of the result, along k. `b` has a row for each
/// column of the result, along k (layout `column`); or a row for each of k, along n, in blocks of 64 columns that lie one after the other (`row`).
/// Or `a` is a register array of u32, each with two factors: the elements that [`WarpgroupProduct::place`] names, one step of 16 columns after the other.
///
/// **Sums** are a register array of `n / 2` f32 in each invocation; [`WarpgroupProduct::place`] says which. They are the device's until
/// `warpgroup_wait`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WarpgroupProduct {
    /// The register array of the sums.
    pub sums: MemoryId,
    /// The left tile.
    pub a: MemoryId,
    /// The right tile.
    pub b: MemoryId,
    /// Columns of the result: 8 to 256, in eights.
    pub n: u16,
    /// Steps of 16 along k: up to 4 where a tile lies along k, else up to 16.
    pub steps: u8,
    /// The type of the factors: f16 or bf16.
    pub factor: Scalar,
    /// How the right tile lies.
    pub layout: MatrixLayout,
}

impl WarpgroupProduct {
    /// Invocations that compute it together.
    pub const INVOCATIONS: u32 = 128;
    /// Rows of the result.
    pub const ROWS: u32 = 64;
    /// Bytes that tiles begin at multiples of.
    pub const ALIGNMENT: u32 = 1024;
    /// Factors in a row of a tile.
    pub const WIDTH: u32 = 64;

    /// Row and column of element `i` of an invocation's array, the invocation by its place in the warpgroup.
    pub const fn place(invocation: u32, i: u32) -> [u32; 2] {
        let (warp, lane) = (invocation / 32, invocation % 32);
        [16 * warp + lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * (lane % 4) + i % 2]
    }

    /// The 32-bit word, from the begin of a tile, that holds the factors `2 * pair` and `2 * pair + 1` of a row.
    pub const fn word(row: u32, pair: u32) -> u32 {
        row * 32 + ((pair / 4) ^ (row % 8)) * 4 + pair % 4
    }
}

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    // Sources: values that come from nowhere inside the kernel.
    /// A scalar constant; the number of its bits in the kernel's pool.
    Const(u32),
    /// A scalar parameter.
    Param(u32),
    /// Where this invocation stands.
    Builtin(Builtin, u8),

    // Arithmetic: pure, total, on scalars and component by component on vectors.
    /// `f(a)`.
    Unary(UnaryOp),
    /// `f(a, b)`, both of the type of the result. Of matrices: Add, Sub and Mul, element by element, of f16 and f32.
    Binary(BinaryOp),
    /// `a < b` and so on.
    Compare(Compare),
    /// `a * b + c`, rounded once or twice as the device likes (so within the device's bounds); floats.
    Fma,
    /// `if c { a } else { b }` for each component, or for the whole of any type when `c` is one bool.
    Select,
    /// To the scalar of the result: floats to integers saturate, NaN gives 0; integers to integers keep the low bits; bools are 0 and 1.
    /// Of matrices: between floats, element by element.
    Convert,
    /// The same bits as another type of the same size.
    Bitcast,
    /// `a, b`, of f32: both rounded to this float of 16 bits, and their bits as one u32, the first in the lower half.
    Pack(Scalar),
    /// `value, x, dx, y, dy, ..`: the value; differentiation takes `dx`, `dy` for its derivatives by `x`, `y`, and looks at nothing else. With
    /// the value alone it has none: a stopped gradient.
    Custom,

    // Composites: vectors, arrays and structs as values.
    /// A composite from all its members.
    Make,
    /// One member.
    Extract(u32),
    /// `composite, member`: the composite with one member replaced.
    Insert(u32),

    // Memory: buffers, workgroup arrays and private arrays. An index out of bounds is an error of the program.
    /// `index`: an element.
    Load(MemoryId),
    /// `index, value`.
    Store(MemoryId),
    /// `index, value..`: an element changed in one step.
    Atomic(MemoryId, Atomic),
    /// Elements of a buffer.
    Len(MemoryId),

    // Together: never moved across control flow, nor memory across them.
    /// All invocations of the workgroup wait for each other, and see what the others wrote.
    Barrier,
    /// All invocations of the subgroup wait for each other, and see what the others wrote.
    SubgroupBarrier,
    /// A function of the active invocations of a subgroup.
    Subgroup(Subgroup),

    // Matrices: values that the invocations of a subgroup hold together. All of them do these ops, with the same operands, or none does;
    // subgroups are full. What lies in memory must be there: a barrier stands between a store and a load by others.
    /// `index, stride`: a matrix from memory whose elements are of its scalar, or vectors of it, of which each holds neighbours of a row
    /// (column, in that layout). Index and stride count elements of the memory, and are multiples of 16 bytes, or of a whole row where that
    /// is shorter.
    MatrixLoad(MemoryId, MatrixLayout),
    /// `index, stride, matrix`: a matrix to memory of its scalar, as above; the stride is no shorter than a row, so that no element has two values.
    MatrixStore(MemoryId, MatrixLayout),
    /// `scalar`: a matrix with this in every element.
    MatrixFill,
    /// `matrix, scalar`: each element times the scalar, as a product of scalars; f16 and f32.
    MatrixScale,
    /// `a, b, c`: a * b + c. Each element is c, then the products are added in order of k, all in f32, and the sum is rounded to the result.
    /// A device may add in another order and with other roundings between, within the device's bounds.
    MatrixMulAdd,

    // Copies that go on while other ops run. What is copied is there after a wait, and for others after a barrier that follows it.
    /// `index, index, valid`: starts to copy 16 bytes from a buffer that is only read to workgroup memory, both at multiples of 16 bytes; zeros where
    /// `valid` is false, and then the buffer is not looked at. Indices count elements of their memory.
    AsyncCopy(MemoryId, MemoryId),
    /// Makes a group of the copies that this invocation started since the last one.
    AsyncCommit,
    /// Waits until all but the last so many groups of this invocation are done.
    AsyncWait(u32),

    // Products of a warpgroup, which go on while other ops run: tiles and sums are not touched before the wait.
    /// `index, index, add`, or `index, add` where the left tile is in registers: starts `sums = a * b`, with `add` true `sums += a * b`. All
    /// invocations of the warpgroup do this with the same operands. Indices count elements of the tiles' memories.
    WarpgroupMulAdd(WarpgroupProduct),
    /// Waits until all but the last so many products of the warpgroup are done.
    WarpgroupWait(u32),

    // Variables: only before SSA construction.
    /// Declares a variable, with its first value.
    Var(VarId),
    /// The value of a variable.
    Get(VarId),
    /// Gives a variable another value.
    Set(VarId),

    // Structure: ops with nested regions.
    /// `condition`: two regions; results are what the region that ran yields.
    If,
    /// `selector`: one region for each arm of the case table, the last is the default.
    Switch(u32),
    /// `carried..`: one region with the carried values as arguments, run again by `continue`; results come from `break`.
    Loop,
    /// `from, to, carried..`: one region with index and carried values as arguments, run for index = from, from + step, .. below
    /// to. Results are the carried values at the end, or those of a `break`.
    For(u32),

    // Terminators: the last op of each region, and nowhere else.
    /// Results of the `if` or `switch` around this region.
    Yield,
    /// The next iteration of a loop around this, with these carried values.
    Continue(RegionId),
    /// The end of a loop around this, with these results.
    Break(RegionId),
    /// The end of this invocation.
    Return,
    /// What cannot be reached: after an op none of whose regions go on. In imported kernels also what their module says is so.
    Unreachable,

    // Only in kernels that were imported.
    /// An op that this table does not have: its number in the [`ForeignTable`](super::ForeignTable), and its effect.
    Foreign(u32, Effect),
    /// A constant or an address that this table does not have: its number in the [`ForeignTable`](super::ForeignTable).
    ForeignConst(u32),
    /// Any value: nobody may depend on it.
    Undef,
}

/// What an op does besides giving its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Nothing: it may be repeated, removed, moved.
    Pure,
    /// It reads memory.
    Reads(MemoryId),
    /// It writes memory.
    Writes(MemoryId),
    /// It works with other invocations, and stays where it is.
    Together,
    /// It reads or writes a variable.
    Variable,
    /// It directs control.
    Control,
    /// Nothing, but it is defined for some operands only: it may be removed, and not run where it would not have.
    Partial,
    /// Whatever there is.
    Anything,
}

macro_rules! names {
    ($ty:ident { $($variant:ident $name:literal),* $(,)? }) => {
        impl $ty {
            /// All of them, with their names in the textual form.
            pub const ALL: &'static [($ty, &'static str)] = &[$(($ty::$variant, $name)),*];
            /// The name in the textual form.
            pub fn name(self) -> &'static str {
                match self { $($ty::$variant => $name),* }
            }
        }
    };
}

names!(UnaryOp {
    Neg "neg", Not "not", Abs "abs", Floor "floor", Ceil "ceil", Trunc "trunc", RoundEven "round_even", Sqrt "sqrt",
    InverseSqrt "inverse_sqrt", Exp "exp", Exp2 "exp2", Log "log", Sin "sin", Cos "cos", Tanh "tanh", CountOnes "count_ones",
    ReverseBits "reverse_bits",
});
names!(BinaryOp {
    Add "add", Sub "sub", Mul "mul", Div "div", Rem "rem", Min "min", Max "max", And "and", Or "or", Xor "xor", Shl "shl",
    Shr "shr", Pow "pow",
});
names!(Compare { Eq "eq", Ne "ne", Lt "lt", Le "le", Gt "gt", Ge "ge" });
names!(Builtin {
    GlobalId "global_id", LocalId "local_id", WorkgroupId "workgroup_id", NumWorkgroups "num_workgroups",
    LocalIndex "local_index", SubgroupSize "subgroup_size", SubgroupLane "subgroup_lane", SubgroupId "subgroup_id",
});
names!(Atomic {
    Add "atomic_add", Min "atomic_min", Max "atomic_max", And "atomic_and", Or "atomic_or", Xor "atomic_xor",
    Exchange "atomic_exchange", CompareExchange "atomic_compare_exchange",
});
names!(MatrixLayout { Row "row", Column "column" });
names!(Subgroup {
    Add "subgroup_add", Min "subgroup_min", Max "subgroup_max", ExclusiveAdd "subgroup_exclusive_add",
    BroadcastFirst "subgroup_broadcast_first", ShuffleXor "subgroup_shuffle_xor", All "subgroup_all", Any "subgroup_any",
});

impl Builtin {
    /// Whether it has an x, a y and a z.
    pub fn has_axes(self) -> bool {
        matches!(self, Builtin::GlobalId | Builtin::LocalId | Builtin::WorkgroupId | Builtin::NumWorkgroups)
    }
}

impl UnaryOp {
    /// Whether every device computes the same bits.
    pub fn is_exact(self) -> bool {
        !matches!(
            self,
            UnaryOp::Sqrt
                | UnaryOp::InverseSqrt
                | UnaryOp::Exp
                | UnaryOp::Exp2
                | UnaryOp::Log
                | UnaryOp::Sin
                | UnaryOp::Cos
                | UnaryOp::Tanh
        )
    }
}

impl BinaryOp {
    /// Whether the operands may change places without changing a bit.
    pub fn commutes(self) -> bool {
        matches!(self, BinaryOp::Add | BinaryOp::Mul | BinaryOp::And | BinaryOp::Or | BinaryOp::Xor)
    }
}

impl OpKind {
    /// The name in the textual form.
    pub fn name(self) -> &'static str {
        match self {
            OpKind::Const(_) => "const",
            OpKind::Param(_) => "param",
            OpKind::Builtin(b, _) => b.name(),
            OpKind::Unary(u) => u.name(),
            OpKind::Binary(b) => b.name(),
            OpKind::Compare(c) => c.name(),
            OpKind::Fma => "fma",
            OpKind::Select => "select",
            OpKind::Convert => "convert",
            OpKind::Bitcast => "bitcast",
            OpKind::Pack(_) => "pack",
            OpKind::Custom => "custom",
            OpKind::Make => "make",
            OpKind::Extract(_) => "extract",
            OpKind::Insert(_) => "insert",
            OpKind::Load(_) => "load",
            OpKind::Store(_) => "store",
            OpKind::Atomic(_, a) => a.name(),
            OpKind::Len(_) => "len",
            OpKind::Barrier => "barrier",
            OpKind::SubgroupBarrier => "subgroup_barrier",
            OpKind::Subgroup(s) => s.name(),
            OpKind::MatrixLoad(..) => "matrix_load",
            OpKind::MatrixStore(..) => "matrix_store",
            OpKind::MatrixFill => "matrix_fill",
            OpKind::MatrixScale => "matrix_scale",
            OpKind::MatrixMulAdd => "matrix_mul_add",
            OpKind::AsyncCopy(..) => "async_copy",
            OpKind::AsyncCommit => "async_commit",
            OpKind::AsyncWait(_) => "async_wait",
            OpKind::WarpgroupMulAdd(_) => "warpgroup_mul_add",
            OpKind::WarpgroupWait(_) => "warpgroup_wait",
            OpKind::Var(_) => "var",
            OpKind::Get(_) => "get",
            OpKind::Set(_) => "set",
            OpKind::If => "if",
            OpKind::Switch(_) => "switch",
            OpKind::Loop => "loop",
            OpKind::For(_) => "for",
            OpKind::Yield => "yield",
            OpKind::Continue(_) => "continue",
            OpKind::Break(_) => "break",
            OpKind::Return => "return",
            OpKind::Unreachable => "unreachable",
            OpKind::Foreign(..) => "foreign",
            OpKind::ForeignConst(_) => "foreign_const",
            OpKind::Undef => "undef",
        }
    }

    /// What the op does besides giving its results.
    pub fn effect(self) -> Effect {
        match self {
            OpKind::Load(m) | OpKind::MatrixLoad(m, _) => Effect::Reads(m),
            OpKind::Store(m) | OpKind::Atomic(m, _) | OpKind::MatrixStore(m, _) | OpKind::AsyncCopy(m, _) => {
                Effect::Writes(m)
            }
            OpKind::WarpgroupMulAdd(product) => Effect::Writes(product.sums),
            OpKind::Foreign(_, effect) => effect,
            kind if kind.is_barrier() => Effect::Together,
            OpKind::Subgroup(_) => Effect::Together,
            OpKind::Var(_) | OpKind::Get(_) | OpKind::Set(_) => Effect::Variable,
            OpKind::If
            | OpKind::Switch(_)
            | OpKind::Loop
            | OpKind::For(_)
            | OpKind::Yield
            | OpKind::Continue(_)
            | OpKind::Break(_)
            | OpKind::Return
            | OpKind::Unreachable => Effect::Control,
            _ => Effect::Pure,
        }
    }

    /// Whether it does nothing but order what stands before and after it: invocations wait for each other, for copies or for products.
    pub fn is_barrier(self) -> bool {
        use OpKind::{AsyncCommit, AsyncWait, Barrier, SubgroupBarrier, WarpgroupWait};
        matches!(self, Barrier | SubgroupBarrier | AsyncCommit | AsyncWait(_) | WarpgroupWait(_))
    }

    /// Whether it makes, uses or stores a matrix. Arithmetic and conversions do as well, of matrices that one of these made.
    pub fn is_matrix(self) -> bool {
        use OpKind::{MatrixFill, MatrixLoad, MatrixMulAdd, MatrixScale, MatrixStore};
        matches!(self, MatrixLoad(..) | MatrixStore(..) | MatrixFill | MatrixScale | MatrixMulAdd)
    }

    /// Whether it ends a region.
    pub fn is_terminator(self) -> bool {
        matches!(self, OpKind::Yield | OpKind::Continue(_) | OpKind::Break(_) | OpKind::Return | OpKind::Unreachable)
    }

    /// Whether it has nested regions.
    pub fn is_structure(self) -> bool {
        matches!(self, OpKind::If | OpKind::Switch(_) | OpKind::Loop | OpKind::For(_))
    }
}
