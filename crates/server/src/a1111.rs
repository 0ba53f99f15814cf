//! AUTOMATIC1111's API, `/sdapi/v1`, as far as its clients call it.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use impasto_generate::sampling::{Method, Schedule};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::ClientName;
use crate::app::{App, blocking};
use crate::body::{BodyShare, JsonBody};
use crate::error::RequestError;
use crate::request::{JobRequest, base64_bytes, checked_size, decoded};
use crate::wait::{AwaitedJob, files};

type Shared = State<Arc<App>>;

/// A problem as webui's clients read it.
pub fn answer(problem: &RequestError) -> Response {
    let RequestError { code, message, field, .. } = problem;
    problem.answer(json!({"error": code, "detail": message, "body": field, "errors": message}))
}

/// What is asked for. Unknown fields are ignored, as webui does.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct WebuiRequest {
    prompt: Option<String>,
    negative_prompt: Option<String>,
    seed: Option<i64>,
    sampler_name: Option<String>,
    sampler_index: Option<String>,
    scheduler: Option<String>,
    steps: Option<u32>,
    cfg_scale: Option<f64>,
    distilled_cfg_scale: Option<f64>,
    width: Option<u32>,
    height: Option<u32>,
    batch_size: Option<u32>,
    n_iter: Option<u32>,
    eta: Option<f64>,
    denoising_strength: Option<f64>,
    override_settings: Option<BTreeMap<String, Value>>,
    init_images: Vec<String>,
    mask: Option<String>,
    inpainting_mask_invert: Option<Value>,
    send_images: Option<bool>,
}

impl WebuiRequest {
    fn job(&self, app: &App) -> Result<JobRequest, RequestError> {
        let mut settings = BTreeMap::new();
        let mut set = |name: &str, value: Option<Value>| settings.extend(value.map(|value| (name.to_owned(), value)));
        set("prompt", Some(self.prompt.clone().unwrap_or_default().into()));
        set("negative-prompt", self.negative_prompt.clone().filter(|text| !text.is_empty()).map(Value::from));
        set("seed", self.seed.map(Value::from));
        set("steps", self.steps.map(Value::from));
        set("cfg-scale", self.cfg_scale.map(Value::from));
        set("guidance", self.distilled_cfg_scale.map(Value::from));
        set("width", self.width.filter(|n| *n > 0).map(Value::from));
        set("height", self.height.filter(|n| *n > 0).map(Value::from));
        let count = self.batch_size.unwrap_or(1).max(1).saturating_mul(self.n_iter.unwrap_or(1).max(1));
        set("batch-count", Some(count.into()));
        set("eta", self.eta.map(Value::from));
        set("sampling-method", self.method()?.map(|method| method.name().into()));
        set("scheduler", self.schedule()?.map(|schedule| schedule.to_string().into()));
        let overridden = |name: &str| self.override_settings.as_ref().and_then(|all| all.get(name));
        let skip = overridden("CLIP_stop_at_last_layers").and_then(Value::as_i64).filter(|layers| *layers > 1);
        set("clip-skip", skip.map(Value::from));
        let init_image = self.init_images.first().cloned();
        if init_image.is_some() {
            set("strength", Some(self.denoising_strength.unwrap_or(0.75).into()));
        }
        let model = overridden("sd_model_checkpoint").and_then(Value::as_str);
        let model = model.map(|title| model_titled(app, title)).transpose()?;
        let mask = self.mask.as_deref().map(|mask| self.mask(mask, app)).transpose()?;
        Ok(JobRequest { model, init_image, mask, ..JobRequest::of(settings) })
    }

    /// The sampler; webui's name may carry the schedule, as `DPM++ 2M Karras`.
    fn method(&self) -> Result<Option<Method>, RequestError> {
        let Some(name) = self.sampler() else { return Ok(None) };
        let plain = name.strip_suffix(" Karras").or_else(|| name.strip_suffix(" Exponential")).unwrap_or(name);
        let known = Method::titled(plain).or_else(|| {
            Method::ALL
                .iter()
                .copied()
                .find(|method| method.title().eq_ignore_ascii_case(plain) || method.name().eq_ignore_ascii_case(plain))
        });
        let unknown = || {
            let names: Vec<&str> = Method::ALL.iter().map(|method| method.title()).collect();
            RequestError::missing(format!("there is no sampler '{name}' here; choose one of {}", names.join(", ")))
        };
        known.map(Some).ok_or_else(unknown)
    }

    fn sampler(&self) -> Option<&str> {
        let given = self.sampler_name.as_deref().filter(|name| !name.is_empty());
        given
            .or(self.sampler_index.as_deref())
            .filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case("automatic"))
    }

    fn schedule(&self) -> Result<Option<Schedule>, RequestError> {
        let from_sampler =
            self.sampler().and_then(|name| ["Karras", "Exponential"].into_iter().find(|end| name.ends_with(end)));
        let Some(name) = self.scheduler.as_deref().filter(|name| !name.is_empty()).or(from_sampler) else {
            return Ok(None);
        };
        match name.to_lowercase().as_str() {
            "automatic" | "normal" | "uniform" => Ok(None),
            other => {
                let ours = other.replace([' ', '-'], "_");
                ours.parse().map(Some).map_err(|_| {
                    let names: Vec<String> = Schedule::ALL.iter().map(ToString::to_string).collect();
                    RequestError::missing(format!(
                        "there is no scheduler '{name}' here; choose one of {}",
                        names.join(", ")
                    ))
                })
            }
        }
    }

    /// The mask, inverted where that is asked for.
    fn mask(&self, mask: &str, app: &App) -> Result<String, RequestError> {
        let inverted = match &self.inpainting_mask_invert {
            Some(Value::Bool(invert)) => *invert,
            Some(Value::Number(number)) => number.as_f64() == Some(1.0),
            _ => false,
        };
        if !inverted {
            return Ok(mask.to_owned());
        }
        let _decoding = app.decoding.lock().unwrap_or_else(PoisonError::into_inner);
        let mut picture = decoded(mask, "mask", app.limits.pixels)?;
        picture.invert();
        let mut bytes = std::io::Cursor::new(vec![]);
        picture
            .write_to(&mut bytes, image::ImageFormat::Png)
            .map_err(|error| RequestError::broken(error.to_string()))?;
        Ok(BASE64.encode(bytes.into_inner()))
    }
}

/// The model of this title, which may carry a hash as webui writes it: `name [0123456789]`.
fn model_titled(app: &App, title: &str) -> Result<String, RequestError> {
    let name = title.rsplit_once(" [").map_or(title, |(name, _)| name).trim();
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let names = app.models.names();
    let known = names.iter().find(|known| *known == name || *known == stem).cloned();
    known.ok_or_else(|| {
        RequestError::missing(format!("there is no model '{title}'; choose one of {}", names.join(", ")))
    })
}

/// Makes pictures from text.
pub async fn txt2img(
    State(app): Shared,
    ClientName(client): ClientName,
    JsonBody(body, share): JsonBody<Value>,
) -> Response {
    make(app, client, body, share, false).await.unwrap_or_else(|problem| answer(&problem))
}

/// Makes pictures from a picture.
pub async fn img2img(
    State(app): Shared,
    ClientName(client): ClientName,
    JsonBody(body, share): JsonBody<Value>,
) -> Response {
    make(app, client, body, share, true).await.unwrap_or_else(|problem| answer(&problem))
}

async fn make(
    app: Arc<App>,
    client: String,
    mut body: Value,
    share: BodyShare,
    from_picture: bool,
) -> Result<Response, RequestError> {
    let unreadable = |error: serde_json::Error| {
        RequestError::new(StatusCode::UNPROCESSABLE_ENTITY, "bad_request", error.to_string())
    };
    let asked = WebuiRequest::deserialize(&body).map_err(unreadable)?;
    // Clients get their request back, less the pictures in it.
    if let Value::Object(fields) = &mut body {
        fields.retain(|name, _| !["init_images", "mask"].contains(&name.as_str()));
    }
    if from_picture && asked.init_images.is_empty() {
        return Err(RequestError::missing("Init image not found: img2img needs init_images"));
    }
    let asked = if from_picture { asked } else { WebuiRequest { init_images: vec![], mask: None, ..asked } };
    let (shared, send) = (app.clone(), asked.send_images != Some(false));
    let request = blocking(move || asked.job(&shared)).await?;
    let mut job = AwaitedJob::submit(&app, request, client, share).await?;
    let done = match job.done().await {
        Ok(done) => done,
        // webui answers an interrupted request with what there is.
        Err(problem) if problem.code == "cancelled" => {
            let (shared, id) = (app.clone(), job.id.clone());
            blocking(move || Ok(shared.queue.job(&id)?)).await?
        }
        Err(problem) => return Err(problem),
    };
    let images: Vec<String> = match send {
        true => files(&app, &done).await?.iter().map(|file| BASE64.encode(file)).collect(),
        false => vec![],
    };
    let setting = |name: &str| done.settings.get(name).cloned().unwrap_or_default();
    let first = done.pictures.first();
    let seeds: Vec<u64> = done.pictures.iter().map(|picture| picture.seed).collect();
    let prompts = vec![setting("prompt"); done.pictures.len()];
    let info = json!({
        "prompt": setting("prompt"), "all_prompts": prompts, "negative_prompt": setting("negative-prompt"), "seed": seeds.first(), "all_seeds": seeds,
        "width": first.map(|picture| picture.width), "height": first.map(|picture| picture.height), "steps": setting("steps").parse::<u32>().ok(),
        "cfg_scale": setting("cfg-scale").parse::<f64>().ok(), "batch_size": done.count(), "sd_model_name": done.model,
        "infotexts": done.pictures.iter().map(|picture| &picture.parameters).collect::<Vec<_>>(), "job_timestamp": done.id,
    });
    Ok(Json(json!({ "images": images, "parameters": body, "info": info.to_string() })).into_response())
}

/// Whether to send the preview.
#[derive(Deserialize)]
pub struct ProgressChoice {
    #[serde(default)]
    skip_current_image: bool,
}

/// What the running job is at; an idle server has progress 0 and no jobs.
pub async fn progress(State(app): Shared, Query(choice): Query<ProgressChoice>) -> Json<Value> {
    let Some((id, progress)) = app.hub.running() else {
        let state = json!({
            "skipped": false, "interrupted": false, "job": "", "job_count": 0, "job_no": 0, "job_timestamp": "0", "sampling_step": 0,
            "sampling_steps": 0,
        });
        return Json(
            json!({"progress": 0.0, "eta_relative": 0.0, "state": state, "current_image": null, "textinfo": null}),
        );
    };
    let image = app.hub.preview_of(&id).filter(|_| !choice.skip_current_image).map(|png| BASE64.encode(&*png));
    let state = json!({
        "skipped": false, "interrupted": false, "job": id, "job_count": progress.pictures, "job_no": progress.picture, "job_timestamp": id,
        "sampling_step": progress.done, "sampling_steps": progress.of,
    });
    // Never quite 0 nor 1 while it runs: clients take both for the end.
    let share = progress.share().clamp(0.01, 0.99);
    let left = progress.seconds_left.unwrap_or(0.0);
    Json(
        json!({"progress": share, "eta_relative": left, "state": state, "current_image": image, "textinfo": progress.what}),
    )
}

/// Stops the running job.
pub async fn interrupt(State(app): Shared) -> Json<Value> {
    if let Some((id, _)) = app.hub.running() {
        app.hub.stop(&id);
    }
    Json(json!({}))
}

/// The options that clients look at.
pub async fn options(State(app): Shared) -> Json<Value> {
    Json(json!({
        "sd_model_checkpoint": app.chosen_model(), "sd_checkpoint_hash": "", "sd_vae": "Automatic", "CLIP_stop_at_last_layers": 1,
        "samples_format": "png", "samples_save": true, "show_progress_every_n_steps": 1, "live_previews_enable": true,
    }))
}

/// Chooses the model. Open WebUI posts all options back: what is not ours is ignored.
pub async fn set_options(State(app): Shared, JsonBody(body, _): JsonBody<BTreeMap<String, Value>>) -> Response {
    if let Some(title) = body.get("sd_model_checkpoint").and_then(Value::as_str).filter(|title| !title.is_empty()) {
        match model_titled(&app, title) {
            Ok(name) => *app.chosen.lock().unwrap_or_else(PoisonError::into_inner) = name,
            Err(problem) => return answer(&problem),
        }
    }
    Json(Value::Null).into_response()
}

/// The models.
pub async fn sd_models(State(app): Shared) -> Json<Value> {
    let names = app.models.names();
    let one = |name: &String| json!({"title": name, "model_name": name, "hash": null, "sha256": null, "filename": name, "config": null});
    Json(names.iter().map(one).collect())
}

/// The sampling methods.
pub async fn samplers() -> Json<Value> {
    let one = |method: &Method| json!({"name": method.title(), "aliases": [method.name()], "options": {}});
    Json(Method::ALL.iter().map(one).collect())
}

/// The schedules.
pub async fn schedulers() -> Json<Value> {
    let one = |schedule: &Schedule| {
        let name = schedule.to_string();
        json!({"name": name, "label": name, "aliases": null, "default_rho": -1.0, "need_inner_model": false})
    };
    Json(Schedule::ALL.iter().map(one).collect())
}

/// There is no upscaling here yet.
pub async fn upscalers() -> Json<Value> {
    Json(json!([{"name": "None", "model_name": null, "model_path": null, "model_url": null, "scale": 1}]))
}

/// A list that is empty here: modes of latent upscaling, autoencoders, styles.
pub async fn nothing() -> Json<Value> {
    Json(json!([]))
}

/// The LoRA files that prompts may name.
pub async fn loras(State(app): Shared) -> Response {
    let folder = app.base.lora_model_dir.clone();
    let listed = blocking(move || {
        let entries = folder.and_then(|folder| std::fs::read_dir(folder).ok());
        let names = entries.into_iter().flatten().flatten().map(|entry| entry.path());
        let is_lora = |path: &std::path::PathBuf| {
            path.extension().is_some_and(|end| ["safetensors", "gguf", "pt", "ckpt"].contains(&&*end.to_string_lossy()))
        };
        let mut names: Vec<String> =
            names.filter(is_lora).filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned())).collect();
        names.sort();
        let one = |name: &String| json!({"name": name, "alias": name, "path": name, "metadata": {}});
        Ok(names.iter().map(one).collect::<Vec<_>>())
    });
    listed.await.map(Json).map_or_else(|problem| answer(&problem), IntoResponse::into_response)
}

/// Looks for models again.
pub async fn refresh(State(app): Shared) -> Json<Value> {
    app.models.scan();
    Json(json!({}))
}

/// Lets go of every idle module.
pub async fn unload(State(app): Shared) -> Json<Value> {
    app.engine.unload();
    Json(json!({}))
}

/// A picture that says how it was made.
#[derive(Deserialize)]
pub struct PictureInfo {
    image: String,
}

/// How a picture was made, by what it says of itself.
pub async fn png_info(State(app): Shared, JsonBody(body, share): JsonBody<PictureInfo>) -> Response {
    let read = blocking(move || {
        let _share = share;
        let bytes = base64_bytes(&body.image, "image")?;
        let wrong = |error: &dyn std::fmt::Display| RequestError::bad(format!("image: it cannot be read: {error}"));
        checked_size(&bytes, "image", app.limits.pixels)?;
        let text = impasto_generate::picture::parameters_of(&bytes).map_err(|error| wrong(&error))?.unwrap_or_default();
        Ok(Json(json!({"info": text, "items": {"parameters": text}, "parameters": {}})))
    });
    read.await.map_or_else(|problem| answer(&problem), IntoResponse::into_response)
}

/// The host's memory, and that of GPUs where it is known.
pub async fn memory(State(app): Shared) -> Response {
    let read = blocking(move || {
        let machine = app.engine.machine()?;
        let of = |gpu: bool| {
            let total: u64 = machine
                .devices()
                .iter()
                .filter(|device| (device.name != "cpu") == gpu)
                .map(|device| device.limits.memory)
                .max()
                .unwrap_or(0);
            json!({"free": total, "used": 0, "total": total})
        };
        Ok(Json(json!({"ram": of(false), "cuda": {"system": of(true)}})))
    });
    read.await.map_or_else(|problem| answer(&problem), IntoResponse::into_response)
}
