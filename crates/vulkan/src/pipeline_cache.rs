//! The driver's pipeline cache, saved from run to run.

use ash::vk;

use crate::device::VulkanDevice;
use crate::error::{Named, VulkanError};

/// Bytes of the header of a pipeline cache: its length, a version, vendor, device and the driver's UUID.
const HEAD: usize = 16 + vk::UUID_SIZE;

impl VulkanDevice {
    /// Merges what [`VulkanDevice::pipeline_cache_data`] gave in an earlier run; false if it is of another device or driver. The bytes must be whole: drivers
    /// are not known to survive damaged ones.
    pub fn load_pipeline_cache(&self, bytes: &[u8]) -> bool {
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
        let _lock = opened.cache_lock.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        // SAFETY: both are of this device, and the lock keeps everybody else from the one that is changed.
        let merged = unsafe { opened.raw.merge_pipeline_caches(opened.pipelines, &[earlier]) };
        // SAFETY: it was merged, or it was not; nobody else has it.
        unsafe { opened.raw.destroy_pipeline_cache(earlier, None) };
        merged.is_ok()
    }

    /// The driver's compiled form of all kernels so far, for [`VulkanDevice::load_pipeline_cache`].
    pub fn pipeline_cache_data(&self) -> Result<Vec<u8>, VulkanError> {
        let _lock = self.0.cache_lock.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        // SAFETY: the cache is of this device.
        unsafe { self.0.raw.get_pipeline_cache_data(self.0.pipelines) }.named("vkGetPipelineCacheData")
    }

    /// The name of this device's and driver's cache.
    pub fn pipeline_cache_name(&self) -> String {
        let own = &self.0.identity;
        let driver: String = own.driver.iter().map(|b| format!("{b:02x}")).collect();
        format!("{:04x}-{:04x}-{driver}", own.vendor, own.device)
    }
}

/// The device and driver that a pipeline cache belongs to.
pub(crate) struct Identity {
    pub(crate) vendor: u32,
    pub(crate) device: u32,
    pub(crate) driver: [u8; vk::UUID_SIZE],
}
