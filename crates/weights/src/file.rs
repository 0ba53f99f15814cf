//! A model file, read by position, that may change while it is in use.
//!
//! Nothing is mapped: a mapped file that somebody truncates kills the process that reads it, and one that is overwritten changes under it. A
//! [`FileStamp`] is taken when the file is opened and compared before each load and after its last read, so that what was read is of one file.

use std::borrow::Cow;
use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::WeightsError;
use crate::packed::{is_packed, unpack};

/// Opens a file to read, or a folder. A pipe or a device is an error that says so: opening a named pipe would wait for its writer, and what comes
/// out of one cannot be read by position.
pub fn open_file(path: &Path) -> io::Result<File> {
    let kind = std::fs::metadata(path)?.file_type();
    if kind.is_file() || kind.is_dir() {
        return File::open(path);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("it is {}, and a file is needed: save what it gives to a file first", special(kind)),
    ))
}

#[cfg(unix)]
fn special(kind: std::fs::FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match kind {
        _ if kind.is_fifo() => "a pipe",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

#[cfg(not(unix))]
fn special(_: std::fs::FileType) -> &'static str {
    "no regular file"
}

/// A file as it was when it was opened, by which a change is noticed, and another process makes sure that it opens the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStamp {
    /// The file, from the root on.
    pub path: PathBuf,
    /// Device and inode, where the system has them.
    pub inode: Option<(u64, u64)>,
    /// Its length.
    pub bytes: u64,
    /// When its contents were changed last, in nanoseconds since 1970, where the system tells.
    pub modified: Option<u64>,
    /// When anything about it was changed last, in nanoseconds since 1970, where the system tells.
    pub changed: Option<i128>,
    /// How many names it has, where the system tells.
    pub links: Option<u64>,
}

impl FileStamp {
    fn of(path: &Path, metadata: &Metadata) -> io::Result<FileStamp> {
        let since = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let modified = since.and_then(|time| time.as_nanos().try_into().ok());
        #[cfg(unix)]
        let (inode, changed, links) = {
            use std::os::unix::fs::MetadataExt;
            let changed = i128::from(metadata.ctime()) * 1_000_000_000 + i128::from(metadata.ctime_nsec());
            (Some((metadata.dev(), metadata.ino())), Some(changed), Some(metadata.nlink()))
        };
        #[cfg(not(unix))]
        let (inode, changed, links) = (None, None, None);
        Ok(FileStamp { path: std::path::absolute(path)?, inode, bytes: metadata.len(), modified, changed, links })
    }

    /// Whether the name still leads to this file, unchanged.
    pub(crate) fn is_current(&self) -> bool {
        let now = std::fs::metadata(&self.path).and_then(|metadata| FileStamp::of(&self.path, &metadata));
        now.is_ok_and(|now| self.change(&now).is_none())
    }

    /// What became of the file since. A file that was renamed, or whose name was given to another, has other attributes and the same contents.
    fn change(&self, now: &FileStamp) -> Option<FileFault> {
        let renamed = || {
            let there = std::fs::metadata(&self.path).and_then(|metadata| FileStamp::of(&self.path, &metadata));
            self.links != now.links || there.map_or(true, |there| there.inode != self.inode)
        };
        match now {
            _ if now.inode != self.inode => Some(FileFault::Replaced),
            _ if now.bytes < self.bytes => Some(FileFault::Truncated),
            _ if (now.bytes, now.modified) != (self.bytes, self.modified) => Some(FileFault::Overwritten),
            _ if now.changed != self.changed && !renamed() => Some(FileFault::Overwritten),
            _ => None,
        }
    }
}

/// What happened to a model file that is in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileFault {
    /// It is shorter than it was.
    Truncated,
    /// Its contents are others, or may be.
    Overwritten,
    /// Its name leads to another file.
    Replaced,
    /// Its name leads nowhere.
    Missing,
    /// It cannot be read, for this reason.
    Unreadable(String),
}

/// A model file that cannot be read on, since it is not what it was when it was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// What happened to it.
    pub fault: FileFault,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.fault {
            FileFault::Truncated => {
                write!(f, "{path}: was truncated while it was in use: restore the file, then run again")
            }
            FileFault::Overwritten => {
                write!(f, "{path}: was overwritten while it was in use: run again when the file is complete")
            }
            FileFault::Replaced => {
                write!(f, "{path}: was replaced by another file while it was in use: run again to use the new one")
            }
            FileFault::Missing => {
                write!(
                    f,
                    "{path}: was moved or deleted while it was in use: put it back, or name another, and run again"
                )
            }
            FileFault::Unreadable(reason) => {
                write!(f, "{path}: cannot be read: {reason}: check the disk, then run again")
            }
        }
    }
}

impl std::error::Error for FileError {}

/// The bytes of a model file.
pub(crate) struct ModelFile {
    pub(crate) path: PathBuf,
    bytes: Bytes,
    /// Bytes made of the file's when it was opened, which follow its last one.
    appended: Vec<u8>,
}

enum Bytes {
    File { file: File, opened: FileStamp },
    Memory(Cow<'static, [u8]>),
}

impl ModelFile {
    pub(crate) fn open(path: &Path) -> Result<ModelFile, WeightsError> {
        let error = |source| WeightsError::Open { path: path.into(), source };
        let file = open_file(path).map_err(error)?;
        let metadata = file.metadata().map_err(error)?;
        if metadata.is_dir() {
            let problem = "is a folder; a model file is needed here".into();
            return Err(WeightsError::NotAModel { path: path.into(), problem });
        }
        if metadata.len() == 0 {
            return Err(WeightsError::NotAModel { path: path.into(), problem: "is empty".into() });
        }
        let opened = FileStamp::of(path, &metadata).map_err(error)?;
        let mut file = ModelFile { path: path.into(), bytes: Bytes::File { file, opened }, appended: vec![] };
        let mut start = [0; 4];
        let known = file.len().min(start.len() as u64) as usize;
        file.read_at(0, &mut start[..known])?;
        if is_packed(&start[..known]) {
            let packed = file.read(0..file.len() as usize)?;
            file.check()?;
            file.bytes = Bytes::Memory(unpack(path, &packed)?.into());
        }
        Ok(file)
    }

    /// A file that is in memory already, under this name.
    pub(crate) fn of(name: &str, bytes: Cow<'static, [u8]>) -> Result<ModelFile, WeightsError> {
        let path = PathBuf::from(name);
        let bytes = match is_packed(&bytes) {
            true => unpack(&path, &bytes)?.into(),
            false => bytes,
        };
        Ok(ModelFile { path, bytes: Bytes::Memory(bytes), appended: vec![] })
    }

    /// The file as it was when it was opened; none of what is in memory.
    pub(crate) fn stamp(&self) -> Option<&FileStamp> {
        match &self.bytes {
            Bytes::File { opened, .. } => Some(opened),
            Bytes::Memory(_) => None,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        match &self.bytes {
            Bytes::File { opened, .. } => opened.bytes,
            Bytes::Memory(bytes) => bytes.len() as u64,
        }
    }

    /// Puts bytes behind the last one of the file, as if they were its own.
    pub(crate) fn append(&mut self, bytes: Vec<u8>) {
        self.appended = bytes;
    }

    /// The bytes of a range, if they were put behind the file.
    fn in_appended(&self, range: Range<usize>) -> Option<&[u8]> {
        let length = self.len() as usize;
        self.appended.get(range.start.checked_sub(length)?..range.end.checked_sub(length)?)
    }

    fn failed(&self, fault: FileFault) -> FileError {
        FileError { path: self.path.clone(), fault }
    }

    /// Fills `out` with the bytes from `offset` on.
    pub(crate) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), FileError> {
        // A tensor without elements may be anywhere, also behind the end.
        if out.is_empty() {
            return Ok(());
        }
        if let Some(bytes) = self.in_appended(offset as usize..offset as usize + out.len()) {
            out.copy_from_slice(bytes);
            return Ok(());
        }
        match &self.bytes {
            Bytes::File { file, .. } => read_exact_at(file, out, offset).map_err(|error| {
                self.failed(match error.kind() {
                    io::ErrorKind::UnexpectedEof => FileFault::Truncated,
                    _ => FileFault::Unreadable(error.to_string()),
                })
            }),
            Bytes::Memory(bytes) => {
                let from = bytes.get(offset as usize..).and_then(|rest| rest.get(..out.len()));
                out.copy_from_slice(from.ok_or_else(|| self.failed(FileFault::Truncated))?);
                Ok(())
            }
        }
    }

    /// The bytes of a range.
    pub(crate) fn read(&self, range: Range<usize>) -> Result<Vec<u8>, FileError> {
        let mut out = vec![0; range.len()];
        self.read_at(range.start as u64, &mut out)?;
        Ok(out)
    }

    /// The bytes of a range, if they are in memory.
    pub(crate) fn in_memory(&self, range: Range<usize>) -> Option<&[u8]> {
        match &self.bytes {
            _ if range.start as u64 >= self.len() => self.in_appended(range),
            Bytes::File { .. } => None,
            Bytes::Memory(bytes) => bytes.get(range),
        }
    }

    /// Makes sure that the file is what it was when it was opened.
    pub(crate) fn check(&self) -> Result<(), FileError> {
        let Bytes::File { file, opened } = &self.bytes else { return Ok(()) };
        let now = file.metadata().and_then(|metadata| FileStamp::of(&opened.path, &metadata));
        let now = now.map_err(|error| self.failed(FileFault::Unreadable(error.to_string())))?;
        opened.change(&now).map_or(Ok(()), |fault| Err(self.failed(fault)))
    }

    /// Makes sure that it is the file that another process has opened.
    pub(crate) fn check_same(&self, theirs: &FileStamp) -> Result<(), FileError> {
        let fault = self.stamp().map_or(Some(FileFault::Overwritten), |ours| theirs.change(ours));
        fault.map_or(Ok(()), |fault| Err(self.failed(fault)))
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut out: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !out.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, out, offset)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => (out, offset) = (&mut out[n..], offset + n as u64),
        }
    }
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::io::Write;

    fn written(folder: &Path, name: &str, byte: u8) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, [byte; 1000]).expect("written");
        path
    }

    fn fault(file: &ModelFile) -> Option<FileFault> {
        file.check().err().map(|error| error.fault)
    }

    #[test]
    fn what_happens_to_an_open_file_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |name| ModelFile::open(&written(folder.path(), name, 1)).expect("it opens");
        let file = open("truncated");
        File::options().write(true).open(&file.path).and_then(|f| f.set_len(10)).expect("truncated");
        assert_eq!(fault(&file), Some(FileFault::Truncated));
        assert_eq!(file.read_at(5, &mut [0; 10]).expect_err("too short").fault, FileFault::Truncated);

        let file = open("overwritten");
        std::thread::sleep(std::time::Duration::from_millis(20));
        File::options().write(true).open(&file.path).and_then(|mut f| f.write_all(&[2; 1000])).expect("overwritten");
        assert_eq!(fault(&file), Some(FileFault::Overwritten));

        // As `cp -p` does it: the time of the contents is that of another file.
        let file = open("dated back");
        let before = std::fs::metadata(&file.path).and_then(|m| m.modified()).expect("it has a time");
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut other = File::options().write(true).open(&file.path).expect("it opens");
        other.write_all(&[2; 1000]).and_then(|()| other.set_modified(before)).expect("overwritten");
        assert_eq!(fault(&file), Some(FileFault::Overwritten));
    }

    #[test]
    fn a_file_that_only_lost_its_name_is_read_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = ModelFile::open(&written(folder.path(), "a", 1)).expect("it opens");
        let stamp = file.stamp().expect("a file").clone();
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::rename(written(folder.path(), "b", 2), &file.path).expect("replaced");
        assert_eq!(fault(&file), None);
        assert_eq!(file.read(0..1000).expect("the old one"), [1; 1000]);
        // Who opens it by its name has another.
        let reopened = ModelFile::open(&file.path).expect("it opens");
        assert_eq!(reopened.check_same(&stamp).expect_err("another file").fault, FileFault::Replaced);

        let file = ModelFile::open(&written(folder.path(), "c", 1)).expect("it opens");
        std::fs::rename(&file.path, folder.path().join("d")).expect("moved");
        assert_eq!(fault(&file), None);
        std::fs::remove_file(folder.path().join("d")).expect("removed");
        assert_eq!(fault(&file), None);
    }
}
