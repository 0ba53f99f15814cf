//! Tokenizers that files bring: `tokenizer.json`, `spiece.model`, `vocab.json` with `merges.txt`, the metadata of a GGUF file, and the tensors in
//! which ComfyUI's files carry them.

use std::collections::HashMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use impasto_weights::{Checkpoint, MetadataValue};
use serde::Deserialize;
use serde_json::Value;

use super::PromptError;
use super::bytes::{BytePairParts, BytePairs, QWEN_WORDS};
use super::charsmap::Charsmap;
use super::folder::{json, read, wrong};
use super::protobuf::{self, Field};
use super::sequence::SequenceTokenizer;
use super::unigram::{Unigram, UnigramParts};
use super::vocabulary::Vocabulary;

/// How Mistral cuts text into words, where its file does not say.
const TEKKEN_WORDS: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Types of tokens in `spiece.model` and GGUF: those that are found as they are written.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

impl SequenceTokenizer {
    /// From the folder of a tokenizer: `tokenizer.json`, else `spiece.model`, else `vocab.json` and `merges.txt` with the special tokens of
    /// `tokenizer_config.json`.
    pub fn from_folder(folder: &Path) -> Result<SequenceTokenizer, PromptError> {
        let path = folder.join("tokenizer.json");
        if let Some(file) = json::<Value>(&path)? {
            let config = json::<Value>(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
            return of_json(&file, &config).map_err(|problem| wrong(&path, problem));
        }
        let path = folder.join("spiece.model");
        if let Some(bytes) = read(&path)? {
            let unigram = of_spiece(&bytes).ok_or_else(|| wrong(&path, "is no model of SentencePiece".into()))?;
            return Ok(SequenceTokenizer::Unigram(unigram));
        }
        let (vocab, merges) = (folder.join("vocab.json"), folder.join("merges.txt"));
        let ids: Option<HashMap<String, u32>> = json(&vocab)?;
        let (Some(ids), Some(text)) = (ids, read(&merges)?) else {
            let problem = "has neither tokenizer.json nor spiece.model nor vocab.json and merges.txt";
            return Err(wrong(folder, problem.into()));
        };
        let text = String::from_utf8_lossy(&text);
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with("#version"));
        let merges_list: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(' ')).collect();
        let config = json::<Value>(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        let added = config["added_tokens_decoder"].as_object().cloned().unwrap_or_default();
        let added = added.iter().filter_map(|(id, token)| Some((id.parse().ok()?, token["content"].as_str()?.into())));
        let specials: Vec<(u32, String)> = added.collect();
        let ends = Ends::of(&config, &ids, &specials);
        byte_pairs(&ids, &merges_list, QWEN_WORDS, true, false, specials, ends)
            .map(SequenceTokenizer::BytePairs)
            .map_err(|problem| wrong(&merges, problem))
    }

    /// The one that a model file brings: in the metadata of GGUF, or in a tensor named `spiece_model` or `tekken_model`.
    pub fn from_model_file(path: &Path) -> Result<Option<SequenceTokenizer>, PromptError> {
        let unreadable = |e: &dyn std::fmt::Display| wrong(path, e.to_string());
        let checkpoint = Checkpoint::open(path).map_err(|e| unreadable(&e))?;
        for (name, is_tekken) in [("spiece_model", false), ("tekken_model", true)] {
            let named = |t: &&impasto_weights::TensorInfo| t.name == name || t.name.ends_with(&format!(".{name}"));
            let Some(tensor) = checkpoint.tensors().find(named) else { continue };
            let bytes = checkpoint.read_all(tensor).map_err(|e| unreadable(&e))?;
            let found = match is_tekken {
                true => of_tekken(&bytes).map(SequenceTokenizer::BytePairs),
                false => of_spiece(&bytes).map(SequenceTokenizer::Unigram).ok_or_else(String::new),
            };
            return found.map(Some).map_err(|e| wrong(path, format!("its tensor {name} is no tokenizer. {e}")));
        }
        let value = |key: &str| checkpoint.value(&format!("tokenizer.ggml.{key}")).map_err(|e| unreadable(&e));
        if value("tokens")?.is_none() {
            return Ok(None);
        }
        of_gguf(&value).map(Some)
    }
}

/// The tokens that pad and end texts.
#[derive(Clone, Copy)]
struct Ends {
    pad: u32,
    end: u32,
}

impl Ends {
    /// Those that a configuration names, by the text of each.
    fn of(config: &Value, ids: &HashMap<String, u32>, specials: &[(u32, String)]) -> Ends {
        let named = |key: &str| {
            let entry = &config[key];
            let text = entry.as_str().or_else(|| entry["content"].as_str())?;
            let special = specials.iter().find(|(_, special)| special == text).map(|(id, _)| *id);
            special.or_else(|| ids.get(text).copied())
        };
        let end = named("eos_token").unwrap_or(0);
        Ends { pad: named("pad_token").unwrap_or(end), end }
    }
}

/// A tokenizer of `tokenizer.json`. What is done to a text before the model sees it must be what ours do, step by step.
fn of_json(file: &Value, config: &Value) -> Result<SequenceTokenizer, String> {
    let (normalizer, pre_tokenizer) = (steps(&file["normalizer"]), steps(&file["pre_tokenizer"]));
    let added: Vec<AddedToken> =
        serde_json::from_value(file["added_tokens"].clone()).map_err(|e| format!("its added tokens: {e}"))?;
    let specials: Vec<(u32, String)> = added.into_iter().map(|token| (token.id, token.content)).collect();
    let model = &file["model"];
    let unsupported = ["byte_fallback", "dropout", "continuing_subword_prefix", "end_of_word_suffix"];
    let is_set = |name: &&str| !matches!(&model[*name], Value::Null | Value::Bool(false)) && model[*name] != "";
    if let Some(name) = unsupported.iter().find(|name| is_set(name)) {
        return Err(format!("has a model with {name}, which is not supported"));
    }
    match kind(model) {
        "Unigram" => {
            let pieces: Vec<(String, f64)> =
                serde_json::from_value(model["vocab"].clone()).map_err(|e| format!("its vocabulary: {e}"))?;
            let mut charsmap = vec![];
            for step in normalizer {
                match kind(step) {
                    "Precompiled" => {
                        let text = step["precompiled_charsmap"].as_str().unwrap_or_default();
                        charsmap = BASE64.decode(text).map_err(|_| "its table of letters is no base64")?;
                    }
                    "Strip" if step["strip_left"] == false && step["strip_right"] == true => {}
                    "Replace" if step["pattern"]["Regex"] == " {2,}" && [" ", "▁"].contains(&text(step, "content")) =>
                        {}
                    _ => return Err(format!("normalises text by {step}, which is not supported")),
                }
            }
            let (splits_white, metaspace) = match pre_tokenizer {
                [metaspace] => (false, metaspace),
                [split, metaspace] if kind(split) == "WhitespaceSplit" => (true, metaspace),
                _ => (false, &Value::Null),
            };
            let is_spaced = kind(metaspace) == "Metaspace" && text(metaspace, "replacement") == "▁";
            let always_prefixed = match text(metaspace, "prepend_scheme") {
                "first" if is_spaced => false,
                "always" if is_spaced => true,
                "" if is_spaced && metaspace["add_prefix_space"] == true => true,
                _ => return Err(format!("cuts text by {}, which is not supported", file["pre_tokenizer"])),
            };
            let ids = pieces.iter().zip(0..).map(|((piece, _), id)| (piece.clone(), id)).collect();
            let ends = Ends::of(config, &ids, &specials);
            let parts = UnigramParts {
                charsmap: Charsmap::new(&charsmap).ok_or("its table of letters is damaged")?,
                unknown: model["unk_id"].as_u64().unwrap_or(0) as u32,
                specials,
                always_prefixed,
                splits_white,
                pad: ends.pad,
                end: if ends.end == 0 { ids.get("</s>").copied().unwrap_or(0) } else { ends.end },
                pieces,
            };
            Ok(SequenceTokenizer::Unigram(Unigram::new(parts)))
        }
        "BPE" => {
            let ids: HashMap<String, u32> =
                serde_json::from_value(model["vocab"].clone()).map_err(|e| format!("its vocabulary: {e}"))?;
            let list = model["merges"].as_array().cloned().unwrap_or_default();
            let pair = |merge: &Value| -> Option<(String, String)> {
                match merge.as_str() {
                    Some(text) => text.split_once(' ').map(|(a, b)| (a.into(), b.into())),
                    None => Some((merge[0].as_str()?.into(), merge[1].as_str()?.into())),
                }
            };
            let merges: Option<Vec<(String, String)>> = list.iter().map(pair).collect();
            let merges = merges.ok_or("a merge is not two pieces")?;
            let merges: Vec<(&str, &str)> = merges.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
            let is_split = |step: &Value| text(step, "behavior") == "Isolated" && step["invert"] == false;
            let is_bytes = |step: &Value| {
                kind(step) == "ByteLevel" && step["add_prefix_space"] == false && step["use_regex"] == false
            };
            let words = match pre_tokenizer {
                [split, bytes] if is_split(split) && is_bytes(bytes) => split["pattern"]["Regex"].as_str(),
                _ => None,
            };
            let words = words.ok_or_else(|| {
                format!("cuts text by {}, not by a pattern into words of bytes", file["pre_tokenizer"])
            })?;
            let composes = match normalizer {
                [] => false,
                [nfc] if kind(nfc) == "NFC" => true,
                _ => return Err(format!("normalises text by {}, which is not supported", file["normalizer"])),
            };
            let whole = model["ignore_merges"].as_bool().unwrap_or(false);
            let ends = Ends::of(config, &ids, &specials);
            byte_pairs(&ids, &merges, words, composes, whole, specials, ends).map(SequenceTokenizer::BytePairs)
        }
        other => Err(format!("is a tokenizer of kind '{other}', which is not supported")),
    }
}

/// The steps that a normalizer or pre-tokenizer consists of.
fn steps(step: &Value) -> &[Value] {
    let list = step["normalizers"].as_array().or_else(|| step["pretokenizers"].as_array());
    match list {
        Some(list) => list,
        None if step.is_null() => &[],
        None => std::slice::from_ref(step),
    }
}

fn kind(step: &Value) -> &str {
    text(step, "type")
}

fn text<'a>(step: &'a Value, name: &str) -> &'a str {
    step[name].as_str().unwrap_or_default()
}

/// One of the `added_tokens`.
#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
}

fn byte_pairs(
    ids: &HashMap<String, u32>,
    merges: &[(&str, &str)],
    words: &str,
    composes: bool,
    whole: bool,
    specials: Vec<(u32, String)>,
    Ends { pad, end }: Ends,
) -> Result<BytePairs, String> {
    let vocabulary = Vocabulary::without_ends(ids, merges)
        .map_err(|fault| format!("merge {} needs the token '{}', which it does not have", fault.rank, fault.text))?;
    let whole = if whole { Vocabulary::texts(ids) } else { HashMap::new() };
    BytePairs::new(BytePairParts { words: words.into(), composes, vocabulary, whole, specials, pad, end })
}

/// A model of SentencePiece, with the 100 further tokens of T5 where it has T5's.
fn of_spiece(bytes: &[u8]) -> Option<Unigram> {
    let mut pieces = vec![];
    let mut specials = vec![];
    let (mut unknown, mut pad, mut end) = (0, 0, 1);
    let mut charsmap = vec![];
    for field in protobuf::fields(bytes) {
        match field? {
            (1, Field::Bytes(piece)) => {
                let (mut text, mut score, mut kind) = (String::new(), 0.0, 1);
                for field in protobuf::fields(piece) {
                    match field? {
                        (1, Field::Bytes(bytes)) => text = String::from_utf8(bytes.to_vec()).ok()?,
                        (2, Field::Fixed32(bits)) => score = f64::from(f32::from_bits(bits)),
                        (3, Field::Varint(n)) => kind = n as i64,
                        _ => {}
                    }
                }
                let id = pieces.len() as u32;
                match text.as_str() {
                    "<pad>" => pad = id,
                    "</s>" => end = id,
                    _ => {}
                }
                unknown = if kind == 2 { id } else { unknown };
                if [2, CONTROL, USER_DEFINED].contains(&kind) {
                    specials.push((id, text.clone()));
                }
                pieces.push((text, score));
            }
            (3, Field::Bytes(normaliser)) => {
                for field in protobuf::fields(normaliser) {
                    if let (2, Field::Bytes(bytes)) = field? {
                        charsmap = bytes.to_vec();
                    }
                }
            }
            _ => {}
        }
    }
    if pieces.len() == 32_000 {
        for i in (0..100).rev() {
            let text = format!("<extra_id_{i}>");
            specials.push((pieces.len() as u32, text.clone()));
            pieces.push((text, 0.0));
        }
    }
    let charsmap = Charsmap::new(&charsmap)?;
    let parts =
        UnigramParts { charsmap, pieces, unknown, specials, always_prefixed: false, splits_white: false, pad, end };
    (!parts.pieces.is_empty()).then(|| Unigram::new(parts))
}

/// A tokenizer of GGUF's metadata.
fn of_gguf(
    value: &dyn Fn(&str) -> Result<Option<MetadataValue>, PromptError>,
) -> Result<SequenceTokenizer, PromptError> {
    let broken = |problem: String| wrong(Path::new("tokenizer.ggml"), problem);
    let texts = |key: &str| match value(key)? {
        Some(MetadataValue::Texts(texts)) => Ok(texts),
        _ => Err(broken(format!("{key} is no list of texts"))),
    };
    let numbers = |key: &str| match value(key)? {
        Some(MetadataValue::Numbers(numbers)) => Ok(Some(numbers)),
        _ => Ok::<_, PromptError>(None),
    };
    let id = |key: &str| Ok(value(key)?.and_then(|v| v.unsigned()).and_then(|n| u32::try_from(n).ok()));
    let tokens = texts("tokens")?;
    let kinds = numbers("token_type")?.unwrap_or_default();
    let special = |at: usize| kinds.get(at).is_some_and(|k| [2, CONTROL, USER_DEFINED].contains(&(*k as i64)));
    let specials: Vec<(u32, String)> =
        (0..).zip(&tokens).filter(|(at, _)| special(*at as usize)).map(|(at, text)| (at, text.clone())).collect();
    let end = id("eos_token_id")?.unwrap_or(1);
    let pad = id("padding_token_id")?.unwrap_or(0);
    let model = value("model")?.and_then(|v| v.text().map(str::to_string)).unwrap_or_default();
    match model.as_str() {
        "t5" => {
            let scores = numbers("scores")?.unwrap_or_default();
            let scores = scores.into_iter().chain(std::iter::repeat(0.0));
            let charsmap: Vec<u8> =
                numbers("precompiled_charsmap")?.unwrap_or_default().into_iter().map(|b| b as i64 as u8).collect();
            let parts = UnigramParts {
                charsmap: Charsmap::new(&charsmap).ok_or_else(|| broken("its table of letters is damaged".into()))?,
                pieces: tokens.into_iter().zip(scores).collect(),
                unknown: id("unknown_token_id")?.unwrap_or(2),
                specials,
                always_prefixed: false,
                splits_white: false,
                pad,
                end,
            };
            Ok(SequenceTokenizer::Unigram(Unigram::new(parts)))
        }
        "gpt2" => {
            let said = value("pre")?.and_then(|v| v.text().map(str::to_string)).unwrap_or_default();
            let (words, composes, whole) = match said.as_str() {
                "qwen2" | "qwen35" => (QWEN_WORDS, true, false),
                "tekken" => (TEKKEN_WORDS, false, true),
                other => return Err(broken(format!("cuts text into words as '{other}', which is not supported"))),
            };
            let merges = texts("merges")?;
            let merges: Vec<(&str, &str)> = merges.iter().filter_map(|line| line.split_once(' ')).collect();
            let ids = tokens.into_iter().zip(0..).collect();
            let found = byte_pairs(&ids, &merges, words, composes, whole, specials, Ends { pad, end });
            found.map(SequenceTokenizer::BytePairs).map_err(broken)
        }
        other => Err(broken(format!("is of kind '{other}', which is not supported"))),
    }
}

/// Mistral's `tekken.json`: the bytes of each token in the order of ranks, after so many special tokens.
#[derive(Deserialize)]
struct Tekken {
    config: TekkenConfig,
    vocab: Vec<TekkenToken>,
    #[serde(default)]
    special_tokens: Vec<TekkenSpecial>,
}

#[derive(Deserialize)]
struct TekkenConfig {
    pattern: Option<String>,
    default_vocab_size: Option<usize>,
    default_num_special_tokens: u32,
}

#[derive(Deserialize)]
struct TekkenToken {
    token_bytes: String,
}

#[derive(Deserialize)]
struct TekkenSpecial {
    rank: u32,
    token_str: String,
}

fn of_tekken(bytes: &[u8]) -> Result<BytePairs, String> {
    let Tekken { config, vocab, special_tokens } = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    let first = config.default_num_special_tokens;
    let most = config.default_vocab_size.unwrap_or(usize::MAX).saturating_sub(first as usize);
    let decode =
        |token: &TekkenToken| BASE64.decode(&token.token_bytes).map_err(|_| "a token is no base64".to_string());
    let tokens: Vec<Vec<u8>> = vocab.iter().take(most).map(decode).collect::<Result<_, _>>()?;
    let ids: HashMap<Vec<u8>, u32> = tokens.iter().cloned().zip(first..).collect();
    let mut single = [0; 256];
    for byte in 0..=255u8 {
        single[usize::from(byte)] = *ids.get(&[byte][..]).ok_or(format!("byte {byte} has no token"))?;
    }
    // Any two tokens whose bytes together are a token become it, by its rank.
    let mut merges = HashMap::new();
    for (token, rank) in tokens.iter().zip(0..) {
        for cut in 1..token.len() {
            if let (Some(&a), Some(&b)) = (ids.get(&token[..cut]), ids.get(&token[cut..])) {
                merges.insert((a, b), (rank, first + rank));
            }
        }
    }
    let found = |text: &str| special_tokens.iter().find(|t| t.token_str == text).map(|t| t.rank);
    let (pad, end) = (found("<pad>").unwrap_or(11), found("</s>").unwrap_or(2));
    BytePairs::new(BytePairParts {
        words: config.pattern.unwrap_or_else(|| TEKKEN_WORDS.into()),
        composes: false,
        vocabulary: Vocabulary::of_bytes(single, merges),
        whole: ids,
        specials: special_tokens.into_iter().map(|token| (token.rank, token.token_str)).collect(),
        pad,
        end,
    })
}
