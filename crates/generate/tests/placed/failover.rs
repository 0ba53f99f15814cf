//! Devices that fail in the middle of a run. What a user would lose: the picture, and the steps that were done.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use impasto_backend::cpu::{CpuOptions, Precision};
use impasto_backend::{
    Backend, BackendError, DeviceOptions, Meter, Profile, Session, StepTime, Streaming, WeightSource, Weights,
};
use impasto_device::DeviceInfo;
use impasto_generate::picture::Picture;
use impasto_generate::place::{Machine, MachineOptions, imagine, place};
use impasto_generate::settings::Settings;
use impasto_generate::{Event, GenerateError, Job, run};
use impasto_graph::{DType, Graph, HostTensor, Limits, Plan, TensorType};
use impasto_model::Model;

use super::{found, open, psnr};
use impasto_testkit::model::Small;

/// How a device fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// It has no memory left for weights or for the arena, from so many bytes on in one piece of the plan.
    Pack,
    Prepare,
    /// It is lost while it computes.
    Lost,
    /// A kernel cannot be compiled.
    Unable,
    /// It computes no numbers.
    Wrong,
    /// It does not open.
    Closed,
}

/// Which call of its kind fails, on which device; how often after that.
#[derive(Clone, Debug)]
struct Fault {
    device: &'static str,
    kind: Kind,
    at: usize,
    times: usize,
}

/// What devices are to do wrong, and what they have done so far.
#[derive(Default)]
struct Script {
    faults: Mutex<Vec<(Fault, usize)>>,
    opened: Mutex<Vec<String>>,
    reopens: bool,
}

impl Script {
    fn new(faults: &[Fault], reopens: bool) -> Arc<Script> {
        let faults = Mutex::new(faults.iter().map(|fault| (fault.clone(), 0)).collect());
        Arc::new(Script { faults, opened: Mutex::default(), reopens })
    }

    /// Whether this call is to fail.
    fn fails(&self, device: &str, kind: Kind) -> bool {
        let mut faults = self.faults.lock().expect("no panic");
        let mut fails = false;
        for (fault, calls) in faults.iter_mut().filter(|(fault, _)| fault.device == device && fault.kind == kind) {
            fails |= (fault.at..fault.at + fault.times).contains(calls);
            *calls += 1;
        }
        fails
    }
}

/// A device that does what a script says.
struct Scripted {
    device: Arc<dyn Backend>,
    script: Arc<Script>,
    lost: Arc<Mutex<bool>>,
}

struct ScriptedSession {
    session: Box<dyn Session>,
    device: String,
    script: Arc<Script>,
    lost: Arc<Mutex<bool>>,
    exact: bool,
}

impl Scripted {
    fn lost(&self) -> Result<(), BackendError> {
        match *self.lost.lock().expect("no panic") {
            true => panic!("{} was lost, and is used again", self.device.profile().name()),
            false => Ok(()),
        }
    }
}

impl Backend for Scripted {
    fn profile(&self) -> Arc<dyn Profile> {
        self.device.profile()
    }

    fn meter(&self) -> &Meter {
        self.device.meter()
    }

    fn peak_gflops(&self) -> Result<f64, BackendError> {
        self.device.peak_gflops()
    }

    fn pack(&self, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<Weights, BackendError> {
        self.lost()?;
        let device = self.device.profile().name().to_owned();
        match self.script.fails(&device, Kind::Pack) {
            true => Err(BackendError::Exhausted { device, bytes: plan.device_weight_bytes() }),
            false => self.device.pack(graph, plan, source),
        }
    }

    fn pack_adapters(&self, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<Weights, BackendError> {
        self.device.pack_adapters(graph, plan, source)
    }

    fn prepare(&self, graph: &Graph, plan: &Plan, weights: &Weights) -> Result<Box<dyn Session>, BackendError> {
        self.lost()?;
        let device = self.device.profile().name().to_owned();
        if self.script.fails(&device, Kind::Prepare) {
            return Err(BackendError::Exhausted { device, bytes: plan.arena_bytes() });
        }
        if self.script.fails(&device, Kind::Unable) {
            return Err(BackendError::Unsupported { device, reason: "a kernel does not compile".into() });
        }
        let session = self.device.prepare(graph, plan, weights)?;
        let (script, lost) = (self.script.clone(), self.lost.clone());
        let exact = self.device.profile().activations() == DType::F32;
        Ok(Box::new(ScriptedSession { session, device, script, lost, exact }))
    }

    fn reopens(&self) -> bool {
        self.script.reopens
    }

    fn in_f32(&self) -> Option<Arc<dyn Backend>> {
        let (script, lost) = (self.script.clone(), self.lost.clone());
        Some(Arc::new(Scripted { device: in_f32(&self.device)?, script, lost }))
    }
}

impl Session for ScriptedSession {
    fn inputs(&self) -> &[(String, TensorType)] {
        self.session.inputs()
    }

    fn outputs(&self) -> &[(String, TensorType)] {
        self.session.outputs()
    }

    fn run(&mut self, inputs: &[(&str, &HostTensor)], outputs: &mut [HostTensor]) -> Result<(), BackendError> {
        assert!(!*self.lost.lock().expect("no panic"), "{} was lost, and is used again", self.device);
        if self.script.fails(&self.device, Kind::Lost) {
            *self.lost.lock().expect("no panic") = true;
            return Err(BackendError::Lost { device: self.device.clone(), reason: "as the script says".into() });
        }
        self.session.run(inputs, outputs)?;
        // What overflows in halves does not in floats, unless the script says that it does.
        if self.script.fails(&self.device, Kind::Wrong) && (!self.exact || self.script.reopens) {
            let ty = outputs[0].ty().clone();
            outputs[0] = HostTensor::f32(&ty.shape[..], vec![f32::NAN; ty.elements() as usize]).expect("a tensor");
        }
        Ok(())
    }

    fn streaming(&self) -> Option<Streaming> {
        self.session.streaming()
    }

    fn allocated_bytes(&self) -> u64 {
        self.session.allocated_bytes()
    }

    fn profile(&self) -> Vec<StepTime> {
        self.session.profile()
    }
}

type Device = Arc<dyn Backend>;

/// The software device under a name, in floats or in halves, open: opened for each case, it would compile every kernel again.
fn opened(name: &str, options: &DeviceOptions) -> Arc<dyn Backend> {
    static OPENED: Mutex<Vec<(String, Precision, Device)>> = Mutex::new(vec![]);
    let mut all = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, _, device)) =
        all.iter().find(|(known, precision, _)| known == name && *precision == options.precision)
    {
        return device.clone();
    }
    let named = DeviceInfo { name: name.into(), ..found() };
    let device = impasto_backend::open(&named, options).expect("it opens");
    all.push((name.into(), options.precision, device.clone()));
    device
}

/// The same, computing in floats though it was opened for halves.
fn in_f32(device: &Arc<dyn Backend>) -> Option<Arc<dyn Backend>> {
    static MADE: Mutex<Vec<[Device; 2]>> = Mutex::new(vec![]);
    let mut all = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some([_, exact]) = all.iter().find(|[of, _]| Arc::ptr_eq(of, device)) {
        return Some(exact.clone());
    }
    let exact = device.in_f32()?;
    all.push([device.clone(), exact.clone()]);
    Some(exact)
}

/// A machine with two Vulkan devices, which are the software device under two names, and the CPU.
fn machine(script: &Arc<Script>, precision: Precision, with_cpu: bool) -> Machine {
    let found = found();
    let mut devices: Vec<DeviceInfo> = ["vulkan0:memory=2GiB", "vulkan1:memory=1GiB,kind=integrated"]
        .map(|text| imagine(text).expect("a device"))
        .into();
    for device in &mut devices {
        device.vulkan = found.vulkan.clone();
        device.limits = Limits { memory: device.limits.memory, ..found.limits };
    }
    if with_cpu {
        devices.push(imagine("cpu:memory=8GiB").expect("a device"));
    }
    let how = MachineOptions { cpu: CpuOptions { precision, ..CpuOptions::default() }, ..MachineOptions::default() };
    let script = script.clone();
    let open = move |info: &DeviceInfo, options: &DeviceOptions| {
        script.opened.lock().expect("no panic").push(info.name.clone());
        if script.fails(&info.name, Kind::Closed) {
            return Err(BackendError::Unsupported { device: info.name.clone(), reason: "no answer".into() });
        }
        let (device, script) = (opened(&info.name, options), script.clone());
        Ok(Arc::new(Scripted { device, script, lost: Arc::default() }) as Arc<dyn Backend>)
    };
    Machine::new(devices, vec![], how, Box::new(|_| None), Box::new(open))
}

fn settings(more: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::default();
    let usual = [("prompt", "a red house"), ("steps", "3"), ("seed", "7"), ("width", "64"), ("height", "64")];
    for (name, text) in usual.iter().chain(more) {
        settings.set(name, text).unwrap_or_else(|e| panic!("{e}"));
    }
    settings
}

/// What came of a run.
struct Came {
    made: Result<Picture, GenerateError>,
    notes: Vec<String>,
    /// Steps taken, as they were told.
    steps: Vec<usize>,
}

fn paint(model: &Arc<Model>, script: &Arc<Script>, precision: Precision, more: &[(&str, &str)]) -> Came {
    paint_on(&machine(script, precision, true), model, more)
}

fn paint_on(machine: &Machine, model: &Arc<Model>, more: &[(&str, &str)]) -> Came {
    let settings = settings(more);
    let job = Job::new(&settings, model).expect("a job");
    let places = place(&job, machine).unwrap_or_else(|e| panic!("{e}"));
    let (mut made, mut notes, mut steps) = (None, vec![], vec![]);
    let done = run(&job, &places, None, &mut |event| {
        match event {
            Event::Picture { picture, .. } => made = Some(picture.clone()),
            Event::Note(note) => notes.push(note.to_owned()),
            Event::Step { done, .. } => steps.push(done),
            _ => {}
        }
        Ok(true)
    });
    Came { made: done.map(|()| made.expect("a picture is ready")), notes, steps }
}

/// The runs of a picture in which something goes wrong: the text encoder's, one for each of three steps, the decoder's; or some of them.
fn moments() -> Vec<usize> {
    if std::env::var_os("IMPASTO_ALL_FAULTS").is_some() { (0..5).collect() } else { vec![0, 2, 4] }
}

const EVERYWHERE: [(&str, &str); 1] = [("backend", "vulkan0")];

fn fault(device: &'static str, kind: Kind, at: usize) -> Fault {
    Fault { device, kind, at, times: 1 }
}

impasto_testkit::trial! {
    fn whatever_fails_once_the_picture_is_made_and_no_step_is_lost(every: usize = 6, 1) {
        let (_folder, model) = open(&Small::sd1());
        let want = paint(&model, &Script::new(&[], false), Precision::F32, &EVERYWHERE).made.expect("nothing fails");
        // Modules are packed and prepared one after the other: the encoder, the diffusion model, the decoder.
        let mut cases = vec![(Kind::Closed, 0)];
        cases.extend(
            [Kind::Pack, Kind::Prepare, Kind::Unable].into_iter().flat_map(|kind| (0..3).map(move |at| (kind, at))),
        );
        cases.extend(moments().into_iter().flat_map(|at| [(Kind::Lost, at), (Kind::Wrong, at)]));
        // Other ones in each run.
        let first = RandomState::new().hash_one(0) as usize % every;
        for (kind, at) in cases.into_iter().skip(first).step_by(every) {
            // In 32-bit floats from the beginning a number that is none is another device's business.
            let script = Script::new(&[fault("vulkan0", kind, at)], kind == Kind::Wrong);
            let came = paint(&model, &script, Precision::F32, &EVERYWHERE);
            let made = came.made.unwrap_or_else(|e| panic!("{kind:?} {at}: {e}"));
            let found = psnr(&want, &made);
            assert!(found >= 45.0, "{kind:?} {at}: {found:.1} dB");
            assert_eq!(came.steps, [0, 1, 2, 3], "{kind:?} {at}");
            let [note] = &came.notes[..] else { panic!("{kind:?} {at}: {:?}", came.notes) };
            assert!(note.contains("vulkan0") && note.contains("going on: ") && note.contains(" MB"), "{note}");
            let stays = matches!(kind, Kind::Pack | Kind::Prepare);
            let opened = script.opened.lock().expect("no panic").clone();
            assert_eq!(opened[0], "vulkan0", "{kind:?} {at}");
            if !stays {
                assert!(opened.len() == 1 || opened[1] == "vulkan1", "{kind:?} {at}: {opened:?}");
                assert!(note.contains(" on cpu ") || note.contains(" on vulkan1 "), "{note}");
            }
        }
    }
}

impasto_testkit::trial! {
    long fn a_device_that_can_be_opened_anew_goes_on_once_with_the_same_bits() {
        let (_folder, model) = open(&Small::sd1());
        let want = paint(&model, &Script::new(&[], true), Precision::F32, &EVERYWHERE).made.expect("nothing fails");
        for at in moments() {
            let script = Script::new(&[fault("vulkan0", Kind::Lost, at)], true);
            let came = paint(&model, &script, Precision::F32, &EVERYWHERE);
            assert!(came.made.expect("it goes on") == want, "lost in run {at}");
            assert_eq!(*script.opened.lock().expect("no panic"), ["vulkan0", "vulkan0"]);
            assert_eq!(came.steps, [0, 1, 2, 3]);
        }
        // The second time it is given up: the run goes on elsewhere.
        let script = Script::new(&[Fault { times: 2, ..fault("vulkan0", Kind::Lost, 2) }], true);
        let came = paint(&model, &script, Precision::F32, &EVERYWHERE);
        assert!(psnr(&want, &came.made.expect("it goes on")) >= 45.0);
        assert_eq!(came.notes.len(), 2, "{:?}", came.notes);
        let opened = script.opened.lock().expect("no panic").clone();
        assert_eq!(opened.iter().filter(|name| *name == "vulkan0").count(), 2, "{opened:?}");
    }
}

impasto_testkit::trial! {
    long fn numbers_that_are_none_are_computed_again_in_f32_on_the_same_device() {
        let (_folder, model) = open(&Small::sd1());
        let want = paint(&model, &Script::new(&[], false), Precision::F32, &EVERYWHERE).made.expect("nothing fails");
        let halves = paint(&model, &Script::new(&[], false), Precision::Auto, &EVERYWHERE).made.expect("nothing fails");
        assert_ne!(want, halves, "the device has no halves: this shows nothing");
        for at in moments() {
            let script = Script::new(&[fault("vulkan0", Kind::Wrong, at)], false);
            let came = paint(&model, &script, Precision::Auto, &EVERYWHERE);
            let made = came.made.unwrap_or_else(|e| panic!("{at}: {e}"));
            assert!(psnr(&want, &made) >= psnr(&want, &halves) - 3.0, "{at}: worse than in halves");
            assert_eq!(*script.opened.lock().expect("no panic"), ["vulkan0"], "{at}: it stays");
            assert_eq!(came.steps, [0, 1, 2, 3]);
            let [note] = &came.notes[..] else { panic!("{at}: {:?}", came.notes) };
            assert!(note.contains("whole in f32") && note.contains("on vulkan0"), "{note}");
        }
    }
}

#[test]
fn where_nothing_is_left_the_error_says_what_was_tried() {
    let (_folder, model) = open(&Small::sd1());
    let always = |device, kind| Fault { times: usize::MAX / 2, ..fault(device, kind, 0) };
    let script = Script::new(&[always("vulkan0", Kind::Lost), always("vulkan1", Kind::Unable)], false);
    let came = paint_on(&machine(&script, Precision::F32, false), &model, &EVERYWHERE);
    let error = came.made.expect_err("no device is left");
    assert!(matches!(error, GenerateError::Tried { .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("vulkan0 is lost") && said.contains("vulkan1 cannot be used"), "{said}");
}

impasto_testkit::trial! {
    long fn an_autoencoder_that_may_not_leave_its_device_does_not() {
        let (_folder, model) = open(&Small::sd1());
        let stay = [EVERYWHERE[0], ("no-vae-tiling-fallback", "true")];
        // The fifth run is the decoder's.
        let script = Script::new(&[fault("vulkan0", Kind::Lost, 4)], false);
        let came = paint(&model, &script, Precision::F32, &stay);
        assert!(matches!(came.made, Err(GenerateError::Backend { .. })), "{:?}", came.made.err());
        assert_eq!(came.steps, [0, 1, 2, 3], "all steps are done and kept");
        // Bands are allowed.
        let script = Script::new(&[fault("vulkan0", Kind::Prepare, 2)], false);
        let came = paint(&model, &script, Precision::F32, &stay);
        assert!(came.made.is_ok() && came.notes[0].contains("vulkan0"), "{:?}", came.notes);
    }
}

#[test]
fn less_memory_is_asked_for_until_there_is_enough() {
    let (_folder, model) = open(&Small::sd1());
    let want = paint(&model, &Script::new(&[], false), Precision::F32, &EVERYWHERE).made.expect("nothing fails");
    for times in [1, 4] {
        let script = Script::new(&[Fault { times, ..fault("vulkan0", Kind::Prepare, 1) }], false);
        let came = paint(&model, &script, Precision::F32, &EVERYWHERE);
        assert!(psnr(&want, &came.made.unwrap_or_else(|e| panic!("{times}: {e}"))) >= 45.0);
        assert!((1..=times).contains(&came.notes.len()), "{:?}", came.notes);
        assert!(
            came.notes[0].contains("going on: diffusion on vulkan0"),
            "less of the same device comes first: {:?}",
            came.notes
        );
    }
}
