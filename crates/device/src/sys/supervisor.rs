//! Linux: the supervisor of a child process. It is the subreaper of all that the child starts, so that a process which leaves the child's
//! group and session and outlives its own parent is still found, and killed when the child ends, is to be ended, or loses its program.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::unix::leave;

/// How long killed processes may take to disappear. One that sits in the kernel (a driver that hangs) may never do so. It is less than
/// the time that our parent waits for us.
const GRACE: Duration = Duration::from_millis(400);

/// Splits this process in two. It returns in the new one, which does the work; the old one supervises it, and ends as that one ends, after
/// it has killed all that was started. A SIGTERM, which the kernel sends when the thread that started us ends, ends all of them.
///
/// Must be called while there is one thread. Where the system has no subreapers or no more processes, there is no supervisor, and this
/// process goes on alone.
pub(super) fn split() {
    // SAFETY: these calls take numbers, or pointers to sets that live until they return. The process has one thread, so that the new one
    // may do what it likes after the fork.
    unsafe {
        if libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0 {
            return die_with_parent(libc::SIGKILL);
        }
        // Somebody who ignores the ends of children hands that down, and their status would be lost.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let mut awaited: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut awaited);
        libc::sigaddset(&mut awaited, libc::SIGCHLD);
        libc::sigaddset(&mut awaited, libc::SIGTERM);
        libc::sigprocmask(libc::SIG_BLOCK, &awaited, &mut before);
        match libc::fork() {
            0 | -1 => {
                libc::sigprocmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
                die_with_parent(libc::SIGKILL);
                be_killed_first();
            }
            child => {
                die_with_parent(libc::SIGTERM);
                supervise(child, &awaited)
            }
        }
    }
}

/// Asks the kernel for a signal when the thread that started this process ends. If it has ended already, this is too late; the first line
/// of the report then meets a broken pipe.
fn die_with_parent(signal: libc::c_int) {
    // SAFETY: this option takes one number and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong) };
}

/// Where memory is short, a driver and what it takes go before the program that can do without it. Anybody may ask for that.
fn be_killed_first() {
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}

/// Waits for the end of the child, kills all that it has started, and ends as it did.
fn supervise(child: libc::pid_t, awaited: &libc::sigset_t) -> ! {
    close_descriptors();
    let status = loop {
        if let Some(status) = reap_until(child) {
            break status;
        }
        // SAFETY: the set lives until the call returns, and no information is asked for.
        if unsafe { libc::sigwaitinfo(awaited, std::ptr::null_mut()) } == libc::SIGTERM {
            break libc::SIGTERM;
        }
    };
    let begun = Instant::now();
    while has_children() && begun.elapsed() < GRACE {
        for process in children() {
            // SAFETY: the call takes two numbers. A child that was not collected keeps its number.
            unsafe { libc::kill(process, libc::SIGKILL) };
        }
        sleep(Duration::from_millis(1));
    }
    end_as(status)
}

/// Collects children that have ended; the status of this one, once it has.
fn reap_until(child: libc::pid_t) -> Option<libc::c_int> {
    loop {
        let mut status = 0;
        // SAFETY: the status is valid for writing during the call.
        match unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) } {
            0 => return None,
            process if process == child => return Some(status),
            // There are none any more: the child was lost.
            -1 => return Some(libc::SIGKILL),
            _ => {}
        }
    }
}

/// Whether there are children that have not ended; those that have are collected.
fn has_children() -> bool {
    loop {
        // SAFETY: no pointer is passed that the kernel could write to.
        match unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } {
            0 => return true,
            -1 => return false,
            _ => {}
        }
    }
}

/// The processes whose parent we are, by the numbers that `/proc` lists.
fn children() -> Vec<libc::pid_t> {
    let own = std::process::id().to_string();
    let parent = |process: libc::pid_t| {
        let stat = std::fs::read(format!("/proc/{process}/stat")).ok()?;
        // The name may contain anything; after it come the state and the parent.
        let rest = stat.rsplit(|&byte| byte == b')').next()?;
        rest.split(|&byte| byte == b' ').nth(2).map(|parent| parent == own.as_bytes())
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    processes.filter(|&process| parent(process) == Some(true)).collect()
}

/// Closes what the child has too: whoever waits for the end of a channel waits for the child alone.
fn close_descriptors() {
    // SAFETY: this process uses no descriptor that was open before; the calls take numbers only.
    unsafe {
        if libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) != 0 {
            (0..4096).for_each(|descriptor| {
                libc::close(descriptor);
            });
        }
    }
}

/// Ends this process in the way of a status, so that our parent sees what it would have seen of the child.
fn end_as(status: libc::c_int) -> ! {
    if libc::WIFEXITED(status) {
        leave(libc::WEXITSTATUS(status));
    }
    let signal = libc::WTERMSIG(status);
    // SAFETY: the default action is valid for every signal; the set lives until the call returns.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_UNBLOCK, &all, std::ptr::null_mut());
        libc::kill(libc::getpid(), signal);
    }
    // A signal that ends nobody by default.
    leave(128 + signal)
}
