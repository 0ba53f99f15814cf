//! Everything that stands in a kernel: `use impasto_kernel::prelude::*;`.

pub use crate::lang::{
    KernelStruct, barrier, global_id, lit, local_id, local_index, matrix_fill, matrix_load, matrix_mul_add,
    matrix_store, num_workgroups, private, shared, splat4, subgroup_barrier, subgroup_id, subgroup_lane, subgroup_size,
    vec2, vec3, vec4, workgroup_id,
};
pub use crate::{
    Accumulator, Equal, Float, Int, Kernel, KernelError, KernelStruct, Lit, Logic, MatrixA, MatrixB, MatrixLayout, Num,
    Scalar, Shared32, Type, Vec2, Vec3, Vec4, Vector, kernel, kernel_fn,
};
pub use half::{bf16, f16};
