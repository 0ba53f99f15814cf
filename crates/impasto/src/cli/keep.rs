//! The file of a run beside its picture: written while it is made, removed when it is done.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use impasto::generate::picture::PictureError;
use impasto::generate::settings::{Kind, Setting, Settings};
use impasto::generate::{GenerateError, Run, Stored, run_file};

/// Steps that follow each other faster are not all written.
const OFTEN: Duration = Duration::from_millis(500);

/// Keeps one run after the other.
pub struct Keeper {
    settings: std::collections::BTreeMap<String, String>,
    fingerprint: String,
    keep: bool,
    /// The picture being made and its run's file.
    current: Option<(usize, PathBuf, PathBuf)>,
    /// What is not on disk yet.
    unsaved: Option<Vec<u8>>,
    saved: Option<Instant>,
    warned: bool,
}

impl Keeper {
    pub fn new(settings: &Settings, fingerprint: String) -> Keeper {
        // A run may go on in another folder.
        let whole = |(name, text): (&String, &String)| {
            let is_file = Setting::named(name).is_some_and(|setting| setting.kind == Kind::File);
            let path = std::path::absolute(text).ok().filter(|_| is_file);
            (name.clone(), path.map_or_else(|| text.clone(), |path| path.to_string_lossy().into_owned()))
        };
        let settings_of_run = settings.texts.iter().map(whole).collect();
        let keep = settings.keep_latent == Some(true);
        Keeper {
            settings: settings_of_run,
            fingerprint,
            keep,
            current: None,
            unsaved: None,
            saved: None,
            warned: false,
        }
    }

    /// The run stands here now; `claim` names the picture's file when a new one begins.
    pub fn keep(&mut self, run: &Run, claim: impl FnOnce() -> PathBuf) -> Result<(), GenerateError> {
        let begins = self.current.as_ref().is_none_or(|(picture, ..)| *picture != run.picture);
        if begins {
            let output = claim();
            self.current = Some((run.picture, run_file(&output), output));
        }
        let Some((_, file, output)) = &self.current else { return Ok(()) };
        let output = std::path::absolute(output).unwrap_or_else(|_| output.clone());
        let (settings, fingerprint) = (self.settings.clone(), self.fingerprint.clone());
        let bytes = Stored { settings, fingerprint, output, run: run.clone() }.to_bytes();
        let (done, of) = run.steps();
        if !begins && done < of && self.saved.is_some_and(|saved| saved.elapsed() < OFTEN) {
            self.unsaved = Some(bytes);
            return Ok(());
        }
        self.unsaved = None;
        match impasto_store::put_safely(file, &bytes) {
            Ok(()) => self.saved = Some(Instant::now()),
            // Where not even this can be written, the picture cannot be either: said before the work, not after.
            Err(e) if begins => {
                return Err(PictureError::Write { path: file.clone(), problem: e.to_string() }.into());
            }
            Err(e) => {
                self.unsaved = Some(bytes);
                if !std::mem::replace(&mut self.warned, true) {
                    eprintln!(
                        "warning: cannot keep the run in {}: {e}; it goes on, but an end before its time would lose steps",
                        file.display()
                    );
                }
            }
        }
        Ok(())
    }

    /// The picture's file.
    pub fn output(&self) -> Option<&Path> {
        self.current.as_ref().map(|(_, _, output)| output.as_path())
    }

    /// The picture is written.
    pub fn done(&mut self) {
        if let Some((_, file, _)) = self.current.take()
            && !self.keep
        {
            let _ = impasto_store::remove(&file);
        }
        (self.unsaved, self.saved) = (None, None);
    }

    /// The run has failed: what is not on disk yet goes there, and the user is told how to go on.
    pub fn failed(&mut self) {
        let Some((_, file, _)) = &self.current else { return };
        if let Some(bytes) = self.unsaved.take()
            && let Err(e) = impasto_store::put_safely(file, &bytes)
        {
            eprintln!("warning: the last steps could not be kept in {}: {e}", file.display());
        }
        if file.exists() {
            eprintln!("what is done is kept: impasto resume {}", file.display());
        }
    }
}
