//! Each invocation by itself.

use impasto_kernel::prelude::*;

use super::{Case, Rng, floats, halves, ints, no_floats, no_ints, of, wide};

#[kernel]
fn saxpy(n: u32, a: f32, x: &[f32], y: &mut [f32]) {
    let i = global_id(0);
    if i < n {
        y[i] = a * x[i] + y[i];
    }
}

#[kernel_fn]
fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

#[kernel_fn]
fn gelu(x: f32) -> f32 {
    // Beyond this the other factor is 0 or 2, and the cube may be large.
    if x.abs() > 6.0 {
        return x.max(0.0);
    }
    0.5 * x * (1.0 + (0.7978846 * (x + 0.044715 * x * x * x)).tanh())
}

fn gelu64(x: f64) -> f64 {
    0.5 * x * (1.0 + (0.7978846 * (x + 0.044715 * x * x * x)).tanh())
}

#[kernel]
fn silu_gate(gate: &[Vec4<f32>], up: &[Vec4<f32>], y: &mut [Vec4<f32>]) {
    let i = global_id(0);
    let g = gate[i];
    y[i] = vec4(silu(g.x), silu(g.y), silu(g.z), silu(g.w)) * up[i];
}

#[kernel]
fn gelu_chain(#[comptime] width: u32, x: &[f32], bias: &[f32], y: &mut [f32]) {
    let i = global_id(0);
    let h = x[i] + bias[i % width];
    y[i] = gelu(h) + gelu(4.0 * h) * 0.125 + x[i];
}

/// Rotates pairs of channels by angles that grow with the position.
#[kernel]
fn rotary(#[comptime] pairs: u32, positions: &[u32], x: &mut [Vec2<f32>]) {
    let i = global_id(0);
    let (row, pair) = (i / pairs, i % pairs);
    let turn = lit::<f32>(0.0001).pow(pair as f32 / pairs as f32);
    let angle = positions[row] as f32 * turn;
    let (sin, cos) = (angle.sin(), angle.cos());
    let v = x[i];
    x[i] = vec2(v.x * cos - v.y * sin, v.x * sin + v.y * cos);
}

/// Blocks of 32 numbers of 4 bits with a scale and an offset; an invocation unpacks 8.
#[kernel]
fn dequantise(packed: &[u32], scales: &[Vec2<f16>], y: &mut [Vec4<f32>]) {
    let i = global_id(0);
    let block = scales[i / 4];
    let (scale, offset) = (block.x as f32, block.y as f32);
    let word = packed[i];
    #[comptime]
    for part in 0..2u32 {
        let bits = word >> (part * 16);
        let four = vec4((bits & 15) as f32, (bits >> 4 & 15) as f32, (bits >> 8 & 15) as f32, (bits >> 12 & 15) as f32);
        y[i * 2 + part] = four * splat4(scale) + splat4(offset);
    }
}

#[kernel]
fn gather_rows(#[comptime] width: u32, table: &[Vec4<f32>], tokens: &[u32], y: &mut [Vec4<f32>]) {
    let i = global_id(0);
    y[i] = table[tokens[i / width] * width + i % width];
}

#[kernel]
fn collatz(y: &mut [u32]) {
    let i = global_id(0);
    let mut n = i + 1;
    let mut steps = 0;
    while n != 1 {
        steps += 1;
        if n & 1 == 0 {
            n >>= 1;
            continue;
        }
        n = n * 3 + 1;
    }
    y[i] = steps;
}

#[kernel(workgroup = [16, 16])]
fn mandelbrot(#[comptime] turns: u32, y: &mut [u32]) {
    let (i, j) = (global_id(0), global_id(1));
    let (a, b) = (i as f32 * 0.1875 - 2.0, j as f32 * 0.125 - 1.0);
    let (mut p, mut q, mut n) = (0.0, 0.0, 0);
    for _ in 0..turns {
        let (pp, qq) = (p * p, q * q);
        if pp + qq > 4.0 {
            break;
        }
        let r = p * q;
        q = r + r + b;
        p = pp - qq + a;
        n += 1;
    }
    y[j * 16 + i] = n;
}

pub(super) fn cases(rng: &mut Rng) -> Vec<Case> {
    let (x, z, bias) = (floats(rng, 256), floats(rng, 256), floats(rng, 16));
    let want: Vec<f32> = (0..256).map(|i| if i < 200 { 2.5 * x[i] + z[i] } else { z[i] }).collect();
    let saxpy = Case::new(saxpy(), [4, 1, 1], vec![of(&x), of(&z)], want).scalars(&[200, 2.5f32.to_bits()]);

    let want = wide(&x).into_iter().zip(wide(&z)).map(|(g, u)| g / (1.0 + (-g).exp()) * u);
    let silu_gate = Case::new(silu_gate(), [1, 1, 1], vec![of(&x), of(&z), no_floats(256)], want).within(1e-5);

    let want = (0..256).map(|i| {
        let h = f64::from(x[i] + bias[i % 16]);
        gelu64(h) + gelu64(4.0 * h) * 0.125 + f64::from(x[i])
    });
    let gelu = Case::new(gelu_chain(16), [4, 1, 1], vec![of(&x), of(&bias), no_floats(256)], want).within(1e-4);

    let positions = ints(rng, 8, 60);
    let turned = (0..128).flat_map(|i| {
        let angle = f64::from(positions[i / 16]) * 0.0001f64.powf((i % 16) as f64 / 16.0);
        let (a, b) = (f64::from(x[2 * i]), f64::from(x[2 * i + 1]));
        [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()]
    });
    let rotary = Case::new(rotary(16), [2, 1, 1], vec![of(&positions), of(&x)], turned).within(1e-2);

    let packed = ints(rng, 64, 1 << 32);
    let scales = floats(rng, 32);
    let want = (0..512).map(|i| {
        let nibble = (packed[i / 8] >> (i % 8 * 4) & 15) as f32;
        nibble * scales[i / 32 * 2] + scales[i / 32 * 2 + 1]
    });
    let buffers = vec![of(&packed), halves(&scales), no_floats(512)];
    let dequantise = Case::new(dequantise(), [1, 1, 1], buffers, want);

    let tokens = ints(rng, 16, 16);
    let want: Vec<f32> = (0..256).map(|i| x[tokens[i / 16] as usize * 16 + i % 16]).collect();
    let gather = Case::new(gather_rows(4), [1, 1, 1], vec![of(&x), of(&tokens), no_floats(256)], want);

    let steps = |mut n: u32| {
        let mut steps = 0u32;
        while n != 1 {
            n = if n & 1 == 0 { n / 2 } else { 3 * n + 1 };
            steps += 1;
        }
        steps
    };
    let collatz = Case::new(collatz(), [1, 1, 1], vec![no_ints(64)], (1..=64).map(steps));

    let escape = |i: usize| {
        let (a, b) = ((i % 16) as f32 * 0.1875 - 2.0, (i / 16) as f32 * 0.125 - 1.0);
        let (mut p, mut q, mut n) = (0f32, 0f32, 0u32);
        while n < 50 && p * p + q * q <= 4.0 {
            (p, q) = (p * p - q * q + a, p * q + p * q + b);
            n += 1;
        }
        n
    };
    let mandelbrot = Case::new(mandelbrot(50), [1, 1, 1], vec![no_ints(256)], (0..256).map(escape));
    vec![saxpy, silu_gate, gelu, rotary, dequantise, gather, collatz, mandelbrot]
}
