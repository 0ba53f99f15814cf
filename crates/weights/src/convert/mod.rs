//! A model, written anew: as GGUF or safetensors, in other types.
//!
//! [`Conversion::plan`] decides what each tensor becomes and where it will stand, from headers alone; every byte of the result is known before the first one
//! is written. [`Conversion::write`] then reads, converts and writes pieces of a few megabytes on all threads, in order, so that memory is flat whatever the
//! size of the model. The result appears whole or not at all.
//!
//! A type is not for every tensor ([`choice`]): biases, norms, small tensors and the layers at the ends of a network are left dense, and so is what does not
//! fill whole blocks with its rows. That is what other programs do too, so that they read the result: names and shapes stay as they are, and a GGUF file says
//! its architecture.

mod architecture;
mod choice;
mod gguf;
mod rules;
mod safetensors;
mod write;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use impasto_graph::Storage;

pub use architecture::architecture_of;
pub use rules::{TypeRules, parse_storage};

use crate::format::TensorInfo;
use crate::{Checkpoint, ElementType, FileError, ParamError, WeightsError};
use choice::Choice;

/// The format of a file that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// GGUF, version 3: dense floats and blocks.
    Gguf,
    /// safetensors: dense types and eight-bit floats.
    Safetensors,
}

impl OutputFormat {
    /// The format that the ending of a file's name asks for.
    pub fn of_path(path: &Path) -> Option<OutputFormat> {
        match path.extension()?.to_str()?.to_lowercase().as_str() {
            "gguf" => Some(OutputFormat::Gguf),
            "safetensors" | "sft" => Some(OutputFormat::Safetensors),
            _ => None,
        }
    }

    /// Whether the format has a type for it.
    pub(crate) fn holds(self, element: ElementType) -> bool {
        match self {
            OutputFormat::Gguf => element.block().is_some() && element.gguf_number().is_some(),
            OutputFormat::Safetensors => element.block().is_some_and(|(elements, _)| elements == 1),
        }
    }

    fn name(self) -> &'static str {
        match self {
            OutputFormat::Gguf => "GGUF",
            OutputFormat::Safetensors => "safetensors",
        }
    }
}

/// What a conversion is asked for.
#[derive(Clone, Debug)]
pub struct ConvertOptions {
    /// The format of the result.
    pub format: OutputFormat,
    /// The type of weights; none leaves each as it is, as far as the format can.
    pub storage: Option<Storage>,
    /// The types of some tensors, by name.
    pub rules: TypeRules,
    /// Texts that the result says of itself beside those of the model.
    pub metadata: BTreeMap<String, String>,
}

/// An open model, and what its tensors' names will begin with.
pub struct ModelPart {
    /// The prefix, such as `vae.`; mostly none.
    pub prefix: String,
    /// Tensors that will have another name after that, and a shape of the same elements.
    pub renamed: BTreeMap<String, (String, Vec<usize>)>,
    /// The model.
    pub checkpoint: Checkpoint,
}

/// Why a model cannot be converted.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The format has no such type.
    #[error("{format} has no type {storage}; {instead}")]
    Type {
        /// The format.
        format: &'static str,
        /// The type.
        storage: Storage,
        /// What to do.
        instead: &'static str,
    },
    /// A rule cannot be read.
    #[error("the rule '{rule}' {problem}")]
    Rule {
        /// The rule.
        rule: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A tensor cannot be converted.
    #[error("tensor '{name}' {problem}")]
    Tensor {
        /// The tensor.
        name: String,
        /// Why, as what follows the name in a sentence.
        problem: String,
    },
    /// Two parts have a tensor of the same name.
    #[error(
        "two components have a tensor '{0}'; convert one of them, or merge a folder whose components have names of their own"
    )]
    Twice(String),
    /// There is nothing to write.
    #[error("the model has no tensors")]
    Empty,
    /// The result exists.
    #[error("{}: exists already; write to another file, or replace it with --force", .0.display())]
    Exists(PathBuf),
    /// The result is one of the files that are read.
    #[error("{}: is the model that is converted; write to another file", .0.display())]
    SameFile(PathBuf),
    /// The result cannot be written.
    #[error("{}: cannot be written: {source}; nothing is left of it", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// Somebody asked to stop.
    #[error("interrupted; nothing was written")]
    Interrupted,
    /// The model cannot be read.
    #[error(transparent)]
    Read(#[from] ParamError),
    /// Nor its header.
    #[error(transparent)]
    Weights(#[from] WeightsError),
}

impl From<FileError> for ConvertError {
    fn from(error: FileError) -> ConvertError {
        ConvertError::Read(error.into())
    }
}

/// Tensors of one type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TypeTotal {
    /// How many.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// A tensor that is not what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeFallback {
    /// The tensor.
    pub name: String,
    /// What was asked for.
    pub wanted: String,
    /// What it is.
    pub written: String,
    /// Why, in a few words.
    pub reason: &'static str,
}

/// What a conversion does.
#[derive(Clone, Debug, Default)]
pub struct ConversionReport {
    /// The types in the model.
    pub before: BTreeMap<ElementType, TypeTotal>,
    /// The types in the result.
    pub after: BTreeMap<ElementType, TypeTotal>,
    /// Bytes that are read.
    pub bytes_read: u64,
    /// Bytes of the result.
    pub bytes_written: u64,
    /// `general.architecture` of the result, where the model's names tell it.
    pub architecture: Option<String>,
    /// Tensors that could not have the type that was asked for.
    pub fallbacks: Vec<TypeFallback>,
    /// Tensors that the result does not have, since the format cannot hold them or nobody needs them.
    pub left_out: Vec<String>,
    /// Rules that no tensor's name matches.
    pub unmatched_rules: Vec<String>,
}

/// A tensor of the result.
pub(crate) struct OutputTensor {
    pub(crate) name: String,
    /// Its name in the model, and which of the parts has it.
    source: String,
    part: usize,
    pub(crate) shape: Vec<usize>,
    pub(crate) element: ElementType,
    pub(crate) bytes: u64,
    /// As what it is read; none copies its bytes.
    read_as: Option<Storage>,
    /// Where its bytes begin after the header.
    pub(crate) offset: u64,
}

/// A model that is to be written anew, decided down to the last byte.
pub struct Conversion {
    parts: Vec<ModelPart>,
    tensors: Vec<OutputTensor>,
    header: Vec<u8>,
    /// Bytes after the header, padding included.
    data_bytes: u64,
    report: ConversionReport,
}

impl Conversion {
    /// Decides what each tensor becomes.
    pub fn plan(parts: Vec<ModelPart>, options: &ConvertOptions) -> Result<Conversion, ConvertError> {
        let mut wanted = options.storage.into_iter().chain(options.rules.storages());
        if let Some(storage) = wanted.find(|storage| !options.format.holds(ElementType::of_storage(*storage))) {
            let instead = match options.format {
                OutputFormat::Gguf => "write .safetensors for eight-bit floats, or choose q8_0",
                OutputFormat::Safetensors => "write .gguf for blocks, or choose f16, bf16 or f8_e4m3",
            };
            return Err(ConvertError::Type { format: options.format.name(), storage, instead });
        }
        let mut report = ConversionReport::default();
        let mut matched = vec![false; options.rules.len()];
        let mut tensors = choose_all(&parts, options, &mut matched, &mut report)?;
        report.unmatched_rules = options.rules.unmatched(&matched);
        if tensors.is_empty() {
            return Err(ConvertError::Empty);
        }
        check_names(&tensors)?;
        report.architecture = architecture(&parts, &tensors);
        let (header, data_bytes) = match options.format {
            OutputFormat::Gguf => {
                gguf::header(&parts, &mut tensors, report.architecture.as_deref(), &options.metadata)?
            }
            OutputFormat::Safetensors => safetensors::header(&parts, &mut tensors, &options.metadata),
        };
        report.bytes_written = header.len() as u64 + data_bytes;
        Ok(Conversion { parts, tensors, header, data_bytes, report })
    }

    /// What will be written.
    pub fn report(&self) -> &ConversionReport {
        &self.report
    }
}

/// The tensors of the result in the order of the files, so that these are read from start to end.
fn choose_all(
    parts: &[ModelPart],
    options: &ConvertOptions,
    matched: &mut [bool],
    report: &mut ConversionReport,
) -> Result<Vec<OutputTensor>, ConvertError> {
    let mut chosen = vec![];
    for (part, ModelPart { prefix, renamed, checkpoint }) in parts.iter().enumerate() {
        let mut tensors: Vec<_> = checkpoint.tensors().collect();
        tensors.sort_by_key(|tensor| (tensor.file, tensor.range.start));
        for tensor in tensors {
            let same_elements = |(_, shape): &&(String, Vec<usize>)| {
                shape.iter().map(|&d| d as u64).product::<u64>() == tensor.elements()
            };
            let (own, shape) = match renamed.get(&tensor.name).filter(same_elements) {
                Some((name, shape)) => (name, shape),
                None => (&tensor.name, &tensor.shape),
            };
            let name = format!("{prefix}{own}");
            let count = |totals: &mut BTreeMap<ElementType, TypeTotal>, element, bytes| {
                let total: &mut TypeTotal = totals.entry(element).or_default();
                (total.tensors, total.bytes) = (total.tensors + 1, total.bytes + bytes);
            };
            count(&mut report.before, tensor.element, tensor.bytes());
            let rule = options.rules.find(&name);
            rule.inspect(|(number, _)| matched[*number] = true);
            let as_written = TensorInfo { shape: shape.clone(), ..tensor.clone() };
            let choice = choice::choose(&as_written, &name, rule.map(|(_, storage)| storage), options);
            let (element, read_as) =
                match choice.map_err(|problem| ConvertError::Tensor { name: name.clone(), problem })? {
                    Choice::LeftOut => {
                        report.left_out.push(name);
                        continue;
                    }
                    Choice::Copied => (tensor.element, None),
                    Choice::Converted(storage) => (ElementType::of_storage(storage), Some(storage)),
                    Choice::Fallback { storage, wanted, reason } => {
                        let (wanted, written) = (wanted.to_string(), storage.to_string());
                        report.fallbacks.push(TypeFallback { name: name.clone(), wanted, written, reason });
                        (ElementType::of_storage(storage), Some(storage))
                    }
                };
            let bytes = match read_as {
                Some(storage) => storage.bytes_of(tensor.elements()).unwrap_or(u64::MAX),
                None => tensor.bytes(),
            };
            count(&mut report.after, element, bytes);
            report.bytes_read += tensor.bytes();
            let (source, shape) = (tensor.name.clone(), shape.clone());
            chosen.push(OutputTensor { name, source, part, shape, element, bytes, read_as, offset: 0 });
        }
    }
    Ok(chosen)
}

fn check_names(tensors: &[OutputTensor]) -> Result<(), ConvertError> {
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(ConvertError::Twice(pair[0].into())),
        None => Ok(()),
    }
}

/// What a GGUF file says of its architecture stays; else names tell it.
fn architecture(parts: &[ModelPart], tensors: &[OutputTensor]) -> Option<String> {
    let said = |part: &ModelPart| {
        let has = part.checkpoint.value_keys().any(|key| key == "general.architecture");
        has.then(|| part.checkpoint.metadata().get("general.architecture").cloned())?
    };
    let by_names = || architecture_of(tensors.iter().map(|tensor| tensor.name.as_str())).map(str::to_string);
    parts.iter().find_map(said).or_else(by_names)
}
