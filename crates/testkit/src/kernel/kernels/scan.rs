//! Prefix sums, and what is built of them.

use impasto_kernel::prelude::*;

use super::{Case, Rng, ints, no_ints, of};

/// Hillis and Steele: log n steps, each of them for all.
#[kernel]
fn scan_steps(x: &[u32], y: &mut [u32]) {
    let mut s = shared::<u32>(64);
    let l = local_id(0);
    s[l] = x[l];
    barrier();
    let mut step = 1;
    while step < 64 {
        let mut sum = s[l];
        if l >= step {
            sum += s[l - step];
        }
        barrier();
        s[l] = sum;
        barrier();
        step <<= 1;
    }
    y[l] = s[l];
}

/// Blelloch: up a tree and down again, exclusive; two elements an invocation.
#[kernel(workgroup = size / 2)]
fn scan_tree(#[comptime] size: u32, x: &[u32], y: &mut [u32]) {
    let mut s = shared::<u32>(size);
    let l = local_id(0);
    s[2 * l] = x[2 * l];
    s[2 * l + 1] = x[2 * l + 1];
    #[comptime]
    let mut step = 1;
    #[comptime]
    while step < size {
        barrier();
        if l < size / 2 / step {
            let right = step * (2 * l + 2) - 1;
            s[right] += s[right - step];
        }
        step *= 2;
    }
    if l == 0 {
        s[size - 1] = 0;
    }
    #[comptime]
    while step > 1 {
        step /= 2;
        barrier();
        if l < size / 2 / step {
            let right = step * (2 * l + 2) - 1;
            let left = s[right - step];
            s[right - step] = s[right];
            s[right] += left;
        }
    }
    barrier();
    y[2 * l] = s[2 * l];
    y[2 * l + 1] = s[2 * l + 1];
}

/// The sum before this invocation in its workgroup of up to 128, and the sum of all.
#[kernel_fn]
fn scan_workgroup(v: u32, parts: &mut [u32]) -> (u32, u32) {
    let before = v.subgroup_exclusive_add();
    let subgroup = local_index() / subgroup_size();
    // Of a subgroup, the last knows the sum.
    if subgroup_lane() == subgroup_size() - 1 {
        parts[subgroup] = before + v;
    }
    barrier();
    let (mut base, mut all) = (0, 0);
    for i in 0..128 / subgroup_size() {
        if i < subgroup {
            base += parts[i];
        }
        all += parts[i];
    }
    barrier();
    (base + before, all)
}

#[kernel(workgroup = 128)]
fn scan_subgroups(x: &[u32], y: &mut [u32]) {
    let mut parts = shared::<u32>(128);
    let mut carry = 0;
    for first in (0..x.len()).step_by(128) {
        let i = first + local_index();
        let (before, all) = scan_workgroup(x[i], &mut parts);
        y[i] = carry + before;
        carry += all;
    }
}

/// One pass over memory: a workgroup adds up what the workgroups before it have published. The two top bits of a state say whether it is
/// there, and whether it is the sum of one workgroup or of all up to it.
#[kernel(workgroup = 128)]
fn scan_decoupled(x: &[u32], states: &mut [u32], y: &mut [u32]) {
    const OWN: u32 = 1 << 30;
    const ALL: u32 = 2 << 30;
    const SUM: u32 = OWN - 1;
    let mut parts = shared::<u32>(128);
    let mut ticket = shared::<u32>(1);
    let mut base = shared::<u32>(1);
    let l = local_index();
    // Workgroups may begin in any order; so that those before this one have begun, it takes a number.
    if l == 0 {
        ticket[0] = states.atomic_add(0, 1);
    }
    barrier();
    let group = ticket[0];
    let i = group * 128 + l;
    let (before, sum) = scan_workgroup(x[i], &mut parts);
    if l == 0 {
        let mut carry = 0;
        if group > 0 {
            states.atomic_exchange(group + 1, OWN | sum);
            let mut at = group;
            loop {
                let state = states.atomic_or(at, 0);
                if state & ALL != 0 {
                    carry += state & SUM;
                    break;
                }
                if state & OWN != 0 {
                    carry += state & SUM;
                    at -= 1;
                }
            }
        }
        states.atomic_exchange(group + 1, ALL | (carry + sum));
        base[0] = carry;
    }
    barrier();
    y[i] = base[0] + before;
}

/// Those that are wanted, one behind the other, in their order, and how many they are.
#[kernel(workgroup = 128)]
fn compact(x: &[u32], count: &mut [u32], y: &mut [u32]) {
    let mut parts = shared::<u32>(128);
    let mut carry = 0;
    for first in (0..x.len()).step_by(128) {
        let v = x[first + local_index()];
        let wanted = v % 3 == 0;
        let (before, all) = scan_workgroup(wanted as u32, &mut parts);
        if wanted {
            y[carry + before] = v;
        }
        carry += all;
    }
    if local_index() == 0 {
        count[0] = carry;
    }
}

pub(super) fn cases(rng: &mut Rng) -> Vec<Case> {
    let x = ints(rng, 512, 1000);
    let before = |x: &[u32]| -> Vec<u32> {
        x.iter()
            .scan(0, |sum, x| {
                *sum += x;
                Some(*sum - x)
            })
            .collect()
    };
    let want: Vec<u32> = before(&x[..64]).iter().zip(&x).map(|(b, x)| b + x).collect();
    let steps = Case::new(scan_steps(), [1, 1, 1], vec![of(&x), no_ints(64)], want);
    let tree = Case::new(scan_tree(128), [1, 1, 1], vec![of(&x), no_ints(128)], before(&x[..128]));
    let subgroups = Case::new(scan_subgroups(), [1, 1, 1], vec![of(&x), no_ints(512)], before(&x));
    let decoupled = Case::new(scan_decoupled(), [4, 1, 1], vec![of(&x), no_ints(5), no_ints(512)], before(&x));

    let mut wanted: Vec<u32> = x.iter().copied().filter(|x| x % 3 == 0).collect();
    let count = wanted.len() as u32;
    wanted.resize(512, 0);
    let compact = Case::new(compact(), [1, 1, 1], vec![of(&x), no_ints(1), no_ints(512)], wanted).and(1, [count]);
    vec![steps, tree, subgroups, decoupled, compact]
}
