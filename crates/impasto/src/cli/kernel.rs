//! What is shown of kernels.

use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use impasto::bench::{self, KernelLine};
use impasto::kernel::blowup::{Case, SERIES};

use super::BenchKernel;
use super::show::{json, line};

/// Variables from which the other optimiser takes minutes and gigabytes: only when it is asked for by name.
const MANY: u32 = 20_000;

/// One kernel is measured here; of several each in a process of its own, so that the memory of one is not counted for the next.
pub fn bench(args: &BenchKernel) -> anyhow::Result<()> {
    let installed = !args.no_baseline && bench::has_spirv_opt();
    if !args.no_baseline && !installed {
        eprintln!("spirv-opt is not installed (Debian: spirv-tools): only our side is measured");
    }
    if let [case] = args.cases[..] {
        let found = bench::kernel(case, installed)?;
        show(&found, args.json);
        ensure!(found.equal, "{case}: the optimised kernel computes something else than the unoptimised one");
        return Ok(());
    }
    if !args.json {
        line(format_args!(
            "{:<22} {:>9} {:>11} {:>7} {:>9} {:>9} {:>9} {:>8}",
            "kernel", "seconds", "spirv-opt s", "ratio", "ids", "its ids", "unoptim.", "peak MB"
        ));
    }
    let cases = if args.cases.is_empty() { &SERIES[..] } else { &args.cases[..] };
    for case in cases {
        let baseline = installed && (case.variables < MANY || !args.cases.is_empty());
        if baseline && case.variables > 1000 {
            eprintln!("{case}: spirv-opt takes a while ...");
        }
        show(&apart(*case, baseline)?, args.json);
    }
    Ok(())
}

fn apart(case: Case, baseline: bool) -> anyhow::Result<KernelLine> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "kernel", "--json", &case.to_string()]).stderr(Stdio::inherit());
    if !baseline {
        command.arg("--no-baseline");
    }
    let done = command.output().context("this program could not be started again")?;
    ensure!(done.status.success(), "{case}: {}", done.status);
    Ok(serde_json::from_slice(&done.stdout)?)
}

fn show(found: &KernelLine, as_json: bool) {
    if as_json {
        return json(found);
    }
    let or = |shown: Option<String>| shown.unwrap_or_else(|| "-".to_owned());
    line(format_args!(
        "{:<22} {:>9.4} {:>11} {:>7} {:>9} {:>9} {:>9} {:>8}",
        found.name,
        found.seconds,
        or(found.baseline_seconds.map(|s| format!("{s:.2}"))),
        or(found.ratio.map(|r| format!("{r:.0}"))),
        found.ids,
        or(found.baseline_ids.map(|n| n.to_string())),
        found.unoptimised_ids,
        or(found.peak_bytes.map(|b| format!("{:.0}", b as f64 / 1e6))),
    ));
}
