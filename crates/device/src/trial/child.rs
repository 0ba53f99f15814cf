//! The child's side: the hook, and the report that a trial writes.

use std::any::Any;
use std::fs::File;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use super::protocol::{self, Call, Message};
use super::{Link, Trial};
use crate::sys;

static HOOKED: AtomicBool = AtomicBool::new(false);
static IN_CHILD: AtomicBool = AtomicBool::new(false);

/// Whether starting this program again is safe.
pub(super) fn hooked() -> bool {
    HOOKED.load(Ordering::Relaxed)
}

/// Whether this process is a child that [`hook`] has found: the program has the hook.
pub(super) fn in_child() -> bool {
    IN_CHILD.load(Ordering::Relaxed)
}

/// Must be the first line of `main`: makes this program able to be its own child.
///
/// In an ordinary process it only notes that it was called, and lets a file that may not grow (`ulimit -f`) be an error instead of a signal. In a child that [`trial()`](crate::trial()) has started it runs the
/// trial that was asked for and leaves the process; it never returns. Being first matters: what comes before it happens in
/// every child too, and no other thread may run yet when the child cleans its environment.
///
/// Exit codes of a child: 0 to 253 passed with so many records (253 stands for more too), 254 could not begin or could not load
/// what it was to try, 255 failed or panicked.
pub fn hook(trials: &[Trial]) {
    match Call::from_environment() {
        None => {
            sys::survive_file_size_limit();
            HOOKED.store(true, Ordering::Relaxed);
        }
        Some(call) => {
            IN_CHILD.store(true, Ordering::Relaxed);
            std::process::exit(answer(&call, trials))
        }
    }
}

fn answer(call: &Call, trials: &[Trial]) -> i32 {
    let channel = sys::enter_child();
    let link = sys::enter_link();
    sys::forget_variables(&protocol::VARIABLES);
    let channel = match channel {
        Ok(channel) => channel,
        Err(error) => return refuse(format_args!("no way to report: {error}")),
    };
    if !call.is_our_version() {
        return refuse(format_args!("called by another version of Impasto"));
    }
    let Some(trial) = trials.iter().find(|trial| call.name == *trial.name) else {
        return refuse(format_args!("there is no trial named {:?}", call.name));
    };
    let mut report = TrialReport {
        channel,
        nonce: call.nonce.clone(),
        argument: call.argument.clone(),
        records: 0,
        at_once: false,
        not_loaded: false,
        trouble: None,
        link: link.map(|sys::Link { channel, memory }| Link { channel, memory }),
    };
    // If nobody listens, the parent died before we could ask to die with it.
    if report.say(Message::Start(std::process::id())).is_err() {
        return protocol::COULD_NOT_LOAD;
    }
    let (last, code) = match catch_unwind(AssertUnwindSafe(|| (trial.run)(&mut report))) {
        Ok(Ok(())) => match report.trouble.take() {
            None => (Message::Done, protocol::exit_count(report.records)),
            Some(trouble) => (Message::Failed(trouble), protocol::FAILED),
        },
        Ok(Err(reason)) if report.not_loaded => (Message::NotLoaded(reason), protocol::COULD_NOT_LOAD),
        Ok(Err(reason)) => (Message::Failed(reason), protocol::FAILED),
        Err(panic) => {
            let reason = format!("it panicked: {}", panic_text(&*panic));
            std::mem::forget(panic); // its destructor could panic again
            (Message::Failed(reason), protocol::FAILED)
        }
    };
    // Not heard is not done: the parent sees that the last line is missing.
    let _ = report.say(last);
    if report.at_once {
        sys::leave(code);
    }
    code
}

fn refuse(why: std::fmt::Arguments) -> i32 {
    // `eprintln!` would panic if nobody listens.
    let _ = writeln!(io::stderr(), "impasto trial: {why}");
    protocol::COULD_NOT_LOAD
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else if let Some(text) = panic.downcast_ref::<&str>() {
        text
    } else {
        "without a message"
    }
}

/// What a trial tells its parent, line by line, so that it is known even if the next instruction kills the process.
#[derive(Debug)]
pub struct TrialReport {
    channel: File,
    nonce: String,
    argument: String,
    records: usize,
    at_once: bool,
    not_loaded: bool,
    trouble: Option<String>,
    link: Option<Link>,
}

impl TrialReport {
    /// What the parent gave as [`TrialOptions::argument`](crate::TrialOptions::argument).
    pub fn argument(&self) -> &str {
        &self.argument
    }

    /// The link to a parent that has started this child [to stay](crate::Companion); it is given once.
    pub fn take_link(&mut self) -> Option<Link> {
        self.link.take()
    }

    /// Asks to end the process, once the trial is over, without running anybody's last functions: a driver's can crash or take
    /// long, and what was to be found out is found out.
    pub fn leave_at_once(&mut self) {
        self.at_once = true;
    }

    /// Turns the trial's reason to fail into "what was to be tried could not be loaded", which is no crash and no wrong result:
    /// `return Err(report.could_not_load("libX is not installed"))`.
    pub fn could_not_load(&mut self, reason: impl Into<String>) -> String {
        self.not_loaded = true;
        reason.into()
    }

    /// Names the stage that the trial enters now. If the child dies, the parent says that it died there.
    pub fn stage(&mut self, name: &str) {
        let _ = self.say(Message::Stage(name.to_owned()));
    }

    /// Hands a value to the parent, as JSON.
    ///
    /// A value that JSON cannot hold (a map whose keys are not text) fails the trial when it ends. Infinities and NaN arrive as null.
    pub fn record<T: Serialize + ?Sized>(&mut self, value: &T) {
        let said = match serde_json::to_value(value) {
            Ok(value) => self.say(Message::Record(value)),
            Err(error) => Err(error.into()),
        };
        self.records += 1;
        if let Err(error) = said {
            self.trouble.get_or_insert_with(|| format!("a record could not be written: {error}"));
        }
    }

    /// One whole line in one write, unbuffered.
    fn say(&mut self, message: Message) -> io::Result<()> {
        self.channel.write_all(&protocol::line(&self.nonce, message)?)
    }
}
