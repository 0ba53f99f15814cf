//! `impasto generate`: settings to pictures, with progress, and an end within a second when it is interrupted.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use impasto::backend::cpu::CpuOptions;
use impasto::generate::picture::Picture;
use impasto::generate::place::{MODULES, Placement};
use impasto::generate::settings::{Settings, config_path, from_variables};
use impasto::generate::{Event, GenerateError, Job, Output, Stored, go_on};
use impasto::model::{Model, ModelPaths};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use super::keep::Keeper;
use super::placing::Placing;
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

/// Lay flags over variables over the settings file.
pub fn layered(flags: &Settings) -> Result<Settings, GenerateError> {
    let file = match config_path() {
        None => {
            eprintln!("warning: neither XDG_CONFIG_HOME nor HOME is set: no settings file is looked for");
            Settings::default()
        }
        Some(path) => read_settings(&path)?,
    };
    let (variables, unknown) = from_variables(
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
    )?;
    for name in unknown {
        eprintln!("warning: {name} is no setting; impasto --help lists them");
    }
    Ok(flags.over(variables.over(file)))
}

fn read_settings(path: &Path) -> Result<Settings, GenerateError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Settings::from_toml(&text, path)?),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Settings::default()),
        Err(e) => {
            eprintln!("warning: settings file {} not used: {e}", path.display());
            Ok(Settings::default())
        }
    }
}

/// Make the pictures.
pub fn paint(settings: &Settings) -> Result<(), GenerateError> {
    make(settings, None)
}

/// Go on with a run that was kept, with these flags over its settings.
pub fn resume(file: &Path, flags: &Settings) -> Result<(), GenerateError> {
    let stored = Stored::read(file)?;
    make(&flags.over(stored_settings(&stored)?), Some((stored, flags.output.is_some())))
}

fn stored_settings(stored: &Stored) -> Result<Settings, GenerateError> {
    let mut settings = Settings::default();
    stored.settings.iter().try_for_each(|(name, text)| settings.set(name, text))?;
    Ok(settings)
}

/// Only the picture of a run that was kept, as it stands.
pub fn decode(file: &Path, flags: &Settings) -> Result<(), GenerateError> {
    let stored = Stored::read(file)?;
    let settings = flags.over(stored_settings(&stored)?);
    let placing = Placing::start(&settings, None)?;
    let model = open_model(&settings)?;
    same_model(&stored, &model)?;
    let job = Job::new(&settings, &model, stored.run.seed)?;
    let places = placing.place(&settings, &job, &model)?;
    let path = flags.output.clone().unwrap_or(stored.output);
    let force = settings.force.unwrap_or(false);
    let mut output = Output::new(Some(&path), 1, force)?;
    let mut progress = Progress::new();
    let picture = impasto::generate::decode(&job, &model, &places, &stored.run, &mut |event| {
        match event {
            Event::Note(note) => eprintln!("note: {note}"),
            other => progress.show(&other),
        }
        Ok(true)
    })?;
    progress.clear();
    let (done, of) = stored.run.steps();
    if done < of {
        eprintln!("note: {done} of {of} steps are done; impasto resume {} takes the others", file.display());
    }
    let seed = stored.run.seed.wrapping_add(stored.run.picture as u64);
    let file = output.claim();
    picture.write(&file, &job.parameters(seed, &model), force)?;
    show::line(format_args!("{}", file.display()));
    Ok(())
}

/// Make a picture again by what it says of itself, with these flags over that.
pub fn again(picture: &Path, flags: &Settings) -> Result<(), GenerateError> {
    let inside = impasto::generate::inside(picture)?;
    let settings = layered(&flags.over(inside.settings))?;
    if inside.from_picture && settings.init_img.is_none() {
        return Err(GenerateError::Asked(
            "it began with another picture, which is not inside: name that one with -i FILE".into(),
        ));
    }
    let model = open_model(&settings)?;
    if let Some(known) = inside.fingerprint.filter(|known| *known != model.fingerprint()) {
        let name = inside.model.unwrap_or_default();
        return Err(GenerateError::Asked(format!(
            "it was made by another model, '{name}' ({known}), not by '{}' ({}): name that one with -m FILE",
            model.title,
            model.fingerprint()
        )));
    }
    make(&settings, None)
}

fn same_model(stored: &Stored, model: &Model) -> Result<(), GenerateError> {
    let (theirs, ours) = (&stored.fingerprint, model.fingerprint());
    match *theirs == ours {
        true => Ok(()),
        false => Err(GenerateError::Asked(format!(
            "the run was made by another model ({theirs}) than '{}' ({ours}): its file has changed, or name the right one with -m FILE",
            model.title
        ))),
    }
}

/// Make the pictures of settings, or the rest of a run; then with whether its picture goes elsewhere.
fn make(settings: &Settings, stored: Option<(Stored, bool)>) -> Result<(), GenerateError> {
    let stop = interruptible();
    let begun = Instant::now();
    let placing = Placing::start(settings, Some(&stop))?;
    let model = open_model(settings)?;
    if let Some((stored, _)) = &stored {
        same_model(stored, &model)?;
    }
    let job = Job::new(settings, &model, stored.as_ref().map_or_else(random_seed, |(stored, _)| stored.run.seed))?;
    // A run that goes on has a name for its picture; the pictures before it are there.
    let count = if stored.is_some() { 0 } else { job.count };
    let mut output = Output::new(settings.output.as_deref(), count, settings.force.unwrap_or(false))?;
    let mut named = stored.as_ref().filter(|(_, elsewhere)| !elsewhere).map(|(stored, _)| stored.output.clone());
    let places = placing.place(settings, &job, &model)?;
    announce(settings, &model, &job, &places);
    if let Some((stored, _)) = &stored {
        let (done, of) = stored.run.steps();
        eprintln!("going on with picture {} after {done} of {of} steps", stored.run.picture + 1);
    }
    if settings.profile == Some(true) {
        places.measure();
    }

    let preview_path = settings.preview_path.clone().unwrap_or_else(|| PathBuf::from("preview.png"));
    let mut progress = Progress::new();
    let mut keeper = Keeper::new(settings, model.fingerprint());
    let mut last = begun;
    let done = go_on(&job, &model, &places, stored.map(|(stored, _)| stored.run), &mut |event| {
        match event {
            Event::Unknown(words) => eprintln!(
                "note: this model does not know {}; a real model does: impasto -m MODEL.safetensors -p {}",
                words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(", "),
                quoted(&job.prompt)
            ),
            Event::Note(note) => {
                progress.clear();
                eprintln!("note: {note}");
            }
            Event::Kept(run) => keeper.keep(run, || named.take().unwrap_or_else(|| output.claim()))?,
            Event::Preview(picture) => write_preview(picture, &preview_path),
            Event::Picture { picture, seed } => {
                let file = keeper.output().map_or_else(|| output.claim(), Path::to_path_buf);
                let parameters = job.parameters(seed, &model);
                picture.write(&file, &parameters, output.force())?;
                keeper.done();
                progress.clear();
                let seconds = last.elapsed().as_secs_f64();
                last = Instant::now();
                if settings.json == Some(true) {
                    let (width, height) = (picture.width, picture.height);
                    show::json(&Written {
                        file: &file,
                        seed,
                        width,
                        height,
                        model: &model.title,
                        parameters: &parameters,
                        seconds,
                    });
                } else {
                    eprintln!("seed {seed}: written after {seconds:.1} s");
                    show::line(format_args!("{}", file.display()));
                }
            }
            other => progress.show(&other),
        }
        Ok(!stop.load(Ordering::Relaxed))
    });
    progress.clear();
    match done.is_ok() {
        true => places.keep_rates(),
        false => keeper.failed(),
    }
    show_times(settings, &places);
    done
}

/// Where the time went, as a table.
fn show_times(settings: &Settings, places: &Placement) {
    let times = places.times();
    if settings.json == Some(true) && !times.is_empty() {
        return show::json(&serde_json::json!({ "profile": times }));
    }
    let all: f64 = times.iter().map(|time| time.seconds).sum();
    if !times.is_empty() {
        eprintln!(
            "{:<10} {:<9} {:<19} {:>7} {:>10} {:>6} {:>9}",
            "module", "device", "op", "runs", "seconds", "share", "GFLOP/s"
        );
    }
    for t in times {
        let speed = t.flops as f64 / t.seconds.max(1e-9) / 1e9;
        let speed = if t.flops > 0 { format!("{speed:.0}") } else { String::new() };
        let share = 100.0 * t.seconds / all.max(1e-9);
        eprintln!(
            "{:<10} {:<9} {:<19} {:>7} {:>10.4} {share:>5.1}% {speed:>9}",
            t.module, t.device, t.op, t.count, t.seconds
        );
    }
}

pub fn open_model(settings: &Settings) -> Result<Model, GenerateError> {
    let paths = ModelPaths {
        model: settings.model.clone(),
        diffusion: settings.diffusion_model.clone(),
        vae: settings.vae.clone(),
        clip_l: settings.clip_l.clone(),
        clip_g: settings.clip_g.clone(),
        taesd: settings.taesd.clone(),
    };
    match paths.is_empty() {
        true => Ok(impasto::default_model()?),
        false => Ok(Model::open(&paths)?),
    }
}

pub fn cpu_options(settings: &Settings) -> Result<CpuOptions, GenerateError> {
    let options = CpuOptions::from_env().map_err(|source| GenerateError::Backend { module: "cpu", source })?;
    let threads = settings.threads.filter(|&n| n > 0).map(|n| n as usize);
    Ok(CpuOptions { threads, precision: settings.precision.unwrap_or_default(), ..options })
}

/// Where it runs, and what was decided.
fn announce(settings: &Settings, model: &Model, job: &Job, places: &Placement) {
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
        [(device, _)] => eprintln!("{} ({}) on {device}", model.title, model.family),
        several => {
            eprintln!("{} ({})", model.title, model.family);
            several.iter().for_each(|(device, modules)| eprintln!("  {} on {device}", modules.join(", ")));
        }
    }
    eprintln!(
        "{}x{}, {} steps, guidance {}, {}, {}, seed {}{}",
        job.width,
        job.height,
        job.steps,
        job.guidance,
        job.method,
        job.schedule,
        job.seed,
        if job.count > 1 { format!(" to {}", job.seed.wrapping_add(job.count as u64 - 1)) } else { String::new() }
    );
    for note in model.notes.iter().chain(&job.notes) {
        eprintln!("note: {note}");
    }
    if settings.verbose == Some(true) {
        eprintln!("predicts {:?}, clip-skip {}, noise as {:?}", job.prediction, job.clip_skip, job.rng);
        let text = model.text.iter().map(|part| ("te", part.path(), part.bytes()));
        let others =
            [("diffusion", model.unet.path(), model.unet.bytes()), ("vae", model.vae.path(), model.vae.bytes())];
        for (module, path, bytes) in text.chain(others) {
            eprintln!("{module}: {:.0} MB of {}", bytes as f64 / 1e6, path.display());
        }
        if !model.unused.is_empty() {
            eprintln!("{} tensors of the files are not used; impasto inspect lists them", model.unused.len());
        }
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

/// Bits that nobody knows beforehand, as many as webui's seeds have.
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id()) >> 32
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

/// One line that says what happens and how long it takes yet; on no terminal, a line for each new thing, and now and then how far it is.
struct Progress {
    bar: ProgressBar,
    terminal: bool,
    doing: String,
    /// When this was begun, and when something was last said of it.
    begun: Instant,
    said: Instant,
}

/// Seconds between two lines where there is no terminal.
const SILENCE: u64 = 10;

impl Progress {
    fn new() -> Progress {
        let terminal = std::io::stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
        if !terminal {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Progress { bar, terminal, doing: String::new(), begun: Instant::now(), said: Instant::now() }
    }

    fn show(&mut self, event: &Event) {
        match *event {
            Event::Loading { module, done, of } => self.at(&format!("loading {module}"), done, of),
            Event::Working(what) => self.at(what, 0, 0),
            Event::Step { picture, done, of } => self.at(&format!("picture {}", picture + 1), done as u64, of as u64),
            Event::Unknown(_) | Event::Note(_) | Event::Kept(_) | Event::Preview(_) | Event::Picture { .. } => {}
        }
    }

    fn at(&mut self, what: &str, done: u64, of: u64) {
        if self.doing != what {
            self.doing = what.into();
            (self.begun, self.said) = (Instant::now(), Instant::now());
            if !self.terminal {
                eprintln!("{what}");
            }
            let style = if of > 0 { "{msg:<24} [{bar:30}] {percent:>3} %, {eta} left" } else { "{msg:<24} {elapsed}" };
            if let Ok(style) = ProgressStyle::with_template(style) {
                self.bar.set_style(style.progress_chars("=> "));
            }
            self.bar.reset();
            self.bar.set_message(what.to_string());
        }
        if !self.terminal && done > 0 && self.said.elapsed().as_secs() >= SILENCE {
            let left = self.begun.elapsed().as_secs_f64() / done as f64 * of.saturating_sub(done) as f64;
            eprintln!("{what}: {} %, {left:.0} s left", 100 * done / of.max(1));
            self.said = Instant::now();
        }
        self.bar.set_length(of.max(1));
        self.bar.set_position(done);
        if of == 0 {
            self.bar.enable_steady_tick(Duration::from_millis(200));
        } else {
            self.bar.disable_steady_tick();
        }
    }

    fn clear(&mut self) {
        self.doing.clear();
        self.bar.finish_and_clear();
    }
}
