//! Kernels with derivatives, by kind, and how a derivative is held to differences, to forward mode and to the closed form.

use impasto_autodiff::{Differentiate, Grad};
use impasto_kernel::{BufferData, Builder, Kernel, Launch, Scalar, execute, optimise};

use impasto_testkit::kernel::random::Rng;

pub fn wide(groups: u32, buffers: Vec<BufferData>) -> Launch {
    let mut launch = Launch::new([groups, 1, 1], buffers);
    launch.wide = true;
    launch.subgroup = 4;
    launch.max_ops = 5_000_000;
    launch
}

fn floats(data: &BufferData) -> Vec<f64> {
    data.to_f64().unwrap_or_default()
}

/// Which buffers are floats that a kernel writes, and which it is given.
fn written(kernel: &Kernel) -> Vec<usize> {
    use impasto_kernel::{Access, Space};
    let buffers = kernel.memories().iter().filter(|m| matches!(m.space, Space::Buffer(_)));
    let is = |m: &impasto_kernel::MemoryDecl| {
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
    l.buffers[buffer] = BufferData::wide(&x);
    l
}

/// What the adjoint says about each buffer, and last about the parameters, for these adjoints of what is written.
pub fn adjoints(grad: &Grad, launch: &Launch, w: &[(usize, Vec<f64>)]) -> Result<Vec<Option<Vec<f64>>>, String> {
    let flows = |b: usize| {
        grad.purposes.iter().any(|r| matches!(r, impasto_autodiff::Purpose::Derivative { of, .. } if *of == b))
    };
    let given: Vec<(usize, BufferData)> =
        w.iter().filter(|x| flows(x.0)).map(|(b, w)| (*b, BufferData::wide(w))).collect();
    let got = grad.execute(launch, &given).map_err(|e| e.to_string())?;
    let buffers = (0..launch.buffers.len()).map(|b| got.of(b).map(floats));
    Ok(buffers.chain([got.params().map(floats)]).collect())
}

/// Whether no output changes with any input: what a refusal for that reason says.
pub fn nothing_changes(kernel: &Kernel, launch: &Launch) -> Result<bool, String> {
    let w: Vec<(usize, Vec<f64>)> =
        written(kernel).into_iter().map(|b| (b, vec![1.0; launch.buffers[b].bits.len()])).collect();
    let here = weighted(kernel, launch, &w)?;
    for b in (0..launch.buffers.len()).filter(|b| launch.buffers[*b].ty == Scalar::F32 && !written(kernel).contains(b))
    {
        let direction = weights(&mut Rng::new(1), launch.buffers[b].bits.len());
        if weighted(kernel, &moved(launch, b, &direction, 1e-4), &w)? != here {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A derivative against the slope of a function around zero.
fn difference(what: &str, d: f64, at: &dyn Fn(f64) -> Result<f64, String>) -> Result<(), String> {
    let mut right = Ok(());
    // A smaller step is tried where a larger one comes past a kink, or bends too much.
    for h in [1e-5, 1e-6, 1e-7] {
        let (up, down) = (at(h)?, at(-h)?);
        right = near(&format!("{what}, adjoint and difference"), d, (up - down) / (2.0 * h), 2e-6);
        if right.is_ok() {
            break;
        }
        // At a kink the slopes to both sides differ, and the derivative is one of them or lies between.
        let here = at(0.0)?;
        let (a, b) = ((here - down) / h, (up - here) / h);
        let between = d >= a.min(b) - 1e-4 && d <= a.max(b) + 1e-4;
        // At a step it is that of the side on which the point lies.
        let one_side = [a, b].iter().any(|s| near("", d, *s, 1e-4).is_ok());
        if (a - b).abs() > 1e-3 && (between || one_side) {
            return Ok(());
        }
    }
    right
}

/// Adjoint against differences, each element; against forward mode; optimised against not.
pub fn hold(kernel: &Kernel, launch: &Launch, seed: u64) -> Result<Grad, String> {
    let mut rng = Rng::new(seed);
    let outputs = written(kernel);
    let w: Vec<(usize, Vec<f64>)> =
        outputs.iter().map(|&b| (b, weights(&mut rng, launch.buffers[b].bits.len()))).collect();
    let grad = kernel.grad().map_err(|e| e.to_string())?;
    let got = adjoints(&grad, launch, &w)?;
    let read = |b: usize| {
        grad.purposes.iter().any(|r| matches!(r, impasto_autodiff::Purpose::Derivative { of, read: true } if *of == b))
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
            let mut e = vec![0.0; data.bits.len()];
            e[i] = 1.0;
            let at = |h: f64| weighted(kernel, &moved(launch, b, &e, h), &w);
            difference(&format!("buffer {b}, element {i}"), d[i], &at).map_err(|e| format!("{e}\n{}", grad.kernel))?;
        }
    }
    for (p, d) in got.last().into_iter().flatten().flatten().enumerate() {
        let at = |h: f64| {
            let mut moved = launch.clone();
            moved.scalars[p] = (f64::from_bits(moved.scalars[p]) + h).to_bits();
            weighted(kernel, &moved, &w)
        };
        difference(&format!("parameter {p}"), *d, &at)?;
    }
    // <w, J v> = <J' w, v>; not to all bits, since constants are folded as f32, and differently.
    let jvp = kernel.jvp().map_err(|e| e.to_string())?;
    let inputs: Vec<usize> = (0..launch.buffers.len()).filter(|&b| got[b].is_some() && !read(b)).collect();
    let v: Vec<(usize, BufferData)> =
        inputs.iter().map(|&b| (b, BufferData::wide(&weights(&mut rng, launch.buffers[b].bits.len())))).collect();
    let changes = jvp.execute(launch, &v).map_err(|e| format!("{e}\n{}", jvp.kernel))?;
    let left: f64 = w.iter().map(|(b, w)| changes.of(*b).map_or(0.0, |d| dot(w, &floats(d)))).sum();
    let right: f64 = v.iter().map(|(b, v)| dot(got[*b].as_deref().unwrap_or(&[]), &floats(v))).sum();
    near("forward and reverse mode", left, right, 1e-6).map_err(|e| format!("{e}\n{}", jvp.kernel))?;
    let best = Grad { kernel: optimise(&grad.kernel).map_err(|e| e.to_string())?, ..grad.clone() };
    let optimised = adjoints(&best, launch, &w)?;
    for (b, (x, y)) in got.iter().zip(&optimised).enumerate() {
        for (i, (x, y)) in x.iter().flatten().zip(y.iter().flatten()).enumerate() {
            near(&format!("buffer {b}, element {i}, optimised"), *x, *y, 1e-6)?;
        }
    }
    Ok(grad)
}

pub fn kernel(name: &str, workgroup: u32, body: impl FnOnce(&Builder)) -> Kernel {
    Builder::kernel(name, [workgroup, 1, 1], body).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The same launch with f32 as f32.
pub fn narrow(launch: &Launch, kernel: &Kernel) -> Launch {
    let one = |bits: u64| u64::from((f64::from_bits(bits) as f32).to_bits());
    let mut narrow = Launch { wide: false, ..launch.clone() };
    for data in narrow.buffers.iter_mut().filter(|d| d.ty == Scalar::F32) {
        data.bits.iter_mut().for_each(|b| *b = one(*b));
    }
    for (p, bits) in kernel.params().iter().zip(&mut narrow.scalars) {
        if p.ty == Scalar::F32 {
            *bits = one(*bits);
        }
    }
    narrow
}
