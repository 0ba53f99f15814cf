//! A browser that is driven through the WebDriver protocol, and ends with its test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

const INSTALL: &str = "These tests drive a browser: install Debian's packages chromium and chromium-driver";
const LIMIT: Duration = Duration::from_secs(60);
/// The name that the protocol gives to an element's id.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
pub const ENTER: &str = "\u{E007}";

/// One browser at a time: several on a small machine only slow each other down.
static ONE: Mutex<()> = Mutex::new(());

pub struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
    /// A driver whose output nobody takes dies of the next line it writes.
    _output: BufReader<ChildStdout>,
    _profile: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Browser {
    /// A browser with a profile of its own that has opened the page of the server.
    pub fn open(server: SocketAddr) -> Browser {
        let browser = Browser::start();
        browser.post("/url", json!({ "url": format!("http://{server}/") }));
        browser
    }

    fn start() -> Browser {
        let turn = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let profile = tempfile::tempdir().expect("a folder");
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("chromedriver does not start ({error}). {INSTALL}."));
        let mut output = BufReader::new(driver.stdout.take().expect("its output"));
        let address = SocketAddr::from(([127, 0, 0, 1], port(&mut output)));
        let mut browser =
            Browser { driver, address, session: String::new(), _output: output, _profile: profile, _turn: turn };
        let folder = format!("--user-data-dir={}", browser._profile.path().display());
        let options = json!({ "args": [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--window-size=1280,900", folder,
        ] });
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let (status, answer) = ask(address, "POST", "/session", Some(&wanted)).expect("an answer of the driver");
        assert_eq!(status, 200, "the browser does not start: {}. {INSTALL}.", answer["message"]);
        browser.session = answer["sessionId"].as_str().expect("a session").to_owned();
        // The window of a headless browser may count a frame that nobody sees: the page gets the size itself.
        browser.size(1280, 900, false);
        browser
    }

    fn post(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.try_post(path, body);
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    fn try_post(&self, path: &str, body: Value) -> (u16, Value) {
        let path = format!("/session/{}{path}", self.session);
        ask(self.address, "POST", &path, Some(&body)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn element(&self, css: &str) -> String {
        let found = self.post("/element", json!({ "using": "css selector", "value": css }));
        found[ELEMENT].as_str().expect("an element").to_owned()
    }

    /// Presses it as a user would: it must be there, in view and not covered.
    pub fn click(&self, css: &str) {
        self.until(&format!("{css} can be pressed"), || {
            let (status, answer) = self.try_post("/element", json!({ "using": "css selector", "value": css }));
            if status != 200 {
                return Err(answer["message"].to_string());
            }
            let element = answer[ELEMENT].as_str().expect("an element");
            let (status, answer) = self.try_post(&format!("/element/{element}/click"), json!({}));
            if status == 200 { Ok(()) } else { Err(answer["message"].to_string()) }
        });
    }

    /// Types after what is there already; a file field takes a path.
    pub fn keys(&self, css: &str, text: &str) {
        self.post(&format!("/element/{}/value", self.element(css)), json!({ "text": text }));
    }

    /// Types instead of what was there.
    pub fn fill(&self, css: &str, text: &str) {
        self.post(&format!("/element/{}/clear", self.element(css)), json!({}));
        self.keys(css, text);
    }

    pub fn reload(&self) {
        self.post("/refresh", json!({}));
    }

    /// What a script gives back.
    pub fn script(&self, script: &str) -> Value {
        self.post("/execute/sync", json!({ "script": script, "args": [] }))
    }

    pub fn value(&self, css: &str) -> String {
        let value = self.script(&format!("return document.querySelector('{css}').value"));
        value.as_str().expect("text").to_owned()
    }

    /// Waits until an expression is true in the page.
    pub fn wait(&self, expression: &str) {
        self.until(expression, || match self.script(&format!("return Boolean({expression})")) {
            Value::Bool(true) => Ok(()),
            other => Err(other.to_string()),
        });
    }

    pub fn until(&self, what: &str, mut attempt: impl FnMut() -> Result<(), String>) {
        let begun = Instant::now();
        while let Err(last) = attempt() {
            if begun.elapsed() > LIMIT {
                panic!("still not: {what} ({last})\n{}", self.script("return document.body.innerText"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Presses the pointer at the first of these places on an element (from 0 to 1 in each direction),
    /// draws it through the others and lets go.
    pub fn drag(&self, css: &str, places: &[(f64, f64)]) {
        let element = self.element(css);
        let size = self.script(&format!(
            "const box = document.querySelector('{css}').getBoundingClientRect(); return [box.width, box.height]"
        ));
        let side = |index: usize| size[index].as_f64().expect("a length");
        let mut actions: Vec<Value> = places
            .iter()
            .map(|(x, y)| {
                // From the middle of the element, in whole pixels.
                let (x, y) = ((x - 0.5) * side(0), (y - 0.5) * side(1));
                json!({ "type": "pointerMove", "duration": 20, "origin": { ELEMENT: element }, "x": x as i64, "y": y as i64 })
            })
            .collect();
        actions.insert(1, json!({ "type": "pointerDown", "button": 0 }));
        actions.push(json!({ "type": "pointerUp", "button": 0 }));
        self.post(
            "/actions",
            json!({ "actions": [
            { "type": "pointer", "id": "mouse", "parameters": { "pointerType": "mouse" }, "actions": actions }] }),
        );
    }

    fn devtools(&self, command: &str, params: Value) -> Value {
        self.post("/goog/cdp/execute", json!({ "cmd": command, "params": params }))
    }

    /// Shows the page in a window, or on a phone, of this size.
    pub fn size(&self, width: u32, height: u32, phone: bool) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone });
        self.devtools("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// What the user prefers: light or dark.
    pub fn prefer(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Keeps what the window shows as a file, or all of a page that is longer than the window.
    pub fn screenshot(&self, name: &str, whole: bool) {
        let folder = std::env::var_os("IMPASTO_SCREENSHOTS").map_or_else(
            || PathBuf::from(env!("CARGO_TARGET_TMPDIR")).parent().expect("a folder").join("screenshots"),
            PathBuf::from,
        );
        std::fs::create_dir_all(&folder).expect("a folder");
        let shot = self.devtools("Page.captureScreenshot", json!({ "format": "png", "captureBeyondViewport": whole }));
        let bytes = STANDARD.decode(shot["data"].as_str().expect("a picture")).expect("base64");
        std::fs::write(folder.join(format!("{name}.png")), bytes).expect("written");
    }

    /// Fails if the console tells of an error other than an answer with one of these statuses: a script that threw,
    /// a file that is missing, something that the page's own policy forbids.
    pub fn assert_no_errors(&self, statuses: &[u16]) {
        let entries = self.post("/se/log", json!({ "type": "browser" }));
        let expected = |entry: &Value| {
            let message = entry["message"].as_str().unwrap_or_default();
            statuses.iter().any(|status| message.contains(&format!("responded with a status of {status} ")))
        };
        let errors: Vec<&Value> = (entries.as_array().expect("a list").iter())
            .filter(|entry| entry["level"] == "SEVERE" && !expected(entry))
            .collect();
        assert!(errors.is_empty(), "the console tells of errors: {errors:#?}");
        let elsewhere = self.script(
            "return performance.getEntriesByType('resource').map((one) => one.name) \
             .filter((name) => !/^(data|blob):/.test(name) && new URL(name).origin !== location.origin)",
        );
        assert_eq!(elsewhere, json!([]), "the page asks other hosts");
    }

    /// Fails if a control has no name that a screen reader could say, or if text is hard to read on what lies behind it.
    pub fn assert_accessible(&self, where_: &str) {
        let found = self.script(include_str!("accessible.js"));
        assert_eq!(found["problems"], json!([]), "{where_}");
        let checked = found["texts"].as_u64().unwrap_or(0).min(found["controls"].as_u64().unwrap_or(0));
        assert!(checked >= 3, "{where_}: hardly anything was looked at: {found}");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver's end alone would leave the browser behind.
        if !self.session.is_empty() {
            let _ = ask(self.address, "DELETE", &format!("/session/{}", self.session), None);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// The port that the driver chose, from what it prints.
fn port(output: &mut impl BufRead) -> u16 {
    let mut said = String::new();
    while output.read_line(&mut said).expect("a line") > 0 {
        let last = said.lines().last().unwrap_or_default();
        if let Some((_, rest)) = last.split_once("successfully on port ") {
            return rest.trim_end_matches('.').parse().expect("a port");
        }
    }
    panic!("chromedriver ended: {said} {INSTALL}.");
}

/// The driver keeps connections open, so the end of an answer is where its length says.
fn ask(to: SocketAddr, method: &str, path: &str, body: Option<&Value>) -> std::io::Result<(u16, Value)> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(2 * LIMIT))?;
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.1\r\nhost: {to}\r\ncontent-type: application/json\r\n")?;
    write!(stream, "content-length: {length}\r\n\r\n{body}")?;
    let mut reader = BufReader::new(stream);
    let (mut status, mut length, mut line) = (0, 0, String::new());
    while line != "\r\n" {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let lower = line.to_lowercase();
        if let Some(rest) = lower.strip_prefix("http/1.1 ") {
            status = rest.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0);
        } else if let Some(rest) = lower.strip_prefix("content-length:") {
            length = rest.trim().parse().unwrap_or(0);
        }
    }
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes)?;
    let answer: Value = serde_json::from_slice(&bytes)?;
    Ok((status, answer["value"].clone()))
}
