//! A Vulkan device as planning sees it, from what its driver says of it.

use impasto_device::DeviceInfo;

use super::units;
use crate::gpu::GpuProfile;
use crate::{BackendError, DeviceOptions, Precision};

/// The profile of a device that is not open.
pub(super) fn profile(device: &DeviceInfo, options: &DeviceOptions) -> Result<GpuProfile, BackendError> {
    let refuse = |reason: String| Err(BackendError::Unsupported { device: device.name.clone(), reason });
    let Some(features) = &device.vulkan else { return refuse("nothing is known of its features".into()) };
    if !features.timeline {
        return refuse(format!("it speaks Vulkan {}.{}, 1.2 is needed", features.version.0, features.version.1));
    }
    if options.precision == Precision::Bf16 {
        return refuse("it computes in f16 or f32, not in bf16; use --precision auto, f16 or f32".into());
    }
    if options.precision == Precision::F16 && !features.storage16 {
        return refuse("it cannot read 16-bit numbers; use --precision auto or f32".into());
    }
    let exact = options.precision == Precision::F32;
    let profile = GpuProfile {
        name: device.name.clone(),
        label: device.label.clone(),
        limits: device.limits,
        alignment: features.limits.alignment.max(64),
        storage16: features.storage16,
        unified: features.visible && features.cached && !options.as_if_discrete,
        bf16: false,
        exact,
        units: if exact || options.without_matrix_units { None } else { units::claimed(features) },
        verifies: options.verifies(),
    };
    Ok(profile.within(options))
}
