//! Parameters as model files store them, as numbers.

use half::{bf16, f16};
use impasto_graph::{DType, Graph, Op, Storage, TensorType, Value};

use crate::{BackendError, ParamBytes, WeightSource};

/// The name of a parameter of the graph.
pub(crate) fn param_name(graph: &Graph, param: Value) -> &str {
    match &graph.node(param).op {
        Op::Param { name, .. } => name,
        op => unreachable!("{} is no parameter", op.name()),
    }
}

/// How the graph says that a parameter is stored.
pub(crate) fn storage(graph: &Graph, param: Value) -> Storage {
    match graph.node(param).op {
        Op::Param { storage, .. } => storage,
        _ => Storage::Dense(graph.ty(param).dtype),
    }
}

/// Read a parameter and make sure that it is what the graph expects. Files mix element types, so one float may stand for another: the
/// plan's bytes depend on what the graph says, and what is read is converted to that.
pub(crate) fn read<'a>(
    source: &'a dyn WeightSource,
    name: &str,
    ty: &TensorType,
    storage: Storage,
) -> Result<ParamBytes<'a>, BackendError> {
    let given = source.read(name)?;
    let problem = |problem: String| Err(BackendError::Param { name: name.into(), problem });
    if given.shape != ty.shape {
        return problem(format!("has the shape {:?}, the network takes {:?}", given.shape, ty.shape));
    }
    let whole = |s: Storage| s == Storage::Dense(DType::I32);
    if whole(given.storage) != whole(storage) {
        return problem(format!("is stored as {}, the graph was built for {storage}", given.storage));
    }
    if !ty.elements().is_multiple_of(given.storage.block_elements()) {
        return problem(format!("is stored as {}, which its {} elements do not fill", given.storage, ty.elements()));
    }
    let need = ty.elements() / given.storage.block_elements() * given.storage.block_bytes();
    if given.bytes.len() as u64 != need {
        return problem(format!("has {} bytes, {need} are needed", given.bytes.len()));
    }
    Ok(given)
}

/// `out.len()` numbers of a stored parameter, from element `at` on, as `f32`.
pub(crate) fn dequantise(given: &ParamBytes, at: usize, out: &mut [f32]) {
    let bytes = &given.bytes;
    match given.storage {
        Storage::Dense(DType::F32) => {
            let from = bytes[4 * at..].chunks_exact(4);
            out.iter_mut().zip(from).for_each(|(o, b)| *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        }
        Storage::Dense(DType::F16) => {
            let from = bytes[2 * at..].chunks_exact(2);
            out.iter_mut().zip(from).for_each(|(o, b)| *o = f16::from_le_bytes([b[0], b[1]]).to_f32());
        }
        Storage::Dense(DType::BF16) => {
            let from = bytes[2 * at..].chunks_exact(2);
            out.iter_mut().zip(from).for_each(|(o, b)| *o = bf16::from_le_bytes([b[0], b[1]]).to_f32());
        }
        Storage::Dense(DType::I32) => {
            let from = bytes[4 * at..].chunks_exact(4);
            out.iter_mut().zip(from).for_each(|(o, b)| *o = i32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f32);
        }
        Storage::Q8_0 | Storage::Q4_0 => {
            for (i, o) in out.iter_mut().enumerate() {
                let (block, within) = ((at + i) / 32, (at + i) % 32);
                let block = &bytes[block * given.storage.block_bytes() as usize..];
                let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
                let quantum = match given.storage {
                    Storage::Q8_0 => block[2 + within] as i8 as f32,
                    _ if within < 16 => (block[2 + within] & 15) as f32 - 8.0,
                    _ => (block[2 + within - 16] >> 4) as f32 - 8.0,
                };
                *o = scale * quantum;
            }
        }
    }
}

/// A whole parameter as halves, a piece at a time.
pub(crate) fn convert<T>(given: &ParamBytes, out: &mut [T], to: impl Fn(f32) -> T) {
    let mut piece = [0f32; 1024];
    for (i, out) in out.chunks_mut(piece.len()).enumerate() {
        let values = &mut piece[..out.len()];
        dequantise(given, i * 1024, values);
        out.iter_mut().zip(&*values).for_each(|(o, v)| *o = to(*v));
    }
}
