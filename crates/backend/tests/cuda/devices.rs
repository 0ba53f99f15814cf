//! The CUDA devices on which everything is tried: those that `IMPASTO_TEST_DEVICE` names by a part of their label, or a driver that interprets kernels,
//! which every machine can have (`examples/fake_cuda`).

use std::sync::{Arc, OnceLock};

use impasto_backend::{Backend, DeviceOptions, Precision, cuda};
use impasto_device::DeviceInfo;

use super::machine::{Factors, Machine};
use impasto_testkit::fake_cuda::load_fake;

/// An interpreter takes a second for a product: each run of the tests tries some of them. `IMPASTO_TEST_EVERY` tries fewer on a device too, for tools
/// that make kernels slow.
pub fn every(product: bool) -> usize {
    if !product {
        return 1;
    }
    let asked = std::env::var("IMPASTO_TEST_EVERY").ok().and_then(|text| text.parse().ok());
    let usual = if std::env::var_os("IMPASTO_TEST_DEVICE").is_some() { 1 } else { 12 };
    asked.filter(|&every| every > 0).unwrap_or(usual)
}

/// The device, or a failure that says what is missing: without one these tests would show nothing.
pub fn found() -> DeviceInfo {
    let wanted = std::env::var("IMPASTO_TEST_DEVICE").ok();
    if wanted.is_none() {
        load_fake();
    }
    let is_it = |device: &DeviceInfo| wanted.as_ref().is_none_or(|label| device.label.contains(label));
    let there = cuda::untried().unwrap_or_else(|e| panic!("{e}"));
    there.into_iter().find(is_it).expect("a CUDA device of that name")
}

/// The device, open.
pub fn open(options: &DeviceOptions) -> Arc<dyn Backend> {
    impasto_backend::open(&found(), options).expect("it opens")
}

/// In 32-bit floats, and as it is used; once with steps that are timed.
pub fn machines() -> &'static [Machine] {
    static MACHINES: OnceLock<Vec<Machine>> = OnceLock::new();
    MACHINES.get_or_init(|| {
        [(Precision::F32, Factors::F32), (Precision::Auto, Factors::F16)]
            .map(|(precision, factors)| {
                let time_steps = precision == Precision::F32;
                let backend = open(&DeviceOptions { precision, time_steps, ..DeviceOptions::default() });
                Machine { backend, name: found().label, factors, threads: 2, least: 1e-4 }
            })
            .into()
    })
}
