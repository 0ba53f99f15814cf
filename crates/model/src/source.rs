//! Which file is meant: one file, the folder of a component, or a whole diffusers folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use impasto_weights::{Checkpoint, TensorProblems, WeightsError};

use crate::config::Config;
use crate::families::Family;
use crate::{IncompleteNetwork, ModelError, NetworkKind, RecognisedNetwork, TensorShapes, recognise};

/// A file that is open, and the networks in it.
pub(crate) struct SourceFile {
    pub(crate) path: PathBuf,
    pub(crate) checkpoint: Arc<Checkpoint>,
    pub(crate) shapes: TensorShapes,
    pub(crate) found: Vec<RecognisedNetwork>,
    pub(crate) incomplete: Vec<IncompleteNetwork>,
    /// `config.json` beside it.
    config: Option<Config>,
    /// It was named as the folder of a component, so its configuration must be about it.
    component: bool,
    /// Which of several files was taken, where that is not plain.
    pub(crate) note: Option<String>,
}

impl SourceFile {
    /// A file, the index of one in shards, or the folder of a component.
    pub(crate) fn open(families: &[&dyn Family], path: &Path) -> Result<Arc<SourceFile>, ModelError> {
        let component = path.is_dir();
        let (file, note) = match component {
            true => in_component(path)?,
            false => (path.to_path_buf(), None),
        };
        let checkpoint = Checkpoint::open(&file)?;
        // Beside any other file there may be the configuration of something else.
        let file_name = file.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let named =
            ["diffusion_pytorch_model", "model"].contains(&file_name.split(['.', '-']).next().unwrap_or_default());
        let config = match file.parent() {
            Some(folder) if component || named => Config::read(&folder.join("config.json"))?,
            _ => None,
        };
        Ok(Arc::new(SourceFile { config, component, note, ..SourceFile::of(families, checkpoint, file) }))
    }

    /// A checkpoint that is open already.
    pub(crate) fn of(families: &[&dyn Family], checkpoint: Checkpoint, path: PathBuf) -> SourceFile {
        let shapes: TensorShapes = checkpoint.tensors().map(|t| (t.name.clone(), t.shape.clone())).collect();
        let (found, incomplete) = recognise(families, &shapes);
        SourceFile {
            path,
            checkpoint: Arc::new(checkpoint),
            shapes,
            found,
            incomplete,
            config: None,
            component: false,
            note: None,
        }
    }

    /// `config.json`, if it is about networks of this class.
    pub(crate) fn config_of(&self, wanted: &str) -> Result<Option<&Config>, ModelError> {
        let Some(config) = &self.config else { return Ok(None) };
        let field = if wanted == "clip_text_model" { "model_type" } else { "_class_name" };
        match config.text(field)? {
            Some(class) if class == wanted => Ok(Some(config)),
            Some(class) if self.component => {
                let problem = format!("is '{class}', {wanted} is needed");
                Err(ModelError::Setting { path: config.path.clone(), field: field.into(), problem })
            }
            None if self.component => Ok(Some(config)),
            _ => Ok(None),
        }
    }

    /// `config.json`, if it is about a model of one of these types.
    pub(crate) fn config_of_kind(&self, wanted: &[&str]) -> Result<Option<&Config>, ModelError> {
        let Some(config) = &self.config else { return Ok(None) };
        match config.text("model_type")? {
            Some(kind) if wanted.contains(&kind) => Ok(Some(config)),
            Some(kind) if self.component => {
                Err(config.wrong("model_type", format!("is '{kind}'; {} are supported", wanted.join(", "))))
            }
            None if self.component => Ok(Some(config)),
            _ => Ok(None),
        }
    }

    /// Why the file has no network of this kind, if it has some of its tensors.
    pub(crate) fn incomplete(&self, kind: NetworkKind) -> Option<ModelError> {
        let problems: Vec<String> =
            self.incomplete.iter().filter(|one| one.kind == kind).map(|one| one.problem.to_string()).collect();
        let (path, problems) = (self.path.clone(), TensorProblems(problems));
        (!problems.0.is_empty()).then(|| ModelError::Tensors { path, part: kind.name(), problems })
    }

    /// What the file says of itself under this key.
    pub(crate) fn says(&self, key: &str) -> Option<&str> {
        self.checkpoint.metadata().get(key).map(String::as_str)
    }
}

/// Whether this folder is a whole diffusers model.
pub(crate) fn is_whole_folder(path: &Path) -> bool {
    path.join("model_index.json").exists() || path.join("unet").is_dir() || path.join("transformer").is_dir()
}

/// The files with weights that a path means: one file, that of a component's folder, or one for each component of a diffusers folder.
pub fn weight_files(path: &Path) -> Result<Vec<PathBuf>, ModelError> {
    if !path.is_dir() {
        return Ok(vec![path.into()]);
    }
    if !is_whole_folder(path) {
        return Ok(vec![in_component(path)?.0]);
    }
    let components =
        ["text_encoder", "text_encoder_2", "text_encoder_3", "unet", "transformer", "vae"].map(|name| path.join(name));
    components.iter().filter(|folder| folder.is_dir()).map(|folder| Ok(in_component(folder)?.0)).collect()
}

/// The weights in the folder of a component: safetensors before GGUF and these before PyTorch's, the plain name before variants, one file before shards.
fn in_component(folder: &Path) -> Result<(PathBuf, Option<String>), ModelError> {
    let open = |source| WeightsError::Open { path: folder.into(), source };
    let mut candidates = vec![];
    for entry in std::fs::read_dir(folder).map_err(open)? {
        let path = entry.map_err(open)?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()) else { continue };
        if let Some((ending, sharded, variant)) = weights_name(name) {
            let rank = match variant.as_deref() {
                None => 0,
                Some("fp16") => 1,
                Some("bf16") => 2,
                Some("fp32") => 3,
                Some(_) => 4,
            };
            candidates.push((ending, rank, sharded, name.to_string(), variant));
        }
    }
    candidates.sort();
    let problem = match &candidates[..] {
        [] if is_whole_folder(folder) => {
            "is a whole diffusers folder; name it with --model, or name the folder of one component".into()
        }
        [] => "has no .safetensors file in it, nor a .gguf or .bin file".to_string(),
        [(.., name, variant)] => return Ok(taken(folder, name, variant)),
        [(ending, rank, sharded, name, variant), (a, b, c, ..), ..] if (ending, rank, sharded) != (a, b, c) => {
            return Ok(taken(folder, name, variant));
        }
        _ => {
            let names: Vec<&str> = candidates.iter().map(|c| c.3.as_str()).collect();
            format!("has several models in it, name one of them: {}", names.join(", "))
        }
    };
    Err(WeightsError::NotAModel { path: folder.into(), problem }.into())
}

/// The file, and what to say where it is not the plain one.
fn taken(folder: &Path, name: &str, variant: &Option<String>) -> (PathBuf, Option<String>) {
    let file = folder.join(name);
    let note = variant.as_ref().map(|v| format!("{}: the variant '{v}' was taken", file.display()));
    (file, note)
}

/// The endings of files with weights in folders, the better ones first.
const ENDINGS: [&str; 3] = [".safetensors", ".gguf", ".bin"];

/// `(ending, in shards, variant)` for the name of a file with weights: `model.fp16.safetensors` is the variant `fp16` of `model`. Shards are
/// no weights of their own, and other things than models end with `.bin`.
fn weights_name(name: &str) -> Option<(usize, bool, Option<String>)> {
    let (ending, (stem, rest)) =
        ENDINGS.iter().enumerate().find_map(|(i, ending)| Some((i, name.split_once(ending)?)))?;
    let (sharded, after) = match rest {
        "" => (false, None),
        ".zst" if ending == 0 => (false, None),
        rest => {
            let middle = rest.strip_prefix(".index")?.strip_suffix("json")?.trim_matches('.');
            (true, (!middle.is_empty()).then_some(middle))
        }
    };
    if ENDINGS[ending] == ".bin"
        && !["pytorch_model", "diffusion_pytorch_model", "model"].iter().any(|n| stem.starts_with(n))
    {
        return None;
    }
    let shard =
        |s: &str| s.rsplit_once("-of-").is_some_and(|(_, n)| n.len() == 5 && n.bytes().all(|b| b.is_ascii_digit()));
    let (stem, variant) = match stem.split_once('.') {
        Some((stem, variant)) => (stem, Some(variant)),
        None => (stem, after),
    };
    // The variant of a shard stands before or after its number.
    if shard(stem) || variant.is_some_and(shard) {
        return None;
    }
    Some((ending, sharded, variant.map(Into::into)))
}

#[cfg(test)]
mod tests {
    use super::weights_name;

    #[test]
    fn names_of_weights() {
        let of = |ending, sharded, variant: Option<&str>| Some((ending, sharded, variant.map(String::from)));
        let some = |sharded, variant| of(0, sharded, variant);
        for (name, want) in [
            ("model.safetensors", some(false, None)),
            ("model.safetensors.zst", some(false, None)),
            ("diffusion_pytorch_model.fp16.safetensors", some(false, Some("fp16"))),
            ("diffusion_pytorch_model.non_ema.safetensors", some(false, Some("non_ema"))),
            ("diffusion_pytorch_model.safetensors.index.json", some(true, None)),
            ("diffusion_pytorch_model.safetensors.index.fp16.json", some(true, Some("fp16"))),
            ("diffusion_pytorch_model.fp16.safetensors.index.json", some(true, Some("fp16"))),
            ("model-00001-of-00002.safetensors", None),
            ("model.fp16-00001-of-00002.safetensors", None),
            ("model-00001-of-00002.fp16.safetensors", None),
            ("model.bin", of(2, false, None)),
            ("pytorch_model.bin.index.json", of(2, true, None)),
            ("pytorch_model-00001-of-00002.bin", None),
            ("diffusion_pytorch_model.fp16.bin", of(2, false, Some("fp16"))),
            ("training_args.bin", None),
            ("unet-q8_0.gguf", of(1, false, None)),
            ("unet.gguf.zst", None),
            ("config.json", None),
        ] {
            assert_eq!(weights_name(name), want, "{name}");
        }
    }
}
