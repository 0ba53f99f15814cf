//! Whole pipelines against diffusers, on small models of the true structure. What a user would lose: the picture that a model, a
//! prompt and a seed give elsewhere.
//!
//! `tools/pipeline_fixtures.py` made the pictures, with torch's CPU noise and the same weights, which come from tensors' names.

use impasto_testkit::psnr;
use std::path::Path;
use std::sync::Arc;

use impasto_backend::Backend;
use impasto_backend::cpu::{Cpu, CpuOptions, Precision};
use impasto_generate::picture::Picture;
use impasto_generate::place::Placement;
use impasto_generate::settings::Settings;
use impasto_generate::{Event, GenerateError, Job, run};
use impasto_model::{Model, ModelPaths};
use impasto_testkit::model::Small;
use impasto_testkit::model::generated::numbers;
use impasto_weights::Checkpoint;

const SIZE: usize = 128;

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pipelines.safetensors");
    let file = Checkpoint::open(&path).expect("the fixture is in the repository");
    file.read_all(file.tensor(name).expect("the fixture has it")).expect("it is whole")
}

fn settings(of: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::default();
    let usual = [
        ("prompt", "A red house under a yellow sun, by the sea!"),
        ("steps", "6"),
        ("cfg-scale", "7"),
        ("seed", "7"),
        ("rng", "cpu"),
        ("sampling-method", "euler"),
        ("scheduler", "discrete"),
        ("width", "128"),
        ("height", "128"),
    ];
    for (name, text) in usual.iter().chain(of) {
        settings.set(name, text).expect("a setting");
    }
    settings
}

fn cpu(precision: Precision) -> Arc<dyn Backend> {
    Arc::new(Cpu::new(&CpuOptions { precision, ..CpuOptions::default() }).expect("there is a CPU"))
}

fn paint(model: &Arc<Model>, settings: &Settings, precision: Precision) -> Result<Picture, GenerateError> {
    let job = Job::new(settings, model)?;
    let mut made = None;
    run(&job, &Placement::on(&cpu(precision)), None, &mut |event| {
        if let Event::Picture { picture, .. } = event {
            made = Some(picture.clone());
        }
        Ok(true)
    })?;
    Ok(made.expect("a picture is ready"))
}

/// The picture in f32 and in bf16, against the fixture, and another prompt's, which must differ.
fn compare(name: &str, model: &Arc<Model>, of: &[(&str, &str)]) {
    let want = fixture(name);
    for (precision, bar) in [(Precision::F32, 50.0), (Precision::Bf16, 35.0)] {
        let made = paint(model, &settings(of), precision).expect("a picture");
        let found = psnr(&made.rgb, &want);
        println!("{name} in {precision:?}: {found:.1} dB");
        assert!(found >= bar, "{name} in {precision:?}: {found:.1} dB, {bar} are needed");
    }
    let other = [of, &[("prompt", "A blue cat at night")]].concat();
    let other = paint(model, &settings(&other), Precision::F32).expect("a picture");
    let found = psnr(&other.rgb, &want);
    println!("{name} with another prompt: {found:.1} dB");
    assert!(found < 40.0, "the prompt hardly matters to {name}: the comparison shows nothing ({found:.1} dB)");
}

fn folder(small: &Small) -> (tempfile::TempDir, Arc<Model>) {
    let folder = tempfile::tempdir().expect("a folder");
    small.write_folder(folder.path());
    let paths = ModelPaths { model: Some(folder.path().into()), ..ModelPaths::default() };
    let model = Arc::new(Model::open(&paths).unwrap_or_else(|e| panic!("{e}")));
    (folder, model)
}

/// The picture that the fixtures begin with, in squares of 16 pixels, and the mask.
fn start(folder: &Path) -> [String; 2] {
    let colours: Vec<u8> = numbers("start", 8 * 8 * 3).map(|u| (127.5 * (u + 1.0)).round_ties_even() as u8).collect();
    let rgb = |x: usize, y: usize| &colours[((y / 16) * 8 + x / 16) * 3..][..3];
    let pixels = (0..SIZE * SIZE).flat_map(|i| rgb(i % SIZE, i / SIZE).to_vec()).collect();
    let inside = |i: usize| (32..96).contains(&(i / SIZE)) && i % SIZE >= 40;
    let mask = (0..SIZE * SIZE).flat_map(|i| [if inside(i) { 255 } else { 0 }; 3]).collect();
    [("start.png", pixels), ("mask.png", mask)].map(|(name, rgb)| {
        let path = folder.join(name);
        Picture { width: SIZE, height: SIZE, rgb }.write(&path, "", true).expect("written");
        path.display().to_string()
    })
}

const NEGATIVE: (&str, &str) = ("negative-prompt", "blurry, grey");

#[test]
fn stable_diffusion_1() {
    let (_folder, model) = folder(&Small::sd1());
    compare("sd1", &model, &[NEGATIVE]);
    compare("sd1_wide", &model, &[("height", "64")]);
    compare("sd1_odd", &model, &[("height", "72"), ("width", "104")]);
}

/// A folder's scheduler says how timesteps are spread.
#[test]
fn the_timesteps_that_a_folder_asks_for() {
    for (name, small, spacing, offset) in [
        ("sd1_trailing", Small::sd1(), "trailing", 1),
        // Which diffusers takes for 1 in this family.
        ("sd1_leading", Small::sd1(), "leading", 0),
        ("sdxl_leading", Small::sdxl(), "leading", 3),
    ] {
        let (folder, _) = folder(&small);
        let json = format!(r#"{{ "timestep_spacing": "{spacing}", "steps_offset": {offset} }}"#);
        std::fs::write(folder.path().join("scheduler/scheduler_config.json"), json).expect("written");
        let paths = ModelPaths { model: Some(folder.path().into()), ..ModelPaths::default() };
        let model = Arc::new(Model::open(&paths).unwrap_or_else(|e| panic!("{e}")));
        let mut settings = settings(&[("width", "64"), ("height", "64")]);
        // Who asks for another schedule has it.
        let other = paint(&model, &settings, Precision::F32).expect("a picture");
        settings.scheduler = None;
        let made = paint(&model, &settings, Precision::F32).expect("a picture");
        let found = [made, other].map(|picture| psnr(&picture.rgb, &fixture(name)));
        println!("{name}: {:.1} dB, and evenly from the last to the first {:.1} dB", found[0], found[1]);
        assert!(found[0] >= 50.0 && found[1] < 40.0, "{name}: {found:?}");
    }
}

#[test]
fn clip_skip_is_refused_where_there_are_no_such_layers() {
    let (_folder, model) = folder(&Small::sd1());
    let job = |n: &str| Job::new(&settings(&[("clip-skip", n)]), &model).map(|job| job.clip_skip);
    assert_eq!((job("-1").ok(), job("1").ok(), job("2").ok()), (Some(1), Some(1), Some(2)));
    let error = job("3").expect_err("there are two").to_string();
    assert!(error.contains("--clip-skip 3") && error.contains("has 2 layers"), "{error}");
}

#[test]
fn the_tiny_autoencoder_decodes() {
    let (folder, _) = folder(&Small::sd1());
    let taesd = folder.path().join("taesd.safetensors");
    Small::write_taesd(&taesd);
    let paths = ModelPaths { model: Some(folder.path().into()), taesd: Some(taesd), ..ModelPaths::default() };
    let model = Arc::new(Model::open(&paths).unwrap_or_else(|e| panic!("{e}")));
    compare("sd1_tiny", &model, &[("height", "64"), ("preview", "tae")]);
}

#[test]
fn stable_diffusion_2_with_velocity() {
    let (_folder, model) = folder(&Small::sd2_v());
    compare("sd2_v", &model, &[NEGATIVE]);
}

#[test]
fn stable_diffusion_xl() {
    let (_folder, model) = folder(&Small::sdxl());
    compare("sdxl", &model, &[]);
    compare("sdxl_negative", &model, &[NEGATIVE]);
}

#[test]
fn a_picture_from_a_picture() {
    let (folder, model) = folder(&Small::sd1());
    let [picture, mask] = start(folder.path());
    compare("img2img", &model, &[("init-img", &picture), ("strength", "0.6")]);
    compare("inpaint", &model, &[("init-img", &picture), ("mask", &mask)]);
    compare("inpaint_some", &model, &[("init-img", &picture), ("mask", &mask), ("strength", "0.6")]);
}

#[test]
fn a_model_made_for_inpainting() {
    let (folder, model) = folder(&Small::inpainting());
    let [picture, mask] = start(folder.path());
    compare("inpaint_model", &model, &[("init-img", &picture), ("mask", &mask)]);
    let error = paint(&model, &settings(&[]), Precision::F32).expect_err("it needs a mask").to_string();
    assert!(error.contains("--mask"), "{error}");
}

#[test]
fn one_file_parts_and_a_folder_give_the_same_picture() {
    for small in [Small::sd1(), Small::sd2_v(), Small::sdxl()] {
        let (folder, model) = folder(&small);
        let want = paint(&model, &settings(&[NEGATIVE]), Precision::F32).expect("a picture");

        let file = folder.path().join("one.safetensors");
        small.write_original(&file);
        let one = ModelPaths { model: Some(file), ..ModelPaths::default() };
        let parts = small.write_parts(folder.path());
        let part = |name: &str| parts.get(name).cloned();
        let parts = ModelPaths {
            diffusion: part("diffusion-model"),
            vae: part("vae"),
            clip_l: part("clip_l"),
            clip_g: part("clip_g"),
            ..ModelPaths::default()
        };
        for paths in [one, parts] {
            let model = Arc::new(Model::open(&paths).unwrap_or_else(|e| panic!("{e}")));
            // Files of Stable Diffusion 2 do not say what they predict, unless their weights are the real ones.
            let prediction = if small.prediction == "epsilon" { "eps" } else { "v" };
            let made =
                paint(&model, &settings(&[NEGATIVE, ("prediction", prediction)]), Precision::F32).expect("a picture");
            assert_eq!(made, want, "{paths:?}");
        }
    }
}

/// A damaged model must not end in a black picture that counts as a success.
#[test]
fn numbers_that_are_none_are_named_with_module_and_step() {
    for (file, tensor, value, says) in [
        ("text_encoder/model.safetensors", "text_model.final_layer_norm.bias", f32::NAN, "te on cpu gave"),
        (
            "unet/diffusion_pytorch_model.safetensors",
            "conv_out.bias",
            f32::NAN,
            "diffusion on cpu gave numbers that are not finite at step 1",
        ),
        // Finite at first; what it makes of the latent grows beyond all numbers.
        (
            "unet/diffusion_pytorch_model.safetensors",
            "conv_out.weight",
            1e38,
            "diffusion on cpu gave numbers that are not finite at step",
        ),
        ("vae/diffusion_pytorch_model.safetensors", "decoder.conv_out.bias", f32::INFINITY, "vae on cpu gave"),
        ("vae/diffusion_pytorch_model.safetensors", "decoder.conv_out.bias", 1e6, "one colour"),
    ] {
        let (folder, _) = folder(&Small::sd1());
        impasto_testkit::model::overwrite(&folder.path().join(file), tensor, value);
        let paths = ModelPaths { model: Some(folder.path().into()), ..ModelPaths::default() };
        let model = Arc::new(Model::open(&paths).unwrap_or_else(|e| panic!("{e}")));
        let error = paint(&model, &settings(&[]), Precision::F32).expect_err(tensor).to_string();
        assert!(error.contains(says), "{tensor}: {error}");
    }
}

#[test]
fn guidance_in_two_passes_gives_the_picture_of_one() {
    let (_folder, model) = folder(&Small::sd1());
    let job = Job::new(&settings(&[NEGATIVE]), &model).expect("a job");
    let paint_within = |memory: u64| {
        let cpu = Cpu::new(&CpuOptions { precision: Precision::F32, memory: Some(memory), ..CpuOptions::default() });
        let backend: Arc<dyn Backend> = Arc::new(cpu.expect("there is a CPU"));
        let mut made = None;
        let done = run(&job, &Placement::on(&backend), None, &mut |event| {
            if let Event::Picture { picture, .. } = event {
                made = Some(picture.clone());
            }
            Ok(true)
        });
        done.map(|()| made.expect("a picture is ready"))
    };
    let want = paint_within(u64::MAX).expect("there is room");
    // From the least memory that suffices on, every picture is the same.
    let (mut low, mut high) = (1 << 20, 1 << 30);
    while high - low > 1 << 16 {
        let middle = (low + high) / 2;
        match paint_within(middle) {
            Ok(made) => {
                assert!(made == want, "another picture in {middle} bytes");
                high = middle;
            }
            Err(GenerateError::Plan { .. }) => low = middle,
            Err(other) => panic!("{other}"),
        }
    }
    println!("enough: {high} bytes");
}

#[test]
fn a_run_stops_when_it_is_asked_to() {
    let (_folder, model) = folder(&Small::sd1());
    let job = Job::new(&settings(&[]), &model).expect("a job");
    let mut seen = 0;
    let done = run(&job, &Placement::on(&cpu(Precision::F32)), None, &mut |event| {
        seen += usize::from(matches!(event, Event::Step { .. }));
        Ok(seen < 3)
    });
    assert!(matches!(done, Err(GenerateError::Interrupted)));
    assert_eq!(seen, 3);
}
