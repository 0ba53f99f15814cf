//! How a graph was cut, and what a caller does about it: inputs given in bands, outputs put together.

use std::ops::Range;

use crate::error::GraphError;
use crate::tensor::HostTensor;

use super::Level;

/// An input or output that is given in bands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Its name in the graph that was cut.
    pub name: String,
    /// The names of its bands, in order, and the part of the axis that each has.
    pub parts: Vec<(String, Range<usize>)>,
}

/// How a graph was cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cuts {
    /// The axis that is cut.
    pub axis: usize,
    /// The resolutions that are cut, the one with most rows first.
    pub levels: Vec<Level>,
    /// Inputs that are given in bands.
    pub inputs: Vec<Cut>,
    /// Outputs that are given in bands.
    pub outputs: Vec<Cut>,
}

impl Cuts {
    /// Bands of the level that has most; 1 if nothing is cut.
    pub fn bands(&self) -> usize {
        self.levels.iter().map(Level::bands).max().unwrap_or(1)
    }

    /// The bands of those inputs that are given in bands.
    pub fn parts(&self, inputs: &[(&str, &HostTensor)]) -> Result<Vec<(String, HostTensor)>, GraphError> {
        let mut parts = vec![];
        for (name, tensor) in inputs {
            for cut in self.inputs.iter().filter(|cut| cut.name == *name) {
                for (name, range) in &cut.parts {
                    parts.push((name.clone(), tensor.slice(self.axis, range.clone())?));
                }
            }
        }
        Ok(parts)
    }

    /// Outputs with these names, in their order, as the graph that was cut has them.
    pub fn join<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
        outputs: Vec<HostTensor>,
    ) -> Result<Vec<HostTensor>, GraphError> {
        let (mut whole, mut bands) = (vec![], vec![]);
        for (name, tensor) in names.into_iter().zip(outputs) {
            match self.outputs.iter().find(|cut| cut.parts.iter().any(|(part, _)| part == name)) {
                Some(cut) => {
                    bands.push(tensor);
                    if bands.len() == cut.parts.len() {
                        whole.push(HostTensor::concat(self.axis, &std::mem::take(&mut bands))?);
                    }
                }
                None => whole.push(tensor),
            }
        }
        Ok(whole)
    }
}
