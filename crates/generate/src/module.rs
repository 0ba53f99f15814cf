//! A network on a device, driven through one narrow door: load, run, unload. Host tensors go in and come out; weights never do.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Instant;

use impasto_backend::{
    Backend, BackendError, HostWeights, Origin, ParamBytes, Profile, Session, SharedSource, Streaming, WeightSource,
    Within,
};
use impasto_graph::{Cuts, Graph, GraphError, HostTensor, Plan, PlanError, Storage, Stream};

use crate::GenerateError;
use crate::pipeline::{Event, Watcher};
use crate::place::{Bounds, Build, Fitted, Home, ModulePlan, Place, Rung, Spent, fit};

/// A network that cannot be built, as an error of its module.
pub(crate) fn built(module: &'static str) -> impl Fn(GraphError) -> GenerateError {
    move |source| GenerateError::Graph { module, source }
}

/// Load a module and say how far it is.
pub(crate) fn load(module: &mut Module, watch: &mut Watcher) -> Result<(), GenerateError> {
    let (name, mut failed) = (module.name(), None);
    let loaded = module.load(&mut |done, of| match watch(Event::Loading { module: name, done, of }) {
        Ok(go_on) => go_on,
        Err(error) => {
            failed = Some(error);
            false
        }
    });
    failed.map_or(loaded, Err)
}

/// One network, planned, and loaded when it is needed.
pub struct Module {
    name: &'static str,
    place: Place,
    source: SharedSource,
    graph: Graph,
    plan: Plan,
    rung: Rung,
    /// How it was cut, where it is in bands.
    cuts: Cuts,
    /// Why a better way does not fit.
    why: Option<PlanError>,
    /// Tiles that one run is made of.
    tiles: u64,
    /// Where its weights are kept.
    home: Home,
    /// Its weights in host memory, packed for the device, where they are kept so.
    host: Option<Arc<HostWeights>>,
    /// Its device, open, and what computes there.
    opened: Option<[Arc<dyn Backend>; 2]>,
    session: Option<Box<dyn Session>>,
}

impl Module {
    /// Plan a network for its place, as the first of these builds that fits. Nothing is read or allocated, and no device opened yet.
    pub fn new(
        name: &'static str,
        place: &Place,
        source: SharedSource,
        storage: Storage,
        bounds: Bounds,
        builds: &[&Build],
    ) -> Result<(Module, usize), GenerateError> {
        let Fitted { graph, plan, rung, choice, cuts, why } = fit(name, &place.device, storage, bounds, builds)?;
        let (place, home) = (place.clone(), home(place, &plan));
        let module = Module {
            name,
            place,
            source,
            graph,
            plan,
            rung,
            cuts,
            why,
            tiles: 1,
            home,
            host: None,
            opened: None,
            session: None,
        };
        Ok((module, choice))
    }

    /// The same with one build.
    pub fn of(
        name: &'static str,
        place: &Place,
        source: SharedSource,
        storage: Storage,
        bounds: Bounds,
        build: &Build,
    ) -> Result<Module, GenerateError> {
        Ok(Module::new(name, place, source, storage, bounds, &[build])?.0)
    }

    /// What users call it: `te`, `diffusion`, `vae`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Where it computes.
    pub fn device(&self) -> &dyn Profile {
        &*self.place.device
    }

    /// In which way it runs.
    pub fn rung(&self) -> Rung {
        self.rung
    }

    /// It computes one of so many tiles.
    pub(crate) fn tiled(self, tiles: usize) -> Module {
        Module { rung: Rung::Tiled, tiles: tiles as u64, ..self }
    }

    /// What to tell the user where it does not run whole.
    pub fn note(&self) -> Option<String> {
        self.cuts.levels.first()?;
        let why = self.why.as_ref().map_or(String::new(), |why| format!(" instead of whole: {why}"));
        Some(self.way() + &why)
    }

    /// In which way it runs, in the user's words.
    pub(crate) fn way(&self) -> String {
        let Module { name, plan, .. } = self;
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
        match self.cuts.levels.iter().max_by_key(|level| level.bands()) {
            Some(level) => {
                let (bands, height, arena) = (level.bands(), level.height, megabytes(arena));
                format!("{name} on {device} in {bands} bands of {height} rows and {arena} MB{rests}, exactly{turns}")
            }
            None => format!("{name} on {device} whole in {numbers} and {} MB{turns}", megabytes(arena + resident)),
        }
    }

    /// Bytes that it uses beside its weights.
    pub fn arena_bytes(&self) -> u64 {
        self.plan.arena_bytes()
    }

    /// Where its weights are kept.
    pub fn home(&self) -> Home {
        self.home
    }

    /// What it takes and how long, if it runs so often.
    pub fn report(&self, runs: u64) -> ModulePlan {
        let device = self.device();
        let weights = self.plan.weights().iter().map(|weight| weight.bytes).max().unwrap_or(0);
        let on_host = self.home == Home::Host;
        let report = ModulePlan {
            module: self.name,
            computes_on: device.name().into(),
            weights_on: match self.home {
                Home::Runtime => device.name().into(),
                Home::Host => "cpu".into(),
                Home::Disk => "disk".into(),
            },
            weight_bytes: self.plan.weight_bytes(),
            resident_bytes: self.plan.device_weight_bytes(),
            streamed_bytes: self.plan.stream().map_or(0, Stream::streamed_bytes),
            host_bytes: self.plan.host_bytes() + if on_host { self.plan.weight_bytes() } else { 0 },
            arena_bytes: self.plan.arena_bytes(),
            largest_buffer: self.plan.largest_binding().max(weights),
            buffer_limit: device.limits().max_binding,
            rung: self.rung,
            runs: runs * self.tiles,
            flops: self.graph.flops(),
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
            let failed = |source| GenerateError::Open { module: self.name, device, source };
            let [device, backend] = self.place.open().map_err(failed)?;
            // A device that turns out to compute in another way than it claimed is planned for anew.
            if backend.about() != self.device().about() {
                let refused = |source| GenerateError::Plan { module: self.name, device: backend.name().into(), source };
                let within = Within::new(backend.clone(), self.device().limits());
                self.plan = Plan::streamed(&self.graph, &within).map_err(refused)?;
            }
            self.opened = Some([device, backend]);
        }
        Ok(())
    }

    /// Bring its weights to the device and take its memory. `progress` hears how many of how many bytes are read; it may ask to
    /// stop by returning `false`.
    pub fn load(&mut self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<(), GenerateError> {
        if self.session.is_some() {
            return Ok(());
        }
        self.open()?;
        let Some([_, backend]) = self.opened.clone() else { return Ok(()) };
        let begun = Instant::now();
        let of = self.plan.weights().iter().map(|w| self.graph.ty(w.value).elements()).sum();
        let watched = Watched {
            source: &*self.source,
            done: Cell::new(0),
            of,
            progress: RefCell::new(progress),
            stopped: Cell::new(false),
        };
        if self.home == Home::Host && self.host.is_none() {
            let packed = backend.pack_on_host(&self.graph, &self.plan, &watched);
            if watched.stopped.get() {
                return Err(GenerateError::Interrupted);
            }
            self.host = Some(Arc::new(packed.map_err(|e| self.failed(e))?));
        }
        let (packed, feed) = match &self.host {
            Some(host) => (backend.pack(&self.graph, &self.plan, &**host), host.clone() as SharedSource),
            None => (backend.pack(&self.graph, &self.plan, &watched), self.source.clone()),
        };
        if watched.stopped.get() {
            return Err(GenerateError::Interrupted);
        }
        let weights = packed.map_err(|e| self.failed(e))?.fed_by(feed);
        let (bytes, loading) = (self.plan.weight_bytes() as f64, begun.elapsed().as_secs_f64());
        self.place.note(Spent { bytes, loading, ..Spent::default() });
        let session = backend.prepare(&self.graph, &self.plan, &weights);
        self.session = Some(session.map_err(|e| self.failed(e))?);
        Ok(())
    }

    /// Run once; it must be loaded.
    pub fn run(&mut self, inputs: &[(&str, &HostTensor)]) -> Result<Vec<HostTensor>, GenerateError> {
        let lost = || BackendError::Lost { device: "host".into(), reason: "the module was not loaded".into() };
        let begun = Instant::now();
        let parts = self.cuts.parts(inputs).map_err(built(self.name))?;
        let whole = inputs.iter().copied().filter(|(name, _)| !self.cuts.inputs.iter().any(|cut| cut.name == *name));
        let given: Vec<(&str, &HostTensor)> = whole.chain(parts.iter().map(|(name, part)| (&**name, part))).collect();
        let outputs = self.session.as_mut().ok_or_else(lost).and_then(|s| s.run_to_new(&given));
        let outputs = outputs.map_err(|e| self.failed(e))?;
        let names = self.graph.outputs().iter().map(|output| &*output.name);
        let outputs = self.cuts.join(names, outputs).map_err(built(self.name))?;
        let (flops, computing) = (self.graph.flops() as f64, begun.elapsed().as_secs_f64());
        self.place.note(Spent { flops, computing, ..Spent::default() });
        if let Some(session) = &self.session {
            self.place.note_steps(self.name, &**session);
        }
        if outputs.iter().any(|o| o.to_f32().iter().any(|v| !v.is_finite())) {
            let (device, precision) = (self.device().name().into(), self.device().activations().to_string());
            return Err(GenerateError::NotFinite { module: self.name, device, step: None, precision });
        }
        Ok(outputs)
    }

    /// What bringing weights cost in the last run, where they take turns on the device.
    pub fn streaming(&self) -> Option<Streaming> {
        self.session.as_ref().and_then(|session| session.streaming())
    }

    /// Give back its memory on the device, weights too. The device stays open, since it will be used again.
    pub fn unload(&mut self) {
        self.session = None;
    }

    /// Give back all that it holds, and its device.
    pub(crate) fn let_go(&mut self) {
        (self.session, self.host, self.opened) = (None, None, None);
    }

    /// Bytes that could be had of its device when it refused more.
    pub(crate) fn had(&self) -> u64 {
        self.opened.as_ref().map_or(0, |[device, _]| device.meter().had())
    }

    /// Whether it is on its device.
    pub(crate) fn is_loaded(&self) -> bool {
        self.session.is_some()
    }

    fn failed(&self, source: BackendError) -> GenerateError {
        match source {
            BackendError::Interrupted { .. } => GenerateError::Interrupted,
            source => GenerateError::Backend { module: self.name, source },
        }
    }
}

/// Where weights are kept: as asked for, but those that do not fit their device in host memory, and if that is the device, or is too small, in
/// their file.
fn home(place: &Place, plan: &Plan) -> Home {
    let on_cpu = place.device.name() == "cpu";
    let host = || impasto_device::cpu::memory().map_or(u64::MAX, |memory| memory.limit);
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
            if plan.weight_bytes() <= host() {
                Home::Host
            } else {
                Home::Disk
            }
        }
    }
}

/// Parameters that are counted as they are read.
struct Watched<'a> {
    source: &'a dyn WeightSource,
    done: Cell<u64>,
    of: u64,
    progress: RefCell<&'a mut dyn FnMut(u64, u64) -> bool>,
    stopped: Cell<bool>,
}

impl WeightSource for Watched<'_> {
    fn read(&self, name: &str) -> Result<ParamBytes<'_>, BackendError> {
        let given = self.source.read(name)?;
        self.was_read(name, given.shape.iter().product::<usize>() as u64)?;
        Ok(given)
    }

    fn origin(&self) -> Option<Origin> {
        self.source.origin()
    }

    fn was_read(&self, name: &str, elements: u64) -> Result<(), BackendError> {
        self.done.set(self.done.get() + elements);
        if !(self.progress.borrow_mut())(self.done.get(), self.of) {
            self.stopped.set(true);
            return Err(BackendError::Param { name: name.into(), problem: "was not read: interrupted".into() });
        }
        Ok(())
    }

    fn release(&self, name: &str) {
        self.source.release(name);
    }
}

/// Bytes as millions, with a digit more where there are few.
pub(crate) fn megabytes(bytes: u64) -> String {
    let millions = bytes as f64 / 1e6;
    if millions < 9.95 { format!("{millions:.1}") } else { format!("{millions:.0}") }
}
