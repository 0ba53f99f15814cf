//! What is in a model file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use impasto_graph::Unary;
use impasto_model::{Clip, FAMILIES, Model, ModelPaths, Prediction, TensorShapes, foreign_kind, recognise, usage};
use impasto_weights::{Checkpoint, TensorInfo, architecture_of};
use serde::Serialize;

use crate::components::model_files;

/// Tensors that belong together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TensorGroup {
    /// How many there are.
    pub tensors: usize,
    /// Their elements.
    pub parameters: u64,
    /// Their bytes in the file.
    pub bytes: u64,
}

/// What neither names nor shapes say of a text encoder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TextEncoderSizes {
    /// Width of a token.
    pub width: usize,
    /// Transformer layers.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// The function inside.
    pub activation: String,
}

/// What a model file holds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Inspection {
    /// The files that were opened.
    pub files: Vec<String>,
    /// Their formats: `safetensors`, `GGUF`, `PyTorch`.
    pub formats: BTreeSet<String>,
    /// What it is where no family knows it, such as a LoRA, by the names of its tensors.
    pub kind: Option<String>,
    /// The architecture as GGUF files name it: as the file says, else by the names of its tensors.
    pub architecture: Option<String>,
    /// All tensors.
    pub total: TensorGroup,
    /// By element type.
    pub elements: BTreeMap<String, TensorGroup>,
    /// Types among these that are named here and cannot be decoded.
    pub undecodable: Vec<String>,
    /// The family, where a diffusion model was recognised.
    pub family: Option<String>,
    /// What the diffusion model predicts: `epsilon`, `v` or `flow`. Only of a whole model.
    pub prediction: Option<String>,
    /// The text encoders. Only of a whole model.
    pub text: Vec<TextEncoderSizes>,
    /// Why this alone cannot make a picture, where that is so.
    pub problem: Option<String>,
    /// What to know of the choice of files.
    pub notes: Vec<String>,
    /// The networks that were recognised, and what each of them uses.
    pub networks: Vec<(String, TensorGroup)>,
    /// Tensors that a recognised network should have and the file lacks.
    pub missing: Vec<String>,
    /// Tensors that no recognised network uses.
    pub unused: Vec<String>,
    /// What the files say of themselves.
    pub metadata: BTreeMap<String, String>,
    /// Keys of what is too long to show: arrays and long texts of GGUF files.
    pub long_values: Vec<String>,
}

impl TensorGroup {
    fn add(&mut self, tensor: &TensorInfo) {
        self.tensors += 1;
        self.parameters += tensor.elements();
        self.bytes += tensor.bytes();
    }
}

/// Open a model file, a model in shards, or a folder of one or of several components, recognise the networks and add up what is there.
pub fn inspect(path: &Path) -> anyhow::Result<Inspection> {
    let mut all = Inspection::default();
    for file in model_files(path)? {
        all.add(&Checkpoint::open(&file)?)?;
    }
    match Model::open(&ModelPaths { model: Some(path.into()), ..ModelPaths::default() }) {
        Ok(model) => {
            all.family = Some(model.pipeline.name().into());
            let prediction = match model.pipeline.prediction() {
                Prediction::Epsilon => "epsilon",
                Prediction::V => "v",
                Prediction::Flow => "flow",
            };
            all.prediction = Some(prediction.into());
            for clip in model.networks().filter_map(|(_, network)| network.network.downcast::<Clip>()) {
                let c = &clip.config;
                let activation = if c.activation == Unary::QuickGelu { "quick_gelu" } else { "gelu" };
                let (width, layers, heads) = (c.width, c.layers, c.heads);
                all.text.push(TextEncoderSizes { width, layers, heads, activation: activation.into() });
            }
            all.notes = model.notes;
        }
        Err(error) => all.problem = Some(error.to_string()),
    }
    Ok(all)
}

impl Inspection {
    /// Take in one more file.
    fn add(&mut self, file: &Checkpoint) -> anyhow::Result<()> {
        let shapes: TensorShapes = file.tensors().map(|t| (t.name.clone(), t.shape.clone())).collect();
        let (found, incomplete) = recognise(FAMILIES, &shapes);
        let (used, unused) = usage(&shapes, &found)?;
        self.files.extend(file.files().map(|f| f.display().to_string()));
        self.formats.extend(file.formats().map(str::to_string));
        self.kind = self.kind.take().or(foreign_kind(&shapes).filter(|_| found.is_empty()).map(str::to_string));
        let by_names = || architecture_of(shapes.keys().map(String::as_str)).map(str::to_string);
        let said = file.metadata().get("general.architecture").cloned();
        self.architecture = self.architecture.take().or(said).or_else(by_names);
        for tensor in file.tensors() {
            let name = tensor.element.to_string();
            self.total.add(tensor);
            let blocks = tensor.element.block().is_none_or(|(elements, _)| elements > 1);
            if blocks && tensor.element.storage().is_none() && !self.undecodable.contains(&name) {
                self.undecodable.push(name.clone());
            }
            self.elements.entry(name).or_default().add(tensor);
        }
        for (f, used) in found.iter().zip(&used) {
            if let Some(name) = FAMILIES.iter().find_map(|family| family.recognises(&*f.network)) {
                self.family = Some(name.into());
            }
            let mut part = TensorGroup::default();
            file.tensors().filter(|t| used.contains(&t.name)).for_each(|t| part.add(t));
            self.networks.push((f.network.to_string(), part));
        }
        self.missing.extend(incomplete.into_iter().map(|network| network.problem.tensor));
        self.missing.extend(used.iter().flatten().filter(|name| !shapes.contains_key(*name)).cloned());
        self.unused.extend(unused);
        self.metadata.extend(file.metadata().clone());
        let long = file.value_keys().filter(|key| !file.metadata().contains_key(*key));
        self.long_values.extend(long.map(str::to_string));
        Ok(())
    }
}
