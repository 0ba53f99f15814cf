//! What happens now: the running job's progress and preview, and everybody who listens.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};
use tokio::sync::broadcast;

use crate::record::{JobProgress, JobRecord};

/// Something that happened to a job.
#[derive(Clone, Debug)]
pub struct JobEvent {
    /// The job.
    pub job: String,
    /// Its name in the stream of events: `step`, `preview`, `done` and so on.
    pub name: &'static str,
    /// What is told of it; has the job too.
    pub data: Arc<Value>,
}

impl JobEvent {
    /// The job has ended: nothing follows.
    pub fn is_last(&self) -> bool {
        matches!(self.name, "done" | "failed" | "cancelled")
    }
}

/// The job that runs.
struct RunningJob {
    id: String,
    stop: Arc<AtomicBool>,
    progress: JobProgress,
    /// The latest preview, a PNG.
    preview: Option<Arc<Vec<u8>>>,
    /// The first step that was timed: when it was done, and the steps before it.
    timed_from: Option<(Instant, usize)>,
}

/// The running job and those who listen.
pub struct Hub {
    events: broadcast::Sender<JobEvent>,
    running: Mutex<Option<RunningJob>>,
}

/// Events that a slow listener may be behind before it misses some.
const BEHIND: usize = 256;

impl Default for Hub {
    fn default() -> Hub {
        Hub { events: broadcast::Sender::new(BEHIND), running: Mutex::default() }
    }
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, Option<RunningJob>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that happens from now on.
    pub fn listen(&self) -> broadcast::Receiver<JobEvent> {
        self.events.subscribe()
    }

    /// Tells everybody. `data` gets the job.
    pub fn tell(&self, job: &str, name: &'static str, mut data: Value) {
        if let Value::Object(fields) = &mut data {
            fields.insert("job".into(), job.into());
        }
        // Nobody listens: nobody misses it.
        let _ = self.events.send(JobEvent { job: job.into(), name, data: Arc::new(data) });
    }

    /// A job begins; the flag asks it to stop.
    pub fn begin(&self, id: &str, pictures: usize) -> Arc<AtomicBool> {
        let stop = Arc::new(AtomicBool::new(false));
        let progress = JobProgress { what: "starting".into(), pictures, ..JobProgress::default() };
        *self.lock() =
            Some(RunningJob { id: id.into(), stop: stop.clone(), progress, preview: None, timed_from: None });
        stop
    }

    /// The job has ended.
    pub fn end(&self) {
        *self.lock() = None;
    }

    /// What the running job is at.
    pub fn at(&self, what: impl Into<String>) {
        if let Some(running) = &mut *self.lock() {
            running.progress.what = what.into();
        }
    }

    /// A step is done. Tells when the rest will be, by the steps that were timed.
    pub fn step(&self, picture: usize, done: usize, of: usize) {
        let mut lock = self.lock();
        let Some(running) = &mut *lock else { return };
        let progress = &mut running.progress;
        (progress.picture, progress.done, progress.of) = (picture, done, of);
        progress.what = "sampling".into();
        let steps = picture * of + done;
        progress.seconds_left = match running.timed_from {
            Some((begun, before)) if steps > before => {
                let left = (progress.pictures * of).saturating_sub(steps) as f64;
                Some(begun.elapsed().as_secs_f64() / (steps - before) as f64 * left)
            }
            Some(_) => None,
            None => {
                running.timed_from = Some((Instant::now(), steps));
                None
            }
        };
        let (id, progress) = (running.id.clone(), progress.clone());
        drop(lock);
        let JobProgress { picture, pictures, done, of, seconds_left, .. } = progress;
        let data =
            json!({"picture": picture, "pictures": pictures, "done": done, "of": of, "seconds_left": seconds_left});
        self.tell(&id, "step", data);
    }

    /// What the picture looks like so far, a PNG.
    pub fn preview(&self, png: Vec<u8>) {
        let mut lock = self.lock();
        let Some(running) = &mut *lock else { return };
        running.preview = Some(Arc::new(png));
        let id = running.id.clone();
        drop(lock);
        self.tell(&id, "preview", json!({}));
    }

    /// The running job and what it is at.
    pub fn running(&self) -> Option<(String, JobProgress)> {
        self.lock().as_ref().map(|running| (running.id.clone(), running.progress.clone()))
    }

    /// The latest preview of a job that runs.
    pub fn preview_of(&self, job: &str) -> Option<Arc<Vec<u8>>> {
        self.lock().as_ref().filter(|running| running.id == job)?.preview.clone()
    }

    /// Asks the running job to stop; `false` where this one does not run.
    pub fn stop(&self, job: &str) -> bool {
        let lock = self.lock();
        let running = lock.as_ref().filter(|running| running.id == job);
        running.inspect(|running| running.stop.store(true, Ordering::Relaxed)).is_some()
    }

    /// A record with what is known of it now.
    pub fn live(&self, mut record: JobRecord) -> JobRecord {
        if let Some(running) = self.lock().as_ref().filter(|running| running.id == record.id) {
            record.progress = Some(running.progress.clone());
            record.has_preview = running.preview.is_some();
        }
        record
    }
}
