//! Conversions between floats, in integer arithmetic that compilers vectorise and that no mode of the processor changes.

/// A half-precision float as `f32`, exactly.
#[inline(always)]
pub(super) const fn f16_to_f32(half: u16) -> f32 {
    let (sign, rest) = ((half as u32 & 0x8000) << 16, (half as u32 & 0x7fff) << 13);
    // The exponent's bias is 15 there and 127 here.
    let normal = rest + (112 << 23);
    let bits = match rest >> 23 {
        0 => (f32::from_bits(normal + (1 << 23)) - f32::from_bits(113 << 23)).to_bits(),
        31 => rest | 0x7f80_0000,
        _ => normal,
    };
    f32::from_bits(bits | sign)
}

/// A float of `MANTISSA` bits and an exponent of bias `BIAS`, of a positive `f32`, rounded to nearest even. What is larger than such a float can be
/// continues upwards: the caller knows where infinity is. NaN is above it.
#[inline(always)]
const fn narrow<const MANTISSA: u32, const BIAS: u32>(bits: u32) -> u32 {
    let shift = 23 - MANTISSA;
    let first_normal = (128 - BIAS) << 23;
    // Adding a power of two puts the last bit of a subnormal number at the last bit of the sum.
    let align = (128 - BIAS + shift) << 23;
    let subnormal = (f32::from_bits(bits) + f32::from_bits(align)).to_bits().wrapping_sub(align);
    let rebased = bits.wrapping_sub((127 - BIAS) << 23);
    let normal = rebased.wrapping_add((1 << (shift - 1)) - 1).wrapping_add((rebased >> shift) & 1) >> shift;
    if bits < first_normal { subnormal } else { normal }
}

/// The half-precision float next to a number, infinity above 65,520.
pub(super) const fn f32_to_f16(x: f32) -> u16 {
    let (bits, sign) = (x.to_bits() & 0x7fff_ffff, (x.to_bits() >> 16) & 0x8000);
    let half = narrow::<10, 15>(bits);
    let half = if half > 0x7c00 { 0x7c00 } else { half };
    let half = if bits > 0x7f80_0000 { 0x7e00 } else { half };
    (half | sign) as u16
}

/// A number through half precision and back: what a block's scale becomes.
pub(super) const fn through_f16(x: f32) -> f32 {
    f16_to_f32(f32_to_f16(x))
}

#[inline(always)]
pub(super) const fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits((half as u32) << 16)
}

/// The upper half of an `f32`, rounded to nearest even.
pub(super) const fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1))) >> 16;
    let quiet = (bits >> 16) | 64;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded }) as u16
}

/// Every eight-bit float with four bits of exponent.
static E4M3: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut i = 0;
    while i < 256 {
        let (exponent, mantissa) = ((i as u32 >> 3) & 15, i as u32 & 7);
        let magnitude = match (exponent, mantissa) {
            (15, 7) => f32::NAN,
            // Multiples of 2^-9.
            (0, m) => m as f32 / 512.0,
            (e, m) => f32::from_bits((e + 120) << 23 | m << 20),
        };
        table[i] = if i < 128 { magnitude } else { -magnitude };
        i += 1;
    }
    table
};

#[inline(always)]
pub(super) fn e4m3_to_f32(byte: u8) -> f32 {
    E4M3[byte as usize]
}

#[inline(always)]
pub(super) const fn e5m2_to_f32(byte: u8) -> f32 {
    f16_to_f32((byte as u16) << 8)
}

/// The nearest eight-bit float with four bits of exponent. There is no infinity: what is larger than 448 becomes 448, as torch has it.
pub(super) const fn f32_to_e4m3(x: f32) -> u8 {
    let (bits, sign) = (x.to_bits() & 0x7fff_ffff, (x.to_bits() >> 24) & 0x80);
    let byte = narrow::<3, 7>(bits);
    let byte = if byte > 0x7e { 0x7e } else { byte };
    let byte = if bits > 0x7f80_0000 { 0x7f } else { byte };
    (byte | sign) as u8
}

/// The nearest eight-bit float with five bits of exponent, infinity above 61,440.
pub(super) const fn f32_to_e5m2(x: f32) -> u8 {
    let (bits, sign) = (x.to_bits() & 0x7fff_ffff, (x.to_bits() >> 24) & 0x80);
    let byte = narrow::<2, 15>(bits);
    let byte = if byte > 0x7c { 0x7c } else { byte };
    let byte = if bits > 0x7f80_0000 { 0x7f } else { byte };
    (byte | sign) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of half-precision numbers must give the numbers that it has.
    #[test]
    fn halves_keep_their_numbers() {
        for half in 0..=u16::MAX {
            let wide = f16_to_f32(half);
            assert_eq!(wide.is_nan(), half & 0x7fff > 0x7c00);
            if !wide.is_nan() {
                assert_eq!(f32_to_f16(wide), half, "{wide}");
                let exact = f64::from(half & 0x3ff) + if half & 0x7c00 == 0 { 0.0 } else { 1024.0 };
                let exponent = i32::from((half & 0x7c00) >> 10).max(1) - 25;
                let sign = if half & 0x8000 == 0 { 1.0 } else { -1.0 };
                let value = if half & 0x7c00 == 0x7c00 { f64::INFINITY } else { exact * 2f64.powi(exponent) };
                assert_eq!(f64::from(wide), sign * value);
            }
        }
    }

    /// Rounding: the middle between two neighbours goes to the even one, what is nearer to one goes there.
    #[test]
    fn what_lies_between_goes_to_the_nearer_or_even_one() {
        fn check(codes: std::ops::Range<u32>, decode: impl Fn(u32) -> f32, encode: impl Fn(f32) -> u32) {
            for code in codes {
                let (low, high) = (decode(code), decode(code + 1));
                let middle = ((f64::from(low) + f64::from(high)) / 2.0) as f32;
                assert_eq!(encode(middle), code + (code & 1), "the middle of {low} and {high}");
                assert_eq!(encode(f32::from_bits(middle.to_bits() - 1)), code);
                assert_eq!(encode(f32::from_bits(middle.to_bits() + 1)), code + 1);
                assert_eq!(encode(-middle), encode(middle) | encode(-0.0));
            }
        }
        check(0..0x7bff, |c| f16_to_f32(c as u16), |x| f32_to_f16(x).into());
        check(0..0x7f7f, |c| bf16_to_f32(c as u16), |x| f32_to_bf16(x).into());
        check(0..0x7d, |c| e4m3_to_f32(c as u8), |x| f32_to_e4m3(x).into());
        check(0..0x7b, |c| e5m2_to_f32(c as u8), |x| f32_to_e5m2(x).into());
    }

    #[test]
    fn what_is_too_large_is_infinite_or_the_largest_as_torch_has_it() {
        assert_eq!((f32_to_f16(65519.0), f32_to_f16(65520.0), f32_to_f16(f32::INFINITY)), (0x7bff, 0x7c00, 0x7c00));
        assert_eq!((f32_to_e4m3(448.0), f32_to_e4m3(480.0), f32_to_e4m3(-1e9)), (0x7e, 0x7e, 0xfe));
        assert_eq!((f32_to_e5m2(61439.0), f32_to_e5m2(61441.0), f32_to_e5m2(-1e9)), (0x7b, 0x7c, 0xfc));
        assert_eq!((f32_to_f16(f32::NAN) & 0x7fff, f32_to_e4m3(f32::NAN), f32_to_e5m2(f32::NAN)), (0x7e00, 0x7f, 0x7f));
    }
}
