//! Fake drivers: real shared objects, built with the C and C++ compilers of the system, and lavapipe beside them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/drivers");

const CRASHED: &str = "crashed";
const TIMED_OUT: &str = "timed_out";
const GARBLED: &str = "garbled";

/// Fault, stage, and the verdict that it must get.
pub const FAULTS: &[(&str, &str, &str)] = &[
    ("crash", "load-driver", CRASHED),
    ("crash", "create-instance", CRASHED),
    ("crash", "enumerate", CRASHED),
    ("crash", "get-properties", CRASHED),
    ("crash", "create-device", CRASHED),
    ("crash", "dispatch", CRASHED),
    ("abort", "create-instance", CRASHED),
    ("abort", "dispatch", CRASHED),
    ("throw", "create-instance", CRASHED),
    ("throw", "get-properties", CRASHED),
    ("throw", "dispatch", CRASHED),
    ("hang", "load-driver", TIMED_OUT),
    ("hang", "create-instance", TIMED_OUT),
    ("hang", "enumerate", TIMED_OUT),
    ("hang", "get-properties", TIMED_OUT),
    ("hang", "create-device", TIMED_OUT),
    ("hang", "dispatch", TIMED_OUT),
    ("spin", "enumerate", TIMED_OUT),
    ("endless", "create-instance", TIMED_OUT),
    ("garbage", "enumerate", GARBLED),
    ("exit0", "enumerate", GARBLED),
    ("exit0", "dispatch", GARBLED),
    ("exit3", "create-instance", CRASHED),
    ("fork", "create-instance", TIMED_OUT),
    ("fork", "dispatch", TIMED_OUT),
];

/// What a driver does to others in its process: a thread that crashes later, floating-point exceptions, limits.
pub const DISTURBING: &[&str] = &[
    "later:load-driver",
    "later:create-instance",
    "later:get-properties",
    "fpe:load-driver",
    "fpe:create-instance",
    "rlimit:load-driver",
    "rlimit:create-instance",
];

/// What a driver says or does without failing; the first is nothing.
pub const LIES: &[&str] = &[
    "",
    "none",
    "many",
    "absurd",
    "lying",
    "wrong",
    "refuse",
    "stdout:create-instance",
    "kill:dispatch",
    "daemon:create-instance",
];

/// Where the fake drivers are.
pub struct Drivers {
    /// `libfake_vulkan.so` and its manifest, a manifest without its library, and one that is none.
    pub folder: PathBuf,
    /// `libcuda.so.1`.
    pub cuda: PathBuf,
    #[allow(dead_code)] // one of the two tests uses it
    /// The same of an old driver, which lacks functions.
    pub cuda_2017: PathBuf,
    #[allow(dead_code)] // one of the two tests uses it
    /// `libEGL_nvidia.so.0`, which is the Vulkan driver under another name.
    pub egl: PathBuf,
}

impl Drivers {
    pub fn manifest(&self) -> PathBuf {
        self.folder.join("fake_icd.json")
    }
}

/// Builds them, once.
pub fn drivers() -> &'static Drivers {
    static BUILT: OnceLock<Drivers> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = crate::tmp().join("drivers");
        let [cuda, cuda_2017, egl] = ["cuda", "cuda_2017", "egl"].map(|name| folder.join(name));
        for folder in [&folder, &cuda, &cuda_2017, &egl] {
            std::fs::create_dir_all(folder).expect("a folder for the drivers");
        }
        build("vulkan.c", &[], &folder.join("libfake_vulkan.so"));
        build("vulkan.c", &[], &egl.join("libEGL_nvidia.so.0"));
        build("cuda.c", &[], &cuda.join("libcuda.so.1"));
        build("cuda.c", &["-DFAKE_OF_2017"], &cuda_2017.join("libcuda.so.1"));
        let manifest = |name: &str, library: &str| {
            let text = format!(
                r#"{{"file_format_version":"1.0.0","ICD":{{"library_path":"{library}","api_version":"1.3.0"}}}}"#
            );
            place(&folder.join(name), text.as_bytes());
        };
        manifest("fake_icd.json", "./libfake_vulkan.so");
        manifest("stale_icd.json", "./libgone.so");
        place(&folder.join("garbled_icd.json"), b"{ this is not JSON");
        Drivers { folder, cuda, cuda_2017, egl }
    })
}

/// Several processes of tests may build at once, so a file appears whole or not at all, and stays as it is if it is new enough.
fn build(source: &str, defined: &[&str], library: &Path) {
    let sources = [source, "throw.cc", "fault.h"].map(|name| Path::new(SOURCES).join(name));
    let time = |path: &Path| std::fs::metadata(path).and_then(|data| data.modified()).ok();
    if time(library) > sources.iter().filter_map(|path| time(path)).max() {
        return;
    }
    let new = library.with_extension(format!("{}.new", std::process::id()));
    let object = library.with_extension(format!("{}.o", std::process::id()));
    run(Command::new("cc")
        .args(["-D_GNU_SOURCE", "-O1", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-c"])
        .args(defined)
        .arg(&sources[0])
        .arg("-o")
        .arg(&object));
    run(Command::new("c++")
        .args(["-shared", "-fPIC"])
        .arg(&object)
        .arg(&sources[1])
        .args(["-lm", "-pthread", "-o"])
        .arg(&new));
    std::fs::rename(&new, library).expect("the library can be put in place");
    let _ = std::fs::remove_file(object);
}

fn run(command: &mut Command) {
    let output = command.output();
    let output = output.unwrap_or_else(|error| {
        panic!("{command:?}: {error}: the tests need a C and a C++ compiler (Debian: build-essential)")
    });
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn place(path: &Path, bytes: &[u8]) {
    if std::fs::read(path).is_ok_and(|there| there == bytes) {
        return;
    }
    let new = path.with_extension(format!("{}.new", std::process::id()));
    std::fs::write(&new, bytes).and_then(|()| std::fs::rename(&new, path)).expect("a file can be written");
}

/// The manifest of lavapipe, the healthy neighbour. Without it these tests would show nothing, so they fail.
pub fn lavapipe() -> PathBuf {
    let folders = ["/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d"];
    let files = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let found = files
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("lvp_icd")));
    found.expect("lavapipe is not installed, and these tests need it and the Vulkan loader: install mesa-vulkan-drivers and libvulkan1 \
                  (tools/test.sh does so on Debian and Ubuntu; on Fedora: mesa-vulkan-drivers vulkan-loader)")
}
