//! The vocabularies that the program has with it, packed by `tools/vocabularies.py`: CLIP's, published under the MIT licence, T5's and Qwen's, both
//! under the Apache licence 2.0.

use std::collections::HashMap;
use std::io::Read;
use std::sync::LazyLock;

use ruzstd::decoding::StreamingDecoder;

use super::bytes::{BytePairParts, BytePairs, QWEN_WORDS};
use super::charsmap::Charsmap;
use super::unigram::{Unigram, UnigramParts};
use super::vocabulary::Vocabulary;

/// Pieces, bytes of the table of letters; then what each score's bits are above those before, in planes of bytes; the table; the pieces, in lines.
static T5: &[u8] = include_bytes!("vocabularies/t5.zst");
/// The left and the right token of each merge, each in two planes of bytes.
static CLIP: &[u8] = include_bytes!("vocabularies/clip.zst");
/// The same, each in three planes.
static QWEN: &[u8] = include_bytes!("vocabularies/qwen.zst");

/// Qwen's tokens after those of its merges.
const QWEN_SPECIALS: [&str; 26] = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
];

impl Vocabulary {
    /// OpenAI's, which every CLIP has.
    pub(super) fn clip() -> Vocabulary {
        Vocabulary::of_pairs_with_ends(pairs(&unpack(CLIP), 2))
    }
}

impl Unigram {
    /// T5's (version 1.1, so also that of T5-XXL beside FLUX.1 and Stable Diffusion 3).
    pub fn t5() -> Unigram {
        static TOKENIZER: LazyLock<Unigram> = LazyLock::new(t5);
        TOKENIZER.clone()
    }
}

impl BytePairs {
    /// Qwen's, from Qwen2 to Qwen3.
    pub fn qwen() -> BytePairs {
        static TOKENIZER: LazyLock<BytePairs> = LazyLock::new(qwen);
        TOKENIZER.clone()
    }
}

fn unpack(packed: &[u8]) -> Vec<u8> {
    let mut bytes = vec![];
    let mut decoder = StreamingDecoder::new(packed).expect("the program's own file");
    decoder.read_to_end(&mut bytes).expect("the program's own file");
    bytes
}

/// Numbers out of planes of bytes, the lowest first.
fn numbers(planes: &[u8], count: usize) -> impl Iterator<Item = u32> {
    (0..count).map(move |i| {
        planes.chunks_exact(count).enumerate().fold(0, |n, (plane, bytes)| n | u32::from(bytes[i]) << (8 * plane))
    })
}

/// The left and the right token of each merge, each in so many planes.
fn pairs(bytes: &[u8], planes: usize) -> impl Iterator<Item = (u32, u32)> {
    let (left, right) = bytes.split_at(bytes.len() / 2);
    let count = left.len() / planes;
    numbers(left, count).zip(numbers(right, count))
}

fn t5() -> Unigram {
    let bytes = unpack(T5);
    let size = |at: usize| bytes[at..at + 4].iter().rev().fold(0, |n, b| n << 8 | usize::from(*b));
    let (count, table) = (size(0), size(4));
    let (steps, rest) = bytes[8..].split_at(4 * count);
    let (charsmap, text) = rest.split_at(table);
    let scores = numbers(steps, count).scan(0u32, |bits, step| {
        *bits = bits.wrapping_add(step);
        Some(f64::from(f32::from_bits(*bits)))
    });
    let text = String::from_utf8_lossy(text);
    let pieces: Vec<(String, f64)> = text.split('\n').map(str::to_string).zip(scores).collect();
    let is_special = |(id, text): &(u32, String)| *id < 3 || text.starts_with("<extra_id_");
    let specials = (0..).zip(pieces.iter().map(|(piece, _)| piece.clone())).filter(is_special).collect();
    Unigram::new(UnigramParts {
        charsmap: Charsmap::new(charsmap).expect("the program's own file"),
        pieces,
        unknown: 2,
        specials,
        always_prefixed: false,
        splits_white: false,
        pad: 0,
        end: 1,
    })
}

fn qwen() -> BytePairs {
    let bytes = unpack(QWEN);
    let vocabulary = Vocabulary::of_pairs(pairs(&bytes, 3));
    let first = 256 + (bytes.len() / 6) as u32;
    BytePairs::new(BytePairParts {
        words: QWEN_WORDS.into(),
        composes: true,
        vocabulary,
        whole: HashMap::new(),
        specials: (first..).zip(QWEN_SPECIALS.map(str::to_string)).collect(),
        pad: first,
        end: first + 2,
    })
    .expect("the program's own pattern")
}
