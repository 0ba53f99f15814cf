//! A large file, written piece by piece, that appears whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::{Claim, sync_folder, unfinished};

/// A file that is being written under another name in the same folder. [`NewFile::finish`] gives it its name; dropped before, it is removed. The
/// temporary name is one for each file, so a process that was killed leaves at most one, which the next one overwrites.
///
/// ```
/// use std::io::Write;
/// # let folder = tempfile::tempdir()?;
/// let path = folder.path().join("file");
/// let mut file = impasto_store::NewFile::create(&path)?;
/// file.write_all(b"whole")?;
/// assert!(!path.exists());
/// file.finish()?;
/// assert_eq!(std::fs::read(&path)?, b"whole");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct NewFile {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
    placed: bool,
    _claim: Claim,
}

impl NewFile {
    /// Begins a file whose folder is there. One that another process is writing is an error.
    pub fn create(path: &Path) -> io::Result<NewFile> {
        let temporary = unfinished(path).ok_or(io::ErrorKind::InvalidInput)?;
        let busy = || io::Error::new(io::ErrorKind::ResourceBusy, "another process is writing it");
        let claim = Claim::of(path).ok_or_else(busy)?;
        let file = File::create(&temporary)?;
        Ok(NewFile { path: path.into(), temporary, file, placed: false, _claim: claim })
    }

    /// Gives the file its name, in place of one that has it, when the disk has all of it.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.path)?;
        self.placed = true;
        sync_folder(&self.path);
        Ok(())
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        #[cfg(feature = "faults")]
        if impasto_faults::write() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.placed {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_given_up_leaves_nothing_and_the_old_one_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "old").unwrap();
        let mut new = NewFile::create(&path).unwrap();
        new.write_all(b"half").unwrap();
        assert!(NewFile::create(&path).is_err(), "one writer at a time");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        drop(new);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        let mut new = NewFile::create(&path).unwrap();
        new.write_all(b"new").unwrap();
        new.finish().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(fs::read(&path).unwrap(), b"new");
        let _unfinished = NewFile::create(&path).unwrap();
        crate::remove_unfinished(&path);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
