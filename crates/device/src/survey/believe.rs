//! From a driver's word to a device: what cannot be is not believed.

use std::path::PathBuf;

use impasto_cuda::CudaDescription;
use impasto_vulkan::{Description, PhysicalDeviceType};

use super::{Api, DeviceInfo, DeviceKind, Features, Standing};
use crate::probe::{clean_label, cuda, vulkan};
use crate::{Limits, cpu};

/// More memory than this on one card is a lie for years to come.
const MOST_MEMORY: u64 = 16 << 40;

/// A Vulkan device that a child has seen.
pub(super) fn vulkan(seen: vulkan::VulkanRecord, manifest: Option<PathBuf>) -> DeviceInfo {
    DeviceInfo { manifest, ..vulkan_info(seen.index, seen.description) }
}

/// A Vulkan device at its place in the loader's order, by its driver's word as far as that is believed: the same in the survey and where the
/// device is used.
pub fn vulkan_info(index: usize, said: Description) -> DeviceInfo {
    let kind = match said.kind {
        PhysicalDeviceType::Discrete => DeviceKind::Discrete,
        PhysicalDeviceType::Integrated => DeviceKind::Integrated,
        PhysicalDeviceType::Virtual => DeviceKind::Virtual,
        PhysicalDeviceType::Software => DeviceKind::Software,
        PhysicalDeviceType::Other => DeviceKind::Other,
    };
    let shares = shares(said.kind);
    let mut why = doubts(said.memory, shares);
    if said.max_binding == 0 {
        why.push("it says that kernels cannot reach any memory".into());
    }
    if !said.computes {
        why.push("it has no queue for computing".into());
    }
    let (smallest, largest) = said.subgroup;
    let (major, minor, patch) = said.version;
    DeviceInfo {
        name: format!("vulkan{index}"),
        api: Api::Vulkan,
        label: clean_label(&said.label),
        kind,
        ids: Some((said.vendor, said.device)),
        uuid: said.uuid,
        pci: said.pci,
        driver: short(&said.driver),
        driver_version: short(&said.driver_version),
        api_version: format!("{major}.{minor}.{patch}"),
        limits: limits(said.memory, said.max_allocation, said.max_binding, shares),
        cores: None,
        features: Features {
            f16: said.f16,
            bf16: said.bf16,
            int8: said.int8,
            subgroup: (1 <= smallest && smallest <= largest && largest <= 1024).then_some((smallest, largest)),
            cooperative: said.cooperative,
            paths: Vec::new(),
        },
        vulkan: Some(said.features),
        cuda: None,
        portability: said.portability,
        standing: standing(&why),
        index,
        manifest: None,
        must_be_alone: false,
    }
}

/// A CUDA device that a child has seen.
pub(super) fn cuda(seen: cuda::CudaRecord) -> DeviceInfo {
    cuda_info(seen.index, seen.description)
}

/// A CUDA device at its place in the driver's order, by the driver's word as far as that is believed: the same in the survey and where the device is used.
pub fn cuda_info(index: usize, said: CudaDescription) -> DeviceInfo {
    let kind = if said.integrated { DeviceKind::Integrated } else { DeviceKind::Discrete };
    let (major, minor) = said.features.capability;
    let mut why = doubts(said.memory, said.integrated);
    if !(1..100).contains(&major) || !(0..100).contains(&minor) {
        why.push(format!("it says that its architecture is {major}.{minor}"));
    }
    let warp = Some(said.warp).filter(|warp| (1..=1024).contains(warp));
    let (version, release) = said.features.version;
    DeviceInfo {
        name: format!("cuda{index}"),
        api: Api::Cuda,
        label: clean_label(&said.label),
        kind,
        ids: Some((0x10de, 0)),
        uuid: said.uuid,
        pci: said.pci.as_deref().and_then(pci),
        driver: "NVIDIA".into(),
        driver_version: String::new(),
        api_version: format!("{version}.{release}"),
        limits: limits(said.memory, said.memory, said.memory, said.integrated),
        cores: None,
        features: Features {
            f16: (major, minor) >= (5, 3),
            bf16: major >= 8,
            int8: (major, minor) >= (6, 1),
            subgroup: warp.map(|warp| (warp, warp)),
            cooperative: Vec::new(),
            paths: vec![format!("sm_{major}{minor}")],
        },
        vulkan: None,
        cuda: Some(said.features),
        portability: false,
        standing: standing(&why),
        index,
        manifest: None,
        must_be_alone: false,
    }
}

/// Whether a device has the memory of the machine.
fn shares(kind: PhysicalDeviceType) -> bool {
    matches!(kind, PhysicalDeviceType::Integrated | PhysicalDeviceType::Software)
}

fn doubts(memory: u64, shares: bool) -> Vec<String> {
    match memory {
        0 => vec!["it says that it has no memory".into()],
        // Memory that it shares is known better from the system, so a wrong number does no harm.
        bytes if bytes > MOST_MEMORY && !shares => vec![format!("it says that it has {} TB of memory", bytes >> 40)],
        _ => Vec::new(),
    }
}

fn standing(why: &[String]) -> Standing {
    match why {
        [] => Standing::NotYet { instead: "cpu".into() },
        why => Standing::Refused { why: why.join(", ") },
    }
}

/// Each limit lies within the one before it, whatever the driver says.
fn limits(memory: u64, max_allocation: u64, max_binding: u64, shares: bool) -> Limits {
    let machine = cpu::memory().map_or(u64::MAX, |memory| memory.limit);
    let memory = if shares { memory.min(machine) } else { memory.min(MOST_MEMORY) };
    let max_allocation = if max_allocation == 0 { memory } else { max_allocation.min(memory) };
    Limits { memory, max_allocation, max_binding: max_binding.min(max_allocation) }
}

fn short(text: &str) -> String {
    if text.trim().is_empty() { String::new() } else { clean_label(text) }
}

/// `0000:3b:00.0` as numbers.
fn pci(text: &str) -> Option<[u32; 4]> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    Some([number(domain)?, number(bus)?, number(device)?, number(function)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn said() -> Description {
        Description {
            label: "NVIDIA H200".into(),
            kind: PhysicalDeviceType::Discrete,
            vendor: 0x10de,
            device: 0x2335,
            uuid: Some([7; 16]),
            pci: Some([0, 0x3b, 0, 0]),
            version: (1, 4, 312),
            driver: "NVIDIA".into(),
            driver_version: "580".into(),
            memory: 139 << 30,
            max_allocation: (4 << 30) - (2 << 20),
            max_binding: (4 << 30) - 1,
            f16: true,
            bf16: true,
            int8: true,
            subgroup: (32, 32),
            cooperative: Vec::new(),
            computes: true,
            portability: false,
            features: impasto_vulkan::VulkanFeatures::default(),
        }
    }

    #[test]
    fn an_honest_device_is_believed() {
        let info = vulkan(vulkan::VulkanRecord { index: 0, description: said() }, None);
        assert!(info.is_healthy() && info.is_gpu());
        assert_eq!(info.limits.memory, 139 << 30);
        assert_eq!(info.limits.max_binding, info.limits.max_allocation);
        assert_eq!(info.features.subgroup, Some((32, 32)));
    }

    #[test]
    fn an_address_is_read() {
        assert_eq!(pci("0000:3b:00.0"), Some([0, 0x3b, 0, 0]));
        for bad in ["", "3b:00.0", "0000:3b:00", "x:y:z.w", "::.", "0000:3b:00.0 "] {
            assert_eq!(pci(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_number_breaks_a_limit(
            (memory, allocation, binding) in any::<(u64, u64, u64)>(),
            (smallest, largest) in any::<(u32, u32)>(),
            software in any::<bool>(),
            name in "\\PC*|[\\x00-\\x1f]*",
        ) {
            let kind = if software { PhysicalDeviceType::Software } else { PhysicalDeviceType::Discrete };
            let description = Description {
                memory, max_allocation: allocation, max_binding: binding, subgroup: (smallest, largest), kind, label: name, ..said()
            };
            let info = vulkan(vulkan::VulkanRecord { index: 3, description }, None);
            let Limits { memory: whole, max_allocation, max_binding } = info.limits;
            prop_assert!(max_binding <= max_allocation && max_allocation <= whole && whole <= MOST_MEMORY);
            prop_assert!(!info.label.is_empty() && info.label.chars().all(|c| !c.is_control()));
            let absurd = memory == 0 || binding == 0 || (memory > MOST_MEMORY && !software);
            prop_assert_eq!(info.is_healthy(), !absurd);
            if let Some((smallest, largest)) = info.features.subgroup {
                prop_assert!(1 <= smallest && smallest <= largest && largest <= 1024);
            }
        }

        #[test]
        fn no_address_makes_it_panic(text in "\\PC*") {
            pci(&text);
        }
    }
}
