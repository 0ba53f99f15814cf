//! The choice where nobody has made one: each module where it will be done soonest.
//!
//! Modules run one after the other and can make room for each other, so each is placed for itself.

use std::sync::Arc;

use impasto_backend::WithLimits;
use impasto_device::{Api, DeviceInfo, DeviceKind};
use impasto_graph::Limits;
use impasto_model::Model;

use super::card::share;
use super::machine::Machine;
use super::names::ModuleName;
use super::rates::Rates;
use super::resolve::{Home, Request, Wish};
use super::{AssignmentError, Learned, MODULES, Place, Placement};
use crate::{GenerateError, Job, overview};

/// A device for each module: as asked for, or where it will be done soonest.
pub fn place(job: &Job, machine: &Machine) -> Result<Placement, GenerateError> {
    let (model, request) = (&*job.model, &job.request);
    request.check(machine)?;
    let (mut reasons, mut notes, mut places) = (vec![], vec![], vec![]);
    let learned = Learned::default();
    for module in MODULES {
        let mut wish = request.runtime(machine, module)?;
        if let Wish::Device(name) = &wish
            && let Some(why) = machine.pool().failure(name)
        {
            notes.push(format!("{module} not on {name}, which has failed: {why}"));
            wish = Wish::Auto;
        }
        let place = match wish {
            Wish::Device(name) => {
                let device = machine.devices().iter().find(|device| device.name == name);
                let device = device.ok_or_else(|| GenerateError::Asked(format!("there is no device {name}")))?;
                reasons.push(format!("{module}: {name}, as asked for"));
                let place = at(job, machine, request.home(machine, module, device)?, device)?;
                notes.extend(slower_than_cpu(machine, device, &place).filter(|note| !notes.contains(note)));
                place
            }
            wish => {
                let may = machine.candidates().map(|(device, _)| device);
                let may = may.filter(|device| wish != Wish::Gpu || device.is_gpu()).collect();
                let home = |device: &DeviceInfo| request.home(machine, module, device);
                let (place, why) = choose(job, model, &home, machine, module, may, &learned)?;
                reasons.extend(why);
                place
            }
        };
        places.push(place);
    }
    share(&mut places);
    let lacks = |module: ModuleName| format!("this model has no {module}: what was said of it is not used");
    notes.extend(request.missing(&MODULES).into_iter().map(lacks));
    let [te, diffusion, vae] = [0, 1, 2].map(|i| places[i].clone());
    Ok(Placement { te, diffusion, vae, reasons, notes, rules: Some((request.clone(), machine.clone())) })
}

/// Another device for a module whose own has failed: the soonest of those that may have it, whatever was asked for. None if there is none.
pub(super) fn elsewhere(
    job: &Job,
    model: &Model,
    request: &Request,
    machine: &Machine,
    module: ModuleName,
    learned: &Learned,
) -> Result<Option<Place>, GenerateError> {
    let may = machine.candidates().map(|(device, _)| device);
    let may: Vec<&DeviceInfo> = may.filter(|device| learned.allows(module, &device.name)).collect();
    if may.is_empty() {
        return Ok(None);
    }
    // Weights that were to be on a device that has failed are where the module computes.
    let home = |device: &DeviceInfo| Ok(request.home(machine, module, device).unwrap_or_default());
    choose(job, model, &home, machine, module, may, learned).map(|(place, _)| Some(place))
}

/// What to say of a device that was named and is slower than the CPU, as its kind or earlier runs tell.
fn slower_than_cpu(machine: &Machine, device: &DeviceInfo, place: &Place) -> Option<String> {
    let name = &device.name;
    if device.kind == DeviceKind::Software {
        return Some(format!(
            "{name} ({}) is a software rasteriser: it computes on the CPU, slower than --backend cpu, and first compiles every kernel",
            device.label
        ));
    }
    let cpu = machine.devices().iter().find(|other| other.api == Api::Cpu && device.api != Api::Cpu)?;
    let (here, there) = (place.rates, machine.rates(cpu, &*machine.profile(cpu).ok()?));
    let slower = here.measured && there.measured && here.flops < there.flops;
    let giga = |rates: Rates| rates.flops / 1e9;
    slower.then(|| {
        format!(
            "{name} is slower than the CPU here: {:.0} against {:.0} GFLOP/s in earlier runs",
            giga(here),
            giga(there)
        )
    })
}

/// A module of a job on a device.
fn at(job: &Job, machine: &Machine, home: Home, device: &DeviceInfo) -> Result<Place, GenerateError> {
    let mut profile = machine.profile(device).map_err(|why| GenerateError::Asked(format!("{}: {why}", device.name)))?;
    let (rates, book, host) = (machine.rates(device, &*profile), machine.book().clone(), machine.host(job));
    let limits = profile.limits();
    if device.api == Api::Cpu && host.plans < limits.memory {
        profile = Arc::new(WithLimits::new(profile, Limits { memory: host.plans, ..limits }));
    }
    Ok(Place {
        device: profile,
        home,
        exact: false,
        card: machine.card(device),
        host,
        pool: machine.pool().clone(),
        rates,
        book,
    })
}

/// The device on which a module will be done soonest, and why.
fn choose(
    job: &Job,
    model: &Model,
    home: &dyn Fn(&DeviceInfo) -> Result<Home, AssignmentError>,
    machine: &Machine,
    module: ModuleName,
    may: Vec<&DeviceInfo>,
    learned: &Learned,
) -> Result<(Place, Vec<String>), GenerateError> {
    let at =
        |device: &DeviceInfo| Ok::<_, GenerateError>(at(job, machine, home(device)?, device)?.with(learned, module));
    if let [device] = may.as_slice() {
        return Ok((at(device)?, vec![format!("{module}: {}, the only device that it can be on", device.name)]));
    }
    let mut reasons = vec![];
    let mut best: Option<(f64, Place)> = None;
    let mut refused = None;
    for device in may {
        let place = at(device)?;
        let name = &device.name;
        match overview::seconds(job, model, module, &place) {
            Ok(seconds) => {
                let source = if place.rates.measured { "by earlier runs" } else { "estimated by its class" };
                reasons.push(format!("{module}: {name} would take {seconds:.1} s ({source})"));
                if best.as_ref().is_none_or(|(least, _)| seconds < *least) {
                    best = Some((seconds, place));
                }
            }
            Err(error @ GenerateError::Plan { .. }) => {
                reasons.push(format!("{module}: not on {name}: {error}"));
                refused = Some((place, error));
            }
            Err(error) => return Err(error),
        }
    }
    match (best, refused) {
        (Some((_, place)), _) => {
            reasons.push(format!("{module}: {}, the soonest", place.device.name()));
            Ok((place, reasons))
        }
        // It fits nowhere: the plan says so with what it needs.
        (None, Some((place, _))) => Ok((place, reasons)),
        (None, None) => Err(GenerateError::Asked("no device is here that can be computed on".into())),
    }
}
