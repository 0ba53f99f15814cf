//! The `impasto` command.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use impasto::Part;
use impasto::backend::cpu::{Cpu, CpuOptions, Precision, findings};
use impasto::bench::{self, CpuBench, Family};
use serde::Serialize;

/// Words to pictures on whatever hardware it finds, and it always finishes.
///
/// This version has the ground floor: the tensor graph, the exact plan, the CPU backend, the networks of Stable Diffusion and
/// the reader of their files, and benchmarks that show how near to the machine's limit they run. Pictures come next.
#[derive(Parser)]
#[command(version, after_help = "IMPASTO_CPU=amx|avx512bf16|avx512|avx2|portable forces an instruction path.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show what is in a model file: modules, parameters, element types, sizes.
    Inspect {
        /// A .safetensors file (also .zst), the index of one in shards, a folder with one of them, or a diffusers folder.
        file: PathBuf,
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Measure how near to the machine's limit things run.
    #[command(subcommand)]
    Bench(Bench),
}

#[derive(Subcommand)]
enum Bench {
    /// Matrix products, convolutions and attention on the CPU, as a share of the peak of the same run.
    Cpu(BenchCpu),
    /// Whole networks of true size on random weights, as a share of the peak of the same run, with a profile.
    Model(BenchModel),
    /// Plans of the real networks: memory, how near to the least possible, and the time that planning takes.
    Plan(Common),
}

#[derive(Args)]
struct Common {
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
    /// Threads; by default as many as this process may use.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
    /// What products are computed in: auto, f32 or bf16.
    #[arg(long, value_name = "NAME", default_value = "auto")]
    precision: Precision,
}

#[derive(Args)]
struct BenchCpu {
    #[command(flatten)]
    common: Common,
    /// Only cases whose name contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Seconds for each case.
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    seconds: f64,
}

#[derive(Args)]
struct BenchModel {
    #[command(flatten)]
    common: Common,
    /// Which networks: sd15 or sdxl.
    #[arg(long, value_name = "NAME", default_value = "sd15")]
    family: Family,
    /// Pixels along a side of the picture.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(64..=4096))]
    size: u32,
    /// Runs, of which the median counts.
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: usize,
}

impl Common {
    fn options(&self) -> anyhow::Result<CpuOptions> {
        let threads = self.threads.map(|n| n as usize);
        Ok(CpuOptions { threads, precision: self.precision, ..CpuOptions::from_env()? })
    }
}

fn main() -> ExitCode {
    impasto::probe_hook();
    let done = match Cli::parse().command {
        Command::Inspect { file, json } => inspect(&file, json),
        Command::Bench(Bench::Cpu(args)) => bench_cpu(&args),
        Command::Bench(Bench::Model(args)) => bench_model(&args),
        Command::Bench(Bench::Plan(args)) => bench_plan(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A line of results. A reader that has gone away has seen enough: no error, no panic.
fn print_line(line: std::fmt::Arguments) {
    if writeln!(std::io::stdout(), "{line}").is_err() {
        std::process::exit(0);
    }
}

macro_rules! say {
    ($($part:tt)*) => {
        print_line(format_args!($($part)*))
    };
}

fn json(line: &impl Serialize) {
    say!("{}", serde_json::to_string(line).expect("a line is plain data"));
}

fn inspect(file: &Path, as_json: bool) -> anyhow::Result<()> {
    let found = impasto::inspect(file)?;
    if as_json {
        json(&found);
        return Ok(());
    }
    for file in &found.files {
        say!("{file}");
    }
    let row = |name: &str, part: &Part| {
        say!("{name:<72} {:>8} {:>14} {:>10.1}", part.tensors, part.parameters, part.bytes as f64 / 1e6);
    };
    say!("{}", found.family.as_deref().unwrap_or("no diffusion model that is known here"));
    if let Some(prediction) = &found.prediction {
        say!("predicts {}", if prediction == "v" { "the velocity (v)" } else { "the noise (epsilon)" });
    }
    for text in &found.text {
        say!("text of width {}: {} layers, {} heads, {}", text.width, text.layers, text.heads, text.activation);
    }
    for line in found.notes.iter().chain(&found.problem) {
        say!("{line}");
    }
    say!("{:<72} {:>8} {:>14} {:>10}", "", "tensors", "parameters", "MB");
    found.networks.iter().for_each(|(name, part)| row(name, part));
    found.elements.iter().for_each(|(name, part)| row(&format!("stored as {name}"), part));
    row("all", &found.total);
    for (what, names) in [("missing", &found.missing), ("not used", &found.unused)] {
        // A few names show what they are; --json has all of them.
        let some: Vec<&str> = names.iter().take(5).map(String::as_str).collect();
        match names.len() {
            0 => {}
            n => say!("{what}: {n} tensors: {}{}", some.join(", "), if n > 5 { ", ..." } else { "" }),
        }
    }
    for (key, value) in &found.metadata {
        let short: String = value.chars().take(100).collect();
        say!("{key}: {short}{}", if short.len() < value.len() { " ..." } else { "" });
    }
    Ok(())
}

fn bench_cpu(args: &BenchCpu) -> anyhow::Result<()> {
    let options = args.common.options()?;
    let what = CpuBench {
        isa: options.isa,
        filter: args.filter.clone(),
        threads: options.threads,
        precision: options.precision,
        seconds: args.seconds,
    };
    if !args.common.json {
        for f in findings().iter().filter(|f| !f.usable) {
            eprintln!("{}: not used: {}", f.isa, f.reason);
        }
        say!("{:<22} {:<11} {:>10} {:>10} {:>7}", "work", "path", "GFLOP/s", "peak", "share");
    }
    bench::cpu(&what, |l| match args.common.json {
        true => json(l),
        false => {
            say!("{:<22} {:<11} {:>10.1} {:>10.1} {:>6.1}%", l.name, l.isa, l.gflops, l.peak_gflops, 100.0 * l.ratio)
        }
    })
}

fn bench_model(args: &BenchModel) -> anyhow::Result<()> {
    let cpu = Cpu::new(&args.common.options()?)?;
    bench::model(&cpu, args.family, args.size as usize, args.runs, |l| {
        if args.common.json {
            return json(l);
        }
        say!(
            "{}: {:.2} s, {:.0} GFLOP/s, {:.1} % of the peak of {:.0} on {}; arena {:.0} MB, weights {:.0} MB",
            l.name,
            l.seconds,
            l.gflops,
            100.0 * l.ratio,
            l.peak_gflops,
            cpu.isa(),
            l.arena_bytes as f64 / 1e6,
            l.weight_bytes as f64 / 1e6
        );
        for (op, seconds) in &l.profile {
            say!("    {op:<20} {seconds:>8.3} s {:>5.1} %", 100.0 * seconds / l.seconds);
        }
    })
}

fn bench_plan(args: &Common) -> anyhow::Result<()> {
    // Planning takes no memory: what this machine could not run is planned too.
    let cpu = Cpu::new(&CpuOptions { memory: Some(u64::MAX), ..args.options()? })?;
    if !args.json {
        let threads = cpu.threads();
        say!("for {} on {threads} threads; MB are millions of bytes", cpu.isa());
        say!(
            "{:<22} {:>6} {:>9} {:>9} {:>6} {:>10} {:>9} {:>15}",
            "network",
            "steps",
            "arena MB",
            "bound MB",
            "ratio",
            "weights MB",
            "plan ms",
            "forward / plan"
        );
    }
    bench::plans(&cpu, |l| match args.json {
        true => json(l),
        false => say!(
            "{:<22} {:>6} {:>9.1} {:>9.1} {:>6.3} {:>10.1} {:>9.3} {:>15.0}",
            l.name,
            l.steps,
            l.arena_bytes as f64 / 1e6,
            l.lower_bound as f64 / 1e6,
            l.ratio,
            l.weight_bytes as f64 / 1e6,
            1e3 * l.seconds,
            1.0 / l.share_of_forward
        ),
    })
}
