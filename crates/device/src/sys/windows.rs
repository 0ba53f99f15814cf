//! Windows: the child reports into a temporary file, so that no pipe can be held open against us, and puts itself into a job object
//! before it does anything else, so that all that it starts ends with it. If the parent dies, the job closes and ends them too.

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

use super::{ChildExit, ExitCause, GRACE, OnOutput, Patience, TAIL, Tail, WaitDecision};

const LOOK: Duration = Duration::from_millis(5);
const CREATE_NO_WINDOW: u32 = 0x0800_0000;
const REPORT_VARIABLE: &str = "IMPASTO_TRIAL_REPORT";
const JOB_VARIABLE: &str = "IMPASTO_TRIAL_JOB";

/// The command that starts this program again.
pub(crate) fn own_program() -> io::Result<Command> {
    env::current_exe().map(Command::new)
}

/// Runs a child to its end or until we want no more of it. An error means that it did not start.
pub(crate) fn supervise(mut command: Command, patience: Patience, on_output: OnOutput) -> io::Result<ChildExit> {
    let mut report = Scratch::create("report")?;
    let mut stderr = Scratch::create("stderr")?;
    let job = Job::create();
    if let Some(job) = &job {
        command.env(JOB_VARIABLE, &job.name);
    }
    let mut child = command
        .env(REPORT_VARIABLE, &report.path)
        .stdin(Stdio::null())
        .stdout(stderr.writer()?)
        .stderr(stderr.writer()?)
        .creation_flags(CREATE_NO_WINDOW)
        .spawn()?;
    // It holds the child's ends of what the child was given.
    drop(command);
    let how = loop {
        let left = match patience() {
            WaitDecision::Wait(left) => left,
            WaitDecision::End(how) => break how,
        };
        if report.pump(on_output).is_break() {
            break ExitCause::Unknown;
        }
        match child.try_wait() {
            Ok(Some(status)) => break status.code().map_or(ExitCause::Unknown, ExitCause::Exited),
            Ok(None) => sleep(LOOK.min(left)),
            Err(_) => break ExitCause::Unknown,
        }
    };
    if let Some(job) = &job {
        job.end();
    }
    end(&mut child);
    let _ = report.pump(on_output);
    Ok(ChildExit { how, stderr_tail: stderr.tail() })
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
    fn pump(&mut self, on_output: OnOutput) -> ControlFlow<()> {
        let mut buffer = [0; 16 << 10];
        while let Ok(count @ 1..) = self.file.read(&mut buffer) {
            on_output(&buffer[..count])?;
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
    const FAIL_CRITICAL_ERRORS: u32 = 0x1;
    const NO_FAULT_BOX: u32 = 0x2;
    // A crash must not open a dialog that waits for a person.
    SetErrorMode(FAIL_CRITICAL_ERRORS | NO_FAULT_BOX);
    no_crash_report();
    if let Some(name) = env::var_os(JOB_VARIABLE) {
        Job::enter(&name);
    }
    let path = env::var_os(REPORT_VARIABLE).ok_or(io::ErrorKind::NotFound)?;
    let report = open_to_write(Path::new(&path));
    forget_variables(&[REPORT_VARIABLE, JOB_VARIABLE]);
    report
}

/// The ends of a link between this process and a child that stays.
#[derive(Debug)]
pub(crate) struct Link {
    pub channel: crate::Channel,
    pub memory: Option<File>,
}

/// There are none here yet.
pub(crate) fn link(_command: &mut Command) -> io::Result<Link> {
    Err(io::ErrorKind::Unsupported.into())
}

/// There are none here yet.
pub(crate) fn enter_link() -> Option<Link> {
    None
}

/// Closes a channel for both sides, whoever else has clones of it.
pub(crate) fn hang_up(channel: &crate::Channel) {
    let _ = channel.shutdown(std::net::Shutdown::Both);
}

type Handle = *mut std::ffi::c_void;

#[link(name = "kernel32")]
unsafe extern "system" {
    safe fn SetErrorMode(mode: u32) -> u32;
    safe fn GetCurrentProcess() -> Handle;
    fn CreateJobObjectW(security: *const u8, name: *const u16) -> Handle;
    fn OpenJobObjectW(access: u32, inherit: i32, name: *const u16) -> Handle;
    fn SetInformationJobObject(job: Handle, class: i32, information: *const u8, length: u32) -> i32;
    fn AssignProcessToJobObject(job: Handle, process: Handle) -> i32;
    fn TerminateJobObject(job: Handle, code: u32) -> i32;
    fn TerminateProcess(process: Handle, code: u32) -> i32;
    fn OpenProcess(access: u32, inherit: i32, process: u32) -> Handle;
    fn GetExitCodeProcess(process: Handle, code: *mut u32) -> i32;
    fn GetProcessTimes(process: Handle, created: *mut u64, exited: *mut u64, kernel: *mut u64, user: *mut u64) -> i32;
    fn CloseHandle(handle: Handle) -> i32;
}

/// Asks the system's crash reporter to stay silent. Systems that lack the function have no reporter either.
fn no_crash_report() {
    const NO_UI: u32 = 0x20;
    // SAFETY: the library is always loaded, and the function has had this type since it exists.
    unsafe {
        if let Ok(kernel) = libloading::Library::new("kernel32.dll")
            && let Ok(set) = kernel.get::<unsafe extern "system" fn(u32) -> i32>(b"WerSetFlags\0")
        {
            set(NO_UI);
        }
    }
}

/// A job object: a child and all that it starts.
struct Job {
    handle: Handle,
    name: String,
}

impl Job {
    /// A job that ends its processes when its last handle, ours, is closed.
    fn create() -> Option<Job> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("impasto-trial-{}-{count}", std::process::id());
        let wide: Vec<u16> = name.encode_utf16().chain([0]).collect();
        // SAFETY: the name ends with a zero and lives until the call returns.
        let handle = unsafe { CreateJobObjectW(std::ptr::null(), wide.as_ptr()) };
        if handle.is_null() {
            return None;
        }
        let job = Job { handle, name };
        const EXTENDED_LIMITS: i32 = 9;
        const KILL_ON_CLOSE: u32 = 0x2000;
        // JOBOBJECT_EXTENDED_LIMIT_INFORMATION on 64 bits: 144 bytes, the flags at 16. On 32 bits: 112 bytes, the same place.
        let mut limits = [0_u8; 144];
        limits[16..20].copy_from_slice(&KILL_ON_CLOSE.to_ne_bytes());
        let length = if size_of::<usize>() == 8 { 144 } else { 112 };
        // SAFETY: the structure is as long as said and lives until the call returns.
        let set = unsafe { SetInformationJobObject(handle, EXTENDED_LIMITS, limits.as_ptr(), length) };
        (set != 0).then_some(job)
    }

    /// Puts this process into the job of that name. That is done by the child, so that it has started nothing before.
    fn enter(name: &std::ffi::OsStr) {
        use std::os::windows::ffi::OsStrExt;
        const ASSIGN: u32 = 0x1;
        let wide: Vec<u16> = name.encode_wide().chain([0]).collect();
        // SAFETY: the name ends with a zero; the handle is closed once and not used after that.
        unsafe {
            let handle = OpenJobObjectW(ASSIGN, 0, wide.as_ptr());
            if !handle.is_null() {
                AssignProcessToJobObject(handle, GetCurrentProcess());
                CloseHandle(handle);
            }
        }
    }

    fn end(&self) {
        // SAFETY: the handle is ours and open.
        unsafe { TerminateJobObject(self.handle, 1) };
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, open, and not used after this.
        unsafe { CloseHandle(self.handle) };
    }
}

/// Ends this process without running anybody's last functions.
pub(crate) fn leave(code: i32) -> ! {
    // SAFETY: the handle stands for this process and needs no closing.
    unsafe { TerminateProcess(GetCurrentProcess(), code.cast_unsigned()) };
    std::process::abort()
}

/// When a process began, in the system's own units, or `None` if there is no such process.
pub(crate) fn process_begin(pid: u32) -> Option<u64> {
    const QUERY: u32 = 0x1000;
    const STILL_RUNS: u32 = 259;
    let (mut code, mut created, mut other) = (0, 0, [0_u64; 3]);
    // SAFETY: all places are valid for writing during the calls; the handle is closed once and not used after that.
    unsafe {
        let process = OpenProcess(QUERY, 0, pid);
        if process.is_null() {
            return None;
        }
        let [exited, kernel, user] = &mut other;
        let runs = GetExitCodeProcess(process, &mut code) != 0 && code == STILL_RUNS;
        let known = GetProcessTimes(process, &mut created, exited, kernel, user) != 0;
        CloseHandle(process);
        (runs && known).then_some(created)
    }
}

/// There are no device files here.
pub(crate) fn may_use(_path: &Path) -> bool {
    true
}

/// There are no device files here.
pub(crate) fn group_of(_path: &Path) -> Option<String> {
    None
}

/// Removes variables from the environment of a child that is about to run its trial.
pub(crate) fn forget_variables(names: &[&str]) {
    for name in names {
        // SAFETY: always sound on Windows, whose environment has a lock of its own.
        unsafe { env::remove_var(name) };
    }
}

/// Unknown here.
pub(crate) fn affinity() -> Option<Vec<usize>> {
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

/// There is no such signal here.
pub(crate) fn survive_file_size_limit() {}
