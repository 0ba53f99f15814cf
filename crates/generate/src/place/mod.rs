//! Where modules compute and keep their weights.
//!
//! The way: what was written (`assignment`, `budget`) and the devices that are here (`machine`) give each module a device and a home for its
//! weights (`resolve`), or ours is the choice (`auto`). `fit` finds how a module fits a device, `pool` opens devices when they are
//! needed, `report` says it all beforehand.

mod assignment;
mod auto;
mod budget;
mod card;
mod fit;
mod host;
mod imagined;
mod learned;
mod loaded;
mod machine;
mod names;
mod pool;
mod rates;
mod report;
mod resolve;
mod times;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use impasto_backend::{Backend, BackendError, Profile, Session, WithLimits};
use impasto_graph::Meter;
use impasto_model::{Model, NetworkId};

use crate::{GenerateError, Job};

pub use assignment::{Assignment, AssignmentError, Of, Problem};
pub use auto::place;
pub use budget::{Amount, Budget};
pub(crate) use card::CardMemory;
pub use fit::{Bounds, Build, FittedModule, SplitMode, fit};
pub use host::HostBudget;
pub use imagined::imagine;
pub(crate) use learned::Learned;
pub use loaded::Work;
pub(crate) use loaded::{Count, MemoryReservation, Resident, WeightsKey};
pub use machine::{FreeMemory, Machine, MachineOptions, OpenDevice};
pub use names::ModuleName;
pub use pool::{Open, Pool};
pub(crate) use rates::WorkSample;
pub use rates::{RateBook, Rates};
pub use report::{DevicePeak, ModulePlan, RunPlan};
pub use resolve::{Home, Request};
pub use times::OpTime;

/// Where one module computes and keeps its weights.
#[derive(Clone)]
pub struct Place {
    /// The device, as planning sees it.
    pub device: Arc<dyn Profile>,
    /// Where its weights are kept.
    pub home: Home,
    /// It computes in 32-bit floats, whatever the device prefers.
    exact: bool,
    /// The memory of its card.
    card: CardMemory,
    /// The memory of the host, which weights and activations may rest in wherever it computes.
    host: HostBudget,
    pool: Arc<Pool>,
    rates: Rates,
    book: Arc<RateBook>,
}

impl Place {
    /// On a device that is open.
    pub fn on(backend: &Arc<dyn Backend>, home: Home) -> Place {
        let (held, device) = (backend.clone(), backend.profile());
        Place {
            card: CardMemory::of(&*device),
            device,
            home,
            exact: false,
            host: HostBudget {
                plans: impasto_device::cpu::memory().map_or(u64::MAX, |memory| memory.limit),
                process: 0,
            },
            pool: Pool::new(Duration::ZERO, move |_| Ok(held.clone())),
            rates: Rates { flops: 1e11, load: 1e9, compile: 0.0, measured: false },
            book: Arc::default(),
        }
    }

    /// The same, planned for as if its device were this one.
    #[must_use]
    pub fn as_if(self, device: Arc<dyn Profile>) -> Place {
        Place { card: CardMemory::of(&*device), device, ..self }
    }

    /// The device, opened if nobody has it open, and what computes there, which is the same unless it is to be exact.
    pub(crate) fn open(&self) -> Result<[Arc<dyn Backend>; 2], BackendError> {
        let device = self.pool.get(self.device.name())?;
        let exact = if self.exact { device.in_f32() } else { None };
        Ok([device.clone(), exact.unwrap_or(device)])
    }

    /// The device as it is used here: two places with the same one pack the same weights, and within the same limits plan the same.
    pub(crate) fn identity(&self) -> String {
        let device = &self.device;
        format!("{} ({}){}", device.name(), device.about(), if self.exact { " in f32" } else { "" })
    }

    /// The memory of its card.
    pub(crate) fn card(&self) -> &CardMemory {
        &self.card
    }

    /// The memory of the host.
    pub(crate) fn host(&self) -> HostBudget {
        self.host
    }

    /// The devices that are open.
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The same device with what was learned of it.
    pub(crate) fn with(mut self, learned: &Learned, module: ModuleName) -> Place {
        let name = self.device.name().to_owned();
        if learned.is_in_f32(module, &name)
            && let Some(exact) = self.device.profile_in_f32()
        {
            (self.device, self.exact) = (exact, true);
        }
        if let Some(limits) = learned.limits(&name) {
            self.device = Arc::new(WithLimits::new(self.device, limits));
        }
        self
    }

    /// How fast it is there.
    pub(crate) fn rates(&self) -> Rates {
        self.rates
    }

    /// Note where the time of a run of a module went and what its device has given, if anybody wants to know.
    pub(crate) fn note_steps(&self, module: NetworkId, session: &dyn Session, meter: &Meter) {
        self.book.times.note(module.name(), self.device.name(), || session.profile(), meter.peak());
    }

    /// Note what was done there, for the estimates of later runs.
    pub(crate) fn note(&self, spent: WorkSample) {
        self.book.note(&self.device.about(), spent);
    }
}

/// Where the modules of a run compute and keep their weights.
#[derive(Clone)]
pub struct Placement {
    /// The text encoders.
    pub te: Place,
    /// The diffusion model.
    pub diffusion: Place,
    /// The autoencoder.
    pub vae: Place,
    /// Why it is so, a line each.
    pub reasons: Vec<String>,
    /// What the user should know, a line each.
    pub notes: Vec<String>,
    /// What was asked for and where, which says where else a module may go.
    rules: Option<(Request, Machine)>,
}

impl std::fmt::Debug for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = MODULES.into_iter().filter_map(|module| Some((module.name(), self.of(module)?.device.name())));
        f.debug_map().entries(names).finish()
    }
}

/// The modules that every model has, in the order in which they run.
pub const MODULES: [ModuleName; 3] = [ModuleName::Te, ModuleName::Diffusion, ModuleName::Vae];

impl Placement {
    /// Everything on one device that is open.
    pub fn on(backend: &Arc<dyn Backend>) -> Placement {
        let place = Place::on(backend, Home::Runtime);
        Placement::of_each(place.clone(), place.clone(), place)
    }

    /// Each module at its place, with no other to go to.
    pub fn of_each(te: Place, diffusion: Place, vae: Place) -> Placement {
        Placement { te, diffusion, vae, reasons: vec![], notes: vec![], rules: None }
    }

    /// Another place for a module: where it would have been put if the devices that cannot have it were not here.
    pub(crate) fn elsewhere(
        &self,
        job: &Job,
        model: &Model,
        module: ModuleName,
        learned: &Learned,
    ) -> Result<Option<Place>, GenerateError> {
        match &self.rules {
            Some((request, machine)) => auto::elsewhere(job, model, request, machine, module, learned),
            None => Ok(None),
        }
    }

    /// From here on, add up where the time goes.
    pub fn measure(&self) {
        self.te.book.times.begin();
    }

    /// Where the time went since [`Placement::measure`], what took longest first.
    pub fn times(&self) -> Vec<OpTime> {
        self.te.book.times.all()
    }

    /// The most bytes that were allocated of each device at once since then, by name: [`RunPlan`] has what was planned.
    pub fn allocated_peaks(&self) -> BTreeMap<String, u64> {
        self.te.book.times.peaks()
    }

    /// Write down how fast its devices were, for the estimates of later runs.
    pub fn keep_rates(&self) {
        self.te.book.keep();
    }

    /// A module is here from now on.
    pub(crate) fn put(&mut self, module: ModuleName, place: Place) {
        match module {
            ModuleName::Te => self.te = place,
            ModuleName::Diffusion => self.diffusion = place,
            _ => self.vae = place,
        }
    }

    /// Where a module is; none of those that no model has yet.
    pub fn of(&self, module: ModuleName) -> Option<&Place> {
        match module {
            ModuleName::Te => Some(&self.te),
            ModuleName::Diffusion => Some(&self.diffusion),
            ModuleName::Vae => Some(&self.vae),
            _ => None,
        }
    }
}
