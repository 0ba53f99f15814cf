//! Any bytes as blocks of any storage, and as numbers that are made into blocks.
#![no_main]

use impasto_graph::Storage;
use impasto_weights::{decode, decode_from, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let [which, first, rest @ ..] = bytes else { return };
    let storage = Storage::ALL[*which as usize % Storage::ALL.len()];
    let (elements, size) = (storage.block_elements() as usize, storage.block_bytes() as usize);
    let blocks = rest.len() / size;
    let mut numbers = vec![0.0; blocks * elements];
    decode(storage, &rest[..blocks * size], &mut numbers);
    let first = (*first as usize).min(numbers.len());
    let mut part = vec![0.0; (numbers.len() - first) / 2];
    decode_from(storage, rest, first, &mut part);
    assert!(part.iter().zip(&numbers[first..]).all(|(a, b)| a.to_bits() == b.to_bits()));
    // Blocks of any numbers must decode again.
    let numbers: Vec<f32> = rest.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let whole = numbers.len() / elements * elements;
    let mut made = vec![0; whole / elements * size];
    encode(storage, &numbers[..whole], &mut made);
    let mut back = vec![0.0; whole];
    decode(storage, &made, &mut back);
    // Weights of a believable size stay believable.
    if storage.is_float() && numbers.iter().all(|x| x.abs() < 1e3) {
        assert!(back.iter().all(|x| x.abs() < 2e3), "{storage}");
    }
});
