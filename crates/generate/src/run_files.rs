//! The files of a run: its pictures, and beside each while it is made the state of the run, removed when the picture is written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use impasto_store::Claim;

use crate::picture::{Picture, PictureError};
use crate::saved_run::{Run, SavedRun, run_file};
use crate::settings::{Setting, SettingKind, Settings};
use crate::{GenerateError, OutputFiles};

/// Steps that follow each other faster are not all written.
const SAVE_INTERVAL: Duration = Duration::from_millis(500);

/// The files of a run, in the order in which its pictures are made.
pub struct RunFiles {
    output: OutputFiles,
    /// The picture that a resumed run was making.
    resumed: Option<PathBuf>,
    settings: BTreeMap<String, String>,
    fingerprint: String,
    keep_state: bool,
    current: Option<Current>,
    /// A state that is not on disk yet.
    unsaved: Option<Vec<u8>>,
    saved_at: Option<Instant>,
    warned: bool,
}

/// The picture being made.
struct Current {
    index: usize,
    state: PathBuf,
    output: PathBuf,
    /// No other process makes it or writes its state.
    _claim: Claim,
}

impl RunFiles {
    /// The files of a new run of `count` pictures. Refuses at once what could not be written in the end.
    pub fn new(settings: &Settings, fingerprint: String, count: usize) -> Result<RunFiles, GenerateError> {
        // A run may be resumed in another folder.
        let absolute = |(name, text): (&String, &String)| {
            if let Some(loras) = settings.lora.as_ref().filter(|_| name == "lora") {
                return (name.clone(), loras.absolute().to_string());
            }
            let is_file = Setting::named(name).is_some_and(|setting| setting.kind == SettingKind::File);
            let path = std::path::absolute(text).ok().filter(|_| is_file);
            (name.clone(), path.map_or_else(|| text.clone(), |path| path.to_string_lossy().into_owned()))
        };
        Ok(RunFiles {
            output: OutputFiles::new(settings.output.as_deref(), count, settings.force == Some(true))?
                .sparing_runs(count)?,
            resumed: None,
            settings: settings.texts.iter().map(absolute).collect(),
            fingerprint,
            keep_state: settings.keep_latent == Some(true),
            current: None,
            unsaved: None,
            saved_at: None,
            warned: false,
        })
    }

    /// The files of a run that goes on: the pictures before its next one are there, and that one may have a name already.
    pub fn resumed(
        settings: &Settings,
        fingerprint: String,
        output: Option<PathBuf>,
    ) -> Result<RunFiles, GenerateError> {
        let files = RunFiles::new(settings, fingerprint, 0)?;
        match output.as_ref().filter(|output| output.exists() && !files.output.force()) {
            Some(path) => Err(PictureError::Exists { path: path.clone() }.into()),
            None => Ok(RunFiles { resumed: output, ..files }),
        }
    }

    /// Saves where the run stands. That this fails after the first time is a warning: the run goes on.
    pub fn save(&mut self, run: &Run) -> Result<Option<String>, GenerateError> {
        let begins = self.current.as_ref().is_none_or(|current| current.index != run.picture);
        if begins {
            // The one before may have been the same, and is not claimed any more.
            self.current = None;
            let (output, claim) = self.claim()?;
            self.current = Some(Current { index: run.picture, state: run_file(&output), output, _claim: claim });
        }
        let Some(Current { state, output, .. }) = &self.current else { return Ok(None) };
        let output = std::path::absolute(output).unwrap_or_else(|_| output.clone());
        let (settings, fingerprint) = (self.settings.clone(), self.fingerprint.clone());
        let bytes = SavedRun { settings, fingerprint, output, run: run.clone() }.to_bytes();
        let (done, of) = run.steps();
        if !begins && done < of && self.saved_at.is_some_and(|at| at.elapsed() < SAVE_INTERVAL) {
            self.unsaved = Some(bytes);
            return Ok(None);
        }
        self.unsaved = None;
        match impasto_store::put_safely(state, &bytes) {
            Ok(()) => self.saved_at = Some(Instant::now()),
            // Where not even this can be written, the picture cannot be either: said before the work, not after.
            Err(e) if begins => {
                return Err(PictureError::Write { path: state.clone(), problem: e.to_string() }.into());
            }
            Err(e) => {
                self.unsaved = Some(bytes);
                if !std::mem::replace(&mut self.warned, true) {
                    return Ok(Some(format!(
                        "cannot keep the run in {}: {e}; it goes on, but an end before its time would lose steps",
                        state.display()
                    )));
                }
            }
        }
        Ok(None)
    }

    /// The next picture's file, which no other process makes: another name where one does, unless this name was meant.
    fn claim(&mut self) -> Result<(PathBuf, Claim), GenerateError> {
        let meant = self.resumed.is_some() || self.output.force();
        let mut output = self.resumed.take().unwrap_or_else(|| self.output.claim());
        loop {
            match Claim::of(&output) {
                Some(claim) => return Ok((output, claim)),
                None if meant => return Err(PictureError::BeingMade { path: output }.into()),
                None => output = self.output.claim(),
            }
        }
    }

    /// Writes a picture that is ready, and removes the state of its run.
    pub fn write(&mut self, picture: &Picture, parameters: &str) -> Result<PathBuf, GenerateError> {
        let file = self.current.as_ref().map(|current| current.output.clone());
        let file = file.unwrap_or_else(|| self.output.claim());
        picture.write(&file, parameters, self.output.force())?;
        if let Some(Current { state, .. }) = self.current.take()
            && !self.keep_state
        {
            let _ = impasto_store::remove(&state);
        }
        (self.unsaved, self.saved_at) = (None, None);
        Ok(file)
    }

    /// The run has ended before its time: what is not on disk yet goes there. A warning where it cannot, and the file with which the run can be
    /// resumed.
    pub fn failed(&mut self) -> (Option<String>, Option<&Path>) {
        let Some(Current { state, .. }) = &self.current else { return (None, None) };
        let saved = self.unsaved.take().map_or(Ok(()), |bytes| impasto_store::put_safely(state, &bytes));
        let warning = saved.err().map(|e| format!("the last steps could not be kept in {}: {e}", state.display()));
        (warning, state.exists().then_some(state))
    }
}
