//! Windows, plainly: the child reports into a temporary file, so that no pipe can be held open against us.
//!
//! What is missing compared with Unix: processes that the child starts outlive it (that needs a job object), and a parent that
//! is killed leaves its child to run to its end.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::os::windows::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Ending, GRACE, Hear, How, TAIL, Tail};

const LOOK: Duration = Duration::from_millis(5);
const CREATE_NO_WINDOW: u32 = 0x0800_0000;
const REPORT_VARIABLE: &str = "IMPASTO_TRIAL_REPORT";

/// The command that starts this program again.
pub(crate) fn own_program() -> io::Result<Command> {
    env::current_exe().map(Command::new)
}

/// Runs a child to its end or to the deadline. An error means that it did not start.
pub(crate) fn supervise(mut command: Command, deadline: Duration, hear: Hear) -> io::Result<Ending> {
    let start = Instant::now();
    let mut report = Scratch::create("report")?;
    let mut stderr = Scratch::create("stderr")?;
    let mut child = command
        .env(REPORT_VARIABLE, &report.path)
        .stdin(Stdio::null())
        .stdout(stderr.writer()?)
        .stderr(stderr.writer()?)
        .creation_flags(CREATE_NO_WINDOW)
        .spawn()?;
    let how = loop {
        if report.pump(hear).is_break() {
            break How::Unknown;
        }
        match child.try_wait() {
            Ok(Some(status)) => break status.code().map_or(How::Unknown, How::Exited),
            Ok(None) if start.elapsed() >= deadline => break How::TimedOut,
            Ok(None) => sleep(LOOK.min(deadline.saturating_sub(start.elapsed()))),
            Err(_) => break How::Unknown,
        }
    };
    end(&mut child);
    let _ = report.pump(hear);
    Ok(Ending { how, stderr_tail: stderr.tail() })
}

/// Kills the child if it still runs, and waits a bounded time for its end.
fn end(child: &mut Child) {
    let _ = child.kill();
    let killed = Instant::now();
    while matches!(child.try_wait(), Ok(None)) && killed.elapsed() < GRACE {
        sleep(LOOK);
    }
}

/// A temporary file that the child writes and we read.
struct Scratch {
    path: PathBuf,
    file: File,
}

impl Scratch {
    fn create(kind: &str) -> io::Result<Scratch> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("impasto-trial-{}-{count}.{kind}", std::process::id());
            let path = env::temp_dir().join(name);
            match OpenOptions::new().read(true).append(true).create_new(true).open(&path) {
                Ok(file) => return Ok(Scratch { path, file }),
                // Left behind by a process that had our number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn writer(&self) -> io::Result<Stdio> {
        open_to_write(&self.path).map(Stdio::from)
    }

    /// Reads what was added since the last time.
    fn pump(&mut self, hear: Hear) -> ControlFlow<()> {
        let mut buffer = [0; 16 << 10];
        while let Ok(count @ 1..) = self.file.read(&mut buffer) {
            hear(&buffer[..count])?;
        }
        ControlFlow::Continue(())
    }

    fn tail(&mut self) -> String {
        let mut tail = Tail::default();
        let length = self.file.metadata().map_or(0, |data| data.len());
        let begin = length.saturating_sub(TAIL as u64);
        if self.file.seek(SeekFrom::Start(begin)).is_ok() {
            let mut bytes = Vec::new();
            let _ = Read::by_ref(&mut self.file).take(TAIL as u64).read_to_end(&mut bytes);
            tail.push(&bytes);
        }
        tail.into_text()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn open_to_write(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).open(path)
}

/// Makes this process a well-behaved child and returns its report channel.
pub(crate) fn enter_child() -> io::Result<File> {
    #[link(name = "kernel32")]
    unsafe extern "system" {
        safe fn SetErrorMode(mode: u32) -> u32;
    }
    const FAIL_CRITICAL_ERRORS: u32 = 0x1;
    const NO_FAULT_BOX: u32 = 0x2;
    // A crash must not open a dialog that waits for a person.
    SetErrorMode(FAIL_CRITICAL_ERRORS | NO_FAULT_BOX);
    let path = env::var_os(REPORT_VARIABLE).ok_or(io::ErrorKind::NotFound)?;
    let report = open_to_write(Path::new(&path));
    forget_variables(&[REPORT_VARIABLE]);
    report
}

/// Removes variables from the environment of a child that is about to run its trial.
pub(crate) fn forget_variables(names: &[&str]) {
    for name in names {
        // SAFETY: always sound on Windows, whose environment has a lock of its own.
        unsafe { env::remove_var(name) };
    }
}

/// Unknown here.
pub(crate) fn affinity() -> Option<usize> {
    None
}

/// There are no signals on Windows.
pub(crate) fn is_kill(_signal: i32) -> bool {
    false
}

/// There are no signals on Windows.
pub(crate) fn signal_name(_signal: i32) -> Option<(&'static str, &'static str)> {
    None
}
