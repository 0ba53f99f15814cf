//! A file in memory without reading it.

use std::borrow::Cow;
use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use memmap2::Mmap;
use serde::{Deserialize, Serialize};

use crate::WeightsError;
use crate::packed::{is_packed, unpack};

/// A file as it was when it was opened, by which another process makes sure that it opens the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// The file, from the root on.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// When it was changed last, in nanoseconds since 1970, where the system tells.
    pub changed: Option<u64>,
}

impl Stamp {
    fn of(path: &Path, metadata: &Metadata) -> Option<Stamp> {
        let since = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let changed = since.and_then(|time| time.as_nanos().try_into().ok());
        Some(Stamp { path: std::path::absolute(path).ok()?, bytes: metadata.len(), changed })
    }
}

/// A file whose bytes are at hand.
pub(crate) struct Mapped {
    pub(crate) path: PathBuf,
    /// None of what is not a file that is mapped as it is.
    pub(crate) stamp: Option<Stamp>,
    bytes: Bytes,
}

enum Bytes {
    Map(Mmap),
    Memory(Cow<'static, [u8]>),
}

impl Mapped {
    pub(crate) fn open(path: &Path) -> Result<Mapped, WeightsError> {
        let error = |source| WeightsError::Open { path: path.into(), source };
        let file = File::open(path).map_err(error)?;
        let metadata = file.metadata().map_err(error)?;
        if metadata.is_dir() {
            let problem = "is a folder; a safetensors file is needed here".into();
            return Err(WeightsError::NotAModel { path: path.into(), problem });
        }
        if metadata.len() == 0 {
            return Err(WeightsError::NotAModel { path: path.into(), problem: "is empty".into() });
        }
        // SAFETY: a map is undefined if somebody shortens the file while we hold it; that kills the process with a bus error
        // at worst, and copying whole models to be safe from it would double their memory.
        let map = unsafe { Mmap::map(&file) }.map_err(error)?;
        let (bytes, stamp) = match is_packed(&map) {
            true => (Bytes::Memory(unpack(path, &map)?.into()), None),
            false => (Bytes::Map(map), Stamp::of(path, &metadata)),
        };
        Ok(Mapped { path: path.into(), stamp, bytes })
    }

    /// A file that is in memory already, under this name.
    pub(crate) fn of(name: &str, bytes: Cow<'static, [u8]>) -> Result<Mapped, WeightsError> {
        let path = PathBuf::from(name);
        let bytes = match is_packed(&bytes) {
            true => unpack(&path, &bytes)?.into(),
            false => bytes,
        };
        Ok(Mapped { path, stamp: None, bytes: Bytes::Memory(bytes) })
    }

    /// Let go of the memory that holds these bytes of a mapped file; who reads them again has them from the file again.
    pub(crate) fn release(&self, range: std::ops::Range<usize>) {
        #[cfg(unix)]
        if let Bytes::Map(map) = &self.bytes
            && range.end <= map.len()
        {
            // SAFETY: the map is read-only and of a file, so pages that are dropped come back with the same bytes. A failure changes
            // nothing: the pages stay.
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len()) };
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Map(map) => map,
            Bytes::Memory(bytes) => bytes,
        }
    }
}
