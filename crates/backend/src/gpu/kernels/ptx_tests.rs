//! The kernels as PTX: NVIDIA's assembler takes them, and those for matrix units compute on an interpreter what they compute on the executor. If one of
//! these failed, CUDA would lose that op.

use std::time::{Duration, Instant};

use impasto_testkit::ptx::{interpreter, ptxas};

use impasto_kernel::{KernelError, Target};
use impasto_ptx::{PtxTarget, compiler};

use super::super::super::{peak, samples};
use super::*;

const UNITS: Units =
    Units { subgroup: 32, shape: [16, 16, 16], shared: 48 << 10, invocations: 1024, warpgroups: false };

/// All kernels that can be listed: a sample of each kind, products and attention for matrix units in each way, and those that measure.
fn all() -> Result<Vec<Kernel>, KernelError> {
    let mut all: Vec<Kernel> = samples()?.into_iter().map(|sample| sample.kernel).collect();
    let mut r = Random(1);
    for i in 0..24 {
        let (gemm, _) = random(&mut r);
        all.push(gemm.kernel()?);
        let shape = Units::SHAPES[i % 2];
        let tiled = Tiled::new(&gemm, Units { shape, ..UNITS }).expect("it fits");
        all.push(tiled.kernel()?);
        if let Some((finish, _)) = tiled.split().finish() {
            all.push(finish?);
        }
    }
    for (width, value_width, to) in [(40, 40, DType::F16), (64, 64, DType::F32), (160, 80, DType::F16)] {
        let h = Heads {
            batch: 1,
            heads: 2,
            queries: 100,
            keys: 77,
            width,
            value_width,
            scale: 0.2,
            causal: false,
            kv_heads: 2,
            bias: None,
        };
        all.push(Flash::new(&h, [DType::F16; 3], UNITS).expect("it fits").kernel(to)?);
        all.push(attention::attention(&h, [DType::F16; 4])?);
    }
    for units in [None, Some(UNITS)] {
        all.push(peak::peak(units)?.0);
    }
    for (i, kernel) in all.iter_mut().enumerate() {
        kernel.name = format!("{}_{i}", kernel.name);
    }
    Ok(all)
}

#[test]
fn every_kernel_is_assembled() {
    let all = all().unwrap_or_else(|e| panic!("{e}"));
    assert!(all.len() >= 75, "only {} kernels", all.len());
    for target in ptxas::targets() {
        let module = compiler(target).compile(&all).unwrap_or_else(|e| panic!("{target}: {e}"));
        ptxas::assemble(&module.bytes, target).unwrap_or_else(|e| panic!("{target}: {e}"));
    }
}

/// Verification changes no module: `--verify` looks for faults in what is shipped. Prints the cost.
#[test]
fn verified_modules_have_the_same_bytes() {
    let all = all().unwrap_or_else(|e| panic!("{e}"));
    for compiler in [compiler(PtxTarget::Sm80), impasto_spirv::compiler(Target::ANY)] {
        let mut seconds = [Duration::MAX; 2];
        let mut modules = [false, true].map(|_| None);
        for _ in 0..3 {
            for (at, verify) in [false, true].into_iter().enumerate() {
                let begun = Instant::now();
                let module = compiler.clone().verify(verify).compile(&all).unwrap_or_else(|e| panic!("{e}"));
                seconds[at] = seconds[at].min(begun.elapsed());
                modules[at] = Some(module);
            }
        }
        let [plain, verified] = modules;
        assert!(plain.is_some() && plain == verified);
        let [off, on] = seconds.map(|least| least.as_secs_f64());
        println!("{} kernels: {off:.3} s, verified {on:.3} s, ratio {:.2}", all.len(), on / off);
    }
}

/// The last buffer after a run on the interpreter.
fn interpreted(kernel: &Kernel, groups: [u32; 3], buffers: Vec<BufferData>, target: PtxTarget) -> BufferData {
    let module = compiler(target).compile(std::slice::from_ref(kernel)).unwrap_or_else(|e| panic!("{e}"));
    let done = interpreter::run(&module, kernel, &Launch::new(groups, buffers));
    done.unwrap_or_else(|e| panic!("{target}: {e}")).pop().expect("there is a result")
}

#[test]
fn products_by_matrix_units_are_those_of_the_executor() {
    let mut r = Random::new();
    for i in 0..8 {
        let (gemm, left) = random(&mut r);
        let tiled = Tiled::new(&gemm, Units { shape: Units::SHAPES[i % 2], ..UNITS }).expect("it fits");
        let mut buffers = vec![r.data(gemm.left_type, left), r.data(DType::F16, gemm.batch * gemm.k() * gemm.n)];
        let result = gemm.batch * gemm.m * gemm.n;
        let mut out = gemm.out;
        if tiled.split().finish().is_some() {
            buffers.push(r.data(DType::F32, (tiled.split().scratch_bytes() / 4) as u32));
            out = DType::F32;
        } else {
            buffers.extend(gemm.bias.map(|b| r.data(b.dtype, b.rows.map_or(1, |rows| gemm.m / rows) * gemm.n)));
            buffers.extend(gemm.residual.map(|dtype| r.data(dtype, result)));
            buffers.push(r.data(gemm.out, result));
        }
        let kernel = tiled.kernel().unwrap();
        let expected = run(&kernel, tiled.groups(), buffers.clone());
        for target in [PtxTarget::Sm75, PtxTarget::Sm80] {
            let got = interpreted(&kernel, tiled.groups(), buffers.clone(), target);
            let error = apart(&expected, &got, out);
            let allowed = if out == DType::F16 { 1e-3 } else { 1e-5 };
            assert!(error < allowed, "{target}, {:?}, {} x {} x {}: {error}", tiled.tile, gemm.m, gemm.n, gemm.k());
        }
    }
}

#[test]
fn attention_by_matrix_units_is_that_of_the_executor() {
    let mut r = Random::new();
    for (width, value_width) in [(40, 40), (64, 80)] {
        let h = Heads {
            batch: 1,
            heads: 2,
            queries: 70,
            keys: 77,
            width,
            value_width,
            scale: 0.2,
            causal: false,
            kv_heads: 2,
            bias: None,
        };
        let flash = Flash::new(&h, [DType::F16; 3], UNITS).expect("it fits");
        let sizes = [70 * width, 77 * width, 77 * value_width, 70 * value_width];
        let types = [DType::F16, DType::F16, DType::F16, DType::F32];
        let buffers: Vec<BufferData> = sizes.iter().zip(types).map(|(n, t)| r.data(t, 2 * *n as u32)).collect();
        let kernel = flash.kernel(DType::F32).unwrap();
        let expected = run(&kernel, flash.groups(), buffers.clone());
        let error = apart(&expected, &interpreted(&kernel, flash.groups(), buffers, PtxTarget::Sm80), DType::F32);
        assert!(error < 1e-4, "{width} and {value_width} wide: {error}");
    }
}
