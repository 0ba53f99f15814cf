//! Modules of others: optimised, and compared by what they do.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use impasto::bench;
use impasto::spirv::{
    Comparison, Diff, DiffError, DiffOptions, DiffVerdict, Environment, ModuleOptions, count_instructions,
    optimise_words_seen,
};
use impasto_vulkan::{Loader, PhysicalDeviceType, VulkanDevice};
use serde::{Deserialize, Serialize};

use super::show::{json, line};

/// Bytes of a module; more are not read.
const MOST_BYTES: u64 = 1 << 28;

#[derive(Args)]
pub struct KernelOpt {
    /// The module, SPIR-V 1.0 to 1.6; - reads from the standard input.
    #[arg(value_name = "IN.spv")]
    pub input: PathBuf,
    /// Where the optimised module goes; - writes to the standard output.
    #[arg(short, long, value_name = "OUT.spv")]
    pub output: PathBuf,
    /// Say what became of it: instructions, ids, bytes, seconds, and functions that were passed through.
    #[arg(long)]
    pub stats: bool,
    /// The same as one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Refuse modules that this environment does not take.
    #[arg(long, value_name = "NAME", value_parser = environment)]
    pub target_env: Option<Environment>,
    /// Refuse functions that are not understood, instead of passing them through.
    #[arg(long)]
    pub strict: bool,
    /// Write the text of every entry point after every pass into this folder.
    #[arg(long, value_name = "DIR")]
    pub dump: Option<PathBuf>,
    /// Check every entry point after each pass, and name the pass that breaks it.
    #[arg(long)]
    pub verify: bool,
}

#[derive(Args)]
pub struct KernelDiff {
    /// One module.
    #[arg(value_name = "A.spv")]
    pub a: PathBuf,
    /// The other one.
    #[arg(value_name = "B.spv")]
    pub b: PathBuf,
    /// The seed of what is in the buffers.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub inputs: u64,
    /// Elements of the arrays at the ends of buffers.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 26))]
    pub elements: u32,
    /// Workgroups, such as 4,1,1; by default four along each side that the workgroup has.
    #[arg(long, value_name = "X,Y,Z", value_parser = groups)]
    pub groups: Option<[u32; 3]>,
    /// Only on the CPU.
    #[arg(long)]
    pub no_device: bool,
    /// Only on a device, which may crash: without the CPU.
    #[arg(long, conflicts_with = "no_device")]
    pub no_cpu: bool,
    /// Ask the device's driver not to optimise, for modules that its compiler cannot digest.
    #[arg(long, conflicts_with = "no_device")]
    pub plain_driver: bool,
    /// Give the device up that has not answered until then; a driver may compile a large module for minutes.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,
    /// This process is the child that asks the device.
    #[arg(long, hide = true)]
    pub child: bool,
}

fn environment(text: &str) -> Result<Environment, String> {
    let found = Environment::ALL.into_iter().find(|e| e.name == text);
    found.ok_or_else(|| format!("there are {}", Environment::ALL.map(|e| e.name).join(", ")))
}

fn groups(text: &str) -> Result<[u32; 3], String> {
    let parts: Result<Vec<u32>, _> = text.split(',').map(str::parse).collect();
    let parts: Option<[u32; 3]> = parts.ok().and_then(|p| p.try_into().ok());
    parts
        .filter(|p| p.iter().all(|n| (1..=65_535).contains(n)))
        .ok_or_else(|| "three numbers, such as 4,1,1".to_owned())
}

/// The words of a file, or of the standard input.
fn read(file: &Path) -> anyhow::Result<Vec<u32>> {
    let mut bytes = Vec::new();
    let name = file.display();
    if file == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(MOST_BYTES + 1)
            .read_to_end(&mut bytes)
            .context("the standard input cannot be read")?;
    } else {
        let opened = std::fs::File::open(file).with_context(|| format!("{name} cannot be opened"))?;
        opened.take(MOST_BYTES + 1).read_to_end(&mut bytes).with_context(|| format!("{name} cannot be read"))?;
    }
    ensure!(
        bytes.len() as u64 <= MOST_BYTES,
        "{name}: word {}: modules of more than 256 MB are not read",
        MOST_BYTES / 4
    );
    ensure!(
        bytes.len().is_multiple_of(4),
        "{name}: word {}: it ends within a word: {} bytes are no number of words",
        bytes.len() / 4,
        bytes.len()
    );
    Ok(bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

/// What became of a module.
#[derive(Serialize)]
struct Stats {
    input: String,
    instructions: [usize; 2],
    ids: [u32; 2],
    bytes: [usize; 2],
    seconds: f64,
    passed_through: Vec<PassedThrough>,
}

#[derive(Serialize)]
struct PassedThrough {
    function: String,
    word: usize,
    reason: String,
}

pub fn opt(args: &KernelOpt) -> anyhow::Result<()> {
    let name = args.input.display().to_string();
    let words = read(&args.input)?;
    if let Some(folder) = &args.dump {
        std::fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    }
    let mut dumped = Ok(());
    let mut number = 0;
    let begin = Instant::now();
    let mut options = ModuleOptions { strict: args.strict, environment: args.target_env, ..ModuleOptions::default() };
    options.verify |= args.verify;
    let made = optimise_words_seen(&words, options, &mut |pass, entry, text| {
        if let (Some(folder), Ok(())) = (&args.dump, &dumped) {
            let entry: String = entry.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
            dumped = std::fs::write(folder.join(format!("{number:02}-{entry}-{pass}.txt")), text.to_string());
            number += 1;
        }
    });
    let made = made.with_context(|| name.clone())?;
    let seconds = begin.elapsed().as_secs_f64();
    dumped.context("the dump cannot be written")?;
    let bytes: Vec<u8> = made.words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let to_stdout = args.output == Path::new("-");
    if to_stdout {
        std::io::stdout().lock().write_all(&bytes).context("the standard output cannot be written")?;
    } else {
        std::fs::write(&args.output, &bytes).with_context(|| format!("{} cannot be written", args.output.display()))?;
    }
    let stats = Stats {
        input: name,
        instructions: [count_instructions(&words), count_instructions(&made.words)],
        ids: [words[3], made.words[3]],
        bytes: [4 * words.len(), bytes.len()],
        seconds,
        passed_through: made
            .passed
            .into_iter()
            .map(|p| PassedThrough { function: p.function, word: p.word, reason: p.reason })
            .collect(),
    };
    for p in &stats.passed_through {
        eprintln!("note: the function '{}' is passed through as it is: word {}: {}", p.function, p.word, p.reason);
    }
    // What goes to the standard output is the module.
    let say = |text: String| if to_stdout { eprintln!("{text}") } else { line(format_args!("{text}")) };
    if args.json {
        say(serde_json::to_string(&stats)?);
    } else if args.stats {
        let [a, b] = stats.instructions;
        say(format!("instructions {a} -> {b}"));
        say(format!("ids          {} -> {}", stats.ids[0], stats.ids[1]));
        say(format!("bytes        {} -> {}", stats.bytes[0], stats.bytes[1]));
        say(format!("seconds      {seconds:.4}"));
    }
    Ok(())
}

/// What a comparison found, in one place.
#[derive(Serialize, Deserialize)]
struct Found {
    /// The CPU reference, or the name of the device.
    place: String,
    entry: String,
    scalars: usize,
    changed: usize,
    /// Floats that differ as a device may round.
    rounded: usize,
    /// Whether a module leaves its buffers and arrays, on the CPU reference.
    #[serde(default)]
    strayed: bool,
    difference: Option<String>,
    /// Launches that were compared.
    #[serde(default)]
    launches: usize,
    /// How much of both modules ran, on the CPU reference.
    #[serde(default)]
    reached: Option<String>,
    /// What became of the instructions that differ, if nothing came of them.
    #[serde(default)]
    differing: Option<String>,
    /// Equal, but with inputs that do not reach enough of the modules to say so.
    #[serde(default)]
    not_enough: bool,
    /// Why nothing was compared.
    problem: Option<String>,
}

impl Found {
    /// Nothing was compared.
    fn none(place: String, entry: String) -> Found {
        Found {
            place,
            entry,
            scalars: 0,
            changed: 0,
            rounded: 0,
            strayed: false,
            difference: None,
            launches: 0,
            reached: None,
            differing: None,
            not_enough: false,
            problem: None,
        }
    }
}

/// A comparison that shows neither a difference nor that there is none; the program ends with 2.
#[derive(Debug)]
pub struct NotEnough {
    doubtful: usize,
    all: usize,
}

impl std::error::Error for NotEnough {}

impl std::fmt::Display for NotEnough {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let NotEnough { doubtful, all } = self;
        write!(
            f,
            "no difference was found, but {doubtful} of {all} comparisons show too little to call the modules equal; other inputs \
             (--inputs SEED, --groups X,Y,Z, --elements N) may reach more, and --no-device or --no-cpu leave one side out"
        )
    }
}

pub fn diff(args: &KernelDiff) -> anyhow::Result<()> {
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    let options = DiffOptions {
        seed: args.inputs,
        groups: args.groups,
        elements: args.elements,
        plain_driver: args.plain_driver,
        ..DiffOptions::default()
    };
    let diff = Diff::new(&a, &b, options)?;
    if args.child {
        return child(&diff);
    }
    let mut all = Vec::new();
    if !args.no_cpu {
        for entry in diff.entries() {
            all.push(found("CPU reference", entry, diff.on_cpu(entry)));
        }
    }
    if !args.no_device {
        all.extend(apart(args)?);
    }
    for f in &all {
        if args.json {
            json(f);
        } else {
            line(format_args!("{}", told(f)));
        }
    }
    let different = all.iter().filter(|f| f.difference.is_some()).count();
    ensure!(different == 0, "the modules compute different things in {different} of {} comparisons", all.len());
    let doubtful = all.iter().filter(|f| f.problem.is_some() || f.not_enough).count();
    if doubtful > 0 {
        return Err(NotEnough { doubtful, all: all.len() }.into());
    }
    Ok(())
}

/// What a comparison found, as a line.
fn told(f: &Found) -> String {
    let Found { place, entry, scalars, changed, rounded, launches, .. } = f;
    let reached = f.reached.as_ref().map_or(String::new(), |r| format!("; reached {r}"));
    let differing = f.differing.as_ref().map_or(String::new(), |d| format!("; {d}"));
    let extent = format!("{scalars} scalars ({changed} changed) of {launches} launches{reached}{differing}");
    match (&f.difference, &f.problem) {
        (Some(difference), _) => {
            let note = if f.strayed { "; a module reads or writes outside of its buffers or arrays" } else { "" };
            format!("{place}: DIFFERENT: {difference}{note}")
        }
        (_, Some(problem)) => format!("{place}: '{entry}' was not compared: {problem}"),
        _ if f.not_enough => {
            format!("{place}: '{entry}' NOT REACHED: no difference, but too little ran to call them equal: {extent}")
        }
        _ if *rounded > 0 => format!("{place}: '{entry}' equal but for rounding of {rounded} scalars, {extent}"),
        _ => format!("{place}: '{entry}' equal, {extent}"),
    }
}

fn found(place: &str, entry: &str, compared: Result<Comparison, DiffError>) -> Found {
    let (place, entry) = (place.to_owned(), entry.to_owned());
    match compared {
        Ok(c) => Found {
            place,
            entry,
            scalars: c.scalars,
            changed: c.changed,
            rounded: c.rounded,
            strayed: c.strayed,
            not_enough: c.verdict() == DiffVerdict::NotReached,
            launches: c.launches,
            reached: c.reach.map(|r| r.to_string()),
            differing: (c.differing.all > 0 && c.first.is_none()).then(|| c.differing.to_string()),
            difference: c.first.map(|d| d.to_string()),
            problem: None,
        },
        // That one of them does not end is a difference.
        Err(e @ DiffError::Endless { .. }) => Found { difference: Some(e.to_string()), ..Found::none(place, entry) },
        Err(e) => Found { problem: Some(e.to_string()), ..Found::none(place, entry) },
    }
}

/// Asks the device in a child: a driver may crash on words that nobody has tried on it.
fn apart(args: &KernelDiff) -> anyhow::Result<Vec<Found>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["kernel", "diff", "--child", "--json"]).arg(&args.a).arg(&args.b);
    command.args(["--inputs", &args.inputs.to_string(), "--elements", &args.elements.to_string()]);
    if let Some([x, y, z]) = args.groups {
        command.args(["--groups", &format!("{x},{y},{z}")]);
    }
    command.args(args.plain_driver.then_some("--plain-driver"));
    let failed =
        |problem: String| vec![Found { problem: Some(problem), ..Found::none("device".to_owned(), String::new()) }];
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("this program could not be started again")?;
    let mut out = child.stdout.take().context("the child has no output")?;
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        out.read_to_string(&mut text).map(|_| text)
    });
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begin.elapsed() > Duration::from_secs(args.seconds) {
            child.kill()?;
            child.wait()?;
            return Ok(failed(format!(
                "no answer within {} seconds (--seconds N waits longer; --plain-driver asks for less)",
                args.seconds
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let text = reader.join().ok().and_then(Result::ok).unwrap_or_default();
    let all: Vec<Found> = text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
    if all.is_empty() {
        let mut why = String::new();
        if let Some(mut err) = child.stderr.take() {
            err.read_to_string(&mut why)?;
        }
        return Ok(failed(format!("the process that asked it ended with {status}: {}", why.trim())));
    }
    Ok(all)
}

/// The child: the first GPU, or the software device where there is none.
fn child(diff: &Diff<'_>) -> anyhow::Result<()> {
    let instance = Loader::open()?.create_instance()?;
    let all = instance.enumerate()?;
    let gpu = all.iter().find(|p| p.describe().kind != PhysicalDeviceType::Software);
    let Some(physical) = gpu.or(all.first()) else { bail!("there is no Vulkan device") };
    let device = VulkanDevice::open_for(physical, &diff.capabilities())?;
    let place = physical.describe().label;
    for entry in diff.entries() {
        // SAFETY: this is what the user asks for: to run both modules on the device. This process does nothing else, and may be lost.
        let compared = unsafe { diff.on_device(&device, entry) };
        json(&found(&place, entry, compared));
    }
    Ok(())
}

/// Modules against `spirv-opt`, each in a process of its own.
pub fn bench_modules(files: &[PathBuf], baseline: bool, elements: u32, as_json: bool) -> anyhow::Result<()> {
    if let [file] = files {
        let found = bench::module(&file.display().to_string(), &read(file)?, baseline, elements)?;
        ensure!(found.equal != Some(false), "{}: the optimised module computes something else", file.display());
        if as_json {
            json(&found);
        } else {
            super::kernel::show(&found, false);
        }
        return Ok(());
    }
    for file in files {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "kernel", "--elements", &elements.to_string(), "--module"]).arg(file);
        command.args((!baseline).then_some("--no-baseline")).args(as_json.then_some("--json"));
        let status = command.status().context("this program could not be started again")?;
        ensure!(status.success(), "{}: {status}", file.display());
    }
    Ok(())
}
