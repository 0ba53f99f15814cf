//! The worker's side: it has the device open and serves its parent's requests, one after the other.
//!
//! One thread reads requests, so that a cancellation is noticed while the device works; one sends heartbeats; this one works.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use impasto_backend::{
    Backend, BackendError, DeviceOptions, HostWeights, Origin, Pulse, Session, SharedSource, Weights,
};
use impasto_device::{Link, Trial, TrialReport, leave_at_once};
use impasto_graph::{Graph, HostTensor, Plan};

use crate::frame::{self, Broken};
use crate::memory;
use crate::message::{MemoryUse, OpenedAs, ParamSource, Payload, Reply, Request, VERSION, build};
use crate::sources::{Answer, AskParent, Files, Watched};

/// The worker, among the trials that a program names in its call of [`hook`](impasto_device::hook).
pub const TRIAL: Trial = Trial { name: "worker", run: work };

/// The time between two heartbeats.
const BEAT: Duration = Duration::from_millis(250);
/// How long the end of what is being done is waited for once the parent is gone.
const LAST_MOMENT: Duration = Duration::from_millis(500);

fn work(report: &mut TrialReport) -> Result<(), String> {
    let link = report.take_link().ok_or("it was started without a link to its parent")?;
    report.leave_at_once();
    // When memory runs out, this process goes before the one that holds the run.
    let _ = std::fs::write("/proc/self/oom_score_adj", "700");
    let gone = || {
        thread::sleep(LAST_MOMENT);
        leave_at_once(1)
    };
    serve(link, &mut |stage| report.stage(stage), gone).map_err(|error| error.to_string())
}

/// The sending half of the channel, one message at a time.
#[derive(Clone)]
pub(crate) struct Out(Arc<Mutex<impasto_device::Channel>>);

impl Out {
    pub fn say(&self, reply: &Reply, tail: &[u8]) -> io::Result<()> {
        frame::write(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), reply, tail)
    }
}

/// Serves a parent to the end of its channel. `gone` is called when that end is there while work is still being done.
pub(crate) fn serve(link: Link, stage: &mut dyn FnMut(&str), gone: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut channel = link.channel.try_clone()?;
    let out = Out(Arc::new(Mutex::new(link.channel)));
    let pulse = Pulse::default();
    let (request, requests) = mpsc::channel();
    let (answer, answers) = mpsc::channel();
    let listen = {
        let pulse = pulse.clone();
        move || {
            let mut tail = vec![];
            let broken = loop {
                match frame::read(&mut channel, &mut tail) {
                    Ok(Request::Cancel) => pulse.stop(true),
                    Ok(Request::Param(given)) => drop(answer.send((given, std::mem::take(&mut tail)))),
                    Ok(other) => drop(request.send((other, std::mem::take(&mut tail)))),
                    Err(broken) => break broken,
                }
            };
            // Whoever waits for more learns that there is none.
            pulse.stop(true);
            drop((request, answer));
            if let Broken::Garbled(why) = broken {
                // A parent that is gone reads nothing any more.
                let _ = writeln!(io::stderr(), "impasto worker: the parent is not understood: {why}");
            }
            gone();
        }
    };
    thread::Builder::new().name("listen".into()).spawn(listen)?;
    let mut serving = Serving {
        backend: None,
        opened: Arc::default(),
        exact: None,
        pulse: pulse.clone(),
        out: out.clone(),
        answers: Arc::new(Mutex::new(answers)),
        memory: link.memory.map(Arc::new),
        plan: None,
        kept: HashMap::new(),
        weights: HashMap::new(),
        sessions: HashMap::new(),
        files: Files::default(),
        idle: Duration::MAX,
    };
    let (done, shown) = (Arc::new(AtomicBool::new(false)), serving.opened.clone());
    let ended = done.clone();
    let live = move || {
        while !ended.load(Ordering::Relaxed) {
            let backend = shown.get().and_then(Weak::upgrade);
            let [compiled, wanted] = backend.map_or([0; 2], |b| [b.meter().compiled(), b.meter().wanted()]);
            if out.say(&Reply::Beat { beats: pulse.beats(), compiled, wanted }, &[]).is_err() {
                return;
            }
            thread::sleep(BEAT);
        }
    };
    thread::Builder::new().name("live".into()).spawn(live)?;
    let served = serving.until_the_end(&requests, stage);
    done.store(true, Ordering::Relaxed);
    served
}

fn memory_use(backend: &dyn Backend) -> MemoryUse {
    let meter = backend.meter();
    MemoryUse { now: meter.now(), peak: meter.peak(), had: meter.had(), compiled: meter.compiled() }
}

struct Serving {
    backend: Option<Arc<dyn Backend>>,
    /// The same, for the heartbeats.
    opened: Arc<OnceLock<Weak<dyn Backend>>>,
    /// The same device in 32-bit floats, once that was asked for.
    exact: Option<Arc<dyn Backend>>,
    pulse: Pulse,
    out: Out,
    answers: Arc<Mutex<Receiver<Answer>>>,
    memory: Option<Arc<File>>,
    /// The graph and the plan, with the device in the precision that they are for.
    plan: Option<(Graph, Plan, Arc<dyn Backend>)>,
    kept: HashMap<u64, Arc<HostWeights>>,
    weights: HashMap<u64, Weights>,
    sessions: HashMap<u64, Loaded>,
    files: Files,
    idle: Duration,
}

/// A session with its input and output tensors, so that a run allocates nothing.
struct Loaded {
    session: Box<dyn Session>,
    inputs: Vec<(String, HostTensor)>,
    outputs: Vec<HostTensor>,
    bytes: Vec<u8>,
}

type Said = Result<(Reply, Vec<u8>), BackendError>;

impl Serving {
    fn until_the_end(
        &mut self,
        requests: &Receiver<(Request, Vec<u8>)>,
        stage: &mut dyn FnMut(&str),
    ) -> io::Result<()> {
        loop {
            let next = match self.is_empty() && self.idle < Duration::MAX {
                true => requests.recv_timeout(self.idle),
                false => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let (request, tail) = match next {
                Ok(next) => next,
                // Nothing is loaded and nobody asks: the memory of the driver is given back too.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    stage("end");
                    return Ok(());
                }
            };
            if let Some(name) = request.stage() {
                stage(name);
            }
            // Who asked to stop meant what is over now, or asks again.
            self.pulse.stop(false);
            let (reply, tail) = match self.answer(request, tail) {
                Ok(said) => said,
                Err(error) => (Reply::Failed { why: error.into(), memory_use: self.memory_use() }, vec![]),
            };
            self.pulse.beat();
            // A parent that is gone is noticed by the next request.
            let _ = self.out.say(&reply, &tail);
        }
    }

    /// Whether nothing is loaded.
    fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.weights.is_empty() && self.sessions.is_empty()
    }

    fn memory_use(&self) -> MemoryUse {
        self.backend.as_ref().map(|backend| memory_use(&**backend)).unwrap_or_default()
    }

    fn done(&self, bytes: u64) -> Said {
        Ok((Reply::Done { bytes, memory_use: self.memory_use() }, vec![]))
    }

    fn unload(&mut self, id: u64) {
        self.sessions.remove(&id);
        self.weights.remove(&id);
        self.kept.remove(&id);
        if self.is_empty() {
            self.plan = None;
        }
    }

    fn backend(&self) -> Result<Arc<dyn Backend>, BackendError> {
        self.backend.clone().ok_or_else(|| BackendError::Setting("no device is open yet".into()))
    }

    /// The device, computing as it likes best or in 32-bit floats.
    fn in_numbers(&mut self, exact: bool) -> Result<Arc<dyn Backend>, BackendError> {
        let backend = self.backend()?;
        if !exact {
            return Ok(backend);
        }
        if self.exact.is_none() {
            self.exact = backend.in_f32();
        }
        self.exact.clone().ok_or_else(|| wrong("the device computes in 32-bit floats already, or cannot".into()))
    }

    fn answer(&mut self, request: Request, tail: Vec<u8>) -> Said {
        match request {
            Request::Open { version, build: theirs, device, options, idle_milliseconds } => {
                if version != VERSION || theirs != build() {
                    return Err(wrong(format!("a worker of {} was started by {theirs}", build())));
                }
                self.idle = Duration::from_millis(idle_milliseconds);
                let options = DeviceOptions { pulse: self.pulse.clone(), ..options };
                let backend = impasto_backend::open(&device, &options)?;
                let opened = OpenedAs::of(&*backend.profile());
                let _ = self.opened.set(Arc::downgrade(&backend));
                self.backend = Some(backend);
                let line = format!("{}: {}, open in process {}", device.name, opened.about, std::process::id());
                let _ = self.out.say(&Reply::Log(line), &[]);
                Ok((Reply::Opened(opened), vec![]))
            }
            Request::Plan { graph, plan, exact } => {
                let graph: Graph = graph.parse().map_err(|e| wrong(format!("the graph cannot be read: {e}")))?;
                let not_ours = |e| wrong(format!("the plan is none of this graph: {e}"));
                let backend = self.in_numbers(exact)?;
                plan.check(&graph, &*backend.profile()).map_err(not_ours)?;
                self.plan = Some((graph, plan, backend));
                self.done(0)
            }
            Request::Keep { id, source } => {
                let watched = self.watched(&source)?;
                let (graph, plan, backend) = self.plan.as_ref().ok_or_else(no_plan)?;
                let kept = backend.pack_on_host(graph, plan, &watched)?;
                let bytes = kept.bytes();
                self.kept.insert(id, Arc::new(kept));
                self.done(bytes)
            }
            Request::Pack { id, source, adapters } => {
                let watched = self.watched(&source)?;
                let (graph, plan, backend) = self.plan.as_ref().ok_or_else(no_plan)?;
                let weights = match adapters {
                    true => backend.pack_adapters(graph, plan, &watched)?,
                    false => backend.pack(graph, plan, &watched)?,
                };
                let bytes = weights.bytes();
                self.weights.insert(id, weights);
                self.done(bytes)
            }
            Request::Prepare { id, weights, adapters, feed } => {
                let feed = feed.map(|feed| self.source(&feed)).transpose()?;
                let (graph, plan, backend) = self.plan.as_ref().ok_or_else(no_plan)?;
                let held = |id: u64| {
                    let held = self.weights.get(&id).cloned();
                    held.ok_or_else(|| wrong("there are no such weights".into()))
                };
                let mut held = held(weights)?.with_adapters(adapters.map(held).transpose()?);
                if let Some(source) = feed {
                    held = held.fed_by(Arc::new(Watched { source, pulse: self.pulse.clone(), tell: None }));
                }
                let session = backend.prepare(graph, plan, &held)?;
                let tensor = |(name, ty): &(String, _)| (name.clone(), HostTensor::zeros(ty));
                let inputs = session.inputs().iter().map(tensor).collect();
                let outputs = session.outputs().iter().map(|(_, ty)| HostTensor::zeros(ty)).collect();
                let bytes = session.allocated_bytes();
                self.sessions.insert(id, Loaded { session, inputs, outputs, bytes: vec![] });
                self.done(bytes)
            }
            Request::Run { id, inputs, outputs } => {
                let memory = self.memory.clone();
                let loaded = self.sessions.get_mut(&id).ok_or_else(|| wrong("there is no such session".into()))?;
                let back = loaded.run(&inputs, &outputs, &tail, memory.as_deref())?;
                let streaming = loaded.session.streaming().map(|s| (s.bytes, s.copying, s.waiting));
                Ok((Reply::Ran { memory_use: self.memory_use(), streaming }, back))
            }
            Request::Times { id } => {
                let loaded = self.sessions.get(&id).ok_or_else(|| wrong("there is no such session".into()))?;
                let times = loaded.session.profile();
                Ok((Reply::Times, times.iter().flat_map(|time| time.seconds.to_le_bytes()).collect()))
            }
            Request::Peak => Ok((Reply::Peak(self.backend()?.peak_gflops()?), vec![])),
            Request::Unload { id } => {
                self.unload(id);
                self.done(0)
            }
            // The reading thread has taken them out.
            Request::Param(_) | Request::Cancel => self.done(0),
        }
    }

    /// A source that reports each parameter read to the parent.
    fn watched(&mut self, source: &ParamSource) -> Result<Watched, BackendError> {
        Ok(Watched { source: self.source(source)?, pulse: self.pulse.clone(), tell: Some(self.out.clone()) })
    }

    fn source(&mut self, source: &ParamSource) -> Result<SharedSource, BackendError> {
        Ok(match source {
            ParamSource::Origin(Origin::Files(files)) => self.files.open(files)?,
            ParamSource::Origin(Origin::Branches(branches)) => {
                Arc::new(branches.open().map_err(crate::sources::unreadable)?)
            }
            ParamSource::Origin(Origin::Packed(id)) => {
                self.kept.get(id).cloned().ok_or_else(|| wrong("no such weights are kept here".into()))?
            }
            ParamSource::Ask => Arc::new(AskParent {
                out: self.out.clone(),
                answers: self.answers.clone(),
                memory: self.memory.clone(),
            }),
        })
    }
}

impl Loaded {
    /// Runs a session and returns the tail of the answer.
    fn run(
        &mut self,
        inputs: &[Payload],
        outputs: &[Payload],
        mut tail: &[u8],
        memory: Option<&File>,
    ) -> Result<Vec<u8>, BackendError> {
        let lost = |e: io::Error| wrong(format!("the memory that both reach cannot be used: {e}"));
        if inputs.len() != self.inputs.len() || outputs.len() != self.outputs.len() {
            return Err(wrong("other tensors were given than the graph has".into()));
        }
        for (lies, (name, tensor)) in inputs.iter().zip(&mut self.inputs) {
            let bytes = tensor.ty().bytes() as usize;
            match (lies, memory) {
                (Payload::Tail, _) => {
                    let (own, rest) =
                        tail.split_at_checked(bytes).ok_or_else(|| wrong(format!("input '{name}' is cut short")))?;
                    tensor.data_mut().fill_from(own);
                    tail = rest;
                }
                (Payload::Memory(at), Some(file)) => {
                    self.bytes.resize(bytes, 0);
                    memory::read(file, *at, &mut self.bytes).map_err(lost)?;
                    tensor.data_mut().fill_from(&self.bytes);
                }
                (Payload::Memory(_), None) => return Err(wrong(format!("input '{name}' is nowhere"))),
            }
        }
        let given: Vec<(&str, &HostTensor)> = self.inputs.iter().map(|(name, tensor)| (&**name, tensor)).collect();
        self.session.run(&given, &mut self.outputs)?;
        let mut back = vec![];
        for (lies, tensor) in outputs.iter().zip(&self.outputs) {
            match (lies, memory) {
                (Payload::Memory(at), Some(file)) => {
                    self.bytes.clear();
                    tensor.data().append_to(&mut self.bytes);
                    memory::write(file, *at, &self.bytes).map_err(lost)?;
                }
                _ => tensor.data().append_to(&mut back),
            }
        }
        Ok(back)
    }
}

fn wrong(problem: String) -> BackendError {
    BackendError::Setting(problem)
}

fn no_plan() -> BackendError {
    wrong("no plan was sent".into())
}

impl Request {
    /// The stage that a request enters, where a driver may die in it.
    fn stage(&self) -> Option<&'static str> {
        match self {
            Request::Open { .. } => Some("open"),
            Request::Keep { .. } | Request::Pack { .. } => Some("load"),
            Request::Prepare { .. } => Some("prepare"),
            Request::Run { .. } => Some("run"),
            Request::Unload { .. } => Some("unload"),
            Request::Peak => Some("peak"),
            _ => None,
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::message::arbitrary::request;
    use proptest::prelude::*;
    use std::os::unix::net::UnixStream;

    /// What a worker without a device answers to these bytes, to its end.
    fn answers(bytes: Vec<u8>) -> Vec<Reply> {
        let (mut ours, theirs) = UnixStream::pair().expect("a pair");
        let served = thread::spawn(move || serve(Link { channel: theirs, memory: None }, &mut |_| {}, || {}));
        let mut from = ours.try_clone().expect("a clone");
        let write = thread::spawn(move || {
            let _ = ours.write_all(&bytes);
            let _ = ours.shutdown(std::net::Shutdown::Write);
        });
        let (mut all, mut tail) = (vec![], vec![]);
        while let Ok(reply) = frame::read::<Reply>(&mut from, &mut tail) {
            all.push(reply);
        }
        write.join().expect("it wrote");
        served.join().expect("it did not panic").expect("it ended well");
        all.retain(|reply| !matches!(reply, Reply::Beat { .. }));
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_worker_without_a_device_refuses_everything_and_never_panics(
            requests in prop::collection::vec(request(), 1..6),
            bit in prop::option::of(any::<usize>()),
        ) {
            // Not those that open a device of this machine.
            let requests: Vec<Request> = requests.into_iter().filter(|r| !matches!(r, Request::Open { .. })).collect();
            let mut bytes = vec![];
            requests.iter().for_each(|r| frame::write(&mut bytes, r, &[1, 2, 3]).expect("it can be written"));
            if let (Some(bit), false) = (bit, bytes.is_empty()) {
                let at = bit % (8 * bytes.len());
                bytes[at / 8] ^= 1 << (at % 8);
            }
            let answered = answers(bytes);
            let silent = |r: &&Request| matches!(r, Request::Param(_) | Request::Cancel);
            let asked = requests.iter().filter(|r| !silent(r)).count();
            prop_assert!(answered.len() <= asked);
            prop_assert!(bit.is_some() || answered.len() == asked);
            // What is not there can be given back.
            let unloads = requests.iter().any(|r| matches!(r, Request::Unload { .. }));
            let refused = |reply: &Reply| matches!(reply, Reply::Failed { .. });
            prop_assert!(unloads || answered.iter().all(refused), "{:?}", answered);
        }
    }
}
