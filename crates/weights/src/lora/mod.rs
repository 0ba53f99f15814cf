//! LoRA files: small changes of a model's weights, in every dialect that people have.
//!
//! A [`LoraFile`] knows its adapters by module, as the file names them; which parameter a module is, a model says ([`LoraTarget`]). Parameters are changed
//! while they are read ([`FileParams::with_loras`](crate::FileParams::with_loras)), some rows at a time, in `f32`, and rounded once.
//!
//! The difference of a weight is `scale * up * down` with `scale = alpha / rank`; the element-wise product of two such products (LoHa); a Kronecker product
//! (LoKr); or written out (`diff`). With DoRA the sum of weight and difference is brought to the lengths that the file says, by rows or by inputs, and the
//! strength says how far the weight goes from what it was to that.

mod adapter;
mod branches;
mod delta;
mod merge;
mod names;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::file::FileStamp;
use crate::format::TensorInfo;
use crate::view::ParamView;
use crate::{Checkpoint, ElementType, FileError, ParamError, TensorView, WeightSource, WeightsError};
use adapter::{Adapter, ModuleTensors};
pub use branches::{BranchOrigin, BranchedLayer, LoraBranches};
pub(crate) use merge::{MergedParam, PatchCache};
use names::Role;

/// A LoRA file, opened: its adapters by the names of their modules. Weights are not read yet.
pub struct LoraFile {
    path: PathBuf,
    checkpoint: Arc<Checkpoint>,
    adapters: BTreeMap<String, Adapter>,
    others: Vec<String>,
}

impl LoraFile {
    /// Opens a LoRA of any format: safetensors, GGUF, or a checkpoint of PyTorch.
    pub fn open(path: &Path) -> Result<LoraFile, WeightsError> {
        LoraFile::of(path, Arc::new(Checkpoint::open(path)?))
    }

    /// The adapters of a file that is open.
    pub fn of(path: &Path, checkpoint: Arc<Checkpoint>) -> Result<LoraFile, WeightsError> {
        let wrong = |problem: String| WeightsError::NotAModel { path: path.into(), problem };
        let (mut modules, mut others) = (BTreeMap::<String, BTreeMap<Role, &TensorInfo>>::new(), vec![]);
        for tensor in checkpoint.tensors() {
            match names::parse(&tensor.name) {
                Some((module, role)) => {
                    modules.entry(module).or_default().insert(role, tensor);
                }
                None => others.push(tensor.name.clone()),
            }
        }
        let said = SaidScales::read(path, &checkpoint);
        let mut adapters = BTreeMap::new();
        for (module, tensors) in modules {
            let alpha = tensors.get(&Role::Alpha).map(|tensor| scalar(&checkpoint, tensor)).transpose()?;
            if let Some(alpha) = alpha.filter(|alpha| !alpha.is_finite()) {
                return Err(wrong(format!("LoRA module '{module}' has the alpha {alpha}: the file is damaged")));
            }
            let scale = |rank: usize| match alpha {
                Some(alpha) => alpha / rank as f32,
                None => said.scale(&module, rank),
            };
            let alone = tensors.len() == 1 && alpha.is_some();
            let adapter = ModuleTensors { module: &module, tensors, scale: &scale }.adapter();
            let adapter = adapter.map_err(|problem| wrong(format!("LoRA {problem}: the file is damaged")))?;
            match adapter.weight.is_none() && adapter.bias.is_none() && !alone {
                true => return Err(wrong(format!("LoRA module '{module}' is incomplete: the file is damaged"))),
                false if alone => others.push(format!("{module}.alpha")),
                false => {
                    adapters.insert(module, adapter);
                }
            }
        }
        if adapters.is_empty() {
            let first: Vec<&str> = others.iter().take(3).map(String::as_str).collect();
            return Err(wrong(format!("is no LoRA: none of its tensors is called as one's ({})", first.join(", "))));
        }
        Ok(LoraFile { path: path.into(), checkpoint, adapters, others })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of its modules.
    pub fn modules(&self) -> impl Iterator<Item = &str> {
        self.adapters.keys().map(String::as_str)
    }

    /// Tensors that belong to no adapter.
    pub fn other_tensors(&self) -> &[String] {
        &self.others
    }

    /// Inputs of a module's weight, where it has an adapter for it.
    pub fn inputs(&self, module: &str) -> Option<usize> {
        self.adapters.get(module)?.weight.as_ref().map(|delta| delta.columns)
    }

    /// What a module changes: its weight, its bias.
    pub fn changes(&self, module: &str) -> [bool; 2] {
        self.adapters.get(module).map_or([false; 2], |a| [a.weight.is_some(), a.bias.is_some()])
    }

    /// Whether a module can change a parameter of this shape, or why not.
    pub fn fits(&self, target: &LoraTarget, shape: &[usize]) -> Result<(), String> {
        let adapter = self.adapters.get(&target.module).ok_or("there is no such module")?;
        let (part, parts) = target.part;
        match part < parts {
            true => adapter.fits(target.bias, shape, parts),
            false => Err("there is no such part".into()),
        }
    }

    /// Whether the file is still the one that was opened.
    pub fn is_unchanged(&self) -> bool {
        self.checkpoint.is_unchanged()
    }

    /// A number that tells this file from others: of names and shapes, and of some bytes of every tensor.
    pub fn fingerprint(&self) -> Result<u64, FileError> {
        let mut hash = Fnv::default();
        for tensor in self.checkpoint.tensors() {
            hash.take_tensor(&self.checkpoint, tensor)?;
        }
        Ok(hash.0)
    }

    pub(crate) fn check(&self) -> Result<(), ParamError> {
        self.checkpoint.check()
    }

    /// All numbers of a tensor. One that is no number is an error: a sum with it is none either.
    fn numbers(&self, name: &str) -> Result<Vec<f32>, ParamError> {
        let wrong = |problem: String| ParamError::Wrong { name: name.into(), problem };
        let of_lora = |problem: &str| wrong(format!("of the LoRA {} {problem}", self.path.display()));
        let tensor = self.checkpoint.tensor(name).ok_or_else(|| of_lora("is missing"))?;
        let numbers = floats(&self.checkpoint, tensor)?;
        match numbers.iter().all(|x| x.is_finite()) {
            true => Ok(numbers),
            false => Err(of_lora("has NaN or infinity: the file is damaged, or its training failed; leave it out")),
        }
    }
}

fn floats(checkpoint: &Checkpoint, tensor: &TensorInfo) -> Result<Vec<f32>, ParamError> {
    let wrong = |problem| ParamError::Wrong { name: tensor.name.clone(), problem };
    let view = ParamView::new(checkpoint, tensor, TensorView::Whole, &tensor.shape, None).map_err(wrong)?;
    let mut numbers = vec![0.0; tensor.elements() as usize];
    view.floats(0, &mut numbers)?;
    Ok(numbers)
}

/// One number, which some programs write as a whole one.
fn scalar(checkpoint: &Checkpoint, tensor: &TensorInfo) -> Result<f32, WeightsError> {
    let path = checkpoint.files().next().unwrap_or(Path::new("")).to_path_buf();
    let wrong = |problem: String| WeightsError::NotAModel { path, problem: format!("'{}' {problem}", tensor.name) };
    if tensor.elements() != 1 {
        return Err(wrong(format!("has the shape {:?}, one number is needed", tensor.shape)));
    }
    let bytes = checkpoint.read_all(tensor)?;
    match (tensor.element, bytes.first_chunk::<8>(), bytes.first_chunk::<4>()) {
        (ElementType::I64, Some(bytes), _) => Ok(i64::from_le_bytes(*bytes) as f32),
        (ElementType::I32, _, Some(bytes)) => Ok(i32::from_le_bytes(*bytes) as f32),
        _ => match floats(checkpoint, tensor) {
            Ok(numbers) => Ok(numbers[0]),
            Err(ParamError::File(error)) => Err(error.into()),
            Err(other) => Err(wrong(other.to_string())),
        },
    }
}

/// What the metadata of PEFT says of scales, where tensors do not: by component (`unet`), or in `adapter_config.json` beside the file.
struct SaidScales(BTreeMap<String, Value>);

impl SaidScales {
    fn read(path: &Path, checkpoint: &Checkpoint) -> SaidScales {
        let object = |text: &str| serde_json::from_str::<BTreeMap<String, Value>>(text).ok();
        let inside = checkpoint.metadata().get("lora_adapter_metadata").and_then(|text| object(text));
        let beside = || {
            let name = path.file_name().filter(|name| name.to_string_lossy().starts_with("adapter_model."))?;
            object(
                &std::fs::read_to_string(path.with_file_name("adapter_config.json"))
                    .ok()
                    .filter(|_| !name.is_empty())?,
            )
        };
        SaidScales(inside.or_else(beside).unwrap_or_default())
    }

    fn scale(&self, module: &str, rank: usize) -> f32 {
        let (component, rest) = module.split_once('.').unwrap_or(("", module));
        let said = |key: &str| self.0.get(&format!("{component}.{key}")).or_else(|| self.0.get(key));
        let pattern = said("alpha_pattern").and_then(Value::as_object);
        let by_name = pattern.and_then(|pattern| {
            let fits = |(name, _): &(&String, _)| rest == *name || rest.ends_with(&format!(".{name}"));
            pattern.iter().find(fits).map(|(_, alpha)| alpha)
        });
        let alpha = by_name.or_else(|| said("lora_alpha")).and_then(Value::as_f64);
        let root = said("use_rslora").and_then(Value::as_bool) == Some(true);
        alpha.map_or(1.0, |alpha| (alpha / if root { (rank as f64).sqrt() } else { rank as f64 }) as f32)
    }
}

/// Which module of a LoRA changes a parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoraTarget {
    /// The module, as the LoRA names it.
    pub module: String,
    /// Whether the parameter is the module's bias, not its weight.
    pub bias: bool,
    /// Which of so many equal parts of the module's rows it is: `(part, parts)`.
    pub part: (usize, usize),
}

/// A LoRA, how much of it, and the parameters that it changes.
#[derive(Clone)]
pub struct AppliedLora {
    /// The file.
    pub file: Arc<LoraFile>,
    /// How much of it: 1 is as it was trained.
    pub strength: f32,
    /// Its modules by the parameters that they change.
    pub targets: BTreeMap<String, Vec<LoraTarget>>,
}

impl AppliedLora {
    /// Whether all modules fit their parameters, and which does not.
    pub(crate) fn problems(&self, shape: impl Fn(&str) -> Option<Vec<usize>>) -> Vec<String> {
        let mut problems = vec![];
        for (param, target) in self.targets.iter().flat_map(|(param, list)| list.iter().map(move |t| (param, t))) {
            let fits = shape(param).ok_or_else(|| "there is no such parameter".to_string());
            if let Err(problem) = fits.and_then(|shape| self.file.fits(target, &shape)) {
                problems.push(format!("{}: '{}': {problem}", self.file.path.display(), target.module));
            }
        }
        problems
    }

    /// Where another process finds it; nowhere if it is in memory.
    pub(crate) fn origin(&self) -> Option<LoraOrigin> {
        let (files, targets) = (self.file.checkpoint.stamps()?, self.targets.clone());
        Some(LoraOrigin { path: self.file.path.clone(), files, strength: self.strength, targets })
    }

    /// What it does to parameters, as bytes of a fingerprint.
    pub(crate) fn take_into(&self, hash: &mut Fnv) -> Result<(), FileError> {
        hash.take(&self.strength.to_le_bytes());
        for (param, targets) in &self.targets {
            for LoraTarget { module, bias, part } in targets {
                let Some(adapter) = self.file.adapters.get(module) else { continue };
                hash.take(format!("{param} {part:?}").as_bytes());
                hash.take(&adapter.weight.as_ref().map_or(1.0, |delta| delta.scale).to_le_bytes());
                for tensor in adapter.tensors(*bias).into_iter().filter_map(|name| self.file.checkpoint.tensor(name)) {
                    hash.take_tensor(&self.file.checkpoint, tensor)?;
                }
            }
        }
        Ok(())
    }
}

/// A LoRA that changes parameters, described so that another process does the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoraOrigin {
    /// The file, as it was named.
    pub path: PathBuf,
    /// It, as it was when it was opened.
    pub files: Vec<FileStamp>,
    /// How much of it.
    pub strength: f32,
    /// Its modules by the parameters that they change.
    pub targets: BTreeMap<String, Vec<LoraTarget>>,
}

impl LoraOrigin {
    pub(crate) fn open(&self) -> Result<AppliedLora, WeightsError> {
        let file = LoraFile::of(&self.path, Arc::new(Checkpoint::reopen(&self.files)?))?;
        Ok(AppliedLora { file: Arc::new(file), strength: self.strength, targets: self.targets.clone() })
    }
}

/// FNV-1a, of what tells one file from another.
pub(crate) struct Fnv(pub u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    pub fn take(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.0 = (self.0 ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
    }

    /// Some bytes of a tensor: of its beginning, its middle and its end.
    pub fn take_bytes(&mut self, checkpoint: &Checkpoint, tensor: &TensorInfo) -> Result<(), FileError> {
        let some = &mut [0; 64][..tensor.bytes().min(64) as usize];
        let rest = tensor.bytes() - some.len() as u64;
        for at in [0, rest / 2, rest] {
            checkpoint.read(tensor, at, some)?;
            self.take(some);
        }
        Ok(())
    }

    fn take_tensor(&mut self, checkpoint: &Checkpoint, tensor: &TensorInfo) -> Result<(), FileError> {
        self.take(tensor.name.as_bytes());
        tensor.shape.iter().for_each(|d| self.take(&(*d as u64).to_le_bytes()));
        self.take_bytes(checkpoint, tensor)
    }
}
