//! The survey: which devices are here and healthy, found out in children.
//!
//! For each API, in parallel: one child lists its devices. If that child dies, hangs or talks nonsense, each installed driver is
//! asked alone, so that one broken driver does not hide a healthy one. Then each device has a child of its own in which it must
//! compute rightly. What is found is put together by hardware, and what went wrong is explained.

mod believe;
mod cuda;
mod diagnose;
mod evidence;
mod guard;
mod in_use;
mod info;
mod manifest;
mod record;
#[cfg(any(windows, test))]
mod registry;
mod store;
mod vulkan;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::probe::TargetDevice;
use crate::{Limits, Outcome, TrialOptions, cpu, trial};
use evidence::Evidence;
use guard::Guard;

pub use believe::{cuda_info, vulkan_info};
pub use diagnose::Diagnosis;
pub use guard::{Attempt, CrashRecord};
pub use in_use::UseGuard;
pub use info::{Api, CooperativeMatrix, Device, DeviceInfo, DeviceKind, Features, Standing};
pub use record::{ApiReport, Child, Phase};
pub use store::Store;

/// The command that removes all verdicts, as messages name it.
pub const FORGET_COMMAND: &str = "impasto devices --forget";

/// How to make a survey.
///
/// ```
/// use impasto_device::{Api, SurveyOptions};
/// use std::time::Duration;
///
/// let options = SurveyOptions { apis: vec![Api::Vulkan], soft: Duration::from_secs(1), ..SurveyOptions::default() };
/// # assert_eq!(options.helper, None);
/// ```
#[derive(Clone, Debug)]
pub struct SurveyOptions {
    /// Which drivers to ask; none starts no child.
    pub apis: Vec<Api>,
    /// How long to wait for answers. A driver that takes longer is [pending](ApiReport::pending): its children go on until the
    /// hard deadline, but nobody waits for them.
    pub soft: Duration,
    /// How long each child may take before it is killed with all that it started.
    pub hard: Duration,
    /// Ask drivers even if an earlier verdict is known, or if they have crashed before.
    pub fresh: bool,
    /// The user has asked for these APIs by name: drivers that crashed before are tried again.
    pub asked_for: bool,
    /// The executable to start as the child, for programs that cannot call [`hook`](crate::hook).
    pub helper: Option<PathBuf>,
    /// Where verdicts are kept between runs.
    pub store: Arc<Store>,
    /// APIs that this build can compute on.
    pub usable: Vec<Api>,
    /// Gives the instruction paths of the processor that passed their trial, and whether every trial ended well: then the answer
    /// is kept like that of a driver. Called while drivers are asked, since it takes children too.
    pub cpu_paths: fn() -> (Vec<String>, bool),
}

impl Default for SurveyOptions {
    /// All APIs, 15 seconds for a child (on Windows 45, since virus scanners read every library), all the time that it takes, and
    /// the user's cache folder.
    fn default() -> Self {
        let hard = Duration::from_secs(if cfg!(windows) { 45 } else { 15 });
        SurveyOptions {
            apis: Api::DRIVEN.to_vec(),
            soft: Duration::MAX,
            hard,
            fresh: false,
            asked_for: false,
            helper: None,
            store: Arc::new(Store::of_user()),
            usable: vec![Api::Cpu],
            cpu_paths: || (Vec::new(), false),
        }
    }
}

/// Which devices are here.
#[derive(Clone, Debug, Serialize)]
pub struct Survey {
    /// The hardware; the CPU is the last.
    pub devices: Vec<Device>,
    /// What happened with each API.
    pub apis: Vec<ApiReport>,
    /// What is wrong, what it means and what to do.
    pub findings: Vec<Diagnosis>,
    /// Seconds that it took.
    pub seconds: f64,
}

impl Survey {
    /// A device by one of its names.
    pub fn find(&self, name: &str) -> Option<&DeviceInfo> {
        self.views().find(|view| view.name == name)
    }

    /// All views of all devices.
    pub fn views(&self) -> impl Iterator<Item = &DeviceInfo> {
        self.devices.iter().flat_map(|device| &device.views)
    }

    /// Healthy GPUs, the preferred one first: discrete before integrated, more memory before less. Never a software rasteriser.
    pub fn gpus(&self) -> Vec<&Device> {
        let best = |device: &Device| device.best().is_some_and(|view| view.is_gpu() && view.is_healthy());
        let mut gpus: Vec<&Device> = self.devices.iter().filter(|device| best(device)).collect();
        gpus.sort_by_key(|device| {
            let view = device.best();
            let discrete = view.is_some_and(|view| view.kind == DeviceKind::Discrete);
            std::cmp::Reverse((discrete, view.map_or(0, |view| view.limits.memory)))
        });
        gpus
    }
}

/// What the survey of one API works with.
struct Context {
    options: SurveyOptions,
    evidence: Evidence,
    guard: Guard,
}

impl Context {
    /// Runs a probe in a child.
    fn child(&self, probe: &str, argument: String, manifest: Option<&std::path::Path>, deadline: Duration) -> Outcome {
        trial(
            probe,
            &TrialOptions {
                deadline,
                env: crate::probe::environment(manifest),
                helper: self.options.helper.clone(),
                argument,
                ..TrialOptions::default()
            },
        )
    }
}

/// What one API gave.
struct Answer {
    views: Vec<DeviceInfo>,
    report: ApiReport,
}

/// Finds out which devices are here and healthy. No driver touches this process, and it always ends: after the soft deadline, or
/// after a few times the hard one if drivers hang in every stage.
///
/// ```
/// use impasto_device::{SurveyOptions, survey};
///
/// // Without APIs no child is started; the CPU is always there.
/// let survey = survey(&SurveyOptions { apis: Vec::new(), ..SurveyOptions::default() });
/// assert_eq!(survey.devices.len(), 1);
/// assert!(survey.find("cpu").is_some_and(|cpu| cpu.cores >= Some(1)));
/// assert!(survey.gpus().is_empty());
/// ```
pub fn survey(options: &SurveyOptions) -> Survey {
    let begun = Instant::now();
    if options.apis.iter().all(|api| *api == Api::Cpu) {
        let devices = info::merge(vec![processor((options.cpu_paths)().0)]);
        return Survey { devices, apis: Vec::new(), findings: Vec::new(), seconds: begun.elapsed().as_secs_f64() };
    }
    let guard = Guard::open(options.store.clone());
    let context = Arc::new(Context { options: options.clone(), evidence: Evidence::gather(), guard });
    let waiting = ask(&context);
    let processor = processor(cpu_paths(&context));
    let answers = waiting.until(begun, options.soft);

    let mut views: Vec<DeviceInfo> = Vec::new();
    let mut reports = Vec::new();
    for answer in answers {
        views.extend(answer.views);
        reports.push(answer.report);
    }
    for view in &mut views {
        if view.is_healthy() {
            view.standing = match options.usable.contains(&view.api) {
                true => Standing::Usable,
                false => Standing::NotYet { instead: "cpu".into() },
            };
        }
    }
    let mut devices = info::merge(views);
    for device in &mut devices {
        // The same device by another way is better than another device.
        let usable = device.views.iter().find(|view| view.standing == Standing::Usable).map(|view| view.name.clone());
        for view in &mut device.views {
            if let (Standing::NotYet { instead }, Some(name)) = (&mut view.standing, &usable) {
                name.clone_into(instead);
            }
        }
    }
    devices.extend(info::merge(vec![processor]));
    let findings = diagnose::diagnose(&context, &reports, &devices);
    Survey { devices, apis: reports, findings, seconds: begun.elapsed().as_secs_f64() }
}

/// APIs that were asked and have not all answered.
struct Waiting {
    apis: Vec<Api>,
    receive: mpsc::Receiver<Answer>,
}

/// Asks every API at once.
fn ask(context: &Arc<Context>) -> Waiting {
    let mut apis: Vec<Api> = context.options.apis.iter().copied().filter(|api| *api != Api::Cpu).collect();
    apis.sort();
    apis.dedup();
    let (send, receive) = mpsc::channel();
    for &api in &apis {
        let (context, send) = (context.clone(), send.clone());
        let ask = move || {
            let answer = match api {
                Api::Cuda => cuda::ask(&context),
                _ => vulkan::ask(&context),
            };
            let _ = send.send(answer);
        };
        // If no thread can be had, the API is pending for ever, which is what happens then.
        let _ = thread::Builder::new().name(format!("survey of {api}")).spawn(ask);
    }
    Waiting { apis, receive }
}

impl Waiting {
    /// Waits for the answers until the soft deadline.
    fn until(self, begun: Instant, soft: Duration) -> Vec<Answer> {
        let mut answers: Vec<Answer> = Vec::new();
        while answers.len() < self.apis.len() {
            match self.receive.recv_timeout(soft.saturating_sub(begun.elapsed())) {
                Ok(answer) => answers.push(answer),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        for &api in &self.apis {
            if !answers.iter().any(|answer| answer.report.api == api) {
                let report = ApiReport { pending: true, ..ApiReport::new(api) };
                answers.push(Answer { views: Vec::new(), report });
            }
        }
        answers.sort_by_key(|answer| answer.report.api);
        answers
    }
}

/// Bytes that can be allocated on a device now, or `None` where that cannot be known. Asked in a child, since the answer needs the
/// driver; it is never kept.
///
/// ```
/// use impasto_device::{SurveyOptions, free_memory, survey};
///
/// let options = SurveyOptions { apis: Vec::new(), ..SurveyOptions::default() };
/// let survey = survey(&options);
/// let cpu = survey.find("cpu").unwrap();
/// assert!(free_memory(cpu, &options).is_none_or(|free| free <= cpu.limits.memory));
/// ```
pub fn free_memory(device: &DeviceInfo, options: &SurveyOptions) -> Option<u64> {
    let probe = match (device.api, device.kind) {
        // A software rasteriser has the memory of the machine.
        (Api::Cpu, _) | (_, DeviceKind::Software) => {
            return cpu::available_memory().map(|free| free.min(device.limits.memory));
        }
        _ if !device.is_healthy() => return None,
        (Api::Vulkan, _) => "vulkan-memory",
        (Api::Cuda, _) => "cuda-memory",
    };
    ask_bytes(probe, device, options).map(|free| free.min(device.limits.memory))
}

/// Bytes of a CUDA device that a context takes, about; [`free_memory`] is what is left beside one. `None` of other devices, and where the driver does not
/// say. Asked in a child.
pub fn context_memory(device: &DeviceInfo, options: &SurveyOptions) -> Option<u64> {
    let asked = device.api == Api::Cuda && device.is_healthy();
    if asked { ask_bytes("cuda-context", device, options) } else { None }
}

/// What a probe of one device reports.
fn ask_bytes(probe: &str, device: &DeviceInfo, options: &SurveyOptions) -> Option<u64> {
    let outcome = trial(
        probe,
        &TrialOptions {
            deadline: options.hard,
            env: device.environment(),
            helper: options.helper.clone(),
            argument: argument(device),
            ..TrialOptions::default()
        },
    );
    let bytes = outcome.records.first()?.as_u64()?;
    outcome.verdict.passed().then_some(bytes)
}

/// Which device a child is to take.
fn argument(device: &DeviceInfo) -> String {
    let target = TargetDevice { index: device.index, label: device.label.clone(), uuid: device.uuid };
    serde_json::to_string(&target).unwrap_or_default()
}

/// The paths of this processor, from an earlier run if nothing has changed.
fn cpu_paths(context: &Context) -> Vec<String> {
    let key = context.evidence.cpu_key();
    if let Some(paths) = context.recall_paths(&key) {
        return paths;
    }
    let (paths, all_well) = (context.options.cpu_paths)();
    if all_well && !paths.is_empty() {
        context.keep_paths(key, &paths);
    }
    paths
}

/// The CPU is a device too.
fn processor(paths: Vec<String>) -> DeviceInfo {
    let memory = cpu::memory().map_or(u64::MAX, |memory| memory.limit);
    DeviceInfo {
        name: "cpu".into(),
        api: Api::Cpu,
        label: cpu::label(),
        kind: DeviceKind::Cpu,
        ids: None,
        uuid: None,
        pci: None,
        driver: String::new(),
        driver_version: String::new(),
        api_version: String::new(),
        limits: Limits { memory, max_allocation: memory, max_binding: memory },
        cores: Some(cpu::usable_cores()),
        features: Features { paths, ..Features::default() },
        vulkan: None,
        cuda: None,
        portability: false,
        standing: Standing::Usable,
        index: 0,
        manifest: None,
        must_be_alone: false,
    }
}

/// Runs `work` on every item, a few at a time, and keeps their order.
fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    const AT_ONCE: usize = 8;
    let mut results = Vec::with_capacity(items.len());
    for some in items.chunks(AT_ONCE) {
        thread::scope(|scope| {
            let running: Vec<_> = some.iter().map(|item| scope.spawn(|| work(item))).collect();
            // A panic of ours in a thread is a panic here too.
            results.extend(running.into_iter().map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }));
        });
    }
    results
}
