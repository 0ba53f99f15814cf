//! A second picture on a GPU. What a user would lose: a page that is open all evening would compile its kernels for each picture.

use std::time::Duration;

use impasto_device::{DeviceInfo, Standing, SurveyOptions, survey};
use impasto_generate::place::{Machine, MachineOptions};
use impasto_generate::{Engine, Event, Job};

use super::{found, open, settings};
use impasto_testkit::model::Small;

#[test]
fn a_second_picture_compiles_nothing() {
    let (_folder, model) = open(&Small::sd1());
    let here = survey(&SurveyOptions { apis: vec![], ..SurveyOptions::default() });
    let gpu = DeviceInfo { standing: Standing::Usable, ..found() };
    let name = gpu.name.clone();
    let devices = here.views().cloned().chain([gpu]).collect();
    let options = MachineOptions { keep_alive: Duration::from_secs(600), ..MachineOptions::default() };
    let open_here = |device: &_, options: &_| impasto_backend::open(device, options);
    let engine = Engine::on(Machine::new(devices, vec![], options, Box::new(|_| None), Box::new(open_here)));
    let paint = |prompt: &str| {
        let placed = format!("te={name},diffusion=cpu,vae=cpu");
        let job = Job::new(&settings(&[("prompt", prompt), ("backend", &placed)]), &model).expect("a job");
        let mut made = None;
        let mut watch = |event: Event| {
            if let Event::Picture { picture, .. } = event {
                made = Some(picture.rgb.clone());
            }
            Ok(true)
        };
        engine.run(&job, &mut watch).unwrap_or_else(|e| panic!("{e}"));
        made.expect("a picture is ready")
    };
    let first = paint("a red house");
    let work = engine.work();
    assert!(work.compilations > 0, "the encoder's kernels are compiled");
    assert_eq!(paint("a red house"), first, "the same picture");
    assert_ne!(paint("a blue cat"), first);
    let now = engine.work();
    assert_eq!(now.compilations, work.compilations, "nothing is compiled again");
    assert_eq!([now.plans, now.loads, now.packs, now.prepares], [work.plans, work.loads, work.packs, work.prepares]);
}
