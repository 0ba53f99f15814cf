//! Jobs and pictures in SQLite, beside the server.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::queue::{JobQueue, NewJob, NewPicture, QueueError, turns};
use crate::record::{JobRecord, JobState, PictureRecord, now};

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, state TEXT NOT NULL, client TEXT NOT NULL, model TEXT NOT NULL, settings TEXT NOT NULL, rank REAL NOT NULL,
    created REAL NOT NULL, started REAL, ended REAL, notes TEXT NOT NULL DEFAULT '[]', error TEXT, init INTEGER NOT NULL, mask INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, rank);
CREATE INDEX IF NOT EXISTS jobs_by_client ON jobs (client, started);
CREATE TABLE IF NOT EXISTS pictures (
    id INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE, file TEXT NOT NULL UNIQUE, seed TEXT NOT NULL,
    width INTEGER NOT NULL, height INTEGER NOT NULL, parameters TEXT NOT NULL, created REAL NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS pictures_by_job ON pictures (job);
";
/// The version of the schema. A store of a later one is refused, not guessed at.
const VERSION: i64 = 1;

const JOB: &str =
    "SELECT id, state, client, model, settings, created, started, ended, notes, error, init, mask FROM jobs";
const PICTURE: &str = "SELECT p.id, p.job, p.file, p.seed, p.width, p.height, p.parameters, p.created, j.model, j.settings \
                       FROM pictures p JOIN jobs j ON j.id = p.job";

/// The store of one server, in a file that only it writes.
pub struct SqliteStore {
    connection: Mutex<Connection>,
    /// For reading only: who looks does not wait until the disk has what another one writes.
    reader: Mutex<Connection>,
}

impl From<rusqlite::Error> for QueueError {
    fn from(error: rusqlite::Error) -> QueueError {
        QueueError::Store(error.to_string())
    }
}

impl SqliteStore {
    /// Opens the store, or makes it.
    pub fn open(path: &Path) -> Result<SqliteStore, QueueError> {
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if version > VERSION {
            let problem = format!(
                "{} was written by a later version of impasto: use that one, or another --data folder",
                path.display()
            );
            return Err(QueueError::Store(problem));
        }
        connection.execute_batch(SCHEMA)?;
        connection.pragma_update(None, "user_version", VERSION)?;
        let reader = Connection::open(path)?;
        reader.pragma_update(None, "query_only", true)?;
        Ok(SqliteStore { connection: Mutex::new(connection), reader: Mutex::new(reader) })
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads one moment of the store, whatever is written meanwhile.
    fn reading<T>(&self, work: impl FnOnce(&Connection) -> Result<T, QueueError>) -> Result<T, QueueError> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let moment = reader.transaction()?;
        work(&moment)
    }
}

fn job_row(row: &Row) -> rusqlite::Result<JobRecord> {
    let text: String = row.get(1)?;
    let (settings, notes): (String, String) = (row.get(4)?, row.get(8)?);
    Ok(JobRecord {
        id: row.get(0)?,
        state: JobState::named(&text).unwrap_or(JobState::Failed),
        client: row.get(2)?,
        model: row.get(3)?,
        settings: serde_json::from_str(&settings).unwrap_or_default(),
        created: row.get(5)?,
        started: row.get(6)?,
        ended: row.get(7)?,
        notes: serde_json::from_str(&notes).unwrap_or_default(),
        error: row.get(9)?,
        has_init: row.get(10)?,
        has_mask: row.get(11)?,
        position: None,
        progress: None,
        resumable: false,
        has_preview: false,
        pictures: vec![],
    })
}

fn picture_row(row: &Row) -> rusqlite::Result<PictureRecord> {
    let (seed, settings): (String, String) = (row.get(3)?, row.get(9)?);
    let mut settings: BTreeMap<String, String> = serde_json::from_str(&settings).unwrap_or_default();
    let prompt = settings.get("prompt").cloned().unwrap_or_default();
    settings.insert("seed".into(), seed.clone());
    settings.remove("batch-count");
    Ok(PictureRecord {
        id: row.get(0)?,
        job: row.get(1)?,
        file: row.get(2)?,
        seed: seed.parse().unwrap_or_default(),
        width: row.get(4)?,
        height: row.get(5)?,
        parameters: row.get(6)?,
        created: row.get(7)?,
        model: row.get(8)?,
        prompt,
        settings,
    })
}

fn pictures_of(connection: &Connection, job: &str) -> rusqlite::Result<Vec<PictureRecord>> {
    let mut statement = connection.prepare_cached(&format!("{PICTURE} WHERE p.job = ?1 ORDER BY p.id"))?;
    statement.query_map([job], picture_row)?.collect()
}

/// Queued jobs in the order of their turns.
fn order(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement =
        connection.prepare_cached("SELECT id, client FROM jobs WHERE state = 'queued' ORDER BY rank, id")?;
    let queued: Vec<(String, String)> =
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<rusqlite::Result<_>>()?;
    let mut statement = connection.prepare_cached(
        "SELECT client, MAX(started) FROM jobs WHERE started IS NOT NULL AND client IN (SELECT client FROM jobs WHERE state = 'queued') GROUP BY client",
    )?;
    let last: HashMap<String, f64> =
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<rusqlite::Result<_>>()?;
    Ok(turns(&queued, &last))
}

fn job_of(connection: &Connection, id: &str) -> Result<JobRecord, QueueError> {
    let found = connection.prepare_cached(&format!("{JOB} WHERE id = ?1"))?.query_row([id], job_row).optional()?;
    let mut job = found.ok_or_else(|| QueueError::Missing { what: "job", id: id.into() })?;
    job.pictures = pictures_of(connection, id)?;
    if job.state == JobState::Queued {
        job.position = order(connection)?.iter().position(|queued| queued == id);
    }
    Ok(job)
}

fn picture_of(connection: &Connection, id: i64) -> Result<PictureRecord, QueueError> {
    let found = connection.prepare_cached(&format!("{PICTURE} WHERE p.id = ?1"))?.query_row([id], picture_row);
    found.optional()?.ok_or_else(|| QueueError::Missing { what: "picture", id: id.to_string() })
}

/// Refuses another job where `limit` wait already.
fn check_room(connection: &Connection, limit: usize) -> Result<(), QueueError> {
    let count = "SELECT COUNT(*) FROM jobs WHERE state = 'queued'";
    let waiting: usize = connection.prepare_cached(count)?.query_row([], |row| row.get(0))?;
    if waiting >= limit { Err(QueueError::Full { waiting, limit }) } else { Ok(()) }
}

impl JobQueue for SqliteStore {
    fn add(&self, job: &NewJob, limit: usize) -> Result<JobRecord, QueueError> {
        let mut connection = self.lock();
        let change = connection.transaction()?;
        check_room(&change, limit)?;
        let settings = serde_json::to_string(&job.settings).unwrap_or_default();
        change.execute(
            "INSERT INTO jobs (id, state, client, model, settings, rank, created, init, mask)
             VALUES (?1, 'queued', ?2, ?3, ?4, (SELECT COALESCE(MAX(rank), 0) + 1 FROM jobs), ?5, ?6, ?7)",
            params![job.id, job.client, job.model, settings, now(), job.has_init, job.has_mask],
        )?;
        let added = job_of(&change, &job.id)?;
        change.commit()?;
        Ok(added)
    }

    fn take(&self) -> Result<Option<JobRecord>, QueueError> {
        let mut connection = self.lock();
        let change = connection.transaction()?;
        let Some(id) = order(&change)?.into_iter().next() else { return Ok(None) };
        change.execute(
            "UPDATE jobs SET state = 'running', started = ?2, ended = NULL WHERE id = ?1",
            params![id, now()],
        )?;
        let taken = job_of(&change, &id)?;
        change.commit()?;
        Ok(Some(taken))
    }

    fn recover(&self) -> Result<Vec<JobRecord>, QueueError> {
        let mut connection = self.lock();
        let change = connection.transaction()?;
        let ids: Vec<String> = {
            let mut statement = change.prepare("SELECT id FROM jobs WHERE state = 'running' ORDER BY started DESC")?;
            statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?
        };
        for id in &ids {
            change.execute(
                "UPDATE jobs SET state = 'queued', started = NULL, rank = (SELECT MIN(rank) - 1 FROM jobs) WHERE id = ?1",
                [id],
            )?;
        }
        let jobs = ids.iter().map(|id| job_of(&change, id)).collect::<Result<_, _>>()?;
        change.commit()?;
        Ok(jobs)
    }

    fn settle(&self, id: &str, state: JobState, error: Option<&str>) -> Result<(), QueueError> {
        let ended = state.has_ended().then(now);
        let change = "UPDATE jobs SET state = ?2, error = ?3, ended = ?4 WHERE id = ?1";
        self.lock().execute(change, params![id, state.name(), error, ended])?;
        Ok(())
    }

    fn note(&self, id: &str, text: &str) -> Result<(), QueueError> {
        self.lock()
            .execute("UPDATE jobs SET notes = json_insert(notes, '$[#]', ?2) WHERE id = ?1", params![id, text])?;
        Ok(())
    }

    fn job(&self, id: &str) -> Result<JobRecord, QueueError> {
        self.reading(|connection| job_of(connection, id))
    }

    fn jobs(&self, states: &[JobState], limit: usize) -> Result<Vec<JobRecord>, QueueError> {
        self.reading(|connection| {
            let asked = |state: JobState| states.is_empty() || states.contains(&state);
            let mut jobs = vec![];
            if asked(JobState::Queued) {
                for (position, id) in order(connection)?.iter().take(limit).enumerate() {
                    let mut statement = connection.prepare_cached(&format!("{JOB} WHERE id = ?1"))?;
                    jobs.push(JobRecord { position: Some(position), ..statement.query_row([id], job_row)? });
                }
            }
            let names: Vec<&str> = [JobState::Running, JobState::Done, JobState::Failed, JobState::Cancelled]
                .into_iter()
                .filter(|&state| asked(state))
                .map(JobState::name)
                .collect();
            let text = format!(
                "{JOB} WHERE state IN (SELECT value FROM json_each(?1)) ORDER BY state = 'running' DESC, id DESC LIMIT ?2"
            );
            let mut statement = connection.prepare_cached(&text)?;
            let names = serde_json::to_string(&names).unwrap_or_default();
            let rest = statement.query_map(params![names, limit.saturating_sub(jobs.len())], job_row)?;
            jobs.extend(rest.collect::<rusqlite::Result<Vec<_>>>()?);
            for job in &mut jobs {
                job.pictures = pictures_of(connection, &job.id)?;
            }
            Ok(jobs)
        })
    }

    fn retry(&self, id: &str, limit: usize) -> Result<JobRecord, QueueError> {
        let connection = self.lock();
        let job = job_of(&connection, id)?;
        if !matches!(job.state, JobState::Failed | JobState::Cancelled) {
            let problem = "only one that failed or was cancelled can be tried again";
            return Err(QueueError::State { id: id.into(), state: job.state, problem });
        }
        check_room(&connection, limit)?;
        connection.execute(
            "UPDATE jobs SET state = 'queued', error = NULL, ended = NULL, started = NULL, notes = '[]',
             rank = (SELECT MAX(rank) + 1 FROM jobs) WHERE id = ?1",
            [id],
        )?;
        job_of(&connection, id)
    }

    fn move_to(&self, id: &str, place: usize) -> Result<JobRecord, QueueError> {
        let mut connection = self.lock();
        let change = connection.transaction()?;
        let job = job_of(&change, id)?;
        if job.state != JobState::Queued {
            let problem = "only one that waits can be moved";
            return Err(QueueError::State { id: id.into(), state: job.state, problem });
        }
        let mut own: Vec<(String, f64)> = {
            let mut statement =
                change.prepare("SELECT id, rank FROM jobs WHERE state = 'queued' AND client = ?1 ORDER BY rank, id")?;
            statement
                .query_map([&job.client], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<rusqlite::Result<_>>()?
        };
        // The ranks stay where they are, and the jobs take them in another order: whose turn it is among clients does not change.
        let ranks: Vec<f64> = own.iter().map(|(_, rank)| *rank).collect();
        if let Some(at) = own.iter().position(|(known, _)| known == id) {
            let moved = own.remove(at);
            own.insert(place.min(own.len()), moved);
        }
        for ((id, _), rank) in own.iter().zip(ranks) {
            change.execute("UPDATE jobs SET rank = ?2 WHERE id = ?1", params![id, rank])?;
        }
        let moved = job_of(&change, id)?;
        change.commit()?;
        Ok(moved)
    }

    fn cancel_queued(&self, id: &str) -> Result<bool, QueueError> {
        let change = "UPDATE jobs SET state = 'cancelled', ended = ?2 WHERE id = ?1 AND state = 'queued'";
        Ok(self.lock().execute(change, params![id, now()])? > 0)
    }

    fn remove(&self, id: &str) -> Result<Vec<String>, QueueError> {
        let mut connection = self.lock();
        let change = connection.transaction()?;
        let job = job_of(&change, id)?;
        if job.state == JobState::Running {
            return Err(QueueError::State { id: id.into(), state: job.state, problem: "cancel it first" });
        }
        change.execute("DELETE FROM jobs WHERE id = ?1", [id])?;
        change.commit()?;
        Ok(job.pictures.into_iter().map(|picture| picture.file).collect())
    }

    fn add_picture(&self, job: &str, picture: &NewPicture) -> Result<PictureRecord, QueueError> {
        let connection = self.lock();
        let NewPicture { file, seed, width, height, parameters } = picture;
        connection.execute(
            "INSERT INTO pictures (job, file, seed, width, height, parameters, created) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT (file) DO NOTHING",
            params![job, file, seed.to_string(), width, height, parameters, now()],
        )?;
        let id = connection.query_row("SELECT id FROM pictures WHERE file = ?1", [file], |row| row.get(0))?;
        picture_of(&connection, id)
    }

    fn picture(&self, id: i64) -> Result<PictureRecord, QueueError> {
        self.reading(|connection| picture_of(connection, id))
    }

    fn pictures(&self, search: &str, before: Option<i64>, limit: usize) -> Result<Vec<PictureRecord>, QueueError> {
        self.reading(|connection| {
            let words: Vec<String> = search.split_whitespace().map(str::to_lowercase).collect();
            let text = format!(
                "{PICTURE} WHERE p.id < ?1 AND NOT EXISTS (SELECT 1 FROM json_each(?2) w WHERE instr(lower(p.parameters), w.value) = 0) \
                 ORDER BY p.id DESC LIMIT ?3"
            );
            let words = serde_json::to_string(&words).unwrap_or_default();
            let mut statement = connection.prepare_cached(&text)?;
            let found = statement.query_map(params![before.unwrap_or(i64::MAX), words, limit], picture_row)?;
            Ok(found.collect::<rusqlite::Result<_>>()?)
        })
    }

    fn remove_picture(&self, id: i64) -> Result<String, QueueError> {
        let connection = self.lock();
        let file = picture_of(&connection, id)?.file;
        connection.execute("DELETE FROM pictures WHERE id = ?1", [id])?;
        Ok(file)
    }

    fn counts(&self) -> Result<(BTreeMap<&'static str, usize>, usize), QueueError> {
        self.reading(|connection| {
            let mut statement = connection.prepare_cached("SELECT state, COUNT(*) FROM jobs GROUP BY state")?;
            let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, usize>(1)?)))?;
            let mut counts = BTreeMap::new();
            for row in rows {
                let (state, count) = row?;
                counts.extend(JobState::named(&state).map(|state| (state.name(), count)));
            }
            let pictures = connection.query_row("SELECT COUNT(*) FROM pictures", [], |row| row.get(0))?;
            Ok((counts, pictures))
        })
    }

    fn outdated(&self, keep_jobs: usize, keep_seconds: Option<f64>) -> Result<Vec<String>, QueueError> {
        self.reading(|connection| {
            let oldest = keep_seconds.map_or(0.0, |seconds| now() - seconds);
            let mut statement = connection.prepare(
                "SELECT id FROM jobs WHERE ended IS NOT NULL AND state NOT IN ('queued', 'running')
                 AND (ended < ?1 OR id NOT IN (SELECT id FROM jobs WHERE ended IS NOT NULL ORDER BY id DESC LIMIT ?2))",
            )?;
            let limit = i64::try_from(keep_jobs).unwrap_or(i64::MAX);
            let found = statement.query_map(params![oldest, limit], |row| row.get(0))?;
            Ok(found.collect::<rusqlite::Result<_>>()?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::new_id;

    fn new_job(client: &str) -> NewJob {
        let settings = BTreeMap::from([("prompt".into(), format!("a House of {client}"))]);
        NewJob { id: new_id(), client: client.into(), model: "m".into(), settings, has_init: false, has_mask: false }
    }

    fn store() -> (tempfile::TempDir, SqliteStore) {
        let folder = tempfile::tempdir().expect("a folder");
        let store = SqliteStore::open(&folder.path().join("jobs.sqlite")).expect("a store");
        (folder, store)
    }

    #[test]
    fn what_ran_when_the_server_died_is_next() {
        let (folder, store) = store();
        let first = store.add(&new_job("a"), 9).expect("added");
        store.add(&new_job("a"), 9).expect("added");
        assert_eq!(store.take().expect("taken").expect("one").id, first.id);
        drop(store);
        let store = SqliteStore::open(&folder.path().join("jobs.sqlite")).expect("the store again");
        let recovered = store.recover().expect("recovered");
        assert_eq!((recovered.len(), recovered[0].position), (1, Some(0)));
        assert_eq!(store.take().expect("taken").expect("one").id, first.id);
    }

    #[test]
    fn a_full_queue_refuses_and_clients_take_turns() {
        let (_folder, store) = store();
        let jobs: Vec<JobRecord> =
            ["a", "a", "b"].iter().map(|client| store.add(&new_job(client), 3).expect("added")).collect();
        assert!(matches!(store.add(&new_job("c"), 3), Err(QueueError::Full { waiting: 3, limit: 3 })));
        let mut taken = vec![];
        while let Some(job) = store.take().expect("taken") {
            store.settle(&job.id, JobState::Done, None).expect("settled");
            taken.push(job.id);
        }
        assert_eq!(taken, [&*jobs[0].id, &*jobs[2].id, &*jobs[1].id]);
    }

    #[test]
    fn queued_jobs_are_moved_cancelled_and_tried_again() {
        let (_folder, store) = store();
        let [a, b, c] = [(); 3].map(|()| store.add(&new_job("a"), 9).expect("added").id);
        assert_eq!(store.move_to(&c, 0).expect("moved").position, Some(0));
        assert!(store.cancel_queued(&a).expect("cancelled") && !store.cancel_queued(&a).expect("asked"));
        assert!(matches!(store.retry(&b, 9), Err(QueueError::State { .. })));
        assert!(matches!(store.retry(&a, 2), Err(QueueError::Full { waiting: 2, limit: 2 })));
        assert_eq!(store.retry(&a, 9).expect("queued").position, Some(2));
        let order: Vec<String> =
            store.jobs(&[JobState::Queued], 9).expect("listed").into_iter().map(|j| j.id).collect();
        assert_eq!(order, [c, b, a]);
    }

    #[test]
    fn pictures_are_found_by_their_words_and_go_with_their_job() {
        let (_folder, store) = store();
        let job = store.add(&new_job("a"), 9).expect("added").id;
        let picture = |i: u64| NewPicture {
            file: format!("{i}.png"),
            seed: u64::MAX - i,
            width: 64,
            height: 32,
            parameters: format!("a Red house\nSteps: {i}"),
        };
        let [one, two] = [1, 2].map(|i| store.add_picture(&job, &picture(i)).expect("added"));
        assert_eq!(store.add_picture(&job, &picture(1)).expect("known").id, one.id);
        assert_eq!(one.seed, u64::MAX - 1);
        let found = |search: &str| store.pictures(search, None, 9).expect("searched").len();
        assert_eq!((found("red HOUSE"), found("house 2"), found("blue"), found("%")), (2, 1, 0, 0));
        assert_eq!(store.pictures("", Some(two.id), 9).expect("older").len(), 1);
        assert_eq!(store.remove(&job).expect("removed"), ["1.png", "2.png"]);
        assert!(matches!(store.picture(one.id), Err(QueueError::Missing { .. })));
    }

    /// A disk that is full would lose jobs that were accepted, or say nothing.
    #[test]
    fn a_full_disk_is_told_and_loses_nothing() {
        let (_folder, store) = store();
        let kept = store.add(&new_job("a"), 99).expect("added");
        let pages: i64 = store.lock().pragma_query_value(None, "page_count", |row| row.get(0)).expect("a count");
        let limit = |pages: i64| {
            let change = format!("PRAGMA max_page_count = {pages}");
            store.lock().query_row(&change, [], |row| row.get::<_, i64>(0)).expect("a limit")
        };
        let set = limit(pages);
        assert_eq!(set, pages);
        let long = NewJob { settings: BTreeMap::from([("prompt".into(), "x".repeat(50_000))]), ..new_job("a") };
        let problem = store.add(&long, 99).expect_err("there is no room").to_string();
        assert!(problem.contains("full") && problem.contains("--data"), "{problem}");
        assert_eq!(store.jobs(&[], 99).expect("listed").len(), 1);
        limit(pages + 1000);
        store.add(&long, 99).expect("there is room again");
        assert_eq!(store.take().expect("taken").expect("one").id, kept.id);
    }
}
