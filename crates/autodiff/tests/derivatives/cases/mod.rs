//! Kernels with derivatives, by the kinds that other systems test or get wrong.

use impasto_kernel::{Buf, BufMut, BufferData, Builder, Kernel, Launch, Val};

use super::gradients::{kernel, wide};

mod memory;

/// A kernel, its launch with f32 computed as f64, and where there is one the closed form.
pub struct Case {
    pub name: String,
    pub kernel: Kernel,
    pub launch: Launch,
    /// The derivative of the sum of the last buffer by each element of the first.
    pub closed: Option<Vec<f64>>,
    /// Whether there are no loops and branches in it.
    #[allow(dead_code, reason = "benches/grad.rs reads it")]
    pub straight: bool,
}

struct Cases(Vec<Case>);

type F<'k> = Val<'k, f32>;

impl Cases {
    fn add(&mut self, name: &str, kernel: Kernel, launch: Launch, closed: Option<Vec<f64>>) {
        let text = kernel.to_string();
        let straight = !["for @", "if %", "switch %"].iter().any(|s| text.contains(s));
        self.0.push(Case { name: name.to_owned(), kernel, launch, closed, straight });
    }

    /// `y[i] = f(x[i])`, for inputs where f is smooth.
    fn each(
        &mut self,
        name: &str,
        x: &[f64],
        f: impl for<'k> Fn(&'k Builder, F<'k>) -> F<'k>,
        d: Option<fn(f64) -> f64>,
    ) {
        let n = x.len() as u32;
        let k = kernel("each", n, |k| {
            let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
            let i = k.global_id(0);
            y.store(i, f(k, x.load(i)));
        });
        let launch = wide(1, vec![BufferData::wide(x), BufferData::wide(&vec![0.0; x.len()])]);
        self.add(name, k, launch, d.map(|d| x.iter().map(|&x| d(x)).collect()));
    }

    /// One invocation; x, n and y are buffers.
    fn one(
        &mut self,
        name: &str,
        x: &[f64],
        n: &[u32],
        outputs: usize,
        closed: Option<Vec<f64>>,
        body: impl for<'k> Fn(&'k Builder, Buf<'k, f32>, Buf<'k, u32>, BufMut<'k, f32>),
    ) {
        let k = kernel("one", 1, |k| {
            let (x, n, y) = (k.buffer::<f32>("x"), k.buffer::<u32>("n"), k.buffer_mut::<f32>("y"));
            body(k, x, n, y);
        });
        let launch = wide(1, vec![BufferData::wide(x), BufferData::from(n), BufferData::wide(&vec![0.0; outputs])]);
        self.add(name, k, launch, closed);
    }
}

/// `f(a, b)` as a function of the language would be called.
fn hypotenuse<'k>(a: F<'k>, b: F<'k>) -> F<'k> {
    (a * a + b * b).sqrt()
}

/// The angle whose tangent is t, by Newton's method on sine and cosine.
fn arc_tangent<'k>(t: F<'k>) -> F<'k> {
    let mut angle = t / (t.abs() + 1.0f32) * 1.5f32;
    for _ in 0..8 {
        let (s, c) = (angle.sin(), angle.cos());
        angle = angle + (t * c - s) * c;
    }
    angle
}

type UnaryOp = (&'static str, for<'k> fn(F<'k>) -> F<'k>, fn(f64) -> f64);

const UNARY: &[UnaryOp] = &[
    ("neg", |x| -x, |_| -1.0),
    ("abs", |x| x.abs(), |x| x.signum()),
    ("floor", |x| x.floor() + x, |_| 1.0),
    ("ceil", |x| x.ceil() * x, |x| x.ceil()),
    ("trunc", |x| x.trunc() + x, |_| 1.0),
    ("round", |x| x.round_even() * x, |x| x.round_ties_even()),
    ("sqrt", |x| (x * x + 0.5f32).sqrt(), |x| x / (x * x + 0.5).sqrt()),
    ("inverse_sqrt", |x| (x * x + 0.5f32).inverse_sqrt(), |x| -x * (x * x + 0.5).powf(-1.5)),
    ("exp", |x| x.exp(), f64::exp),
    ("log", |x| (x * x + 0.5f32).log(), |x| 2.0 * x / (x * x + 0.5)),
    ("sin", |x| x.sin(), f64::cos),
    ("cos", |x| x.cos(), |x| -x.sin()),
    ("tan", |x| x.sin() / x.cos(), |x| x.cos().powi(-2)),
    ("tanh", |x| x.tanh(), |x| 1.0 - x.tanh().powi(2)),
    ("atan", |x| arc_tangent(x), |x| 1.0 / (1.0 + x * x)),
    ("reciprocal", |x| 1.0f32.recip_of(x * x + 1.0f32), |x| -2.0 * x / (x * x + 1.0).powi(2)),
];

/// Numbers of Rust over values.
trait RecipOf {
    fn recip_of<'k>(self, x: F<'k>) -> F<'k>;
}
impl RecipOf for f32 {
    fn recip_of<'k>(self, x: F<'k>) -> F<'k> {
        x.pow(-1.0f32) * self
    }
}

const X: [f64; 6] = [0.3, 0.9, -0.4, 1.3, -1.2, 2.1];

pub fn all() -> Vec<Case> {
    let mut c = Cases(Vec::new());
    basics(&mut c);
    loops(&mut c);
    branches(&mut c);
    stacks(&mut c);
    exits(&mut c);
    memory::memory(&mut c);
    memory::together(&mut c);
    memory::others(&mut c);
    c.0
}

fn basics(c: &mut Cases) {
    for &(name, f, d) in UNARY {
        c.each(name, &X, |_, x| f(x), Some(d));
    }
    c.each("linear", &X, |_, x| x * 3.0f32 + 1.0f32, Some(|_| 3.0));
    c.each("polynomial", &X, |_, x| x * x * x - x * x * 2.0f32 + x, Some(|x| 3.0 * x * x - 4.0 * x + 1.0));
    c.each("horner", &X, |_, x| ((x * 0.5f32 - 1.5f32) * x + 2.0f32) * x, Some(|x| 1.5 * x * x - 3.0 * x + 2.0));
    c.each("rational", &X, |_, x| (x + 1.0f32) / (x * x + 2.0f32), None);
    c.each("power", &[0.3, 0.9, 1.4, 2.2], |_, x| x.pow(2.5f32), Some(|x| 2.5 * x.powf(1.5)));
    c.each("power_of_two", &X, |k, x| k.lit(2f32).pow(x), Some(|x| 2f64.powf(x) * 2f64.ln()));
    c.each("power_of_itself", &[0.3, 0.9, 1.4], |_, x| x.pow(x), Some(|x| x.powf(x) * (x.ln() + 1.0)));
    c.each("min", &X, |_, x| x.min(x * x), Some(|x| if x * x < x { 2.0 * x } else { 1.0 }));
    c.each("max", &X, |_, x| x.max(0.5f32) * x.max(x * x), None);
    c.each("clamp", &X, |_, x| x.max(-1.0f32).min(1.0f32), Some(|x| if x.abs() < 1.0 { 1.0 } else { 0.0 }));
    c.each("modulo", &X, |_, x| x - (x / 0.7f32).floor() * 0.7f32, Some(|_| 1.0));
    c.each(
        "modulo_by_itself",
        &X,
        |_, x| (x + 5.0f32) - ((x + 5.0f32) / (x * x + 0.7f32)).floor() * (x * x + 0.7f32),
        None,
    );
    c.each("select", &X, |_, x| x.gt(0.5).select(x.sin(), x * x), Some(|x| if x > 0.5 { x.cos() } else { 2.0 * x }));
    c.each("fma", &X, |_, x| x.mul_add(x, x.sin()), Some(|x| 2.0 * x + x.cos()));
    c.each("cast_of_index", &X, |k, x| x * k.global_id(0).to::<f32>(), None);
    c.each("cast_with_stop", &X, |_, x| x * x.stop_gradient().to::<i32>().to::<f32>(), Some(|x| x.trunc()));
    c.each(
        "shared_subexpression",
        &X,
        |_, x| {
            let s = (x * x).sin();
            s * s + s
        },
        None,
    );
    c.each("sigmoid", &X, |_, x| 1.0f32.recip_of((-x).exp() + 1.0f32), None);
    c.each("gelu", &X, |_, x| ((x * x * x * 0.044715f32 + x) * 0.797_884_6_f32).tanh() * x + x, None);
    c.each("function_call", &X, |k, x| hypotenuse(x, k.lit(2f32)) * hypotenuse(x.sin(), x), None);
    c.one("atan2", &[0.7, -1.1], &[0], 1, Some(vec![-1.1 / 1.7, -0.7 / 1.7]), |_, x, _, y| {
        let (a, b) = (x.load(0), x.load(1));
        let square = a * a + b * b;
        let angle = arc_tangent(a / b);
        y.store(0, angle.with_derivatives(&[(a, b / square), (b, -a / square)]));
    });
    c.one("two_outputs", &[0.7, -1.1], &[0], 2, None, |_, x, _, y| {
        let (a, b) = (x.load(0), x.load(1));
        y.store(0, a * b);
        y.store(1, (a / b).exp());
    });
}

fn loops(c: &mut Cases) {
    c.one("sum", &X, &[6], 1, Some(vec![1.0; 6]), |k, x, n, y| {
        let s = k.var(0f32);
        k.for_(0u32, n.load(0), |_, i| s.set(s.get() + x.load(i)));
        y.store(0, s.get());
    });
    c.one("sum_of_squares", &X, &[6], 1, Some(X.map(|x| 2.0 * x).to_vec()), |k, x, n, y| {
        let s = k.var(0f32);
        k.for_(0u32, n.load(0), |_, i| s.set(s.get() + x.load(i) * x.load(i)));
        y.store(0, s.get());
    });
    // Warp documents that it gives [32, 8, 2] here.
    c.one("warp_product", &[2.0, 2.0, 2.0], &[3], 1, Some(vec![4.0; 3]), |k, x, n, y| {
        let p = k.var(1f32);
        k.for_(0u32, n.load(0), |_, i| p.set(p.get() * x.load(i)));
        y.store(0, p.get());
    });
    // And infinities here.
    let norm = (X.iter().map(|x| x * x).sum::<f64>()).sqrt();
    let closed = X.iter().map(|x| 1.0 / norm - x * X.iter().sum::<f64>() / norm.powi(3)).collect();
    c.one("warp_normalise", &X, &[6], 1, Some(closed), |k, x, n, y| {
        let (s, q) = (k.var(0f32), k.var(0f32));
        k.for_(0u32, n.load(0), |_, i| {
            s.set(s.get() + x.load(i));
            q.set(q.get() + x.load(i) * x.load(i));
        });
        y.store(0, s.get() / q.get().sqrt());
    });
    c.one("power_by_loop", &[1.3], &[7], 1, Some(vec![7.0 * 1.3f64.powi(6)]), |k, x, n, y| {
        let p = k.var(1f32);
        k.for_(0u32, n.load(0), |_, _| p.set(p.get() * x.load(0)));
        y.store(0, p.get());
    });
    c.one("fibonacci", &[0.3, 0.4], &[9], 1, Some(vec![21.0, 34.0]), |k, x, n, y| {
        let (a, b) = (k.var(x.load(0)), k.var(x.load(1)));
        k.for_(0u32, n.load(0), |_, _| {
            let sum = a.get() + b.get();
            a.set(b.get());
            b.set(sum);
        });
        y.store(0, a.get());
    });
    c.one("fibonacci_by_index", &X, &[5], 6, None, |k, x, n, y| {
        let f = k.private::<f32>("f", 8);
        f.store(0, x.load(0));
        f.store(1, x.load(1));
        k.for_(2u32, n.load(0), |_, i| f.store(i, f.load(i - 1u32) * f.load(i - 2u32) + x.load(i)));
        k.for_(0u32, n.load(0), |_, i| y.store(i, f.load(i)));
    });
    c.one("nested", &X, &[3, 4], 1, None, |k, x, n, y| {
        let s = k.var(0.5f32);
        k.for_(0u32, n.load(0), |_, i| {
            k.for_(0u32, n.load(1), |_, j| s.set(s.get() * x.load(i).cos() + x.load(j)));
        });
        y.store(0, s.get());
    });
    c.one("triple", &X, &[2, 3], 1, None, |k, x, n, y| {
        let s = k.var(0.5f32);
        k.for_(0u32, n.load(0), |_, i| {
            k.for_(0u32, n.load(1), |_, j| {
                k.for_(0u32, n.load(0), |_, l| s.set((s.get() + x.load(i) * x.load(j)).sin() * x.load(l)));
            });
        });
        y.store(0, s.get());
    });
    c.one("mixed_inner_loops", &X, &[3, 2], 2, None, |k, x, n, y| {
        let (s, p) = (k.var(0f32), k.var(1f32));
        k.for_(0u32, n.load(0), |_, i| {
            k.for_(0u32, n.load(1), |_, j| s.set(s.get() + x.load(i) * x.load(j)));
            k.for_(0u32, i, |_, j| p.set(p.get() * (x.load(j) + s.get())));
            s.set(s.get() * 0.5f32 + p.get().tanh());
        });
        y.store(0, s.get());
        y.store(1, p.get());
    });
    c.one("sibling_loops", &X, &[4, 5], 2, None, |k, x, n, y| {
        let p = k.var(1f32);
        k.for_(0u32, n.load(0), |_, i| p.set(p.get() * x.load(i)));
        let first = p.get();
        k.for_(0u32, n.load(1), |_, i| p.set(p.get().sin() + first * x.load(i)));
        y.store(0, p.get());
        y.store(1, first);
    });
    c.one("independent_blocks", &X, &[3], 3, None, |k, x, n, y| {
        for part in 0..3u32 {
            let p = k.var(1f32);
            k.for_(0u32, n.load(0), |_, i| p.set(p.get() * x.load(i) + part as f32));
            y.store(part, p.get());
        }
    });
    c.one("large_loop", &[0.9], &[1000], 1, None, |k, x, n, y| {
        let s = k.var(0.3f32);
        k.for_(0u32, n.load(0), |_, i| s.set((s.get() + x.load(0) * i.to::<f32>() * 0.01f32).sin()));
        y.store(0, s.get());
    });
    c.one("use_of_the_index", &X, &[6], 1, None, |k, x, n, y| {
        let s = k.var(0f32);
        k.for_(0u32, n.load(0), |_, i| s.set(s.get() + x.load(i).sin() * i.to::<f32>()));
        y.store(0, s.get());
    });
    c.one("signed_index_with_step", &X, &[6], 1, None, |k, x, n, y| {
        let s = k.var(1f32);
        k.for_step(-3i32, n.load(0).to::<i32>(), 2, |_, i| {
            s.set(s.get() * (x.load(i.abs().to::<u32>() % 6u32) + i.to::<f32>()).cos());
        });
        y.store(0, s.get());
    });
    c.one("no_turns", &X, &[0], 1, None, |k, x, n, y| {
        let s = k.var(x.load(1));
        k.for_(0u32, n.load(0), |_, i| s.set(s.get() * x.load(i)));
        y.store(0, s.get() * s.get());
    });
    c.one("last_turn_only", &X, &[4], 1, Some(vec![0.0, 0.0, 0.0, X[3].cos(), 0.0, 0.0]), |k, x, n, y| {
        let s = k.var(0f32);
        k.for_(0u32, n.load(0), |_, i| s.set(x.load(i).sin()));
        y.store(0, s.get());
    });
    c.one("counter_in_a_loop", &X, &[6], 1, None, |k, x, n, y| {
        let (s, j) = (k.var(1f32), k.var(5u32));
        k.for_(0u32, n.load(0), |_, _| {
            s.set(s.get() * x.load(j.get() % 6u32).cos());
            j.set(j.get() + 7u32);
        });
        y.store(0, s.get());
    });
    c.one("softmax", &X, &[6], 6, None, |k, x, n, y| {
        let most = k.var(x.load(0));
        k.for_(1u32, n.load(0), |_, i| most.set(most.get().max(x.load(i))));
        let sum = k.var(0f32);
        k.for_(0u32, n.load(0), |_, i| sum.set(sum.get() + (x.load(i) - most.get()).exp()));
        k.for_(0u32, n.load(0), |_, i| y.store(i, (x.load(i) - most.get()).exp() / sum.get()));
    });
    c.one("newton_square_root", &[2.0], &[8], 1, Some(vec![0.5 / 2f64.sqrt()]), |k, x, n, y| {
        let r = k.var(x.load(0));
        k.for_(0u32, n.load(0), |_, _| r.set((r.get() + x.load(0) / r.get()) * 0.5f32));
        y.store(0, r.get());
    });
}

fn branches(c: &mut Cases) {
    c.each("if", &X, |k, x| k.if_value(x.gt(0.5), || x * x, || x.sin()), None);
    c.each(
        "nested_if",
        &X,
        |k, x| {
            k.if_value(
                x.gt(0.0),
                || k.if_value(x.gt(1.0), || x.exp(), || x * x * x),
                || k.if_value(x.lt(-1.0), || x.cos(), || x * 2.0f32),
            )
        },
        Some(|x| match x {
            _ if x > 1.0 => x.exp(),
            _ if x > 0.0 => 3.0 * x * x,
            _ if x < -1.0 => -x.sin(),
            _ => 2.0,
        }),
    );
    c.each(
        "mutable_in_if",
        &X,
        |k, x| {
            let v = k.var(x);
            k.if_(x.gt(0.0), || v.set(v.get() * v.get()));
            k.if_else(x.gt(1.0), || v.set(v.get().sin() + x), || v.set(v.get() * x));
            v.get()
        },
        None,
    );
    c.each(
        "parallel_ifs",
        &X,
        |k, x| {
            let (a, b) = (k.var(x), k.var(x * 2.0f32));
            k.if_(x.gt(0.4), || a.set(a.get().exp()));
            k.if_(x.lt(1.0), || b.set(b.get() * a.get()));
            a.get() * b.get()
        },
        None,
    );
    c.each(
        "match",
        &X,
        |k, x| {
            let v = k.var(x);
            k.match_(
                k.global_id(0),
                |arms| {
                    arms.case(&[0, 4], || v.set(x * x));
                    arms.case(&[1], || v.set(x.sin() * v.get()));
                },
                || v.set(v.get() + x.exp()),
            );
            v.get()
        },
        None,
    );
    c.one("elif_in_a_loop", &X, &[6], 1, None, |k, x, n, y| {
        let s = k.var(0.4f32);
        k.for_(0u32, n.load(0), |_, i| {
            k.if_else(
                (i % 3u32).eq(0),
                || s.set(s.get() * x.load(i)),
                || k.if_else((i % 3u32).eq(1), || s.set(s.get() + x.load(i)), || s.set(s.get().sin())),
            );
        });
        y.store(0, s.get());
    });
    c.one("condition_on_the_index", &X, &[6], 1, None, |k, x, n, y| {
        let s = k.var(1f32);
        k.for_(0u32, n.load(0), |_, i| k.if_(i.lt(3), || s.set(s.get() * (x.load(i) + 1.0f32))));
        y.store(0, s.get());
    });
    c.one("condition_on_the_value", &X, &[6], 1, None, |k, x, n, y| {
        let s = k.var(1f32);
        k.for_(0u32, n.load(0), |_, i| {
            k.if_else(
                s.get().gt(1.0),
                || s.set(s.get() * 0.5f32 + x.load(i)),
                || s.set(s.get() * 3.0f32 * x.load(i).cos()),
            );
        });
        y.store(0, s.get());
    });
    c.one("loop_in_if_in_loop", &X, &[4], 1, None, |k, x, n, y| {
        let s = k.var(1f32);
        k.for_(0u32, n.load(0), |_, i| {
            k.if_(x.load(i).gt(0.0), || {
                k.for_(0u32, i + 1u32, |_, j| s.set(s.get() * x.load(j) + x.load(i)));
            });
        });
        y.store(0, s.get());
    });
    c.one("early_return", &X, &[3], 1, None, |k, x, n, y| {
        let a = x.load(0) * x.load(1);
        k.if_(n.load(0).eq(3), || {
            y.store(0, a.sin());
            k.return_();
        });
        y.store(0, a.exp());
    });
}

fn stacks(c: &mut Cases) {
    for &(name, f, _) in UNARY {
        if ["floor", "ceil", "trunc", "round"].contains(&name) {
            continue;
        }
        c.one(&format!("carried_{name}"), &[0.4, 0.3], &[5], 1, None, |k, x, n, y| {
            let s = k.var(x.load(0));
            k.for_(0u32, n.load(0), |_, _| s.set(f(s.get()) * 0.5f32 + x.load(1)));
            y.store(0, s.get());
        });
    }
    c.one("condition_snapshot", &X, &[5], 1, None, |k, x, n, y| {
        let s = k.var(0.2f32);
        k.for_(0u32, n.load(0), |_, i| {
            let before = s.get();
            s.set(s.get() + x.load(i));
            k.if_(before.gt(0.3), || s.set(s.get() * before));
        });
        y.store(0, s.get());
    });
    c.one("triangular_bounds", &X, &[5], 1, None, |k, x, n, y| {
        let s = k.var(1f32);
        k.for_(0u32, n.load(0), |_, i| {
            k.for_(i, n.load(0), |_, j| s.set(s.get() * 0.7f32 + x.load(i) * x.load(j).sin() * s.get()))
        });
        y.store(0, s.get());
    });
    c.one("bounds_from_a_buffer", &X, &[4, 0, 3, 1, 2], 1, None, |k, x, n, y| {
        let s = k.var(1f32);
        k.for_(0u32, n.load(0), |_, i| {
            k.for_(0u32, n.load(i + 1u32), |_, j| s.set((s.get() * x.load(j)).sin() + x.load(i)))
        });
        y.store(0, s.get());
    });
    c.one("carried_vector", &X, &[4], 3, None, |k, x, n, y| {
        let v = k.var(k.vector([x.load(0), x.load(1), x.load(2)]));
        k.for_(0u32, n.load(0), |_, i| {
            let a = v.get();
            let turned = k.vector([a.component(1), a.component(2), a.component(0) * x.load(i)]);
            v.set(turned * a + turned);
        });
        (0..3).for_each(|i| y.store(i, v.get().component(i)));
    });
    c.one("carried_struct", &X, &[5], 1, None, |k, x, n, y| {
        let s = k.var(k.pair(x.load(0), k.lit(1u32)));
        k.for_(0u32, n.load(0), |_, _| {
            let (a, b) = (s.get().first(), s.get().second());
            s.set(k.pair(a * x.load(b % 6u32).cos(), b * 3u32 + 1u32));
        });
        y.store(0, s.get().first());
    });
    c.one("carried_long", &X, &[5], 1, None, |k, x, n, y| {
        let (s, state) = (k.var(1f32), k.var(k.lit(88_172_645_463_325_252u64)));
        k.for_(0u32, n.load(0), |_, _| {
            state.set(state.get() ^ (state.get() << 13u64));
            state.set(state.get() ^ (state.get() >> 7u64));
            s.set(s.get() * x.load(state.get().to::<u32>() % 6u32).cos());
        });
        y.store(0, s.get());
    });
    c.one("cross_iteration_read_after_write", &X, &[6], 1, None, |k, x, n, y| {
        let a = k.private::<f32>("a", 4);
        (0..4u32).for_each(|i| a.store(i, x.load(i)));
        k.for_(0u32, n.load(0), |_, i| {
            let j = (i * 3u32 + 1u32) % 4u32;
            a.store(i % 4u32, a.load(j) * a.load(i % 4u32) + x.load(i));
        });
        y.store(0, a.load(0) * a.load(1) + a.load(2) * a.load(3));
    });
    c.one("shift_register", &X, &[6], 1, None, |k, x, n, y| {
        let r: Vec<_> = (0..4).map(|_| k.var(0.5f32)).collect();
        k.for_(0u32, n.load(0), |_, i| {
            let last = r[3].get() * x.load(i);
            (1..4).rev().for_each(|j| r[j].set(r[j - 1].get()));
            r[0].set(last + x.load(i).sin());
        });
        y.store(0, r.iter().fold(k.lit(1f32), |p, v| p * (v.get() + 1.0f32)));
    });
}

fn exits(c: &mut Cases) {
    c.one("while_bounded", &[0.8, 1.3], &[50], 1, None, |k, x, n, y| {
        let s = k.var(x.load(0));
        k.while_bounded(n.load(0), || s.get().lt(4.0), |_| s.set(s.get() * x.load(1)));
        y.store(0, s.get());
    });
    c.one("break", &X, &[6], 1, None, |k, x, n, y| {
        let s = k.var(1f32);
        k.for_(0u32, n.load(0), |l, i| {
            s.set(s.get() * (x.load(i) + 1.5f32));
            k.if_(s.get().gt(3.0), || l.break_());
            s.set(s.get().sin() + 1.0f32);
        });
        y.store(0, s.get());
    });
    c.one("continue", &X, &[6], 1, None, |k, x, n, y| {
        let s = k.var(1f32);
        k.for_(0u32, n.load(0), |l, i| {
            k.if_(x.load(i).lt(0.0), || l.continue_());
            s.set(s.get() * x.load(i));
        });
        y.store(0, s.get());
    });
    c.one("break_of_the_outer_loop", &X, &[5], 1, None, |k, x, n, y| {
        let s = k.var(1f32);
        k.for_(0u32, n.load(0), |outer, i| {
            k.for_(0u32, n.load(0), |inner, j| {
                k.if_((i + j).gt(6), || outer.break_());
                k.if_(j.gt(i), || inner.break_());
                s.set((s.get() + x.load(j)).sin() * 1.5f32);
            });
            s.set(s.get() * x.load(i) + 0.5f32);
        });
        y.store(0, s.get());
    });
    c.one("continue_of_the_outer_loop", &X, &[4], 1, None, |k, x, n, y| {
        let s = k.var(1f32);
        k.for_(0u32, n.load(0), |outer, i| {
            k.for_(0u32, n.load(0), |_, j| {
                s.set((s.get() + x.load(j)).cos());
                k.if_((j + i * 2u32).eq(3), || outer.continue_());
            });
            s.set(s.get() * x.load(i) + 0.5f32);
        });
        y.store(0, s.get());
    });
    c.one("return_out_of_loops", &X, &[4], 2, None, |k, x, n, y| {
        let s = k.var(1f32);
        k.for_(0u32, n.load(0), |_, i| {
            k.for_(0u32, i + 1u32, |_, j| {
                s.set(s.get() * x.load(j) + 0.3f32);
                k.if_(s.get().gt(1.4), || {
                    y.store(1, s.get() * s.get());
                    k.return_();
                });
            });
        });
        y.store(0, s.get());
    });
    c.one("unbounded_loop_of_whole_numbers", &X, &[84, 36], 1, None, |k, x, n, y| {
        let (a, b) = (k.var(n.load(0)), k.var(n.load(1)));
        k.while_(
            || b.get().ne(0),
            |_| {
                let r = a.get() % b.get();
                a.set(b.get());
                b.set(r);
            },
        );
        y.store(0, x.load(a.get() % 6u32).sin() * a.get().to::<f32>());
    });
}
