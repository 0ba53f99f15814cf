//! The crash guard: a driver that has crashed twice is left alone for a while, across runs.
//!
//! A crash in a probe is counted when the child dies. A crash in real use cannot be: the process that would count it is gone.
//! So before a driver's first real use an [`Attempt`] is noted in a file, and taken back after the first dispatch that
//! completed; a note whose process is dead is a crash.
//!
//! The first crash is forgiven, and a day forgives one more. A driver or kernel that is not the same any more begins anew. A
//! user who asks for an API by name is not held back.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::store::Store;
use crate::sys;

const FILE: &str = "guard.json";
const ATTEMPT: &str = "attempt-";
const BLOCKED_FROM: u32 = 2;
const FORGIVEN_AFTER: u64 = 24 * 60 * 60;
/// A driver that crashes for ever must not fill the file, nor take weeks to be forgiven.
const MAX_CRASHES: u32 = 5;
const MAX_ENTRIES: usize = 64;

/// The crash record of a driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrashRecord {
    /// The driver: a manifest, or a library.
    pub driver: String,
    /// What the driver was when it crashed; another one is innocent.
    pub(crate) key: Vec<String>,
    /// How often it crashed, less what was forgiven.
    pub crashes: u32,
    /// When it crashed last, in seconds since 1970.
    pub last: u64,
    /// What was seen.
    pub what: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Entries {
    drivers: BTreeMap<String, CrashRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Note {
    driver: String,
    key: Vec<String>,
    stage: String,
    pid: u32,
    /// When the process began, since numbers of processes come again.
    begun: Option<u64>,
}

/// The guard of one survey.
pub(crate) struct Guard {
    store: Arc<Store>,
    now: u64,
}

impl Guard {
    /// Counts what died since the last time.
    pub fn open(store: Arc<Store>) -> Guard {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let guard = Guard { store, now };
        guard.count_the_dead();
        guard
    }

    fn count_the_dead(&self) {
        for path in self.store.files(|name| name.starts_with("devices-attempt-")) {
            let note = std::fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str::<Note>(&text).ok());
            let alive = |note: &Note| sys::process_begin(note.pid).is_some_and(|begun| Some(begun) == note.begun);
            match note {
                Some(note) if alive(&note) => {}
                // Whoever removes the note counts it, so that two processes do not count one crash twice.
                Some(note) if std::fs::remove_file(&path).is_ok() => {
                    let what = format!("its process died in {} of its first real use", note.stage);
                    self.crashed(&note.driver, &note.key, &what);
                }
                Some(_) => {}
                None => drop(std::fs::remove_file(&path)),
            }
        }
    }

    /// Counts a crash.
    pub fn crashed(&self, driver: &str, key: &[String], what: &str) {
        let now = self.now;
        self.store.update(FILE, |text| {
            let mut entries = parse(text);
            let same = entries.drivers.get(driver).filter(|known| known.key == key);
            let before = same.map_or(0, |known| forgiven(known, now));
            let crashes = (before + 1).min(MAX_CRASHES);
            let entry = CrashRecord { driver: driver.into(), key: key.to_vec(), crashes, last: now, what: what.into() };
            entries.drivers.insert(driver.into(), entry);
            while entries.drivers.len() > MAX_ENTRIES {
                let oldest = entries.drivers.values().min_by_key(|entry| entry.last).map(|entry| entry.driver.clone());
                oldest.and_then(|driver| entries.drivers.remove(&driver));
            }
            serde_json::to_string_pretty(&entries).unwrap_or_default()
        });
    }

    /// A driver that did its work has no crashes any more.
    pub fn worked(&self, drivers: &[String]) {
        let known = parse(self.store.read(FILE)).drivers;
        if !drivers.iter().any(|driver| known.contains_key(driver)) {
            return;
        }
        self.store.update(FILE, |text| {
            let mut entries = parse(text);
            entries.drivers.retain(|driver, _| !drivers.contains(driver));
            serde_json::to_string_pretty(&entries).unwrap_or_default()
        });
    }

    /// Whether anything is remembered of such a driver.
    pub fn remembers(&self, such: impl Fn(&str) -> bool) -> bool {
        parse(self.store.read(FILE)).drivers.keys().any(|driver| such(driver))
    }

    /// The crash record of a driver that is blocked.
    pub fn blocked(&self, driver: &str, key: &[String]) -> Option<CrashRecord> {
        let mut known = parse(self.store.read(FILE)).drivers.remove(driver)?;
        known.crashes = forgiven(&known, self.now);
        (known.key == key && known.crashes >= BLOCKED_FROM).then_some(known)
    }
}

fn parse(text: Option<String>) -> Entries {
    text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// The crashes that time has not forgiven. A clock that was set back forgives nothing.
fn forgiven(entry: &CrashRecord, now: u64) -> u32 {
    let days = now.saturating_sub(entry.last) / FORGIVEN_AFTER;
    entry.crashes.saturating_sub(days.try_into().unwrap_or(u32::MAX))
}

/// A driver's first real use in this process, noted where the next run finds it if this process dies.
///
/// Call [`completed`](Attempt::completed) after the first dispatch that completed. An attempt that is dropped is taken back: an
/// error is no crash.
///
/// ```
/// use impasto_device::{Attempt, Store};
/// use std::sync::Arc;
///
/// let attempt = Attempt::begin(&Arc::new(Store::none()), "libX.so", &[], "create-device");
/// attempt.completed();
/// ```
#[derive(Debug)]
#[must_use = "an attempt that is dropped at once guards nothing"]
pub struct Attempt(Option<PathBuf>);

impl Attempt {
    /// Notes that `driver` is about to be used for the first time, in the state that `key` describes.
    pub fn begin(store: &Arc<Store>, driver: &str, key: &[String], stage: &str) -> Attempt {
        let pid = std::process::id();
        let begun = sys::process_begin(pid);
        let note = Note { driver: driver.into(), key: key.to_vec(), stage: stage.into(), pid, begun };
        let text = serde_json::to_string(&note).unwrap_or_default();
        static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Attempt(store.write(&format!("{ATTEMPT}{pid}-{count}.json"), &text))
    }

    /// The first dispatch completed: the driver works.
    pub fn completed(self) {}
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("a temporary folder")
    }

    fn at(folder: &tempfile::TempDir) -> Arc<Store> {
        Arc::new(Store::at(folder.path().join("below")))
    }

    #[test]
    fn one_crash_is_forgiven_two_are_not_and_a_new_driver_is_innocent() {
        let folder = folder();
        let guard = Guard::open(at(&folder));
        let key = ["lib 100 bytes".to_string()];
        guard.crashed("lib", &key, "signal 11");
        assert_eq!(guard.blocked("lib", &key), None);
        guard.crashed("lib", &key, "signal 11");
        assert_eq!(guard.blocked("lib", &key).map(|known| known.crashes), Some(2));
        assert_eq!(guard.blocked("lib", &["lib 101 bytes".into()]), None);
        assert_eq!(guard.blocked("other", &key), None);
        guard.crashed("lib", &["lib 101 bytes".into()], "signal 11");
        assert_eq!(guard.blocked("lib", &["lib 101 bytes".into()]), None, "its count begins anew");
    }

    #[test]
    fn a_day_forgives_and_so_does_working() {
        let folder = folder();
        let mut guard = Guard::open(at(&folder));
        (0..2).for_each(|_| guard.crashed("lib", &[], "signal 11"));
        guard.now += FORGIVEN_AFTER;
        assert_eq!(guard.blocked("lib", &[]), None);
        guard.now -= 2 * FORGIVEN_AFTER;
        assert!(guard.blocked("lib", &[]).is_some(), "a clock that was set back forgives nothing");
        guard.worked(&["lib".into()]);
        assert_eq!(guard.blocked("lib", &[]), None);
    }

    #[test]
    fn an_attempt_of_the_living_is_no_crash_and_one_of_the_dead_is() {
        let folder = folder();
        let store = at(&folder);
        let attempt = Attempt::begin(&store, "lib", &[], "dispatch");
        let guard = Guard::open(store.clone());
        assert!(guard.store.read(FILE).is_none(), "this process lives");
        attempt.completed();

        // The same note, left by a process that is gone.
        for number in 0..2 {
            let note =
                Note { driver: "lib".into(), key: vec![], stage: "dispatch".into(), pid: 0x7FFF_FFF0, begun: Some(1) };
            let text = serde_json::to_string(&note).expect("plain data");
            store.write(&format!("{ATTEMPT}dead-{number}.json"), &text);
        }
        let known = Guard::open(store.clone()).blocked("lib", &[]).expect("two processes died");
        assert!(known.what.contains("dispatch"), "{}", known.what);
        assert!(!store.forget().expect("it can be removed").is_empty());
        assert_eq!(Guard::open(store).blocked("lib", &[]), None);
    }

    #[test]
    fn many_processes_lose_no_file_and_hardly_a_count() {
        let folder = folder();
        std::thread::scope(|scope| {
            for number in 0..4 {
                let store = at(&folder);
                scope.spawn(move || {
                    let guard = Guard::open(store);
                    (0..10).for_each(|_| guard.crashed(&format!("lib{number}"), &[], "signal 11"));
                });
            }
        });
        let guard = Guard::open(at(&folder));
        assert!((0..4).all(|number| guard.blocked(&format!("lib{number}"), &[]).is_some()));
    }

    proptest! {
        #[test]
        fn no_file_makes_it_panic(text in "\\PC*") {
            let folder = folder();
            let store = at(&folder);
            store.write(FILE, &text);
            store.write(&format!("{ATTEMPT}1.json"), &text);
            let guard = Guard::open(store);
            guard.crashed("lib", &[], "signal 11");
            guard.crashed("lib", &[], "signal 11");
            prop_assert!(guard.blocked("lib", &[]).is_some());
        }
    }
}
