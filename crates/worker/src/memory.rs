//! Shared memory of a process and its worker: a file without a name, read and written by position.

use std::fs::File;
use std::io;

/// The fewest bytes that go through shared memory; fewer go with their message.
pub(crate) const LARGE: u64 = 64 << 10;

#[cfg(unix)]
pub(crate) fn read(file: &File, at: u64, to: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, to, at)
}

#[cfg(unix)]
pub(crate) fn write(file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(not(unix))]
pub(crate) fn read(_: &File, _: u64, _: &mut [u8]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(unix))]
pub(crate) fn write(_: &File, _: u64, _: &[u8]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
