//! What is known of a device.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Limits;

/// An interface through which a device is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// NVIDIA's driver library.
    Cuda,
    /// The Vulkan loader.
    Vulkan,
    /// This process itself.
    Cpu,
}

impl Api {
    /// Those that need a driver, in the order in which they are preferred.
    pub const DRIVEN: [Api; 2] = [Api::Cuda, Api::Vulkan];

    /// The beginning of a device's name.
    pub fn name(self) -> &'static str {
        match self {
            Api::Cuda => "cuda",
            Api::Vulkan => "vulkan",
            Api::Cpu => "cpu",
        }
    }

    /// What users call it.
    pub fn title(self) -> &'static str {
        match self {
            Api::Cuda => "CUDA",
            Api::Vulkan => "Vulkan",
            Api::Cpu => "the CPU",
        }
    }
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// The processor.
    Cpu,
    /// A card with memory of its own.
    Discrete,
    /// A GPU in the processor, with the memory of the machine.
    Integrated,
    /// A share of a card, in a virtual machine.
    Virtual,
    /// The processor drawing as if it were a GPU. Never called a GPU, never chosen unless it is named.
    Software,
    /// A GPU of a kind that its driver does not tell.
    Other,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceKind::Cpu => "processor",
            DeviceKind::Discrete => "discrete GPU",
            DeviceKind::Integrated => "integrated GPU",
            DeviceKind::Virtual => "virtual GPU",
            DeviceKind::Software => "software rasteriser",
            DeviceKind::Other => "GPU",
        })
    }
}

/// Whether a device may be computed on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It passed its trial and this build can compute on it.
    Usable,
    /// It passed its trial, but this build cannot compute on it yet.
    NotYet {
        /// What to use meanwhile.
        instead: String,
    },
    /// It is not offered.
    Refused {
        /// What went wrong.
        why: String,
    },
}

/// A matrix product that a subgroup computes together: (m, k) times (k, n).
pub use impasto_vulkan::CooperativeMatrix;

/// What kernels ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Features {
    /// Arithmetic in 16-bit floats.
    pub f16: bool,
    /// The 16-bit brain float.
    pub bf16: bool,
    /// Arithmetic in 8-bit integers.
    pub int8: bool,
    /// The smallest and the largest subgroup (a warp, a wave), where there are any.
    pub subgroup: Option<(u32, u32)>,
    /// Products that a subgroup computes together.
    pub cooperative: Vec<CooperativeMatrix>,
    /// Instruction paths of the processor that passed their trial, or the architecture of a CUDA device.
    pub paths: Vec<String>,
}

/// A device as one API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// `cpu`, `vulkan0`, `cuda0`, ...
    pub name: String,
    /// The interface that shows it.
    pub api: Api,
    /// What its maker calls it.
    pub label: String,
    /// What it is.
    pub kind: DeviceKind,
    /// PCI vendor and device, or Khronos numbers.
    pub ids: Option<(u32, u32)>,
    /// The same through every API.
    pub uuid: Option<[u8; 16]>,
    /// PCI domain, bus, device and function.
    pub pci: Option<[u32; 4]>,
    /// The driver.
    pub driver: String,
    /// The driver's version.
    pub driver_version: String,
    /// The version of the API.
    pub api_version: String,
    /// What it can hold. How much of it is free changes by the moment: [`free_memory`](crate::free_memory).
    pub limits: Limits,
    /// Cores that this process may use, of a processor.
    pub cores: Option<usize>,
    /// What kernels ask for.
    pub features: Features,
    /// All that a Vulkan device was found to have: enough to plan for it without its driver.
    pub vulkan: Option<impasto_vulkan::VulkanFeatures>,
    /// The same of a CUDA device.
    pub cuda: Option<impasto_cuda::CudaFeatures>,
    /// Vulkan layered over another API (`VK_KHR_portability_subset`).
    pub portability: bool,
    /// Whether it may be computed on.
    pub standing: Standing,
    /// The place of the device in its API's own order.
    pub index: usize,
    /// The manifest of its driver, where there are others; in its trial it was loaded alone.
    pub manifest: Option<PathBuf>,
    /// Whether another driver is broken, so that its own must be loaded alone.
    pub must_be_alone: bool,
}

impl DeviceInfo {
    /// A device that is not here, with what nearly every one of the last ten years has.
    ///
    /// ```
    /// use impasto_device::{Api, DeviceInfo, DeviceKind, Limits};
    /// let card = DeviceInfo::imagined("vulkan0", Api::Vulkan, DeviceKind::Discrete, Limits::UNLIMITED);
    /// assert!(card.is_gpu() && card.is_healthy());
    /// ```
    pub fn imagined(name: &str, api: Api, kind: DeviceKind, limits: Limits) -> DeviceInfo {
        let is_vulkan = api == Api::Vulkan;
        DeviceInfo {
            name: name.into(),
            api,
            label: name.into(),
            kind,
            ids: None,
            uuid: None,
            pci: None,
            driver: String::new(),
            driver_version: String::new(),
            api_version: String::new(),
            limits,
            cores: None,
            features: Features { f16: api != Api::Cpu, ..Features::default() },
            vulkan: is_vulkan.then(|| common_features(kind)),
            cuda: (api == Api::Cuda).then(common_cuda_features),
            portability: false,
            standing: Standing::Usable,
            index: 0,
            manifest: None,
            must_be_alone: false,
        }
    }

    /// Whether it is a GPU: no processor, and none that plays one.
    pub fn is_gpu(&self) -> bool {
        !matches!(self.kind, DeviceKind::Cpu | DeviceKind::Software)
    }

    /// Whether both are views of one piece of hardware by different APIs.
    pub fn is_same_card(&self, other: &DeviceInfo) -> bool {
        let uuid = self.uuid.is_some() && self.uuid == other.uuid;
        let pci = self.pci.is_some() && self.pci == other.pci;
        // A partitioned card (MIG) has one address and several UUIDs: where both have one, the UUID decides.
        let same = if self.uuid.is_some() && other.uuid.is_some() { uuid } else { pci };
        same && self.api != other.api && self.api != Api::Cpu && other.api != Api::Cpu
    }

    /// Whether it passed its trial.
    pub fn is_healthy(&self) -> bool {
        !matches!(self.standing, Standing::Refused { .. })
    }

    /// The environment that a process must have to use this device as its trial did: variables to set or to remove.
    pub fn environment(&self) -> Vec<(OsString, Option<OsString>)> {
        crate::probe::environment(self.manifest.as_deref())
    }
}

/// What nearly every Vulkan device of the last ten years has.
fn common_features(kind: DeviceKind) -> impasto_vulkan::VulkanFeatures {
    let shares_memory = kind == DeviceKind::Integrated;
    impasto_vulkan::VulkanFeatures {
        version: (1, 3),
        f16: true,
        storage16: true,
        timeline: true,
        memory_model: true,
        visible: shares_memory,
        cached: shares_memory,
        limits: impasto_vulkan::KernelLimits { binding: (4 << 30) - 1, alignment: 64, ..Default::default() },
        ..Default::default()
    }
}

/// What a card of the year 2020 has, and all that came after it.
fn common_cuda_features() -> impasto_cuda::CudaFeatures {
    impasto_cuda::CudaFeatures {
        capability: (8, 6),
        version: (12, 0),
        multiprocessors: 28,
        clock: 1_700_000,
        shared: 99 << 10,
        l2: 3 << 20,
    }
}

/// A piece of hardware, by all the names that it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// One for each API that shows it, the preferred one first.
    pub views: Vec<DeviceInfo>,
}

impl Device {
    /// The preferred view that is healthy, else the preferred one. `None` only of an empty device.
    pub fn best(&self) -> Option<&DeviceInfo> {
        self.views.iter().find(|view| view.is_healthy()).or(self.views.first())
    }

    /// All names: `cuda0, vulkan0`.
    pub fn names(&self) -> String {
        self.views.iter().map(|view| view.name.as_str()).collect::<Vec<_>>().join(", ")
    }
}

/// Puts views of the same hardware together, by UUID, then by PCI address.
///
/// Two views through one API are one device only if they also agree in their PCI address or label: a driver that gives all its
/// devices the same UUID must not make them one.
pub(crate) fn merge(views: Vec<DeviceInfo>) -> Vec<Device> {
    let mut devices: Vec<Device> = Vec::new();
    for view in views {
        let same = |other: &DeviceInfo| {
            let pci = view.pci.is_some() && view.pci == other.pci;
            match view.api == other.api {
                true => pci && view.index != other.index && view.driver != other.driver,
                false => view.is_same_card(other),
            }
        };
        match devices.iter_mut().find(|device| device.views.iter().any(same)) {
            Some(device) => device.views.push(view),
            None => devices.push(Device { views: vec![view] }),
        }
    }
    for device in &mut devices {
        device.views.sort_by_key(|view| view.api);
    }
    devices
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub fn view(api: Api, index: usize, uuid: Option<u8>, pci: Option<u32>) -> DeviceInfo {
        DeviceInfo {
            name: format!("{api}{index}"),
            api,
            label: "A GPU".into(),
            kind: DeviceKind::Discrete,
            ids: Some((0x10de, 0x2335)),
            uuid: uuid.map(|byte| [byte; 16]),
            pci: pci.map(|bus| [0, bus, 0, 0]),
            driver: "one".into(),
            driver_version: "1".into(),
            api_version: "1.3".into(),
            limits: Limits::UNLIMITED,
            cores: None,
            features: Features::default(),
            vulkan: None,
            cuda: None,
            portability: false,
            standing: Standing::Usable,
            index,
            manifest: None,
            must_be_alone: false,
        }
    }

    #[test]
    fn a_gpu_through_two_apis_is_one_device_with_two_names() {
        let by_uuid = merge(vec![view(Api::Vulkan, 0, Some(7), Some(3)), view(Api::Cuda, 0, Some(7), None)]);
        assert_eq!(by_uuid.len(), 1);
        assert_eq!(by_uuid[0].names(), "cuda0, vulkan0");
        let by_pci = merge(vec![view(Api::Vulkan, 1, None, Some(3)), view(Api::Cuda, 0, Some(7), Some(3))]);
        assert_eq!(by_pci.len(), 1);
    }

    #[test]
    fn two_gpus_in_another_order_are_matched_rightly() {
        let devices = merge(vec![
            view(Api::Cuda, 0, Some(1), Some(1)),
            view(Api::Cuda, 1, Some(2), Some(2)),
            view(Api::Vulkan, 0, Some(2), Some(2)),
            view(Api::Vulkan, 1, Some(1), Some(1)),
        ]);
        let names: Vec<_> = devices.iter().map(Device::names).collect();
        assert_eq!(names, ["cuda0, vulkan1", "cuda1, vulkan0"]);
    }

    #[test]
    fn parts_of_one_card_stay_apart() {
        let parts = merge(vec![view(Api::Cuda, 0, Some(1), Some(1)), view(Api::Cuda, 1, Some(2), Some(1))]);
        assert_eq!(parts.len(), 2);
        let mixed = merge(vec![view(Api::Cuda, 0, Some(1), Some(1)), view(Api::Vulkan, 0, Some(2), Some(1))]);
        assert_eq!(mixed.len(), 2);
    }

    proptest! {
        #[test]
        fn no_view_is_lost_or_doubled(
            given in prop::collection::vec((0_usize..3, prop::option::of(0_u8..4), prop::option::of(0_u32..4)), 0..20),
        ) {
            let apis = [Api::Cuda, Api::Vulkan, Api::Cpu];
            let views: Vec<_> =
                given.iter().enumerate().map(|(index, &(api, uuid, pci))| view(apis[api], index, uuid, pci)).collect();
            let devices = merge(views.clone());
            let mut names: Vec<_> = devices.iter().flat_map(|d| d.views.iter().map(|v| v.name.clone())).collect();
            let mut expected: Vec<_> = views.iter().map(|v| v.name.clone()).collect();
            names.sort();
            expected.sort();
            prop_assert_eq!(names, expected);
        }
    }
}
