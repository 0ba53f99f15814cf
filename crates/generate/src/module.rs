//! A network on a device, driven through one narrow door: load, run, unload. Host tensors go in and come out; weights never do.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use impasto_backend::{
    Backend, BackendError, HostWeights, Origin, ParamError, ParamInfo, Profile, Session, SharedSource, Streaming,
    WeightSource, Weights, WithLimits, kept_blocks,
};
use impasto_graph::{Graph, GraphError, HostTensor, Node, Op, Plan, Storage, Stream, Weight};
use impasto_model::{Model, NetworkId};
use impasto_weights::LoraBranches;

use crate::GenerateError;
use crate::pipeline::{Event, Watcher};
use crate::place::{
    Bounds, Build, CardMemory, Count, FittedModule, Home, MemoryReservation, ModulePlan, Place, Resident, SplitMode,
    WeightsKey, WorkSample, fit,
};

/// A network that cannot be built, as an error of its module.
pub(crate) fn built(module: NetworkId) -> impl Fn(GraphError) -> GenerateError {
    move |source| GenerateError::Graph { module, source }
}

/// Load a module and say how far it is.
pub(crate) fn load(module: &mut Module, watch: &mut Watcher) -> Result<(), GenerateError> {
    let (id, mut failed) = (module.id(), None);
    let loaded = module.load(&mut |stage, done, of| {
        let event = match stage {
            LoadStage::Reading => Event::Loading { module: id, done, of },
            LoadStage::Compiling => Event::Compiling { module: id, done, of },
        };
        watch(event).unwrap_or_else(|error| {
            failed = Some(error);
            false
        })
    });
    failed.map_or(loaded, Err)
}

/// What is done while a module is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadStage {
    /// Its parameters are read.
    Reading,
    /// Its kernels are compiled.
    Compiling,
}

/// Is told how much of how much of a stage is done; to answer `false` asks to stop.
pub type LoadProgress<'a> = dyn FnMut(LoadStage, u64, u64) -> bool + 'a;

/// One network, planned, and loaded when it is needed.
pub struct Module {
    id: NetworkId,
    place: Place,
    source: SharedSource,
    /// LoRAs beside its products, read and packed apart from its weights.
    branches: Option<Arc<LoraBranches>>,
    key: WeightsKey,
    fitted: Arc<FittedModule>,
    /// Tiles that one run is made of; none where it is not tiled.
    tiles: Option<u64>,
    /// Where its weights are kept.
    home: Home,
    /// Its weights in host memory, packed for the device, where they are kept so.
    host: Option<Arc<HostWeights>>,
    /// Its device, open, and what computes there.
    opened: Option<[Arc<dyn Backend>; 2]>,
    loaded: Option<Loaded>,
}

/// A module that is on its device.
struct Loaded {
    session: Box<dyn Session>,
    weights: Weights,
    adapters: Option<(u64, Weights)>,
    _held: MemoryReservation,
}

impl Module {
    /// Plan a network of a model for its place, as the first of these builds that fits, and say which that is. `shape` says what is built: the
    /// same text, the same graphs. Nothing is read or allocated, and no device opened yet.
    pub fn new(
        id: NetworkId,
        model: &Model,
        place: &Place,
        bounds: Bounds,
        shape: String,
        builds: &[&Build],
    ) -> Result<(Module, usize), GenerateError> {
        let network = model.network(id).ok_or_else(|| GenerateError::Asked(format!("this model has no {id}")))?;
        let (number, device, source) = (network.id(), place.identity(), network.source());
        let limits = place.device.limits();
        let branches = network.branches().cloned();
        let beside = branches.as_ref().map(|branches| branches.structure());
        let key = format!("{id:?} of {number} and {beside:x?}: {shape} {bounds:?} on {device} within {limits:?}");
        let fitted = place.pool().loaded().plan(key, || fit(id, &place.device, network, bounds, builds))?;
        let (home, choice) = (home(place, &fitted.plan), fitted.choice);
        let module = Module {
            id,
            place: place.clone(),
            source,
            branches,
            key: WeightsKey { id, network: number, device, home },
            fitted,
            tiles: None,
            home,
            host: None,
            opened: None,
            loaded: None,
        };
        Ok((module, choice))
    }

    /// Which network it is.
    pub fn id(&self) -> NetworkId {
        self.id
    }

    /// The opened network and the LoRAs beside it, by numbers that no others have.
    pub(crate) fn network(&self) -> (u64, Option<u64>) {
        (self.key.network, self.branches.as_ref().map(|branches| branches.id()))
    }

    /// Where it computes.
    pub fn device(&self) -> &dyn Profile {
        &*self.place.device
    }

    /// The memory of its device's card.
    pub(crate) fn card(&self) -> &CardMemory {
        self.place.card()
    }

    /// In which way it runs.
    pub fn split_mode(&self) -> SplitMode {
        if self.tiles.is_some() { SplitMode::Tiled } else { self.fitted.split_mode }
    }

    /// It computes one of so many tiles.
    pub(crate) fn tiled(self, tiles: usize) -> Module {
        Module { tiles: Some(tiles as u64), ..self }
    }

    /// What to tell the user where it does not run whole.
    pub fn note(&self) -> Option<String> {
        self.fitted.cuts.levels.first()?;
        let why = self.fitted.why.as_ref().map_or(String::new(), |why| format!(" instead of whole: {why}"));
        Some(self.way() + &why)
    }

    /// In which way it runs, in the user's words.
    pub(crate) fn way(&self) -> String {
        let (id, FittedModule { plan, cuts, .. }) = (self.id, &*self.fitted);
        let (device, numbers) = (self.device().name(), self.device().activations());
        let [arena, weights, resident] = [plan.arena_bytes(), plan.weight_bytes(), plan.device_weight_bytes()];
        let turns = match plan.stream() {
            Some(_) => format!(", {} of {} MB of weights at a time", megabytes(resident), megabytes(weights)),
            None => String::new(),
        };
        let rests = match plan.host_bytes() {
            0 => String::new(),
            bytes => format!(" with {} MB resting in host memory", megabytes(bytes)),
        };
        match cuts.levels.iter().max_by_key(|level| level.bands()) {
            Some(level) => {
                let (bands, height, arena) = (level.bands(), level.height, megabytes(arena));
                format!("{id} on {device} in {bands} bands of {height} rows and {arena} MB{rests}, exactly{turns}")
            }
            None => format!("{id} on {device} whole in {numbers} and {} MB{turns}", megabytes(arena + resident)),
        }
    }

    /// Bytes that it uses beside its weights.
    pub fn arena_bytes(&self) -> u64 {
        self.fitted.plan.arena_bytes()
    }

    /// Where its weights are kept.
    pub fn home(&self) -> Home {
        self.home
    }

    /// What it takes and how long, if it runs so often.
    pub fn report(&self, runs: u64) -> ModulePlan {
        let (device, FittedModule { plan, graph, .. }) = (self.device(), &*self.fitted);
        let weights = plan.weights().iter().map(|weight| weight.bytes).max().unwrap_or(0);
        let on_host = self.home == Home::Host;
        let report = ModulePlan {
            module: self.id.name(),
            computes_on: device.name().into(),
            weights_on: match self.home {
                Home::Runtime => device.name().into(),
                Home::Host => "cpu".into(),
                Home::Disk => "disk".into(),
            },
            weight_types: weight_types(graph, plan),
            widened: widened(graph, plan),
            weight_bytes: plan.weight_bytes(),
            lora_bytes: lora_bytes(graph, plan),
            resident_bytes: plan.device_weight_bytes(),
            streamed_bytes: plan.stream().map_or(0, Stream::streamed_bytes),
            host_bytes: plan.host_bytes() + if on_host { plan.weight_bytes() - lora_bytes(graph, plan) } else { 0 },
            arena_bytes: plan.arena_bytes(),
            largest_buffer: plan.largest_binding().max(weights),
            buffer_limit: device.limits().max_binding,
            split_mode: self.split_mode(),
            runs: runs * self.tiles.unwrap_or(1),
            flops: graph.flops(),
            kernels: kernels(graph),
            seconds: 0.0,
            measured: false,
            problem: None,
        };
        report.timed(self.place.rates())
    }

    /// Open its device; a driver that fails does so before work is spent.
    pub fn open(&mut self) -> Result<(), GenerateError> {
        if self.opened.is_none() {
            let device = self.device().name().to_owned();
            let failed = |source| GenerateError::Open { module: self.id, device, source };
            let [device, backend] = self.place.open().map_err(failed)?;
            // A device that turns out to compute in another way than it claimed is planned for anew.
            let opened = backend.profile();
            if opened.about() != self.device().about() {
                let refused = |source| GenerateError::no_plan(self.id, opened.name(), source);
                let within = WithLimits::new(opened.clone(), self.device().limits());
                let plan = Plan::streamed(&self.fitted.graph, &within).map_err(refused)?;
                self.fitted = Arc::new(FittedModule { plan, ..(*self.fitted).clone() });
            }
            self.opened = Some([device, backend]);
        }
        Ok(())
    }

    /// Bring its weights to the device and take its memory, unless it is there already. `progress` is told how far that is.
    pub fn load(&mut self, progress: &mut LoadProgress) -> Result<(), GenerateError> {
        if self.loaded.is_some() {
            return Ok(());
        }
        let weights = match self.place.pool().loaded().take(&self.key) {
            Some(Resident { fitted, session, weights, adapters, host, opened, .. }) => {
                (self.opened, self.host) = (Some(opened), host);
                let same = Arc::ptr_eq(&fitted, &self.fitted);
                if same && adapters.as_ref().map(|(id, _)| *id) == self.network().1 {
                    self.loaded = Some(Loaded { session, weights, adapters, _held: self.hold() });
                    return Ok(());
                }
                // The same weights for another size or other LoRAs, unless one of two plans streams them.
                let streams = [&fitted, &self.fitted].iter().any(|fitted| fitted.plan.stream().is_some());
                (same || !streams).then_some(weights)
            }
            None => None,
        };
        self.open()?;
        self.make_room();
        let adapters = self.pack_adapters()?;
        let prepare = |it: &Module, weights: &Weights, progress: &mut LoadProgress| {
            let adapters = adapters.as_ref().map(|(_, adapters)| adapters.clone());
            it.prepare(&weights.clone().with_adapters(adapters), progress)
        };
        let (weights, session) = match weights.map(|weights| (prepare(self, &weights, progress), weights)) {
            Some((Ok(session), weights)) => (weights, session),
            // Weights that were packed for another plan are not always those that this one needs.
            Some((Err(GenerateError::Backend { source: BackendError::Param { .. }, .. }), _)) | None => {
                let weights = self.pack(progress)?;
                let session = prepare(self, &weights, progress)?;
                (weights, session)
            }
            Some((Err(error), _)) => return Err(error),
        };
        self.loaded = Some(Loaded { session, weights, adapters, _held: self.hold() });
        Ok(())
    }

    /// Reads the LoRAs beside its products, and brings them to the device.
    fn pack_adapters(&self) -> Result<Option<(u64, Weights)>, GenerateError> {
        let (Some([_, backend]), Some(branches)) = (&self.opened, &self.branches) else { return Ok(None) };
        let FittedModule { graph, plan, .. } = &*self.fitted;
        self.place.pool().loaded().count(Count::Adapters);
        let adapters = backend.pack_adapters(graph, plan, &**branches).map_err(|error| self.failed(error))?;
        Ok(Some((branches.id(), adapters)))
    }

    /// Takes its memory on the device, and has its kernels compiled.
    fn prepare(&self, weights: &Weights, progress: &mut LoadProgress) -> Result<Box<dyn Session>, GenerateError> {
        let Some([_, backend]) = &self.opened else { return Err(self.failed(not_loaded())) };
        self.place.pool().loaded().count(Count::Prepare);
        let (begun, meter, mut stopped) = (Instant::now(), backend.meter(), false);
        let before = meter.compiled();
        // Nothing is said of a device that has nothing to compile.
        let tell = || {
            let (done, of) = (meter.compiled().saturating_sub(before), meter.wanted().saturating_sub(before));
            stopped |= of > done && !progress(LoadStage::Compiling, done, of);
        };
        let FittedModule { graph, plan, .. } = &*self.fitted;
        let session = meanwhile(tell, || backend.prepare(graph, plan, weights)).map_err(|e| self.failed(e))?;
        let (kernels, compiling) = (meter.compiled().saturating_sub(before) as f64, begun.elapsed().as_secs_f64());
        self.place.note(WorkSample { kernels, compiling, ..WorkSample::default() });
        if stopped { Err(GenerateError::Interrupted) } else { Ok(session) }
    }

    /// Reads its weights, packs them and brings those to the device that stay there.
    fn pack(&mut self, progress: &mut LoadProgress) -> Result<Weights, GenerateError> {
        let Some([_, backend]) = self.opened.clone() else { return Err(self.failed(not_loaded())) };
        let (begun, loaded) = (Instant::now(), self.place.pool().loaded());
        let FittedModule { graph, plan, .. } = &*self.fitted;
        let of = [plan.weights().iter().map(|w| graph.ty(w.value).elements()).sum(), plan.weight_bytes()];
        let watched = ProgressSource { source: &*self.source, done: AtomicU64::new(0), stop: AtomicBool::new(false) };
        let failed = |error: BackendError| match watched.stopped() {
            true => GenerateError::Interrupted,
            false => self.failed(error),
        };
        let host = match &self.host {
            Some(host) => Some(host.clone()),
            None => {
                loaded.count(Count::Load);
                let pack = || backend.pack_on_host(graph, plan, &watched);
                let packed = (self.home == Home::Host).then(|| watched.follow(of, progress, pack));
                packed.transpose().map_err(failed)?.map(Arc::new)
            }
        };
        loaded.count(Count::Pack);
        let (packed, feed) = match &host {
            Some(host) => (backend.pack(graph, plan, &**host), host.clone() as SharedSource),
            None => (watched.follow(of, progress, || backend.pack(graph, plan, &watched)), self.source.clone()),
        };
        let weights = packed.map_err(failed)?.fed_by(feed);
        self.host = host;
        let (bytes, loading) = (plan.weight_bytes() as f64, begun.elapsed().as_secs_f64());
        self.place.note(WorkSample { bytes, loading, ..WorkSample::default() });
        Ok(weights)
    }

    /// Run once; it must be loaded.
    pub fn run(&mut self, inputs: &[(&str, &HostTensor)]) -> Result<Vec<HostTensor>, GenerateError> {
        let begun = Instant::now();
        let FittedModule { graph, cuts, .. } = &*self.fitted;
        let parts = cuts.parts(inputs).map_err(built(self.id))?;
        let whole = inputs.iter().copied().filter(|(name, _)| !cuts.inputs.iter().any(|cut| cut.name == *name));
        let given: Vec<(&str, &HostTensor)> = whole.chain(parts.iter().map(|(name, part)| (&**name, part))).collect();
        let outputs = self.loaded.as_mut().ok_or_else(not_loaded).and_then(|it| it.session.run_to_new(&given));
        let outputs = match outputs {
            Ok(outputs) => outputs,
            // What was interrupted in the middle is not used again.
            Err(error) => {
                self.unload();
                return Err(self.failed(error));
            }
        };
        self.place.pool().loaded().count(Count::Run);
        if matches!(self.id, NetworkId::TextEncoder(_)) {
            self.place.pool().loaded().count(Count::Encoding);
        }
        let names = graph.outputs().iter().map(|output| &*output.name);
        let outputs = cuts.join(names, outputs).map_err(built(self.id))?;
        let (flops, computing) = (graph.flops() as f64, begun.elapsed().as_secs_f64());
        self.place.note(WorkSample { flops, computing, ..WorkSample::default() });
        if let (Some(Loaded { session, .. }), Some([device, _])) = (&self.loaded, &self.opened) {
            self.place.note_steps(self.id, &**session, device.meter());
        }
        if outputs.iter().any(|o| o.to_f32().iter().any(|v| !v.is_finite())) {
            let (device, precision) = (self.device().name().into(), self.device().activations().to_string());
            return Err(GenerateError::NotFinite { module: self.id, device, step: None, precision });
        }
        Ok(outputs)
    }

    /// What bringing weights cost in the last run, where they are streamed to the device.
    pub fn streaming(&self) -> Option<Streaming> {
        self.loaded.as_ref().and_then(|it| it.session.streaming())
    }

    /// Give back its memory on the device, weights too. The device stays open, since it will be used again.
    pub fn unload(&mut self) {
        self.loaded = None;
    }

    /// The run is done with it: it stays loaded for the next one, as long as there is room.
    pub fn give_back(&mut self) {
        let (loaded, opened) = (self.loaded.take(), self.opened.take());
        let host = self.host.take();
        if let Some(Loaded { session, weights, adapters, _held }) = loaded {
            drop(_held);
            if let Some(opened) = opened.filter(|_| self.home != Home::Disk) {
                let report = self.report(1);
                self.place.pool().loaded().give_back(Resident {
                    key: self.key.clone(),
                    fitted: self.fitted.clone(),
                    session,
                    weights,
                    adapters,
                    host,
                    opened,
                    device_bytes: report.device_bytes(),
                    host_bytes: report.host_bytes,
                    device: report.computes_on,
                    card: self.card().name.clone(),
                });
            }
        }
    }

    /// Drop all that it holds, and its device.
    pub(crate) fn drop_all(&mut self) {
        self.unload();
        (self.host, self.opened) = (None, None);
    }

    /// Idle modules of other runs make room for it, on its device and in host memory.
    fn make_room(&self) {
        let (report, device, loaded) = (self.report(1), self.device(), self.place.pool().loaded());
        let needed = report.device_bytes() + device.fixed_bytes();
        loaded.make_room(device.name(), needed, device.limits().memory);
        if self.card().name != device.name() {
            loaded.make_room(&self.card().name, needed, self.card().bytes);
        }
        if report.host_bytes > 0 {
            loaded.make_room("cpu", report.host_bytes, self.place.host().plans);
        }
    }

    /// Its memory, from now on.
    fn hold(&self) -> MemoryReservation {
        let report = self.report(1);
        let bytes = report.device_bytes();
        let card =
            Some(&self.card().name).filter(|name| **name != report.computes_on).map(|name| (name.clone(), bytes));
        let of_device = [(report.computes_on, bytes), ("cpu".into(), report.host_bytes)];
        MemoryReservation::new(self.place.pool(), of_device.into_iter().chain(card).collect())
    }

    /// Bytes that could be had of its device when it refused more.
    pub(crate) fn had(&self) -> u64 {
        self.opened.as_ref().map_or(0, |[device, _]| device.meter().had())
    }

    /// Whether it is on its device.
    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded.is_some()
    }

    fn failed(&self, source: BackendError) -> GenerateError {
        match source {
            BackendError::Interrupted { .. } => GenerateError::Interrupted,
            source => GenerateError::Backend { module: self.id, source },
        }
    }
}

fn not_loaded() -> BackendError {
    BackendError::Lost { device: "host".into(), reason: "the module was not loaded".into() }
}

fn storage(graph: &Graph, weight: &Weight) -> Option<Storage> {
    match graph.node(weight.value).op {
        Op::Param { storage, .. } => Some(storage),
        _ => None,
    }
}

/// Bytes of LoRAs beside the weights.
fn lora_bytes(graph: &Graph, plan: &Plan) -> u64 {
    let adapters = plan.weights().iter().filter(|weight| graph.is_adapter(weight.value));
    adapters.map(|weight| weight.bytes).sum()
}

/// How weights are stored, by bytes, the most first.
fn weight_types(graph: &Graph, plan: &Plan) -> Vec<&'static str> {
    let mut bytes: BTreeMap<Storage, u64> = BTreeMap::new();
    for weight in plan.weights().iter().filter(|weight| !graph.is_adapter(weight.value)) {
        if let Some(storage) = storage(graph, weight) {
            *bytes.entry(storage).or_default() += storage.bytes_of(graph.ty(weight.value).elements()).unwrap_or(0);
        }
    }
    let mut types: Vec<(Storage, u64)> = bytes.into_iter().collect();
    types.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    types.into_iter().map(|(storage, _)| storage.name()).collect()
}

/// Elements that are stored in blocks and kept as numbers.
fn widened(graph: &Graph, plan: &Plan) -> u64 {
    let in_blocks = |w: &&Weight| storage(graph, w).is_some_and(|s| !matches!(s, Storage::Dense(_)));
    let widened = plan.weights().iter().filter(in_blocks).filter(|w| kept_blocks(graph, w.value).is_none());
    widened.map(|w| graph.ty(w.value).elements()).sum()
}

/// The kernels that a graph needs, about: ops of the same kind and shape share one.
fn kernels(graph: &Graph) -> u64 {
    let of_node = |node: &Node| {
        let operands: Vec<_> = node.inputs.iter().map(|&value| graph.ty(value)).collect();
        format!("{:?} {operands:?}", node.op)
    };
    let ops = graph.nodes().iter().filter(|node| !node.inputs.is_empty());
    ops.map(of_node).collect::<BTreeSet<_>>().len() as u64
}

/// Where weights are kept: as asked for, but those that do not fit their device in host memory, and if that is the device, or is too small, in
/// their file.
fn home(place: &Place, plan: &Plan) -> Home {
    let on_cpu = place.device.name() == "cpu";
    match place.home {
        Home::Disk => Home::Disk,
        Home::Host | Home::Runtime if on_cpu => {
            if plan.stream().is_some() {
                Home::Disk
            } else {
                Home::Runtime
            }
        }
        Home::Host => Home::Host,
        Home::Runtime if plan.stream().is_none() => Home::Runtime,
        Home::Runtime => {
            if plan.weight_bytes() <= place.host().plans {
                Home::Host
            } else {
                Home::Disk
            }
        }
    }
}

/// How often progress is told while parameters are read.
const TICK: Duration = Duration::from_millis(20);

/// Works on another thread, and tells meanwhile, on this one, how far that is.
fn meanwhile<T: Send>(mut tell: impl FnMut(), work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let (done, ended) = mpsc::channel::<()>();
        let working = scope.spawn(move || {
            let _done = done;
            work()
        });
        while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            tell();
        }
        tell();
        working.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Parameters that are counted as they are read, by whichever threads read them.
struct ProgressSource<'a> {
    source: &'a dyn WeightSource,
    done: AtomicU64,
    stop: AtomicBool,
}

impl ProgressSource<'_> {
    /// Loads on another thread and says meanwhile, on this one, how many of the bytes of all elements are read.
    fn follow<T: Send>(
        &self,
        [elements, bytes]: [u64; 2],
        progress: &mut LoadProgress,
        load: impl FnOnce() -> T + Send,
    ) -> T {
        let tell = || {
            let share = self.done.load(Ordering::Relaxed).min(elements) as f64 / elements.max(1) as f64;
            if !progress(LoadStage::Reading, (share * bytes as f64) as u64, bytes) {
                self.stop.store(true, Ordering::Relaxed);
            }
        };
        meanwhile(tell, load)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl WeightSource for ProgressSource<'_> {
    fn describe(&self, name: &str) -> Result<ParamInfo, ParamError> {
        self.source.describe(name)
    }

    fn row_scales(&self, name: &str) -> Result<Option<Vec<f32>>, ParamError> {
        self.source.row_scales(name)
    }

    fn read_into(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), ParamError> {
        self.source.read_into(name, offset, out)
    }

    fn in_memory(&self, name: &str) -> Option<&[u8]> {
        self.source.in_memory(name)
    }

    fn check(&self) -> Result<(), ParamError> {
        self.source.check()
    }

    fn packed(&self, name: &str) -> Option<&[u8]> {
        self.source.packed(name)
    }

    fn host_mapped(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.source.host_mapped()
    }

    fn origin(&self) -> Option<Origin> {
        self.source.origin()
    }

    fn was_read(&self, _: &str, elements: u64) -> Result<(), ParamError> {
        self.done.fetch_add(elements, Ordering::Relaxed);
        match self.stopped() {
            true => Err(ParamError::Interrupted { reader: "host".into() }),
            false => Ok(()),
        }
    }
}

/// Bytes as millions, with a digit more where there are few.
pub(crate) fn megabytes(bytes: u64) -> String {
    let millions = bytes as f64 / 1e6;
    if millions < 9.95 { format!("{millions:.1}") } else { format!("{millions:.0}") }
}
