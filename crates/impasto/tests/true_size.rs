//! Models of their true size. What a user would lose: to know at once whether a run fits, and to run one in little memory.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use impasto_testkit::model::Small;

/// The program with a home of its own.
fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_impasto"));
    command.args(args).current_dir(folder).env("HOME", folder).env("XDG_CACHE_HOME", folder.join("cache"));
    command.env_remove("XDG_CONFIG_HOME").env_remove("IMPASTO_CPU");
    command
}

/// The most of a kind of memory that a process had, as `/proc` shows it, in bytes.
fn most(child: &mut std::process::Child, kind: &str) -> u64 {
    let path = format!("/proc/{}/status", child.id());
    let mut most = 0;
    while child.try_wait().expect("it can be waited for").is_none() {
        let status = std::fs::read_to_string(&path).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(':'));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        most = most.max(kib.unwrap_or(0) << 10);
        std::thread::sleep(Duration::from_millis(5));
    }
    most
}

#[test]
fn a_plan_reads_headers_only_and_is_soon_there() {
    let folder = tempfile::tempdir().expect("a folder");
    Small::true_sdxl().write_large_folder(&folder.path().join("sdxl"), false);
    let (begun, device) = (Instant::now(), "vulkan0:memory=8GiB,max-buffer=1GiB");
    let planned =
        command(folder.path(), &["plan", "-m", "sdxl", "--json", "--device", device]).output().expect("it starts");
    let said = String::from_utf8_lossy(&planned.stderr).into_owned();
    let plan: serde_json::Value = serde_json::from_slice(&planned.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    println!("for 8 GiB: {:.2} s", begun.elapsed().as_secs_f64());
    let modules = plan["modules"].as_array().expect("modules");
    assert_eq!(
        modules.iter().map(|m| m["module"].as_str().expect("a name")).collect::<Vec<_>>(),
        ["te", "te", "diffusion", "vae"]
    );
    // 2.6 thousand million parameters in halves.
    let weights = modules[2]["weight_bytes"].as_u64().expect("bytes");
    assert!((5.0e9..5.3e9).contains(&(weights as f64)), "{weights}");
    assert!(modules[2]["arena_bytes"].as_u64() > Some(100 << 20));

    // The same here, against a survey that asks every driver.
    let begun = Instant::now();
    let fresh = command(folder.path(), &["devices", "--fresh", "--json"]).output().expect("it starts");
    let asked = begun.elapsed().as_secs_f64();
    assert!(fresh.status.success());
    let begun = Instant::now();
    let mut child =
        command(folder.path(), &["plan", "-m", "sdxl", "--json"]).stdout(Stdio::null()).spawn().expect("it starts");
    let resident = most(&mut child, "VmHWM");
    let here = begun.elapsed().as_secs_f64();
    println!("plan of SDXL: {here:.2} s in {} MB; devices --fresh: {asked:.2} s", resident / 1_000_000);
    assert!(resident < 400 << 20, "{resident} bytes: more than headers was read");
}

/// By hand, since it takes minutes and gigabytes: `IMPASTO_TRUE_SIZE=1`.
#[test]
fn weights_on_disk_leave_memory_free() {
    if std::env::var_os("IMPASTO_TRUE_SIZE").is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    Small::true_sd15().write_large_folder(&folder.path().join("sd15"), true);
    let run = ["-m", "sd15", "-p", "a house", "--steps", "2", "-W", "256", "-H", "256", "--backend", "cpu"];
    for home in ["cpu", "disk"] {
        let args = [&run[..], &["--params-backend", home]].concat();
        let planned = command(folder.path(), &[&["plan", "--json"][..], &args].concat()).output().expect("it starts");
        let plan: serde_json::Value = serde_json::from_slice(&planned.stdout).expect("it is JSON");
        let bytes =
            |m: &serde_json::Value| m["weight_bytes"].as_u64().zip(m["arena_bytes"].as_u64()).map(|(a, b)| a + b);
        let largest =
            plan["modules"].as_array().expect("modules").iter().filter_map(bytes).max().expect("there is one");
        let mut child = command(folder.path(), &args).stdout(Stdio::null()).spawn().expect("it starts");
        let most = most(&mut child, "RssAnon");
        println!("{home}: RssAnon {} MB, the largest module {} MB", most / 1_000_000, largest / 1_000_000);
        if home == "disk" {
            assert!(most < largest + 200_000_000, "{most} bytes, the largest module has {largest}");
        }
    }
}
