//! The assembler of NVIDIA, which is asked about every module.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use impasto_ptx::PtxTarget;

/// Where the assembler is; without it nothing is proven, so that is a failure, too.
fn ptxas() -> OsString {
    let found = std::env::var_os("IMPASTO_PTXAS").filter(|path| !path.is_empty());
    found.expect("IMPASTO_PTXAS must name ptxas: tools/test.sh installs PyPI's nvidia-cuda-nvcc and sets it")
}

/// The targets that are tried: three, or all with `IMPASTO_PTX_TARGETS=all`.
pub fn targets() -> Vec<PtxTarget> {
    match std::env::var("IMPASTO_PTX_TARGETS").as_deref() {
        Ok("all") => PtxTarget::ALL.to_vec(),
        Ok(names) => {
            let named = |name: &str| PtxTarget::ALL.into_iter().find(|t| t.name() == name.trim());
            let unknown = |name: &str| panic!("IMPASTO_PTX_TARGETS names {name}, which is no target");
            names.split(',').map(|name| named(name).unwrap_or_else(|| unknown(name))).collect()
        }
        Err(_) => vec![PtxTarget::Sm75, PtxTarget::Sm80, PtxTarget::Sm90a],
    }
}

/// Assembles a module; the error is what the assembler says. Warnings are errors.
pub fn assemble(text: &[u8], target: PtxTarget) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let (input, output) = (folder.path().join("in.ptx"), folder.path().join("out.cubin"));
    std::fs::write(&input, text).map_err(|e| e.to_string())?;
    assemble_file(&input, &output, target)
}

fn assemble_file(input: &Path, output: &Path, target: PtxTarget) -> Result<(), String> {
    let done = Command::new(ptxas())
        .args(["--warning-as-error", &format!("--gpu-name={target}"), "--output-file"])
        .arg(output)
        .arg(input)
        .output()
        .map_err(|e| format!("ptxas cannot be run ({e}): tools/test.sh installs it"))?;
    match done.status.success() && output.exists() {
        true => Ok(()),
        false => Err(format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))),
    }
}
