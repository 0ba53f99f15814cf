//! Any bytes as a checkpoint that was written before 2020, behind its first two pickles.
#![no_main]

mod read_everything;

use libfuzzer_sys::fuzz_target;

const START: &[u8] = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.";

fuzz_target!(|bytes: &[u8]| {
    let rest = bytes.strip_prefix(START).unwrap_or(bytes);
    read_everything::read_everything([START, rest].concat());
});
