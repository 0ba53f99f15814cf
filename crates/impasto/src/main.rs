//! The `impasto` command.

use clap::{Args, Parser, Subcommand};
use impasto::backend::cpu::CpuOptions;
use impasto::bench::{self, CpuBench};

/// Words to pictures on whatever hardware it finds, and it always finishes.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure how near to the machine's limit things run.
    #[command(subcommand)]
    Bench(Bench),
}

#[derive(Subcommand)]
enum Bench {
    /// Matrix products, convolutions and attention on the CPU, as a share of the peak of the same run.
    Cpu(BenchCpu),
}

#[derive(Args)]
struct BenchCpu {
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
    /// Only cases whose name contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Threads; by default as many as this process may use.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Seconds for each case.
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    seconds: f64,
}

fn main() -> anyhow::Result<()> {
    impasto::probe_hook();
    match Cli::parse().command {
        Command::Bench(Bench::Cpu(args)) => bench_cpu(args),
    }
}

fn bench_cpu(args: BenchCpu) -> anyhow::Result<()> {
    let isa = CpuOptions::from_env()?.isa;
    let what = CpuBench { isa, filter: args.filter, threads: args.threads, seconds: args.seconds };
    if !args.json {
        println!("{:<24} {:<11} {:>10} {:>10} {:>7}", "work", "path", "GFLOP/s", "peak", "share");
    }
    bench::cpu(&what, |line| match args.json {
        true => println!("{}", serde_json::to_string(line).expect("a line is plain data")),
        false => println!(
            "{:<24} {:<11} {:>10.1} {:>10.1} {:>6.1}%",
            line.name,
            line.isa,
            line.gflops,
            line.peak_gflops,
            100.0 * line.ratio
        ),
    })
}
