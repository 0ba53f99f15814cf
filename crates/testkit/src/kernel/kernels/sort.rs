//! Orders: sorting networks, a step of radix sort, the largest few, search.

use impasto_kernel::prelude::*;

use super::{Case, Rng, floats, ints, no_floats, no_ints, of};

#[kernel]
fn bitonic_sort(x: &[u32], y: &mut [u32]) {
    let mut s = shared::<u32>(64);
    let l = local_id(0);
    s[l] = x[l];
    barrier();
    let mut size = 2;
    while size <= 64 {
        let mut step = size >> 1;
        while step > 0 {
            let other = l ^ step;
            if other > l {
                let (a, b) = (s[l], s[other]);
                let up = l & size == 0;
                if (a > b) == up {
                    s[l] = b;
                    s[other] = a;
                }
            }
            barrier();
            step >>= 1;
        }
        size <<= 1;
    }
    y[l] = s[l];
}

/// A network in registers: each invocation sorts eight numbers of its own.
#[kernel]
fn sort_eight(x: &[f32], y: &mut [f32]) {
    let first = global_id(0) * 8;
    let mut v = [0.0; 8];
    #[comptime]
    for i in 0..8u32 {
        v[i] = x[first + i];
    }
    #[comptime]
    for round in 0..8u32 {
        #[comptime]
        for i in (round % 2..7).step_by(2) {
            let (low, high) = (v[i].min(v[i + 1]), v[i].max(v[i + 1]));
            v[i] = low;
            v[i + 1] = high;
        }
    }
    #[comptime]
    for i in 0..8u32 {
        y[first + i] = v[i];
    }
}

/// One digit of four bits: a stable order by it. One workgroup; an invocation counts its own run of keys.
#[kernel]
fn radix_step(#[comptime] each: u32, shift: u32, x: &[u32], y: &mut [u32]) {
    let mut counts = shared::<u32>(16 * 64);
    let mut bases = shared::<u32>(16);
    let l = local_id(0);
    #[comptime]
    for d in 0..16u32 {
        counts[d * 64 + l] = 0;
    }
    for i in 0..each {
        counts[(x[l * each + i] >> shift & 15) * 64 + l] += 1;
    }
    barrier();
    // What stands before the run of each invocation, for each digit.
    if l < 16 {
        let mut sum = 0;
        for i in 0..64 {
            let n = counts[l * 64 + i];
            counts[l * 64 + i] = sum;
            sum += n;
        }
        bases[l] = sum;
    }
    barrier();
    if l == 0 {
        let mut sum = 0;
        for d in 0..16 {
            let n = bases[d];
            bases[d] = sum;
            sum += n;
        }
    }
    barrier();
    for i in 0..each {
        let key = x[l * each + i];
        let d = key >> shift & 15;
        let place = counts[d * 64 + l];
        counts[d * 64 + l] = place + 1;
        y[bases[d] + place] = key;
    }
}

/// The four largest of each row, by insertion, and their places.
#[kernel(workgroup = 8)]
fn top_four(#[comptime] width: u32, x: &[f32], places: &mut [u32], y: &mut [f32]) {
    let row = global_id(0);
    let mut best = [-1e30; 4];
    let mut at = [0; 4];
    for i in 0..width {
        let v = x[row * width + i];
        if v <= best[3] {
            continue;
        }
        best[3] = v;
        at[3] = i;
        #[comptime]
        for j in (1..4u32).rev() {
            if best[j] > best[j - 1] {
                let (b, p) = (best[j], at[j]);
                best[j] = best[j - 1];
                at[j] = at[j - 1];
                best[j - 1] = b;
                at[j - 1] = p;
            }
        }
    }
    #[comptime]
    for j in 0..4u32 {
        y[row * 4 + j] = best[j];
        places[row * 4 + j] = at[j];
    }
}

/// The first place in a sorted list where a number is not smaller.
#[kernel_fn]
fn lower_bound(sorted: &[u32], x: u32) -> u32 {
    let (mut low, mut high) = (0, sorted.len());
    while low < high {
        let middle = (low + high) / 2;
        if sorted[middle] < x {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Which numbers of one sorted list stand in another.
#[kernel]
fn intersect(a: &[u32], b: &[u32], y: &mut [u32]) {
    let i = global_id(0);
    let at = lower_bound(b, a[i]);
    y[i] = (at < b.len() && b[at] == a[i]) as u32;
}

/// Merges two sorted lists: the place of each number is its own plus how many of the other come first.
#[kernel]
fn merge(a: &[u32], b: &[u32], y: &mut [u32]) {
    let i = global_id(0);
    if i < a.len() {
        y[i + lower_bound(b, a[i])] = a[i];
    } else {
        let j = i - a.len();
        // Of equals, those of the first list come first.
        y[j + lower_bound(a, b[j] + 1)] = b[j];
    }
}

pub(super) fn cases(rng: &mut Rng) -> Vec<Case> {
    let (u, x) = (ints(rng, 512, 1 << 30), floats(rng, 512));
    let sorted = |x: &[u32]| {
        let mut x = x.to_vec();
        x.sort_unstable();
        x
    };
    let bitonic = Case::new(bitonic_sort(), [1, 1, 1], vec![of(&u), no_ints(64)], sorted(&u[..64]));

    let eight = |x: &[f32]| {
        let mut x = x.to_vec();
        x.sort_unstable_by(f32::total_cmp);
        x
    };
    let network = Case::new(sort_eight(), [1, 1, 1], vec![of(&x), no_floats(512)], x.chunks(8).flat_map(eight));

    let mut stable = u.clone();
    stable.sort_by_key(|u| u >> 8 & 15);
    let radix = Case::new(radix_step(8), [1, 1, 1], vec![of(&u), no_ints(512)], stable).scalars(&[8]);

    let largest = |row: &[f32]| {
        let mut order: Vec<u32> = (0..row.len() as u32).collect();
        order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]));
        order.truncate(4);
        order
    };
    let values = x.chunks(64).flat_map(|row| largest(row).into_iter().map(|i| row[i as usize]));
    let top = Case::new(top_four(64), [1, 1, 1], vec![of(&x), no_ints(32), no_floats(32)], values)
        .and(1, x.chunks(64).flat_map(largest));

    let (a, b) = (sorted(&ints(rng, 128, 400)), sorted(&ints(rng, 64, 400)));
    let want = a.iter().map(|x| u32::from(b.contains(x)));
    let intersect = Case::new(intersect(), [2, 1, 1], vec![of(&a), of(&b), no_ints(128)], want);
    let want = sorted(&[&a[..], &b].concat());
    let merge = Case::new(merge(), [3, 1, 1], vec![of(&a), of(&b), no_ints(192)], want);
    vec![bitonic, network, radix, top, intersect, merge]
}
