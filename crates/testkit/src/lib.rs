//! Test code that several crates share, compiled once: random inputs and references, small models, devices and drivers that go wrong.
//!
//! Crates name it under `[dev-dependencies]`, so no release contains it.
//!
//! Invariant: a crate's unit tests (`src`) use only those modules whose types do not come from that same crate: cargo builds the crate a second time
//! for them, and its types would be others.

pub mod damage;
#[cfg(unix)]
pub mod drivers;
#[cfg(unix)]
pub mod fake_cuda;
pub mod graph;
pub mod kernel;
pub mod model;
pub mod ptx;
#[cfg(unix)]
pub mod shim;
pub mod vulkan;

use std::path::PathBuf;

/// The folder for files that tests make and keep: Cargo's `CARGO_TARGET_TMPDIR`, which only integration tests are told.
pub fn tmp() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this program");
    let target = test
        .ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").exists() || folder.join(".rustc_info.json").exists());
    let tmp = target.expect("tests run from Cargo's target folder").join("tmp");
    std::fs::create_dir_all(&tmp).expect("a folder for what tests make");
    tmp
}
