//! A request for pictures, checked as far as it can be before it is queued.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::Path;
use std::sync::PoisonError;

use axum::http::StatusCode;
use base64::Engine as _;
use image::{DynamicImage, ImageReader};
use impasto_generate::Job;
use impasto_generate::place::RunPlan;
use impasto_generate::settings::{Setting, SettingKind, Settings, TABLE};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::app::App;
use crate::error::RequestError;
use crate::queue::{NewJob, new_id};
use crate::record::JobRecord;

/// Settings that a request may have: what changes the picture, nothing that names a file or the machine.
const ALLOWED: [&str; 19] = [
    "prompt",
    "negative-prompt",
    "width",
    "height",
    "seed",
    "batch-count",
    "steps",
    "cfg-scale",
    "guidance",
    "flow-shift",
    "sampling-method",
    "scheduler",
    "eta",
    "rng",
    "clip-skip",
    "strength",
    "vae-split",
    "preview-interval",
    "lora-apply-mode",
];

/// Bytes of a setting's text. Every list of jobs and every event of a picture has the prompt in it.
const LONGEST_TEXT: usize = 32 << 10;

/// What is asked for.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// The model, by its name in `models`; the chosen one where it is left out.
    pub model: Option<String>,
    /// Settings by name, as `settings` lists them: texts, numbers or true and false.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, Value>)]
    pub settings: BTreeMap<String, Value>,
    /// The picture to begin with: PNG, JPEG or WebP in base64, or a data URL.
    pub init_image: Option<String>,
    /// Where that picture is made anew: white.
    pub mask: Option<String>,
}

/// The settings that a request may have.
pub fn allowed() -> impl Iterator<Item = &'static Setting> {
    TABLE.iter().filter(|setting| ALLOWED.contains(&setting.name))
}

/// The allowed settings as the page and other programs read them.
pub fn allowed_settings() -> Value {
    let kind = |setting: &Setting| match setting.kind {
        SettingKind::Flag => "flag",
        SettingKind::Whole => "integer",
        SettingKind::Number => "number",
        SettingKind::Choice(_) => "choice",
        SettingKind::Text | SettingKind::File | SettingKind::List => "text",
    };
    let choices = |setting: &Setting| match setting.kind {
        SettingKind::Choice(choices) => Some(choices),
        _ => None,
    };
    let one = |setting: &'static Setting| {
        json!({
            "name": setting.name, "heading": setting.group.heading(), "help": setting.help.trim(), "kind": kind(setting),
            "choices": choices(setting), "range": setting.range.map(|(least, most)| [least, most]),
        })
    };
    json!({ "settings": allowed().map(one).collect::<Vec<_>>() })
}

/// A request that was checked: its settings by name, and its pictures.
pub struct CheckedRequest {
    /// The model's name.
    pub model: String,
    /// The settings, by name.
    pub texts: BTreeMap<String, String>,
    init: Option<DynamicImage>,
    mask: Option<DynamicImage>,
}

impl JobRequest {
    /// A request with these settings and nothing else.
    pub fn of(settings: BTreeMap<String, Value>) -> JobRequest {
        JobRequest { settings, ..JobRequest::default() }
    }

    /// Checks names, values, limits and pictures.
    pub fn checked(&self, app: &App) -> Result<CheckedRequest, RequestError> {
        let mut texts = BTreeMap::new();
        for (name, value) in &self.settings {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                Value::Bool(flag) => flag.to_string(),
                Value::Null => continue,
                _ => return Err(field(name, "a setting is a text, a number, true or false")),
            };
            if text.len() > LONGEST_TEXT {
                return Err(field(name, &format!("a text has {LONGEST_TEXT} bytes at most")));
            }
            let known = Setting::named(name).filter(|setting| ALLOWED.contains(&setting.name));
            let setting =
                known.ok_or_else(|| field(name, "there is no such setting here; /api/v1/settings lists them"))?;
            texts.insert(setting.name.to_owned(), text);
        }
        if !texts.contains_key("prompt") {
            return Err(field("prompt", "say what to show"));
        }
        let mut settings = Settings::default();
        texts.iter().try_for_each(|(name, text)| settings.set(name, text))?;
        let limits = &app.limits;
        let most = |name: &str, asked: Option<u32>, most: u32| match asked {
            Some(n) if n > most => Err(field(name, &format!("this server makes at most {most}"))),
            _ => Ok(()),
        };
        most("steps", settings.steps, limits.steps)?;
        most("batch-count", settings.batch_count, limits.batch)?;
        let _decoding = app.decoding.lock().unwrap_or_else(PoisonError::into_inner);
        let init = self.init_image.as_deref().map(|text| decoded(text, "init_image", limits.pixels)).transpose()?;
        let mask = self.mask.as_deref().map(|text| decoded(text, "mask", limits.pixels)).transpose()?;
        if mask.is_some() && init.is_none() {
            return Err(field("mask", "a mask lies on a picture: send init_image too"));
        }
        // A random seed is drawn now, so that the job gives the same picture whenever it is made or resumed.
        if settings.seed.is_none_or(|seed| seed < 0) {
            texts.insert("seed".into(), (random_bits()? >> 32).to_string());
        }
        let model = self.model.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| app.chosen_model());
        Ok(CheckedRequest { model, texts, init, mask })
    }
}

impl CheckedRequest {
    /// Its settings with files, for a job whose pictures are kept in these files.
    fn settings(&self, app: &App, init: &Path, mask: &Path) -> Result<Settings, RequestError> {
        let mut settings = app.settings(&self.model, &self.texts)?;
        if self.init.is_some() {
            settings.set("init-img", &init.to_string_lossy())?;
        }
        if self.mask.is_some() {
            settings.set("mask", &mask.to_string_lossy())?;
        }
        Ok(settings)
    }

    /// What the engine decides, or refuses. Its pictures are written below the data folder for the time of the call, or longer if `keep`.
    fn with_job<T>(
        &self,
        app: &App,
        id: &str,
        work: impl FnOnce(&Job) -> Result<T, RequestError>,
        keep: bool,
    ) -> Result<T, RequestError> {
        let paths = ["init", "mask"].map(|what| app.upload(id, what));
        let done = self.write(&paths).and_then(|()| {
            let settings = self.settings(app, &paths[0], &paths[1])?;
            let job = Job::new(&settings, &app.open_model(&settings)?)?;
            let pixels = (job.width as u64).saturating_mul(job.height as u64);
            if pixels > app.limits.pixels {
                let problem = format!(
                    "{}x{} has more pixels than this server makes, {}",
                    job.width, job.height, app.limits.pixels
                );
                return Err(field("width", &problem));
            }
            work(&job)
        });
        if done.is_err() || !keep {
            paths.iter().for_each(|path| drop(std::fs::remove_file(path)));
        }
        done.map_err(|problem| RequestError { message: app.models.without_paths(&problem.message), ..problem })
    }

    fn write(&self, paths: &[std::path::PathBuf; 2]) -> Result<(), RequestError> {
        let unwritten = |error: image::ImageError| RequestError::broken(format!("cannot keep the picture: {error}"));
        for (picture, path) in [&self.init, &self.mask].into_iter().zip(paths) {
            if let Some(picture) = picture {
                picture.save_with_format(path, image::ImageFormat::Png).map_err(unwritten)?;
            }
        }
        Ok(())
    }

    /// What would happen, without doing it.
    pub fn planned(&self, app: &App) -> Result<PlannedRun, RequestError> {
        self.with_job(app, &format!("plan-{}", new_id()), |job| Ok(PlannedRun(app.engine.plan(job)?)), false)
    }

    /// Queues it, unless it cannot be or too many wait.
    pub fn submit(&self, app: &App, client: &str) -> Result<JobRecord, RequestError> {
        if app.is_ending() {
            return Err(RequestError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "ending",
                "the server is being ended; try again later",
            ));
        }
        let id = new_id();
        let added = self.with_job(
            app,
            &id,
            |_| {
                let new = NewJob {
                    id: id.clone(),
                    client: client.into(),
                    model: self.model.clone(),
                    settings: self.texts.clone(),
                    has_init: self.init.is_some(),
                    has_mask: self.mask.is_some(),
                };
                Ok(app.queue.add(&new, app.limits.queue)?)
            },
            true,
        )?;
        app.hub.tell(&added.id, "queued", json!({}));
        app.wake();
        Ok(app.live(added))
    }
}

/// What would happen.
pub struct PlannedRun(RunPlan);

impl PlannedRun {
    /// As the page and other programs read it.
    pub fn answer(&self) -> Value {
        let modules = self.0.modules.iter().map(|module| {
            json!({
                "module": module.module, "device": module.computes_on, "params": module.weights_on, "weights": module.weight_bytes, "arena": module.arena_bytes,
                "streamed": module.streamed_bytes, "host": module.host_bytes, "split": module.split_mode,
                "seconds": module.seconds, "problem": module.problem,
            })
        });
        let peaks = self.0.peaks.iter();
        let peaks = peaks.map(|peak| json!({"device": peak.device, "bytes": peak.bytes, "limit": peak.limit}));
        json!({
            "fits": self.0.fits(), "seconds": self.0.seconds(), "modules": modules.collect::<Vec<_>>(),
            "peaks": peaks.collect::<Vec<_>>(), "notes": self.0.notes, "reasons": self.0.reasons,
        })
    }
}

fn field(name: &str, problem: &str) -> RequestError {
    let problem = RequestError::new(StatusCode::UNPROCESSABLE_ENTITY, "bad_setting", format!("{name}: {problem}"));
    RequestError { field: Some(name.into()), ..problem }
}

/// Bytes out of base64, with or without the head of a data URL.
pub fn base64_bytes(text: &str, name: &str) -> Result<Vec<u8>, RequestError> {
    let text = text.trim();
    let base64 = match text.strip_prefix("data:") {
        Some(url) => url
            .split_once("base64,")
            .map(|(_, data)| data)
            .ok_or_else(|| field(name, "a data URL in base64 is needed"))?,
        None => text,
    };
    if base64.starts_with("http:") || base64.starts_with("https:") {
        return Err(field(name, "this server fetches nothing: send the picture itself, in base64"));
    }
    let clean: String = base64.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    let bytes = base64::engine::general_purpose::STANDARD.decode(clean);
    bytes.map_err(|error| field(name, &format!("no base64: {error}")))
}

/// A picture out of base64.
pub fn decoded(text: &str, name: &str, pixels: u64) -> Result<DynamicImage, RequestError> {
    decoded_bytes(&base64_bytes(text, name)?, name, pixels)
}

fn unreadable(name: &str, error: &dyn std::fmt::Display) -> RequestError {
    field(name, &format!("no PNG, JPEG or WebP that can be read: {error}"))
}

/// Refuses a picture of more pixels, by its head alone.
pub fn checked_size(bytes: &[u8], name: &str, pixels: u64) -> Result<(), RequestError> {
    let reader =
        ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|error| unreadable(name, &error))?;
    let (width, height) = reader.into_dimensions().map_err(|error| unreadable(name, &error))?;
    if u64::from(width) * u64::from(height) > pixels {
        return Err(field(name, &format!("{width}x{height} has more pixels than this server takes, {pixels}")));
    }
    Ok(())
}

/// A picture out of the bytes of a file. Its size is looked at before it is decoded.
pub fn decoded_bytes(bytes: &[u8], name: &str, pixels: u64) -> Result<DynamicImage, RequestError> {
    checked_size(bytes, name, pixels)?;
    let reader =
        ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|error| unreadable(name, &error))?;
    reader.decode().map_err(|error| unreadable(name, &error))
}

/// Bits that nobody knows beforehand.
pub fn random_bits() -> Result<u64, RequestError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| RequestError::broken(format!("no random numbers: {error}")))?;
    Ok(u64::from_le_bytes(bytes))
}
