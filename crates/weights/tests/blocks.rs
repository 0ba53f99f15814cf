//! Blocks against the reference implementations. What a user would lose: the numbers of the model that was downloaded.

use std::path::Path;

use impasto_graph::{DType, Storage};
use impasto_weights::{Checkpoint, ElementType, decode, decode_from, encode};

/// Storages that a scale is searched for.
const SEARCHED: [Storage; 7] =
    [Storage::Q2_K, Storage::Q3_K, Storage::Q4_K, Storage::Q5_K, Storage::Q6_K, Storage::IQ4_NL, Storage::IQ4_XS];

/// Written by `tools/block_fixtures.py`.
struct Fixtures(Checkpoint);

impl Fixtures {
    fn open() -> Fixtures {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/blocks.safetensors");
        Fixtures(Checkpoint::open(&path).expect("the fixture is in the repository"))
    }

    fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        Some(self.0.read_all(self.0.tensor(name)?).expect("it can be read"))
    }

    fn numbers(&self, name: &str) -> Option<Vec<f32>> {
        let bytes = self.bytes(name)?;
        let storage = match self.0.tensor(name)?.element {
            ElementType::F16 => Storage::Dense(DType::F16),
            _ => Storage::Dense(DType::F32),
        };
        Some(decoded(storage, &bytes))
    }
}

fn decoded(storage: Storage, bytes: &[u8]) -> Vec<f32> {
    let blocks = bytes.len() / storage.block_bytes() as usize;
    let mut out = vec![0.0; blocks * storage.block_elements() as usize];
    decode(storage, bytes, &mut out);
    out
}

fn encoded(storage: Storage, x: &[f32]) -> Vec<u8> {
    let mut out = vec![0; storage.bytes_of(x.len() as u64).expect("it can be counted") as usize];
    encode(storage, x, &mut out);
    out
}

/// Equal bits, or both NaN.
fn assert_same(what: &str, ours: &[f32], theirs: &[f32]) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (i, (a, b)) in ours.iter().zip(theirs).enumerate() {
        assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "{what}: element {i} is {a:?}, not {b:?}");
    }
}

#[test]
fn every_block_decodes_to_the_bits_of_the_reference() {
    let fixtures = Fixtures::open();
    let mut types = 0;
    for storage in Storage::ALL {
        if let Some(bytes) = fixtures.bytes(&format!("decode.{storage}.bytes")) {
            let theirs = fixtures.numbers(&format!("decode.{storage}.numbers")).expect("it belongs to the blocks");
            assert!(theirs.iter().any(|x| x.is_nan()) || storage == Storage::MXFP4, "edge blocks are there");
            assert_same(storage.name(), &decoded(storage, &bytes), &theirs);
            types += 1;
        }
    }
    assert_eq!(types, 13);
    for storage in [Storage::F8_E4M3, Storage::F8_E5M2] {
        let bytes: Vec<u8> = (0..=255).collect();
        let theirs = fixtures.numbers(&format!("fp8.{storage}.numbers")).expect("it is there");
        assert_same(storage.name(), &decoded(storage, &bytes), &theirs);
    }
}

#[test]
fn types_with_one_rule_have_the_bytes_of_the_reference() {
    let fixtures = Fixtures::open();
    let x = fixtures.numbers("encode.x").expect("it is there");
    let mut types = 0;
    for storage in Storage::ALL {
        if let Some(theirs) = fixtures.bytes(&format!("encode.{storage}.bytes")) {
            let ours = encoded(storage, &x);
            let block = storage.block_bytes() as usize;
            let differs = ours.chunks(block).zip(theirs.chunks(block)).position(|(a, b)| a != b);
            assert_eq!((ours.len(), differs), (theirs.len(), None), "{storage}");
            types += 1;
        }
    }
    assert_eq!(types, 7);
    let x = fixtures.numbers("fp8.x").expect("it is there");
    for storage in [Storage::F8_E4M3, Storage::F8_E5M2] {
        let theirs = fixtures.bytes(&format!("fp8.{storage}.bytes")).expect("it is there");
        for ((x, ours), theirs) in x.iter().zip(encoded(storage, &x)).zip(theirs) {
            assert_eq!(ours, theirs, "{storage} of {x:?}");
        }
    }
}

/// How well other programs do it is known: a file that is made here must not be worse.
#[test]
fn searched_scales_have_at_most_the_error_of_ggml() {
    let fixtures = Fixtures::open();
    let x = fixtures.numbers("encode.x").expect("it is there");
    for storage in SEARCHED {
        let theirs = fixtures.numbers(&format!("ggml.{storage}")).expect("it is there");
        let each = x.len() / theirs.len();
        for (i, (x, theirs)) in x.chunks(each).zip(theirs).enumerate() {
            let ours = decoded(storage, &encoded(storage, x));
            let error: f64 = x.iter().zip(&ours).map(|(a, b)| f64::from(a - b) * f64::from(a - b)).sum();
            let ratio = (error / f64::from(theirs)).sqrt();
            println!("{storage} distribution {i}: {ratio:.4} times ggml's error");
            assert!(ratio <= 1.02, "{storage}, distribution {i}: {ratio} times ggml's error");
        }
    }
}

/// What is not a number, or too large, must not become a plausible weight; nothing panics.
#[test]
fn odd_numbers_are_encoded_without_harm() {
    for storage in Storage::ALL {
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE, 1e-45, -0.0] {
            for fill in [0.0, 0.1, odd] {
                let mut x = vec![fill; 512];
                x[300] = odd;
                let back = decoded(storage, &encoded(storage, &x));
                let first = &back[..256];
                assert!(fill != 0.0 || first.iter().all(|x| *x == 0.0), "{storage}: a block of zeros is zeros");
                let searched = SEARCHED.contains(&storage) && !odd.is_finite();
                assert!(!searched || back[300].is_nan(), "{storage}: {odd} became {}", back[300]);
            }
        }
    }
}

/// Backends read rows that begin and end inside blocks.
#[test]
fn any_range_of_elements_decodes_as_the_whole() {
    let fixtures = Fixtures::open();
    for storage in Storage::ALL {
        let bytes = fixtures
            .bytes(&format!("decode.{storage}.bytes"))
            .unwrap_or_else(|| (0..1024u32).map(|i| (i * 37 % 251) as u8).collect());
        let whole = decoded(storage, &bytes);
        for begin in [0, 1, 15, 31, 32, 33, 200, 255, 256, 300] {
            for length in [0, 1, 2, 31, 32, 33, 64, 255, 256, 257, 511] {
                let length = length.min(whole.len().saturating_sub(begin));
                let mut out = vec![0.0; length];
                decode_from(storage, &bytes, begin.min(whole.len()), &mut out);
                assert_same(storage.name(), &out, &whole[begin.min(whole.len())..][..length]);
            }
        }
    }
}
