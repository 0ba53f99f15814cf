//! A risky function, run in a child process that may be lost.

mod child;
mod companion;
mod protocol;
mod verdict;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::sys::{self, ChildExit, ExitCause, WaitDecision};
use protocol::{Call, Transcript};

pub use child::{TrialReport, hook};
pub use companion::{Channel, Companion, Link, leave_at_once};
pub use verdict::Verdict;

/// A function that may kill its process, by name.
///
/// The program lists its trials in the call of [`hook`] and asks for one of them with [`trial()`].
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// The name to ask for.
    pub name: &'static str,
    /// What to do in the child. An error is the reason for which the trial failed.
    pub run: fn(&mut TrialReport) -> Result<(), String>,
}

/// How to run a trial.
///
/// ```
/// use impasto_device::TrialOptions;
/// use std::time::Duration;
///
/// let options = TrialOptions {
///     deadline: Duration::from_secs(2),
///     env: vec![
///         ("VK_LOADER_LAYERS_DISABLE".into(), Some("~implicit~".into())),
///         ("LD_PRELOAD".into(), None),
///     ],
///     ..TrialOptions::default()
/// };
/// # assert_eq!(options.helper, None);
/// ```
#[derive(Clone, Debug)]
pub struct TrialOptions {
    /// When the child and everything that it started is killed.
    pub deadline: Duration,
    /// Environment variables to set (`Some`) or to remove (`None`) in the child; it inherits all others.
    pub env: Vec<(OsString, Option<OsString>)>,
    /// The executable to start instead of this program: one whose `main` begins with [`hook`].
    ///
    /// It is for programs that embed Impasto and cannot give it the first line of their own `main`.
    pub helper: Option<PathBuf>,
    /// What the trial is to work on; it reads it with [`TrialReport::argument`].
    pub argument: String,
    /// Also start it from inside of a child. Who asks for that makes sure that the child of a child asks for none.
    pub nested: bool,
    /// How many bytes the child may report before it counts as gone wild. Its stderr does not count.
    pub max_output: usize,
}

impl Default for TrialOptions {
    /// Five seconds, the environment as it is, this program, no argument, and 1 MiB.
    fn default() -> Self {
        TrialOptions {
            deadline: Duration::from_secs(5),
            env: Vec::new(),
            helper: None,
            argument: String::new(),
            nested: false,
            max_output: 1 << 20,
        }
    }
}

/// What became of a trial.
///
/// Its `Display` says in one sentence what happened, at which stage, and what that means.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How it ended.
    pub verdict: Verdict,
    /// The stage that the child entered last, or `exit` if it died after it had said that it was done.
    pub stage: Option<String>,
    /// What the child recorded, also if it died later.
    pub records: Vec<serde_json::Value>,
    /// The end of what the child wrote to stderr and stdout, about 2 KiB.
    pub stderr_tail: String,
    /// How long it took, start of the child included.
    pub elapsed: Duration,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.verdict.describe(self.stage.as_deref(), f)
    }
}

/// Runs the trial called `name` in a child process and waits for its end, at most until the deadline.
///
/// Nothing the child does reaches this process: a crash, a hang or a flood of output becomes a [`Verdict`]. Several threads may
/// run trials at once. A trial cannot start another trial, unless that is [asked for](TrialOptions::nested): inside of a child the verdict is
/// [`Verdict::NoHook`].
///
/// The child is this program, or [`TrialOptions::helper`]. Without a helper, [`hook`] must have been called before, because
/// starting a program again that does not expect it would do the program's work twice.
///
/// ```
/// use impasto_device::{TrialOptions, Verdict, trial};
///
/// // This example has no hook, so nothing was started.
/// let outcome = trial("amx", &TrialOptions::default());
/// assert_eq!(outcome.verdict, Verdict::NoHook);
/// ```
pub fn trial(name: &str, options: &TrialOptions) -> Outcome {
    let start = Instant::now();
    let call = Call::new(name, &options.argument);
    let mut transcript = Transcript::new(&call, options.max_output);
    let (verdict, stderr_tail) = match child_command(&call, options) {
        Err(verdict) => (verdict, String::new()),
        Ok(command) => {
            let program = command.get_program().to_owned();
            let mut on_output = |bytes: &[u8]| transcript.on_output(bytes);
            let mut patience = || match options.deadline.saturating_sub(start.elapsed()) {
                Duration::ZERO => WaitDecision::End(ExitCause::TimedOut),
                left => WaitDecision::Wait(left),
            };
            match sys::supervise(command, &mut patience, &mut on_output) {
                Err(error) => {
                    let why = format!("{}: {error}", program.display());
                    (Verdict::SpawnFailed { why }, String::new())
                }
                Ok(ending) => (judge(&mut transcript, &ending, options), ending.stderr_tail),
            }
        }
    };
    Outcome { verdict, stage: transcript.stage, records: transcript.records, stderr_tail, elapsed: start.elapsed() }
}

fn child_command(call: &Call, options: &TrialOptions) -> Result<Command, Verdict> {
    let mut command = match &options.helper {
        Some(helper) => Command::new(helper),
        None if child::hooked() || options.nested && child::in_child() => sys::own_program()
            .map_err(|error| Verdict::SpawnFailed { why: format!("the path of this program is unknown: {error}") })?,
        None => return Err(Verdict::NoHook),
    };
    for (name, value) in &options.env {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    call.write_to(&mut command);
    Ok(command)
}

/// The verdict from what the child said and how it ended. What it said of itself comes second, except for its own reason to fail.
fn judge(transcript: &mut Transcript, ending: &ChildExit, options: &TrialOptions) -> Verdict {
    transcript.finish();
    if transcript.overflowed {
        let why = format!("it reported more than {} bytes", options.max_output);
        return Verdict::Garbled { why };
    }
    if let Some(reason) = transcript.failed.take() {
        return Verdict::Failed { reason };
    }
    if let Some(reason) = transcript.not_loaded.take() {
        return Verdict::CouldNotLoad { code: protocol::COULD_NOT_LOAD, reason: Some(reason) };
    }
    let verdict = match ending.how {
        ExitCause::TimedOut => Verdict::TimedOut { after: options.deadline },
        ExitCause::Signalled(signal) if sys::is_kill(signal) => Verdict::Killed,
        ExitCause::Signalled(signal) => Verdict::Crashed { signal: Some(signal), code: None },
        ExitCause::Unknown => Verdict::Garbled {
            why: "its exit status was lost, since this program ignores or collects the ends of all its children".into(),
        },
        ExitCause::Exited(code) => judge_exit(transcript, code),
    };
    let died = !matches!(verdict, Verdict::Passed | Verdict::Garbled { .. });
    if transcript.done && died {
        transcript.stage = Some("exit".into());
    }
    verdict
}

fn judge_exit(transcript: &mut Transcript, code: i32) -> Verdict {
    // 127 is what the dynamic linker and the shell say when they could not start a program.
    if code == protocol::COULD_NOT_LOAD || (code == 127 && transcript.started.is_none()) {
        return Verdict::CouldNotLoad { code, reason: None };
    }
    if let Some(why) = transcript.garbled.take() {
        return Verdict::Garbled { why };
    }
    match code {
        // The code counts the records as far as it can; one that does not is a driver's, which left in our place.
        code if transcript.done && code == protocol::exit_count(transcript.records.len()) => Verdict::Passed,
        0 if transcript.done => Verdict::Garbled { why: "its exit code does not count its records".into() },
        0 if transcript.started.is_some() => {
            Verdict::Garbled { why: "it left with exit code 0 before it was done".into() }
        }
        0 => Verdict::Garbled {
            why: "it left with exit code 0 and reported nothing: does its `main` begin with `hook`?".into(),
        },
        code => Verdict::Crashed { signal: None, code: Some(code) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_hook_nothing_is_started() {
        let outcome = trial("anything", &TrialOptions::default());
        assert_eq!(outcome.verdict, Verdict::NoHook);
        assert!(outcome.to_string().contains("hook"), "{outcome}");
    }

    #[test]
    fn a_name_or_variable_that_no_environment_can_hold_is_an_error() {
        let helper = std::env::current_exe().ok();
        let options = TrialOptions { helper: helper.clone(), ..TrialOptions::default() };
        let outcome = trial("nul\0inside", &options);
        assert!(matches!(outcome.verdict, Verdict::SpawnFailed { .. }), "{outcome}");
        let options = TrialOptions {
            helper,
            env: vec![("a\0b".into(), None), ("".into(), Some("x\0y".into()))],
            ..TrialOptions::default()
        };
        let outcome = trial("name", &options);
        assert!(matches!(outcome.verdict, Verdict::SpawnFailed { .. }), "{outcome}");
    }
}
