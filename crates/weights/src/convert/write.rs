//! A planned conversion, carried out: pieces of tensors, read, converted and written in order on several threads.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use impasto_store::NewFile;

use super::{Conversion, ConvertError, ModelPart, OutputTensor};
use crate::view::ParamView;
use crate::{TensorView, WeightSource};

/// Elements of a piece: a multiple of those of every block.
const PIECE_ELEMENTS: u64 = 512 << 10;
/// Bytes of a piece that is copied.
const PIECE_BYTES: u64 = 2 << 20;

/// Some bytes of a tensor of the result.
struct Piece<'a> {
    tensor: &'a OutputTensor,
    offset: u64,
    bytes: usize,
    /// Zeros that follow it.
    padding: usize,
}

/// What the threads share: whose turn it is to write.
struct Turns<'a> {
    file: NewFile,
    next: usize,
    written: u64,
    failed: Option<ConvertError>,
    progress: &'a mut (dyn FnMut(u64, u64) -> bool + Send),
}

impl Conversion {
    /// Writes the result on so many threads. `force` replaces a file that has its name. `progress` is told the bytes that are written and all that there
    /// will be; if it answers false, this stops and leaves nothing behind.
    pub fn write(
        &self,
        path: &Path,
        force: bool,
        threads: usize,
        progress: &mut (dyn FnMut(u64, u64) -> bool + Send),
    ) -> Result<(), ConvertError> {
        let failed = |source| ConvertError::Write { path: path.into(), source };
        self.check_output(path, force)?;
        self.check_input()?;
        let mut file = NewFile::create(path).map_err(failed)?;
        file.write_all(&self.header).map_err(failed)?;
        let pieces = self.pieces();
        let turns = Turns { file, next: 0, written: self.header.len() as u64, failed: None, progress };
        let (turns, moved, taken) = (Mutex::new(turns), Condvar::new(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let work = || self.convert_pieces(&pieces, &turns, &moved, &taken, path);
            for _ in 1..threads.clamp(1, pieces.len().max(1)) {
                scope.spawn(work);
            }
            work();
        });
        let turns = turns.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = turns.failed {
            return Err(error);
        }
        // What was read is of one file each.
        self.check_input()?;
        if !(turns.progress)(turns.written, turns.written) {
            return Err(ConvertError::Interrupted);
        }
        self.check_output(path, force)?;
        turns.file.finish().map_err(failed)
    }

    /// Takes one piece after the other, converts it, and writes it when all before it are written.
    fn convert_pieces(
        &self,
        pieces: &[Piece],
        turns: &Mutex<Turns>,
        moved: &Condvar,
        taken: &AtomicUsize,
        path: &Path,
    ) {
        let mut bytes = vec![];
        loop {
            let number = taken.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = pieces.get(number) else { return };
            bytes.clear();
            bytes.resize(piece.bytes + piece.padding, 0);
            let read = read_piece(&self.parts[piece.tensor.part], piece, &mut bytes[..piece.bytes]);
            let mut turns = turns.lock().unwrap_or_else(PoisonError::into_inner);
            while turns.next != number && turns.failed.is_none() {
                turns = moved.wait(turns).unwrap_or_else(PoisonError::into_inner);
            }
            if turns.failed.is_some() {
                return;
            }
            let written = read.and_then(|()| {
                let failed = |source| ConvertError::Write { path: path.into(), source };
                turns.file.write_all(&bytes).map_err(failed)
            });
            (turns.next, turns.written) = (number + 1, turns.written + bytes.len() as u64);
            let (done, of) = (turns.written, self.report.bytes_written);
            turns.failed = match written {
                Ok(()) if (turns.progress)(done, of) => None,
                Ok(()) => Some(ConvertError::Interrupted),
                Err(error) => Some(error),
            };
            moved.notify_all();
        }
    }

    /// The pieces of all tensors, in order.
    fn pieces(&self) -> Vec<Piece<'_>> {
        let mut pieces = vec![];
        let ends = self.tensors.iter().skip(1).map(|tensor| tensor.offset).chain([self.data_bytes]);
        for (tensor, end) in self.tensors.iter().zip(ends) {
            let step = match tensor.read_as {
                Some(storage) => storage.bytes_of(PIECE_ELEMENTS).unwrap_or(PIECE_BYTES),
                None => PIECE_BYTES,
            };
            let starts = (0..tensor.bytes).step_by(step as usize);
            pieces.extend(starts.map(|offset| {
                let bytes = step.min(tensor.bytes - offset);
                let last = offset + bytes == tensor.bytes;
                let padding = if last { (end - tensor.offset - tensor.bytes) as usize } else { 0 };
                Piece { tensor, offset, bytes: bytes as usize, padding }
            }));
        }
        pieces
    }

    fn check_input(&self) -> Result<(), ConvertError> {
        Ok(self.parts.iter().try_for_each(|part| part.checkpoint.check())?)
    }

    /// The result must not be there, or may be replaced; it is never a file that is read.
    fn check_output(&self, path: &Path, force: bool) -> Result<(), ConvertError> {
        let Ok(there) = std::fs::canonicalize(path) else { return Ok(()) };
        let mut read = self.parts.iter().flat_map(|part| part.checkpoint.files());
        if read.any(|file| std::fs::canonicalize(file).is_ok_and(|file| file == there)) {
            return Err(ConvertError::SameFile(path.into()));
        }
        if force && there.is_file() { Ok(()) } else { Err(ConvertError::Exists(path.into())) }
    }
}

fn read_piece(part: &ModelPart, piece: &Piece, out: &mut [u8]) -> Result<(), ConvertError> {
    let OutputTensor { name, source, read_as, .. } = piece.tensor;
    let wrong = |problem| ConvertError::Tensor { name: name.clone(), problem };
    let tensor = part.checkpoint.tensor(source).ok_or_else(|| wrong("is gone".into()))?;
    match read_as {
        None => Ok(part.checkpoint.read(tensor, piece.offset, out)?),
        Some(storage) => {
            let view = ParamView::new(&part.checkpoint, tensor, TensorView::Whole, &tensor.shape, Some(*storage));
            Ok(view.map_err(wrong)?.read(piece.offset, out)?)
        }
    }
}
