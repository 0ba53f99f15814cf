//! Our own API, `/api/v1`.

use std::convert::Infallible;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{ConnectInfo, FromRequestParts, Path, Query, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::broadcast::{self, error::RecvError};
use utoipa::{OpenApi, ToSchema};

use crate::app::{App, blocking};
use crate::body::JsonBody;
use crate::error::{ErrorAnswer, RequestError};
use crate::hub::JobEvent;
use crate::models::ModelSummary;
use crate::record::{JobProgress, JobRecord, JobState, PictureRecord};
use crate::request::{JobRequest, allowed_settings};

/// The document of this API.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Impasto",
        description = "Words to pictures. Errors are `{\"error\": {\"code\", \"message\", \"field\"}}`."
    ),
    paths(
        settings,
        models,
        devices,
        plan,
        create_job,
        list_jobs,
        read_job,
        cancel_job,
        retry_job,
        move_job,
        delete_job,
        job_preview,
        job_init,
        job_events,
        all_events,
        list_pictures,
        picture_file,
        delete_picture,
        login,
        logout,
        health,
        metrics
    ),
    components(schemas(JobProgress, JobState, PictureRecord, ModelSummary))
)]
struct ApiDocument;

/// The document, with the program's version.
pub async fn document() -> Json<Value> {
    let mut document = ApiDocument::openapi();
    document.info.version = env!("CARGO_PKG_VERSION").into();
    Json(serde_json::to_value(document).unwrap_or_default())
}

type Shared = State<Arc<App>>;
type Answer<T> = Result<Json<T>, RequestError>;

/// The models that can be asked for.
#[derive(Serialize, ToSchema)]
pub struct ModelList {
    models: Vec<ModelSummary>,
    /// The model of a request that names none.
    default: String,
}

/// Jobs.
#[derive(Serialize, ToSchema)]
pub struct JobList {
    jobs: Vec<JobRecord>,
}

/// Pictures.
#[derive(Serialize, ToSchema)]
pub struct PictureList {
    pictures: Vec<PictureRecord>,
}

/// Whose turn a request's job takes: who says so, else the address and program that it comes from.
pub struct ClientName(pub String);

impl<S: Sync> FromRequestParts<S> for ClientName {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<ClientName, Infallible> {
        let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let address = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip().to_string());
        let program = text("x-impasto-client").or_else(|| text("user-agent")).unwrap_or_default();
        let program: String = program.chars().take(100).collect();
        Ok(ClientName(format!("{} {program}", address.unwrap_or_default())))
    }
}

/// The settings that a request may have: names, kinds, ranges, what they mean.
#[utoipa::path(get, path = "/api/v1/settings", responses((status = 200, body = Value)))]
pub async fn settings() -> Json<Value> {
    Json(allowed_settings())
}

/// The models that can be asked for.
#[utoipa::path(get, path = "/api/v1/models", responses((status = 200, body = ModelList)))]
pub async fn models(State(app): Shared) -> Answer<ModelList> {
    blocking(move || {
        app.models.scan();
        Ok(Json(ModelList { models: app.summaries(), default: app.chosen_model() }))
    })
    .await
}

/// The devices, once drivers have answered.
#[utoipa::path(get, path = "/api/v1/devices", responses((status = 200, body = Value)))]
pub async fn devices(State(app): Shared) -> Answer<Value> {
    blocking(move || {
        let machine = app.engine.machine()?;
        let devices = machine.devices().iter().map(|device| {
            json!({
                "name": device.name, "about": device.label, "driver": device.driver, "memory": device.limits.memory,
                "usable": device.is_healthy(),
            })
        });
        Ok(Json(json!({ "ready": true, "devices": devices.collect::<Vec<_>>(), "notes": app.engine.device_notes()? })))
    })
    .await
}

/// What a job would do: where modules compute, bytes, time. Nothing is loaded.
#[utoipa::path(post, path = "/api/v1/plan", request_body = JobRequest, responses((status = 200, body = Value), (status = 422, body = ErrorAnswer)))]
pub async fn plan(State(app): Shared, JsonBody(mut request, _share): JsonBody<JobRequest>) -> Answer<Value> {
    // What the prompt says hardly matters to memory: it may be left out.
    request.settings.entry("prompt".into()).or_insert_with(|| "".into());
    blocking(move || Ok(Json(request.checked(&app)?.planned(&app)?.answer()))).await
}

/// Queues a job.
#[utoipa::path(post, path = "/api/v1/jobs", request_body = JobRequest, responses((status = 201, body = JobRecord), (status = 422, body = ErrorAnswer), (status = 429, body = ErrorAnswer)))]
pub async fn create_job(
    State(app): Shared,
    ClientName(client): ClientName,
    JsonBody(request, share): JsonBody<JobRequest>,
) -> Result<(StatusCode, Json<JobRecord>), RequestError> {
    let work = move || {
        let _share = share;
        request.checked(&app)?.submit(&app, &client)
    };
    let job = blocking(work).await?;
    Ok((StatusCode::CREATED, Json(job)))
}

/// Which jobs to list.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct JobFilter {
    /// States with commas between them; all of them where it is left out.
    #[serde(default)]
    state: String,
    /// How many at most (50).
    limit: Option<usize>,
}

/// Jobs: queued ones in the order of their turns, then the running one, then others from new to old.
#[utoipa::path(get, path = "/api/v1/jobs", params(JobFilter), responses((status = 200, body = JobList), (status = 400, body = ErrorAnswer)))]
pub async fn list_jobs(State(app): Shared, Query(filter): Query<JobFilter>) -> Answer<JobList> {
    let names = filter.state.split(',').map(str::trim).filter(|name| !name.is_empty());
    let unknown =
        |name: &str| RequestError::bad(format!("there is no state '{name}': queued, running, done, failed, cancelled"));
    let states = names.map(|name| JobState::named(name).ok_or_else(|| unknown(name))).collect::<Result<Vec<_>, _>>()?;
    blocking(move || {
        let jobs = app.queue.jobs(&states, filter.limit.unwrap_or(50).min(1000))?;
        Ok(Json(JobList { jobs: jobs.into_iter().map(|job| app.live(job)).collect() }))
    })
    .await
}

/// A job.
#[utoipa::path(get, path = "/api/v1/jobs/{id}", params(("id" = String, Path, description = "The job.")), responses((status = 200, body = JobRecord), (status = 404, body = ErrorAnswer)))]
pub async fn read_job(State(app): Shared, Path(id): Path<String>) -> Answer<JobRecord> {
    blocking(move || Ok(Json(app.live(app.queue.job(&id)?)))).await
}

/// Cancels a job that is queued or runs.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/cancel", params(("id" = String, Path, description = "The job.")), responses((status = 200, body = JobRecord), (status = 409, body = ErrorAnswer)))]
pub async fn cancel_job(State(app): Shared, Path(id): Path<String>) -> Answer<JobRecord> {
    blocking(move || app.cancel(&id).map(Json)).await
}

/// Queues a job again that failed or was cancelled; what is done of it is not done again.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/retry", params(("id" = String, Path, description = "The job.")), responses((status = 200, body = JobRecord), (status = 409, body = ErrorAnswer)))]
pub async fn retry_job(State(app): Shared, Path(id): Path<String>) -> Answer<JobRecord> {
    blocking(move || {
        let job = app.live(app.queue.retry(&id, app.limits.queue)?);
        app.hub.tell(&id, "queued", json!({}));
        app.wake();
        Ok(Json(job))
    })
    .await
}

/// Where to.
#[derive(Deserialize, ToSchema)]
pub struct MoveRequest {
    /// The place among the queued jobs of its client, 0 is next.
    to: usize,
}

/// Moves a queued job.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/move", params(("id" = String, Path, description = "The job.")), request_body = MoveRequest, responses((status = 200, body = JobRecord), (status = 409, body = ErrorAnswer)))]
pub async fn move_job(
    State(app): Shared,
    Path(id): Path<String>,
    JsonBody(request, _): JsonBody<MoveRequest>,
) -> Answer<JobRecord> {
    blocking(move || {
        let job = app.live(app.queue.move_to(&id, request.to)?);
        app.hub.tell(&id, "changed", json!({}));
        Ok(Json(job))
    })
    .await
}

/// Forgets a job that does not run, with its pictures.
#[utoipa::path(delete, path = "/api/v1/jobs/{id}", params(("id" = String, Path, description = "The job.")), responses((status = 204), (status = 409, body = ErrorAnswer)))]
pub async fn delete_job(State(app): Shared, Path(id): Path<String>) -> Result<StatusCode, RequestError> {
    blocking(move || app.remove(&id).map(|()| StatusCode::NO_CONTENT)).await
}

/// What the picture of a running job looks like so far.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/preview", params(("id" = String, Path, description = "The job.")), responses((status = 200, content_type = "image/png", body = Vec<u8>), (status = 404, body = ErrorAnswer)))]
pub async fn job_preview(State(app): Shared, Path(id): Path<String>) -> Result<Response, RequestError> {
    let png = app.hub.preview_of(&id).ok_or_else(|| RequestError::missing("there is no preview of this job now"))?;
    Ok(([(header::CONTENT_TYPE, "image/png")], png.to_vec()).into_response())
}

/// The picture that a job began with.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/init", params(("id" = String, Path, description = "The job.")), responses((status = 200, content_type = "image/png", body = Vec<u8>), (status = 404, body = ErrorAnswer)))]
pub async fn job_init(State(app): Shared, Path(id): Path<String>) -> Result<Response, RequestError> {
    let file = blocking(move || {
        let job = app.queue.job(&id)?;
        std::fs::read(app.upload(&job.id, "init"))
            .map_err(|_| RequestError::missing("this job did not begin with a picture"))
    });
    Ok(([(header::CONTENT_TYPE, "image/png")], file.await?).into_response())
}

/// A stream of events: of everything, or of one job until its end.
struct EventStream {
    app: Arc<App>,
    events: broadcast::Receiver<JobEvent>,
    only: Option<String>,
    ended: bool,
}

impl EventStream {
    fn answer(self) -> impl IntoResponse {
        let events = stream::unfold(self, |mut events| async move {
            let event = events.next().await?;
            Some((Ok::<_, Infallible>(event), events))
        });
        Sse::new(events).keep_alive(KeepAlive::default())
    }

    async fn next(&mut self) -> Option<sse::Event> {
        while !self.ended {
            match self.events.recv().await {
                Ok(event) if self.only.as_ref().is_none_or(|only| *only == event.job) => {
                    self.ended = self.only.is_some() && event.is_last();
                    return shown(event.name, &event.data);
                }
                Ok(_) => {}
                // Who was too slow is told to look again. The end of its job may be among what was missed.
                Err(RecvError::Lagged(_)) => {
                    self.ended = self.has_ended().await;
                    return shown("changed", &json!({}));
                }
                Err(RecvError::Closed) => self.ended = true,
            }
        }
        None
    }

    async fn has_ended(&self) -> bool {
        let Some(id) = self.only.clone() else { return false };
        let app = self.app.clone();
        blocking(move || Ok(app.queue.job(&id)?)).await.is_ok_and(|job| job.state.has_ended())
    }
}

fn shown(name: &str, data: &Value) -> Option<sse::Event> {
    sse::Event::default().event(name).json_data(data).ok()
}

/// Everything that happens, as server-sent events: queued, loading, compiling, working, step, preview, note, picture, done, failed, cancelled, changed.
#[utoipa::path(get, path = "/api/v1/events", responses((status = 200, content_type = "text/event-stream", body = String)))]
pub async fn all_events(State(app): Shared) -> impl IntoResponse {
    EventStream { events: app.hub.listen(), app, only: None, ended: false }.answer()
}

/// The same of one job, until its end. Of a job that has ended already, its end.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/events", params(("id" = String, Path, description = "The job.")),
    responses((status = 200, content_type = "text/event-stream", body = String), (status = 404, body = ErrorAnswer)))]
pub async fn job_events(State(app): Shared, Path(id): Path<String>) -> Result<Response, RequestError> {
    // Before the job is read, so that its end is not missed.
    let events = app.hub.listen();
    let (shared, name) = (app.clone(), id.clone());
    let job = blocking(move || Ok(shared.queue.job(&name)?)).await?;
    if job.state.has_ended() {
        let data = json!({ "job": id, "message": job.error });
        let last = stream::iter(shown(job.state.name(), &data).map(Ok::<_, Infallible>));
        return Ok(Sse::new(last).into_response());
    }
    Ok(EventStream { app, events, only: Some(id), ended: false }.answer().into_response())
}

/// Which pictures to list.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct PictureFilter {
    /// Words that must stand in how it was made.
    #[serde(default)]
    search: String,
    /// How many at most (60).
    limit: Option<usize>,
    /// Only those before this one.
    before: Option<i64>,
}

/// Pictures from new to old.
#[utoipa::path(get, path = "/api/v1/pictures", params(PictureFilter), responses((status = 200, body = PictureList)))]
pub async fn list_pictures(State(app): Shared, Query(filter): Query<PictureFilter>) -> Answer<PictureList> {
    blocking(move || {
        let limit = filter.limit.unwrap_or(60).min(1000);
        Ok(Json(PictureList { pictures: app.queue.pictures(&filter.search, filter.before, limit)? }))
    })
    .await
}

/// How to show a picture.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct DownloadChoice {
    /// As a file to be kept.
    download: Option<String>,
}

/// A picture's file.
#[utoipa::path(get, path = "/api/v1/pictures/{id}/file", params(("id" = i64, Path, description = "The picture."), DownloadChoice), responses((status = 200, content_type = "image/png", body = Vec<u8>), (status = 404, body = ErrorAnswer)))]
pub async fn picture_file(
    State(app): Shared,
    Path(id): Path<i64>,
    Query(choice): Query<DownloadChoice>,
) -> Result<Response, RequestError> {
    let (name, file, length) = blocking(move || {
        let name = app.queue.picture(id)?.file;
        let gone = |_| RequestError::missing("the picture's file is gone");
        let file = std::fs::File::open(app.pictures().join(&name)).map_err(gone)?;
        let length = file.metadata().map_err(gone)?.len();
        Ok((name, file, length))
    })
    .await?;
    let headers = [
        (header::CONTENT_TYPE, "image/png".to_owned()),
        (header::CONTENT_LENGTH, length.to_string()),
        (header::CACHE_CONTROL, "private, max-age=86400, immutable".into()),
    ];
    let mut response = (headers, in_pieces(file)).into_response();
    if choice.download.is_some()
        && let Ok(value) = format!("attachment; filename=\"{name}\"").parse()
    {
        response.headers_mut().insert(header::CONTENT_DISPOSITION, value);
    }
    Ok(response)
}

/// A file piece by piece: who reads slowly does not keep all of it in memory.
fn in_pieces(file: std::fs::File) -> Body {
    const PIECE: usize = 128 << 10;
    let pieces = stream::unfold(Some(file), |file| async move {
        let mut file = file?;
        let read = tokio::task::spawn_blocking(move || {
            let mut piece = vec![0; PIECE];
            let length = file.read(&mut piece)?;
            piece.truncate(length);
            Ok::<_, io::Error>((piece, file))
        });
        match read.await {
            Ok(Ok((piece, _))) if piece.is_empty() => None,
            Ok(Ok((piece, file))) => Some((Ok(piece), Some(file))),
            Ok(Err(error)) => Some((Err(error), None)),
            Err(error) => Some((Err(io::Error::other(error)), None)),
        }
    });
    Body::from_stream(pieces)
}

/// Deletes a picture.
#[utoipa::path(delete, path = "/api/v1/pictures/{id}", params(("id" = i64, Path, description = "The picture.")), responses((status = 204), (status = 404, body = ErrorAnswer)))]
pub async fn delete_picture(State(app): Shared, Path(id): Path<i64>) -> Result<StatusCode, RequestError> {
    blocking(move || {
        let job = app.queue.picture(id)?.job;
        let file = app.queue.remove_picture(id)?;
        let _ = std::fs::remove_file(app.pictures().join(file));
        app.hub.tell(&job, "changed", json!({}));
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// The key.
#[derive(Deserialize, ToSchema)]
pub struct LoginRequest {
    key: String,
}

/// Gives a browser the cookie that stands for the key.
#[utoipa::path(post, path = "/api/v1/login", request_body = LoginRequest, responses((status = 204), (status = 401, body = ErrorAnswer)))]
pub async fn login(State(app): Shared, JsonBody(request, _): JsonBody<LoginRequest>) -> Result<Response, RequestError> {
    if !app.access.is_key(request.key.trim()) {
        // Who tries keys one by one is not to be fast.
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        return Err(RequestError::new(StatusCode::UNAUTHORIZED, "wrong_key", "this is not the server's key"));
    }
    let cookie = app.access.cookie().map(|cookie| [(header::SET_COOKIE, cookie)]);
    Ok(cookie.map_or_else(|| StatusCode::NO_CONTENT.into_response(), |c| (StatusCode::NO_CONTENT, c).into_response()))
}

/// Takes the cookie back.
#[utoipa::path(post, path = "/api/v1/logout", responses((status = 204)))]
pub async fn logout() -> Response {
    let cookie = format!("{}=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0", crate::guard::COOKIE);
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response()
}

/// Whether the server lives.
#[utoipa::path(get, path = "/health", responses((status = 200, body = Value)))]
pub async fn health() -> Json<Value> {
    Json(json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") }))
}

/// Numbers for Prometheus.
#[utoipa::path(get, path = "/metrics", responses((status = 200, content_type = "text/plain", body = String)))]
pub async fn metrics(State(app): Shared) -> Result<Response, RequestError> {
    let text = blocking(move || {
        let (counts, pictures) = app.queue.counts()?;
        let mut text = String::from("# HELP impasto_jobs Jobs by state.\n# TYPE impasto_jobs gauge\n");
        for state in ["queued", "running", "done", "failed", "cancelled"] {
            text += &format!("impasto_jobs{{state=\"{state}\"}} {}\n", counts.get(state).copied().unwrap_or(0));
        }
        text += &format!("# HELP impasto_pictures Pictures that are kept.\n# TYPE impasto_pictures gauge\nimpasto_pictures {pictures}\n");
        let work = app.engine.work();
        let begun = app.begun.elapsed().as_secs();
        text += &format!("# HELP impasto_loads_total Networks loaded.\n# TYPE impasto_loads_total counter\nimpasto_loads_total {}\n", work.loads);
        text += &format!("# HELP impasto_uptime_seconds Seconds since the start.\n# TYPE impasto_uptime_seconds counter\nimpasto_uptime_seconds {begun}\n");
        Ok(text)
    })
    .await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}
