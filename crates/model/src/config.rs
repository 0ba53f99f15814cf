//! What a diffusers folder says in JSON beside the weights: the few facts that shapes cannot tell, and those that must hold.

use std::io::Read;
use std::path::{Path, PathBuf};

use impasto_graph::Unary;
use serde_json::{Map, Value};

use crate::{ClipConfig, Heads, ModelError, UnetConfig};

/// No real file comes near this.
const MAX_BYTES: u64 = 1 << 20;

/// One JSON file with an object in it.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) path: PathBuf,
    fields: Map<String, Value>,
}

impl Config {
    /// The file, or nothing where there is none.
    pub(crate) fn read(path: &Path) -> Result<Option<Config>, ModelError> {
        let wrong = |problem: String| ModelError::Json { path: path.into(), problem };
        let file = match std::fs::File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(wrong(format!("cannot be opened: {e}"))),
        };
        let mut text = vec![];
        file.take(MAX_BYTES + 1).read_to_end(&mut text).map_err(|e| wrong(format!("cannot be read: {e}")))?;
        if text.len() as u64 > MAX_BYTES {
            return Err(wrong(format!("has more than {MAX_BYTES} bytes, too many for a configuration")));
        }
        match serde_json::from_slice(&text) {
            Ok(Value::Object(fields)) => Ok(Some(Config { path: path.into(), fields })),
            Ok(_) => Err(wrong("is no JSON object".into())),
            Err(e) => Err(wrong(format!("is no JSON: {e}"))),
        }
    }

    fn wrong(&self, field: &str, problem: String) -> ModelError {
        ModelError::Setting { path: self.path.clone(), field: field.into(), problem }
    }

    /// A field that is there and not null.
    fn get(&self, field: &str) -> Option<&Value> {
        self.fields.get(field).filter(|v| !v.is_null())
    }

    /// A field as `read` understands it.
    fn typed<T>(&self, field: &str, what: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>, ModelError> {
        match self.get(field) {
            None => Ok(None),
            Some(value) => {
                let wrong = || self.wrong(field, format!("is {}, {what} is needed", short(value)));
                read(value).map(Some).ok_or_else(wrong)
            }
        }
    }

    pub(crate) fn text(&self, field: &str) -> Result<Option<&str>, ModelError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(field, format!("is {}, a text is needed", short(other)))),
        }
    }

    pub(crate) fn flag(&self, field: &str) -> Result<Option<bool>, ModelError> {
        self.typed(field, "true or false", Value::as_bool)
    }

    /// A number that can be computed with.
    pub(crate) fn number(&self, field: &str) -> Result<Option<f32>, ModelError> {
        let read = |v: &Value| v.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
        self.typed(field, "a number that fits 32 bits", read)
    }

    /// A count: from one to a few thousand.
    pub(crate) fn count(&self, field: &str) -> Result<Option<usize>, ModelError> {
        self.typed(field, COUNT, count)
    }

    /// A field that may be one count or a list of them.
    fn counts(&self, field: &str) -> Result<Option<Vec<usize>>, ModelError> {
        self.typed(field, "a count or a list of counts", |v| match v {
            Value::Array(list) => list.iter().map(count).collect(),
            one => count(one).map(|n| vec![n]),
        })
    }

    /// Refuse values that our graphs do not compute. What is absent or null is the default, which they do.
    fn only(&self, known: &[(&str, Value)]) -> Result<(), ModelError> {
        for (field, value) in known {
            let same = |given: &Value| match (given.as_f64(), value.as_f64()) {
                (Some(a), Some(b)) => (a - b).abs() <= 1e-6 * b.abs(),
                _ => given == value,
            };
            if let Some(given) = self.get(field).filter(|given| !same(given)) {
                return Err(self.wrong(field, format!("is {}; only {value} is supported", short(given))));
            }
        }
        Ok(())
    }

    /// Refuse what is not null.
    fn none(&self, fields: &[&str]) -> Result<(), ModelError> {
        for field in fields {
            if let Some(value) = self.get(field) {
                return Err(self.wrong(field, format!("is {}; it is not supported", short(value))));
            }
        }
        Ok(())
    }

    /// The size of latents that a UNet was trained with, `[height, width]`.
    pub(crate) fn sample_size(&self) -> Result<Option<[usize; 2]>, ModelError> {
        match self.counts("sample_size")?.as_deref() {
            None => Ok(None),
            Some([side]) => Ok(Some([*side; 2])),
            Some([height, width]) => Ok(Some([*height, *width])),
            Some(_) => Err(self.wrong("sample_size", "has more than two numbers".into())),
        }
    }

    /// Put what `unet/config.json` says into a UNet's configuration.
    pub(crate) fn apply_unet(&self, unet: &mut UnetConfig) -> Result<(), ModelError> {
        self.only(&[
            ("norm_num_groups", 32.into()),
            ("norm_eps", 1e-5.into()),
            ("act_fn", "silu".into()),
            ("flip_sin_to_cos", true.into()),
            ("freq_shift", 0.into()),
            ("center_input_sample", false.into()),
            ("dual_cross_attention", false.into()),
            ("only_cross_attention", false.into()),
            ("downsample_padding", 1.into()),
            ("mid_block_scale_factor", 1.into()),
            ("mid_block_type", "UNetMidBlock2DCrossAttn".into()),
            ("resnet_time_scale_shift", "default".into()),
            ("time_embedding_type", "positional".into()),
            ("addition_embed_type", "text_time".into()),
            ("attention_type", "default".into()),
        ])?;
        self.none(&["class_embed_type", "encoder_hid_dim", "time_cond_proj_dim", "cross_attention_norm"])?;
        // `attention_head_dim` is the number of heads, in spite of its name.
        let field =
            if self.get("num_attention_heads").is_some() { "num_attention_heads" } else { "attention_head_dim" };
        let Some(counts) = self.counts(field)? else { return Ok(()) };
        let levels = unet.channels.len();
        let counts = match counts[..] {
            [one] => vec![one; levels],
            _ if counts.len() == levels => counts,
            _ => return Err(self.wrong(field, format!("has {} numbers for {levels} levels", counts.len()))),
        };
        for (level, (&heads, &channels)) in counts.iter().zip(&unet.channels).enumerate() {
            let attends = unet.depth[level] > 0 || level + 1 == levels;
            if attends && !channels.is_multiple_of(heads) {
                let problem = format!("gives {heads} heads to {channels} channels, which cannot be divided so");
                return Err(self.wrong(field, problem));
            }
        }
        let width = |level: usize| unet.channels[level] / counts[level];
        unet.heads = if counts.iter().all(|&n| n == counts[0]) {
            Heads::Count(counts[0])
        } else if (0..levels).all(|level| width(level) == width(0) && width(0) > 0) {
            Heads::Width(width(0))
        } else {
            Heads::Levels(counts)
        };
        Ok(())
    }

    /// Put what `text_encoder/config.json` says into a text encoder's configuration.
    pub(crate) fn apply_text(&self, text: &mut ClipConfig) -> Result<(), ModelError> {
        self.only(&[("layer_norm_eps", 1e-5.into())])?;
        text.activation = match self.text("hidden_act")? {
            None | Some("quick_gelu") => Unary::QuickGelu,
            Some("gelu") => Unary::Gelu,
            Some(other) => {
                let problem = format!("is '{other}'; quick_gelu and gelu are supported");
                return Err(self.wrong("hidden_act", problem));
            }
        };
        if let Some(heads) = self.count("num_attention_heads")? {
            text.heads = heads;
            if !text.width.is_multiple_of(heads) {
                let problem = format!("is {heads}, by which the width {} cannot be divided", text.width);
                return Err(self.wrong("num_attention_heads", problem));
            }
        }
        Ok(())
    }

    /// The scale of latents that `vae/config.json` gives: factor and shift.
    pub(crate) fn vae_scale(&self) -> Result<(Option<f32>, Option<f32>), ModelError> {
        self.only(&[
            ("norm_num_groups", 32.into()),
            ("act_fn", "silu".into()),
            ("mid_block_add_attention", true.into()),
        ])?;
        self.none(&["latents_mean", "latents_std"])?;
        let factor = self.number("scaling_factor")?;
        if let Some(factor) = factor.filter(|f| *f <= 0.0) {
            return Err(self.wrong("scaling_factor", format!("is {factor}, which latents cannot be divided by")));
        }
        Ok((factor, self.number("shift_factor")?))
    }

    /// What `scheduler/scheduler_config.json` says must be the schedule that all of these models were trained with.
    pub(crate) fn check_schedule(&self) -> Result<(), ModelError> {
        let class = self.text("_class_name")?.unwrap_or_default();
        if class.starts_with("EDM") || class.starts_with("FlowMatch") {
            return Err(self.wrong("_class_name", format!("is {class}, a schedule that is not supported")));
        }
        self.only(&[
            ("num_train_timesteps", 1000.into()),
            ("beta_start", 0.00085.into()),
            ("beta_end", 0.012.into()),
            ("beta_schedule", "scaled_linear".into()),
        ])?;
        self.none(&["trained_betas"])
    }
}

const COUNT: &str = "a whole number from 1 to 4096";

fn count(value: &Value) -> Option<usize> {
    value.as_u64().filter(|n| (1..=4096).contains(n)).map(|n| n as usize)
}

/// A value as an error shows it.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{} ...", &text[..at]),
        None => text,
    }
}
