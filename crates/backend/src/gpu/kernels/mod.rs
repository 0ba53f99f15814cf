//! The kernels, in our own kernel language: the simple ones with `#[kernel]`, those that are composed while they are written (chains, tiled
//! products, attention) with the builder. Each function writes one kernel for one shape: what is known before a run is a number in the kernel. Sums are of `f32`, whatever tensors are stored as.

pub(super) mod attention;
pub(crate) mod blocks;
pub(super) mod elementwise;
pub(super) mod flash;
pub(crate) mod gemm;
pub(crate) mod image_norm;
pub(super) mod lookup;
pub(crate) mod matrices;
pub(super) mod movement;
pub(super) mod norm;
pub(crate) mod peak;
pub(crate) mod row_norm;
mod vec4;
pub(crate) mod warpgroup;
pub(crate) mod warpgroup_flash;

mod samples;

pub use samples::{Sample, samples};

use impasto_graph::{DType, Unary};
use impasto_kernel::{Builder, Scalar, Val};

pub(super) type F<'k> = Val<'k, f32>;
pub(super) type U<'k> = Val<'k, u32>;

/// Invocations of a workgroup that goes through elements one by one.
pub(super) const LINE: u32 = 64;

/// Workgroups along one axis: every device has as many, and what needs more goes on along the next axis.
const MOST: u32 = 32_768;

/// Workgroups for so many pieces of work, one each.
pub(super) fn groups(pieces: u64) -> [u32; 3] {
    let along = pieces.min(MOST.into()).max(1);
    [along as u32, pieces.div_ceil(along) as u32, 1]
}

/// Workgroups for so many elements, one for each invocation.
pub(super) fn groups_of_lines(elements: u64) -> [u32; 3] {
    groups(elements.div_ceil(LINE.into()))
}

/// The number of this workgroup among those of [`groups`].
fn piece<'k>(k: &'k Builder) -> U<'k> {
    k.workgroup_id(1) * k.num_workgroups(0) + k.workgroup_id(0)
}

/// The number of this invocation among those of [`groups_of_lines`], if there are more than so many it ends here.
fn element<'k>(k: &'k Builder, elements: u32) -> U<'k> {
    let i = piece(k) * LINE + k.local_id(0);
    k.if_(i.ge(elements), || k.return_());
    i
}

/// The type of a tensor's elements in a buffer.
fn scalar(dtype: DType) -> Scalar {
    match dtype {
        DType::F32 => Scalar::F32,
        DType::F16 => Scalar::F16,
        DType::BF16 => Scalar::Bf16,
        DType::I32 => Scalar::I32,
    }
}

/// `a * b + c`, rounded as the device likes.
fn fma<'k>(k: &'k Builder, a: F<'k>, b: f32, c: f32) -> F<'k> {
    a.mul_add(k.lit(b), k.lit(c))
}

/// Sine and cosine. Vulkan promises three digits and only near zero; this has seven up to some thousands.
pub(super) fn sin_cos<'k>(k: &'k Builder, x: F<'k>) -> (F<'k>, F<'k>) {
    // Quarters of a turn, taken away in three parts, of which the first two have few bits, so that their products are exact.
    let quarters = (x * std::f32::consts::FRAC_2_PI).round_even();
    let r =
        [-1.570_312_5, -4.837_513e-4, -7.549_79e-8f32].into_iter().fold(x, |r, part| quarters.mul_add(k.lit(part), r));
    let square = r * r;
    let series = |terms: [f32; 3]| terms.into_iter().fold(k.lit(0f32), |p, c| p.mul_add(square, k.lit(c)));
    let sine = (series([-1.951_529_6e-4, 8.332_161e-3, -1.666_665_5e-1]) * square).mul_add(r, r);
    let cosine =
        series([2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2]) * square * square + (square * -0.5f32 + 1f32);
    let quarter = quarters.to::<i32>();
    let swapped = (quarter & 1i32).eq(1);
    let (s, c) = (swapped.select(cosine, sine), swapped.select(sine, cosine));
    let flip = |bit: Val<'k, i32>, y: F<'k>| (bit & 2i32).ne(0).select(-y, y);
    (flip(quarter, s), flip(quarter + 1i32, c))
}

/// e to this power, for numbers that are not large: as near as `f32` allows, where devices may be off by some units.
pub(super) fn exp<'k>(k: &'k Builder, x: F<'k>) -> F<'k> {
    let whole = (x * std::f32::consts::LOG2_E).round_even();
    let r = whole.mul_add(k.lit(2.121_944_4e-4f32), whole.mul_add(k.lit(-0.693_359_4f32), x));
    let p = [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1f32]
        .into_iter()
        .fold(k.lit(1.987_569_1e-4f32), |p, c| p.mul_add(r, k.lit(c)));
    let power = ((whole.to::<i32>() + 127i32) << 23i32).bits_as::<f32>();
    ((p * r).mul_add(r, r) + 1f32) * power
}

fn sigmoid<'k>(k: &'k Builder, x: F<'k>) -> F<'k> {
    k.lit(1f32) / ((-x).exp() + 1f32)
}

/// `x` times the share of the bell curve below it, by Abramowitz and Stegun 7.1.26 (error below 2e-7), as on the CPU.
pub(super) fn gelu<'k>(k: &'k Builder, x: F<'k>) -> F<'k> {
    let a = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = k.lit(1f32) / fma(k, a, 0.327_591_1, 1.0);
    let p = [-1.453_152_1, 1.421_413_8, -0.284_496_72, 0.254_829_6f32]
        .into_iter()
        .fold(k.lit(1.061_405_4f32), |p, c| p.mul_add(t, k.lit(c)));
    let tail = p * t * (-(a * a)).exp() * 0.5f32;
    x * x.lt(0.0).select(tail, k.lit(1f32) - tail)
}

/// A function of one number.
pub(super) fn unary<'k>(k: &'k Builder, f: Unary, x: F<'k>) -> F<'k> {
    match f {
        Unary::Silu => x * sigmoid(k, x),
        Unary::Gelu => gelu(k, x),
        Unary::GeluTanh => {
            let inner = (x * x * x * 0.044_715f32 + x) * 0.797_884_6f32;
            // 0.5 (1 + tanh(y)) is the sigmoid of 2 y, and does not lose small results.
            x * sigmoid(k, inner + inner)
        }
        Unary::QuickGelu => x * sigmoid(k, x * 1.702f32),
        // NaN stays.
        Unary::Relu => x.lt(0.0).select(0f32, x),
        Unary::Sigmoid => sigmoid(k, x),
        // Devices may give NaN for large numbers, and few digits for small ones.
        Unary::Tanh => {
            let square = x * x;
            let p = [2.063_924_6e-2, -5.373_97e-2, 1.333_144_2e-1, -3.333_323e-1f32]
                .into_iter()
                .fold(k.lit(-5.703_305e-3f32), |p, c| p.mul_add(square, k.lit(c)));
            let small = (p * square).mul_add(x, x);
            let large = k.lit(1f32) - k.lit(2f32) / ((x.abs() * 2f32).exp() + 1f32);
            x.abs().lt(0.625).select(small, x.lt(0.0).select(-large, large))
        }
        Unary::Exp => x.exp(),
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sqrt => x.sqrt(),
        Unary::Square => x * x,
        Unary::Sin => sin_cos(k, x).0,
        Unary::Cos => sin_cos(k, x).1,
    }
}
