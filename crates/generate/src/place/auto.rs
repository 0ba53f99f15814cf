//! The choice where nobody has made one: each module where it will be done soonest.
//!
//! Modules run one after the other and can make room for each other, so each is placed for itself.

use impasto_device::DeviceInfo;
use impasto_model::Model;

use super::machine::Machine;
use super::names::ModuleName;
use super::resolve::{Request, Wish};
use super::{MODULES, Place, Placement};
use crate::{GenerateError, Job, overview};

/// A device for each module: as asked for, or where it will be done soonest.
pub fn place(job: &Job, model: &Model, request: &Request, machine: &Machine) -> Result<Placement, GenerateError> {
    request.check(machine)?;
    let (mut reasons, mut places) = (vec![], vec![]);
    for module in MODULES {
        let place = match request.runtime(machine, module)? {
            Wish::Device(name) => {
                let device = machine.devices().iter().find(|device| device.name == name);
                let device = device.ok_or_else(|| GenerateError::Asked(format!("there is no device {name}")))?;
                reasons.push(format!("{module}: {name}, as asked for"));
                at(machine, request, module, device)?
            }
            wish => choose(job, model, request, machine, module, &wish, &mut reasons)?,
        };
        places.push(place);
    }
    let lacks = |module: ModuleName| format!("this model has no {module}: what was said of it is not used");
    let notes = request.missing(&MODULES).into_iter().map(lacks).collect();
    let [te, diffusion, vae] = [0, 1, 2].map(|i| places[i].clone());
    Ok(Placement { te, diffusion, vae, reasons, notes })
}

/// A module on a device.
fn at(machine: &Machine, request: &Request, module: ModuleName, device: &DeviceInfo) -> Result<Place, GenerateError> {
    let home = request.home(machine, module, device)?;
    let profile = machine.profile(device).map_err(|why| GenerateError::Asked(format!("{}: {why}", device.name)))?;
    let (rates, book) = (machine.rates(device, &*profile), machine.book().clone());
    Ok(Place { device: profile, home, pool: machine.pool().clone(), rates, book })
}

/// The device on which a module will be done soonest.
fn choose(
    job: &Job,
    model: &Model,
    request: &Request,
    machine: &Machine,
    module: ModuleName,
    wish: &Wish,
    reasons: &mut Vec<String>,
) -> Result<Place, GenerateError> {
    let may = machine.candidates().filter(|(device, _)| *wish != Wish::Gpu || device.is_gpu());
    let may: Vec<&DeviceInfo> = may.map(|(device, _)| device).collect();
    if let [device] = may.as_slice() {
        reasons.push(format!("{module}: {}, the only device that it can be on", device.name));
        return at(machine, request, module, device);
    }
    let mut best: Option<(f64, Place)> = None;
    let mut refused = None;
    for device in may {
        let place = at(machine, request, module, device)?;
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
            Ok(place)
        }
        // It fits nowhere: the plan says so with what it needs.
        (None, Some((place, _))) => Ok(place),
        (None, None) => Err(GenerateError::Asked("no device is here that can be computed on".into())),
    }
}
