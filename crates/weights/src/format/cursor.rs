//! Reading a file from one place on, a piece at a time.

use super::Wrong;
use crate::WeightsError;
use crate::file::ModelFile;

/// Bytes that are read at a time.
const PIECE: usize = 256 << 10;

/// A place in a file that moves forwards.
pub(super) struct Cursor<'a> {
    source: &'a ModelFile,
    piece: Vec<u8>,
    /// Where the piece begins in the file.
    start: u64,
    /// The place.
    pub(super) at: u64,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(source: &'a ModelFile, at: u64) -> Cursor<'a> {
        Cursor { source, piece: vec![], start: at, at }
    }

    /// How much of the file is left.
    pub(super) fn left(&self) -> u64 {
        self.source.len().saturating_sub(self.at)
    }

    fn ends(&self, need: u64) -> WeightsError {
        let problem = format!("{need} bytes should follow here, and the file has {}: it is cut off", self.left());
        Wrong(&self.source.path).at(self.at, problem)
    }

    /// Moves on without reading.
    pub(super) fn skip(&mut self, bytes: u64) -> Result<(), WeightsError> {
        match bytes <= self.left() {
            true => {
                self.at += bytes;
                Ok(())
            }
            false => Err(self.ends(bytes)),
        }
    }

    /// The next bytes.
    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N], WeightsError> {
        let mut out = [0; N];
        self.fill(&mut out)?;
        Ok(out)
    }

    /// Fills `out` with the next bytes.
    pub(super) fn fill(&mut self, out: &mut [u8]) -> Result<(), WeightsError> {
        if out.len() as u64 > self.left() {
            return Err(self.ends(out.len() as u64));
        }
        if out.len() >= PIECE {
            self.source.read_at(self.at, out)?;
        } else {
            let inside = self.at.checked_sub(self.start).map(|at| at as usize);
            let at = match inside.filter(|at| at + out.len() <= self.piece.len()) {
                Some(at) => at,
                None => {
                    self.piece.resize((self.left() as usize).min(PIECE), 0);
                    self.source.read_at(self.at, &mut self.piece)?;
                    self.start = self.at;
                    0
                }
            };
            out.copy_from_slice(&self.piece[at..at + out.len()]);
        }
        self.at += out.len() as u64;
        Ok(())
    }

    /// The next so many bytes, of which a file must have so many before memory is taken for them.
    pub(super) fn bytes(&mut self, count: u64) -> Result<Vec<u8>, WeightsError> {
        if count > self.left() {
            return Err(self.ends(count));
        }
        let mut out = vec![0; count as usize];
        self.fill(&mut out)?;
        Ok(out)
    }

    pub(super) fn u32(&mut self) -> Result<u32, WeightsError> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, WeightsError> {
        self.take().map(u64::from_le_bytes)
    }
}
