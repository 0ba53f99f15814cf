//! A network on a device, driven through one narrow door: load, run, unload. Host tensors go in and come out; weights never do.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use impasto_backend::{Backend, BackendError, ParamBytes, Session, WeightSource};
use impasto_graph::{Graph, GraphError, HostTensor, Plan, Storage};
use impasto_model::Numbers;

use crate::GenerateError;
use crate::pipeline::{Event, Watcher};

/// The element types of a network on a device.
pub(crate) fn numbers(backend: &dyn Backend, storage: Storage) -> Numbers {
    Numbers { storage, activations: backend.activations() }
}

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
    backend: Arc<dyn Backend>,
    source: Arc<dyn WeightSource>,
    graph: Graph,
    plan: Plan,
    session: Option<Box<dyn Session>>,
}

impl Module {
    /// Plan a network for a device. Nothing is read or allocated yet.
    pub fn new(
        name: &'static str,
        backend: &Arc<dyn Backend>,
        source: Arc<dyn WeightSource>,
        graph: Graph,
    ) -> Result<Module, GenerateError> {
        let plan = Plan::new(&graph, &**backend).map_err(|source| GenerateError::Plan {
            module: name,
            device: backend.name().into(),
            source,
        })?;
        Ok(Module { name, backend: backend.clone(), source, graph, plan, session: None })
    }

    /// What users call it: `te`, `diffusion`, `vae`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Bytes of everything that it needs while it runs.
    pub fn bytes(&self) -> u64 {
        self.plan.weight_bytes() + self.plan.arena_bytes()
    }

    /// Bring its weights to the device and take its memory. `progress` hears how many of how many bytes are read; it may ask to
    /// stop by returning `false`.
    pub fn load(&mut self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<(), GenerateError> {
        if self.session.is_some() {
            return Ok(());
        }
        let of = self.plan.weights().iter().map(|w| self.graph.ty(w.value).elements()).sum();
        let watched = Watched {
            source: &*self.source,
            done: Cell::new(0),
            of,
            progress: RefCell::new(progress),
            stopped: Cell::new(false),
        };
        let packed = self.backend.pack(&self.graph, &self.plan, &watched);
        if watched.stopped.get() {
            return Err(GenerateError::Interrupted);
        }
        let session = packed.and_then(|weights| self.backend.prepare(&self.graph, &self.plan, &weights));
        self.session = Some(session.map_err(|e| self.failed(e))?);
        Ok(())
    }

    /// Run once; it must be loaded.
    pub fn run(&mut self, inputs: &[(&str, &HostTensor)]) -> Result<Vec<HostTensor>, GenerateError> {
        let lost = || BackendError::Lost { device: "host".into(), reason: "the module was not loaded".into() };
        let outputs = self.session.as_mut().ok_or_else(lost).and_then(|s| s.run_to_new(inputs));
        let outputs = outputs.map_err(|e| self.failed(e))?;
        if outputs.iter().any(|o| o.to_f32().iter().any(|v| !v.is_finite())) {
            let precision = self.backend.activations().to_string();
            return Err(GenerateError::NotFinite { module: self.name, step: None, precision });
        }
        Ok(outputs)
    }

    /// Give back its memory, weights too.
    pub fn unload(&mut self) {
        self.session = None;
    }

    fn failed(&self, source: BackendError) -> GenerateError {
        GenerateError::Backend { module: self.name, source }
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
        self.done.set(self.done.get() + given.shape.iter().product::<usize>() as u64);
        if !(self.progress.borrow_mut())(self.done.get(), self.of) {
            self.stopped.set(true);
            return Err(BackendError::Param { name: name.into(), problem: "was not read: interrupted".into() });
        }
        Ok(given)
    }

    fn release(&self, name: &str) {
        self.source.release(name);
    }
}
