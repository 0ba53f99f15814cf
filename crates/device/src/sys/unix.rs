//! Unix: one process group per child, pipes that never block us, and the kernel's word on how it ended. On Linux a
//! [supervisor](super::supervisor) stands between us and the child.

use std::env;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{ChildExit, ExitCause, GRACE, OnOutput, Patience, Tail, WaitDecision};

const MOMENT: Duration = Duration::from_millis(1);

/// How often to look whether the child has ended while a pipe is still open: only a grandchild that holds it makes this matter.
const LOOK: Duration = Duration::from_millis(20);

/// The same for a child that has lived for a while: what stays for minutes must not cost anything.
const LOOK_SELDOM: Duration = Duration::from_millis(50);

/// How long to wait for killed grandchildren to disappear.
const LINGER: Duration = Duration::from_millis(100);

/// What is read at most between two looks at the clock, and after the end of the child.
const BUDGET: usize = 1 << 20;

/// The command that starts this program again.
pub(crate) fn own_program() -> io::Result<Command> {
    // On Linux the link leads to this very file even if an update has replaced it under its old name.
    let program = if cfg!(target_os = "linux") { "/proc/self/exe".into() } else { env::current_exe()? };
    let mut command = Command::new(program);
    if let Some(name) = env::args_os().next() {
        command.arg0(name);
    }
    Ok(command)
}

/// Runs a child to its end or until we want no more of it, and leaves nothing of it behind. An error means that it did not start.
pub(crate) fn supervise(mut command: Command, patience: Patience, on_output: OnOutput) -> io::Result<ChildExit> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn()?;
    // It holds the child's ends of what the child was given.
    drop(command);
    let mut report = child.stdout.take();
    let mut stderr = child.stderr.take();
    let family = Family::new(child);
    report.iter().for_each(|pipe| never_block(pipe.as_fd()));
    stderr.iter().for_each(|pipe| never_block(pipe.as_fd()));

    let begun = Instant::now();
    let mut tail = Tail::default();
    let mut keep = |bytes: &[u8]| {
        tail.push(bytes);
        ControlFlow::Continue(())
    };
    let ended_by_us = loop {
        let left = match patience() {
            WaitDecision::Wait(left) => left,
            WaitDecision::End(how) => break Some(how),
        };
        let pause = match report.is_some() {
            true if begun.elapsed() > Duration::from_secs(1) => LOOK_SELDOM,
            true => LOOK,
            false => MOMENT,
        };
        wait_for_output(report.as_ref().map(AsFd::as_fd), stderr.as_ref().map(AsFd::as_fd), pause.min(left));
        let _ = pump(&mut stderr, &mut keep);
        if pump(&mut report, on_output).is_break() {
            break Some(ExitCause::Unknown);
        }
        if family.parent_has_ended() {
            break None;
        }
    };

    let status = family.end();
    // What was written before the end is in the pipes. Whoever still holds their other ends is not waited for.
    let _ = pump(&mut stderr, &mut keep);
    let _ = pump(&mut report, on_output);
    Ok(ChildExit { how: ended_by_us.unwrap_or_else(|| how(status)), stderr_tail: tail.into_text() })
}

fn how(status: Option<ExitStatus>) -> ExitCause {
    let Some(status) = status else {
        return ExitCause::Unknown;
    };
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitCause::Exited(code),
        (None, Some(signal)) => ExitCause::Signalled(signal),
        (None, None) => ExitCause::Unknown,
    }
}

/// Reads what is there, up to the budget; a pipe that ends or breaks is closed.
fn pump<R: Read>(pipe: &mut Option<R>, on_output: OnOutput) -> ControlFlow<()> {
    let mut buffer = [0; 16 << 10];
    for _ in 0..BUDGET / buffer.len() {
        let Some(source) = pipe else { break };
        match source.read(&mut buffer) {
            Ok(0) => *pipe = None,
            Ok(count) => on_output(&buffer[..count])?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(_) => *pipe = None,
        }
    }
    ControlFlow::Continue(())
}

/// A child and all that it started: on Linux what its supervisor finds, elsewhere its process group. Dropped, it is ended.
struct Family(Option<Child>);

/// Groups that are running. If this program ends before them, they end with it: the kernel ends a child whose parent is gone, but
/// not what that child has started. On Linux the supervisor does that.
static RUNNING: Mutex<Vec<libc::pid_t>> = Mutex::new(Vec::new());

extern "C" fn end_all() {
    // A lock that somebody holds would be waited for at the end of the program, for ever perhaps.
    if let Ok(running) = RUNNING.try_lock() {
        running.iter().for_each(|group| ask_to_end(*group));
    }
}

impl Family {
    fn new(child: Child) -> Family {
        static AT_EXIT: std::sync::Once = std::sync::Once::new();
        AT_EXIT.call_once(|| {
            // SAFETY: the function may be called at any time, by any thread.
            unsafe { libc::atexit(end_all) };
        });
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).push(child.id().cast_signed());
        Family(Some(child))
    }

    /// Whether the child itself has ended. It is not collected yet: as long as it is a zombie, the number of its group
    /// belongs to nobody else, and the group can be killed without hitting a stranger.
    fn parent_has_ended(&self) -> bool {
        let Some(child) = &self.0 else { return true };
        // SAFETY: siginfo_t is plain data for which all zeros is a valid value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
        // SAFETY: `info` is valid for writing during the call.
        let result = unsafe { libc::waitid(libc::P_PID, child.id(), &mut info, flags) };
        if result == 0 {
            // SAFETY: waitid has filled in the fields of a child's end, or left the zeros that it was given.
            return unsafe { info.si_pid() } != 0;
        }
        // The child is not ours any more if this program ignores SIGCHLD or somebody else has collected it.
        io::Error::last_os_error().kind() != ErrorKind::Interrupted
    }

    /// Kills the whole group and collects the child: its status, if it can be known in time.
    fn end(mut self) -> Option<ExitStatus> {
        self.kill_and_collect()
    }

    fn kill_and_collect(&mut self) -> Option<ExitStatus> {
        let mut child = self.0.take()?;
        let group = child.id().cast_signed();
        ask_to_end(group);
        // From here on the number may become somebody else's.
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| *other != group);
        let killed = Instant::now();
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if killed.elapsed() < GRACE => sleep(MOMENT),
                Ok(None) => {
                    signal_group(group, libc::SIGKILL);
                    // It dies when the system has taken all its memory back, or a driver lets it go: collected then, so that no zombie stays.
                    let _ = std::thread::Builder::new().name("collect".into()).spawn(move || child.wait());
                    return None;
                }
                Err(_) => break None,
            }
        };
        // Grandchildren die on their own account, mostly within this moment. Where we are the first process of a container
        // they have become our children and would stay zombies.
        while signal_group(group, 0) && killed.elapsed() < LINGER {
            // SAFETY: no pointer is passed that the kernel could write to.
            unsafe { libc::waitpid(-group, std::ptr::null_mut(), libc::WNOHANG) };
            sleep(MOMENT);
        }
        status
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.kill_and_collect();
    }
}

/// Ends a group: on Linux its leader is a supervisor, which kills all others, and follows them.
fn ask_to_end(group: libc::pid_t) {
    if cfg!(target_os = "linux") && group > 1 {
        // SAFETY: kill takes two numbers and touches no memory. The leader was not collected yet, so the number is its own.
        unsafe { libc::kill(group, libc::SIGTERM) };
    } else {
        signal_group(group, libc::SIGKILL);
    }
}

/// Sends a signal to a process group; false if there is no such group.
fn signal_group(group: libc::pid_t, signal: libc::c_int) -> bool {
    // A group number of 0 or 1 would mean our own group or every process.
    // SAFETY: kill takes two numbers and touches no memory.
    group > 1 && unsafe { libc::kill(-group, signal) } == 0
}

fn never_block(pipe: BorrowedFd) {
    // SAFETY: the descriptor is open as long as `pipe` is borrowed, and both calls only take numbers.
    unsafe {
        let flags = libc::fcntl(pipe.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK);
    }
}

/// Sleeps until one of the pipes has something to read or has ended, at most for `pause`.
fn wait_for_output(report: Option<BorrowedFd>, stderr: Option<BorrowedFd>, pause: Duration) {
    // A negative descriptor is one that poll passes over.
    let mut entries = [report, stderr].map(|pipe| libc::pollfd {
        fd: pipe.map_or(-1, |pipe| pipe.as_raw_fd()),
        events: libc::POLLIN,
        revents: 0,
    });
    let milliseconds = pause.as_micros().div_ceil(1000).try_into().unwrap_or(libc::c_int::MAX);
    // SAFETY: `entries` is valid for reading and writing, and its length is the one given.
    unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, milliseconds) };
}

/// Makes this process a well-behaved child and returns its report channel, which is the stdout that it was started with.
///
/// `PR_SET_DUMPABLE` is left alone: it would prevent core files too, but also change who may read `/proc/self`, and then the
/// trial would no longer show what happens in an ordinary process.
pub(crate) fn enter_child() -> io::Result<File> {
    no_core_file();
    #[cfg(target_os = "linux")]
    super::supervisor::split();
    let report = io::stdout().as_fd().try_clone_to_owned()?; // close-on-exec
    // SAFETY: descriptors 1 and 2 are open in every Rust process, and std does not own them.
    if unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(File::from(report))
}

/// The ends of a link between this process and a child that stays: a channel for both directions, and a file in memory that both
/// reach. Nobody maps the file: what is read and written by calls cannot end a process when the other side cuts it short.
#[derive(Debug)]
pub(crate) struct Link {
    pub channel: crate::Channel,
    pub memory: Option<File>,
}

const LINK_VARIABLE: &str = "IMPASTO_TRIAL_LINK";

/// Gives a child that is about to be started its ends of a link; ours is returned.
pub(crate) fn link(command: &mut Command) -> io::Result<Link> {
    let (ours, theirs) = UnixStream::pair()?;
    let memory = memory_file().ok();
    let their_memory = memory.as_ref().map(File::try_clone).transpose()?;
    let number = |fd: Option<i32>| fd.map_or(String::new(), |fd| fd.to_string());
    let memory_number = their_memory.as_ref().map(AsRawFd::as_raw_fd);
    command.env(LINK_VARIABLE, format!("{},{}", theirs.as_raw_fd(), number(memory_number)));
    let inherit = move || {
        for fd in [Some(theirs.as_raw_fd()), their_memory.as_ref().map(AsRawFd::as_raw_fd)].into_iter().flatten() {
            // SAFETY: the descriptor is open, the closure owns it; the call takes numbers only and may be made between fork and exec.
            if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure makes one kind of system call and allocates nothing, not even for its error.
    unsafe { command.pre_exec(inherit) };
    Ok(Link { channel: ours, memory })
}

/// The child's ends of a link, where it was given one.
pub(crate) fn enter_link() -> Option<Link> {
    let text = env::var(LINK_VARIABLE).ok()?;
    forget_variables(&[LINK_VARIABLE]);
    let (channel, memory) = text.split_once(',')?;
    let take = |text: &str| {
        let fd: i32 = text.parse().ok().filter(|fd| *fd > libc::STDERR_FILENO)?;
        // SAFETY: the calls take numbers only; a descriptor that is not open is an error.
        (unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } == 0).then(|| {
            // SAFETY: our parent opened it for us, and nobody else in this process knows of it.
            unsafe { OwnedFd::from_raw_fd(fd) }
        })
    };
    let link = Link { channel: take(channel)?.into(), memory: take(memory).map(File::from) };
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // Our runtime's handler takes a signal that somebody sent for a fault that will come again, and the process would go on.
        // SAFETY: the default action is valid for every signal; no handler of ours is replaced.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    Some(link)
}

/// Closes a channel for both sides, whoever else has clones of it.
pub(crate) fn hang_up(channel: &crate::Channel) {
    let _ = channel.shutdown(std::net::Shutdown::Both);
}

/// A file that is nowhere but in memory.
#[cfg(target_os = "linux")]
fn memory_file() -> io::Result<File> {
    // SAFETY: the name ends with a zero and lives until the call returns.
    let fd = unsafe { libc::memfd_create(c"impasto".as_ptr(), libc::MFD_CLOEXEC) };
    match fd {
        // SAFETY: the descriptor is new, and ours alone.
        0.. => Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) })),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A file without a name, which only this user could have opened while it had one.
#[cfg(not(target_os = "linux"))]
fn memory_file() -> io::Result<File> {
    use std::hash::{BuildHasher, RandomState};
    use std::os::unix::fs::OpenOptionsExt;
    let path = env::temp_dir().join(format!("impasto-{:016x}", RandomState::new().hash_one(std::process::id())));
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

/// A limit of 0 is ignored where core files are piped to a program; 1 is the value that prevents them there as well.
fn no_core_file() {
    let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
    // SAFETY: `limit` is valid for reading. Failure (a hard limit of 0) leaves the limit at 0, which is nearly as good.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &limit) };
}

/// Ends this process without running anybody's last functions.
pub(crate) fn leave(code: i32) -> ! {
    // SAFETY: the call takes a number and does not return.
    unsafe { libc::_exit(code) }
}

/// Removes variables from the environment of a child that is about to run its trial.
pub(crate) fn forget_variables(names: &[&str]) {
    for name in names {
        // SAFETY: only a child comes here, from the first line of its `main`, when no other thread can read the environment.
        unsafe { env::remove_var(name) };
    }
}

/// The cores that the calling thread may run on, by their numbers.
#[cfg(target_os = "linux")]
pub(crate) fn affinity() -> Option<Vec<usize>> {
    // The call fails as long as the mask is smaller than the kernel's own.
    let mut mask = vec![0_u64; 16];
    while mask.len() <= 1 << 14 {
        let bytes = std::mem::size_of_val(&mask[..]);
        // SAFETY: the mask is valid for writing `bytes` bytes, and aligned as a cpu_set_t, which is an array of words.
        let result = unsafe { libc::sched_getaffinity(0, bytes, mask.as_mut_ptr().cast()) };
        if result == 0 {
            let cores: Vec<usize> = (0..64 * mask.len()).filter(|i| mask[i / 64] >> (i % 64) & 1 == 1).collect();
            return Some(cores).filter(|cores| !cores.is_empty());
        }
        mask.resize(mask.len() * 2, 0);
    }
    None
}

/// Unknown here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn affinity() -> Option<Vec<usize>> {
    None
}

/// When a process began, in the system's own units, or `None` if there is no such process.
#[cfg(target_os = "linux")]
pub(crate) fn process_begin(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain anything; after it come the state and twenty other fields.
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Whether a process lives; when it began is not known here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn process_begin(pid: u32) -> Option<u64> {
    let pid = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0)?;
    // SAFETY: signal 0 asks whether the process exists and does nothing.
    (unsafe { libc::kill(pid, 0) } == 0).then_some(0)
}

/// Whether this user may read and write a file, as far as permissions go. The file is not opened.
pub(crate) fn may_use(path: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: the path ends with a zero and lives until the call returns.
    unsafe { libc::access(path.as_ptr(), libc::R_OK | libc::W_OK) == 0 }
}

/// The group of a file, by its name if it has one.
pub(crate) fn group_of(path: &Path) -> Option<String> {
    let number = std::fs::metadata(path).ok()?.gid();
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    let named = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(number)).then(|| name.to_owned())
    });
    named.or(Some(number.to_string()))
}

/// Whether a signal is the one that cannot be caught, which a crash never raises.
pub(crate) fn is_kill(signal: i32) -> bool {
    signal == libc::SIGKILL
}

/// The name of a signal and what it says about a process that died of it.
pub(crate) fn signal_name(signal: i32) -> Option<(&'static str, &'static str)> {
    Some(match signal {
        libc::SIGABRT => ("SIGABRT", "it gave itself up"),
        libc::SIGALRM => ("SIGALRM", "a timer of its own"),
        libc::SIGBUS => ("SIGBUS", "memory that cannot be reached"),
        libc::SIGFPE => ("SIGFPE", "impossible arithmetic"),
        libc::SIGHUP => ("SIGHUP", "the terminal went away"),
        libc::SIGILL => ("SIGILL", "an instruction that this machine lacks or forbids"),
        libc::SIGINT => ("SIGINT", "interrupted from outside"),
        libc::SIGKILL => ("SIGKILL", "killed from outside"),
        libc::SIGPIPE => ("SIGPIPE", "it wrote where nobody reads"),
        libc::SIGQUIT => ("SIGQUIT", "ended from outside"),
        libc::SIGSEGV => ("SIGSEGV", "memory that is not its own"),
        libc::SIGSYS => ("SIGSYS", "a system call that is forbidden here"),
        libc::SIGTERM => ("SIGTERM", "ended from outside"),
        libc::SIGTRAP => ("SIGTRAP", "a trap of its own"),
        libc::SIGXCPU => ("SIGXCPU", "the limit of processor time"),
        libc::SIGXFSZ => ("SIGXFSZ", "the limit of file size"),
        _ => return None,
    })
}

/// A write beyond the limit on the size of files (`ulimit -f`) fails, instead of ending the process by SIGXFSZ.
pub(crate) fn survive_file_size_limit() {
    // SAFETY: no handler is installed, and ignoring this signal changes nothing but that the write returns an error.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
