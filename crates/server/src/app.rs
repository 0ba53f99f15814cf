//! What all routes share: the engine, the models, the queue, and what is allowed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use impasto_generate::settings::Settings;
use impasto_generate::{Engine, GenerateError, run_file};
use impasto_model::Model;
use impasto_store::UNFINISHED;
use serde_json::json;

use crate::body::BodyMemory;
use crate::error::RequestError;
use crate::guard::AccessRules;
use crate::hub::Hub;
use crate::models::{ModelFolder, ModelSummary, OpenModel};
use crate::queue::{ID_LENGTH, JobQueue, QueueError};
use crate::record::{JobRecord, JobState};

/// What requests may ask for.
#[derive(Clone, Debug)]
pub struct RequestLimits {
    /// Jobs that may wait.
    pub queue: usize,
    /// Bytes of a request's body.
    pub body: usize,
    /// Pixels of a picture, made or given.
    pub pixels: u64,
    /// Steps.
    pub steps: u32,
    /// Pictures of a job.
    pub batch: u32,
    /// Connections at once.
    pub connections: usize,
    /// How long a request may take to arrive, and an answer may stay unread.
    pub time: Duration,
}

impl Default for RequestLimits {
    fn default() -> RequestLimits {
        RequestLimits {
            queue: 200,
            body: 32 << 20,
            pixels: 4096 * 4096,
            steps: 200,
            batch: 64,
            connections: 512,
            time: Duration::from_secs(60),
        }
    }
}

/// How long jobs that have ended and their pictures stay.
#[derive(Clone, Debug)]
pub struct Retention {
    /// The newest so many.
    pub jobs: usize,
    /// Those that ended within this time; all of them where there is none.
    pub age: Option<Duration>,
}

/// What all routes share.
pub struct App {
    /// Devices and loaded modules.
    pub engine: Engine,
    /// What every job has that asks for nothing else: flags of the server.
    pub base: Settings,
    /// The models.
    pub models: ModelFolder,
    /// Jobs and pictures.
    pub queue: Box<dyn JobQueue>,
    /// What happens now.
    pub hub: Hub,
    /// What requests may ask for.
    pub limits: RequestLimits,
    /// Who may ask.
    pub access: AccessRules,
    /// How long things stay.
    pub retention: Retention,
    /// The model of requests that name none.
    pub chosen: Mutex<String>,
    /// When the server began.
    pub begun: Instant,
    /// The server ends: nothing more is begun.
    pub ending: AtomicBool,
    pub(crate) open: Box<OpenModel>,
    /// Models that were asked for last, the newest at the end: an engine keeps the modules of models that somebody has open.
    pub(crate) opened: Mutex<Vec<Arc<Model>>>,
    pub(crate) data: PathBuf,
    /// Held while a job is taken out of the queue and begun, so that who cancels it finds it in one place or the other.
    pub(crate) turn: Mutex<()>,
    pub(crate) bodies: BodyMemory,
    /// Held while a picture out of a request is decoded: one at a time, since each may have as many pixels as are allowed.
    pub(crate) decoding: Mutex<()>,
    pub(crate) work: (Mutex<()>, Condvar),
}

/// Models that stay open after their use. Their weights leave when they are idle for long enough; what stays is their headers.
const OPEN_MODELS: usize = 8;

/// Runs something that may wait for the disk on a thread of its own.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RequestError> + Send + 'static,
) -> Result<T, RequestError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(RequestError::broken(format!("the request's work ended: {error}"))))
}

impl App {
    /// The folder of pictures and of the states of runs.
    pub fn pictures(&self) -> PathBuf {
        self.data.join("pictures")
    }

    /// The picture that a job begins with, or its mask.
    pub fn upload(&self, job: &str, what: &str) -> PathBuf {
        self.data.join("uploads").join(format!("{job}-{what}.png"))
    }

    /// The files of a job's pictures, made or not.
    pub fn picture_files(&self, job: &JobRecord) -> Vec<PathBuf> {
        let name = |i: usize| match job.count() {
            1 => format!("{}.png", job.id),
            _ => format!("{}_{i:03}.png", job.id),
        };
        (0..job.count()).map(|i| self.pictures().join(name(i))).collect()
    }

    /// The state of a run that a job can be resumed from.
    pub fn saved_run(&self, job: &JobRecord) -> Option<PathBuf> {
        self.picture_files(job).iter().map(|picture| run_file(picture)).find(|state| state.exists())
    }

    /// The settings of a job of this model: the server's, and over them those that were asked for.
    pub fn settings(&self, model: &str, asked: &BTreeMap<String, String>) -> Result<Settings, RequestError> {
        let mut settings = Settings::default();
        asked.iter().try_for_each(|(name, text)| settings.set(name, text))?;
        let mut base = self.base.clone();
        if let Some(path) = self.models.path(model).map_err(RequestError::missing)? {
            base = without_model(&base);
            base.set("model", &path.to_string_lossy())?;
        }
        Ok(settings.over(base))
    }

    /// The model that settings name.
    pub fn open_model(&self, settings: &Settings) -> Result<Arc<Model>, GenerateError> {
        let model = (self.open)(&self.engine, settings)?;
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|known| !Arc::ptr_eq(known, &model));
        if opened.len() >= OPEN_MODELS {
            opened.remove(0);
        }
        opened.push(model.clone());
        Ok(model)
    }

    /// All models; each is opened the first time, and closed again: being listed is no use, and must not make one in use give way.
    pub fn summaries(&self) -> Vec<ModelSummary> {
        let of = |name: &String| {
            let open = || {
                let wrong = |problem: RequestError| GenerateError::Asked(problem.message);
                (self.open)(&self.engine, &self.settings(name, &BTreeMap::new()).map_err(wrong)?)
            };
            self.models.summary(name, open)
        };
        self.models.names().iter().map(of).collect()
    }

    /// The model of a request that names none.
    pub fn chosen_model(&self) -> String {
        self.chosen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A record with what is known of it now.
    pub fn live(&self, record: JobRecord) -> JobRecord {
        let resumable = record.state.has_ended() && record.state != JobState::Done && self.saved_run(&record).is_some();
        self.hub.live(JobRecord { resumable, ..record })
    }

    /// There may be a job to run.
    pub fn wake(&self) {
        drop(self.work.0.lock());
        self.work.1.notify_all();
    }

    /// Cancels a job, which may run.
    pub fn cancel(&self, id: &str) -> Result<JobRecord, RequestError> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.queue.cancel_queued(id)? {
            self.hub.tell(id, "cancelled", json!({}));
        } else {
            let job = self.queue.job(id)?;
            if job.state.has_ended() {
                let problem = "it has ended already";
                return Err(QueueError::State { id: id.into(), state: job.state, problem }.into());
            }
            self.hub.stop(id);
        }
        drop(turn);
        Ok(self.live(self.queue.job(id)?))
    }

    /// Forgets a job, with its pictures and all its files.
    pub fn remove(&self, id: &str) -> Result<(), RequestError> {
        let job = self.queue.job(id)?;
        let files = self.queue.remove(id)?;
        files.iter().for_each(|file| remove_file(&self.pictures().join(file)));
        self.remove_leftovers(&job);
        self.hub.tell(id, "changed", json!({}));
        Ok(())
    }

    /// Removes what a job that will not be resumed has kept: states of its runs.
    fn remove_leftovers(&self, job: &JobRecord) {
        self.picture_files(job).iter().for_each(|picture| remove_file(&run_file(picture)));
        ["init", "mask"].iter().for_each(|what| remove_file(&self.upload(&job.id, what)));
    }

    /// Removes what a kill left: unfinished files, and those of jobs that are forgotten, or were never noted. Before anything else is written there.
    pub fn remove_orphans(&self, folder: &Path) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let job = job_of_file(&name).map(|id| self.queue.job(id));
            // Nobody else writes here, so that what is unfinished will stay so.
            let is_unfinished = name.starts_with(".tmp") || name.starts_with(&format!(".{UNFINISHED}"));
            if is_unfinished || matches!(job, Some(Err(QueueError::Missing { .. }))) {
                remove_file(&entry.path());
            }
        }
    }

    /// Forgets jobs that are older than they may be.
    pub fn forget_old(&self) -> Result<(), RequestError> {
        let age = self.retention.age.map(|age| age.as_secs_f64());
        self.queue.outdated(self.retention.jobs, age)?.iter().try_for_each(|id| self.remove(id))
    }

    /// Whether the server ends.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }
}

/// Settings that name no model.
fn without_model(settings: &Settings) -> Settings {
    let mut kept = Settings::default();
    let of_model = ["model", "diffusion-model", "vae", "clip_l", "clip_g", "t5xxl", "llm", "taesd", "prediction"];
    for (name, text) in settings.texts.iter().filter(|(name, _)| !of_model.contains(&name.as_str())) {
        // They were set before by the same texts.
        let _ = kept.set(name, text);
    }
    kept
}

/// The job that a file below the data folder is of, by its name; none for files that others put there.
fn job_of_file(name: &str) -> Option<&str> {
    let (id, rest) = name.strip_prefix("plan-").unwrap_or(name).split_at_checked(ID_LENGTH)?;
    (id.bytes().all(|b| b.is_ascii_hexdigit()) && rest.starts_with(['.', '_', '-'])).then_some(id)
}

/// A file that is gone already is as good as removed.
fn remove_file(path: &Path) {
    let _ = std::fs::remove_file(path);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_jobs_are_taken_for_such() {
        assert_eq!(job_of_file("0123456789abcdef_001.png"), Some("0123456789abcdef"));
        assert_eq!(job_of_file("plan-0123456789abcdef-init.png"), Some("0123456789abcdef"));
        for other in ["holiday in 2026.png", "0123456789abcdef0.png", "plan-b.txt", "é123456789abcdef.png", ""] {
            assert_eq!(job_of_file(other), None, "{other}");
        }
    }
}
