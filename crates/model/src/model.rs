//! A model, opened: its networks with their files, and how they make pictures.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use impasto_graph::Storage;
use impasto_weights::{Checkpoint, FileError, ParamLocation, TypeRules, WeightsError};

use crate::discovery::Discovered;
use crate::families::{AssembledModel, FAMILIES, Family, NetworkId, Pipeline};
use crate::lora::LastChanged;
use crate::networks::usage;
use crate::source::SourceFile;
use crate::{ModelError, OpenNetwork};

/// What the user named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelPaths {
    /// One file with everything, or a diffusers folder.
    pub model: Option<PathBuf>,
    /// The diffusion model.
    pub diffusion: Option<PathBuf>,
    /// The autoencoder.
    pub vae: Option<PathBuf>,
    /// The text encoder CLIP-L.
    pub clip_l: Option<PathBuf>,
    /// The text encoder OpenCLIP-G (XL) or OpenCLIP-H (Stable Diffusion 2).
    pub clip_g: Option<PathBuf>,
    /// The text encoder T5-XXL.
    pub t5xxl: Option<PathBuf>,
    /// The language model that reads the text.
    pub llm: Option<PathBuf>,
    /// The tiny autoencoder.
    pub taesd: Option<PathBuf>,
    /// As what the weights of all of them are read; by default as the files have them.
    pub weight_type: Option<Storage>,
    /// The same by the names of tensors, before that: `^vae\.=f16,attn=q8_0`.
    pub type_rules: Option<String>,
}

impl ModelPaths {
    /// Whether nothing is named.
    pub fn is_empty(&self) -> bool {
        let ModelPaths { model, diffusion, vae, clip_l, clip_g, t5xxl, llm, taesd, .. } = self;
        [model, diffusion, vae, clip_l, clip_g, t5xxl, llm, taesd].iter().all(|p| p.is_none())
    }
}

impl ModelPaths {
    /// Text encoders that have a flag of their own: the flag, and what was named with it.
    pub(crate) fn named_text(&self) -> [(&'static str, &Option<PathBuf>); 4] {
        let ModelPaths { clip_l, clip_g, t5xxl, llm, .. } = self;
        [("--clip_l", clip_l), ("--clip_g", clip_g), ("--t5xxl", t5xxl), ("--llm", llm)]
    }
}

/// A whole model, open: every network that makes a picture, found and checked.
///
/// ```no_run
/// use impasto_model::{Model, ModelPaths};
/// let model = Model::open(&ModelPaths { model: Some("model.safetensors".into()), ..Default::default() })?;
/// println!("{}: {} predicts {:?}", model.title, model.pipeline.name(), model.pipeline.prediction());
/// # Ok::<(), impasto_model::ModelError>(())
/// ```
pub struct Model {
    /// The name that its files give it, else the name of its file or folder.
    pub title: String,
    /// How it makes pictures.
    pub pipeline: Arc<dyn Pipeline>,
    /// What the user should know of the choice of files.
    pub notes: Vec<String>,
    /// Tensors of the files that no network uses.
    pub unused: Vec<String>,
    pub(crate) networks: BTreeMap<NetworkId, Arc<OpenNetwork>>,
    pub(crate) last_changed: LastChanged,
}

impl Model {
    /// Open what the user named, find every network and check all of its tensors. Weights are not read yet.
    pub fn open(paths: &ModelPaths) -> Result<Model, ModelError> {
        Model::open_with(FAMILIES, paths)
    }

    /// The same with a list of families of one's own.
    pub fn open_with(families: &[&dyn Family], paths: &ModelPaths) -> Result<Model, ModelError> {
        let model = Model::assemble(families, Discovered::of_paths(families, paths)?)?;
        model.read_as(paths)
    }

    /// The same model, its weights converted to other types while they are read, as the paths say: by rules for the names of tensors; else those of layers,
    /// as far as their rows are whole blocks; biases, norms and embeddings stay as the files have them.
    pub fn read_as(mut self, paths: &ModelPaths) -> Result<Model, ModelError> {
        if paths.weight_type.is_none() && paths.type_rules.is_none() {
            return Ok(self);
        }
        let rules = paths.type_rules.as_deref().unwrap_or_default().parse::<TypeRules>();
        let rules = rules.map_err(|error| ModelError::TypeRules { problem: error.to_string() })?;
        let chosen = |name: &str, location: &ParamLocation| {
            let by_rule =
                rules.find(&location.tensor).and_then(|(_, storage)| in_whole_blocks(storage, &location.shape));
            by_rule.or_else(|| layer_storage(name, &location.shape, paths.weight_type?))
        };
        let mut converted: Vec<(Arc<OpenNetwork>, Arc<OpenNetwork>)> = vec![];
        for network in self.networks.values_mut() {
            let known = converted.iter().find(|(before, _)| Arc::ptr_eq(before, network));
            let after = match known {
                Some((_, after)) => after.clone(),
                None => Arc::new(network.read_as(&chosen)?),
            };
            converted.push((std::mem::replace(network, after.clone()), after));
        }
        Ok(self)
    }

    /// A model that is in memory, in one file.
    pub fn from_checkpoint(name: &str, checkpoint: Checkpoint) -> Result<Model, ModelError> {
        Model::assemble(FAMILIES, Discovered::of_source(SourceFile::of(FAMILIES, checkpoint, name.into())))
    }

    fn assemble(families: &[&dyn Family], mut files: Discovered) -> Result<Model, ModelError> {
        let denoiser = files.denoiser.as_ref().map(|pick| pick.found.network.clone());
        let family =
            families.iter().find(|family| denoiser.as_ref().is_some_and(|d| family.recognises(&**d).is_some()));
        let family = family.ok_or_else(|| files.no_denoiser())?;
        let title = files.title();
        let AssembledModel { pipeline, networks } = family.open(&mut files)?;
        let notes = files.sources.iter().filter_map(|s| s.note.clone()).collect();
        let unused = unused(&files, &networks);
        check_unused(&unused, &networks)?;
        let unused = unused.into_iter().flat_map(|(_, names)| names).collect();
        Ok(Model { title, pipeline, notes, unused, networks, last_changed: LastChanged::default() })
    }

    /// One of its networks, where it has that.
    pub fn network(&self, id: NetworkId) -> Option<&Arc<OpenNetwork>> {
        self.networks.get(&id)
    }

    /// Its networks. An autoencoder is in the list as what it was found for.
    pub fn networks(&self) -> impl Iterator<Item = (NetworkId, &Arc<OpenNetwork>)> {
        self.networks.iter().map(|(id, network)| (*id, network))
    }

    /// Its networks, those that are one in their file once: under the name of the last.
    pub fn distinct_networks(&self) -> impl Iterator<Item = (NetworkId, &Arc<OpenNetwork>)> {
        let later = |id: NetworkId, network: &Arc<OpenNetwork>| {
            self.networks.range(id..).skip(1).any(|(_, other)| Arc::ptr_eq(network, other))
        };
        self.networks().filter(move |(id, network)| !later(*id, network))
    }

    /// Which model it is, whatever its file is called: 16 hexadecimal digits.
    pub fn fingerprint(&self) -> Result<String, ModelError> {
        let mut networks = self.distinct_networks();
        let all = networks.try_fold(0u64, |all, (_, network)| Ok(all.rotate_left(7) ^ network.fingerprint()?));
        Ok(format!("{:016x}", all.map_err(|error: FileError| WeightsError::from(error))?))
    }

    /// Whether its files are still those that were opened.
    pub fn is_unchanged(&self) -> bool {
        self.networks.values().all(|network| network.is_unchanged())
    }
}

/// What a parameter is converted to where layers are to be of this storage, if it is converted.
pub fn layer_storage(name: &str, shape: &[usize], storage: Storage) -> Option<Storage> {
    let is_table = ["embedding", "embed_tokens", "shared.weight", "relative_attention_bias"];
    let is_layer = shape.len() >= 2 && !is_table.iter().any(|table| name.contains(table));
    // Windows of several taps become numbers again before they are multiplied: blocks would cost bits, and save nothing.
    let stays_so = matches!(storage, Storage::Dense(_)) || shape.len() == 2;
    in_whole_blocks(storage, shape).filter(|_| is_layer && stays_so)
}

/// The storage, or that of smaller blocks in its place, if rows are whole blocks of it.
fn in_whole_blocks(storage: Storage, shape: &[usize]) -> Option<Storage> {
    let row = shape.last().copied().unwrap_or(1) as u64;
    [Some(storage), storage.in_smaller_blocks()].into_iter().flatten().find(|s| row.is_multiple_of(s.block_elements()))
}

/// The tensors that no network uses, by file: neither those of the model, nor others that were recognised and not needed.
fn unused<'a>(
    files: &'a Discovered,
    networks: &BTreeMap<NetworkId, Arc<OpenNetwork>>,
) -> Vec<(&'a SourceFile, Vec<String>)> {
    let used: BTreeSet<&str> = networks.values().flat_map(|network| network.tensors()).collect();
    let rest = |source: &SourceFile| match usage(&source.shapes, &source.found) {
        Ok((_, rest)) => rest,
        Err(_) => source.shapes.keys().cloned().collect(),
    };
    let unused = |source: &SourceFile| rest(source).into_iter().filter(|name| !used.contains(name.as_str())).collect();
    files.sources.iter().map(|source| (&**source, unused(source))).collect()
}

/// Refuses tensors that stand among those of a network in use and that it does not use: they would change the picture.
fn check_unused(
    unused: &[(&SourceFile, Vec<String>)],
    networks: &BTreeMap<NetworkId, Arc<OpenNetwork>>,
) -> Result<(), ModelError> {
    for (source, unused) in unused {
        for network in networks.values().filter(|network| network.path() == source.path) {
            let first_word = |name: &str| {
                let rest = name.strip_prefix(network.prefix())?;
                rest.split('.').next().map(String::from)
            };
            let own: BTreeSet<String> = network.tensors().filter_map(first_word).collect();
            let is_own =
                |name: &&String| first_word(name).is_some_and(|word| own.contains(&word)) && !is_harmless(name);
            let tensors: Vec<String> = unused.iter().filter(is_own).cloned().collect();
            if !tensors.is_empty() {
                let part = network.network.kind().name();
                return Err(ModelError::UnknownTensors { path: source.path.clone(), part, tensors });
            }
        }
    }
    Ok(())
}

/// Whether a tensor is one that training code leaves among a network's own and that no picture depends on.
fn is_harmless(name: &str) -> bool {
    const BUFFERS: [&str; 9] = [
        "position_ids",
        "num_batches_tracked",
        "attn_mask",
        "causal_attention_mask",
        "logit_scale",
        "text_projection",
        "inv_freq",
        // The other name of T5's table.
        "embed_tokens",
        // What only runs between the frames of a video (the autoencoder of Qwen-Image).
        "time_conv",
    ];
    name.rsplit('.').take(2).any(|word| BUFFERS.contains(&word))
}
