//! The models that a server offers: those in its folders, by name, and the one inside the program. A request names one of these and no path.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

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
    /// Folders that no answer names, the longest first.
    private: Vec<String>,
    known: Mutex<FoundModels>,
    /// What was found out of a file, as long as it is the same.
    summaries: Mutex<BTreeMap<String, (FileStamp, ModelSummary)>>,
}

/// What a search of the folders finds.
#[derive(Default)]
struct FoundModels {
    models: BTreeMap<String, PathBuf>,
    /// Links that lead out of the folders, which are not followed.
    outside: BTreeSet<String>,
}

/// A file as it was when it was looked at.
type FileStamp = Option<(PathBuf, u64, SystemTime)>;

fn stamp(path: Option<&Path>) -> FileStamp {
    let path = path?;
    let data = path.metadata().ok()?;
    Some((path.into(), data.len(), data.modified().ok()?))
}

impl ModelFolder {
    /// The models in these folders. No answer names them, nor the `private` ones.
    pub fn new(folders: Vec<PathBuf>, private: Vec<PathBuf>) -> ModelFolder {
        let texts = |folder: &PathBuf| {
            let real = folder.canonicalize().unwrap_or_else(|_| folder.clone());
            [folder, &real].map(|folder| folder.to_string_lossy().trim_end_matches('/').to_owned())
        };
        let mut private: Vec<String> = folders.iter().chain(&private).flat_map(texts).collect();
        private.retain(|folder| !folder.is_empty());
        private.sort_by_key(|folder| std::cmp::Reverse(folder.len()));
        private.dedup();
        let models = ModelFolder { folders, private, known: Mutex::default(), summaries: Mutex::default() };
        models.scan();
        models
    }

    fn known(&self) -> MutexGuard<'_, FoundModels> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks into the folders again.
    pub fn scan(&self) {
        let mut found = FoundModels::default();
        let roots: Vec<PathBuf> = self.folders.iter().filter_map(|folder| folder.canonicalize().ok()).collect();
        for folder in &self.folders {
            search(folder, "", DEPTH, &roots, &mut found);
        }
        let mut known = self.known();
        for name in found.outside.difference(&known.outside) {
            eprintln!("note: the model '{name}' is a link that leads out of its folder: {OUTSIDE}");
        }
        *known = found;
    }

    /// All names, the default one first.
    pub fn names(&self) -> Vec<String> {
        std::iter::once(DEFAULT.to_owned()).chain(self.known().models.keys().cloned()).collect()
    }

    /// The file of a model; nothing for the default one. An error where there is no such model.
    pub fn path(&self, name: &str) -> Result<Option<PathBuf>, String> {
        if name == DEFAULT {
            return Ok(None);
        }
        let known = self.known();
        match known.models.get(name) {
            Some(path) => Ok(Some(path.clone())),
            None if known.outside.contains(name) => {
                Err(format!("the model '{name}' is a link that leads out of its folder: {OUTSIDE}"))
            }
            None => Err(format!("there is no model '{name}'; ask for one of those that /api/v1/models lists")),
        }
    }

    /// What a model is; files are opened the first time.
    pub fn summary(&self, name: &str, open: impl FnOnce() -> Result<Arc<Model>, GenerateError>) -> ModelSummary {
        let lock = || self.summaries.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = stamp(self.known().models.get(name).map(PathBuf::as_path));
        if let Some((_, known)) = lock().get(name).filter(|(then, _)| *then == stamp) {
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
        lock().insert(name.into(), (stamp, summary.clone()));
        summary
    }

    /// A text without the folders of this machine.
    pub fn without_paths(&self, text: &str) -> String {
        self.private
            .iter()
            .fold(text.to_owned(), |text, folder| text.replace(&format!("{folder}/"), "").replace(folder, "its folder"))
    }
}

/// What to do about a link that leads out of the folders.
const OUTSIDE: &str = "name the folder that it leads to with --models too";

/// Adds the models below a folder: files by their ends, and diffusers folders as one. Links are followed within the folders of models.
fn search(folder: &Path, prefix: &str, depth: usize, roots: &[PathBuf], found: &mut FoundModels) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if name.starts_with('.') {
            continue;
        }
        let full = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        let is_inside = path.canonicalize().is_ok_and(|real| roots.iter().any(|root| real.starts_with(root)));
        if path.is_dir() {
            if path.join("model_index.json").is_file() {
                found.add(full, path, is_inside);
            } else if !is_inside {
                found.outside.insert(full);
            } else if depth > 0 {
                search(&path, &full, depth - 1, roots, found);
            }
            continue;
        }
        let Some((stem, ending)) = full.rsplit_once('.') else { continue };
        let is_later_shard = stem.rsplit_once("-of-").is_some_and(|(before, _)| !before.ends_with("-00001"));
        // The state of a run is no model.
        let is_model =
            ENDINGS.contains(&&*ending.to_ascii_lowercase()) && !is_later_shard && !stem.ends_with(".latent");
        if is_model && path.is_file() {
            found.add(stem.to_owned(), path, is_inside);
        }
    }
}

impl FoundModels {
    fn add(&mut self, name: String, path: PathBuf, is_inside: bool) {
        match is_inside {
            true => drop(self.models.entry(name).or_insert(path)),
            false => drop(self.outside.insert(name)),
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
        let models = ModelFolder::new(vec![folder.path().into()], vec!["/home/somebody".into()]);
        assert_eq!(models.names(), ["default", "a", "sdxl", "sub/b"]);
        assert_eq!(models.path("sub/b"), Ok(Some(at("sub/b.GGUF"))));
        for name in ["../a", "/etc/passwd", "a.safetensors", "", "sub/../a"] {
            assert!(models.path(name).is_err(), "{name}");
        }
        let error = format!("{}: it is cut off", at("a.safetensors").display());
        assert_eq!(models.without_paths(&error), "a.safetensors: it is cut off");
        assert_eq!(models.without_paths("no room in /home/somebody"), "no room in its folder");
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_within_the_folders_only() {
        use std::os::unix::fs::symlink;
        let (folder, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("another"));
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("a.safetensors"), "x").expect("written");
        std::fs::write(other.path().join("b.safetensors"), "x").expect("written");
        symlink(at("a.safetensors"), at("inside.safetensors")).expect("linked");
        symlink(other.path().join("b.safetensors"), at("out.safetensors")).expect("linked");
        symlink(other.path(), at("far")).expect("linked");
        symlink("/etc/passwd", at("passwd.gguf")).expect("linked");
        let models = ModelFolder::new(vec![folder.path().into()], vec![]);
        assert_eq!(models.names(), ["default", "a", "inside"]);
        for name in ["out", "far", "passwd"] {
            let error = models.path(name).expect_err("it leads out");
            assert!(error.contains("--models") && !error.contains("/etc"), "{error}");
        }
        // Whoever names both folders has both.
        let both = ModelFolder::new(vec![folder.path().into(), other.path().into()], vec![]);
        assert_eq!(both.names(), ["default", "a", "b", "far/b", "inside", "out"]);
    }
}
