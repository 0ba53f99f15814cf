//! Any bytes behind the first four of a GGUF file.
#![no_main]

mod read_everything;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let rest = bytes.strip_prefix(b"GGUF").unwrap_or(bytes);
    read_everything::read_everything([b"GGUF", rest].concat());
});
