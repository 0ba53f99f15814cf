//! The parent of a survey, in a process of its own with an environment of its own: if a driver could hurt it, it would die here.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use impasto_device::{Api, Store, Survey, SurveyOptions, survey};
use serde_json::Value;

use impasto_testkit::drivers::{drivers, lavapipe};

const ROLE: &str = "SURVEY_TEST_ROLE";
/// Marks every process that belongs to one scenario, grandchildren too.
const MARK: &str = "SURVEY_TEST_MARK";

/// What surrounds a survey.
#[derive(Clone)]
pub struct Scene {
    env: BTreeMap<&'static str, String>,
}

impl Scene {
    /// Lavapipe alone, no CUDA, no cache.
    pub fn new() -> Scene {
        let mut env = BTreeMap::new();
        env.insert("VK_DRIVER_FILES", lavapipe().display().to_string());
        env.insert("SURVEY_HARD", "4".into());
        Scene { env }
    }

    /// The fake Vulkan driver before lavapipe, with a fault.
    pub fn vulkan(fault: &str) -> Scene {
        let manifests = [drivers().manifest(), lavapipe()].map(|path| path.display().to_string()).join(":");
        Scene::new().with("FAKE_VULKAN", fault).with("VK_DRIVER_FILES", manifests)
    }

    /// The fake libcuda, with a fault.
    pub fn cuda(fault: &str) -> Scene {
        Scene::new().with("FAKE_CUDA", fault).with("LD_LIBRARY_PATH", drivers().cuda.display().to_string())
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Scene {
        self.env.insert(name, value.into());
        self
    }

    pub fn survey(&self) -> Seen {
        self.play("survey")
    }

    /// Runs a parent, and sees to it that it ends well and leaves nothing behind.
    pub fn play(&self, role: &str) -> Seen {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let mark = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let begun = Instant::now();
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        for name in ["LD_LIBRARY_PATH", "LD_PRELOAD", "VK_ICD_FILENAMES", "CUDA_VISIBLE_DEVICES", "DISPLAY"] {
            command.env_remove(name);
        }
        let output = command
            .envs(&self.env)
            .env(ROLE, role)
            .env(MARK, &mark)
            .stdin(Stdio::null())
            .output()
            .expect("a second copy of this program");
        let seconds = begun.elapsed().as_secs_f64();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "the parent died: {}\n{stderr}", output.status);
        assert_eq!(stderr, "", "a driver's words came through");
        assert_none_left(&mark);
        let survey: Value = serde_json::from_slice(&output.stdout).expect("the parent's answer is JSON alone");
        Seen { survey, seconds }
    }
}

/// No process with this mark runs. A killed one may be a zombie for a moment, which has no environment any more.
fn assert_none_left(mark: &str) {
    let line = format!("{MARK}={mark}");
    let left = || -> Vec<String> {
        let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
        let marked = processes.filter(|entry| {
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|one| one == line.as_bytes())
        });
        marked.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let begun = Instant::now();
    while !left().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(5), "processes are left: {:?}", left());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What a survey gave.
pub struct Seen {
    pub survey: Value,
    pub seconds: f64,
}

impl Seen {
    pub fn views(&self) -> Vec<&Value> {
        let devices = self.survey["devices"].as_array().expect("devices");
        devices.iter().flat_map(|device| device["views"].as_array().expect("views")).collect()
    }

    /// The view whose label begins like this.
    pub fn labelled(&self, label: &str) -> Option<&Value> {
        self.views().into_iter().find(|view| view["label"].as_str().is_some_and(|text| text.starts_with(label)))
    }

    pub fn api(&self, name: &str) -> &Value {
        let apis = self.survey["apis"].as_array().expect("apis");
        apis.iter().find(|api| api["api"] == name).expect("it was asked")
    }

    pub fn children(&self, api: &str) -> Vec<&Value> {
        self.api(api)["children"].as_array().expect("children").iter().collect()
    }

    pub fn findings(&self) -> String {
        self.survey["findings"].as_array().expect("findings").iter().map(|one| format!("{one}\n")).collect()
    }

    /// Lavapipe is found and computes, and so does the CPU.
    #[track_caller]
    pub fn assert_healthy_neighbours(&self) {
        let lavapipe = self.labelled("llvmpipe").unwrap_or_else(|| panic!("no lavapipe in {:#}", self.survey));
        assert!(is_healthy(lavapipe), "{lavapipe:#}");
        assert_eq!(lavapipe["kind"], "software");
        assert!(self.views().iter().any(|view| view["name"] == "cpu"), "{:#}", self.survey);
    }
}

pub fn is_healthy(view: &Value) -> bool {
    view["standing"].get("refused").is_none()
}

/// The part of the parent.
pub fn be_one_if_asked() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match role.as_str() {
        "survey" => println!("{}", serde_json::to_string(&survey(&options())).expect("plain data")),
        "random" => super::faults::random_surveys(),
        "attempt" => super::memory::die_in_an_attempt(&options()),
        _ => unreachable!("no such role"),
    }
    std::process::exit(0);
}

/// Options from variables, since the parent is another process.
pub fn options() -> SurveyOptions {
    let seconds = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok()).map(Duration::from_secs_f64);
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let store = match std::env::var_os("SURVEY_STORE") {
        Some(folder) if folder == "user" => Store::of_user(),
        Some(folder) => Store::at(folder),
        None => Store::none(),
    };
    SurveyOptions {
        soft: seconds("SURVEY_SOFT").unwrap_or(Duration::MAX),
        hard: seconds("SURVEY_HARD").unwrap_or(Duration::from_secs(4)),
        fresh: is_set("SURVEY_FRESH"),
        asked_for: is_set("SURVEY_ASKED_FOR"),
        store: Arc::new(store),
        ..SurveyOptions::default()
    }
}

/// Whether a survey found what is healthy, for many surveys in one process.
pub fn finds_neighbours(survey: &Survey) -> bool {
    let lavapipe = survey.views().any(|view| view.label.starts_with("llvmpipe") && view.is_healthy());
    lavapipe && survey.views().any(|view| view.api == Api::Cpu)
}
