//! The page: files inside the program, which ask nothing of other hosts.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

macro_rules! files {
    ($($name:literal: $kind:literal),+ $(,)?) => {
        /// Path, media type and content of each file.
        const FILES: &[(&str, &str, &[u8])] = &[$((concat!("/", $name), $kind, include_bytes!(concat!("page/", $name)))),+];
    };
}

files! {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "api.js": "text/javascript; charset=utf-8",
    "dom.js": "text/javascript; charset=utf-8",
    "drawer.js": "text/javascript; charset=utf-8",
    "form.js": "text/javascript; charset=utf-8",
    "gallery.js": "text/javascript; charset=utf-8",
    "jobs.js": "text/javascript; charset=utf-8",
    "main.js": "text/javascript; charset=utf-8",
    "mask.js": "text/javascript; charset=utf-8",
    "queue.js": "text/javascript; charset=utf-8",
    "stage.js": "text/javascript; charset=utf-8",
    "start.js": "text/javascript; charset=utf-8",
    "storage.js": "text/javascript; charset=utf-8",
    "viewer.js": "text/javascript; charset=utf-8",
}

fn file(path: &str) -> Option<&'static (&'static str, &'static str, &'static [u8])> {
    let path = if path == "/" { "/index.html" } else { path };
    FILES.iter().find(|(name, ..)| *name == path)
}

/// Whether this path is a file of the page.
pub fn is_file(path: &str) -> bool {
    file(path).is_some()
}

/// A file of the page, or that there is no such route.
pub async fn show(uri: axum::http::Uri) -> Response {
    match file(uri.path()) {
        Some((_, kind, content)) => {
            ([(header::CONTENT_TYPE, *kind), (header::CACHE_CONTROL, "no-cache")], *content).into_response()
        }
        None => {
            let problem = crate::error::RequestError::missing(format!("there is no route '{}'", uri.path()));
            debug_assert_eq!(problem.status, StatusCode::NOT_FOUND);
            crate::guard::dialect(uri.path(), &problem)
        }
    }
}
