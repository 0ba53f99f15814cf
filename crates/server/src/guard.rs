//! Who may ask: what every request must show before a route sees it.
//!
//! A page of another site must not drive a server on this machine. `Host` must be a name of this server, so that a foreign name that was made to
//! lead here (DNS rebinding) is refused; `Origin`, where a browser sends one, must be this server's own; a body must be JSON, which a form of
//! another site cannot send without asking first; and nothing is ever allowed to other origins. With a key, a request must have it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use sha2::{Digest, Sha256};

use crate::app::App;
use crate::error::RequestError;

/// The cookie that a page has after its user gave the key.
pub const COOKIE: &str = "impasto_session";

/// Who may ask.
#[derive(Clone, Debug)]
pub struct AccessRules {
    /// Where the server listens.
    pub listen: SocketAddr,
    /// Names of this server beside its addresses, for those behind a proxy.
    pub hosts: Vec<String>,
    key: Option<AccessKey>,
}

#[derive(Clone)]
struct AccessKey {
    digest: [u8; 32],
    session: String,
}

impl std::fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("AccessKey")
    }
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// Compares digests in a time that says nothing of where they differ.
fn is_same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    std::hint::black_box(a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b))) == 0
}

impl AccessRules {
    /// AccessRules with a key, or without one.
    pub fn new(listen: SocketAddr, hosts: Vec<String>, key: Option<&str>) -> AccessRules {
        let key = key.map(|key| {
            let session: [u8; 32] = digest(&format!("impasto session {key}"));
            let session = session.iter().map(|byte| format!("{byte:02x}")).collect();
            AccessKey { digest: digest(key), session }
        });
        AccessRules { listen, hosts, key }
    }

    /// Whether a key is needed.
    pub fn needs_key(&self) -> bool {
        self.key.is_some()
    }

    /// Whether this is the key.
    pub fn is_key(&self, text: &str) -> bool {
        self.key.as_ref().is_none_or(|key| is_same(&key.digest, &digest(text)))
    }

    /// The cookie that stands for the key.
    pub fn cookie(&self) -> Option<String> {
        let session = &self.key.as_ref()?.session;
        Some(format!("{COOKIE}={session}; HttpOnly; SameSite=Strict; Path=/; Max-Age=31536000"))
    }

    fn has_key(&self, headers: &HeaderMap) -> bool {
        let Some(key) = &self.key else { return true };
        let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let given = text(header::AUTHORIZATION)
            .and_then(key_of)
            .or_else(|| headers.get("x-api-key").and_then(|value| value.to_str().ok()).map(str::to_owned));
        if let Some(given) = given {
            return self.is_key(&given);
        }
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut sessions = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        sessions.any(|(name, value)| name == COOKIE && is_same(&digest(value), &digest(&key.session)))
    }

    /// Whether `Host` is a name of this server.
    fn is_host(&self, host: &str) -> bool {
        let name = without_port(host);
        if self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name) || known.eq_ignore_ascii_case(host)) {
            return true;
        }
        if name.eq_ignore_ascii_case("localhost") {
            return true;
        }
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match address {
            // An address is no name that somebody could have made to lead here.
            Ok(address) => address.is_loopback() || !self.listen.ip().is_loopback(),
            Err(_) => false,
        }
    }

    /// Refuses what a page of another site could have sent.
    fn check_origin(&self, method: &Method, headers: &HeaderMap) -> Result<(), RequestError> {
        let refused = |message: String| Err(RequestError::new(StatusCode::FORBIDDEN, "forbidden", message));
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
        let host = text("host").unwrap_or_default();
        if !self.is_host(host) {
            return refused(format!(
                "'{host}' is no name of this server; if it is behind a proxy, start it with --allowed-host NAME"
            ));
        }
        if let Some(origin) = text("origin") {
            let own = origin.split_once("://").is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(host));
            if !own {
                return refused(format!("a page of '{origin}' may not use this server"));
            }
        }
        let crosses = text("sec-fetch-site").is_some_and(|site| site == "cross-site" || site == "same-site");
        let navigates = method == Method::GET && text("sec-fetch-mode") == Some("navigate");
        if crosses && !navigates {
            return refused("a page of another site may not use this server".into());
        }
        Ok(())
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if !name.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) && !name.ends_with(':') => {
            name
        }
        _ => host,
    }
}

/// The key in `Authorization`: `Bearer KEY`, or the password, else the name, of `Basic`. An empty one is none: clients without a key send it.
fn key_of(header: &str) -> Option<String> {
    let (kind, value) = header.split_once(' ')?;
    let key = match kind.to_ascii_lowercase().as_str() {
        "bearer" => value.trim().to_owned(),
        "basic" => {
            let bytes = base64::engine::general_purpose::STANDARD.decode(value.trim()).ok()?;
            let text = String::from_utf8(bytes).ok()?;
            let (name, password) = text.split_once(':').unwrap_or((&text, ""));
            if password.is_empty() { name.to_owned() } else { password.to_owned() }
        }
        _ => return None,
    };
    (!key.is_empty()).then_some(key)
}

/// Whether a path is open to who has no key: the page itself, which asks for it, and whether the server lives.
fn is_open(path: &str, method: &Method) -> bool {
    let is_page = method == Method::GET && crate::page::is_file(path);
    is_page || path == "/health" || path == "/api/v1/login"
}

/// Checks every request, and makes every answer say what browsers may do with it.
pub async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let mut response = match check(&app.access, &request) {
        Ok(()) => next.run(request).await,
        Err(problem) => dialect(request.uri().path(), &problem),
    };
    let headers = response.headers_mut();
    let mut set = |name: header::HeaderName, value: &'static str| {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    };
    set(header::CONTENT_SECURITY_POLICY, POLICY);
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::REFERRER_POLICY, "no-referrer");
    set(header::X_FRAME_OPTIONS, "DENY");
    set(header::CACHE_CONTROL, "no-store");
    response
}

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; \
                      form-action 'none'; frame-ancestors 'none'; base-uri 'none'";

fn check(access: &AccessRules, request: &Request) -> Result<(), RequestError> {
    let (path, method, headers) = (request.uri().path(), request.method(), request.headers());
    access.check_origin(method, headers)?;
    if !is_open(path, method) && !access.has_key(headers) {
        let message = "this server needs its key: `Authorization: Bearer KEY`, or Basic with the key as password";
        return Err(RequestError::new(StatusCode::UNAUTHORIZED, "no_key", message));
    }
    check_body(path, method, headers)
}

/// A body is JSON, but for files that OpenAI's clients edit.
fn check_body(path: &str, method: &Method, headers: &HeaderMap) -> Result<(), RequestError> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let has_body = length.is_some_and(|length| length != "0") || headers.contains_key(header::TRANSFER_ENCODING);
    if matches!(*method, Method::GET | Method::HEAD) || !has_body {
        return Ok(());
    }
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let multipart = path == "/v1/images/edits" && kind == "multipart/form-data";
    match kind == "application/json" || multipart {
        true => Ok(()),
        false => Err(RequestError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "not_json",
            "send JSON, with `Content-Type: application/json`",
        )),
    }
}

/// A problem as the API of this path tells it.
pub fn dialect(path: &str, problem: &RequestError) -> Response {
    let mut response = if path.starts_with("/v1/") {
        crate::openai::answer(problem)
    } else if path.starts_with("/sdapi/") {
        crate::a1111::answer(problem)
    } else {
        problem.clone().into_response()
    };
    if problem.status == StatusCode::UNAUTHORIZED && path.starts_with("/sdapi/") {
        let basic = HeaderValue::from_static("Basic realm=\"impasto\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, basic);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(listen: &str, key: Option<&str>) -> AccessRules {
        AccessRules::new(listen.parse().expect("an address"), vec!["pictures.example".into()], key)
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (header::HeaderName::from_static(name), value.parse().expect("a value")))
            .collect()
    }

    #[test]
    fn foreign_names_and_pages_are_refused() {
        let local = access("127.0.0.1:7860", None);
        let taken = |pairs: &[(&'static str, &str)]| local.check_origin(&Method::POST, &headers(pairs)).is_ok();
        for host in
            ["127.0.0.1:7860", "localhost:7860", "[::1]:7860", "LOCALHOST", "pictures.example", "pictures.example:443"]
        {
            assert!(taken(&[("host", host)]), "{host}");
        }
        for host in ["evil.example:7860", "127.0.0.1.evil.example", "192.168.1.5:7860", "", "localhost.evil.example"] {
            assert!(!taken(&[("host", host)]), "{host}");
        }
        assert!(taken(&[("host", "localhost:7860"), ("origin", "http://localhost:7860")]));
        for origin in ["http://evil.example", "null", "http://localhost:1", "http://localhost", "file://"] {
            assert!(!taken(&[("host", "localhost:7860"), ("origin", origin)]), "{origin}");
        }
        assert!(!taken(&[("host", "localhost:7860"), ("sec-fetch-site", "cross-site")]));
        assert!(access("0.0.0.0:7860", Some("k")).is_host("192.168.1.5:7860"));
    }

    #[test]
    fn a_key_is_taken_in_each_of_its_forms_and_no_other() {
        let with = access("0.0.0.0:1", Some("secret"));
        let basic = |text: &str| format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(text));
        let good = ["Bearer secret".to_owned(), basic("user:secret"), basic("secret:")];
        for value in &good {
            assert!(with.has_key(&headers(&[("authorization", value)])), "{value}");
        }
        let bad = [
            "Bearer Secret".to_owned(),
            "Bearer ".into(),
            basic(":"),
            basic("secret:other"),
            "secret".into(),
            String::new(),
        ];
        for value in &bad {
            assert!(!with.has_key(&headers(&[("authorization", value)])), "{value}");
            assert!(access("127.0.0.1:1", None).has_key(&headers(&[("authorization", value)])), "{value}");
        }
        let cookie = with.cookie().expect("a cookie");
        let pair = cookie.split(';').next().expect("a pair").to_owned();
        assert!(with.has_key(&headers(&[("cookie", &format!("a=b; {pair}"))])) && !pair.contains("secret"));
        assert!(!with.has_key(&headers(&[("cookie", "impasto_session=secret")])));
    }

    #[test]
    fn a_body_is_json() {
        let body = |path: &str, kind: &str| {
            let headers = headers(&[("content-length", "5"), ("content-type", kind)]);
            check_body(path, &Method::POST, &headers).is_ok()
        };
        assert!(body("/api/v1/jobs", "application/json; charset=utf-8"));
        assert!(body("/v1/images/edits", "multipart/form-data; boundary=x"));
        assert!(!body("/api/v1/jobs", "text/plain") && !body("/sdapi/v1/txt2img", "multipart/form-data"));
        assert!(check_body("/sdapi/v1/interrupt", &Method::POST, &HeaderMap::new()).is_ok());
    }
}
