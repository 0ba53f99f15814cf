//! Trials with a real child: whatever it does, we live, we know what happened, and nothing is left behind.

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use impasto_device::{Outcome, Trial, TrialOptions, TrialReport, Verdict, hook, trial};
use libtest_mimic::{Arguments, Failed};
use serde_json::json;

#[cfg(unix)]
#[path = "trial/unix.rs"]
mod unix;
#[cfg(windows)]
#[path = "trial/windows.rs"]
mod windows;

const TRIALS: &[Trial] = &[
    trial_named("pass", pass),
    trial_named("fail", |report| {
        report.stage("compare");
        Err("row 3 is wrong".into())
    }),
    trial_named("panic", |report| {
        report.stage("index");
        panic!("index {} of {}", 7, 3)
    }),
    trial_named("abort", |report| {
        report.stage("before abort");
        std::process::abort()
    }),
    trial_named("hang", |report| {
        report.stage("wait");
        loop {
            thread::sleep(Duration::from_secs(1));
        }
    }),
    trial_named("exit 0", |report| {
        report.stage("enumerate");
        std::process::exit(0)
    }),
    trial_named("exit 3", |_| std::process::exit(3)),
    trial_named("many records", |report| {
        for number in 0..300 {
            report.record(&number);
        }
        Ok(())
    }),
    trial_named("argument", |report| {
        let argument = report.argument().to_owned();
        report.record(&argument);
        Err(report.could_not_load("it is not installed"))
    }),
    trial_named("exit 254", |_| std::process::exit(254)),
    trial_named("flood the report", |report| {
        loop {
            report.record(&"again and again");
        }
    }),
    trial_named("flood stdout", |report| {
        report.stage("flood");
        loop {
            println!("a driver that talks");
        }
    }),
    trial_named("talk on stdout", |report| {
        println!("{{\"version\":1}} a driver that talks");
        report.record(&1);
        print!("without an end of line");
        Ok(())
    }),
    trial_named("bad record", |report| {
        let keys_are_no_text = std::collections::BTreeMap::from([((1, 2), 3)]);
        report.record(&keys_are_no_text);
        Ok(())
    }),
    trial_named("environment", |report| {
        let private =
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("IMPASTO_TRIAL")).count();
        report.record(&private);
        report.record(&std::env::var("TRIAL_TEST_SET").ok());
        report.record(&std::env::var("TRIAL_TEST_REMOVED").ok());
        Ok(())
    }),
    trial_named("nested", |report| {
        report.record(&trial("pass", &TrialOptions::default()).to_string());
        Ok(())
    }),
];

const fn trial_named(name: &'static str, run: fn(&mut TrialReport) -> Result<(), String>) -> Trial {
    Trial { name, run }
}

fn pass(report: &mut TrialReport) -> Result<(), String> {
    report.stage("first");
    report.record(&json!({ "cores": 2, "name": "é\n" }));
    report.stage("second");
    report.record(&[1.5, -2.0]);
    Ok(())
}

const CHECKS: &[(&str, fn())] = &[
    ("a_good_trial_passes_with_its_records", passes),
    ("three_hundred_records_are_three_hundred", many_records),
    ("an_argument_arrives_and_what_is_missing_is_said", argument),
    ("a_failed_trial_gives_its_reason", fails),
    ("a_panic_is_a_failure_with_its_message", panics),
    ("a_crash_names_its_stage", aborts),
    ("a_hang_ends_at_the_deadline", hangs),
    ("a_deadline_of_nothing_or_for_ever_is_taken", odd_deadlines),
    ("leaving_early_never_passes", leaves_early),
    ("endless_reports_are_cut_off", floods_the_report),
    ("endless_output_ends_at_the_deadline", floods_stdout),
    ("what_a_driver_prints_does_not_disturb", talks),
    ("a_record_that_cannot_be_json_fails", bad_record),
    ("an_unknown_trial_could_not_load", unknown),
    ("the_environment_is_as_asked_for", environment),
    ("a_trial_starts_no_trial", nested),
    ("a_helper_that_is_missing_is_said", missing_helper),
    ("many_threads_at_once", many_threads),
];

fn main() -> ExitCode {
    let trials: Vec<Trial> = TRIALS.to_vec();
    #[cfg(unix)]
    let trials = [&trials, unix::TRIALS].concat();
    #[cfg(windows)]
    let trials = [&trials, windows::TRIALS].concat();
    hook(&trials);
    #[cfg(windows)]
    windows::sleep_if_asked();
    #[cfg(target_os = "linux")]
    unix::be_a_parent_if_asked();

    let arguments = Arguments::from_args();
    let checks = CHECKS.iter();
    #[cfg(unix)]
    let checks = checks.chain(unix::CHECKS);
    #[cfg(windows)]
    let checks = checks.chain(windows::CHECKS);
    let tests = checks.map(|&(name, check)| {
        libtest_mimic::Trial::test(name, move || -> Result<(), Failed> {
            check();
            Ok(())
        })
    });
    let conclusion = libtest_mimic::run(&arguments, tests.collect());
    if !arguments.list {
        println!("{} passed, {} failed", conclusion.num_passed, conclusion.num_failed);
    }
    conclusion.exit_code()
}

/// A deadline that only a broken machine reaches.
fn patient() -> TrialOptions {
    TrialOptions { deadline: Duration::from_secs(60), ..TrialOptions::default() }
}

fn within(milliseconds: u64) -> TrialOptions {
    TrialOptions { deadline: Duration::from_millis(milliseconds), ..TrialOptions::default() }
}

fn helper(path: &str) -> TrialOptions {
    TrialOptions { helper: Some(PathBuf::from(path)), ..patient() }
}

#[track_caller]
fn assert_garbled(outcome: &Outcome) {
    assert!(matches!(outcome.verdict, Verdict::Garbled { .. }), "{outcome}");
}

fn passes() {
    let outcome = trial("pass", &patient());
    assert!(outcome.verdict.passed(), "{outcome}: {}", outcome.stderr_tail);
    assert_eq!(outcome.stage.as_deref(), Some("second"));
    assert_eq!(outcome.records, [json!({ "cores": 2, "name": "é\n" }), json!([1.5, -2.0])]);
    assert_eq!(outcome.to_string(), "passed");
}

fn many_records() {
    let outcome = trial("many records", &patient());
    assert!(outcome.verdict.passed(), "{outcome}");
    assert_eq!(outcome.records.len(), 300);
}

fn argument() {
    let options = TrialOptions { argument: "a=1\n\"é\"".into(), ..patient() };
    let outcome = trial("argument", &options);
    assert_eq!(outcome.records, ["a=1\n\"é\""]);
    assert_eq!(outcome.to_string(), "could not load: it is not installed");
}

fn fails() {
    let outcome = trial("fail", &patient());
    assert_eq!(outcome.to_string(), "failed at stage \"compare\": row 3 is wrong");
}

fn panics() {
    // A backtrace would push the message out of the tail.
    let options = TrialOptions { env: vec![("RUST_BACKTRACE".into(), None)], ..patient() };
    let outcome = trial("panic", &options);
    assert_eq!(outcome.to_string(), "failed at stage \"index\": it panicked: index 7 of 3");
    let tail = &outcome.stderr_tail;
    assert!(tail.contains("index 7 of 3"), "{tail}");
}

fn aborts() {
    let outcome = trial("abort", &patient());
    assert!(matches!(outcome.verdict, Verdict::Crashed { .. }), "{outcome}");
    assert_eq!(outcome.stage.as_deref(), Some("before abort"));
}

fn hangs() {
    let start = Instant::now();
    let outcome = trial("hang", &within(300));
    let after = Duration::from_millis(300);
    assert_eq!(outcome.verdict, Verdict::TimedOut { after });
    assert!(outcome.elapsed >= after);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

fn odd_deadlines() {
    assert!(matches!(trial("hang", &within(0)).verdict, Verdict::TimedOut { .. }));
    let options = TrialOptions { deadline: Duration::MAX, max_output: usize::MAX, ..TrialOptions::default() };
    assert_eq!(trial("pass", &options).verdict, Verdict::Passed);
}

fn leaves_early() {
    let outcome = trial("exit 0", &patient());
    assert_garbled(&outcome);
    assert_eq!(outcome.stage.as_deref(), Some("enumerate"));
    let crashed = Verdict::Crashed { signal: None, code: Some(3) };
    assert_eq!(trial("exit 3", &patient()).verdict, crashed);
    let outcome = trial("exit 254", &patient());
    assert_eq!(outcome.verdict, Verdict::CouldNotLoad { code: 254, reason: None });
}

fn floods_the_report() {
    let options = TrialOptions { max_output: 10_000, ..patient() };
    let outcome = trial("flood the report", &options);
    assert_garbled(&outcome);
    assert!(outcome.records.len() < 10_000 / 15);
    assert!(outcome.to_string().contains("more than 10000 bytes"), "{outcome}");
    assert_garbled(&trial("flood the report", &patient()));
}

fn floods_stdout() {
    let outcome = trial("flood stdout", &within(2000));
    assert!(matches!(outcome.verdict, Verdict::TimedOut { .. }), "{outcome}");
    assert!(outcome.stderr_tail.len() <= 2048);
    assert!(outcome.stderr_tail.contains("a driver that talks"));
}

fn talks() {
    let outcome = trial("talk on stdout", &patient());
    assert_eq!(outcome.verdict, Verdict::Passed);
    assert_eq!(outcome.records, [1]);
    assert!(outcome.stderr_tail.contains("a driver that talks"));
}

fn bad_record() {
    let outcome = trial("bad record", &patient());
    assert!(matches!(outcome.verdict, Verdict::Failed { .. }), "{outcome}");
}

fn unknown() {
    for name in ["nobody", "", "pass "] {
        let outcome = trial(name, &patient());
        assert_eq!(outcome.verdict, Verdict::CouldNotLoad { code: 254, reason: None });
        assert!(outcome.stderr_tail.contains("no trial named"), "{}", outcome.stderr_tail);
    }
}

fn environment() {
    let options = TrialOptions {
        env: vec![
            ("TRIAL_TEST_REMOVED".into(), Some("there".into())),
            ("TRIAL_TEST_SET".into(), Some("new".into())),
            ("TRIAL_TEST_REMOVED".into(), None),
            ("IMPASTO_TRIAL".into(), Some("fail".into())),
        ],
        ..patient()
    };
    let outcome = trial("environment", &options);
    assert!(outcome.verdict.passed(), "{outcome}");
    assert_eq!(outcome.records, [json!(0), json!("new"), json!(null)]);
}

fn nested() {
    let outcome = trial("nested", &patient());
    assert!(outcome.verdict.passed(), "{outcome}");
    assert_eq!(outcome.records, [Verdict::NoHook.to_string()]);
}

fn missing_helper() {
    let outcome = trial("pass", &helper("/nowhere/at/all"));
    assert!(matches!(outcome.verdict, Verdict::SpawnFailed { .. }), "{outcome}");
    assert!(outcome.to_string().contains("/nowhere/at/all"), "{outcome}");
}

fn many_threads() {
    thread::scope(|scope| {
        for number in 0..8 {
            scope.spawn(move || {
                for _ in 0..5 {
                    match number % 4 {
                        0 => assert!(trial("pass", &patient()).verdict.passed()),
                        1 => {
                            assert_eq!(trial("fail", &patient()).stage.as_deref(), Some("compare"))
                        }
                        2 => assert!(matches!(trial("abort", &patient()).verdict, Verdict::Crashed { .. })),
                        _ => assert!(matches!(trial("hang", &within(50)).verdict, Verdict::TimedOut { .. })),
                    }
                }
            });
        }
    });
}
