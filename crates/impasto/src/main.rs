//! The `impasto` command.

/// Says something to the user. Who listened may be gone (a closed terminal, a pipe into `head`), which is no reason to give up a picture.
macro_rules! eprintln {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

mod cli;

use std::process::ExitCode;

use clap::{ArgMatches, FromArgMatches, Subcommand};
use cli::{Bench, Command, arguments, convert, devices, kernel, paint, peers, plan, serve, show};
use impasto::generate::GenerateError;
use impasto::weights::ConvertError;

fn main() -> ExitCode {
    impasto::probe_hook();
    let command = arguments::command(Command::augment_subcommands);
    let (args, notes) = match peers::accepted(devices::spelled_out(std::env::args_os())) {
        Ok(accepted) => accepted,
        Err(reason) => return refuse_in_words(&reason),
    };
    notes.iter().for_each(|note| eprintln!("note: {note}"));
    let matches = match command.clone().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => return refuse(&error),
    };
    if let Some(question) = arguments::misspelt(&command, &matches) {
        return refuse_in_words(&question);
    }
    match run(&matches) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", in_words(&error));
            if let Some(error) = error.downcast_ref() {
                return match error {
                    ConvertError::Interrupted => ExitCode::from(130),
                    ConvertError::Rule { .. } | ConvertError::Type { .. } => ExitCode::from(2),
                    _ => ExitCode::FAILURE,
                };
            }
            match error.downcast_ref() {
                Some(GenerateError::Settings(_) | GenerateError::Asked(_) | GenerateError::Assignment(_)) => {
                    ExitCode::from(2)
                }
                Some(GenerateError::Interrupted) => ExitCode::from(130),
                None if error.is::<cli::module::NotEnough>() => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// Addresses without which nothing works: the program alone, its threads and the model inside it need most of them.
const LEAST_ADDRESSES: u64 = 512 << 20;

fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    if let Some(limit) = impasto::device::cpu::address_space().filter(|&limit| limit < LEAST_ADDRESSES) {
        anyhow::bail!(
            "this process may have {} MB of address space, and needs {} at least; raise the limit with `ulimit -v unlimited`",
            limit / 1_000_000,
            LEAST_ADDRESSES / 1_000_000
        );
    }
    let (flags, planned) = match matches.subcommand() {
        None => (arguments::settings(matches), None),
        Some(("generate", matches)) => (arguments::settings(matches), None),
        Some((name @ ("resume" | "decode" | "again"), matches)) => {
            let (file, flags) = (arguments::file(matches), arguments::settings(matches).map_err(GenerateError::from)?);
            let made = match name {
                "resume" => paint::resume(&file, &flags),
                "decode" => paint::decode(&file, &flags),
                _ => paint::again(&file, &flags),
            };
            return Ok(made.map(|()| ExitCode::SUCCESS)?);
        }
        Some(("serve", matches)) => {
            let settings = paint::layered(&arguments::settings(matches).map_err(GenerateError::from)?)?;
            return serve::serve(&serve::Serve::from_arg_matches(matches)?, settings).map(|()| ExitCode::SUCCESS);
        }
        Some(("plan", matches)) => (arguments::settings(matches), Some(arguments::imagined(matches))),
        Some(_) => return run_other(Command::from_arg_matches(matches)?).map(|()| ExitCode::SUCCESS),
    };
    let settings = paint::layered(&flags.map_err(GenerateError::from)?)?;
    match planned {
        Some(devices) => plan::plan(&settings, &devices),
        None => {
            paint::paint(&settings)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn run_other(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Inspect { file, json } => show::inspect(&file, json),
        Command::Convert(args) => convert::convert(&args),
        Command::Devices(args) => devices::devices(&args),
        Command::Kernel(command) => kernel::kernel(&command),
        Command::Bench(Bench::Bands(args)) => show::bench_bands(&args),
        Command::Bench(Bench::Cpu(args)) => show::bench_cpu(&args),
        Command::Bench(Bench::Kernel(args)) => kernel::bench(&args),
        Command::Bench(Bench::Load(args)) => show::bench_load(&args),
        Command::Bench(Bench::Model(args)) => show::bench_model(&args),
        Command::Bench(Bench::Ops(args)) => show::bench_ops(&args),
        Command::Bench(Bench::Plan(args)) => show::bench_plan(&args),
        Command::Bench(Bench::Serve(args)) => serve::bench(&args),
        Command::Bench(Bench::Stream(args)) => show::bench_stream(&args),
        Command::Bench(Bench::Types(args)) => show::bench_types(&args),
        Command::Bench(Bench::Worker(args)) => show::bench_worker(&args),
        Command::Completions { shell } => show::completions(shell),
        Command::Man => show::manual(),
    }
}

/// An error and its causes. Some tell their cause themselves: nothing is said twice.
fn in_words(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn refuse_in_words(reason: &str) -> ExitCode {
    eprintln!("error: {reason}");
    ExitCode::from(2)
}

/// Bad arguments end with 2; help and version are no errors.
fn refuse(error: &clap::Error) -> ExitCode {
    match arguments::explain(error) {
        Some(reason) => eprintln!("error: {reason}"),
        None => drop(error.print()),
    }
    ExitCode::from(error.exit_code() as u8)
}
