//! LoRAs of every dialect against diffusers, PEFT and torch, on small models of the true structure. What a user would lose: the style or the face that a
//! LoRA gives elsewhere, without a word.
//!
//! `tools/lora_fixtures.py` made the pictures; weights of models and LoRAs come from tensors' names.

use impasto_testkit::psnr;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use impasto_backend::Backend;
use impasto_backend::cpu::{Cpu, CpuOptions, Precision};
use impasto_generate::picture::Picture;
use impasto_generate::place::MachineOptions;
use impasto_generate::place::Placement;
use impasto_generate::settings::Settings;
use impasto_generate::{Engine, EngineOptions, Event, GenerateError, Job, SavedRun, inside, run, run_file};
use impasto_graph::Storage;
use impasto_model::{Model, ModelPaths, NetworkId, OpenNetwork};
use impasto_testkit::model::generated::numbers;
use impasto_testkit::model::{Small, Tensor, write_safetensors};
use impasto_weights::{Checkpoint, WeightSource, decode, encode};
use serde_json::{Value, json};
use tempfile::TempDir;

fn fixtures(end: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(format!("loras.{end}"))
}

fn cases(of: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(fixtures("json")).expect("the fixture is in the repository");
    let all: Vec<Value> = serde_json::from_str(&text).expect("it is JSON");
    all.into_iter().filter(|case| case["base"] == of).collect()
}

/// The tensors of a case, made from their names.
fn tensors(case: &Value) -> BTreeMap<String, Tensor> {
    let tensor = |(name, spec): (&String, &Value)| {
        let shape: Vec<usize> = serde_json::from_value(spec[0].clone()).expect("a shape");
        let (mean, amplitude) = (spec[1].as_f64().expect("a mean"), spec[2].as_f64().expect("an amplitude"));
        let numbers = numbers(name, shape.iter().product()).map(|u| (mean + amplitude * u) as f32).collect();
        (name.clone(), (shape, numbers))
    };
    case["tensors"].as_object().expect("tensors").iter().map(tensor).collect()
}

/// A file with metadata.
fn write_with_metadata(path: &Path, tensors: &BTreeMap<String, Tensor>, metadata: &Value) {
    write_safetensors(path, tensors);
    let bytes = std::fs::read(path).expect("written");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
    header["__metadata__"] = metadata.clone();
    let header = header.to_string();
    let all = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes[8 + length..]].concat();
    std::fs::write(path, all).expect("written");
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
        ("width", "64"),
        ("height", "64"),
    ];
    for (name, text) in usual.iter().chain(of) {
        settings.set(name, text).expect("a setting");
    }
    settings
}

fn paint(model: &Arc<Model>, settings: &Settings) -> Result<Picture, GenerateError> {
    let job = Job::new(settings, model)?;
    let cpu = Cpu::new(&CpuOptions { precision: Precision::F32, ..CpuOptions::default() }).expect("there is a CPU");
    let backend: Arc<dyn Backend> = Arc::new(cpu);
    let mut made = None;
    run(&job, &Placement::on(&backend), None, &mut |event| {
        if let Event::Picture { picture, .. } = event {
            made = Some(picture.clone());
        }
        Ok(true)
    })?;
    Ok(made.expect("a picture is ready"))
}

fn open(path: &Path) -> Arc<Model> {
    let paths = ModelPaths { model: Some(path.into()), ..ModelPaths::default() };
    Arc::new(Model::open(&paths).unwrap_or_else(|e| panic!("{e}")))
}

fn folder(small: &Small) -> (TempDir, Arc<Model>) {
    let folder = tempfile::tempdir().expect("a folder");
    small.write_folder(folder.path());
    let model = open(folder.path());
    (folder, model)
}

fn compare(base: &str, small: &Small) {
    let (folder, model) = folder(small);
    let pictures = Checkpoint::open(&fixtures("safetensors")).expect("the fixture is in the repository");
    let plain = paint(&model, &settings(&[])).expect("a picture");
    for case in cases(base) {
        let name = case["name"].as_str().expect("a name");
        let file = folder.path().join(format!("{name}.safetensors"));
        write_with_metadata(&file, &tensors(&case), &case["metadata"]);
        let want = pictures.read_all(pictures.tensor(name).expect("a picture")).expect("it is whole");
        let lora = format!("{}={}", file.display(), case["strength"]);
        let without = psnr(&plain.rgb, &want);
        for mode in ["immediately", "at_runtime"] {
            let settings = settings(&[("lora", &lora), ("lora-apply-mode", mode)]);
            let job = Job::new(&settings, &model).unwrap_or_else(|e| panic!("{name}: {e}"));
            let layers = |network: &Arc<OpenNetwork>| network.branches().map_or(0, |branches| branches.len());
            let branches: usize = job.model.networks().map(|(_, network)| layers(network)).sum();
            let found = psnr(&paint(&model, &settings).expect("a picture").rgb, &want);
            println!("{name} {mode}: {found:.1} dB, without it {without:.1} dB, {branches} branches; {:?}", job.notes);
            assert!(found >= 50.0 && without < 30.0, "{name} {mode}: {found:.1} dB, 50 are needed");
            // What is no product of two small matrices is said to be merged.
            let merged = ["lokr", "loha", "dora", "full"].iter().any(|word| name.contains(word));
            match (mode, merged) {
                ("at_runtime", true) => assert!(job.notes[0].contains("not at run time"), "{name}: {:?}", job.notes),
                _ => assert!(job.notes.is_empty(), "{name}: {:?}", job.notes),
            }
            assert!(merged || (branches > 0) == (mode == "at_runtime"), "{name} {mode}: {branches}");
        }
    }
}

#[test]
fn every_dialect_on_stable_diffusion_1() {
    compare("sd1", &Small::sd1());
}

#[test]
fn every_dialect_on_stable_diffusion_xl() {
    compare("xl", &Small::sdxl());
}

/// The LoRA of a case, in a folder.
fn write_case(name: &str, path: &Path) {
    let case = ["sd1", "xl"].into_iter().flat_map(cases).find(|case| case["name"] == name).expect("a case");
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    write_with_metadata(path, &tensors(&case), &case["metadata"]);
}

#[test]
fn a_tag_and_a_flag_mean_the_same_lora_and_files_of_every_layout_the_same_model() {
    for (small, name) in [(Small::sd1(), "kohya"), (Small::sdxl(), "xl_kohya"), (Small::sdxl(), "xl_open_clip")] {
        let (folder, model) = folder(&small);
        let loras = folder.path().join("loras");
        let file = loras.join("style").join("fur.safetensors");
        write_case(name, &file);
        let lora = format!("{}=0.5", file.display());
        let settings = |of: &[(&str, &str)]| settings(&[of, &[("lora-apply-mode", "immediately")]].concat());
        let want = paint(&model, &settings(&[("lora", &lora)])).expect("a picture");
        let prompt = "A red house under <lora:style/fur:0.5>a yellow sun, by the sea!";
        let dir = loras.display().to_string();
        let tagged = settings(&[("prompt", prompt), ("lora-model-dir", &dir)]);
        assert!(paint(&model, &tagged).expect("a picture") == want, "{name} as a tag");
        let one = folder.path().join("one.safetensors");
        small.write_original(&one);
        assert!(paint(&open(&one), &tagged).expect("a picture") == want, "{name} on an original file");
        // Twice half of it is all of it.
        let twice = paint(&model, &settings(&[("lora", &format!("{lora},{lora}"))])).expect("a picture");
        let all = paint(&model, &settings(&[("lora", &file.display().to_string())])).expect("a picture");
        assert!(psnr(&twice.rgb, &all.rgb) > 50.0 && psnr(&twice.rgb, &want.rgb) < 40.0, "{name} twice");
        // In the folder of LoRAs, a name is enough for the flag too.
        let named = settings(&[("lora", "style/fur=0.5"), ("lora-model-dir", &dir)]);
        assert!(paint(&model, &named).expect("a picture") == want, "{name} by its name");
    }
}

#[test]
fn two_hundred_are_their_sum() {
    let (folder, model) = folder(&Small::sd1());
    let write = |name: &str, scale: f32| {
        let path = folder.path().join(name);
        let bias = |module: &str, n: usize| (format!("lora_unet_{module}.diff_b"), (vec![n], vec![scale; n]));
        write_safetensors(&path, &[bias("conv_out", 4), bias("conv_in", 32)].into());
        path.display().to_string()
    };
    let many: Vec<String> = (0..200).map(|i| write(&format!("{i}.safetensors"), 0.001 * (i % 7) as f32)).collect();
    let sum: f32 = (0..200).map(|i| 0.001 * (i % 7) as f32).sum();
    let want = paint(&model, &settings(&[("lora", &write("sum.safetensors", sum))])).expect("a picture");
    let made = paint(&model, &settings(&[("lora", &many.join(","))])).expect("a picture");
    let plain = paint(&model, &settings(&[])).expect("a picture");
    assert!(psnr(&made.rgb, &want.rgb) > 50.0 && psnr(&plain.rgb, &want.rgb) < 30.0);
}

#[test]
fn what_cannot_be_applied_is_said() {
    let (folder, model) = folder(&Small::sd1());
    let at = |name: &str| folder.path().join(name).display().to_string();
    let write = |name: &str, tensors: &[(&str, &[usize], f32)]| {
        let tensor = |(name, shape, value): &(&str, &[usize], f32)| {
            (name.to_string(), (shape.to_vec(), vec![*value; shape.iter().product()]))
        };
        write_safetensors(Path::new(&at(name)), &tensors.iter().map(tensor).collect());
        at(name)
    };
    let refused = |lora: &str| match paint(&model, &settings(&[("lora", lora)])) {
        Ok(_) => panic!("{lora} is applied"),
        Err(error) => error.to_string(),
    };
    let attention = "down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k";
    let names = [format!("lora_unet_{attention}.lora_down.weight"), format!("lora_unet_{attention}.lora_up.weight")];
    let width = |n: usize| -> String {
        write(&format!("width{n}.safetensors"), &[(&names[0], &[2, n], 1.0), (&names[1], &[32, 2], 1.0)])
    };
    let flux = "lora_unet_double_blocks_0_img_attn_qkv";
    for (lora, says) in [
        (width(2048), &["LoRA for Stable Diffusion XL", "is Stable Diffusion 1"][..]),
        (width(1024), &["LoRA for Stable Diffusion 2", "is Stable Diffusion 1"]),
        (width(96), &["texts have 96 numbers a token (here 64)"]),
        (
            write(
                "flux.safetensors",
                &[
                    (&format!("{flux}.lora_down.weight"), &[2, 8], 1.0),
                    (&format!("{flux}.lora_up.weight"), &[8, 2], 1.0),
                ],
            ),
            &["LoRA for FLUX", "Stable Diffusion 1"],
        ),
        (write("te2.safetensors", &[("lora_te2_x.diff", &[2, 8], 1.0)]), &["Stable Diffusion XL"]),
        (
            write("none.safetensors", &[("lora_unet_x.diff", &[2, 8], 1.0)]),
            &["changes nothing", "lora_unet_x", "1 fit"],
        ),
        (
            write("shape.safetensors", &[("lora_unet_conv_in.diff", &[2, 8], 1.0)]),
            &["changes nothing", "2 x 8", "32 x 36"],
        ),
        (
            write("nan.safetensors", &[("lora_unet_conv_in.diff_b", &[32], f32::NAN)]),
            &["nan.safetensors", "NaN or infinity", "lora_unet_conv_in.diff_b"],
        ),
        (
            write(
                "rank.safetensors",
                &[
                    ("lora_unet_conv_in.lora_down.weight", &[0, 36], 1.0),
                    ("lora_unet_conv_in.lora_up.weight", &[32, 0], 1.0),
                ],
            ),
            &["rank.safetensors", "rank 0"],
        ),
        (at("missing.safetensors"), &["missing.safetensors: there is no such LoRA", "--lora-model-dir"]),
    ] {
        let error = refused(&lora);
        assert!(says.iter().all(|says| error.contains(says)), "{lora}: {error}");
    }
    let partly = write(
        "partly.safetensors",
        &[
            ("lora_unet_conv_in.diff_b", &[32], 1.0),
            ("lora_unet_x.diff", &[2], 1.0),
            ("lora_unet_conv_out.diff_b", &[5], 1.0),
        ],
    );
    let job = Job::new(&settings(&[("lora", &partly)]), &model).unwrap_or_else(|e| panic!("{e}"));
    let says = [
        "1 modules are applied",
        "1 fit nothing",
        "lora_unet_x",
        "1 have another shape",
        "5 x 1 numbers, the model has 4 x 1",
    ];
    assert!(says.iter().all(|says| job.notes[0].contains(says)), "{:?}", job.notes);
    // Without a folder a tag does nothing, and its letters are no words.
    let tagged = Job::new(&settings(&[("prompt", "a cat<lora:fur:1>")]), &model).expect("a job");
    assert!(tagged.prompt == "a cat" && tagged.notes[0].contains("<lora:fur:1> is not applied"), "{:?}", tagged.notes);
}

fn engine() -> Engine {
    let options = EngineOptions::new(&settings(&[("gpu", "disable")])).expect("options");
    let devices = MachineOptions { keep_alive: std::time::Duration::from_secs(60), ..options.devices };
    Engine::new(EngineOptions { devices, ..options })
}

#[test]
fn a_picture_says_its_loras_and_a_run_is_resumed_with_the_same_ones_only() {
    let (folder, model) = folder(&Small::sd1());
    let at = |name: &str| folder.path().join(name);
    write_case("kohya", &at("fur.safetensors"));
    write_case("peft", &at("loras/style.safetensors"));
    let (dir, lora, output) = (at("loras"), format!("{}=0.5", at("fur.safetensors").display()), at("picture.png"));
    let asked = settings(&[
        ("prompt", "A red house <lora:style:0.25>"),
        ("lora", &lora),
        ("lora-model-dir", &dir.display().to_string()),
        ("output", &output.display().to_string()),
    ]);
    let job = Job::new(&asked, &model).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(job.prompt, "A red house ");
    let says = job.parameters(7);
    assert!(
        says.starts_with("A red house <lora:style:0.25>\n")
            && says.contains(", Lora: fur.safetensors=0.5, Lora hash: ")
            && says.contains(", Lora mode: immediately"),
        "{says}"
    );
    assert!(says.contains(&model.fingerprint().expect("read")), "the model's own hash: {says}");

    // Stopped after three steps, and gone on with.
    let engine = engine();
    let mut steps = 0;
    let stopped = engine.run(&job.clone().written(), &mut |event| {
        steps += usize::from(matches!(event, Event::Step { .. }));
        Ok(steps < 3)
    });
    assert!(matches!(stopped, Err(GenerateError::Interrupted)));
    let saved = || SavedRun::read(&run_file(&output)).expect("a run");
    let resumed = Job::resumed(saved(), &Settings::default(), &model).unwrap_or_else(|e| panic!("{e}"));
    let mut made = None;
    let mut keep = |event: Event| {
        if let Event::Picture { picture, .. } = event {
            made = Some(picture.clone());
        }
        Ok(true)
    };
    engine.run(&resumed, &mut keep).unwrap_or_else(|e| panic!("{e}"));
    let whole = paint(&model, &asked).expect("a picture");
    assert!(psnr(&made.expect("a picture").rgb, &whole.rgb) > 40.0);

    whole.write(&output, &says, true).expect("written");
    let found = inside(&output).expect("settings");
    let mut settings = found.settings.clone();
    settings.set("lora-model-dir", &dir.display().to_string()).expect("a folder");
    // The file of the flag is not in the folder yet.
    let error = Job::new(&settings, &model).err().expect("no such file").to_string();
    assert!(error.contains("no LoRA 'fur.safetensors'"), "{error}");
    std::fs::copy(at("fur.safetensors"), at("loras/fur.safetensors")).expect("copied");
    let again = Job::new(&settings, &model).unwrap_or_else(|e| panic!("{e}"));
    found.check_loras(&again).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(again.parameters(7), says);

    // Another file of the same name.
    write_case("full", &at("loras/style.safetensors"));
    let other = Job::new(&settings, &model).unwrap_or_else(|e| panic!("{e}"));
    assert!(found.check_loras(&other).expect_err("another").to_string().contains("other LoRAs"));
    let error = Job::resumed(saved(), &Settings::default(), &model).err().expect("another").to_string();
    assert!(error.contains("other LoRAs"), "{error}");
}

#[test]
fn a_second_picture_with_the_same_loras_loads_nothing() {
    let (folder, model) = folder(&Small::sd1());
    let file = folder.path().join("full.safetensors");
    write_case("full", &file);
    let engine = engine();
    let paint = |strength: &str| {
        let lora = format!("{}={strength}", file.display());
        let job = Job::new(&settings(&[("lora", &lora), ("steps", "2")]), &model).unwrap_or_else(|e| panic!("{e}"));
        engine.run(&job, &mut |_| Ok(true)).unwrap_or_else(|e| panic!("{e}"));
        engine.work().loads
    };
    let first = paint("0.5");
    assert_eq!(paint("0.5"), first, "the same LoRAs");
    // This one changes the diffusion model alone.
    assert_eq!(paint("0.75"), first + 1, "another strength");
}

/// At run time only the LoRA is read anew, and the base stays.
#[test]
fn other_loras_at_run_time_leave_the_weights_loaded() {
    let (folder, model) = folder(&Small::sd1());
    let [fur, other, attention] = ["kohya", "kohya_in_diffusers", "peft"].map(|name| {
        let path = folder.path().join(format!("{name}.safetensors"));
        write_case(name, &path);
        path
    });
    let engine = engine();
    let paint = |engine: &Engine, lora: &[(&str, &str)]| {
        let job = Job::new(&settings(&[lora, &[("steps", "2")]].concat()), &model).unwrap_or_else(|e| panic!("{e}"));
        let mut made = None;
        let mut keep = |event: Event| {
            if let Event::Picture { picture, .. } = event {
                made = Some(picture.clone());
            }
            Ok(true)
        };
        engine.run(&job, &mut keep).unwrap_or_else(|e| panic!("{e}"));
        (made.expect("a picture"), engine.work(), job.parameters(7))
    };
    let lora = |file: &Path, strength: f32| format!("{}={strength}", file.display());
    let now = |lora: &str| paint(&engine, &[("lora", lora), ("lora-apply-mode", "at_runtime")]);
    let (_, first, _) = now(&lora(&fur, 0.5));
    let (again, second, _) = now(&lora(&fur, 0.8));
    assert_eq!([second.plans, second.loads, second.packs], [first.plans, first.loads, first.packs], "other strengths");
    assert_eq!(second.adapters, first.adapters + 2, "the LoRA of the diffusion model and of the text encoder");
    // As if nothing had been there before.
    assert!(paint(&self::engine(), &[("lora", &lora(&fur, 0.8)), ("lora-apply-mode", "at_runtime")]).0 == again);
    let (same, third, says) = now(&lora(&fur, 0.8));
    assert!(same == again && [third.adapters, third.prepares] == [second.adapters, second.prepares], "the same again");
    assert!(says.contains(", Lora mode: at_runtime"), "{says}");
    let (_, fourth, _) = now(&format!("{},{}", lora(&fur, 0.8), lora(&other, 0.3)));
    assert_eq!([fourth.loads, fourth.packs], [first.loads, first.packs], "another LoRA beside it");

    // Who asks for nothing in particular gets the same as soon as LoRAs change, as far as they can be branches.
    let auto = |lora: &[(&str, &str)]| paint(&engine, lora);
    let (_, fifth, _) = auto(&[]);
    let (_, sixth, says) = auto(&[("lora", &lora(&attention, 0.25))]);
    assert!(says.contains(", Lora mode: at_runtime"), "{says}");
    assert_eq!([sixth.loads, sixth.packs], [fifth.loads, fifth.packs], "the base stays");
    let full = folder.path().join("full.safetensors");
    write_case("full", &full);
    let (_, seventh, says) = auto(&[("lora", &lora(&full, 0.5))]);
    assert!(says.contains(", Lora mode: immediately") && seventh.loads > sixth.loads, "{says}");
    let first_of_all = Job::new(&settings(&[("lora", &lora(&fur, 0.5))]), &open(folder.path())).expect("a job");
    assert!(first_of_all.parameters(7).contains(", Lora mode: immediately"), "nothing is loaded yet");
}

/// A model in eight bits keeps what no LoRA changes, and has halves where one does.
#[test]
fn quantised_weights_are_changed_in_halves() {
    let small = Small::sd1();
    let [bytes, floats] = ["bytes", "floats"].map(|_| folder(&small).0);
    let (name, storage) = ("unet/diffusion_pytorch_model.safetensors", Storage::F8_E4M3);
    let file = Checkpoint::open(&bytes.path().join(name)).expect("a network");
    let (mut header, mut data, mut decoded) = (serde_json::Map::new(), vec![], BTreeMap::new());
    for tensor in file.tensors() {
        let numbers: Vec<f32> =
            file.read_all(tensor).expect("read").as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let begin = data.len();
        let mut rounded = numbers.clone();
        let dtype = if tensor.shape.len() == 2 {
            let mut eight = vec![0; numbers.len()];
            encode(storage, &numbers, &mut eight);
            decode(storage, &eight, &mut rounded);
            data.extend(eight);
            "F8_E4M3"
        } else {
            data.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
            "F32"
        };
        header.insert(
            tensor.name.clone(),
            json!({ "dtype": dtype, "shape": tensor.shape, "data_offsets": [begin, data.len()] }),
        );
        decoded.insert(tensor.name.clone(), (tensor.shape.clone(), rounded));
    }
    let header = Value::Object(header).to_string();
    let all = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(bytes.path().join(name), all).expect("written");
    write_safetensors(&floats.path().join(name), &decoded);
    let lora = bytes.path().join("lora.safetensors");
    write_case("dora_of_both_axes", &lora);
    let asked = settings(&[("lora", &lora.display().to_string())]);
    let [plain, changed] = [settings(&[]), asked.clone()].map(|settings| {
        let [a, b] = [&bytes, &floats].map(|folder| paint(&open(folder.path()), &settings).expect("a picture"));
        let found = psnr(&a.rgb, &b.rgb);
        println!("{found:.1} dB");
        (found, a)
    });
    assert!(plain.0 > 50.0 && changed.0 > 45.0 && psnr(&plain.1.rgb, &changed.1.rgb) < 30.0);
    let job = Job::new(&asked, &open(bytes.path())).expect("a job");
    let network = job.model.network(NetworkId::Denoiser).expect("a denoiser");
    let storage_of = |param: &str| network.describe(param).expect("a parameter").storage.name();
    let block = "mid_block.attentions.0.transformer_blocks.0";
    assert_eq!(storage_of(&format!("{block}.attn1.to_q.weight")), "f16");
    assert_eq!(storage_of(&format!("{block}.ff.net.2.weight")), "f8_e4m3");
}
