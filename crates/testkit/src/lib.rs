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

/// A trial of two sizes, the tests `NAME::short` and `NAME::long`, or of one that is long only. `cargo test` ignores what is long;
/// `tools/test.sh --long` runs it.
///
/// ```
/// impasto_testkit::trial! {
///     fn kills(rounds: usize = 1, 50) {
///         (0..rounds).for_each(|_| ());
///     }
/// }
/// ```
#[macro_export]
macro_rules! trial {
    ($(#[$attribute:meta])* fn $name:ident($size:ident: $ty:ty = $short:expr, $long:expr) $body:block) => {
        $(#[$attribute])*
        fn $name($size: $ty) $body

        mod $name {
            #[allow(unused_imports, reason = "sizes may be constants")]
            use super::*;

            #[test]
            fn short() {
                super::$name($short);
            }

            #[test]
            #[ignore = "a long trial"]
            fn long() {
                super::$name($long);
            }
        }
    };
    ($(#[$attribute:meta])* long fn $name:ident() $(-> $result:ty)? $body:block) => {
        $(#[$attribute])*
        fn $name() $(-> $result)? $body

        mod $name {
            #[allow(unused_imports, reason = "what it returns may be named outside")]
            use super::*;

            #[test]
            #[ignore = "a long trial"]
            fn long() $(-> $result)? {
                super::$name()
            }
        }
    };
}

/// How near two pictures are, in decibels.
pub fn psnr(a: &[u8], b: &[u8]) -> f64 {
    assert_eq!(a.len(), b.len(), "pictures of two sizes");
    let error: f64 = a.iter().zip(b).map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2)).sum();
    10.0 * (255.0 * 255.0 * a.len() as f64 / error.max(1e-9)).log10()
}

/// The files of file tests in a folder, sorted: all, of which there must be `least`, or those whose names contain what `IMPASTO_FILE_TEST` says.
pub fn file_tests(folder: &str, least: usize) -> Vec<PathBuf> {
    let wanted = std::env::var("IMPASTO_FILE_TEST").ok();
    let entries = std::fs::read_dir(folder).expect("a folder of file tests");
    let all = entries.map(|entry| entry.expect("the folder can be read").path());
    let is_wanted = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".txt") && wanted.as_ref().is_none_or(|wanted| name.contains(wanted))
    };
    let mut files: Vec<PathBuf> = all.filter(is_wanted).collect();
    files.sort();
    match wanted {
        Some(wanted) => assert!(!files.is_empty(), "no file in {folder} is called {wanted}"),
        None => assert!(files.len() >= least, "only {} files were found", files.len()),
    }
    files
}

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
