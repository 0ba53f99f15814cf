//! A chain of rigid bodies: the first one floats freely, each other one hangs on a hinge of the one before it. Forward dynamics by the
//! articulated-body algorithm (Featherstone), several steps of time; one invocation computes one chain.
//!
//! Everything is written out for each body, as a simulator that knows its robot would do it: no array, no index. Only the steps are a loop.

use impasto_kernel::{Builder, Kernel, KernelError, Val};

type F<'k> = Val<'k, f32>;

/// Numbers before the hinges: position, quaternion, and the velocity of the first body, angular and linear, in its own frame.
pub const BASE: usize = 13;
const LENGTH: f32 = 0.4;
const MASS: f32 = 0.5;
const STEP: f32 = 0.01;
const LIMIT: f32 = 1.2;

/// Numbers of the state of a chain.
pub fn state_len(bodies: usize) -> usize {
    BASE + 2 * (bodies - 1)
}

/// A number that may be known to be zero or one, so that nothing is written for it.
#[derive(Clone, Copy)]
enum N<'k> {
    Zero,
    One,
    V(F<'k>),
}

use N::{One, V, Zero};

impl<'k> N<'k> {
    fn val(self, k: &'k Builder) -> F<'k> {
        match self {
            Zero => k.lit(0f32),
            One => k.lit(1f32),
            V(v) => v,
        }
    }

    fn add(self, k: &'k Builder, o: N<'k>) -> N<'k> {
        match (self, o) {
            (Zero, x) | (x, Zero) => x,
            (a, b) => V(a.val(k) + b.val(k)),
        }
    }

    fn neg(self, k: &'k Builder) -> N<'k> {
        match self {
            Zero => Zero,
            x => V(-x.val(k)),
        }
    }

    fn mul(self, k: &'k Builder, o: N<'k>) -> N<'k> {
        match (self, o) {
            (Zero, _) | (_, Zero) => Zero,
            (One, x) | (x, One) => x,
            (a, b) => V(a.val(k) * b.val(k)),
        }
    }

    fn times(self, k: &'k Builder, c: f32) -> N<'k> {
        match self {
            Zero => Zero,
            x => V(x.val(k) * c),
        }
    }
}

type V3<'k> = [N<'k>; 3];
type V6<'k> = [N<'k>; 6];
type M3<'k> = [V3<'k>; 3];
type M6<'k> = [V6<'k>; 6];

fn dot<'k>(k: &'k Builder, a: &[N<'k>], b: &[N<'k>]) -> N<'k> {
    a.iter().zip(b).fold(Zero, |s, (&x, &y)| s.add(k, x.mul(k, y)))
}

fn cross<'k>(k: &'k Builder, a: V3<'k>, b: V3<'k>) -> V3<'k> {
    let part = |i: usize, j: usize| a[i].mul(k, b[j]).add(k, a[j].mul(k, b[i]).neg(k));
    [part(1, 2), part(2, 0), part(0, 1)]
}

fn times3<'k>(k: &'k Builder, m: &M3<'k>, v: V3<'k>) -> V3<'k> {
    [0, 1, 2].map(|i| dot(k, &m[i], &v))
}

fn transposed<'k>(m: &M3<'k>) -> M3<'k> {
    [0, 1, 2].map(|i| [0, 1, 2].map(|j| m[j][i]))
}

fn halves<'k>(v: V6<'k>) -> (V3<'k>, V3<'k>) {
    ([v[0], v[1], v[2]], [v[3], v[4], v[5]])
}

fn joined<'k>(a: V3<'k>, b: V3<'k>) -> V6<'k> {
    [a[0], a[1], a[2], b[0], b[1], b[2]]
}

fn plus<'k, const L: usize>(k: &'k Builder, a: [N<'k>; L], b: [N<'k>; L]) -> [N<'k>; L] {
    std::array::from_fn(|i| a[i].add(k, b[i]))
}

fn scaled<'k, const L: usize>(k: &'k Builder, a: [N<'k>; L], by: N<'k>) -> [N<'k>; L] {
    a.map(|x| x.mul(k, by))
}

/// A frame seen from another: the rotation into it, and where its origin is.
struct Frame<'k> {
    e: M3<'k>,
    r: V3<'k>,
}

impl<'k> Frame<'k> {
    fn motion(&self, k: &'k Builder, v: V6<'k>) -> V6<'k> {
        let (w, l) = halves(v);
        let moved = plus(k, l, cross(k, self.r, w).map(|x| x.neg(k)));
        joined(times3(k, &self.e, w), times3(k, &self.e, moved))
    }

    /// A force, back into the frame outside.
    fn force_out(&self, k: &'k Builder, f: V6<'k>) -> V6<'k> {
        let (n, l) = halves(f);
        let back = transposed(&self.e);
        let (n, l) = (times3(k, &back, n), times3(k, &back, l));
        joined(plus(k, n, cross(k, self.r, l)), l)
    }

    fn matrix(&self, k: &'k Builder) -> M6<'k> {
        let columns: [V6<'k>; 6] = std::array::from_fn(|j| {
            let mut unit = [Zero; 6];
            unit[j] = One;
            self.motion(k, unit)
        });
        std::array::from_fn(|i| std::array::from_fn(|j| columns[j][i]))
    }
}

fn times6<'k>(k: &'k Builder, m: &M6<'k>, v: V6<'k>) -> V6<'k> {
    std::array::from_fn(|i| dot(k, &m[i], &v))
}

/// X' M X of a symmetric M.
fn congruent<'k>(k: &'k Builder, m: &M6<'k>, x: &M6<'k>) -> M6<'k> {
    let column = |j: usize| -> V6<'k> { std::array::from_fn(|i| x[i][j]) };
    let mx: Vec<V6<'k>> = (0..6).map(|j| times6(k, m, column(j))).collect();
    let mut out = [[Zero; 6]; 6];
    for (i, j) in (0..6).flat_map(|i| (0..=i).map(move |j| (i, j))) {
        out[i][j] = dot(k, &column(i), &mx[j]);
        out[j][i] = out[i][j];
    }
    out
}

/// The inertia of a rod along x that begins at the origin.
fn inertia<'k>(k: &'k Builder) -> M6<'k> {
    let c = LENGTH / 2.0;
    let own = [0.002, MASS * LENGTH * LENGTH / 12.0, MASS * LENGTH * LENGTH / 12.0];
    let mut m = [[Zero; 6]; 6];
    let lit = |x: f32| V(k.lit(x));
    m[0][0] = lit(own[0]);
    for i in 1..3 {
        m[i][i] = lit(own[i] + MASS * c * c);
    }
    (3..6).for_each(|i| m[i][i] = lit(MASS));
    (m[1][5], m[5][1]) = (lit(-MASS * c), lit(-MASS * c));
    (m[2][4], m[4][2]) = (lit(MASS * c), lit(MASS * c));
    m
}

/// The axis of a hinge, y and z by turns.
fn axis<'k>(i: usize) -> V3<'k> {
    if i.is_multiple_of(2) { [Zero, Zero, One] } else { [Zero, One, Zero] }
}

/// From the frame of the body before a hinge into that behind it.
fn hinge<'k>(k: &'k Builder, i: usize, angle: F<'k>) -> Frame<'k> {
    let (s, c) = (V(angle.sin()), V(angle.cos()));
    let e = if i.is_multiple_of(2) {
        [[c, s, Zero], [s.neg(k), c, Zero], [Zero, Zero, One]]
    } else {
        [[c, Zero, s.neg(k)], [Zero, One, Zero], [s, Zero, c]]
    };
    Frame { e, r: [V(k.lit(LENGTH)), Zero, Zero] }
}

/// Solves a symmetric, positive system of six.
fn solve<'k>(k: &'k Builder, m: &M6<'k>, b: V6<'k>) -> V6<'k> {
    let mut l = [[Zero; 6]; 6];
    let mut d = [Zero; 6];
    for j in 0..6 {
        let mut sum = m[j][j];
        for p in 0..j {
            sum = sum.add(k, l[j][p].mul(k, l[j][p]).mul(k, d[p]).neg(k));
        }
        d[j] = sum;
        for i in j + 1..6 {
            let mut sum = m[i][j];
            for p in 0..j {
                sum = sum.add(k, l[i][p].mul(k, l[j][p]).mul(k, d[p]).neg(k));
            }
            l[i][j] = V(sum.val(k) / d[j].val(k));
        }
    }
    let mut y = b;
    for i in 0..6 {
        for p in 0..i {
            y[i] = y[i].add(k, l[i][p].mul(k, y[p]).neg(k));
        }
    }
    let mut x: V6<'k> = std::array::from_fn(|i| V(y[i].val(k) / d[i].val(k)));
    for i in (0..6).rev() {
        for p in i + 1..6 {
            x[i] = x[i].add(k, l[p][i].mul(k, x[p]).neg(k));
        }
    }
    x
}

/// The rotation of a quaternion (w, x, y, z), out of the body's frame.
fn rotation<'k>(k: &'k Builder, q: &[F<'k>]) -> M3<'k> {
    let (w, x, y, z) = (q[0], q[1], q[2], q[3]);
    let one = k.lit(1f32);
    [
        [V(one - (y * y + z * z) * 2f32), V((x * y - w * z) * 2f32), V((x * z + w * y) * 2f32)],
        [V((x * y + w * z) * 2f32), V(one - (x * x + z * z) * 2f32), V((y * z - w * x) * 2f32)],
        [V((x * z - w * y) * 2f32), V((y * z + w * x) * 2f32), V(one - (x * x + y * y) * 2f32)],
    ]
}

/// Accelerations of the first body and of the hinges.
fn dynamics<'k>(k: &'k Builder, bodies: usize, s: &[F<'k>]) -> (V6<'k>, Vec<F<'k>>) {
    let angle = |i: usize| s[BASE + i - 1];
    let rate = |i: usize| s[BASE + bodies - 1 + i - 1];
    let frames: Vec<Frame<'k>> = (1..bodies).map(|i| hinge(k, i, angle(i))).collect();
    let mut v: Vec<V6<'k>> = vec![std::array::from_fn(|i| V(s[7 + i]))];
    let mut c: Vec<V6<'k>> = vec![[Zero; 6]];
    for i in 1..bodies {
        let joint = scaled(k, joined(axis(i), [Zero; 3]), V(rate(i)));
        let now = plus(k, frames[i - 1].motion(k, v[i - 1]), joint);
        let (w, l) = halves(now);
        let (a, _) = halves(joint);
        c.push(joined(cross(k, w, a), cross(k, l, a)));
        v.push(now);
    }
    let mut ia: Vec<M6<'k>> = (0..bodies).map(|_| inertia(k)).collect();
    let mut pa: Vec<V6<'k>> = Vec::new();
    let (mut at, mut turn) = (V(s[2]), rotation(k, &s[3..7])[2]);
    for i in 0..bodies {
        // v x* (I v), and a little friction of the air.
        let momentum = times6(k, &ia[i], v[i]);
        let ((w, l), (n, p)) = (halves(v[i]), halves(momentum));
        let turned = joined(plus(k, cross(k, w, n), cross(k, l, p)), cross(k, w, p));
        let free = plus(k, turned, scaled(k, v[i], V(k.lit(0.02f32))));
        // The ground pushes the end of a body up, and rubs. `turn` is the way up, seen from the body.
        if i > 0 {
            let back = transposed(&frames[i - 1].e);
            turn = [0, 1, 2].map(|j| dot(k, &turn, &[back[0][j], back[1][j], back[2][j]]));
        }
        at = at.add(k, turn[0].times(k, LENGTH));
        let arm = [V(k.lit(LENGTH)), Zero, Zero];
        let speed = plus(k, l, cross(k, w, arm));
        let force = [k.var(0f32), k.var(0f32), k.var(0f32)];
        let height = at.val(k);
        k.if_(height.lt(0.0), || {
            let up = dot(k, &turn, &speed).val(k);
            let push = k.var(height * -200f32);
            k.if_(up.lt(0.0), || push.set(push.get() - up * 2f32));
            for (j, f) in force.iter().enumerate() {
                f.set(turn[j].val(k) * push.get() - speed[j].val(k) * 0.5f32);
            }
        });
        let force = force.map(|f| V(-f.get()));
        pa.push(plus(k, free, joined(cross(k, arm, force), force)));
    }
    let mut kept = Vec::new();
    for i in (1..bodies).rev() {
        let at = if i.is_multiple_of(2) { 2 } else { 1 };
        let u: V6<'k> = std::array::from_fn(|j| ia[i][j][at]);
        let d = u[at].val(k);
        // A spring in each hinge, much stiffer behind its limit.
        let torque = k.var(angle(i) * -0.6f32 - rate(i) * 0.05f32);
        k.if_(angle(i).gt(LIMIT), || torque.set(torque.get() - (angle(i) - LIMIT) * 20f32));
        k.if_(angle(i).lt(-LIMIT), || torque.set(torque.get() - (angle(i) + LIMIT) * 20f32));
        let t = torque.get() - pa[i][at].val(k);
        let inverse = k.lit(1f32) / d;
        let mut rest = ia[i];
        for a in 0..6 {
            for b in 0..=a {
                let less = u[a].mul(k, u[b]).mul(k, V(inverse)).neg(k);
                rest[a][b] = rest[a][b].add(k, less);
                rest[b][a] = rest[a][b];
            }
        }
        let mut p = plus(k, pa[i], times6(k, &rest, c[i]));
        p = plus(k, p, scaled(k, u, V(t * inverse)));
        let x = frames[i - 1].matrix(k);
        let more = congruent(k, &rest, &x);
        for a in 0..6 {
            ia[i - 1][a] = plus(k, ia[i - 1][a], more[a]);
        }
        pa[i - 1] = plus(k, pa[i - 1], frames[i - 1].force_out(k, p));
        kept.push((u, inverse, t));
    }
    kept.reverse();
    let first = solve(k, &ia[0], pa[0].map(|x| x.neg(k)));
    let mut a = first;
    let mut rates = Vec::new();
    for i in 1..bodies {
        let (u, inverse, t) = kept[i - 1];
        let moved = plus(k, frames[i - 1].motion(k, a), c[i]);
        let acceleration = (t - dot(k, &u, &moved).val(k)) * inverse;
        a = plus(k, moved, scaled(k, joined(axis(i), [Zero; 3]), V(acceleration)));
        rates.push(acceleration);
    }
    // Gravity falls on all alike, so it is only added to the first.
    let down = transposed(&rotation(k, &s[3..7])).map(|row| row[2].times(k, -9.81));
    (plus(k, first, joined([Zero; 3], down)), rates)
}

/// The chain: `x` holds the state of each invocation, `steps` the number of steps; `y` gets where the bodies' ends are (the first's start
/// first), three numbers each.
pub fn kernel(bodies: usize) -> Result<Kernel, KernelError> {
    Builder::kernel("articulated", [1, 1, 1], |k| {
        let (x, steps, y) = (k.buffer::<f32>("x"), k.buffer::<u32>("steps"), k.buffer_mut::<f32>("y"));
        let n = state_len(bodies);
        let first = k.global_id(0) * n as u32;
        let state: Vec<_> = (0..n).map(|i| k.var(x.load(first + i as u32))).collect();
        k.for_(0u32, steps.load(0), |_, _| {
            let s: Vec<F<'_>> = state.iter().map(|v| v.get()).collect();
            let (a, rates) = dynamics(k, bodies, &s);
            let v: Vec<F<'_>> = (0..6).map(|i| s[7 + i] + a[i].val(k) * STEP).collect();
            (0..6).for_each(|i| state[7 + i].set(v[i]));
            for (i, &r) in rates.iter().enumerate() {
                let rate = s[BASE + bodies - 1 + i] + r * STEP;
                state[BASE + bodies - 1 + i].set(rate);
                state[BASE + i].set(s[BASE + i] + rate * STEP);
            }
            let world = rotation(k, &s[3..7]);
            let moved = times3(k, &world, [V(v[3]), V(v[4]), V(v[5])]);
            (0..3).for_each(|i| state[i].set(s[i] + moved[i].val(k) * STEP));
            let (w, q) = ([v[0], v[1], v[2]], &s[3..7]);
            let turned = [
                -(q[1] * w[0] + q[2] * w[1] + q[3] * w[2]),
                q[0] * w[0] + q[2] * w[2] - q[3] * w[1],
                q[0] * w[1] + q[3] * w[0] - q[1] * w[2],
                q[0] * w[2] + q[1] * w[1] - q[2] * w[0],
            ];
            let q: Vec<F<'_>> = (0..4).map(|i| q[i] + turned[i] * (STEP / 2.0)).collect();
            let length = q.iter().fold(k.lit(0f32), |s, &x| s + x * x).inverse_sqrt();
            (0..4).for_each(|i| state[3 + i].set(q[i] * length));
        });
        // Where the ends are: from body to body, turning.
        let s: Vec<F<'_>> = state.iter().map(|v| v.get()).collect();
        let out = k.global_id(0) * (3 * (bodies as u32 + 1));
        let (mut at, mut turn) = ([V(s[0]), V(s[1]), V(s[2])], rotation(k, &s[3..7]));
        for i in 0..=bodies {
            for (j, x) in at.iter().enumerate() {
                y.store(out + (3 * i + j) as u32, x.val(k));
            }
            at = plus(k, at, times3(k, &turn, [V(k.lit(LENGTH)), Zero, Zero]));
            if i + 1 < bodies {
                let back = transposed(&hinge(k, i + 1, s[BASE + i]).e);
                turn = turn.map(|row| [0, 1, 2].map(|j| dot(k, &row, &[back[0][j], back[1][j], back[2][j]])));
            }
        }
    })
}

/// A chain that lies along x and turns a little.
pub fn start(bodies: usize) -> Vec<f64> {
    let mut s = vec![0.0; state_len(bodies)];
    (s[2], s[3]) = (1.0, 1.0);
    s[7..BASE].copy_from_slice(&[0.2, -0.4, 0.6, 0.5, 0.1, 2.0]);
    for i in 0..bodies - 1 {
        s[BASE + i] = 0.3 * (i as f64 * 1.7).sin();
        s[BASE + bodies - 1 + i] = 0.8 * (i as f64 * 2.3).cos();
    }
    s
}
