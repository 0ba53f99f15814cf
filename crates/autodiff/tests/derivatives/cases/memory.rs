//! Cases with memory, of one invocation, of a workgroup and of all; and whole algorithms.

use impasto_kernel::{BufferData, Vector};

use super::{Cases, F, X, hypotenuse};
use crate::derivatives::gradients::{kernel, wide};

pub(super) fn memory(c: &mut Cases) {
    c.one("dynamic_index", &X, &[3, 1, 1, 5], 4, None, |k, x, n, y| {
        k.for_(0u32, 4u32, |_, i| y.store(i, x.load(n.load(i)) * x.load(i)));
    });
    c.one("stored_twice", &X, &[3], 2, None, |k, x, n, y| {
        k.for_(0u32, n.load(0), |_, i| y.store(i % 2u32, x.load(i) * x.load(i)));
    });
    c.one("overwritten", &X, &[0], 1, Some(vec![0.0, X[1].cos(), 0.0, 0.0, 0.0, 0.0]), |_, x, _, y| {
        y.store(0, x.load(0).exp());
        y.store(0, x.load(1).sin());
    });
    c.one("stored_and_read", &X, &[0], 2, None, |_, x, _, y| {
        y.store(0, x.load(0) * x.load(1));
        y.store(1, y.load(0) * 2.0f32);
    });
    c.one("array_value", &X, &[0], 1, None, |k, x, _, y| {
        let a = k.array([x.load(0), x.load(1) * x.load(2), x.load(3)]);
        let b = a.with(1, a.element(1) * a.element(0));
        y.store(0, b.element(1) * b.element(2) + b.element(0));
    });
    // Read and added to: the value that was there is not needed.
    let k = kernel("saxpy", 6, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let a = k.param::<f32>("a");
        let i = k.global_id(0);
        y.store(i, y.load(i) + a * x.load(i));
    });
    let mut launch = wide(1, vec![BufferData::wide(&X), BufferData::wide(&X)]);
    launch.scalars = vec![1.7f64.to_bits()];
    c.add("added_to_itself", k, launch, Some(vec![1.7; 6]));
    let k = kernel("scatter", 6, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let i = k.global_id(0);
        y.atomic_sum(i % 2u32, x.load(i) * x.load(i));
    });
    c.add(
        "atomic_sum",
        k,
        wide(1, vec![BufferData::wide(&X), BufferData::wide(&[0.3, 0.2])]),
        Some(X.map(|x| 2.0 * x).to_vec()),
    );
    let k = kernel("gather", 6, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let i = k.global_id(0);
        y.store(i, x.load(i % 2u32) * x.load(0u32) + x.load(i));
    });
    c.add("read_by_many", k, wide(1, vec![BufferData::wide(&X), BufferData::wide(&[0.0; 6])]), None);
    let k = kernel("vectors", 2, |k| {
        let (x, y) = (k.buffer::<Vector<f32, 4>>("x"), k.buffer_mut::<Vector<f32, 2>>("y"));
        let i = k.global_id(0);
        let v = x.load((i + 1u32) % 2u32) * x.load(i);
        y.store(i, k.vector([v.component(0) * v.component(3), v.component(1).sin() + v.component(2)]));
    });
    let x: Vec<f64> = (0..8).map(|i| f64::from(i) * 0.3 - 1.0).collect();
    c.add("vector_buffers", k, wide(1, vec![BufferData::wide(&x), BufferData::wide(&[0.0; 4])]), None);
    let k = kernel("threes", 2, |k| {
        let (x, y) = (k.buffer::<Vector<f32, 3>>("x"), k.buffer_mut::<Vector<f32, 3>>("y"));
        let i = k.global_id(0);
        let (a, b) = (x.load(i), x.load((i + 1u32) % 2u32));
        y.store(i, k.vector([a.component(1) * b.component(2), a.component(2) * b.component(0), (a * b).component(1)]));
    });
    c.add("vectors_of_three", k, wide(1, vec![BufferData::wide(&x), BufferData::wide(&[0.0; 8])]), None);
    let k = kernel("stencil", 6, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let i = k.global_id(0);
        let at = |d: u32| x.load((i + d) % 6u32);
        y.store(i, at(0) * at(1) - at(5) * at(0) * 0.5f32);
    });
    c.add("stencil", k, wide(1, vec![BufferData::wide(&X), BufferData::wide(&[0.0; 6])]), None);
    let k = kernel("matmul", 4, |k| {
        let (a, b, y) = (k.buffer::<f32>("a"), k.buffer::<f32>("b"), k.buffer_mut::<f32>("y"));
        let (r, col) = (k.global_id(0) / 2u32, k.global_id(0) % 2u32);
        let s = k.var(0f32);
        k.for_(0u32, 3u32, |_, i| s.set(s.get() + a.load(r * 3u32 + i) * b.load(i * 2u32 + col)));
        y.store(k.global_id(0), s.get());
    });
    c.add("matmul", k, wide(1, vec![BufferData::wide(&X), BufferData::wide(&X), BufferData::wide(&[0.0; 4])]), None);
}

pub(super) fn together(c: &mut Cases) {
    let x: Vec<f64> = (0..8).map(|i| f64::from(i) * 0.3 - 1.0).collect();
    let reduction = |product: bool| {
        kernel("reduce", 8, |k| {
            let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
            let s = k.shared::<f32>("s", 8);
            let l = k.local_index();
            let v = x.load(l);
            s.store(l, v * v);
            k.barrier();
            for step in [4u32, 2, 1] {
                if product {
                    // All read before a barrier, and write behind it.
                    let v = s.load(l) * s.load((l + step) % 8u32) + 0.5f32;
                    k.barrier();
                    s.store(l, v);
                } else {
                    k.if_(l.lt(step), || s.store(l, s.load(l) + s.load(l + step)));
                }
                k.barrier();
            }
            k.if_(l.eq(0), || y.store(0, s.load(0)));
        })
    };
    let launch = || wide(1, vec![BufferData::wide(&x), BufferData::wide(&[0.0])]);
    c.add("workgroup_sum", reduction(false), launch(), Some(x.iter().map(|x| 2.0 * x).collect()));
    c.add("workgroup_product", reduction(true), launch(), None);
    let k = kernel("loop_sum", 8, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let s = k.shared::<f32>("s", 8);
        let l = k.local_index();
        s.store(l, x.load(l).sin());
        k.barrier();
        k.for_(0u32, 3u32, |_, i| {
            let step = k.lit(4u32) >> i;
            k.if_(l.lt(step), || s.store(l, s.load(l) + s.load(l + step)));
            k.barrier();
        });
        k.if_(l.eq(0), || y.store(0, s.load(0)));
    });
    c.add("workgroup_sum_in_a_loop", k, launch(), Some(x.iter().map(|x| x.cos()).collect()));
    let k = kernel("loop_product", 8, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let s = k.shared::<f32>("s", 8);
        let l = k.local_index();
        s.store(l, x.load(l) + 2.0f32);
        k.barrier();
        k.for_(0u32, 3u32, |_, i| {
            let step = k.lit(4u32) >> i;
            k.if_(l.lt(step), || s.store(l, s.load(l) * s.load(l + step)));
            k.barrier();
        });
        k.if_(l.eq(0), || y.store(0, s.load(0)));
    });
    let product: f64 = x.iter().map(|x| x + 2.0).product();
    c.add("workgroup_product_in_a_loop", k, launch(), Some(x.iter().map(|x| product / (x + 2.0)).collect()));
    // Rows of a matrix by way of memory of the workgroup, normalised each time: a loop around a loop.
    let k = kernel("softmax_steps", 8, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let s = k.shared::<f32>("s", 8);
        let l = k.local_index();
        let v = k.var(x.load(l));
        k.for_(0u32, 2u32, |_, _| {
            s.store(l, v.get().exp());
            k.barrier();
            let sum = k.var(0f32);
            k.for_(0u32, 8u32, |_, j| sum.set(sum.get() + s.load(j)));
            v.set(s.load(l) / sum.get() * 3.0f32);
            k.barrier();
        });
        y.store(l, v.get() * v.get());
    });
    c.add("softmax_in_a_loop", k, wide(1, vec![BufferData::wide(&x), BufferData::wide(&[0.0; 8])]), None);
    let subgroup = |name: &'static str, f: for<'k> fn(F<'k>) -> F<'k>| {
        kernel(name, 8, |k| {
            let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
            let i = k.global_id(0);
            let v = x.load(i);
            y.store(i, f(v * v) * v.sin());
        })
    };
    let eight = || wide(1, vec![BufferData::wide(&x), BufferData::wide(&[0.0; 8])]);
    c.add("subgroup_sum", subgroup("s", |v| v.subgroup_add()), eight(), None);
    c.add("subgroup_max", subgroup("s", |v| v.subgroup_max()), eight(), None);
    c.add("subgroup_min", subgroup("s", |v| v.subgroup_min()), eight(), None);
    c.add("subgroup_scan", subgroup("s", |v| v.subgroup_exclusive_add()), eight(), None);
    c.add("subgroup_broadcast", subgroup("s", |v| v.subgroup_broadcast_first()), eight(), None);
    c.add("subgroup_shuffle", subgroup("s", |v| v.subgroup_shuffle_xor(1)), eight(), None);
}

pub(super) fn others(c: &mut Cases) {
    c.each(
        "custom_gradient",
        &X,
        |_, x| {
            let value = (x.stop_gradient() * 2.0f32).sin();
            value.with_derivatives(&[(x, (x * 2.0f32).cos() * 2.0f32)])
        },
        Some(|x| 2.0 * (2.0 * x).cos()),
    );
    // The polar decomposition of a matrix of two rows: its rotation, entry by entry.
    c.one("polar_decomposition", &[1.2, 0.4, -0.3, 0.9], &[0], 4, None, |_, x, _, y| {
        let m: Vec<_> = (0..4).map(|i| x.load(i)).collect();
        let (a, b) = (m[0] + m[3], m[2] - m[1]);
        let r = hypotenuse(a, b);
        y.store(0, a / r);
        y.store(1, -b / r);
        y.store(2, b / r);
        y.store(3, a / r);
    });
    // The scatter of the material point method: particles give mass and momentum to the four cells around them.
    let k = kernel("mpm_scatter", 3, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("grid"));
        let p = k.global_id(0);
        let (px, v) = (x.load(p * 2u32), x.load(p * 2u32 + 1u32));
        let cell = (px * 4.0f32 - 0.5f32).stop_gradient().floor();
        let f = px * 4.0f32 - cell;
        let base = cell.to::<u32>();
        let w = [
            (k.lit(1.5f32) - f).pow(2.0f32) * 0.5f32,
            k.lit(0.75f32) - (f - 1.0f32) * (f - 1.0f32),
            (f - 0.5f32).pow(2.0f32) * 0.5f32,
        ];
        for (i, &w) in w.iter().enumerate() {
            y.atomic_sum(base + i as u32, w);
            y.atomic_sum(base + 8u32 + i as u32, w * (v + (k.lit(i as f32) - f) * v * 0.3f32));
        }
    });
    c.add(
        "mpm_scatter",
        k,
        wide(1, vec![BufferData::wide(&[0.31, 0.7, 0.62, -0.2, 0.93, 1.1]), BufferData::wide(&[0.0; 16])]),
        None,
    );
    let k = kernel("mpm_gather", 3, |k| {
        let (g, x, y) = (k.buffer::<f32>("grid"), k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let p = k.global_id(0);
        let px = x.load(p);
        let cell = (px * 4.0f32 - 0.5f32).stop_gradient().floor();
        let f = px * 4.0f32 - cell;
        let base = cell.to::<u32>();
        let w = [
            (k.lit(1.5f32) - f).pow(2.0f32) * 0.5f32,
            k.lit(0.75f32) - (f - 1.0f32) * (f - 1.0f32),
            (f - 0.5f32).pow(2.0f32) * 0.5f32,
        ];
        let v = k.var(0f32);
        for (i, &w) in w.iter().enumerate() {
            let at = base + i as u32;
            v.set(v.get() + w * g.load(at + 8u32) / (g.load(at) + 0.1f32));
        }
        y.store(p, px + v.get() * 0.01f32);
    });
    let grid: Vec<f64> = (0..16).map(|i| 0.3 + f64::from(i * 7 % 5) * 0.2).collect();
    c.add(
        "mpm_gather",
        k,
        wide(1, vec![BufferData::wide(&grid), BufferData::wide(&[0.31, 0.62, 0.93]), BufferData::wide(&[0.0; 3])]),
        None,
    );
    c.one("spring_pendulum", &[0.3, 0.1], &[40], 2, None, |k, x, n, y| {
        let (q, v) = (k.var(x.load(0)), k.var(x.load(1)));
        k.for_(0u32, n.load(0), |_, _| {
            v.set(v.get() - q.get().sin() * 0.05f32);
            q.set(q.get() + v.get() * 0.05f32);
        });
        y.store(0, q.get());
        y.store(1, v.get());
    });
    c.one("parameter_like_buffer", &X, &[2, 3], 6, None, |k, x, n, y| {
        k.for_(0u32, n.load(0), |_, i| {
            k.for_(0u32, 3u32, |_, j| y.store(i * 3u32 + j, x.load(i) * x.load(j + 3u32) * x.load(i)));
        });
    });
}
