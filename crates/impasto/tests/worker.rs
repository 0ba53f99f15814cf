//! Pictures from a driver that goes wrong in the middle, through the `impasto` command. What a user would lose: the picture.
//!
//! In CI a small model stands for the one inside the program, whose kernels a software device compiles for minutes.
//! `IMPASTO_ALL_DEATHS=1` takes that one, with 100 faults at random submissions and 50 signals at random moments.
#![cfg(target_os = "linux")]

use impasto_testkit::psnr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use impasto_testkit::model::Small;
use impasto_testkit::shim::{random, seed, shim};

fn all() -> bool {
    std::env::var_os("IMPASTO_ALL_DEATHS").is_some()
}

/// What all tests share: the model, the kernels that were compiled, and the picture as it should be.
struct Shared {
    /// What is this process's own in it.
    folder: PathBuf,
    expected: Vec<u8>,
    /// Submissions of one picture.
    submissions: u64,
}

/// At 32x32, far from what the model inside the program was made for, halves and floats paint different pictures.
fn side() -> &'static str {
    if all() { "64" } else { "32" }
}

const STEPS: &str = "4";

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Made by the first test that needs it, and gone with the last.
fn shared() -> Arc<Shared> {
    static MADE: Mutex<Weak<Shared>> = Mutex::new(Weak::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(shared) = made.upgrade() {
        return shared;
    }
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("worker");
    let folder = all.join(std::process::id().to_string());
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut shared = Shared { expected: vec![], submissions: 0, folder };
    let folder = &shared.folder;
    // Tests may be processes of their own: kernels are compiled once for all of them.
    let lock = std::fs::File::create(all.join("lock")).expect("a file");
    lock.lock().expect("a lock");
    Small::sd1().write_folder(&folder.join("model"));
    let (to, count) = (folder.join("expected.png"), folder.join("count"));
    let output = painting(folder, &to, &[]).env("SHIM_COUNT", &count).output().expect("it runs");
    assert!(output.status.success(), "{}", text(&output));
    let count = std::fs::read_to_string(count).expect("it counts its submissions").parse().expect("a number");
    (shared.expected, shared.submissions) = (pixels(&to), count);
    let shared = Arc::new(shared);
    *made = Arc::downgrade(&shared);
    shared
}

/// The command that paints on the shim.
fn painting(folder: &Path, to: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_impasto"));
    command.args(["-p", "a red circle", "--steps", STEPS, "--force", "--backend", "vulkan0", "-o"]).arg(to);
    command.args(["-W", side(), "-H", side()]).args(more);
    if !all() {
        command.arg("-m").arg(folder.join("model"));
    }
    command.env("XDG_CACHE_HOME", folder.with_file_name("cache")).env("XDG_CONFIG_HOME", folder.join("config"));
    command.env("VK_DRIVER_FILES", &shim().manifest).env("SHIM_REAL", &shim().real);
    command.env_remove("SHIM_FAULT").env_remove("SHIM_ONCE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn pixels(path: &Path) -> Vec<u8> {
    image::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).to_rgb8().into_raw()
}

/// The lines that tell of what went wrong.
fn notes(said: &str) -> String {
    said.lines().filter(|line| line.starts_with("note: ")).collect::<Vec<_>>().join("; ")
}

/// Processes that have this in their environment.
fn processes_with(mark: &Path) -> Vec<u32> {
    let mark = mark.as_os_str().as_encoded_bytes();
    let numbers = std::fs::read_dir("/proc").expect("Linux tells").flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has = |number: &u32| {
        let environment = std::fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|part| part == mark)
    };
    numbers.filter(|number| *number != std::process::id()).filter(has).collect()
}

fn no_orphans(mark: &Path) {
    let begun = Instant::now();
    while !processes_with(mark).is_empty() && begun.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(processes_with(mark), Vec::<u32>::new(), "processes are left behind");
}

/// Paints with a fault; `once` is whether only the first worker has it.
fn paint_with(fault: &str, once: bool, number: usize) -> (Vec<u8>, String) {
    let shared = shared();
    let (to, mark) = (shared.folder.join(format!("{number}.png")), shared.folder.join(format!("once-{number}")));
    let mut command = painting(&shared.folder, &to, &[]);
    command.env("SHIM_FAULT", fault).env("SHIM_MARK", &mark);
    if fault.starts_with("hang") {
        command.env("IMPASTO_WORKER_PATIENCE", "6");
    }
    if once {
        command.env("SHIM_ONCE", &mark);
    }
    let output = command.output().expect("it runs");
    let said = text(&output);
    assert!(output.status.success(), "{fault}: {:?}: {said}", output.status);
    no_orphans(&mark);
    let _ = std::fs::remove_file(mark);
    (pixels(&to), said)
}

/// What the note says that tells of a fault.
const FAULTS: [(&str, &str); 9] = [
    ("segv", "crashed with SIGSEGV"),
    ("abort", "crashed with SIGABRT"),
    ("exit", "exit code 0"),
    ("kill", "killed from outside"),
    ("hang", "did not end within"),
    ("lost", "the device is lost"),
    ("leak", "GB of memory"),
    ("garbage", "a code without further explanation"),
    ("nan", "numbers that are"),
];

impasto_testkit::trial! {
    fn a_driver_that_goes_wrong_costs_a_step_and_not_the_picture(rounds: usize = 2, FAULTS.len()) {
        let shared = shared();
        let mut state = seed();
        let rounds = if all() { 100 } else { rounds };
        let first = random(&mut state) as usize % FAULTS.len();
        for round in 0..rounds {
            let (name, words) = FAULTS[(first + round) % FAULTS.len()];
            // The first submission is that of the trial, in a process of its own, in which a fault is no news.
            let fault = format!("{name}:{}", 2 + random(&mut state) % (shared.submissions - 1));
            let begun = Instant::now();
            let (picture, said) = paint_with(&fault, true, round);
            let near = psnr(&picture, &shared.expected);
            println!("{round}/{rounds} {fault}: {near:.1} dB, {:.1} s, {}", begun.elapsed().as_secs_f64(), notes(&said));
            assert_eq!(said.matches("note: ").count(), 1, "{fault}: each costs one line: {said}");
            assert!(said.contains(words), "{fault}: {said}");
            match name {
                // Numbers that are none are computed again in 32-bit floats.
                "nan" => assert!(near >= 45.0, "{fault}: {near} dB: {said}"),
                _ => assert!(picture == shared.expected, "{fault}: {near} dB: {said}"),
            }
        }
    }
}

#[test]
fn a_driver_that_goes_wrong_again_and_again_leaves_the_rest_to_the_cpu() {
    let shared = shared();
    let mut state = seed();
    // Early enough that the fresh worker comes so far too.
    for (round, name) in ["segv", "garbage"].into_iter().enumerate() {
        let fault = format!("{name}:{}", 2 + random(&mut state) % 2);
        let (picture, said) = paint_with(&fault, false, 1000 + round);
        assert!(said.contains("on cpu"), "{fault}: {said}");
        let near = psnr(&picture, &shared.expected);
        assert!(near >= 45.0, "{fault}: {near} dB: {said}");
    }
}

/// The parent of a process.
fn parent_of(process: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}

/// The worker of a process, once it is there: the child of a supervisor, which is the process's own child.
fn worker_of(program: &Child) -> Option<u32> {
    let numbers = std::fs::read_dir("/proc").expect("Linux tells").flatten();
    let mut numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.find(|&number| {
        let is_worker = parent_of(number).and_then(parent_of) == Some(program.id());
        // Only a worker has memory that both reach; the children of the survey do not.
        let files = std::fs::read_dir(format!("/proc/{number}/fd")).into_iter().flatten().flatten();
        let shares = |path: PathBuf| path.to_string_lossy().contains("memfd:impasto");
        is_worker && files.into_iter().any(|file| std::fs::read_link(file.path()).is_ok_and(shares))
    })
}

fn send(signal: &str, process: u32) {
    // It may have ended by now.
    let _ = Command::new("sh").args(["-c", &format!("kill -{signal} {process}")]).stderr(Stdio::null()).status();
}

#[test]
fn a_worker_that_is_killed_at_any_moment_costs_no_picture() {
    let shared = shared();
    let mut state = seed();
    for round in 0..if all() { 50 } else { 2 } {
        let (to, mark) =
            (shared.folder.join(format!("killed-{round}.png")), shared.folder.join(format!("mark-{round}")));
        let running = painting(&shared.folder, &to, &[]).env("SHIM_MARK", &mark).spawn().expect("it runs");
        let begun = Instant::now();
        let worker = loop {
            assert!(begun.elapsed() < Duration::from_secs(60), "no worker was started");
            match worker_of(&running) {
                Some(worker) => break worker,
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let wait = Duration::from_millis(random(&mut state) % if all() { 4000 } else { 1000 });
        std::thread::sleep(wait);
        send("SEGV", worker);
        let output = running.wait_with_output().expect("it ends");
        let said = text(&output);
        assert!(output.status.success(), "after {wait:?}: {said}");
        println!("{round} after {wait:?}: {}", notes(&said));
        assert!(pixels(&to) == shared.expected, "after {wait:?}: {said}");
        no_orphans(&mark);
    }
}

#[test]
fn no_driver_is_in_the_parent_and_no_worker_outlives_it() {
    let shared = shared();
    let (to, mark) = (shared.folder.join("maps.png"), shared.folder.join("mark-maps"));
    let mut running = painting(&shared.folder, &to, &[]).env("SHIM_MARK", &mark).spawn().expect("it runs");
    let mut looked = 0;
    while running.try_wait().expect("it can be waited for").is_none() {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", running.id())).unwrap_or_default();
        let driver = maps.lines().find(|line| ["vulkan", "shim", "lvp", "LLVM"].iter().any(|name| line.contains(name)));
        assert_eq!(driver, None, "a driver is in the parent");
        looked += usize::from(!maps.is_empty());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(looked > 10, "it was looked at {looked} times");
    assert!(pixels(&to) == shared.expected);

    // Without isolation it is there: what was looked for can be seen.
    let mut command = painting(&shared.folder, &to, &["--isolate", "off"]);
    let mut running = command.env("SHIM_MARK", &mark).spawn().expect("it runs");
    let mut seen = false;
    while running.try_wait().expect("it can be waited for").is_none() {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", running.id())).unwrap_or_default();
        seen |= maps.contains("shim");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(seen && pixels(&to) == shared.expected, "the same picture in one process");

    // A parent that is killed takes its worker along.
    let mut running = painting(&shared.folder, &to, &[]).env("SHIM_MARK", &mark).spawn().expect("it runs");
    while worker_of(&running).is_none() {
        assert!(running.try_wait().expect("it can be waited for").is_none(), "it ended before its worker was seen");
        std::thread::sleep(Duration::from_millis(2));
    }
    running.kill().expect("it can be killed");
    running.wait().expect("it ends");
    no_orphans(&mark);
}
