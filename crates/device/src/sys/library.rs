//! Libraries opened by name, in a child only.

use std::ffi::OsStr;

use libloading::Library;

/// Opens a library and leaves it open until the process ends: its threads may run on.
pub(crate) fn open_library(name: &OsStr) -> Result<&'static Library, String> {
    // SAFETY: the library's initialisers run here and may do anything. Only a child comes here, which we can lose.
    match unsafe { Library::new(name) } {
        Ok(library) => Ok(Box::leak(Box::new(library))),
        // The system's own words name the file that is missing.
        Err(error) => Err(source_text(&error)),
    }
}

fn source_text(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), source_text)
}
