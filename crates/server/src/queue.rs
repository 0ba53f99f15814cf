//! The queue: what a server needs of a place where jobs and pictures are kept. [`crate::store`] keeps them beside the server; another
//! implementation may keep them on other machines.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::record::{JobRecord, JobState, PictureRecord};

/// What can go wrong with the queue.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// No more jobs are taken for now.
    #[error("{waiting} jobs wait already, and no more than {limit} may; try again later")]
    Full {
        /// Jobs that wait.
        waiting: usize,
        /// How many may.
        limit: usize,
    },
    /// There is no such job or picture.
    #[error("there is no {what} '{id}'; it may have been deleted")]
    Missing {
        /// A job or a picture.
        what: &'static str,
        /// Its name.
        id: String,
    },
    /// That cannot be done with a job as it stands.
    #[error("job '{id}' is {state}: {problem}", state = .state.name())]
    State {
        /// The job.
        id: String,
        /// Where it stands.
        state: JobState,
        /// What can be done instead.
        problem: &'static str,
    },
    /// The store does not work.
    #[error("the store of jobs cannot be used: {0}; look at the disk of the --data folder")]
    Store(String),
}

/// A job that is to be added.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// Its name, by [`new_id`].
    pub id: String,
    /// Whose turn it takes.
    pub client: String,
    /// The model's name.
    pub model: String,
    /// The settings, by name.
    pub settings: BTreeMap<String, String>,
    /// It begins with a picture.
    pub has_init: bool,
    /// It has a mask.
    pub has_mask: bool,
}

/// A picture that is to be added.
#[derive(Clone, Debug)]
pub struct NewPicture {
    /// Its file below the folder of pictures.
    pub file: String,
    /// Its seed.
    pub seed: u64,
    /// Pixels across.
    pub width: usize,
    /// Pixels down.
    pub height: usize,
    /// How it was made, as webui writes it.
    pub parameters: String,
}

/// Where jobs and pictures are kept. Every change is on disk when a call returns.
pub trait JobQueue: Send + Sync {
    /// Adds a job at the end, unless `limit` wait already.
    fn add(&self, job: &NewJob, limit: usize) -> Result<JobRecord, QueueError>;
    /// The job whose turn it is, which runs from now on.
    fn take(&self) -> Result<Option<JobRecord>, QueueError>;
    /// Jobs that ran when the server ended, which are queued again, first of all.
    fn recover(&self) -> Result<Vec<JobRecord>, QueueError>;
    /// A job runs no more: it has ended, or (queued) gives its turn back.
    fn settle(&self, id: &str, state: JobState, error: Option<&str>) -> Result<(), QueueError>;
    /// Adds a line for the user.
    fn note(&self, id: &str, text: &str) -> Result<(), QueueError>;
    /// A job.
    fn job(&self, id: &str) -> Result<JobRecord, QueueError>;
    /// Queued jobs in the order of their turns, then the running one, then others from new to old.
    fn jobs(&self, states: &[JobState], limit: usize) -> Result<Vec<JobRecord>, QueueError>;
    /// Queues a job again that failed or was cancelled, unless `limit` wait already.
    fn retry(&self, id: &str, limit: usize) -> Result<JobRecord, QueueError>;
    /// Moves a queued job to this place among the queued ones of its client.
    fn move_to(&self, id: &str, place: usize) -> Result<JobRecord, QueueError>;
    /// Cancels a job that is queued; `false` where it is not.
    fn cancel_queued(&self, id: &str) -> Result<bool, QueueError>;
    /// Forgets a job that does not run, and its pictures, whose files are returned.
    fn remove(&self, id: &str) -> Result<Vec<String>, QueueError>;
    /// Adds a picture of a job; one whose file is known already is not added again.
    fn add_picture(&self, job: &str, picture: &NewPicture) -> Result<PictureRecord, QueueError>;
    /// A picture.
    fn picture(&self, id: i64) -> Result<PictureRecord, QueueError>;
    /// Pictures from new to old, older than `before`, whose parameters have every word of `search`.
    fn pictures(&self, search: &str, before: Option<i64>, limit: usize) -> Result<Vec<PictureRecord>, QueueError>;
    /// Forgets a picture; its file is returned.
    fn remove_picture(&self, id: i64) -> Result<String, QueueError>;
    /// Jobs in each state, and pictures.
    fn counts(&self) -> Result<(BTreeMap<&'static str, usize>, usize), QueueError>;
    /// Ended jobs and their pictures beyond these limits, from the oldest on: their ids.
    fn outdated(&self, keep_jobs: usize, keep_seconds: Option<f64>) -> Result<Vec<String>, QueueError>;
}

/// Digits of a job's name.
pub const ID_LENGTH: usize = 16;

/// A name for a job: later ones are greater.
pub fn new_id() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed) & 0xfff;
    format!("{:013x}{count:03x}", (crate::record::now() * 1e6) as u64)
}

/// The order in which queued jobs take their turns. Clients take turns, the one first whose last turn is longest ago; the jobs of one client keep
/// their order.
///
/// `queued` is `(job, client)` in the order of the queue, `last_turns` when the last job of a client began.
pub fn turns(queued: &[(String, String)], last_turns: &HashMap<String, f64>) -> Vec<String> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut waiting: Vec<(f64, VecDeque<&str>)> = vec![];
    for (job, client) in queued {
        let place = *places.entry(client).or_insert_with(|| {
            waiting.push((last_turns.get(client).copied().unwrap_or(0.0), VecDeque::new()));
            waiting.len() - 1
        });
        waiting[place].1.push_back(job);
    }
    // Who came first is first among those whose last turn is equally long ago.
    waiting.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let mut clients: VecDeque<VecDeque<&str>> = waiting.into_iter().map(|(_, jobs)| jobs).collect();
    let mut order = Vec::with_capacity(queued.len());
    while let Some(mut jobs) = clients.pop_front() {
        order.extend(jobs.pop_front().map(str::to_owned));
        if !jobs.is_empty() {
            clients.push_back(jobs);
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(text: &str) -> Vec<(String, String)> {
        text.split_whitespace().map(|job| (job.into(), job[..1].into())).collect()
    }

    #[test]
    fn clients_take_turns_whatever_one_of_them_queues() {
        let order = turns(&queue("a1 a2 a3 b1 c1 b2"), &HashMap::new());
        assert_eq!(order, ["a1", "b1", "c1", "a2", "b2", "a3"]);
        let after_a = turns(&queue("a2 a3 b1 c1"), &HashMap::from([("a".into(), 5.0)]));
        assert_eq!(after_a, ["b1", "c1", "a2", "a3"]);
        assert_eq!(turns(&[], &HashMap::new()), Vec::<String>::new());
    }
}
