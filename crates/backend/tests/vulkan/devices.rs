//! The Vulkan devices on which everything is tried: lavapipe, which every machine can have, or those that `IMPASTO_TEST_DEVICE` names by a
//! part of their label.

use std::sync::{Arc, OnceLock};

use impasto_backend::{Backend, DeviceOptions, Precision, vulkan};
use impasto_device::{DeviceInfo, DeviceKind};

use super::machine::{Factors, Machine};

/// A software device compiles for half a second before it runs a product: each run of the tests tries some of the cases, others each time.
/// `IMPASTO_ALL_CASES`, which `tools/test.sh --long` sets, asks for all, and for a sixth of the products.
pub fn every(product: bool) -> usize {
    let is_set = |name: &str| std::env::var_os(name).is_some();
    match (is_set("IMPASTO_TEST_DEVICE"), is_set("IMPASTO_ALL_CASES")) {
        (true, _) => 1,
        (false, true) => [1, 6][usize::from(product)],
        (false, false) => [5, 20][usize::from(product)],
    }
}

/// The device, or a failure that says what to install: without one these tests would show nothing.
pub fn found() -> DeviceInfo {
    let needs =
        "a Vulkan device is needed: install libvulkan1 and mesa-vulkan-drivers (tools/test.sh does so on Debian)";
    let wanted = std::env::var("IMPASTO_TEST_DEVICE").ok();
    let is_it = |device: &DeviceInfo| match &wanted {
        Some(label) => device.label.contains(label),
        None => device.kind == DeviceKind::Software,
    };
    vulkan::untried().expect(needs).into_iter().find(is_it).expect(needs)
}

/// The device, open.
pub fn open(options: &DeviceOptions) -> Arc<dyn Backend> {
    impasto_backend::open(&found(), options).expect("it opens")
}

/// In 32-bit floats, and as it is used; once by way of a memory that the host does not see.
pub fn machines() -> &'static [Machine] {
    static MACHINES: OnceLock<Vec<Machine>> = OnceLock::new();
    MACHINES.get_or_init(|| {
        [(Precision::F32, Factors::F32), (Precision::Auto, Factors::F16)]
            .map(|(precision, factors)| {
                let as_if_discrete = precision == Precision::F32;
                let backend = open(&DeviceOptions { precision, as_if_discrete, ..DeviceOptions::default() });
                Machine { backend, name: found().label, factors, threads: 2, least: 1e-4 }
            })
            .into()
    })
}
