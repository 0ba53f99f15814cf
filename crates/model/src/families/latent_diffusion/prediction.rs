//! What a diffusion model predicts, which neither names nor shapes tell.

use super::{NoiseSettings, Version};
use crate::config::Config;
use crate::discovery::NetworkInFile;
use crate::networks::UnetConfig;
use crate::{ModelError, Prediction};

/// What the files say of the noise that the model was trained with, and of the schedule that it wants.
pub(super) fn noise_settings(
    version: &Version,
    pick: &NetworkInFile,
    config: &UnetConfig,
    scheduler: Option<&Config>,
) -> Result<NoiseSettings, ModelError> {
    let (prediction, zero_snr) = prediction(version, pick, config, scheduler)?;
    let Some(json) = scheduler else {
        return Ok(NoiseSettings { prediction, zero_snr, schedule: None, steps_offset: 1 });
    };
    // diffusers' pipelines of Stable Diffusion 1 and 2 put 1 in the place of any other offset.
    let said = json.typed("steps_offset", "a timestep from 0 to 999", |v| v.as_u64().filter(|n| *n < 1000))?;
    let steps_offset = if config.added.is_some() { said.unwrap_or(0) as usize } else { 1 };
    let schedule = match json.text("timestep_spacing")? {
        // The scheduler of LCM has timesteps of its own.
        _ if json.text("_class_name")? == Some("LCMScheduler") => None,
        None => None,
        Some("linspace") => Some("discrete"),
        Some("leading") => Some("leading"),
        Some("trailing") => Some("trailing"),
        Some(other) => {
            let problem = format!("is '{other}'; leading, trailing and linspace are supported");
            return Err(json.wrong("timestep_spacing", problem));
        }
    };
    Ok(NoiseSettings { prediction, zero_snr, schedule, steps_offset })
}

/// The prediction, and whether the schedule should end in pure noise. The most direct word wins: the scheduler of a folder, the file's
/// metadata, marks among the tensors, last the weights themselves.
fn prediction(
    version: &Version,
    pick: &NetworkInFile,
    config: &UnetConfig,
    scheduler: Option<&Config>,
) -> Result<(Prediction, bool), ModelError> {
    let NetworkInFile { source, found } = pick;
    let has = |mark: &str| {
        let prefixed = format!("{}{mark}", found.prefix);
        source.shapes.contains_key(mark) || source.shapes.contains_key(&prefixed)
    };
    if has("edm_mean") || has("edm_vpred.sigma_max") {
        let what = "its diffusion model was trained on another measure of noise (EDM), which is not supported";
        return Err(ModelError::Unsupported { path: source.path.clone(), what: what.into() });
    }
    let (mut said, mut zero_snr) = (None, has("ztsnr"));
    if let Some(json) = scheduler {
        check_schedule(json)?;
        zero_snr |= json.flag("rescale_betas_zero_snr")?.unwrap_or(false);
        said = json.text("prediction_type")?.map(|word| (json.path.clone(), "prediction_type", word));
    }
    let key = "modelspec.prediction_type";
    if said.is_none() {
        said = source.says(key).map(|word| (source.path.clone(), key, word));
    }
    let prediction = match said {
        Some((_, _, "epsilon" | "eps")) => Prediction::Epsilon,
        Some((_, _, "v_prediction" | "v")) => Prediction::V,
        Some((path, field, other)) => {
            let problem = format!("is '{other}'; epsilon and v_prediction are supported");
            return Err(ModelError::Setting { path, field: field.into(), problem });
        }
        None if has("v_pred") => Prediction::V,
        None if source.says("modelspec.architecture").is_some_and(|a| a.starts_with("stable-diffusion-v2-768-v")) => {
            Prediction::V
        }
        None if (version.looks_like_v)(pick, config)? => Prediction::V,
        None => Prediction::Epsilon,
    };
    Ok((prediction, zero_snr))
}

/// What `scheduler/scheduler_config.json` says must be the schedule that all of these models were trained with.
fn check_schedule(json: &Config) -> Result<(), ModelError> {
    let class = json.text("_class_name")?.unwrap_or_default();
    if class.starts_with("EDM") || class.starts_with("FlowMatch") {
        return Err(json.wrong("_class_name", format!("is {class}, a schedule that is not supported")));
    }
    json.only(&[
        ("num_train_timesteps", 1000.into()),
        ("beta_start", 0.00085.into()),
        ("beta_end", 0.012.into()),
        ("beta_schedule", "scaled_linear".into()),
    ])?;
    json.none(&["trained_betas"])
}

/// The one trace that training on the velocity left in all known weights of Stable Diffusion 2: the last transformer's first shift
/// varies more. Inpainting models of the family predict noise.
pub(in crate::families) fn looks_like_v(pick: &NetworkInFile, config: &UnetConfig) -> Result<bool, ModelError> {
    let (level, last) = (config.channels.len().saturating_sub(1), config.resnets);
    let name = format!("up_blocks.{level}.attentions.{last}.transformer_blocks.0.norm1.bias");
    let Some(numbers) = pick.numbers(&pick.stored(&name))? else { return Ok(false) };
    let n = numbers.len().max(1) as f64;
    let mean = numbers.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
    let variance = numbers.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
    Ok(config.in_channels == config.out_channels && variance.sqrt() > 0.09)
}

/// Whether the model was made to be sampled in a few steps, as far as its names or its scheduler say so.
pub(super) fn few_steps(names: &[&str], scheduler: Option<&Config>) -> Result<bool, ModelError> {
    let word = |name: &str| {
        let name = name.to_lowercase();
        name.split(|c: char| !c.is_alphanumeric()).any(|w| ["turbo", "lightning", "lcm"].contains(&w))
    };
    let class = match scheduler {
        Some(json) => json.text("_class_name")? == Some("LCMScheduler") || trailing_ancestral(json)?,
        None => false,
    };
    Ok(class || names.iter().any(|name| word(name)))
}

/// The scheduler that the published turbo models come with.
fn trailing_ancestral(json: &Config) -> Result<bool, ModelError> {
    Ok(json.text("_class_name")? == Some("EulerAncestralDiscreteScheduler")
        && json.text("timestep_spacing")? == Some("trailing"))
}
