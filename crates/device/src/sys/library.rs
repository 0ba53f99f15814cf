//! Libraries opened by name, in a child only.

use std::ffi::OsStr;

use libloading::Library;

/// Opens a library and leaves it open until the process ends: its threads may run on.
pub(crate) fn open_library(name: &OsStr) -> Result<&'static Library, String> {
    // SAFETY: the library's initialisers run here and may do anything. Only a child comes here, which we can lose.
    let opened = unsafe { Library::new(name) };
    #[cfg(windows)]
    let opened = opened.or_else(|error| {
        use libloading::os::windows::{
            LOAD_LIBRARY_SEARCH_DEFAULT_DIRS, LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR, Library as Windows,
        };
        // What a library needs may lie beside it, and is looked for there only on demand. The Vulkan loader does the same.
        let beside = LOAD_LIBRARY_SEARCH_DEFAULT_DIRS | LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR;
        // SAFETY: as above.
        unsafe { Windows::load_with_flags(name, beside) }.map(Library::from).map_err(|_| error)
    });
    match opened {
        Ok(library) => Ok(Box::leak(Box::new(library))),
        // The system's own words name the file that is missing.
        Err(error) => Err(source_text(&error)),
    }
}

fn source_text(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), source_text)
}
