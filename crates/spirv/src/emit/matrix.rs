//! Matrices of a subgroup as cooperative matrices (`SPV_KHR_cooperative_matrix`), under the Vulkan memory model, which they need.

use rspirv::spirv::{self, Op as S};

use super::control::Emit;
use super::words::{Global, Words};
use impasto_kernel::ir::{Access, BinaryOp, Matrix, MatrixLayout, MemoryId, OpId, OpKind, Scalar, Space, Ty};

impl Words {
    /// The type of a matrix.
    pub(super) fn matrix(&mut self, m: Matrix) -> u32 {
        let of = self.component(m.scalar);
        let scope = self.constant(Scalar::U32, spirv::Scope::Subgroup as u64);
        let (rows, columns) = (self.constant(Scalar::U32, m.rows.into()), self.constant(Scalar::U32, m.columns.into()));
        let role = self.constant(Scalar::U32, m.role as u64);
        self.once(Global::Matrix(m), "types", |w, id| {
            w.global(S::TypeCooperativeMatrixKHR, &[id, of, scope, rows, columns, role]);
        })
    }

    /// The type of an element inside of a matrix: only there bf16 is a float.
    fn component(&mut self, s: Scalar) -> u32 {
        if s != Scalar::Bf16 {
            return self.scalar(s);
        }
        self.once(Global::Bfloat, "types", |w, id| {
            w.global(S::TypeFloat, &[id, 16, spirv::FPEncoding::BFloat16KHR as u32]);
        })
    }
}

impl Emit<'_> {
    /// The operand of an access to memory that others see, where the memory model asks for it.
    pub(super) fn seen(&self, m: MemoryId) -> &'static [u32] {
        let shared = matches!(self.k.memory(m).space, Space::Buffer(Access::ReadWrite) | Space::Workgroup(_));
        const SEEN: &[u32] = &[spirv::MemoryAccess::NON_PRIVATE_POINTER.bits()];
        if self.w.vulkan_model && shared { SEEN } else { &[] }
    }

    /// All invocations of a scope wait, and see what the others wrote.
    pub(super) fn barrier(&mut self, scope: spirv::Scope) {
        use spirv::MemorySemantics as M;
        let mut semantics = M::ACQUIRE_RELEASE | M::UNIFORM_MEMORY | M::WORKGROUP_MEMORY;
        if self.w.vulkan_model {
            semantics |= M::MAKE_AVAILABLE | M::MAKE_VISIBLE;
        }
        let scope = self.w.constant(Scalar::U32, scope as u64);
        let semantics = self.w.constant(Scalar::U32, semantics.bits().into());
        self.w.push(S::ControlBarrier, &[scope, scope, semantics]);
    }

    /// An op that makes, uses or stores a matrix; the id of its result.
    pub(super) fn matrix_op(&mut self, op: OpId, by: &'static str, ty: Ty, args: &[u32]) -> u32 {
        let k = self.k;
        match k.kind(op) {
            OpKind::MatrixLoad(m, layout) => {
                let at = self.lanes_place(by, m, args[0]);
                let layout = self.layout(layout);
                let (t, id) = (self.w.ty(k, ty), self.w.id(by));
                self.w.push_parts(S::CooperativeMatrixLoadKHR, &[&[t, id, at, layout, args[1]], self.seen(m)]);
                id
            }
            OpKind::MatrixStore(m, layout) => {
                let at = self.lanes_place(by, m, args[0]);
                let layout = self.layout(layout);
                self.w.push_parts(S::CooperativeMatrixStoreKHR, &[&[at, args[2], layout, args[1]], self.seen(m)]);
                0
            }
            OpKind::MatrixMulAdd => self.make(by, S::CooperativeMatrixMulAddKHR, ty, args),
            OpKind::MatrixScale => self.exact(by, S::MatrixTimesScalar, ty, args),
            OpKind::Binary(f) => {
                let instruction = match f {
                    BinaryOp::Add => S::FAdd,
                    BinaryOp::Sub => S::FSub,
                    _ => S::FMul,
                };
                self.exact(by, instruction, ty, args)
            }
            OpKind::Convert if k.ty(k.args(op)[0]) == ty => args[0],
            OpKind::Convert => self.make(by, S::FConvert, ty, args),
            _ => {
                let mut x = args[0];
                if k.scalar_of(ty) == Some(Scalar::Bf16) {
                    // A value of bf16 is its bits in a word.
                    let (short, float) = (self.w.short(), self.w.component(Scalar::Bf16));
                    let (bits, id) = (self.w.id(by), self.w.id(by));
                    self.w.push(S::UConvert, &[short, bits, x]);
                    self.w.push(S::Bitcast, &[float, id, bits]);
                    x = id;
                }
                self.make(by, S::CompositeConstruct, ty, &[x])
            }
        }
    }

    fn layout(&mut self, layout: MatrixLayout) -> u32 {
        use spirv::CooperativeMatrixLayout as L;
        let number = if layout == MatrixLayout::Row { L::RowMajorKHR } else { L::ColumnMajorKHR };
        self.w.constant(Scalar::U32, number as u64)
    }
}
