//! What tests of modules use: validators and optimisers of others, their shaders, a device.
pub mod modules;

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use impasto_kernel::CompiledModule;
use impasto_spirv::Words;

/// Asks `spirv-val`; without it nothing is proven, so that is a failure, too.
pub fn valid(words: &[u32]) -> Result<(), String> {
    valid_by("spirv-val", words)
}

/// Asks another validator.
pub fn valid_by(validator: &str, words: &[u32]) -> Result<(), String> {
    valid_for(validator, "vulkan1.1", words)
}

/// Asks a validator about another environment.
pub fn valid_for(validator: &str, environment: &str, words: &[u32]) -> Result<(), String> {
    let missing = |e| format!("{validator} cannot be run ({e}): install spirv-tools, as tools/test.sh does");
    let mut child = Command::new(validator)
        .args(["--target-env", environment, "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(missing)?;
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    child.stdin.take().unwrap().write_all(&bytes).map_err(|e| e.to_string())?;
    let done = child.wait_with_output().map_err(|e| e.to_string())?;
    match done.status.success() {
        true => Ok(()),
        false => Err(format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))),
    }
}

/// What `spirv-opt -O` leaves of a module, and the time that takes without the start and the files of the process.
pub fn spirv_opt(words: &[u32]) -> (Vec<u32>, Duration) {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.spv"), folder.path().join("out.spv"));
    std::fs::write(&input, words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let run = |passes: &[&str]| {
        let begin = Instant::now();
        let done = Command::new("spirv-opt").args(passes).arg(&input).arg("-o").arg(&output).status();
        assert!(done.expect("spirv-opt cannot be run: install spirv-tools, as tools/test.sh does").success());
        begin.elapsed()
    };
    let nothing = run(&[]);
    let time = run(&["-O"]).saturating_sub(nothing);
    let bytes = std::fs::read(&output).unwrap();
    (modules::words(&bytes), time)
}

/// Every id below the bound is defined once.
pub fn dense(module: &CompiledModule) -> Result<(), String> {
    dense_words(&module.words())
}

/// Every id below the bound is defined once.
pub fn dense_words(words: &[u32]) -> Result<(), String> {
    struct Ids(Vec<u32>);
    impl rspirv::binary::Consumer for Ids {
        fn initialize(&mut self) -> rspirv::binary::ParseAction {
            rspirv::binary::ParseAction::Continue
        }
        fn finalize(&mut self) -> rspirv::binary::ParseAction {
            rspirv::binary::ParseAction::Continue
        }
        fn consume_header(&mut self, _: rspirv::dr::ModuleHeader) -> rspirv::binary::ParseAction {
            rspirv::binary::ParseAction::Continue
        }
        fn consume_instruction(&mut self, i: rspirv::dr::Instruction) -> rspirv::binary::ParseAction {
            self.0.extend(i.result_id);
            rspirv::binary::ParseAction::Continue
        }
    }
    let mut ids = Ids(Vec::new());
    rspirv::binary::parse_words(words, &mut ids).map_err(|e| format!("{e:?}"))?;
    ids.0.sort_unstable();
    let all: Vec<u32> = (1..words[3]).collect();
    if ids.0 == all { Ok(()) } else { Err(format!("{} ids of {}", ids.0.len(), words[3])) }
}
