//! The engine: the devices of a machine, the models that are open and the modules that are loaded, for any number of jobs.
//!
//! A second picture of the same model loads, packs, plans and compiles nothing. Modules of several models share the budgets of their devices:
//! the least recently used give way, by exact bytes, and idle ones leave after `keep_alive`. Runs that meet queue for their devices.

mod devices;

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use impasto_model::{Model, ModelError, ModelPaths};

pub use devices::{BackendOptions, EngineOptions, imagined_machine, machine, open_device, probe_hook, survey_options};

use crate::picture::Picture;
use crate::pipeline::{self, Event, Watcher, tell};
use crate::place::{MODULES, Machine, Placement, RunPlan, Work, place};
use crate::run_files::RunFiles;
use crate::{GenerateError, Job, Run, overview};
use devices::Devices;

/// Devices, open models and loaded modules. Cheap to clone; clones are the same engine.
///
/// ```no_run
/// use impasto_generate::{Engine, EngineOptions, Event, Job, settings::Settings};
/// use impasto_model::ModelPaths;
///
/// let engine = Engine::new(EngineOptions::default());
/// let model = engine.open(&ModelPaths { model: Some("model.safetensors".into()), ..ModelPaths::default() })?;
/// let mut settings = Settings::default();
/// settings.set("prompt", "a lighthouse at dawn")?;
/// let job = Job::new(&settings, &model)?;
/// engine.run(&job, &mut |event| {
///     if let Event::Picture { picture, seed, .. } = event {
///         println!("{}x{} from seed {seed}", picture.width, picture.height);
///     }
///     Ok(true) // false asks to stop
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    devices: Devices,
    /// Models that somebody has open, by what was named.
    models: Mutex<Vec<(ModelPaths, Weak<Model>)>>,
    /// Devices that runs compute on now.
    busy: Mutex<HashSet<String>>,
    freed: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// An engine for the devices of this machine. Drivers are asked in child processes, from now on, beside whatever comes next; no device is
    /// opened yet.
    pub fn new(options: EngineOptions) -> Engine {
        Engine::of(Devices::ask(options))
    }

    /// An engine for the devices of a machine that is known.
    pub fn on(machine: Machine) -> Engine {
        Engine::of(Devices::known(machine))
    }

    fn of(devices: Devices) -> Engine {
        let (models, busy, freed) = (Mutex::default(), Mutex::default(), Condvar::new());
        Engine(Arc::new(Inner { devices, models, busy, freed }))
    }

    /// Opens a model: recognised and checked, nothing loaded. One that is open and whose files are the same is not opened again.
    pub fn open(&self, paths: &ModelPaths) -> Result<Arc<Model>, GenerateError> {
        self.open_with(paths, || Model::open(paths))
    }

    /// The same for a model that is opened in a way of its own, such as one inside a program.
    pub fn open_with(
        &self,
        paths: &ModelPaths,
        open: impl FnOnce() -> Result<Model, ModelError>,
    ) -> Result<Arc<Model>, GenerateError> {
        let mut models = lock(&self.0.models);
        models.retain(|(_, model)| model.strong_count() > 0);
        let known = models.iter().find(|(known, _)| known == paths).and_then(|(_, model)| model.upgrade());
        if let Some(model) = known.filter(|model| model.is_unchanged()) {
            return Ok(model);
        }
        models.retain(|(known, _)| known != paths);
        let model = Arc::new(open()?);
        models.push((paths.clone(), Arc::downgrade(&model)));
        Ok(model)
    }

    /// The devices, once the survey is done.
    pub fn machine(&self) -> Result<&Machine, GenerateError> {
        self.0.devices.machine()
    }

    /// Lines to tell the user of the devices: drivers that went wrong, GPUs that cannot be used.
    pub fn device_notes(&self) -> Result<&[String], GenerateError> {
        self.0.devices.notes()
    }

    /// Where the modules of a job would compute and keep their weights.
    pub fn place(&self, job: &Job) -> Result<Placement, GenerateError> {
        place(job, self.machine()?)
    }

    /// What a job would take, where, and how long. Opens no device, and of the model's files needs headers only.
    pub fn plan(&self, job: &Job) -> Result<RunPlan, GenerateError> {
        overview::plan(job, &self.place(job)?)
    }

    /// Makes the pictures of a job, or the rest of them where it resumes a run. Its state is saved after each step if it writes files.
    pub fn run(&self, job: &Job, watch: &mut Watcher) -> Result<(), GenerateError> {
        let mut files = job.files()?;
        let places = self.placed(job, watch)?;
        let _turn = self.turn(&places, watch)?;
        let done = pipeline::run(job, &places, job.resume.clone(), &mut |event| match (event, &mut files) {
            (Event::State(run), Some(files)) => match files.save(run)? {
                Some(warning) => watch(Event::Warning(&warning)),
                None => Ok(true),
            },
            (Event::Picture { picture, seed, parameters, .. }, Some(files)) => {
                let file = files.write(picture, parameters)?;
                watch(Event::Picture { picture, seed, parameters, file: Some(&file) })
            }
            (event, _) => watch(event),
        });
        match (&done, &mut files) {
            (Ok(()), _) => places.keep_rates(),
            (Err(_), Some(files)) => told_of_failure(files, watch),
            (Err(_), None) => {}
        }
        self.keep();
        done
    }

    /// Only the picture of a saved run as it stands.
    pub fn decode(&self, job: &Job, run: &Run, watch: &mut Watcher) -> Result<Picture, GenerateError> {
        let places = self.placed(job, watch)?;
        let _turn = self.turn(&places, watch)?;
        let picture = pipeline::decode(job, &places, run, watch);
        self.keep();
        picture
    }

    /// How often networks were planned, loaded, packed, prepared and run so far, and how many kernels were compiled for the devices that are open.
    pub fn work(&self) -> Work {
        let Some(machine) = self.0.devices.known_machine() else { return Work::default() };
        Work { compilations: machine.pool().compiled(), ..machine.pool().loaded().work() }
    }

    /// Bytes that idle modules hold on a device.
    pub fn idle_bytes(&self, device: &str) -> u64 {
        self.0.devices.known_machine().map_or(0, |machine| machine.pool().loaded().idle_bytes(device))
    }

    /// Lets go of every idle module.
    pub fn unload(&self) {
        if let Some(machine) = self.0.devices.known_machine() {
            machine.pool().loaded().clear();
        }
    }

    /// Places a job and says where.
    fn placed(&self, job: &Job, watch: &mut Watcher) -> Result<Placement, GenerateError> {
        for note in self.device_notes()? {
            tell(watch, Event::Device(note))?;
        }
        let places = self.place(job)?;
        if job.profile {
            places.measure();
        }
        tell(watch, Event::Placed(&places))?;
        Ok(places)
    }

    /// Waits until no other run computes on these devices.
    fn turn(&self, places: &Placement, watch: &mut Watcher) -> Result<Turn<'_>, GenerateError> {
        let places = MODULES.iter().filter_map(|&module| places.of(module));
        let devices: HashSet<String> = places.map(|place| place.device.name().to_owned()).collect();
        let mut busy = lock(&self.0.busy);
        // All of them at once: who waits holds none, so that nobody waits for ever.
        while !busy.is_disjoint(&devices) {
            let waited = self.0.freed.wait_timeout(busy, Duration::from_millis(200));
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            tell(watch, Event::Working("waiting for another run"))?;
            busy = lock(&self.0.busy);
        }
        busy.extend(devices.iter().cloned());
        Ok(Turn { inner: &self.0, devices })
    }

    /// Idle modules leave in time, also if nobody asks for anything again.
    fn keep(&self) {
        let Some(machine) = self.0.devices.known_machine() else { return };
        if machine.pool().loaded().start_expiring() {
            let pool = Arc::downgrade(machine.pool());
            let watch = move || {
                while let Some(pool) = pool.upgrade() {
                    let Some(next) = pool.loaded().expire() else { return };
                    drop(pool);
                    thread::sleep(next.max(Duration::from_millis(10)));
                }
            };
            // Without a thread they leave when their memory is needed.
            let _ = thread::Builder::new().name("keep-alive".into()).spawn(watch);
        }
    }
}

/// A run's turn on its devices.
struct Turn<'a> {
    inner: &'a Inner,
    devices: HashSet<String>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.inner.busy).retain(|device| !self.devices.contains(device));
        self.inner.freed.notify_all();
    }
}

/// Says how a run that has failed can be resumed. Who does not listen any more changes nothing.
fn told_of_failure(files: &mut RunFiles, watch: &mut Watcher) {
    let (warning, state) = files.failed();
    if let Some(warning) = warning {
        let _ = watch(Event::Warning(&warning));
    }
    if let Some(state) = state {
        let _ = watch(Event::Resumable(state));
    }
}
