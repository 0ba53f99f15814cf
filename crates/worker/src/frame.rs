//! Framing: a header of fixed length with lengths and a checksum, the message as JSON, and a tail of bytes.
//!
//! Input is not trusted: lengths are bounded, memory is allocated as bytes arrive and not as a header announces them, and a frame with
//! a wrong checksum is garbled.

use std::io::{self, ErrorKind, Read, Write};

use impasto_store::Checksum;
use serde::Serialize;
use serde::de::DeserializeOwned;

const MAGIC: u32 = u32::from_le_bytes(*b"imp\x01");
const HEAD: usize = 24;
/// A graph with its plan is the longest message; the largest that we know has some ten million bytes.
const LONGEST_TEXT: u32 = 512 << 20;
const LONGEST_TAIL: u64 = 64 << 30;

/// Why no message can be read any more.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The other side is gone.
    Ended,
    /// What came is no message.
    Garbled(String),
}

/// Writes a message and its tail.
pub(crate) fn write(to: &mut impl Write, message: &impl Serialize, tail: &[u8]) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let too_long = || io::Error::new(ErrorKind::InvalidInput, "the message is too long");
    let length = u32::try_from(text.len()).ok().filter(|length| *length <= LONGEST_TEXT).ok_or_else(too_long)?;
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&MAGIC.to_le_bytes());
    head[4..8].copy_from_slice(&length.to_le_bytes());
    head[8..16].copy_from_slice(&(tail.len() as u64).to_le_bytes());
    let sum = Checksum::new().over(&head[..16]).over(&text).over(tail);
    head[16..].copy_from_slice(&sum.value().to_le_bytes());
    // One write for what is small, so that it arrives at once.
    let mut first = Vec::with_capacity(HEAD + text.len() + tail.len().min(64 << 10));
    first.extend_from_slice(&head);
    first.extend_from_slice(&text);
    if tail.len() <= 64 << 10 {
        first.extend_from_slice(tail);
        return to.write_all(&first);
    }
    to.write_all(&first)?;
    to.write_all(tail)
}

/// Reads the next message; its tail replaces what is in `tail`.
pub(crate) fn read<T: DeserializeOwned>(from: &mut impl Read, tail: &mut Vec<u8>) -> Result<T, Broken> {
    let mut head = [0; HEAD];
    let mut filled = 0;
    while filled < HEAD {
        match from.read(&mut head[filled..]) {
            Ok(0) if filled == 0 => return Err(Broken::Ended),
            Ok(0) => return Err(Broken::Garbled("it ended in the middle of a message".into())),
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Err(Broken::Ended),
        }
    }
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let (magic, text_length, tail_length, sum) = (word(0), word(4), long(8), long(16));
    if magic != MAGIC || text_length > LONGEST_TEXT || tail_length > LONGEST_TAIL {
        return Err(Broken::Garbled("it sent something that is no message".into()));
    }
    let mut text = vec![];
    take(from, u64::from(text_length), &mut text)?;
    take(from, tail_length, tail)?;
    if Checksum::new().over(&head[..16]).over(&text).over(tail).value() != sum {
        return Err(Broken::Garbled("it sent a message that does not sum up".into()));
    }
    serde_json::from_slice(&text)
        .map_err(|error| Broken::Garbled(format!("it sent a message that is none of ours: {error}")))
}

/// Reads so many bytes, into memory that grows as they come.
fn take(from: &mut impl Read, bytes: u64, to: &mut Vec<u8>) -> Result<(), Broken> {
    to.clear();
    match from.take(bytes).read_to_end(to) {
        Ok(_) if to.len() as u64 == bytes => Ok(()),
        Ok(_) => Err(Broken::Garbled("it ended in the middle of a message".into())),
        Err(_) => Err(Broken::Ended),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::arbitrary::{reply, request};
    use crate::message::{Reply, Request};
    use proptest::prelude::*;

    /// A stream of messages with their tails.
    fn written<T: Serialize>(messages: &[(T, Vec<u8>)]) -> Vec<u8> {
        let mut stream = vec![];
        messages.iter().for_each(|(message, tail)| write(&mut stream, message, tail).expect("it can be written"));
        stream
    }

    /// All that can be read.
    fn heard<T: DeserializeOwned>(mut stream: &[u8]) -> (Vec<(T, Vec<u8>)>, Broken) {
        let (mut all, mut tail) = (vec![], vec![]);
        loop {
            match read(&mut stream, &mut tail) {
                Ok(message) => all.push((message, tail.clone())),
                Err(broken) => return (all, broken),
            }
        }
    }

    fn tail() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![prop::collection::vec(any::<u8>(), 0..40), Just(vec![7; 70_000])]
    }

    fn damaged<T: DeserializeOwned + PartialEq + std::fmt::Debug>(
        messages: &[(T, Vec<u8>)],
        mut stream: Vec<u8>,
        bit: usize,
        cut: usize,
    ) {
        let at = bit % (8 * stream.len());
        stream[at / 8] ^= 1 << (at % 8);
        stream.truncate(stream.len() - cut % stream.len());
        let whole = stream.len();
        let (all, broken) = heard::<T>(&stream);
        // Nothing is heard that was not said: what was damaged is noticed, and all before it is as it was.
        assert!(all.len() <= messages.len() && all == messages[..all.len()], "{at} {whole}");
        assert!(all.len() < messages.len() || matches!(broken, Broken::Ended));
    }

    proptest! {
        #[test]
        fn what_is_said_is_heard(
            requests in prop::collection::vec((request(), tail()), 1..6),
            replies in prop::collection::vec((reply(), tail()), 1..6),
        ) {
            let (all, end) = heard::<Request>(&written(&requests));
            prop_assert_eq!(all, requests);
            prop_assert!(matches!(end, Broken::Ended));
            let (all, end) = heard::<Reply>(&written(&replies));
            prop_assert_eq!(all, replies);
            prop_assert!(matches!(end, Broken::Ended));
        }

        #[test]
        fn damage_is_noticed_on_both_sides(
            requests in prop::collection::vec((request(), tail()), 1..4),
            replies in prop::collection::vec((reply(), tail()), 1..4),
            bit in any::<usize>(),
            cut in prop_oneof![Just(0), any::<usize>()],
        ) {
            damaged(&requests, written(&requests), bit, cut);
            damaged(&replies, written(&replies), bit, cut);
        }

        #[test]
        fn garbage_takes_no_memory(mut garbage in prop::collection::vec(any::<u8>(), 24..200), lengths in any::<[u32; 3]>()) {
            // A header that announces much, and nothing after it.
            garbage[..4].copy_from_slice(&MAGIC.to_le_bytes());
            for (i, length) in lengths.into_iter().enumerate() {
                garbage[4 + 4 * i..8 + 4 * i].copy_from_slice(&length.to_le_bytes());
            }
            let mut tail = vec![];
            prop_assert!(read::<Request>(&mut &garbage[..], &mut tail).is_err());
            prop_assert!(tail.capacity() < 1 << 20);
        }
    }
}
