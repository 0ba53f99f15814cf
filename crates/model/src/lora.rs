//! LoRAs on a model: which parameter each module of a LoRA means.
//!
//! Names are never taken apart: underscores cannot be told from dots. Every parameter of the model is spelled in all ways that programs have, and modules are
//! looked up among those.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use impasto_graph::GraphError;
use impasto_weights::{AppliedLora, LoraFile, LoraTarget, TensorView};

use crate::{Llm, Model, ModelError, NetworkId, OpenNetwork, T5};

/// What became of the modules of a LoRA.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraReport {
    /// The file.
    pub path: PathBuf,
    /// How much of it.
    pub strength: f32,
    /// Modules that change the model.
    pub applied: usize,
    /// Modules and tensors that fit nothing in the model.
    pub unused: Vec<String>,
    /// Modules that the model has in another shape, a sentence each.
    pub mismatched: Vec<String>,
}

impl LoraReport {
    /// Whether there is something of it that is not used.
    pub fn is_partial(&self) -> bool {
        !self.unused.is_empty() || !self.mismatched.is_empty()
    }
}

impl fmt::Display for LoraReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LoraReport { path, applied, unused, mismatched, .. } = self;
        write!(f, "{}: {applied} modules are applied", path.display())?;
        let few = |names: &[String]| {
            let more = if names.len() > 3 { ", ..." } else { "" };
            names.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", ") + more
        };
        if !unused.is_empty() {
            write!(f, "; {} fit nothing in this model and are not: {}", unused.len(), few(unused))?;
        }
        if !mismatched.is_empty() {
            write!(f, "; {} have another shape here and are not: {}", mismatched.len(), few(mismatched))?;
        }
        Ok(())
    }
}

/// How LoRAs come into a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoraPlacement {
    /// As branches where one of the weights that they change is quantised, or where a picture before had others; else merged.
    #[default]
    Auto,
    /// Merged with the weights while these are read: no slower, and quantised weights become halves.
    Merged,
    /// As low-rank branches beside the products: weights stay as they are, and stay loaded when other LoRAs come.
    Branches,
}

/// A model with LoRAs, and what became of each.
pub struct ChangedModel {
    /// The model. Networks that no LoRA changes are those of the model without them.
    pub model: Arc<Model>,
    /// The LoRAs, in their order.
    pub reports: Vec<LoraReport>,
    /// Whether they are branches, as far as they can be.
    pub as_branches: bool,
    /// Parameters that are changed although branches were wanted: what changes them is no product of two small matrices.
    pub merged: usize,
    /// Which files they are: 16 hexadecimal digits of their contents and strengths.
    pub fingerprint: String,
}

/// What a model was last asked for: the next picture mostly has the same LoRAs.
#[derive(Default)]
pub(crate) struct LastChanged(Mutex<LastAsked>);

#[derive(Default)]
enum LastAsked {
    #[default]
    Nothing,
    WithoutLoras,
    Loras(Vec<(PathBuf, f32)>, Arc<ChangedModel>),
}

impl Model {
    /// The model with these LoRAs, each with its strength. Weights are not read yet.
    pub fn with_loras(
        &self,
        loras: &[(PathBuf, f32)],
        placement: LoraPlacement,
    ) -> Result<Arc<ChangedModel>, ModelError> {
        let mut last = self.last_changed.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let LastAsked::Loras(known, changed) = &*last {
            let as_asked = match placement {
                LoraPlacement::Auto => true,
                LoraPlacement::Merged => !changed.as_branches,
                LoraPlacement::Branches => changed.as_branches,
            };
            if known == loras && as_asked && changed.model.is_unchanged() {
                return Ok(changed.clone());
            }
        }
        let others_before = !matches!(*last, LastAsked::Nothing);
        let changed = Arc::new(self.changed(loras, placement, others_before)?);
        *last = LastAsked::Loras(loras.to_vec(), changed.clone());
        Ok(changed)
    }

    /// Notes that a picture has no LoRAs: its weights are worth keeping when the next one has some.
    pub fn without_loras(&self) {
        *self.last_changed.0.lock().unwrap_or_else(PoisonError::into_inner) = LastAsked::WithoutLoras;
    }

    fn changed(
        &self,
        loras: &[(PathBuf, f32)],
        placement: LoraPlacement,
        others_before: bool,
    ) -> Result<ChangedModel, ModelError> {
        let spellings = Spellings::of(self);
        let mut by_network = LorasByNetwork::new();
        let (mut reports, mut fingerprint) = (vec![], 0u64);
        for (path, strength) in loras {
            let file = Arc::new(LoraFile::open(path)?);
            let contents = file.fingerprint().map_err(impasto_weights::WeightsError::from)?;
            fingerprint = fingerprint.rotate_left(7) ^ contents ^ u64::from(strength.to_bits()).rotate_left(32);
            let (report, targets) = spellings.find(self, &file, *strength)?;
            reports.push(report);
            for (id, targets) in targets.into_iter().filter(|_| *strength != 0.0) {
                let applied = AppliedLora { file: file.clone(), strength: *strength, targets };
                by_network.entry(id).or_default().push(applied);
            }
        }
        let quantised = || by_network.iter().any(|(id, loras)| self.changes_blocks(*id, loras));
        let quantised = placement == LoraPlacement::Auto && quantised();
        let branched = match placement {
            LoraPlacement::Auto if quantised || others_before => Some(self.with_branches(&by_network)?),
            LoraPlacement::Branches => Some(self.with_branches(&by_network)?),
            LoraPlacement::Auto | LoraPlacement::Merged => None,
        };
        // Where weights are to stay loaded, and some of them change all the same, all may.
        let keeps = |merged: usize| merged == 0 || quantised || placement == LoraPlacement::Branches;
        let (networks, as_branches, merged) = match branched.filter(|(_, merged)| keeps(*merged)) {
            Some((networks, merged)) => (networks, true, merged),
            None => (self.with_merged(&by_network)?, false, 0),
        };
        let model = Model {
            title: self.title.clone(),
            pipeline: self.pipeline.clone(),
            notes: self.notes.clone(),
            unused: self.unused.clone(),
            networks,
            last_changed: LastChanged::default(),
        };
        let fingerprint = format!("{fingerprint:016x}");
        Ok(ChangedModel { model: Arc::new(model), reports, as_branches, merged, fingerprint })
    }
}

/// The LoRAs of each network.
type LorasByNetwork = BTreeMap<NetworkId, Vec<AppliedLora>>;

impl Model {
    /// Whether LoRAs change parameters of a network that are quantised.
    fn changes_blocks(&self, id: NetworkId, loras: &[AppliedLora]) -> bool {
        let mut params = loras.iter().flat_map(|lora| lora.targets.keys());
        self.networks.get(&id).is_some_and(|network| params.any(|param| network.is_quantised(param)))
    }

    fn with_merged(&self, loras: &LorasByNetwork) -> Result<BTreeMap<NetworkId, Arc<OpenNetwork>>, ModelError> {
        let mut networks = self.networks.clone();
        for (id, loras) in loras {
            if let Some(network) = networks.get_mut(id) {
                *network = Arc::new(network.with_loras(loras.clone())?);
            }
        }
        Ok(networks)
    }

    /// The networks with branches, and how many parameters are merged all the same.
    fn with_branches(
        &self,
        loras: &LorasByNetwork,
    ) -> Result<(BTreeMap<NetworkId, Arc<OpenNetwork>>, usize), ModelError> {
        let (mut networks, mut merged) = (self.networks.clone(), 0);
        for (id, loras) in loras {
            let Some(network) = networks.get_mut(id) else { continue };
            let wrong = |source: GraphError| ModelError::Graph {
                path: network.path().into(),
                part: network.network.kind().name(),
                source: source.into(),
            };
            let (branched, rest) = network.with_branches(loras.clone()).map_err(wrong)?;
            merged += rest.iter().flat_map(|lora| lora.targets.keys()).collect::<BTreeSet<_>>().len();
            *network = Arc::new(if rest.is_empty() { branched } else { branched.with_loras(rest)? });
        }
        Ok((networks, merged))
    }
}

/// A parameter that a module's name means.
struct Meaning {
    network: NetworkId,
    param: String,
    shape: Arc<[usize]>,
    bias: bool,
    part: (usize, usize),
}

/// Every name that a LoRA may have for a module of the model.
struct Spellings(HashMap<String, Vec<Meaning>>);

/// By network, the modules that change each parameter.
type TargetsByNetwork = BTreeMap<NetworkId, BTreeMap<String, Vec<LoraTarget>>>;

impl Spellings {
    fn of(model: &Model) -> Spellings {
        let mut all = Spellings(HashMap::new());
        let encoders = model.networks().filter(|(id, _)| matches!(id, NetworkId::TextEncoder(_))).count();
        for (id, network) in model.networks() {
            let prefixes = match id {
                NetworkId::Denoiser => Prefixes { dotted: DENOISER_DOTTED, flat: DENOISER_FLAT },
                NetworkId::TextEncoder(_) if network.network.downcast::<T5>().is_some() => {
                    Prefixes { dotted: T5_DOTTED, flat: T5_FLAT }
                }
                NetworkId::TextEncoder(_) if network.network.downcast::<Llm>().is_some() => {
                    Prefixes { dotted: LLM_DOTTED, flat: LLM_FLAT }
                }
                NetworkId::TextEncoder(1) => Prefixes { dotted: SECOND_DOTTED, flat: SECOND_FLAT },
                NetworkId::TextEncoder(_) if encoders == 1 => Prefixes { dotted: ONLY_DOTTED, flat: ONLY_FLAT },
                NetworkId::TextEncoder(_) => Prefixes { dotted: FIRST_DOTTED, flat: FIRST_FLAT },
                _ => continue,
            };
            for (param, shape) in network.params() {
                all.add(id, network, (param, shape.into()), &prefixes);
            }
        }
        all
    }

    fn add(&mut self, id: NetworkId, network: &OpenNetwork, (param, shape): (&str, Arc<[usize]>), prefixes: &Prefixes) {
        let mut known: Vec<(String, (usize, usize))> = vec![];
        for spelled in network.network.spellings(param) {
            let part = match spelled.take {
                TensorView::Whole => (0, 1),
                TensorView::Rows(part, parts) => (part, parts),
                // What is turned in one dialect is changed under its other name; parts that are not equal are not told apart yet.
                TensorView::Transposed | TensorView::RowsFrom(..) | TensorView::LastTap(_) => continue,
            };
            let ends = [".weight", ".bias", "_weight", "_bias"];
            let module = ends.iter().find_map(|end| spelled.name.strip_suffix(end)).unwrap_or(&spelled.name);
            if !known.iter().any(|(name, _)| name == module) {
                known.push((module.into(), part));
            }
        }
        let bias = param.ends_with("bias");
        for (module, part) in known {
            for name in prefixes.spell(&module) {
                let meaning = Meaning { network: id, param: param.into(), shape: shape.clone(), bias, part };
                self.0.entry(name).or_default().push(meaning);
            }
        }
    }

    /// The parameters that the modules of a LoRA change. One for another family is an error that says so.
    fn find(
        &self,
        model: &Model,
        file: &LoraFile,
        strength: f32,
    ) -> Result<(LoraReport, TargetsByNetwork), ModelError> {
        refuse_other_family(self, model, file)?;
        let (mut targets, mut applied) = (TargetsByNetwork::new(), 0);
        let (mut unused, mut mismatched) = (file.other_tensors().to_vec(), vec![]);
        for module in file.modules() {
            let [weight, bias] = file.changes(module);
            let [mut known, mut fits] = [false; 2];
            for meaning in self.0.get(module).into_iter().flatten() {
                if !(if meaning.bias { bias } else { weight }) {
                    continue;
                }
                known = true;
                let target = LoraTarget { module: module.into(), bias: meaning.bias, part: meaning.part };
                match file.fits(&target, &meaning.shape) {
                    Ok(()) => {
                        fits = true;
                        let network = targets.entry(meaning.network).or_default();
                        network.entry(meaning.param.clone()).or_default().push(target);
                    }
                    Err(problem) => mismatched.push(format!("'{module}': {problem}")),
                }
            }
            applied += usize::from(fits);
            if !known {
                unused.push(module.into());
            }
        }
        let report = LoraReport { path: file.path().into(), strength, applied, unused, mismatched };
        match report.applied {
            0 => {
                let problem = format!("changes nothing of '{}' ({})", model.title, model.pipeline.name());
                let what = report.to_string();
                let why = what.split_once("; ").map_or("", |(_, why)| why);
                Err(ModelError::Lora { path: file.path().into(), problem: format!("{problem}: {why}") })
            }
            _ => Ok((report, targets)),
        }
    }
}

/// What stands before a module's name, written with dots or with underscores.
struct Prefixes {
    dotted: &'static [&'static str],
    flat: &'static [&'static str],
}

const DENOISER_DOTTED: &[&str] = &[
    "",
    "unet.",
    "diffusion_model.",
    "model.diffusion_model.",
    "transformer.",
    "lora_unet.",
    "base_model.model.",
    "unet.base_model.model.",
];
const DENOISER_FLAT: &[&str] = &["lora_unet_", "lora_transformer_", "lycoris_"];
const ONLY_DOTTED: &[&str] = &[
    "text_encoder.",
    "text_encoders.clip_l.transformer.",
    "text_encoders.clip_h.transformer.",
    "clip_l.transformer.",
    "clip_h.transformer.",
    "cond_stage_model.transformer.",
    "cond_stage_model.model.",
    "lora_te.",
    "base_model.model.",
    "text_encoder.base_model.model.",
];
const ONLY_FLAT: &[&str] = &["lora_te_", "lora_te1_"];
const FIRST_DOTTED: &[&str] = &[
    "text_encoder.",
    "text_encoders.clip_l.transformer.",
    "clip_l.transformer.",
    "conditioner.embedders.0.transformer.",
    "lora_te1.",
    "text_encoder.base_model.model.",
];
const FIRST_FLAT: &[&str] = &["lora_te1_"];
const SECOND_DOTTED: &[&str] = &[
    "text_encoder_2.",
    "text_encoders.clip_g.transformer.",
    "clip_g.transformer.",
    "conditioner.embedders.1.model.",
    "lora_te2.",
    "text_encoder_2.base_model.model.",
];
const SECOND_FLAT: &[&str] = &["lora_te2_"];
const T5_DOTTED: &[&str] = &[
    "text_encoder_2.",
    "text_encoder_3.",
    "text_encoders.t5xxl.transformer.",
    "t5xxl.transformer.",
    "lora_te3.",
    "text_encoder_2.base_model.model.",
    "text_encoder_3.base_model.model.",
];
/// Trainers of FLUX.1 count it as the second or as the third.
const T5_FLAT: &[&str] = &["lora_te3_", "lora_te2_"];
const LLM_DOTTED: &[&str] = &["text_encoder.", "text_encoders.llm.", "lora_te.", "text_encoder.base_model.model."];
const LLM_FLAT: &[&str] = &["lora_te_", "lora_te1_"];

impl Prefixes {
    fn spell(&self, module: &str) -> Vec<String> {
        let flat = module.replace('.', "_");
        let mut names: Vec<String> = self.dotted.iter().map(|prefix| format!("{prefix}{module}")).collect();
        names.extend(self.flat.iter().map(|prefix| format!("{prefix}{flat}")));
        // The first LoRAs of diffusers name what processes the attention.
        if module.contains(".to_") {
            let old = module.replace(".to_", ".processor.to_");
            let old = old.strip_suffix(".to_out.0").map(|start| format!("{start}.to_out")).unwrap_or(old);
            names.extend(self.dotted.iter().map(|prefix| format!("{prefix}{old}")));
        }
        names
    }
}

/// Refuses a LoRA that was made for a model of another family, where its names or sizes tell.
fn refuse_other_family(spellings: &Spellings, model: &Model, file: &LoraFile) -> Result<(), ModelError> {
    let ours = model.pipeline.name();
    let refused = |theirs: &str| {
        let problem = format!(
            "is a LoRA for {theirs}, and '{}' is {ours}: take a LoRA that was made for {ours}, or a model of its own family",
            model.title
        );
        Err(ModelError::Lora { path: file.path().into(), problem })
    };
    let unknown: Vec<&str> = file.modules().filter(|module| !spellings.0.contains_key(*module)).collect();
    let any = |words: &[&str]| unknown.iter().any(|module| words.iter().any(|word| module.contains(word)));
    let begins = |starts: &[&str]| unknown.iter().any(|module| starts.iter().any(|start| module.starts_with(start)));
    match () {
        () if any(&["double_blocks", "single_blocks", "single_transformer_blocks"]) => return refused("FLUX"),
        () if any(&["img_mlp", "img_mod"]) => return refused("Qwen-Image"),
        () if any(&["joint_blocks", "add_q_proj"]) => return refused("Stable Diffusion 3"),
        () if any(&["context_refiner", "noise_refiner", "adaLN_modulation"])
            || begins(&["diffusion_model.layers.", "lora_unet_layers_"]) =>
        {
            return refused("Z-Image or Lumina 2");
        }
        () if any(&["blocks.0.cross_attn", "blocks_0_cross_attn"]) => return refused("Wan"),
        () => {}
    }
    let denoiser = model.network(NetworkId::Denoiser);
    let read = denoiser.and_then(|network| {
        let width = |(name, shape): (&str, &[usize])| shape.get(1).copied().filter(|_| name.contains("attn2.to_k."));
        network.params().find_map(width)
    });
    let is_text = |module: &&str| {
        ["attn2.to_k", "attn2_to_k", "attn2.to_v", "attn2_to_v"].iter().any(|end| module.ends_with(end))
    };
    let widths = file.modules().filter(is_text).filter_map(|module| file.inputs(module)).next();
    if let (Some(theirs), Some(read)) = (widths.filter(|theirs| Some(*theirs) != read), read) {
        return match theirs {
            768 => refused("Stable Diffusion 1"),
            1024 => refused("Stable Diffusion 2"),
            2048 => refused("Stable Diffusion XL"),
            1280 => refused("the refiner of Stable Diffusion XL"),
            _ => refused(&format!("another model, whose texts have {theirs} numbers a token (here {read})")),
        };
    }
    match begins(&["lora_te2_", "text_encoder_2."]) && model.network(NetworkId::TextEncoder(1)).is_none() {
        true => refused("Stable Diffusion XL"),
        false => Ok(()),
    }
}
