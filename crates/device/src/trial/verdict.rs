//! How a trial ended, and the words for it.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::sys;

/// How a trial ended.
///
/// ```
/// use impasto_device::Verdict;
///
/// let verdict = Verdict::Failed { reason: "the sum is wrong".into() };
/// assert!(!verdict.passed());
/// assert_eq!(verdict.to_string(), "failed: the sum is wrong");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The trial ran to its end, said so, and its process ended well.
    Passed,
    /// The trial found something wrong, or panicked.
    Failed {
        /// What it found.
        reason: String,
    },
    /// The trial did not begin: what it was to try is not here, no such trial, another version, or a helper that lacks a library.
    CouldNotLoad {
        /// The exit code: 254 from the hook, 127 from the system.
        code: i32,
        /// What the trial itself said.
        reason: Option<String>,
    },
    /// The process died, or left by itself in the middle.
    Crashed {
        /// The signal that ended it, on Unix.
        signal: Option<i32>,
        /// Its exit code; on Windows a crash is one too.
        code: Option<i32>,
    },
    /// The deadline came first; the child and all that it started were killed.
    TimedOut {
        /// The deadline.
        after: Duration,
    },
    /// Somebody else killed the process. That is mostly the system when memory runs out, so it proves nothing about the trial.
    Killed,
    /// What came back is not a complete report.
    Garbled {
        /// What was wrong with it.
        why: String,
    },
    /// The child could not be started.
    SpawnFailed {
        /// The program and the error of the system.
        why: String,
    },
    /// Nothing was started, since this program does not call [`hook`](crate::hook) (or is itself a child) and no helper is named.
    NoHook,
}

/// Nobody wants to read nanoseconds.
fn rounded(time: Duration) -> Duration {
    match time < Duration::from_secs(10) {
        true => Duration::from_millis(time.as_millis().try_into().unwrap_or(0)),
        false => Duration::from_secs(time.as_secs()),
    }
}

impl Verdict {
    /// Whether the thing that was tried may be used.
    pub fn passed(&self) -> bool {
        *self == Verdict::Passed
    }

    /// What happened, at which stage, without what it means for a trial.
    pub fn what(&self, stage: Option<&str>) -> String {
        let (what, _) = self.in_words();
        let stage = stage.map_or(String::new(), |stage| format!(" at stage {stage:?}"));
        match self {
            Verdict::Failed { reason: why }
            | Verdict::CouldNotLoad { reason: Some(why), .. }
            | Verdict::Garbled { why }
            | Verdict::SpawnFailed { why } => format!("{what}{stage}: {why}"),
            _ => format!("{what}{stage}"),
        }
    }

    /// Writes what happened, at which stage, and what it means.
    pub(super) fn describe(&self, stage: Option<&str>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, meaning) = self.in_words();
        f.write_str(&what)?;
        if self.passed() {
            return Ok(());
        }
        if let Some(stage) = stage {
            write!(f, " at stage {stage:?}")?;
        }
        write!(f, ": {meaning}")
    }

    /// What happened, and what it means.
    fn in_words(&self) -> (String, String) {
        const UNHURT: &str = "only its own process was hurt, and it is not used";
        match self {
            Verdict::Passed => ("passed".into(), String::new()),
            Verdict::Failed { reason } => ("failed".into(), reason.clone()),
            Verdict::CouldNotLoad { reason: Some(reason), .. } => ("could not load".into(), reason.clone()),
            Verdict::CouldNotLoad { code, reason: None } => (
                format!("could not begin (exit code {code})"),
                "the program that was started does not know this trial, is of another version or lacks a library"
                    .into(),
            ),
            Verdict::Crashed { signal, code } => (died(*signal, *code), UNHURT.into()),
            Verdict::TimedOut { after } => (
                format!("did not end within {:?} and was killed", rounded(*after)),
                "it hangs or is too slow, and it is not used".into(),
            ),
            Verdict::Killed => (
                "was killed from outside (SIGKILL)".into(),
                "mostly that is the system when memory runs out; trying again may help".into(),
            ),
            Verdict::Garbled { why } => ("gave no usable answer".into(), why.clone()),
            Verdict::SpawnFailed { why } => ("could not be started".into(), why.clone()),
            Verdict::NoHook => (
                "was not tried".into(),
                "a program must call `impasto_device::hook` as the first line of `main`, or name a helper that does"
                    .into(),
            ),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe(None, f)
    }
}

fn died(signal: Option<i32>, code: Option<i32>) -> String {
    match (signal, code) {
        (Some(signal), _) => match sys::signal_name(signal) {
            Some((name, what)) => format!("crashed with {name} ({what})"),
            None => format!("crashed with signal {signal}"),
        },
        (None, Some(code)) => match windows_exception(code) {
            Some(what) => format!("crashed with code {code:#010x} ({what})"),
            None => format!("left in the middle with exit code {code}"),
        },
        (None, None) => "crashed".into(),
    }
}

/// The exit codes by which Windows reports what is a signal elsewhere.
fn windows_exception(code: i32) -> Option<&'static str> {
    match code.cast_unsigned() {
        0xC000_0005 => Some("access violation, memory that is not its own"),
        0xC000_001D => Some("illegal instruction"),
        0xC000_00FD => Some("stack overflow"),
        0xC000_0135 => Some("a library was not found"),
        0xC000_0409 => Some("abort"),
        0xE06D_7363 => Some("C++ exception"),
        0xC000_0000.. => Some("system exception"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(verdict: Verdict, stage: Option<&str>) -> String {
        struct With<'a>(Verdict, Option<&'a str>);
        impl fmt::Display for With<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.describe(self.1, f)
            }
        }
        With(verdict, stage).to_string()
    }

    #[test]
    #[cfg(unix)]
    fn a_signal_is_spelled_out_with_its_stage() {
        let crashed = |signal| Verdict::Crashed { signal: Some(signal), code: None };
        assert_eq!(
            text(crashed(libc::SIGILL), Some("tile-config")),
            "crashed with SIGILL (an instruction that this machine lacks or forbids) at stage \"tile-config\": \
             only its own process was hurt, and it is not used"
        );
        assert!(text(crashed(libc::SIGSEGV), None).starts_with("crashed with SIGSEGV (memory"));
        assert!(text(crashed(63), None).starts_with("crashed with signal 63: "));
    }

    #[test]
    fn a_code_is_read_as_windows_means_it() {
        let left = |code| Verdict::Crashed { signal: None, code: Some(code) };
        assert!(text(left(3), None).starts_with("left in the middle with exit code 3: "));
        let violation = 0xC000_0005_u32.cast_signed();
        assert!(text(left(violation), None).starts_with("crashed with code 0xc0000005 (access violation"));
    }

    #[test]
    fn a_hang_names_its_deadline_and_stage() {
        let after = Duration::from_millis(300);
        assert_eq!(
            text(Verdict::TimedOut { after }, Some("dispatch")),
            "did not end within 300ms and was killed at stage \"dispatch\": it hangs or is too slow, and it is not used"
        );
    }
}
