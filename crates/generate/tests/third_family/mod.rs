//! A family that nobody has built in. What a developer would lose: that a new model is one file and one line of a list.
//!
//! `toy.rs` is the file. The pictures are compared with a plain computation.

mod toy;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use impasto_backend::Backend;
use impasto_backend::cpu::{Cpu, CpuOptions, Precision};
use impasto_generate::picture::Picture;
use impasto_generate::place::Placement;
use impasto_generate::prompt::Tokenizer;
use impasto_generate::settings::Settings;
use impasto_generate::{Event, GenerateError, Job, Noise, NoiseKind, plan, run};
use impasto_model::{FAMILIES, Family, Model, ModelPaths, TextRole};
use impasto_testkit::model::generated::{numbers, parameter};
use impasto_testkit::model::{Tensor, write_safetensors};
use toy::{DEVIATION, LEAST, MEAN, Toy, template};

const HEIGHT: usize = 24;
const WIDTH: usize = 32;

/// The families of the program and one more.
fn families() -> Vec<&'static dyn Family> {
    FAMILIES.iter().copied().chain([&Toy as &dyn Family]).collect()
}

fn weights() -> BTreeMap<String, Tensor> {
    let shapes: [(&str, &[usize]); 11] = [
        ("toy_text.table.weight", &[49_408, 4]),
        ("toy_text.project.weight", &[4, 4]),
        ("toy_text.project.bias", &[4]),
        ("toy_denoiser.in.weight", &[16, 12]),
        ("toy_denoiser.in.bias", &[16]),
        ("toy_denoiser.out.weight", &[4, 16]),
        ("toy_denoiser.out.bias", &[4]),
        ("toy_vae.decoder.out.weight", &[3, 1, 1, 1]),
        ("toy_vae.decoder.out.bias", &[3]),
        ("toy_vae.encoder.in.weight", &[1, 3, 2, 2]),
        ("toy_vae.encoder.in.bias", &[1]),
    ];
    let mut weights: BTreeMap<_, _> =
        shapes.map(|(name, shape)| (name.to_string(), (shape.to_vec(), parameter(name, shape)))).into();
    // Most colours are inside of their range.
    let decoder = weights.get_mut("toy_vae.decoder.out.weight").expect("it is there");
    decoder.1.iter_mut().for_each(|w| *w *= 0.2);
    weights
}

fn model(folder: &Path) -> Arc<Model> {
    let path = folder.join("toy.safetensors");
    write_safetensors(&path, &weights());
    let paths = ModelPaths { model: Some(path), ..ModelPaths::default() };
    let Err(error) = Model::open(&paths) else { panic!("the program knows no such family") };
    assert!(error.to_string().contains("no diffusion model"), "{error}");
    Arc::new(Model::open_with(&families(), &paths).unwrap_or_else(|e| panic!("{e}")))
}

fn settings(of: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::default();
    for (name, text) in [("prompt", "a red fox"), ("seed", "11"), ("rng", "cpu")].iter().chain(of) {
        settings.set(name, text).expect("a setting");
    }
    settings
}

fn paint(model: &Arc<Model>, settings: &Settings) -> Result<Picture, GenerateError> {
    let job = Job::new(settings, model)?;
    let cpu: Arc<dyn Backend> =
        Arc::new(Cpu::new(&CpuOptions { precision: Precision::F32, ..CpuOptions::default() }).expect("there is a CPU"));
    let places = Placement::on(&cpu);
    assert!(plan(&job, &places)?.fits());
    let mut made = None;
    run(&job, &places, None, &mut |event| {
        if let Event::Picture { picture, .. } = event {
            made = Some(picture.clone());
        }
        Ok(true)
    })?;
    Ok(made.expect("a picture is ready"))
}

/// `w x + b`.
fn linear(weights: &BTreeMap<String, Tensor>, name: &str, x: &[f64]) -> Vec<f64> {
    let (w, b) = (&weights[&format!("{name}.weight")].1, &weights[&format!("{name}.bias")].1);
    let row = |(row, b): (&[f32], &f32)| f64::from(*b) + row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>();
    w.chunks_exact(x.len()).zip(b).map(row).collect()
}

/// Where a number of the latent `(4, 6, 8)` is on the grid of `(12, 16)`.
fn on_grid(c: usize, y: usize, x: usize) -> usize {
    (2 * y + c / 2) * (WIDTH / 2) + 2 * x + c % 2
}

/// The picture in float64, written down as plainly as can be; from another one if there is one, in the last `steps` of 5.
fn by_hand(prompt: &str, guidance: f64, start: Option<&Picture>, steps: usize) -> Vec<u8> {
    let weights = weights();
    let tokenizer = Tokenizer::clip();
    let ids = tokenizer.encode(&template(prompt, TextRole::Prompt));
    assert!(ids.len() < LEAST, "there is padding, which must not matter");
    let table = &weights["toy_text.table.weight"].1;
    let states: Vec<Vec<f64>> = ids
        .iter()
        .map(|&id| {
            let row: Vec<f64> = table[4 * id as usize..][..4].iter().map(|&x| x.into()).collect();
            linear(&weights, "toy_text.project", &row)
        })
        .collect();
    let text: Vec<f64> = (0..4).map(|i| states.iter().map(|s| s[i]).sum::<f64>() / states.len() as f64).collect();

    let (h, w) = (HEIGHT / 4, WIDTH / 4);
    let area = h * w;
    let shift = 1.0 + area as f64 / 24.0;
    let level = |i: usize| 1.0 - i as f64 / 5.0;
    let sigmas: Vec<f64> = (5 - steps..=5).map(level).map(|t| shift * t / (1.0 + (shift - 1.0) * t)).collect();

    let mut draws = Noise::new(NoiseKind::Cpu, 11);
    // The encoder's own noise, which has no deviation here, comes first.
    let picture = start.map(|start| {
        draws.draw(4 * area);
        encoded(&weights, start)
    });
    let noise = draws.draw(4 * area);
    let (mut latent, first) = (vec![0.0; 4 * area], sigmas[0]);
    for i in 0..4 * area {
        let of_picture = picture.as_ref().map_or(0.0, |picture| (1.0 - first) * picture[i]);
        latent[i] = of_picture + first * f64::from(noise[i]);
    }
    for pair in sigmas.windows(2) {
        let mut next = latent.clone();
        for token in 0..area {
            let mut features: Vec<f64> = (0..4).map(|c| latent[c * area + token]).collect();
            features.extend([(token / w) as f64 / 8.0, (token % w) as f64 / 8.0, pair[0], guidance]);
            features.extend(&text);
            let inner = linear(&weights, "toy_denoiser.in", &features).into_iter().map(|x| x / (1.0 + (-x).exp()));
            let velocity = linear(&weights, "toy_denoiser.out", &inner.collect::<Vec<_>>());
            (0..4).for_each(|c| next[c * area + token] += (pair[1] - pair[0]) * velocity[c]);
        }
        latent = next;
    }
    let mut rgb = vec![0; 3 * HEIGHT * WIDTH];
    let (colour, base) = (&weights["toy_vae.decoder.out.weight"].1, &weights["toy_vae.decoder.out.bias"].1);
    for c in 0..4 {
        for token in 0..area {
            let at = on_grid(c, token / w, token % w);
            let z = latent[c * area + token] * f64::from(DEVIATION) + f64::from(MEAN);
            let (row, column) = (2 * (at / (WIDTH / 2)), 2 * (at % (WIDTH / 2)));
            for (dy, dx, channel) in (0..12).map(|i| (i / 6, i / 3 % 2, i % 3)) {
                let value = z * f64::from(colour[channel]) + f64::from(base[channel]);
                let byte = ((value * 0.5 + 0.5).clamp(0.0, 1.0) * 255.0).round_ties_even() as u8;
                rgb[((row + dy) * WIDTH + column + dx) * 3 + channel] = byte;
            }
        }
    }
    rgb
}

/// The latent of a picture.
fn encoded(weights: &BTreeMap<String, Tensor>, picture: &Picture) -> Vec<f64> {
    let (kernel, bias) = (&weights["toy_vae.encoder.in.weight"].1, weights["toy_vae.encoder.in.bias"].1[0]);
    let (h, w) = (HEIGHT / 4, WIDTH / 4);
    let value = |row: usize, column: usize, channel: usize| {
        2.0 * f64::from(picture.rgb[(row * WIDTH + column) * 3 + channel]) / 255.0 - 1.0
    };
    let mut latent = vec![];
    for (c, y, x) in (0..4 * h * w).map(|i| (i / (h * w), i / w % h, i % w)) {
        let at = on_grid(c, y, x);
        let (row, column) = (2 * (at / (WIDTH / 2)), 2 * (at % (WIDTH / 2)));
        let taps = (0..12).map(|i| (i / 4, i / 2 % 2, i % 2));
        let sum: f64 = taps.zip(kernel).map(|((ch, dy, dx), k)| f64::from(*k) * value(row + dy, column + dx, ch)).sum();
        latent.push((sum + f64::from(bias) - f64::from(MEAN)) / f64::from(DEVIATION));
    }
    latent
}

/// The same but for roundings to the next of 256 levels.
#[track_caller]
fn same(made: &Picture, wanted: &[u8]) {
    assert_eq!((made.width, made.height, made.rgb.len()), (WIDTH, HEIGHT, wanted.len()));
    let apart = made.rgb.iter().zip(wanted).filter(|(a, b)| a != b).count();
    let far = made.rgb.iter().zip(wanted).map(|(a, b)| a.abs_diff(*b)).max();
    assert!(far <= Some(1) && apart < wanted.len() / 50, "{apart} of {} differ, by up to {far:?}", wanted.len());
    // Colours at the ends of their range would hide what differs.
    assert!(
        2 * wanted.iter().filter(|b| (1..255).contains(*b)).count() > wanted.len(),
        "too few colours show anything"
    );
}

#[test]
fn a_family_of_one_file_makes_pictures() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = model(folder.path());
    assert_eq!((model.pipeline.name(), model.unused.len(), model.networks().count()), ("Toy", 0, 4));
    let made = paint(&model, &settings(&[])).unwrap_or_else(|e| panic!("{e}"));
    same(&made, &by_hand("a red fox", 3.5, None, 5));
    // Prompt and guidance matter, the negative prompt is not read.
    let blue = paint(&model, &settings(&[("prompt", "a cat"), ("guidance", "1.5")])).unwrap_or_else(|e| panic!("{e}"));
    same(&blue, &by_hand("a cat", 1.5, None, 5));
    assert_ne!(made.rgb, blue.rgb);
    let negative = paint(&model, &settings(&[("negative-prompt", "grey")])).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(made.rgb, negative.rgb);
}

#[test]
fn a_picture_to_begin_with_is_mixed_as_the_family_mixes() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = model(folder.path());
    let rgb = numbers("start", 3 * HEIGHT * WIDTH).map(|u| (127.5 * (u + 1.0)) as u8).collect();
    let start = Picture { width: WIDTH, height: HEIGHT, rgb };
    let path = folder.path().join("start.png");
    start.write(&path, "", true).expect("written");
    let path = path.display().to_string();
    let made = paint(&model, &settings(&[("init-img", &path), ("strength", "0.6")])).unwrap_or_else(|e| panic!("{e}"));
    same(&made, &by_hand("a red fox", 3.5, Some(&start), 3));
}

#[test]
fn what_does_not_go_with_flow_matching_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = model(folder.path());
    for (name, text, words) in [
        ("sampling-method", "euler_a", "euler_a is not for models of flow matching; choose one of euler, heun, lms"),
        ("scheduler", "karras", "a schedule of its own"),
        ("prediction", "v", "flow matching"),
    ] {
        let Err(error) = paint(&model, &settings(&[(name, text)])) else { panic!("{name} was taken") };
        assert!(error.to_string().contains(words), "{error}");
    }
}
