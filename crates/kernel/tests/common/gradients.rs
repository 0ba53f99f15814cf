//! Kernels with derivatives, by kind, and how a derivative is held to differences, to forward mode and to the closed form.

use impasto_kernel::{Builder, Data, Grad, Kernel, Launch, Scalar, execute, optimise};

use super::random::Rng;

/// A kernel, its launch with f32 computed as f64, and the derivative by the first buffer where there is a closed form.
pub struct Case {
    pub name: &'static str,
    pub kernel: Kernel,
    pub launch: Launch,
    /// The derivative of the sum of the last buffer by each element of the first.
    pub closed: Option<Vec<f64>>,
}

pub fn wide(groups: u32, buffers: Vec<Data>) -> Launch {
    let mut launch = Launch::new([groups, 1, 1], buffers);
    launch.wide = true;
    launch.subgroup = 4;
    launch.max_ops = 5_000_000;
    launch
}

fn floats(data: &Data) -> Vec<f64> {
    data.to_f64().unwrap_or_default()
}

/// Which buffers are floats that a kernel writes, and which it is given.
fn written(kernel: &Kernel) -> Vec<usize> {
    use impasto_kernel::{Access, Space};
    let buffers = kernel.memories().iter().filter(|m| matches!(m.space, Space::Buffer(_)));
    let is = |m: &impasto_kernel::Memory| {
        m.space == Space::Buffer(Access::ReadWrite) && matches!(m.ty.lanes(), Some((Scalar::F32, _)))
    };
    buffers.enumerate().filter(|(_, m)| is(m)).map(|(i, _)| i).collect()
}

fn weights(rng: &mut Rng, n: usize) -> Vec<f64> {
    (0..n).map(|_| (rng.below(2001) as f64 - 1000.0) / 700.0).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn near(what: &str, a: f64, b: f64, error: f64) -> Result<(), String> {
    let scale = 1.0 + a.abs().max(b.abs());
    if (a - b).abs() <= error * scale || (a.is_nan() && b.is_nan()) {
        return Ok(());
    }
    Err(format!("{what}: {a} and {b}"))
}

fn weighted(kernel: &Kernel, launch: &Launch, w: &[(usize, Vec<f64>)]) -> Result<f64, String> {
    let mut run = launch.clone();
    execute(kernel, &mut run).map_err(|e| e.to_string())?;
    Ok(w.iter().map(|(b, w)| dot(w, &floats(&run.buffers[*b]))).sum())
}

fn moved(launch: &Launch, buffer: usize, direction: &[f64], by: f64) -> Launch {
    let mut l = launch.clone();
    let x: Vec<f64> = floats(&l.buffers[buffer]).iter().zip(direction).map(|(x, d)| x + by * d).collect();
    l.buffers[buffer] = Data::wide(&x);
    l
}

/// What the adjoint says about each buffer, for random adjoints of all that is written.
pub fn adjoints(grad: &Grad, launch: &Launch, w: &[(usize, Vec<f64>)]) -> Result<Vec<Option<Vec<f64>>>, String> {
    let flows =
        |b: usize| grad.roles.iter().any(|r| matches!(r, impasto_kernel::Role::Derivative { of, .. } if *of == b));
    let given: Vec<(usize, Data)> = w.iter().filter(|x| flows(x.0)).map(|(b, w)| (*b, Data::wide(w))).collect();
    let got = grad.execute(launch, &given).map_err(|e| e.to_string())?;
    Ok((0..launch.buffers.len()).map(|b| got.of(b).map(floats)).collect())
}

/// Adjoint against differences, each element; against forward mode; optimised against not.
pub fn hold(kernel: &Kernel, launch: &Launch, seed: u64) -> Result<Grad, String> {
    let mut rng = Rng::new(seed);
    let grad = kernel.grad().map_err(|e| e.to_string())?;
    let outputs = written(kernel);
    let w: Vec<(usize, Vec<f64>)> =
        outputs.iter().map(|&b| (b, weights(&mut rng, launch.buffers[b].bits.len()))).collect();
    let got = adjoints(&grad, launch, &w)?;
    let read = |b: usize| {
        grad.roles.iter().any(|r| matches!(r, impasto_kernel::Role::Derivative { of, read: true } if *of == b))
    };
    for (b, data) in launch.buffers.iter().enumerate().filter(|(b, d)| d.ty == Scalar::F32 && !read(*b)) {
        let none = vec![0.0; data.bits.len()];
        let expected_none = got[b].is_none();
        let d = got[b].as_ref().unwrap_or(&none);
        for i in 0..data.bits.len() {
            // An output through which nothing flows keeps its adjoint, which was not given.
            if expected_none && outputs.contains(&b) {
                continue;
            }
            let h = 1e-5;
            let mut e = vec![0.0; data.bits.len()];
            e[i] = 1.0;
            let up = weighted(kernel, &moved(launch, b, &e, h), &w)?;
            let down = weighted(kernel, &moved(launch, b, &e, -h), &w)?;
            near(&format!("buffer {b}, element {i}, adjoint and difference"), d[i], (up - down) / (2.0 * h), 2e-6)
                .map_err(|e| format!("{e}\n{}", grad.kernel))?;
        }
    }
    // <w, J v> = <J' w, v>
    let jvp = kernel.jvp().map_err(|e| e.to_string())?;
    let inputs: Vec<usize> = (0..launch.buffers.len()).filter(|&b| got[b].is_some() && !read(b)).collect();
    let v: Vec<(usize, Data)> =
        inputs.iter().map(|&b| (b, Data::wide(&weights(&mut rng, launch.buffers[b].bits.len())))).collect();
    let changes = jvp.execute(launch, &v).map_err(|e| format!("{e}\n{}", jvp.kernel))?;
    let left: f64 = w.iter().map(|(b, w)| changes.of(*b).map_or(0.0, |d| dot(w, &floats(d)))).sum();
    let right: f64 = v.iter().map(|(b, v)| dot(got[*b].as_deref().unwrap_or(&[]), &floats(v))).sum();
    near("forward and reverse mode", left, right, 1e-9).map_err(|e| format!("{e}\n{}", jvp.kernel))?;
    let best = Grad { kernel: optimise(&grad.kernel).map_err(|e| e.to_string())?, ..grad.clone() };
    let optimised = adjoints(&best, launch, &w)?;
    for (b, (x, y)) in got.iter().zip(&optimised).enumerate() {
        for (i, (x, y)) in x.iter().flatten().zip(y.iter().flatten()).enumerate() {
            near(&format!("buffer {b}, element {i}, optimised"), *x, *y, 1e-12)?;
        }
    }
    Ok(grad)
}

pub fn kernel(name: &str, workgroup: u32, body: impl FnOnce(&Builder)) -> Kernel {
    Builder::kernel(name, [workgroup, 1, 1], body).unwrap_or_else(|e| panic!("{name}: {e}"))
}
