//! What is answered when something cannot be done.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use impasto_generate::GenerateError;
use impasto_generate::settings::SettingsError;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use crate::queue::QueueError;

/// Why a request is refused or failed: what happened, why, and what to do.
#[derive(Clone, Debug)]
pub struct RequestError {
    /// The status of the answer.
    pub status: StatusCode,
    /// In one word, for programs.
    pub code: &'static str,
    /// In words.
    pub message: String,
    /// The setting that it is about.
    pub field: Option<String>,
}

impl RequestError {
    /// A problem of this status.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> RequestError {
        RequestError { status, code, message: message.into(), field: None }
    }

    /// The request cannot be fulfilled as it is.
    pub fn bad(message: impl Into<String>) -> RequestError {
        RequestError::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    /// There is no such thing.
    pub fn missing(message: impl Into<String>) -> RequestError {
        RequestError::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// Something here went wrong.
    pub fn broken(message: impl Into<String>) -> RequestError {
        RequestError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    /// The answer with this body, with `Retry-After` where waiting helps.
    pub fn answer(&self, body: serde_json::Value) -> Response {
        let mut response = (self.status, Json(body)).into_response();
        if self.status == StatusCode::TOO_MANY_REQUESTS || self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
        }
        response
    }
}

/// An error as our own API answers with it.
#[derive(Serialize, ToSchema)]
pub struct ErrorAnswer {
    error: ErrorDetail,
}

/// What went wrong.
#[derive(Serialize, ToSchema)]
struct ErrorDetail {
    /// In one word, for programs.
    code: &'static str,
    /// In words: what happened, why, and what to do.
    message: String,
    /// The setting that it is about.
    field: Option<String>,
}

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        let RequestError { code, message, field, .. } = self.clone();
        self.answer(json!(ErrorAnswer { error: ErrorDetail { code, message, field } }))
    }
}

impl From<QueueError> for RequestError {
    fn from(error: QueueError) -> RequestError {
        let message = error.to_string();
        match error {
            QueueError::Full { .. } => RequestError::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message),
            QueueError::Missing { .. } => RequestError::missing(message),
            QueueError::State { .. } => RequestError::new(StatusCode::CONFLICT, "wrong_state", message),
            QueueError::Store(_) => RequestError::broken(message),
        }
    }
}

impl From<SettingsError> for RequestError {
    fn from(error: SettingsError) -> RequestError {
        let field = match &error {
            SettingsError::Value { name, .. } => Some((*name).to_owned()),
            SettingsError::Unknown(name) => Some(name.clone()),
            SettingsError::File { .. } => None,
        };
        RequestError { field, ..RequestError::new(StatusCode::UNPROCESSABLE_ENTITY, "bad_setting", error.to_string()) }
    }
}

impl From<GenerateError> for RequestError {
    fn from(error: GenerateError) -> RequestError {
        match error {
            GenerateError::Settings(error) => error.into(),
            other => RequestError::new(StatusCode::UNPROCESSABLE_ENTITY, "refused", other.to_string()),
        }
    }
}
