//! What several tests use: random kernels, and inputs for them.
#![allow(dead_code, reason = "each test uses a part of this")]

pub mod articulated;
pub mod cases;
pub mod differentiable;
pub mod gradients;
pub mod kernels;
pub mod random;

use std::io::Write;
use std::process::{Command, Stdio};

use impasto_kernel::{Data, Kernel, Module, Scalar, execute};

/// Runs a kernel of [`random`] on the inputs of its seed, and gives what it wrote.
pub fn outputs(kernel: &Kernel, seed: u64) -> Result<Vec<Data>, String> {
    let mut launch = random::launch(seed);
    execute(kernel, &mut launch).map_err(|e| e.to_string())?;
    Ok(launch.buffers)
}

/// Bit-equal, but one NaN is as good as another: devices choose its bits.
pub fn same(a: &[Data], b: &[Data]) -> Result<(), String> {
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        for (j, (&p, &q)) in x.bits.iter().zip(&y.bits).enumerate() {
            let nan = |b: u64| x.ty == Scalar::F32 && f32::from_bits(b as u32).is_nan();
            if p != q && !(nan(p) && nan(q)) {
                let show = |b: u64| format!("{b:#x} ({:?})", f32::from_bits(b as u32));
                return Err(format!("buffer {i}, element {j}: {} and {}", show(p), show(q)));
            }
        }
    }
    if a.len() == b.len() { Ok(()) } else { Err("other buffers".to_owned()) }
}

/// How many random programs a test tries: `ci`, or as many as the variable says.
pub fn programs(ci: u64) -> u64 {
    std::env::var("IMPASTO_KERNEL_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(ci)
}

/// Asks `spirv-val`; without it nothing is proven, so that is a failure, too.
pub fn valid(module: &Module) -> Result<(), String> {
    let missing = |e| format!("spirv-val cannot be run ({e}): install spirv-tools, as tools/test.sh does");
    let mut child = Command::new("spirv-val")
        .args(["--target-env", "vulkan1.1", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(missing)?;
    let bytes: Vec<u8> = module.words.iter().flat_map(|w| w.to_le_bytes()).collect();
    child.stdin.take().unwrap().write_all(&bytes).map_err(|e| e.to_string())?;
    let done = child.wait_with_output().map_err(|e| e.to_string())?;
    match done.status.success() {
        true => Ok(()),
        false => Err(format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))),
    }
}
