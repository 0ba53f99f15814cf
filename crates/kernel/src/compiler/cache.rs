//! Modules that were compiled before, on disk.
//!
//! An entry is named after all that its bytes depend on: the text of the kernels, which has their specialisation in it, the emitter, the target, the
//! optimisation and the sources of this compiler. It is put in place at once, so writers do not disturb each other, and holds its own name, its
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
/// Bytes before the module: the magic, the name, the length.
const HEAD: usize = 8 + 16 + 8;
const CHECKSUM: usize = 8;
/// The most bytes that are kept.
const MOST: u64 = 256 << 20;
/// A file that is being written for this long was left behind.
const STALE: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug)]
pub(super) struct Cache {
    folder: PathBuf,
    most: u64,
}

/// What an entry is named after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name(u128);

impl Name {
    pub(super) fn of(emitter: &dyn Emitter, kernels: &[Kernel], target: &Target, optimise: bool) -> Name {
        Name::by(&format!("{COMPILER}\n{}\n{emitter:?}", emitter.version()), kernels, target, optimise)
    }

    fn by(compiler: &str, kernels: &[Kernel], target: &Target, optimise: bool) -> Name {
        let mut text = format!("{compiler}\n{target:?}\n{optimise}\n{}\n", kernels.len());
        for k in kernels {
            // A name may hold anything before it is verified; its length keeps two kernels apart.
            text.push_str(&format!("{}\n{k}\n", k.name.len()));
        }
        Name(digest(text.as_bytes()))
    }
}

impl Cache {
    pub(super) fn at(folder: PathBuf) -> Cache {
        Cache { folder, most: MOST }
    }

    fn path(&self, name: Name) -> PathBuf {
        self.folder.join(format!("kernel-{:032x}", name.0))
    }

    /// The module of an entry, if it is there and whole.
    pub(super) fn get(&self, name: Name) -> Option<Vec<u8>> {
        let path = self.path(name);
        let data = fs::metadata(&path).ok()?;
        if !data.is_file() || data.len() > self.most {
            return None;
        }
        let module = read(&fs::read(&path).ok()?, name)?;
        // The oldest is removed first, and this one is in use.
        let _ = File::options().append(true).open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        Some(module)
    }

    pub(super) fn put(&self, name: Name, module: &[u8], messages: &Messages) {
        if let Err(error) = impasto_store::put(&self.path(name), &write(module, name)) {
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
fn write(module: &[u8], name: Name) -> Vec<u8> {
    let mut all = MAGIC.to_vec();
    all.extend(name.0.to_le_bytes());
    all.extend((module.len() as u64).to_le_bytes());
    all.extend(module);
    all.extend(checksum(&all));
    all
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM] {
    (digest(bytes) as u64).to_le_bytes()
}

/// The module of an entry that is whole and has this name.
fn read(all: &[u8], name: Name) -> Option<Vec<u8>> {
    let (rest, sum) = all.split_at_checked(all.len().checked_sub(CHECKSUM)?)?;
    let (head, module) = rest.split_at_checked(HEAD)?;
    let length = u64::from_le_bytes(head[24..].try_into().ok()?);
    let whole = head[..8] == *MAGIC && head[8..24] == name.0.to_le_bytes() && module.len() as u64 == length;
    (whole && checksum(rest) == sum).then(|| module.to_vec())
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
        let name = |compiler: &str| Name::by(compiler, &kernels, &target, true);
        assert_ne!(name("0.1.0-1"), name("0.1.0-2"));
        assert!(COMPILER.starts_with(env!("CARGO_PKG_VERSION")) && COMPILER.len() > 16, "{COMPILER}");
    }

    #[test]
    fn the_oldest_entries_go_and_those_in_use_stay() {
        let folder = tempfile::tempdir().unwrap();
        let messages = Messages::default();
        let module = vec![7u8; 400];
        // Ten entries of 440 bytes.
        let cache = Cache { folder: folder.path().to_owned(), most: 4400 };
        let names: Vec<Name> = (0..11).map(Name).collect();
        let age = |name: Name, seconds: u64| {
            let file = File::options().append(true).open(cache.path(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
        };
        for (i, &name) in (0..).zip(&names[..10]) {
            cache.put(name, &module, &messages);
            age(name, 1000 - i);
        }
        fs::write(folder.path().join("new-1-1-kernel-x"), "left behind").unwrap();
        fs::write(folder.path().join("someone else's"), "kept").unwrap();
        let left = File::options().append(true).open(folder.path().join("new-1-1-kernel-x")).unwrap();
        left.set_modified(SystemTime::now() - 2 * STALE).unwrap();
        // The oldest is read, so it is not the oldest any more.
        assert_eq!(cache.get(names[0]).as_ref(), Some(&module));
        cache.put(names[10], &module, &messages);
        let kept: Vec<usize> = (0..11).filter(|&i| cache.get(names[i]).is_some()).collect();
        assert_eq!(kept, [0, 5, 6, 7, 8, 9, 10]);
        let others = fs::read_dir(folder.path())
            .unwrap()
            .flatten()
            .filter(|e| !e.file_name().to_string_lossy().starts_with("kernel-"));
        assert_eq!(others.map(|e| e.file_name()).collect::<Vec<_>>(), ["someone else's"]);
        assert_eq!(messages.to_string(), "");
    }
}
