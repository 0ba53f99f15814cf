//! What going backwards costs on lavapipe: the time of the adjoint over that of the primal, for the loop-free cases with the most arithmetic.
//!
//! ```text
//! cargo bench -p impasto-autodiff --bench grad
//! ```

#[allow(dead_code, reason = "a bench uses a part of this")]
#[path = "../tests/derivatives/mod.rs"]
mod derivatives;

use std::time::Instant;

use derivatives::cases;
use impasto_autodiff::{Differentiate, Purpose};
use impasto_kernel::{BufferData, Kernel, Scalar};
use impasto_spirv::{Words, compile, interface};
use impasto_vulkan::{Loader, PhysicalDeviceType, VulkanDevice};

const INVOCATIONS: usize = 1 << 20;

/// Seconds of a launch, the best of five: machines are noisy.
fn seconds(device: &VulkanDevice, kernel: &Kernel, buffers: &[BufferData]) -> Result<f64, Box<dyn std::error::Error>> {
    let module = compile(kernel)?;
    let mut bound = Vec::new();
    for data in buffers {
        let bytes: Vec<u8> = data.bits.iter().flat_map(|b| (*b as u32).to_le_bytes()).collect();
        let buffer = device.buffer(bytes.len() as u64)?;
        buffer.write(&bytes)?;
        bound.push(buffer);
    }
    // SAFETY: the words are this compiler's, for which tests/spirv.rs asks spirv-val; each invocation touches its own element.
    let pipeline = unsafe { device.pipeline(&module.words(), &interface(&module.entries[0])) }?;
    let groups = [(INVOCATIONS / 64) as u32, 1, 1];
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        device.run(&pipeline, &bound.iter().collect::<Vec<_>>(), &[], groups)?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let instance = Loader::open()?.create_instance()?;
    let all = instance.enumerate()?;
    let physical = all
        .iter()
        .find(|p| p.describe().kind == PhysicalDeviceType::Software)
        .ok_or("there is no software Vulkan device")?;
    let device = VulkanDevice::open(physical)?;
    // One element in, one out, by the number of the invocation: these can be launched with any number.
    let each = |c: &cases::Case| c.straight && c.kernel.name == "each";
    let mut cases: Vec<cases::Case> = cases::all().into_iter().filter(each).collect();
    let size = |k: &Kernel| compile(k).map_or(0, |m| m.words().len());
    cases.sort_by_key(|c| std::cmp::Reverse(size(&c.kernel)));
    println!("case: words, words of the adjoint, ms, ms of the adjoint, ratio");
    for case in cases.iter_mut().take(10) {
        case.kernel.workgroup = [64, 1, 1];
        let grad = case.kernel.grad()?;
        let x: Vec<f32> = (0..INVOCATIONS).map(|i| (i % 1013) as f32 / 400.0 - 1.2).collect();
        let (x, zero) = (BufferData::from(&x[..]), BufferData::zeros(Scalar::F32, INVOCATIONS));
        let buffers = |_: &Purpose| x.clone();
        let primal = seconds(&device, &case.kernel, &[x.clone(), zero])?;
        let adjoint = seconds(&device, &grad.kernel, &grad.purposes.iter().map(buffers).collect::<Vec<_>>())?;
        println!(
            "{}: {}, {}, {:.2}, {:.2}, {:.2}",
            case.name,
            size(&case.kernel),
            size(&grad.kernel),
            primal * 1e3,
            adjoint * 1e3,
            adjoint / primal
        );
    }
    Ok(())
}
