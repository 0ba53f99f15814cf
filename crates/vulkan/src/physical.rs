//! A physical device, described. A driver's word is taken down as it is; whoever uses it decides what to believe.

use std::ffi::{CStr, c_char};
use std::sync::Arc;

use ash::{ext, khr, vk};
use serde::{Deserialize, Serialize};

use crate::features::VulkanFeatures;
use crate::instance::Inner;

/// A device that a driver lists, not opened yet.
#[derive(Clone)]
pub struct PhysicalDevice {
    pub(crate) instance: Arc<Inner>,
    pub(crate) handle: vk::PhysicalDevice,
}

/// The type of a device, by its driver's word (`VkPhysicalDeviceType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhysicalDeviceType {
    /// A card with memory of its own.
    Discrete,
    /// Part of the processor, with the memory of the machine.
    Integrated,
    /// A share of a card, in a virtual machine.
    Virtual,
    /// A software rasteriser.
    Software,
    /// Something else.
    Other,
}

/// The shape of a cooperative matrix product: (m, k) times (k, n).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CooperativeMatrix {
    /// Rows of the result.
    pub m: u32,
    /// Columns of the result.
    pub n: u32,
    /// The length of each sum.
    pub k: u32,
    /// Element type of the factors.
    pub factor: String,
    /// Element type of the result.
    pub result: String,
}

/// A device as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The name of the device.
    pub label: String,
    /// Its kind.
    pub kind: PhysicalDeviceType,
    /// PCI vendor, or a Khronos number above 0xffff.
    pub vendor: u32,
    /// PCI device.
    pub device: u32,
    /// The device, the same through every API.
    pub uuid: Option<[u8; 16]>,
    /// PCI domain, bus, device and function.
    pub pci: Option<[u32; 4]>,
    /// The Vulkan version, major and minor and patch.
    pub version: (u32, u32, u32),
    /// The driver.
    pub driver: String,
    /// The driver's own version.
    pub driver_version: String,
    /// Bytes of memory on the device.
    pub memory: u64,
    /// The largest allocation.
    pub max_allocation: u64,
    /// The largest range of a storage buffer that a kernel can reach.
    pub max_binding: u64,
    /// Arithmetic in 16-bit floats.
    pub f16: bool,
    /// The 16-bit brain float.
    pub bf16: bool,
    /// Arithmetic in 8-bit integers.
    pub int8: bool,
    /// The smallest and the largest subgroup.
    pub subgroup: (u32, u32),
    /// Shapes of cooperative matrices.
    pub cooperative: Vec<CooperativeMatrix>,
    /// Whether a queue for computing exists.
    pub computes: bool,
    /// Vulkan layered over another API (`VK_KHR_portability_subset`).
    pub portability: bool,
    /// The features that kernels use.
    pub features: VulkanFeatures,
}

impl PhysicalDevice {
    /// Describes the device. Infallible: what a driver does not answer is zero or absent.
    pub fn describe(&self) -> Description {
        let instance = &self.instance.raw;
        // SAFETY: the handle belongs to this instance, which lives.
        let plain = unsafe { instance.get_physical_device_properties(self.handle) };
        let core = plain.api_version.min(self.instance.version);
        let has = self.extensions();
        // The structures below came with Vulkan 1.1; before that a device has no UUID.
        let modern = core >= vk::API_VERSION_1_1;

        let mut id = vk::PhysicalDeviceIDProperties::default();
        let mut third = vk::PhysicalDeviceMaintenance3Properties::default();
        let mut driver = vk::PhysicalDeviceDriverProperties::default();
        let mut bus = vk::PhysicalDevicePCIBusInfoPropertiesEXT::default();
        let knows_driver = core >= vk::API_VERSION_1_2 || has.has(khr::driver_properties::NAME);
        let knows_bus = has.has(ext::pci_bus_info::NAME);
        if modern {
            let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut id).push_next(&mut third);
            if knows_driver {
                all = all.push_next(&mut driver);
            }
            if knows_bus {
                all = all.push_next(&mut bus);
            }
            // SAFETY: the chain holds structures that this version or an extension of the device has, and they live.
            unsafe { instance.get_physical_device_properties2(self.handle, &mut all) };
        }

        let memory = self.memory();
        let features = self.features();
        Description {
            label: text(&plain.device_name),
            kind: kind(plain.device_type),
            vendor: plain.vendor_id,
            device: plain.device_id,
            uuid: modern.then_some(id.device_uuid).filter(|uuid| *uuid != [0; 16]),
            pci: (modern && knows_bus).then_some([bus.pci_domain, bus.pci_bus, bus.pci_device, bus.pci_function]),
            version: parts(plain.api_version),
            driver: if modern && knows_driver { text(&driver.driver_name) } else { String::new() },
            driver_version: match modern && knows_driver {
                true => text(&driver.driver_info),
                false => format!("{:#x}", plain.driver_version),
            },
            memory,
            max_allocation: if modern { third.max_memory_allocation_size } else { memory },
            max_binding: plain.limits.max_storage_buffer_range.into(),
            f16: features.f16,
            bf16: features.bf16,
            int8: features.i8,
            subgroup: features.subgroup_sizes,
            cooperative: if has.has(khr::cooperative_matrix::NAME) { self.cooperative() } else { Vec::new() },
            computes: self.queues().is_some(),
            portability: has.has(khr::portability_subset::NAME),
            features,
        }
    }

    /// Bytes of device memory that could be allocated now, or `None` where the driver does not tell.
    pub fn free_memory(&self) -> Option<u64> {
        if !self.extensions().has(ext::memory_budget::NAME) || self.instance.version < vk::API_VERSION_1_1 {
            return None;
        }
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut all = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        // SAFETY: the handle belongs to this instance, and the chain holds what an extension of the device has.
        unsafe { self.instance.raw.get_physical_device_memory_properties2(self.handle, &mut all) };
        let heaps = all.memory_properties;
        let count = (heaps.memory_heap_count as usize).min(vk::MAX_MEMORY_HEAPS);
        let local = (0..count).filter(|&heap| is_local(&heaps.memory_heaps[heap]));
        local.map(|heap| budget.heap_budget[heap].saturating_sub(budget.heap_usage[heap])).max()
    }

    /// The largest heap on the device; where there is none, the largest.
    fn memory(&self) -> u64 {
        // SAFETY: the handle belongs to this instance, which lives.
        let memory = unsafe { self.instance.raw.get_physical_device_memory_properties(self.handle) };
        let heaps = &memory.memory_heaps[..(memory.memory_heap_count as usize).min(vk::MAX_MEMORY_HEAPS)];
        let local = heaps.iter().filter(|heap| is_local(heap)).map(|heap| heap.size).max();
        local.or_else(|| heaps.iter().map(|heap| heap.size).max()).unwrap_or(0)
    }

    pub(crate) fn extensions(&self) -> Extensions {
        // SAFETY: the handle belongs to this instance, which lives.
        let found = unsafe { self.instance.raw.enumerate_device_extension_properties(self.handle) };
        Extensions(found.unwrap_or_default())
    }

    pub(crate) fn cooperative(&self) -> Vec<CooperativeMatrix> {
        let calls = khr::cooperative_matrix::Instance::new(&self.instance.entry, &self.instance.raw);
        // SAFETY: the device has the extension.
        let found = unsafe { calls.get_physical_device_cooperative_matrix_properties(self.handle) };
        let of_subgroups = |one: &&vk::CooperativeMatrixPropertiesKHR| one.scope == vk::ScopeKHR::SUBGROUP;
        let shape = |one: &vk::CooperativeMatrixPropertiesKHR| CooperativeMatrix {
            m: one.m_size,
            n: one.n_size,
            k: one.k_size,
            factor: element(one.a_type),
            result: element(one.result_type),
        };
        let mut shapes: Vec<_> = found.unwrap_or_default().iter().filter(of_subgroups).take(256).map(shape).collect();
        shapes.dedup();
        shapes
    }
}

pub(crate) struct Extensions(Vec<vk::ExtensionProperties>);

impl Extensions {
    pub(crate) fn has(&self, name: &CStr) -> bool {
        self.0.iter().any(|one| text(&one.extension_name).as_bytes() == name.to_bytes())
    }
}

fn is_local(heap: &vk::MemoryHeap) -> bool {
    heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL)
}

fn kind(raw: vk::PhysicalDeviceType) -> PhysicalDeviceType {
    match raw {
        vk::PhysicalDeviceType::DISCRETE_GPU => PhysicalDeviceType::Discrete,
        vk::PhysicalDeviceType::INTEGRATED_GPU => PhysicalDeviceType::Integrated,
        vk::PhysicalDeviceType::VIRTUAL_GPU => PhysicalDeviceType::Virtual,
        vk::PhysicalDeviceType::CPU => PhysicalDeviceType::Software,
        _ => PhysicalDeviceType::Other,
    }
}

fn parts(version: u32) -> (u32, u32, u32) {
    (vk::api_version_major(version), vk::api_version_minor(version), vk::api_version_patch(version))
}

/// A fixed field of characters, which may lack its end; control characters must not reach a terminal.
fn text(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|&one| one as u8).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).replace(|c: char| c.is_control(), "?").trim().to_owned()
}

fn element(raw: vk::ComponentTypeKHR) -> String {
    match raw {
        vk::ComponentTypeKHR::FLOAT16 => "f16".into(),
        vk::ComponentTypeKHR::FLOAT32 => "f32".into(),
        vk::ComponentTypeKHR::FLOAT64 => "f64".into(),
        vk::ComponentTypeKHR::SINT8 => "i8".into(),
        vk::ComponentTypeKHR::SINT16 => "i16".into(),
        vk::ComponentTypeKHR::SINT32 => "i32".into(),
        vk::ComponentTypeKHR::UINT8 => "u8".into(),
        vk::ComponentTypeKHR::UINT16 => "u16".into(),
        vk::ComponentTypeKHR::UINT32 => "u32".into(),
        // Numbers that are younger than ash.
        other if other.as_raw() == 1_000_141_000 => "bf16".into(),
        other if other.as_raw() == 1_000_491_002 => "f8e4m3".into(),
        other if other.as_raw() == 1_000_491_003 => "f8e5m2".into(),
        other => format!("type {}", other.as_raw()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_an_end_or_with_an_escape_is_plain_text() {
        assert_eq!(text(&[b'x' as c_char; 256]), "x".repeat(256));
        let escape = b"\x1b[31mred\0rest".map(|byte| byte as c_char);
        assert_eq!(text(&escape), "?[31mred");
    }
}
