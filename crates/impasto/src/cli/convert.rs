//! `impasto convert`: a model, written anew, with progress, and nothing half done when it is interrupted.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use impasto::weights::{Conversion, ConversionReport, ConvertOptions, ElementType, ModelPart, OutputFormat, TypeTotal};
use impasto::{ComponentChoice, file_part, folder_metadata, model_parts};
use serde::Serialize;

use super::Convert;
use super::progress::Progress;
use super::show::{json, line, rows};

/// Names that show what a note is about; all of them are in the JSON.
const NAMES_SHOWN: usize = 3;

/// Tensors of one type, for `--json`.
#[derive(Serialize)]
struct Total {
    tensors: usize,
    bytes: u64,
}

/// What was written, for `--json`.
#[derive(Serialize)]
struct Converted<'a> {
    file: &'a Path,
    architecture: Option<&'a str>,
    before: BTreeMap<String, Total>,
    after: BTreeMap<String, Total>,
    bytes_read: u64,
    bytes_written: u64,
    /// Tensor, type that was asked for, type that it has, reason.
    fallbacks: Vec<[&'a str; 4]>,
    left_out: &'a [String],
    unmatched_rules: &'a [String],
    seconds: f64,
}

pub fn convert(args: &Convert) -> anyhow::Result<()> {
    let Some(format) = OutputFormat::of_path(&args.output) else {
        anyhow::bail!("{}: the name of the result must end in .gguf or .safetensors", args.output.display());
    };
    let rules = args.tensor_type_rules.parse()?;
    let (parts, metadata) = open(args)?;
    let conversion = Conversion::plan(parts, &ConvertOptions { format, storage: args.storage, rules, metadata })?;
    let report = conversion.report();
    if !args.json {
        notes(report, format).iter().for_each(|note| eprintln!("note: {note}"));
    }
    let threads = args
        .threads
        .map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), |threads| threads as usize);
    let (stop, begin, mut progress) = (interruptible(&args.output), Instant::now(), Progress::new());
    let written = conversion.write(&args.output, args.force, threads, &mut |done, of| {
        progress.converting(done, of);
        !stop.load(Ordering::Relaxed)
    });
    progress.clear();
    written?;
    let seconds = begin.elapsed().as_secs_f64();
    match args.json {
        true => json(&converted(&args.output, report, seconds)),
        false => table(&args.output, report, seconds),
    }
    Ok(())
}

/// The model that is meant, and what is to be said of it.
fn open(args: &Convert) -> anyhow::Result<(Vec<ModelPart>, BTreeMap<String, String>)> {
    let Some(model) = &args.model else {
        let files = [
            (&args.diffusion_model, "model.diffusion_model."),
            (&args.vae, "vae."),
            (&args.clip_l, "text_encoders.clip_l.transformer."),
            (&args.clip_g, "text_encoders.clip_g.transformer."),
            (&args.t5xxl, "text_encoders.t5xxl.transformer."),
            (&args.llm, "text_encoders.llm."),
        ];
        let files = files.into_iter().filter_map(|(file, prefix)| Some((file.as_ref()?, prefix)));
        let parts = files.map(|(file, prefix)| file_part(file, prefix)).collect::<anyhow::Result<_>>()?;
        return Ok((parts, BTreeMap::new()));
    };
    let choice = match (&args.component, args.merge) {
        (Some(name), _) => ComponentChoice::Named(name),
        (None, true) => ComponentChoice::All,
        (None, false) => ComponentChoice::Only,
    };
    let original = OutputFormat::of_path(&args.output) == Some(OutputFormat::Gguf) && !args.keep_names;
    let parts = model_parts(model, choice, original)?;
    let renamed = parts.iter().map(|part| part.renamed.len()).sum::<usize>();
    if renamed > 0 {
        eprintln!(
            "note: {renamed} tensors get the names of original checkpoints, which other programs read; --keep-names leaves them"
        );
    } else if parts.len() > 1 {
        eprintln!("note: tensors keep their names, after those of their folders: '{}...'", parts[0].prefix);
    }
    let metadata = if model.is_dir() { folder_metadata(model) } else { BTreeMap::new() };
    Ok((parts, metadata))
}

/// A flag that Ctrl-C sets. The second one ends the program at once, also while the disk takes its time.
fn interruptible(path: &Path) -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let (flag, path) = (stop.clone(), path.to_path_buf());
    let set = ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            impasto_store::remove_unfinished(&path);
            std::process::exit(130);
        }
    });
    if let Err(error) = set {
        eprintln!("warning: Ctrl-C ends the program at once: {error}");
    }
    stop
}

/// What is not as one may expect.
fn notes(report: &ConversionReport, format: OutputFormat) -> Vec<String> {
    let mut groups: BTreeMap<[&str; 3], Vec<&str>> = BTreeMap::new();
    for fallback in &report.fallbacks {
        groups.entry([&fallback.wanted, &fallback.written, fallback.reason]).or_default().push(&fallback.name);
    }
    let mut notes: Vec<String> = groups
        .into_iter()
        .map(|([wanted, written, reason], names)| {
            format!("{written} in place of {wanted}, since {reason}: {}", some(&names))
        })
        .collect();
    let left_out: Vec<&str> = report.left_out.iter().map(String::as_str).collect();
    if !left_out.is_empty() {
        notes.push(format!("left out, since GGUF has no place for it: {}", some(&left_out)));
    }
    notes.extend(report.unmatched_rules.iter().map(|rule| format!("the rule '{rule}' fits no tensor")));
    if report.architecture.is_none() && format == OutputFormat::Gguf {
        notes.push("no known diffusion model: the file is written without general.architecture".into());
    }
    notes
}

/// How many there are, and the names of a few.
fn some(names: &[&str]) -> String {
    let shown = names.iter().take(NAMES_SHOWN).copied().collect::<Vec<_>>().join(", ");
    let more = if names.len() > NAMES_SHOWN { ", ..." } else { "" };
    format!("{} tensor{} ({shown}{more})", names.len(), if names.len() == 1 { "" } else { "s" })
}

fn table(path: &Path, report: &ConversionReport, seconds: f64) {
    let mb = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
    let cells = |total: Option<&TypeTotal>| match total {
        Some(total) => [total.tensors.to_string(), mb(total.bytes)],
        None => [String::new(), String::new()],
    };
    let sum = |totals: &BTreeMap<ElementType, TypeTotal>| {
        let add =
            |sum: TypeTotal, t: &TypeTotal| TypeTotal { tensors: sum.tensors + t.tensors, bytes: sum.bytes + t.bytes };
        totals.values().fold(TypeTotal::default(), add)
    };
    let row = |name: String, [before, before_mb]: [String; 2], [after, after_mb]: [String; 2]| {
        [name, before, before_mb, after, after_mb].map(|cell| format!("{cell:>8}"))
    };
    let words = |a: &str, b: &str| [a.to_string(), b.to_string()];
    let mut lines = vec![row(String::new(), words("before", "MB"), words("after", "MB"))];
    let mut types: Vec<&ElementType> = report.before.keys().chain(report.after.keys()).collect();
    types.sort();
    types.dedup();
    lines.extend(types.iter().map(|ty| row(ty.to_string(), cells(report.before.get(ty)), cells(report.after.get(ty)))));
    lines.push(row("all".into(), cells(Some(&sum(&report.before))), cells(Some(&sum(&report.after)))));
    rows(&lines);
    let rate = (report.bytes_read + report.bytes_written) as f64 / 1e6 / seconds.max(1e-3);
    let architecture = report.architecture.as_ref().map_or(String::new(), |name| format!(", {name}"));
    let (path, written) = (path.display(), mb(report.bytes_written));
    line(format_args!("{path}: {written} MB{architecture}, in {seconds:.1} s ({rate:.0} MB/s read and written)"));
}

fn converted<'a>(file: &'a Path, report: &'a ConversionReport, seconds: f64) -> Converted<'a> {
    let totals = |totals: &BTreeMap<ElementType, TypeTotal>| {
        totals.iter().map(|(ty, t)| (ty.to_string(), Total { tensors: t.tensors, bytes: t.bytes })).collect()
    };
    Converted {
        file,
        architecture: report.architecture.as_deref(),
        before: totals(&report.before),
        after: totals(&report.after),
        bytes_read: report.bytes_read,
        bytes_written: report.bytes_written,
        fallbacks: report.fallbacks.iter().map(|f| [&*f.name, &*f.wanted, &*f.written, f.reason]).collect(),
        left_out: &report.left_out,
        unmatched_rules: &report.unmatched_rules,
        seconds,
    }
}
