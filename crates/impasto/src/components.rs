//! The files of a model that is opened as it is, whatever is in it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use impasto_model::{
    FAMILIES, Model, ModelPaths, NetworkKind, OriginalNames, Prediction, original_names, weight_files,
};
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

/// Opens a model file, the folder of a component, or components of a diffusers folder: several under the names of their folders, one under its own names; or
/// all under the names of the first checkpoints, where the family has such (`original`).
pub fn model_parts(path: &Path, choice: ComponentChoice, original: bool) -> anyhow::Result<Vec<ModelPart>> {
    let open = |path: &Path, prefix: String| -> anyhow::Result<(ModelPart, Option<NetworkKind>)> {
        let checkpoint = Checkpoint::open(path)?;
        let shapes = checkpoint.tensors().map(|t| (t.name.clone(), t.shape.clone())).collect();
        let found = if original { original_names(FAMILIES, &shapes) } else { None };
        let (kind, renamed) = found.map_or((None, OriginalNames::new()), |(kind, names)| (Some(kind), names));
        Ok((ModelPart { prefix, renamed, checkpoint }, kind))
    };
    if let ComponentChoice::Named(name) = choice {
        let folder = path.join(name);
        if Path::new(name).file_name() != Some(name.as_ref()) || !folder.is_dir() {
            bail!("{}: has no component '{name}'", path.display());
        }
        let [file] = &model_files(&folder)?[..] else { bail!("{}: is no folder of one component", folder.display()) };
        return Ok(vec![open(file, String::new())?.0]);
    }
    let files = model_files(path)?;
    if let [file] = &files[..] {
        return Ok(vec![open(file, String::new())?.0]);
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
    let mut parts = vec![];
    for (file, name) in files.iter().zip(&names) {
        parts.push(open(file, format!("{name}."))?);
    }
    let is_renamed = |(part, kind): &(ModelPart, _)| *kind == Some(NetworkKind::Denoiser) && !part.renamed.is_empty();
    if parts.iter().any(is_renamed) {
        let texts = names.iter().filter(|name| name.starts_with("text_encoder")).count();
        for ((part, kind), name) in parts.iter_mut().zip(&names) {
            let original = match (kind, name.as_str()) {
                (Some(NetworkKind::Denoiser), _) => "model.diffusion_model.",
                (Some(NetworkKind::Autoencoder), _) => "first_stage_model.",
                (Some(NetworkKind::TextEncoder), "text_encoder") if texts == 1 => "cond_stage_model.transformer.",
                (Some(NetworkKind::TextEncoder), "text_encoder") => "text_encoders.clip_l.transformer.",
                (Some(NetworkKind::TextEncoder), "text_encoder_2") => "text_encoders.clip_g.transformer.",
                _ => continue,
            };
            part.prefix = original.into();
        }
    }
    Ok(parts.into_iter().map(|(part, _)| part).collect())
}

/// Opens a file whose tensors will have a prefix, unless they have it already.
pub fn file_part(path: &Path, prefix: &str) -> anyhow::Result<ModelPart> {
    let mut parts = model_parts(path, ComponentChoice::Only, false)?;
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
