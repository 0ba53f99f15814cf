//! What is in a model file.

use std::collections::BTreeMap;
use std::path::Path;

use impasto_weights::{Checkpoint, WeightsError};
use serde::Serialize;

/// Tensors that belong together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Part {
    /// How many there are.
    pub tensors: usize,
    /// Their elements.
    pub parameters: u64,
    /// Their bytes in the file.
    pub bytes: u64,
}

/// What a model file holds.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// The files that were opened.
    pub files: Vec<String>,
    /// All tensors.
    pub total: Part,
    /// By element type.
    pub elements: BTreeMap<String, Part>,
    /// By the first parts of the tensors' names.
    pub modules: BTreeMap<String, Part>,
    /// What the files say of themselves.
    pub metadata: BTreeMap<String, String>,
}

impl Part {
    fn add(&mut self, parameters: u64, bytes: u64) {
        self.tensors += 1;
        self.parameters += parameters;
        self.bytes += bytes;
    }
}

/// The module that a tensor belongs to: the beginning of its name, as long as that tells modules apart.
fn module(name: &str) -> String {
    const WRAPPERS: [&str; 4] = ["model", "cond_stage_model", "first_stage_model", "conditioner"];
    let mut parts = name.split('.');
    let first = parts.next().unwrap_or(name);
    match (first, parts.next(), parts.next()) {
        ("conditioner", Some("embedders"), Some(index)) => format!("conditioner.embedders.{index}"),
        (first, Some(second), Some(_)) if WRAPPERS.contains(&first) => format!("{first}.{second}"),
        (first, ..) => first.to_string(),
    }
}

/// Open a model file, a model in shards or a folder, and add up what is in it.
pub fn inspect(path: &Path) -> Result<Inspection, WeightsError> {
    let file = Checkpoint::open(path)?;
    let mut found = Inspection {
        files: file.files().map(|f| f.display().to_string()).collect(),
        total: Part::default(),
        elements: BTreeMap::new(),
        modules: BTreeMap::new(),
        metadata: file.metadata().clone(),
    };
    for tensor in file.tensors() {
        let parameters = tensor.bytes() / tensor.element.bytes();
        for part in [
            &mut found.total,
            found.elements.entry(tensor.element.to_string()).or_default(),
            found.modules.entry(module(&tensor.name)).or_default(),
        ] {
            part.add(parameters, tensor.bytes());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::module;

    #[test]
    fn modules_are_told_apart_by_the_beginning_of_names() {
        for (name, want) in [
            ("model.diffusion_model.input_blocks.0.0.weight", "model.diffusion_model"),
            ("first_stage_model.decoder.conv_in.weight", "first_stage_model.decoder"),
            ("conditioner.embedders.1.model.ln_final.weight", "conditioner.embedders.1"),
            ("text_model.encoder.layers.0.mlp.fc1.bias", "text_model"),
            ("betas", "betas"),
        ] {
            assert_eq!(module(name), want);
        }
    }
}
