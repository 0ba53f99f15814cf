//! The Vulkan devices on which everything is tried: lavapipe, which every machine can have, or those that `IMPASTO_TEST_DEVICE` names by a
//! part of their label.

use std::sync::{Arc, OnceLock};

use impasto_backend::vulkan::{Vulkan, VulkanOptions};
use impasto_vulkan::{Kind, Loader, Physical};

use super::machine::{Factors, Machine};

/// A software device compiles for half a second before it runs a product: each run of the tests tries some of them.
pub fn every() -> usize {
    if std::env::var_os("IMPASTO_TEST_DEVICE").is_some() { 1 } else { 6 }
}

/// The device, or a failure that says what to install: without one these tests would show nothing.
pub fn physical() -> Physical {
    let needs =
        "a Vulkan device is needed: install libvulkan1 and mesa-vulkan-drivers (tools/test.sh does so on Debian)";
    let instance = Loader::open().expect(needs).create_instance().expect(needs);
    let devices = instance.enumerate().expect("devices are listed");
    let wanted = std::env::var("IMPASTO_TEST_DEVICE").ok();
    let is_it = |physical: &Physical| match &wanted {
        Some(label) => physical.describe().label.contains(label),
        None => physical.describe().kind == Kind::Software,
    };
    devices.into_iter().find(is_it).expect(needs)
}

/// In 32-bit floats, and as it is used; once by way of a memory that the host does not see.
pub fn machines() -> &'static [Machine] {
    static MACHINES: OnceLock<Vec<Machine>> = OnceLock::new();
    MACHINES.get_or_init(|| {
        let physical = physical();
        [(true, Factors::F32), (false, Factors::F16)]
            .map(|(exact, factors)| {
                let options = VulkanOptions { exact, as_if_discrete: exact, ..VulkanOptions::default() };
                let vulkan = Vulkan::open("vulkan0", &physical, &options).expect("it opens");
                Machine { backend: Arc::new(vulkan), name: physical.describe().label, factors, threads: 2, least: 1e-4 }
            })
            .into()
    })
}
