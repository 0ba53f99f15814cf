//! What was written, and where modules then are. What a user would lose: a command of stable-diffusion.cpp that works unchanged, and an error
//! that shows the place that is wrong.

use std::sync::Arc;
use std::time::Duration;

use impasto_backend::cpu::{Cpu, CpuOptions, Precision};
use impasto_backend::{Backend, BackendError, DeviceOptions};
use impasto_device::{Api, DeviceInfo, Standing};
use impasto_generate::place::{
    Budget, Home, Machine, MachineOptions, ModuleName, Placement, Pool, RunPlan, imagine, place,
};
use impasto_generate::settings::{SettingValue, Settings};
use impasto_generate::{EngineOptions, GenerateError, Job};
use impasto_model::{Model, ModelPaths};
use impasto_testkit::model::Small;

/// A machine with two cards, one that failed its trial, and one that this build cannot use.
fn machine(faults: Vec<(Api, String)>) -> Machine {
    let card = |text: &str| imagine(text).expect("a device");
    let mut broken = card("vulkan2:memory=8GiB");
    broken.standing = Standing::Refused { why: "it computed 41 instead of 42".into() };
    let devices = [card("vulkan0:memory=8GiB"), card("vulkan1:memory=2GiB,kind=integrated"), broken];
    let mut later = card("cuda0:memory=24GiB");
    later.standing = Standing::NotYet { instead: "vulkan0".into() };
    let devices = devices.into_iter().chain([later, card("cpu:memory=16GiB")]).collect();
    machine_of(devices, faults)
}

fn machine_of(devices: Vec<DeviceInfo>, faults: Vec<(Api, String)>) -> Machine {
    let cpu = CpuOptions { precision: Precision::F32, ..CpuOptions::default() };
    let open = |_: &DeviceInfo, _: &_| panic!("placing opens no device");
    Machine::new(
        devices,
        faults,
        MachineOptions { cpu, ..MachineOptions::default() },
        Box::new(|_| None),
        Box::new(open),
    )
}

fn small() -> (tempfile::TempDir, Arc<Model>) {
    let folder = tempfile::tempdir().expect("a folder");
    Small::sd1().write_folder(folder.path());
    let paths = ModelPaths { model: Some(folder.path().into()), ..ModelPaths::default() };
    (folder, Arc::new(Model::open(&paths).unwrap_or_else(|e| panic!("{e}"))))
}

fn placed(model: &Arc<Model>, machine: &Machine, of: &[(&str, &str)]) -> Result<Placement, GenerateError> {
    place(&job(model, of)?, machine)
}

fn job(model: &Arc<Model>, of: &[(&str, &str)]) -> Result<Job, GenerateError> {
    let mut settings = Settings::default();
    let usual = [("prompt", "a house"), ("width", "64"), ("height", "64")];
    for (name, text) in usual.iter().chain(of) {
        settings.set(name, text).expect("a setting");
    }
    Job::new(&settings, model)
}

/// Devices of te, diffusion and vae, with where their weights are kept if that is elsewhere.
fn said(places: &Placement) -> String {
    let one = |place: &impasto_generate::place::Place| match place.home {
        Home::Runtime => place.device.name().to_owned(),
        Home::Host => format!("{}<cpu", place.device.name()),
        Home::Disk => format!("{}<disk", place.device.name()),
    };
    [&places.te, &places.diffusion, &places.vae].map(one).join(" ")
}

#[test]
fn what_is_written_is_where_modules_are() {
    let ((_folder, model), machine) = (small(), machine(vec![]));
    for (backend, params, says) in [
        // One device for all, in every way to write it.
        ("vulkan0", "", "vulkan0 vulkan0 vulkan0"),
        ("all=vulkan1", "", "vulkan1 vulkan1 vulkan1"),
        ("default=cpu", "", "cpu cpu cpu"),
        ("*=VULKAN1", "", "vulkan1 vulkan1 vulkan1"),
        (" Vulkan1 ,, ", "", "vulkan1 vulkan1 vulkan1"),
        // By module, with a default before or behind, the last one winning.
        ("te=cpu,vae=vulkan1,diffusion=vulkan0", "", "cpu vulkan0 vulkan1"),
        ("te=cpu,vulkan0", "", "cpu vulkan0 vulkan0"),
        ("vulkan0,te=cpu", "", "cpu vulkan0 vulkan0"),
        ("cpu,vulkan0", "", "vulkan0 vulkan0 vulkan0"),
        ("te=cpu,te=vulkan1,cpu", "", "vulkan1 cpu cpu"),
        ("cpu,clip=vulkan0,T5-XXL=vulkan1", "", "vulkan1 cpu cpu"),
        // Other names of modules, whatever their case and dashes.
        ("cpu,Text_Encoders=vulkan0", "", "vulkan0 cpu cpu"),
        ("cpu,unet=vulkan0,First-Stage=vulkan1", "", "cpu vulkan0 vulkan1"),
        ("cpu,DiT=vulkan0,tae=vulkan1", "", "cpu vulkan0 vulkan1"),
        ("cpu,model=vulkan0,autoencoder=vulkan1,conditioner=vulkan1", "", "vulkan1 vulkan0 vulkan1"),
        // The name of an API is its first device; the beginning of one name is that name.
        ("vulkan", "", "vulkan0 vulkan0 vulkan0"),
        ("cpu,te=cp", "", "cpu cpu cpu"),
        // The choice is ours: the discrete card, by its class.
        ("", "", "vulkan0 vulkan0 vulkan0"),
        ("auto", "", "vulkan0 vulkan0 vulkan0"),
        ("te=cpu,default", "", "cpu vulkan0 vulkan0"),
        ("te=", "", "vulkan0 vulkan0 vulkan0"),
        ("cpu,te=gpu", "", "vulkan0 cpu cpu"),
        // Weights.
        ("vulkan0", "cpu", "vulkan0<cpu vulkan0<cpu vulkan0<cpu"),
        ("vulkan0", "diffusion=cpu,te=disk", "vulkan0<disk vulkan0<cpu vulkan0"),
        ("vulkan0", "disk,vae=vulkan0", "vulkan0<disk vulkan0<disk vulkan0"),
        ("vulkan0,vae=cpu", "cpu", "vulkan0<cpu vulkan0<cpu cpu"),
        ("vulkan0,vae=cpu", "vae=cpu,te=gpu,diffusion=auto", "vulkan0 vulkan0 cpu"),
        // Modules that no model here has.
        ("cpu,controlnet=vulkan0,upscaler=cpu,yolo=cpu,photo=cpu,vision=cpu", "hires=disk", "cpu cpu cpu"),
    ] {
        let places = placed(&model, &machine, &[("backend", backend), ("params-backend", params)]);
        let places = places.unwrap_or_else(|e| panic!("{backend} {params}: {e}"));
        assert_eq!(said(&places), says, "--backend '{backend}' --params-backend '{params}'");
    }
}

#[test]
fn flags_of_stable_diffusion_cpp_stand_before_what_is_written() {
    let ((_folder, model), machine) = (small(), machine(vec![]));
    for (flags, says) in [
        (&[("clip-on-cpu", "true")][..], "cpu vulkan0 vulkan0"),
        (&[("vae-on-cpu", "true")], "vulkan0 vulkan0 cpu"),
        (&[("offload-to-cpu", "true")], "vulkan0<cpu vulkan0<cpu vulkan0<cpu"),
        (&[("offload-to-cpu", "true"), ("params-backend", "te=disk")], "vulkan0<disk vulkan0<cpu vulkan0<cpu"),
        (&[("clip-on-cpu", "true"), ("backend", "te=vulkan1")], "vulkan1 vulkan0 vulkan0"),
        (&[("clip-on-cpu", "true"), ("backend", "vulkan1")], "cpu vulkan1 vulkan1"),
    ] {
        let places = placed(&model, &machine, flags).unwrap_or_else(|e| panic!("{flags:?}: {e}"));
        assert_eq!(said(&places), says, "{flags:?}");
    }
    let said = [("backend", "controlnet=cpu"), ("params-backend", "yolo=disk")];
    let places = placed(&model, &machine, &said).expect("placed");
    assert_eq!(
        places.notes,
        [
            "this model has no controlnet: what was said of it is not used",
            "this model has no detector: what was said of it is not used"
        ]
    );
}

const MODULES: &str = "There are te, clip_vision, diffusion, vae, controlnet, photomaker, upscaler, detector";
const FOUND: &str = "ound: vulkan0, vulkan1, vulkan2, cuda0, cpu";

#[test]
fn what_is_wrong_is_shown_where_it_stands() {
    let ((_folder, model), machine) = (small(), machine(vec![]));
    for (flag, text, problem, caret) in [
        (
            "backend",
            "te=cpu,unt=vulkan0",
            format!("there is no such module; did you mean unet? {MODULES}"),
            "       ^^^",
        ),
        ("backend", "diffuson=cpu", format!("there is no such module; did you mean diffusion? {MODULES}"), "^^^^^^^^"),
        ("params-backend", "sampler=cpu", format!("there is no such module; {}", MODULES.replace('T', "t")), "^^^^^^^"),
        (
            "backend",
            "=cpu",
            "a module is missing before '='; a device for all of them stands alone or after all=".into(),
            "^^^^",
        ),
        (
            "backend",
            "vulkan0, te=cpu=gpu",
            "one module, one '=', one device; items stand between commas".into(),
            "         ^^^^^^^^^^",
        ),
        (
            "backend",
            "cpu,vae=vulcan0",
            format!("there is no such device here; did you mean vulkan0? F{FOUND}"),
            "        ^^^^^^^",
        ),
        ("backend", "rocm0", format!("there is no such device here; f{FOUND}"), "^^^^^"),
        ("params-backend", "te=tape", format!("there is no such device here; f{FOUND}"), "   ^^^^"),
        ("backend", "té=cpu,cpu", format!("there is no such module; did you mean te or t5? {MODULES}"), "^^"),
        (
            "backend",
            "cpu,te=v",
            "this begins several names: vulkan0, vulkan1, vulkan2; write one of them".into(),
            "       ^",
        ),
        ("backend", "c", "this begins several names: cuda0, cpu; write one of them".into(), "^"),
        ("backend", "te=disk", "nothing computes on disk; disk is for --params-backend".into(), "   ^^^^"),
        ("backend", "Disk", "nothing computes on disk; disk is for --params-backend".into(), "^^^^"),
        (
            "backend",
            "te=cpu,diffusion=vulkan0&vulkan1",
            "one module on several devices (vulkan0, vulkan1) is not supported yet; name one".into(),
            "                 ^^^^^^^^^^^^^^^",
        ),
        ("backend", "vulkan0&", "a device is missing beside '&'".into(), "^^^^^^^^"),
        ("params-backend", "vae=&cpu", "a device is missing beside '&'".into(), "    ^^^^"),
        (
            "backend",
            "vulkan2",
            "vulkan2: it failed its trial: it computed 41 instead of 42; `impasto devices` says more".into(),
            "^^^^^^^",
        ),
        ("backend", "CUDA0", "cuda0: found, but this build cannot compute on CUDA yet".into(), "^^^^^"),
        ("backend", "te=cuda", "cuda0: found, but this build cannot compute on CUDA yet".into(), "   ^^^^"),
        // An item that another covers must be right too.
        (
            "backend",
            "te=vulkan2,te=cpu",
            "vulkan2: it failed its trial: it computed 41 instead of 42; `impasto devices` says more".into(),
            "   ^^^^^^^",
        ),
        (
            "params-backend",
            "vae=vulkan1",
            "vae computes on vulkan0: its weights can be kept there, on cpu (host memory) or on disk".into(),
            "    ^^^^^^^",
        ),
    ] {
        let error = placed(&model, &machine, &[(flag, text)]).map(|places| said(&places)).expect_err(text);
        assert!(matches!(error, GenerateError::Assignment(_)), "{text}: {error}");
        assert_eq!(error.to_string(), format!("--{flag}: {problem}\n  {text}\n  {caret}"));
    }
}

#[test]
fn what_is_missing_for_a_reason_is_named_with_it() {
    let (_folder, model) = small();
    let alone = || vec![imagine("cpu:memory=16GiB").expect("a device")];
    let crashed = "crashed during device probe (signal 11 in create-instance, driver libX)";
    let machine = machine_of(alone(), vec![(Api::Vulkan, crashed.into())]);
    let error = placed(&model, &machine, &[("backend", "vulkan0")]).map(|_| ()).expect_err("it is not there");
    assert!(error.to_string().contains(&format!("vulkan0: Vulkan {crashed}\n")), "{error}");
    let error = placed(&model, &machine, &[("backend", "gpu")]).map(|_| ()).expect_err("there is none");
    assert!(error.to_string().contains("no GPU that can be used is here; found: cpu\n"), "{error}");
    // With nothing else, everything is on the CPU, also where only a software rasteriser is beside it.
    let mut software = imagine("vulkan0:memory=8GiB").expect("a device");
    software.kind = impasto_device::DeviceKind::Software;
    let machine = machine_of([vec![software], alone()].concat(), vec![]);
    let places = placed(&model, &machine, &[]).expect("placed");
    assert_eq!(said(&places), "cpu cpu cpu");
    let named = placed(&model, &machine, &[("backend", "vulkan")]).expect("placed");
    assert_eq!(said(&named), "vulkan0 vulkan0 vulkan0", "by its name it is used");
    // Who names it is told once that the CPU would be faster, and the plan counts what it compiles first.
    let slow = named.notes.iter().filter(|note| note.contains("slower than --backend cpu")).count();
    assert_eq!((slow, named.notes.len(), places.notes.len()), (1, 1, 0), "{:?}", named.notes);
    let plan = impasto_generate::plan(&job(&model, &[("backend", "vulkan")]).expect("a job"), &named).expect("a plan");
    let rows = plan.modules.iter().map(|row| (row.kernels, row.seconds));
    assert!(rows.clone().all(|(kernels, seconds)| kernels > 5 && seconds > 0.1 * kernels as f64), "{:?}", plan.modules);
    assert_eq!(places.reasons[1], "diffusion: cpu, the only device that it can be on");
}

#[test]
fn a_card_that_is_too_small_is_passed_over_where_the_choice_is_ours() {
    let (_folder, model) = small();
    let devices = ["vulkan0:memory=1MiB", "vulkan1:memory=1GiB,kind=integrated", "cpu:memory=16GiB"];
    let machine = machine_of(devices.map(|text| imagine(text).expect("a device")).into(), vec![]);
    let places = placed(&model, &machine, &[]).expect("placed");
    assert_eq!(said(&places), "vulkan1 vulkan1 vulkan1");
    assert!(places.reasons.iter().any(|reason| reason.starts_with("vae: not on vulkan0: ")), "{:?}", places.reasons);
    let asked = placed(&model, &machine, &[("backend", "vae=vulkan0")]).expect("placed");
    assert_eq!(said(&asked), "vulkan1 vulkan1 vulkan0", "what was asked for is not moved");
    assert_eq!(asked.of(ModuleName::Controlnet).map(|p| p.home), None);
}

#[test]
fn a_device_is_opened_once_and_closed_when_nobody_uses_it() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let opened = Arc::new(AtomicUsize::new(0));
    let count = opened.clone();
    let pool = Pool::new(Duration::ZERO, move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Cpu::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() })?))
    });
    let gone = {
        let users: Vec<Arc<dyn Backend>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| pool.get("a").expect("it opens"))).collect();
            threads.into_iter().map(|thread| thread.join().expect("it ends")).collect()
        });
        assert!(users.iter().all(|user| Arc::ptr_eq(user, &users[0])), "one instance for all");
        assert_eq!(opened.load(Ordering::Relaxed), 1);
        let other = pool.get("b").expect("it opens");
        assert!(!Arc::ptr_eq(&other, &users[0]), "another device is another instance");
        Arc::downgrade(&users[0])
    };
    assert_eq!(gone.strong_count(), 0, "the last user is gone, and so is the device");
    assert!(!pool.is_open("a") && !pool.is_open("b"));
    let _again = pool.get("a").expect("it opens again");
    assert!(pool.is_open("a"));
    assert_eq!(opened.load(Ordering::Relaxed), 3);
}

/// A flag that ends before the device would verify nothing in releases.
#[test]
fn verify_reaches_every_device() {
    for asked in [true, false] {
        let mut settings = Settings::default();
        settings.set("verify", &asked.to_string()).expect("a setting");
        let how = EngineOptions::new(&settings).expect("options").devices;
        let devices = ["vulkan0:memory=8GiB", "cpu:memory=16GiB"].map(|text| imagine(text).expect("a device"));
        let open = move |device: &DeviceInfo, options: &DeviceOptions| {
            assert_eq!(options.verify, asked, "{}", device.name);
            Err(BackendError::Setting("asked".into()))
        };
        let machine = Machine::new(devices.into(), vec![], how, Box::new(|_| None), Box::new(open));
        let verifies = |device| machine.profile(device).expect("a profile").verifies_plans();
        assert!(machine.devices().iter().all(|device| verifies(device) == (asked || cfg!(debug_assertions))));
        match machine.pool().get("vulkan0").err() {
            Some(BackendError::Setting(word)) => assert_eq!(word, "asked"),
            other => panic!("{other:?}"),
        }
    }
}

/// What others hold of the host's memory cannot be had: modules on the CPU are planned within the rest, less what the program takes.
#[test]
fn what_is_free_counts() {
    let (_folder, model) = small();
    let job = job(&model, &[("backend", "cpu")]).expect("a job");
    let within = |free: Option<u64>| {
        let cpu = CpuOptions { precision: Precision::F32, ..CpuOptions::default() };
        let options = MachineOptions { cpu, ..MachineOptions::default() };
        let open = |_: &DeviceInfo, _: &_| panic!("placing opens no device");
        let devices = vec![imagine("cpu:memory=16GiB").expect("a device")];
        let machine = Machine::new(devices, vec![], options, Box::new(move |_| free), Box::new(open));
        impasto_generate::plan(&job, &place(&job, &machine).expect("a place")).expect("a plan")
    };
    let all = within(None);
    assert!(all.fits() && all.peaks[0].limit == 16 << 30 && all.peaks[0].process == 0, "{all:?}");
    let most = within(Some(15 << 30));
    let peak = &most.peaks[0];
    let (plans, limit) = (peak.bytes - peak.process, peak.limit - peak.process);
    assert!(most.fits() && plans == all.peaks[0].bytes && peak.process > 0, "{most:?}");
    assert!(limit < 15 << 30 && limit > 14 << 30, "{most:?}");
    // What is left for plans is what is free, less what work and pictures need: too little for these.
    let little = within(Some(41 << 20));
    assert!(!little.fits() && little.modules.iter().all(|module| module.problem.is_some()), "{little:?}");
}

/// One card of 8 GiB by two APIs, of which each finds so many bytes free.
fn one_card(free: [u64; 2], budget: &str) -> Machine {
    let card =
        |name: &str| DeviceInfo { uuid: Some([7; 16]), ..imagine(&format!("{name}:memory=8GiB")).expect("a device") };
    let devices = vec![card("cuda0"), card("vulkan0"), imagine("cpu:memory=16GiB").expect("a device")];
    let open = |_: &DeviceInfo, _: &_| panic!("placing opens no device");
    let found = move |device: &DeviceInfo| match device.api {
        Api::Cuda => Some(free[0]),
        Api::Vulkan => Some(free[1]),
        Api::Cpu => None,
    };
    let max_vram = Budget::parse(budget).expect("a budget");
    let cpu = CpuOptions { precision: Precision::F32, ..CpuOptions::default() };
    Machine::new(
        devices,
        vec![],
        MachineOptions { cpu, max_vram, ..MachineOptions::default() },
        Box::new(found),
        Box::new(open),
    )
}

#[test]
fn a_card_by_two_apis_has_one_memory() {
    const MIB: u64 = 1 << 20;
    let (_folder, model) = small();
    let of = [("backend", "te=cpu,diffusion=cuda0,vae=vulkan0"), ("width", "256"), ("height", "256")];
    let job = job(&model, &of).expect("a job");
    let planned = |machine: &Machine| {
        let places = place(&job, machine).unwrap_or_else(|e| panic!("{e}"));
        let limits = [&places.diffusion, &places.vae].map(|place| place.device.limits().memory);
        (limits, impasto_generate::plan(&job, &places).unwrap_or_else(|e| panic!("{e}")))
    };
    // CUDA's context is taken off where CUDA is asked, and what its driver takes beside plans.
    let (limits, roomy) = planned(&one_card([6 << 30, 7 << 30], ""));
    assert_eq!(limits, [(6 << 30) - 256 * MIB; 2]);
    let peak = |plan: &RunPlan| plan.peaks.iter().find(|peak| peak.device != "cpu").cloned().expect("a peak");
    let both = peak(&roomy);
    assert!(roomy.fits() && roomy.peaks.len() <= 2, "{roomy:?}");
    assert_eq!((&both.device[..], both.limit, both.driver), ("cuda0, vulkan0", limits[0], 256 * MIB));
    let [diffusion, vae] = ["diffusion", "vae"]
        .map(|name| roomy.modules.iter().find(|module| module.module == name).expect("a module").device_bytes());
    // Both are there at once, each with its staging memory.
    assert_eq!(both.bytes, diffusion + vae + 64 * MIB);
    // Where they do not fit beside each other, one makes room for the other, also by another API.
    let tight = 256 * MIB + diffusion.max(vae) + 40 * MIB;
    let (_, less) = planned(&one_card([tight, 7 << 30], ""));
    assert!(less.fits() && peak(&less).bytes < both.bytes, "{less:?}");
    // On two cards both stay.
    let apart = one_card([6 << 30, 7 << 30], "");
    let mut devices = apart.devices().to_vec();
    devices[1].uuid = Some([8; 16]);
    let (_, apart) = planned(&machine_of(devices, vec![]));
    assert_eq!(apart.peaks.iter().filter(|peak| peak.device != "cpu").count(), 2, "{apart:?}");
    // A budget of one of them is its own.
    let (limits, _) = planned(&one_card([6 << 30, 7 << 30], "cuda0=1"));
    assert_eq!(limits, [1 << 30, (6 << 30) - 256 * MIB]);
    // Alone it has all that is free by its API.
    let places =
        placed(&model, &one_card([6 << 30, 7 << 30], ""), &[("backend", "vulkan0")]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(places.diffusion.device.limits().memory, 7 << 30);
}
