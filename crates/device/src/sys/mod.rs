//! The few things that each operating system does in its own way. All `unsafe` of this crate is below this folder.
//!
//! `unix.rs` and `windows.rs` offer the same functions:
//! `own_program`, `supervise`, `link`, `leave`, `enter_child`, `enter_link`, `hang_up`, `forget_variables`, `affinity`, `signal_name`, `is_kill` and `survive_file_size_limit`.

mod library;
#[cfg(target_os = "linux")]
mod supervisor;
#[cfg(unix)]
mod unix;
#[cfg(unix)]
pub(crate) use unix::*;

#[cfg(windows)]
pub(crate) mod registry;
#[cfg(windows)]
mod windows;
#[cfg(windows)]
pub(crate) use windows::*;

pub(crate) use library::open_library;

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Duration;

/// Takes what the child reports; `Break` when it has said too much and must be ended.
type OnOutput<'a> = &'a mut dyn FnMut(&[u8]) -> ControlFlow<()>;

/// What to do about a child that still runs.
pub(crate) enum WaitDecision {
    /// Wait, at most so long before the next question.
    Wait(Duration),
    /// End it.
    End(ExitCause),
}

/// Asked every few moments.
type Patience<'a> = &'a mut dyn FnMut() -> WaitDecision;

/// How a supervised child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitCause {
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
pub(crate) struct ChildExit {
    pub how: ExitCause,
    pub stderr_tail: String,
}

/// How long a child that was killed may take to disappear. One that sits in the kernel (a driver that hangs) may never do so.
const GRACE: Duration = Duration::from_millis(500);

/// How much of a child's stderr is kept.
const TAIL: usize = 2048;

/// The last lines of a stream of any length. A line that comes again is counted, not kept again, so that a driver which repeats
/// itself does not push out what it said before.
#[derive(Debug, Default)]
struct Tail {
    lines: VecDeque<(Vec<u8>, u64)>,
    unfinished: Vec<u8>,
    cut: bool,
}

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        let mut pieces = bytes.split(|&byte| byte == b'\n');
        let last = pieces.next_back().unwrap_or_default();
        for piece in pieces {
            self.extend(piece);
            self.end_line();
        }
        self.extend(last);
    }

    /// Adds to the line that is being written; of a very long one the end is kept.
    fn extend(&mut self, bytes: &[u8]) {
        self.unfinished.extend_from_slice(&bytes[bytes.len().saturating_sub(TAIL)..]);
        let surplus = self.unfinished.len().saturating_sub(TAIL);
        self.cut |= surplus > 0 || bytes.len() > TAIL;
        self.unfinished.drain(..surplus);
    }

    fn end_line(&mut self) {
        let mut line = std::mem::take(&mut self.unfinished);
        if std::mem::take(&mut self.cut) {
            // The cut may have split a character: drop what is left of it.
            let rest = line.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
            line.drain(..rest);
        }
        match self.lines.iter_mut().find(|(known, _)| *known == line) {
            Some((_, count)) => *count += 1,
            None => self.lines.push_back((line, 1)),
        }
        // Each line counts for more than its bytes, so that empty ones are bounded too.
        let size = |lines: &VecDeque<(Vec<u8>, u64)>| lines.iter().map(|(line, _)| line.len() + 1).sum::<usize>();
        while self.lines.len() > 1 && size(&self.lines) > TAIL {
            self.lines.pop_front();
        }
    }

    fn into_text(mut self) -> String {
        if !self.unfinished.is_empty() {
            self.end_line();
        }
        let text = |(line, count): &(Vec<u8>, u64)| match count {
            1 => String::from_utf8_lossy(line).into_owned(),
            _ => format!("{} ({count} times)", String::from_utf8_lossy(line)),
        };
        self.lines.iter().map(text).collect::<Vec<_>>().join("\n")
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
    fn what_is_repeated_is_counted_and_hides_nothing() {
        let mut tail = Tail::default();
        tail.push(b"libfoo: cannot open\n");
        for _ in 0..10_000 {
            tail.push(b"error: lost\nwarning: ");
            tail.push(b"again\n");
        }
        assert_eq!(tail.into_text(), "libfoo: cannot open\nerror: lost (10000 times)\nwarning: again (10000 times)");
    }

    #[test]
    fn many_different_lines_stay_bounded() {
        let mut tail = Tail::default();
        (0..100_000).for_each(|number| tail.push(format!("line {number}\n").as_bytes()));
        let kept = tail.into_text();
        assert!(kept.len() <= TAIL && kept.ends_with("line 99999"), "{}", kept.len());
    }

    #[test]
    fn a_short_tail_is_everything() {
        let mut tail = Tail::default();
        tail.push(b"\xFFshort");
        assert_eq!(tail.into_text(), "\u{FFFD}short");
    }
}
