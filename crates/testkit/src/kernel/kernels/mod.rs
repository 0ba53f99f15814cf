//! Real kernels, each with inputs and what must come out, computed in plain Rust.

mod attention;
mod elementwise;
mod image;
mod matrix;
mod norm;
mod numbers;
mod reduce;
mod scan;
mod simulate;
mod sort;

use half::{bf16, f16};
use impasto_kernel::{BufferData, Kernel, KernelError, Launch, Scalar};

use super::random::Rng;

pub struct Case {
    pub kernel: Kernel,
    pub launch: Launch,
    /// The buffers with results, and the results.
    pub results: Vec<(usize, Vec<f64>)>,
    /// The relative error allowed; 0 is bit-equal.
    pub error: f64,
}

/// All of them, on inputs with this seed.
pub fn all(seed: u64) -> Vec<Case> {
    let rng = &mut Rng::new(seed);
    let mut cases = Vec::new();
    for file in [
        elementwise::cases,
        reduce::cases,
        scan::cases,
        matrix::cases,
        norm::cases,
        sort::cases,
        numbers::cases,
        image::cases,
        attention::cases,
        simulate::cases,
    ] {
        cases.extend(file(rng));
    }
    cases
}

impl Case {
    /// A launch of so many workgroups, whose last buffer must hold this afterwards, bit by bit.
    fn new<T: Number>(
        kernel: Result<Kernel, KernelError>,
        groups: [u32; 3],
        buffers: Vec<BufferData>,
        result: impl IntoIterator<Item = T>,
    ) -> Case {
        let kernel = kernel.unwrap_or_else(|e| panic!("{e}"));
        let last = buffers.len() - 1;
        let results = vec![(last, result.into_iter().map(Number::wide).collect())];
        Case { kernel, launch: Launch::new(groups, buffers), results, error: 0.0 }
    }

    /// The bits of the scalar parameters.
    fn scalars(mut self, bits: &[u32]) -> Case {
        self.launch.scalars = bits.iter().map(|&b| b.into()).collect();
        self
    }

    /// Another buffer that must hold something.
    fn and<T: Number>(mut self, buffer: usize, result: impl IntoIterator<Item = T>) -> Case {
        self.results.push((buffer, result.into_iter().map(Number::wide).collect()));
        self
    }

    /// What the functions of a device may be off by.
    fn within(mut self, error: f64) -> Case {
        self.error = error;
        self
    }
}

/// A number that results are compared as.
trait Number: Copy {
    fn wide(self) -> f64;
}
macro_rules! numbers {
    ($($t:ty)*) => { $(impl Number for $t {
        fn wide(self) -> f64 {
            self.into()
        }
    })* };
}
numbers!(f64 f32 u32 i32);

/// Numbers between -2 and 2, exact in f16.
fn floats(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.below(1025) as f32 / 256.0 - 2.0).collect()
}

fn ints(rng: &mut Rng, n: usize, below: usize) -> Vec<u32> {
    (0..n).map(|_| rng.below(below) as u32).collect()
}

fn of<'a, T>(x: &'a [T]) -> BufferData
where
    BufferData: From<&'a [T]>,
{
    BufferData::from(x)
}

fn halves(x: &[f32]) -> BufferData {
    BufferData { ty: Scalar::F16, bits: x.iter().map(|&x| f16::from_f32(x).to_bits().into()).collect() }
}

fn no_floats(n: usize) -> BufferData {
    BufferData::zeros(Scalar::F32, n)
}

fn no_ints(n: usize) -> BufferData {
    BufferData::zeros(Scalar::U32, n)
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| x.into()).collect()
}

/// Whether the results are what must come out.
pub fn right(case: &Case, buffers: &[BufferData]) -> Result<(), String> {
    for (at, want) in &case.results {
        let data = &buffers[*at];
        let value = |b: u64| match data.ty {
            Scalar::F32 => f64::from(f32::from_bits(b as u32)),
            Scalar::F16 => f16::from_bits(b as u16).into(),
            Scalar::Bf16 => bf16::from_bits(b as u16).into(),
            Scalar::I32 => f64::from(b as u32 as i32),
            _ => b as f64,
        };
        if data.bits.len() != want.len() {
            return Err(format!(
                "{}: buffer {at} has {} elements, not {}",
                case.kernel.name,
                data.bits.len(),
                want.len()
            ));
        }
        for (i, (&want, &bits)) in want.iter().zip(&data.bits).enumerate() {
            let got = value(bits);
            let off = (got - want).abs();
            if off.is_nan() || off > case.error * want.abs().max(1e-2) {
                return Err(format!("{}: buffer {at}, element {i} is {got}, not {want}", case.kernel.name));
            }
        }
    }
    Ok(())
}
