//! Models, written anew. What a user would lose: a model that other programs, or this one, cannot open; weights that are not what was asked for; or the file
//! that was there before.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use impasto_graph::{DType, Storage};
use impasto_weights::{
    Checkpoint, Conversion, ConversionReport, ConvertError, ConvertOptions, ElementType, ModelPart, OutputFormat,
    TypeRules, WeightSource, decode, encode, parse_storage,
};
use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn options(out: &Path, storage: Option<&str>, rules: &str) -> ConvertOptions {
    ConvertOptions {
        format: OutputFormat::of_path(out).expect("a known ending"),
        storage: storage.map(|name| parse_storage(name).expect("a type")),
        rules: rules.parse::<TypeRules>().expect("good rules"),
        metadata: [("impasto.test".to_string(), "yes".to_string())].into_iter().filter(|_| !rules.is_empty()).collect(),
    }
}

fn open(path: &Path) -> Checkpoint {
    Checkpoint::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn plan(from: &Path, to: &Path, storage: Option<&str>, rules: &str) -> Result<Conversion, ConvertError> {
    let part = ModelPart { prefix: String::new(), renamed: BTreeMap::new(), checkpoint: open(from) };
    Conversion::plan(vec![part], &options(to, storage, rules))
}

fn convert(from: &Path, to: &Path, storage: Option<&str>, rules: &str) -> Result<ConversionReport, ConvertError> {
    let conversion = plan(from, to, storage, rules)?;
    conversion.write(to, false, 3, &mut |_, _| true)?;
    assert_eq!(fs::metadata(to).expect("it is there").len(), conversion.report().bytes_written);
    Ok(conversion.report().clone())
}

/// The numbers of a tensor, scales applied.
fn numbers(file: &Checkpoint, name: &str) -> Vec<f32> {
    let (info, bytes) = WeightSource::read_all(file, name).unwrap_or_else(|error| panic!("{error}"));
    let mut out = vec![0.0; info.shape.iter().product()];
    decode(info.storage, &bytes, &mut out);
    if let Some(scales) = file.row_scales(name).expect("they can be read") {
        let columns = out.len() / scales.len();
        out.iter_mut().enumerate().for_each(|(i, x)| *x *= scales[i / columns]);
    }
    out
}

/// A safetensors file with these tensors.
fn safetensors(path: &Path, tensors: &[(&str, &str, Vec<usize>, Vec<u8>)]) {
    let (mut entries, mut data) = (vec![], vec![]);
    for (name, dtype, shape, bytes) in tensors {
        let (begin, end) = (data.len(), data.len() + bytes.len());
        entries.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#));
        data.extend(bytes);
    }
    let header = format!(r#"{{"__metadata__":{{"modelspec.title":"Ä","other":"x"}},{}}}"#, entries.join(","));
    fs::write(path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()).expect("written");
}

/// Numbers that look random, around zero.
fn noise(count: usize, mut seed: u64) -> Vec<f32> {
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..count).map(|_| (next() + next() + next() - 1.5) * 0.1).collect()
}

fn stored(storage: Storage, numbers: &[f32]) -> Vec<u8> {
    let mut out = vec![0; storage.bytes_of(numbers.len() as u64).expect("few") as usize];
    encode(storage, numbers, &mut out);
    out
}

const F16: Storage = Storage::Dense(DType::F16);

/// Header, order, padding, choice of types and blocks: a file is the same bytes as one by the reference's writer.
#[test]
fn files_are_those_of_the_gguf_package() {
    let folder = TempDir::new().expect("a folder");
    for name in ["f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4"] {
        let out = folder.path().join(format!("{name}.gguf"));
        let report = convert(&fixture("convert/model.safetensors"), &out, Some(name), "").expect(name);
        assert_eq!(report.architecture.as_deref(), Some("flux"));
        let fallbacks: Vec<&str> = report.fallbacks.iter().map(|f| f.name.as_str()).collect();
        match name {
            "f16" | "bf16" => assert!(fallbacks.is_empty()),
            _ => assert_eq!(fallbacks, ["double_blocks.0.odd.weight", "double_blocks.0.odd_bf16.weight"]),
        }
        let expected = fs::read(fixture("convert").join(format!("{name}.gguf"))).expect("a fixture");
        assert!(fs::read(&out).expect("written") == expected, "{name} differs from the reference");
    }
}

/// Every type that can be written, read back: the numbers are those of the model, encoded and decoded.
#[test]
fn what_is_written_reads_back_in_every_type() {
    let folder = TempDir::new().expect("a folder");
    let model = folder.path().join("m.safetensors");
    // More than a piece, and rows that are whole blocks of every type.
    let weights = noise(1100 * 512, 7);
    let halves = stored(F16, &weights);
    let odd = noise(48 * 96, 8);
    safetensors(
        &model,
        &[
            ("w.weight", "F16", vec![1100, 512], halves.clone()),
            ("odd.weight", "F32", vec![48, 96], stored(Storage::Dense(DType::F32), &odd)),
            ("steps", "I64", vec![], 5i64.to_le_bytes().to_vec()),
            ("none", "F32", vec![0], vec![]),
            ("x.position_ids", "I64", vec![2], vec![0; 16]),
            ("flags", "U8", vec![3], vec![1, 2, 3]),
        ],
    );
    let mut exact = vec![0.0; weights.len()];
    decode(F16, &halves, &mut exact);
    for storage in Storage::ALL.into_iter().filter(|storage| storage.is_float()) {
        let fp8 = matches!(storage, Storage::F8_E4M3 | Storage::F8_E5M2);
        let dense = storage.block_elements() == 1;
        let formats = [(!fp8, "gguf"), (dense, "safetensors")];
        for (_, ending) in formats.into_iter().filter(|(possible, _)| *possible) {
            let out = folder.path().join(format!("{storage}.{ending}"));
            let report = convert(&model, &out, Some(storage.name()), "").unwrap_or_else(|e| panic!("{storage}: {e}"));
            let file = open(&out);
            let tensor = file.tensor("w.weight").expect("it is there");
            assert_eq!((tensor.element, &tensor.shape[..]), (ElementType::of_storage(storage), &[1100, 512][..]));
            let mut expected = vec![0.0; exact.len()];
            decode(storage, &stored(storage, &exact), &mut expected);
            assert!(numbers(&file, "w.weight") == expected, "{storage} in {ending}");
            assert_eq!(file.tensor("none").map(|t| t.elements()), Some(0));
            assert_eq!(file.metadata().get("modelspec.title").map(String::as_str), Some("Ä"));
            match ending {
                "gguf" => {
                    assert_eq!(report.left_out, ["x.position_ids", "flags"]);
                    assert_eq!(file.tensor("steps").map(|t| t.shape.clone()), Some(vec![1]));
                }
                _ => assert_eq!((file.tensors().count(), report.left_out.len()), (6, 0)),
            }
            // Rows of 96 are whole blocks of 32 and not of 256.
            let odd = file.tensor("odd.weight").map(|t| t.element);
            let smaller = match storage {
                Storage::Q2_K | Storage::Q3_K | Storage::IQ4_XS => Storage::IQ4_NL,
                Storage::Q4_K => Storage::Q5_0,
                Storage::Q5_K => Storage::Q5_1,
                Storage::Q6_K => Storage::Q8_0,
                same => same,
            };
            assert_eq!(odd, Some(ElementType::of_storage(smaller)), "{storage}");
            assert_eq!(report.fallbacks.len(), usize::from(storage != smaller));
        }
        let other = folder.path().join(if fp8 { "x.gguf" } else { "x.safetensors" });
        if fp8 || !dense {
            let refused = plan(&model, &other, Some(storage.name()), "").err().expect("the format has no such type");
            assert!(refused.to_string().contains(storage.name()), "{refused}");
        }
    }
}

/// Models of random tensors, to random types: each number is that of the model, in the type that the tensor has now.
#[test]
fn every_tensor_of_a_random_model_keeps_its_numbers() {
    let folder = TempDir::new().expect("a folder");
    let types = [("F32", "f32"), ("F16", "f16"), ("BF16", "bf16"), ("F8_E4M3", "f8_e4m3"), ("F8_E5M2", "f8_e5m2")];
    let lengths = [1, 2, 3, 31, 32, 64, 96, 100, 256, 512, 768];
    let targets: Vec<Storage> = Storage::ALL.into_iter().filter(|storage| storage.is_float()).collect();
    let mut seed = 99u64;
    let mut draw = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % below
    };
    let mut blocks = 0;
    for model in 0..150 {
        let mut tensors = vec![];
        for number in 0..1 + draw(12) {
            let shape: Vec<usize> = (0..draw(5)).map(|_| lengths[draw(lengths.len())]).collect();
            let elements: usize = shape.iter().product();
            if elements > 200_000 {
                continue;
            }
            let (dtype, storage) = types[draw(types.len())];
            let name = format!("{}{number}.{}", ["blocks.", "time_embed.", "x."][draw(3)], ["weight", "bias"][draw(2)]);
            tensors.push((
                name,
                dtype,
                shape,
                stored(parse_storage(storage).expect("a type"), &noise(elements, model)),
            ));
        }
        let (from, target) = (folder.path().join(format!("{model}.safetensors")), targets[draw(targets.len())]);
        let named: Vec<_> = tensors.iter().map(|(n, t, s, b)| (n.as_str(), *t, s.clone(), b.clone())).collect();
        if named.is_empty() {
            continue;
        }
        safetensors(&from, &named);
        let fp8 = matches!(target, Storage::F8_E4M3 | Storage::F8_E5M2);
        let ending = if fp8 || target.block_elements() == 1 && draw(2) == 0 { "safetensors" } else { "gguf" };
        let to = folder.path().join(format!("{model}-new.{ending}"));
        let wish = if draw(4) == 0 { None } else { Some(target.name()) };
        convert(&from, &to, wish, "").unwrap_or_else(|error| panic!("{model}: {error}"));
        let (before, after) = (open(&from), open(&to));
        assert_eq!(after.tensors().count(), tensors.len());
        for (name, _, shape, _) in &tensors {
            let new = after.tensor(name).unwrap_or_else(|| panic!("{model}: {name} is gone"));
            let same_shape = new.shape == *shape || shape.is_empty() && new.shape == [1];
            assert!(same_shape, "{model}: {name}: {shape:?} became {:?}", new.shape);
            let storage = new.element.storage().expect("a float");
            blocks += usize::from(storage.block_elements() > 1);
            let original = numbers(&before, name);
            let mut expected = vec![0.0; original.len()];
            decode(storage, &stored(storage, &original), &mut expected);
            assert!(numbers(&after, name) == expected, "{model}: {name} as {storage}");
        }
    }
    assert!(blocks > 40, "{blocks} tensors became blocks");
}

/// Files of other programs, each to both formats and back: the numbers stay, to the precision of 16 bits.
#[test]
fn models_of_others_keep_their_numbers() {
    let folder = TempDir::new().expect("a folder");
    let names = [
        "all.gguf",
        "ggml.gguf",
        "aligned.gguf",
        "zip.ckpt",
        "legacy.ckpt",
        "fp8.safetensors",
        "int8.safetensors",
        "scaled_old.safetensors",
        "scaled_new.safetensors",
        "scaled_rows.safetensors",
        "parts-00001-of-00003.gguf",
    ];
    for name in names {
        let from = fixture("files").join(name);
        for ending in ["gguf", "safetensors"] {
            let out = folder.path().join(format!("{name}.{ending}"));
            let report = match convert(&from, &out, None, "") {
                Ok(report) => report,
                // Types that are only listed can be copied to their own format alone.
                Err(error) => {
                    assert!((name, ending) == ("all.gguf", "safetensors"), "{name} as {ending}: {error}");
                    continue;
                }
            };
            let (before, after) = (open(&from), open(&out));
            let mut compared = 0;
            for tensor in before.tensors().filter(|t| !report.left_out.contains(&t.name)) {
                let new = after.tensor(&tensor.name).unwrap_or_else(|| panic!("{name}: {}", tensor.name));
                assert_eq!(new.elements(), tensor.elements());
                if before.describe(&tensor.name).is_err() || tensor.element == ElementType::I32 {
                    continue;
                }
                compared += 1;
                for (a, b) in numbers(&before, &tensor.name).iter().zip(numbers(&after, &tensor.name)) {
                    let same = a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                    assert!(same || (a - b).abs() <= a.abs() / 1024.0 + 1e-7, "{name}: {}: {a} {b}", tensor.name);
                }
            }
            assert!(compared > 0, "{name}: nothing was compared");
            assert_eq!(after.scale_tensors().count(), 0, "{name}: scales are applied");
        }
    }
}

/// The words of a tokenizer and the like are part of the model.
#[test]
fn metadata_of_gguf_files_is_kept() {
    let folder = TempDir::new().expect("a folder");
    let (from, out) = (fixture("files/all.gguf"), folder.path().join("x.gguf"));
    convert(&from, &out, None, "").expect("it converts");
    let (before, after) = (open(&from), open(&out));
    let own = ["general.alignment", "general.file_type", "general.quantization_version"];
    let mut kept = 0;
    for key in before.value_keys().filter(|key| !own.contains(key) && !key.starts_with("comfy.")) {
        assert_eq!(before.value(key).expect("read"), after.value(key).expect("read"), "{key}");
        kept += 1;
    }
    assert!(kept > 3, "{kept} keys");
}

#[test]
fn rules_decide_by_name_and_those_without_use_are_told() {
    let folder = TempDir::new().expect("a folder");
    let out = folder.path().join("x.gguf");
    let rules = r"img_in=q5_0,mlp\.0\.weight$=q4_1,mlp=q8_0,nothing\.here=q4_0,odd\.=q4_k";
    let report = convert(&fixture("convert/model.safetensors"), &out, Some("q8_0"), rules).expect("it converts");
    let file = open(&out);
    let element = |name: &str| file.tensor(name).expect("it is there").element;
    assert_eq!(element("img_in.weight"), ElementType::Q5_0);
    assert_eq!(element("double_blocks.0.img_mlp.0.weight"), ElementType::Q4_1);
    assert_eq!(element("double_blocks.0.img_mlp.0.bias"), ElementType::Q8_0);
    assert_eq!(element("double_blocks.0.img_attn.proj.weight"), ElementType::Q8_0);
    assert_eq!(element("double_blocks.0.odd.weight"), ElementType::F16);
    assert_eq!(file.metadata()["impasto.test"], "yes");
    assert_eq!(report.unmatched_rules, [r"nothing\.here=q4_0"]);
}

#[test]
fn parts_are_merged_under_their_prefixes() {
    let folder = TempDir::new().expect("a folder");
    let out = folder.path().join("x.safetensors");
    let part = |prefix: &str| ModelPart {
        prefix: prefix.into(),
        renamed: BTreeMap::new(),
        checkpoint: open(&fixture("convert/model.safetensors")),
    };
    let merged =
        Conversion::plan(vec![part("a."), part("b.")], &options(&out, Some("f16"), "^a=bf16")).expect("planned");
    merged.write(&out, false, 2, &mut |_, _| true).expect("written");
    let file = open(&out);
    assert_eq!((file.tensors().count(), file.metadata()["impasto.test"].as_str()), (22, "yes"));
    assert_eq!(file.tensor("a.img_in.weight").map(|t| t.element), Some(ElementType::BF16));
    assert_eq!(file.tensor("b.img_in.weight").map(|t| t.element), Some(ElementType::F16));
    let twice = Conversion::plan(vec![part(""), part("")], &options(&out, None, ""));
    assert!(matches!(twice, Err(ConvertError::Twice(_))));
}

#[test]
fn nothing_is_overwritten_or_left_half_done() {
    let folder = TempDir::new().expect("a folder");
    let (model, out) = (folder.path().join("m.safetensors"), folder.path().join("out.gguf"));
    fs::copy(fixture("convert/model.safetensors"), &model).expect("copied");
    fs::write(&out, "precious").expect("written");
    let write = |to: &Path, force, stop: usize| {
        let storage = if to == model { "f16" } else { "q8_0" };
        let conversion = plan(&model, to, Some(storage), "").expect("planned");
        let mut calls = 0;
        conversion.write(to, force, 4, &mut |_, _| {
            calls += 1;
            calls <= stop
        })
    };
    assert!(matches!(write(&out, false, 99), Err(ConvertError::Exists(_))));
    assert!(matches!(write(&model, true, 99), Err(ConvertError::SameFile(_))));
    for stop in [0, 3, 11] {
        assert!(matches!(write(&out, true, stop), Err(ConvertError::Interrupted)), "stopped after {stop}");
    }
    assert_eq!(fs::read(&out).expect("it is there"), b"precious");
    let missing = folder.path().join("no folder").join("x.gguf");
    assert!(matches!(write(&missing, false, 99), Err(ConvertError::Write { .. })));
    // A model that is changed while it is read, and after.
    let changed = plan(&model, &out, Some("q8_0"), "").expect("planned");
    std::thread::sleep(std::time::Duration::from_millis(20));
    fs::write(&model, fs::read(&model).expect("read")).expect("written again");
    assert!(matches!(changed.write(&out, true, 1, &mut |_, _| true), Err(ConvertError::Read(_))));
    let names: Vec<_> =
        fs::read_dir(folder.path()).expect("a folder").map(|e| e.expect("an entry").file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    write(&out, true, 99).expect("replaced");
    assert!(open(&out).tensors().count() == 11);
}

#[test]
fn what_gguf_cannot_hold_is_named() {
    let folder = TempDir::new().expect("a folder");
    let (model, out) = (folder.path().join("m.safetensors"), folder.path().join("out.gguf"));
    let long = "x".repeat(128);
    for (name, shape, problem) in
        [(long.as_str(), vec![2, 1], "128 bytes"), ("five", vec![1, 2, 1, 1, 1], "5 dimensions")]
    {
        safetensors(&model, &[(name, "F32", shape, vec![0; 8])]);
        let error = plan(&model, &out, None, "").err().expect("refused").to_string();
        assert!(error.contains(name) && error.contains(problem), "{error}");
    }
    let refused =
        plan(&fixture("files/convrot.safetensors"), &out, Some("q8_0"), "").err().expect("refused").to_string();
    assert!(refused.contains("convrot"), "{refused}");
}
