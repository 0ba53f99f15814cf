//! The few things that each operating system does in its own way. All `unsafe` of this crate is below this folder.
//!
//! `unix.rs` and `windows.rs` offer the same functions:
//! `own_program`, `supervise`, `enter_child`, `forget_variables`, `affinity`, `signal_name` and `is_kill`.

#[cfg(unix)]
mod unix;
#[cfg(unix)]
pub(crate) use unix::*;

#[cfg(windows)]
mod windows;
#[cfg(windows)]
pub(crate) use windows::*;

use std::ops::ControlFlow;
use std::time::Duration;

/// Takes what the child reports; `Break` when it has said too much and must be ended.
type Hear<'a> = &'a mut dyn FnMut(&[u8]) -> ControlFlow<()>;

/// How a supervised child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Exited(i32),
    #[cfg_attr(windows, expect(dead_code))]
    Signalled(i32),
    /// We ended it, at the deadline.
    TimedOut,
    /// It is gone and nobody knows how. Also if we ended it because it said too much, where the how does not matter.
    Unknown,
}

/// The end of a child.
#[derive(Debug)]
pub(crate) struct Ending {
    pub how: How,
    pub stderr_tail: String,
}

/// How long a child that was killed may take to disappear. One that sits in the kernel (a driver that hangs) may never do so.
const GRACE: Duration = Duration::from_millis(500);

/// How much of a child's stderr is kept.
const TAIL: usize = 2048;

/// The last bytes of a stream of any length.
#[derive(Debug, Default)]
struct Tail(Vec<u8>);

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(TAIL)..];
        self.0.extend_from_slice(bytes);
        let surplus = self.0.len().saturating_sub(TAIL);
        self.0.drain(..surplus);
    }

    fn into_text(self) -> String {
        // The cut may have split a character: drop what is left of it.
        let cut = self.0.len() == TAIL;
        let is_rest = |byte: &&u8| cut && **byte & 0xC0 == 0x80;
        let rest = self.0.iter().take(3).take_while(is_rest).count();
        String::from_utf8_lossy(&self.0[rest..]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_end_and_whole_characters() {
        let text = "aé".repeat(5000);
        for piece in [1, 7, 2048, 15000] {
            let mut tail = Tail::default();
            text.as_bytes().chunks(piece).for_each(|bytes| tail.push(bytes));
            let kept = tail.into_text();
            assert!(text.ends_with(&kept), "pieces of {piece}");
            assert!((TAIL - 3..=TAIL).contains(&kept.len()), "pieces of {piece}");
        }
    }

    #[test]
    fn a_short_tail_is_everything() {
        let mut tail = Tail::default();
        tail.push(b"\xFFshort");
        assert_eq!(tail.into_text(), "\u{FFFD}short");
    }
}
