//! The models that a server offers: those in its folders, by name, and the one inside the program. A request names one of these and no path.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use impasto_generate::settings::Settings;
use impasto_generate::{Engine, GenerateError};
use impasto_model::Model;
use serde::Serialize;
use utoipa::ToSchema;

/// The name of the model that the server was started with.
pub const DEFAULT: &str = "default";
/// How deep folders of models are searched.
const DEPTH: usize = 3;
/// Files that can hold a model.
const ENDINGS: [&str; 5] = ["safetensors", "gguf", "ckpt", "pt", "pth"];

/// Opens the model that settings name, or the one inside the program where they name none.
pub type OpenModel = dyn Fn(&Engine, &Settings) -> Result<Arc<Model>, GenerateError> + Send + Sync;

/// A model that can be asked for.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ModelSummary {
    /// Its name in requests.
    pub name: String,
    /// Its family, in words.
    pub family: Option<String>,
    /// Pixels across, where nobody says.
    pub width: usize,
    /// Pixels down.
    pub height: usize,
    /// Steps.
    pub steps: usize,
    /// How much the prompt counts.
    pub cfg_scale: f32,
    /// The guidance that it is told, where it reads one.
    pub guidance: Option<f32>,
    /// Why it cannot be opened.
    pub error: Option<String>,
}

/// The models by name.
pub struct ModelFolder {
    folders: Vec<PathBuf>,
    known: Mutex<BTreeMap<String, PathBuf>>,
    /// What was found out of a file, as long as it is the same.
    summaries: Mutex<BTreeMap<String, ModelSummary>>,
}

impl ModelFolder {
    /// The models in these folders.
    pub fn new(folders: Vec<PathBuf>) -> ModelFolder {
        let models = ModelFolder { folders, known: Mutex::default(), summaries: Mutex::default() };
        models.scan();
        models
    }

    /// Looks into the folders again.
    pub fn scan(&self) {
        let mut found = BTreeMap::new();
        for folder in &self.folders {
            search(folder, "", DEPTH, &mut found);
        }
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = found;
        self.summaries.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// All names, the default one first.
    pub fn names(&self) -> Vec<String> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::once(DEFAULT.to_owned()).chain(known.keys().cloned()).collect()
    }

    /// The file of a model; nothing for the default one. An error where there is no such model.
    pub fn path(&self, name: &str) -> Result<Option<PathBuf>, String> {
        if name == DEFAULT {
            return Ok(None);
        }
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.get(name).cloned().map(Some);
        found.ok_or_else(|| format!("there is no model '{name}'; ask for one of those that /api/v1/models lists"))
    }

    /// What a model is; files are opened the first time.
    pub fn summary(&self, name: &str, open: impl FnOnce() -> Result<Arc<Model>, GenerateError>) -> ModelSummary {
        let lock = || self.summaries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(name) {
            return known.clone();
        }
        let opened = open();
        let summary = match &opened {
            Ok(model) => {
                let defaults = model.pipeline.defaults();
                let [height, width] = defaults.size;
                ModelSummary {
                    name: name.into(),
                    family: Some(model.pipeline.name().into()),
                    width,
                    height,
                    steps: defaults.steps,
                    cfg_scale: defaults.guidance,
                    guidance: defaults.distilled_guidance,
                    error: None,
                }
            }
            Err(error) => ModelSummary {
                name: name.into(),
                family: None,
                width: 0,
                height: 0,
                steps: 0,
                cfg_scale: 0.0,
                guidance: None,
                error: Some(self.without_paths(&error.to_string())),
            },
        };
        lock().insert(name.into(), summary.clone());
        summary
    }

    /// A text without the folders of this machine.
    pub fn without_paths(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for folder in &self.folders {
            let folder = folder.to_string_lossy();
            text = text.replace(&format!("{}/", folder.trim_end_matches('/')), "");
        }
        text
    }
}

/// Adds the models below a folder: files by their ends, and diffusers folders as one. Links are followed, as deep as folders are.
fn search(folder: &Path, prefix: &str, depth: usize, found: &mut BTreeMap<String, PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if name.starts_with('.') {
            continue;
        }
        let full = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        if path.is_dir() {
            if path.join("model_index.json").is_file() {
                found.entry(full).or_insert(path);
            } else if depth > 0 {
                search(&path, &full, depth - 1, found);
            }
            continue;
        }
        let Some((stem, ending)) = full.rsplit_once('.') else { continue };
        let is_later_shard = stem.rsplit_once("-of-").is_some_and(|(before, _)| !before.ends_with("-00001"));
        if ENDINGS.contains(&&*ending.to_ascii_lowercase()) && !is_later_shard && path.is_file() {
            // The state of a run is no model.
            if stem.ends_with(".latent") {
                continue;
            }
            found.entry(stem.to_owned()).or_insert(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_folders_are_found_by_name_and_no_name_is_a_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("sdxl/unet")).expect("made");
        std::fs::create_dir_all(at("sub")).expect("made");
        for file in
            ["a.safetensors", "sub/b.GGUF", "sdxl/model_index.json", "sdxl/unet/x.safetensors", "notes.txt", ".c.gguf"]
        {
            std::fs::write(at(file), "x").expect("written");
        }
        let models = ModelFolder::new(vec![folder.path().into()]);
        assert_eq!(models.names(), ["default", "a", "sdxl", "sub/b"]);
        assert_eq!(models.path("sub/b"), Ok(Some(at("sub/b.GGUF"))));
        for name in ["../a", "/etc/passwd", "a.safetensors", "", "sub/../a"] {
            assert!(models.path(name).is_err(), "{name}");
        }
        let error = format!("{}: it is cut off", at("a.safetensors").display());
        assert_eq!(models.without_paths(&error), "a.safetensors: it is cut off");
    }
}
