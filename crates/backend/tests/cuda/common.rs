//! What the tests of the CPU share, with other machines.
#![allow(dead_code, reason = "a part is used by other tests")]

#[path = "../common/banded.rs"]
pub mod banded;
#[path = "../common/case.rs"]
pub mod case;
#[path = "devices.rs"]
pub mod cpus;
#[path = "../common/exam.rs"]
pub mod exam;
#[path = "../common/machine.rs"]
pub mod machine;
#[path = "../common/networks.rs"]
pub mod networks;
#[path = "../common/reference.rs"]
pub mod reference;

pub use impasto_testkit::graph::rng;
