//! A driver that is lavapipe until it goes wrong on purpose: `shim.c`, built with the C compiler of the system.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/shim/shim.c");

/// Where it is.
pub struct Shim {
    /// Its manifest.
    pub manifest: PathBuf,
    /// Lavapipe's library.
    pub real: String,
}

/// Builds it, once.
pub fn shim() -> &'static Shim {
    static BUILT: OnceLock<Shim> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = crate::tmp().join("shim");
        std::fs::create_dir_all(&folder).expect("a folder for the driver");
        // Several processes of tests may build at once: each file appears whole or not at all.
        let own = |name: &str| folder.join(format!("{name}.{}", std::process::id()));
        let library = own("libimpasto_shim.so");
        let mut command = Command::new("cc");
        command.args(["-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", SOURCE, "-ldl", "-o"]);
        let output = command.arg(&library).output();
        let output =
            output.unwrap_or_else(|e| panic!("{command:?}: {e}: a C compiler is needed (Debian: build-essential)"));
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        let (there, manifest) = (folder.join("libimpasto_shim.so"), folder.join("shim_icd.json"));
        std::fs::rename(library, &there).expect("the library can be put in place");
        let there = there.display();
        let text =
            format!(r#"{{"file_format_version":"1.0.0","ICD":{{"library_path":"{there}","api_version":"1.3.0"}}}}"#);
        let new = own("shim_icd.json");
        std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &manifest)).expect("a manifest can be written");
        Shim { manifest, real: lavapipe() }
    })
}

/// Lavapipe's library, by its manifest. Without it these tests would show nothing, so they fail.
fn lavapipe() -> String {
    let folders = ["/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d"];
    let files = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let is_it = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("lvp_icd"));
    let found = files.map(|entry| entry.path()).find(is_it);
    let found = found
        .expect("lavapipe is needed: install mesa-vulkan-drivers and libvulkan1 (tools/test.sh does so on Debian)");
    let text = std::fs::read_to_string(&found).expect("its manifest can be read");
    let manifest: serde_json::Value = serde_json::from_str(&text).expect("its manifest is JSON");
    manifest["ICD"]["library_path"].as_str().expect("its manifest names its library").to_owned()
}

/// A number from a seed, so that a failure can be made again.
pub fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The seed of this run, printed; `IMPASTO_SEED_OF_DEATHS` gives another.
pub fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let given = std::env::var("IMPASTO_SEED_OF_DEATHS").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("IMPASTO_SEED_OF_DEATHS={seed}");
    seed
}
