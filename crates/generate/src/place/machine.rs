//! The devices of a machine as placing sees them: what a survey has found, or what the user says that there is. No driver is opened
//! here; a device is opened by the pool when a module needs it.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use impasto_backend::cpu::CpuOptions;
use impasto_backend::{Backend, BackendError, DeviceOptions, Profile};
use impasto_device::{Api, Companion, DeviceInfo, DeviceKind, Standing};

use super::budget::Budget;
use super::card::CardMemory;
use super::host::{HostBudget, HostRoom};
use super::pool::Pool;
use super::rates::{RateBook, Rates};
use super::resolve;
use crate::settings::Isolate;
use crate::{GenerateError, Job};

/// How devices are to be used.
#[derive(Clone, Debug, Default)]
pub struct MachineOptions {
    /// The CPU, and what products are computed in everywhere.
    pub cpu: CpuOptions,
    /// Memory that may be used.
    pub max_vram: Budget,
    /// The largest single piece of it.
    pub max_buffer: Budget,
    /// How fast devices were in earlier runs.
    pub rates: Arc<RateBook>,
    /// Whether GPUs are opened in processes of their own.
    pub isolate: Isolate,
    /// The user has named devices: what is held against their drivers does not count.
    pub asked_for: bool,
    /// Time the steps of plans one by one, also where that makes them slower.
    pub time_steps: bool,
    /// Verify each plan, and each kernel after each pass of the compiler.
    pub verify: bool,
    /// Say which processes devices are opened in.
    pub verbose: bool,
    /// How long modules stay loaded after their last use; not at all by default.
    pub keep_alive: Duration,
    /// Set by who wants to stop.
    pub stop: Option<Arc<AtomicBool>>,
}

impl MachineOptions {
    /// Whether GPUs are opened in processes of their own, on a system that has them.
    pub fn is_isolated(&self) -> bool {
        self.isolate == Isolate::Auto && Companion::AVAILABLE
    }
}

/// Opens a device, in this process or in one of its own.
pub type OpenDevice = dyn Fn(&DeviceInfo, &DeviceOptions) -> Result<Arc<dyn Backend>, BackendError> + Send + Sync;
/// Bytes that are free on a device now, where that is known.
pub type FreeMemory = dyn Fn(&DeviceInfo) -> Option<u64> + Send + Sync;

/// The devices of a machine.
#[derive(Clone)]
pub struct Machine {
    inner: Arc<Inner>,
    pool: Arc<Pool>,
}

struct Inner {
    devices: Vec<DeviceInfo>,
    /// What went wrong with whole APIs.
    faults: Vec<(Api, String)>,
    how: MachineOptions,
    free: Box<FreeMemory>,
    host: HostRoom,
    open: Box<OpenDevice>,
    cpu: OnceLock<Result<Arc<dyn Backend>, BackendError>>,
    profiles: Vec<OnceLock<Result<Arc<dyn Profile>, String>>>,
    /// Bytes of each GPU that were free when it was first thought of, with those that modules of ours held.
    found_free: Vec<OnceLock<Option<u64>>>,
}

impl Machine {
    /// A machine with these devices, of which `cpu` should be one.
    pub fn new(
        devices: Vec<DeviceInfo>,
        faults: Vec<(Api, String)>,
        how: MachineOptions,
        free: Box<FreeMemory>,
        open: Box<OpenDevice>,
    ) -> Machine {
        let profiles = devices.iter().map(|_| OnceLock::new()).collect();
        let found_free = devices.iter().map(|_| OnceLock::new()).collect();
        let keep_alive = how.keep_alive;
        let inner = Arc::new(Inner {
            devices,
            faults,
            how,
            free,
            host: HostRoom::default(),
            open,
            cpu: OnceLock::new(),
            profiles,
            found_free,
        });
        let opener = inner.clone();
        let pool = Pool::new(keep_alive, move |name| opener.open(name));
        Machine { inner, pool }
    }

    /// Every device.
    pub fn devices(&self) -> &[DeviceInfo] {
        &self.inner.devices
    }

    /// The devices that are open.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// What went wrong with an API as a whole.
    pub(super) fn fault(&self, api: Api) -> Option<&str> {
        self.inner.faults.iter().find(|(of, _)| *of == api).map(|(_, why)| why.as_str())
    }

    /// What planning needs to know of a device, or why it cannot be used.
    pub fn profile(&self, device: &DeviceInfo) -> Result<Arc<dyn Profile>, String> {
        match self.inner.position(device) {
            Some(at) => {
                let held = self.pool.loaded().bytes_on(&self.inner.card_name(device));
                self.inner.found_free(at, held);
                self.inner.profiles[at].get_or_init(|| self.inner.profile(at)).clone()
            }
            None => Err("it is not of this machine".into()),
        }
    }

    /// The memory of a device's card.
    pub(super) fn card(&self, device: &DeviceInfo) -> CardMemory {
        let room = self.inner.position(device).and_then(|at| self.inner.room(at));
        CardMemory {
            name: self.inner.card_name(device),
            bytes: room.unwrap_or(device.limits.memory),
            driver: room.map_or(0, |_| impasto_backend::driver_memory(device)),
        }
    }

    /// Devices that budgets name and that are not here, if they are names that devices have elsewhere; what can be none is an error.
    pub fn unknown_in_budgets(&self) -> Result<Vec<String>, GenerateError> {
        let mut unknown = vec![];
        for name in self.inner.how.max_vram.devices().chain(self.inner.how.max_buffer.devices()) {
            if resolve::find(self.devices(), name).is_ok() {
                continue;
            }
            let api = name.trim_end_matches(|c: char| c.is_ascii_digit());
            if !["cpu", "cuda", "vulkan", "hip", "metal"].contains(&api) {
                let there: Vec<&str> = self.devices().iter().map(|device| device.name.as_str()).collect();
                return Err(GenerateError::Asked(format!(
                    "the budget of '{name}': there is no such device; found: {}",
                    there.join(", ")
                )));
            }
            unknown.push(name.to_owned());
        }
        Ok(unknown)
    }

    /// How fast devices are.
    pub fn book(&self) -> &Arc<RateBook> {
        &self.inner.how.rates
    }

    /// How fast a device is. One that was not measured yet is taken to be as fast as the same card is by an API that comes after its own: so it is tried
    /// once, and then the faster one is known.
    pub(super) fn rates(&self, device: &DeviceInfo, profile: &dyn Profile) -> Rates {
        let own = self.book().rates(&profile.about(), device);
        if own.measured {
            return own;
        }
        let others = self.devices().iter().filter(|other| device.api < other.api && device.is_same_card(other));
        let measured = others.filter_map(|other| Some(self.book().rates(&self.profile(other).ok()?.about(), other)));
        match measured.filter(|rates| rates.measured).max_by(|a, b| a.flops.total_cmp(&b.flops)) {
            Some(other) if other.flops > own.flops => Rates { measured: false, ..other },
            _ => own,
        }
    }

    /// The memory of the host for a job: what is free of it now, less what the program and the job's pictures take.
    pub(super) fn host(&self, job: &Job) -> HostBudget {
        let cpu = self.devices().iter().find(|device| device.api == Api::Cpu);
        let held = self.inner.cpu.get().and_then(|cpu| cpu.as_ref().ok()).map_or(0, |cpu| cpu.meter().now());
        match cpu.and_then(|cpu| (self.inner.free)(cpu)) {
            Some(free) => self.inner.host.budget(free, held, job.picture_bytes()),
            None => HostBudget { plans: cpu.map_or(u64::MAX, |cpu| cpu.limits.memory), ..HostBudget::UNLIMITED },
        }
    }

    /// Devices on which something may run that nobody has placed: the CPU and healthy GPUs, never a software rasteriser, nor one that has failed
    /// in this process.
    pub fn candidates(&self) -> impl Iterator<Item = (&DeviceInfo, Arc<dyn Profile>)> {
        let may = |device: &&DeviceInfo| {
            let failed = self.pool.failure(&device.name).is_some();
            device.kind != DeviceKind::Software && device.standing == Standing::Usable && !failed
        };
        self.devices().iter().filter(may).filter_map(|device| Some((device, self.profile(device).ok()?)))
    }
}

impl Inner {
    fn amount(&self, budget: &Budget, device: &DeviceInfo, free: impl FnOnce() -> u64) -> Option<u64> {
        let is_it = |written: &str| resolve::find(&self.devices, written).is_ok_and(|found| found.name == device.name);
        budget.amount(device.api != Api::Cpu, is_it).map(|amount| amount.of(free()))
    }

    fn position(&self, device: &DeviceInfo) -> Option<usize> {
        self.devices.iter().position(|known| known.name == device.name)
    }

    /// All names of a device's card.
    fn card_name(&self, device: &DeviceInfo) -> String {
        let views = self.devices.iter().filter(|other| other.name == device.name || device.is_same_card(other));
        views.map(|view| view.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Bytes of a GPU that other programs leave, where that is known. It is asked once; modules of ours hold `held` of it then.
    fn found_free(&self, at: usize, held: u64) -> Option<u64> {
        let device = &self.devices[at];
        let ask = || (self.free)(device).map(|free| free.saturating_add(held).min(device.limits.memory));
        *self.found_free[at].get_or_init(|| if device.is_gpu() { ask() } else { None })
    }

    /// Bytes of a GPU that plans may take: what is free, less what its driver takes beside them.
    fn room(&self, at: usize) -> Option<u64> {
        Some(self.found_free(at, 0)?.saturating_sub(impasto_backend::driver_memory(&self.devices[at])))
    }

    /// Memory that plans may use on a device, where that is less than all.
    fn memory(&self, at: usize) -> Option<u64> {
        let device = &self.devices[at];
        // What another program holds on a GPU cannot be had.
        let free = || if device.is_gpu() { self.found_free(at, 0) } else { (self.free)(device) };
        let asked = self.amount(&self.how.max_vram, device, || free().unwrap_or(device.limits.memory));
        asked.into_iter().chain(self.room(at)).min()
    }

    fn profile(&self, at: usize) -> Result<Arc<dyn Profile>, String> {
        let device = &self.devices[at];
        match &device.standing {
            Standing::Usable => {}
            Standing::NotYet { .. } => {
                return Err(format!("found, but this build cannot compute on {} yet", device.api.title()));
            }
            Standing::Refused { why } => {
                return Err(format!("it failed its trial: {why}; `impasto devices` says more"));
            }
        }
        // Opening it costs nothing and takes its threads once.
        if device.api == Api::Cpu {
            return Ok(self.cpu(at).map_err(|e| e.to_string())?.profile());
        }
        // A process of its own loads the one driver that works.
        if device.must_be_alone && !self.how.is_isolated() {
            let variables = device.environment().into_iter().filter_map(|(name, value)| Some((name, value?)));
            let set = variables.map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy()));
            return Err(format!(
                "another driver on this machine is broken, and this process would load it too; use --isolate auto, or set {} and run again",
                set.collect::<Vec<_>>().join(" ")
            ));
        }
        impasto_backend::profile(device, &self.options(at)).map_err(|e| reason(&e))
    }

    fn options(&self, at: usize) -> DeviceOptions {
        let device = &self.devices[at];
        let (CpuOptions { threads, isa, precision, memory, .. }, largest) =
            (self.how.cpu, device.limits.max_allocation);
        DeviceOptions {
            precision,
            threads,
            isa,
            memory: self.memory(at).or(memory.filter(|_| device.api == Api::Cpu)),
            max_buffer: self.amount(&self.how.max_buffer, device, || largest),
            cache: impasto_store::user_folder().map(|folder| folder.join("kernels")),
            time_steps: self.how.time_steps,
            verify: self.how.verify || self.how.cpu.verify,
            ..DeviceOptions::default()
        }
    }

    fn cpu(&self, at: usize) -> Result<Arc<dyn Backend>, BackendError> {
        self.cpu.get_or_init(|| impasto_backend::open(&self.devices[at], &self.options(at))).clone()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Backend>, BackendError> {
        let unsupported = |reason: String| BackendError::Unsupported { device: name.into(), reason };
        let at = self.devices.iter().position(|device| device.name == name);
        let at = at.ok_or_else(|| unsupported("there is no such device".into()))?;
        let device = &self.devices[at];
        if device.api == Api::Cpu {
            return self.cpu(at);
        }
        let planned = self.profiles[at].get_or_init(|| self.profile(at)).clone().map_err(unsupported)?;
        // Free memory may have changed since: the device is opened with what was planned with.
        let options = DeviceOptions { memory: Some(planned.limits().memory), ..self.options(at) };
        let backend = (self.open)(device, &options)?;
        let opened = backend.profile();
        let same = opened.limits() == planned.limits()
            && opened.alignment() == planned.alignment()
            && opened.activations() == planned.activations()
            && opened.fixed_bytes() == planned.fixed_bytes();
        match same {
            true => Ok(backend),
            false => Err(unsupported("it says other things of itself than when it was tried; run again".into())),
        }
    }
}

/// An error without the device's name, which stands before it.
fn reason(error: &BackendError) -> String {
    match error {
        BackendError::Unsupported { reason, .. } | BackendError::Lost { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}
