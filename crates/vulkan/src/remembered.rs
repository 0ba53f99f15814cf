//! What the driver's own compiler made, kept from run to run.

use ash::vk;

use crate::device::Device;
use crate::error::{Named, VulkanError};

/// Bytes of the head of what a driver gives: its length, a version, vendor, device and an identity of the driver.
const HEAD: usize = 16 + vk::UUID_SIZE;

impl Device {
    /// Takes over what [`Device::remembered`] gave in an earlier run; whether it was of this device and driver. The bytes must be whole: drivers
    /// are not known to survive damaged ones.
    pub fn remember(&self, bytes: &[u8]) -> bool {
        let opened = &*self.0;
        let number = |at: usize| bytes.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let own = &opened.identity;
        let known = number(0) == Some(HEAD as u32)
            && number(4) == Some(vk::PipelineCacheHeaderVersion::ONE.as_raw() as u32)
            && number(8) == Some(own.vendor)
            && number(12) == Some(own.device)
            && bytes.get(16..HEAD) == Some(&own.driver[..]);
        if !known {
            return false;
        }
        let info = vk::PipelineCacheCreateInfo::default().initial_data(bytes);
        // SAFETY: `info` is complete and lives until the call returns; its bytes are of this driver.
        let Ok(earlier) = (unsafe { opened.raw.create_pipeline_cache(&info, None) }) else { return false };
        let _turn = opened.remembering.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        // SAFETY: both are of this device, and the lock keeps everybody else from the one that is changed.
        let merged = unsafe { opened.raw.merge_pipeline_caches(opened.pipelines, &[earlier]) };
        // SAFETY: it was merged, or it was not; nobody else has it.
        unsafe { opened.raw.destroy_pipeline_cache(earlier, None) };
        merged.is_ok()
    }

    /// What the driver made of all kernels so far, for [`Device::remember`].
    pub fn remembered(&self) -> Result<Vec<u8>, VulkanError> {
        let _turn = self.0.remembering.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        // SAFETY: the cache is of this device.
        unsafe { self.0.raw.get_pipeline_cache_data(self.0.pipelines) }.named("vkGetPipelineCacheData")
    }

    /// A name for what this device and driver remember: another driver has another.
    pub fn remembers_as(&self) -> String {
        let own = &self.0.identity;
        let driver: String = own.driver.iter().map(|b| format!("{b:02x}")).collect();
        format!("{:04x}-{:04x}-{driver}", own.vendor, own.device)
    }
}

/// Whose a cache of pipelines is.
pub(crate) struct Identity {
    pub(crate) vendor: u32,
    pub(crate) device: u32,
    pub(crate) driver: [u8; vk::UUID_SIZE],
}
