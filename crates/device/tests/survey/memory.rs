//! What is remembered between runs: good verdicts, and crashes.

use std::path::Path;

use impasto_device::{Attempt, SurveyOptions};
use libtest_mimic::Trial;

use super::parent::{Scene, is_healthy};
use super::test;

pub fn tests() -> Vec<Trial> {
    vec![
        test("a_good_verdict_is_kept_and_a_changed_driver_is_asked_anew", kept),
        test("a_bad_or_empty_answer_is_not_kept", not_kept),
        test("a_cache_that_is_garbage_is_asked_anew", garbage),
        test("a_folder_that_cannot_be_written_is_a_warning", unwritable),
        test("a_driver_that_crashed_twice_is_left_alone", guarded),
        test("a_process_that_died_in_real_use_is_counted", died),
        test("many_processes_survey_at_once", at_once),
    ]
}

fn store(folder: &tempfile::TempDir) -> String {
    folder.path().join("cache").display().to_string()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn from_cache(scene: &Scene) -> bool {
    let seen = scene.survey();
    seen.assert_healthy_neighbours();
    let cached = seen.api("vulkan")["from_cache"] == true;
    assert_eq!(cached, seen.children("vulkan").is_empty());
    cached
}

fn kept() {
    let folder = folder();
    let manifest = folder.path().join("lvp.json");
    std::fs::copy(impasto_testkit::drivers::lavapipe(), &manifest).expect("a copy");
    let scene =
        Scene::new().with("SURVEY_STORE", store(&folder)).with("VK_DRIVER_FILES", manifest.display().to_string());
    assert!(!from_cache(&scene));
    assert!(from_cache(&scene));
    assert!(!from_cache(&scene.clone().with("SURVEY_FRESH", "1")));
    assert!(!from_cache(&scene.clone().with("VK_LOADER_DRIVERS_SELECT", "lvp*")), "a filter is part of the question");
    assert!(!from_cache(&scene), "the answer to the other question took its place");
    let text = std::fs::read_to_string(&manifest).expect("the manifest");
    std::fs::write(&manifest, text + "\n").expect("it can be written");
    assert!(!from_cache(&scene), "the manifest has changed");
    assert!(from_cache(&scene));
}

fn not_kept() {
    let folder = folder();
    for fault in ["crash:create-instance", "wrong", "lying"] {
        let scene = Scene::vulkan(fault).with("SURVEY_STORE", store(&folder)).with("SURVEY_ASKED_FOR", "1");
        assert!(!from_cache(&scene) && !from_cache(&scene), "{fault}");
    }
    let scene = Scene::cuda("none").with("SURVEY_STORE", store(&folder));
    assert_eq!(scene.survey().api("cuda")["from_cache"], false);
    assert_eq!(scene.survey().api("cuda")["from_cache"], false);
    let now = scene.with("FAKE_CUDA", "").survey();
    assert!(is_healthy(now.labelled("Fake GPU").expect("it is there again")));
}

fn garbage() {
    let folder = folder();
    let scene = Scene::new().with("SURVEY_STORE", store(&folder));
    assert!(!from_cache(&scene));
    let files =
        || std::fs::read_dir(folder.path().join("cache")).expect("the cache").flatten().map(|entry| entry.path());
    for bytes in [&b"{\"key\":"[..], b"", b"\xFF\0", b"null", b"{\"key\":[],\"views\":[]}"] {
        files().for_each(|path| std::fs::write(path, bytes).expect("it can be written"));
        assert!(!from_cache(&scene));
    }
    assert!(from_cache(&scene));
}

fn unwritable() {
    let seen = Scene::new().with("SURVEY_STORE", "/proc/nowhere").survey();
    seen.assert_healthy_neighbours();
    assert!(seen.findings().contains("cannot be written"), "{}", seen.findings());
    let seen = Scene::new().with("SURVEY_STORE", "user").with("HOME", "").with("XDG_CACHE_HOME", "").survey();
    seen.assert_healthy_neighbours();
    assert!(seen.findings().contains("no cache folder is known"), "{}", seen.findings());
}

fn guarded() {
    let folder = folder();
    let touched = folder.path().join("touched");
    let scene = Scene::vulkan("crash:create-instance")
        .with("SURVEY_STORE", store(&folder))
        .with("FAKE_TOUCHED", touched.display().to_string());
    for _ in 0..2 {
        let seen = scene.survey();
        seen.assert_healthy_neighbours();
        assert_eq!(seen.api("vulkan")["blocked"], serde_json::json!([]), "the first crash is forgiven");
        assert!(was_touched(&touched));
    }
    for _ in 0..2 {
        let seen = scene.survey();
        seen.assert_healthy_neighbours();
        assert!(!was_touched(&touched), "it is left alone");
        let findings = seen.findings();
        assert!(findings.contains("signal 11 in create-instance") && findings.contains("--forget"), "{findings}");
    }
    assert!(scene.survey().api("vulkan")["from_cache"] == true, "what is healthy beside it is remembered");
    scene.clone().with("SURVEY_ASKED_FOR", "1").survey().assert_healthy_neighbours();
    assert!(was_touched(&touched), "who asks for it by name gets it");
    let healed = scene.clone().with("FAKE_VULKAN", "").with("SURVEY_FRESH", "1").survey();
    assert!(is_healthy(healed.labelled("Fake GPU").expect("it works again")));
    let seen = scene.with("FAKE_VULKAN", "").survey();
    assert!(is_healthy(seen.labelled("Fake GPU").expect("what works is not held back")));
}

fn was_touched(file: &Path) -> bool {
    std::fs::remove_file(file).is_ok()
}

fn died() {
    let folder = folder();
    let scene = Scene::cuda("").with("SURVEY_STORE", store(&folder)).with("SURVEY_FRESH", "1");
    // The parent is killed in the middle of its attempt, twice, and the third one counts.
    for _ in 0..2 {
        scene.play("attempt");
    }
    let text = std::fs::read_dir(folder.path().join("cache")).expect("the cache").flatten();
    let notes = text.filter(|entry| entry.file_name().to_string_lossy().contains("attempt")).count();
    assert_eq!(notes, 2, "both left a note");
    Scene::new().with("SURVEY_STORE", store(&folder)).survey().assert_healthy_neighbours();
    let guard = std::fs::read_to_string(folder.path().join("cache/devices-guard.json")).expect("the guard's file");
    assert!(guard.contains("its process died in dispatch") && guard.contains("\"crashes\": 2"), "{guard}");
}

/// In the parent: as a process that dies in a driver, without any farewell.
pub fn die_in_an_attempt(options: &SurveyOptions) {
    let attempt = Attempt::begin(&options.store, "libcuda.so.1", &[], "dispatch");
    std::mem::forget(attempt);
    println!("{{}}");
}

fn at_once() {
    let folder = folder();
    let scene = Scene::vulkan("crash:enumerate").with("SURVEY_STORE", store(&folder)).with("SURVEY_HARD", "20");
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| (0..3).for_each(|_| scene.survey().assert_healthy_neighbours()));
        }
    });
    let left = std::fs::read_dir(folder.path().join("cache")).expect("the cache").flatten();
    let unfinished = left.filter(|entry| entry.file_name().to_string_lossy().contains("-new-")).count();
    assert_eq!(unfinished, 0);
}
