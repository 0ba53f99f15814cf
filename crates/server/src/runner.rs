//! The thread that runs jobs, one after the other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use impasto_generate::picture::{self, Format, Picture};
use impasto_generate::settings::Settings;
use impasto_generate::{Event, GenerateError, Job, SavedRun, run_file};
use serde_json::json;

use crate::app::App;
use crate::error::RequestError;
use crate::queue::{NewPicture, QueueError};
use crate::record::{JobRecord, JobState};

/// How long the thread sleeps at most where nobody wakes it.
const NAP: Duration = Duration::from_secs(5);

/// How often jobs that are too old are looked for.
const FORGET_EVERY: Duration = Duration::from_secs(600);

/// Queues again what ran when the server ended, and removes what nobody will ask for.
pub fn recover(app: &App) -> Result<(), RequestError> {
    app.queue.recover()?;
    app.remove_orphans(&app.data.join("uploads"));
    Ok(())
}

/// Notes pictures that were written and not noted: the server was killed in between, or its store could not be written.
fn note_pictures(app: &App, job: &JobRecord) -> Result<(), RequestError> {
    for path in app.picture_files(job).iter().filter(|path| path.exists()) {
        // Its state should have gone with it.
        let _ = std::fs::remove_file(run_file(path));
        let (Ok((width, height)), Ok(parameters)) = (Picture::size_of(path), picture::parameters(path)) else {
            continue;
        };
        let parameters = parameters.unwrap_or_default();
        let seed = parameters.rsplit_once("Seed: ").and_then(|(_, rest)| rest.split(',').next()?.trim().parse().ok());
        let new = NewPicture { file: name_of(path), seed: seed.unwrap_or_default(), width, height, parameters };
        app.queue.add_picture(&job.id, &new)?;
    }
    Ok(())
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Runs jobs until the server ends.
pub fn run(app: &App) {
    app.remove_orphans(&app.pictures());
    let mut forgotten: Option<Instant> = None;
    while !app.is_ending() {
        if forgotten.is_none_or(|at| at.elapsed() > FORGET_EVERY) {
            forget_old(app);
            forgotten = Some(Instant::now());
        }
        match next(app) {
            Ok(Some((job, stop))) => {
                run_job(app, &job, &stop);
                forget_old(app);
            }
            Ok(None) => nap(app),
            Err(error) => {
                eprintln!("error: {error}");
                nap(app);
            }
        }
    }
}

fn forget_old(app: &App) {
    if let Err(problem) = app.forget_old() {
        eprintln!("error: {}", problem.message);
    }
}

/// Sleeps until somebody wakes this thread, or a while.
fn nap(app: &App) {
    let guard = app.work.0.lock().unwrap_or_else(PoisonError::into_inner);
    if !app.is_ending() {
        drop(app.work.1.wait_timeout(guard, NAP));
    }
}

/// The next job, begun: from now on it is stopped through its flag.
fn next(app: &App) -> Result<Option<(JobRecord, Arc<AtomicBool>)>, QueueError> {
    let _turn = app.turn.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(job) = app.queue.take()? else { return Ok(None) };
    let stop = app.hub.begin(&job.id, job.count());
    Ok(Some((job, stop)))
}

/// Runs a job to its end, whatever that is, and notes it.
fn run_job(app: &App, job: &JobRecord, stop: &Arc<AtomicBool>) {
    let ended = catch_unwind(AssertUnwindSafe(|| make(app, job, stop)));
    let (state, error) = match ended {
        Ok(Ok(())) => (JobState::Done, None),
        Ok(Err(GenerateError::Interrupted)) if stop.load(Ordering::Relaxed) => (JobState::Cancelled, None),
        // The server ends: it goes on at the next start.
        Ok(Err(GenerateError::Interrupted)) => (JobState::Queued, None),
        Ok(Err(error)) => (JobState::Failed, Some(app.models.without_paths(&error.to_string()))),
        Err(_) => (JobState::Failed, Some("a fault of this program ended the job; its log says more".to_owned())),
    };
    settle(app, &job.id, state, error.as_deref());
    app.hub.end();
    match state {
        JobState::Done => app.hub.tell(&job.id, "done", json!({})),
        JobState::Failed => app.hub.tell(&job.id, "failed", json!({ "message": error })),
        JobState::Cancelled => app.hub.tell(&job.id, "cancelled", json!({})),
        JobState::Queued | JobState::Running => {}
    }
}

/// Notes how a job ended. Without its store the server cannot run another one, so that it tries until it can.
fn settle(app: &App, id: &str, state: JobState, error: Option<&str>) {
    let mut told = false;
    while let Err(problem) = app.queue.settle(id, state, error) {
        if !std::mem::replace(&mut told, true) {
            eprintln!("error: cannot note that job {id} is {}, trying again: {problem}", state.name());
        }
        // The next start finds its pictures.
        if app.is_ending() {
            return;
        }
        nap(app);
    }
}

/// The settings of a job, with its files.
fn settings_of(app: &App, job: &JobRecord) -> Result<Settings, GenerateError> {
    let refused = |problem: RequestError| GenerateError::Asked(problem.message);
    let mut settings = app.settings(&job.model, &job.settings).map_err(refused)?;
    if job.has_init {
        settings.set("init-img", &app.upload(&job.id, "init").to_string_lossy())?;
    }
    if job.has_mask {
        settings.set("mask", &app.upload(&job.id, "mask").to_string_lossy())?;
    }
    settings.set("preview", "proj")?;
    Ok(settings)
}

/// The engine's job: the rest of a run that was saved, or what no picture was made of yet.
fn engine_job(app: &App, record: &JobRecord) -> Result<Option<Job>, GenerateError> {
    note_pictures(app, record).map_err(|problem| GenerateError::Refused(problem.message))?;
    let mut settings = settings_of(app, record)?;
    let model = app.open_model(&settings)?;
    if let Some(state) = app.saved_run(record) {
        // The run has its own settings; how the machine is used is the server's.
        let mut flags = app.base.clone();
        flags.set("preview", "proj")?;
        match SavedRun::read(&state).map_err(GenerateError::from).and_then(|saved| Job::resumed(saved, &flags, &model))
        {
            Ok(job) => return Ok(Some(job.written())),
            // A model that has changed, or a damaged file: it is made anew, and said so.
            Err(error) => {
                let note = format!("it begins anew: {}", app.models.without_paths(&error.to_string()));
                tell_note(app, &record.id, &note);
                let _ = std::fs::remove_file(&state);
            }
        }
    }
    let files = app.picture_files(record);
    let made = files.iter().take_while(|file| file.exists()).count();
    let (count, left) = (record.count(), record.count() - made.min(record.count()));
    if left == 0 {
        return Ok(None);
    }
    let seed = settings.seed.unwrap_or_default().saturating_add(made as i64);
    settings.set("seed", &seed.to_string())?;
    settings.set("batch-count", &left.to_string())?;
    let pattern = match count {
        1 => format!("{}.png", record.id),
        _ => format!("{}_%03d.png", record.id),
    };
    settings.set("output", &app.pictures().join(pattern).to_string_lossy())?;
    Job::new(&settings, &model).map(|job| Some(job.written()))
}

fn tell_note(app: &App, job: &str, text: &str) {
    let text = app.models.without_paths(text);
    if let Err(error) = app.queue.note(job, &text) {
        eprintln!("error: {error}");
    }
    app.hub.tell(job, "note", json!({ "text": text }));
}

/// Makes the pictures of a job.
fn make(app: &App, record: &JobRecord, stop: &Arc<AtomicBool>) -> Result<(), GenerateError> {
    let Some(job) = engine_job(app, record)? else { return Ok(()) };
    // Pictures that were made before the server ended count too.
    let before = record.count() - job.count.min(record.count());
    let id = &record.id;
    for note in job.model.notes.iter().chain(&job.notes) {
        tell_note(app, id, note);
    }
    let store = |problem: QueueError| GenerateError::Refused(problem.to_string());
    app.engine.run(&job, &mut |event| {
        match event {
            Event::Unknown(words) => {
                tell_note(app, id, &format!("this model does not know: {}", words.join(", ")));
            }
            Event::Device(text) | Event::Note(text) | Event::Warning(text) => tell_note(app, id, text),
            Event::Loading { module, done, of } => {
                app.hub.at(format!("loading {}", module.name()));
                app.hub.tell(id, "loading", json!({"module": module.name(), "done": done, "of": of}));
            }
            Event::Compiling { module, done, of } => {
                app.hub.at(format!("compiling {}", module.name()));
                app.hub.tell(id, "compiling", json!({"module": module.name(), "done": done, "of": of}));
            }
            Event::Working(what) => {
                app.hub.at(what);
                app.hub.tell(id, "working", json!({ "what": what }));
            }
            Event::Step { picture, done, of } => app.hub.step(before + picture, done, of),
            Event::Preview(picture) => {
                // A preview that cannot be shown is no reason to lose the picture.
                if let Ok(png) = picture.encoded(Format::Png, "") {
                    app.hub.preview(png);
                }
            }
            Event::Picture { picture, seed, parameters, file } => {
                let (width, height) = (picture.width, picture.height);
                let file = file.map(name_of).unwrap_or_default();
                let new = NewPicture { file, seed, width, height, parameters: parameters.into() };
                let added = app.queue.add_picture(id, &new).map_err(store)?;
                app.hub.tell(id, "picture", json!({ "picture": added }));
            }
            Event::Placed(_) | Event::State(_) | Event::Resumable(_) => {}
        }
        Ok(!stop.load(Ordering::Relaxed) && !app.is_ending())
    })
}
