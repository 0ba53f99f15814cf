//! Networks: their graphs, and how each is recognised in a file by the names and shapes of its tensors, never from a table of known
//! files. A small model of a known structure is recognised like a large one.

mod clip;
mod taesd;
mod unet;
mod vae;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use impasto_graph::{Graph, GraphError};

pub use clip::{CLIP, Clip, ClipConfig, ClipLayout, HiddenState, clip};
pub use taesd::{TAESD, Taesd, TaesdConfig, taesd_decoder, taesd_encoder};
pub use unet::{Heads, UNET, Unet, UnetConfig, unet};
pub use vae::{VAE, Vae, VaeConfig, vae_decoder, vae_encoder};

use crate::families::Family;
use crate::layout::TensorRef;

/// A network with its sizes, and how a file names its tensors.
pub trait Network: Any + fmt::Debug + fmt::Display + Send + Sync {
    /// Its task in a model.
    fn kind(&self) -> NetworkKind;

    /// Its graphs at their smallest: together they have every parameter that it takes.
    fn graphs(&self) -> Result<Vec<Graph>, GraphError>;

    /// Where its file keeps a parameter, without the prefix. `has` tells which names the file has.
    fn stored(&self, name: &str, has: &dyn Fn(&str) -> bool) -> TensorRef;
}

impl dyn Network {
    /// The network, if it is of this type.
    pub fn downcast<T: Network>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}

/// The task of a network in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkKind {
    /// Turns text into numbers.
    TextEncoder,
    /// Tells the picture from the noise.
    Denoiser,
    /// Turns latents into pictures, and back.
    Autoencoder,
    /// The same in a fraction of the work.
    TinyAutoencoder,
}

impl fmt::Display for NetworkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl NetworkKind {
    /// Its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            NetworkKind::TextEncoder => "text encoder",
            NetworkKind::Denoiser => "diffusion model",
            NetworkKind::Autoencoder => "autoencoder",
            NetworkKind::TinyAutoencoder => "tiny autoencoder",
        }
    }
}

/// Finds one kind of network in files.
pub struct Recogniser {
    /// What the names of its tensors may begin with, in every layout.
    pub prefixes: &'static [&'static str],
    /// The network whose tensors these are, if they are those of one.
    pub find: fn(&PrefixedTensors) -> Option<Arc<dyn Network>>,
}

/// A network found in a file, and the beginning that all of its tensors' names share.
#[derive(Clone, Debug)]
pub struct RecognisedNetwork {
    /// The network.
    pub network: Arc<dyn Network>,
    /// For example `model.diffusion_model.`.
    pub prefix: String,
}

impl RecognisedNetwork {
    /// A network below a prefix.
    pub fn new(network: impl Network, prefix: &str) -> RecognisedNetwork {
        RecognisedNetwork { network: Arc::new(network), prefix: prefix.into() }
    }

    /// Its graphs at their smallest: together they have every parameter that it takes.
    pub fn graphs(&self) -> Result<Vec<Graph>, GraphError> {
        self.network.graphs()
    }

    /// Where the file keeps a parameter of this network.
    pub fn stored(&self, name: &str, shapes: &TensorShapes) -> TensorRef {
        let has = |name: &str| shapes.contains_key(&format!("{}{name}", self.prefix));
        let stored = self.network.stored(name, &has);
        TensorRef { name: format!("{}{}", self.prefix, stored.name), ..stored }
    }
}

/// The tensors of a file: names and shapes.
pub type TensorShapes = BTreeMap<String, Vec<usize>>;

/// The networks of a file that these families know, in the order text encoders, diffusion model, autoencoder.
pub fn recognise(families: &[&dyn Family], shapes: &TensorShapes) -> Vec<RecognisedNetwork> {
    let mut kinds: Vec<&'static Recogniser> = vec![];
    for recogniser in families.iter().flat_map(|family| family.networks()) {
        if !kinds.iter().any(|known| std::ptr::eq(*known, recogniser)) {
            kinds.push(recogniser);
        }
    }
    let mut found = vec![];
    for recogniser in kinds {
        for &prefix in recogniser.prefixes {
            let network = (recogniser.find)(&PrefixedTensors { shapes, prefix });
            found.extend(network.map(|network| RecognisedNetwork { network, prefix: prefix.into() }));
        }
    }
    found
}

/// What a file of another kind is, where its names give it away.
pub(crate) fn foreign_kind(shapes: &TensorShapes) -> Option<&'static str> {
    let any = |parts: &[&str]| shapes.keys().any(|name| parts.iter().all(|part| name.contains(part)));
    let kinds: [(&[&[&str]], &str); 8] = [
        (
            &[&[".lora_up."], &[".lora_down."], &[".lora_A."], &["lora_linear_layer"], &[".hada_w1_"], &[".lokr_w"]],
            "a LoRA",
        ),
        (&[&["control_model."], &["controlnet_"], &["controlnet_cond_embedding"]], "a ControlNet"),
        (&[&["double_blocks.", "img_mod"], &["single_transformer_blocks."]], "a Flux diffusion model"),
        (&[&["joint_blocks."], &["transformer_blocks.", "attn.add_q_proj"]], "a Stable Diffusion 3 diffusion model"),
        (&[&["encoder.block.", "SelfAttention"]], "a T5 text encoder"),
        (&[&["motion_modules."]], "a motion module of AnimateDiff"),
        (&[&["emb_params"], &["string_to_param"]], "a textual inversion"),
        (&[&["model.embed_tokens."], &["lm_head."]], "a language model"),
    ];
    kinds.iter().find(|(names, _)| names.iter().any(|parts| any(parts))).map(|(_, kind)| *kind)
}

/// The tensors that each network uses, and those that none does. A tensor that a network lacks is named too, as it should be.
pub fn usage(
    shapes: &TensorShapes,
    networks: &[RecognisedNetwork],
) -> Result<(Vec<BTreeSet<String>>, Vec<String>), GraphError> {
    let mut used = vec![];
    for found in networks {
        let graphs = found.graphs()?;
        let names = graphs.iter().flat_map(|g| g.params().map(|(name, _)| found.stored(name, shapes).name));
        used.push(names.collect::<BTreeSet<String>>());
    }
    let unused = shapes.keys().filter(|name| !used.iter().any(|u| u.contains(*name))).cloned().collect();
    Ok((used, unused))
}

/// No dimension of these networks comes near this. What is larger is damage, and sums of it could overflow.
const MAX_SIZE: usize = 1 << 20;
/// Nor has any of them so many layers or blocks in a row, or so many resolutions.
const MAX_COUNT: usize = 128;
const MAX_LEVELS: usize = 8;

/// The tensors of a file below a prefix.
pub struct PrefixedTensors<'a> {
    shapes: &'a TensorShapes,
    prefix: &'a str,
}

impl PrefixedTensors<'_> {
    /// The shape of a tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.shapes.get(&format!("{}{name}", self.prefix)).map(Vec::as_slice)
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.shape(name).is_some()
    }

    /// One dimension of a tensor, if it is a size that networks have.
    pub fn size(&self, name: &str, axis: usize) -> Option<usize> {
        self.shape(name)?.get(axis).copied().filter(|n| (1..=MAX_SIZE).contains(n))
    }

    /// How many of `pattern` there are, its `#` counted up from 0.
    pub fn count(&self, pattern: &str) -> usize {
        (0..MAX_COUNT).take_while(|i| self.has(&pattern.replace('#', &i.to_string()))).count()
    }
}
