//! The folder where verdicts are kept between runs. It is a convenience: whatever is wrong with it costs time, never a picture.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use impasto_store::UNFINISHED;

/// No file of ours is nearly as large.
const MAX_BYTES: u64 = 8 << 20;
/// How long to wait for another process that updates the same file.
const PATIENCE: Duration = Duration::from_millis(300);
const LOCK: &str = "lock";

/// Where verdicts of drivers are kept between runs.
///
/// ```
/// use impasto_device::Store;
///
/// // Nothing is kept, and nothing is wrong with that.
/// let store = Store::none();
/// assert_eq!(store.folder(), None);
/// assert!(store.forget().unwrap().is_empty());
/// ```
#[derive(Debug)]
pub struct Store {
    folder: Option<PathBuf>,
    trouble: Mutex<Option<String>>,
}

impl Store {
    /// The user's cache folder, [`impasto_store::user_folder`].
    pub fn of_user() -> Store {
        match impasto_store::user_folder() {
            Some(folder) => Store::at(folder),
            None => {
                let trouble = "no cache folder is known (neither XDG_CACHE_HOME nor HOME is set): drivers are probed in every run";
                Store { folder: None, trouble: Mutex::new(Some(trouble.into())) }
            }
        }
    }

    /// A folder of your own.
    pub fn at(folder: impl Into<PathBuf>) -> Store {
        Store { folder: Some(folder.into()), trouble: Mutex::new(None) }
    }

    /// Keeps nothing.
    pub fn none() -> Store {
        Store { folder: None, trouble: Mutex::new(None) }
    }

    /// The folder, whether it exists or not.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// What is wrong with the folder, once something was.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Removes every verdict and every note of a crash. Returns what was removed.
    pub fn forget(&self) -> io::Result<Vec<PathBuf>> {
        let mut removed = Vec::new();
        for path in self.files(|_| true) {
            match fs::remove_file(&path) {
                Ok(()) => removed.push(path),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(removed)
    }

    /// Our files whose names are asked for.
    pub(crate) fn files(&self, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
        let Some(folder) = &self.folder else { return Vec::new() };
        let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
        // Also those that a process was writing when it died.
        let unfinished = |name: &str| name.starts_with(UNFINISHED) && name.contains("-devices-");
        let ours = |name: &str| (name.starts_with("devices-") || unfinished(name)) && wanted(name);
        entries
            .flatten()
            .filter(|entry| entry.file_name().to_str().is_some_and(ours))
            .map(|entry| entry.path())
            .collect()
    }

    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(format!("devices-{name}")))
    }

    /// The text of a file, if it can be had.
    pub(crate) fn read(&self, name: &str) -> Option<String> {
        let path = self.path(name)?;
        let data = fs::metadata(&path).ok()?;
        if !data.is_file() || data.len() > MAX_BYTES {
            return None;
        }
        fs::read_to_string(path).ok()
    }

    /// Puts a whole file in place at once: a reader sees the old one or the new one.
    pub(crate) fn write(&self, name: &str, text: &str) -> Option<PathBuf> {
        let path = self.path(name)?;
        match impasto_store::put(&path, text.as_bytes()) {
            Ok(()) => Some(path),
            Err(error) => {
                let mut trouble = self.trouble.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let folder = path.parent().unwrap_or(&path).display();
                trouble.get_or_insert_with(|| {
                    format!("{folder} cannot be written to ({error}): drivers are probed in every run")
                });
                None
            }
        }
    }

    /// Changes a file while no other process does. If another one holds it for too long, the change is made all the same: to lose
    /// a count is better than to wait.
    pub(crate) fn update(&self, name: &str, change: impl FnOnce(Option<String>) -> String) {
        let Some(path) = self.path(LOCK) else { return };
        if let Some(folder) = path.parent() {
            let _ = fs::create_dir_all(folder);
        }
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(path).ok();
        let begun = Instant::now();
        while lock.as_ref().is_some_and(|lock| lock.try_lock().is_err()) && begun.elapsed() < PATIENCE {
            sleep(Duration::from_millis(2));
        }
        self.write(name, &change(self.read(name)));
    }
}
