//! Devices and disks that fail on purpose, at every place where they can. What a user would lose: the picture, or the steps that were done. The model
//! inside the program paints from a picture: texts are encoded, a picture is, three steps are taken, a picture is decoded.
//!
//! Some faults, or with `IMPASTO_ALL_FAULTS=1` hundreds. Only with the feature `faults`, which no release has.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use impasto::backend::Backend;
use impasto::backend::cpu::{CpuOptions, Precision};
use impasto::backend::vulkan::{Vulkan, VulkanOptions};
use impasto::device::DeviceInfo;
use impasto::generate::picture::Picture;
use impasto::generate::place::{Machine, Placement, Request, Use, imagine, place};
use impasto::generate::settings::Settings;
use impasto::generate::{Event, GenerateError, Job, Run, Start, Stored, go_on, plan};
use impasto::graph::Limits;
use impasto::model::Model;
use impasto_vulkan::{Kind, Loader, Physical};

fn all() -> bool {
    std::env::var_os("IMPASTO_ALL_FAULTS").is_some()
}

/// Faults are planned for the whole process: one test at a time.
static TURN: Mutex<()> = Mutex::new(());

fn physical() -> Physical {
    let needs =
        "a Vulkan device is needed: install libvulkan1 and mesa-vulkan-drivers (tools/test.sh does so on Debian)";
    let devices = Loader::open().expect(needs).create_instance().expect(needs).enumerate().expect(needs);
    devices.into_iter().find(|physical| physical.describe().kind == Kind::Software).expect(needs)
}

/// The software device, in floats or in halves, open: opened for each case, it would compile every kernel again.
fn opened(name: &str, options: &VulkanOptions) -> Arc<dyn Backend> {
    static OPENED: Mutex<Vec<(bool, Arc<dyn Backend>)>> = Mutex::new(vec![]);
    let mut all = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, device)) = all.iter().find(|(exact, _)| *exact == options.exact) {
        return device.clone();
    }
    let device: Arc<dyn Backend> = Arc::new(Vulkan::open(name, &physical(), options).expect("it opens"));
    all.push((options.exact, device.clone()));
    device
}

/// The software device as if it were a GPU, and the CPU.
fn machine(precision: Precision) -> Machine {
    let told = physical().describe();
    let mut gpu = imagine("vulkan0:memory=2GiB").expect("a device");
    gpu.vulkan = Some(told.features.clone());
    gpu.limits = Limits { memory: gpu.limits.memory, ..impasto::device::vulkan_limits(&told) };
    let how = Use { cpu: CpuOptions { precision, ..CpuOptions::default() }, ..Use::default() };
    let open = |info: &DeviceInfo, options: &VulkanOptions| Ok(opened(&info.name, options));
    let devices = vec![gpu, imagine("cpu:memory=8GiB").expect("a device")];
    Machine::new(devices, vec![], how, Box::new(|_| None), Box::new(open))
}

/// A picture of noise in large spots, another for each seed.
fn picture(size: usize, seed: u32) -> Picture {
    let spot = |y: usize, x: usize, c: usize| {
        let mixed = ((y / 9 * 31 + x / 7 * 17 + c * 101) as u32 ^ seed).wrapping_mul(2_654_435_761);
        (mixed >> 24) as u8
    };
    let rgb = (0..size * size * 3).map(|i| spot(i / 3 / size, i / 3 % size, i % 3)).collect();
    Picture { width: size, height: size, rgb }
}

fn job(model: &Model, backend: &str) -> (Job, Request) {
    let mut settings = Settings::default();
    let usual = [("prompt", "a red house"), ("steps", "4"), ("seed", "7"), ("width", "64"), ("height", "64")];
    for (name, text) in usual.into_iter().chain([("backend", backend)]) {
        settings.set(name, text).unwrap_or_else(|e| panic!("{e}"));
    }
    let mut job = Job::new(&settings, model, 0).expect("a job");
    job.start = Some(Start { picture: picture(64, 5), mask: None, strength: 0.75 });
    (job, Request::new(&settings).expect("a request"))
}

/// What came of a run.
struct Came {
    made: Result<Picture, GenerateError>,
    notes: Vec<String>,
    steps: Vec<usize>,
    kept: Option<Run>,
    /// What was going on when the fault came true.
    phase: Option<String>,
}

fn paint(job: &Job, model: &Model, places: &Placement, from: Option<Run>) -> Came {
    let (mut made, mut notes, mut steps, mut kept) = (None, vec![], vec![], None);
    let (mut now, mut phase) = ("beginning".to_owned(), None);
    let done = go_on(job, model, places, from, &mut |event| {
        if phase.is_none() && !impasto_faults::fired().is_empty() {
            phase = Some(now.clone());
        }
        match event {
            Event::Picture { picture, .. } => made = Some(picture.clone()),
            Event::Note(note) => notes.push(note.to_owned()),
            Event::Loading { module, .. } => now = format!("loading {module}"),
            Event::Working(what) => now = what.into(),
            Event::Step { done, .. } => {
                steps.push(done);
                now = format!("after step {done}");
            }
            Event::Kept(run) => kept = Some(run.clone()),
            Event::Unknown(_) | Event::Preview(_) => {}
        }
        Ok(true)
    });
    if phase.is_none() && !impasto_faults::fired().is_empty() {
        phase = Some(now);
    }
    Came { made: done.map(|()| made.expect("a picture is ready")), notes, steps, kept, phase }
}

fn psnr(a: &Picture, b: &Picture) -> f64 {
    let error: f64 = a.rgb.iter().zip(&b.rgb).map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2)).sum();
    10.0 * (255.0 * 255.0 * a.rgb.len() as f64 / error.max(1e-9)).log10()
}

/// As many as wanted of the numbers up to this one: the middle of each part.
fn spread(of: u64, wanted: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> =
        (0..wanted).map(|i| 1 + (2 * i + 1) * of / (2 * wanted).max(1)).map(|n| n.min(of)).collect();
    numbers.dedup();
    numbers
}

/// Every kind of fault at many moments on one device; how many came true, by phase.
fn injected(device: &str, precision: Precision, wanted: u64) -> BTreeMap<String, usize> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let model = impasto::default_model().expect("it is inside");
    let (job, request) = job(&model, device);
    let places = |precision| place(&job, &model, &request, &machine(precision)).unwrap_or_else(|e| panic!("{e}"));
    impasto_faults::plan("").expect("nothing");
    let whole = paint(&job, &model, &places(precision), None);
    let want = whole.made.unwrap_or_else(|e| panic!("{e}"));
    let [allocs, submits, results] = impasto_faults::counts(device);
    assert!(allocs >= 4 && submits >= 6 && results >= 6, "{allocs} {submits} {results}");
    let other = if device == "cpu" { "vulkan0" } else { "cpu" };
    let mut phases = BTreeMap::new();
    for (kind, of, ends) in
        [("alloc", allocs, ""), ("alloc", allocs, "+"), ("submit", submits, ""), ("nan", results, "")]
    {
        for number in spread(of, wanted.min(of)) {
            let fault = format!("{device}:{kind}:{number}{ends}");
            impasto_faults::plan(&fault).expect("a fault");
            let begun = Instant::now();
            let came = paint(&job, &model, &places(precision), None);
            println!("{fault}: {:.1} s, {:?}", begun.elapsed().as_secs_f64(), came.phase);
            assert_eq!(impasto_faults::fired(), [fault.as_str()], "it came true");
            let phase = came.phase.expect("it came true");
            *phases.entry(format!("{kind} {phase}")).or_default() += 1;
            // No step is taken twice, and none is left out.
            assert!(came.steps.iter().copied().eq(0..came.steps.len()), "{fault}: {:?}", came.steps);
            let (made, notes) = match came.made {
                Ok(made) => (made, came.notes),
                Err(error) => {
                    // What is kept is enough, on devices that do not fail.
                    impasto_faults::plan("").expect("nothing");
                    let run = came.kept.unwrap_or_else(|| panic!("{fault}: nothing is kept: {error}"));
                    let (before, _) = run.steps();
                    let resumed = paint(&job, &model, &places(precision), Some(run));
                    assert_eq!(resumed.steps.first(), Some(&before), "{fault}: steps are lost");
                    (resumed.made.unwrap_or_else(|e| panic!("{fault}: {e}")), resumed.notes)
                }
            };
            let found = psnr(&want, &made);
            let least = match notes.iter().any(|note| note.contains(" tiles of ")) {
                true => 15.0,
                false if precision == Precision::F32 => 45.0,
                false => 30.0,
            };
            assert!(found >= least, "{fault} in {phase}: {found:.1} dB; {notes:?}");
            let stayed = precision == Precision::F32 && least == 45.0 && !notes.iter().any(|note| note.contains(other));
            assert!(!stayed || made == want, "{fault} in {phase}: other bits on the same device; {notes:?}");
        }
    }
    impasto_faults::plan("").expect("nothing");
    println!("{device} {precision:?}: {} faults: {phases:?}", phases.values().sum::<usize>());
    phases
}

#[test]
fn whatever_fails_on_the_cpu_the_picture_is_the_right_one() {
    let wanted = if all() { 25 } else { 3 };
    let mut phases = injected("cpu", Precision::F32, wanted);
    if all() {
        phases.extend(injected("cpu", Precision::Bf16, wanted));
    }
    assert!(phases.values().sum::<usize>() >= 12, "{phases:?}");
}

#[test]
fn whatever_fails_on_a_vulkan_device_the_picture_is_the_right_one() {
    let wanted = if all() { 25 } else { 1 };
    let mut phases = injected("vulkan0", Precision::F32, wanted);
    if all() {
        phases.extend(injected("vulkan0", Precision::Auto, wanted));
    }
    assert!(phases.values().sum::<usize>() >= 4, "{phases:?}");
}

/// The driver fails allocations that it said it would allow.
#[test]
fn a_device_whose_limits_lie_still_finishes() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let model = impasto::default_model().expect("it is inside");
    let (job, request) = job(&model, "vulkan0");
    let places = || place(&job, &model, &request, &machine(Precision::F32)).unwrap_or_else(|e| panic!("{e}"));
    impasto_faults::plan("").expect("nothing");
    let planned = plan(&job, &model, &places()).expect("it is planned");
    let largest = planned.modules.iter().map(|module| module.arena_bytes.max(module.weight_bytes)).max().unwrap_or(0);
    let want = paint(&job, &model, &places(), None).made.expect("nothing fails");
    for share in if all() { vec![2, 5, 40] } else { vec![2] } {
        let fault = format!("vulkan0:alloc:>{}", largest / share);
        impasto_faults::plan(&fault).expect("a fault");
        let came = paint(&job, &model, &places(), None);
        assert_eq!(impasto_faults::fired(), [fault.as_str()], "it came true");
        let made = came.made.unwrap_or_else(|e| panic!("{fault}: {e}"));
        println!("{fault}: {:.1} dB, {:#?}", psnr(&want, &made), came.notes);
        let tiled = came.notes.iter().any(|note| note.contains(" tiles of "));
        assert!(psnr(&want, &made) >= if tiled { 15.0 } else { 45.0 }, "{fault}: {:?}", came.notes);
        // At first it is the pieces that are made smaller, not the device that is given up. Of the text encoder most is one table.
        let stays = came.notes.iter().any(|note| note.contains("going on: diffusion on vulkan0 whole"));
        assert!(share > 2 || stays, "{:?}", came.notes);
    }
    impasto_faults::plan("").expect("nothing");
}

fn program(folder: &Path, fault: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_impasto"));
    command.args(args).args(["--gpu", "disable"]).current_dir(folder).env("HOME", folder).env("IMPASTO_FAULT", fault);
    command.env_remove("XDG_CONFIG_HOME").env_remove("XDG_CACHE_HOME").output().expect("the program starts")
}

/// A disk that is full at any file: the right picture, or what is done is kept whole.
#[test]
fn a_disk_that_fills_up_costs_no_finished_step() {
    let said = |out: &Output| String::from_utf8_lossy(&out.stderr).into_owned();
    let pixels = |path: &Path| image::open(path).expect("a picture").into_rgb8().into_raw();
    let whole = tempfile::tempdir().expect("a folder");
    let mut args = vec!["-p", "a red house", "--steps", "4", "-W", "64", "-H", "64", "--threads", "2"];
    args.extend(["--type", "f32", "-o", "run.png"]);
    assert!(program(whole.path(), "", &args).status.success());
    let want = pixels(&whole.path().join("run.png"));
    let (mut injections, mut kept) = (0, 0);
    for ends in ["", "+"] {
        for number in 1.. {
            let folder = tempfile::tempdir().expect("a folder");
            let at = |name: &str| folder.path().join(name);
            let out = program(folder.path(), &format!("disk:write:{number}{ends}"), &args);
            let text = said(&out);
            if !text.contains("fault: ") {
                break;
            }
            injections += 1;
            let state = at("run.latent.safetensors");
            match out.status.code() {
                Some(0) => assert_eq!(pixels(&at("run.png")), want, "{number}{ends}: {text}"),
                Some(1) => {
                    assert!(!at("run.png").exists() && text.contains("error: "), "{number}{ends}: {text}");
                    if state.exists() {
                        Stored::read(&state).unwrap_or_else(|e| panic!("{number}{ends}: half of a state: {e}"));
                        let resumed = program(folder.path(), "", &["resume", "run.latent.safetensors"]);
                        assert!(resumed.status.success(), "{number}{ends}: {}", said(&resumed));
                        assert_eq!(pixels(&at("run.png")), want, "{number}{ends}");
                        kept += 1;
                    } else {
                        assert!(!text.contains("picture 1"), "{number}{ends}: steps were taken and lost: {text}");
                    }
                }
                other => panic!("{number}{ends}: ended with {other:?}: {text}"),
            }
        }
    }
    println!("{injections} faults of the disk, {kept} runs went on");
    assert!(injections >= 3 && kept >= 1, "{injections} {kept}");
}
