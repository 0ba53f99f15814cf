//! Any bytes behind the first four of a zip archive.
#![no_main]

mod read_everything;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let rest = bytes.strip_prefix(b"PK\x03\x04").unwrap_or(bytes);
    read_everything::read_everything([b"PK\x03\x04", rest].concat());
});
