//! The body of a request: received within limits of bytes, memory and time, before anything looks at it.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use axum::response::Response;
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::app::{App, RequestLimits};
use crate::error::RequestError;
use crate::guard::dialect;

/// Bodies of the greatest length that fit into the memory that all bodies share.
const GREATEST_AT_ONCE: usize = 8;
const KIB: usize = 1 << 10;

/// The memory that the bodies of all requests share.
pub struct BodyMemory(Arc<Semaphore>);

/// A body's share of that memory. Whoever has it may keep the body, and what is made of it.
pub type BodyShare = OwnedSemaphorePermit;

impl BodyMemory {
    /// Memory for bodies under these limits.
    pub fn new(limits: &RequestLimits) -> BodyMemory {
        BodyMemory(Arc::new(Semaphore::new(GREATEST_AT_ONCE * limits.body.div_ceil(KIB))))
    }
}

/// Receives the body of a request.
pub async fn received(app: &App, request: Request) -> Result<(Vec<u8>, BodyShare), RequestError> {
    let limits = &app.limits;
    let too_large = || {
        let message = format!("a request may have {} MiB at most", limits.body >> 20);
        RequestError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    };
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    // A body in chunks does not say how long it will be.
    let length: usize = length.unwrap_or(limits.body);
    if length > limits.body {
        return Err(too_large());
    }
    let shares = u32::try_from(length.div_ceil(KIB)).map_err(|_| too_large())?;
    let share = timeout(limits.time, app.bodies.0.clone().acquire_many_owned(shares)).await;
    let Ok(Ok(share)) = share else {
        let message = "too many large requests at once; try again in a moment";
        return Err(RequestError::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message));
    };
    let receive = async {
        let (mut bytes, mut chunks) = (vec![], request.into_body().into_data_stream());
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| RequestError::bad(format!("the body cannot be read: {error}")))?;
            if bytes.len() + chunk.len() > limits.body {
                return Err(too_large());
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok((bytes, share))
    };
    timeout(limits.time, receive).await.unwrap_or_else(|_| {
        let message = format!("the body did not arrive within {} seconds", limits.time.as_secs());
        Err(RequestError::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message))
    })
}

/// JSON of a body, and the body's share of memory.
pub struct JsonBody<T>(pub T, pub BodyShare);

impl<T: DeserializeOwned> JsonBody<T> {
    /// Receives it; what is wrong with it is told in words.
    pub async fn receive(app: &App, request: Request) -> Result<JsonBody<T>, RequestError> {
        let (bytes, share) = received(app, request).await?;
        match Json::<T>::from_bytes(&bytes) {
            Ok(Json(value)) => Ok(JsonBody(value, share)),
            Err(rejection) => Err(RequestError::new(rejection.status(), "bad_request", rejection.body_text())),
        }
    }
}

impl<T: DeserializeOwned> FromRequest<Arc<App>> for JsonBody<T> {
    type Rejection = Response;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<JsonBody<T>, Response> {
        let path = request.uri().path().to_owned();
        JsonBody::receive(app, request).await.map_err(|problem| dialect(&path, &problem))
    }
}

/// The same request with a body that is here already.
pub async fn with_received_body(app: &App, request: Request) -> Result<(Request, BodyShare), RequestError> {
    let (parts, body) = request.into_parts();
    let (bytes, share) = received(app, Request::from_parts(parts.clone(), body)).await?;
    Ok((Request::from_parts(parts, Body::from(bytes)), share))
}
