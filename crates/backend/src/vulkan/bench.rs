//! The peak rate of a device.

use impasto_vulkan::{QueueKind, Recorder};

use super::Vulkan;
use crate::BackendError;
use crate::gpu::kernels::peak::peak;
use crate::gpu::{Gpu, Residence};

/// Thousand million operations a second of a kernel that only multiplies and adds, in what products are computed in.
pub(super) fn peak_gflops(vulkan: &Vulkan) -> Result<f64, BackendError> {
    let (kernel, groups, operations) = peak(vulkan.units()).map_err(|e| vulkan.unsupported(e.to_string()))?;
    let pipelines = vulkan.0.pipelines.all(&[&kernel]).map_err(|e| vulkan.unsupported(e))?;
    let memory = vulkan.allocate(Residence::Device, [256].into_iter())?;
    let run = || {
        let mut recorder = Recorder::new(vulkan.device(), QueueKind::Compute);
        recorder.timestamp();
        recorder.run(&pipelines[0], vec![memory.range(0, 256)], groups)?;
        recorder.timestamp();
        let mut recording = recorder.finish()?;
        let mut least = f64::INFINITY;
        for _ in 0..3 {
            recording.submit()?;
            recording.wait()?;
            least = recording.seconds()?.into_iter().fold(least, f64::min);
        }
        Ok(least)
    };
    let seconds: f64 = run().map_err(|e| vulkan.failed(0, e))?;
    Ok(operations as f64 / seconds / 1e9)
}
