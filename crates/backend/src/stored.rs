//! Parameters as model files store them, as numbers.

use std::ops::Range;

use impasto_graph::{DType, Graph, Op, Storage, TensorType, Value, Weight};
use impasto_weights::{decode_from, scale_rows};

use crate::cpu::memory::ReadBuffer;
use crate::cpu::rows::Src;
use crate::shapes::product_shape;
use crate::{BackendError, WeightSource};

/// The name of a parameter of the graph.
pub(crate) fn param_name(graph: &Graph, param: Value) -> &str {
    match &graph.node(param).op {
        Op::Param { name, .. } => name,
        op => unreachable!("{} is no parameter", op.name()),
    }
}

/// Parameters of a plan that are packed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParamSet {
    /// Those of the model.
    Model,
    /// The factors of branches beside its products.
    Adapters,
}

impl ParamSet {
    /// Its parameters among these.
    pub(crate) fn of(self, graph: &Graph, weights: &[Weight]) -> Vec<Weight> {
        let own = |weight: &&Weight| graph.is_adapter(weight.value) == (self == ParamSet::Adapters);
        weights.iter().filter(own).copied().collect()
    }
}

/// How the graph says that a parameter is stored.
pub(crate) fn storage(graph: &Graph, param: Value) -> Storage {
    match graph.node(param).op {
        Op::Param { storage, .. } => storage,
        _ => Storage::Dense(graph.ty(param).dtype),
    }
}

/// How a parameter stays stored as the weights of products, if it is in blocks and can: its rows are whole blocks, and no taps of a window are
/// among them, which products take in another order.
pub fn kept_blocks(graph: &Graph, param: Value) -> Option<Storage> {
    let (storage, ty) = (storage(graph, param), graph.ty(param));
    let pointwise = ty.shape.len() >= 2 && ty.shape[2..].iter().all(|&d| d == 1);
    let blocks = !matches!(storage, Storage::Dense(_)) && pointwise;
    (blocks && (ty.shape[1] as u64).is_multiple_of(storage.block_elements())).then_some(storage)
}

/// Bytes that a parameter takes in blocks: as in the file, and a scale for each row of eight-bit floats.
pub(crate) fn kept_bytes(ty: &TensorType, storage: Storage) -> u64 {
    scales_offset(ty, storage) as u64 + if has_scales(storage) { 4 * product_shape(ty).0 as u64 } else { 0 }
}

/// Whether rows have scales of their own, in 32-bit floats behind the blocks.
pub(crate) fn has_scales(storage: Storage) -> bool {
    matches!(storage, Storage::F8_E4M3 | Storage::F8_E5M2)
}

/// Where the scales begin: where every device can begin to read.
pub(crate) fn scales_offset(ty: &TensorType, storage: Storage) -> usize {
    let bytes = (ty.elements() / storage.block_elements() * storage.block_bytes()) as usize;
    if has_scales(storage) { bytes.next_multiple_of(256) } else { bytes }
}

/// A parameter that a source has as the graph expects it.
pub(crate) struct Param<'a> {
    source: &'a dyn WeightSource,
    pub(crate) name: &'a str,
    storage: Storage,
    elements: usize,
    /// A scale for each row, where it has them.
    row_scales: Option<Vec<f32>>,
}

/// Some elements of a parameter, as they are stored.
#[derive(Clone, Copy)]
pub(crate) struct Stored<'a> {
    pub(crate) storage: Storage,
    bytes: &'a [u8],
    /// Elements of the first block that come before the first one.
    skipped: usize,
    /// Where the first one stands in the parameter.
    first: usize,
    /// A scale for each row, and the elements of a row.
    row_scales: Option<(&'a [f32], usize)>,
}

impl<'a> Param<'a> {
    /// Finds a parameter and makes sure that it is what the graph expects. Files mix element types, so one float may stand for another: the
    /// plan's bytes depend on what the graph says, and what is read is converted to that.
    pub(crate) fn find(
        source: &'a dyn WeightSource,
        name: &'a str,
        ty: &TensorType,
        storage: Storage,
    ) -> Result<Param<'a>, BackendError> {
        let given = source.describe(name)?;
        let problem = |problem: String| Err(BackendError::Param { name: name.into(), problem });
        if given.shape != ty.shape {
            return problem(format!("has the shape {:?}, the network takes {:?}", given.shape, ty.shape));
        }
        let whole = |s: Storage| s == Storage::Dense(DType::I32);
        if whole(given.storage) != whole(storage) {
            return problem(format!("is stored as {}, the graph was built for {storage}", given.storage));
        }
        if !ty.elements().is_multiple_of(given.storage.block_elements()) {
            return problem(format!(
                "is stored as {}, which its {} elements do not fill",
                given.storage,
                ty.elements()
            ));
        }
        let need = ty.elements() / given.storage.block_elements() * given.storage.block_bytes();
        if given.bytes != need {
            return problem(format!("has {} bytes, {need} are needed", given.bytes));
        }
        let row_scales = source.row_scales(name)?;
        let rows = ty.shape.first().copied().unwrap_or(1);
        if row_scales.as_ref().is_some_and(|scales| scales.len() != rows || matches!(given.storage, Storage::Dense(_)))
        {
            return problem(format!("is stored as {} and has no scale for each of its {rows} rows", given.storage));
        }
        Ok(Param { source, name, storage: given.storage, elements: ty.elements() as usize, row_scales })
    }

    pub(crate) fn storage(&self) -> Storage {
        self.storage
    }

    /// Makes sure that it is stored so, where it is not converted.
    pub(crate) fn check_is(&self, storage: Storage) -> Result<(), BackendError> {
        if self.storage == storage {
            return Ok(());
        }
        let problem = format!("is stored as {}, the graph was built for {storage}", self.storage);
        Err(BackendError::Param { name: self.name.into(), problem })
    }

    /// What numbers of a row are multiplied by.
    pub(crate) fn scale_of_row(&self, row: usize) -> f32 {
        self.row_scales.as_ref().and_then(|scales| scales.get(row)).copied().unwrap_or(1.0)
    }

    /// Bytes of so many elements.
    pub(crate) fn bytes_of(&self, elements: usize) -> usize {
        (elements as u64).div_ceil(self.storage.block_elements()) as usize * self.storage.block_bytes() as usize
    }

    /// These elements: where they lie if they are in memory and numbers can be read there, else read into the buffer.
    pub(crate) fn read<'b>(
        &'b self,
        elements: Range<usize>,
        buffer: &'b mut ReadBuffer,
    ) -> Result<Stored<'b>, BackendError> {
        assert!(elements.end <= self.elements, "a parameter is read inside its shape");
        let block = self.storage.block_elements() as usize;
        let (begin, end) = (elements.start / block, elements.end.div_ceil(block));
        let (begin, end) = [begin, end].map(|at| at * self.storage.block_bytes() as usize).into();
        let in_memory = self.source.in_memory(self.name).and_then(|bytes| bytes.get(begin..end));
        let bytes = match in_memory.filter(|bytes| bytes.as_ptr().cast::<f32>().is_aligned()) {
            Some(bytes) => bytes,
            None => {
                let bytes = buffer.bytes(end - begin);
                self.source.read_into(self.name, begin as u64, bytes)?;
                bytes
            }
        };
        let row_scales = self.row_scales.as_deref().map(|scales| (scales, self.elements / scales.len().max(1)));
        let (skipped, first) = (elements.start % block, elements.start);
        Ok(Stored { storage: self.storage, bytes, skipped, first, row_scales })
    }

    /// The bytes of these elements straight into `out`: whole blocks, where they are blocks.
    pub(crate) fn read_into(&self, elements: Range<usize>, out: &mut [u8]) -> Result<(), BackendError> {
        assert!(elements.end <= self.elements, "a parameter is read inside its shape");
        Ok(self.source.read_into(self.name, self.bytes_of(elements.start) as u64, out)?)
    }

    /// Says that so many elements were read and packed.
    pub(crate) fn was_read(&self, elements: usize) -> Result<(), BackendError> {
        Ok(self.source.was_read(self.name, elements as u64)?)
    }
}

impl Stored<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// The numbers, where they are dense.
    pub(crate) fn dense(&self) -> Option<Src> {
        match self.storage {
            Storage::Dense(dtype) => Some(Src { ptr: self.bytes.as_ptr(), dtype }),
            _ => None,
        }
    }

    /// `out.len()` numbers of blocks, from element `at` on, as `f32`.
    pub(crate) fn dequantise(&self, at: usize, out: &mut [f32]) {
        decode_from(self.storage, self.bytes, self.skipped + at, out);
        if let Some((scales, row)) = self.row_scales.filter(|(_, row)| *row > 0) {
            scale_rows(out, self.first + at, row, scales);
        }
    }

    /// These numbers where they lie if they are dense, else as `f32` in `room`.
    pub(crate) fn numbers(&self, elements: Range<usize>, room: &mut ReadBuffer) -> Src {
        match self.dense() {
            // SAFETY: the elements are there: the range is one of this piece.
            Some(src) => unsafe { src.at(elements.start) },
            None => {
                let bytes = room.bytes(4 * elements.len());
                let mut piece = [0.0; 256];
                for (to, i) in bytes.chunks_mut(4 * piece.len()).zip((elements.start..).step_by(piece.len())) {
                    let piece = &mut piece[..to.len() / 4];
                    self.dequantise(i, piece);
                    to.chunks_exact_mut(4).zip(&*piece).for_each(|(to, x)| to.copy_from_slice(&x.to_ne_bytes()));
                }
                Src { ptr: bytes.as_ptr(), dtype: DType::F32 }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ParamError, ParamInfo};

    /// Eight-bit floats, with a scale for each row of three.
    struct Scaled(Vec<f32>);

    impl WeightSource for Scaled {
        fn describe(&self, _: &str) -> Result<ParamInfo, ParamError> {
            Ok(ParamInfo { storage: Storage::F8_E4M3, shape: vec![4, 3], bytes: 12 })
        }

        fn row_scales(&self, _: &str) -> Result<Option<Vec<f32>>, ParamError> {
            Ok(Some(self.0.clone()))
        }

        fn read_into(&self, _: &str, offset: u64, out: &mut [u8]) -> Result<(), ParamError> {
            // 2, 2.25, 2.5 and so on.
            out.iter_mut().zip(offset..).for_each(|(out, i)| *out = 0x40 + i as u8);
            Ok(())
        }
    }

    /// A scaled fp8 model whose scales were lost is noise.
    #[test]
    fn rows_are_multiplied_by_their_scales() -> Result<(), BackendError> {
        let ty = TensorType { shape: vec![4, 3], dtype: DType::F32 };
        let source = Scaled(vec![1.0, 10.0, 0.5, -2.0]);
        let param = Param::find(&source, "w", &ty, Storage::Dense(DType::F16))?;
        let (mut all, mut part) = ([0.0; 12], [0.0; 5]);
        let mut buffer = ReadBuffer::default();
        param.read(0..12, &mut buffer)?.dequantise(0, &mut all);
        assert_eq!(all[..6], [2.0, 2.25, 2.5, 27.5, 30.0, 32.5]);
        assert_eq!((all[6], all[11]), (3.5 * 0.5, 5.5 * -2.0));
        param.read(4..12, &mut buffer)?.dequantise(1, &mut part);
        assert_eq!(part, all[5..10]);
        assert!(Param::find(&Scaled(vec![1.0; 3]), "w", &ty, Storage::Dense(DType::F16)).is_err());
        Ok(())
    }
}
