//! Files as other programs write them (`tools/file_fixtures.py`). What a user would lose: the models that they own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use impasto_graph::{DType, Storage};
use impasto_weights::{
    Checkpoint, ElementType, FileParams, MetadataValue, ParamLocation, TensorView, WeightSource, WeightsError, decode,
    encode,
};

const F32: Storage = Storage::Dense(DType::F32);

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/files").join(name)
}

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(&path(name)).unwrap_or_else(|error| panic!("{error}"))
}

fn numbers(storage: Storage, bytes: &[u8], elements: usize) -> Vec<f32> {
    let mut out = vec![0.0; elements];
    decode(storage, bytes, &mut out);
    out
}

/// Shapes and numbers of a file's tensors, by name.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// What the references read, by file.
fn expected() -> BTreeMap<String, Tensors> {
    let file = open("expected.safetensors");
    let mut all: BTreeMap<String, Tensors> = BTreeMap::new();
    for tensor in file.tensors() {
        let (name, of) = tensor.name.split_once('/').expect("a file and a tensor");
        let values = numbers(F32, &file.read_all(tensor).expect("read"), tensor.elements() as usize);
        all.entry(name.into()).or_default().insert(of.into(), (tensor.shape.clone(), values));
    }
    all
}

/// One parameter alone.
fn param(checkpoint: &Arc<Checkpoint>, location: ParamLocation) -> Result<FileParams, String> {
    let params = BTreeMap::from([("p".to_string(), location)]);
    FileParams::find(Path::new("file"), checkpoint, params).map_err(|problems| problems.to_string())
}

#[test]
fn every_tensor_has_the_numbers_that_its_writer_sees() {
    let (mut files, mut tensors) = (0, 0);
    for (name, expected) in expected() {
        let file = Arc::new(open(&name));
        let ours: BTreeSet<&str> = file.tensors().map(|t| t.name.as_str()).collect();
        let theirs: BTreeSet<&str> = expected.keys().map(String::as_str).collect();
        let refused = if name.starts_with("convrot") { "first.weight" } else { "iq2_xxs" };
        let unread = BTreeSet::from([refused, "i32"]);
        assert!(ours.difference(&theirs).all(|name| unread.contains(name)), "{name}: {ours:?}, not {theirs:?}");
        for (tensor, (shape, values)) in &expected {
            let info = file.tensor(tensor).unwrap_or_else(|| panic!("{name}: {tensor} is missing"));
            assert_eq!(&info.shape, shape, "{name}: {tensor}");
            let given = match file.describe(tensor) {
                Ok(given) => given,
                Err(refused) => {
                    assert!(info.element.storage().is_none(), "{name}: {refused}");
                    assert!(refused.to_string().contains(&info.element.to_string()), "{refused}");
                    continue;
                }
            };
            let (_, bytes) = WeightSource::read_all(&*file, tensor).expect("it is described");
            let mut read = numbers(given.storage, &bytes, values.len());
            if let Some(scales) = file.row_scales(tensor).expect("read") {
                assert_eq!(scales.len(), shape[0]);
                let row = values.len() / scales.len();
                read.iter_mut().enumerate().for_each(|(i, x)| *x *= scales[i / row]);
            }
            let exact = info.element != ElementType::I8;
            for (a, b) in read.iter().zip(values) {
                let close = (a - b).abs() <= b.abs() / 2048.0 + 1e-7;
                assert!(a.to_bits() == b.to_bits() || !exact && close, "{name}: {tensor}: {a} is not {b}");
            }
            // Converted to f32 while it is read, it is exact, whatever is asked for.
            let dense =
                ParamLocation { read_as: Some(F32), ..ParamLocation::new(tensor, TensorView::Whole, shape.clone()) };
            let params = param(&file, dense).expect("it can be read");
            let (info, bytes) = params.read_all("p").expect("read");
            assert_eq!(
                (info.storage, info.bytes, params.row_scales("p").expect("read")),
                (F32, 4 * values.len() as u64, None)
            );
            let same = numbers(F32, &bytes, values.len()).iter().zip(values).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{name}: {tensor}");
            tensors += 1;
        }
        files += 1;
    }
    assert!(files >= 16 && tensors >= 80, "{files} files, {tensors} tensors: the fixtures are not all there");
}

#[test]
fn what_trainers_keep_for_themselves_is_left_out() {
    let file = open("zip.ckpt");
    assert!(file.tensors().all(|t| !t.name.contains("exp_avg") && !t.name.contains("optimizer")));
    assert_eq!(file.tensors().count(), 15);
    assert_eq!(open("lightning.ckpt").tensors().count(), 7);
    assert_eq!(open("params.pth").tensors().map(|t| &*t.name).collect::<Vec<_>>(), ["conv.weight"]);
}

#[test]
fn a_pickle_that_runs_a_program_is_refused_and_named() {
    for name in ["system.ckpt", "system_legacy.ckpt", "system4.ckpt"] {
        match Checkpoint::open(&path(name)) {
            Err(WeightsError::Global { global, offset, path }) => {
                assert!(global == "posix.system" || global == "os.system", "{global}");
                assert!(offset > 0 && path.ends_with(name));
            }
            other => panic!("{name}: {:?}", other.err()),
        }
    }
    assert!(!Path::new("/tmp/harmed").exists());
    let text = Checkpoint::open(&path("plain.pkl")).err().expect("it is no checkpoint").to_string();
    assert!(text.contains("no checkpoint of PyTorch"), "{text}");
}

#[test]
fn metadata_is_read_when_it_is_asked_for() {
    let file = open("all.gguf");
    let value = |key: &str| file.value(key).expect("read").unwrap_or_else(|| panic!("{key} is missing"));
    assert_eq!(value("general.architecture").text(), Some("sdxl"));
    assert_eq!(file.metadata()["general.architecture"], "sdxl");
    let integers = [("u8", 200), ("i8", -5), ("u16", 60000), ("i16", -300), ("u32", 4_000_000_000), ("i32", -70000)];
    for (key, n) in integers.into_iter().chain([("u64", 1 << 63), ("i64", -(1i128 << 62))]) {
        assert_eq!(value(&format!("t.{key}")), MetadataValue::Integer(n));
    }
    assert_eq!((value("t.f32"), value("t.f64")), (MetadataValue::Float(0.5), MetadataValue::Float(0.1)));
    assert_eq!((value("t.yes"), value("t.no")), (MetadataValue::Bool(true), MetadataValue::Bool(false)));
    assert_eq!(value("t.text").text(), Some("grüße"));
    assert_eq!(value("t.numbers"), MetadataValue::Numbers(vec![1.0, -2.0, 3.0]));
    assert_eq!(value("t.flags"), MetadataValue::Array(vec![MetadataValue::Bool(true), MetadataValue::Bool(false)]));
    let words = ["<s>", "hello", "wörld"].map(String::from).to_vec();
    assert_eq!(value("tokenizer.ggml.tokens"), MetadataValue::Texts(words));
    assert_eq!(value("tokenizer.ggml.scores"), MetadataValue::Numbers(vec![0.0, -1.5, -2.5]));
    assert!(file.value("nothing").expect("read").is_none());
    assert!(
        file.value_keys().any(|key| key == "tokenizer.ggml.tokens")
            && !file.metadata().contains_key("tokenizer.ggml.tokens")
    );
}

#[test]
fn types_that_are_not_computed_are_named() {
    let file = Arc::new(open("all.gguf"));
    let tensor = file.tensor("iq2_xxs").expect("it is listed");
    assert_eq!((tensor.element, tensor.bytes(), &tensor.shape[..]), (ElementType::IQ2_XXS, 198, &[3, 256][..]));
    let refused = param(&file, ParamLocation::new("iq2_xxs", TensorView::Whole, [3, 256])).err().expect("refused");
    assert!(refused.contains("'iq2_xxs' is stored as iq2_xxs; f32, f16, bf16, q4_0"), "{refused}");
    // Rows of eight are no groups of 256.
    let file = Arc::new(open("convrot.safetensors"));
    let refused = param(&file, ParamLocation::new("first.weight", TensorView::Whole, [6, 8])).err().expect("refused");
    assert!(refused.contains("'first.weight' is stored as int8_tensorwise with convrot"), "{refused}");
}

/// Integers for weights whose inputs were rotated: the product with the matrix that the format defines, written out.
#[test]
fn rotations_are_undone() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ u64::from(std::process::id());
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) as usize
    };
    for (group, groups, rows) in [(4, 3, 5), (16, 2, 7), (256, 2, 3)] {
        let columns = group * groups;
        let stored: Vec<i8> = (0..rows * columns).map(|_| (next() % 255) as i8).collect();
        let scales: Vec<f32> = (0..rows).map(|_| (1 + next() % 100) as f32 / 1024.0).collect();
        let format = format!(r#"{{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": {group}}}"#);
        let mut data: Vec<u8> = stored.iter().map(|q| *q as u8).collect();
        data.extend(scales.iter().flat_map(|scale| scale.to_le_bytes()));
        data.extend(format.bytes());
        let (a, b, c) = (rows * columns, rows * columns + 4 * rows, data.len());
        let header = serde_json::json!({
            "x.weight": { "dtype": "I8", "shape": [rows, columns], "data_offsets": [0, a] },
            "x.weight_scale": { "dtype": "F32", "shape": [rows, 1], "data_offsets": [a, b] },
            "x.comfy_quant": { "dtype": "U8", "shape": [c - b], "data_offsets": [b, c] },
        });
        let header = header.to_string();
        let all = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rotated.safetensors");
        std::fs::write(&path, all).expect("written");
        let file = Arc::new(Checkpoint::open(&path).unwrap_or_else(|e| panic!("{e}")));
        // Each pair of digits to the base of four has a minus where they add up to three.
        let entry = |mut i: usize, mut j: usize| {
            let (mut entry, mut size) = (1.0, group);
            while size > 1 {
                entry *= if i % 4 + j % 4 == 3 { -0.5 } else { 0.5 };
                (i, j, size) = (i / 4, j / 4, size / 4);
            }
            entry
        };
        let location = ParamLocation::new("x.weight", TensorView::Whole, [rows, columns]);
        let params = param(&file, ParamLocation { read_as: Some(F32), ..location }).unwrap_or_else(|e| panic!("{e}"));
        let (_, bytes) = params.read_all("p").expect("read");
        let read = numbers(F32, &bytes, rows * columns);
        for (at, found) in read.iter().enumerate() {
            let (row, column) = (at / columns, at % columns);
            let begin = at - column % group;
            let sum: f64 = (0..group).map(|k| f64::from(stored[begin + k]) * entry(k, column % group)).sum();
            let want = f64::from(scales[row]) * sum;
            assert!((f64::from(*found) - want).abs() < 1e-4, "{group}: {at}: {found} {want}");
        }
        let from = next() % (bytes.len() - 1);
        let mut piece = vec![0; 1 + next() % (bytes.len() - from)];
        params.read_into("p", from as u64, &mut piece).expect("read");
        assert_eq!(piece, bytes[from..from + piece.len()], "{group}: a piece");
        assert_eq!(file.describe("x.weight").expect("it is there").storage, Storage::Dense(DType::F16));
    }
}

#[test]
fn scales_belong_to_the_reader() {
    for (name, scales, storage) in [
        ("scaled_old.safetensors", 4, Storage::F8_E4M3),
        ("scaled_new.safetensors", 2, Storage::F8_E4M3),
        ("scaled_rows.safetensors", 2, Storage::F8_E4M3),
        ("int8.safetensors", 2, Storage::Dense(DType::F16)),
    ] {
        let file = open(name);
        assert_eq!(file.scale_tensors().count(), scales, "{name}");
        assert!(file.tensors().all(|t| t.name.ends_with(".weight") || t.name.ends_with(".bias")), "{name}");
        assert_eq!(file.describe("first.weight").expect("it is there").storage, storage);
    }
}

#[test]
fn parts_and_shards_are_one_model_from_any_of_them() {
    for part in 1..=3 {
        let file = open(&format!("parts-0000{part}-of-00003.gguf"));
        assert_eq!((file.tensors().count(), file.files().count()), (5, 3));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let copy = |from: &str, to: &str| std::fs::copy(path(from), folder.path().join(to)).expect("copied");
    for part in 1..=3 {
        let name = format!("parts-0000{part}-of-00003.gguf");
        copy(&name, &name);
    }
    assert_eq!(Checkpoint::open(folder.path()).expect("a folder of parts").tensors().count(), 5);
    // A part of another name, a part that is missing, a part that is another.
    copy("parts-00002-of-00003.gguf", "renamed.gguf");
    let text = |name: &str| Checkpoint::open(&folder.path().join(name)).err().expect("refused").to_string();
    assert!(text("renamed.gguf").contains("one of 3 parts") && text("renamed.gguf").contains("-00001-of-00003.gguf"));
    copy("parts-00002-of-00003.gguf", "parts-00003-of-00003.gguf");
    assert!(text("parts-00001-of-00003.gguf").contains("x2"), "a tensor stands twice");
    std::fs::remove_file(folder.path().join("parts-00003-of-00003.gguf")).expect("removed");
    assert!(text("parts-00001-of-00003.gguf").contains("parts-00003-of-00003.gguf: cannot be opened"));
    // Pickles of a folder, by their index.
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin", "pytorch_model.bin.index.json"]
    {
        std::fs::copy(path(name), folder.path().join(name)).expect("copied");
    }
    assert_eq!(Checkpoint::open(folder.path()).expect("shards of pickles").tensors().count(), 3);
}

/// A worker opens the same files by their stamps.
#[test]
fn files_open_again_as_they_were() {
    for name in ["zip.ckpt", "legacy.ckpt", "all.gguf", "parts-00001-of-00003.gguf", "scaled_rows.safetensors"] {
        let file = open(name);
        let again = Checkpoint::reopen(&file.stamps().expect("files")).expect("they are unchanged");
        assert!(file.tensors().eq(again.tensors()), "{name}");
        for tensor in file.tensors() {
            assert_eq!(file.read_all(tensor), again.read_all(tensor), "{name}: {}", tensor.name);
        }
    }
}

/// Every storage from every other, in pieces that begin and end anywhere.
#[test]
fn parameters_are_converted_while_they_are_read() {
    let file = Arc::new(open("all.gguf"));
    for (tensor, shape) in
        [("f32", [3, 64]), ("q4_0", [3, 64]), ("q8_0", [3, 64]), ("q4_k", [3, 256]), ("bf16", [3, 64])]
    {
        let whole = |read_as, take, shape: Vec<usize>| {
            param(&file, ParamLocation { read_as, ..ParamLocation::new(tensor, take, shape) })
        };
        let exact =
            whole(Some(F32), TensorView::Whole, shape.to_vec()).expect("it fits").read_all("p").expect("read").1;
        let exact = numbers(F32, &exact, shape[0] * shape[1]);
        for storage in Storage::ALL {
            let params = whole(Some(storage), TensorView::Whole, shape.to_vec());
            if !storage.is_float() || !(shape[1] as u64).is_multiple_of(storage.block_elements()) {
                assert!(params.is_err(), "{tensor} as {storage}");
                continue;
            }
            let params = params.expect("it fits");
            let (info, bytes) = params.read_all("p").expect("read");
            let mut ours = vec![0; bytes.len()];
            encode(storage, &exact, &mut ours);
            // What the file has already is not quantised again.
            let native = file.describe(tensor).expect("it is there").storage == storage;
            assert!(native || ours == bytes, "{tensor} as {storage}");
            assert_eq!(info.bytes, bytes.len() as u64);
            for (begin, length) in [(0, 1), (1, 7), (17, 19), (18, 18), (33, 40), (bytes.len() - 5, 5)] {
                let mut part = vec![0; length];
                params.read_into("p", begin as u64, &mut part).expect("it is inside");
                assert_eq!(part, bytes[begin..begin + length], "{tensor} as {storage}, {length} bytes at {begin}");
            }
            assert!(params.read_into("p", bytes.len() as u64, &mut [0]).is_err());
        }
        // Rows of whole blocks stay blocks; rows and columns exchanged are dense.
        let rows = whole(None, TensorView::Rows(1, 3), vec![1, shape[1]]).expect("it fits");
        let info = rows.describe("p").expect("described");
        assert_eq!(info.storage, file.describe(tensor).expect("described").storage);
        assert_eq!(info.bytes * 3, file.tensor(tensor).expect("it is there").bytes());
        let row = numbers(info.storage, &rows.read_all("p").expect("read").1, shape[1]);
        assert_eq!(row, exact[shape[1]..2 * shape[1]]);
        let turned = whole(None, TensorView::Transposed, vec![shape[1], shape[0]]).expect("it fits");
        let (info, bytes) = turned.read_all("p").expect("read");
        assert!(matches!(info.storage, Storage::Dense(_)));
        let turned = numbers(info.storage, &bytes, exact.len());
        (0..exact.len()).for_each(|i| assert_eq!(turned[i], exact[i % 3 * shape[1] + i / 3]));
    }
    let kernel = param(&file, ParamLocation::new("reshaped", TensorView::Transposed, [16, 12, 4])).err();
    assert!(kernel.expect("a kernel is no matrix").contains("only a matrix can be transposed"));
    // Blocks that run across the rows of a matrix are dense, those of a kernel stay.
    let flat = param(&file, ParamLocation::new("reshaped", TensorView::Whole, [4, 12, 16])).expect("it fits");
    assert_eq!(flat.describe("p").expect("described").storage, Storage::Q5_K);
}

#[test]
fn row_scales_follow_their_rows() {
    let file = Arc::new(open("scaled_rows.safetensors"));
    let all = file.row_scales("first.weight").expect("read").expect("it has them");
    let part = param(&file, ParamLocation::new("first.weight", TensorView::Rows(1, 2), [3, 8])).expect("it fits");
    assert_eq!(part.row_scales("p").expect("read").expect("it has them"), all[3..]);
    let turned = param(&file, ParamLocation::new("first.weight", TensorView::Transposed, [8, 6])).expect("it fits");
    assert_eq!((turned.describe("p").expect("described").storage, turned.row_scales("p").expect("read")), (F32, None));
    let one = open("scaled_new.safetensors").row_scales("first.weight").expect("read").expect("it has them");
    assert!(one.len() == 6 && one.iter().all(|scale| *scale == one[0]));
}
