//! What parent and child say to each other: the call in environment variables, the answer as JSON lines.
//!
//! Each line carries the version and the nonce of the call, so that a line which somebody else wrote is noticed.

use std::collections::hash_map::RandomState;
use std::env;
use std::ffi::OsString;
use std::hash::BuildHasher;
use std::ops::ControlFlow;
use std::process::Command;

use serde::{Deserialize, Serialize};
use serde_json::Value;

const VERSION: u32 = 3;

/// Exit code of a child that could not begin.
pub(super) const COULD_NOT_LOAD: i32 = 254;
/// Exit code of a child whose trial panicked or gave a reason to fail.
pub(super) const FAILED: i32 = 255;

/// Exit code of a child that is done: how many records it made, as far as a code can say.
pub(super) fn exit_count(records: usize) -> i32 {
    records.min(253) as i32
}

const NAME_VARIABLE: &str = "IMPASTO_TRIAL";
const VERSION_VARIABLE: &str = "IMPASTO_TRIAL_VERSION";
const NONCE_VARIABLE: &str = "IMPASTO_TRIAL_NONCE";
const ARGUMENT_VARIABLE: &str = "IMPASTO_TRIAL_ARGUMENT";
/// The variables that make a process a child. The child removes them, so that what it starts is an ordinary process again.
pub(super) const VARIABLES: [&str; 4] = [NAME_VARIABLE, VERSION_VARIABLE, NONCE_VARIABLE, ARGUMENT_VARIABLE];

/// What the parent asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub name: OsString,
    version: OsString,
    pub nonce: String,
    pub argument: String,
}

impl Call {
    pub fn new(name: &str, argument: &str) -> Call {
        // The keys of a hasher are the random numbers that std offers. The nonce guards against accidents, not against malice.
        let random = || RandomState::new().hash_one(std::process::id());
        Call {
            name: name.into(),
            version: VERSION.to_string().into(),
            nonce: format!("{:016x}{:016x}", random(), random()),
            argument: argument.into(),
        }
    }

    pub fn write_to(&self, command: &mut Command) {
        command
            .env(NAME_VARIABLE, &self.name)
            .env(VERSION_VARIABLE, &self.version)
            .env(NONCE_VARIABLE, &self.nonce)
            .env(ARGUMENT_VARIABLE, &self.argument);
    }

    /// The call that made this process a child, or `None` in an ordinary process.
    pub fn from_environment() -> Option<Call> {
        Some(Call {
            name: env::var_os(NAME_VARIABLE)?,
            version: env::var_os(VERSION_VARIABLE).unwrap_or_default(),
            nonce: env::var(NONCE_VARIABLE).unwrap_or_default(),
            argument: env::var(ARGUMENT_VARIABLE).unwrap_or_default(),
        })
    }

    /// False if a parent of another build calls, for example with an old helper.
    pub fn is_our_version(&self) -> bool {
        self.version == *VERSION.to_string()
    }
}

/// What the child says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// The first line: the number of the process that runs the trial.
    Start(u32),
    Stage(String),
    Record(Value),
    Failed(String),
    NotLoaded(String),
    Done,
}

#[derive(Serialize, Deserialize)]
struct Line {
    version: u32,
    nonce: String,
    message: Message,
}

/// A message as the line that goes over the wire.
pub(super) fn line(nonce: &str, message: Message) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&Line { version: VERSION, nonce: nonce.to_owned(), message })?;
    line.push(b'\n');
    Ok(line)
}

/// What the parent has read from a child, whatever the bytes are.
#[derive(Debug)]
pub(super) struct Transcript {
    nonce: String,
    room: usize,
    unfinished: Vec<u8>,
    /// The process that runs the trial, once it has begun.
    pub started: Option<u32>,
    pub stage: Option<String>,
    pub records: Vec<Value>,
    pub failed: Option<String>,
    pub not_loaded: Option<String>,
    pub done: bool,
    /// The first thing that was not of the protocol.
    pub garbled: Option<String>,
    pub overflowed: bool,
}

impl Transcript {
    pub fn new(call: &Call, max_output: usize) -> Transcript {
        Transcript {
            nonce: call.nonce.clone(),
            room: max_output,
            unfinished: Vec::new(),
            started: None,
            stage: None,
            records: Vec::new(),
            failed: None,
            not_loaded: None,
            done: false,
            garbled: None,
            overflowed: false,
        }
    }

    /// Takes the next bytes; `Break` once the child has said more than it may.
    pub fn on_output(&mut self, bytes: &[u8]) -> ControlFlow<()> {
        if bytes.len() > self.room {
            self.overflowed = true;
        }
        if self.overflowed {
            return ControlFlow::Break(());
        }
        self.room -= bytes.len();
        let mut pieces = bytes.split(|&byte| byte == b'\n');
        let last = pieces.next_back().unwrap_or_default();
        for piece in pieces {
            let mut line = std::mem::take(&mut self.unfinished);
            line.extend_from_slice(piece);
            self.on_line(&line);
        }
        self.unfinished.extend_from_slice(last);
        ControlFlow::Continue(())
    }

    /// To be called when there is no more to read.
    pub fn finish(&mut self) {
        if !self.unfinished.is_empty() {
            let rest = std::mem::take(&mut self.unfinished);
            self.not_of_the_protocol("an unfinished line", &rest);
        }
    }

    fn on_line(&mut self, text: &[u8]) {
        let Ok(line) = serde_json::from_slice::<Line>(text) else {
            return self.not_of_the_protocol("a line that is none of ours", text);
        };
        if line.version != VERSION || line.nonce != self.nonce {
            return self.not_of_the_protocol("a line with a foreign version or nonce", text);
        }
        let ended = self.done || self.failed.is_some() || self.not_loaded.is_some();
        match line.message {
            _ if ended => self.not_of_the_protocol("a line after its last one", text),
            Message::Start(process) => self.started = Some(process),
            Message::Stage(stage) => self.stage = Some(stage),
            Message::Record(value) => self.records.push(value),
            Message::Failed(reason) => self.failed = Some(reason),
            Message::NotLoaded(reason) => self.not_loaded = Some(reason),
            Message::Done => self.done = true,
        }
    }

    fn not_of_the_protocol(&mut self, what: &str, text: &[u8]) {
        let start = String::from_utf8_lossy(&text[..text.len().min(60)]);
        self.garbled.get_or_insert_with(|| format!("it reported {what}, beginning {start:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message() -> impl Strategy<Value = Message> {
        prop_oneof![
            "\\PC*".prop_map(Message::Stage),
            any::<i64>().prop_map(|n| Message::Record(n.into())),
            "\\PC*".prop_map(|text| Message::Record(Value::from(vec![text]))),
        ]
    }

    proptest! {
        #[test]
        fn a_report_is_heard_the_same_in_any_pieces(
            messages in prop::collection::vec(message(), 0..20),
            piece in 1_usize..100,
        ) {
            let call = Call::new("any", "");
            let all = [Message::Start(7)].into_iter().chain(messages.clone()).chain([Message::Done]);
            let bytes: Vec<u8> = all.flat_map(|m| line(&call.nonce, m).unwrap()).collect();
            let mut transcript = Transcript::new(&call, bytes.len());
            for piece in bytes.chunks(piece) {
                prop_assert!(transcript.on_output(piece).is_continue());
            }
            transcript.finish();
            let records: Vec<_> = messages.iter().filter_map(|m| match m {
                Message::Record(value) => Some(value.clone()),
                _ => None,
            }).collect();
            let stage = messages.iter().rev().find_map(|m| match m {
                Message::Stage(stage) => Some(stage.clone()),
                _ => None,
            });
            prop_assert_eq!(&transcript.garbled, &None);
            prop_assert!(transcript.started == Some(7) && transcript.done);
            prop_assert_eq!(transcript.records, records);
            prop_assert_eq!(transcript.stage, stage);
        }

        #[test]
        fn garbage_is_noticed_and_never_a_panic(
            garbage in prop::collection::vec(any::<u8>(), 1..300),
            room in 0_usize..400,
        ) {
            let mut transcript = Transcript::new(&Call::new("any", ""), room);
            let flow = transcript.on_output(&garbage);
            prop_assert_eq!(flow.is_break(), garbage.len() > room);
            transcript.finish();
            prop_assert!(transcript.overflowed || transcript.garbled.is_some());
            prop_assert!(!transcript.done && transcript.started.is_none());
        }
    }

    #[test]
    fn deep_nesting_is_garbage_and_no_stack_overflow() {
        let mut transcript = Transcript::new(&Call::new("any", ""), usize::MAX);
        assert!(transcript.on_output(&vec![b'['; 1 << 20]).is_continue());
        assert!(transcript.on_output(b"\n").is_continue());
        assert!(transcript.garbled.is_some());
    }

    #[test]
    fn nothing_may_follow_the_last_line() {
        let call = Call::new("any", "");
        let mut transcript = Transcript::new(&call, usize::MAX);
        for message in [Message::Done, Message::Record(1.into())] {
            assert!(transcript.on_output(&line(&call.nonce, message).unwrap()).is_continue());
        }
        assert!(transcript.garbled.is_some());
        assert!(transcript.records.is_empty());
    }

    #[test]
    fn two_calls_never_share_a_nonce() {
        assert_ne!(Call::new("same", "").nonce, Call::new("same", "").nonce);
    }
}
