//! Matrix units: what a target has, and whether the device computes that.

use impasto_cuda::CudaStream;
use impasto_ptx::PtxTarget;

use super::Cuda;
use crate::BackendError;
use crate::gpu::kernels::matrices::Units;
use crate::gpu::trial::UnitsTrial;
use crate::gpu::{Gpu, GpuMemory, Residence};

/// Shared memory of a block that two of them fit beside each other in a multiprocessor of every generation, and that needs no leave of the driver.
const SHARED: u32 = 48 << 10;

/// The matrices that kernels use on a target: halves, added up in 32 bits.
pub(super) fn of(target: PtxTarget) -> Units {
    let warpgroups = target == PtxTarget::Sm90a;
    Units { subgroup: 32, shape: [16, 16, 16], shared: SHARED, invocations: 1024, warpgroups }
}

/// Whether products come out as they should, for whole numbers, of which sums are exact in any order.
pub(super) fn hold(cuda: &Cuda, stream: &CudaStream) -> Result<bool, BackendError> {
    let Some(units) = cuda.units() else { return Ok(false) };
    let trial = UnitsTrial::new(units).map_err(|e| cuda.unsupported(e.to_string()))?;
    let Some(UnitsTrial { kernel, groups }) = trial else { return Ok(false) };
    let factors = UnitsTrial::factors();
    let [left, right, sums] = [factors[0].len(), factors[1].len(), UnitsTrial::result_bytes()]
        .map(|bytes| bytes.next_multiple_of(256) as u64);
    let memory = cuda.allocate(Residence::Device, [left + right + sums].into_iter())?;
    memory.write(0, &factors[0])?;
    memory.write(left, &factors[1])?;
    memory.settle()?;
    // A driver that cannot compile it has no matrices that we can use.
    let Ok(compiled) = cuda.pipelines().all(&[&kernel]) else { return Ok(false) };
    let ranges = [memory.range(0, left), memory.range(left, right), memory.range(left + right, sums)];
    let run = || {
        compiled[0].launch(stream, &ranges, groups)?;
        stream.synchronise()
    };
    run().map_err(|e| cuda.failed(0, e))?;
    let mut got = vec![0; UnitsTrial::result_bytes()];
    memory.read(left + right, &mut got)?;
    Ok(UnitsTrial::is_right(&got))
}
