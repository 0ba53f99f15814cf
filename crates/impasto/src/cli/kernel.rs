//! What is shown of kernels.

use std::process::{Command, Stdio};

use anyhow::{Context, anyhow, bail, ensure};
use impasto::autodiff::Differentiate;
use impasto::backend::gpu::kernels::{Sample, samples};
use impasto::bench::{self, KernelLine};
use impasto::kernel::blowup::{Case, SERIES};
use impasto::kernel::{Kernel, Target, optimise_seen};
use impasto::spirv::{self, Words};
use serde::Serialize;

use super::show::{json, line};
use super::{BenchKernel, KernelCommand, KernelShow};

/// Variables from which the other optimiser takes minutes and gigabytes: only when it is asked for by name.
const MANY: u32 = 20_000;

/// One kernel is measured here; of several each in a process of its own, so that the memory of one is not counted for the next.
pub fn bench(args: &BenchKernel) -> anyhow::Result<()> {
    let installed = !args.no_baseline && bench::has_spirv_opt();
    if !args.no_baseline && !installed {
        eprintln!("spirv-opt is not installed (Debian: spirv-tools): only our side is measured");
    }
    if !args.module.is_empty() {
        return super::module::bench_modules(&args.module, installed, args.elements, args.json);
    }
    if let [case] = args.cases[..] {
        let found = bench::kernel(case, installed)?;
        show(&found, args.json);
        ensure!(
            found.equal == Some(true),
            "{case}: the optimised kernel computes something else than the unoptimised one"
        );
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

pub fn show(found: &KernelLine, as_json: bool) {
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

/// A line of the list.
#[derive(Serialize)]
struct Listed {
    name: &'static str,
    about: &'static str,
    workgroup: [u32; 3],
    buffers: u32,
    /// Ids of the module, as it is shipped and without optimisation.
    ids: u32,
    unoptimised_ids: u32,
    /// Bytes of the module.
    bytes: usize,
}

pub fn kernel(command: &KernelCommand) -> anyhow::Result<()> {
    match command {
        KernelCommand::List { json } => list(*json),
        KernelCommand::Show(args) => show_kernel(args),
        KernelCommand::Opt(args) => super::module::opt(args),
        KernelCommand::Diff(args) => super::module::diff(args),
    }
}

fn list(as_json: bool) -> anyhow::Result<()> {
    let compiler = spirv::compiler(Target::ANY);
    if !as_json {
        line(format_args!(
            "{:<16} {:>9} {:>8} {:>6} {:>8} {:>7}  what it is",
            "name", "workgroup", "buffers", "ids", "unoptim.", "bytes"
        ));
    }
    for Sample { name, about, kernel } in samples()? {
        let module = compiler.compile(std::slice::from_ref(&kernel))?;
        let plain = compiler.clone().unoptimised().compile(std::slice::from_ref(&kernel))?;
        let entry = module.entries.first().ok_or_else(|| anyhow!("{name}: the compiler wrote no entry point"))?;
        let found = Listed {
            name,
            about,
            workgroup: entry.workgroup,
            buffers: entry.buffers,
            ids: module.bound(),
            unoptimised_ids: plain.bound(),
            bytes: module.bytes.len(),
        };
        if as_json {
            json(&found);
            continue;
        }
        let [x, y, _] = found.workgroup;
        line(format_args!(
            "{name:<16} {:>9} {:>8} {:>6} {:>8} {:>7}  {about}",
            format!("{x}x{y}"),
            found.buffers,
            found.ids,
            found.unoptimised_ids,
            found.bytes
        ));
    }
    Ok(())
}

fn show_kernel(args: &KernelShow) -> anyhow::Result<()> {
    let all = samples()?;
    let Some(sample) = all.iter().find(|sample| sample.name == args.name) else {
        let names: Vec<&str> = all.iter().map(|sample| sample.name).collect();
        bail!("'{}' is no kernel of this program; there are {}", args.name, names.join(", "));
    };
    let adjoint = if args.grad { Some(sample.kernel.grad()?) } else { None };
    if let Some(grad) = adjoint.as_ref().filter(|_| args.tape) {
        line(format_args!("{}", grad.report.to_string().trim_end()));
        return Ok(());
    }
    let kernel = adjoint.as_ref().map_or(&sample.kernel, |grad| &grad.kernel);
    let mut compiler = spirv::compiler(Target::ANY);
    if args.verify {
        compiler = compiler.verify(true);
    }
    if args.opt == 0 {
        compiler = compiler.unoptimised();
    }
    if let Some(folder) = &args.dump {
        compiler = compiler.dump_to(folder);
    }
    let module = compiler.compile(std::slice::from_ref(kernel))?;
    for message in compiler.messages().to_string().lines() {
        eprintln!("note: {message}");
    }
    let shown = match args.stage.as_str() {
        "spirv" => module.disassemble().map_err(|e| anyhow!("{}: {e}", sample.name))?,
        stage => at_stage(kernel, stage, args.opt == 0)?,
    };
    line(format_args!("{}", shown.trim_end()));
    Ok(())
}

/// The kernel as it is written, after the last turn of a pass, or at the end.
fn at_stage(kernel: &Kernel, stage: &str, plain: bool) -> anyhow::Result<String> {
    if stage == "built" || plain {
        return Ok(kernel.to_string());
    }
    let (mut found, mut names) = (None, Vec::new());
    let last = optimise_seen(kernel, &mut |pass, now| {
        if pass == stage {
            found = Some(now.to_string());
        }
        if !names.contains(&pass) {
            names.push(pass);
        }
    })?;
    match found {
        _ if stage == "optimised" => Ok(last.to_string()),
        Some(text) => Ok(text),
        None => bail!("'{stage}' is no stage; there are built, {}, optimised and spirv", names.join(", ")),
    }
}
