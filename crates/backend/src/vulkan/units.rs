//! Cooperative matrices: what a device claims, and whether it computes that.

use half::f16;
use impasto_graph::DType;
use impasto_kernel::{MatrixShape, Scalar};
use impasto_vulkan::{QueueKind, Recorder, VulkanFeatures};

use super::Vulkan;
use crate::BackendError;
use crate::gpu::kernels::gemm::{Gemm, Left};
use crate::gpu::kernels::matrices::{Tiled, Units};
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
    Some(Units { subgroup, shape, shared: features.limits.shared, invocations: features.limits.invocations })
}

/// Whether products come out as they should, for whole numbers, of which sums are exact in any order.
pub(super) fn hold(vulkan: &Vulkan) -> Result<bool, BackendError> {
    const SIZE: [usize; 3] = [80, 72, 104];
    let [m, n, depth] = SIZE;
    let gemm = Gemm {
        batch: 1,
        m: m as u32,
        n: n as u32,
        segments: 1,
        depth: depth as u32,
        left: Left::Rows,
        left_type: DType::F16,
        right_type: DType::F16,
        right_transposed: false,
        scale: 1.0,
        bias: None,
        activation: None,
        residual: None,
        out: DType::F32,
    };
    let Some(tiled) = vulkan.units().and_then(|units| Tiled::new(&gemm, units)) else { return Ok(false) };
    let number = |i: usize, by: usize| ((i * by + i / 7) % 15) as f32 - 7.0;
    let halves =
        |n: usize, by: usize| -> Vec<u8> { (0..n).flat_map(|i| f16::from_f32(number(i, by)).to_le_bytes()).collect() };
    let [left, right, sums] = [2 * m * depth, 2 * depth * n, 4 * m * n].map(|bytes| bytes.next_multiple_of(256) as u64);
    let memory = vulkan.allocate(Residence::Device, [left + right + sums].into_iter())?;
    memory.write(0, &halves(m * depth, 11))?;
    memory.write(left, &halves(depth * n, 5))?;
    memory.settle()?;
    let kernel = tiled.kernel().map_err(|e| vulkan.unsupported(e.to_string()))?;
    // A driver that cannot compile it has no matrices that we can use.
    let Ok(pipelines) = vulkan.0.pipelines.all(&[&kernel]) else { return Ok(false) };
    let ranges = vec![memory.range(0, left), memory.range(left, right), memory.range(left + right, sums)];
    let run = || {
        let mut recorder = Recorder::new(vulkan.device(), QueueKind::Compute);
        recorder.run(&pipelines[0], ranges, tiled.groups())?;
        let mut recording = recorder.finish()?;
        recording.submit()?;
        recording.wait()
    };
    run().map_err(|e| vulkan.failed(0, e))?;
    let mut got = vec![0; 4 * m * n];
    memory.read(left + right, &mut got)?;
    let got = got.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let expected = (0..m * n).map(|i| -> f32 {
        let (row, column) = (i / n, i % n);
        (0..depth).map(|d| number(row * depth + d, 11) * number(d * n + column, 5)).sum()
    });
    Ok(got.eq(expected))
}
