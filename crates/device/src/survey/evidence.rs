//! What can be read about drivers and GPUs without asking a driver: the key of the cache, and the ground of a diagnosis.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::Serialize;

use super::Api;
use super::manifest::{self, Manifest, Reading, find_library};
use impasto_cuda::LIBRARY as CUDA;

use crate::sys;

/// Variables that change what drivers and loaders show.
const VARIABLES: &[&str] = &[
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "DISPLAY",
    "DRI_PRIME",
    "GPU_DEVICE_ORDINAL",
    "HIP_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "VK_ADD_DRIVER_FILES",
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
    "VK_LOADER_DEVICE_SELECT",
    "VK_LOADER_DRIVERS_DISABLE",
    "VK_LOADER_DRIVERS_SELECT",
    "WAYLAND_DISPLAY",
    "XDG_CONFIG_DIRS",
    "XDG_CONFIG_HOME",
    "XDG_DATA_DIRS",
    "XDG_DATA_HOME",
];

/// A device file of the kernel and whether this user may use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DeviceNode {
    pub path: PathBuf,
    pub usable: bool,
    /// The group that may, by name or number.
    pub group: Option<String>,
}

/// A display controller on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct PciGpu {
    pub address: String,
    pub vendor: u32,
    pub device: u32,
}

/// What was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evidence {
    pub manifests: Vec<Manifest>,
    pub gpus: Vec<PciGpu>,
    pub nodes: Vec<DeviceNode>,
    /// Versions of the kernel and of the drivers in it.
    pub versions: Vec<String>,
    pub variables: Vec<(String, String)>,
    /// Folders of stubs on the search path.
    pub stubs: Vec<PathBuf>,
    /// The Vulkan loader and the CUDA driver, where they are.
    pub libraries: Vec<PathBuf>,
    /// Whether NVIDIA's EGL driver is here.
    pub nvidia_egl: bool,
    pub nvidia_module: bool,
}

impl Evidence {
    pub fn gather() -> Evidence {
        let libraries = [if cfg!(windows) { "vulkan-1.dll" } else { "libvulkan.so.1" }, CUDA];
        let path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let nvidia = read_line("/proc/driver/nvidia/version");
        Evidence {
            manifests: manifest::installed(),
            gpus: gpus(),
            nodes: nodes(),
            nvidia_module: nvidia.is_some(),
            versions: [read_line("/proc/sys/kernel/osrelease"), nvidia]
                .into_iter()
                .flatten()
                .chain(
                    ["nvidia", "amdgpu", "i915", "xe"].iter().filter_map(|name| {
                        Some(format!("{name} {}", read_line(&format!("/sys/module/{name}/version"))?))
                    }),
                )
                .collect(),
            variables: VARIABLES
                .iter()
                .filter_map(|name| Some((name.to_string(), env::var_os(name)?.to_string_lossy().into_owned())))
                .collect(),
            stubs: env::split_paths(&path).filter(|folder| crate::probe::is_stubs(folder)).collect(),
            libraries: libraries.iter().filter_map(|name| find_library(name)).collect(),
            nvidia_egl: find_library("libEGL_nvidia.so.0").is_some(),
        }
    }

    /// Whether an NVIDIA GPU is here, as far as the system tells.
    pub fn has_nvidia(&self) -> bool {
        self.nvidia_module || self.gpus.iter().any(|gpu| gpu.vendor == 0x10de)
    }

    /// Whether CUDA can be ruled out without a child: neither its library nor a trace of its hardware is here.
    pub fn rules_out_cuda(&self) -> bool {
        let node =
            |begin: &'static str| self.nodes.iter().any(|node| manifest::file_name(&node.path).starts_with(begin));
        let library = self.libraries.iter().any(|path| is_cuda(path));
        // Elsewhere these places say nothing.
        cfg!(target_os = "linux") && !library && !self.has_nvidia() && !node("nvidia") && !node("dxg")
    }

    /// Everything that may change an API's answer, one thing a line.
    pub fn key(&self, api: Api) -> Vec<String> {
        let mut key = vec![format!("impasto {}", env!("CARGO_PKG_VERSION"))];
        key.extend(env::current_exe().ok().map(|path| file_line(&path)));
        key.extend(self.versions.iter().cloned());
        key.extend(self.gpus.iter().map(|gpu| format!("{} {:04x}:{:04x}", gpu.address, gpu.vendor, gpu.device)));
        key.extend(self.nodes.iter().map(|node| format!("{} {}", node.path.display(), node.usable)));
        key.extend(self.variables.iter().map(|(name, value)| format!("{name}={value}")));
        key.extend(self.libraries.iter().map(|path| file_line(path)));
        if api == Api::Vulkan {
            self.manifests.iter().for_each(|manifest| key.extend(self.driver_key(manifest)));
        }
        key
    }

    /// What the processor is.
    pub fn cpu_key(&self) -> Vec<String> {
        let mut key = vec![format!("impasto {}", env!("CARGO_PKG_VERSION"))];
        key.extend(env::current_exe().ok().map(|path| file_line(&path)));
        key.extend(self.versions.iter().cloned());
        let text = crate::cpu::first_of_cpuinfo();
        let kept = ["vendor_id", "model", "stepping", "microcode", "flags", "Features", "CPU "];
        key.extend(text.lines().filter(|line| kept.iter().any(|begin| line.starts_with(begin))).map(str::to_owned));
        key
    }

    /// What one Vulkan driver is, for the guard.
    pub fn driver_key(&self, manifest: &Manifest) -> Vec<String> {
        let mut key = vec![file_line(&manifest.path)];
        if let Reading::Library { file: Some(file), .. } = &manifest.reading {
            key.push(file_line(file));
        }
        key.extend(self.versions.iter().cloned());
        key
    }

    /// What the CUDA driver is, for the guard.
    pub fn cuda_key(&self) -> Vec<String> {
        let cuda = self.libraries.iter().filter(|path| is_cuda(path));
        cuda.map(|path| file_line(path)).chain(self.versions.iter().cloned()).collect()
    }
}

fn is_cuda(path: &Path) -> bool {
    manifest::file_name(path) == CUDA
}

/// A file by path, size and time.
fn file_line(path: &Path) -> String {
    let data = fs::metadata(path).ok();
    let size = data.as_ref().map_or(0, fs::Metadata::len);
    let time = data.and_then(|data| data.modified().ok()).and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    format!("{} {size} {}", path.display(), time.map_or(0, |time| time.as_nanos()))
}

fn read_line(path: &str) -> Option<String> {
    let text = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&text);
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

fn gpus() -> Vec<PciGpu> {
    let Ok(entries) = fs::read_dir("/sys/bus/pci/devices") else { return Vec::new() };
    let number = |path: PathBuf| {
        let text = fs::read_to_string(path).ok()?;
        u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
    };
    let mut found: Vec<PciGpu> = entries
        .flatten()
        .filter_map(|entry| {
            let folder = entry.path();
            // Display controllers and processing accelerators.
            let class = number(folder.join("class"))? >> 16;
            (class == 0x03 || class == 0x12).then_some(())?;
            let address = entry.file_name().to_string_lossy().into_owned();
            Some(PciGpu { address, vendor: number(folder.join("vendor"))?, device: number(folder.join("device"))? })
        })
        .collect();
    found.sort_by(|a, b| a.address.cmp(&b.address));
    found
}

fn nodes() -> Vec<DeviceNode> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for (folder, begin) in [("/dev/dri", "renderD"), ("/dev", "nvidia"), ("/dev", "kfd"), ("/dev", "dxg")] {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(begin));
        paths.extend(named.map(|entry| entry.path()).filter(|path| !path.is_dir()));
    }
    paths.sort();
    paths
        .into_iter()
        .map(|path| DeviceNode { usable: sys::may_use(&path), group: sys::group_of(&path), path })
        .collect()
}
