//! Functions of one number, written so that a compiler can apply them to a whole vector: no branches, no calls.
//!
//! `L` is the level of the instruction set that they are compiled for. Errors stay within a few units in the last place
//! of an `f32`.

use impasto_graph::Unary;

/// Levels of instruction sets, each with what the ones before it have: nothing special, fused multiply-add, 512-bit
/// vectors, bf16 conversions.
pub(crate) const PLAIN: u8 = 0;
pub(crate) const FUSED: u8 = 1;
#[cfg(target_arch = "x86_64")]
pub(crate) const AVX512: u8 = 2;
#[cfg(target_arch = "x86_64")]
pub(crate) const AVX512_BF16: u8 = 3;

/// `a b + c`. Without the fused instruction `mul_add` would be a slow library call.
#[inline(always)]
pub(crate) fn fma<const L: u8>(a: f32, b: f32, c: f32) -> f32 {
    if L >= FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// The larger; unlike `f32::max` one instruction. NaN in `b` stays.
#[inline(always)]
pub(crate) fn max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[inline(always)]
fn min(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

/// 2 to the power x.
#[inline(always)]
pub(crate) fn exp2<const L: u8>(x: f32) -> f32 {
    // Beyond this the result is 0 or infinite; the bits below stay in range. NaN passes through both.
    let x = min(128.0, max(-127.0, x));
    let whole = round(x);
    let f = x - whole;
    // Minimax polynomial of 2^f on [-1/2, 1/2].
    let mut p = 1.540_353e-4_f32;
    p = fma::<L>(p, f, 1.333_355_8e-3);
    p = fma::<L>(p, f, 9.618_129e-3);
    p = fma::<L>(p, f, 5.550_411e-2);
    p = fma::<L>(p, f, 2.402_265e-1);
    p = fma::<L>(p, f, 6.931_472e-1);
    p = fma::<L>(p, f, 1.0);
    times_power_of_two(p, whole)
}

/// To the nearest integer, for small numbers: adding and taking away 1.5 x 2^23 leaves no fraction.
#[inline(always)]
fn round(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    (x + ROUND) - ROUND
}

/// `p * 2^n`, in two halves, so that neither the smallest nor the largest exponent overflows.
#[inline(always)]
fn times_power_of_two(p: f32, n: f32) -> f32 {
    // SAFETY: callers keep `n` within +-150, or it is NaN; then any number will do, since `p` is NaN too. The plain cast
    // would check for both.
    let n = unsafe { if n.is_nan() { 0.0 } else { n }.to_int_unchecked::<i32>() };
    let half = n >> 1;
    let first = f32::from_bits(((half + 127) << 23) as u32);
    let second = f32::from_bits(((n - half + 127) << 23) as u32);
    p * first * second
}

/// Minus ln 2 in two parts: the first has few bits, so that its product is exact.
const LN_2: [f32; 2] = [-0.693_359_4, 2.121_944_4e-4];
/// `(e^r - 1 - r) / r^2` near zero, the highest power first.
const EXP: [f32; 6] = [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];

#[inline(always)]
fn exp<const L: u8>(x: f32) -> f32 {
    // Beyond these the result is 0 or infinite. NaN passes through both.
    let x = min(89.0, max(-104.0, x));
    let whole = round(x * std::f32::consts::LOG2_E);
    let r = fma::<L>(whole, LN_2[0], x);
    let r = fma::<L>(whole, LN_2[1], r);
    let p = EXP[1..].iter().fold(EXP[0], |p, &c| fma::<L>(p, r, c));
    times_power_of_two(fma::<L>(p * r, r, r) + 1.0, whole)
}

/// The hyperbolic tangent, where `sigmoid` is that of `-2 |x|`.
#[inline(always)]
fn tanh<const L: u8>(x: f32, sigmoid: f32) -> f32 {
    // Near zero the difference below cancels: a polynomial takes over.
    let square = x * x;
    let mut p = -5.703_305e-3_f32;
    p = fma::<L>(p, square, 2.063_924_6e-2);
    p = fma::<L>(p, square, -5.373_97e-2);
    p = fma::<L>(p, square, 1.333_144_2e-1);
    p = fma::<L>(p, square, -3.333_323e-1);
    let small = fma::<L>(p * square, x, x);
    let large = (1.0 - 2.0 * sigmoid).copysign(x);
    if x.abs() < 0.625 { small } else { large }
}

#[inline(always)]
fn each(x: &mut [f32], f: impl Fn(f32) -> f32) {
    for v in x {
        *v = f(*v);
    }
}

/// Numbers that a function is applied to at a time: they stay in registers, or at least near.
pub(crate) const PART: usize = 64;

/// Room for such numbers. Where it began within a cache line, vectors on their way through it took twice as long.
#[repr(align(64))]
#[derive(Clone, Copy)]
pub(crate) struct Aligned<const N: usize>(pub(crate) [f32; N]);

/// `x = f(x, sigmoid(g(x)))` for each element.
#[inline(always)]
fn each_by_sigmoid<const L: u8>(x: &mut [f32], g: impl Fn(f32) -> f32, f: impl Fn(f32, f32) -> f32) {
    let mut whole = x.chunks_exact_mut(PART);
    for x in whole.by_ref() {
        // The length is known here: no loop is left.
        part_by_sigmoid::<L>(&mut x[..PART], &g, &f);
    }
    part_by_sigmoid::<L>(whole.into_remainder(), &g, &f);
}

#[inline(always)]
fn part_by_sigmoid<const L: u8>(x: &mut [f32], g: &impl Fn(f32) -> f32, f: &impl Fn(f32, f32) -> f32) {
    let mut room = Aligned([0.0; PART]);
    let sigmoids = &mut room.0[..x.len()];
    for (s, &x) in sigmoids.iter_mut().zip(&*x) {
        *s = -g(x);
    }
    exp_all::<L>(sigmoids);
    for s in sigmoids.iter_mut() {
        *s += 1.0;
    }
    invert_all::<L>(sigmoids);
    for (x, &s) in x.iter_mut().zip(&*sigmoids) {
        *x = f(*x, s);
    }
}

/// Each `x` times the share of the bell curve below it, by the complementary error function of Abramowitz and Stegun 7.1.26
/// (error below 2e-7): without a difference of two nearly equal numbers, small results stay right.
#[inline(always)]
fn gelu<const L: u8>(x: &mut [f32]) {
    let mut whole = x.chunks_exact_mut(PART);
    for x in whole.by_ref() {
        gelu_part::<L>(&mut x[..PART]);
    }
    gelu_part::<L>(whole.into_remainder());
}

#[inline(always)]
fn gelu_part<const L: u8>(x: &mut [f32]) {
    let mut room = [Aligned([0.0; PART]); 2];
    let [ts, bells] = room.each_mut().map(|room| &mut room.0[..x.len()]);
    for ((t, bell), &x) in ts.iter_mut().zip(bells.iter_mut()).zip(&*x) {
        let a = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
        *t = fma::<L>(0.327_591_1, a, 1.0);
        *bell = -a * a;
    }
    invert_all::<L>(ts);
    exp_all::<L>(bells);
    for ((x, &t), &bell) in x.iter_mut().zip(&*ts).zip(&*bells) {
        let mut p = 1.061_405_4_f32;
        p = fma::<L>(p, t, -1.453_152_1);
        p = fma::<L>(p, t, 1.421_413_8);
        p = fma::<L>(p, t, -0.284_496_72);
        p = fma::<L>(p, t, 0.254_829_6);
        let tail = 0.5 * p * t * bell;
        *x *= if *x < 0.0 { tail } else { 1.0 - tail };
    }
}

/// One divided by each element, within two units in the last place.
#[inline(always)]
fn invert_all<const L: u8>(x: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if L >= AVX512 {
        // SAFETY: this level is compiled for machines with these instructions.
        return unsafe { lanes::each::<true>(x) };
    }
    each(x, |x| 1.0 / x);
}

/// [`exp`] of each element.
#[inline(always)]
fn exp_all<const L: u8>(x: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if L >= AVX512 {
        // SAFETY: as above.
        return unsafe { lanes::each::<false>(x) };
    }
    each(x, exp::<L>);
}

/// Where 512-bit vectors have instructions that no loop is compiled to.
#[cfg(target_arch = "x86_64")]
mod lanes {
    use std::arch::x86_64::*;

    use super::{EXP, LN_2};

    /// The inverse of each element (`INVERT`) or its exponential. Each is computed in the same way wherever it stands: a picture in bands
    /// must have the bits of the whole.
    #[inline(always)]
    pub(super) unsafe fn each<const INVERT: bool>(x: &mut [f32]) {
        let mut whole = x.chunks_exact_mut(16);
        for x in whole.by_ref() {
            // SAFETY: the caller vouches for the instructions; the chunk has 16 numbers.
            unsafe { _mm512_storeu_ps(x.as_mut_ptr(), one::<INVERT>(_mm512_loadu_ps(x.as_ptr()))) };
        }
        let rest = whole.into_remainder();
        if !rest.is_empty() {
            let mask = u16::MAX >> (16 - rest.len());
            // SAFETY: as above; other lanes are neither read nor written.
            unsafe {
                let v = one::<INVERT>(_mm512_maskz_loadu_ps(mask, rest.as_ptr()));
                _mm512_mask_storeu_ps(rest.as_mut_ptr(), mask, v);
            }
        }
    }

    #[inline(always)]
    unsafe fn one<const INVERT: bool>(v: __m512) -> __m512 {
        // SAFETY: the caller's.
        unsafe { if INVERT { invert(v) } else { exp(v) } }
    }

    #[inline(always)]
    unsafe fn invert(d: __m512) -> __m512 {
        // SAFETY: the caller's.
        unsafe {
            let near = _mm512_rcp14_ps(d);
            // One step of Newton's method; not where the inverse of infinity would meet infinity.
            let small = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(d, _mm512_set1_ps(1e30));
            let error = _mm512_fnmadd_ps(d, near, _mm512_set1_ps(1.0));
            _mm512_mask_fmadd_ps(near, small, error, near)
        }
    }

    #[inline(always)]
    unsafe fn exp(x: __m512) -> __m512 {
        // SAFETY: the caller's.
        unsafe {
            // NaN passes through both, since it stands second.
            let x = _mm512_min_ps(_mm512_set1_ps(89.0), _mm512_max_ps(_mm512_set1_ps(-104.0), x));
            let whole = _mm512_roundscale_ps::<0x08>(_mm512_mul_ps(x, _mm512_set1_ps(std::f32::consts::LOG2_E)));
            let r = _mm512_fmadd_ps(whole, _mm512_set1_ps(LN_2[0]), x);
            let r = _mm512_fmadd_ps(whole, _mm512_set1_ps(LN_2[1]), r);
            let mut p = _mm512_set1_ps(EXP[0]);
            for c in &EXP[1..] {
                p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(*c));
            }
            let p = _mm512_add_ps(_mm512_fmadd_ps(_mm512_mul_ps(p, r), r, r), _mm512_set1_ps(1.0));
            _mm512_scalef_ps(p, whole)
        }
    }
}

/// Apply a function to each element.
#[inline(always)]
pub(crate) fn unary<const L: u8>(function: Unary, x: &mut [f32]) {
    match function {
        Unary::Silu => each_by_sigmoid::<L>(x, |v| v, |v, s| v * s),
        Unary::Gelu => gelu::<L>(x),
        // (1 + tanh y) / 2 is the sigmoid of 2 y.
        Unary::GeluTanh => each_by_sigmoid::<L>(x, |v| 1.595_769 * fma::<L>(0.044_715 * v * v, v, v), |v, s| v * s),
        Unary::QuickGelu => each_by_sigmoid::<L>(x, |v| 1.702 * v, |v, s| v * s),
        Unary::Relu => each(x, |v| max(0.0, v)),
        Unary::Sigmoid => each_by_sigmoid::<L>(x, |v| v, |_, s| s),
        Unary::Tanh => each_by_sigmoid::<L>(x, |v| -2.0 * v.abs(), tanh::<L>),
        Unary::Exp => exp_all::<L>(x),
        Unary::Neg => each(x, |v| -v),
        Unary::Abs => each(x, f32::abs),
        Unary::Sqrt => each(x, f32::sqrt),
        Unary::Square => each(x, |v| v * v),
        Unary::Sin => each(x, f32::sin),
        Unary::Cos => each(x, f32::cos),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(function: Unary, x: f64) -> f64 {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        match function {
            Unary::Silu => x * sigmoid(x),
            Unary::GeluTanh => {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x)).tanh())
            }
            Unary::QuickGelu => x * sigmoid(1.702 * x),
            Unary::Sigmoid => sigmoid(x),
            Unary::Tanh => x.tanh(),
            Unary::Exp => x.exp(),
            other => unreachable!("{other:?} is exact or tested elsewhere"),
        }
    }

    #[test]
    fn functions_follow_the_float64_reference() {
        let functions = [Unary::Silu, Unary::GeluTanh, Unary::QuickGelu, Unary::Sigmoid, Unary::Tanh, Unary::Exp];
        for function in functions {
            for i in -40_000..=40_000 {
                let x = i as f32 * 5e-4 + 1e-5;
                for fused in [false, true] {
                    let mut v = [x];
                    if fused {
                        unary::<FUSED>(function, &mut v)
                    } else {
                        unary::<PLAIN>(function, &mut v)
                    }
                    let want = reference(function, x as f64);
                    let scale = if matches!(function, Unary::Exp | Unary::Sigmoid | Unary::Tanh) {
                        want.abs()
                    } else {
                        want.abs().max(0.05)
                    };
                    let limit = if fused { 1e-6 } else { 4e-6 };
                    assert!((v[0] as f64 - want).abs() <= limit * scale, "{function:?}({x}) = {} not {want}", v[0]);
                }
            }
        }
    }

    #[test]
    fn gelu_follows_the_integral_of_the_bell_curve() {
        // Simpson's rule on the density, exact to 1e-12: independent of any erf.
        let (mut integral, step) = (0.5, 1e-3);
        let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
        for i in 0..6000 {
            let x = i as f64 * step;
            for (sign, phi) in [(1.0, integral), (-1.0, 1.0 - integral)] {
                let mut got = [(sign * x) as f32];
                unary::<FUSED>(Unary::Gelu, &mut got);
                let got = got[0] as f64;
                assert!((got - sign * x * phi).abs() < 3e-7 * x.max(1.0), "gelu({})", sign * x);
            }
            integral += step / 6.0 * (density(x) + 4.0 * density(x + step / 2.0) + density(x + step));
        }
    }

    #[test]
    fn extremes_stay_what_they_are() {
        let apply = |function, x: f32| {
            let mut v = [x];
            unary::<FUSED>(function, &mut v);
            v[0]
        };
        assert_eq!(apply(Unary::Exp, f32::NEG_INFINITY), 0.0);
        assert_eq!(apply(Unary::Exp, 1e4), f32::INFINITY);
        assert_eq!(apply(Unary::Exp, -1e4), 0.0);
        assert_eq!(apply(Unary::Exp, 0.0), 1.0);
        assert_eq!(apply(Unary::Silu, 1e30), 1e30);
        assert_eq!(apply(Unary::Silu, -1e4), 0.0);
        assert_eq!(apply(Unary::Tanh, 1e30), 1.0);
        assert_eq!(apply(Unary::Tanh, -1e30), -1.0);
        for function in Unary::ALL {
            assert!(apply(function, f32::NAN).is_nan(), "{function:?} hides a NaN");
        }
    }
}
