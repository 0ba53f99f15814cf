//! An engine that keeps models. What a user would lose: the second picture would load, plan and compile everything again, or two models would
//! take more memory than a device may give.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use impasto_generate::picture::Picture;
use impasto_generate::place::{MachineOptions, Work};
use impasto_generate::settings::Settings;
use impasto_generate::{Engine, EngineOptions, Event, GenerateError, Job};
use impasto_model::{Model, ModelPaths};
use impasto_testkit::model::Small;

fn settings(of: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::default();
    let usual = [("prompt", "a red house"), ("steps", "2"), ("width", "64"), ("height", "64"), ("gpu", "disable")];
    for (name, text) in usual.iter().chain(of) {
        settings.set(name, text).expect("a setting");
    }
    settings
}

fn engine(keep_alive: Duration, of: &[(&str, &str)]) -> Engine {
    let options = EngineOptions::new(&settings(of)).expect("options");
    let devices = MachineOptions { keep_alive, ..options.devices };
    Engine::new(EngineOptions { devices, ..options })
}

fn open(engine: &Engine, folder: &Path) -> Arc<Model> {
    let paths = ModelPaths { model: Some(folder.into()), ..ModelPaths::default() };
    engine.open(&paths).unwrap_or_else(|e| panic!("{e}"))
}

fn paint(engine: &Engine, model: &Arc<Model>, of: &[(&str, &str)]) -> Result<Picture, GenerateError> {
    let mut made = None;
    engine.run(&Job::new(&settings(of), model)?, &mut |event| {
        if let Event::Picture { picture, .. } = event {
            made = Some(picture.clone());
        }
        Ok(true)
    })?;
    Ok(made.expect("a picture is ready"))
}

/// What was done since, without the runs of networks.
fn since(engine: &Engine, before: Work) -> [u64; 5] {
    let now = engine.work();
    [
        now.plans - before.plans,
        now.loads - before.loads,
        now.packs - before.packs,
        now.prepares - before.prepares,
        now.encodings - before.encodings,
    ]
}

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_second_picture_loads_packs_plans_and_compiles_nothing() {
    for (small, encoders) in [(Small::sd1(), 1), (Small::sdxl(), 2)] {
        let folder = tempfile::tempdir().expect("a folder");
        small.write_folder(folder.path());
        let engine = engine(MINUTE, &[]);
        let model = open(&engine, folder.path());
        let first = paint(&engine, &model, &[]).expect("a picture");
        let work = engine.work();
        assert_eq!([work.loads, work.prepares, work.encodings], [encoders + 2, encoders + 2, encoders]);

        assert_eq!(paint(&engine, &model, &[]).expect("a picture").rgb, first.rgb, "the same picture");
        assert_eq!(since(&engine, work), [0; 5], "the same prompt: only the denoiser and the decoder run");
        assert_eq!(engine.work().runs, work.runs + 3, "two steps with both texts at once, and a decoder");

        let other = paint(&engine, &model, &[("prompt", "a blue cat at night")]).expect("a picture");
        assert_ne!(other.rgb, first.rgb);
        assert_eq!(since(&engine, work), [0, 0, 0, 0, encoders], "another prompt: only text encoders run besides");
        assert_eq!(engine.work().compilations, work.compilations);

        // The same model, opened again, is the one that is open; a session of its own computes the same bits.
        assert!(Arc::ptr_eq(&open(&engine, folder.path()), &model));
        let alone = paint(&self::engine(Duration::ZERO, &[]), &model, &[("prompt", "a blue cat at night")]);
        assert_eq!(alone.expect("a picture").rgb, other.rgb);

        // Another size needs another plan, and the same weights.
        let work = engine.work();
        paint(&engine, &model, &[("width", "128")]).expect("a picture");
        let [plans, loads, packs, prepares, _] = since(&engine, work);
        assert_eq!([plans, loads, packs, prepares], [2, 0, 0, 2], "the denoiser's and the decoder's");
    }
}

#[test]
fn idle_modules_leave_after_keep_alive_and_when_they_are_told_to() {
    let folder = tempfile::tempdir().expect("a folder");
    Small::sd1().write_folder(folder.path());
    let engine = engine(Duration::from_millis(300), &[]);
    let model = open(&engine, folder.path());
    paint(&engine, &model, &[]).expect("a picture");
    assert!(engine.idle_bytes("cpu") > 0);
    let begun = Instant::now();
    while engine.idle_bytes("cpu") > 0 {
        assert!(begun.elapsed() < MINUTE, "they stay");
        std::thread::sleep(Duration::from_millis(20));
    }
    paint(&engine, &model, &[]).expect("a picture");
    engine.unload();
    assert_eq!(engine.idle_bytes("cpu"), 0);

    let none = self::engine(Duration::ZERO, &[]);
    paint(&none, &model, &[]).expect("a picture");
    assert_eq!(none.idle_bytes("cpu"), 0, "an engine for one command keeps nothing");
}

/// Two models on a device that has room for one of them: the one used longer ago gives way, and no more than the budget is ever held.
#[test]
fn models_share_the_budget_of_a_device() {
    let folders = [Small::sd1(), Small::sdxl()].map(|small| {
        let folder = tempfile::tempdir().expect("a folder");
        small.write_folder(folder.path());
        folder
    });
    let roomy = engine(MINUTE, &[]);
    let models = folders.each_ref().map(|folder| open(&roomy, folder.path()));
    models.iter().for_each(|model| drop(paint(&roomy, model, &[]).expect("a picture")));
    let both = roomy.idle_bytes("cpu");
    roomy.unload();
    paint(&roomy, &models[1], &[]).expect("a picture");
    let budget = both.midpoint(roomy.idle_bytes("cpu"));

    let limit = format!("cpu={}MiB", budget >> 20);
    let engine = engine(MINUTE, &[("max-vram", &limit)]);
    // Another prompt each round, so that all networks are needed.
    for prompt in ["a red house", "a blue cat", "a green tree"] {
        for model in &models {
            let (before, prompt) = (engine.work(), [("prompt", prompt)]);
            let made = paint(&engine, model, &prompt).expect("a picture").rgb;
            assert_eq!(made, paint(&roomy, model, &prompt).expect("a picture").rgb, "{prompt:?}");
            assert!(engine.idle_bytes("cpu") <= budget, "{} of {budget}", engine.idle_bytes("cpu"));
            assert!(since(&engine, before)[1] > 0, "something of it had given way to the other model");
        }
    }
}

#[test]
fn runs_that_meet_queue_and_one_that_is_stopped_leaves_the_engine_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    Small::sd1().write_folder(folder.path());
    let engine = engine(MINUTE, &[]);
    let model = open(&engine, folder.path());
    let want = paint(&engine, &model, &[]).expect("a picture").rgb;
    let before = engine.work();
    std::thread::scope(|scope| {
        let runs: Vec<_> =
            (0..4).map(|_| scope.spawn(|| paint(&engine, &model, &[]).expect("a picture").rgb)).collect();
        runs.into_iter().for_each(|run| assert_eq!(run.join().expect("it ends"), want));
    });
    assert_eq!(since(&engine, before), [0; 5], "one after the other on the same session");

    let mut steps = 0;
    let stopped = engine.run(&Job::new(&settings(&[("steps", "9")]), &model).expect("a job"), &mut |event| {
        steps += usize::from(matches!(event, Event::Step { done: 1.., .. }));
        Ok(steps < 3)
    });
    assert!(matches!(stopped, Err(GenerateError::Interrupted)) && steps == 3);
    assert_eq!(paint(&engine, &model, &[]).expect("a picture").rgb, want);
    assert_eq!(since(&engine, before), [0; 5], "what was loaded stayed so");
}

/// A model whose file was replaced is opened anew, and what was loaded of the old one is not taken for it.
#[test]
fn a_file_that_was_replaced_is_another_model() {
    let folder = tempfile::tempdir().expect("a folder");
    Small::sd1().write_folder(folder.path());
    let engine = engine(MINUTE, &[]);
    let old = open(&engine, folder.path());
    let before = paint(&engine, &old, &[]).expect("a picture").rgb;
    let file = folder.path().join("unet/diffusion_pytorch_model.safetensors");
    let other = folder.path().join("new");
    std::fs::copy(&file, &other).expect("copied");
    impasto_testkit::model::overwrite(&other, "conv_out.bias", 0.7);
    std::fs::rename(&other, &file).expect("renamed");
    let new = open(&engine, folder.path());
    assert!(!Arc::ptr_eq(&old, &new));
    assert_ne!(paint(&engine, &new, &[]).expect("a picture").rgb, before);
}
