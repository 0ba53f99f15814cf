//! Parameters that LoRAs change while they are read. What a user would lose: weights that are those of the model and the LoRA, however a backend
//! reads them, and a word about a LoRA that is damaged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use impasto_graph::{DType, Storage};
use impasto_testkit::damage::Damage;
use impasto_weights::{
    AppliedLora, BranchOrigin, Checkpoint, FileOrigin, FileParams, LoraFile, LoraTarget, Origin, ParamLocation,
    TensorView, WeightSource, decode, encode,
};
use tempfile::TempDir;

/// A tensor: its element type, shape and numbers.
type Tensor = (&'static str, Vec<usize>, Vec<f32>);

fn storage(dtype: &str) -> Storage {
    match dtype {
        "F8_E4M3" => Storage::F8_E4M3,
        other => other.to_lowercase().parse().expect("a storage"),
    }
}

fn write(path: &Path, tensors: &[(String, Tensor)]) -> PathBuf {
    let (mut fields, mut data) = (vec![], vec![]);
    for (name, (dtype, shape, numbers)) in tensors {
        let storage = storage(dtype);
        let mut bytes = vec![0; storage.bytes_of(numbers.len() as u64).expect("whole blocks") as usize];
        encode(storage, numbers, &mut bytes);
        let begin = data.len();
        data.extend(bytes);
        let end = data.len();
        fields.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#));
    }
    let header = format!("{{{}}}", fields.join(","));
    let all = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(path, all).expect("written");
    path.into()
}

fn random(damage: &mut Damage, elements: usize) -> Vec<f32> {
    (0..elements).map(|_| damage.below(2001) as f32 / 1000.0 - 1.0).collect()
}

fn tensor(damage: &mut Damage, dtype: &'static str, shape: &[usize]) -> Tensor {
    let numbers = random(damage, shape.iter().product());
    // Numbers that the type has, so that a reference begins with them too.
    let storage = storage(dtype);
    let mut bytes = vec![0; storage.bytes_of(numbers.len() as u64).expect("whole blocks") as usize];
    encode(storage, &numbers, &mut bytes);
    let mut rounded = numbers;
    decode(storage, &bytes, &mut rounded);
    (dtype, shape.to_vec(), rounded)
}

fn target(module: &str) -> LoraTarget {
    LoraTarget { module: module.into(), bias: false, part: (0, 1) }
}

fn applied(path: &Path, strength: f32, targets: &[(&str, LoraTarget)]) -> AppliedLora {
    let file = Arc::new(LoraFile::open(path).unwrap_or_else(|e| panic!("{e}")));
    let mut by_param = BTreeMap::<String, Vec<LoraTarget>>::new();
    targets.iter().for_each(|(param, target)| by_param.entry(param.to_string()).or_default().push(target.clone()));
    AppliedLora { file, strength, targets: by_param }
}

fn params(path: &Path, read_as: Option<Storage>) -> FileParams {
    let checkpoint = Arc::new(Checkpoint::open(path).expect("a model"));
    let location = |tensor: &impasto_weights::TensorInfo| {
        let location = ParamLocation::new(tensor.name.clone(), TensorView::Whole, tensor.shape.clone());
        (tensor.name.clone(), ParamLocation { read_as, ..location })
    };
    let locations = checkpoint.tensors().map(location).collect();
    FileParams::find(path, &checkpoint, locations).unwrap_or_else(|e| panic!("{e}"))
}

/// A weight, a low-rank difference with its scale, in double.
fn reference(base: &[f32], up: &[f32], down: &[f32], rank: usize, scale: f64) -> Vec<f64> {
    let columns = down.len() / rank;
    let at = |i: usize| {
        let (row, column) = (i / columns, i % columns);
        let sum: f64 = (0..rank).map(|r| f64::from(up[row * rank + r]) * f64::from(down[r * columns + column])).sum();
        f64::from(base[i]) + scale * sum
    };
    (0..base.len()).map(at).collect()
}

fn numbers(storage: Storage, bytes: &[u8], elements: usize) -> Vec<f32> {
    let mut out = vec![0.0; elements];
    decode(storage, bytes, &mut out);
    out
}

#[test]
fn a_changed_parameter_is_the_sum_rounded_once_in_whatever_pieces_it_is_read() {
    Damage::run(40, |damage| {
        let folder = TempDir::new().expect("a folder");
        let dtype = damage.of(&["F32", "F16", "BF16", "F8_E4M3"]);
        let dtype = ["F32", "F16", "BF16", "F8_E4M3"].into_iter().find(|d| *d == dtype).expect("one of them");
        let shape: Vec<usize> = match damage.below(3) {
            0 => vec![1 + damage.below(40)],
            1 => vec![1 + damage.below(40), 1 + damage.below(40)],
            _ => vec![1 + damage.below(12), 1 + damage.below(12), 3, 3],
        };
        let elements: usize = shape.iter().product();
        let (rows, columns, rank) = (shape[0], elements / shape[0], 1 + damage.below(9));
        let base = tensor(damage, dtype, &shape);
        let model = write(&folder.path().join("model"), &[("w".into(), base.clone())]);
        let (down, up) = (tensor(damage, "F32", &[rank, columns]), tensor(damage, "F16", &[rows, rank]));
        let tensors = [
            ("m.lora_down.weight".into(), down.clone()),
            ("m.lora_up.weight".into(), up.clone()),
            ("m.alpha".into(), ("F32", vec![], vec![3.0])),
        ];
        let lora = write(&folder.path().join("lora"), &tensors);
        let params = params(&model, None);
        let changed = params.with_loras(vec![applied(&lora, 0.7, &[("w", target("m"))])]).expect("it fits");
        let (info, whole) = changed.read_all("w").expect("it is read");
        let half = if dtype == "F8_E4M3" { "f16".to_string() } else { dtype.to_lowercase() };
        assert_eq!((info.storage.name(), &info.shape), (&*half, &shape), "{dtype}");
        assert_eq!(info.bytes, whole.len() as u64);
        let want = reference(&base.2, &up.2, &down.2, rank, 0.7f32 as f64 * f64::from(3.0 / rank as f32));
        let unit = match info.storage {
            Storage::Dense(DType::F32) => 1e-6,
            Storage::Dense(DType::F16) => 0.5 / 1024.0,
            _ => 0.5 / 128.0,
        };
        for (found, want) in numbers(info.storage, &whole, elements).into_iter().zip(&want) {
            assert!((f64::from(found) - want).abs() <= unit * want.abs() + 3e-6, "{dtype} {shape:?}: {found} {want}");
        }
        for _ in 0..8 {
            let from = damage.below(whole.len() + 1);
            let to = from + damage.below(whole.len() - from + 1);
            let mut piece = vec![0; to - from];
            changed.read_into("w", from as u64, &mut piece).expect("it is read");
            assert_eq!(piece, &whole[from..to], "{dtype} {shape:?} {from}..{to}");
        }
        assert!(changed.read_into("w", 1, &mut vec![0; whole.len()]).is_err());
        assert!(changed.in_memory("w").is_none() && changed.row_scales("w").expect("none").is_none());
        assert_ne!(changed.fingerprint().expect("read"), params.fingerprint().expect("read"));
    });
}

#[test]
fn what_is_quantised_while_it_is_read_is_changed_before() {
    let folder = TempDir::new().expect("a folder");
    let mut damage = None;
    Damage::run(1, |d| damage = Some([random(d, 64 * 96), random(d, 64 * 5), random(d, 5 * 96)]));
    let [base, up, down] = damage.expect("numbers");
    let model = write(&folder.path().join("model"), &[("w".into(), ("F32", vec![64, 96], base.clone()))]);
    let tensors = [
        ("m.lora_A.weight".into(), ("F32", vec![5, 96], down.clone())),
        ("m.lora_B.weight".into(), ("F32", vec![64, 5], up.clone())),
    ];
    let lora = write(&folder.path().join("lora"), &tensors);
    let changed = params(&model, Some(Storage::Q8_0)).with_loras(vec![applied(&lora, -1.0, &[("w", target("m"))])]);
    let (info, bytes) = changed.expect("it fits").read_all("w").expect("it is read");
    assert_eq!(info.storage, Storage::Q8_0);
    let want = reference(&base, &up, &down, 5, -1.0);
    let found = numbers(info.storage, &bytes, base.len());
    for (found, want) in found.chunks(32).zip(want.chunks(32)) {
        let most = want.iter().fold(0f64, |most, x| most.max(x.abs()));
        let near = |(found, want): (&f32, &f64)| (f64::from(*found) - want).abs() <= most / 127.0;
        assert!(found.iter().zip(want).all(near), "{found:?} {want:?}");
    }
}

#[test]
fn another_process_changes_them_in_the_same_way() {
    let folder = TempDir::new().expect("a folder");
    let base = ("F16", vec![6, 4], (0..24).map(|i| i as f32).collect());
    let model = write(&folder.path().join("model"), &[("w".into(), base)]);
    // A layer of three parts, of which the parameter is the last; its lengths are those of rows.
    let tensors = [
        ("m.lora_down.weight".into(), ("F32", vec![2, 4], vec![0.5; 8])),
        ("m.lora_up.weight".into(), ("F32", vec![18, 2], (0..36).map(|i| i as f32).collect())),
        ("m.dora_scale".into(), ("F32", vec![18, 1], (0..18).map(|i| 1.0 + i as f32).collect())),
    ];
    let lora = write(&folder.path().join("lora"), &tensors);
    let part = LoraTarget { part: (2, 3), ..target("m") };
    let changed = params(&model, None).with_loras(vec![applied(&lora, 0.3, &[("w", part)])]).expect("it fits");
    let Some(Origin::Files(origin)) = changed.origin() else { panic!("they are in files") };
    let text = serde_json::to_string(&origin).expect("text");
    let read: FileOrigin = serde_json::from_str(&text).expect("the same");
    assert_eq!(read, origin);
    let reopen = |origin: &FileOrigin| origin.open(&Arc::new(Checkpoint::reopen(&origin.files).expect("unchanged")));
    let there = reopen(&read).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(there.read_all("w").expect("read"), changed.read_all("w").expect("read"));
    assert_ne!(there.read_all("w").expect("read"), params(&model, None).read_all("w").expect("read"));
    // The row of row 13 of the layer has 14 times the length that rows of one have, as far as the strength goes.
    let (info, bytes) = changed.read_all("w").expect("read");
    let row = &numbers(info.storage, &bytes, 24)[4..8];
    let plain = [4.0f64, 5.0, 6.0, 7.0];
    let sums = plain.map(|x| x + 0.5 * (26.0 + 27.0));
    let length = sums.iter().map(|x| x * x).sum::<f64>().sqrt();
    for ((found, plain), sum) in row.iter().zip(plain).zip(sums) {
        let want = plain + 0.3f32 as f64 * (sum * 14.0 / length - plain);
        assert!((f64::from(*found) - want).abs() < 4e-3, "{found} {want}");
    }
    std::fs::write(&lora, "something else, and longer than it was, so that nobody takes it for the same")
        .expect("written");
    assert!(reopen(&read).is_err() && !changed.is_unchanged() && changed.check().is_err());
}

#[test]
fn branches_are_the_differences_that_merging_adds() {
    Damage::run(20, |damage| {
        let folder = TempDir::new().expect("a folder");
        let rest = if damage.below(2) == 0 { vec![8 + damage.below(40)] } else { vec![4 + damage.below(9), 3, 3] };
        let shape = [vec![16 + damage.below(40)], rest].concat();
        let (rows, columns) = (shape[0], shape[1..].iter().product::<usize>());
        let base = ("F32", shape.clone(), vec![0.0; rows * columns]);
        let model = write(&folder.path().join("model"), &[("w".into(), base.clone()), ("norm".into(), base)]);
        // Two LoRAs on one layer, the second of which is made for three layers at once.
        let mut lora = |name: &str, rank: usize, parts: usize| {
            let down = [vec![rank], shape[1..].to_vec()].concat();
            let tensors = [
                ("m.lora_down.weight".into(), tensor(damage, "F32", &down)),
                ("m.lora_up.weight".into(), tensor(damage, "F16", &[parts * rows, rank])),
                ("m.alpha".into(), ("F32", vec![], vec![1.5])),
            ];
            write(&folder.path().join(name), &tensors)
        };
        let (first, second) = (lora("first", 2, 1), lora("second", 1, 3));
        let third = LoraTarget { part: (2, 3), ..target("m") };
        let loras = vec![
            applied(&first, 0.7, &[("w", target("m")), ("norm", target("m"))]),
            applied(&second, -1.2, &[("w", third)]),
        ];
        let params = params(&model, None);
        let (branches, merged) = params.branches(loras.clone(), &["w".to_string()].into());
        let branches = branches.expect("products of two small matrices");
        assert_eq!((branches.rank("w"), branches.rank("norm")), (Some(3), None));
        assert!(merged.len() == 1 && merged[0].targets.keys().eq(["norm"]), "what is no product's weight is merged");
        let floats = |source: &dyn WeightSource, name: &str| {
            let (info, bytes) = source.read_all(name).unwrap_or_else(|e| panic!("{e}"));
            (info.shape, numbers(info.storage, &bytes, bytes.len() / 4))
        };
        let ((down_shape, down), (up_shape, up)) = (floats(&branches, "w.lora_down"), floats(&branches, "w.lora_up"));
        assert_eq!(down_shape, [vec![3], shape[1..].to_vec()].concat());
        assert_eq!(up_shape, [vec![rows, 3], vec![1; shape.len() - 2]].concat());
        let want = floats(&params.with_loras(loras).expect("they fit"), "w").1;
        for (want, found) in want.iter().zip(reference(&vec![0.0; want.len()], &up, &down, 3, 1.0)) {
            assert!((f64::from(*want) - found).abs() < 1e-5, "{shape:?}: {want} {found}");
        }
        for (name, whole) in [("w.lora_down", &down), ("w.lora_up", &up)] {
            let from = damage.below(whole.len());
            let count = damage.below(whole.len() - from + 1);
            let mut piece = vec![0; 4 * count];
            branches.read_into(name, 4 * from as u64, &mut piece).expect("it is read");
            assert_eq!(numbers(Storage::Dense(DType::F32), &piece, count), whole[from..from + count], "{name}");
            assert!(branches.read_into(name, 4, &mut vec![0; 4 * whole.len()]).is_err());
        }
        // Another process has the same.
        let Some(Origin::Branches(origin)) = branches.origin() else { panic!("they are in files") };
        let text = serde_json::to_string(&origin).expect("text");
        let there =
            serde_json::from_str::<BranchOrigin>(&text).expect("the same").open().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(floats(&there, "w.lora_up"), (up_shape, up));
        std::fs::write(&first, "something else, and longer than it was").expect("written");
        assert!(origin.open().is_err() && !branches.is_unchanged() && branches.check().is_err());
    });
}

#[test]
fn two_hundred_at_once() {
    let folder = TempDir::new().expect("a folder");
    let (rows, columns, rank) = (32, 24, 3);
    let mut loras = vec![];
    let mut want = vec![0.0f64; rows * columns];
    let model = write(&folder.path().join("model"), &[("w".into(), ("F32", vec![rows, columns], vec![0.0; 768]))]);
    Damage::run(200, |damage| {
        if loras.len() == 200 {
            return;
        }
        let (down, up) = (random(damage, rank * columns), random(damage, rows * rank));
        let tensors = [
            ("m.lora_down.weight".into(), ("F32", vec![rank, columns], down.clone())),
            ("m.lora_up.weight".into(), ("F32", vec![rows, rank], up.clone())),
        ];
        let file = write(&folder.path().join(format!("{}", loras.len())), &tensors);
        let strength = damage.below(100) as f32 / 100.0;
        let delta = reference(&vec![0.0; rows * columns], &up, &down, rank, f64::from(strength));
        want.iter_mut().zip(delta).for_each(|(sum, x)| *sum += x);
        loras.push(applied(&file, strength, &[("w", target("m"))]));
    });
    let changed = params(&model, None).with_loras(loras).expect("they fit");
    let (info, bytes) = changed.read_all("w").expect("read");
    for (found, want) in numbers(info.storage, &bytes, rows * columns).into_iter().zip(want) {
        assert!((f64::from(found) - want).abs() < 1e-3, "{found} {want}");
    }
}

#[test]
fn what_is_wrong_with_a_lora_is_said() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let pair = |rank: usize, down: f32| -> Vec<(String, Tensor)> {
        vec![
            ("m.lora_down.weight".into(), ("F32", vec![rank, 4], vec![down; rank * 4])),
            ("m.lora_up.weight".into(), ("F32", vec![4, rank], vec![1.0; rank * 4])),
        ]
    };
    let one = |name: &str, shape: Vec<usize>, value: f32| -> (String, Tensor) {
        let elements = shape.iter().product();
        (name.into(), ("F32", shape, vec![value; elements]))
    };
    for (name, tensors, says) in [
        ("rank", pair(0, 1.0), "rank 0"),
        ("half", pair(2, 1.0)[..1].to_vec(), "no tensor that completes it"),
        ("alpha", [pair(2, 1.0), vec![one("m.alpha", vec![], f32::NAN)]].concat(), "alpha NaN"),
        ("alphas", [pair(2, 1.0), vec![one("m.alpha", vec![2], 1.0)]].concat(), "one number is needed"),
        ("model", vec![one("conv_in.weight", vec![2, 2], 1.0)], "is no LoRA"),
        ("lengths", vec![one("m.dora_scale", vec![2], 1.0)], "incomplete"),
        ("product", [pair(2, 1.0)[..1].to_vec(), pair(3, 1.0)[1..].to_vec()].concat(), "cannot be multiplied"),
    ] {
        let error = LoraFile::open(&write(&at(name), &tensors)).err().expect(name).to_string();
        assert!(error.contains(says) && error.contains(&at(name).display().to_string()), "{name}: {error}");
    }
    let model = write(&at("w"), &[("w".into(), ("F32", vec![4, 4], vec![1.0; 16]))]);
    let params = params(&model, None);
    for bad in [f32::NAN, f32::INFINITY] {
        let lora = applied(&write(&at("nan"), &pair(2, bad)), 1.0, &[("w", target("m"))]);
        let error = params.with_loras(vec![lora]).expect("it fits").read_all("w").expect_err("NaN").to_string();
        assert!(error.contains("NaN or infinity") && error.contains("lora_down") && error.contains("nan"), "{error}");
    }
    let whole = std::fs::read(write(&at("whole"), &pair(2, 1.0))).expect("written");
    for end in 0..whole.len() {
        std::fs::write(at("cut"), &whole[..end]).expect("written");
        assert!(LoraFile::open(&at("cut")).is_err(), "{end} of {} bytes", whole.len());
    }
    let other = LoraTarget { part: (0, 3), ..target("m") };
    for (target, says) in [(target("n"), "no such module"), (other, "4 x 4 numbers, the model has 12 x 4")] {
        let lora = applied(&at("whole"), 1.0, &[("w", target)]);
        let error = params.with_loras(vec![lora]).err().expect(says).to_string();
        assert!(error.contains(says), "{error}");
    }
}

impasto_testkit::trial! {
    /// Files of strangers: any names, any shapes. Nothing panics, and what opens can be read or says why not.
    fn damaged_loras_never_panic(cases: u64 = 600, 8_000) {
        let folder = TempDir::new().expect("a folder");
        let model = write(&folder.path().join("model"), &[("w".into(), ("F32", vec![6, 4, 3, 3], vec![0.5; 216]))]);
        let params = params(&model, None);
        let ends = [
            "lora_down.weight",
            "lora_up.weight",
            "lora_mid.weight",
            "alpha",
            "dora_scale",
            "hada_w1_a",
            "hada_w1_b",
            "hada_w2_a",
            "hada_w2_b",
            "hada_t1",
            "hada_t2",
            "lokr_w1",
            "lokr_w1_a",
            "lokr_w1_b",
            "lokr_w2",
            "lokr_w2_a",
            "lokr_w2_b",
            "lokr_t2",
            "diff",
            "diff_b",
        ];
        let (mut opened, mut read) = (0, 0);
        Damage::run(cases, |damage| {
            let path = folder.path().join("lora");
            let mut tensors: Vec<(String, Tensor)> = vec![];
            // Mostly what fits, then something of it is changed.
            let sets: [&[(usize, &[usize])]; 6] = [
                &[(0, &[2, 4, 3, 3]), (1, &[6, 2, 1, 1]), (4, &[6, 1, 1, 1])],
                &[(0, &[2, 4, 1, 1]), (2, &[3, 2, 3, 3]), (1, &[6, 3, 1, 1]), (4, &[1, 4, 1, 1])],
                &[(5, &[6, 2]), (6, &[2, 36]), (7, &[6, 3]), (8, &[3, 36])],
                &[(9, &[2, 3, 3, 3]), (5, &[2, 6]), (6, &[3, 4]), (10, &[2, 2, 3, 3]), (7, &[2, 6]), (8, &[2, 4])],
                &[(11, &[2, 2]), (15, &[3, 2]), (16, &[2, 18])],
                &[(12, &[3, 2]), (13, &[2, 4]), (17, &[2, 1, 3, 3]), (15, &[2, 2]), (16, &[1, 1])],
            ];
            for (end, shape) in sets[damage.below(sets.len())] {
                let mut shape = shape.to_vec();
                if damage.below(12) == 0 {
                    let axis = damage.below(shape.len());
                    shape[axis] = damage.below(7);
                }
                let end = if damage.below(25) == 0 { damage.below(ends.len()) } else { *end };
                let numbers = random(damage, shape.iter().product());
                let name = format!("m.{}", ends[end]);
                if !tensors.iter().any(|(known, _)| *known == name) {
                    tensors.push((name, ("F32", shape, numbers)));
                }
            }
            write(&path, &tensors);
            let Ok(file) = LoraFile::open(&path) else { return };
            opened += 1;
            let targets = BTreeMap::from([("w".to_string(), vec![target("m")])]);
            let lora = AppliedLora { file: Arc::new(file), strength: 0.5, targets };
            if let Ok(changed) = params.with_loras(vec![lora]) {
                changed.read_all("w").expect("what fits can be read");
                read += 1;
            }
        });
        assert!(opened > cases / 4 && read > cases / 10, "{opened} opened, {read} read");
    }
}
