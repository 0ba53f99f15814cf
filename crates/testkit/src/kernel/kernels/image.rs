//! Pictures: stencils, convolution, resizing.

use impasto_kernel::prelude::*;

use super::{Case, Rng, floats, ints, no_floats, no_ints, of};

#[kernel(workgroup = [16, 16])]
fn stencil(#[comptime] size: i32, x: &[f32], y: &mut [f32]) {
    let (i, j) = (global_id(0) as i32, global_id(1) as i32);
    let mut sum = 0.0;
    for dy in -1..2 {
        for dx in -1..2 {
            let (a, b) = (i + dx, j + dy);
            if a < 0 || b < 0 || a >= size || b >= size {
                continue;
            }
            sum += x[(b * size + a) as u32];
        }
    }
    y[(j * size + i) as u32] = sum;
}

/// A workgroup keeps its tile and a rim of one around it.
#[kernel(workgroup = [8, 8])]
fn blur_tile(#[comptime] size: u32, x: &[f32], y: &mut [f32]) {
    let mut tile = shared::<f32>(100);
    let (i, j) = (local_id(0), local_id(1));
    let (left, top) = (workgroup_id(0) * 8, workgroup_id(1) * 8);
    for n in (local_index()..100).step_by(64) {
        // The edge goes on outside.
        let a = (left + n % 10).max(1).min(size) - 1;
        let b = (top + n / 10).max(1).min(size) - 1;
        tile[n] = x[b * size + a];
    }
    barrier();
    let at = j * 10 + i;
    let rows = (tile[at] + 2.0 * tile[at + 1] + tile[at + 2])
        + 2.0 * (tile[at + 10] + 2.0 * tile[at + 11] + tile[at + 12])
        + (tile[at + 20] + 2.0 * tile[at + 21] + tile[at + 22]);
    y[(top + j) * size + left + i] = rows / 16.0;
}

/// 3 x 3 with zeros around, over (channels, size, size); the weights are (outputs, channels, 3, 3).
#[kernel(workgroup = [8, 8])]
fn convolution(#[comptime] channels: u32, #[comptime] size: u32, x: &[f32], weights: &[f32], y: &mut [f32]) {
    let (i, j, out) = (global_id(0), global_id(1), global_id(2));
    let mut sum = 0.0;
    for c in 0..channels {
        #[comptime]
        for tap in 0..9u32 {
            // With the rim, so that nothing is negative.
            let (a, b) = (i + tap % 3, j + tap / 3);
            if a >= 1 && a <= size && b >= 1 && b <= size {
                sum += x[(c * size + b - 1) * size + a - 1] * weights[(out * channels + c) * 9 + tap];
            }
        }
    }
    y[(out * size + j) * size + i] = sum;
}

/// To another size; the centres of the corners stay where they are in their pixels.
#[kernel(workgroup = [8, 8])]
fn resize_bilinear(#[comptime] from: u32, #[comptime] to: u32, x: &[f32], y: &mut [f32]) {
    let (i, j) = (global_id(0), global_id(1));
    if i >= to || j >= to {
        return;
    }
    let (left, right, across) = neighbours(from, to, i);
    let (above, below, down) = neighbours(from, to, j);
    let top = x[above * from + left] * (1.0 - across) + x[above * from + right] * across;
    let bottom = x[below * from + left] * (1.0 - across) + x[below * from + right] * across;
    y[j * to + i] = top * (1.0 - down) + bottom * down;
}

/// The pixels around the centre of a new one, and how much the second counts.
#[kernel_fn]
fn neighbours(#[comptime] from: u32, #[comptime] to: u32, i: u32) -> (u32, u32, f32) {
    let place = ((i as f32 + 0.5) * (from as f32 / to as f32) - 0.5).max(0.0);
    let first = (place as u32).min(from - 1);
    (first, (first + 1).min(from - 1), place - first as f32)
}

/// Conway's game on a torus whose side is a power of two.
#[kernel(workgroup = [8, 8])]
fn life(#[comptime] side: u32, x: &[u32], y: &mut [u32]) {
    let (i, j) = (global_id(0), global_id(1));
    let mut alive = 0;
    for dy in 0..3 {
        for dx in 0..3 {
            if dx == 1 && dy == 1 {
                continue;
            }
            alive += x[(j + side - 1 + dy) % side * side + (i + side - 1 + dx) % side];
        }
    }
    let at = j * side + i;
    y[at] = match alive {
        2 => x[at],
        3 => 1,
        _ => 0,
    };
}

/// How steep it is, and in which of eight directions.
#[kernel(workgroup = [8, 8])]
fn edges(#[comptime] size: u32, x: &[f32], directions: &mut [u32], y: &mut [f32]) {
    let (i, j) = (global_id(0), global_id(1));
    let at = j * size + i;
    if i == 0 || j == 0 || i == size - 1 || j == size - 1 {
        y[at] = 0.0;
        directions[at] = 8;
        return;
    }
    let dx =
        x[at + 1 - size] + 2.0 * x[at + 1] + x[at + 1 + size] - (x[at - 1 - size] + 2.0 * x[at - 1] + x[at - 1 + size]);
    let dy = x[at + size - 1] + 2.0 * x[at + size] + x[at + size + 1]
        - (x[at - size - 1] + 2.0 * x[at - size] + x[at - size + 1]);
    y[at] = (dx * dx + dy * dy).sqrt();
    let mut direction = 0;
    if dx < 0.0 {
        direction |= 1;
    }
    if dy < 0.0 {
        direction |= 2;
    }
    if dx.abs() < dy.abs() {
        direction |= 4;
    }
    directions[at] = direction;
}

pub(super) fn cases(rng: &mut Rng) -> Vec<Case> {
    let x = floats(rng, 768);
    let at = |x: &[f32], i: i32, j: i32| {
        if (0..16).contains(&i) && (0..16).contains(&j) { x[(j * 16 + i) as usize] } else { 0.0 }
    };
    let inside = |i: i32, j: i32| (0..16).contains(&i) && (0..16).contains(&j);
    let around = |n: i32| {
        let places = (0..9).map(|t| (n % 16 + t % 3 - 1, n / 16 + t / 3 - 1)).filter(|&(i, j)| inside(i, j));
        places.fold(0f32, |s, (i, j)| s + at(&x, i, j))
    };
    let stencil = Case::new(stencil(16), [1, 1, 1], vec![of(&x[..256]), no_floats(256)], (0..256).map(around));

    let blurred = |n: i32| {
        let tap = |t: i32| {
            let (i, j) = ((n % 16 + t % 3 - 1).clamp(0, 15), (n / 16 + t / 3 - 1).clamp(0, 15));
            let weight = [1.0, 2.0, 1.0];
            f64::from(at(&x, i, j)) * weight[t as usize % 3] * weight[t as usize / 3]
        };
        (0..9).map(tap).sum::<f64>() / 16.0
    };
    let blur =
        Case::new(blur_tile(16), [2, 2, 1], vec![of(&x[..256]), no_floats(256)], (0..256).map(blurred)).within(1e-5);

    let weights = floats(rng, 54);
    let convolved = |n: i32| {
        let (out, i, j) = (n / 256, n % 16, n / 16 % 16);
        let tap = |t: i32| {
            let plane = &x[(t / 9) as usize * 256..][..256];
            f64::from(at(plane, i + t % 3 - 1, j + t % 9 / 3 - 1)) * f64::from(weights[(out * 27 + t) as usize])
        };
        (0..27).map(tap).sum::<f64>()
    };
    let buffers = vec![of(&x), of(&weights), no_floats(512)];
    let convolution = Case::new(convolution(3, 16), [2, 2, 2], buffers, (0..512).map(convolved)).within(1e-4);

    let resized = |n: i32| {
        let place = |i: i32| {
            let p = ((f64::from(i) + 0.5) * 16.0 / 11.0 - 0.5).max(0.0);
            let first = p.floor().min(15.0);
            (first as i32, (first as i32 + 1).min(15), p - first)
        };
        let ((l, r, across), (t, b, down)) = (place(n % 11), place(n / 11));
        let pixel = |i, j| f64::from(at(&x, i, j));
        let row = |j| pixel(l, j) * (1.0 - across) + pixel(r, j) * across;
        row(t) * (1.0 - down) + row(b) * down
    };
    let resize =
        Case::new(resize_bilinear(16, 11), [2, 2, 1], vec![of(&x), no_floats(121)], (0..121).map(resized)).within(1e-3);

    let cells = ints(rng, 256, 2);
    let next = |n: usize| {
        let neighbour = |t: usize| cells[(n / 16 + 15 + t / 3) % 16 * 16 + (n % 16 + 15 + t % 3) % 16];
        let alive: u32 = (0..9).filter(|&t| t != 4).map(neighbour).sum();
        u32::from(alive == 3 || alive == 2 && cells[n] == 1)
    };
    let life = Case::new(life(16), [2, 2, 1], vec![of(&cells), no_ints(256)], (0..256).map(next));

    let slope = |n: i32| {
        let (i, j) = (n % 16, n / 16);
        if i == 0 || j == 0 || i == 15 || j == 15 {
            return (0.0, 8);
        }
        let p = |a: i32, b: i32| f64::from(at(&x, i + a, j + b));
        let dx = p(1, -1) + 2.0 * p(1, 0) + p(1, 1) - (p(-1, -1) + 2.0 * p(-1, 0) + p(-1, 1));
        let dy = p(-1, 1) + 2.0 * p(0, 1) + p(1, 1) - (p(-1, -1) + 2.0 * p(0, -1) + p(1, -1));
        let direction = u32::from(dx < 0.0) | u32::from(dy < 0.0) << 1 | u32::from(dx.abs() < dy.abs()) << 2;
        ((dx * dx + dy * dy).sqrt(), direction)
    };
    let buffers = vec![of(&x[..256]), no_ints(256), no_floats(256)];
    let edges = Case::new(edges(16), [2, 2, 1], buffers, (0..256).map(|n| slope(n).0))
        .and(1, (0..256).map(|n| slope(n).1))
        .within(1e-5);
    vec![stencil, blur, convolution, resize, life, edges]
}
