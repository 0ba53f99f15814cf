//! `impasto generate`, `resume`, `decode` and `again`: settings to pictures, with progress, and an end within a second when it is interrupted.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use impasto::generate::picture::Picture;
use impasto::generate::place::{MODULES, MachineOptions, Placement};
use impasto::generate::settings::{Preview, Settings};
use impasto::generate::{Event, GenerateError, Job, OutputFiles, SavedRun};
use impasto::{Engine, EngineOptions};
use serde::Serialize;

use super::progress::Progress;
use super::show;

/// A picture that was written, for `--json`.
#[derive(Serialize)]
struct Written<'a> {
    file: &'a Path,
    seed: u64,
    width: usize,
    height: usize,
    model: &'a str,
    parameters: &'a str,
    seconds: f64,
}

/// Flags over variables over the settings file.
pub fn layered(flags: &Settings) -> Result<Settings, GenerateError> {
    let (settings, warnings) = impasto::generate::settings::layered(flags)?;
    warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    Ok(settings)
}

/// An engine for one command: nothing stays loaded after its use.
pub fn engine(settings: &Settings, stop: Option<Arc<AtomicBool>>) -> Result<Engine, GenerateError> {
    let options = EngineOptions::new(settings)?;
    let devices = MachineOptions { keep_alive: Duration::ZERO, stop, ..options.devices };
    Ok(Engine::new(EngineOptions { devices, ..options }))
}

/// Makes the pictures.
pub fn paint(settings: &Settings) -> Result<(), GenerateError> {
    let stop = interruptible();
    let engine = engine(settings, Some(stop.clone()))?;
    let job = Job::new(settings, &impasto::open_model(&engine, settings)?)?;
    make(settings, &engine, &job.written(), &stop)
}

/// Resumes a run that was saved, with these flags over its settings.
pub fn resume(file: &Path, flags: &Settings) -> Result<(), GenerateError> {
    let saved = SavedRun::read(file)?;
    let settings = flags.over(saved.settings()?);
    let stop = interruptible();
    let engine = engine(&settings, Some(stop.clone()))?;
    let model = impasto::open_model(&engine, &settings)?;
    make(&settings, &engine, &Job::resumed(saved, flags, &model)?.written(), &stop)
}

/// Only the picture of a run that was saved, as it stands.
pub fn decode(file: &Path, flags: &Settings) -> Result<(), GenerateError> {
    let saved = SavedRun::read(file)?;
    let settings = flags.over(saved.settings()?);
    let engine = engine(&settings, None)?;
    let model = impasto::open_model(&engine, &settings)?;
    let path = flags.output.clone().unwrap_or_else(|| saved.output.clone());
    let (run, job) = (saved.run.clone(), Job::resumed(saved, flags, &model)?);
    let force = settings.force == Some(true);
    let mut output = OutputFiles::new(Some(&path), 1, force)?;
    let mut progress = Progress::new();
    let picture = engine.decode(&job, &run, &mut |event| {
        match event {
            Event::Device(line) => eprintln!("{line}"),
            Event::Placed(places) => explain(&settings, places),
            Event::Note(note) => eprintln!("note: {note}"),
            other => progress.show(&other),
        }
        Ok(true)
    })?;
    progress.clear();
    let (done, of) = run.steps();
    if done < of {
        eprintln!("note: {done} of {of} steps are done; impasto resume {} takes the others", file.display());
    }
    let seed = run.seed.wrapping_add(run.picture as u64);
    let file = output.claim();
    picture.write(&file, &job.parameters(seed), force)?;
    show::line(format_args!("{}", file.display()));
    Ok(())
}

/// Makes a picture again by what it says of itself, with these flags over that.
pub fn again(picture: &Path, flags: &Settings) -> Result<(), GenerateError> {
    let inside = impasto::generate::inside(picture)?;
    let settings = layered(&flags.over(inside.settings.clone()))?;
    let stop = interruptible();
    let engine = engine(&settings, Some(stop.clone()))?;
    let model = impasto::open_model(&engine, &settings)?;
    inside.check(&settings, &model)?;
    let job = Job::new(&settings, &model)?;
    // Who asks for another prompt or other LoRAs wants another picture.
    if flags.prompt.is_none() && flags.lora.is_none() {
        inside.check_loras(&job)?;
    }
    make(&settings, &engine, &job.written(), &stop)
}

/// Runs a job, and says what happens.
fn make(settings: &Settings, engine: &Engine, job: &Job, stop: &AtomicBool) -> Result<(), GenerateError> {
    let preview_path = preview_path(settings)?;
    if !preview_path.as_os_str().is_empty() {
        eprintln!("previews go to {}", preview_path.display());
    }
    let (mut progress, mut last, mut placed) = (Progress::new(), Instant::now(), None);
    let done = engine.run(job, &mut |event| {
        match event {
            Event::Device(line) => eprintln!("{line}"),
            Event::Placed(places) => {
                explain(settings, places);
                announce(settings, job, places);
                placed = Some(places.clone());
            }
            Event::Unknown(words) => eprintln!(
                "note: this model does not know {}; a real model does: impasto -m MODEL.safetensors -p {}",
                words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(", "),
                quoted(&job.prompt)
            ),
            Event::Note(note) => {
                progress.clear();
                eprintln!("note: {note}");
            }
            Event::Warning(warning) => eprintln!("warning: {warning}"),
            Event::Preview(picture) => write_preview(picture, &preview_path),
            Event::Picture { picture, seed, parameters, file } => {
                progress.clear();
                let (seconds, file) = (last.elapsed().as_secs_f64(), file.unwrap_or(Path::new("")));
                last = Instant::now();
                if settings.json == Some(true) {
                    let (width, height, model) = (picture.width, picture.height, &*job.model.title);
                    show::json(&Written { file, seed, width, height, model, parameters, seconds });
                } else {
                    eprintln!("seed {seed}: written after {seconds:.1} s");
                    show::line(format_args!("{}", file.display()));
                }
            }
            Event::Resumable(file) => {
                progress.clear();
                eprintln!("what is done is kept: impasto resume {}", file.display());
            }
            other => progress.show(&other),
        }
        Ok(!stop.load(Ordering::Relaxed))
    });
    progress.clear();
    if let Some(places) = placed {
        show_times(settings, &places);
    }
    done
}

/// Why modules are where they are, for who wants to know.
pub fn explain(settings: &Settings, places: &Placement) {
    places.notes.iter().for_each(|note| eprintln!("warning: {note}"));
    if settings.explain == Some(true) {
        places.reasons.iter().for_each(|reason| eprintln!("{reason}"));
    }
}

/// Where it runs, and what was decided.
fn announce(settings: &Settings, job: &Job, places: &Placement) {
    let model = &*job.model;
    let mut on: Vec<(String, Vec<&str>)> = vec![];
    for module in MODULES {
        let Some(place) = places.of(module) else { continue };
        let device = format!("{}: {}", place.device.name(), place.device.about());
        match on.iter_mut().find(|(known, _)| *known == device) {
            Some((_, modules)) => modules.push(module.name()),
            None => on.push((device, vec![module.name()])),
        }
    }
    match on.as_slice() {
        [(device, _)] => eprintln!("{} ({}) on {device}", model.title, model.pipeline.name()),
        several => {
            eprintln!("{} ({})", model.title, model.pipeline.name());
            several.iter().for_each(|(device, modules)| eprintln!("  {} on {device}", modules.join(", ")));
        }
    }
    eprintln!(
        "{}x{}, {} steps, guidance {}{}, {}, {}, seed {}{}",
        job.width,
        job.height,
        job.steps,
        job.guidance,
        job.distilled_guidance.map_or(String::new(), |told| format!(" and {told} told")),
        job.method,
        job.schedule,
        job.seed,
        if job.count > 1 { format!(" to {}", job.seed.wrapping_add(job.count as u64 - 1)) } else { String::new() }
    );
    for note in model.notes.iter().chain(&job.notes) {
        eprintln!("note: {note}");
    }
    if let Some(run) = &job.resume {
        let (done, of) = run.steps();
        eprintln!("going on with picture {} after {done} of {of} steps", run.picture + 1);
    }
    if settings.verbose == Some(true) {
        eprintln!("predicts {:?}, clip-skip {}, noise as {:?}", job.prediction, job.clip_skip, job.rng);
        for (id, network) in model.distinct_networks() {
            eprintln!("{id}: {:.0} MB of {}", network.bytes() as f64 / 1e6, network.path().display());
        }
        if !model.unused.is_empty() {
            eprintln!("{} tensors of the files are not used; impasto inspect lists them", model.unused.len());
        }
    }
}

/// Where the time went, as a table, and the memory that was allocated.
fn show_times(settings: &Settings, places: &Placement) {
    let (times, peaks) = (places.times(), places.allocated_peaks());
    if times.is_empty() {
        return;
    }
    if settings.json == Some(true) {
        return show::json(&serde_json::json!({ "profile": times, "allocated_peaks": peaks }));
    }
    let all: f64 = times.iter().map(|time| time.seconds).sum();
    eprintln!(
        "{:<10} {:<9} {:<19} {:>7} {:>10} {:>6} {:>9}",
        "module", "device", "op", "runs", "seconds", "share", "GFLOP/s"
    );
    for t in times {
        let speed = t.flops as f64 / t.seconds.max(1e-9) / 1e9;
        let speed = if t.flops > 0 { format!("{speed:.0}") } else { String::new() };
        let share = 100.0 * t.seconds / all.max(1e-9);
        eprintln!(
            "{:<10} {:<9} {:<19} {:>7} {:>10.4} {share:>5.1}% {speed:>9}",
            t.module, t.device, t.op, t.count, t.seconds
        );
    }
    for (device, bytes) in peaks {
        eprintln!("allocated at most on {device}: {:.1} MiB", bytes as f64 / f64::from(1 << 20));
    }
}

/// Where previews go: a file that is not there yet, unless overwriting is allowed, and not the picture's.
fn preview_path(settings: &Settings) -> Result<PathBuf, GenerateError> {
    if settings.preview.unwrap_or_default() == Preview::None {
        return Ok(PathBuf::new());
    }
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.into());
    let output = settings.output.as_deref().unwrap_or(Path::new("output.png"));
    let named = settings.preview_path.as_deref();
    let mut files = OutputFiles::named_or(named, "preview.png", 1, settings.force == Some(true))?;
    let path = files.claim();
    match absolute(&path) == absolute(output) {
        true => Err(GenerateError::Asked(format!("--preview-path and --output are both {}", path.display()))),
        false => Ok(path),
    }
}

fn write_preview(picture: &Picture, path: &Path) {
    // A preview that cannot be written is no reason to lose the picture.
    if let Err(error) = picture.write(path, "", true) {
        eprintln!("warning: preview: {error}");
    }
}

/// A prompt as one word of a shell.
fn quoted(prompt: &str) -> String {
    format!("'{}'", prompt.replace('\'', "'\\''"))
}

/// A flag that Ctrl-C sets. Work that does not look at it in time is ended: pictures appear in files whole or not at all, so
/// nothing is left half done.
fn interruptible() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let set = ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(600));
            eprintln!("\ninterrupted");
            std::process::exit(130);
        });
    });
    if let Err(error) = set {
        eprintln!("warning: Ctrl-C ends the program at once: {error}");
    }
    stop
}
