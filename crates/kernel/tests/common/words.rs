//! Words, looked at as a driver would.

use std::io::Write;
use std::process::{Command, Stdio};

use impasto_kernel::Module;

/// Asks the installed `spirv-val`.
pub fn valid(module: &Module) -> Result<(), String> {
    valid_by("spirv-val", module)
}

/// Asks a validator; without it nothing is proven, so that is a failure, too.
pub fn valid_by(validator: &str, module: &Module) -> Result<(), String> {
    let missing = |e| format!("{validator} cannot be run ({e}): install spirv-tools, as tools/test.sh does");
    let mut child = Command::new(validator)
        .args(["--target-env", "vulkan1.1", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(missing)?;
    let bytes: Vec<u8> = module.words.iter().flat_map(|w| w.to_le_bytes()).collect();
    child.stdin.take().unwrap().write_all(&bytes).map_err(|e| e.to_string())?;
    let done = child.wait_with_output().map_err(|e| e.to_string())?;
    match done.status.success() {
        true => Ok(()),
        false => Err(format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))),
    }
}

/// Every id below the bound is defined once.
pub fn dense(module: &Module) -> Result<(), String> {
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
    rspirv::binary::parse_words(&module.words, &mut ids).map_err(|e| format!("{e:?}"))?;
    ids.0.sort_unstable();
    let all: Vec<u32> = (1..module.bound).collect();
    if ids.0 == all { Ok(()) } else { Err(format!("{} ids of {}", ids.0.len(), module.bound)) }
}
