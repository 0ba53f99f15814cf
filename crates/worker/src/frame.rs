//! How a message goes over the channel: a head of fixed length with a sum over all that follows, the message as JSON, and bytes behind it.
//!
//! Nothing that comes in is believed: lengths are bounded, memory is taken as bytes arrive and not as a head announces them, and what does
//! not sum up is garbled, whatever it says.

use std::io::{self, ErrorKind, Read, Write};

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

/// Writes a message with bytes behind it.
pub(crate) fn write(to: &mut impl Write, message: &impl Serialize, tail: &[u8]) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let too_long = || io::Error::new(ErrorKind::InvalidInput, "the message is too long");
    let length = u32::try_from(text.len()).ok().filter(|length| *length <= LONGEST_TEXT).ok_or_else(too_long)?;
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&MAGIC.to_le_bytes());
    head[4..8].copy_from_slice(&length.to_le_bytes());
    head[8..16].copy_from_slice(&(tail.len() as u64).to_le_bytes());
    let sum = Sum::new().over(&head[..16]).over(&text).over(tail);
    head[16..].copy_from_slice(&sum.0.to_le_bytes());
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

/// Reads the next message; the bytes behind it replace what is in `tail`.
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
    if Sum::new().over(&head[..16]).over(&text).over(tail).0 != sum {
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

/// A sum that a flipped bit changes.
struct Sum(u64);

impl Sum {
    fn new() -> Sum {
        Sum(0x9e37_79b9_7f4a_7c15)
    }

    fn over(self, bytes: &[u8]) -> Sum {
        let (eights, rest) = bytes.as_chunks::<8>();
        let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29);
        let sum = eights.iter().fold(self.0, |sum, eight| mix(sum, u64::from_le_bytes(*eight)));
        let sum = rest.iter().fold(sum, |sum, byte| mix(sum, u64::from(*byte)));
        Sum(mix(sum, bytes.len() as u64))
    }
}
