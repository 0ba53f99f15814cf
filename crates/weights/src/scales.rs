//! Weights of eight bits in safetensors, whose scales stand in other tensors.
//!
//! Three dialects: a marker `scaled_fp8` and a `scale_weight` for each layer; a `weight_scale` for each layer, and its format in the header's metadata or in
//! a tensor `comfy_quant`; and a `weight_scale` for each row. A true weight is what is stored times its scale. Scales for activations (`input_scale`) are
//! left out: products are computed in full precision here. Integers may stand for weights whose inputs were rotated ("convrot"), which is undone while they
//! are read. All of these tensors belong to the reader, not to the network.

use std::collections::{BTreeMap, BTreeSet};

use impasto_graph::Storage;
use serde::Deserialize;

use crate::format::TensorInfo;
use crate::{ElementType, WeightsError};

/// How the elements of a tensor become weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Quantised {
    /// They are the weights.
    #[default]
    Plain,
    /// Each is multiplied by the scale of its row, or by that of all, in the tensor of this name.
    Scaled(String),
    /// The same, after groups of so many inputs were rotated by a Hadamard matrix ("convrot").
    Rotated { scale: String, group: usize },
    /// In a way that cannot be computed.
    Refused(String),
}

/// What a tensor says of the weight of its layer.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    /// The scale of a weight.
    Scale,
    /// The scale of what is multiplied by it.
    InputScale,
    /// A text that names the format.
    Format,
    /// A scale of a format that is not known here.
    Foreign,
}

const ROLES: [(&str, Role); 8] = [
    ("weight_scale", Role::Scale),
    ("scale_weight", Role::Scale),
    ("input_scale", Role::InputScale),
    ("scale_input", Role::InputScale),
    ("comfy_quant", Role::Format),
    ("weight_scale_2", Role::Foreign),
    ("pre_quant_scale", Role::Foreign),
    ("weight_scale_inv", Role::Foreign),
];
const MARKER: &str = "scaled_fp8";
const METADATA: &str = "_quantization_metadata";
/// A format is a short text.
const MAX_FORMAT: u64 = 64 << 10;
/// More inputs are not rotated together.
const MAX_GROUP: usize = 4096;
/// The formats of all layers are some hundred kilobytes.
const MAX_METADATA: usize = 4 << 20;

/// What a file says of the format of a layer.
#[derive(Clone, Debug, Deserialize)]
struct LayerFormat {
    #[serde(default)]
    format: String,
    #[serde(flatten)]
    more: BTreeMap<String, serde_json::Value>,
}

#[derive(Deserialize)]
struct Layers {
    #[serde(default)]
    layers: BTreeMap<String, LayerFormat>,
}

/// Takes scales and markers out of the tensors of a model, and notes with each weight what they say of it. The tensors that were taken out.
pub(crate) fn consume(
    tensors: &mut BTreeMap<String, TensorInfo>,
    metadata: &BTreeMap<String, String>,
    read: impl Fn(&TensorInfo) -> Result<Vec<u8>, WeightsError>,
) -> Result<BTreeMap<String, TensorInfo>, WeightsError> {
    let is_marker = |name: &str| name == MARKER || name.strip_suffix(MARKER).is_some_and(|rest| rest.ends_with('.'));
    let markers: BTreeSet<String> = tensors.keys().filter(|name| is_marker(name)).cloned().collect();
    let mut formats = match metadata.get(METADATA) {
        Some(text) if text.len() <= MAX_METADATA => {
            serde_json::from_str::<Layers>(text).map(|all| all.layers).unwrap_or_default()
        }
        _ => BTreeMap::new(),
    };
    // Tensors by layer, with what they are.
    let mut layers: BTreeMap<String, Vec<(Role, String)>> = BTreeMap::new();
    for name in tensors.keys() {
        let Some((layer, last)) = name.rsplit_once('.') else { continue };
        if let Some((_, role)) = ROLES.iter().find(|(suffix, _)| *suffix == last) {
            layers.entry(layer.into()).or_default().push((*role, name.clone()));
        }
    }
    let mut taken = BTreeMap::new();
    for (layer, of_layer) in layers {
        let weight = format!("{layer}.weight");
        let Some(info) = tensors.get(&weight) else { continue };
        let eight_bits =
            matches!(info.element, ElementType::F8_E4M3 | ElementType::F8_E5M2 | ElementType::I8 | ElementType::U8);
        let has_format = of_layer.iter().any(|(role, _)| *role == Role::Format) || formats.contains_key(&layer);
        if !eight_bits && !has_format && markers.is_empty() {
            continue;
        }
        let mut scale = None;
        let mut refused = None;
        for (role, name) in of_layer {
            let Some(tensor) = tensors.remove(&name) else { continue };
            match role {
                Role::Scale => scale = Some(name.clone()),
                Role::InputScale => {}
                Role::Foreign => refused = Some(format!("has '{name}', a scale of a format that is not known")),
                Role::Format => match format(&tensor, &read)? {
                    Some(said) => drop(formats.insert(layer.clone(), said)),
                    None => refused = Some(format!("has a format in '{name}' that cannot be read")),
                },
            }
            taken.insert(name, tensor);
        }
        let Some(info) = tensors.get_mut(&weight) else { continue };
        let problem = refused.or_else(|| formats.get(&layer).and_then(|said| problem_of(said, info)));
        let problem = problem.or_else(|| scale.as_ref().and_then(|name| problem_of_scale(&taken[name], info)));
        let group = formats.get(&layer).and_then(rotated_group);
        info.quantised = match (problem, scale, group) {
            (Some(problem), ..) => Quantised::Refused(problem),
            (None, Some(scale), Some(group)) => Quantised::Rotated { scale, group },
            (None, None, Some(_)) => Quantised::Refused("is rotated (convrot) and has no scales".into()),
            // A layer that was left as it is has a scale of one.
            (None, Some(scale), None) if !eight_bits && is_one(&taken[&scale], &read)? => Quantised::Plain,
            (None, Some(scale), None) => Quantised::Scaled(scale),
            (None, None, None) => Quantised::Plain,
        };
    }
    // A format that only the metadata knows.
    for (layer, said) in &formats {
        if let Some(info) = tensors.get_mut(&format!("{layer}.weight"))
            && let (Quantised::Plain, Some(problem)) = (&info.quantised, problem_of(said, info))
        {
            info.quantised = Quantised::Refused(problem);
        }
    }
    taken.extend(markers.into_iter().filter_map(|name| tensors.remove_entry(&name)));
    Ok(taken)
}

fn is_one(
    scale: &TensorInfo,
    read: impl Fn(&TensorInfo) -> Result<Vec<u8>, WeightsError>,
) -> Result<bool, WeightsError> {
    Ok(scale.elements() == 1 && scale.element == ElementType::F32 && read(scale)? == 1f32.to_le_bytes())
}

fn format(
    tensor: &TensorInfo,
    read: impl Fn(&TensorInfo) -> Result<Vec<u8>, WeightsError>,
) -> Result<Option<LayerFormat>, WeightsError> {
    if tensor.bytes() > MAX_FORMAT {
        return Ok(None);
    }
    Ok(serde_json::from_slice(read(tensor)?.trim_ascii_end()).ok())
}

/// The inputs that are rotated together, if they are. A file that does not say how many means the usual.
fn rotated_group(said: &LayerFormat) -> Option<usize> {
    const USUAL: u64 = 256;
    let rotated = said.more.get("convrot").is_some_and(|value| value.as_bool() != Some(false));
    let group = said.more.get("convrot_groupsize").map_or(Some(USUAL), serde_json::Value::as_u64).unwrap_or(0);
    rotated.then(|| usize::try_from(group).unwrap_or(0))
}

/// Why a format cannot be computed.
fn problem_of(said: &LayerFormat, weight: &TensorInfo) -> Option<String> {
    let element = match (said.format.as_str(), rotated_group(said)) {
        ("int8_tensorwise", Some(group)) => {
            let power_of_four = group.is_power_of_two() && group.trailing_zeros().is_multiple_of(2);
            let [_, inputs] = weight.shape[..] else { return Some("is rotated (convrot) and no matrix".into()) };
            if !power_of_four || !(4..=MAX_GROUP).contains(&group) || !inputs.is_multiple_of(group) {
                return Some(format!(
                    "is stored as int8_tensorwise with convrot in groups of {group}: its {inputs} inputs should be whole groups of a power of four"
                ));
            }
            ElementType::I8
        }
        (format, Some(_)) => return Some(format!("is stored as {format} with convrot, which cannot be computed with")),
        (format, None) => match format {
            "" => return None,
            "float8_e4m3fn" => ElementType::F8_E4M3,
            "float8_e5m2" => ElementType::F8_E5M2,
            "int8_tensorwise" => ElementType::I8,
            other => return Some(format!("is stored as {other}, which cannot be computed with")),
        },
    };
    // A layer that was left as it is may still be listed.
    let dense = weight.element.storage().is_some_and(|storage| matches!(storage, Storage::Dense(_)));
    let differs = weight.element != element && !dense;
    differs.then(|| format!("is stored as {}, and its format says {}", weight.element, said.format))
}

/// Why a scale does not fit its weight.
fn problem_of_scale(scale: &TensorInfo, weight: &TensorInfo) -> Option<String> {
    let rows = weight.shape.first().copied().unwrap_or(1);
    let by_row = scale.shape.first() == Some(&rows) && scale.elements() == rows as u64;
    if !matches!(scale.element, ElementType::F32 | ElementType::F16 | ElementType::BF16 | ElementType::F64) {
        return Some(format!("has scales stored as {}; a float is needed", scale.element));
    }
    (scale.elements() != 1 && !by_row).then(|| {
        let shape = &scale.shape;
        format!(
            "has scales of the shape {shape:?}; one for all, or one for each of its {rows} rows, can be computed with"
        )
    })
}
