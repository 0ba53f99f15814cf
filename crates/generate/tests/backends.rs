//! The devices that pictures are compared on.

use std::sync::Arc;

use impasto_backend::cpu::{Cpu, CpuOptions, Precision};
use impasto_backend::vulkan::untried;
use impasto_backend::{Backend, DeviceOptions};
use impasto_device::{DeviceInfo, DeviceKind};
use impasto_generate::picture::Picture;

/// The software device, or the one that `IMPASTO_TEST_DEVICE` names by a part of its label.
pub fn found() -> DeviceInfo {
    let needs =
        "a Vulkan device is needed: install libvulkan1 and mesa-vulkan-drivers (tools/test.sh does so on Debian)";
    let wanted = std::env::var("IMPASTO_TEST_DEVICE").ok();
    let is_it = |device: &DeviceInfo| match &wanted {
        Some(label) => device.label.contains(label),
        None => device.kind == DeviceKind::Software,
    };
    untried().expect(needs).into_iter().find(is_it).expect(needs)
}

/// That device, open.
pub fn vulkan(precision: Precision) -> Arc<dyn Backend> {
    impasto_backend::open(&found(), &DeviceOptions { precision, ..DeviceOptions::default() }).expect("it opens")
}

/// The CPU in 32-bit floats.
pub fn cpu() -> Arc<dyn Backend> {
    Arc::new(Cpu::new(&CpuOptions { precision: Precision::F32, ..CpuOptions::default() }).expect("there is a CPU"))
}

/// How near two pictures are, in decibels.
pub fn psnr(a: &Picture, b: &Picture) -> f64 {
    impasto_testkit::psnr(&a.rgb, &b.rgb)
}
