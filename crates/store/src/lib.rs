//! The cache folder of the user, atomic replacement of files, checksums, and claims on files that are being made.
//!
//! They are a convenience. Whatever is wrong with them costs time, never a picture, so whoever uses this crate goes on without.

#![deny(missing_docs, unsafe_code)]

mod new_file;

use std::env;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

pub use new_file::NewFile;

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
    sync_folder(path);
    Ok(())
}

/// The name of a file is in its folder, which has to reach the disk too; where folders cannot be opened, that is the system's business.
fn sync_folder(path: &Path) {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
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
    remove_unfinished(path);
    fs::remove_file(path)
}

/// Removes what there is of a file that [`put_safely`] or a [`NewFile`] has not finished, for a process that ends at once.
pub fn remove_unfinished(path: &Path) {
    if let Some(new) = unfinished(path) {
        let _ = fs::remove_file(new);
    }
}

fn unfinished(path: &Path) -> Option<PathBuf> {
    Some(path.with_file_name(format!(".{UNFINISHED}{}", path.file_name()?.to_string_lossy())))
}

/// A checksum that every changed bit of what it was taken over changes: against accidents, not against enemies.
///
/// ```
/// use impasto_store::Checksum;
///
/// let sum = Checksum::new().over(b"head").over(b"tail").value();
/// assert_ne!(sum, Checksum::new().over(b"head").over(b"tall").value());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum(u64);

impl Default for Checksum {
    fn default() -> Checksum {
        Checksum(0x9e37_79b9_7f4a_7c15)
    }
}

impl Checksum {
    /// Of nothing yet.
    pub fn new() -> Checksum {
        Checksum::default()
    }

    /// The same with some bytes more.
    pub fn over(self, bytes: &[u8]) -> Checksum {
        let (eights, rest) = bytes.as_chunks::<8>();
        // Each step is a bijection of the sum, so that one changed word is never lost.
        let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29);
        let sum = eights.iter().fold(self.0, |sum, eight| mix(sum, u64::from_le_bytes(*eight)));
        let sum = rest.iter().fold(sum, |sum, byte| mix(sum, u64::from(*byte)));
        Checksum(mix(sum, bytes.len() as u64))
    }

    /// The sum.
    pub fn value(self) -> u64 {
        self.0
    }
}

/// The right to make a file, which one process has at a time; it ends with this value or with the process.
#[derive(Debug)]
pub struct Claim {
    lock: PathBuf,
    /// Locked as long as it is open.
    file: Option<File>,
}

impl Claim {
    /// Claims a file; none where another process, or another claim of this one, has it. Where nothing can be locked, nobody is refused.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// let picture = folder.path().join("picture.png");
    /// let ours = impasto_store::Claim::of(&picture).expect("nobody makes it");
    /// assert!(impasto_store::Claim::of(&picture).is_none());
    /// drop(ours);
    /// assert!(impasto_store::Claim::of(&picture).is_some());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn of(path: &Path) -> Option<Claim> {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let whole =
            fs::canonicalize(folder).unwrap_or_else(|_| folder.into()).join(path.file_name().unwrap_or_default());
        let name = format!("{:016x}", Checksum::new().over(whole.as_os_str().as_encoded_bytes()).value());
        let lock = user_folder().unwrap_or_else(|| env::temp_dir().join("impasto")).join("locks").join(name);
        let open = || {
            fs::create_dir_all(lock.parent()?).ok()?;
            File::options().create(true).append(true).open(&lock).ok()
        };
        loop {
            let Some(file) = open() else { return Some(Claim { lock, file: None }) };
            match file.try_lock() {
                Ok(()) if is_at(&file, &lock) => return Some(Claim { lock, file: Some(file) }),
                // Who had it has just removed it.
                Ok(()) => {}
                Err(fs::TryLockError::WouldBlock) => return None,
                Err(fs::TryLockError::Error(_)) => return Some(Claim { lock, file: None }),
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.file.is_some() {
            let _ = fs::remove_file(&self.lock);
        }
    }
}

/// Whether an open file is the one that has this name.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
    matches!((file.metadata(), fs::metadata(path)), (Ok(open), Ok(named)) if id(&open) == id(&named))
}

/// A file that is open keeps its name there.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
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
