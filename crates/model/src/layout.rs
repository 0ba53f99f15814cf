//! Where a file keeps a parameter. Networks are written with the names of a diffusers folder; original checkpoints have the same
//! numbers under other names, sometimes joined, turned, or with dimensions of one.

use impasto_weights::TensorView;

/// How a file names the tensors of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointLayout {
    /// As a diffusers folder does, below a prefix.
    Diffusers,
    /// As the first Stable Diffusion checkpoint did.
    Original,
}

/// A reference to the tensor, or part of one, that a file keeps a parameter in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorRef {
    /// The tensor's name.
    pub name: String,
    /// Which part of it, and how it is read.
    pub take: TensorView,
}

impl TensorRef {
    /// The whole tensor of this name.
    pub fn whole(name: String) -> TensorRef {
        TensorRef { name, take: TensorView::Whole }
    }
}

/// Replace the first of `pairs` whose left side begins the name.
pub(crate) fn replace_start(name: &str, pairs: &[(&str, &str)]) -> Option<String> {
    pairs.iter().find_map(|(from, to)| name.strip_prefix(from).map(|rest| format!("{to}{rest}")))
}

/// `prefix.N.rest` as `(N, rest)`.
pub(crate) fn numbered<'a>(name: &'a str, prefix: &str) -> Option<(usize, &'a str)> {
    let (number, rest) = name.strip_prefix(prefix)?.split_once('.')?;
    Some((number.parse().ok()?, rest))
}
