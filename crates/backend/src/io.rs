//! What a run is given and gives, held against what its graph takes and yields. Checking allocates nothing unless it fails.

use impasto_graph::{HostTensor, TensorType};

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
