//! A parameter, read from a tensor in the storage that it should have.

use impasto_graph::{DType, Storage};

use crate::blocks::{decode_from, encode, scale_rows};
use crate::format::TensorInfo;
use crate::scales::Quantised;
use crate::{Checkpoint, ElementType, ParamError, TensorView};

/// How a tensor's elements are decoded: as a storage of graphs, or as one of the types that only files have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RawType {
    Stored(Storage),
    F64,
    I8,
}

impl RawType {
    /// How a tensor's elements are decoded, or why they cannot be.
    pub(crate) fn of(tensor: &TensorInfo) -> Result<RawType, String> {
        if let Quantised::Refused(problem) = &tensor.quantised {
            return Err(problem.clone());
        }
        match (tensor.element, tensor.element.storage()) {
            (_, Some(storage)) => Ok(RawType::Stored(storage)),
            (ElementType::F64, _) => Ok(RawType::F64),
            (ElementType::I8, _) if tensor.quantised != Quantised::Plain => Ok(RawType::I8),
            (ElementType::I8, _) => Err("is stored as i8 without scales, which says nothing of its weights".into()),
            (element, None) => Err(format!("is stored as {element}; {} can be computed with", ElementType::usable())),
        }
    }

    /// The storage that holds what is decoded: no narrower than it.
    pub(crate) fn decoded(self) -> Storage {
        match self {
            // Eight bits times a scale are not worth more than a half.
            RawType::I8 => Storage::Dense(DType::F16),
            RawType::F64 | RawType::Stored(_) => Storage::Dense(DType::F32),
        }
    }

    /// Elements and bytes of a block.
    pub(crate) fn block(self) -> (usize, usize) {
        match self {
            RawType::Stored(storage) => (storage.block_elements() as usize, storage.block_bytes() as usize),
            RawType::F64 => (1, 8),
            RawType::I8 => (1, 1),
        }
    }

    /// Fills `out` with numbers from element `first` of the bytes on.
    pub(crate) fn decode(self, bytes: &[u8], first: usize, out: &mut [f32]) {
        match self {
            RawType::Stored(storage) => decode_from(storage, bytes, first, out),
            RawType::F64 => {
                let numbers = &bytes.as_chunks::<8>().0[first..];
                out.iter_mut().zip(numbers).for_each(|(out, b)| *out = f64::from_le_bytes(*b) as f32);
            }
            RawType::I8 => out.iter_mut().zip(&bytes[first..]).for_each(|(out, b)| *out = f32::from(*b as i8)),
        }
    }
}

/// Numbers that are converted at a time.
const PIECE: usize = 128 << 10;

/// Whether the rows of a shape are whole blocks. Of kernels, only all elements together: their blocks run across rows, as graphs have it.
fn whole_blocks(storage: Storage, shape: &[usize]) -> bool {
    let block = storage.block_elements();
    let elements: u64 = shape.iter().map(|&d| d as u64).product();
    let row = shape.last().copied().unwrap_or(1) as u64;
    elements.is_multiple_of(block) && (shape.len() > 2 || row.is_multiple_of(block))
}

/// Multiplies a vector of 4^n numbers by the Kronecker power of half of
/// `[1 1 1 -1; 1 1 -1 1; 1 -1 1 1; -1 1 1 1]`, which is its own inverse.
fn rotate(numbers: &mut [f32]) {
    let mut step = 1;
    while step < numbers.len() {
        for block in numbers.chunks_exact_mut(4 * step) {
            for i in 0..step {
                let x = [0, 1, 2, 3].map(|j| block[i + j * step]);
                let half = 0.5 * (x[0] + x[1] + x[2] + x[3]);
                // Row j of the matrix has its minus at 3 - j.
                (0..4).for_each(|j| block[i + j * step] = half - x[3 - j]);
            }
        }
        step *= 4;
    }
}

/// A parameter in a tensor: what of the tensor, in which shape, as what.
pub(crate) struct ParamView<'a> {
    checkpoint: &'a Checkpoint,
    tensor: &'a TensorInfo,
    take: TensorView,
    shape: &'a [usize],
    raw: RawType,
    /// As what it is read.
    pub(crate) storage: Storage,
    /// Whether its bytes are those of the file.
    direct: bool,
}

impl<'a> ParamView<'a> {
    /// A view of a tensor whose shape fits; or why there is none, as what follows the tensor's name in a sentence.
    pub(crate) fn new(
        checkpoint: &'a Checkpoint,
        tensor: &'a TensorInfo,
        take: TensorView,
        shape: &'a [usize],
        read_as: Option<Storage>,
    ) -> Result<ParamView<'a>, String> {
        let raw = RawType::of(tensor)?;
        if take == TensorView::Transposed && tensor.shape.iter().filter(|&&d| d != 1).count() > 2 {
            return Err(format!("has the shape {:?}, and only a matrix can be transposed", tensor.shape));
        }
        let keeps = |storage: Storage| {
            let fp8 = matches!(storage, Storage::F8_E4M3 | Storage::F8_E5M2);
            let scaled = tensor.quantised != Quantised::Plain;
            if let TensorView::LastTap(taps) = take
                && taps > 1
            {
                return false;
            }
            let rows = shape.first().map(|&rows| match take {
                TensorView::Rows(_, parts) => rows * parts,
                TensorView::RowsFrom(_, of) => of,
                TensorView::Whole | TensorView::Transposed | TensorView::LastTap(_) => rows,
            });
            let same_rows = rows == tensor.shape.first().copied();
            whole_blocks(storage, shape)
                && (take != TensorView::Transposed || storage.block_elements() == 1 && !scaled)
                && (!scaled || fp8 && same_rows)
        };
        let natural = match raw {
            RawType::Stored(storage) if keeps(storage) => storage,
            _ => raw.decoded(),
        };
        let storage = read_as.unwrap_or(natural);
        if storage.is_float() != (raw != RawType::Stored(Storage::Dense(DType::I32))) {
            return Err(format!("is stored as {} and cannot be read as {storage}", tensor.element));
        }
        if !whole_blocks(storage, shape) {
            return Err(format!("has the shape {shape:?}, whose rows are no whole blocks of {storage}"));
        }
        let direct = raw == RawType::Stored(storage) && keeps(storage);
        Ok(ParamView { checkpoint, tensor, take, shape, raw, storage, direct })
    }

    pub(crate) fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes that it takes as it is read.
    pub(crate) fn bytes(&self) -> u64 {
        self.storage.bytes_of(self.elements() as u64).unwrap_or(u64::MAX)
    }

    /// Its first row in the tensor.
    fn first_row(&self) -> usize {
        match self.take {
            TensorView::Rows(part, _) => part * self.shape.first().copied().unwrap_or(1),
            TensorView::RowsFrom(first, _) => first,
            TensorView::Whole | TensorView::Transposed | TensorView::LastTap(_) => 0,
        }
    }

    /// Where its first element is in the tensor.
    fn first_element(&self) -> usize {
        self.first_row() * self.shape.iter().skip(1).product::<usize>()
    }

    /// Rows and columns of the tensor, where they are exchanged.
    fn exchanged(&self) -> Option<[usize; 2]> {
        let mut dims = self.tensor.shape.iter().copied().filter(|&d| d != 1);
        match (self.take, dims.next(), dims.next()) {
            // More dimensions than these were refused.
            (TensorView::Transposed, Some(rows), Some(columns)) => Some([rows, columns]),
            _ => None,
        }
    }

    /// One scale for each row of the parameter, if it is read as the file has it and has scales.
    pub(crate) fn row_scales(&self) -> Result<Option<Vec<f32>>, ParamError> {
        if !self.direct {
            return Ok(None);
        }
        let Some(scales) = self.scales()? else { return Ok(None) };
        let rows = self.shape.first().copied().unwrap_or(1);
        Ok(Some(match (&scales[..], self.take) {
            ([one], _) => vec![*one; rows],
            (all, TensorView::Rows(..) | TensorView::RowsFrom(..)) => {
                all.iter().copied().skip(self.first_row()).take(rows).collect()
            }
            _ => scales,
        }))
    }

    /// The scales of the whole tensor: one, or one for each of its rows.
    fn scales(&self) -> Result<Option<Vec<f32>>, ParamError> {
        let (Quantised::Scaled(name) | Quantised::Rotated { scale: name, .. }) = &self.tensor.quantised else {
            return Ok(None);
        };
        let wrong = |problem: String| ParamError::Wrong { name: name.clone(), problem };
        let scale = self.checkpoint.scale_tensor(name).ok_or_else(|| wrong("is missing".into()))?;
        let bytes = self.checkpoint.read_all(scale)?;
        let mut scales = vec![0.0; scale.elements() as usize];
        RawType::of(scale).map_err(wrong)?.decode(&bytes, 0, &mut scales);
        Ok(Some(scales))
    }

    /// All bytes, where they are in memory as they should be read.
    pub(crate) fn in_memory(&self) -> Option<&'a [u8]> {
        let begin = self.first_element() / self.raw.block().0 * self.raw.block().1;
        let bytes = self.checkpoint.bytes_in_memory(self.tensor)?;
        (self.direct && self.exchanged().is_none()).then(|| bytes.get(begin..begin + self.bytes() as usize))?
    }

    /// Fills `out` with its bytes from `offset` on.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), ParamError> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.bytes()) {
            let problem = format!("has no {} bytes at {offset}", out.len());
            return Err(ParamError::Wrong { name: self.tensor.name.clone(), problem });
        }
        if self.direct && self.exchanged().is_none() {
            let (per_block, bytes) = self.raw.block();
            let begin = (self.first_element() / per_block * bytes) as u64;
            return Ok(self.checkpoint.read(self.tensor, begin + offset, out)?);
        }
        self.convert(offset as usize, out)
    }

    /// Fills `out` with bytes that the file does not have, whole blocks at a time.
    fn convert(&self, offset: usize, out: &mut [u8]) -> Result<(), ParamError> {
        let scales = if self.direct { None } else { self.scales()? };
        let (per_block, block) = (self.storage.block_elements() as usize, self.storage.block_bytes() as usize);
        let (begin, end) = (offset / block, (offset + out.len()).div_ceil(block));
        // Each piece of exchanged rows and columns comes from the whole matrix: better one piece.
        let piece = if self.exchanged().is_some() { end - begin } else { PIECE / per_block };
        let mut numbers = vec![0.0; piece.min(end - begin) * per_block];
        let mut made = vec![0; piece.min(end - begin) * block];
        let mut raw = vec![];
        for first in (begin..end).step_by(piece.max(1)) {
            let count = piece.min(end - first);
            let (numbers, made) = (&mut numbers[..count * per_block], &mut made[..count * block]);
            self.numbers(first * per_block, scales.as_deref(), numbers, &mut raw)?;
            let at = first * block;
            let (from, to) = (offset.max(at), (offset + out.len()).min(at + made.len()));
            let out = &mut out[from - offset..to - offset];
            if out.len() == made.len() {
                encode(self.storage, numbers, out);
            } else {
                encode(self.storage, numbers, made);
                out.copy_from_slice(&made[from - at..to - at]);
            }
        }
        Ok(())
    }

    /// Fills `out` with the parameter's numbers from element `first` on, scales applied.
    pub(crate) fn floats(&self, first: usize, out: &mut [f32]) -> Result<(), ParamError> {
        self.numbers(first, self.scales()?.as_deref(), out, &mut vec![])
    }

    /// Fills `out` with the parameter's numbers from `first` on.
    fn numbers(
        &self,
        first: usize,
        scales: Option<&[f32]>,
        out: &mut [f32],
        raw: &mut Vec<u8>,
    ) -> Result<(), ParamError> {
        if let TensorView::LastTap(taps) = self.take
            && taps > 1
        {
            return self.last_taps(first, taps, scales, out, raw);
        }
        let Some([rows, columns]) = self.exchanged() else {
            return self.stored_numbers(self.first_element() + first, scales, out, raw);
        };
        let end = first + out.len();
        let at_a_time = (PIECE / columns).clamp(1, rows);
        let mut stored = vec![0.0; at_a_time * columns];
        for row in (0..rows).step_by(at_a_time) {
            let count = at_a_time.min(rows - row);
            let stored = &mut stored[..count * columns];
            self.stored_numbers(row * columns, scales, stored, raw)?;
            for column in first / rows..end.div_ceil(rows) {
                for i in 0..count {
                    let at = column * rows + row + i;
                    if (first..end).contains(&at) {
                        out[at - first] = stored[i * columns + column];
                    }
                }
            }
        }
        Ok(())
    }

    /// Fills `out` with the last tap of each window, from element `first` on.
    fn last_taps(
        &self,
        first: usize,
        taps: usize,
        scales: Option<&[f32]>,
        out: &mut [f32],
        raw: &mut Vec<u8>,
    ) -> Result<(), ParamError> {
        let window: usize = self.shape.iter().skip(2).product::<usize>().max(1);
        let end = first + out.len();
        let windows = first / window..end.div_ceil(window);
        // All taps of some windows at a time.
        let at_a_time = (PIECE / (taps * window)).max(1);
        let mut stored = vec![0.0; at_a_time * taps * window];
        for begin in windows.clone().step_by(at_a_time) {
            let count = at_a_time.min(windows.end - begin);
            let stored = &mut stored[..count * taps * window];
            self.stored_numbers(begin * taps * window, scales, stored, raw)?;
            for i in 0..count {
                let last = &stored[(i * taps + taps - 1) * window..][..window];
                for (at, x) in ((begin + i) * window..).zip(last) {
                    if (first..end).contains(&at) {
                        out[at - first] = *x;
                    }
                }
            }
        }
        Ok(())
    }

    /// Fills `out` with the tensor's numbers from element `first` on, scales applied, rotations undone.
    fn stored_numbers(
        &self,
        first: usize,
        scales: Option<&[f32]>,
        out: &mut [f32],
        raw: &mut Vec<u8>,
    ) -> Result<(), ParamError> {
        let Quantised::Rotated { group, .. } = self.tensor.quantised else {
            return self.scaled_numbers(first, scales, out, raw);
        };
        // Whole groups: rows are whole groups too.
        let (begin, end) = (first / group * group, (first + out.len()).next_multiple_of(group));
        let mut groups = vec![0.0; end - begin];
        self.scaled_numbers(begin, scales, &mut groups, raw)?;
        groups.chunks_exact_mut(group).for_each(rotate);
        out.copy_from_slice(&groups[first - begin..][..out.len()]);
        Ok(())
    }

    /// Fills `out` with the tensor's numbers from element `first` on, scales applied.
    fn scaled_numbers(
        &self,
        first: usize,
        scales: Option<&[f32]>,
        out: &mut [f32],
        raw: &mut Vec<u8>,
    ) -> Result<(), ParamError> {
        let (per_block, block) = self.raw.block();
        let (begin, end) = (first / per_block, (first + out.len()).div_ceil(per_block));
        raw.resize((end - begin) * block, 0);
        self.checkpoint.read(self.tensor, (begin * block) as u64, raw)?;
        self.raw.decode(raw, first - begin * per_block, out);
        if let Some(scales) = scales.filter(|scales| !scales.is_empty()) {
            scale_rows(out, first, self.tensor.elements() as usize / scales.len(), scales);
        }
        Ok(())
    }
}
