//! A long-lived child process: started as a trial is, it serves this process over a link until it is told to end, or dies.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::protocol::{Call, Transcript};
use super::{Outcome, TrialOptions, Verdict, child_command, judge};
use crate::sys::{self, ExitCause, WaitDecision};

/// How long a companion that is told to end may take before it is killed.
const FAREWELL: Duration = Duration::from_millis(1500);

/// How long a companion may take to begin: a program that is read from a slow disk by a busy machine.
const BEGIN: Duration = Duration::from_secs(60);

/// A channel for both directions, which reads its end when the other side is gone.
#[cfg(unix)]
pub type Channel = std::os::unix::net::UnixStream;
/// A channel for both directions, which reads its end when the other side is gone.
#[cfg(not(unix))]
pub type Channel = std::net::TcpStream;

/// One end of what a process and its companion say to each other.
///
/// What is written to the channel reads the other; when one of them is gone, the other reads the end. The file, where there is one, is in
/// memory and the same for both: for what is large.
#[derive(Debug)]
pub struct Link {
    /// For both directions.
    pub channel: Channel,
    /// Read and written by position. No side maps it, so none can be ended by the other's cutting it short.
    pub memory: Option<File>,
}

/// Ends this process without running anybody's last functions, in which a driver could hang.
pub fn leave_at_once(code: i32) -> ! {
    sys::leave(code)
}

/// A long-lived child process.
///
/// It is this program, started again, in the function of [`Trial`](crate::Trial) of that name, where
/// [`TrialReport::take_link`](crate::TrialReport::take_link) is the other end. It ends with this process, whatever way that ends; how it ended itself
/// is told by the same verdicts as of a trial.
#[derive(Debug)]
pub struct Companion {
    shared: Arc<Shared>,
    channel: Channel,
    process: u32,
}

#[derive(Debug, Default)]
struct Shared {
    /// Why we ended it.
    ended_by_us: Mutex<Option<Verdict>>,
    must_end: AtomicBool,
    outcome: Mutex<Option<Outcome>>,
    ended: Condvar,
}

impl Companion {
    /// Whether companions can be had on this system.
    pub const AVAILABLE: bool = cfg!(unix);

    /// Starts one. The deadline of the options does not count.
    pub fn start(name: &str, options: &TrialOptions) -> Result<(Companion, Link), Verdict> {
        let call = Call::new(name, &options.argument);
        let mut command = child_command(&call, options)?;
        let program = command.get_program().to_owned();
        let not_started =
            move |error: io::Error| Verdict::SpawnFailed { why: format!("{}: {error}", program.display()) };
        let sys::Link { channel, memory } = sys::link(&mut command).map_err(&not_started)?;
        let ours = channel.try_clone().map_err(&not_started)?;
        let shared = Arc::new(Shared::default());
        let (send, started) = mpsc::channel();
        let (watched, options) = (shared.clone(), options.clone());
        // The kernel ends a child when the thread that started it ends: this one lives as long as the child.
        let watch = move || {
            let begun = Instant::now();
            let mut transcript = Transcript::new(&call, options.max_output);
            let mut on_output = |bytes: &[u8]| {
                let unknown = transcript.started.is_none();
                let more = transcript.on_output(bytes);
                if let Some(process) = transcript.started.filter(|_| unknown) {
                    let _ = send.send(Ok(process));
                }
                more
            };
            let mut patience = || match watched.must_end.load(Ordering::Acquire) {
                true => WaitDecision::End(ExitCause::Unknown),
                false => WaitDecision::Wait(Duration::MAX),
            };
            let outcome = match sys::supervise(command, &mut patience, &mut on_output) {
                Err(error) => return drop(send.send(Err(not_started(error)))),
                Ok(ending) => {
                    let judged = judge(&mut transcript, &ending, &options);
                    let by_us = watched.ended_by_us.lock().unwrap_or_else(PoisonError::into_inner).take();
                    let by_us = by_us.filter(|_| ending.how == ExitCause::Unknown);
                    Outcome {
                        verdict: by_us.unwrap_or(judged),
                        stage: transcript.stage,
                        records: transcript.records,
                        stderr_tail: ending.stderr_tail,
                        elapsed: begun.elapsed(),
                    }
                }
            };
            *watched.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
            watched.ended.notify_all();
            // Of use only where it ended before it had begun.
            let _ = send.send(Ok(0));
        };
        let no_thread = |error: io::Error| Verdict::SpawnFailed { why: format!("no thread to watch it: {error}") };
        thread::Builder::new().name(format!("watch {name}")).spawn(watch).map_err(no_thread)?;
        let silent = |_| {
            shared.must_end.store(true, Ordering::Release);
            Verdict::SpawnFailed { why: "it did not begin".into() }
        };
        let process = started.recv_timeout(BEGIN).map_err(silent)??;
        Ok((Companion { shared, channel, process }, Link { channel: ours, memory }))
    }

    /// The number of its process.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// How it ended, if it has.
    pub fn outcome(&self) -> Option<Outcome> {
        self.shared.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for its end, at most so long.
    pub fn wait(&self, patience: Duration) -> Option<Outcome> {
        let outcome = self.shared.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.shared.ended.wait_timeout_while(outcome, patience, |outcome| outcome.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Tells it to end: both sides of the channel read its end from now on.
    pub fn hang_up(&self) {
        sys::hang_up(&self.channel);
    }

    /// Kills it, with all that it started, for a reason that becomes its verdict unless it has ended before.
    pub fn kill(&self, why: Verdict) {
        self.shared.ended_by_us.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        self.shared.must_end.store(true, Ordering::Release);
    }
}

impl Drop for Companion {
    /// Tells it to end by closing the channel, and kills it if it does not.
    fn drop(&mut self) {
        self.hang_up();
        if self.wait(FAREWELL).is_none() {
            self.kill(Verdict::TimedOut { after: FAREWELL });
            self.wait(FAREWELL);
        }
    }
}
