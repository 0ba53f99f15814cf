//! What is done in the child: the only code that touches a driver which has not proved itself.
//!
//! Each entry into a driver is announced as a stage before it is made, so that a crash or a hang names its place:
//! `load-driver` (one driver alone), `load`, `create-instance`, `enumerate`, `get-properties`, `idle` (one driver alone); in a device's own trial
//! `create-device`, `allocate`, `build-kernel`, `dispatch`, `compare`.

pub(crate) mod cuda;
mod kernel;
pub(crate) mod vulkan;

use std::env;
use std::ffi::OsString;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Trial;

/// The probes of drivers, to be listed in the call of [`hook`](crate::hook).
pub const PROBES: [Trial; 7] = [
    Trial { name: "vulkan-enumerate", run: vulkan::enumerate },
    Trial { name: "vulkan-trial", run: vulkan::try_device },
    Trial { name: "vulkan-memory", run: vulkan::memory },
    Trial { name: "cuda-enumerate", run: cuda::enumerate },
    Trial { name: "cuda-trial", run: cuda::try_device },
    Trial { name: "cuda-memory", run: cuda::memory },
    Trial { name: "cuda-context", run: cuda::context },
];

/// Which device a child is to take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TargetDevice {
    pub index: usize,
    pub label: String,
    pub uuid: Option<[u8; 16]>,
}

impl TargetDevice {
    fn from_argument(text: &str) -> Result<TargetDevice, String> {
        serde_json::from_str(text).map_err(|error| format!("which device was not understood: {error}"))
    }
}

/// The environment of every process that opens a driver, with the one manifest that may be loaded if others must not.
pub(crate) fn environment(manifest: Option<&Path>) -> Vec<(OsString, Option<OsString>)> {
    let mut env: Vec<(OsString, Option<OsString>)> = vec![
        // Overlays and recorders load themselves into every Vulkan program, and crash there.
        ("VK_LOADER_LAYERS_DISABLE".into(), Some("~implicit~".into())),
        ("NODEVICE_SELECT".into(), Some("1".into())),
        ("LD_PRELOAD".into(), None),
        // A backtrace of ours would push a driver's last words out of the tail.
        ("RUST_BACKTRACE".into(), None),
    ];
    if let Some(path) = env::var_os("LD_LIBRARY_PATH") {
        // Folders of stubs hold a libcuda that only knows how to fail.
        let kept: Vec<_> = env::split_paths(&path).filter(|folder| !is_stubs(folder)).collect();
        env.push(("LD_LIBRARY_PATH".into(), env::join_paths(kept).ok().filter(|path| !path.is_empty())));
    }
    if let Some(manifest) = manifest {
        // The second name is the one that older loaders know.
        for name in ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"] {
            env.push((name.into(), Some(manifest.into())));
        }
        env.push(("VK_ADD_DRIVER_FILES".into(), None));
    }
    env
}

/// A device's name as it may be shown, the same in parent and child.
pub(crate) fn clean_label(text: &str) -> String {
    const LONGEST: usize = 120;
    let clean: String = text.chars().filter(|c| !c.is_control()).take(LONGEST).collect();
    if clean.trim().is_empty() { "a device without a name".into() } else { clean.trim().into() }
}

/// Whether a folder holds libraries to link with, not to run.
pub(crate) fn is_stubs(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| name == "stubs")
}
