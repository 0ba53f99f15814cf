//! Simulations and graphs.

use impasto_kernel::prelude::*;

use super::{Case, Rng, floats, ints, no_floats, of};

#[derive(Clone, Copy, KernelStruct)]
struct Body {
    place: Vec4<f32>,
    pull: [f32; 3],
}

/// How bodies pull each other; a workgroup reads them tile by tile.
#[kernel(workgroup = 16)]
fn bodies(#[comptime] count: u32, x: &[Vec4<f32>], y: &mut [Vec4<f32>]) {
    let mut tile = shared::<Vec4<f32>>(16);
    let (i, l) = (global_id(0), local_id(0));
    let mut body = Body { place: x[i], pull: [0.0; 3] };
    for first in (0..count).step_by(16) {
        tile[l] = x[first + l];
        barrier();
        for j in 0..16 {
            let d = tile[j] - body.place;
            let r2 = d.x * d.x + d.y * d.y + d.z * d.z + 0.01;
            let f = r2.inverse_sqrt() / r2;
            #[comptime]
            for c in 0..3u32 {
                body.pull[c] += d[c] * f;
            }
        }
        barrier();
    }
    y[i] = vec4(body.pull[0], body.pull[1], body.pull[2], 0.0);
}

/// Heat on a rod, many steps in workgroup memory.
#[kernel]
fn heat(steps: u32, x: &[f32], y: &mut [f32]) {
    let mut now = shared::<f32>(64);
    let l = local_id(0);
    now[l] = x[l];
    barrier();
    for _ in 0..steps {
        let mut next = now[l];
        if l > 0 && l < 63 {
            next += 0.25 * (now[l - 1] - 2.0 * now[l] + now[l + 1]);
        }
        barrier();
        now[l] = next;
        barrier();
    }
    y[l] = now[l];
}

/// Which nodes hang together: each edge brings the smaller label to both its ends, until nothing changes.
#[kernel]
fn components(edges: &[Vec2<u32>], labels: &mut [u32]) {
    let mut changed = shared::<u32>(1);
    let l = local_id(0);
    loop {
        barrier();
        if l == 0 {
            changed[0] = 0;
        }
        barrier();
        for e in (l..edges.len()).step_by(64) {
            let (a, b) = (edges[e].x, edges[e].y);
            let (p, q) = (labels.atomic_or(a, 0), labels.atomic_or(b, 0));
            if p != q {
                let smaller = p.min(q);
                labels.atomic_min(a, smaller);
                labels.atomic_min(b, smaller);
                changed.atomic_or(0, 1);
            }
        }
        barrier();
        if changed[0] == 0 {
            break;
        }
    }
}

pub(super) fn cases(rng: &mut Rng) -> Vec<Case> {
    let x = floats(rng, 128);
    let p = |i: usize, c: usize| f64::from(x[i * 4 + c]);
    let pull = |n: usize| -> f64 {
        let (i, c) = (n / 4, n % 4);
        let term = |j: usize| {
            let r2: f64 = (0..3).map(|c| (p(j, c) - p(i, c)).powi(2)).sum::<f64>() + 0.01;
            (p(j, c) - p(i, c)) / (r2 * r2.sqrt())
        };
        if c == 3 { 0.0 } else { (0..32).map(term).sum() }
    };
    let bodies = Case::new(bodies(32), [2, 1, 1], vec![of(&x), no_floats(128)], (0..128).map(pull)).within(1e-3);

    let mut rod: Vec<f64> = x[..64].iter().map(|&x| x.into()).collect();
    for _ in 0..20 {
        let old = rod.clone();
        for i in 1..63 {
            rod[i] += 0.25 * (old[i - 1] - 2.0 * old[i] + old[i + 1]);
        }
    }
    let heat = Case::new(heat(), [1, 1, 1], vec![of(&x[..64]), no_floats(64)], rod).scalars(&[20]).within(1e-4);

    // Each label becomes that of the smallest node it hangs together with.
    let edges = ints(rng, 160, 100);
    let mut want: Vec<u32> = (0..100).collect();
    for _ in 0..100 {
        for e in edges.chunks(2) {
            let smaller = want[e[0] as usize].min(want[e[1] as usize]);
            want[e[0] as usize] = smaller;
            want[e[1] as usize] = smaller;
        }
    }
    let labels: Vec<u32> = (0..100).collect();
    let components = Case::new(components(), [1, 1, 1], vec![of(&edges), of(&labels)], want);
    vec![bodies, heat, components]
}
