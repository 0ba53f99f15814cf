//! Where modules compute and keep their weights.
//!
//! The way: what was written (`assignment`, `budget`) and the devices that are here (`machine`) give each module a device and a home for its
//! weights (`resolve`), or ours is the choice (`auto`). `fit` finds how a module fits a device, `pool` opens devices when they are
//! needed, `report` says it all beforehand.

mod assignment;
mod auto;
mod budget;
mod fit;
mod imagined;
mod machine;
mod names;
mod pool;
mod rates;
mod report;
mod resolve;
mod times;

use std::sync::Arc;

use impasto_backend::{Backend, BackendError, Profile, Session};

pub use assignment::{Assignment, AssignmentError, Of, Problem};
pub use auto::place;
pub use budget::{Amount, Budget};
pub use fit::{Bounds, Build, Fitted, Rung, fit};
pub use imagined::imagine;
pub use machine::{FreeMemory, Machine, OpenDevice, Use};
pub use names::ModuleName;
pub use pool::{Open, Pool};
pub(crate) use rates::Spent;
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
    pool: Arc<Pool>,
    rates: Rates,
    book: Arc<RateBook>,
}

impl Place {
    /// On a device that is open.
    pub fn on(backend: &Arc<dyn Backend>, home: Home) -> Place {
        let held = backend.clone();
        Place {
            device: backend.clone(),
            home,
            pool: Pool::new(move |_| Ok(held.clone())),
            rates: Rates { flops: 1e11, load: 1e9, measured: false },
            book: Arc::default(),
        }
    }

    /// The device, opened if nobody has it open.
    pub(crate) fn open(&self) -> Result<Arc<dyn Backend>, BackendError> {
        self.pool.get(self.device.name())
    }

    /// Another device of the same machine, with the weights where it computes.
    pub(crate) fn instead(&self, name: &str) -> Result<Place, BackendError> {
        let device = self.pool.get(name)?;
        Ok(Place { device, home: Home::Runtime, ..self.clone() })
    }

    /// How fast it is there.
    pub(crate) fn rates(&self) -> Rates {
        self.rates
    }

    /// Note where the time of a run of a module went, if anybody wants to know.
    pub(crate) fn note_steps(&self, module: &'static str, session: &dyn Session) {
        self.book.times.note(module, self.device.name(), || session.profile());
    }

    /// Note what was done there, for the estimates of later runs.
    pub(crate) fn note(&self, spent: Spent) {
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
}

/// The modules that every model has, in the order in which they run.
pub const MODULES: [ModuleName; 3] = [ModuleName::Te, ModuleName::Diffusion, ModuleName::Vae];

impl Placement {
    /// Everything on one device that is open.
    pub fn on(backend: &Arc<dyn Backend>) -> Placement {
        let place = Place::on(backend, Home::Runtime);
        Placement { te: place.clone(), diffusion: place.clone(), vae: place, reasons: vec![], notes: vec![] }
    }

    /// From here on, add up where the time goes.
    pub fn measure(&self) {
        self.te.book.times.begin();
    }

    /// Where the time went since [`Placement::measure`], what took longest first.
    pub fn times(&self) -> Vec<OpTime> {
        self.te.book.times.all()
    }

    /// Write down how fast its devices were, for the estimates of later runs.
    pub fn keep_rates(&self) {
        self.te.book.keep();
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
