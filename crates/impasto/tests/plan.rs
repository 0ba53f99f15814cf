//! `impasto plan` as a user meets it: the table, JSON, exit codes, and errors that point at what is wrong. The model inside the program is planned.

use crate::world::text;
use std::path::Path;
use std::process::{Command, Output};

fn run(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_impasto"));
    command.args(args).current_dir(folder).env("HOME", folder).env_remove("XDG_CONFIG_HOME").env_remove("IMPASTO_CPU");
    command.env("XDG_CACHE_HOME", folder.join("cache")).output().expect("the program starts")
}

fn planned(folder: &Path, args: &[&str]) -> serde_json::Value {
    let out = run(folder, &[&["plan", "--json"], args].concat());
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {}", text(&out.stderr)))
}

const CARD: &str = "vulkan0:memory=8GiB,max-buffer=1GiB";

#[test]
fn the_table_says_where_how_much_and_how_long() {
    let folder = tempfile::tempdir().expect("a folder");
    let out =
        run(folder.path(), &["plan", "--device", CARD, "--backend", "vulkan0,te=cpu", "--params-backend", "vae=disk"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let shown = text(&out.stdout);
    let row = |begin: &str| {
        let line = shown.lines().find(|line| line.starts_with(begin)).unwrap_or_else(|| panic!("{begin} in {shown}"));
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("te")[1..3], ["cpu", "cpu"]);
    assert_eq!(row("diffusion")[1..3], ["vulkan0", "vulkan0"]);
    assert_eq!(row("vae")[1..3], ["vulkan0", "disk"]);
    assert!(row("vae")[5].ends_with(" / 1.0 GiB") && row("vae")[6] == "whole", "{shown}");
    assert!(shown.contains("peak on vulkan0: ") && shown.contains(" of 8.0 GiB"), "{shown}");
    assert!(shown.contains("estimated, until runs have measured the devices"), "{shown}");
    assert!(!folder.path().join("output.png").exists(), "nothing is painted");
}

#[test]
fn verify_changes_no_plan() {
    let folder = tempfile::tempdir().expect("a folder");
    let args = ["--device", CARD, "--backend", "vulkan0,te=cpu"];
    let [verified, plain] = [&["--verify"][..], &[]].map(|more| planned(folder.path(), &[&args[..], more].concat()));
    assert!(verified["modules"].is_array());
    assert_eq!(verified["modules"], plain["modules"]);
}

#[test]
fn what_does_not_fit_ends_with_1_and_says_what_would_have_to_change() {
    let folder = tempfile::tempdir().expect("a folder");
    let small = ["--device", "vulkan0:memory=64MiB,kind=integrated", "-W", "1024", "-H", "1024"];
    let whole = "--no-vae-tiling-fallback";
    let out = run(folder.path(), &[&["plan", "--backend", "vulkan0", whole], &small[..]].concat());
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stdout));
    let shown = text(&out.stdout);
    assert!(shown.contains("vae does not fit: vae on vulkan0: "), "{shown}");
    assert!(shown.contains("try --backend vae=cpu, or a smaller picture"), "{shown}");
    let tiled = planned(folder.path(), &[&["--backend", "vulkan0"], &small[..]].concat());
    assert_eq!(tiled["modules"][2]["split_mode"], "tiled", "{tiled:#}");
    // With memory of its own beside the host's, bands rest there.
    let card = ["--device", "vulkan0:memory=64MiB", "-W", "1024", "-H", "1024", "--backend", "vulkan0", whole];
    let rests = planned(folder.path(), &card);
    assert_eq!(rests["modules"][2]["split_mode"], "banded", "{rests:#}");
    assert!(rests["modules"][2]["host_bytes"].as_u64() > Some(0), "{rests:#}");
    // Where the choice is ours, it is made so that it fits.
    let places = planned(folder.path(), &[&[whole], &small[..]].concat());
    let on = |i: usize| places["modules"][i]["computes_on"].as_str().map(str::to_owned);
    assert_eq!([on(1), on(2)], [Some("vulkan0".into()), Some("cpu".into())], "{places:#}");
}

#[test]
fn a_budget_streams_what_has_no_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = planned(folder.path(), &["--device", CARD, "--backend", "vulkan0"]);
    let less =
        planned(folder.path(), &["--device", CARD, "--backend", "vulkan0,te=cpu", "--max-vram", "vulkan0=25MiB"]);
    let number = |plan: &serde_json::Value, name: &str| plan["modules"][1][name].as_u64().expect("a number");
    assert_eq!(number(&whole, "streamed_bytes"), 0);
    assert_eq!(number(&less, "weight_bytes"), number(&whole, "weight_bytes"));
    let peak = less["peaks"].as_array().and_then(|all| all.iter().find(|p| p["device"] == "vulkan0")).expect("a peak");
    assert!(peak["bytes"].as_u64() <= Some(25 << 20) && peak["limit"].as_u64() == Some(25 << 20), "{peak}");
    // Where weights stay on the device is as asked for, or host memory.
    let small =
        planned(folder.path(), &["--device", CARD, "--backend", "vulkan0,te=cpu,vae=cpu", "--max-vram", "12MiB"]);
    assert!(number(&small, "streamed_bytes") > 0, "{small:#}");
    assert_eq!(small["modules"][1]["weights_on"], "cpu");
}

/// What a process has of memory that is not of files, at most, while it runs.
#[cfg(target_os = "linux")]
fn most_memory(mut child: std::process::Child) -> u64 {
    let mut most = 0;
    while child.try_wait().expect("it is ours").is_none() {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let now =
            status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB")?.parse().ok());
        most = most.max(now.unwrap_or(0) << 10);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    most
}

/// The plan speaks of the whole process: a control group of that size is enough.
#[cfg(target_os = "linux")]
#[test]
fn the_program_stays_within_its_plan() {
    let folder = tempfile::tempdir().expect("a folder");
    for size in ["256", "640"] {
        let args = ["a red house", "-W", size, "-H", size, "--steps", "1", "--backend", "cpu"];
        let plan = planned(folder.path(), &args);
        let peak = &plan["peaks"][0];
        let [planned, own] = ["bytes", "process"].map(|name| peak[name].as_u64().expect("a number"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_impasto"));
        command.args(args).current_dir(folder.path()).env("HOME", folder.path());
        let most = most_memory(command.stderr(std::process::Stdio::null()).spawn().expect("the program starts"));
        assert!(most <= planned, "{size}: {most} bytes were taken, {planned} planned");
        // And it is no number that holds because it is large.
        assert!(most + (64 << 20) > planned && own < 160 << 20, "{size}: {most} of {planned}, {own} for the program");
    }
}

#[test]
fn bad_arguments_end_with_2_and_point_at_the_place() {
    let folder = tempfile::tempdir().expect("a folder");
    for (args, says) in [
        (&["--backend", "te=cpu,unt=cpu"][..], "  te=cpu,unt=cpu\n         ^^^"),
        (&["--backend", "diffusion=cuda0"], "there is no such device here"),
        (&["--params-backend", "tape"], "  tape\n  ^^^^"),
        (&["--device", "vulkan0"], "its memory is missing"),
        (&["--device", "vulkan0:memory=8GiB,colour=red"], "'colour=red' is not understood"),
        (&["--max-vram", "much"], "is no amount of memory"),
        (&["--max-vram", "vulcan0=4"], "there is no such device"),
    ] {
        let out = run(folder.path(), &[&["plan"], args].concat());
        assert_eq!(out.status.code(), Some(2), "{args:?}: {}", text(&out.stderr));
        assert!(text(&out.stderr).contains(says), "{args:?}: {}", text(&out.stderr));
        assert!(out.stdout.is_empty(), "{args:?}");
    }
    let out =
        run(folder.path(), &["plan", "--device", CARD, "--backend", "cpu,controlnet=vulkan0", "--max-vram", "cuda7=4"]);
    assert_eq!(out.status.code(), Some(0));
    let said = text(&out.stderr);
    assert!(
        said.contains("warning: this model has no controlnet") && said.contains("warning: there is no cuda7 here"),
        "{said}"
    );
}

#[test]
fn explain_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = run(folder.path(), &["plan", "--device", CARD, "--backend", "te=cpu", "--explain"]);
    let said = text(&out.stderr);
    for line in [
        "te: cpu, as asked for",
        "diffusion: vulkan0 would take ",
        "(estimated by its class)",
        "vae: vulkan0, the soonest",
    ] {
        assert!(said.contains(line), "{line} in {said}");
    }
}
