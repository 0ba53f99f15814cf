//! The folder where verdicts are kept between runs. It is a convenience: whatever is wrong with it costs time, never a picture.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

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
    /// The user's cache folder: `$XDG_CACHE_HOME/impasto`, else `~/.cache/impasto`; on Windows below `%LOCALAPPDATA%`.
    pub fn of_user() -> Store {
        let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        // A path that depends on where we happen to be is none.
        let absolute = |path: &PathBuf| path.is_absolute();
        let folder = match cfg!(windows) {
            true => variable("LOCALAPPDATA").filter(absolute).map(|path| path.join("impasto").join("cache")),
            false => variable("XDG_CACHE_HOME")
                .filter(absolute)
                .or_else(|| variable("HOME").filter(absolute).map(|home| home.join(".cache")))
                .map(|path| path.join("impasto")),
        };
        match folder {
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
        let ours = |name: &str| name.starts_with("devices-") && wanted(name);
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
        match self.try_write(&path, text) {
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

    fn try_write(&self, path: &Path, text: &str) -> io::Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let folder = path.parent().ok_or(io::ErrorKind::NotFound)?;
        fs::create_dir_all(folder)?;
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("devices-new-{}-{count}", std::process::id());
        let new = folder.join(name);
        let written = File::create(&new).and_then(|mut file| file.write_all(text.as_bytes()));
        let placed = written.and_then(|()| fs::rename(&new, path));
        if placed.is_err() {
            let _ = fs::remove_file(&new);
        }
        placed
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
