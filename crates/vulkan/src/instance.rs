//! The loader and the instance.

use std::sync::Arc;

use ash::{khr, vk};

use crate::PhysicalDevice;
use crate::error::{Named, VulkanError};

/// More devices than this are a driver that lies; they are not asked for.
const MAX_DEVICES: u32 = 4096;

/// The Vulkan loader, `libvulkan.so.1` or `vulkan-1.dll`. Opening it does not touch a driver yet.
#[derive(Clone)]
pub struct Loader(ash::Entry);

impl Loader {
    /// Opens the loader of the system.
    pub fn open() -> Result<Loader, VulkanError> {
        // SAFETY: the loader's initialisers do no more than those of any system library.
        match unsafe { ash::Entry::load() } {
            Ok(entry) => Ok(Loader(entry)),
            Err(error) => Err(VulkanError::NoLoader(error.to_string())),
        }
    }

    /// Creates an instance: here the loader opens every driver that is installed.
    ///
    /// Devices that are Vulkan by way of another API (MoltenVK) are among the instance's devices.
    pub fn create_instance(&self) -> Result<Instance, VulkanError> {
        // SAFETY: the function takes no pointers of ours.
        let newest = unsafe { self.0.try_enumerate_instance_version() }.named("vkEnumerateInstanceVersion")?;
        let version = newest.unwrap_or(vk::API_VERSION_1_0).min(vk::API_VERSION_1_3);
        let with = self.try_create(version, true);
        let missing = vk::Result::ERROR_EXTENSION_NOT_PRESENT.as_raw();
        match with {
            // To ask beforehand which extensions there are would make the loader open all drivers twice.
            Err(error) if error.code() == Some(missing) => self.try_create(version, false),
            other => other,
        }
    }

    fn try_create(&self, version: u32, portability: bool) -> Result<Instance, VulkanError> {
        let application = vk::ApplicationInfo::default().application_name(c"impasto").api_version(version);
        let extensions = [khr::portability_enumeration::NAME.as_ptr()];
        let mut info = vk::InstanceCreateInfo::default().application_info(&application);
        if portability {
            info = info.flags(vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR).enabled_extension_names(&extensions);
        }
        // SAFETY: `info` and all that it points to live until the call returns.
        let raw = unsafe { self.0.create_instance(&info, None) }.named("vkCreateInstance")?;
        Ok(Instance(Arc::new(Inner { raw, version, entry: self.0.clone() })))
    }
}

/// An instance, with every driver opened.
#[derive(Clone)]
pub struct Instance(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub raw: ash::Instance,
    pub version: u32,
    /// The library must stay open as long as the instance lives.
    pub entry: ash::Entry,
}

impl Instance {
    /// All physical devices, in the order of the loader.
    pub fn enumerate(&self) -> Result<Vec<PhysicalDevice>, VulkanError> {
        let raw = &self.0.raw;
        let enumerate = raw.fp_v1_0().enumerate_physical_devices;
        let mut count = 0;
        // SAFETY: `count` is valid for writing, and no devices are asked for.
        let result = unsafe { enumerate(raw.handle(), &mut count, std::ptr::null_mut()) };
        result.result().named("vkEnumeratePhysicalDevices")?;
        let mut count = count.min(MAX_DEVICES);
        let mut handles = vec![vk::PhysicalDevice::null(); count as usize];
        // SAFETY: `handles` has room for `count` devices.
        let result = unsafe { enumerate(raw.handle(), &mut count, handles.as_mut_ptr()) };
        if result != vk::Result::INCOMPLETE {
            result.result().named("vkEnumeratePhysicalDevices")?;
        }
        handles.truncate(count as usize);
        Ok(handles.into_iter().map(|handle| PhysicalDevice { instance: self.0.clone(), handle }).collect())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: every device holds the instance, so this is its last use.
        unsafe { self.raw.destroy_instance(None) };
    }
}
