//! The backend whose device is open in another process.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use impasto_backend::gpu::MAX_SUBMITTED_FLOPS;
use impasto_backend::{
    Backend, BackendError, DeviceOptions, HostWeights, Meter, Profile, Session, WeightSource, Weights,
};
use impasto_device::{DeviceInfo, Outcome, TrialOptions, UseGuard, Verdict};
use impasto_graph::{Graph, Plan};

use crate::message::{MemoryUse, OpenedAs, ParamSource, Reply, Request, VERSION, build};
use crate::options::WorkerOptions;
use crate::session::RemoteSession;
use crate::watch::{Patience, own_memory, slack};
use crate::worker::{NoAnswer, Waiting, Worker};

/// The shortest time without progress after which a worker counts as hung.
const PATIENCE: Duration = Duration::from_secs(20);
/// The factor on that time while a driver compiles.
const COMPILING: u32 = 4;
/// Bytes a second of a slow disk.
const SLOW_DISK: f64 = 2e7;

/// A device that is open in a worker process. Cheap to clone; clones are the same device.
#[derive(Clone)]
pub struct Remote {
    inner: Arc<Inner>,
    /// As this one computes: the device's own, or the same in 32-bit floats.
    profile: Arc<dyn Profile>,
    exact: bool,
}

pub(crate) struct Inner {
    meter: Arc<Meter>,
    device: DeviceInfo,
    how: DeviceOptions,
    options: WorkerOptions,
    state: Mutex<State>,
    /// A run was completed.
    worked: AtomicBool,
    /// A death was told to the guard.
    blamed: AtomicBool,
    /// How long the first worker took to be there with its device open.
    start: Mutex<Duration>,
    /// The slowest rate of the runs so far, in operations a second.
    shown: Mutex<Option<f64>>,
}

/// The worker and the objects in it.
pub(crate) struct State {
    worker: Option<Worker>,
    /// Workers that were started; what one held is gone with it.
    generation: u64,
    /// Things that are loaded, and the bytes that they take.
    loaded: Vec<(u64, u64)>,
    /// The last graph and plan that were sent.
    sent: Option<u64>,
}

impl State {
    /// The memory shared with the worker.
    pub fn memory(&self) -> Option<&File> {
        self.worker.as_ref()?.memory.as_ref()
    }
}

/// An object in a worker, freed when this is dropped.
pub(crate) struct RemoteObject {
    pub inner: Arc<Inner>,
    pub id: u64,
    generation: u64,
}

impl Drop for RemoteObject {
    fn drop(&mut self) {
        let mut state = self.inner.state();
        if state.generation != self.generation {
            return;
        }
        if state.worker.as_ref().is_some_and(|worker| worker.ended().is_none()) {
            let question = Question::plain(Request::Unload { id: self.id }, self.inner.patience(2, 0.0));
            // Who cannot even give back is lost, and the next who asks learns it.
            let _ = self.ask(&mut state, question);
        }
        state.loaded.retain(|(id, _)| *id != self.id);
        // From now on the worker may end at any time.
        if state.loaded.is_empty() {
            state.sent = None;
            if let Some(file) = state.memory() {
                let _ = file.set_len(0);
            }
        }
    }
}

impl Remote {
    /// Opens a device in a worker. `device` and the options are those of the survey and of the plans.
    pub fn open(device: &DeviceInfo, how: &DeviceOptions, options: WorkerOptions) -> Result<Remote, BackendError> {
        let state = State { worker: None, generation: 0, loaded: vec![], sent: None };
        let inner = Inner {
            meter: Arc::default(),
            device: device.clone(),
            how: how.clone(),
            options,
            state: Mutex::new(state),
            worked: AtomicBool::new(false),
            blamed: AtomicBool::new(false),
            start: Mutex::default(),
            shown: Mutex::default(),
        };
        // What can be told without the device is told before a process is started for it.
        inner.profiles()?;
        let profile = {
            let mut state = inner.state();
            match inner.started(&mut state) {
                // A worker that died before it could do anything costs another start, if its driver may be tried again.
                Err(BackendError::Lost { .. }) if inner.may_try_again() => {
                    inner.blamed.store(false, Ordering::Relaxed);
                    inner.started(&mut state)?
                }
                started => started?,
            }
        };
        Ok(Remote { inner: Arc::new(inner), profile, exact: false })
    }

    /// How long it took to start the worker and to open the device in it, the last time.
    pub fn start_seconds(&self) -> f64 {
        self.inner.start.lock().unwrap_or_else(PoisonError::into_inner).as_secs_f64()
    }

    /// The number of the worker's process, while there is one.
    pub fn process(&self) -> Option<u32> {
        let state = self.inner.state();
        state.worker.as_ref().filter(|worker| worker.ended().is_none()).map(Worker::process)
    }
}

impl Inner {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn name(&self) -> &str {
        &self.device.name
    }

    /// What the device may turn out to be: all that it claims, or without matrix units that do not compute what they should.
    fn profiles(&self) -> Result<[Arc<dyn Profile>; 2], BackendError> {
        let without = DeviceOptions { without_matrix_units: true, ..self.how.clone() };
        Ok([impasto_backend::profile(&self.device, &self.how)?, impasto_backend::profile(&self.device, &without)?])
    }

    /// Whether somebody wants to stop.
    pub fn must_stop(&self) -> bool {
        self.options.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    fn may_try_again(&self) -> bool {
        self.options.guard.as_ref().is_none_or(UseGuard::may_try_again)
    }

    /// So many times the least patience, and what is estimated.
    fn patience(&self, times: u32, estimate: f64) -> Patience {
        let estimate = Duration::try_from_secs_f64(estimate).unwrap_or(Duration::from_secs(3600));
        Patience { least: times * self.options.patience.unwrap_or(PATIENCE), estimate }
    }

    /// How long a run may stand still: a list of commands at the rate that was seen, or is known, or would be very slow.
    /// Some drivers compile kernels when they first run.
    pub fn run_patience(&self, flops: f64, streamed: u64, first: bool) -> Patience {
        let shown = *self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let rate = shown.or(self.options.flops).unwrap_or(5e9).max(1e8);
        self.patience(
            if first { COMPILING } else { 1 },
            flops.min(MAX_SUBMITTED_FLOPS as f64) / rate + streamed as f64 / SLOW_DISK,
        )
    }

    pub fn showed(&self, flops: f64, seconds: f64) {
        if !self.worked.swap(true, Ordering::Relaxed)
            && let Some(guard) = &self.options.guard
        {
            guard.worked();
        }
        if flops > 0.0 && seconds > 0.0 {
            let rate = flops / seconds;
            let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
            // The slowest that was seen: the next may be no faster.
            *shown = Some(shown.map_or(rate, |before| before.min(rate)));
        }
    }

    /// Starts a worker with its device open, and says what the device turned out to be.
    fn started(&self, state: &mut State) -> Result<Arc<dyn Profile>, BackendError> {
        let begun = Instant::now();
        let env = [&self.device.environment()[..], &self.options.env].concat();
        let options = TrialOptions { env, helper: self.options.helper.clone(), ..TrialOptions::default() };
        let not_started = |verdict: Verdict| BackendError::Unsupported {
            device: self.name().into(),
            reason: format!("its worker process {}", verdict.what(None)),
        };
        state.worker = None;
        state.loaded.clear();
        state.sent = None;
        state.generation += 1;
        let (meter, counted) = (self.meter.clone(), self.meter.clone());
        let compilation = move |compiled, wanted| counted.mirror_compilation(compiled, wanted);
        // What was allocated of the device is free with the end of its process.
        let gone = move || meter.mirror(0, meter.peak(), meter.had(), meter.compiled());
        let mut worker = Worker::start(&options, compilation, gone).map_err(not_started)?;
        let request = Request::Open {
            version: VERSION,
            build: build(),
            device: Box::new(self.device.clone()),
            options: self.how.clone(),
            idle_milliseconds: self.options.idle.as_millis().try_into().unwrap_or(u64::MAX),
        };
        let log = |line: &str| self.options.log.iter().for_each(|log| log(line));
        let waiting = Waiting { log: &log, ..self.waiting(self.patience(2, 0.0), None, &|| false) };
        let answer = worker.ask(&request, &[], &waiting);
        let (reply, _) = answer.map_err(|no| self.failed(no))?;
        let Reply::Opened(opened) = reply else { return Err(self.garbled()) };
        let changed = || {
            let reason = "it says other things of itself than when it was tried; run again".into();
            BackendError::Unsupported { device: self.name().into(), reason }
        };
        let profile = self.profiles()?.into_iter().find(|profile| OpenedAs::of(&**profile) == opened);
        let profile = profile.ok_or_else(changed)?;
        worker.base = own_memory(worker.process());
        *self.start.lock().unwrap_or_else(PoisonError::into_inner) = begun.elapsed();
        state.worker = Some(worker);
        Ok(profile)
    }

    fn waiting<'a>(&'a self, patience: Patience, most: Option<u64>, stop: &'a dyn Fn() -> bool) -> Waiting<'a> {
        Waiting { device: self.name(), patience, most, source: None, room_at: 0, stop, log: &|_| {} }
    }

    pub fn garbled(&self) -> BackendError {
        self.lost("its worker process gave the answer to another question".into())
    }

    /// The error of a request that was not answered. A worker that died before the first run marks its driver.
    fn failed(&self, no: NoAnswer) -> BackendError {
        let outcome = match no {
            NoAnswer::Failed(error, _) => return error,
            NoAnswer::Gone(outcome) => outcome,
        };
        let what = outcome.verdict.what(outcome.stage.as_deref());
        let first_use = !self.worked.load(Ordering::Relaxed) && is_the_drivers(&outcome);
        if let Some(guard) = self.options.guard.as_ref().filter(|_| first_use)
            && !self.blamed.swap(true, Ordering::Relaxed)
        {
            guard.died(&format!("a worker process that used it {what}"));
        }
        let last = outcome.stderr_tail.lines().last().map(str::trim).filter(|line| !line.is_empty());
        let said = last.map_or(String::new(), |line| format!("; it last said: {line}"));
        self.lost(format!("its worker process {what}{said}"))
    }

    pub fn lost(&self, reason: String) -> BackendError {
        BackendError::Lost { device: self.name().into(), reason }
    }

    /// Asks the worker. One that has ended of itself, since nobody needed it, is started again.
    pub fn ask(&self, state: &mut State, question: &Question) -> Result<(Reply, Vec<u8>), BackendError> {
        if question.expects.is_some_and(|generation| generation != state.generation) {
            return Err(self.lost("its worker process is gone, and what it held with it".into()));
        }
        let mut again = true;
        loop {
            self.alive(state)?;
            match self.try_to_ask(state, question) {
                Ok((reply, tail)) => {
                    if let Reply::Done { memory_use, .. } | Reply::Ran { memory_use, .. } = &reply {
                        self.mirror(*memory_use);
                    }
                    return Ok((reply, tail));
                }
                // It ended in the moment in which it was asked.
                Err(NoAnswer::Gone(outcome)) if outcome.verdict.passed() && again && state.loaded.is_empty() => {
                    again = false;
                }
                Err(no) => {
                    if let NoAnswer::Failed(_, memory_use) = &no {
                        self.mirror(*memory_use);
                    }
                    return Err(self.failed(no));
                }
            }
        }
    }

    fn mirror(&self, memory_use: MemoryUse) {
        self.meter.mirror(memory_use.now, memory_use.peak, memory_use.had, memory_use.compiled);
    }

    /// Makes sure that there is a worker.
    fn alive(&self, state: &mut State) -> Result<(), BackendError> {
        match state.worker.as_ref().map(Worker::ended) {
            Some(None) => Ok(()),
            Some(Some(outcome)) if !(outcome.verdict.passed() && state.loaded.is_empty()) => {
                Err(self.failed(NoAnswer::Gone(outcome)))
            }
            _ => self.started(state).map(drop),
        }
    }

    fn try_to_ask(&self, state: &mut State, question: &Question) -> Result<(Reply, Vec<u8>), NoAnswer> {
        let gone = || NoAnswer::Failed(self.lost("its worker process is gone".into()), MemoryUse::default());
        let loaded: u64 = state.loaded.iter().map(|(_, bytes)| bytes).sum();
        let worker = state.worker.as_mut().ok_or_else(gone)?;
        if let Some((graph, plan, exact)) = question.plan {
            let request = Request::Plan { graph: graph.to_string(), plan: plan.clone(), exact };
            let digest = digest(&request);
            // What was sent last is still there: a plan is packed for and prepared, one after the other.
            if state.sent != Some(digest) {
                worker.ask(&request, &[], &self.waiting(self.patience(2, 0.0), None, &|| false))?;
                state.sent = Some(digest);
            }
        }
        let slack = self.options.slack.unwrap_or_else(slack);
        let most = worker.base.map(|base| base + loaded + question.planned + slack);
        let stop = || self.must_stop();
        let log = |line: &str| self.options.log.iter().for_each(|log| log(line));
        let waiting = Waiting {
            source: question.source,
            room_at: question.room_at,
            log: &log,
            ..self.waiting(question.patience, most, &stop)
        };
        worker.ask(&question.request, &question.tail, &waiting)
    }
}

/// Something to ask.
pub(crate) struct Question<'a> {
    pub request: Request,
    pub tail: Vec<u8>,
    /// The graph and plan that it speaks of, and whether they are for 32-bit floats.
    pub plan: Option<(&'a Graph, &'a Plan, bool)>,
    pub source: Option<&'a dyn WeightSource>,
    pub patience: Patience,
    /// Bytes that it will take.
    pub planned: u64,
    pub room_at: u64,
    /// The worker that must still be there, since it holds what this needs.
    pub expects: Option<u64>,
}

impl Question<'_> {
    /// One that needs nothing else.
    fn plain(request: Request, patience: Patience) -> Question<'static> {
        let (plan, source, expects) = (None, None, None);
        Question { request, tail: vec![], plan, source, patience, planned: 0, room_at: 0, expects }
    }
}

/// A number that nothing else in any worker has: what is asked for of the wrong one is not found there.
fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Whether the way in which a worker ended says something of the driver. Who was killed from outside, or could not even begin, says nothing.
fn is_the_drivers(outcome: &Outcome) -> bool {
    matches!(
        outcome.verdict,
        Verdict::Crashed { .. } | Verdict::TimedOut { .. } | Verdict::Garbled { .. } | Verdict::Failed { .. }
    )
}

fn digest(request: &Request) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(&serde_json::to_vec(request).unwrap_or_default());
    hasher.finish()
}

/// How the worker has what a source gives.
fn told(source: &dyn WeightSource) -> ParamSource {
    source.origin().map_or(ParamSource::Ask, ParamSource::Origin)
}

/// Weights on a device in another process.
pub(crate) struct RemoteWeights {
    held: RemoteObject,
}

impl Backend for Remote {
    fn profile(&self) -> Arc<dyn Profile> {
        self.profile.clone()
    }

    /// True unless its driver has died so often of late that it is left alone.
    fn reopens(&self) -> bool {
        self.inner.may_try_again()
    }

    fn in_f32(&self) -> Option<Arc<dyn Backend>> {
        let profile = self.profile.profile_in_f32()?;
        Some(Arc::new(Remote { inner: self.inner.clone(), profile, exact: true }))
    }

    /// What the worker said last.
    fn meter(&self) -> &Meter {
        &self.inner.meter
    }

    fn peak_gflops(&self) -> Result<f64, BackendError> {
        let question =
            Question { planned: 1 << 30, ..Question::plain(Request::Peak, self.inner.patience(COMPILING, 0.0)) };
        match self.inner.ask(&mut self.inner.state(), &question)?.0 {
            Reply::Peak(gflops) => Ok(gflops),
            _ => Err(self.inner.garbled()),
        }
    }

    /// Packed by the worker and kept in its memory.
    fn pack_on_host(&self, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<HostWeights, BackendError> {
        let id = number();
        let bytes = plan.weight_bytes();
        let (held, bytes) = self.load(Request::Keep { id, source: told(source) }, id, graph, plan, source, bytes)?;
        Ok(HostWeights::elsewhere(id, bytes, held))
    }

    fn pack(&self, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<Weights, BackendError> {
        let id = number();
        let bytes = plan.device_weight_bytes();
        let request = Request::Pack { id, source: told(source), adapters: false };
        let (held, bytes) = self.load(request, id, graph, plan, source, bytes)?;
        Ok(Weights::new(bytes, RemoteWeights { held }))
    }

    fn pack_adapters(&self, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<Weights, BackendError> {
        let id = number();
        let adapters = plan.weights().iter().filter(|weight| graph.is_adapter(weight.value));
        let bytes = adapters.map(|weight| weight.bytes).sum();
        let request = Request::Pack { id, source: told(source), adapters: true };
        let (held, bytes) = self.load(request, id, graph, plan, source, bytes)?;
        Ok(Weights::new(bytes, RemoteWeights { held }))
    }

    fn prepare(&self, graph: &Graph, plan: &Plan, weights: &Weights) -> Result<Box<dyn Session>, BackendError> {
        let name = self.inner.name();
        let held = |weights: &Weights| {
            let held = &weights.of::<RemoteWeights>(name)?.held;
            if !Arc::ptr_eq(&held.inner, &self.inner) {
                let reason = "these weights are on another device".into();
                return Err(BackendError::Unsupported { device: name.into(), reason });
            }
            Ok((held.id, held.generation))
        };
        let (weights_id, generation) = held(weights)?;
        let adapters = weights.adapters().map(held).transpose()?.map(|(id, _)| id);
        let feed = plan.stream().map(|_| weights.feed(name)).transpose()?;
        let id = number();
        let mut state = self.inner.state();
        let request =
            Request::Prepare { id, weights: weights_id, adapters, feed: feed.as_deref().map(|source| told(source)) };
        let question = Question {
            request,
            tail: vec![],
            plan: Some((graph, plan, self.exact)),
            source: feed.as_deref().map(|source| source as &dyn WeightSource),
            // Drivers compile here, one kernel after the other on each core.
            patience: self.inner.patience(COMPILING, 0.0),
            planned: plan.arena_bytes() + plan.host_bytes(),
            room_at: 0,
            expects: Some(generation),
        };
        match self.inner.ask(&mut state, &question)?.0 {
            Reply::Done { bytes, .. } => {
                let held = self.inner.hold(&mut state, id, plan.arena_bytes() + plan.host_bytes());
                drop(state);
                Ok(Box::new(RemoteSession::new(held, graph, plan, weights.clone(), feed, bytes)))
            }
            _ => Err(self.inner.garbled()),
        }
    }
}

impl Inner {
    fn hold(self: &Arc<Self>, state: &mut State, id: u64, bytes: u64) -> RemoteObject {
        state.loaded.push((id, bytes));
        RemoteObject { inner: self.clone(), id, generation: state.generation }
    }
}

impl RemoteObject {
    /// Asks the worker that holds this.
    pub fn ask(&self, state: &mut State, question: Question) -> Result<(Reply, Vec<u8>), BackendError> {
        self.inner.ask(state, &Question { expects: Some(self.generation), ..question })
    }
}

impl Remote {
    fn load(
        &self,
        request: Request,
        id: u64,
        graph: &Graph,
        plan: &Plan,
        source: &dyn WeightSource,
        bytes: u64,
    ) -> Result<(RemoteObject, u64), BackendError> {
        let mut state = self.inner.state();
        let largest = plan.weights().iter().map(|weight| weight.bytes).max().unwrap_or(0);
        let question = Question {
            request,
            tail: vec![],
            plan: Some((graph, plan, self.exact)),
            source: Some(source),
            patience: self.inner.patience(2, largest as f64 / SLOW_DISK),
            planned: bytes,
            room_at: 0,
            expects: None,
        };
        match self.inner.ask(&mut state, &question)?.0 {
            Reply::Done { bytes: memory_use, .. } => Ok((self.inner.hold(&mut state, id, bytes), memory_use)),
            _ => Err(self.inner.garbled()),
        }
    }
}
