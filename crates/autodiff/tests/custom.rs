//! Gradients that users give: by attribute and by hand, for functions and for whole kernels.

use crate::derivatives::gradients::{adjoints, hold, wide};
use impasto_autodiff::{Chain, Differentiate, Purpose};
use impasto_kernel::prelude::*;
use impasto_kernel::{BufferData, Builder, Target, optimise};
use impasto_spirv::Words;
use impasto_testkit::kernel::random::Rng;

#[derive(Clone, Copy, KernelStruct)]
struct Spring {
    rest: f32,
    kind: u32,
    stiffness: f32,
}

#[kernel_fn(grad = cube_gradient)]
fn cube(x: f32) -> f32 {
    if x < 0.0 {
        return -(x.abs() * x * x);
    }
    x * x * x
}

#[kernel_fn]
fn cube_gradient(x: f32) -> f32 {
    3.0 * x * x
}

#[kernel_fn(grad = energy_gradient)]
fn energy(mut at: f32, #[comptime] times: u32, spring: Spring, sign: i32, way: (f32, f32)) -> f32 {
    at = at * sign as f32;
    let d = at - spring.rest;
    times as f32 * (spring.stiffness * d * d + way.0 * way.1)
}

#[kernel_fn]
fn energy_gradient(
    at: f32,
    #[comptime] times: u32,
    s: Spring,
    sign: i32,
    way: (f32, f32),
) -> (f32, Spring, (f32, f32)) {
    let n = times as f32;
    let d = at * sign as f32 - s.rest;
    let by_at = n * 2.0 * s.stiffness * d * sign as f32;
    (by_at, Spring { rest: -2.0 * n * s.stiffness * d, kind: 0, stiffness: n * d * d }, (n * way.1, n * way.0))
}

#[kernel_fn(grad = polar_gradient)]
fn polar(x: f32, y: f32) -> (f32, f32) {
    let r = (x * x + y * y).sqrt();
    (r, y / r)
}

#[kernel_fn]
fn polar_gradient(x: f32, y: f32) -> ((f32, f32), (f32, f32)) {
    let r = (x * x + y * y).sqrt();
    ((x / r, y / r), (-x * y / (r * r * r), x * x / (r * r * r)))
}

#[kernel_fn(grad = turned_gradient)]
fn turned(v: Vec2<f32>, a: f32) -> Vec2<f32> {
    vec2(v.x * a.cos() - v.y * a.sin(), v.x * a.sin() + v.y * a.cos())
}

#[kernel_fn]
fn turned_gradient(v: Vec2<f32>, a: f32) -> ((Vec2<f32>, f32), (Vec2<f32>, f32)) {
    let (c, s) = (a.cos(), a.sin());
    ((vec2(c, -s), -v.x * s - v.y * c), (vec2(s, c), v.x * c - v.y * s))
}

#[kernel(workgroup = 4)]
fn all(x: &[f32], y: &mut [f32]) {
    let i = global_id(0);
    let s = Spring { rest: x[i + 1], kind: 3, stiffness: x[i + 2] };
    let mut sum = 0.0;
    for j in 0..i {
        sum = cube(sum + x[j]) * 0.5;
    }
    let (r, t) = polar(x[i] + 3.0, sum);
    let v = turned(vec2(r, t), x[i + 3]);
    y[i] = sum + energy(x[i], 2, s, -1, (x[i + 1], x[i])) + v.x * v.y;
}

fn numbers(n: usize) -> Vec<f64> {
    let mut rng = Rng::new(11);
    (0..n).map(|_| (rng.below(2001) as f64 - 1000.0) / 800.0).collect()
}

#[test]
fn functions_with_a_gradient_of_their_own_agree_with_differences() {
    let launch = wide(2, vec![BufferData::wide(&numbers(11)), BufferData::wide(&[0.0; 8])]);
    let kernel = all().unwrap();
    let grad = hold(&kernel, &launch, 5).unwrap();
    // And again: the gradients are differentiated in turn.
    let adjoint = grad.launch(&launch, &[(1, BufferData::wide(&numbers(8)))], grad.slots(&launch).unwrap()).unwrap();
    hold(&grad.kernel, &adjoint, 6).unwrap();
    // Optimised first, the gradients are still those that were given.
    hold(&optimise(&kernel).unwrap(), &launch, 5).unwrap();
}

#[kernel_fn(grad = one)]
fn step(x: f32) -> f32 {
    if x > 0.0 { 1.0 } else { 0.0 }
}

#[kernel_fn]
fn one(x: f32) -> f32 {
    x - x + 1.0
}

#[kernel(workgroup = 2)]
fn steps(x: &[f32], y: &mut [f32]) {
    let i = global_id(0);
    y[i] = step(x[i]) * 5.0;
}

#[test]
fn a_gradient_that_is_not_the_derivative_is_what_counts_and_costs_the_primal_nothing() {
    let launch = wide(1, vec![BufferData::wide(&[-0.5, 0.5]), BufferData::wide(&[0.0; 2])]);
    let kernel = steps().unwrap();
    for kernel in [kernel.clone(), optimise(&kernel).unwrap()] {
        let got = adjoints(&kernel.grad().unwrap(), &launch, &[(1, vec![1.0, 2.0])]).unwrap();
        assert_eq!(got[0], Some(vec![5.0, 10.0]));
        let along = kernel.jvp().unwrap().execute(&launch, &[(0, BufferData::wide(&[1.0, 2.0]))]).unwrap();
        assert_eq!(along.of(1).and_then(BufferData::to_f64), Some(vec![5.0, 10.0]));
    }
    let text = impasto_spirv::compiler(Target::ANY).compile(&[kernel]).unwrap().disassemble().unwrap();
    assert!(!text.contains("OpFSub") && !text.contains("OpFAdd"), "{text}");
}

/// Sums of squares, `part` elements each.
#[kernel(workgroup = 4, grad = squares_back)]
fn squares(#[comptime] part: u32, scale: f32, x: &[Vec4<f32>], y: &mut [f32]) {
    let i = global_id(0);
    let mut sum = 0.0;
    for j in 0..part {
        let v = x[i * part + j];
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    y[i] = scale * sum;
}

#[kernel(workgroup = 4)]
fn squares_back(
    #[comptime] part: u32,
    scale: f32,
    x: &[Vec4<f32>],
    d_x: &mut [Vec4<f32>],
    d_y: &[f32],
    d_params: &mut [f32],
) {
    let i = global_id(0);
    let mut sum = 0.0;
    for j in 0..part {
        let v = x[i * part + j];
        let by = 2.0 * scale * d_y[i];
        let d = d_x[i * part + j];
        d_x[i * part + j] = vec4(d.x + by * v.x, d.y + by * v.y, d.z + by * v.z, d.w + by * v.w);
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    d_params.atomic_sum(0, sum * d_y[i]);
}

#[test]
fn a_kernel_with_a_gradient_of_its_own_gives_that_one() {
    let kernel = squares(3).unwrap();
    let own = kernel.grad().unwrap();
    assert_eq!((own.kernel.name.as_str(), own.size.is_none()), ("squares_back", true));
    let made: Kernel = kernel.to_string().parse().unwrap();
    assert_eq!(made.grad().unwrap().kernel.name, "squares_grad");
    let mut launch = wide(1, vec![BufferData::wide(&numbers(48)), BufferData::wide(&[0.0; 4])]);
    launch.scalars = vec![0.7f64.to_bits()];
    let w = [(1, numbers(4))];
    let (a, b) =
        (adjoints(&own, &launch, &w).unwrap(), adjoints(&hold(&made, &launch, 2).unwrap(), &launch, &w).unwrap());
    for part in [0, 2] {
        let (a, b) = (a[part].as_ref().unwrap(), b[part].as_ref().unwrap());
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-9 * (1.0 + b.abs())), "{a:?} and {b:?}");
    }
    let back = own.purposes.contains(&Purpose::Derivative { of: 1, read: true });
    assert!(back && own.report.to_string().contains("adjoints of x, y"), "{}", own.report);
    // It stays with the kernel through the passes, and its own adjoint is made.
    assert_eq!(optimise(&kernel).unwrap().grad().unwrap().kernel.name, "squares_back");
    assert_eq!(own.kernel.grad_of(&["d_y"]).unwrap().kernel.name, "squares_back_grad");
    let forward = kernel.jvp().unwrap_err().to_string();
    assert!(forward.contains("gradient of its own"), "{forward}");
}

#[test]
fn chains_of_kernels_use_the_gradients_that_they_were_given() {
    let plain: Kernel = squares(1).unwrap().to_string().parse().unwrap();
    let differentiate = |kernel: &Kernel| {
        let mut chain = Chain::new();
        chain.wide = true;
        let x = [chain.buffer(BufferData::wide(&numbers(16))), chain.buffer(BufferData::wide(&numbers(4)))];
        let number = chain.kernel(kernel).unwrap();
        chain.launch(number, [1, 1, 1], &[0.5f64.to_bits()], &x).unwrap();
        chain.launch(number, [1, 1, 1], &[0.3f64.to_bits()], &x).unwrap();
        let (_, adjoints) = chain.differentiate(&[(x[1], BufferData::wide(&numbers(4)))], 1).unwrap();
        adjoints.iter().flat_map(|d| d.to_f64().unwrap()).collect::<Vec<f64>>()
    };
    let (a, b) = (differentiate(&squares(1).unwrap()), differentiate(&plain));
    assert!(a.iter().any(|x| *x != 0.0) && a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-12), "{a:?} and {b:?}");
}

#[kernel(grad = wrong_back)]
fn wrong(n: u32, x: &[f32], y: &mut [f32]) {
    y[n] = x[n];
}

#[kernel]
fn wrong_back(x: &[f32], d_x: &mut [f32], d_y: &[f32]) {
    d_x[0] += x[0] * d_y[0];
}

#[test]
fn what_is_no_gradient_of_a_kernel_is_refused_when_the_kernel_is_made() {
    let error = wrong().unwrap_err().to_string();
    assert!(error.contains("kernel 'wrong': 'wrong_back' is not its gradient") && error.contains("n: u32"), "{error}");
    let primal = || {
        Builder::kernel("p", [4, 1, 1], |k| {
            let (x, n, y) = (k.buffer::<f32>("x"), k.buffer::<u32>("n"), k.buffer_mut::<f32>("y"));
            y.store(n.load(0), x.load(0));
        })
        .unwrap()
    };
    let refused = |words: &str, size: u32, body: &dyn Fn(&Builder)| {
        let error = primal().with_gradient(Builder::kernel("b", [size, 1, 1], body).unwrap()).unwrap_err().to_string();
        assert!(error.contains("'b' is not its gradient") && error.contains(words), "{error}");
    };
    let good = |k: &Builder| k.buffer_mut::<f32>("d_x").store(0, k.buffer::<f32>("d_y").load(0));
    assert!(primal().with_gradient(Builder::kernel("b", [4, 1, 1], good).unwrap()).is_ok());
    refused("workgroup is [8, 1, 1]", 8, &good);
    refused("'d_z' is none of its buffers, which are 'x' or 'd_x'", 4, &|k| {
        good(k);
        k.buffer::<f32>("d_z");
    });
    refused("'x' holds u32, and that of the primal f32", 4, &|k| {
        good(k);
        k.buffer::<u32>("x");
    });
    refused("may write 'x'", 4, &|k| {
        good(k);
        k.buffer_mut::<f32>("x");
    });
    refused("'y', which the primal only writes", 4, &|k| {
        good(k);
        k.buffer::<f32>("y");
    });
    refused("'d_n' is the adjoint of u32", 4, &|k| {
        good(k);
        k.buffer_mut::<f32>("d_n");
    });
    refused("takes no adjoint of a buffer that the primal writes", 4, &|k| k.buffer_mut::<f32>("d_x").store(0, 1.0));
    refused("gives no adjoint", 4, &|k| {
        k.buffer::<f32>("d_y").load(0);
    });
    let none = primal().with_gradient(Builder::kernel("b", [4, 1, 1], good).unwrap()).unwrap();
    assert!(none.grad_of(&["x"]).is_ok());
    let error = none.grad_of(&["n"]).unwrap_err().to_string();
    assert!(error.contains("'b', gives none by 'n'"), "{error}");
}
