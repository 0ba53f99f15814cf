//! The kernel compiler on kernels that break optimisers of SPIR-V, against `spirv-opt` on our unoptimised words in the same run.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};
use impasto_kernel::blowup::Case;
use impasto_kernel::{execute, optimise};
use impasto_spirv::{Diff, DiffOptions, ModuleOptions, Words, compile, compile_unoptimised, optimise_words};
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
    /// Whether the optimised kernel gives the bits of the unoptimised one on the executor, and so does what the other leaves of a module;
    /// `None` where the executor cannot run it.
    pub equal: Option<bool>,
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
    let theirs =
        baseline.then(|| spirv_opt(&unoptimised.words())).transpose()?.map(|(seconds, words)| (seconds, words[3]));
    Ok(KernelLine {
        name: case.to_string(),
        seconds,
        baseline_seconds: theirs.map(|t| t.0),
        ratio: theirs.map(|t| t.0 / seconds),
        ids: module.bound(),
        baseline_ids: theirs.map(|t| t.1),
        unoptimised_ids: unoptimised.bound(),
        peak_bytes,
        equal: Some(plain.buffers == optimised.buffers),
    })
}

/// One module of others in this process. It is run with arrays of so many elements, in one workgroup.
pub fn module(name: &str, words: &[u32], baseline: bool, elements: u32) -> anyhow::Result<KernelLine> {
    let made = optimise_words(words, ModuleOptions::default())?.words;
    let time = || -> anyhow::Result<f64> {
        let start = Instant::now();
        optimise_words(words, ModuleOptions::default())?;
        Ok(start.elapsed().as_secs_f64())
    };
    let seconds = time()?.min(time()?).min(time()?);
    let peak_bytes = peak_bytes();
    let theirs = baseline.then(|| spirv_opt(words)).transpose()?;
    let equal = |other: &[u32]| -> Option<bool> {
        let diff =
            Diff::new(words, other, DiffOptions { groups: Some([1; 3]), elements, ..DiffOptions::default() }).ok()?;
        let mut all = true;
        for entry in diff.entries() {
            let found = diff.on_cpu(entry).ok()?;
            all &= found.first.is_none() && found.changed > 0;
        }
        Some(all)
    };
    let both = [Some(made.as_slice()), theirs.as_ref().map(|t| t.1.as_slice())].into_iter().flatten().map(equal);
    Ok(KernelLine {
        name: name.to_owned(),
        seconds,
        baseline_seconds: theirs.as_ref().map(|t| t.0),
        ratio: theirs.as_ref().map(|t| t.0 / seconds),
        ids: made[3],
        baseline_ids: theirs.as_ref().map(|t| t.1[3]),
        unoptimised_ids: words[3],
        peak_bytes,
        equal: both.reduce(|a, b| Some(a? && b?)).flatten(),
    })
}

/// Whether the optimiser that we compare with is installed.
pub fn has_spirv_opt() -> bool {
    Command::new("spirv-opt").arg("--version").output().is_ok_and(|o| o.status.success())
}

/// The seconds that `spirv-opt` takes for these words, with the bound on ids raised as high as it goes, and the words that it leaves.
fn spirv_opt(words: &[u32]) -> anyhow::Result<(f64, Vec<u32>)> {
    let folder = std::env::temp_dir().join(format!("impasto-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    let result = spirv_opt_in(&folder, words);
    std::fs::remove_dir_all(&folder)?;
    result
}

fn spirv_opt_in(folder: &Path, words: &[u32]) -> anyhow::Result<(f64, Vec<u32>)> {
    let (input, output) = (folder.join("in.spv"), folder.join("out.spv"));
    std::fs::write(&input, words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>())?;
    let start = Instant::now();
    let mut command = Command::new("spirv-opt");
    command.args(["-O", "--max-id-bound=67108863", "--compact-ids"]).arg(&input).arg("-o").arg(&output);
    let done = command.output().context("spirv-opt could not be started; --no-baseline does without it")?;
    let seconds = start.elapsed().as_secs_f64();
    ensure!(done.status.success(), "spirv-opt: {}: {}", done.status, String::from_utf8_lossy(&done.stderr).trim());
    let out = std::fs::read(&output)?;
    ensure!(out.len() >= 20, "spirv-opt wrote no module");
    Ok((seconds, out.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()))
}
