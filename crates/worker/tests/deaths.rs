//! Workers that die, hang, leak, idle and are told to stop. What a user would lose: the picture, when a driver goes wrong.
//!
//! Each check starts this very binary again as the worker, so `main` begins with the hook.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use impasto_backend::cpu::{Cpu, CpuOptions, Precision};
use impasto_backend::{Backend, BackendError, DeviceOptions, HostWeights, Params, Session, SharedSource, WeightSource};
use impasto_device::{Api, DeviceInfo, DeviceKind, Store, SurveyOptions, UseGuard, survey};
use impasto_graph::{DType, Epilogue, Graph, HostTensor, Plan, Storage};
use impasto_testkit::shim::{random, seed, shim};
use impasto_worker::{Remote, WorkerOptions};
use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    impasto_device::hook(&[&impasto_device::PROBES[..], &[impasto_worker::TRIAL]].concat());
    let checks: &[(&str, fn())] = &[
        ("every_death_is_told_and_a_fresh_worker_computes_the_same_bits", every_death_is_told),
        ("a_hang_is_ended", a_hang_is_ended),
        ("a_leak_is_ended", a_leak_is_ended),
        ("who_is_killed_from_outside_is_lost", who_is_killed_from_outside_is_lost),
        ("weights_from_everywhere_give_the_same_bits", weights_from_everywhere),
        ("what_is_unloaded_is_given_back_and_an_idle_worker_ends", an_idle_worker_ends),
        ("many_loads_of_two_networks_leave_nothing", many_loads_leave_nothing),
        ("who_wants_to_stop_is_heard", who_wants_to_stop_is_heard),
        ("two_deaths_in_first_use_are_remembered", two_deaths_are_remembered),
    ];
    let trials = checks.iter().map(|&(name, check)| {
        Trial::test(name, move || {
            check();
            Ok::<(), Failed>(())
        })
    });
    // One after the other: each looks at this process's children.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials.collect()).exit();
}

/// Lavapipe, by way of the shim.
fn device() -> DeviceInfo {
    let options = SurveyOptions {
        apis: vec![Api::Vulkan],
        usable: vec![Api::Cpu, Api::Vulkan],
        asked_for: true,
        store: Arc::new(Store::none()),
        ..SurveyOptions::default()
    };
    let found = survey(&options);
    let lavapipe = found.views().find(|view| view.kind == DeviceKind::Software && view.api == Api::Vulkan);
    let lavapipe = lavapipe.unwrap_or_else(|| panic!("lavapipe is needed: {:#?}", found.findings));
    DeviceInfo { manifest: Some(shim().manifest.clone()), index: 0, ..lavapipe.clone() }
}

fn options(fault: &str) -> WorkerOptions {
    let env = [("SHIM_REAL", shim().real.as_str()), ("SHIM_FAULT", fault)];
    WorkerOptions {
        env: env.map(|(name, value)| (name.into(), Some(value.into()))).to_vec(),
        ..WorkerOptions::default()
    }
}

fn open(fault: &str) -> Remote {
    Remote::open(&device(), &DeviceOptions::default(), options(fault)).unwrap_or_else(|e| panic!("{fault}: {e}"))
}

/// Small products one behind the other, on random numbers.
struct Case {
    graph: Graph,
    params: Params,
    inputs: Vec<HostTensor>,
}

impl Case {
    /// Adapters of a graph with branches, of one number each.
    fn adapters(&self, graph: &Graph, number: f32) -> Params {
        let mut params = Params::new();
        for (name, value) in graph.params().filter(|(_, value)| graph.is_adapter(*value)) {
            let ty = graph.ty(value);
            let numbers = vec![number; ty.elements() as usize];
            params.insert(name, HostTensor::f32(ty.shape.clone(), numbers).expect("a tensor"));
        }
        params
    }

    fn new(state: &mut u64, layers: usize) -> Case {
        const WIDTH: usize = 48;
        let mut graph = Graph::new();
        let mut params = Params::new();
        let mut numbers = |n: usize, scale: f32| -> Vec<f32> {
            (0..n).map(|_| scale * ((random(state) >> 40) as f32 / (1 << 23) as f32 - 1.0)).collect()
        };
        let mut at = graph.input("x", [37, WIDTH], DType::F32).expect("a graph");
        for i in 0..layers {
            let (w, b) = (format!("{i}.weight"), format!("{i}.bias"));
            params.insert(&w, HostTensor::f32([WIDTH, WIDTH], numbers(WIDTH * WIDTH, 0.2)).expect("a tensor"));
            params.insert(&b, HostTensor::f32([WIDTH], numbers(WIDTH, 0.5)).expect("a tensor"));
            let w = graph.param(&w, [WIDTH, WIDTH], Storage::Dense(DType::F32)).expect("a graph");
            let b = graph.param(&b, [WIDTH], Storage::Dense(DType::F32)).expect("a graph");
            at = graph.linear(at, w, Epilogue::new().bias(b)).expect("a graph");
        }
        graph.output("y", at).expect("a graph");
        let inputs =
            (0..8).map(|_| HostTensor::f32([37, WIDTH], numbers(37 * WIDTH, 1.0)).expect("a tensor")).collect();
        Case { graph, params, inputs }
    }

    fn session(&self, backend: &dyn Backend) -> Result<Box<dyn Session>, BackendError> {
        let plan = Plan::new(&self.graph, &*backend.profile()).expect("it fits");
        let weights = backend.pack(&self.graph, &plan, &self.params)?;
        backend.prepare(&self.graph, &plan, &weights)
    }

    /// All inputs, one after the other.
    fn run(&self, session: &mut dyn Session) -> Result<Vec<HostTensor>, BackendError> {
        self.inputs.iter().map(|x| Ok(session.run_to_new(&[("x", x)])?.remove(0))).collect()
    }

    /// The same from a backend that is healthy, and near to what the CPU computes in 32-bit floats.
    fn truth(&self) -> Vec<HostTensor> {
        let remote = open("none");
        let computed = self.run(&mut *self.session(&remote).expect("it loads")).expect("it runs");
        let cpu = Cpu::new(&CpuOptions { precision: Precision::F32, ..CpuOptions::default() }).expect("there is a CPU");
        let expected = self.run(&mut *self.session(&cpu).expect("it loads")).expect("it runs");
        for (a, b) in computed.iter().zip(&expected) {
            let largest = b.to_f32().iter().fold(0f32, |most, x| most.max(x.abs()));
            let error = a.to_f32().iter().zip(b.to_f32()).fold(0f32, |most, (x, y)| most.max((x - y).abs()));
            assert!(error <= 0.02 * largest, "an error of {error} in numbers up to {largest}");
        }
        computed
    }
}

/// No process of ours is left behind.
fn no_orphans() {
    let own = std::process::id();
    let children = || -> Vec<String> {
        let numbers = std::fs::read_dir("/proc").expect("Linux tells").flatten();
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let stats = numbers.filter_map(|number| std::fs::read_to_string(format!("/proc/{number}/stat")).ok());
        let parent = |stat: &String| stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse::<u32>().ok();
        stats.filter(|stat| parent(stat) == Some(own)).collect()
    };
    let begun = Instant::now();
    while !children().is_empty() && begun.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(children(), Vec::<String>::new(), "children are left");
}

fn reason(error: &BackendError) -> &str {
    match error {
        BackendError::Lost { reason, .. } => reason,
        other => panic!("lost is expected, not {other:?}"),
    }
}

/// The kernels of a [`Case`], each of which a software rasteriser compiles in a submission of its own before the first run.
const KERNELS: u64 = 1;

fn every_death_is_told() {
    let mut state = seed();
    let case = Case::new(&mut state, 3);
    let truth = case.truth();
    let deaths = [
        ("segv", "crashed with SIGSEGV (memory that is not its own) at stage \"run\""),
        ("abort", "crashed with SIGABRT (it gave itself up) at stage \"run\""),
        ("exit", "it left with exit code 0 before it was done"),
        ("kill", "was killed from outside (SIGKILL) at stage \"run\""),
        ("lost", "the device is lost"),
    ];
    let rounds = if std::env::var_os("IMPASTO_ALL_DEATHS").is_some() { 20 } else { 1 };
    for (fault, words) in (0..rounds).flat_map(|_| deaths) {
        let at = 1 + random(&mut state) % case.inputs.len() as u64;
        let fault = format!("{fault}:{}", at + KERNELS);
        let remote = open(&fault);
        let mut session = case.session(&remote).unwrap_or_else(|e| panic!("{fault}: {e}"));
        for (i, x) in case.inputs.iter().enumerate() {
            match session.run_to_new(&[("x", x)]) {
                Ok(y) => assert!(i as u64 + 1 < at && y[0] == truth[i], "{fault}: run {i}"),
                Err(error) => {
                    assert_eq!(i as u64 + 1, at, "{fault}: {error}");
                    assert!(reason(&error).contains(words), "{fault}: {error}");
                    // And again, since it stays lost. What the driver itself reports has not ended the worker.
                    let again = session.run_to_new(&[("x", x)]);
                    assert!(again.is_err() || fault.starts_with("lost"), "{fault}");
                    break;
                }
            }
        }
        assert!(remote.reopens(), "{fault}");
        drop((session, remote));
        let fresh = open("none");
        assert_eq!(case.run(&mut *case.session(&fresh).expect("it loads")).expect("it runs"), truth, "after {fault}");
    }
    no_orphans();
}

fn a_hang_is_ended() {
    let case = Case::new(&mut seed(), 2);
    let options = WorkerOptions { patience: Some(Duration::from_secs(3)), ..options("hang:2") };
    let remote = Remote::open(&device(), &DeviceOptions::default(), options).expect("it opens");
    let error = case.run(&mut *case.session(&remote).expect("it loads")).expect_err("it hangs");
    assert!(reason(&error).contains("did not end within") && reason(&error).contains("\"run\""), "{error}");
    no_orphans();
}

fn a_leak_is_ended() {
    let case = Case::new(&mut seed(), 2);
    let options = WorkerOptions { slack: Some(512 << 20), ..options("leak:3") };
    let remote = Remote::open(&device(), &DeviceOptions::default(), options).expect("it opens");
    let error = case.run(&mut *case.session(&remote).expect("it loads")).expect_err("it leaks");
    assert!(reason(&error).contains("GB of memory"), "{error}");
    no_orphans();
}

/// At random moments, between and in requests.
fn who_is_killed_from_outside_is_lost() {
    let mut state = seed();
    let case = Case::new(&mut state, 3);
    let truth = case.truth();
    let rounds = if std::env::var_os("IMPASTO_ALL_DEATHS").is_some() { 50 } else { 4 };
    for round in 0..rounds {
        let remote = open("none");
        let process = remote.process().expect("it runs").to_string();
        let wait = Duration::from_millis(random(&mut state) % 300);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(wait);
            let killed = std::process::Command::new("sh").args(["-c", &format!("kill -SEGV {process}")]).status();
            assert!(killed.is_ok_and(|status| status.success()), "it can be killed");
        });
        let begun = Instant::now();
        let error = loop {
            assert!(begun.elapsed() < Duration::from_secs(60), "it lives on");
            let ran = case.session(&remote).and_then(|mut session| case.run(&mut *session));
            match ran {
                Ok(outputs) => assert_eq!(outputs, truth, "round {round}"),
                Err(error) => break error,
            }
        };
        killer.join().expect("it killed");
        assert!(reason(&error).contains("crashed with SIGSEGV"), "round {round}: {error}");
    }
    no_orphans();
}

/// Asked for one by one, kept packed by the worker, and taking turns from both.
fn weights_from_everywhere() {
    let case = Case::new(&mut seed(), 12);
    let truth = case.truth();
    let whole = open("none");
    let plan = Plan::new(&case.graph, &*whole.profile()).expect("it fits");
    let host = Arc::new(whole.pack_on_host(&case.graph, &plan, &case.params).expect("it packs"));
    assert_eq!(host.bytes(), plan.weight_bytes());
    assert!(host.packed("0.weight").is_none(), "they are in the worker's memory, not here");
    let weights = whole.pack(&case.graph, &plan, &*host).expect("it packs");
    let mut session = whole.prepare(&case.graph, &plan, &weights).expect("it prepares");
    assert_eq!(case.run(&mut *session).expect("it runs"), truth, "kept by the worker");
    assert_eq!(session.profile().len(), plan.steps().len());
    assert!(session.profile().iter().any(|time| time.seconds > 0.0), "times come over");

    let memory = plan.arena_bytes() + plan.weight_bytes() / 2 + whole.profile().fixed_bytes();
    let how = DeviceOptions { memory: Some(memory), ..DeviceOptions::default() };
    let small = Remote::open(&device(), &how, options("none")).expect("it opens");
    let plan = Plan::streamed(&case.graph, &*small.profile()).expect("it fits");
    assert!(plan.stream().is_some(), "weights take turns");
    let kept: SharedSource = Arc::new(small.pack_on_host(&case.graph, &plan, &case.params).expect("it packs"));
    let asked: SharedSource = Arc::new(case.params.clone());
    for (name, source) in [("kept", kept), ("asked", asked)] {
        let weights = small.pack(&case.graph, &plan, &*source).expect("it packs").fed_by(source);
        let mut session = small.prepare(&case.graph, &plan, &weights).expect("it prepares");
        assert_eq!(case.run(&mut *session).expect("it runs"), truth, "{name}, in turns");
        assert!(session.streaming().is_some_and(|streaming| streaming.bytes > 0), "{name}");
        assert!(small.meter().peak() <= memory, "{name}: within the budget");
    }

    // Adapters come and go beside weights that stay.
    {
        let adapted = case.graph.with_branches(|name| name.ends_with("weight").then_some(4)).expect("a graph");
        let plan = Plan::new(&adapted, &*whole.profile()).expect("it fits");
        let weights = whole.pack(&adapted, &plan, &*host).expect("it packs");
        for scale in [0.0, 0.05] {
            let adapters = case.adapters(&adapted, scale);
            let packed = whole.pack_adapters(&adapted, &plan, &adapters).expect("it packs");
            assert_eq!(weights.bytes() + packed.bytes(), plan.weight_bytes(), "planned is allocated");
            let weights = weights.clone().with_adapters(Some(packed));
            let mut session = whole.prepare(&adapted, &plan, &weights).expect("it prepares");
            assert_eq!(case.run(&mut *session).expect("it runs") == truth, scale == 0.0, "beside adapters of {scale}");
        }
        assert!(whole.prepare(&adapted, &plan, &weights).is_err(), "without its adapters");
    }

    // What one worker keeps, another does not know.
    let elsewhere: &HostWeights = &host;
    let error = small.pack(&case.graph, &plan, elsewhere).err().expect("it is not there");
    assert!(error.to_string().contains("no such weights"), "{error}");
    // A plan of another graph is refused, and nothing dies of it.
    let other = Case::new(&mut 7, 5);
    let error = small.pack(&other.graph, &plan, &other.params).err().expect("it is another graph's");
    assert!(error.to_string().contains("none of this graph"), "{error}");
    assert!(case.session(&whole).is_ok());
}

fn an_idle_worker_ends() {
    let case = Case::new(&mut seed(), 4);
    let truth = case.truth();
    let options = WorkerOptions { idle: Duration::from_millis(300), ..options("none") };
    let remote = Remote::open(&device(), &DeviceOptions::default(), options).expect("it opens");
    for round in 0..2 {
        let before = remote.meter().now();
        let mut session = case.session(&remote).expect("it loads");
        let first = remote.process().expect("it runs");
        assert!(remote.meter().now() > before);
        std::thread::sleep(Duration::from_millis(700));
        assert_eq!(remote.process(), Some(first), "what holds something does not end");
        // Heartbeats say how far the compilation is.
        assert!(remote.meter().compiled() > 0);
        assert_eq!(remote.meter().wanted(), remote.meter().compiled(), "kernels to compile are told");
        assert_eq!(case.run(&mut *session).expect("it runs"), truth, "round {round}");
        drop(session);
        // Asked at once, the worker is still there and has given everything back.
        let plan = Plan::new(&case.graph, &*remote.profile()).expect("it fits");
        let weights = remote.pack(&case.graph, &plan, &case.params).expect("it packs");
        assert_eq!(remote.meter().now(), before + weights.bytes(), "round {round}: bytes are left on the device");
        drop(weights);
        let begun = Instant::now();
        while remote.process().is_some() {
            assert!(begun.elapsed() < Duration::from_secs(20), "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    no_orphans();
}

/// Bytes of a process that no file backs, and the files that it has open.
fn held(process: u32) -> (u64, usize) {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("Linux tells");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("it tells that");
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").trim().parse().expect("a number");
    (1024 * kilobytes, std::fs::read_dir(format!("/proc/{process}/fd")).expect("a folder").count())
}

/// Two networks by turns in one process: nothing grows here, on the device, nor in the worker.
fn many_loads_leave_nothing() {
    let mut state = seed();
    let cases = [Case::new(&mut state, 60), Case::new(&mut state, 25)];
    let truths = cases.each_ref().map(Case::truth);
    let remote = open("none");
    let (own, worker) = (std::process::id(), remote.process().expect("it runs"));
    let rounds = if std::env::var_os("IMPASTO_ALL_DEATHS").is_some() { 1000 } else { 60 };
    let mut first = None;
    for round in 0..rounds {
        let mut session = cases[round % 2].session(&remote).expect("it loads");
        assert_eq!(cases[round % 2].run(&mut *session).expect("it runs"), truths[round % 2], "round {round}");
        drop(session);
        assert_eq!(remote.meter().now(), 0, "round {round}: bytes are left on the device");
        assert_eq!(remote.process(), Some(worker), "round {round}");
        let now = [held(own), held(worker)];
        // The first rounds fill what is kept from then on: kernels, pools of the allocator and of the driver.
        match first {
            None if round < 20 => {}
            None => first = Some(now),
            Some(before) => {
                for (before, now) in before.iter().zip(&now) {
                    assert_eq!(now.1, before.1, "round {round}: open files");
                    assert!(now.0 < before.0 + (16 << 20), "round {round}: {} bytes, {} before", now.0, before.0);
                }
            }
        }
    }
    println!("{rounds} loads: {first:?}, then {:?}", [held(own), held(worker)]);
}

fn who_wants_to_stop_is_heard() {
    // Enough kernels for several lists of commands.
    let case = Case::new(&mut seed(), 2100);
    let stop = Arc::new(AtomicBool::new(false));
    let options = WorkerOptions { stop: Some(stop.clone()), ..options("none") };
    let remote = Remote::open(&device(), &DeviceOptions::default(), options).expect("it opens");
    let mut session = case.session(&remote).expect("it loads");
    let truth = session.run_to_new(&[("x", &case.inputs[0])]).expect("it runs");
    stop.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    let error = loop {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not stop");
        match session.run_to_new(&[("x", &case.inputs[0])]) {
            Ok(outputs) => assert_eq!(outputs, truth, "what ends before it is heard is whole"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, BackendError::Interrupted { .. }), "{error}");
    stop.store(false, Ordering::Relaxed);
    assert_eq!(session.run_to_new(&[("x", &case.inputs[0])]).expect("it goes on"), truth);
}

fn two_deaths_are_remembered() {
    let case = Case::new(&mut seed(), 2);
    let folder = tempfile::tempdir().expect("a folder");
    let survey_options = |asked_for| SurveyOptions {
        apis: vec![Api::Vulkan],
        usable: vec![Api::Cpu, Api::Vulkan],
        asked_for,
        store: Arc::new(Store::at(folder.path())),
        ..SurveyOptions::default()
    };
    // The device by its own driver, so that a survey finds what is held against it.
    let found = survey(&survey_options(false));
    let is_it = |view: &&DeviceInfo| view.kind == DeviceKind::Software && view.api == Api::Vulkan;
    let device = found.views().find(is_it).expect("lavapipe").clone();
    let die = |asked_for| {
        let guard = UseGuard::new(&device, &survey_options(asked_for));
        let through_shim = DeviceInfo { manifest: Some(shim().manifest.clone()), index: 0, ..device.clone() };
        let options = WorkerOptions { guard: Some(guard), ..options("abort:1") };
        let remote = Remote::open(&through_shim, &DeviceOptions::default(), options).expect("it opens");
        let error = case.session(&remote).and_then(|mut session| case.run(&mut *session)).expect_err("it dies");
        reason(&error);
        remote.reopens()
    };
    assert!(die(false), "one is forgiven");
    let seen = survey(&survey_options(false));
    assert!(seen.views().any(|view| is_it(&view)), "and the device is still there");
    assert!(!die(false), "two are not");
    assert!(die(true), "unless somebody asks for it");
    let seen = survey(&survey_options(false));
    assert!(!seen.views().any(|view| is_it(&view)), "it is left alone");
    let held = seen.apis.iter().flat_map(|api| &api.blocked).find(|known| known.what.contains("SIGABRT"));
    assert!(held.is_some(), "and `impasto devices` says why: {:?}", seen.apis);
    assert!(survey(&survey_options(true)).views().any(|view| is_it(&view)), "who asks for it has it");
    // What has done its work is forgiven.
    let guard = UseGuard::new(&device, &survey_options(false));
    guard.worked();
    assert!(guard.may_try_again());
}
