//! Our own API, `/api/v1`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::{ConnectInfo, FromRequestParts, Path, Query, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt as _};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_stream::wrappers::BroadcastStream;
use utoipa::OpenApi;

use crate::app::{App, blocking};
use crate::error::RequestError;
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
        logout
    ),
    components(schemas(
        JobRequest,
        JobRecord,
        JobProgress,
        JobState,
        PictureRecord,
        ModelSummary,
        LoginRequest,
        MoveRequest
    ))
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

/// JSON of a body; what is wrong with it is told in our own form.
pub struct JsonBody<T>(pub T);

impl<S: Send + Sync, T: serde::de::DeserializeOwned> axum::extract::FromRequest<S> for JsonBody<T> {
    type Rejection = Response;

    async fn from_request(request: axum::extract::Request, state: &S) -> Result<JsonBody<T>, Response> {
        let path = request.uri().path().to_owned();
        match Json::<T>::from_request(request, state).await {
            Ok(Json(body)) => Ok(JsonBody(body)),
            Err(rejection) => {
                let problem = RequestError::new(rejection.status(), "bad_request", rejection.body_text());
                Err(crate::guard::dialect(&path, &problem))
            }
        }
    }
}

/// The settings that a request may have: names, kinds, ranges, what they mean.
#[utoipa::path(get, path = "/api/v1/settings", responses((status = 200)))]
pub async fn settings() -> Json<Value> {
    Json(allowed_settings())
}

/// The models that can be asked for.
#[utoipa::path(get, path = "/api/v1/models", responses((status = 200, body = [ModelSummary])))]
pub async fn models(State(app): Shared) -> Answer<Value> {
    blocking(move || {
        app.models.scan();
        Ok(Json(json!({ "models": app.summaries(), "default": app.chosen_model() })))
    })
    .await
}

/// The devices, once drivers have answered.
#[utoipa::path(get, path = "/api/v1/devices", responses((status = 200)))]
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
#[utoipa::path(post, path = "/api/v1/plan", request_body = JobRequest, responses((status = 200)))]
pub async fn plan(State(app): Shared, JsonBody(mut request): JsonBody<JobRequest>) -> Answer<Value> {
    // What the prompt says hardly matters to memory: it may be left out.
    request.settings.entry("prompt".into()).or_insert_with(|| "".into());
    blocking(move || Ok(Json(request.checked(&app)?.planned(&app)?.answer()))).await
}

/// Queues a job.
#[utoipa::path(post, path = "/api/v1/jobs", request_body = JobRequest, responses((status = 201, body = JobRecord), (status = 429)))]
pub async fn create_job(
    State(app): Shared,
    ClientName(client): ClientName,
    JsonBody(request): JsonBody<JobRequest>,
) -> Result<(StatusCode, Json<JobRecord>), RequestError> {
    let job = blocking(move || request.checked(&app)?.submit(&app, &client)).await?;
    Ok((StatusCode::CREATED, Json(job)))
}

/// Which jobs to list.
#[derive(Deserialize, utoipa::IntoParams)]
pub struct JobFilter {
    /// States with commas between them; all of them where it is left out.
    #[serde(default)]
    state: String,
    /// How many at most (50).
    limit: Option<usize>,
}

/// Jobs: queued ones in the order of their turns, then the running one, then others from new to old.
#[utoipa::path(get, path = "/api/v1/jobs", params(JobFilter), responses((status = 200, body = [JobRecord])))]
pub async fn list_jobs(State(app): Shared, Query(filter): Query<JobFilter>) -> Answer<Value> {
    let names = filter.state.split(',').map(str::trim).filter(|name| !name.is_empty());
    let unknown =
        |name: &str| RequestError::bad(format!("there is no state '{name}': queued, running, done, failed, cancelled"));
    let states = names.map(|name| JobState::named(name).ok_or_else(|| unknown(name))).collect::<Result<Vec<_>, _>>()?;
    blocking(move || {
        let jobs = app.queue.jobs(&states, filter.limit.unwrap_or(50).min(1000))?;
        let jobs: Vec<JobRecord> = jobs.into_iter().map(|job| app.live(job)).collect();
        Ok(Json(json!({ "jobs": jobs })))
    })
    .await
}

/// A job.
#[utoipa::path(get, path = "/api/v1/jobs/{id}", responses((status = 200, body = JobRecord), (status = 404)))]
pub async fn read_job(State(app): Shared, Path(id): Path<String>) -> Answer<JobRecord> {
    blocking(move || Ok(Json(app.live(app.queue.job(&id)?)))).await
}

/// Cancels a job that is queued or runs.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/cancel", responses((status = 200, body = JobRecord), (status = 409)))]
pub async fn cancel_job(State(app): Shared, Path(id): Path<String>) -> Answer<JobRecord> {
    blocking(move || app.cancel(&id).map(Json)).await
}

/// Queues a job again that failed or was cancelled; what is done of it is not done again.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/retry", responses((status = 200, body = JobRecord), (status = 409)))]
pub async fn retry_job(State(app): Shared, Path(id): Path<String>) -> Answer<JobRecord> {
    blocking(move || {
        let job = app.live(app.queue.retry(&id)?);
        app.hub.tell(&id, "queued", json!({}));
        app.wake();
        Ok(Json(job))
    })
    .await
}

/// Where to.
#[derive(Deserialize, utoipa::ToSchema)]
pub struct MoveRequest {
    /// The place among the queued jobs of its client, 0 is next.
    to: usize,
}

/// Moves a queued job.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/move", request_body = MoveRequest, responses((status = 200, body = JobRecord), (status = 409)))]
pub async fn move_job(
    State(app): Shared,
    Path(id): Path<String>,
    JsonBody(request): JsonBody<MoveRequest>,
) -> Answer<JobRecord> {
    blocking(move || {
        let job = app.live(app.queue.move_to(&id, request.to)?);
        app.hub.tell(&id, "changed", json!({}));
        Ok(Json(job))
    })
    .await
}

/// Forgets a job that does not run, with its pictures.
#[utoipa::path(delete, path = "/api/v1/jobs/{id}", responses((status = 204), (status = 409)))]
pub async fn delete_job(State(app): Shared, Path(id): Path<String>) -> Result<StatusCode, RequestError> {
    blocking(move || app.remove(&id).map(|()| StatusCode::NO_CONTENT)).await
}

/// What the picture of a running job looks like so far.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/preview", responses((status = 200, content_type = "image/png"), (status = 404)))]
pub async fn job_preview(State(app): Shared, Path(id): Path<String>) -> Result<Response, RequestError> {
    let png = app.hub.preview_of(&id).ok_or_else(|| RequestError::missing("there is no preview of this job now"))?;
    Ok(([(header::CONTENT_TYPE, "image/png")], png.to_vec()).into_response())
}

/// The picture that a job began with.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/init", responses((status = 200, content_type = "image/png"), (status = 404)))]
pub async fn job_init(State(app): Shared, Path(id): Path<String>) -> Result<Response, RequestError> {
    let file = blocking(move || {
        let job = app.queue.job(&id)?;
        std::fs::read(app.upload(&job.id, "init"))
            .map_err(|_| RequestError::missing("this job did not begin with a picture"))
    });
    Ok(([(header::CONTENT_TYPE, "image/png")], file.await?).into_response())
}

fn event_stream(app: &App, only: Option<String>) -> Sse<impl Stream<Item = Result<sse::Event, Infallible>> + use<>> {
    let events = BroadcastStream::new(app.hub.listen()).filter_map(move |event| {
        let shown = match event {
            Ok(JobEvent { job, name, data }) if only.as_ref().is_none_or(|only| *only == job) => {
                sse::Event::default().event(name).json_data(&*data).ok()
            }
            Ok(_) => None,
            // Who was too slow is told to look again.
            Err(_) => Some(sse::Event::default().event("changed").data("{}")),
        };
        std::future::ready(shown.map(Ok))
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}

/// Everything that happens, as server-sent events: queued, loading, compiling, working, step, preview, note, picture, done, failed, cancelled, changed.
#[utoipa::path(get, path = "/api/v1/events", responses((status = 200, content_type = "text/event-stream")))]
pub async fn all_events(State(app): Shared) -> impl IntoResponse {
    event_stream(&app, None)
}

/// The same of one job.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/events", responses((status = 200, content_type = "text/event-stream"), (status = 404)))]
pub async fn job_events(State(app): Shared, Path(id): Path<String>) -> Result<impl IntoResponse, RequestError> {
    let (shared, name) = (app.clone(), id.clone());
    blocking(move || Ok(shared.queue.job(&name)?)).await?;
    Ok(event_stream(&app, Some(id)))
}

/// Which pictures to list.
#[derive(Deserialize, utoipa::IntoParams)]
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
#[utoipa::path(get, path = "/api/v1/pictures", params(PictureFilter), responses((status = 200, body = [PictureRecord])))]
pub async fn list_pictures(State(app): Shared, Query(filter): Query<PictureFilter>) -> Answer<Value> {
    blocking(move || {
        let limit = filter.limit.unwrap_or(60).min(1000);
        Ok(Json(json!({ "pictures": app.queue.pictures(&filter.search, filter.before, limit)? })))
    })
    .await
}

/// How to show a picture.
#[derive(Deserialize, utoipa::IntoParams)]
pub struct DownloadChoice {
    /// As a file to be kept.
    download: Option<String>,
}

/// A picture's file.
#[utoipa::path(get, path = "/api/v1/pictures/{id}/file", params(DownloadChoice), responses((status = 200, content_type = "image/png"), (status = 404)))]
pub async fn picture_file(
    State(app): Shared,
    Path(id): Path<i64>,
    Query(choice): Query<DownloadChoice>,
) -> Result<Response, RequestError> {
    let (name, bytes) = blocking(move || {
        let name = app.queue.picture(id)?.file;
        let gone = |_| RequestError::missing("the picture's file is gone");
        let bytes = std::fs::read(app.pictures().join(&name)).map_err(gone)?;
        Ok((name, bytes))
    })
    .await?;
    let mut response =
        ([(header::CONTENT_TYPE, "image/png"), (header::CACHE_CONTROL, "private, max-age=86400, immutable")], bytes)
            .into_response();
    if choice.download.is_some()
        && let Ok(value) = format!("attachment; filename=\"{name}\"").parse()
    {
        response.headers_mut().insert(header::CONTENT_DISPOSITION, value);
    }
    Ok(response)
}

/// Deletes a picture.
#[utoipa::path(delete, path = "/api/v1/pictures/{id}", responses((status = 204), (status = 404)))]
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
#[derive(Deserialize, utoipa::ToSchema)]
pub struct LoginRequest {
    key: String,
}

/// Gives a browser the cookie that stands for the key.
#[utoipa::path(post, path = "/api/v1/login", request_body = LoginRequest, responses((status = 204), (status = 401)))]
pub async fn login(State(app): Shared, JsonBody(request): JsonBody<LoginRequest>) -> Result<Response, RequestError> {
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
pub async fn health() -> Json<Value> {
    Json(json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") }))
}

/// Numbers for Prometheus.
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
