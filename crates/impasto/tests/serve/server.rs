//! A server that is started for a test, and ends with it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::serve::http::{Answer, send};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_impasto");

/// Waits for something; what there is instead is said where it does not come.
pub fn wait_for<T, E: std::fmt::Display>(what: &str, mut ask: impl FnMut() -> Result<T, E>) -> T {
    let begun = Instant::now();
    loop {
        match ask() {
            Ok(found) => return found,
            Err(instead) => assert!(begun.elapsed() < Duration::from_secs(60), "waited for {what}: {instead}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A server with a data folder of its own.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    pub data: PathBuf,
    /// What it said before it was ready.
    pub said: String,
    _folder: Option<tempfile::TempDir>,
}

impl Server {
    pub fn start(args: &[&str]) -> Server {
        let folder = tempfile::tempdir().expect("a folder");
        let mut server = Server::in_folder(&folder.path().join("data"), args);
        server._folder = Some(folder);
        server
    }

    /// A server on a folder that outlives it.
    pub fn in_folder(data: &Path, args: &[&str]) -> Server {
        Server::with_fault(data, args, "")
    }

    /// A server where something fails on purpose.
    pub fn with_fault(data: &Path, args: &[&str], fault: &str) -> Server {
        let log = data.with_extension("log");
        let mut child = Command::new(PROGRAM)
            .envs((!fault.is_empty()).then_some(("IMPASTO_FAULT", fault)))
            .args(["serve", "--gpu", "disable", "--data"])
            .arg(data)
            .args(if args.contains(&"--listen") { vec![] } else { vec!["--listen", "127.0.0.1:0"] })
            .args(args)
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log).expect("a log"))
            .spawn()
            .expect("the program starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("its output");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        let address: SocketAddr = line
            .trim()
            .strip_prefix("http://")
            .and_then(|a| a.parse().ok())
            .unwrap_or_else(|| panic!("no address: {line:?} {said}"));
        let address = if address.ip().is_unspecified() {
            SocketAddr::new([127, 0, 0, 1].into(), address.port())
        } else {
            address
        };
        Server { child, address, data: data.into(), said, _folder: None }
    }

    /// What it said since, with errors.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.data.with_extension("log")).unwrap_or_default()
    }

    /// The most memory that it ever had, in MiB, as Linux tells.
    pub fn peak_memory(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("its status");
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") >> 10
    }

    /// Sockets that it has open.
    pub fn sockets(&self) -> usize {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("its descriptors").flatten();
        let led_to = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        led_to.filter(|path| path.to_string_lossy().starts_with("socket:")).count()
    }

    pub fn get(&self, path: &str) -> Answer {
        send(self.address, "GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        send(self.address, "POST", path, &[("content-type", "application/json")], body.to_string().as_bytes())
    }

    /// Queues a job with these settings; its id.
    pub fn queue(&self, settings: Value) -> String {
        let job = self.post("/api/v1/jobs", &json!({ "settings": settings })).json(201);
        job["id"].as_str().expect("an id").to_owned()
    }

    pub fn job(&self, id: &str) -> Value {
        self.get(&format!("/api/v1/jobs/{id}")).json(200)
    }

    /// Waits until a job is as it should be.
    pub fn wait(&self, id: &str, until: impl Fn(&Value) -> bool) -> Value {
        wait_for(&format!("job {id}"), || {
            let job = self.job(id);
            if until(&job) { Ok(job) } else { Err(job) }
        })
    }

    pub fn wait_done(&self, id: &str) -> Value {
        let job = self.wait(id, |job| !["queued", "running"].contains(&job["state"].as_str().unwrap_or_default()));
        assert_eq!(job["state"], "done", "{job}");
        job
    }

    /// A value of /metrics.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text();
        let line = text.lines().find(|line| line.starts_with(name) && line.as_bytes().get(name.len()) == Some(&b' '));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
    }

    /// Ends it without a word.
    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
