//! Whole models on a Vulkan device against the CPU. What a user would lose: the same picture on a GPU.
#![cfg(target_os = "linux")]

use crate::backends::{cpu, psnr, vulkan};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use impasto_backend::Backend;
use impasto_backend::cpu::Precision;
use impasto_generate::picture::Picture;
use impasto_generate::place::{Placement, SplitMode};
use impasto_generate::settings::Settings;
use impasto_generate::{Event, Job, plan, run};
use impasto_graph::Storage;
use impasto_model::{Model, ModelPaths};
use impasto_testkit::model::Small;
use impasto_testkit::model::families::SmallFlow;

fn paint(model: &Arc<Model>, backend: &Arc<dyn Backend>, prompt: &str) -> Picture {
    paint_and_count(model, backend, prompt).0
}

/// A picture, and how often it was said that kernels are left to be compiled.
fn paint_and_count(model: &Arc<Model>, backend: &Arc<dyn Backend>, prompt: &str) -> (Picture, usize) {
    run_job(&job(model, &[("prompt", prompt), ("steps", "3"), ("width", "64"), ("height", "128")]), backend)
}

fn job(model: &Arc<Model>, of: &[(&str, &str)]) -> Job {
    let mut settings = Settings::default();
    for (name, text) in of.iter().chain(&[("seed", "7")]) {
        settings.set(name, text).expect("a setting");
    }
    Job::new(&settings, model).expect("a job")
}

fn run_job(job: &Job, backend: &Arc<dyn Backend>) -> (Picture, usize) {
    let (mut made, mut left) = (None, 0);
    run(job, &Placement::on(backend), None, &mut |event| {
        match event {
            Event::Picture { picture, .. } => made = Some(picture.clone()),
            Event::Compiling { done, of, .. } => left += usize::from(done < of),
            _ => {}
        }
        Ok(true)
    })
    .unwrap_or_else(|e| panic!("{e}"));
    (made.expect("a picture is ready"), left)
}

impasto_testkit::trial! {
    fn whole_models_paint_the_picture_of_the_cpu(models: usize = 1, 3) {
        let (cpu, exact, half) = (cpu(), vulkan(Precision::F32), vulkan(Precision::Auto));
        // Both precisions of one, and one of each of the others: what differs between models is not the numbers.
        let all = [
            ("sd1", Small::sd1(), Some(&exact), Some(&half)),
            ("sd2 v", Small::sd2_v(), Some(&exact), None),
            ("sdxl", Small::sdxl(), None, Some(&half)),
        ];
        // Another one in each run.
        let first = RandomState::new().hash_one(0) as usize;
        for (name, small, exact, half) in all.iter().cycle().skip(first % all.len()).take(models) {
            let folder = tempfile::tempdir().expect("a folder");
            small.write_folder(folder.path());
            let paths = ModelPaths { model: Some(folder.path().into()), ..ModelPaths::default() };
            let model = Arc::new(Model::open(&paths).unwrap_or_else(|e| panic!("{e}")));
            let want = paint(&model, &cpu, "a red house");
            let other = psnr(&want, &paint(&model, &cpu, "a blue cat at night"));
            if let Some(exact) = exact {
                let (picture, left) = paint_and_count(&model, exact, "a red house");
                let found = psnr(&want, &picture);
                println!("{name}: {found:.1} dB in f32, {other:.1} dB with another prompt");
                assert!(found >= 45.0, "{name}: {found:.1} dB in f32");
                assert!(left > 0, "{name}: nobody is told of the kernels that are compiled");
                assert_eq!(paint_and_count(&model, exact, "a red house").1, 0, "{name}: they are compiled again");
                let meter = exact.meter();
                assert_eq!(meter.wanted(), meter.compiled(), "{name}: kernels are counted that are not compiled");
            }
            if let Some(half) = half {
                let rough = psnr(&want, &paint(&model, half, "a red house"));
                println!("{name}: {rough:.1} dB in f16, {other:.1} dB with another prompt");
                assert!(rough >= 30.0, "{name}: {rough:.1} dB in f16");
                let held = half.meter().now();
                (0..3).for_each(|_| drop(paint(&model, half, "a red house")));
                assert_eq!(half.meter().now(), held, "{name}: bytes are left on the device after a generation");
            }
            assert!(other < 40.0, "the prompt hardly matters to {name}: the comparison shows nothing");
        }
    }
}

impasto_testkit::trial! {
    /// One with biases and layer norms and one with gates and RMS norms in halves, all in f32 but FLUX.1, which is below.
    fn models_of_flow_matching_paint_the_picture_of_the_cpu(families: usize = 1, 5) {
        let (cpu, exact, half) = (cpu(), vulkan(Precision::F32), vulkan(Precision::Auto));
        let both: &[_] = &[(&exact, 45.0), (&half, 30.0)];
        let all = [
            ("FLUX.1", SmallFlow::flux(true), &both[1..]),
            ("Z-Image", SmallFlow::z_image(), both),
            ("klein", SmallFlow::klein(), &both[..1]),
            ("SD3", SmallFlow::sd3(true), &both[..1]),
            ("Qwen-Image", SmallFlow::qwen_image(), &both[..1]),
        ];
        // Another one in each run.
        let first = RandomState::new().hash_one(0) as usize;
        for (name, small, devices) in all.iter().cycle().skip(first % all.len()).take(families) {
            let folder = tempfile::tempdir().expect("a folder");
            let model = Arc::new(Model::open(&small.write_folder(folder.path())).unwrap_or_else(|e| panic!("{e}")));
            let want = paint(&model, &cpu, "a red house");
            for (device, bar) in *devices {
                let found = psnr(&want, &paint(&model, device, "a red house"));
                println!("{name}: {found:.1} dB, {bar} are needed");
                assert!(found >= *bar, "{name}: {found:.1} dB, {bar} are needed");
            }
        }
    }
}

impasto_testkit::trial! {
    /// The case that this program exists for: FLUX.1 in Q4 on a device whose buffers are too small, here lavapipe with its 128 MiB a
    /// binding. If it failed, users of such cards would get an error after all steps, or another picture.
    long fn flux_in_q4_decodes_in_bands_where_buffers_are_small() {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = SmallFlow::flux_with_narrow_vae().write_folder(folder.path());
        let paths = ModelPaths { weight_type: Some(Storage::Q4_0), ..paths };
        let model = Arc::new(Model::open(&paths).unwrap_or_else(|e| panic!("{e}")));
        let device = vulkan(Precision::F32);
        assert_eq!(device.profile().limits().max_binding, 128 << 20, "the limit of lavapipe");
        // The largest tensor of the decoder, 64 channels at full size, has 129 MiB. More pixels would take minutes on a processor.
        let job = job(&model, &[("prompt", "a red house"), ("steps", "1"), ("width", "736"), ("height", "720")]);
        let planned = plan(&job, &Placement::on(&device)).unwrap_or_else(|e| panic!("{e}"));
        let vae = planned.modules.iter().find(|module| module.module == "vae").expect("it decodes");
        assert_eq!(vae.split_mode, SplitMode::Banded, "{vae:?}");
        let held = device.meter().now();
        device.meter().start_over();
        let (made, _) = run_job(&job, &device);
        let bytes = planned.peaks.iter().find(|peak| peak.device == device.profile().name()).expect("a peak").bytes;
        assert_eq!(device.meter().peak() - held, bytes, "what was planned is what was allocated");
        let found = psnr(&run_job(&job, &cpu()).0, &made);
        println!("in bands: {found:.1} dB, 45 are needed");
        assert!(found >= 45.0, "{found:.1} dB, 45 are needed");
    }
}
