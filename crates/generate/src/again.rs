//! The settings inside a picture that we made.

use std::path::Path;

use impasto_model::Model;

use crate::picture::{self, PictureError};
use crate::sampling::Method;
use crate::settings::Settings;
use crate::{GenerateError, Job};

/// What a picture says of how it was made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inside {
    /// The settings that make it again.
    pub settings: Settings,
    /// The model's name.
    pub model: Option<String>,
    /// Which model it was, where the picture says so.
    pub fingerprint: Option<String>,
    /// Which LoRAs it was made with, where the picture says so.
    pub lora_fingerprint: Option<String>,
    /// It began with a picture, which is not inside.
    pub from_picture: bool,
}

impl Inside {
    /// Whether these settings and this model make the picture again.
    pub fn check(&self, settings: &Settings, model: &Model) -> Result<(), GenerateError> {
        if self.from_picture && settings.init_img.is_none() {
            return Err(GenerateError::Asked(
                "it began with another picture, which is not inside: name that one with -i FILE".into(),
            ));
        }
        let ours = model.fingerprint()?;
        match &self.fingerprint {
            Some(known) if *known != ours => Err(GenerateError::Asked(format!(
                "it was made by another model, '{}' ({known}), not by '{}' ({ours}): name that one with -m FILE",
                self.model.as_deref().unwrap_or_default(),
                model.title
            ))),
            _ => Ok(()),
        }
    }
}

impl Inside {
    /// Whether a job has the LoRAs that the picture was made with.
    pub fn check_loras(&self, job: &Job) -> Result<(), GenerateError> {
        match self.lora_fingerprint == job.lora_fingerprint || self.fingerprint.is_none() {
            true => Ok(()),
            false => Err(GenerateError::Asked(
                "it was made with other LoRAs than those that are found here: name them with --lora FILE, or their folder with \
                 --lora-model-dir DIR"
                    .into(),
            )),
        }
    }
}

/// Reads the settings out of a PNG, JPEG or WebP that we, or webui, made.
pub fn inside(path: &Path) -> Result<Inside, PictureError> {
    let wrong = |problem: String| PictureError::Read { path: path.into(), problem };
    let text = picture::parameters(path)?.ok_or_else(|| wrong("it does not say how it was made".into()))?;
    parse(&text).map_err(|e| wrong(e.to_string()))
}

/// The text that [`Job::parameters`](crate::Job::parameters) writes.
fn parse(text: &str) -> Result<Inside, Box<dyn std::error::Error>> {
    let mut found = Inside::default();
    // The settings are the last line; a prompt may have several.
    let (words, line) = text.rfind("\nSteps: ").map(|at| text.split_at(at)).ok_or("the line of settings is missing")?;
    let (prompt, negative) = words.split_once("\nNegative prompt: ").unwrap_or((words, ""));
    found.settings.set("prompt", prompt)?;
    if !negative.is_empty() {
        found.settings.set("negative-prompt", negative)?;
    }
    for item in line.trim().split(", ") {
        let (key, value) = item.split_once(": ").unwrap_or((item, ""));
        match key {
            "Steps" => found.settings.set("steps", value)?,
            "Sampler" => {
                let ours = Method::titled(value).map(Method::name);
                found.settings.set("sampling-method", ours.unwrap_or(value))?;
            }
            "Schedule type" => found.settings.set("scheduler", value)?,
            "CFG scale" => found.settings.set("cfg-scale", value)?,
            "Distilled CFG Scale" => found.settings.set("guidance", value)?,
            "Flow shift" => found.settings.set("flow-shift", value)?,
            "Seed" => found.settings.set("seed", value)?,
            "Eta" => found.settings.set("eta", value)?,
            "Clip skip" => found.settings.set("clip-skip", value)?,
            "RNG" => found.settings.set("rng", if value == "GPU" { "cuda" } else { "cpu" })?,
            "Denoising strength" => {
                found.from_picture = true;
                found.settings.set("strength", value)?;
            }
            "Size" => {
                let (width, height) = value.split_once('x').ok_or("the size is none")?;
                found.settings.set("width", width)?;
                found.settings.set("height", height)?;
            }
            "Lora" => found.settings.set("lora", value)?,
            "Lora mode" => found.settings.set("lora-apply-mode", value)?,
            "Lora hash" => found.lora_fingerprint = Some(value.into()),
            "Model" => found.model = Some(value.into()),
            "Model hash" => found.fingerprint = Some(value.into()),
            _ => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_picture_says_is_read_back() {
        let text = "a cat\nSteps: odd\non two lines\nNegative prompt: a dog\nSteps: 7, Sampler: euler, Schedule type: karras, CFG scale: 5.5, \
                    Seed: 12, Size: 64x128, Model: m, Model hash: 0123, Clip skip: 2, RNG: CPU, Version: Impasto 0.1.0";
        let found = parse(text).expect("it is ours");
        let s = &found.settings;
        assert_eq!(
            (s.prompt.as_deref(), s.negative_prompt.as_deref()),
            (Some("a cat\nSteps: odd\non two lines"), Some("a dog"))
        );
        assert_eq!(
            (s.steps, s.seed, s.width, s.height, s.cfg_scale),
            (Some(7), Some(12), Some(64), Some(128), Some(5.5))
        );
        assert_eq!((found.model.as_deref(), found.fingerprint.as_deref()), (Some("m"), Some("0123")));
        assert!(parse("a cat").is_err() && parse("a cat\nSteps: many, Seed: 1").is_err());
    }
}
