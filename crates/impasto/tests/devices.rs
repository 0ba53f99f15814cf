//! The command beside drivers that go wrong: whatever they do, the list is shown and the picture is made.
#![cfg(target_os = "linux")]

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use crate::world::{World, assert_painted, text};
use impasto_testkit::drivers::{FAULTS, LIES, drivers, lavapipe};

#[test]
fn the_list_shows_what_is_healthy_and_explains_the_rest() {
    let world = World::new("crash:create-instance", Some(""));
    let out = world.run(&["devices", "--timeout", "10"]);
    let shown = text(&out.stdout);
    assert!(out.status.success(), "{}", text(&out.stderr));
    for words in [
        "llvmpipe",
        "software rasteriser",
        "cuda0",
        "discrete GPU: Fake GPU 0",
        "7.0 GiB / 8.0 GiB",
        "usable",
        "which takes 300 MiB",
    ] {
        assert!(shown.contains(words), "{words} in {shown}");
    }
    let wrong: Vec<&str> = shown.lines().filter(|line| line.starts_with("! ")).collect();
    assert_eq!(wrong.len(), 1, "{shown}");
    assert!(wrong[0].contains("signal 11 in create-instance") && wrong[0].contains("libfake_vulkan.so"), "{shown}");

    let again = world.run(&["--list-devices", "--json", "--fresh", "--timeout", "10"]);
    let json: serde_json::Value = serde_json::from_slice(&again.stdout).expect("it is JSON");
    assert_eq!(json["free_memory"]["cuda0"], 7_u64 << 30);
    assert_eq!(json["context_memory"]["cuda0"], 300_u64 << 20);
    assert!(json["survey"]["devices"].as_array().is_some_and(|devices| devices.len() == 3), "{json:#}");
    let forgotten = text(&world.run(&["devices", "--forget"]).stdout);
    assert!(forgotten.contains("files removed"), "{forgotten}");
    assert_eq!(text(&world.run(&["devices", "--forget"]).stdout), "nothing was remembered\n");
}

#[test]
fn a_report_holds_everything_but_names() {
    let world = World::new("crash:dispatch", None);
    let file = world.path("report.json");
    let out = world.run(&["devices", "--report", &file]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let report = std::fs::read_to_string(&file).expect("the report");
    let parsed: serde_json::Value = serde_json::from_str(&report).expect("it is JSON");
    assert!(report.contains("dispatch") && parsed["system"]["kernel"].is_string());
    assert!(parsed["environment"]["VK_DRIVER_FILES"].is_string() && parsed["environment"].get("HOME").is_none());
    assert!(!report.contains(&world.path("home")), "{report}");
    let cannot = world.run(&["devices", "--report", "/proc/nowhere/report.json"]);
    assert_eq!(cannot.status.code(), Some(1));
    assert!(text(&cannot.stderr).contains("could not be written"));
}

/// Paints beside every fault and every lie of a driver: whatever happens, there is a picture.
fn assert_always_painted(every: usize, world: impl Fn(&str) -> World) {
    let faults = FAULTS.iter().map(|(fault, stage, _)| format!("{fault}:{stage}"));
    let all = faults.chain(LIES.iter().map(|lie| lie.to_string()));
    // Other ones in each run.
    let first = RandomState::new().hash_one(0) as usize % every;
    for fault in all.skip(first).step_by(every) {
        let world = world(&fault);
        let begun = Instant::now();
        let out = world.paint("auto");
        assert!(out.status.success(), "{fault}: {}", text(&out.stderr));
        assert_painted(&world, &out);
        assert!(begun.elapsed() < Duration::from_secs(60), "{fault}: {:?}", begun.elapsed());
    }
}

impasto_testkit::trial! {
    fn every_fault_of_a_vulkan_driver_leaves_the_picture(every: usize = 6, 1) {
        assert_always_painted(every, |fault| World::new(fault, None));
    }
}

impasto_testkit::trial! {
    fn every_fault_of_the_cuda_driver_leaves_the_picture(every: usize = 6, 1) {
        assert_always_painted(every, |fault| World::new("", Some(fault)));
    }
}

#[test]
fn manifests_that_are_stale_or_no_json_leave_the_picture() {
    let mut world = World::new("", None);
    let files = ["stale_icd.json", "garbled_icd.json"].map(|name| drivers().folder.join(name).display().to_string());
    world.env.push(("VK_DRIVER_FILES", format!("{}:{}", files.join(":"), lavapipe().display())));
    let out = world.paint("auto");
    assert_painted(&world, &out);
}

#[test]
fn what_went_wrong_is_said_in_one_line() {
    let line = "vulkan: crashed during device probe (signal 11 in create-instance, driver libfake_vulkan.so); trying next backend";
    for (vulkan, cuda, says) in [
        ("crash:create-instance", None, line),
        ("crash:load-driver", None, "signal 11 in load-driver"),
        ("crash:dispatch", None, "signal 11 in dispatch"),
        ("abort:enumerate", None, "signal 6 in enumerate"),
        ("throw:create-instance", None, "signal 6 in create-instance"),
        ("exit0:enumerate", None, "gave no usable answer"),
        ("garbage:enumerate", None, "gave no usable answer"),
        ("hang:create-instance", None, "no answer from the device probe yet"),
        ("fork:enumerate", None, "no answer from the device probe yet"),
        ("endless:create-instance", None, "no answer from the device probe yet"),
        (
            "",
            Some("crash:create-instance"),
            "cuda: crashed during device probe (signal 11 in create-instance, driver libcuda.so.1)",
        ),
    ] {
        let world = World::new(vulkan, cuda);
        let begun = Instant::now();
        let out = world.paint("auto");
        assert_painted(&world, &out);
        let said = text(&out.stderr);
        let lines: Vec<&str> = said.lines().filter(|line| line.contains(says)).collect();
        assert_eq!(lines.len(), 1, "{vulkan} {cuda:?}: {says} in {said}");
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    }
}

#[test]
fn disable_starts_no_child_and_an_api_without_a_gpu_of_use_is_an_error() {
    let world = World::new("", Some("kepler"));
    let out = world.paint("disable");
    assert_painted(&world, &out);
    assert!(!world.touched(), "no driver was opened");
    assert!(!text(&out.stderr).contains("gpu"), "{}", text(&out.stderr));
    for (api, words) in
        [("vulkan", "Fake GPU 0: it speaks Vulkan"), ("cuda", "this build has kernels from 7.5 (Turing) on")]
    {
        let out = world.paint(api);
        assert_eq!(out.status.code(), Some(1));
        let said = text(&out.stderr);
        assert!(said.contains(&format!("--gpu {api}: ")) && said.contains(words), "{said}");
    }
    assert_eq!(world.paint("opencl").status.code(), Some(2));
}

#[test]
fn a_home_that_cannot_be_written_is_no_error() {
    let mut world = World::new("", None);
    world.env.push(("XDG_CACHE_HOME", "/proc/nowhere".into()));
    let out = world.paint("auto");
    assert_painted(&world, &out);
}
