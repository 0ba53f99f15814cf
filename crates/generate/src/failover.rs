//! When a device fails in the middle of a run: what it held is given back, the modules that were on it are planned anew, in less memory, in
//! 32-bit floats or on another device, and the piece of work that failed is done again. What was finished before stays finished.

use impasto_backend::BackendError;

use crate::GenerateError;
use crate::module::Module;
use crate::networks::Networks;
use crate::pipeline::{Event, Watcher, tell};
use crate::place::{Learned, MODULES, ModuleName, Place, SplitMode};

/// Networks that go on where others would give up.
pub(crate) struct FailoverNetworks<'a> {
    networks: Networks<'a>,
    learned: Learned,
    /// What has failed so far, a line each.
    failures: Vec<String>,
}

/// What went wrong with a device.
enum Failure {
    /// It has less memory than it said, and refused so many bytes.
    Full { refused: u64 },
    /// It is gone, or never came.
    Gone { reason: String },
    /// It cannot do this.
    Unable,
    /// It gave NaN or infinity.
    Wrong,
}

/// A failure that another way, or another device, may help against, and whose it was.
fn failure(error: &GenerateError) -> Option<(ModuleName, Failure)> {
    let (module, failure) = match error {
        GenerateError::Open { module, source, .. } => (module, Failure::Gone { reason: source.to_string() }),
        GenerateError::NotFinite { module, .. } => (module, Failure::Wrong),
        GenerateError::Backend { module, source } => match source {
            BackendError::Exhausted { bytes, .. } => (module, Failure::Full { refused: *bytes }),
            BackendError::Lost { reason, .. } => (module, Failure::Gone { reason: reason.clone() }),
            BackendError::Unsupported { .. } => (module, Failure::Unable),
            BackendError::Param { .. }
            | BackendError::File(_)
            | BackendError::Io { .. }
            | BackendError::Interrupted { .. }
            | BackendError::Setting(_) => return None,
        },
        _ => return None,
    };
    Some((ModuleName::from(*module), failure))
}

impl<'a> std::ops::Deref for FailoverNetworks<'a> {
    type Target = Networks<'a>;

    fn deref(&self) -> &Networks<'a> {
        &self.networks
    }
}

impl std::ops::DerefMut for FailoverNetworks<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.networks
    }
}

impl<'a> FailoverNetworks<'a> {
    pub fn new(networks: Networks<'a>) -> FailoverNetworks<'a> {
        FailoverNetworks { networks, learned: Learned::default(), failures: vec![] }
    }

    /// A piece of work, done again after each failure that there is a remedy for.
    pub fn work<T>(
        &mut self,
        watch: &mut Watcher,
        mut piece: impl FnMut(&mut Networks<'a>, &mut Watcher) -> Result<T, GenerateError>,
    ) -> Result<T, GenerateError> {
        loop {
            match piece(&mut self.networks, watch) {
                Ok(done) => return Ok(done),
                Err(error) => self.remedy(error, watch)?,
            }
        }
    }

    /// Plan anew what a failure concerns. An error that cannot be helped comes back, with what was tried before.
    fn remedy(&mut self, error: GenerateError, watch: &mut Watcher) -> Result<(), GenerateError> {
        let Some((module, failure)) = failure(&error) else { return Err(error) };
        let Some(device) = self.networks.places.of(module).map(|place| place.device.name().to_owned()) else {
            return Err(error);
        };
        // What was begun elsewhere goes on in 32-bit floats, so that the picture stays the one that was begun.
        let exact = !matches!(failure, Failure::Unable) && !matches!(error, GenerateError::Open { .. });
        let mut anew = String::new();
        let concerned = match failure {
            Failure::Full { refused } => {
                self.fuller(module, &device, refused);
                vec![module]
            }
            Failure::Gone { reason } => {
                if self.gone(module, &device, &reason) {
                    anew = format!("; {device} is opened anew");
                }
                self.on(&device)
            }
            Failure::Unable => {
                self.learned.refuse(module, &device);
                vec![module]
            }
            Failure::Wrong => {
                let place = self.networks.places.of(module);
                if place.is_some_and(|place| place.device.profile_in_f32().is_some()) {
                    self.learned.in_f32(module, &device);
                } else if self.learned.refused(module) == 0 {
                    self.learned.refuse(module, &device);
                } else {
                    // Two devices agree: it is the model.
                    return Err(self.ended(error));
                }
                vec![module]
            }
        };
        let before: Vec<Vec<String>> = concerned.iter().map(|&module| self.networks.ways(module)).collect();
        // All that they hold goes first, and is not held beside what comes instead.
        self.networks.modules_mut().filter(|(of, _)| concerned.contains(of)).for_each(|(_, module)| module.drop_all());
        for &module in &concerned {
            match self.place_anew(module, exact) {
                Ok(true) => {}
                Ok(false) => return Err(self.ended(error)),
                Err(other) => return Err(other),
            }
        }
        // Those that go on as they were going to are not worth a word.
        let after = concerned.iter().zip(before).map(|(&of, before)| (of, before, self.networks.ways(of)));
        let changed = after.filter(|(of, before, after)| *of == module || before != after);
        let ways: Vec<String> = changed.flat_map(|(_, _, ways)| ways).collect();
        let line = format!("{error}{anew}; going on: {}", ways.join("; "));
        self.failures.push(error.to_string());
        tell(watch, Event::Note(&line))
    }

    /// The modules on a device that are still needed.
    fn on(&self, device: &str) -> Vec<ModuleName> {
        let mut on: Vec<ModuleName> =
            self.networks.modules().filter(|(_, m)| m.device().name() == device).map(|(of, _)| of).collect();
        on.dedup();
        on
    }

    /// A device has refused memory that was planned.
    fn fuller(&mut self, module: ModuleName, device: &str, refused: u64) {
        let here = || self.networks.modules().filter(|(_, m)| m.device().name() == device);
        let Some((_, failed)) = here().find(|(of, _)| *of == module) else { return };
        let bytes = |(_, m): (ModuleName, &Module)| m.report(1).device_bytes();
        let others: u64 = here().filter(|(of, m)| m.is_loaded() && *of != module).map(bytes).sum();
        let own = here().filter(|(of, _)| *of == module).map(bytes).max().unwrap_or(0);
        let planned = failed.device().fixed_bytes() + others + own;
        self.learned.fuller(device, failed.device().limits(), planned, failed.had(), refused);
    }

    /// A device is lost. Nothing of it is used again, unless it can be opened anew, and then once: whether it is.
    fn gone(&mut self, module: ModuleName, device: &str, reason: &str) -> bool {
        let places = &self.networks.places;
        let reopens =
            places.of(module).is_some_and(|place| place.pool().reopens(device)) && self.learned.reopen(device);
        for place in MODULES.into_iter().filter_map(|module| places.of(module)) {
            match reopens {
                true => place.pool().forget(device),
                false => place.pool().fail(device, reason),
            }
        }
        reopens
    }

    /// Plan a module anew: where it was if that device may still have it, else on the next that takes it, in 32-bit floats if `exact`. `false` if
    /// there is none.
    fn place_anew(&mut self, module: ModuleName, exact: bool) -> Result<bool, GenerateError> {
        let Networks { job, model, places, .. } = &self.networks;
        let stays = |place: &&Place| {
            let name = place.device.name();
            self.learned.allows(module, name) && place.pool().failure(name).is_none()
        };
        let may_leave = module != ModuleName::Vae || job.split.allows(SplitMode::Elsewhere);
        let (job, model) = (*job, *model);
        let mut next = places.of(module).filter(stays).map(|place| place.clone().with(&self.learned, module));
        loop {
            let place = match next.take() {
                Some(place) => place,
                None if !may_leave => return Ok(false),
                None => match self.networks.places.elsewhere(job, model, module, &self.learned)? {
                    Some(place) if exact => {
                        self.learned.in_f32(module, place.device.name());
                        place.with(&self.learned, module)
                    }
                    Some(place) => place,
                    None => return Ok(false),
                },
            };
            let name = place.device.name().to_owned();
            match self.networks.put(module, place) {
                Ok(()) => return Ok(true),
                // A plan that the device cannot have, or a driver that does not open: the next one may.
                Err(error @ (GenerateError::Plan { .. } | GenerateError::Refused(_) | GenerateError::Open { .. })) => {
                    if let GenerateError::Open { source, .. } = &error {
                        self.gone(module, &name, &source.to_string());
                    }
                    self.learned.refuse(module, &name);
                    self.failures.push(error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The last error, with what was tried before.
    fn ended(&self, error: GenerateError) -> GenerateError {
        match self.failures.is_empty() {
            true => error,
            false => GenerateError::Tried { last: Box::new(error), before: self.failures.clone() },
        }
    }
}
