//! A CUDA device as planning sees it, from what its driver says of it.

use impasto_cuda::CudaFeatures;
use impasto_device::{DeviceInfo, DeviceKind};
use impasto_ptx::PtxTarget;

use super::units;
use crate::gpu::GpuProfile;
use crate::{BackendError, DeviceOptions, Precision};

/// Where a binding begins: what the driver's own allocations are multiples of.
const ALIGNMENT: u64 = 256;

/// What the driver's own newest PTX is, by the CUDA that it knows.
pub(super) fn newest_ptx((major, minor): (u32, u32)) -> (u32, u32) {
    match major {
        0..=10 => (6, 5),
        11 => (7, minor),
        12 => (8, minor.min(8)),
        newer => (newer - 4, minor),
    }
}

/// The best target of kernels for a device: of its own generation, or the next lower one that this build and the driver know. `sm_90a` needs no other
/// driver than Hopper itself does.
pub(super) fn target(features: &CudaFeatures) -> Option<PtxTarget> {
    let (major, minor) = features.capability;
    let newest = newest_ptx(features.version);
    let best = PtxTarget::for_device(major, minor)?;
    let known = |t: &PtxTarget| t.isa() <= newest;
    let lower = || PtxTarget::ALL.into_iter().rfind(|t| *t < best && *t != PtxTarget::Sm90a && known(t));
    Some(best).filter(known).or_else(lower)
}

/// The profile of a device that is not open.
pub(crate) fn profile(device: &DeviceInfo, options: &DeviceOptions) -> Result<GpuProfile, BackendError> {
    let refuse = |reason: String| Err(BackendError::Unsupported { device: device.name.clone(), reason });
    let Some(features) = &device.cuda else { return refuse("nothing is known of its features".into()) };
    let (major, minor) = features.capability;
    let Some(target) = target(features) else {
        let (cuda, release) = features.version;
        return refuse(match (major, minor) < PtxTarget::ALL[0].capability() {
            true => format!(
                "its architecture is {major}.{minor}, and this build has kernels from 7.5 (Turing) on; use it through Vulkan"
            ),
            false => {
                format!("its driver knows CUDA {cuda}.{release}, and 11.0 is needed: install a newer NVIDIA driver")
            }
        });
    };
    let exact = options.precision == Precision::F32;
    let profile = GpuProfile {
        name: device.name.clone(),
        // Rates are noted under this, and the same card by Vulkan has others.
        label: format!("{} (CUDA, {target})", device.label),
        limits: device.limits,
        alignment: ALIGNMENT,
        storage16: true,
        // The host reaches the memory of an integrated GPU by copies too, which are cheap there.
        unified: false,
        bf16: options.precision == Precision::Bf16,
        exact,
        units: if exact || options.without_matrix_units { None } else { Some(units::of(target)) },
        verifies: options.verifies(),
    };
    debug_assert!(device.kind != DeviceKind::Software);
    Ok(profile.within(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_driver_gets_what_it_knows() {
        let of = |capability, version| target(&CudaFeatures { capability, version, ..CudaFeatures::default() });
        assert_eq!(of((9, 0), (13, 0)), Some(PtxTarget::Sm90a));
        assert_eq!(of((9, 0), (11, 8)), Some(PtxTarget::Sm89));
        assert_eq!(of((12, 0), (12, 8)), Some(PtxTarget::Sm120));
        assert_eq!(of((12, 1), (12, 6)), Some(PtxTarget::Sm100));
        assert_eq!(of((8, 9), (11, 4)), Some(PtxTarget::Sm86));
        assert_eq!(of((7, 5), (11, 0)), Some(PtxTarget::Sm75));
        assert_eq!(of((7, 5), (10, 2)), None);
        assert_eq!(of((6, 1), (13, 0)), None);
        assert_eq!(of((15, 3), (14, 0)), Some(PtxTarget::Sm120));
    }
}
