//! A tokeniser out of the folder of a diffusers model.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::PromptError;
use super::tokens::{START, STOP, Special, Tokenizer};
use super::vocabulary::{Vocabulary, VocabularyFault};

/// Files of a tokeniser are about 1 MB. What is larger is something else, and is not read.
const LARGEST_FILE: u64 = 64 << 20;
/// As many lines of `merges.txt` as transformers takes.
const MOST_MERGES: usize = 48_894;

impl Tokenizer {
    /// From the folder of a tokeniser (`tokenizer` or `tokenizer_2` of a diffusers model): `vocab.json` and `merges.txt`, and what
    /// `tokenizer_config.json` and `special_tokens_map.json` say of special tokens.
    pub fn from_folder(folder: &Path) -> Result<Tokenizer, PromptError> {
        let vocab_json = folder.join("vocab.json");
        let mut vocab: HashMap<String, u32> = needed(&vocab_json, json(&vocab_json)?)?;
        let config = folder.join("tokenizer_config.json");
        let settings: Settings = json(&config)?.unwrap_or_default();
        // A config that lists its added tokens is complete; an older one is overruled by the map.
        let (added, named) = match settings.added_tokens_decoder {
            Some(added) => (added, settings.named),
            None => {
                let map: Named = json(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
                (BTreeMap::new(), map.over(settings.named))
            }
        };

        // Added tokens come after the vocabulary, or are tokens of it that are looked for as they are written.
        let mut specials: Vec<Special> = vec![];
        for (id, token) in added {
            if token.single_word {
                let problem = format!("'{}' counts as a single word only, which this program cannot do", token.content);
                return Err(wrong(&config, problem));
            }
            let id = *vocab.entry(token.content.clone()).or_insert(id);
            specials.push(Special::new(&token.content, id, token.normalized.unwrap_or(!token.special)));
        }
        // Of those that are named, the last one says how a token is looked for.
        let listed = specials.len();
        let mut special = |entry: Option<Entry>, text: &str| {
            let (text, normalised) = match entry {
                None => (text.to_string(), false),
                Some(Entry::Text(text)) => (text, false),
                Some(Entry::Detailed(token)) => (token.content, token.normalized.unwrap_or(false)),
            };
            let Some(&id) = vocab.get(&text) else {
                return Err(wrong(
                    &vocab_json,
                    format!("has no token '{text}', which is a special token of this model"),
                ));
            };
            match specials.iter().position(|s| s.id() == id) {
                Some(at) if at < listed => {}
                Some(at) => specials[at] = Special::new(&text, id, normalised),
                None => specials.push(Special::new(&text, id, normalised)),
            }
            Ok(id)
        };
        let start = special(named.bos_token, START)?;
        let end = special(named.eos_token, STOP)?;
        let unknown = special(named.unk_token, STOP)?;
        let pad = special(named.pad_token, STOP)?;

        let merges_txt = folder.join("merges.txt");
        let text = needed(&merges_txt, read(&merges_txt)?)?;
        let text = String::from_utf8(text).map_err(|e| wrong(&merges_txt, format!("is no text: {e}")))?;
        let mut merges = vec![];
        // The first line is the version.
        for (at, line) in text.trim().split('\n').enumerate().skip(1).take(MOST_MERGES) {
            let mut parts = line.split_whitespace();
            let (Some(first), Some(second), None) = (parts.next(), parts.next(), parts.next()) else {
                return Err(wrong(&merges_txt, format!("line {} is not two pieces: '{}'", at + 1, line.trim())));
            };
            merges.push((first, second));
        }
        let vocabulary = Vocabulary::new(&vocab, &merges, unknown).map_err(|VocabularyFault { rank, text }| {
            wrong(&merges_txt, format!("line {} needs the token '{text}', which vocab.json does not have", rank + 2))
        })?;
        Ok(Tokenizer::of(vocabulary, specials, [start, end, pad], vocab.get(",</w>").copied()))
    }
}

/// `tokenizer_config.json`, as far as it matters here.
#[derive(Deserialize, Default)]
struct Settings {
    #[serde(flatten)]
    named: Named,
    added_tokens_decoder: Option<BTreeMap<u32, Details>>,
}

/// The special tokens that both files name.
#[derive(Deserialize, Default)]
struct Named {
    bos_token: Option<Entry>,
    eos_token: Option<Entry>,
    unk_token: Option<Entry>,
    pad_token: Option<Entry>,
}

impl Named {
    fn over(self, under: Named) -> Named {
        Named {
            bos_token: self.bos_token.or(under.bos_token),
            eos_token: self.eos_token.or(under.eos_token),
            unk_token: self.unk_token.or(under.unk_token),
            pad_token: self.pad_token.or(under.pad_token),
        }
    }
}

/// A special token, by its text or in detail.
#[derive(Deserialize)]
#[serde(untagged)]
enum Entry {
    Text(String),
    Detailed(Details),
}

#[derive(Deserialize)]
struct Details {
    content: String,
    normalized: Option<bool>,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    single_word: bool,
}

pub(super) fn wrong(path: &Path, problem: String) -> PromptError {
    PromptError::NotATokenizer { path: path.into(), problem }
}

/// A file's bytes; none where there is no such file.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>, PromptError> {
    let open = |source| PromptError::Open { path: path.into(), source };
    let size = match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        found => found.map_err(open)?.len(),
    };
    if size > LARGEST_FILE {
        return Err(wrong(path, format!("has {size} bytes, which no file of a tokeniser has")));
    }
    let mut bytes = vec![];
    impasto_weights::open_file(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(open)?;
    Ok(Some(bytes))
}

pub(super) fn json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, PromptError> {
    let Some(bytes) = read(path)? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|e| wrong(path, format!("is not the JSON of a tokeniser: {e}")))
}

fn needed<T>(path: &Path, found: Option<T>) -> Result<T, PromptError> {
    found.ok_or_else(|| PromptError::Open { path: path.into(), source: std::io::ErrorKind::NotFound.into() })
}
