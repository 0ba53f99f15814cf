//! What a run is given and gives, held against what its graph takes and yields. Checking allocates nothing unless it fails.

use impasto_graph::{Data, HostTensor, TensorType};

use crate::BackendError;

fn problem(kind: &'static str, name: &str, problem: String) -> BackendError {
    BackendError::Io { kind, name: name.into(), problem }
}

/// Hands each input that a graph takes to `put`, by its number, if all of them are given in their types and no others.
pub fn inputs(
    takes: &[(String, TensorType)],
    given: &[(&str, &HostTensor)],
    mut put: impl FnMut(usize, &HostTensor) -> Result<(), BackendError>,
) -> Result<(), BackendError> {
    if let Some((name, _)) = given.iter().find(|(name, _)| takes.iter().all(|(n, _)| n != name)) {
        return Err(problem("input", name, "the graph has no such input".into()));
    }
    for (i, (name, ty)) in takes.iter().enumerate() {
        let Some((_, tensor)) = given.iter().find(|(n, _)| n == name) else {
            return Err(problem("input", name, "is missing".into()));
        };
        if tensor.ty() != ty {
            return Err(problem("input", name, format!("is {}, the graph takes {ty}", tensor.ty())));
        }
        put(i, tensor)?;
    }
    Ok(())
}

/// Hands the room for each output to `fill`, by its number, if there is room of its type for every one.
pub fn outputs(
    yields: &[(String, TensorType)],
    room: &mut [HostTensor],
    mut fill: impl FnMut(usize, &mut HostTensor) -> Result<(), BackendError>,
) -> Result<(), BackendError> {
    for (i, ((name, ty), out)) in yields.iter().zip(room).enumerate() {
        if out.ty() != ty {
            return Err(problem("output", name, format!("is {ty}, room was given for {}", out.ty())));
        }
        fill(i, out)?;
    }
    Ok(())
}

/// Whether there is room for so many outputs as the graph has.
pub fn check_room(yields: &[(String, TensorType)], room: &[HostTensor]) -> Result<(), BackendError> {
    match room.len() == yields.len() {
        true => Ok(()),
        false => {
            let said = format!("{} outputs were given room, the graph has {}", room.len(), yields.len());
            Err(problem("output", "*", said))
        }
    }
}

/// A tensor's elements as files and devices have them, little endian.
pub fn bytes(data: &Data) -> Vec<u8> {
    let mut bytes = vec![];
    append(data, &mut bytes);
    bytes
}

/// The same behind bytes that are there.
pub fn append(data: &Data, to: &mut Vec<u8>) {
    match data {
        Data::F32(v) => to.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Data::F16(v) => to.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Data::BF16(v) => to.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Data::I32(v) => to.extend(v.iter().flat_map(|x| x.to_le_bytes())),
    }
}

/// A tensor's elements from such bytes, as many as there are of both.
pub fn fill(data: &mut Data, bytes: &[u8]) {
    fn each<T, const N: usize>(to: &mut [T], bytes: &[u8], read: fn([u8; N]) -> T) {
        for (to, from) in to.iter_mut().zip(bytes.chunks_exact(N)) {
            *to = read(from.try_into().expect("chunks are of this length"));
        }
    }
    match data {
        Data::F32(v) => each(v, bytes, f32::from_le_bytes),
        Data::F16(v) => each(v, bytes, half::f16::from_le_bytes),
        Data::BF16(v) => each(v, bytes, half::bf16::from_le_bytes),
        Data::I32(v) => each(v, bytes, i32::from_le_bytes),
    }
}
