//! What only a Windows child can do: exceptions, and processes in its job.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use impasto_device::{Trial, Verdict, trial};

use super::{patient, trial_named, within};

const SLEEPER: &str = "TRIAL_TEST_SLEEPER";

#[link(name = "kernel32")]
unsafe extern "system" {
    fn RaiseException(code: u32, flags: u32, count: u32, arguments: *const usize);
    fn OpenProcess(access: u32, inherit: i32, process: u32) -> *mut std::ffi::c_void;
    fn GetExitCodeProcess(process: *mut std::ffi::c_void, code: *mut u32) -> i32;
    fn CloseHandle(handle: *mut std::ffi::c_void) -> i32;
}

pub const TRIALS: &[Trial] = &[
    trial_named("access violation", |report| {
        report.stage("bad pointer");
        let nowhere = std::hint::black_box(64) as *const u64;
        // SAFETY: none. It is meant to die here.
        report.record(&unsafe { nowhere.read_volatile() });
        Ok(())
    }),
    trial_named("C++ exception", |report| {
        report.stage("throw");
        // SAFETY: no arguments are passed. It is meant to die here.
        unsafe { RaiseException(0xE06D_7363, 1, 0, std::ptr::null()) };
        Ok(())
    }),
    trial_named("grandchild, then hang", |report| {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let child = Command::new(own).env(SLEEPER, "1").spawn().map_err(|error| error.to_string())?;
        report.record(&child.id());
        loop {
            sleep(Duration::from_secs(1));
        }
    }),
];

pub const CHECKS: &[(&str, fn())] =
    &[("an_exception_is_a_crash_with_its_code", exceptions), ("a_grandchild_ends_with_its_job", grandchild)];

pub fn sleep_if_asked() {
    if std::env::var_os(SLEEPER).is_some() {
        sleep(Duration::from_secs(600));
        std::process::exit(0);
    }
}

fn exceptions() {
    for (name, code, stage) in
        [("access violation", 0xC000_0005_u32, "bad pointer"), ("C++ exception", 0xE06D_7363, "throw")]
    {
        let outcome = trial(name, &patient());
        assert_eq!(outcome.verdict, Verdict::Crashed { signal: None, code: Some(code.cast_signed()) }, "{name}");
        assert_eq!(outcome.stage.as_deref(), Some(stage));
    }
}

fn grandchild() {
    let outcome = trial("grandchild, then hang", &within(3000));
    assert!(matches!(outcome.verdict, Verdict::TimedOut { .. }), "{outcome}");
    let id = outcome.records[0].as_u64().expect("a process id") as u32;
    let begun = Instant::now();
    while runs(id) {
        assert!(begun.elapsed() < Duration::from_secs(5), "the grandchild still runs");
        sleep(Duration::from_millis(10));
    }
}

fn runs(id: u32) -> bool {
    let mut code = 0;
    // SAFETY: `code` is valid for writing; the handle is closed once and not used after that.
    unsafe {
        let process = OpenProcess(0x1000, 0, id);
        if process.is_null() {
            return false;
        }
        let known = GetExitCodeProcess(process, &mut code) != 0;
        CloseHandle(process);
        known && code == 259
    }
}
