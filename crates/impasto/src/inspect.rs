//! What is in a model file.

use std::collections::BTreeMap;
use std::path::Path;

use impasto_model::{Network, Shapes, family, recognise, usage};
use impasto_weights::{Checkpoint, Tensor};
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
    /// The family, where a diffusion model was recognised.
    pub family: Option<String>,
    /// The networks that were recognised, and what each of them uses.
    pub networks: Vec<(String, Part)>,
    /// Tensors that a recognised network should have and the file lacks.
    pub missing: Vec<String>,
    /// Tensors that no recognised network uses.
    pub unused: Vec<String>,
    /// What the files say of themselves.
    pub metadata: BTreeMap<String, String>,
}

impl Part {
    fn add(&mut self, tensor: &Tensor) {
        self.tensors += 1;
        self.parameters += tensor.bytes() / tensor.element.bytes();
        self.bytes += tensor.bytes();
    }
}

/// Open a model file, a model in shards or a folder, recognise its networks and add up what is in it.
pub fn inspect(path: &Path) -> anyhow::Result<Inspection> {
    let file = Checkpoint::open(path)?;
    let shapes: Shapes = file.tensors().map(|t| (t.name.clone(), t.shape.clone())).collect();
    let found = recognise(&shapes);
    let (used, unused) = usage(&shapes, &found)?;

    let part = |tensors: &mut dyn Iterator<Item = &Tensor>| {
        let mut part = Part::default();
        tensors.for_each(|t| part.add(t));
        part
    };
    let mut elements: BTreeMap<String, Part> = BTreeMap::new();
    file.tensors().for_each(|t| elements.entry(t.element.to_string()).or_default().add(t));
    Ok(Inspection {
        files: file.files().map(|f| f.display().to_string()).collect(),
        total: part(&mut file.tensors()),
        elements,
        family: found.iter().find_map(|f| match &f.network {
            Network::Unet(config, _) => Some(family(config).to_string()),
            _ => None,
        }),
        networks: found
            .iter()
            .zip(&used)
            .map(|(f, used)| (f.network.to_string(), part(&mut file.tensors().filter(|t| used.contains(&t.name)))))
            .collect(),
        missing: used.iter().flatten().filter(|name| !shapes.contains_key(*name)).cloned().collect(),
        unused,
        metadata: file.metadata().clone(),
    })
}
