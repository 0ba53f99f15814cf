//! The manifests by which Vulkan drivers are installed, read without opening a driver.
//!
//! The order and the folders are those of the loader; on Windows the registry stands for the folders.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A manifest is small; a larger file is none.
const MAX_BYTES: u64 = 1 << 20;
/// More drivers than any machine has.
const MAX_MANIFESTS: usize = 64;

/// A manifest file and what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub path: PathBuf,
    pub reading: Reading,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// The library as written, and where it is if that is known.
    Library { named: String, file: Option<PathBuf> },
    /// The library is named by its path, and there is no such file.
    Stale { named: String },
    /// The file cannot be read or is no manifest.
    Unreadable(String),
}

impl Manifest {
    pub fn read(path: PathBuf) -> Manifest {
        let reading = match read_text(&path) {
            Err(why) => Reading::Unreadable(why),
            Ok(text) => match library(&text) {
                Err(why) => Reading::Unreadable(why),
                Ok(named) => locate(&path, named),
            },
        };
        Manifest { path, reading }
    }

    /// The name of the library without its folder, for messages; else that of the manifest.
    pub fn library_name(&self) -> String {
        match &self.reading {
            Reading::Library { named, .. } | Reading::Stale { named } => file_name(Path::new(named)),
            Reading::Unreadable(_) => file_name(&self.path),
        }
    }

    /// What `dlopen` is to be given.
    pub fn library(&self) -> Option<String> {
        match &self.reading {
            Reading::Library { file: Some(file), .. } => Some(file.to_string_lossy().into_owned()),
            Reading::Library { named, .. } => Some(named.clone()),
            _ => None,
        }
    }
}

pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn read_text(path: &Path) -> Result<String, String> {
    let data = std::fs::metadata(path).map_err(|error| format!("it cannot be read: {error}"))?;
    if !data.is_file() || data.len() > MAX_BYTES {
        return Err("it is no small file".into());
    }
    let bytes = std::fs::read(path).map_err(|error| format!("it cannot be read: {error}"))?;
    String::from_utf8(bytes).map_err(|_| "it is not JSON: it is not even text".into())
}

/// The library that a manifest names.
fn library(text: &str) -> Result<String, String> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
    let named = value.get("ICD").and_then(|icd| icd.get("library_path")).and_then(|path| path.as_str());
    match named {
        Some(named) if !named.is_empty() && !named.contains('\0') => Ok(named.to_owned()),
        _ => Err("it names no library (ICD.library_path)".into()),
    }
}

fn locate(manifest: &Path, named: String) -> Reading {
    let path = Path::new(&named);
    if named.contains('/') || named.contains('\\') {
        // A path is absolute or begins at the folder of the manifest.
        let mut file = manifest.parent().unwrap_or(Path::new(".")).join(path);
        if cfg!(windows) {
            // Windows looks for what a library needs beside it only if its path is whole and has no slashes in it.
            file = std::path::absolute(&file).unwrap_or(file);
        }
        return if file.exists() { Reading::Library { named, file: Some(file) } } else { Reading::Stale { named } };
    }
    let file = find_library(&named);
    // Where the system's search finds a bare name is not fully known here, so it is never called stale.
    Reading::Library { named, file }
}

/// Where the dynamic linker would find a library, as far as that can be known without it.
pub(crate) fn find_library(name: &str) -> Option<PathBuf> {
    if cfg!(windows) {
        let beside = env::current_exe().ok().and_then(|program| Some(program.parent()?.to_owned()));
        let system = env::var_os("SystemRoot").map(|root| Path::new(&root).join("System32"));
        let path = env::var_os("PATH").unwrap_or_default();
        let folders = beside.into_iter().chain(system).chain(env::split_paths(&path));
        return folders.map(|folder| folder.join(name)).find(|file| file.exists());
    }
    let own = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let system = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/usr/local/lib",
        "/usr/lib",
        "/lib",
        "/usr/local/nvidia/lib64",
        "/usr/lib/wsl/lib",
    ];
    let folders = env::split_paths(&own)
        .filter(|folder| !crate::probe::is_stubs(folder))
        .map(|folder| if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder });
    folders.chain(system.map(PathBuf::from)).map(|folder| folder.join(name)).find(|file| file.exists())
}

/// The manifests that the loader would read, in its order.
pub(crate) fn installed() -> Vec<Manifest> {
    let mut paths: Vec<PathBuf> = Vec::new();
    let only = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"].iter().find_map(env::var_os).filter(|list| !list.is_empty());
    match only {
        Some(list) => list_paths(&list, &mut paths),
        None => {
            env::var_os("VK_ADD_DRIVER_FILES").iter().for_each(|list| list_paths(list, &mut paths));
            #[cfg(windows)]
            super::registry::manifests().into_iter().for_each(|path| list_path(path, &mut paths));
            #[cfg(not(windows))]
            folders().iter().for_each(|folder| list_folder(folder, &mut paths));
        }
    }
    let mut seen = std::collections::HashSet::new();
    paths.retain(|path| seen.insert(path.clone()));
    paths.truncate(MAX_MANIFESTS);
    paths.into_iter().map(Manifest::read).collect()
}

fn list_paths(list: &OsString, paths: &mut Vec<PathBuf>) {
    let named = env::split_paths(list).filter(|path| !path.as_os_str().is_empty());
    named.for_each(|path| list_path(path, paths));
}

/// What a variable or the registry names is a file or a folder.
fn list_path(path: PathBuf, paths: &mut Vec<PathBuf>) {
    if path.is_dir() { list_folder(&path, paths) } else { paths.push(path) }
}

fn list_folder(folder: &Path, paths: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .take(MAX_MANIFESTS)
        .collect();
    found.sort();
    paths.append(&mut found);
}

#[cfg(not(windows))]
fn folders() -> Vec<PathBuf> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    let home = |below: &str| variable("HOME").map(|home| Path::new(&home).join(below));
    let split = |list: Option<OsString>, fallback: &str| {
        env::split_paths(&list.unwrap_or_else(|| fallback.into())).collect::<Vec<_>>()
    };
    let mut roots: Vec<PathBuf> = Vec::new();
    roots.extend(variable("XDG_CONFIG_HOME").map(PathBuf::from).or_else(|| home(".config")));
    roots.extend(split(variable("XDG_CONFIG_DIRS"), "/etc/xdg"));
    roots.extend(["/usr/local/etc", "/etc"].map(PathBuf::from));
    roots.extend(variable("XDG_DATA_HOME").map(PathBuf::from).or_else(|| home(".local/share")));
    roots.extend(split(variable("XDG_DATA_DIRS"), "/usr/local/share:/usr/share"));
    roots.into_iter().map(|root| root.join("vulkan/icd.d")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_manifest_names_its_library() {
        let text =
            r#"{"file_format_version":"1.0.0","ICD":{"library_path":"libEGL_nvidia.so.0","api_version":"1.4.312"}}"#;
        assert_eq!(library(text), Ok("libEGL_nvidia.so.0".into()));
    }

    #[test]
    fn what_is_no_manifest_says_why() {
        for (text, why) in
            [("", "not JSON"), ("{}", "no library"), ("[1]", "no library"), ("{\"ICD\":3}", "no library")]
        {
            assert!(library(text).unwrap_err().contains(why), "{text}");
        }
        let gone = Manifest::read("/nowhere/at/all.json".into());
        assert!(matches!(gone.reading, Reading::Unreadable(_)));
        assert_eq!(gone.library_name(), "all.json");
    }

    #[test]
    fn a_library_that_is_gone_is_stale_and_a_bare_name_is_not() {
        let at = Path::new("/usr/share/vulkan/icd.d/x.json");
        assert!(matches!(locate(at, "/nowhere/lib.so".into()), Reading::Stale { .. }));
        assert!(matches!(locate(at, "../nowhere/lib.so".into()), Reading::Stale { .. }));
        assert!(matches!(locate(at, "lib_nowhere.so".into()), Reading::Library { file: None, .. }));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC*") {
            let _ = library(&text);
            locate(Path::new("/a/b.json"), text);
        }
    }
}
