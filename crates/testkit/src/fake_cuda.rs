//! The driver that interprets kernels (`examples/fake_cuda`), where the loader finds it.

use std::path::PathBuf;
use std::sync::OnceLock;

/// Starts this program anew where the loader finds the interpreting driver as the driver: where it looks is decided when a program starts.
pub fn load_fake() {
    use std::os::unix::process::CommandExt;
    const PATH: &str = "LD_LIBRARY_PATH";
    let folder = folder();
    if std::env::var_os(PATH).is_some_and(|path| path == *folder) {
        return;
    }
    let test = std::env::current_exe().expect("the path of this program");
    let error = std::process::Command::new(test).args(std::env::args_os().skip(1)).env(PATH, folder).exec();
    panic!("this program cannot be started anew: {error}");
}

/// A folder with the interpreting driver as `libcuda.so.1`.
pub fn folder() -> PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let folder = crate::tmp().join("fake_cuda");
        std::fs::create_dir_all(&folder).expect("a folder for the driver");
        // Other processes may do the same: the link appears whole.
        let (link, new) = (folder.join("libcuda.so.1"), folder.join(format!("{}.new", std::process::id())));
        let _ = std::fs::remove_file(&new);
        let linked = std::os::unix::fs::symlink(library(), &new).and_then(|()| std::fs::rename(&new, link));
        linked.expect("a link to the driver");
        folder
    };
    MADE.get_or_init(make).clone()
}

/// Where Cargo puts examples beside tests; it is built if it is not there.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this program");
    let folder = test.parent().and_then(|deps| deps.parent()).expect("the folder of the build").join("examples");
    let library = folder.join("libfake_cuda.so");
    if !library.exists() {
        let release = if cfg!(debug_assertions) { &[][..] } else { &["--release"] };
        let build = std::process::Command::new(env!("CARGO"))
            .args(["build", "-p", "impasto-backend", "--example", "fake_cuda"])
            .args(release)
            .status();
        assert!(build.is_ok_and(|status| status.success()), "examples/fake_cuda can be built");
    }
    library
}
