#![no_main]
//! Words that may be a module of compute shaders: an error, or a module that is optimised again to something, and the same each time.

use impasto_spirv::{ImportError, ModuleOptions, optimise_words, reflect};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let words: Vec<u32> = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let _ = reflect(&words);
    let strict = optimise_words(&words, ModuleOptions { strict: true, ..ModuleOptions::default() });
    assert!(!matches!(strict, Err(ImportError::Fault(_))), "{:?}", strict.err());
    match optimise_words(&words, ModuleOptions::default()) {
        Ok(made) => {
            let again = optimise_words(&words, ModuleOptions::default()).expect("it was optimised before");
            assert_eq!(made.words, again.words);
            let twice = optimise_words(&made.words, ModuleOptions::default());
            assert!(twice.is_ok(), "what was written is not read: {:?}", twice.err());
        }
        Err(error) => assert!(!matches!(error, ImportError::Fault(_)), "{error}"),
    }
});
