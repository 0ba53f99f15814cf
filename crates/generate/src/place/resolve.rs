//! From what was written to the devices that are here.

use impasto_device::{Api, DeviceInfo, DeviceKind, Standing};

use super::assignment::{Assignment, AssignmentError, Item, Of, Problem};
use super::machine::Machine;
use super::names::{ModuleName, nearest};
use crate::settings::Settings;

/// Where a module is to compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Wherever it is fastest.
    Auto,
    /// On the GPU on which it is fastest.
    Gpu,
    /// On this device.
    Device(String),
}

/// Where a module's weights are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Home {
    /// Where it computes.
    #[default]
    Runtime,
    /// In host memory, and brought to the device for use.
    Host,
    /// In the file, for as long as the module does not compute.
    Disk,
}

/// What the user says of where things go.
#[derive(Clone, Debug)]
pub struct Request {
    runtime: Assignment,
    weights: Assignment,
}

impl Default for Request {
    /// Everything where it is done soonest.
    fn default() -> Request {
        Request { runtime: Assignment::empty(Of::Runtime), weights: Assignment::empty(Of::Weights) }
    }
}

impl Request {
    /// What settings say. Flags that stand for an item stand before what was written.
    pub fn new(settings: &Settings) -> Result<Request, AssignmentError> {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let mut runtime = Assignment::parse(Of::Runtime, &text(&settings.backend))?;
        let mut weights = Assignment::parse(Of::Weights, &text(&settings.params_backend))?;
        for (given, module) in [(settings.clip_on_cpu, ModuleName::Te), (settings.vae_on_cpu, ModuleName::Vae)] {
            if given == Some(true) {
                runtime = runtime.behind(Some(module), "cpu");
            }
        }
        if settings.offload_to_cpu == Some(true) {
            weights = weights.behind(None, "cpu");
        }
        Ok(Request { runtime, weights })
    }

    /// The APIs that must be asked to know what is meant: none where everything is on the CPU, all where the choice is ours.
    pub fn apis(&self, modules: &[ModuleName]) -> Vec<Api> {
        let mut apis = vec![];
        for &module in modules {
            match self.runtime.device(module) {
                Some("cpu") => {}
                Some(name) => match Api::DRIVEN.iter().find(|api| name.starts_with(api.name())) {
                    Some(&api) => apis.push(api),
                    None => apis.extend(Api::DRIVEN),
                },
                None => apis.extend(Api::DRIVEN),
            }
        }
        apis.extend(Api::DRIVEN.into_iter().filter(|api| self.names(*api)));
        apis.sort();
        apis.dedup();
        apis
    }

    /// Whether a device of this API is named.
    pub fn names(&self, api: Api) -> bool {
        self.runtime.devices().chain(self.weights.devices()).any(|name| name.starts_with(api.name()))
    }

    /// Whether any of these modules is to be placed by us.
    pub fn leaves_a_choice(&self, modules: &[ModuleName]) -> bool {
        let ours =
            |module: &ModuleName| matches!(self.runtime.device(*module), None | Some("" | "auto" | "default" | "gpu"));
        modules.iter().any(ours)
    }

    /// Modules that are placed and that the model does not have.
    pub(super) fn missing(&self, has: &[ModuleName]) -> Vec<ModuleName> {
        let mut named: Vec<ModuleName> =
            self.runtime.modules().chain(self.weights.modules()).filter(|m| !has.contains(m)).collect();
        named.sort();
        named.dedup();
        named
    }

    /// Every item must mean something, also one that another covers.
    pub(super) fn check(&self, machine: &Machine) -> Result<(), AssignmentError> {
        for assignment in [&self.runtime, &self.weights] {
            for item in assignment.items() {
                wish(machine, assignment, item)?;
            }
        }
        Ok(())
    }

    /// Where a module is to compute.
    pub(super) fn runtime(&self, machine: &Machine, module: ModuleName) -> Result<Wish, AssignmentError> {
        self.runtime.item_of(module).map_or(Ok(Wish::Auto), |item| wish(machine, &self.runtime, item))
    }

    /// Where the weights of a module that computes on `runtime` are kept.
    pub(super) fn home(
        &self,
        machine: &Machine,
        module: ModuleName,
        runtime: &DeviceInfo,
    ) -> Result<Home, AssignmentError> {
        let Some(item) = self.weights.item_of(module) else { return Ok(Home::Runtime) };
        if item.device == "disk" {
            return Ok(Home::Disk);
        }
        let apart = || self.weights.wrong(item.span.clone(), Problem::Apart { module, runtime: runtime.name.clone() });
        match wish(machine, &self.weights, item)? {
            Wish::Auto => Ok(Home::Runtime),
            Wish::Gpu if runtime.is_gpu() => Ok(Home::Runtime),
            Wish::Device(name) if name == runtime.name => Ok(Home::Runtime),
            Wish::Device(name) if name == "cpu" => Ok(Home::Host),
            Wish::Gpu | Wish::Device(_) => Err(apart()),
        }
    }
}

/// What an item means here.
fn wish(machine: &Machine, assignment: &Assignment, item: &Item) -> Result<Wish, AssignmentError> {
    let devices = machine.devices();
    let found = || devices.iter().map(|device| device.name.clone()).collect::<Vec<_>>();
    let wrong = |problem: Problem| assignment.wrong(item.span.clone(), problem);
    let device = match item.device.as_str() {
        "" | "auto" | "default" => return Ok(Wish::Auto),
        "disk" => return Ok(Wish::Auto),
        "gpu" => {
            let any = machine.candidates().any(|(device, _)| device.is_gpu());
            return if any { Ok(Wish::Gpu) } else { Err(wrong(Problem::NoGpu { found: found() })) };
        }
        name => match find(devices, name) {
            Ok(device) => device,
            Err(candidates) if !candidates.is_empty() => return Err(wrong(Problem::Ambiguous { candidates })),
            Err(_) => {
                let api = Api::DRIVEN.into_iter().find(|api| name.starts_with(api.name()));
                if let Some((api, why)) = api.and_then(|api| Some((api, machine.fault(api)?))) {
                    return Err(wrong(Problem::Unusable {
                        device: name.into(),
                        why: format!("{} {why}", api.title()),
                    }));
                }
                let near = nearest(name, devices.iter().map(|device| device.name.as_str()));
                let near = near.into_iter().map(Into::into).collect();
                return Err(wrong(Problem::NoSuchDevice { near, found: found() }));
            }
        },
    };
    match machine.profile(device) {
        Ok(_) => Ok(Wish::Device(device.name.clone())),
        Err(why) => Err(wrong(Problem::Unusable { device: device.name.clone(), why })),
    }
}

/// The device of a name: its own, that of its API for the first of them, or the beginning of one; else the names that it begins, if any.
pub(super) fn find<'a>(devices: &'a [DeviceInfo], name: &str) -> Result<&'a DeviceInfo, Vec<String>> {
    let name = name.to_lowercase();
    if let Some(device) = devices.iter().find(|device| device.name == name) {
        return Ok(device);
    }
    // The first that can be used, a GPU before one that plays it.
    let rank = |device: &&DeviceInfo| (device.standing != Standing::Usable, device.kind == DeviceKind::Software);
    if let Some(device) = devices.iter().filter(|device| device.api.name() == name).min_by_key(rank) {
        return Ok(device);
    }
    let begin: Vec<&DeviceInfo> = devices.iter().filter(|device| device.name.starts_with(&name)).collect();
    match begin.as_slice() {
        [device] => Ok(device),
        several => Err(several.iter().map(|device| device.name.clone()).collect()),
    }
}
