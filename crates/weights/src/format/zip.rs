//! The list of files in a zip archive. Nothing is unpacked: files that are stored as they are can be read by position.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Wrong;
use super::cursor::Cursor;
use crate::WeightsError;
use crate::file::ModelFile;

const END: [u8; 4] = *b"PK\x05\x06";
const END_64: [u8; 4] = *b"PK\x06\x06";
const ENTRY: [u8; 4] = *b"PK\x01\x02";
const LOCAL: [u8; 4] = *b"PK\x03\x04";
/// What the end of an archive takes, without the remark that may follow.
const END_BYTES: usize = 22;
/// Storages of the largest models are some ten thousand.
const MAX_ENTRIES: u64 = 200_000;

/// The files of an archive, by name, and where each one's header is.
pub(super) struct Archive<'a> {
    source: &'a ModelFile,
    entries: BTreeMap<String, Entry>,
}

struct Entry {
    /// Where its header is.
    header: u64,
    bytes: u64,
    packed: u64,
    /// How it is packed; 0 is not at all.
    method: u16,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

impl<'a> Archive<'a> {
    /// Reads the list at the end of the file.
    pub(super) fn open(source: &'a ModelFile) -> Result<Archive<'a>, WeightsError> {
        let wrong = Wrong(&source.path);
        let tail = source.len().min(END_BYTES as u64 + u64::from(u16::MAX));
        let tail_at = source.len() - tail;
        let bytes = source.read(tail_at as usize..source.len() as usize)?;
        let last = bytes.len().saturating_sub(END_BYTES);
        let end = (0..=last).rev().find(|&at| bytes[at..].starts_with(&END) && bytes.len() - at >= END_BYTES);
        let cut = || wrong.at(source.len(), "the list of a zip archive's files is missing at its end: it is cut off");
        let end = end.ok_or_else(cut)?;
        let mut count = u64::from(u16_at(&bytes, end + 10));
        let mut at = u64::from(u32_at(&bytes, end + 16));
        if count == 0xffff || at == 0xffff_ffff || u32_at(&bytes, end + 12) == 0xffff_ffff {
            // The sizes stand in a record of their own, which a locator of 20 bytes before the end points to.
            let record = end.checked_sub(20).map(|locator| u64_at(&bytes, locator + 8)).ok_or_else(cut)?;
            let mut cursor = Cursor::new(source, record.min(source.len()));
            let record_bytes: [u8; 56] = cursor.take()?;
            if !record_bytes.starts_with(&END_64) {
                return Err(wrong.at(record, "the end of a large zip archive should be here"));
            }
            (count, at) = (u64_at(&record_bytes, 32), u64_at(&record_bytes, 48));
        }
        if count > MAX_ENTRIES || at > source.len() {
            return Err(wrong.at(tail_at + end as u64, format!("it claims {count} files, listed at byte {at}")));
        }
        let mut archive = Archive { source, entries: BTreeMap::new() };
        let mut cursor = Cursor::new(source, at);
        for _ in 0..count {
            archive.add(&mut cursor)?;
        }
        Ok(archive)
    }

    /// Takes in the next entry of the list.
    fn add(&mut self, cursor: &mut Cursor) -> Result<(), WeightsError> {
        let (wrong, at) = (Wrong(&self.source.path), cursor.at);
        let fixed: [u8; 46] = cursor.take()?;
        if !fixed.starts_with(&ENTRY) {
            return Err(wrong.at(at, "the next file of a zip archive should be listed here"));
        }
        let name = cursor.bytes(u16_at(&fixed, 28).into())?;
        let extra = cursor.bytes(u16_at(&fixed, 30).into())?;
        cursor.skip(u16_at(&fixed, 32).into())?;
        let name = String::from_utf8(name).map_err(|_| wrong.at(at, "the name of a file in it is no UTF-8"))?;
        if u16_at(&fixed, 8) & 1 != 0 {
            return Err(wrong.at(at, format!("the file '{name}' in it is encrypted")));
        }
        let mut sizes = [24, 20, 42].map(|field| u64::from(u32_at(&fixed, field)));
        // Sizes that four bytes cannot hold stand in an extra field, in this order.
        let mut large = large_sizes(&extra).into_iter();
        for size in sizes.iter_mut().filter(|size| **size == 0xffff_ffff) {
            *size = large.next().unwrap_or(*size);
        }
        let [bytes, packed, header] = sizes;
        let entry = Entry { header, bytes, packed, method: u16_at(&fixed, 10) };
        match self.entries.insert(name.clone(), entry) {
            None => Ok(()),
            Some(_) => Err(wrong.at(at, format!("the file '{name}' is in it twice"))),
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Where the bytes of a file are, if there is one of this name.
    pub(super) fn find(&self, name: &str) -> Result<Option<Range<u64>>, WeightsError> {
        let Some(entry) = self.entries.get(name) else { return Ok(None) };
        let wrong = Wrong(&self.source.path);
        if entry.method != 0 || entry.packed != entry.bytes {
            let problem = format!(
                "the file '{name}' in it is compressed, and PyTorch stores files as they are: unpack the archive and store it again (zip -0)"
            );
            return Err(wrong.at(entry.header, problem));
        }
        let mut cursor = Cursor::new(self.source, entry.header.min(self.source.len()));
        let fixed: [u8; 30] = cursor.take()?;
        if !fixed.starts_with(&LOCAL) {
            return Err(wrong.at(entry.header, format!("the file '{name}' in it should begin here")));
        }
        cursor.skip(u64::from(u16_at(&fixed, 26)) + u64::from(u16_at(&fixed, 28)))?;
        let end = cursor.at.checked_add(entry.bytes).filter(|&end| end <= self.source.len());
        let outside = || {
            let problem = format!("the file '{name}' in it claims {} bytes and the archive ends earlier", entry.bytes);
            wrong.at(cursor.at, problem)
        };
        Ok(Some(cursor.at..end.ok_or_else(outside)?))
    }
}

/// The numbers of the extra field for large sizes.
fn large_sizes(mut extra: &[u8]) -> Vec<u64> {
    while extra.len() >= 4 {
        let (id, size) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
        let Some(field) = extra.get(4..4 + size) else { break };
        if id == 1 {
            return field.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect();
        }
        extra = &extra[4 + size..];
    }
    vec![]
}
