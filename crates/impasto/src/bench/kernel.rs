//! The kernel compiler on kernels that break optimisers of SPIR-V, against `spirv-opt` on our unoptimised words in the same run.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, anyhow, ensure};
use impasto_kernel::blowup::Case;
use impasto_kernel::{compile, compile_unoptimised, execute, optimise};
use serde::{Deserialize, Serialize};

/// One line of results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KernelLine {
    /// The kernel: its kind, variables, joins and changes.
    pub name: String,
    /// Seconds that we take to optimise it and write its words.
    pub seconds: f64,
    /// Seconds that `spirv-opt -O` takes, if it was asked.
    pub baseline_seconds: Option<f64>,
    /// Its seconds over ours.
    pub ratio: Option<f64>,
    /// Ids in our words.
    pub ids: u32,
    /// Ids that it leaves.
    pub baseline_ids: Option<u32>,
    /// Ids in the unoptimised words.
    pub unoptimised_ids: u32,
    /// The most memory that this process has held when the words were written; `None` where the system does not say.
    pub peak_bytes: Option<u64>,
    /// Whether the optimised kernel gives the bits of the unoptimised one on the executor.
    pub equal: bool,
}

/// The most memory that this process has held.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
}

/// One kernel in this process. For a peak of its own, call it in a process of its own.
pub fn kernel(case: Case, baseline: bool) -> anyhow::Result<KernelLine> {
    let kernel = case.kernel()?;
    let module = compile(&kernel)?;
    let time = || -> anyhow::Result<f64> {
        let start = Instant::now();
        compile(&kernel)?;
        Ok(start.elapsed().as_secs_f64())
    };
    // The best of three: machines are noisy.
    let seconds = time()?.min(time()?).min(time()?);
    let peak_bytes = peak_bytes();
    let (mut plain, mut optimised) = (case.launch(), case.launch());
    execute(&kernel, &mut plain)?;
    execute(&optimise(&kernel)?, &mut optimised)?;
    let unoptimised = compile_unoptimised(&kernel)?;
    let theirs = baseline.then(|| spirv_opt(&unoptimised.words)).transpose()?;
    Ok(KernelLine {
        name: case.to_string(),
        seconds,
        baseline_seconds: theirs.map(|t| t.0),
        ratio: theirs.map(|t| t.0 / seconds),
        ids: module.bound,
        baseline_ids: theirs.map(|t| t.1),
        unoptimised_ids: unoptimised.bound,
        peak_bytes,
        equal: plain.buffers == optimised.buffers,
    })
}

/// Whether the optimiser that we compare with is installed.
pub fn has_spirv_opt() -> bool {
    Command::new("spirv-opt").arg("--version").output().is_ok_and(|o| o.status.success())
}

/// The seconds that `spirv-opt` takes for these words, with the bound on ids raised as high as it goes, and the ids that it leaves.
fn spirv_opt(words: &[u32]) -> anyhow::Result<(f64, u32)> {
    let folder = std::env::temp_dir().join(format!("impasto-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    let result = spirv_opt_in(&folder, words);
    std::fs::remove_dir_all(&folder)?;
    result
}

fn spirv_opt_in(folder: &Path, words: &[u32]) -> anyhow::Result<(f64, u32)> {
    let (input, output) = (folder.join("in.spv"), folder.join("out.spv"));
    std::fs::write(&input, words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>())?;
    let start = Instant::now();
    let mut command = Command::new("spirv-opt");
    command.args(["-O", "--max-id-bound=67108863", "--compact-ids"]).arg(&input).arg("-o").arg(&output);
    let done = command.output().context("spirv-opt could not be started; --no-baseline does without it")?;
    let seconds = start.elapsed().as_secs_f64();
    ensure!(done.status.success(), "spirv-opt: {}: {}", done.status, String::from_utf8_lossy(&done.stderr).trim());
    let out = std::fs::read(&output)?;
    let bound = out.get(12..16).and_then(|b| b.try_into().ok()).ok_or_else(|| anyhow!("spirv-opt wrote no module"))?;
    Ok((seconds, u32::from_le_bytes(bound)))
}
