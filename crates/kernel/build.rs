//! Names this version of a crate of the compiler by its sources, so that a compile cache never gives what another one made. `spirv` and `ptx` use it too.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { sources(&path, found)? } else { found.push(path) }
    }
    Ok(())
}

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=Cargo.toml");
    let mut files = vec![PathBuf::from("Cargo.toml")];
    sources(Path::new("src"), &mut files)?;
    files.sort();
    // FNV-1a. Nobody chooses sources to collide.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for &byte in bytes.iter().chain(&[0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for file in files {
        add(file.to_string_lossy().as_bytes());
        add(&fs::read(&file)?);
    }
    println!("cargo::rustc-env=IMPASTO_SOURCES={}-{hash:016x}", std::env::var("CARGO_PKG_VERSION").unwrap_or_default());
    Ok(())
}
