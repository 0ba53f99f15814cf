//! Cooperative matrices: what a device claims, and whether it computes that.

use impasto_kernel::{MatrixShape, Scalar};
use impasto_vulkan::{QueueKind, Recorder, VulkanFeatures};

use super::Vulkan;
use crate::BackendError;
use crate::gpu::kernels::matrices::Units;
use crate::gpu::trial::UnitsTrial;
use crate::gpu::{Gpu, GpuMemory, Residence};

/// The matrices that kernels could use: halves, added up in 32 bits.
pub(super) fn claimed(features: &VulkanFeatures) -> Option<Units> {
    let (least, most) = features.subgroup_sizes;
    let subgroup = if (least..=most).contains(&32) { 32 } else { least };
    if !features.matrix || !features.f16 || !features.storage16 || least != most && !features.subgroup_choice {
        return None;
    }
    let offered = impasto_spirv::target(features).products.unwrap_or_default();
    let has =
        |&&[m, n, k]: &&[u32; 3]| offered.contains(&MatrixShape { factor: Scalar::F16, result: Scalar::F32, m, n, k });
    let shape = *Units::SHAPES.iter().find(has)?;
    Some(Units {
        subgroup,
        shape,
        shared: features.limits.shared,
        invocations: features.limits.invocations,
        warpgroups: false,
    })
}

/// Whether products come out as they should, for whole numbers, of which sums are exact in any order.
pub(super) fn hold(vulkan: &Vulkan) -> Result<bool, BackendError> {
    let Some(units) = vulkan.units() else { return Ok(false) };
    let trial = UnitsTrial::new(units).map_err(|e| vulkan.unsupported(e.to_string()))?;
    let Some(UnitsTrial { kernel, groups }) = trial else { return Ok(false) };
    let factors = UnitsTrial::factors();
    let [left, right, sums] = [factors[0].len(), factors[1].len(), UnitsTrial::result_bytes()]
        .map(|bytes| bytes.next_multiple_of(256) as u64);
    let memory = vulkan.allocate(Residence::Device, [left + right + sums].into_iter())?;
    memory.write(0, &factors[0])?;
    memory.write(left, &factors[1])?;
    memory.settle()?;
    // A driver that cannot compile it has no matrices that we can use.
    let Ok(pipelines) = vulkan.0.pipelines.all(&[&kernel]) else { return Ok(false) };
    let ranges = vec![memory.range(0, left), memory.range(left, right), memory.range(left + right, sums)];
    let run = || {
        let mut recorder = Recorder::new(vulkan.device(), QueueKind::Compute);
        recorder.run(&pipelines[0], ranges, groups)?;
        let mut recording = recorder.finish()?;
        recording.submit()?;
        recording.wait()
    };
    run().map_err(|e| vulkan.failed(0, e))?;
    let mut got = vec![0; UnitsTrial::result_bytes()];
    memory.read(left + right, &mut got)?;
    Ok(UnitsTrial::is_right(&got))
}
