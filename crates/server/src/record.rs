//! Jobs and pictures as they are stored and shown.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// It waits for its turn.
    Queued,
    /// Its pictures are being made.
    Running,
    /// All its pictures are made.
    Done,
    /// It was refused or broke; `error` says why.
    Failed,
    /// Somebody stopped it.
    Cancelled,
}

impl JobState {
    /// Its name in the store and in answers.
    pub fn name(self) -> &'static str {
        match self {
            JobState::Queued => "queued",
            JobState::Running => "running",
            JobState::Done => "done",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
        }
    }

    /// The state of this name.
    pub fn named(name: &str) -> Option<JobState> {
        use JobState::{Cancelled, Done, Failed, Queued, Running};
        [Queued, Running, Done, Failed, Cancelled].into_iter().find(|state| state.name() == name)
    }

    /// Nothing more happens to it by itself.
    pub fn has_ended(self) -> bool {
        !matches!(self, JobState::Queued | JobState::Running)
    }
}

/// What a running job is at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct JobProgress {
    /// In words: loading, compiling, sampling, decoding.
    pub what: String,
    /// The picture, from 0.
    pub picture: usize,
    /// All of them.
    pub pictures: usize,
    /// Steps done of this picture.
    pub done: usize,
    /// All its steps.
    pub of: usize,
    /// Seconds until the last picture, once a step was timed.
    pub seconds_left: Option<f64>,
}

impl JobProgress {
    /// From 0 to 1 over all pictures.
    pub fn share(&self) -> f64 {
        let steps = (self.of * self.pictures).max(1) as f64;
        ((self.picture * self.of + self.done) as f64 / steps).clamp(0.0, 1.0)
    }
}

/// A job: what was asked for, where it stands, what it made.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct JobRecord {
    /// Its name; later jobs have greater ones.
    pub id: String,
    /// Where it stands.
    pub state: JobState,
    /// The model, by its name in `models`.
    pub model: String,
    /// The settings that were asked for, by name.
    pub settings: BTreeMap<String, String>,
    /// Whose turn it takes.
    #[serde(skip)]
    pub client: String,
    /// Seconds since 1970.
    pub created: f64,
    /// When it began.
    pub started: Option<f64>,
    /// When it ended.
    pub ended: Option<f64>,
    /// Its place in the queue, 0 is next.
    pub position: Option<usize>,
    /// What it is at, while it runs.
    pub progress: Option<JobProgress>,
    /// What the user should know.
    pub notes: Vec<String>,
    /// Why it failed, and what to do.
    pub error: Option<String>,
    /// It has steps behind it that `retry` does not take again.
    pub resumable: bool,
    /// It began with a picture.
    pub has_init: bool,
    /// It has a mask on that picture.
    #[serde(skip)]
    pub has_mask: bool,
    /// There is a preview.
    pub has_preview: bool,
    /// The pictures that are ready.
    pub pictures: Vec<PictureRecord>,
}

impl JobRecord {
    /// Pictures that were asked for.
    pub fn count(&self) -> usize {
        self.settings.get("batch-count").and_then(|n| n.trim().parse().ok()).unwrap_or(1)
    }
}

/// A picture that is ready.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PictureRecord {
    /// Its number.
    pub id: i64,
    /// The job that made it.
    pub job: String,
    /// Its file below the folder of pictures.
    #[serde(skip)]
    pub file: String,
    /// Its seed.
    pub seed: u64,
    /// Pixels across.
    pub width: usize,
    /// Pixels down.
    pub height: usize,
    /// The model, by its name in `models`.
    pub model: String,
    /// What it shows.
    pub prompt: String,
    /// How it was made, as webui writes it.
    pub parameters: String,
    /// The settings of its job, with its own seed.
    pub settings: BTreeMap<String, String>,
    /// Seconds since 1970.
    pub created: f64,
}

/// Seconds since 1970.
pub fn now() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
