//! What is answered when something cannot be done.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use impasto_generate::GenerateError;
use impasto_generate::settings::SettingsError;
use serde_json::json;

use crate::queue::QueueError;

/// Why a request is refused or failed: what happened, why, and what to do.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The status of the answer.
    pub status: StatusCode,
    /// In one word, for programs.
    pub code: &'static str,
    /// In words.
    pub message: String,
    /// The setting that it is about.
    pub field: Option<String>,
}

impl Problem {
    /// A problem of this status.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Problem {
        Problem { status, code, message: message.into(), field: None }
    }

    /// The request cannot be fulfilled as it is.
    pub fn bad(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    /// There is no such thing.
    pub fn missing(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// Something here went wrong.
    pub fn broken(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
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

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Problem { code, message, field, .. } = &self;
        self.answer(json!({"error": {"code": code, "message": message, "field": field}}))
    }
}

impl From<QueueError> for Problem {
    fn from(error: QueueError) -> Problem {
        let message = error.to_string();
        match error {
            QueueError::Full { .. } => Problem::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message),
            QueueError::Missing { .. } => Problem::missing(message),
            QueueError::State { .. } => Problem::new(StatusCode::CONFLICT, "wrong_state", message),
            QueueError::Store(_) => Problem::broken(message),
        }
    }
}

impl From<SettingsError> for Problem {
    fn from(error: SettingsError) -> Problem {
        let field = match &error {
            SettingsError::Value { name, .. } => Some((*name).to_owned()),
            SettingsError::Unknown(name) => Some(name.clone()),
            SettingsError::File { .. } => None,
        };
        Problem { field, ..Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "bad_setting", error.to_string()) }
    }
}

impl From<GenerateError> for Problem {
    fn from(error: GenerateError) -> Problem {
        match error {
            GenerateError::Settings(error) => error.into(),
            other => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "refused", other.to_string()),
        }
    }
}
