//! What a device could do: products without memory. Written with the builder, since the sums are a list of variables, as long as a constant says,
//! of matrices whose shape is a type.

use half::f16;
use impasto_kernel::{Accumulator, Builder, Kernel, KernelError, MatrixA, MatrixB};

use super::matrices::Units;

/// Sums that a subgroup, or an invocation, keeps going at a time, so that it never waits for one.
const SUMS: u32 = 8;
const TURNS: u32 = 4096;
const GROUPS: u32 = 2048;
const THREADS: u32 = 256;

/// A kernel that multiplies and adds, its workgroups, and how many operations all of them do. Buffer: a result that nobody needs.
pub(crate) fn peak(units: Option<Units>) -> Result<(Kernel, [u32; 3], u64), KernelError> {
    let (kernel, each) = match units {
        Some(units) => {
            let kernel = Builder::kernel("peak", [THREADS, 1, 1], |k| match units.shape {
                [16, 8, 16] => matrices::<16, 8, 16>(k, units),
                [8, 16, 16] => matrices::<8, 16, 16>(k, units),
                _ => matrices::<16, 16, 16>(k, units),
            })?;
            (kernel, units.shape.iter().product::<u32>() * (THREADS / units.subgroup))
        }
        None => (Builder::kernel("peak", [THREADS, 1, 1], scalars)?, THREADS),
    };
    let turns = u64::from(SUMS) * u64::from(TURNS) * u64::from(GROUPS);
    Ok((kernel, [GROUPS, 1, 1], 2 * u64::from(each) * turns))
}

fn matrices<const M: usize, const N: usize, const K: usize>(k: &Builder, units: Units) {
    let out = k.buffer_mut::<f32>("out");
    // Numbers that no compiler knows, all of them zero or nearly so: nothing overflows.
    let small = k.workgroup_id(0).to::<f32>() * 1e-7f32;
    let a = k.matrix_fill::<MatrixA<f16, M, K>>(small.to::<f16>());
    let b = k.matrix_fill::<MatrixB<f16, K, N>>(small.to::<f16>());
    let sums: Vec<_> = (0..SUMS).map(|i| k.var(k.matrix_fill::<Accumulator<f32, M, N>>(i as f32))).collect();
    k.for_(0u32, TURNS, |_, _| {
        for sum in &sums {
            sum.set(k.matrix_mul_add(a, b, sum.get()));
        }
    });
    let all = sums[1..].iter().fold(sums[0].get(), |all, sum| all.plus(sum.get()));
    let room = k.shared::<f32>("room", (M * N) as u32 * (THREADS / units.subgroup));
    k.matrix_store(room, k.subgroup_id() * (M * N) as u32, N as u32, impasto_kernel::MatrixLayout::Row, all);
    k.barrier();
    k.if_(room.load(k.local_index()).lt(-1.0), || out.store(0, 1f32));
}

fn scalars(k: &Builder) {
    let out = k.buffer_mut::<f32>("out");
    let x = k.workgroup_id(0).to::<f32>() * 1e-7f32;
    let sums: Vec<_> = (0..SUMS).map(|i| k.var(i as f32)).collect();
    k.for_(0u32, TURNS, |_, _| {
        for sum in &sums {
            sum.set(sum.get().mul_add(x, x));
        }
    });
    let all = sums[1..].iter().fold(sums[0].get(), |all, sum| all + sum.get());
    k.if_(all.lt(-1.0), || out.store(0, 1f32));
}
