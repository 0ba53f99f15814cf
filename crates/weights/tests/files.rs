//! Model files, good and bad. What a user would lose: a program that says what is wrong with a download, instead of dying.

use std::fs;
use std::path::{Path, PathBuf};

use impasto_graph::{DType, Storage};
use impasto_weights::{Checkpoint, ElementType, WeightSource, WeightsError};
use tempfile::TempDir;

/// A safetensors file from its header and its data.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

fn good() -> Vec<u8> {
    let header = r#"{"__metadata__":{"format":"pt"},
        "b":{"dtype":"F16","shape":[2,3],"data_offsets":[8,20]},
        "a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
        "scalar":{"dtype":"I64","shape":[],"data_offsets":[20,28]},
        "nothing":{"dtype":"F32","shape":[0],"data_offsets":[28,28]}}"#;
    file(header, &(0..28).collect::<Vec<u8>>())
}

fn write(folder: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).expect("a temporary file can be written");
    path
}

fn open(bytes: &[u8]) -> Result<Checkpoint, WeightsError> {
    let folder = TempDir::new().expect("a temporary folder");
    Checkpoint::open(&write(&folder, "model.safetensors", bytes))
}

#[test]
fn a_good_file_gives_its_tensors() {
    let model = open(&good()).expect("it is good");
    let names: Vec<&str> = model.tensors().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "nothing", "scalar"]);
    assert_eq!(model.metadata()["format"], "pt");
    let b = model.tensor("b").expect("it is there");
    assert_eq!(
        (b.shape.as_slice(), b.element, &model.read_all(b).expect("read")[..]),
        (&[2, 3][..], ElementType::F16, &(8..20).collect::<Vec<u8>>()[..])
    );
    let (info, bytes) = WeightSource::read_all(&model, "a").expect("a float can be read");
    assert_eq!((info.storage, &bytes[..]), (Storage::Dense(DType::F32), &[0, 1, 2, 3, 4, 5, 6, 7][..]));
    let refused = model.describe("scalar").expect_err("64-bit integers are no weights").to_string();
    assert!(refused.contains("'scalar'") && refused.contains("i64"), "{refused}");
    assert!(model.describe("c").expect_err("there is none").to_string().contains("missing"));
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let one = |entry: &str| file(&format!("{{\"w\":{entry}}}"), &[0; 16]);
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("empty", vec![], &["is empty"]),
        ("shorter than a length", vec![1, 2, 3], &["3 bytes", "too few"]),
        ("cut off in the header", good()[..100].to_vec(), &["byte 0", "cut off"]),
        (
            "a length beyond everything",
            file("{}", &[]).iter().map(|_| 0xff).collect(),
            &["byte 0", "claims 18446744073709551615"],
        ),
        ("text", b"<html><body>404 not found</body></html>".to_vec(), &["a web page", "no model file"]),
        ("GGUF, cut off", b"GGUF\x03\0\0\0\x24\x01\0\0\0\0\0\0".to_vec(), &["byte 16", "cut off"]),
        ("GGUF of 2023", b"GGUF\x01\0\0\0\x24\x01\0\0\0\0\0\0".to_vec(), &["byte 4", "version 1 of GGUF"]),
        ("a zip file, cut off", b"PK\x03\x04\0\0\x08\x08\0\0\0\0".to_vec(), &["byte 12", "zip archive", "cut off"]),
        ("a pickle, cut off", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P".to_vec(), &["byte 0", "pickle", "cut off"]),
        ("an old archive", [vec![b'x'; 257], b"ustar\0\0\0\0\0".to_vec()].concat(), &["a tar file"]),
        ("a pointer", b"version https://git-lfs.github.com/spec/v1\noid".to_vec(), &["a pointer of Git LFS"]),
        ("no JSON", file("{]", &[]), &["byte 8", "JSON"]),
        ("a list", file("[1]", &[]), &["byte 8", "JSON"]),
        ("no object for a tensor", one("7"), &["'w'", "description"]),
        ("an unknown type", one(r#"{"dtype":"Q9","shape":[4],"data_offsets":[0,16]}"#), &["'w'", "Q9"]),
        ("a negative shape", one(r#"{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}"#), &["'w'", "description"]),
        ("no offsets", one(r#"{"dtype":"F32","shape":[4]}"#), &["'w'", "data_offsets"]),
        ("out of range", one(r#"{"dtype":"F32","shape":[4],"data_offsets":[4,20]}"#), &["'w'", "4 to 20", "16 bytes"]),
        ("backwards", one(r#"{"dtype":"F32","shape":[4],"data_offsets":[16,0]}"#), &["'w'", "16 to 0"]),
        (
            "too few bytes",
            one(r#"{"dtype":"F32","shape":[4],"data_offsets":[0,12]}"#),
            &["'w'", "needs 16 bytes", "has 12"],
        ),
        (
            "beyond counting",
            one(r#"{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]}"#),
            &["'w'", "counted"],
        ),
        (
            "many dimensions",
            one(r#"{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,16],"data_offsets":[0,16]}"#),
            &["'w'", "9 dimensions"],
        ),
        (
            "overlapping",
            file(
                r#"{"v":{"dtype":"U8","shape":[9],"data_offsets":[0,9]},"w":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}}"#,
                &[0; 16],
            ),
            &["'w'", "overlap", "'v'"],
        ),
        (
            "a name twice",
            file(
                r#"{"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"w":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}}"#,
                &[0; 16],
            ),
            &["'w'", "stands twice"],
        ),
        ("bytes of no tensor", one(r#"{"dtype":"F32","shape":[3],"data_offsets":[0,12]}"#), &["last tensor ends here"]),
        (
            "a length without the header's padding",
            {
                let mut bytes = file(r#"{"w":{"dtype":"U8","shape":[16],"data_offsets":[0,16]}} "#, &[0; 16]);
                bytes[0] -= 1;
                bytes
            },
            &["last tensor ends here"],
        ),
        ("metadata that is no text", file(r#"{"__metadata__":{"a":1}}"#, &[]), &["byte 8", "__metadata__"]),
    ];
    for (what, bytes, words) in cases {
        let Err(error) = open(&bytes) else { panic!("{what}: accepted") };
        let text = error.to_string();
        assert!(text.contains("model.safetensors"), "{what}: {text}");
        for word in words {
            assert!(text.contains(word), "{what}: '{word}' is not in: {text}");
        }
    }
}

/// Opening a named pipe would wait for somebody who writes to it.
#[cfg(unix)]
#[test]
fn a_pipe_or_a_device_is_refused_at_once() {
    let folder = TempDir::new().expect("a temporary folder");
    for name in ["pipe.safetensors", "pipe.safetensors.index.json"] {
        let path = folder.path().join(name);
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
        assert!(made.success());
        let text = Checkpoint::open(&path).err().expect("it is refused").to_string();
        assert!(text.contains(name) && text.contains("it is a pipe, and a file is needed"), "{text}");
    }
    let text = Checkpoint::open(Path::new("/dev/null")).err().expect("it is refused").to_string();
    assert!(text.contains("/dev/null: cannot be opened: it is a device"), "{text}");
}

#[test]
fn folders_and_files_that_are_not_there_are_said() {
    let folder = TempDir::new().expect("a temporary folder");
    let message = |path: &Path| Checkpoint::open(path).err().expect("it is refused").to_string();
    assert!(message(&folder.path().join("none.safetensors")).contains("cannot be opened"));
    assert!(message(folder.path()).contains("has no model file"));
    write(&folder, "one.safetensors", &good());
    assert!(Checkpoint::open(folder.path()).is_ok(), "the only model of a folder needs no name");
    write(&folder, "two.safetensors", &good());
    let text = message(folder.path());
    assert!(text.contains("one.safetensors, two.safetensors"), "{text}");
}

/// A shard with one byte-sized tensor.
fn shard(tensor: &str) -> Vec<u8> {
    file(&format!(r#"{{"{tensor}":{{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}}}"#), &[7, 8])
}

#[test]
fn shards_are_one_model() {
    let folder = TempDir::new().expect("a temporary folder");
    write(&folder, "m-1.safetensors", &shard("a"));
    write(&folder, "m-2.safetensors", &shard("b"));
    let index = r#"{"metadata":{"total_size":4},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}"#;
    let path = write(&folder, "m.safetensors.index.json", index.as_bytes());
    for path in [path.as_path(), folder.path()] {
        let model = Checkpoint::open(path).expect("both shards are there");
        assert_eq!((model.tensors().count(), model.files().count()), (2, 2));
        assert_eq!(model.read_all(model.tensor("b").expect("it is there")).expect("read"), [7, 8]);
    }
    let refused = |name: &str, index: &str, words: &[&str]| {
        let path = write(&folder, name, index.as_bytes());
        let text = Checkpoint::open(&path).err().expect("it is refused").to_string();
        words.iter().for_each(|w| assert!(text.contains(w), "'{w}' is not in: {text}"));
    };
    refused("x.json", r#"{"weight_map":{"a":"m-1.safetensors","c":"m-2.safetensors"}}"#, &["'c'", "m-2.safetensors"]);
    refused("x.json", r#"{"weight_map":{"a":"m-3.safetensors"}}"#, &["m-3.safetensors", "cannot be opened"]);
    refused("x.json", r#"{"weight_map":{"a":"../m-1.safetensors"}}"#, &["no plain file name"]);
    refused("x.json", r#"{"weights":{}}"#, &["weight_map"]);
    write(&folder, "m-2.safetensors", &shard("a"));
    refused("x.json", r#"{"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}"#, &["'a'", "m-1", "m-2"]);
}

#[test]
fn a_file_of_many_gigabytes_opens_without_being_read() {
    // A sparse file: the header of a real model, its data a hole.
    let folder = TempDir::new().expect("a temporary folder");
    let bytes = 12u64 << 30;
    let header = format!(r#"{{"w":{{"dtype":"F16","shape":[{}],"data_offsets":[0,{bytes}]}}}}"#, bytes / 2);
    let path = write(&folder, "large.safetensors", &file(&header, &[]));
    let sparse = fs::OpenOptions::new().write(true).open(&path).expect("it is ours");
    sparse.set_len(8 + header.len() as u64 + bytes).expect("a hole costs nothing");
    let model = Checkpoint::open(&path).expect("it is good");
    assert_eq!(model.tensor("w").expect("it is there").bytes(), bytes);
}
