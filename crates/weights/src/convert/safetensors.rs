//! The header of a safetensors file.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{ModelPart, OutputTensor};

/// What the metadata of the old file says of its tensors is not true of the new ones.
const OWN_KEYS: [&str; 2] = ["_quantization_metadata", "general."];

#[derive(Serialize)]
struct Entry<'a> {
    dtype: String,
    shape: &'a [usize],
    data_offsets: (u64, u64),
}

#[derive(Serialize)]
struct Header<'a> {
    #[serde(rename = "__metadata__")]
    metadata: BTreeMap<&'a str, &'a str>,
    #[serde(flatten)]
    tensors: BTreeMap<&'a str, Entry<'a>>,
}

/// The header of a file with these tensors, and the bytes that follow it. Gives the tensors their places: wide elements first, so that each is aligned.
pub(super) fn header(
    parts: &[ModelPart],
    tensors: &mut [OutputTensor],
    said: &BTreeMap<String, String>,
) -> (Vec<u8>, u64) {
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.element.block().map(|(_, bytes)| bytes)));
    let mut offset = 0;
    for tensor in &mut *tensors {
        tensor.offset = offset;
        offset += tensor.bytes;
    }
    let kept = parts.iter().flat_map(|part| part.checkpoint.metadata());
    let kept = kept.filter(|(key, _)| !OWN_KEYS.iter().any(|own| key.starts_with(own)));
    let mut metadata: BTreeMap<&str, &str> = kept.map(|(key, value)| (key.as_str(), value.as_str())).collect();
    metadata.extend(said.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    // Loaders of the first days insist on it.
    metadata.insert("format", "pt");
    let tensors = tensors.iter().map(|tensor| {
        let dtype = tensor.element.to_string().to_uppercase();
        let data_offsets = (tensor.offset, tensor.offset + tensor.bytes);
        (tensor.name.as_str(), Entry { dtype, shape: &tensor.shape, data_offsets })
    });
    let header = Header { metadata, tensors: tensors.collect() };
    let mut json = serde_json::to_vec(&header).unwrap_or_default();
    json.resize(json.len().next_multiple_of(8), b' ');
    ([&(json.len() as u64).to_le_bytes()[..], &json].concat(), offset)
}
