//! Devices and disks that fail on purpose, at every place where they can. What a user would lose: the picture, or the steps that were done. The model
//! inside the program paints from a picture: texts are encoded, a picture is, three steps are taken, a picture is decoded.
//!
//! Some faults, or with `IMPASTO_ALL_FAULTS=1` hundreds. Only with the feature `faults`, which no release has.
#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use impasto::backend::cpu::{CpuOptions, Precision};
use impasto::backend::vulkan::untried;
use impasto::backend::{Backend, DeviceOptions};
use impasto::device::{DeviceInfo, DeviceKind};
use impasto::generate::picture::Picture;
use impasto::generate::place::{Machine, MachineOptions, Placement, imagine, place};
use impasto::generate::settings::Settings;
use impasto::generate::{Event, GenerateError, Job, Run, SavedRun, Start, plan, run};
use impasto::graph::Limits;
use impasto::model::Model;

fn all() -> bool {
    std::env::var_os("IMPASTO_ALL_FAULTS").is_some()
}

/// Faults are planned for the whole process: one test at a time.
static TURN: Mutex<()> = Mutex::new(());

fn found() -> DeviceInfo {
    let needs =
        "a Vulkan device is needed: install libvulkan1 and mesa-vulkan-drivers (tools/test.sh does so on Debian)";
    untried().expect(needs).into_iter().find(|device| device.kind == DeviceKind::Software).expect(needs)
}

/// The software device, in floats or in halves, open: opened for each case, it would compile every kernel again.
fn opened(name: &str, options: &DeviceOptions) -> Arc<dyn Backend> {
    static OPENED: Mutex<Vec<(Precision, Arc<dyn Backend>)>> = Mutex::new(vec![]);
    let mut all = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, device)) = all.iter().find(|(precision, _)| *precision == options.precision) {
        return device.clone();
    }
    let named = DeviceInfo { name: name.into(), ..found() };
    let device = impasto::backend::open(&named, options).expect("it opens");
    all.push((options.precision, device.clone()));
    device
}

/// The software device as if it were a GPU, and the CPU; or one of them alone.
fn machine(precision: Precision, alone: Option<&str>) -> Machine {
    let found = found();
    let mut gpu = imagine("vulkan0:memory=2GiB").expect("a device");
    gpu.vulkan = found.vulkan.clone();
    gpu.limits = Limits { memory: gpu.limits.memory, ..found.limits };
    let how = MachineOptions { cpu: CpuOptions { precision, ..CpuOptions::default() }, ..MachineOptions::default() };
    let open = |info: &DeviceInfo, options: &DeviceOptions| Ok(opened(&info.name, options));
    let mut devices = vec![gpu, imagine("cpu:memory=8GiB").expect("a device")];
    devices.retain(|device| alone.is_none_or(|alone| device.name == alone));
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

fn job(model: &Arc<Model>, backend: &str) -> Job {
    let mut settings = Settings::default();
    let usual = [("prompt", "a red house"), ("steps", "4"), ("seed", "7"), ("width", "64"), ("height", "64")];
    for (name, text) in usual.into_iter().chain([("backend", backend)]) {
        settings.set(name, text).unwrap_or_else(|e| panic!("{e}"));
    }
    let mut job = Job::new(&settings, model).expect("a job");
    job.start = Some(Start { picture: picture(64, 5), mask: None, strength: 0.75 });
    job
}

/// What came of a run.
struct Came {
    made: Result<Picture, GenerateError>,
    notes: Vec<String>,
    steps: Vec<usize>,
    kept: Option<Run>,
    /// What was going on when the fault came true.
    phase: Option<String>,
    /// The phases, and how often the device had been asked at the end of each.
    phases: Vec<(String, [u64; 3])>,
}

fn paint(job: &Job, places: &Placement, from: Option<Run>, device: &str) -> Came {
    let (mut made, mut notes, mut steps, mut kept) = (None, vec![], vec![], None);
    let (mut now, mut phase, mut phases) = ("beginning".to_owned(), None, vec![]);
    let done = run(job, places, from, &mut |event| {
        if phase.is_none() && !impasto_faults::fired().is_empty() {
            phase = Some(now.clone());
        }
        let next = match event {
            Event::Loading { module, .. } => Some(format!("loading {module}")),
            Event::Working(what) => Some(what.into()),
            Event::Step { done, .. } => {
                steps.push(done);
                Some(format!("after step {done}"))
            }
            Event::Picture { picture, .. } => {
                made = Some(picture.clone());
                None
            }
            Event::Note(note) => {
                notes.push(note.to_owned());
                None
            }
            Event::State(run) => {
                kept = Some(run.clone());
                None
            }
            _ => None,
        };
        if let Some(next) = next.filter(|next| *next != now) {
            phases.push((std::mem::replace(&mut now, next), impasto_faults::counts(device)));
        }
        Ok(true)
    });
    if phase.is_none() && !impasto_faults::fired().is_empty() {
        phase = Some(now.clone());
    }
    phases.push((now, impasto_faults::counts(device)));
    Came { made: done.map(|()| made.expect("a picture is ready")), notes, steps, kept, phase, phases }
}

fn psnr(a: &Picture, b: &Picture) -> f64 {
    let error: f64 = a.rgb.iter().zip(&b.rgb).map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2)).sum();
    10.0 * (255.0 * 255.0 * a.rgb.len() as f64 / error.max(1e-9)).log10()
}

/// As many as wanted of these numbers: the middle of each part.
fn spread(of: Range<u64>, wanted: u64) -> Vec<u64> {
    let many = of.end - of.start;
    (0..wanted.min(many)).map(|i| of.start + (2 * i + 1) * many / (2 * wanted.min(many))).collect()
}

/// In how many ways runs have ended.
#[derive(Debug, Default)]
struct Ended {
    /// By kind and phase of the fault.
    phases: BTreeMap<String, usize>,
    same_bits: usize,
    /// The right picture within what another device, precision or tiles may change.
    near: usize,
    /// Of these, after an error.
    resumed: usize,
    /// Of these, after an error before the first step.
    begun_again: usize,
}

impl Ended {
    fn all(&self) -> usize {
        self.phases.values().sum()
    }
}

/// The kinds of faults, with the number of the count that tells how many there can be.
const KINDS: [(&str, &str, usize); 4] = [("alloc", "", 0), ("alloc", "+", 0), ("submit", "", 1), ("nan", "", 2)];

/// Every kind of fault in every phase in which it can happen on one device, so many times in each; `sample` of all that, if not everything.
/// Where the device is `alone`, what cannot go on there ends with an error, and goes on later.
fn injected(device: &str, alone: bool, precision: Precision, wanted: u64, sample: Option<usize>) -> Ended {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let model = Arc::new(impasto::default_model().expect("it is inside"));
    let job = job(&model, device);
    let paint = |from| {
        let places = place(&job, &machine(precision, alone.then_some(device)));
        paint(&job, &places.unwrap_or_else(|e| panic!("{e}")), from, device)
    };
    // The first run compiles kernels, in pieces of work that the others do not have.
    impasto_faults::plan("").expect("nothing");
    paint(None);
    impasto_faults::plan("").expect("nothing");
    let whole = paint(None);
    let want = whole.made.unwrap_or_else(|e| panic!("{e}"));
    println!(
        "{device} {precision:?}: allocations, pieces of work and results at the end of each phase: {:?}",
        whole.phases
    );
    let mut faults = vec![];
    for (kind, ends, count) in KINDS {
        let mut before = 0;
        for (phase, counts) in &whole.phases {
            let numbers = spread(before + 1..counts[count] + 1, wanted);
            faults.extend(numbers.into_iter().map(|number| (format!("{device}:{kind}:{number}{ends}"), kind, phase)));
            before = counts[count];
        }
    }
    let phases: BTreeSet<&String> = faults.iter().map(|(_, _, phase)| *phase).collect();
    // Texts and a picture are encoded, three steps are taken, a picture is decoded; what that needs is loaded before.
    assert!(phases.len() >= 6, "{phases:?}");
    if let Some(sample) = sample {
        let all = faults.len() as u64;
        faults = spread(0..all, sample as u64).into_iter().map(|i| faults[i as usize].clone()).collect();
    }
    let other = if device == "cpu" { "vulkan0" } else { "cpu" };
    let (mut ended, all) = (Ended::default(), faults.len());
    for (i, (fault, kind, phase)) in faults.into_iter().enumerate() {
        impasto_faults::plan(&fault).expect("a fault");
        let begun = Instant::now();
        let came = paint(None);
        assert_eq!(impasto_faults::fired(), [fault.as_str()], "it came true");
        // No step is taken twice, and none is left out.
        assert!(came.steps.iter().copied().eq(0..came.steps.len()), "{fault}: {:?}", came.steps);
        let mut how = "the picture";
        let (made, notes) = match came.made {
            Ok(made) => (made, came.notes),
            Err(error) => {
                // What is kept is enough, on devices that do not fail.
                impasto_faults::plan("").expect("nothing");
                assert!(alone, "{fault}: there is another device: {error}");
                let done = came.steps.last().copied().unwrap_or(0);
                assert_eq!(came.kept.as_ref().map_or(0, |run| run.steps().0), done, "{fault}: steps are lost");
                match came.kept.is_some() {
                    true => (how, ended.resumed) = ("resumed", ended.resumed + 1),
                    false => (how, ended.begun_again) = ("begun again", ended.begun_again + 1),
                }
                let again = paint(came.kept);
                assert_eq!(again.steps.first(), Some(&done), "{fault}: steps are taken again");
                println!("{error}");
                (again.made.unwrap_or_else(|e| panic!("{fault}: {e}")), again.notes)
            }
        };
        let found = psnr(&want, &made);
        println!(
            "{i}/{all} {fault} in {phase}: {how}, {found:.1} dB, {:.1} s, {notes:?}",
            begun.elapsed().as_secs_f64()
        );
        assert_eq!(came.phase.as_ref(), Some(phase), "{fault}");
        *ended.phases.entry(format!("{kind} {phase}")).or_default() += 1;
        let least = match notes.iter().any(|note| note.contains(" tiles of ")) {
            true => 15.0,
            false if precision == Precision::F32 => 45.0,
            false => 30.0,
        };
        assert!(found >= least, "{fault} in {phase}: {found:.1} dB; {notes:?}");
        let stayed = precision == Precision::F32 && least == 45.0 && !notes.iter().any(|note| note.contains(other));
        assert!(!stayed || made == want, "{fault} in {phase}: other bits on the same device; {notes:?}");
        match made == want {
            true => ended.same_bits += 1,
            false => ended.near += 1,
        }
    }
    impasto_faults::plan("").expect("nothing");
    println!("{device} {precision:?}: {} faults: {ended:?}", ended.all());
    ended
}

/// A sample, or everything in both precisions.
fn injections(device: &str, precisions: [Precision; 2], sample: usize, at_least: usize) {
    if !all() {
        assert_eq!(injected(device, false, precisions[0], 1, Some(sample)).all(), sample);
        return;
    }
    let counts = precisions.map(|precision| injected(device, false, precision, 5, None).all());
    assert!(counts.iter().sum::<usize>() >= at_least, "{counts:?}");
}

impasto_testkit::trial! {
    fn whatever_fails_on_the_cpu_the_picture_is_the_right_one(sample: usize = 3, 12) {
        injections("cpu", [Precision::F32, Precision::Auto], sample, 150);
    }
}

#[test]
fn where_no_other_device_is_left_what_was_done_is_kept() {
    let (wanted, sample) = if all() { (5, None) } else { (1, Some(12)) };
    let ended = injected("cpu", true, Precision::F32, wanted, sample);
    assert!(ended.resumed >= 3 && ended.begun_again >= 3, "{ended:?}");
    if all() {
        injected("vulkan0", true, Precision::F32, 1, None);
    }
}

impasto_testkit::trial! {
    long fn whatever_fails_on_a_vulkan_device_the_picture_is_the_right_one() {
        injections("vulkan0", [Precision::F32, Precision::Auto], 4, 50);
    }
}

impasto_testkit::trial! {
    /// The driver fails allocations that it said it would allow.
    long fn a_device_whose_limits_lie_still_finishes() {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let model = Arc::new(impasto::default_model().expect("it is inside"));
        let job = job(&model, "vulkan0");
        let places = || place(&job, &machine(Precision::F32, None)).unwrap_or_else(|e| panic!("{e}"));
        impasto_faults::plan("").expect("nothing");
        let planned = plan(&job, &places()).expect("it is planned");
        let largest = planned.modules.iter().map(|module| module.arena_bytes.max(module.weight_bytes)).max().unwrap_or(0);
        let want = paint(&job, &places(), None, "vulkan0").made.expect("nothing fails");
        for share in if all() { vec![2, 5, 40] } else { vec![2] } {
            let fault = format!("vulkan0:alloc:>{}", largest / share);
            impasto_faults::plan(&fault).expect("a fault");
            let came = paint(&job, &places(), None, "vulkan0");
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
    args.extend(["--precision", "f32", "-o", "run.png"]);
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
                        SavedRun::read(&state).unwrap_or_else(|e| panic!("{number}{ends}: half of a state: {e}"));
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
