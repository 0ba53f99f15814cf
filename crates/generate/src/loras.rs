//! Which LoRAs a run asks for: by `--lora`, and by `<lora:name:0.8>` in its prompt.

use std::path::{Component, Path, PathBuf};

use std::sync::Arc;

use impasto_model::{ChangedModel, LoraPlacement, Model};

use crate::GenerateError;
use crate::settings::{LoraChoices, LoraMode, Settings};

/// Ends that files of LoRAs have, in the order in which they are tried.
const ENDS: [&str; 4] = ["safetensors", "gguf", "pt", "ckpt"];

/// What a run asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AskedLoras {
    /// The prompt without its tags.
    pub prompt: String,
    /// Files and strengths: those of `--lora`, then those of the prompt.
    pub files: Vec<(PathBuf, f32)>,
    /// How many of them `--lora` names.
    pub by_flag: usize,
    /// What is not applied, a line each.
    pub notes: Vec<String>,
}

impl AskedLoras {
    /// Finds the files of what the settings ask for.
    pub fn new(settings: &Settings, prompt: &str) -> Result<AskedLoras, GenerateError> {
        let folder = settings.lora_model_dir.as_deref();
        let mut asked = AskedLoras::default();
        for (path, strength) in settings.lora.iter().flat_map(|LoraChoices(list)| list) {
            asked.files.push((named_file(path, folder)?, *strength));
        }
        asked.by_flag = asked.files.len();
        let (words, tags) = take_tags(prompt)?;
        for (name, strength) in tags {
            match folder {
                Some(folder) => asked.files.push((in_folder(folder, &name)?, strength)),
                None => asked.notes.push(format!(
                    "<lora:{name}:{strength}> is not applied: say where LoRA files are, with --lora-model-dir DIR"
                )),
            }
        }
        asked.prompt = words;
        Ok(asked)
    }

    /// The model with them, if there are any, and what to tell of them.
    pub fn applied(
        &self,
        model: &Model,
        mode: LoraMode,
    ) -> Result<(Option<Arc<ChangedModel>>, Vec<String>), GenerateError> {
        if self.files.is_empty() {
            model.without_loras();
            return Ok((None, self.notes.clone()));
        }
        let placement = match mode {
            LoraMode::Auto => LoraPlacement::Auto,
            LoraMode::Immediately => LoraPlacement::Merged,
            LoraMode::AtRuntime => LoraPlacement::Branches,
        };
        let changed = model.with_loras(&self.files, placement)?;
        let partial = changed.reports.iter().filter(|report| report.is_partial()).map(ToString::to_string);
        let merged = (changed.merged > 0).then(|| {
            format!(
                "{} parameters are changed while they are read, not at run time: what the LoRAs say of them is no product of two small matrices",
                changed.merged
            )
        });
        let notes = partial.chain(merged).chain(self.notes.clone()).collect();
        Ok((Some(changed), notes))
    }
}

/// The prompt without `<lora:...>`, and those tags: names and strengths.
fn take_tags(prompt: &str) -> Result<(String, Vec<(String, f32)>), GenerateError> {
    const BEGIN: &str = "<lora:";
    let (mut words, mut tags, mut rest) = (String::new(), vec![], prompt);
    while let Some((before, tag, after)) = rest.split_once(BEGIN).and_then(|(before, rest)| {
        let (tag, after) = rest.split_once('>')?;
        Some((before, tag, after))
    }) {
        words += before;
        let wrong = |problem: &str| GenerateError::Asked(format!("{BEGIN}{tag}>: {problem}"));
        let (name, strength) = match tag.rsplit_once(':') {
            None => (tag, 1.0),
            Some((name, text)) => {
                let strength = text.trim().parse::<f32>().ok().filter(|x| x.is_finite());
                (name, strength.ok_or_else(|| wrong("the strength is no number; write <lora:name:0.8>"))?)
            }
        };
        if name.rsplit_once(':').is_some_and(|(_, text)| text.trim().parse::<f32>().is_ok()) {
            return Err(wrong("there is one strength for the whole LoRA; write <lora:name:0.8>"));
        }
        tags.push((name.trim().to_string(), strength));
        rest = after;
    }
    Ok((words + rest, tags))
}

/// A file that was named by its path, or by its name in the folder of LoRAs.
fn named_file(path: &Path, folder: Option<&Path>) -> Result<PathBuf, GenerateError> {
    match (path.exists(), folder, path.to_str()) {
        (false, Some(folder), Some(name)) if path.is_relative() => in_folder(folder, name),
        (false, ..) => {
            let path = path.display();
            Err(GenerateError::Asked(format!(
                "{path}: there is no such LoRA; name its file with --lora FILE, or its folder with --lora-model-dir DIR"
            )))
        }
        (true, ..) => Ok(path.into()),
    }
}

/// The file of a LoRA in the folder of LoRAs, never outside of it.
fn in_folder(folder: &Path, name: &str) -> Result<PathBuf, GenerateError> {
    let inside = |path: &Path| {
        path.components().next().is_some() && path.components().all(|part| matches!(part, Component::Normal(_)))
    };
    if !inside(Path::new(name)) || name.contains('\\') {
        return Err(GenerateError::Asked(format!(
            "the LoRA '{name}' is not in {}: its name may have folders, and none that leads out",
            folder.display()
        )));
    }
    let whole = folder.join(name);
    let known = whole.extension().and_then(|end| end.to_str()).is_some_and(|end| ENDS.contains(&end));
    let with_ends = ENDS.iter().map(|end| folder.join(format!("{name}.{end}")));
    let found = known.then_some(whole).into_iter().chain(with_ends).find(|file| file.is_file());
    found.ok_or_else(|| {
        let (folder, ends) = (folder.display(), ENDS.join(", ."));
        GenerateError::Asked(format!("there is no LoRA '{name}' in {folder}; its file ends in .{ends}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_taken_out_of_the_prompt() {
        let took = |prompt| take_tags(prompt).expect("tags");
        assert_eq!(took("a <lora:fur:0.8>cat"), ("a cat".into(), vec![("fur".into(), 0.8)]));
        let (words, tags) = took("<lora:a/b c>x<lora:d:-1.5>, <lora:");
        assert_eq!((words.as_str(), tags), ("x, <lora:", vec![("a/b c".into(), 1.0), ("d".into(), -1.5)]));
        assert_eq!(took("a <b> c"), ("a <b> c".into(), vec![]));
        for (prompt, says) in
            [("<lora:a:b>", "no number"), ("<lora:a:nan>", "no number"), ("<lora:a:1:2>", "one strength")]
        {
            let error = take_tags(prompt).expect_err(prompt).to_string();
            assert!(error.contains(says) && error.contains(prompt), "{error}");
        }
    }

    #[test]
    fn a_name_never_leaves_the_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("loras/style")).expect("folders");
        for name in ["out.safetensors", "loras/style/fur.pt", "loras/fur.gguf", "loras/fur.safetensors"] {
            std::fs::write(at(name), "x").expect("written");
        }
        let find = |name: &str| in_folder(&at("loras"), name);
        assert_eq!(find("fur").ok(), Some(at("loras/fur.safetensors")));
        assert_eq!(find("fur.gguf").ok(), Some(at("loras/fur.gguf")));
        assert_eq!(find("style/fur").ok(), Some(at("loras/style/fur.pt")));
        let absolute = at("out").display().to_string();
        for name in ["../out", "style/../../out", &absolute, "", "..\\out", "."] {
            assert!(find(name).expect_err(name).to_string().contains("leads out"), "{name}");
        }
        assert!(find("hair").expect_err("none").to_string().contains(".safetensors, .gguf"));
    }
}
