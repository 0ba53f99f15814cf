//! The cache folder of the user, and atomic replacement of files in it.
//!
//! They are a convenience. Whatever is wrong with them costs time, never a picture, so whoever uses this crate goes on without.

#![deny(missing_docs, unsafe_code)]

use std::env;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The prefix of temporary files. A process that dies leaves one.
pub const UNFINISHED: &str = "new-";

/// The user's cache folder: `$XDG_CACHE_HOME/impasto`, else `~/.cache/impasto`; on Windows below `%LOCALAPPDATA%`.
pub fn user_folder() -> Option<PathBuf> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // A path that depends on where we happen to be is none.
    let absolute = |path: &PathBuf| path.is_absolute();
    match cfg!(windows) {
        true => variable("LOCALAPPDATA").filter(absolute).map(|path| path.join("impasto").join("cache")),
        false => variable("XDG_CACHE_HOME")
            .filter(absolute)
            .or_else(|| variable("HOME").filter(absolute).map(|home| home.join(".cache")))
            .map(|path| path.join("impasto")),
    }
}

/// Replaces a file atomically: a reader sees the old one or the new one, also if several processes write it. Its folder is made if it is
/// not there.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// let file = folder.path().join("kept").join("file");
/// impasto_store::put(&file, b"whole")?;
/// assert_eq!(std::fs::read(&file)?, b"whole");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    fs::create_dir_all(folder)?;
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let new = folder.join(format!("{UNFINISHED}{}-{count}-{}", std::process::id(), name.to_string_lossy()));
    let written = File::create(&new).and_then(|mut file| write(&mut file, bytes));
    let placed = written.and_then(|()| fs::rename(&new, path));
    if placed.is_err() {
        let _ = fs::remove_file(&new);
    }
    placed
}

/// Replaces a file atomically and durably: returns when the disk has it. The temporary file has one name, so a process that dies leaves at most
/// one, which the next one overwrites.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// let file = folder.path().join("file");
/// impasto_store::put_safely(&file, b"whole")?;
/// assert_eq!(std::fs::read(&file)?, b"whole");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn put_safely(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = unfinished(path).ok_or(io::ErrorKind::NotFound)?;
    let written = File::create(&new).and_then(|mut file| {
        write(&mut file, bytes)?;
        file.sync_all()
    });
    let placed = written.and_then(|()| fs::rename(&new, path));
    if placed.is_err() {
        let _ = fs::remove_file(&new);
    }
    placed?;
    // The name is in the folder, which has to reach the disk too; where folders cannot be opened, that is the system's business.
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
    Ok(())
}

fn write(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    #[cfg(feature = "faults")]
    if impasto_faults::write() {
        file.write_all(&bytes[..bytes.len() / 2])?;
        return Err(io::ErrorKind::StorageFull.into());
    }
    file.write_all(bytes)
}

/// Removes a file of [`put_safely`], and what a process that died may have left of it.
pub fn remove(path: &Path) -> io::Result<()> {
    if let Some(new) = unfinished(path) {
        let _ = fs::remove_file(new);
    }
    fs::remove_file(path)
}

fn unfinished(path: &Path) -> Option<PathBuf> {
    Some(path.with_file_name(format!(".{UNFINISHED}{}", path.file_name()?.to_string_lossy())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_of_one_file_leave_one_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::thread::scope(|scope| {
            for letter in b'a'..b'i' {
                let path = &path;
                scope.spawn(move || (0..50).for_each(|_| put(path, &[letter; 10_000]).unwrap()));
            }
            for _ in 0..200 {
                let bytes = fs::read(&path).unwrap_or_default();
                assert!(bytes.is_empty() || bytes.len() == 10_000 && bytes.iter().all(|b| *b == bytes[0]));
            }
        });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing unfinished is left");
    }

    #[test]
    fn what_cannot_be_placed_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("is-a-folder");
        fs::create_dir_all(path.join("with something in it")).unwrap();
        assert!(put(&path, b"bytes").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
