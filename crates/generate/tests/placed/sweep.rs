//! Ever less memory: a run ends with the same picture or is refused before it begins, and takes exactly what was planned.

use std::sync::Arc;
use std::time::Instant;

use impasto_backend::{Backend, WithLimits};
use impasto_generate::place::{Home, Place, Placement, RunPlan};
use impasto_generate::{GenerateError, Job, plan};
use impasto_graph::Limits;

use super::{at_runtime, cpu, job, open, paint, placement, psnr, settings, vulkan, write_lora};
use impasto_testkit::model::Small;

/// From all that is needed down to a twentieth, in hundredths, with weights in every home; or some of that.
fn cases() -> Vec<(u64, Home)> {
    let homes = [Home::Runtime, Home::Host, Home::Disk];
    match std::env::var_os("IMPASTO_ALL_BUDGETS") {
        Some(_) => (1..=20).rev().flat_map(|n| homes.map(|home| (5 * n, home))).collect(),
        None => [100, 80, 60, 45, 30, 15, 10, 5].into_iter().zip(homes.into_iter().cycle()).collect(),
    }
}

fn peak(plan: &RunPlan, device: &str) -> u64 {
    plan.peaks.iter().find(|peak| peak.device == device).map_or(0, |peak| peak.bytes)
}

/// Sweeps the budget of a device, on which the diffusion model and the decoder are, and the text encoder too if asked for.
fn sweep(device: &Arc<dyn Backend>, small: &Small, te_too: bool) {
    let (_folder, model) = open(small);
    sweep_job(device, &job(&model), te_too);
}

fn sweep_job(device: &Arc<dyn Backend>, job: &Job, te_too: bool) {
    let name = "within";
    let elsewhere = Place::on(&cpu(), Home::Runtime);
    let places = |memory: u64, home: Home| {
        // A name of its own, so that others can be beside it.
        let profile = device.profile();
        let limits = Limits { memory, ..profile.limits() };
        let within = WithLimits { device: profile, limits, name: name.into() };
        let here = Place::on(device, home).as_if(Arc::new(within));
        placement(if te_too { &here } else { &elsewhere }, &here, &here)
    };
    let meter = device.meter();
    let whole = places(u64::MAX, Home::Runtime);
    let need = peak(&plan(job, &whole).expect("it is planned"), name);
    meter.start_over();
    let want = paint(job, &whole).expect("there is room");
    assert_eq!(meter.peak(), need, "planned is allocated");
    let (mut ran, mut streamed) = (0, 0);
    for (share, home) in cases() {
        let budget = need * share / 100;
        let places = places(budget, home);
        let planned = plan(job, &places).expect("it is planned");
        meter.start_over();
        meter.set_budget(budget);
        let begun = Instant::now();
        let made = paint(job, &places);
        let seconds = begun.elapsed().as_secs_f64();
        meter.set_budget(u64::MAX);
        match made {
            Ok(made) => {
                assert!(planned.fits(), "{share} %: it was said not to fit");
                assert!(made == want, "{share} %: another picture");
                assert!(meter.peak() <= budget, "{share} %: {} of {budget}", meter.peak());
                assert_eq!(meter.peak(), peak(&planned, name), "{share} % {home:?}: planned is allocated");
                ran += 1;
                streamed += usize::from(planned.modules.iter().any(|module| module.streamed_bytes > 0));
            }
            // Refused before it began: nothing was taken.
            Err(GenerateError::Plan { .. } | GenerateError::Refused(_)) => {
                assert!(!planned.fits(), "{share} %: it was said to fit");
                assert_eq!(meter.peak(), 0, "{share} %");
            }
            Err(other) => panic!("{share} %: failed in between: {other}"),
        }
        println!(
            "{name} {share} % {home:?}: planned {} of {budget}, {seconds:.2} s, fits {}",
            peak(&planned, name),
            planned.fits()
        );
    }
    assert_eq!(meter.now(), 0, "all is given back");
    // Of the text encoder of small models nearly all is one table, which cannot be cut.
    assert!(ran > 0 && (te_too || streamed > 0), "{ran} ran, {streamed} with weights that take turns");
}

#[test]
fn in_ever_less_memory_of_the_cpu() {
    let cpu = cpu();
    for (name, small) in [("sd1", Small::sd1()), ("sd2", Small::sd2_v()), ("sdxl", Small::sdxl())] {
        println!("{name}");
        sweep(&cpu, &small, true);
        sweep(&cpu, &small, false);
    }
}

/// LoRAs at run time stay on the device, whatever is streamed or cut beside them.
#[test]
fn in_ever_less_memory_with_a_lora_at_run_time() {
    let (folder, model) = open(&Small::sd1());
    let file = folder.path().join("lora.safetensors");
    write_lora(&file, &model, 2);
    let [lora, mode] = at_runtime(&file, 0.5);
    let asked = settings(&[(lora.0, &lora.1), (mode.0, &mode.1)]);
    let with = Job::new(&asked, &model).unwrap_or_else(|e| panic!("{e}"));
    sweep_job(&cpu(), &with, false);
    let without = paint(&job(&model), &Placement::on(&cpu())).expect("a picture");
    assert!(psnr(&without, &paint(&with, &Placement::on(&cpu())).expect("a picture")) < 30.0, "it changes the picture");
}

#[test]
fn in_ever_less_memory_of_a_vulkan_device() {
    let all = std::env::var_os("IMPASTO_ALL_BUDGETS").is_some();
    sweep(&vulkan(), &if all { Small::sdxl() } else { Small::sd1() }, false);
}
