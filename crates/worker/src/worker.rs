//! A worker process as its parent sees it: requests, replies, and how it ended.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use impasto_backend::{BackendError, ParamError, WeightSource};
use impasto_device::{Channel, Companion, Outcome, TrialOptions, Verdict};

use crate::frame::{self, Broken};
use crate::memory;
use crate::message::{Failure, GivenParam, MemoryUse, Payload, Reply, Request};
use crate::serve::TRIAL;
use crate::watch::{Patience, Watchdog, Wrong, own_memory, worked};

/// How often a worker is looked at that is being waited for.
const TICK: Duration = Duration::from_millis(50);
/// How long the end of a process is waited for whose channel has ended.
const GOODBYE: Duration = Duration::from_millis(1500);

/// A worker process, running or ended.
pub(crate) struct Worker {
    companion: Companion,
    channel: Channel,
    pub memory: Option<File>,
    heard: Receiver<Heard>,
    told: Arc<Told>,
    listener: Option<JoinHandle<()>>,
    /// Its own memory when its device was open and nothing loaded.
    pub base: Option<u64>,
}

enum Heard {
    Reply(Reply, Vec<u8>),
    Broken(Broken),
}

/// Counts of what the worker sends unasked.
#[derive(Default)]
struct Told {
    beats: AtomicU64,
    messages: AtomicU64,
}

/// Why a worker did not answer.
pub(crate) enum NoAnswer {
    /// It is gone, or was ended.
    Gone(Outcome),
    /// It answered that it cannot.
    Failed(BackendError, MemoryUse),
}

/// What waiting for a reply needs.
pub(crate) struct Waiting<'a> {
    pub device: &'a str,
    pub patience: Patience,
    /// Memory that the worker may have.
    pub most: Option<u64>,
    /// Where parameters come from that it asks for.
    pub source: Option<&'a dyn WeightSource>,
    /// The offset in shared memory at which there is room for them.
    pub room_at: u64,
    /// Whether somebody wants to stop.
    pub stop: &'a dyn Fn() -> bool,
    pub log: &'a dyn Fn(&str),
}

impl Worker {
    /// Starts one, with the environment of its device.
    /// `compilation` is called with the kernels that it has compiled and that it was to compile, `gone` when its channel has ended.
    pub fn start(
        options: &TrialOptions,
        compilation: impl Fn(u64, u64) + Send + 'static,
        gone: impl FnOnce() + Send + 'static,
    ) -> Result<Worker, Verdict> {
        let (companion, link) =
            Companion::start(TRIAL.name, &TrialOptions { max_output: usize::MAX, ..options.clone() })?;
        let not_heard =
            |error: std::io::Error| Verdict::SpawnFailed { why: format!("it cannot be listened to: {error}") };
        let mut from = link.channel.try_clone().map_err(not_heard)?;
        #[cfg(unix)]
        link.channel.set_write_timeout(Some(Duration::from_secs(60))).map_err(not_heard)?;
        let told = Arc::new(Told::default());
        let (send, heard) = mpsc::channel();
        let listened = told.clone();
        let listen = move || {
            let mut tail = vec![];
            loop {
                let next = frame::read(&mut from, &mut tail);
                listened.messages.fetch_add(1, Ordering::Relaxed);
                let ended = next.is_err();
                let heard = match next {
                    Ok(Reply::Beat { beats, compiled, wanted }) => {
                        compilation(compiled, wanted);
                        listened.beats.store(beats, Ordering::Relaxed);
                        continue;
                    }
                    Ok(reply) => Heard::Reply(reply, std::mem::take(&mut tail)),
                    Err(broken) => Heard::Broken(broken),
                };
                if send.send(heard).is_err() || ended {
                    return gone();
                }
            }
        };
        let listener = std::thread::Builder::new().name("hear worker".into()).spawn(listen).map_err(not_heard)?;
        let (channel, memory, listener) = (link.channel, link.memory, Some(listener));
        Ok(Worker { companion, channel, memory, heard, told, listener, base: None })
    }

    pub fn process(&self) -> u32 {
        self.companion.process()
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Option<Outcome> {
        self.companion.outcome()
    }

    /// Sends a request that is not answered.
    pub fn tell(&mut self, request: &Request, tail: &[u8]) -> bool {
        frame::write(&mut self.channel, request, tail).is_ok()
    }

    /// Sends a request and waits for its reply.
    pub fn ask(&mut self, request: &Request, tail: &[u8], waiting: &Waiting) -> Result<(Reply, Vec<u8>), NoAnswer> {
        if !self.tell(request, tail) {
            return Err(self.gone(None));
        }
        let (mut dog, mut told_to_stop, mut looked) = (self.dog(), None::<BackendError>, Instant::now());
        loop {
            match self.heard.recv_timeout(TICK) {
                Ok(Heard::Reply(reply, tail)) => match reply {
                    Reply::WasRead { name, elements } => {
                        let stop = waiting
                            .source
                            .and_then(|source| source.was_read(&name, elements).err())
                            .map(BackendError::from);
                        told_to_stop = told_to_stop.or(stop);
                    }
                    Reply::NeedParam { name, offset, bytes } => {
                        if let Some(stop) = self.give(&name, offset, bytes, waiting) {
                            told_to_stop.get_or_insert(stop);
                        }
                    }
                    Reply::Log(line) => (waiting.log)(&line),
                    Reply::Failed { why, memory_use } => {
                        return Err(NoAnswer::Failed(
                            told_to_stop.unwrap_or_else(|| why.on(waiting.device)),
                            memory_use,
                        ));
                    }
                    answer => return Ok((answer, tail)),
                },
                Ok(Heard::Broken(broken)) => return Err(self.gone(Some(broken))),
                Err(RecvTimeoutError::Disconnected) => return Err(self.gone(None)),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if looked.elapsed() < TICK {
                continue;
            }
            looked = Instant::now();
            if told_to_stop.is_some() || (waiting.stop)() {
                self.tell(&Request::Cancel, &[]);
            }
            let (beats, heard) = (self.told.beats.load(Ordering::Relaxed), self.told.messages.load(Ordering::Relaxed));
            if let Some(wrong) = dog.look(beats, heard, TICK, waiting.patience, || worked(self.process())) {
                let (Wrong::Hangs(after) | Wrong::Silent(after)) = wrong;
                return Err(self.end(Verdict::TimedOut { after }));
            }
            if let (Some(most), Some(has)) = (waiting.most, own_memory(self.process()))
                && has > most
            {
                let reason = format!(
                    "it has taken {:.1} GB of memory, more than the {:.1} GB that its plans and a driver may need, and was ended",
                    has as f64 / 1e9,
                    most as f64 / 1e9
                );
                return Err(self.end(Verdict::Failed { reason }));
            }
        }
    }

    fn dog(&self) -> Watchdog {
        Watchdog::new(self.told.beats.load(Ordering::Relaxed), self.told.messages.load(Ordering::Relaxed))
    }

    /// Gives a parameter that was asked for. An error of the source goes to the worker, which then fails, and is given back.
    fn give(&mut self, name: &str, offset: u64, bytes: u64, waiting: &Waiting) -> Option<BackendError> {
        let wrong = |problem: &str| ParamError::Wrong { name: name.into(), problem: problem.into() };
        let read = || {
            let source = waiting.source.ok_or_else(|| wrong("was asked for, and there is no source"))?;
            let info = source.describe(name)?;
            // What a worker says is not believed before it is checked.
            if offset.checked_add(bytes).is_none_or(|end| end > info.bytes) {
                return Err(wrong("was asked for beyond its end"));
            }
            let mut part = vec![0; bytes as usize];
            source.read_into(name, offset, &mut part)?;
            let row_scales = if bytes == 0 { source.row_scales(name)? } else { None };
            Ok((info, part, row_scales))
        };
        let (info, part, row_scales) = match read() {
            Ok(read) => read,
            Err(error) => {
                self.tell(&Request::Param(Err(Failure::from(error.clone()))), &[]);
                return Some(error.into());
            }
        };
        let in_memory = (bytes > memory::LARGE)
            && self.memory.as_ref().is_some_and(|file| memory::write(file, waiting.room_at, &part).is_ok());
        let lies = if in_memory { Payload::Memory(waiting.room_at) } else { Payload::Tail };
        let row_scales = row_scales.map(|scales| scales.into_iter().map(f32::to_bits).collect());
        let (storage, shape, all) = (info.storage.to_string(), info.shape, info.bytes);
        let param = GivenParam { storage, shape, bytes: all, lies, row_scales };
        self.tell(&Request::Param(Ok(param)), if in_memory { &[] } else { &part });
        None
    }

    fn end(&mut self, why: Verdict) -> NoAnswer {
        self.companion.kill(why);
        self.gone(None)
    }

    /// How it ended, once its channel has.
    fn gone(&mut self, broken: Option<Broken>) -> NoAnswer {
        if let Some(Broken::Garbled(why)) = broken {
            // What died in the middle of a message died, whatever the rest of the message was.
            if self.companion.wait(Duration::from_millis(100)).is_none() {
                self.companion.kill(Verdict::Garbled { why });
            }
        }
        let outcome = self.companion.wait(GOODBYE).or_else(|| {
            self.companion.kill(Verdict::Garbled { why: "it closed its channel and went on".into() });
            self.companion.wait(GOODBYE)
        });
        let stuck = || Outcome {
            verdict: Verdict::TimedOut { after: GOODBYE },
            stage: None,
            records: vec![],
            stderr_tail: String::new(),
            elapsed: GOODBYE,
        };
        NoAnswer::Gone(outcome.unwrap_or_else(stuck))
    }
}

impl Drop for Worker {
    /// Tells it to end; the companion sees to it that it does.
    fn drop(&mut self) {
        self.companion.hang_up();
        // It has read the end of the channel now, or will at once.
        self.listener.take().map(JoinHandle::join);
    }
}
