//! Networks: their graphs, and how each is recognised in a file by the names and shapes of its tensors, never from a table of known
//! files. A small model of a known structure is recognised like a large one.

mod clip;
mod flux;
mod flux2;
mod llm;
mod qwen_image;
mod qwen_vae;
mod sd3;
mod t5;
mod taesd;
mod unet;
mod vae;
mod z_image;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use impasto_graph::{Graph, GraphError};

pub use clip::{CLIP, Clip, ClipConfig, ClipLayout, HiddenState, clip};
pub use flux::{FLUX, Flux, FluxConfig};
pub use flux2::{FLUX2, Flux2, Flux2Config};
pub use llm::{LLM, Llm, LlmConfig, LlmLayout, LlmStates};
pub use qwen_image::{QWEN_IMAGE, QwenImage, QwenImageConfig};
pub use qwen_vae::{QWEN_VAE, QwenVae, QwenVaeConfig, QwenVaeLayout, qwen_vae_decoder, qwen_vae_encoder};
pub use sd3::{SD3, Sd3, Sd3Config};
pub use t5::{T5, T5_ENCODER, T5Config, T5Layout};
pub use taesd::{TAESD, Taesd, TaesdConfig, taesd_decoder, taesd_encoder};
pub use unet::{Heads, UNET, Unet, UnetConfig, unet};
pub use vae::{VAE, Vae, VaeConfig, vae_decoder, vae_encoder};
pub(crate) use z_image::FILLED;
pub use z_image::{Z_IMAGE, ZImage, ZImageConfig};

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

    /// Every name that files have for a parameter, without prefixes: adapters may use any of them.
    fn spellings(&self, name: &str) -> Vec<TensorRef> {
        vec![TensorRef::whole(name.into())]
    }

    /// The name that a parameter has in the first checkpoints of its family, and its shape there, if its file has it under another. `has` tells which
    /// parameters the network has.
    fn original(&self, _name: &str, _shape: &[usize], _has: &dyn Fn(&str) -> bool) -> Option<(String, Vec<usize>)> {
        None
    }
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
    /// The kind that is given with this flag.
    pub(crate) fn of_flag(flag: &str) -> Option<NetworkKind> {
        match flag {
            "--diffusion-model" => Some(NetworkKind::Denoiser),
            "--vae" => Some(NetworkKind::Autoencoder),
            "--taesd" => Some(NetworkKind::TinyAutoencoder),
            "--clip_l" | "--clip_g" | "--t5xxl" | "--llm" => Some(NetworkKind::TextEncoder),
            _ => None,
        }
    }

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
    /// The task of such networks in a model.
    pub kind: NetworkKind,
    /// What the names of its tensors may begin with, in every layout.
    pub prefixes: &'static [&'static str],
    /// The network whose tensors these are, if they are those of one.
    pub find: FindNetwork,
}

/// Finds a network among tensors. A file that has some tensors of one and lacks another that tells its structure is an error.
pub type FindNetwork = fn(&PrefixedTensors) -> Result<Option<Arc<dyn Network>>, TensorProblem>;

/// A tensor that keeps a network from being recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorProblem {
    /// Its name in the file.
    pub tensor: String,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl fmt::Display for TensorProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tensor '{}' {}", self.tensor, self.problem)
    }
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

/// The networks of a file that these families know, in the order text encoders, diffusion model, autoencoder; and for each network that is
/// there in part, the tensor that it lacks.
pub fn recognise(families: &[&dyn Family], shapes: &TensorShapes) -> (Vec<RecognisedNetwork>, Vec<IncompleteNetwork>) {
    let mut kinds: Vec<&'static Recogniser> = vec![];
    for recogniser in families.iter().flat_map(|family| family.networks()) {
        if !kinds.iter().any(|known| std::ptr::eq(*known, recogniser)) {
            kinds.push(recogniser);
        }
    }
    let (mut found, mut incomplete) = (vec![], vec![]);
    for recogniser in kinds {
        for &prefix in recogniser.prefixes {
            match (recogniser.find)(&PrefixedTensors { shapes, prefix }) {
                Ok(network) => {
                    found.extend(network.map(|network| RecognisedNetwork { network, prefix: prefix.into() }));
                }
                Err(problem) => incomplete.push(IncompleteNetwork { kind: recogniser.kind, problem }),
            }
        }
    }
    (found, incomplete)
}

/// Original names and shapes of tensors, by their names in a file.
pub type OriginalNames = BTreeMap<String, (String, Vec<usize>)>;

/// The network that a file of one component has, and how the first checkpoints of its family name those of its tensors that it names otherwise.
pub fn original_names(families: &[&dyn Family], shapes: &TensorShapes) -> Option<(NetworkKind, OriginalNames)> {
    let (found, _) = recognise(families, shapes);
    let found = found.into_iter().find(|found| found.prefix.is_empty())?;
    let graphs = found.graphs().ok()?;
    let params: BTreeMap<&str, &[usize]> =
        graphs.iter().flat_map(|g| g.params().map(|(name, value)| (name, g.ty(value).shape.as_slice()))).collect();
    let mut names = OriginalNames::new();
    for (param, shape) in &params {
        if let Some(original) = found.network.original(param, shape, &|name| params.contains_key(name)) {
            names.insert(found.stored(param, shapes).name, original);
        }
    }
    Some((found.network.kind(), names))
}

/// A network that a file has in part only.
#[derive(Clone, Debug)]
pub struct IncompleteNetwork {
    /// Its task in a model.
    pub kind: NetworkKind,
    /// The tensor that it lacks.
    pub problem: TensorProblem,
}

/// What a file of another kind is, where its names give it away.
pub fn foreign_kind(shapes: &TensorShapes) -> Option<&'static str> {
    let any = |parts: &[&str]| shapes.keys().any(|name| parts.iter().all(|part| name.contains(part)));
    let kinds: [(&[&[&str]], &str); 12] = [
        (
            &[&[".lora_up."], &[".lora_down."], &[".lora_A."], &["lora_linear_layer"], &[".hada_w1_"], &[".lokr_w"]],
            "a LoRA",
        ),
        (&[&["control_model."], &["controlnet_"], &["controlnet_cond_embedding"]], "a ControlNet"),
        (&[&["distilled_guidance_layer."]], "a Chroma diffusion model"),
        (&[&["early_stream_modulations."]], "a FLUX.3 diffusion model"),
        (&[&["txt_in.text_norm."]], "a Qwen-Image-2.1 diffusion model"),
        (&[&["txtfusion.projector."], &["text_fusion.projector."]], "a Krea 2 diffusion model"),
        (&[&["blocks.0.cross_attn.norm_k"], &["blocks.0.attn2.norm_added_q"]], "a Wan diffusion model"),
        (&[&["scale_shift_table", "patchify_proj"], &["patchify_proj."]], "an LTX video model"),
        (&[&["txt_in.individual_token_refiner."]], "a HunyuanVideo diffusion model"),
        (&[&["joint_transformer_blocks."]], "an AuraFlow diffusion model"),
        (&[&["motion_modules."]], "a motion module of AnimateDiff"),
        (&[&["emb_params"], &["string_to_param"]], "a textual inversion"),
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

    /// One dimension of a tensor that the network must have.
    pub fn need(&self, name: &str, axis: usize) -> Result<usize, TensorProblem> {
        let shape = self.need_shape(name)?;
        let tensor = format!("{}{name}", self.prefix);
        let wrong = TensorProblem { tensor, problem: "has a shape that no network has" };
        shape.get(axis).copied().filter(|n| (1..=MAX_SIZE).contains(n)).ok_or(wrong)
    }

    /// The shape of a tensor that the network must have.
    pub fn need_shape(&self, name: &str) -> Result<&[usize], TensorProblem> {
        let missing = || TensorProblem { tensor: format!("{}{name}", self.prefix), problem: "is missing" };
        self.shape(name).ok_or_else(missing)
    }

    /// Whether there is a tensor whose name begins so.
    pub fn any(&self, start: &str) -> bool {
        self.names(start).next().is_some()
    }

    /// How many layers there are, by all names of their tensors: one more than the largest number that follows `start` in a name.
    pub fn count(&self, start: &str) -> usize {
        let number = |rest: &str| rest.split_once('.')?.0.parse::<usize>().ok().filter(|i| *i < MAX_COUNT);
        self.names(start).filter_map(number).max().map_or(0, |last| last + 1)
    }

    /// What follows `start` in the names that begin so.
    fn names(&self, start: &str) -> impl Iterator<Item = &str> {
        let start = format!("{}{start}", self.prefix);
        let length = start.len();
        let names = self.shapes.range(start.clone()..).map(|(name, _)| name.as_str());
        names.take_while(move |name| name.starts_with(&start)).map(move |name| &name[length..])
    }
}
