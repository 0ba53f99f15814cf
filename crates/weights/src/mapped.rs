//! A file in memory without reading it.

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::WeightsError;

/// A mapped file.
pub(crate) struct Mapped {
    pub(crate) path: PathBuf,
    map: Mmap,
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
        Ok(Mapped { path: path.into(), map })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }
}
