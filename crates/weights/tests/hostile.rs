//! Files of every format, damaged or made to do harm. What a user would lose: a program that refuses a file, instead of dying of it.
//!
//! Whatever the bytes are: an error that names the file, or tensors that can all be read; never a panic, and never more memory than the file has and 64 MiB.

use std::path::Path;

use crate::peak::peak_of;
use impasto_testkit::damage::Damage;
use impasto_weights::{Checkpoint, WeightSource, WeightsError};

/// What a reader may take besides the file.
const ROOM: usize = 64 << 20;

fn fixtures() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/files");
    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(folder)
        .expect("the fixtures are in the repository")
        .map(|entry| entry.expect("an entry").path())
        .map(|path| {
            (path.file_name().expect("a file").to_string_lossy().into_owned(), std::fs::read(path).expect("read"))
        })
        .filter(|(name, _)| !name.ends_with(".json") && name != "expected.safetensors" && !name.contains("-of-00003"))
        .collect();
    files.sort();
    assert!(files.len() > 15);
    files
}

/// Opens bytes as a file, and reads everything that it has. The result of opening.
fn read_everything(name: &str, bytes: &[u8]) -> Result<usize, WeightsError> {
    let length = bytes.len();
    let bytes = bytes.to_vec();
    let (result, peak) = peak_of(|| {
        let file = Checkpoint::from_bytes(name, bytes)?;
        let mut buffer = vec![];
        for tensor in file.tensors().chain(file.scale_tensors()) {
            assert!(tensor.bytes() <= 2 * length as u64, "{name}: {tensor:?}");
            buffer.resize(tensor.bytes() as usize, 0);
            file.read(tensor, 0, &mut buffer).expect("it lies inside the file");
        }
        for tensor in file.tensors() {
            if let Ok(info) = file.describe(&tensor.name) {
                // As numbers, a tensor is at most sixteen times as large: two bits become four bytes.
                assert!(info.bytes <= 16 * tensor.bytes() + 4, "{name}: {tensor:?} {info:?}");
                buffer.resize(info.bytes.min(1 << 20) as usize, 0);
                file.read_into(&tensor.name, 0, &mut buffer).expect("it is described");
                let _ = file.row_scales(&tensor.name).expect("scales can be read");
            }
        }
        for key in file.value_keys() {
            if let Err(error) = file.value(key) {
                assert!(error.to_string().contains(name), "{error}");
            }
        }
        Ok::<usize, WeightsError>(file.tensors().count())
    });
    if let Err(error) = &result {
        assert!(error.to_string().contains(name), "{error}");
    }
    // The file's bytes were taken before; buffers of its tensors come with them.
    assert!(peak <= length + ROOM, "{name}: {peak} bytes of memory for a file of {length}");
    result
}

#[test]
fn files_that_are_cut_off_are_refused() {
    for (name, bytes) in fixtures() {
        for end in 0..bytes.len() {
            // The last bytes of a GGUF file may be padding.
            let padding = name.ends_with(".gguf") && bytes[end..].iter().all(|&b| b == 0);
            let opened = read_everything(&name, &bytes[..end]);
            assert!(opened.is_err() || padding, "{name}: cut off at {end} of {}", bytes.len());
        }
    }
}

/// Numbers at which arithmetic goes wrong, at every place where a header may have one.
#[test]
fn fields_at_their_limits_are_harmless() {
    let (mut accepted, mut refused) = (0, 0);
    for (name, bytes) in fixtures() {
        let last = bytes.len().saturating_sub(8);
        // Every place of small files; of larger ones the beginning and the end, where headers are, and some between.
        for at in (0..last).filter(|at| *at < 1500 || last - at < 1000 || at % 7 == 0) {
            for (width, value) in [(4, 0), (4, 1), (4, u64::MAX), (8, u64::MAX), (8, u64::MAX - 1), (8, 1 << 62)] {
                let mut changed = bytes.clone();
                changed[at..at + width].copy_from_slice(&u64::to_le_bytes(value)[..width]);
                match read_everything(&name, &changed) {
                    Ok(_) => accepted += 1,
                    Err(_) => refused += 1,
                }
            }
        }
    }
    assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused: damage that tests nothing");
}

/// Opcodes, names and numbers that mean something in one of the formats.
const WORDS: [&[u8]; 40] = [
    b"\x00\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xfe\xff\xff\xff\xff\xff\xff\x7f",
    b"\x00\x00\x00\x00\x00\x00\x00\x80",
    b"\x01\x00\x00\x00",
    b"\x09\x00\x00\x00\x09\x00\x00\x00",
    b"\x08\x00\x00\x00",
    b"\x0c\x00\x00\x00",
    b"general.alignment",
    b"comfy.gguf.orig_shape.f32",
    b"split.count",
    b"PK\x01\x02",
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"PK\x06\x06",
    b"(",
    b"t",
    b"R",
    b"b",
    b"0",
    b"1",
    b"2",
    b"}q\x00",
    b"]q\x00",
    b"h\x00",
    b"e",
    b"u",
    b"s",
    b".",
    b"\x85",
    b"\x86",
    b"\x93",
    b"\x94",
    b"Q",
    b"J\xff\xff\xff\xff",
    b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"cos\nsystem\n",
    b"ctorch\nHalfStorage\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n",
];

impasto_testkit::trial! {
    fn random_damage_is_harmless(cases: u64 = 60_000, 1_500_000) {
        let files = fixtures();
        let (mut accepted, mut refused) = (0u64, 0u64);
        let cases = Damage::run(cases, |damage| {
            let (name, bytes) = &files[damage.below(files.len())];
            let mut bytes = bytes.clone();
            (0..=damage.below(4)).for_each(|_| damage.bytes(&mut bytes, &WORDS));
            match read_everything(name, &bytes) {
                Ok(_) => accepted += 1,
                Err(_) => refused += 1,
            }
        });
        assert!(
            accepted > cases / 50 && refused > cases / 4,
            "{accepted} accepted, {refused} refused: damage that tests nothing"
        );
    }
}

/// A pickle in a zip archive that holds nothing else, as PyTorch has it.
fn zipped(pickle: &[u8]) -> Vec<u8> {
    let name = b"m/data.pkl";
    let header = |magic: &[u8], middle: &[u8], end: &[u8]| {
        let size = (pickle.len() as u32).to_le_bytes();
        [magic, middle, &[0; 8], &[0; 4], &size, &size, &(name.len() as u16).to_le_bytes(), end].concat()
    };
    let mut bytes = [&header(b"PK\x03\x04", &[0; 2], &[0; 2])[..], name, pickle].concat();
    let list = bytes.len() as u32;
    bytes.extend(header(b"PK\x01\x02", &[0; 4], &[0; 16]));
    bytes.extend(name);
    let length = (bytes.len() as u32 - list).to_le_bytes();
    bytes.extend([b"PK\x05\x06", &[0; 4][..], &[1, 0, 1, 0], &length, &list.to_le_bytes(), &[0; 2]].concat());
    bytes
}

/// A GGUF file of one value, and nothing else.
fn gguf_value(value: &[u8]) -> Vec<u8> {
    let head = [&b"GGUF\x03\0\0\0"[..], &0u64.to_le_bytes(), &1u64.to_le_bytes(), &1u64.to_le_bytes(), b"k"];
    [&head.concat(), value].concat()
}

#[test]
fn bombs_fill_no_memory() {
    let repeat = |bytes: &[u8], times: usize| bytes.repeat(times);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("a pickle of nothing but None", zipped(&repeat(b"N", 30 << 20))),
        ("marks", zipped(&repeat(b"(", 30 << 20))),
        ("empty lists", zipped(&repeat(b"]", 10 << 20))),
        ("tuples of tuples", zipped(&[b"N", &repeat(b"\x85", 10 << 20)[..], b"."].concat())),
        ("lists that hold themselves twice", zipped(&[b"]q\0", &repeat(b"(h\0h\0e", 5 << 20)[..], b"."].concat())),
        (
            "tuples of the whole stack",
            zipped(&[&repeat(b"N", 1 << 20)[..], &repeat(b"0", 1 << 20), &repeat(b"(t0", 1 << 20)].concat()),
        ),
        ("a memo of everything", zipped(&[&b"N"[..], &repeat(b"\x94", 20 << 20)].concat())),
        ("names", zipped(&repeat(b"ctorch\nSize\n", 2 << 20))),
        (
            "dictionaries from dictionaries",
            zipped(
                &[
                    b"ccollections\nOrderedDict\nq\0}(".as_slice(),
                    &repeat(b"NN", 100_000),
                    b"u\x85q\x01",
                    &repeat(b"h\0h\x01R0", 100_000),
                ]
                .concat(),
            ),
        ),
        ("a text that claims everything", zipped(b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.")),
        ("an array that claims everything", gguf_value(b"\x09\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff")),
        ("texts that claim everything", gguf_value(b"\x09\0\0\0\x08\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff")),
        ("arrays in arrays", gguf_value(&repeat(b"\x09\0\0\0\x01\0\0\0\0\0\0\0", 1 << 20))),
        (
            "truth, many times",
            gguf_value(&[&b"\x09\0\0\0\x07\0\0\0"[..], &(16u64 << 20).to_le_bytes(), &vec![1; 16 << 20]].concat()),
        ),
        (
            "empty texts, many times",
            gguf_value(&[&b"\x09\0\0\0\x08\0\0\0"[..], &(4u64 << 20).to_le_bytes(), &vec![0; 32 << 20]].concat()),
        ),
        ("tensors of the same name", {
            let entry =
                [&1u64.to_le_bytes()[..], b"t", &0u32.to_le_bytes(), &0u32.to_le_bytes(), &0u64.to_le_bytes()].concat();
            let head = [&b"GGUF\x03\0\0\0"[..], &100_000u64.to_le_bytes(), &0u64.to_le_bytes()].concat();
            [head, repeat(&entry, 100_000), vec![0; 64]].concat()
        }),
    ];
    for (what, bytes) in cases {
        let result = read_everything(what, &bytes);
        println!("{what}: {:?}", result.map_err(|error| error.to_string()));
    }
    // A header of safetensors that is one large list, or very many small objects.
    for inside in ["0,", "[],", "{},", "\"\","] {
        let header = format!("{{\"a\":[{}0]}}", inside.repeat((20 << 20) / inside.len()));
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        assert!(read_everything("list", &bytes).is_err());
    }
    for pair in ["\"\":\"\",", "\"\":{},"] {
        for key in ["\"__metadata__\":{", "\"x\":{"] {
            let header = format!("{{{key}{}\"\":\"\"}}}}", pair.repeat((20 << 20) / pair.len()));
            let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
            assert!(read_everything("pairs", &bytes).is_err());
        }
    }
}

/// Found by fuzzing: a tensor without elements may begin behind the end of its file, where reading nothing failed.
#[test]
fn tensors_without_elements_are_read_wherever_they_are() {
    let bytes = include_bytes!("../../../fuzz/seeds/gguf/empty_tensor.gguf");
    assert_eq!(read_everything("empty tensor", bytes).expect("it opens"), 1);
}

/// What a pickle says is checked, and what is wrong is said with its place.
#[test]
fn wrong_pickles_are_refused_with_a_reason() {
    let storage = b"X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQ";
    let tensor = |rest: &[u8]| {
        [&b"\x80\x02}X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n(("[..], storage, rest, b"tRs."].concat()
    };
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("pops nothing", b"\x80\x020.".to_vec(), "the stack is empty"),
        ("an unknown opcode", b"\x80\x02\x82\0.".to_vec(), "opcode 0x82"),
        ("an unknown memo", b"\x80\x02h\x07.".to_vec(), "remembered as 7"),
        ("a call of a number", b"\x80\x02K\x01)R.".to_vec(), "no function"),
        ("no dictionary", b"\x80\x02K\x01.".to_vec(), "no dictionary of tensors"),
        ("eval", b"\x80\x02cbuiltins\neval\n.".to_vec(), "'builtins.eval'"),
        ("a dotted name", b"\x80\x04\x8c\x05torch\x8c\x09os.system\x93.".to_vec(), "'torch.os.system'"),
        ("a negative shape", tensor(b"K\0(J\xff\xff\xff\xfft(K\x01t\x89N"), "described wrongly"),
        (
            "nine dimensions",
            tensor(b"K\0(K\x01K\x01K\x01K\x01K\x01K\x01K\x01K\x01K\x01t(K\x01t\x89N"),
            "described wrongly",
        ),
        ("a storage that is not there", tensor(b"K\0(K\x04t(K\x01t\x89N"), "storage '0' is missing"),
        ("odd pairs", b"\x80\x02}(K\x01u.".to_vec(), "no value"),
        ("no mark", b"\x80\x02t.".to_vec(), "no mark"),
    ];
    for (what, pickle, problem) in cases {
        let text = read_everything("pickle", &zipped(&pickle)).expect_err(what).to_string();
        assert!(text.contains(problem), "{what}: '{problem}' is not in: {text}");
    }
}
