//! What several tests use: random kernels, and inputs for them.
pub mod edges;
pub mod gemm;
pub mod kernels;
pub mod members;
pub mod random;
pub mod twins;

use impasto_kernel::{BufferData, Builder, Kernel, Launch, Scalar, execute};

/// Runs a kernel of [`random`] on the inputs of its seed, and gives what it wrote.
pub fn outputs(kernel: &Kernel, seed: u64) -> Result<Vec<BufferData>, String> {
    outputs_of(kernel, &random::launch(seed))
}

/// Runs a kernel on these inputs, and gives what it wrote.
pub fn outputs_of(kernel: &Kernel, launch: &Launch) -> Result<Vec<BufferData>, String> {
    let mut launch = launch.clone();
    execute(kernel, &mut launch).map_err(|e| e.to_string())?;
    Ok(launch.buffers)
}

/// Bit-equal, but one NaN is as good as another: devices choose its bits.
pub fn same(a: &[BufferData], b: &[BufferData]) -> Result<(), String> {
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        for (j, (&p, &q)) in x.bits.iter().zip(&y.bits).enumerate() {
            let nan = |b: u64| match x.ty {
                Scalar::F32 => f32::from_bits(b as u32).is_nan(),
                Scalar::F16 => half::f16::from_bits(b as u16).is_nan(),
                Scalar::Bf16 => half::bf16::from_bits(b as u16).is_nan(),
                _ => false,
            };
            if p != q && !(nan(p) && nan(q)) {
                let show = |b: u64| format!("{b:#x} ({:?})", f32::from_bits(b as u32));
                return Err(format!("buffer {i}, element {j}: {} and {}", show(p), show(q)));
            }
        }
    }
    if a.len() == b.len() { Ok(()) } else { Err("other buffers".to_owned()) }
}

/// Writes to so many places in each of seven buffers.
pub fn places(name: &str, n: u32) -> Kernel {
    let made = Builder::kernel(name, [1, 1, 1], |k| {
        let y = ["a", "b", "c", "d", "e", "f", "g"].map(|y| k.buffer_mut::<u32>(y));
        let i = k.global_id(0);
        for at in 0..n {
            let at = k.lit(at);
            y.iter().for_each(|y| y.store(at, i));
        }
    });
    made.unwrap()
}

/// Which random programs a test tries: the first so many, or as many as the variable says, or those of its range such as `596..10000`.
pub fn programs(ci: u64) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("IMPASTO_KERNEL_PROGRAMS") else { return 0..ci };
    let (from, to) = text.split_once("..").unwrap_or(("0", &text));
    match (from.parse(), to.parse()) {
        (Ok(from), Ok(to)) => from..to,
        _ => panic!("IMPASTO_KERNEL_PROGRAMS is {text}, neither a number nor a range"),
    }
}
