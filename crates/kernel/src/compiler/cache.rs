//! Modules that were compiled before, on disk.
//!
//! The key of a module is made of all that its bytes depend on: the text of the kernels, which has their specialisation in it, the emitter, the target, the
//! optimisation and the sources of this compiler. An entry is put in place at once, so writers do not disturb each other, and holds its own key, its
//! length and a checksum, so that what is damaged is compiled again and replaced. Only what was shipped is kept. What is wrong with the
//! folder costs time and a message.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::{Emitter, Messages};
use crate::hash::digest;
use crate::ir::Kernel;
use crate::target::Target;

/// The sources that this compiler was built from.
const COMPILER: &str = env!("IMPASTO_SOURCES");
const MAGIC: &[u8; 8] = b"impastok";
/// Bytes before the code: the magic, the key, the length.
const HEAD: usize = 8 + 16 + 8;
const CHECKSUM: usize = 8;
/// The most bytes that are kept.
const MOST: u64 = 256 << 20;
/// A file that is being written for this long was left behind.
const STALE: Duration = Duration::from_secs(3600);

/// Code that was compiled before, in files of a folder that later runs find: an entry is there whole, or not at all. The oldest give way above 256 MiB.
///
/// ```
/// use impasto_kernel::{CodeCache, Messages};
/// let folder = tempfile::tempdir()?;
/// let cache = CodeCache::at(folder.path());
/// cache.put(7, b"code", &Messages::default());
/// assert_eq!(cache.get(7).as_deref(), Some(&b"code"[..]));
/// std::fs::write(std::fs::read_dir(folder.path())?.next().unwrap()?.path(), b"damaged")?;
/// assert_eq!(cache.get(7), None);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CodeCache {
    folder: PathBuf,
    most: u64,
}

/// The key of a module: all that its bytes depend on.
pub(super) fn module_key(emitter: &dyn Emitter, kernels: &[Kernel], target: &Target, optimise: bool) -> u128 {
    key(&format!("{COMPILER}\n{}\n{emitter:?}", emitter.version()), kernels, target, optimise)
}

fn key(compiler: &str, kernels: &[Kernel], target: &Target, optimise: bool) -> u128 {
    let mut text = format!("{compiler}\n{target:?}\n{optimise}\n{}\n", kernels.len());
    for k in kernels {
        // A name may hold anything before it is verified; its length keeps two kernels apart.
        text.push_str(&format!("{}\n{k}\n", k.name.len()));
    }
    digest(text.as_bytes())
}

impl CodeCache {
    /// In this folder, which is made with the first entry.
    pub fn at(folder: impl Into<PathBuf>) -> CodeCache {
        CodeCache { folder: folder.into(), most: MOST }
    }

    fn path(&self, key: u128) -> PathBuf {
        self.folder.join(format!("kernel-{key:032x}"))
    }

    /// The code of an entry, if it is there and whole.
    pub fn get(&self, key: u128) -> Option<Vec<u8>> {
        let path = self.path(key);
        let data = fs::metadata(&path).ok()?;
        if !data.is_file() || data.len() > self.most {
            return None;
        }
        let code = read(&fs::read(&path).ok()?, key)?;
        // The oldest is removed first, and this one is in use.
        let _ = File::options().append(true).open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        Some(code)
    }

    /// Keeps an entry for later runs. A folder that cannot be written to is said in the messages.
    pub fn put(&self, key: u128, code: &[u8], messages: &Messages) {
        if let Err(error) = impasto_store::put(&self.path(key), &write(code, key)) {
            let folder = self.folder.display();
            messages.say(format!("{folder} cannot be written to ({error}): kernels are compiled in every run"));
        }
        self.sweep();
    }

    /// Removes the oldest entries above the size, and what dead processes left.
    fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        let now = SystemTime::now();
        let mut all: Vec<(SystemTime, PathBuf, u64)> = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let (Some(name), Ok(data)) = (name.to_str(), entry.metadata()) else { continue };
            let changed = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if name.starts_with("kernel-") {
                all.push((changed, entry.path(), data.len()));
            } else if name.starts_with(impasto_store::UNFINISHED)
                && name.contains("-kernel-")
                && now.duration_since(changed).is_ok_and(|age| age > STALE)
            {
                let _ = fs::remove_file(entry.path());
            }
        }
        let mut size: u64 = all.iter().map(|e| e.2).sum();
        if size <= self.most {
            return;
        }
        all.sort_unstable();
        for (_, path, bytes) in all {
            // A little more than needed, so that not every entry sweeps.
            if size <= self.most / 4 * 3 {
                break;
            }
            let _ = fs::remove_file(path);
            size -= bytes;
        }
    }
}

/// An entry as bytes.
fn write(code: &[u8], key: u128) -> Vec<u8> {
    let mut all = MAGIC.to_vec();
    all.extend(key.to_le_bytes());
    all.extend((code.len() as u64).to_le_bytes());
    all.extend(code);
    all.extend(checksum(&all));
    all
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM] {
    (digest(bytes) as u64).to_le_bytes()
}

/// The code of an entry that is whole and has this key.
fn read(all: &[u8], key: u128) -> Option<Vec<u8>> {
    let (rest, sum) = all.split_at_checked(all.len().checked_sub(CHECKSUM)?)?;
    let (head, code) = rest.split_at_checked(HEAD)?;
    let length = u64::from_le_bytes(head[24..].try_into().ok()?);
    let whole = head[..8] == *MAGIC && head[8..24] == key.to_le_bytes() && code.len() as u64 == length;
    (whole && checksum(rest) == sum).then(|| code.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel() -> Kernel {
        "kernel k(1, 1, 1) {\n  return\n}".parse().unwrap()
    }

    #[test]
    fn another_compiler_has_other_entries() {
        let (kernels, target) = ([kernel()], Target::LEAST);
        let key = |compiler: &str| key(compiler, &kernels, &target, true);
        assert_ne!(key("0.1.0-1"), key("0.1.0-2"));
        assert!(COMPILER.starts_with(env!("CARGO_PKG_VERSION")) && COMPILER.len() > 16, "{COMPILER}");
    }

    #[test]
    fn the_oldest_entries_go_and_those_in_use_stay() {
        let folder = tempfile::tempdir().unwrap();
        let messages = Messages::default();
        let module = vec![7u8; 400];
        // Ten entries of 440 bytes.
        let cache = CodeCache { folder: folder.path().to_owned(), most: 4400 };
        let keys: Vec<u128> = (0..11).collect();
        let age = |key: u128, seconds: u64| {
            let file = File::options().append(true).open(cache.path(key)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
        };
        for (i, &key) in (0..).zip(&keys[..10]) {
            cache.put(key, &module, &messages);
            age(key, 1000 - i);
        }
        fs::write(folder.path().join("new-1-1-kernel-x"), "left behind").unwrap();
        fs::write(folder.path().join("someone else's"), "kept").unwrap();
        let left = File::options().append(true).open(folder.path().join("new-1-1-kernel-x")).unwrap();
        left.set_modified(SystemTime::now() - 2 * STALE).unwrap();
        // The oldest is read, so it is not the oldest any more.
        assert_eq!(cache.get(keys[0]).as_ref(), Some(&module));
        cache.put(keys[10], &module, &messages);
        let kept: Vec<usize> = (0..11).filter(|&i| cache.get(keys[i]).is_some()).collect();
        assert_eq!(kept, [0, 5, 6, 7, 8, 9, 10]);
        let others = fs::read_dir(folder.path())
            .unwrap()
            .flatten()
            .filter(|e| !e.file_name().to_string_lossy().starts_with("kernel-"));
        assert_eq!(others.map(|e| e.file_name()).collect::<Vec<_>>(), ["someone else's"]);
        assert_eq!(messages.to_string(), "");
    }
}
