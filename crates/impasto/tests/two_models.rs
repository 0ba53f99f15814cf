//! Generations of two models by turns in one process, the device in a worker: what a server does all day. What a user would lose: the machine's
//! memory by the evening.
//!
//! `IMPASTO_GENERATIONS=100` makes more of them, with the model inside the program as the second one. The worker is this very binary, so `main`
//! begins with the hook.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use impasto::device::{Api, DeviceKind, SurveyOptions, survey};
use impasto::generate::picture::Picture;
use impasto::generate::place::{Machine, MachineOptions, place};
use impasto::generate::settings::Settings;
use impasto::generate::{Event, Job, run};
use impasto::model::{Model, ModelPaths};
use impasto_testkit::model::Small;
use libtest_mimic::{Arguments, Failed, Trial};

/// Set for the process in which pictures are made.
const MAKE: &str = "IMPASTO_TWO_MODELS";

fn main() {
    impasto::probe_hook();
    if std::env::var_os(MAKE).is_some() {
        return many_generations_of_two_models();
    }
    let trial = Trial::test("many_generations_of_two_models_leave_nothing", || {
        // Kernels are compiled once for this test and that of the worker; nothing of the user's own folders is used.
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("worker/cache");
        let own = std::env::current_exe().map_err(|e| e.to_string())?;
        let made = Command::new(own).env(MAKE, "1").env("XDG_CACHE_HOME", cache).output().map_err(|e| e.to_string())?;
        println!("{}", String::from_utf8_lossy(&made.stdout));
        match made.status.success() {
            true => Ok(()),
            false => Err(Failed::from(String::from_utf8_lossy(&made.stderr).into_owned())),
        }
    });
    let trials = if cfg!(target_os = "linux") { vec![trial] } else { vec![] };
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Bytes of a process that no file backs.
fn own_memory(process: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("Linux tells");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("it tells that");
    1024 * line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number")
}

/// The processes that this one has started and that live.
fn children() -> Vec<String> {
    let own = std::process::id().to_string();
    let numbers = std::fs::read_dir("/proc").expect("Linux tells").flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().into_string().ok());
    let is_ours = |number: &String| {
        let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().nth(1) == Some(&own)
    };
    numbers.filter(|number| number.bytes().all(|byte| byte.is_ascii_digit())).filter(is_ours).collect()
}

/// Another model with the same kernels: more layers of the same shapes.
fn deeper() -> Small {
    let mut small = Small::sd1();
    (small.text[0].layers, small.unet.resnets, small.vae.resnets) = (3, 2, 2);
    small
}

fn paint(model: &Arc<Model>, machine: &Machine, device: &str) -> Picture {
    let mut settings = Settings::default();
    let usual = [("prompt", "a red circle"), ("steps", "2"), ("width", "32"), ("height", "32"), ("seed", "7")];
    for (name, text) in usual.into_iter().chain([("backend", device)]) {
        settings.set(name, text).expect("a setting");
    }
    let job = Job::new(&settings, model).expect("a job");
    let places = place(&job, machine).expect("a place");
    let mut made = None;
    run(&job, &places, None, &mut |event| {
        match event {
            Event::Picture { picture, .. } => made = Some(picture.clone()),
            Event::Note(note) => panic!("nothing goes wrong here: {note}"),
            _ => {}
        }
        Ok(true)
    })
    .unwrap_or_else(|e| panic!("{e}"));
    made.expect("a picture")
}

fn many_generations_of_two_models() {
    let asked_for = std::env::var("IMPASTO_GENERATIONS").ok().and_then(|n| n.parse::<usize>().ok());
    let count = asked_for.unwrap_or(6);
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    Small::sd1().write_folder(folders[0].path());
    deeper().write_folder(folders[1].path());
    let open = |folder: &Path| Model::open(&ModelPaths { model: Some(folder.into()), ..ModelPaths::default() });
    let mut models = folders.each_ref().map(|folder| Arc::new(open(folder.path()).unwrap_or_else(|e| panic!("{e}"))));
    if asked_for.is_some() {
        models[1] = Arc::new(impasto::default_model().expect("it is inside"));
    }
    let found = survey(&SurveyOptions { apis: vec![Api::Vulkan], asked_for: true, ..impasto::survey_options() });
    let is_it = |view: &&impasto::device::DeviceInfo| view.api == Api::Vulkan && view.kind == DeviceKind::Software;
    let needs = "a Vulkan device is needed: tools/test.sh installs one on Debian";
    let device = found.views().find(is_it).expect(needs).name.clone();
    let machine = impasto::machine(&found, MachineOptions { asked_for: true, ..MachineOptions::default() });
    let backend = machine.pool().get(&device).expect("it opens");
    let [worker] = &children()[..] else { panic!("one worker is there: {:?}", children()) };

    let on_device = backend.meter().now();
    let (mut first, mut pictures) = (None, [None, None]);
    for i in 0..count {
        let picture = paint(&models[i % 2], &machine, &device);
        assert!(*pictures[i % 2].get_or_insert_with(|| picture.clone()) == picture, "generation {i}: another picture");
        assert_eq!(backend.meter().now(), on_device, "generation {i}: bytes are left on the device");
        assert_eq!(children(), std::slice::from_ref(worker), "generation {i}: one worker for all");
        let files = std::fs::read_dir("/proc/self/fd").expect("a folder").count();
        let now = (own_memory("self"), own_memory(worker), files);
        println!("{i}: parent {} kB, worker {} kB, {} open files", now.0 >> 10, now.1 >> 10, now.2);
        // Both models once and the first again: from then on there is nothing new to keep.
        if i == 2 {
            first = Some(now);
        }
        let Some(before) = first else { continue };
        assert_eq!(now.2, before.2, "generation {i}: open files");
        // What a driver keeps for itself grows for a while, and is given back with the worker.
        for (whose, now, before, most) in [("the parent", now.0, before.0, 4), ("the worker", now.1, before.1, 48)] {
            let more = now.saturating_sub(before);
            assert!(more < most << 20, "generation {i}: {whose} has {more} bytes more than after the third");
        }
    }
    assert_ne!(pictures[0], pictures[1], "they are two models");
    drop((backend, machine));
    let begun = Instant::now();
    while !children().is_empty() && begun.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(children(), Vec::<String>::new(), "a worker is left behind");
}
