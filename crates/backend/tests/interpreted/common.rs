//! What the tests of the CPU share, with a CUDA driver that interprets kernels.
#![allow(dead_code, reason = "a part is used by other tests")]

#[path = "../common/banded.rs"]
pub mod banded;
#[path = "../common/case.rs"]
pub mod case;
/// The devices, on which every case is tried: there are few, and small ones.
pub mod cpus {
    pub use super::devices::{machines, open};

    pub fn every(_product: bool) -> usize {
        1
    }
}
#[path = "../cuda/devices.rs"]
pub mod devices;
#[path = "../common/exam.rs"]
pub mod exam;
#[path = "../common/machine.rs"]
pub mod machine;
#[path = "../common/networks.rs"]
pub mod networks;
#[path = "../common/reference.rs"]
pub mod reference;

pub use impasto_testkit::graph::rng;
