//! What each tensor becomes.

use impasto_graph::{DType, Storage};

use super::{ConvertOptions, OutputFormat};
use crate::ElementType;
use crate::format::TensorInfo;
use crate::scales::Quantised;
use crate::view::RawType;

const F32: Storage = Storage::Dense(DType::F32);
const F16: Storage = Storage::Dense(DType::F16);
const BF16: Storage = Storage::Dense(DType::BF16);

/// Tensors with no more elements than these are not worth blocks.
const SMALL: u64 = 1024;

/// The dimensions that GGUF has room for.
const MAX_DIMS: usize = 4;

/// Parts of the names of layers that lose more by fewer bits than they save: embeddings, and the layers at the ends of networks. Those of
/// stable-diffusion.cpp.
const DELICATE_LAYERS: &[&str] = &[
    "embedding",
    "img_in.",
    "txt_in.",
    "time_in.",
    "vector_in.",
    "guidance_in.",
    "final_layer.",
    "x_embedder.",
    "t_embedder.",
    "y_embedder.",
    "context_embedder.",
    "time_embed.",
    "label_emb.",
];

/// Parts of the names of tensors that belong to no layer. ComfyUI-GGUF decodes what layers have; these it takes as they are, `f32` or `f16`.
const BARE_TENSORS: &[&str] =
    &["pos_embed", "pad_token", ".modulation", "scale_shift_table", "img_emb.emb_pos", ".ff_i.gate.weight"];

/// What becomes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Its bytes stay as they are.
    Copied,
    /// It is read as this.
    Converted(Storage),
    /// It is read as this, since it cannot be what was asked for.
    Fallback { storage: Storage, wanted: ElementType, reason: &'static str },
    /// The result is without it.
    LeftOut,
}

/// Decides what a tensor becomes; or says why it can become nothing, as what follows its name in a sentence. `name` is its name in the result, `rule` the type
/// that a rule gives it.
pub(super) fn choose(
    tensor: &TensorInfo,
    name: &str,
    rule: Option<Storage>,
    options: &ConvertOptions,
) -> Result<Choice, String> {
    let format = options.format;
    if format == OutputFormat::Gguf && tensor.shape.len() > MAX_DIMS {
        return Err(format!(
            "has {} dimensions, and GGUF has room for {MAX_DIMS}; write .safetensors",
            tensor.shape.len()
        ));
    }
    if let Quantised::Refused(problem) = &tensor.quantised {
        return Err(problem.clone());
    }
    let raw = match RawType::of(tensor) {
        Ok(RawType::Stored(Storage::Dense(DType::I32))) | Err(_) => return undecoded(tensor, name, format),
        Ok(raw) => raw,
    };
    let bare = is_bare(tensor, name);
    let delicate = bare || DELICATE_LAYERS.iter().any(|part| name.contains(part));
    let as_it_is = natural(tensor, raw, bare, format);
    let wanted = rule.or_else(|| match options.storage {
        Some(BF16) if bare && format == OutputFormat::Gguf => Some(dense(as_it_is)),
        // Floats of 16 bits and more are for every tensor.
        Some(storage @ Storage::Dense(_)) => Some(storage),
        Some(_) if delicate => Some(dense(as_it_is)),
        other => other,
    });
    let storage = wanted.unwrap_or(as_it_is);
    let element = ElementType::of_storage(storage);
    if tensor.quantised != Quantised::Plain && raw == RawType::Stored(storage) {
        // The scales stand in other tensors, which the result does not have.
        let reason = "its scales are applied";
        return Ok(Choice::Fallback { storage: F16, wanted: element, reason });
    }
    match fitting(storage, raw, tensor, format) {
        fits if fits != storage => {
            Ok(Choice::Fallback { storage: fits, wanted: element, reason: "its rows are no whole blocks" })
        }
        _ if wanted.is_none() && element == tensor.element && tensor.quantised == Quantised::Plain => {
            Ok(Choice::Copied)
        }
        _ => Ok(Choice::Converted(storage)),
    }
}

/// A tensor of integers, or of a type that is not decoded here: it is copied where the format has its type.
fn undecoded(tensor: &TensorInfo, name: &str, format: OutputFormat) -> Result<Choice, String> {
    let blocks = tensor.element.block().is_none_or(|(elements, _)| elements > 1);
    let row = tensor.shape.last().copied().unwrap_or(1) as u64;
    let whole_rows = tensor.element.block().is_some_and(|(elements, _)| row.is_multiple_of(elements));
    let counter = name.ends_with("position_ids");
    match format {
        // Readers of GGUF expect no integers; these count from 0 on.
        OutputFormat::Gguf if counter => Ok(Choice::LeftOut),
        _ if format.holds(tensor.element) && whole_rows => Ok(Choice::Copied),
        _ if blocks => Err(format!("is stored as {}, which cannot be decoded", tensor.element)),
        _ => Ok(Choice::LeftOut),
    }
}

/// What a tensor is where nobody asks for anything.
fn natural(tensor: &TensorInfo, raw: RawType, bare: bool, format: OutputFormat) -> Storage {
    let scaled = tensor.quantised != Quantised::Plain;
    match raw {
        RawType::F64 => F32,
        RawType::I8 => F16,
        RawType::Stored(BF16) if bare && format == OutputFormat::Gguf => F32,
        RawType::Stored(storage) if !scaled && format.holds(tensor.element) => storage,
        RawType::Stored(_) => F16,
    }
}

/// The storage itself, or 16 bits in place of fewer.
fn dense(storage: Storage) -> Storage {
    if let Storage::Dense(_) = storage { storage } else { F16 }
}

/// Whether a tensor is a vector, small, or no weight of a layer.
fn is_bare(tensor: &TensorInfo, name: &str) -> bool {
    tensor.shape.len() <= 1 || tensor.elements() <= SMALL || BARE_TENSORS.iter().any(|part| name.contains(part))
}

/// The storage itself where the rows of a tensor are whole blocks of it in this format, else the next one that fits: blocks of 32 that are no worse than
/// those of 256, as llama.cpp chooses them, else 16 bits.
fn fitting(storage: Storage, raw: RawType, tensor: &TensorInfo, format: OutputFormat) -> Storage {
    let row = tensor.shape.last().copied().unwrap_or(1) as u64;
    let fits = |storage: Storage| row.is_multiple_of(storage.block_elements());
    let dense = if raw == RawType::Stored(BF16) { BF16 } else { F16 };
    match format {
        OutputFormat::Safetensors => storage,
        OutputFormat::Gguf => {
            let all = [Some(storage), storage.in_smaller_blocks()];
            all.into_iter().flatten().find(|s| fits(*s)).unwrap_or(dense)
        }
    }
}
