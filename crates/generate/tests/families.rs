//! Whole pipelines of flow matching against diffusers, on small models of the true structure, in each layout. What a user would lose: the picture that a
//! model, a prompt and a seed give elsewhere.
//!
//! `tools/family_fixtures.py` made the pictures, with torch's CPU noise and the same weights, which come from tensors' names.

use impasto_testkit::psnr;
use std::path::Path;
use std::sync::Arc;

use impasto_backend::Backend;
use impasto_backend::cpu::{Cpu, CpuOptions, Precision};
use impasto_generate::picture::Picture;
use impasto_generate::place::Placement;
use impasto_generate::settings::Settings;
use impasto_generate::{Event, GenerateError, Job, run};
use impasto_model::{Levels, Model, ModelPaths};
use impasto_testkit::model::families::SmallFlow;
use impasto_testkit::model::generated::numbers;
use impasto_weights::Checkpoint;

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families.safetensors");
    let file = Checkpoint::open(&path).expect("the fixture is in the repository");
    file.read_all(file.tensor(name).expect("the fixture has it")).expect("it is whole")
}

type Of<'a> = &'a [(&'a str, &'a str)];

const WIDE: Of = &[("height", "64"), ("width", "96")];
const TALL: Of = &[("height", "96"), ("width", "48")];
const NEGATIVE: (&str, &str) = ("negative-prompt", "blurry, grey");

fn settings(of: &[Of]) -> Settings {
    let mut settings = Settings::default();
    let usual = [
        ("prompt", "A red house under a yellow sun, by the (blue) sea!"),
        ("steps", "4"),
        ("seed", "7"),
        ("rng", "cpu"),
    ];
    for (name, text) in usual.iter().chain(of.iter().copied().flatten()) {
        settings.set(name, text).expect("a setting");
    }
    settings
}

fn paint(model: &Arc<Model>, settings: &Settings, precision: Precision) -> Result<Picture, GenerateError> {
    let job = Job::new(settings, model)?;
    let cpu: Arc<dyn Backend> =
        Arc::new(Cpu::new(&CpuOptions { precision, ..CpuOptions::default() }).expect("there is a CPU"));
    let mut made = None;
    run(&job, &Placement::on(&cpu), None, &mut |event| {
        if let Event::Picture { picture, .. } = event {
            made = Some(picture.clone());
        }
        Ok(true)
    })?;
    Ok(made.expect("a picture is ready"))
}

fn open(paths: &ModelPaths) -> Arc<Model> {
    Arc::new(Model::open(paths).unwrap_or_else(|e| panic!("{e}")))
}

fn folder(small: &SmallFlow) -> (tempfile::TempDir, Arc<Model>) {
    let folder = tempfile::tempdir().expect("a folder");
    let model = open(&small.write_folder(folder.path()));
    (folder, model)
}

/// A picture against its fixture, and the levels that led to it.
fn compare(name: &str, model: &Arc<Model>, of: &[Of]) {
    let settings = settings(of);
    let made = paint(model, &settings, Precision::F32).unwrap_or_else(|e| panic!("{name}: {e}"));
    let found = psnr(&made.rgb, &fixture(name));
    println!("{name}: {found:.1} dB");
    let job = Job::new(&settings, model).expect("a job");
    let shape = model.pipeline.latent_shape([job.height, job.width]);
    let Levels::Fixed(levels) = model.pipeline.levels(shape, job.steps, None) else { panic!("levels of its own") };
    let want = fixture(&format!("{name}.sigmas"));
    let want: Vec<f32> = want.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    assert!(levels.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-6), "{name}: {levels:?}, {want:?}");
    assert!(found >= 50.0, "{name}: {found:.1} dB, 50 are needed");
}

/// Three seeds and another size; and what shows that the comparison shows something: another prompt, and products in bf16.
fn compare_seeds(family: &str, model: &Arc<Model>, of: Of) {
    for seed in ["7", "8", "9"] {
        compare(&format!("{family}.{seed}"), model, &[WIDE, of, &[("seed", seed)]]);
    }
    let other =
        paint(model, &settings(&[WIDE, of, &[("prompt", "A blue cat at night")]]), Precision::F32).expect("a picture");
    let rough = paint(model, &settings(&[WIDE, of]), Precision::Bf16).expect("a picture");
    let want = fixture(&format!("{family}.7"));
    let found = [other, rough].map(|made| psnr(&made.rgb, &want));
    println!("{family} with another prompt: {:.1} dB, in bf16 {:.1} dB", found[0], found[1]);
    assert!(found[0] < 40.0 && found[1] >= 30.0, "{family}: {found:?}");
}

/// The picture that the fixtures begin with, in squares of 16 pixels, and the mask.
fn start(folder: &Path) -> [String; 2] {
    let (height, width) = (64, 96);
    let colours: Vec<u8> = numbers("start", 4 * 6 * 3).map(|u| (127.5 * (u + 1.0)).round_ties_even() as u8).collect();
    let rgb = |x: usize, y: usize| &colours[((y / 16) * 6 + x / 16) * 3..][..3];
    let pixels = (0..width * height).flat_map(|i| rgb(i % width, i / width).to_vec()).collect();
    let inside = |i: usize| (16..48).contains(&(i / width)) && i % width >= 32;
    let mask = (0..width * height).flat_map(|i| [if inside(i) { 255 } else { 0 }; 3]).collect();
    [("start.png", pixels), ("mask.png", mask)].map(|(name, rgb)| {
        let path = folder.join(name);
        Picture { width, height, rgb }.write(&path, "", true).expect("written");
        path.display().to_string()
    })
}

/// The files of its authors, with and without prefixes, give the picture of the folder.
fn compare_layouts(small: &SmallFlow, model: &Arc<Model>, of: Of) {
    let want = paint(model, &settings(&[WIDE, of]), Precision::F32).expect("a picture");
    for prefixed in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let parts = open(&small.write_parts(folder.path(), prefixed));
        let made = paint(&parts, &settings(&[WIDE, of]), Precision::F32).expect("a picture");
        assert!(made == want, "another picture from files of parts");
    }
}

#[test]
fn flux_1() {
    let small = SmallFlow::flux(true);
    let (folder, model) = folder(&small);
    compare_seeds("flux", &model, &[]);
    compare("flux.tall", &model, &[TALL]);
    compare("flux.cfg", &model, &[WIDE, &[NEGATIVE, ("cfg-scale", "2.5")]]);
    let long = ["A red house under a yellow sun, by the (blue) sea!"; 9].join(" ");
    compare("flux.long", &model, &[WIDE, &[("prompt", &long), ("guidance", "2")]]);
    let [picture, mask] = start(folder.path());
    compare("flux.img2img", &model, &[WIDE, &[("init-img", &picture), ("strength", "0.6")]]);
    compare("flux.inpaint", &model, &[WIDE, &[("init-img", &picture), ("mask", &mask), ("strength", "0.6")]]);
    compare_layouts(&small, &model, &[]);
}

#[test]
fn flux_1_schnell() {
    let (_folder, model) = folder(&SmallFlow::flux(false));
    compare("schnell", &model, &[WIDE]);
    let error = Job::new(&settings(&[WIDE, &[("guidance", "3")]]), &model).map(drop).expect_err("it reads none");
    assert!(error.to_string().contains("--guidance"), "{error}");
}

#[test]
fn z_image() {
    let small = SmallFlow::z_image();
    let (folder, model) = folder(&small);
    let off: Of = &[("cfg-scale", "1")];
    compare_seeds("z", &model, off);
    compare("z.tall", &model, &[TALL, off]);
    compare("z.cfg", &model, &[WIDE, &[NEGATIVE, ("cfg-scale", "4")]]);
    let [picture, _] = start(folder.path());
    compare("z.img2img", &model, &[WIDE, off, &[("init-img", &picture), ("strength", "0.6")]]);
    compare_layouts(&small, &model, off);
}

#[test]
fn flux_2_klein() {
    let small = SmallFlow::klein();
    let (_folder, model) = folder(&small);
    let off: Of = &[("cfg-scale", "1")];
    compare_seeds("klein", &model, off);
    compare("klein.tall", &model, &[TALL, off]);
    compare("klein.cfg", &model, &[WIDE, &[("cfg-scale", "2.5")]]);
    compare_layouts(&small, &model, off);
}

#[test]
fn stable_diffusion_3() {
    let small = SmallFlow::sd3(true);
    let (folder, model) = folder(&small);
    let on: Of = &[("cfg-scale", "5")];
    compare_seeds("sd3", &model, &[("cfg-scale", "5"), NEGATIVE]);
    compare("sd3.tall", &model, &[TALL, &[("cfg-scale", "1")]]);
    let [picture, _] = start(folder.path());
    compare("sd3.img2img", &model, &[WIDE, on, &[("init-img", &picture), ("strength", "0.6")]]);
    compare_layouts(&small, &model, on);
    let (_folder, short) = self::folder(&SmallFlow::sd3(false));
    compare("sd3.short", &short, &[WIDE, on]);
}

#[test]
fn qwen_image() {
    let small = SmallFlow::qwen_image();
    let (folder, model) = folder(&small);
    compare_seeds("qwen", &model, &[("cfg-scale", "4"), NEGATIVE]);
    compare("qwen.tall", &model, &[TALL, &[("cfg-scale", "1")]]);
    compare("qwen.empty", &model, &[WIDE, &[("cfg-scale", "4")]]);
    let [picture, _] = start(folder.path());
    compare("qwen.img2img", &model, &[WIDE, &[("cfg-scale", "1"), ("init-img", &picture), ("strength", "0.6")]]);
    compare_layouts(&small, &model, &[("cfg-scale", "1")]);
}
