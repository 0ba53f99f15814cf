//! OpenAI's API of images, as its clients call it: `/v1/images/generations`, `/v1/images/edits`, `/v1/models`.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, PoisonError};

use axum::Json;
use axum::extract::{FromRequest as _, Multipart, Request, State};
use axum::http::{StatusCode, header};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use impasto_generate::picture::{Format, Picture};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::ClientName;
use crate::app::{App, blocking};
use crate::body::{BodyShare, JsonBody, with_received_body};
use crate::error::RequestError;
use crate::record::{JobRecord, now};
use crate::request::{JobRequest, base64_bytes, decoded_bytes};
use crate::wait::{AwaitedJob, files};

/// A problem as OpenAI's clients read it.
pub fn answer(problem: &RequestError) -> Response {
    let kind = if problem.status.is_server_error() { "server_error" } else { "invalid_request_error" };
    let RequestError { code, message, field, .. } = problem;
    problem.answer(json!({"error": {"message": message, "type": kind, "param": field, "code": code}}))
}

/// What is asked for. What else clients send (quality, style, user) is theirs to send, and changes nothing here.
#[derive(Debug, Default, Deserialize)]
pub struct ImageRequest {
    prompt: String,
    model: Option<String>,
    n: Option<u32>,
    size: Option<String>,
    response_format: Option<String>,
    output_format: Option<String>,
    stream: Option<bool>,
    partial_images: Option<u32>,
    // Beyond OpenAI's own fields, as other local servers have them.
    negative_prompt: Option<String>,
    steps: Option<u32>,
    seed: Option<i64>,
    /// References of the edit as JSON: data URLs.
    #[serde(default)]
    images: Vec<ImageReference>,
    mask: Option<ImageReference>,
}

/// A picture that is sent inside JSON.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum ImageReference {
    /// The picture itself.
    Text(String),
    /// The same in an object.
    Object {
        /// A data URL.
        image_url: String,
    },
}

impl ImageReference {
    fn text(&self) -> &str {
        match self {
            ImageReference::Text(text) | ImageReference::Object { image_url: text } => text,
        }
    }
}

/// How an answer is made of pictures.
#[derive(Clone, Copy)]
struct AnswerForm {
    format: Format,
    name: &'static str,
}

impl ImageRequest {
    fn form(&self) -> Result<AnswerForm, RequestError> {
        if self.response_format.as_deref() == Some("url") {
            let message =
                "this server gives pictures themselves, no addresses of them: ask for response_format b64_json";
            return Err(RequestError { field: Some("response_format".into()), ..RequestError::bad(message) });
        }
        let (format, name) = match self.output_format.as_deref() {
            None | Some("png") => (Format::Png, "png"),
            Some("jpeg" | "jpg") => (Format::Jpeg, "jpeg"),
            Some("webp") => (Format::WebP, "webp"),
            Some(other) => {
                let message = format!("output_format '{other}' is none of png, jpeg, webp");
                return Err(RequestError { field: Some("output_format".into()), ..RequestError::bad(message) });
            }
        };
        Ok(AnswerForm { format, name })
    }

    fn job(&self, app: &App) -> Result<JobRequest, RequestError> {
        let mut settings = BTreeMap::from([("prompt".to_owned(), json!(self.prompt))]);
        let mut set = |name: &str, value: Option<Value>| settings.extend(value.map(|value| (name.to_owned(), value)));
        set("batch-count", self.n.map(Value::from));
        set("negative-prompt", self.negative_prompt.clone().map(Value::from));
        set("steps", self.steps.map(Value::from));
        set("seed", self.seed.map(Value::from));
        if let Some(size) = self.size.as_deref().filter(|size| *size != "auto") {
            let sides = size.split_once('x').and_then(|(w, h)| Some((w.parse::<u32>().ok()?, h.parse::<u32>().ok()?)));
            let wrong = || RequestError {
                field: Some("size".into()),
                ..RequestError::bad(format!("size '{size}' is no WxH, such as 512x512"))
            };
            let (width, height) = sides.ok_or_else(wrong)?;
            set("width", Some(width.into()));
            set("height", Some(height.into()));
        }
        Ok(JobRequest { model: known_model(app, self.model.as_deref()), ..JobRequest::of(settings) })
    }
}

/// A model that is here. Clients that only know OpenAI's own names ask for those: they get the chosen one.
fn known_model(app: &App, name: Option<&str>) -> Option<String> {
    let foreign = |name: &&str| !["gpt-image", "dall-e", "chatgpt-image"].iter().any(|theirs| name.starts_with(theirs));
    name.filter(|name| !name.is_empty())
        .filter(foreign)
        .or(None)
        .map(str::to_owned)
        .or_else(|| Some(app.chosen_model()))
}

/// The models.
pub async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let names = app.models.names();
    let list = names.iter().map(|name| json!({"id": name, "object": "model", "created": 0, "owned_by": "impasto"}));
    Json(json!({ "object": "list", "data": list.collect::<Vec<_>>() }))
}

/// Makes pictures from text.
pub async fn generations(
    State(app): State<Arc<App>>,
    ClientName(client): ClientName,
    JsonBody(request, share): JsonBody<ImageRequest>,
) -> Response {
    make(app, client, request, share, None, "image_generation").await.unwrap_or_else(|problem| answer(&problem))
}

/// Makes a picture anew, where its mask is transparent.
pub async fn edits(State(app): State<Arc<App>>, ClientName(client): ClientName, request: Request) -> Response {
    let done = async {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let (asked, pictures, share) = match kind.starts_with("multipart/") {
            true => form_of(&app, request).await?,
            false => json_of(&app, request).await?,
        };
        make(app, client, asked, share, Some(pictures), "image_edit").await
    };
    done.await.unwrap_or_else(|problem: RequestError| answer(&problem))
}

/// The picture and the mask of an edit, in base64, the mask white where it is made anew.
struct EditPictures {
    image: String,
    mask: Option<String>,
}

fn png(picture: &image::DynamicImage) -> Result<String, RequestError> {
    let mut bytes = std::io::Cursor::new(vec![]);
    picture.write_to(&mut bytes, image::ImageFormat::Png).map_err(|error| RequestError::broken(error.to_string()))?;
    Ok(BASE64.encode(bytes.into_inner()))
}

/// OpenAI's masks say by transparency what is made anew; ours by white.
fn white_where_transparent(mask: &image::DynamicImage) -> image::DynamicImage {
    let (rgba, mut gray) = (mask.to_rgba8(), image::GrayImage::new(mask.width(), mask.height()));
    for (out, pixel) in gray.pixels_mut().zip(rgba.pixels()) {
        out.0 = [if pixel.0[3] < 128 { 255 } else { 0 }];
    }
    gray.into()
}

fn edit_pictures(app: &App, image: Option<Vec<u8>>, mask: Option<Vec<u8>>) -> Result<EditPictures, RequestError> {
    let image = image
        .ok_or_else(|| RequestError { field: Some("image".into()), ..RequestError::bad("an edit needs an image") })?;
    let _decoding = app.decoding.lock().unwrap_or_else(PoisonError::into_inner);
    let image = decoded_bytes(&image, "image", app.limits.pixels)?;
    let mask = mask.map(|bytes| decoded_bytes(&bytes, "mask", app.limits.pixels)).transpose()?;
    Ok(EditPictures { image: png(&image)?, mask: mask.map(|mask| png(&white_where_transparent(&mask))).transpose()? })
}

async fn form_of(app: &Arc<App>, request: Request) -> Result<(ImageRequest, EditPictures, BodyShare), RequestError> {
    let wrong = |error: &dyn std::fmt::Display| RequestError::bad(format!("the form cannot be read: {error}"));
    let (request, share) = with_received_body(app, request).await?;
    let mut form = Multipart::from_request(request, app).await.map_err(|error| wrong(&error.body_text()))?;
    let (mut fields, mut image, mut mask) = (serde_json::Map::new(), None, None);
    while let Some(field) = form.next_field().await.map_err(|error| wrong(&error.body_text()))? {
        let name = field.name().unwrap_or_default().to_owned();
        let bytes = field.bytes().await.map_err(|error| wrong(&error.body_text()))?.to_vec();
        match name.as_str() {
            // Further pictures are for models that read several, which are refused by name.
            "image" | "image[]" => image = image.or(Some(bytes)),
            "mask" => mask = Some(bytes),
            _ => {
                let text = String::from_utf8(bytes).map_err(|error| wrong(&error))?;
                let value = match name.as_str() {
                    "n" | "partial_images" | "steps" | "seed" | "stream" => {
                        serde_json::from_str(&text.to_lowercase()).ok()
                    }
                    _ => None,
                };
                fields.insert(name, value.unwrap_or(Value::String(text)));
            }
        }
    }
    let asked = serde_json::from_value(Value::Object(fields)).map_err(|error| wrong(&error))?;
    let shared = app.clone();
    Ok((asked, blocking(move || edit_pictures(&shared, image, mask)).await?, share))
}

async fn json_of(app: &Arc<App>, request: Request) -> Result<(ImageRequest, EditPictures, BodyShare), RequestError> {
    let JsonBody(mut asked, share) = JsonBody::<ImageRequest>::receive(app, request).await?;
    let (images, mask) = (std::mem::take(&mut asked.images), asked.mask.take());
    let shared = app.clone();
    let pictures = blocking(move || {
        let image = images.first().map(|image| base64_bytes(image.text(), "image")).transpose()?;
        let mask = mask.map(|mask| base64_bytes(mask.text(), "mask")).transpose()?;
        edit_pictures(&shared, image, mask)
    });
    Ok((asked, pictures.await?, share))
}

async fn make(
    app: Arc<App>,
    client: String,
    request: ImageRequest,
    share: BodyShare,
    pictures: Option<EditPictures>,
    kind: &'static str,
) -> Result<Response, RequestError> {
    let form = request.form()?;
    let mut asked = request.job(&app)?;
    if let Some(pictures) = pictures {
        asked.init_image = Some(pictures.image);
        asked.mask = pictures.mask;
    }
    let mut job = AwaitedJob::submit(&app, asked, client, share).await?;
    if request.stream == Some(true) {
        return Ok(stream(app, job, form, request.partial_images.unwrap_or(0).min(3), kind));
    }
    let done = job.done().await?;
    let images = encoded(&app, &done, form).await?;
    let data: Vec<Value> = images.into_iter().map(|image| json!({ "b64_json": image })).collect();
    Ok(Json(json!({
        "created": now() as u64, "data": data, "output_format": form.name, "size": size_of(&done), "quality": "auto", "background": "opaque",
        "usage": usage(),
    }))
    .into_response())
}

fn size_of(job: &JobRecord) -> String {
    job.pictures.first().map(|picture| format!("{}x{}", picture.width, picture.height)).unwrap_or_default()
}

/// Nothing is counted here, and clients expect numbers.
fn usage() -> Value {
    json!({
        "total_tokens": 0, "input_tokens": 0, "output_tokens": 0,
        "input_tokens_details": {"text_tokens": 0, "image_tokens": 0},
    })
}

/// The pictures of a job in base64.
async fn encoded(app: &Arc<App>, job: &JobRecord, form: AnswerForm) -> Result<Vec<String>, RequestError> {
    if form.format == Format::Png {
        return Ok(files(app, job).await?.iter().map(|file| BASE64.encode(file)).collect());
    }
    let (app, pictures) = (app.clone(), job.pictures.clone());
    blocking(move || {
        let one = |picture: &crate::record::PictureRecord| {
            let unread = |error: impasto_generate::picture::PictureError| RequestError::broken(error.to_string());
            let pixels =
                Picture::read(&app.pictures().join(&picture.file), picture.width, picture.height).map_err(unread)?;
            Ok(BASE64.encode(pixels.encoded(form.format, &picture.parameters).map_err(unread)?))
        };
        pictures.iter().map(one).collect()
    })
    .await
}

/// What a stream is at.
struct Streamed {
    app: Arc<App>,
    job: AwaitedJob,
    form: AnswerForm,
    partial: u32,
    shown: u32,
    kind: &'static str,
    ready: std::collections::VecDeque<sse::Event>,
    ended: bool,
}

fn event(kind: &str, name: &str, mut data: Value) -> sse::Event {
    let name = format!("{kind}.{name}");
    data["type"] = json!(name);
    sse::Event::default().event(&name).data(data.to_string())
}

/// Previews and pictures as they come.
fn stream(app: Arc<App>, job: AwaitedJob, form: AnswerForm, partial: u32, kind: &'static str) -> Response {
    let state = Streamed { app, job, form, partial, shown: 0, kind, ready: Default::default(), ended: false };
    let events = futures_util::stream::unfold(state, |mut state| async move {
        while state.ready.is_empty() && !state.ended {
            state.advance().await;
        }
        state.ready.pop_front().map(|event| (Ok::<_, Infallible>(event), state))
    });
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

impl Streamed {
    async fn advance(&mut self) {
        let Some(told) = self.job.next().await else {
            self.ended = true;
            match self.job.done().await {
                Ok(done) => self.completed(&done).await,
                Err(problem) => self.failed(&problem),
            }
            return;
        };
        if told.name != "preview" || self.shown >= self.partial {
            return;
        }
        // Previews are spread over the run.
        let Some((_, progress)) = self.app.hub.running().filter(|(id, _)| *id == self.job.id) else { return };
        let due = (f64::from(self.shown) + 1.0) / (f64::from(self.partial) + 1.0);
        let Some(png) = self.app.hub.preview_of(&self.job.id).filter(|_| progress.share() >= due) else { return };
        let data = json!({
            "b64_json": BASE64.encode(&*png), "partial_image_index": self.shown, "created_at": now() as u64, "output_format": "png",
            "size": "auto", "quality": "auto", "background": "opaque",
        });
        self.ready.push_back(event(self.kind, "partial_image", data));
        self.shown += 1;
    }

    async fn completed(&mut self, done: &JobRecord) {
        match encoded(&self.app, done, self.form).await {
            Ok(images) => self.ready.extend(images.into_iter().map(|image| {
                let data = json!({
                    "b64_json": image, "created_at": now() as u64, "output_format": self.form.name, "size": size_of(done), "quality": "auto",
                    "background": "opaque", "usage": usage(),
                });
                event(self.kind, "completed", data)
            })),
            Err(problem) => self.failed(&problem),
        }
    }

    fn failed(&mut self, problem: &RequestError) {
        let error = json!({"message": problem.message, "type": "server_error", "code": problem.code, "param": null});
        let data = json!({"type": "error", "error": error});
        self.ready.push_back(sse::Event::default().event("error").data(data.to_string()));
        debug_assert_ne!(problem.status, StatusCode::OK);
    }
}
