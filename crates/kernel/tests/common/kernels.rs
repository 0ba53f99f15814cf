//! Real kernels, written by hand, with inputs and what must come out, computed in plain Rust.

use impasto_kernel::{Builder, Data, Kernel, Launch, Scalar};

pub struct Case {
    pub kernel: Kernel,
    pub launch: Launch,
    /// The buffer with the result, and the result.
    pub result: (usize, Vec<f64>),
    /// The relative error allowed; 0 is bit-equal.
    pub error: f64,
}

fn floats(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + 13) % 1009) as f32 / 256.0 - 2.0).collect()
}

fn ints(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| i.wrapping_mul(2654435761) >> 7).collect()
}

fn case(groups: [u32; 3], inputs: Vec<Data>, output: Data, expected: Vec<f64>, error: f64, kernel: Kernel) -> Case {
    let at = inputs.len();
    let buffers = inputs.into_iter().chain([output]).collect();
    Case { kernel, launch: Launch::new(groups, buffers), result: (at, expected), error }
}

fn write(name: &str, workgroup: [u32; 3], body: impl FnOnce(&Builder)) -> Kernel {
    Builder::kernel(name, workgroup, body).unwrap_or_else(|e| panic!("{e}"))
}

pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    let f32s = |x: &[f32]| Data::from(x);
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let (x, u) = (floats(256), ints(256));

    let kernel = write("saxpy", [64, 1, 1], |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let i = k.global_id(0);
        k.if_(i.lt(y.len()), || y.store(i, x.load(i) * 2.5f32 + y.load(i)));
    });
    let want: Vec<f32> = x[..200].iter().map(|x| x * 2.5 + 0.0).collect();
    cases.push(case([4, 1, 1], vec![f32s(&x)], Data::zeros(Scalar::F32, 200), wide(&want), 0.0, kernel));

    let kernel = write("sum", [64, 1, 1], |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let s = k.shared::<f32>("s", 64);
        let l = k.local_id(0);
        s.store(l, x.load(k.global_id(0)));
        k.barrier();
        for step in [32u32, 16, 8, 4, 2, 1] {
            k.if_(l.lt(step), || s.store(l, s.load(l) + s.load(l + step)));
            k.barrier();
        }
        k.if_(l.eq(0), || y.store(k.workgroup_id(0), s.load(0)));
    });
    let want: Vec<f64> = x.chunks(64).map(|c| c.iter().map(|&x| f64::from(x)).sum()).collect();
    cases.push(case([4, 1, 1], vec![f32s(&x)], Data::zeros(Scalar::F32, 4), want, 1e-5, kernel));

    let kernel = write("scan", [64, 1, 1], |k| {
        let (x, y) = (k.buffer::<u32>("x"), k.buffer_mut::<u32>("y"));
        let s = k.shared::<u32>("s", 64);
        let l = k.local_id(0);
        s.store(l, x.load(l));
        k.barrier();
        let step = k.var(1u32);
        k.while_(
            || step.get().lt(64),
            |_| {
                let sum = k.var(s.load(l));
                k.if_(l.ge(step.get()), || sum.set(sum.get() + s.load(l - step.get())));
                k.barrier();
                s.store(l, sum.get());
                k.barrier();
                step.set(step.get() << 1u32);
            },
        );
        y.store(l, s.load(l));
    });
    let mut sum = 0u32;
    let want = u[..64].iter().map(|&x| {
        sum = sum.wrapping_add(x);
        f64::from(sum)
    });
    cases.push(case([1, 1, 1], vec![Data::from(&u[..])], Data::zeros(Scalar::U32, 64), want.collect(), 0.0, kernel));

    let kernel = write("matmul", [8, 8, 1], |k| {
        let (a, b, c) = (k.buffer::<f32>("a"), k.buffer::<f32>("b"), k.buffer_mut::<f32>("c"));
        let (ta, tb) = (k.shared::<f32>("ta", 64), k.shared::<f32>("tb", 64));
        let (row, col) = (k.global_id(1), k.global_id(0));
        let (y, x) = (k.local_id(1), k.local_id(0));
        let sum = k.var(0f32);
        k.for_(0u32, 2u32, |_, t| {
            ta.store(y * 8u32 + x, a.load(row * 16u32 + t * 8u32 + x));
            tb.store(y * 8u32 + x, b.load((t * 8u32 + y) * 16u32 + col));
            k.barrier();
            k.for_(0u32, 8u32, |_, i| sum.set(sum.get() + ta.load(y * 8u32 + i) * tb.load(i * 8u32 + x)));
            k.barrier();
        });
        c.store(row * 16u32 + col, sum.get());
    });
    let product = |r: usize, c: usize| (0..16).fold(0f32, |s, i| s + x[r * 16 + i] * x[i * 16 + c]);
    let want: Vec<f32> = (0..256).map(|i| product(i / 16, i % 16)).collect();
    cases.push(case([2, 2, 1], vec![f32s(&x), f32s(&x)], Data::zeros(Scalar::F32, 256), wide(&want), 0.0, kernel));

    let kernel = write("softmax", [1, 1, 1], |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let row = k.global_id(0) * 32u32;
        let most = k.var(x.load(row));
        k.for_(1u32, 32u32, |_, i| most.set(most.get().max(x.load(row + i))));
        let sum = k.var(0f32);
        k.for_(0u32, 32u32, |_, i| {
            let e = (x.load(row + i) - most.get()).exp();
            y.store(row + i, e);
            sum.set(sum.get() + e);
        });
        k.for_(0u32, 32u32, |_, i| y.store(row + i, y.load(row + i) / sum.get()));
    });
    let want: Vec<f64> = x
        .chunks(32)
        .flat_map(|r| {
            let e: Vec<f64> = r.iter().map(|&x| f64::from(x).exp()).collect();
            let sum: f64 = e.iter().sum();
            e.into_iter().map(move |e| e / sum).collect::<Vec<_>>()
        })
        .collect();
    cases.push(case([8, 1, 1], vec![f32s(&x)], Data::zeros(Scalar::F32, 256), want, 1e-4, kernel));

    let kernel = write("layer_norm", [1, 1, 1], |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let row = k.global_id(0) * 32u32;
        let (sum, squares) = (k.var(0f32), k.var(0f32));
        k.for_(0u32, 32u32, |_, i| sum.set(sum.get() + x.load(row + i)));
        let mean = sum.get() / 32f32;
        k.for_(0u32, 32u32, |_, i| {
            let d = x.load(row + i) - mean;
            squares.set(squares.get() + d * d);
        });
        let scale = (squares.get() / 32f32 + 1e-5f32).inverse_sqrt();
        k.for_(0u32, 32u32, |_, i| y.store(row + i, (x.load(row + i) - mean) * scale));
    });
    let want: Vec<f64> = x
        .chunks(32)
        .flat_map(|r| {
            let mean = r.iter().map(|&x| f64::from(x)).sum::<f64>() / 32.0;
            let var = r.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / 32.0;
            r.iter().map(move |&x| (f64::from(x) - mean) / (var + 1e-5).sqrt()).collect::<Vec<_>>()
        })
        .collect();
    cases.push(case([8, 1, 1], vec![f32s(&x)], Data::zeros(Scalar::F32, 256), want, 1e-4, kernel));

    let kernel = write("transpose", [8, 8, 1], |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let tile = k.shared::<f32>("tile", 72);
        let (i, j) = (k.local_id(0), k.local_id(1));
        tile.store(j * 9u32 + i, x.load(k.global_id(1) * 16u32 + k.global_id(0)));
        k.barrier();
        let (r, c) = (k.workgroup_id(0) * 8u32 + j, k.workgroup_id(1) * 8u32 + i);
        y.store(r * 16u32 + c, tile.load(i * 9u32 + j));
    });
    let want: Vec<f32> = (0..256).map(|i| x[i % 16 * 16 + i / 16]).collect();
    cases.push(case([2, 2, 1], vec![f32s(&x)], Data::zeros(Scalar::F32, 256), wide(&want), 0.0, kernel));

    let kernel = write("bitonic_sort", [64, 1, 1], |k| {
        let (x, y) = (k.buffer::<u32>("x"), k.buffer_mut::<u32>("y"));
        let s = k.shared::<u32>("s", 64);
        let l = k.local_id(0);
        s.store(l, x.load(l));
        k.barrier();
        let size = k.var(2u32);
        k.while_(
            || size.get().le(64),
            |_| {
                let step = k.var(size.get() >> 1u32);
                k.while_(
                    || step.get().gt(0),
                    |_| {
                        let other = l ^ step.get();
                        k.if_(other.gt(l), || {
                            let (a, b) = (s.load(l), s.load(other));
                            let up = (l & size.get()).eq(0);
                            k.if_(up.select(a.gt(b), a.lt(b)), || {
                                s.store(l, b);
                                s.store(other, a);
                            });
                        });
                        k.barrier();
                        step.set(step.get() >> 1u32);
                    },
                );
                size.set(size.get() << 1u32);
            },
        );
        y.store(l, s.load(l));
    });
    let mut sorted = u[..64].to_vec();
    sorted.sort_unstable();
    let want = sorted.iter().map(|&x| f64::from(x)).collect();
    cases.push(case([1, 1, 1], vec![Data::from(&u[..])], Data::zeros(Scalar::U32, 64), want, 0.0, kernel));

    let kernel = write("histogram", [64, 1, 1], |k| {
        let (x, y) = (k.buffer::<u32>("x"), k.buffer_mut::<u32>("y"));
        y.atomic_add(x.load(k.global_id(0)) % 10u32, 1);
    });
    let want = (0..10).map(|b| u.iter().filter(|&&x| x % 10 == b).count() as f64).collect();
    cases.push(case([4, 1, 1], vec![Data::from(&u[..])], Data::zeros(Scalar::U32, 10), want, 0.0, kernel));

    let kernel = write("stencil", [16, 16, 1], |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let (i, j) = (k.global_id(0).to::<i32>(), k.global_id(1).to::<i32>());
        let sum = k.var(0f32);
        k.for_(-1i32, 2i32, |_, dy| {
            k.for_(-1i32, 2i32, |inner, dx| {
                let (a, b) = (i + dx, j + dy);
                k.if_(a.lt(0) | b.lt(0) | a.ge(16) | b.ge(16), || inner.continue_());
                sum.set(sum.get() + x.load((b * 16i32 + a).to::<u32>()));
            });
        });
        y.store((j * 16i32 + i).to::<u32>(), sum.get());
    });
    let at = |i: i32, j: i32| {
        if (0..16).contains(&i) && (0..16).contains(&j) { Some(x[(j * 16 + i) as usize]) } else { None }
    };
    let around = |i: i32, j: i32| (0..9).filter_map(|n| at(i + n % 3 - 1, j + n / 3 - 1)).fold(0f32, |s, x| s + x);
    let want: Vec<f32> = (0..256).map(|n| around(n % 16, n / 16)).collect();
    cases.push(case([1, 1, 1], vec![f32s(&x)], Data::zeros(Scalar::F32, 256), wide(&want), 0.0, kernel));

    let kernel = write("bodies", [32, 1, 1], |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let i = k.global_id(0);
        let own = [x.load(i * 3u32), x.load(i * 3u32 + 1u32), x.load(i * 3u32 + 2u32)];
        let force = [k.var(0f32), k.var(0f32), k.var(0f32)];
        k.for_(0u32, 32u32, |_, j| {
            let d: Vec<_> = (0..3).map(|c| x.load(j * 3u32 + c as u32) - own[c]).collect();
            let r2 = d[0] * d[0] + d[1] * d[1] + d[2] * d[2] + 0.01f32;
            let f = r2.inverse_sqrt() / r2;
            for c in 0..3 {
                force[c].set(force[c].get() + d[c] * f);
            }
        });
        for (c, f) in force.iter().enumerate() {
            y.store(i * 3u32 + c as u32, f.get());
        }
    });
    let p = |i: usize, c: usize| f64::from(x[i * 3 + c]);
    let pull = |i: usize, c: usize| -> f64 {
        let term = |j: usize| {
            let r2: f64 = (0..3).map(|c| (p(j, c) - p(i, c)).powi(2)).sum::<f64>() + 0.01;
            (p(j, c) - p(i, c)) / (r2 * r2.sqrt())
        };
        (0..32).map(term).sum()
    };
    let want = (0..96).map(|n| pull(n / 3, n % 3)).collect();
    cases.push(case([1, 1, 1], vec![f32s(&x)], Data::zeros(Scalar::F32, 96), want, 1e-3, kernel));

    let kernel = write("hash", [64, 1, 1], |k| {
        let (x, y) = (k.buffer::<u32>("x"), k.buffer_mut::<u32>("y"));
        let i = k.global_id(0);
        let h = k.var(k.lit(2166136261u32));
        let word = k.var(x.load(i));
        k.for_(0u32, 4u32, |_, _| {
            h.set((h.get() ^ (word.get() & 255u32)) * 16777619u32);
            word.set(word.get() >> 8u32);
        });
        y.store(i, h.get());
    });
    let hash = |&x: &u32| x.to_le_bytes().iter().fold(2166136261u32, |h, &b| (h ^ u32::from(b)).wrapping_mul(16777619));
    let want = u.iter().map(|x| f64::from(hash(x))).collect();
    cases.push(case([4, 1, 1], vec![Data::from(&u[..])], Data::zeros(Scalar::U32, 256), want, 0.0, kernel));

    let kernel = write("collatz", [64, 1, 1], |k| {
        let y = k.buffer_mut::<u32>("y");
        let i = k.global_id(0);
        let (n, steps) = (k.var(i + 1u32), k.var(0u32));
        k.while_(
            || n.get().ne(1),
            |l| {
                steps.set(steps.get() + 1u32);
                k.if_((n.get() & 1u32).eq(0), || {
                    n.set(n.get() >> 1u32);
                    l.continue_();
                });
                n.set(n.get() * 3u32 + 1u32);
            },
        );
        y.store(i, steps.get());
    });
    let collatz = |mut n: u32| {
        let mut steps = 0.0;
        while n != 1 {
            n = if n & 1 == 0 { n / 2 } else { 3 * n + 1 };
            steps += 1.0;
        }
        steps
    };
    let want = (1..=64).map(collatz).collect();
    cases.push(case([1, 1, 1], vec![], Data::zeros(Scalar::U32, 64), want, 0.0, kernel));

    let kernel = write("mandelbrot", [16, 16, 1], |k| {
        let y = k.buffer_mut::<u32>("y");
        let (i, j) = (k.global_id(0), k.global_id(1));
        let (a, b) = (i.to::<f32>() * 0.1875f32 - 2.0f32, j.to::<f32>() * 0.125f32 - 1.0f32);
        let (p, q, n) = (k.var(0f32), k.var(0f32), k.var(0u32));
        k.for_(0u32, 50u32, |l, _| {
            let (pp, qq) = (p.get() * p.get(), q.get() * q.get());
            k.if_((pp + qq).gt(4.0), || l.break_());
            let r = p.get() * q.get();
            q.set(r + r + b);
            p.set(pp - qq + a);
            n.set(n.get() + 1u32);
        });
        y.store(j * 16u32 + i, n.get());
    });
    let escape = |i: usize| {
        let (a, b) = ((i % 16) as f32 * 0.1875 - 2.0, (i / 16) as f32 * 0.125 - 1.0);
        let (mut p, mut q, mut n) = (0f32, 0f32, 0);
        while n < 50 && p * p + q * q <= 4.0 {
            (p, q) = (p * p - q * q + a, p * q + p * q + b);
            n += 1;
        }
        f64::from(n)
    };
    cases.push(case([1, 1, 1], vec![], Data::zeros(Scalar::U32, 256), (0..256).map(escape).collect(), 0.0, kernel));
    cases
}

/// Whether a result is what must come out.
pub fn right(case: &Case, buffers: &[Data]) -> Result<(), String> {
    let data = &buffers[case.result.0];
    let value = |b: u64| if data.ty == Scalar::F32 { f64::from(f32::from_bits(b as u32)) } else { b as f64 };
    for (i, (&want, &bits)) in case.result.1.iter().zip(&data.bits).enumerate() {
        let got = value(bits);
        let off = (got - want).abs();
        if off.is_nan() || off > case.error * want.abs().max(1e-2) {
            return Err(format!("{}: element {i} is {got}, not {want}", case.kernel.name));
        }
    }
    if data.bits.len() == case.result.1.len() { Ok(()) } else { Err("other lengths".to_owned()) }
}
