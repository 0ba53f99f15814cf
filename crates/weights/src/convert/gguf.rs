//! The header of a GGUF file.

use std::collections::{BTreeMap, BTreeSet};

use super::{ConvertError, ModelPart, OutputTensor};
use crate::ElementType;

const ALIGNMENT: u64 = 32;
/// ComfyUI-GGUF's limit; stable-diffusion.cpp's is higher.
const MAX_NAME: usize = 127;
/// The version of the layouts of blocks.
const QUANTIZATION_VERSION: u32 = 2;
/// Longer texts of a safetensors file are pictures and the like.
const MAX_TEXT: usize = 4096;

/// The numbers of value types.
const U32: u32 = 4;
const TEXT: u32 = 8;

/// Keys that are true of the old file only.
const OWN_KEYS: [&str; 6] = [
    "general.architecture",
    "general.alignment",
    "general.file_type",
    "general.quantization_version",
    "split.",
    "comfy.gguf.orig_shape.",
];

/// The header of a file with these tensors, padded, and the bytes that follow it. Gives the tensors their places.
pub(super) fn header(
    parts: &[ModelPart],
    tensors: &mut [OutputTensor],
    architecture: Option<&str>,
    metadata: &BTreeMap<String, String>,
) -> Result<(Vec<u8>, u64), ConvertError> {
    if let Some(long) = tensors.iter().find(|tensor| tensor.name.len() > MAX_NAME) {
        let problem =
            format!("has a name of {} bytes; programs that read GGUF take {MAX_NAME} at most", long.name.len());
        return Err(ConvertError::Tensor { name: long.name.clone(), problem });
    }
    let mut values: Vec<(String, u32, Vec<u8>)> = vec![];
    let number = |key: &str, n: u32| (key.to_string(), U32, n.to_le_bytes().to_vec());
    values.extend(architecture.map(|name| ("general.architecture".into(), TEXT, text(name))));
    values.push(number("general.quantization_version", QUANTIZATION_VERSION));
    values.extend(file_type(tensors).map(|n| number("general.file_type", n)));
    values.extend(kept_values(parts, metadata)?);

    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((values.len() as u64).to_le_bytes());
    for (key, kind, value) in values {
        out.extend(text(&key));
        out.extend(kind.to_le_bytes());
        out.extend(value);
    }
    let mut offset = 0u64;
    for tensor in tensors {
        tensor.offset = offset;
        out.extend(text(&tensor.name));
        // A number without dimensions has one of one: not all readers know what none are.
        let shape = if tensor.shape.is_empty() { &[1][..] } else { &tensor.shape };
        out.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|&d| out.extend((d as u64).to_le_bytes()));
        out.extend(tensor.element.gguf_number().unwrap_or_default().to_le_bytes());
        out.extend(offset.to_le_bytes());
        let next = offset.checked_add(tensor.bytes).and_then(|end| end.checked_next_multiple_of(ALIGNMENT));
        offset = next.ok_or_else(|| {
            let problem = "ends behind all that a file can have".to_string();
            ConvertError::Tensor { name: tensor.name.clone(), problem }
        })?;
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT as usize), 0);
    Ok((out, offset))
}

/// What is said of the model beside its tensors, such as its tokenizer: `metadata`, and what the model says itself.
fn kept_values(
    parts: &[ModelPart],
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<(String, u32, Vec<u8>)>, ConvertError> {
    let mut values: Vec<_> = metadata.iter().map(|(key, value)| (key.clone(), TEXT, text(value))).collect();
    let mut seen: BTreeSet<String> = metadata.keys().cloned().collect();
    for ModelPart { checkpoint, .. } in parts {
        for key in checkpoint.value_keys() {
            if !OWN_KEYS.iter().any(|own| key.starts_with(own)) && seen.insert(key.to_string()) {
                values.extend(checkpoint.raw_value(key)?.map(|(kind, bytes)| (key.to_string(), kind, bytes)));
            }
        }
        for (key, value) in checkpoint.metadata() {
            let ours = ["modelspec.", "impasto."].iter().any(|start| key.starts_with(start));
            if ours && value.len() <= MAX_TEXT && seen.insert(key.clone()) {
                values.push((key.clone(), TEXT, text(value)));
            }
        }
    }
    Ok(values)
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// The number that llama.cpp gives to a file of mostly this type: that of most bytes.
fn file_type(tensors: &[OutputTensor]) -> Option<u32> {
    use ElementType as E;
    let numbers = [
        (E::F32, 0),
        (E::F16, 1),
        (E::Q4_0, 2),
        (E::Q4_1, 3),
        (E::Q8_0, 7),
        (E::Q5_0, 8),
        (E::Q5_1, 9),
        (E::Q2_K, 10),
        (E::Q3_K, 11),
        (E::Q4_K, 14),
        (E::Q5_K, 16),
        (E::Q6_K, 18),
        (E::IQ4_NL, 25),
        (E::IQ4_XS, 30),
        (E::BF16, 32),
        (E::MXFP4, 38),
    ];
    let elements = |t: &OutputTensor| t.shape.iter().map(|&d| d as u64).product::<u64>();
    let of_type = |ty: ElementType| tensors.iter().filter(|t| t.element == ty).map(elements).sum::<u64>();
    let most = numbers.iter().map(|(ty, number)| (of_type(*ty), *number)).max_by_key(|(elements, _)| *elements);
    most.filter(|(elements, _)| *elements > 0).map(|(_, number)| number)
}
