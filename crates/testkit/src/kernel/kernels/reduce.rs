//! Many numbers to few.

use impasto_kernel::prelude::*;

use super::{Case, Rng, floats, halves, ints, no_floats, no_ints, of, wide};

/// The sum over a workgroup, by halves.
#[kernel(workgroup = size)]
fn sum_tree(#[comptime] size: u32, x: &[f32], y: &mut [f32]) {
    let mut s = shared::<f32>(size);
    let l = local_id(0);
    s[l] = x[global_id(0)];
    barrier();
    #[comptime]
    let mut step = size / 2;
    #[comptime]
    while step > 0 {
        if l < step {
            s[l] += s[l + step];
        }
        barrier();
        step /= 2;
    }
    if l == 0 {
        y[workgroup_id(0)] = s[0];
    }
}

/// The sum over a workgroup of 128 by subgroups, of any size.
#[kernel(workgroup = 128)]
fn sum_subgroup(n: u32, x: &[f32], y: &mut [f32]) {
    let mut parts = shared::<f32>(128);
    let l = local_index();
    let mut sum = 0.0;
    for i in (global_id(0)..n).step_by(512) {
        sum += x[i];
    }
    let part = sum.subgroup_add();
    if subgroup_lane() == 0 {
        parts[l / subgroup_size()] = part;
    }
    barrier();
    if l == 0 {
        let mut all = 0.0;
        for i in 0..128 / subgroup_size() {
            all += parts[i];
        }
        y[workgroup_id(0)] = all;
    }
}

/// Mean and variance in one pass, by Welford's way; each workgroup joins its parts in a tree.
#[kernel]
fn moments(#[comptime] each: u32, x: &[f32], y: &mut [Vec2<f32>]) {
    let mut means = shared::<f32>(64);
    let mut squares = shared::<f32>(64);
    let l = local_id(0);
    let first = global_id(0) * each;
    let (mut mean, mut square) = (0.0, 0.0);
    for i in 0..each {
        let v = x[first + i];
        let d = v - mean;
        mean += d / (i + 1) as f32;
        square += d * (v - mean);
    }
    means[l] = mean;
    squares[l] = square;
    barrier();
    let mut step = 1;
    while step < 64 {
        if l % (step * 2) == 0 {
            let d = means[l + step] - means[l];
            let n = (step * each) as f32;
            squares[l] = squares[l] + squares[l + step] + d * d * n * 0.5;
            means[l] = means[l] + d * 0.5;
        }
        barrier();
        step *= 2;
    }
    if l == 0 {
        y[workgroup_id(0)] = vec2(means[0], squares[0] / (64 * each) as f32);
    }
}

/// The place of the largest, the first of equals.
#[kernel]
fn argmax(x: &[f32], y: &mut [u32]) {
    let mut best = shared::<f32>(64);
    let mut places = shared::<u32>(64);
    let l = local_id(0);
    let mut value = x[l];
    let mut place = l;
    for i in (l + 64..x.len()).step_by(64) {
        if x[i] > value {
            value = x[i];
            place = i;
        }
    }
    best[l] = value;
    places[l] = place;
    barrier();
    #[comptime]
    for step in [32u32, 16, 8, 4, 2, 1] {
        if l < step {
            let (v, p) = (best[l + step], places[l + step]);
            if v > best[l] || v == best[l] && p < places[l] {
                best[l] = v;
                places[l] = p;
            }
        }
        barrier();
    }
    if l == 0 {
        y[0] = places[0];
    }
}

/// Halves in memory, sums in f32.
#[kernel(workgroup = 32)]
fn dot_half(#[comptime] each: u32, a: &[Vec4<f16>], b: &[Vec4<f16>], y: &mut [f32]) {
    let mut parts = shared::<f32>(32);
    let l = local_id(0);
    let mut sum = 0.0;
    for i in 0..each {
        let (p, q) = (a[global_id(0) * each + i], b[global_id(0) * each + i]);
        #[comptime]
        for c in 0..4u32 {
            sum += p[c] as f32 * q[c] as f32;
        }
    }
    parts[l] = sum;
    barrier();
    if l == 0 {
        let mut all = 0.0;
        for i in 0..32 {
            all += parts[i];
        }
        y[workgroup_id(0)] = all;
    }
}

#[kernel]
fn histogram(x: &[u32], y: &mut [u32]) {
    y.atomic_add(x[global_id(0)] % 10, 1);
}

/// Counted in the workgroup, then added to the whole: fewer meet at an atomic.
#[kernel]
fn histogram_shared(#[comptime] bins: u32, x: &[u32], y: &mut [u32]) {
    let mut counts = shared::<u32>(bins);
    let l = local_id(0);
    if l < bins {
        counts[l] = 0;
    }
    barrier();
    for i in (global_id(0)..x.len()).step_by(128) {
        counts.atomic_add(x[i] / 7 % bins, 1);
    }
    barrier();
    if l < bins && counts[l] > 0 {
        y.atomic_add(l, counts[l]);
    }
}

/// The smallest and the largest of a column; a workgroup takes a column each.
#[kernel(workgroup = 16)]
fn column_range(#[comptime] width: u32, x: &[i32], y: &mut [i32]) {
    let mut low = shared::<i32>(1);
    let mut high = shared::<i32>(1);
    let (l, column) = (local_id(0), workgroup_id(0));
    let first = x[l * width + column];
    if l == 0 {
        low[0] = first;
        high[0] = first;
    }
    barrier();
    low.atomic_min(0, first);
    high.atomic_max(0, first);
    barrier();
    if l == 0 {
        y[column * 2] = low[0];
        y[column * 2 + 1] = high[0];
    }
}

pub(super) fn cases(rng: &mut Rng) -> Vec<Case> {
    let (x, u) = (floats(rng, 2048), ints(rng, 1000, 1 << 20));
    let sum = |x: &[f32]| wide(x).iter().sum::<f64>();
    let tree = Case::new(sum_tree(128), [16, 1, 1], vec![of(&x), no_floats(16)], x.chunks(128).map(sum)).within(1e-5);

    let part =
        |g: usize| wide(&x[..2000]).iter().enumerate().filter(|(i, _)| i / 128 % 4 == g).map(|(_, x)| x).sum::<f64>();
    let subgroup = Case::new(sum_subgroup(), [4, 1, 1], vec![of(&x), no_floats(4)], (0..4).map(part))
        .scalars(&[2000])
        .within(1e-5);

    let pair = |x: &[f32]| {
        let mean = sum(x) / 1024.0;
        [mean, wide(x).iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1024.0]
    };
    let moments =
        Case::new(moments(16), [2, 1, 1], vec![of(&x), no_floats(4)], x.chunks(1024).flat_map(pair)).within(1e-4);

    let few = &x[..300];
    let best = (0..300).fold(0, |b, i| if few[i] > few[b] { i } else { b });
    let argmax = Case::new(argmax(), [1, 1, 1], vec![of(few), no_ints(1)], [best as u32]);

    let z = floats(rng, 2048);
    let product = |(a, b): (&[f32], &[f32])| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    let want = x.chunks(1024).zip(z.chunks(1024)).map(product);
    let dot = Case::new(dot_half(8), [2, 1, 1], vec![halves(&x), halves(&z), no_floats(2)], want).within(1e-4);

    let count = |f: &dyn Fn(u32) -> u32, n: u32, of: &[u32]| -> Vec<u32> {
        (0..n).map(|b| of.iter().filter(|&&x| f(x) == b).count() as u32).collect()
    };
    let want = count(&|x| x % 10, 10, &u[..256]);
    let global = Case::new(histogram(), [4, 1, 1], vec![of(&u[..256]), no_ints(10)], want);
    let want = count(&|x| x / 7 % 32, 32, &u);
    let shared = Case::new(histogram_shared(32), [2, 1, 1], vec![of(&u), no_ints(32)], want);

    let signed: Vec<i32> = u[..128].iter().map(|&x| x as i32 - 500_000).collect();
    let column = |c: usize| signed.iter().skip(c).step_by(8).copied();
    let want = (0..8).flat_map(|c| [column(c).min().unwrap(), column(c).max().unwrap()]);
    let buffers = vec![of(&signed), impasto_kernel::BufferData::zeros(impasto_kernel::Scalar::I32, 16)];
    let range = Case::new(column_range(8), [8, 1, 1], buffers, want);
    vec![tree, subgroup, moments, argmax, dot, global, shared, range]
}
