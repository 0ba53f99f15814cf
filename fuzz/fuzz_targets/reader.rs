//! Any bytes as a safetensors file: it is refused, or every tensor of it can be read.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use impasto_weights::Checkpoint;
use libfuzzer_sys::fuzz_target;

/// Where the bytes become a file, one for each process.
static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
    folder.join(format!("impasto-fuzz-{}.safetensors", std::process::id()))
});

fuzz_target!(|bytes: &[u8]| {
    std::fs::write(&*FILE, bytes).expect("a file in memory can be written");
    match Checkpoint::open(&FILE) {
        Ok(model) => {
            let mut taken = 0;
            for tensor in model.tensors() {
                let read = model.read_all(tensor).expect("it lies inside the file");
                assert_eq!(read.len() as u64, tensor.bytes());
                taken += read.len();
            }
            assert!(taken <= bytes.len());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
