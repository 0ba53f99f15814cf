//! The devices of an engine: drivers are asked in child processes, beside the opening of the first model, and a device is opened when a module
//! needs it, in a worker process or in this one.

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use impasto_backend::cpu::CpuOptions;
use impasto_backend::{Backend, BackendError, DeviceOptions};
use impasto_device::{
    Api, ApiReport, Device, DeviceInfo, Diagnosis, Survey, SurveyOptions, UseGuard, free_memory, survey,
};
use impasto_worker::{Log, Remote, WorkerOptions};

use crate::GenerateError;
use crate::place::{Budget, MODULES, Machine, MachineOptions, RateBook, Request, imagine};
use crate::settings::{Gpu, Isolate, Settings};

/// How long the choice of a device waits at most for drivers, from the start. The model is opened meanwhile.
const PATIENCE: Duration = Duration::from_millis(1500);

/// How an engine uses the machine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// How devices are used: budgets, threads, precision, worker processes, how long idle modules stay.
    pub devices: MachineOptions,
    /// Which GPUs may be used.
    pub gpu: Gpu,
    /// Where modules of jobs are to compute, which says which drivers must be asked.
    pub request: Request,
    /// Say everything that was found out about drivers.
    pub verbose: bool,
}

impl Default for EngineOptions {
    /// What is healthy, each module where it is done soonest, loaded until it was idle for five minutes.
    fn default() -> EngineOptions {
        let devices = MachineOptions { keep_alive: Duration::from_secs(300), ..MachineOptions::default() };
        EngineOptions { devices, gpu: Gpu::default(), request: Request::default(), verbose: false }
    }
}

impl EngineOptions {
    /// What settings say.
    pub fn new(settings: &Settings) -> Result<EngineOptions, GenerateError> {
        let verbose = settings.verbose == Some(true);
        let devices = MachineOptions {
            cpu: cpu_options(settings)?,
            max_vram: settings.max_vram.clone().unwrap_or_default(),
            max_buffer: settings.max_buffer.clone().unwrap_or_default(),
            rates: RateBook::open(impasto_store::user_folder().map(|folder| folder.join("rates.json"))),
            isolate: settings.isolate.unwrap_or_default(),
            verify: settings.verify == Some(true),
            verbose,
            ..EngineOptions::default().devices
        };
        Ok(EngineOptions { devices, gpu: settings.gpu.unwrap_or_default(), request: Request::new(settings)?, verbose })
    }

    /// A device was named for every module: it is waited for, however long it takes.
    fn is_named(&self) -> bool {
        !self.request.leaves_a_choice(&MODULES)
    }

    /// The drivers that matter. Who places everything on the CPU has none asked.
    fn survey_options(&self) -> SurveyOptions {
        let may = |api: &Api| match self.gpu {
            Gpu::Auto => true,
            // Who names a device has chosen.
            Gpu::Disable => self.request.names(*api),
            Gpu::Vulkan => *api == Api::Vulkan,
            Gpu::Cuda => *api == Api::Cuda,
        };
        let asked_for = self.is_asked_for();
        SurveyOptions {
            apis: self.request.apis(&MODULES).into_iter().filter(may).collect(),
            soft: if asked_for { Duration::MAX } else { PATIENCE },
            asked_for,
            // The backend finds out the processor's instruction paths itself.
            cpu_paths: || (Vec::new(), false),
            ..survey_options()
        }
    }

    /// The user wants a GPU, whatever is held against its driver.
    fn is_asked_for(&self) -> bool {
        self.is_named() || self.only_api().is_some()
    }

    /// The only API by which GPUs may be used.
    fn only_api(&self) -> Option<Api> {
        match self.gpu {
            Gpu::Vulkan => Some(Api::Vulkan),
            Gpu::Cuda => Some(Api::Cuda),
            Gpu::Auto | Gpu::Disable => None,
        }
    }
}

fn cpu_options(settings: &Settings) -> Result<CpuOptions, GenerateError> {
    let options = CpuOptions::from_env().map_err(|source| GenerateError::Refused(format!("cpu: {source}")))?;
    let threads = settings.threads.filter(|&n| n > 0).map(|n| n as usize);
    Ok(CpuOptions { threads, precision: settings.precision.unwrap_or_default(), ..options })
}

/// The devices of an engine.
pub(super) struct Devices {
    asked: Option<Asked>,
    known: OnceLock<Result<Known, NoDevices>>,
}

/// A survey under way.
struct Asked {
    options: EngineOptions,
    answer: Mutex<mpsc::Receiver<Survey>>,
    begun: Instant,
}

/// Why there are no devices to choose from.
enum NoDevices {
    /// What was asked for can be nowhere.
    Asked(String),
    /// What was asked for is not here.
    Refused(String),
}

/// Devices that are known.
struct Known {
    machine: Machine,
    notes: Vec<String>,
}

impl Devices {
    /// Begins to ask drivers, in children.
    pub fn ask(mut options: EngineOptions) -> Devices {
        options.devices.asked_for |= options.is_asked_for();
        let (begun, wanted) = (Instant::now(), options.survey_options());
        let (send, answer) = mpsc::channel();
        // Without a thread there is no answer, which is what happens then.
        let _ = thread::Builder::new().name("survey".into()).spawn(move || drop(send.send(survey(&wanted))));
        Devices { asked: Some(Asked { options, answer: Mutex::new(answer), begun }), known: OnceLock::new() }
    }

    /// Devices that are known already.
    pub fn known(machine: Machine) -> Devices {
        let notes = unknown_in_budgets(machine.unknown_in_budgets().unwrap_or_default()).collect();
        let known = Known { machine, notes };
        Devices { asked: None, known: OnceLock::from(Ok(known)) }
    }

    fn wait(&self) -> Result<&Known, GenerateError> {
        let known = self.known.get_or_init(|| match &self.asked {
            Some(asked) => asked.wait(),
            None => Err(NoDevices::Refused("no device is known".into())),
        });
        known.as_ref().map_err(|why| match why {
            NoDevices::Asked(why) => GenerateError::Asked(why.clone()),
            NoDevices::Refused(why) => GenerateError::Refused(why.clone()),
        })
    }

    pub fn machine(&self) -> Result<&Machine, GenerateError> {
        Ok(&self.wait()?.machine)
    }

    pub fn notes(&self) -> Result<&[String], GenerateError> {
        Ok(&self.wait()?.notes)
    }

    /// The machine, if the survey is done.
    pub fn known_machine(&self) -> Option<&Machine> {
        self.known.get().and_then(|known| known.as_ref().ok()).map(|known| &known.machine)
    }
}

impl Asked {
    /// What the drivers have said, or the CPU alone where they do not answer in time.
    fn wait(&self) -> Result<Known, NoDevices> {
        let named = self.options.is_named();
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = match named {
            true => answer.recv().ok(),
            false => answer.recv_timeout((PATIENCE * 2).saturating_sub(self.begun.elapsed())).ok(),
        };
        let mut notes = vec![];
        let found = answer.unwrap_or_else(|| {
            notes.push("gpu: no answer from the device probe yet; going on with cpu".to_owned());
            survey(&SurveyOptions { apis: vec![], ..survey_options() })
        });
        notes.extend(found.apis.iter().filter_map(ApiReport::line));
        let machine = machine(&found, self.options.devices.clone());
        notes.extend(unused_gpus(&found, &machine));
        // A driver of CUDA that cannot start is worth a line; most machines have Vulkan without a GPU.
        let cuda = found.apis.iter().any(|api| api.api == Api::Cuda && api.fault().is_none());
        let told = |finding: &&Diagnosis| self.options.verbose || cuda && finding.about.starts_with("cuda:");
        notes.extend(found.findings.iter().filter(told).map(|finding| format!("note: {finding}")));
        let has_gpu = machine.candidates().any(|(device, _)| device.is_gpu());
        if let Some(api) = self.options.only_api().filter(|_| !has_gpu && !named) {
            return Err(NoDevices::Refused(no_gpu_by(api, &found, &machine)));
        }
        let unknown = machine.unknown_in_budgets().map_err(|error| NoDevices::Asked(error.to_string()))?;
        notes.extend(unknown_in_budgets(unknown));
        Ok(Known { machine, notes })
    }
}

/// Devices that budgets name and that are not here, a line each.
fn unknown_in_budgets(names: Vec<String>) -> impl Iterator<Item = String> {
    names.into_iter().map(|name| format!("warning: there is no {name} here: what was said of its memory is not used"))
}

/// GPUs that were seen and cannot be used, a line each. That there is none is nothing to talk about.
fn unused_gpus(found: &Survey, machine: &Machine) -> Vec<String> {
    let mut lines = vec![];
    // What crashed or hung has a line of its own.
    let faulty = |view: &DeviceInfo| found.apis.iter().any(|api| api.api == view.api && api.fault().is_some());
    let is_gpu = |gpu: &&Device| gpu.best().is_some_and(|view| view.is_gpu() && (view.is_healthy() || !faulty(view)));
    for gpu in found.devices.iter().filter(is_gpu) {
        let why = |view: &DeviceInfo| Some(format!("{}: {}", view.name, machine.profile(view).err()?));
        let reasons: Vec<String> = gpu.views.iter().filter_map(why).collect();
        if let Some(view) = gpu.best().filter(|_| reasons.len() == gpu.views.len()) {
            lines.push(format!("gpu: {} ({}) seen and not used; {}", view.label, gpu.names(), reasons.join("; ")));
        }
    }
    lines
}

/// Why no GPU can be used by the only API that may be used.
fn no_gpu_by(api: Api, found: &Survey, machine: &Machine) -> String {
    let of_api = found.views().filter(|view| view.api == api);
    let why = of_api.map(|view| match machine.profile(view) {
        Ok(_) => format!("{} is no GPU, but --backend {} computes there", view.label, view.name),
        Err(why) => format!("{}: {why}", view.label),
    });
    let why: Vec<String> = why.collect();
    let why = if why.is_empty() { "no device was found; `impasto devices` says why".into() } else { why.join("; ") };
    format!("--gpu {api}: no GPU can be computed on through {} ({why})", api.title())
}

/// Must be the first line of `main`. Returns at once in an ordinary process; in a child that was started for a trial, or as the worker
/// of a device, it does that work and never returns.
pub fn probe_hook() {
    let own = [impasto_worker::TRIAL, impasto_backend::HELPER];
    impasto_device::hook(&[&impasto_backend::cpu::TRIALS[..], &impasto_device::PROBES, &own].concat());
}

/// How to ask which devices are here, for a program of this build: with the processor's instruction paths, and with what this
/// build can compute on.
///
/// ```
/// use impasto_device::{SurveyOptions, survey};
///
/// // No API is asked here, so no child is started.
/// let options = SurveyOptions { apis: vec![], ..impasto_generate::engine::survey_options() };
/// assert!(survey(&options).find("cpu").is_some());
/// ```
pub fn survey_options() -> SurveyOptions {
    let paths = || {
        let findings = impasto_backend::cpu::findings();
        let usable = findings.iter().filter(|finding| finding.usable).map(|finding| finding.isa.to_string()).collect();
        (usable, findings.iter().all(|finding| finding.usable || !finding.isa.claimed()))
    };
    SurveyOptions { cpu_paths: paths, usable: vec![Api::Cpu, Api::Vulkan, Api::Cuda], ..SurveyOptions::default() }
}

/// The devices that a survey has found. None is opened yet.
pub fn machine(found: &Survey, how: MachineOptions) -> Machine {
    let faults = found.apis.iter().filter_map(|api| Some((api.api, api.fault()?.in_short()))).collect();
    let free = |device: &DeviceInfo| free_memory(device, &survey_options());
    let used = how.clone();
    let open = move |device: &DeviceInfo, options: &DeviceOptions| match used.is_isolated() {
        true => {
            Ok(Arc::new(Remote::open(device, options, worker_options(device, options, &used))?) as Arc<dyn Backend>)
        }
        false => impasto_backend::open(device, options),
    };
    Machine::new(found.views().cloned().collect(), faults, how, Box::new(free), Box::new(open))
}

/// A machine that is not here, of these devices beside the CPU of this one: for plans only.
///
/// ```
/// use impasto_generate::EngineOptions;
/// use impasto_generate::engine::imagined_machine;
///
/// let machine = imagined_machine(EngineOptions::default(), &["vulkan0:memory=8GiB".into()])?;
/// assert_eq!(machine.devices().len(), 2);
/// # Ok::<(), impasto_generate::GenerateError>(())
/// ```
pub fn imagined_machine(options: EngineOptions, devices: &[String]) -> Result<Machine, GenerateError> {
    let imagined = devices.iter().map(|text| imagine(text)).collect::<Result<Vec<_>, _>>();
    let mut devices = imagined.map_err(GenerateError::Asked)?;
    let here = survey(&SurveyOptions { apis: vec![], ..survey_options() });
    if !devices.iter().any(|device| device.api == Api::Cpu) {
        devices.extend(here.views().cloned());
    }
    let open = |device: &DeviceInfo, _: &DeviceOptions| {
        let reason = "it is not here".to_owned();
        Err(BackendError::Unsupported { device: device.name.clone(), reason })
    };
    // All that it has is free.
    let machine = Machine::new(devices, vec![], options.devices, Box::new(|_| None), Box::new(open));
    machine.unknown_in_budgets()?;
    Ok(machine)
}

fn worker_options(device: &DeviceInfo, options: &DeviceOptions, how: &MachineOptions) -> WorkerOptions {
    let survey = SurveyOptions { asked_for: how.asked_for, ..survey_options() };
    // For tests and for very slow machines: how long a worker may do nothing at least.
    let patience = std::env::var("IMPASTO_WORKER_PATIENCE").ok().and_then(|text| text.parse().ok());
    let patience = patience.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    // Rates are noted under what a device says of itself.
    let about = impasto_backend::profile(device, options).map_or_else(|_| device.label.clone(), |known| known.about());
    let flops = how.rates.rates(&about, device).flops;
    // Nobody may be there to read it.
    let log: Arc<Log> = Arc::new(|line: &str| drop(writeln!(std::io::stderr(), "{line}")));
    WorkerOptions {
        log: how.verbose.then_some(log),
        patience,
        flops: Some(flops),
        guard: Some(UseGuard::new(device, &survey)),
        stop: how.stop.clone(),
        ..WorkerOptions::default()
    }
}

/// How one device is to be used.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackendOptions {
    /// The CPU, and what products are computed in everywhere.
    pub cpu: CpuOptions,
    /// Memory that plans may use; by default what the device has.
    pub memory: Option<u64>,
    /// The largest single piece of memory; by default what the device allows.
    pub max_buffer: Option<u64>,
    /// Whether a GPU is opened in a process of its own, so that its driver cannot take this one along.
    pub isolate: Isolate,
    /// Whether steps are timed one by one, also where that makes them slower.
    pub time_steps: bool,
}

/// Opens one device: `cpu`, `vulkan0`, ... A driver is tried in a child process before it is opened.
pub fn open_device(name: &str, options: &BackendOptions) -> Result<Arc<dyn Backend>, BackendError> {
    let apis = Api::DRIVEN.into_iter().filter(|api| name.starts_with(api.name())).collect();
    let found = survey(&SurveyOptions { apis, asked_for: true, ..survey_options() });
    let how = MachineOptions {
        cpu: options.cpu,
        max_vram: Budget::of(name, options.memory),
        max_buffer: Budget::of(name, options.max_buffer),
        isolate: options.isolate,
        time_steps: options.time_steps,
        asked_for: true,
        ..MachineOptions::default()
    };
    let machine = machine(&found, how);
    let unsupported = |reason: String| BackendError::Unsupported { device: name.into(), reason };
    let Some(device) = machine.devices().iter().find(|device| device.name == name) else {
        let there: Vec<&str> = found.views().map(|view| view.name.as_str()).collect();
        let why = match found.apis.first().and_then(ApiReport::fault) {
            Some(fault) => fault.in_short(),
            None => "`impasto devices` says more".to_owned(),
        };
        return Err(unsupported(format!("there is no such device, only {} ({why})", there.join(", "))));
    };
    machine.profile(device).map_err(unsupported)?;
    machine.pool().get(name)
}
