//! Modules that stay loaded between runs: their packed weights and sessions, until their memory is needed or they were idle for too long.
//!
//! A run takes what it needs out of here, and gives it back when it is done with it. What is here is idle, and the least recently used give way,
//! by exact bytes. Plans are kept beside them: the same module of the same size on the same device is planned once.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use impasto_backend::{Backend, HostWeights, Session, Weights};
use impasto_model::{Condition, NetworkId};
use serde::Serialize;

use super::fit::FittedModule;
use super::pool::Pool;
use super::resolve::Home;
use crate::GenerateError;

/// Plans of so many modules are kept; more are forgotten all at once, since planning again costs milliseconds.
const MOST_PLANS: usize = 256;
/// Prompts that are not encoded again: a person goes back and forth between a few.
const MOST_CONDITIONS: usize = 16;

/// What stays for longer stays until its memory is needed.
const FOR_EVER: Duration = Duration::from_secs(1 << 32);

/// How often work was done that a second picture does not need.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    plans: AtomicU64,
    loads: AtomicU64,
    packs: AtomicU64,
    adapters: AtomicU64,
    prepares: AtomicU64,
    runs: AtomicU64,
    encodings: AtomicU64,
}

/// How often an engine has done what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Work {
    /// Networks planned.
    pub plans: u64,
    /// Networks whose weights were read from their files.
    pub loads: u64,
    /// Networks whose weights were packed for a device, or brought there.
    pub packs: u64,
    /// Networks for which branches of LoRAs were read and packed.
    pub adapters: u64,
    /// Networks for which a device was prepared: memory taken, commands recorded.
    pub prepares: u64,
    /// Kernels that drivers have compiled, or found in their caches.
    pub compilations: u64,
    /// Runs of networks.
    pub runs: u64,
    /// Runs of text encoders among them.
    pub encodings: u64,
}

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    Plan,
    Load,
    Pack,
    Adapters,
    Prepare,
    Run,
    Encoding,
}

impl Counters {
    fn of(&self, what: Count) -> &AtomicU64 {
        match what {
            Count::Plan => &self.plans,
            Count::Load => &self.loads,
            Count::Pack => &self.packs,
            Count::Adapters => &self.adapters,
            Count::Prepare => &self.prepares,
            Count::Run => &self.runs,
            Count::Encoding => &self.encodings,
        }
    }
}

/// Which weights a module computes with, and packed for what.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WeightsKey {
    /// What it is in its model.
    pub id: NetworkId,
    /// The opened network, by a number that no other has.
    pub network: u64,
    /// The device, by what it says of itself: its name, what it computes in, its budget.
    pub device: String,
    /// Where the weights are kept.
    pub home: Home,
}

/// A module on its device, with everything that it takes to run.
pub(crate) struct Resident {
    pub key: WeightsKey,
    /// The plan that the session was prepared for.
    pub fitted: Arc<FittedModule>,
    pub session: Box<dyn Session>,
    pub weights: Weights,
    /// Branches of LoRAs beside them, with the number that no others have.
    pub adapters: Option<(u64, Weights)>,
    /// Its weights in host memory, packed for the device, where they are kept so.
    pub host: Option<Arc<HostWeights>>,
    /// Its device, open, and what computes there.
    pub opened: [Arc<dyn Backend>; 2],
    /// The device's name and its card's, and the bytes that it holds there and in host memory beside it.
    pub device: String,
    pub card: String,
    pub device_bytes: u64,
    pub host_bytes: u64,
}

impl Resident {
    /// Bytes that it holds of a device, or of a card by all its names.
    fn bytes_on(&self, name: &str) -> u64 {
        let host = if name == "cpu" { self.host_bytes } else { 0 };
        host + if self.device == name || self.card == name { self.device_bytes } else { 0 }
    }
}

/// Bytes of devices and cards that a run holds, until it is dropped.
pub(crate) struct MemoryReservation {
    pool: Arc<Pool>,
    bytes: Vec<(String, u64)>,
}

impl MemoryReservation {
    pub fn new(pool: &Arc<Pool>, bytes: Vec<(String, u64)>) -> MemoryReservation {
        let mut held = lock(&pool.loaded().held);
        bytes.iter().for_each(|(device, bytes)| *held.entry(device.clone()).or_default() += bytes);
        drop(held);
        MemoryReservation { pool: pool.clone(), bytes }
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        let mut held = lock(&self.pool.loaded().held);
        for (device, bytes) in &self.bytes {
            if let Some(held) = held.get_mut(device) {
                *held = held.saturating_sub(*bytes);
            }
        }
    }
}

/// The modules of all models that are loaded and idle, and the plans of those that were.
#[derive(Default)]
pub(crate) struct LoadedModules {
    /// How long idle modules stay; none at all where it is zero.
    keep_alive: Duration,
    idle: Mutex<Vec<(Instant, Resident)>>,
    /// Bytes that runs hold now, by device and by card.
    held: Mutex<HashMap<String, u64>>,
    plans: Mutex<HashMap<String, Arc<FittedModule>>>,
    /// What the latest prompts became, the most recent last.
    conditions: Mutex<VecDeque<(String, Vec<Condition>)>>,
    /// Somebody calls [`LoadedModules::expire`] in time.
    expiring: AtomicBool,
    counters: Counters,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LoadedModules {
    pub fn new(keep_alive: Duration) -> LoadedModules {
        LoadedModules { keep_alive, ..LoadedModules::default() }
    }

    /// Whether idle modules stay at all.
    pub fn keeps(&self) -> bool {
        !self.keep_alive.is_zero()
    }

    pub fn count(&self, what: Count) {
        self.counters.of(what).fetch_add(1, Ordering::Relaxed);
    }

    /// How often what was done so far.
    pub fn work(&self) -> Work {
        let of = |what: Count| self.counters.of(what).load(Ordering::Relaxed);
        Work {
            plans: of(Count::Plan),
            loads: of(Count::Load),
            packs: of(Count::Pack),
            adapters: of(Count::Adapters),
            prepares: of(Count::Prepare),
            compilations: 0,
            runs: of(Count::Run),
            encodings: of(Count::Encoding),
        }
    }

    /// The plan of a module, made if it was not made before.
    pub fn plan(
        &self,
        key: String,
        make: impl FnOnce() -> Result<FittedModule, GenerateError>,
    ) -> Result<Arc<FittedModule>, GenerateError> {
        if let Some(known) = lock(&self.plans).get(&key) {
            return Ok(known.clone());
        }
        let fitted = Arc::new(make()?);
        self.count(Count::Plan);
        let mut plans = lock(&self.plans);
        if plans.len() >= MOST_PLANS {
            plans.clear();
        }
        plans.insert(key, fitted.clone());
        Ok(fitted)
    }

    /// What a prompt became, encoded if it is not among the latest ones.
    pub fn conditions(
        &self,
        key: String,
        encode: impl FnOnce() -> Result<Vec<Condition>, GenerateError>,
    ) -> Result<Vec<Condition>, GenerateError> {
        let mut known = lock(&self.conditions);
        if let Some(at) = known.iter().position(|(known, _)| *known == key) {
            let found = known.remove(at);
            known.extend(found);
            return Ok(known.back().map(|(_, conditions)| conditions.clone()).unwrap_or_default());
        }
        drop(known);
        let conditions = encode()?;
        if self.keeps() {
            let mut known = lock(&self.conditions);
            known.push_back((key, conditions.clone()));
            let more = known.len().saturating_sub(MOST_CONDITIONS);
            known.drain(..more);
        }
        Ok(conditions)
    }

    /// Takes out the module with these weights, if it is here.
    pub fn take(&self, key: &WeightsKey) -> Option<Resident> {
        let mut idle = lock(&self.idle);
        let at = idle.iter().position(|(_, resident)| resident.key == *key)?;
        Some(idle.remove(at).1)
    }

    /// A run is done with a module: it stays, as the most recently used, or goes where nothing stays.
    pub fn give_back(&self, resident: Resident) {
        if self.keeps() {
            lock(&self.idle).push((Instant::now(), resident));
        }
    }

    /// Lets idle modules go, the least recently used first, until a device of `limit` bytes has room for `bytes` beside what runs hold.
    pub fn make_room(&self, device: &str, bytes: u64, limit: u64) {
        let held = lock(&self.held).get(device).copied().unwrap_or(0);
        let mut idle = lock(&self.idle);
        let mut sum: u64 = idle.iter().map(|(_, resident)| resident.bytes_on(device)).sum();
        while held.saturating_add(bytes).saturating_add(sum) > limit {
            let Some(at) = idle.iter().position(|(_, resident)| resident.bytes_on(device) > 0) else { return };
            sum -= idle.remove(at).1.bytes_on(device);
        }
    }

    /// Lets everything of a device go: it was lost, or is wanted for something else.
    pub fn forget_device(&self, device: &str) {
        lock(&self.idle).retain(|(_, resident)| resident.device != device);
    }

    /// Whether somebody should begin to call [`LoadedModules::expire`]: something is idle, and nobody does yet.
    pub fn start_expiring(&self) -> bool {
        let idle = lock(&self.idle);
        !idle.is_empty() && self.keep_alive < FOR_EVER && !self.expiring.swap(true, Ordering::Relaxed)
    }

    /// Lets go what was idle for too long. When to call again; not at all where nothing is left.
    pub fn expire(&self) -> Option<Duration> {
        let mut idle = lock(&self.idle);
        idle.retain(|(since, _)| since.elapsed() < self.keep_alive);
        let oldest = idle.iter().map(|(since, _)| since.elapsed()).max();
        self.expiring.store(oldest.is_some(), Ordering::Relaxed);
        oldest.map(|oldest| self.keep_alive.saturating_sub(oldest))
    }

    /// Lets everything go.
    pub fn clear(&self) {
        lock(&self.idle).clear();
    }

    /// Bytes that all modules hold of a device, or of a card.
    pub fn bytes_on(&self, name: &str) -> u64 {
        lock(&self.held).get(name).copied().unwrap_or(0) + self.idle_bytes(name)
    }

    /// Bytes that idle modules hold of a device.
    pub fn idle_bytes(&self, device: &str) -> u64 {
        lock(&self.idle).iter().map(|(_, resident)| resident.bytes_on(device)).sum()
    }
}
