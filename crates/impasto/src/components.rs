//! The files of a model that is opened as it is, whatever is in it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use impasto_model::{Model, ModelPaths, Prediction, weight_files};
use impasto_weights::{Checkpoint, ModelPart};

/// Which components of a diffusers folder are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComponentChoice<'a> {
    /// There must be one only.
    Only,
    /// All of them.
    All,
    /// That in the folder of this name.
    Named(&'a str),
}

/// The files with weights that a path means, of any format: itself, that of a component's folder, or one for each component of a diffusers folder.
pub(crate) fn model_files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    match weight_files(path) {
        Ok(files) => Ok(files),
        // Folders of other formats than safetensors, if they have one model.
        Err(error) => match Checkpoint::open(path) {
            Ok(_) => Ok(vec![path.into()]),
            Err(_) => Err(error.into()),
        },
    }
}

/// Opens a model file, the folder of a component, or components of a diffusers folder: several under the names of their folders, one under its own names.
pub fn model_parts(path: &Path, choice: ComponentChoice) -> anyhow::Result<Vec<ModelPart>> {
    let open = |path: &Path, prefix: String| Ok(ModelPart { prefix, checkpoint: Checkpoint::open(path)? });
    if let ComponentChoice::Named(name) = choice {
        let folder = path.join(name);
        if Path::new(name).file_name() != Some(name.as_ref()) || !folder.is_dir() {
            bail!("{}: has no component '{name}'", path.display());
        }
        let [file] = &model_files(&folder)?[..] else { bail!("{}: is no folder of one component", folder.display()) };
        return Ok(vec![open(file, String::new())?]);
    }
    let files = model_files(path)?;
    if let [file] = &files[..] {
        return Ok(vec![open(file, String::new())?]);
    }
    let name = |file: &PathBuf| {
        let folder = file.parent().and_then(Path::file_name).context("a component is in a folder")?;
        Ok(folder.to_string_lossy().into_owned())
    };
    let names = files.iter().map(name).collect::<anyhow::Result<Vec<String>>>()?;
    if choice == ComponentChoice::Only {
        let (path, names) = (path.display(), names.join(", "));
        bail!(
            "{path}: has several components ({names}); choose one with --component NAME, or put all into one file with --merge"
        );
    }
    files.iter().zip(&names).map(|(file, name)| open(file, format!("{name}."))).collect()
}

/// Opens a file whose tensors will have a prefix, unless they have it already.
pub fn file_part(path: &Path, prefix: &str) -> anyhow::Result<ModelPart> {
    let mut parts = model_parts(path, ComponentChoice::Only)?;
    let part = parts.pop().context("one part was opened")?;
    let has_it = part.checkpoint.tensors().any(|tensor| tensor.name.starts_with(prefix));
    Ok(ModelPart { prefix: if has_it { String::new() } else { prefix.into() }, ..part })
}

/// What the configuration of a diffusers folder says that a file has to say itself: what the model predicts.
pub fn folder_metadata(path: &Path) -> BTreeMap<String, String> {
    let model = Model::open(&ModelPaths { model: Some(path.into()), ..ModelPaths::default() });
    let velocity = model.is_ok_and(|model| model.pipeline.prediction() == Prediction::V);
    let said = velocity.then(|| ("modelspec.prediction_type".to_string(), "v".to_string()));
    said.into_iter().collect()
}
