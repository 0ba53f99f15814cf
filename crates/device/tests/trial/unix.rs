//! What only a Unix child can do: signals, forks, descriptors.

use std::io::Write;
use std::os::fd::FromRawFd;
use std::thread;
use std::time::{Duration, Instant};

use impasto_device::{Outcome, Trial, TrialReport, Verdict, trial};

use super::{assert_garbled, helper, patient, trial_named, within};

pub const TRIALS: &[Trial] = &[
    trial_named("segv", |report| {
        report.stage("bad pointer");
        let nowhere = std::hint::black_box(64) as *const u64;
        // SAFETY: none. It is meant to die here.
        report.record(&unsafe { nowhere.read_volatile() });
        Ok(())
    }),
    trial_named("ill", |report| {
        report.stage("tile-config");
        illegal_instruction();
        Ok(())
    }),
    trial_named("kill", |report| {
        report.stage("out of memory");
        // SAFETY: sends a signal to this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        Ok(())
    }),
    trial_named("crash at exit", |report| {
        report.stage("work");
        extern "C" fn crash() {
            std::process::abort();
        }
        // SAFETY: the function may be called at any time.
        unsafe { libc::atexit(crash) };
        Ok(())
    }),
    trial_named("wrong nonce", |report| {
        report.record(&1);
        write_to_report_channel(b"{\"version\":2,\"nonce\":\"0\",\"message\":{\"record\":2}}\n");
        Ok(())
    }),
    trial_named("garbage", |_| {
        write_to_report_channel(b"\xFF\0 garbage\n\n{");
        Ok(())
    }),
    trial_named("close everything", |report| {
        report.stage("closed");
        for descriptor in 0..64 {
            // SAFETY: nothing here uses these descriptors any more.
            unsafe { libc::close(descriptor) };
        }
        loop {
            thread::sleep(Duration::from_secs(1));
        }
    }),
    trial_named("stop", |_| {
        // SAFETY: sends a signal to this process.
        unsafe { libc::raise(libc::SIGSTOP) };
        Ok(())
    }),
    trial_named("grandchild, then done", |report| {
        fork_a_sleeper(report);
        Ok(())
    }),
    trial_named("grandchild, then hang", |report| {
        fork_a_sleeper(report);
        loop {
            thread::sleep(Duration::from_secs(1));
        }
    }),
    trial_named("limits", |report| {
        // SAFETY: all zeros is a valid rlimit, and it is valid for writing.
        let core = unsafe {
            let mut limit: libc::rlimit = std::mem::zeroed();
            libc::getrlimit(libc::RLIMIT_CORE, &mut limit);
            limit.rlim_cur
        };
        report.record(&(core <= 1));
        Ok(())
    }),
    #[cfg(target_os = "linux")]
    trial_named("outlive the parent", |report| {
        let path = std::env::var_os(PID_FILE).ok_or("no file")?;
        std::fs::write(path, std::process::id().to_string()).map_err(|e| e.to_string())?;
        report.stage("wait");
        loop {
            thread::sleep(Duration::from_secs(1));
        }
    }),
];

pub const CHECKS: &[(&str, fn())] = &[
    ("a_signal_is_named_with_its_stage", signals),
    ("a_kill_from_outside_is_no_crash", killed),
    ("a_crash_at_exit_is_no_pass", crashes_at_exit),
    ("a_foreign_line_in_the_report_is_noticed", foreign_lines),
    ("a_child_that_closes_everything_is_waited_for", closes_everything),
    ("a_child_that_stops_itself_is_ended", stops_itself),
    ("a_grandchild_that_holds_everything_does_not_hold_us", grandchild),
    ("no_core_file", no_core_file),
    ("a_helper_without_a_hook_gives_no_answer", helpers),
    #[cfg(target_os = "linux")]
    ("forty_trials_leak_nothing", forty_trials),
    #[cfg(target_os = "linux")]
    ("a_parent_that_ignores_its_children_is_told", ignored_children),
    #[cfg(target_os = "linux")]
    ("a_child_dies_with_its_parent", dies_with_parent),
];

fn illegal_instruction() {
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    // SAFETY: none. It is meant to die here.
    unsafe {
        std::arch::asm!("ud2")
    };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: none. It is meant to die here.
    unsafe {
        std::arch::asm!("udf #0")
    };
}

/// The channel is private; among the pipes it is the one that is close-on-exec.
fn write_to_report_channel(bytes: &[u8]) {
    for descriptor in 3..64 {
        // SAFETY: the calls write to `stat`, or nothing; a descriptor that is closed gives an error.
        let is_channel = unsafe {
            let flags = libc::fcntl(descriptor, libc::F_GETFD);
            let mut stat: libc::stat = std::mem::zeroed();
            flags >= 0
                && flags & libc::FD_CLOEXEC != 0
                && libc::fstat(descriptor, &mut stat) == 0
                && stat.st_mode & libc::S_IFMT == libc::S_IFIFO
        };
        if is_channel {
            // SAFETY: it is open, and not closed by us since the file is forgotten.
            let mut file = std::mem::ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(descriptor) });
            file.write_all(bytes).expect("the parent listens");
        }
    }
}

/// Forks a process that holds every descriptor for a long time, and reports our group.
fn fork_a_sleeper(report: &mut TrialReport) {
    report.stage("fork");
    // SAFETY: the new process only sleeps and leaves.
    unsafe {
        if libc::fork() == 0 {
            libc::sleep(600);
            libc::_exit(0);
        }
    }
    report.record(&std::process::id());
}

fn signals() {
    for (name, signal, word, stage) in [
        ("segv", libc::SIGSEGV, "SIGSEGV", "bad pointer"),
        ("ill", libc::SIGILL, "SIGILL", "tile-config"),
        ("abort", libc::SIGABRT, "SIGABRT", "before abort"),
    ] {
        let outcome = trial(name, &patient());
        let crashed = Verdict::Crashed { signal: Some(signal), code: None };
        assert_eq!(outcome.verdict, crashed, "{name}");
        let text = outcome.to_string();
        assert!(text.contains(word) && text.contains(stage), "{text}");
    }
}

fn killed() {
    let outcome = trial("kill", &patient());
    assert_eq!(outcome.verdict, Verdict::Killed);
    assert_eq!(outcome.stage.as_deref(), Some("out of memory"));
}

fn crashes_at_exit() {
    let outcome = trial("crash at exit", &patient());
    assert!(matches!(outcome.verdict, Verdict::Crashed { .. }), "{outcome}");
    assert_eq!(outcome.stage.as_deref(), Some("exit"));
}

fn foreign_lines() {
    let outcome = trial("wrong nonce", &patient());
    assert_garbled(&outcome);
    assert_eq!(outcome.records, [1]);
    assert_garbled(&trial("garbage", &patient()));
}

fn closes_everything() {
    let outcome = trial("close everything", &within(1000));
    assert!(matches!(outcome.verdict, Verdict::TimedOut { .. }), "{outcome}");
    assert_eq!(outcome.stage.as_deref(), Some("closed"));
}

fn stops_itself() {
    let outcome = trial("stop", &within(1000));
    assert!(matches!(outcome.verdict, Verdict::TimedOut { .. }), "{outcome}");
}

fn grandchild() {
    let start = Instant::now();
    let outcome = trial("grandchild, then done", &patient());
    assert!(outcome.verdict.passed(), "{outcome}");
    assert_group_is_gone(&outcome);

    let outcome = trial("grandchild, then hang", &within(2000));
    assert!(matches!(outcome.verdict, Verdict::TimedOut { .. }), "{outcome}");
    assert_group_is_gone(&outcome);
    assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
}

/// Nothing of the group runs. A killed grandchild may still be a zombie until the first process of the system collects it.
fn assert_group_is_gone(outcome: &Outcome) {
    let group = outcome.records[0].as_i64().expect("a process id") as libc::pid_t;
    #[cfg(target_os = "linux")]
    let gone = || !stats().any(|stat| state(&stat) != "Z" && field(&stat, GROUP) == group);
    #[cfg(not(target_os = "linux"))]
    // SAFETY: signal 0 asks whether the group exists and does nothing.
    let gone = || unsafe { libc::kill(-group, 0) != 0 };
    wait_until("its process group is gone", gone);
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(5), "not so: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn no_core_file() {
    assert_eq!(trial("limits", &patient()).records, [true]);
}

fn helpers() {
    for path in ["/bin/true", "/usr/bin/true"].into_iter().filter(|path| std::fs::exists(path).unwrap_or(false)) {
        let outcome = trial("pass", &helper(path));
        assert_garbled(&outcome);
        assert!(outcome.to_string().contains("hook"), "{outcome}");
    }
    let own = std::env::current_exe().expect("a path");
    let outcome = trial("pass", &helper(own.to_str().expect("UTF-8")));
    assert!(outcome.verdict.passed(), "{outcome}");
}

/// The other checks start children of this process at the same time, so this one counts in a process of its own.
#[cfg(target_os = "linux")]
fn forty_trials() {
    run_as("count");
}

/// As some programs do that embed us. Nobody then learns how a child ended, so nothing passes.
#[cfg(target_os = "linux")]
fn ignored_children() {
    run_as("ignore");
}

#[cfg(target_os = "linux")]
fn run_as(role: &str) {
    let own = std::env::current_exe().expect("a path");
    let status = std::process::Command::new(own).env(ROLE, role).status();
    assert!(status.expect("a second copy of this program").success());
}

#[cfg(target_os = "linux")]
fn dies_with_parent() {
    let own = std::env::current_exe().expect("a path");
    let file = std::env::temp_dir().join(format!("impasto-trial-test-{}", std::process::id()));
    let mut parent = std::process::Command::new(own)
        .env(ROLE, "die")
        .env(PID_FILE, &file)
        .spawn()
        .expect("a second copy of this program");
    let child = || std::fs::read_to_string(&file).ok()?.parse::<libc::pid_t>().ok();
    let start = Instant::now();
    while child().is_none() && start.elapsed() < Duration::from_secs(30) {
        thread::sleep(Duration::from_millis(5));
    }
    parent.kill().expect("it runs");
    parent.wait().expect("it ends");
    let child = child().expect("the child has started");
    std::fs::remove_file(&file).expect("the file is there");
    wait_until("the child died with its parent", || !is_alive(child));
}

#[cfg(target_os = "linux")]
const ROLE: &str = "TRIAL_TEST_ROLE";
#[cfg(target_os = "linux")]
const PID_FILE: &str = "TRIAL_TEST_PID_FILE";

/// The part of a parent in a process of its own.
#[cfg(target_os = "linux")]
pub fn be_a_parent_if_asked() {
    match std::env::var(ROLE).as_deref() {
        Ok("die") => {
            trial("outlive the parent", &patient());
        }
        Ok("ignore") => {
            // SAFETY: no handler is installed.
            unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
            let outcome = trial("pass", &patient());
            assert_garbled(&outcome);
            assert_eq!(outcome.records.len(), 2);
            assert_group_is_gone(&trial("grandchild, then hang", &within(500)));
        }
        Ok("count") => {
            trial("pass", &patient());
            let before = (descriptors(), children());
            for round in 0..10 {
                for name in ["pass", "segv", "fail"] {
                    trial(name, &patient());
                }
                let last = if round % 2 == 0 { "hang" } else { "grandchild, then hang" };
                trial(last, &within(100));
            }
            assert_eq!((descriptors(), children()), before);
            assert_eq!(before.1, 0);
        }
        _ => return,
    }
    std::process::exit(0);
}

#[cfg(target_os = "linux")]
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

/// Children of this process, zombies too.
#[cfg(target_os = "linux")]
fn children() -> usize {
    let own = std::process::id().cast_signed();
    stats().filter(|stat| field(stat, PARENT) == own).count()
}

/// Not gone and not a zombie.
#[cfg(target_os = "linux")]
fn is_alive(process: libc::pid_t) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| state(&stat) != "Z")
}

/// `/proc/*/stat` of every process.
#[cfg(target_os = "linux")]
fn stats() -> impl Iterator<Item = String> {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok())
}

#[cfg(target_os = "linux")]
const PARENT: usize = 1;
#[cfg(target_os = "linux")]
const GROUP: usize = 2;

/// The fields after the name, which may contain anything: state, parent, group, ...
#[cfg(target_os = "linux")]
fn fields(stat: &str) -> impl Iterator<Item = &str> {
    let rest = stat.rsplit(')').next().unwrap_or_default();
    rest.split_whitespace()
}

#[cfg(target_os = "linux")]
fn state(stat: &str) -> &str {
    fields(stat).next().unwrap_or_default()
}

#[cfg(target_os = "linux")]
fn field(stat: &str, number: usize) -> libc::pid_t {
    let field = fields(stat).nth(number).expect("a field");
    field.parse().expect("a number")
}
