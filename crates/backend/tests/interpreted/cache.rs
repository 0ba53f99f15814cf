//! Machine code that is kept on disk: found again, believed only whole, and made anew where it is not.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use impasto_backend::{DeviceOptions, Precision};
use impasto_graph::{DType, Epilogue, Graph, GraphError, Storage, Unary};

use super::common::case::Case;
use super::common::cpus::open;
use super::common::machine::{Factors, Machine, same_bits};
use super::common::rng::{Rng, seed};

fn graph() -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let x = graph.input("x", [5, 24], DType::F32)?;
    let w = graph.param("w", [16, 24], Storage::Dense(DType::F32))?;
    let y = graph.linear(x, w, Epilogue::new())?;
    let y = graph.unary(Unary::Silu, y)?;
    graph.output("y", y)?;
    Ok(graph)
}

/// The files of machine code in a folder.
fn kept(folder: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(folder).expect("the folder is there").flatten().map(|entry| entry.path());
    let mut all: Vec<PathBuf> =
        all.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("kernel-"))).collect();
    all.sort();
    all
}

/// Cached kernels were compiled unverified, so `--verify` compiles every kernel anew.
#[test]
fn verified_kernels_are_compiled_anew() -> Result<(), GraphError> {
    let folder = tempfile::tempdir().expect("a folder");
    let case = Case::new(graph()?, &mut Rng::new(seed()));
    let run = |verify| {
        let cache = Some(folder.path().to_owned());
        let backend = open(&DeviceOptions { precision: Precision::F32, cache, verify, ..DeviceOptions::default() });
        assert!(backend.profile().verifies_plans() == (verify || cfg!(debug_assertions)));
        Machine { backend, name: "verified".into(), factors: Factors::F32, threads: 1, least: 1e-4 }.run(&case)
    };
    let verified = run(true);
    assert!(kept(folder.path()).is_empty(), "they are not kept either");
    assert!(same_bits(&verified, &run(false)));
    let files = kept(folder.path());
    assert!(!files.is_empty());
    // What is taken from the cache would be mended.
    files.iter().for_each(|path| std::fs::write(path, "damaged").expect("a file"));
    assert!(same_bits(&verified, &run(true)));
    assert!(files.iter().all(|path| std::fs::read(path).is_ok_and(|bytes| bytes == b"damaged")));
    Ok(())
}

#[test]
fn damaged_machine_code_is_made_anew() -> Result<(), GraphError> {
    let folder = tempfile::tempdir().expect("a folder");
    let case = Case::new(graph()?, &mut Rng::new(seed()));
    let run = || {
        let cache = Some(folder.path().to_owned());
        let backend = open(&DeviceOptions { precision: Precision::F32, cache, ..DeviceOptions::default() });
        Machine { backend, name: "cached".into(), factors: Factors::F32, threads: 1, least: 1e-4 }.run(&case)
    };
    let first = run();
    let files = kept(folder.path());
    assert!(files.len() > 1, "{files:?}");
    let whole: Vec<Vec<u8>> = files.iter().map(|path| std::fs::read(path).expect("a file")).collect();
    // What is whole stays as it is: a file that is written anew is another one.
    let inodes = || files.iter().map(|path| std::fs::metadata(path).expect("a file").ino()).collect::<Vec<_>>();
    let before = inodes();
    assert!(same_bits(&first, &run()) && before == inodes(), "machine code that is whole is used");
    type Damage = fn(&[u8], &[u8]) -> Vec<u8>;
    let damages: [(&str, Damage); 6] = [
        ("nothing is left", |_, _| vec![]),
        ("cut in the head", |bytes, _| bytes[..11].into()),
        ("cut in the middle", |bytes, _| bytes[..bytes.len() / 2].into()),
        ("one bit", |bytes, _| {
            let (mut bytes, at) = (bytes.to_vec(), bytes.len() - 9);
            bytes[at] ^= 4;
            bytes
        }),
        ("something else", |bytes, _| vec![b'#'; bytes.len()]),
        ("another kernel's", |_, other| other.into()),
    ];
    for (what, damage) in damages {
        for (i, path) in files.iter().enumerate() {
            std::fs::write(path, damage(&whole[i], &whole[(i + 1) % whole.len()])).expect("a file");
        }
        assert!(same_bits(&first, &run()), "{what}: other bits");
        for (path, whole) in files.iter().zip(&whole) {
            assert!(std::fs::read(path).expect("a file") == *whole, "{what}: {} is not mended", path.display());
        }
    }
    Ok(())
}
