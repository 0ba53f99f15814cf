//! Results on the screen: of benchmarks and of inspections.

use std::io::Write;
use std::path::Path;

use impasto::backend::cpu::{Cpu, CpuOptions, findings};
use impasto::bench::{self, CpuBench, Spread};
use impasto::generate::picture::Picture;
use impasto::model::{Model, ModelPaths};
use impasto::{BackendOptions, TensorGroup};
use serde::Serialize;

use super::{BenchBands, BenchCpu, BenchLoad, BenchModel, BenchOps, BenchStream, BenchTypes, BenchWorker, Common};

/// Steps of a network that are shown one by one; all of them are in the JSON.
const STEPS_SHOWN: usize = 12;

/// A line of results. A reader that has gone away has seen enough; any other failure to write them is one of the program.
pub fn line(line: std::fmt::Arguments) {
    let mut out = std::io::stdout();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(e) => {
            eprintln!("error: the results cannot be written to standard output: {e}");
            std::process::exit(1)
        }
    }
}

macro_rules! say {
    ($($part:tt)*) => {
        line(format_args!($($part)*))
    };
}

/// Bytes as people read them.
pub fn bytes(count: u64) -> String {
    match count {
        u64::MAX => "unlimited".into(),
        0..0x10_0000 => format!("{} KiB", count.div_ceil(1 << 10)),
        0x10_0000..0x4000_0000 => format!("{} MiB", count >> 20),
        _ => format!("{:.1} GiB", count as f64 / f64::from(1 << 30)),
    }
}

/// Rows of a table, in columns.
pub fn rows<const N: usize>(rows: &[[String; N]]) {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
        say!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

pub fn json(line: &impl Serialize) {
    say!("{}", serde_json::to_string(line).expect("a line is plain data"));
}

pub fn inspect(file: &Path, as_json: bool) -> anyhow::Result<()> {
    let found = impasto::inspect(file)?;
    if as_json {
        json(&found);
        return Ok(());
    }
    for file in &found.files {
        say!("{file}");
    }
    let row = |name: &str, part: &TensorGroup| {
        say!("{name:<72} {:>8} {:>14} {:>10.1}", part.tensors, part.parameters, part.bytes as f64 / 1e6);
    };
    let kind = found.family.as_ref().or(found.kind.as_ref()).map(String::as_str);
    say!(
        "{}: {}",
        found.formats.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
        kind.unwrap_or("no diffusion model that is known here")
    );
    if let Some(architecture) = &found.architecture {
        say!("architecture {architecture}");
    }
    if let Some(prediction) = &found.prediction {
        let what = match prediction.as_str() {
            "v" => "the velocity (v)",
            "flow" => "the flow",
            _ => "the noise (epsilon)",
        };
        say!("predicts {what}");
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
    if !found.undecodable.is_empty() {
        say!("cannot be decoded: {}", found.undecodable.join(", "));
    }
    for (key, value) in &found.metadata {
        let short: String = value.chars().take(100).collect();
        say!("{key}: {short}{}", if short.len() < value.len() { " ..." } else { "" });
    }
    if !found.long_values.is_empty() {
        say!("too long to show: {}", found.long_values.join(", "));
    }
    Ok(())
}

pub fn bench_bands(args: &BenchBands) -> anyhow::Result<()> {
    if args.least {
        let l = bench::bands_least(args.size as usize)?;
        if args.common.json {
            json(&l);
            return Ok(());
        }
        let mb = |bytes: u64| format!("{:.0} MB", bytes as f64 / 1e6);
        let least = |l: Option<(u64, usize)>| l.map_or("-".into(), |(bytes, n)| format!("{} in {n} bands", mb(bytes)));
        say!("{}: whole {}", l.name, mb(l.whole_bytes));
        say!("  least with all bands on the device: {}", least(l.on_the_device));
        say!("  least with bands resting in host memory: {}", least(l.resting));
        if let Some((bands, host, copied)) = l.third {
            say!("  a third: {bands} bands, {} in host memory, {} copied", mb(host), mb(copied));
        }
        return Ok(());
    }
    let cpu = Cpu::new(&CpuOptions { memory: args.memory.then_some(u64::MAX), ..args.common.options()? })?;
    let mb = |bytes: u64| bytes as f64 / 1e6;
    if args.memory {
        if !args.common.json {
            say!("{:<22} {:>5} {:>10} {:>10} {:>6} {:>9}", "", "bands", "arena MB", "largest", "steps", "seconds");
        }
        return bench::bands_memory(&cpu, args.size as usize, |l| match args.common.json {
            true => json(l),
            false => {
                let (arena, largest) = (mb(l.arena_bytes), mb(l.largest_binding));
                say!("{:<22} {:>5} {arena:>10.1} {largest:>10.1} {:>6} {:>9.4}", l.name, l.bands, l.steps, l.seconds)
            }
        });
    }
    let l = bench::bands_time(&cpu, args.size as usize, args.bands.into(), args.runs)?;
    if let Some(path) = &args.difference {
        let size = args.size as usize;
        let [whole, tiled] = &l.tiles.pictures;
        let apart: Vec<u8> = whole.iter().zip(tiled).map(|(a, b)| a.abs_diff(*b).saturating_mul(8)).collect();
        let rows = (0..size).flat_map(|y| [whole, tiled, &apart].map(|picture| &picture[y * size * 3..][..size * 3]));
        let rgb = rows.flatten().copied().collect();
        Picture { width: 3 * size, height: size, rgb }.write(path, "", false)?;
    }
    if args.common.json {
        json(&l);
    } else {
        let [whole, banded] = l.arena_bytes.map(mb);
        let same = if l.same_bits { "the same bits" } else { "OTHER BITS" };
        let times = format!("{:.2} s whole, {:.2} s in {} bands", l.whole_seconds, l.banded_seconds, l.bands);
        say!("{times}: {:.3} times as long, {same}; arena {whole:.0} MB and {banded:.0} MB", l.ratio);
        let (t, arena) = (&l.tiles, mb(l.tiles.arena_bytes));
        let times = format!("{:.2} s in {} tiles of {}x{}", t.seconds, t.tiles, t.side, t.side);
        say!("{times}: {:.3} times as long, {:.1} dB from the whole; arena {arena:.0} MB", t.ratio, t.psnr);
        for (name, profile) in ["whole", "in bands"].iter().zip(&l.profile) {
            let parts: Vec<String> = profile.iter().take(9).map(|(op, s)| format!("{op} {s:.2}")).collect();
            say!("  {name}: {}", parts.join(", "));
        }
    }
    anyhow::ensure!(l.same_bits, "bands yield another picture than the whole");
    Ok(())
}

pub fn bench_cpu(args: &BenchCpu) -> anyhow::Result<()> {
    let options = args.common.options()?;
    let what = CpuBench {
        isa: options.isa,
        filter: args.filter.clone(),
        threads: options.threads,
        precision: options.precision,
        seconds: args.seconds,
        undisturbed: args.undisturbed,
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

pub fn bench_types(args: &BenchTypes) -> anyhow::Result<()> {
    let BenchTypes { model: args, types, lora } = args;
    let rank = lora.map(|rank| rank as usize);
    let options = BackendOptions { cpu: args.common.options()?, isolate: args.isolate, ..BackendOptions::default() };
    let backend = impasto::open_device(&args.backend, &options)?;
    let lines = bench::types(&*backend, &args.family, args.size as usize, args.runs, types, rank)?;
    if args.common.json {
        lines.iter().for_each(json);
        return Ok(());
    }
    say!("{} at {} on {}, medians of {} turns", args.family.name, args.size, backend.profile().about(), args.runs);
    let head = ["weights", "step", "against the first", "bytes of weights", "arena"].map(str::to_owned);
    let row = |line: &bench::TypeLine| {
        [
            line.storage.clone(),
            format!("{:.4} s", line.seconds),
            format!("{:.3}", line.ratio),
            bytes(line.weight_bytes),
            bytes(line.arena_bytes),
        ]
    };
    rows(&[vec![head], lines.iter().map(row).collect()].concat());
    Ok(())
}

pub fn bench_ops(args: &BenchOps) -> anyhow::Result<()> {
    let (cpu, isolate) = (args.common.options()?, impasto::generate::settings::Isolate::Off);
    let options = BackendOptions { cpu, isolate, time_steps: true, ..BackendOptions::default() };
    let backend = impasto::open_device(&args.backend, &options)?;
    bench::ops(&*backend, args.runs, |l| {
        if args.common.json {
            return json(l);
        }
        let (us, tflops) = (l.seconds * 1e6, l.gflops / 1e3);
        say!("{:<32} {us:>9.1} us {tflops:>7.1} TFLOP/s, {:.0} % of the peak", l.name, 100.0 * l.ratio);
    })
}

pub fn bench_model(args: &BenchModel) -> anyhow::Result<()> {
    let (cpu, isolate, time_steps) = (args.common.options()?, args.isolate, args.by_op);
    let options = BackendOptions { cpu, isolate, time_steps, ..BackendOptions::default() };
    let backend = impasto::open_device(&args.backend, &options)?;
    bench::model(&*backend, &args.family, args.size as usize, args.bands, args.runs, |l| {
        if args.common.json {
            return json(l);
        }
        say!(
            "{}: {:.4} s, {:.0} GFLOP/s, {:.1} % of the peak of {:.0} on {}; arena {:.0} MB, weights {:.0} MB; made ready in {:.1} s",
            l.name,
            l.seconds,
            l.gflops,
            100.0 * l.ratio,
            l.peak_gflops,
            backend.profile().about(),
            l.arena_bytes as f64 / 1e6,
            l.weight_bytes as f64 / 1e6,
            l.pack_seconds + l.prepare_seconds + l.first_seconds,
        );
        if let Some(least) = l.least_seconds {
            say!("    each step at its best {least:>8.4} s {:>5.1} % of the peak", 100.0 * l.ratio * l.seconds / least);
        }
        for (op, seconds) in &l.profile {
            say!("    {op:<20} {seconds:>9.4} s {:>5.1} %", 100.0 * seconds / l.least_seconds.unwrap_or(l.seconds));
        }
        for s in l.steps.iter().take(STEPS_SHOWN) {
            say!("    {:<9} {:<60} {:>9.4} s {:>7.0} GFLOP/s", s.op, s.label, s.seconds, s.gflops);
        }
    })
}

pub fn bench_plan(args: &Common) -> anyhow::Result<()> {
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

pub fn bench_load(args: &BenchLoad) -> anyhow::Result<()> {
    let model = match &args.model {
        Some(path) => Model::open(&ModelPaths { model: Some(path.clone()), ..ModelPaths::default() })?,
        None => impasto::default_model()?,
    };
    let options = BackendOptions { cpu: args.common.options()?, isolate: args.isolate, ..BackendOptions::default() };
    let l = bench::load(&model, &args.backend, &options, args.runs)?;
    if args.common.json {
        json(&l);
        return Ok(());
    }
    let rate = |bytes: u64, seconds: f64| bytes as f64 / seconds / 1e9;
    say!("the diffusion model of {} on {}; MB are millions of bytes", model.title, l.device);
    say!("{:<22} {:>9} {:>9} {:>7}", "", "MB", "seconds", "GB/s");
    let row = |what: &str, bytes: u64, seconds: f64| {
        say!("{what:<22} {:>9.1} {seconds:>9.3} {:>7.2}", bytes as f64 / 1e6, rate(bytes, seconds));
    };
    row("reading into memory", l.file_bytes, l.read);
    row("loading", l.device_bytes, l.load);
    let Spread { least, median, most } = l.ratio;
    say!("loading takes {median:.2} times as long as reading ({least:.2} to {most:.2}) with {} threads", l.threads);
    Ok(())
}

pub fn bench_worker(args: &BenchWorker) -> anyhow::Result<()> {
    let l = bench::worker(&args.backend, args.size as usize, args.runs)?;
    if args.json {
        json(&l);
        return Ok(());
    }
    let size = args.size;
    say!("a step of the model inside the program at {size}x{size} with guidance on {}", args.backend);
    let more = |ratio: f64| 100.0 * (ratio - 1.0);
    let spread = |s: &Spread| format!("{:+.2} % ({:+.2} to {:+.2})", more(s.median), more(s.least), more(s.most));
    say!("in this process      {:>8.4} s (first {:.4} s)", l.here, l.first_here);
    say!("in a worker process  {:>8.4} s (first {:.4} s)", l.worker, l.first_worker);
    say!("{} turns: a worker takes {} longer", args.runs, spread(&l.ratio));
    if let (Some(ratio), Some(here), Some(added)) = (&l.cpu_ratio, l.cpu_here, l.cpu_added) {
        say!("and {} more time of processors, which other work disturbs less", spread(ratio));
        say!(
            "what asks, watches and listens takes {:.4} s of processors for a step of {here:.4} s: {:.2} %",
            added,
            100.0 * added / here
        );
    }
    say!(
        "start of the worker with its device open {:.4} s, weights {:.4} s there, {:.4} s here",
        l.start,
        l.load_worker,
        l.load_here
    );
    say!("the results are {}", if l.same { "the same bits" } else { "different" });
    Ok(())
}

pub fn bench_stream(args: &BenchStream) -> anyhow::Result<()> {
    let name = args.family.name;
    let (size, shares) = (args.size as usize, [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05]);
    if !args.common.json {
        say!("a step of {name} at {size}x{size} on {}; MB are millions of bytes", args.backend);
        say!(
            "{:>6} {:>9} {:>9} {:>9} {:>6} {:>11} {:>9} {:>9} {:>7}",
            "budget",
            "MB",
            "peak MB",
            "seconds",
            "times",
            "brought MB",
            "copying",
            "waiting",
            "hidden"
        );
    }
    let mut lines = vec![];
    bench::stream(&args.backend, args.common.options()?, &args.family, size, args.runs, &shares, |l| {
        lines.push(l.clone());
        let mb = |bytes: u64| bytes as f64 / 1e6;
        match (args.common.json, l.seconds) {
            (true, _) => json(l),
            (false, None) => say!("{:>5.0}% {:>9.1} does not fit", 100.0 * l.share, mb(l.budget)),
            (false, Some(seconds)) => say!(
                "{:>5.0}% {:>9.1} {:>9.1} {seconds:>9.4} {:>6.2} {:>11.1} {:>9.4} {:>9.4} {:>6.1}%",
                100.0 * l.share,
                mb(l.budget),
                mb(l.peak),
                l.times.unwrap_or(1.0),
                mb(l.bytes),
                l.copying,
                l.waiting,
                100.0 * l.hidden
            ),
        }
    })?;
    if let Some(file) = &args.plot {
        let title = format!("A step of {name} at {size}x{size} on {}, by the memory that it may use", args.backend);
        std::fs::write(file, bench::plot(&lines, &title))?;
    }
    Ok(())
}

fn whole_command() -> clap::Command {
    super::arguments::command(<super::Command as clap::Subcommand>::augment_subcommands)
}

pub fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut text = vec![];
    clap_complete::generate(shell, &mut whole_command(), "impasto", &mut text);
    say!("{}", String::from_utf8_lossy(&text).trim_end());
    Ok(())
}

pub fn manual() -> anyhow::Result<()> {
    let mut text = vec![];
    clap_mangen::Man::new(whole_command()).render(&mut text)?;
    say!("{}", String::from_utf8_lossy(&text).trim_end());
    Ok(())
}
