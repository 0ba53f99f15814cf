//! What several tests share.

#![allow(dead_code, reason = "each test binary uses its part")]

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub mod amx;
pub mod banded;
pub mod case;
pub mod cpus;
pub mod exam;
#[cfg(unix)]
pub mod guard;
pub mod machine;
pub mod networks;
pub mod reference;

pub use impasto_testkit::graph::rng;
