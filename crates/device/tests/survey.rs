//! Surveys with fake drivers that go wrong in every way, each beside a healthy lavapipe: we live, we find what is healthy, we name
//! the culprit, and nothing is left running.

#[cfg(target_os = "linux")]
#[path = "survey/faults.rs"]
mod faults;
#[cfg(target_os = "linux")]
#[path = "survey/memory.rs"]
mod memory;
#[cfg(target_os = "linux")]
#[path = "survey/parent.rs"]
mod parent;

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("the fake drivers are built for Linux only");
}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    impasto_device::hook(&impasto_device::PROBES);
    parent::be_one_if_asked();

    let arguments = libtest_mimic::Arguments::from_args();
    let mut tests = faults::tests();
    tests.extend(memory::tests());
    let conclusion = libtest_mimic::run(&arguments, tests);
    conclusion.exit_code()
}

/// A test of its own name.
#[cfg(target_os = "linux")]
fn test(name: impl Into<String>, check: impl FnOnce() + Send + 'static) -> libtest_mimic::Trial {
    libtest_mimic::Trial::test(name, move || {
        check();
        Ok(())
    })
}
