//! From settings to places: drivers are asked beside the opening of the model, then modules are placed.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use impasto::device::{Api, ApiReport, Survey, SurveyOptions, survey};
use impasto::generate::place::{MODULES, Machine, Placement, RateBook, Request, Use, imagine, place};
use impasto::generate::settings::{Gpu, Settings};
use impasto::generate::{GenerateError, Job};
use impasto::model::Model;

use super::paint::cpu_options;

/// How long the choice of a device waits at most for drivers, from the start. The model is opened meanwhile.
const PATIENCE: Duration = Duration::from_millis(1500);

/// A survey that is under way.
pub struct Placing {
    request: Request,
    how: Use,
    gpu: Gpu,
    asked: mpsc::Receiver<Survey>,
    /// A device was named: it is waited for, however long it takes.
    named: bool,
    begun: Instant,
}

impl Placing {
    /// Asks the drivers that matter, in children. Who places everything on the CPU has none asked.
    pub fn start(settings: &Settings, stop: Option<&Arc<AtomicBool>>) -> Result<Placing, GenerateError> {
        let begun = Instant::now();
        let request = Request::new(settings)?;
        let gpu = settings.gpu.unwrap_or_default();
        let named = !request.leaves_a_choice(&MODULES);
        let asked_for = named || gpu == Gpu::Vulkan;
        let may = |api: &Api| match gpu {
            Gpu::Auto => true,
            // Who names a device has chosen.
            Gpu::Disable => request.names(*api),
            Gpu::Vulkan => *api == Api::Vulkan,
            Gpu::Cuda => *api == Api::Cuda,
        };
        let apis = request.apis(&MODULES).into_iter().filter(may).collect();
        let soft = if asked_for { Duration::MAX } else { PATIENCE };
        // Not with the processor's paths: the backend finds them out itself.
        let options =
            SurveyOptions { apis, soft, asked_for, cpu_paths: || (Vec::new(), false), ..impasto::survey_options() };
        let (send, asked) = mpsc::channel();
        // Without a thread there is no answer, which is what happens then.
        let _ = thread::Builder::new().name("survey".into()).spawn(move || drop(send.send(survey(&options))));
        let how = Use { asked_for, stop: stop.cloned(), ..how(settings)? };
        Ok(Placing { request, how, gpu, asked, named, begun })
    }

    /// The places of a job's modules, with a line for each thing that went wrong with a driver.
    pub fn place(self, settings: &Settings, job: &Job, model: &Model) -> Result<Placement, GenerateError> {
        let wait = if self.named { Duration::MAX } else { (PATIENCE * 2).saturating_sub(self.begun.elapsed()) };
        let answer = match wait {
            Duration::MAX => self.asked.recv().ok(),
            wait => self.asked.recv_timeout(wait).ok(),
        };
        let found = answer.unwrap_or_else(|| {
            eprintln!("gpu: no answer from the device probe yet; going on with cpu");
            survey(&SurveyOptions { apis: vec![], ..impasto::survey_options() })
        });
        found.apis.iter().filter_map(ApiReport::line).for_each(|line| eprintln!("{line}"));
        let machine = impasto::machine(&found, self.how);
        unused_gpu(&found, &machine);
        if settings.verbose == Some(true) {
            found.findings.iter().for_each(|finding| eprintln!("note: {finding}"));
        }
        let has_gpu = machine.candidates().any(|(device, _)| device.is_gpu());
        if self.gpu == Gpu::Vulkan && !has_gpu && !self.named {
            return Err(no_vulkan(&found, &machine));
        }
        placed(settings, job, model, &self.request, &machine)
    }
}

/// The places on a machine that is not here, of these devices beside the CPU of this one.
pub fn place_on_imagined(
    settings: &Settings,
    devices: &[String],
    job: &Job,
    model: &Model,
) -> Result<Placement, GenerateError> {
    let mut given =
        devices.iter().map(|text| imagine(text)).collect::<Result<Vec<_>, _>>().map_err(GenerateError::Asked)?;
    let here = survey(&SurveyOptions { apis: vec![], ..impasto::survey_options() });
    if !given.iter().any(|device| device.api == Api::Cpu) {
        given.extend(here.views().cloned());
    }
    let open = |device: &impasto::device::DeviceInfo, _: &_| {
        let reason = "it is not here".to_owned();
        Err(impasto::backend::BackendError::Unsupported { device: device.name.clone(), reason })
    };
    // All that it has is free.
    let machine = Machine::new(given, vec![], how(settings)?, Box::new(|_| None), Box::new(open));
    placed(settings, job, model, &Request::new(settings)?, &machine)
}

fn placed(
    settings: &Settings,
    job: &Job,
    model: &Model,
    request: &Request,
    machine: &Machine,
) -> Result<Placement, GenerateError> {
    for name in machine.unknown_in_budgets()? {
        eprintln!("warning: there is no {name} here: what was said of its memory is not used");
    }
    let places = place(job, model, request, machine)?;
    places.notes.iter().for_each(|note| eprintln!("warning: {note}"));
    if settings.explain == Some(true) {
        places.reasons.iter().for_each(|reason| eprintln!("{reason}"));
    }
    Ok(places)
}

fn how(settings: &Settings) -> Result<Use, GenerateError> {
    Ok(Use {
        cpu: cpu_options(settings)?,
        max_vram: settings.max_vram.clone().unwrap_or_default(),
        max_buffer: settings.max_buffer.clone().unwrap_or_default(),
        rates: RateBook::open(impasto::rates_file()),
        isolate: settings.isolate.unwrap_or_default(),
        verbose: settings.verbose == Some(true),
        ..Use::default()
    })
}

/// Says which GPU was seen and cannot be used. That there is no GPU is nothing to talk about.
fn unused_gpu(found: &Survey, machine: &Machine) {
    for gpu in found.gpus() {
        let reasons: Vec<String> = gpu
            .views
            .iter()
            .filter_map(|view| Some(format!("{}: {}", view.name, machine.profile(view).err()?)))
            .collect();
        if let Some(view) = gpu.best().filter(|_| reasons.len() == gpu.views.len()) {
            eprintln!("gpu: {} ({}) seen and not used; {}", view.label, gpu.names(), reasons.join("; "));
        }
    }
}

fn no_vulkan(found: &Survey, machine: &Machine) -> GenerateError {
    let of_vulkan: Vec<_> = found.views().filter(|view| view.api == Api::Vulkan).collect();
    let why = of_vulkan.iter().map(|view| match machine.profile(view) {
        Ok(_) => format!("{} is no GPU, but --backend {} computes there", view.label, view.name),
        Err(why) => format!("{}: {why}", view.label),
    });
    let why: Vec<String> = why.collect();
    let why = if why.is_empty() { "no device was found; `impasto devices` says why".into() } else { why.join("; ") };
    GenerateError::Refused(format!("--gpu vulkan: no GPU can be computed on through Vulkan ({why})"))
}
