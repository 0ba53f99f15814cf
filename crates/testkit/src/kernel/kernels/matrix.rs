//! Products of matrices, and transposes.

use impasto_kernel::prelude::*;

use super::{Case, Rng, floats, no_floats, of, wide};

/// Tiles of both factors in workgroup memory, one element an invocation.
#[kernel(workgroup = [tile, tile])]
fn matmul(#[comptime] tile: u32, n: u32, a: &[f32], b: &[f32], c: &mut [f32]) {
    let mut ta = shared::<f32>(tile * tile);
    let mut tb = shared::<f32>(tile * tile);
    let (row, col) = (global_id(1), global_id(0));
    let (y, x) = (local_id(1), local_id(0));
    let mut sum = 0.0;
    for t in (0..n).step_by(tile) {
        ta[y * tile + x] = a[row * n + t + x];
        tb[y * tile + x] = b[(t + y) * n + col];
        barrier();
        for i in 0..tile {
            sum += ta[y * tile + i] * tb[i * tile + x];
        }
        barrier();
    }
    c[row * n + col] = sum;
}

/// Each invocation computes 4 x 4 elements in registers, from tiles of 16 x 8 and 8 x 16.
#[kernel(workgroup = [4, 4])]
fn matmul_registers(#[comptime] n: u32, a: &[f32], b: &[f32], c: &mut [f32]) {
    let mut ta = shared::<f32>(128);
    let mut tb = shared::<f32>(128);
    let (top, left) = (workgroup_id(1) * 16, workgroup_id(0) * 16);
    let (y, x, l) = (local_id(1), local_id(0), local_index());
    let mut sums = [[0.0; 4]; 4];
    for t in (0..n).step_by(8) {
        for i in (l..128).step_by(16) {
            ta[i] = a[(top + i / 8) * n + t + i % 8];
            tb[i] = b[(t + i / 16) * n + left + i % 16];
        }
        barrier();
        for k in 0..8 {
            let mut column = [0.0; 4];
            #[comptime]
            for i in 0..4u32 {
                column[i] = ta[(y * 4 + i) * 8 + k];
            }
            #[comptime]
            for j in 0..4u32 {
                let v = tb[k * 16 + x * 4 + j];
                #[comptime]
                for i in 0..4u32 {
                    sums[i][j] += column[i] * v;
                }
            }
        }
        barrier();
    }
    #[comptime]
    for i in 0..4u32 {
        #[comptime]
        for j in 0..4u32 {
            c[(top + y * 4 + i) * n + left + x * 4 + j] = sums[i][j];
        }
    }
}

/// Loads and stores of four numbers; each invocation computes four neighbours of a row.
#[kernel(workgroup = [4, 16])]
fn matmul_vectors(#[comptime] n: u32, a: &[Vec4<f32>], b: &[Vec4<f32>], c: &mut [Vec4<f32>]) {
    let (row, col) = (global_id(1), global_id(0));
    let mut sum = splat4(0.0);
    for k in 0..n / 4 {
        let v = a[row * (n / 4) + k];
        #[comptime]
        for i in 0..4u32 {
            sum += splat4(v[i]) * b[(k * 4 + i) * (n / 4) + col];
        }
    }
    c[row * (n / 4) + col] = sum;
}

/// A row of the matrix for each subgroup or part of the workgroup of 32.
#[kernel(workgroup = 32)]
fn matrix_vector(#[comptime] width: u32, m: &[Vec4<f32>], v: &[Vec4<f32>], y: &mut [f32]) {
    let mut parts = shared::<f32>(32);
    let (row, l) = (workgroup_id(0), local_id(0));
    let mut sum = 0.0;
    for i in (l..width / 4).step_by(32) {
        let p = m[row * (width / 4) + i] * v[i];
        sum += p.x + p.y + (p.z + p.w);
    }
    parts[l] = sum;
    barrier();
    #[comptime]
    for step in [16u32, 8, 4, 2, 1] {
        if l < step {
            parts[l] += parts[l + step];
        }
        barrier();
    }
    if l == 0 {
        y[row] = parts[0];
    }
}

/// Through a tile with one column more than it needs, so that columns lie in different banks.
#[kernel(workgroup = [8, 8])]
fn transpose(#[comptime] n: u32, x: &[f32], y: &mut [f32]) {
    let mut tile = shared::<f32>(72);
    let (i, j) = (local_id(0), local_id(1));
    tile[j * 9 + i] = x[global_id(1) * n + global_id(0)];
    barrier();
    let (r, c) = (workgroup_id(0) * 8 + j, workgroup_id(1) * 8 + i);
    y[r * n + c] = tile[i * 9 + j];
}

/// (channels, height * width) to (height * width, channels), four channels at a time.
#[kernel]
fn channels_last(#[comptime] channels: u32, pixels: u32, x: &[f32], y: &mut [Vec4<f32>]) {
    let i = global_id(0);
    let (pixel, c) = (i / (channels / 4), i % (channels / 4) * 4);
    if pixel >= pixels {
        return;
    }
    let mut four = splat4(0.0);
    four.x = x[c * pixels + pixel];
    four.y = x[(c + 1) * pixels + pixel];
    four.z = x[(c + 2) * pixels + pixel];
    four.w = x[(c + 3) * pixels + pixel];
    y[i] = four;
}

pub(super) fn cases(rng: &mut Rng) -> Vec<Case> {
    let (a, b) = (floats(rng, 1024), floats(rng, 1024));
    let product = |n: usize| -> Vec<f32> {
        let element = |r: usize, c: usize| (0..n).fold(0f32, |s, i| s + a[r * n + i] * b[i * n + c]);
        (0..n * n).map(|i| element(i / n, i % n)).collect()
    };
    let factors = |n: usize| vec![of(&a[..n * n]), of(&b[..n * n]), no_floats(n * n)];
    let tiled = Case::new(matmul(8), [2, 2, 1], factors(16), product(16)).scalars(&[16]);
    let registers = Case::new(matmul_registers(32), [2, 2, 1], factors(32), product(32));
    let vectors = Case::new(matmul_vectors(32), [2, 2, 1], factors(32), product(32));

    let row = |r: usize| wide(&a[r * 256..][..256]).iter().zip(wide(&b)).map(|(a, b)| a * b).sum::<f64>();
    let vector = vec![of(&a), of(&b[..256]), no_floats(4)];
    let matrix_vector = Case::new(matrix_vector(256), [4, 1, 1], vector, (0..4).map(row)).within(1e-4);

    let want: Vec<f32> = (0..1024).map(|i| a[i % 32 * 32 + i / 32]).collect();
    let transpose = Case::new(transpose(32), [4, 4, 1], vec![of(&a), no_floats(1024)], want);
    let want: Vec<f32> = (0..800).map(|i| a[i % 8 * 100 + i / 8]).collect();
    let channels = Case::new(channels_last(8), [4, 1, 1], vec![of(&a[..800]), no_floats(800)], want).scalars(&[100]);
    vec![tiled, registers, vectors, matrix_vector, transpose, channels]
}
