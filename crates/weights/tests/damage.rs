//! Damaged model files. What a user would lose: a program that refuses a broken download, instead of dying of it.

use std::fs;

use impasto_testkit::damage::Damage;
use impasto_weights::{Checkpoint, WeightSource};
use tempfile::TempDir;

/// A safetensors file from its header and its data.
fn file(header: &[u8], data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend((0..data).map(|i| i as u8));
    bytes
}

const HEADERS: [(&str, usize); 3] = [
    (
        r#"{"__metadata__":{"format":"pt"},
        "b":{"dtype":"F16","shape":[2,3],"data_offsets":[8,20]},
        "a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
        "scalar":{"dtype":"I64","shape":[],"data_offsets":[20,28]},
        "nothing":{"dtype":"F32","shape":[0],"data_offsets":[28,28]}}"#,
        28,
    ),
    (
        r#"{"w":{"dtype":"BF16","shape":[1,2,1,4],"data_offsets":[0,16]},"v":{"dtype":"U8","shape":[3],"data_offsets":[16,19]}}     "#,
        19,
    ),
    ("{}", 0),
];

/// What stands in headers, and numbers at which arithmetic goes wrong.
const WORDS: [&[u8]; 38] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\"",
    b"0",
    b"1",
    b"-1",
    b"8",
    b"16",
    b"1e3",
    b"1.0",
    b"255",
    b"4294967295",
    b"4294967296",
    b"9223372036854775807",
    b"9223372036854775808",
    b"18446744073709551615",
    b"18446744073709551616",
    b"null",
    b"true",
    b"\\u0000",
    b"\\ud800",
    b"\\",
    b"\xff",
    b"\x00",
    b"__metadata__",
    b"dtype",
    b"shape",
    b"data_offsets",
    b"\"w\":",
    b"F8_E4M3",
    b"BOOL",
    b"F64",
    b"[[[[[[[[[[[[[[[[",
    b"{\"a\":{\"a\":{\"a\":",
];

impasto_testkit::trial! {
    fn damaged_files_never_panic(cases: u64 = 1_000, 40_000) {
        let folder = TempDir::new().expect("a temporary folder");
        let path = folder.path().join("m.safetensors");
        let (mut accepted, mut refused) = (0, 0);
        let cases = Damage::run(cases, |damage| {
            let (header, data) = HEADERS[damage.below(HEADERS.len())];
            // Half of the time the length of the header is told truly, so that what is behind it is read.
            let bytes = if damage.below(2) == 0 {
                let mut header = header.as_bytes().to_vec();
                (0..=damage.below(4)).for_each(|_| damage.bytes(&mut header, &WORDS));
                let data = if damage.below(4) == 0 { damage.below(64) } else { data };
                file(&header, data)
            } else {
                let mut bytes = file(header.as_bytes(), data);
                (0..=damage.below(3)).for_each(|_| damage.bytes(&mut bytes, &WORDS));
                bytes
            };
            fs::write(&path, &bytes).expect("a temporary file can be written");
            match Checkpoint::open(&path) {
                Ok(model) => {
                    accepted += 1;
                    check(&model, bytes.len());
                }
                Err(error) => {
                    refused += 1;
                    assert!(error.to_string().contains("m.safetensors"), "{error}");
                }
            }
        });
        assert!(
            accepted > cases / 100 && refused > cases / 4,
            "{accepted} accepted, {refused} refused: damage that tests nothing"
        );
    }
}

/// What holds of every file that was accepted.
fn check(model: &Checkpoint, length: usize) {
    let mut taken = 0;
    for tensor in model.tensors() {
        let bytes = model.read_all(tensor).expect("it is in the file");
        assert_eq!(bytes.len() as u64, tensor.bytes(), "{tensor:?}");
        taken += bytes.len();
        match WeightSource::read_all(model, &tensor.name) {
            Ok((info, read)) => assert_eq!((read, info.shape), (bytes, tensor.shape.clone())),
            Err(error) => assert!(tensor.element.storage().is_none(), "{tensor:?}: {error}"),
        }
    }
    assert!(taken <= length, "tensors overlap: {taken} bytes of a file of {length}");
}

impasto_testkit::trial! {
    /// An index names files: whatever it says, only its own folder is looked at.
    fn damaged_indices_never_panic(cases: u64 = 1_000, 15_000) {
        let folder = TempDir::new().expect("a temporary folder");
        let shard = br#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
        fs::write(folder.path().join("m-1.safetensors"), file(shard, 2)).expect("writable");
        let path = folder.path().join("m.safetensors.index.json");
        let words: [&[u8]; 16] = [
            b"{",
            b"}",
            b"[",
            b"]",
            b",",
            b":",
            b"\"",
            b"..",
            b"/",
            b"a",
            b"m-1.safetensors",
            b"weight_map",
            b"\\u0000",
            b"\xff",
            b"null",
            b"\"a\":",
        ];
        let (mut accepted, mut refused) = (0, 0);
        Damage::run(cases, |damage| {
            let mut bytes = br#"{"metadata":{"total_size":2},"weight_map":{"a":"m-1.safetensors"}}"#.to_vec();
            (0..=damage.below(3)).for_each(|_| damage.bytes(&mut bytes, &words));
            fs::write(&path, &bytes).expect("a temporary file can be written");
            match Checkpoint::open(&path) {
                Ok(model) => {
                    accepted += 1;
                    assert!(model.files().all(|f| f == folder.path().join("m-1.safetensors")));
                }
                Err(error) => {
                    refused += 1;
                    assert!(!error.to_string().is_empty());
                }
            }
        });
        assert!(accepted > cases / 40 && refused > cases / 4, "{accepted} accepted, {refused} refused: damage that tests nothing");
    }
}
