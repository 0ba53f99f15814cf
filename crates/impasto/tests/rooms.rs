//! The plan of the house: which crate may use which, and where the names of APIs may stand. What a user would lose: nothing at once, and then
//! every new backend and family would take twice the time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The crates from the ground up: a crate uses only crates before it.
const HOUSE: [&str; 17] = [
    "faults", "store", "graph", "weights", "vulkan", "cuda", "device", "kernel", "autodiff", "spirv", "ptx", "backend",
    "worker", "model", "generate", "server", "impasto",
];
/// Test code that crates share, beside the house: no crate uses it but for its tests.
const TESTKIT: &str = "testkit";

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crates' folder").to_path_buf()
}

/// The crates of this workspace that a crate depends on, tests not counted.
fn dependencies(name: &str) -> Vec<String> {
    let manifest = std::fs::read_to_string(crates().join(name).join("Cargo.toml")).expect("a manifest");
    let manifest: toml::Table = manifest.parse().expect("a manifest is TOML");
    let table = manifest.get("dependencies").and_then(toml::Value::as_table);
    let names = table.into_iter().flat_map(toml::Table::keys);
    names.filter_map(|name| name.strip_prefix("impasto-")).map(str::to_owned).collect()
}

#[test]
fn a_crate_uses_only_crates_below_it() {
    for (at, name) in HOUSE.iter().enumerate() {
        for used in dependencies(name).iter().filter(|used| *used != "kernel-macro") {
            let below = HOUSE[..at].contains(&used.as_str());
            assert!(below, "{name} uses {used}, which is not below it");
        }
    }
    let folders = std::fs::read_dir(crates()).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    for folder in folders {
        let known = folder == TESTKIT || HOUSE.contains(&&*folder.to_string_lossy());
        assert!(known, "{folder:?} has no place in the house");
    }
}

/// Crates that know nothing of an API use none of its crates, and name none of their types.
#[test]
fn apis_are_named_where_they_belong() {
    let api_crates = ["vulkan", "cuda", "spirv", "ptx"];
    for name in ["kernel", "autodiff", "worker", "model", "generate", "server"] {
        let used = dependencies(name);
        for api in api_crates {
            assert!(!used.iter().any(|used| used == api), "{name} depends on {api}");
        }
        for file in sources(&crates().join(name).join("src")) {
            let text = std::fs::read_to_string(&file).expect("a source file");
            for word in [
                "impasto_vulkan",
                "impasto_cuda",
                "impasto_spirv",
                "impasto_ptx",
                "rspirv",
                "use ash",
                "VulkanOptions",
                "VulkanProfile",
            ] {
                assert!(!text.contains(word), "{} names {word}", file.display());
            }
        }
    }
}

/// A public type has a name of its own in the whole workspace: who reads it knows which one is meant.
#[test]
fn one_type_of_a_name() {
    let mut seen: BTreeMap<String, PathBuf> = BTreeMap::new();
    for name in HOUSE {
        for file in sources(&crates().join(name).join("src")) {
            let text = std::fs::read_to_string(&file).expect("a source file");
            for line in text.lines() {
                let kinds = ["pub struct ", "pub enum ", "pub trait ", "pub union "];
                let Some(rest) = kinds.iter().find_map(|kind| line.trim_start().strip_prefix(kind)) else { continue };
                let ty: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                // Types that a macro names are its own business.
                if ty.is_empty() {
                    continue;
                }
                if let Some(before) = seen.insert(ty.clone(), file.clone()) {
                    panic!("{ty} is in {} and in {}", before.display(), file.display());
                }
            }
        }
    }
    assert!(seen.len() > 200, "the types were found");
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = vec![];
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => files.extend(sources(&path)),
            false if path.extension().is_some_and(|ending| ending == "rs") => files.push(path),
            false => {}
        }
    }
    files
}
