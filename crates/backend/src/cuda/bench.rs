//! The peak rate of a device.

use super::Cuda;
use crate::BackendError;
use crate::gpu::kernels::peak::peak;
use crate::gpu::{Gpu, Residence};

/// Thousand million operations a second of a kernel that only multiplies and adds, in what products are computed in.
pub(super) fn peak_gflops(cuda: &Cuda) -> Result<f64, BackendError> {
    let (kernel, groups, operations) = peak(cuda.units()).map_err(|e| cuda.unsupported(e.to_string()))?;
    let compiled = cuda.pipelines().all(&[&kernel])?;
    let memory = cuda.allocate(Residence::Device, [256].into_iter())?;
    let run = || {
        let (device, stream) = (cuda.device(), &cuda.streams().compute);
        let [before, after] = [device.event(true)?, device.event(true)?];
        let mut least = f64::INFINITY;
        for _ in 0..3 {
            stream.record(&before)?;
            compiled[0].launch(stream, &[memory.range(0, 256)], groups)?;
            stream.record(&after)?;
            after.synchronise()?;
            least = least.min(after.seconds_since(&before)?);
        }
        Ok(least)
    };
    let seconds: f64 = run().map_err(|e| cuda.failed(0, e))?;
    Ok(operations as f64 / seconds / 1e9)
}
