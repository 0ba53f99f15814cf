//! Every fault at every stage.

use std::sync::Arc;

use impasto_device::{Store, SurveyOptions, survey};
use libtest_mimic::Trial;
use serde_json::Value;

use super::parent::{Scene, finds_neighbours, is_healthy, options};
use super::test;
use impasto_testkit::drivers::{DISTURBING, FAULTS, LIES};

pub fn tests() -> Vec<Trial> {
    let mut tests = Vec::new();
    for &(fault, stage, verdict) in FAULTS {
        tests.push(test(format!("vulkan_{fault}_in_{stage}"), move || vulkan(fault, stage, verdict)));
        tests.push(test(format!("cuda_{fault}_in_{stage}"), move || cuda(fault, stage, verdict)));
    }
    tests.extend([
        test("a_healthy_driver_is_believed", healthy),
        test("a_driver_that_talks_on_stdout_disturbs_nothing", talks),
        test("no_devices_and_three_hundred", counts),
        test("absurd_values_and_a_lying_memory_size_are_refused", lies),
        test("a_device_that_computes_wrongly_is_refused", computes_wrongly),
        test("a_kill_from_outside_is_no_crash_of_the_driver", killed),
        test("manifests_that_are_stale_or_no_json_are_named", manifests),
        test("a_driver_that_refuses_alone_is_explained", refuses),
        test("codes_of_cuda_are_explained", codes),
        test("without_the_egl_manifest_the_diagnosis_names_it", egl),
        test("one_gpu_through_two_apis_is_one_device", one_gpu),
        test("a_slow_driver_does_not_hold_us_beyond_the_soft_deadline", soft),
        test("a_driver_that_disturbs_its_neighbour_is_kept_from_it", disturbs),
        test("a_process_that_a_driver_daemonised_ends_with_its_child", daemonised),
        test("random_faults_leak_nothing", || random(8)),
        test("random_faults_leak_nothing::long", || random(30)).with_ignored_flag(true),
    ]);
    tests
}

/// Bounded: at most four phases, each a hard deadline and the time that ending takes, on a machine that does other things too.
fn assert_bounded(seconds: f64) {
    assert!(seconds < 4.0 * (4.0 + 3.0) + 10.0, "{seconds} s");
}

fn vulkan(fault: &str, stage: &str, verdict: &str) {
    let seen = Scene::vulkan(&format!("{fault}:{stage}")).survey();
    seen.assert_healthy_neighbours();
    assert_bounded(seen.seconds);
    let is_culprit = |child: &&Value| child["culprit"] == "libfake_vulkan.so" && child["verdict"] != "passed";
    let culprit = seen.children("vulkan").into_iter().find(is_culprit);
    let culprit = culprit.unwrap_or_else(|| panic!("no culprit in {:#}", seen.survey));
    assert!(culprit["verdict"].get(verdict).is_some(), "{culprit:#}");
    assert_eq!(culprit["stage"], stage, "{culprit:#}");
    assert!(seen.labelled("Fake GPU").is_none_or(|view| !is_healthy(view)), "{:#}", seen.survey);
    let disabled = seen.api("vulkan")["disabled"].to_string();
    assert!(disabled.contains("fake_icd.json"), "{disabled}");
    let findings = seen.findings();
    assert!(findings.contains("libfake_vulkan.so") && findings.contains(stage), "{findings}");
    assert!(findings.contains("VK_LOADER_DRIVERS_DISABLE=fake_icd.json"), "{findings}");
    assert!(findings.contains("impasto devices --forget"), "{findings}");
}

fn cuda(fault: &str, stage: &str, verdict: &str) {
    // CUDA has no loader between us and the driver, so its constructor runs when it is loaded.
    let seen = Scene::cuda(&format!("{fault}:{stage}")).survey();
    seen.assert_healthy_neighbours();
    assert_bounded(seen.seconds);
    let stage = if stage == "load-driver" { "load" } else { stage };
    let children = seen.children("cuda");
    let culprit = children.last().expect("a child was started");
    assert_eq!(culprit["culprit"], "libcuda.so.1");
    assert!(culprit["verdict"].get(verdict).is_some(), "{culprit:#}");
    assert_eq!(culprit["stage"], stage, "{culprit:#}");
    assert!(seen.labelled("Fake GPU").is_none_or(|view| !is_healthy(view)), "{:#}", seen.survey);
    assert!(seen.findings().contains("libcuda.so.1"), "{}", seen.findings());
}

fn healthy() {
    for scene in [Scene::vulkan(""), Scene::cuda("")] {
        let seen = scene.survey();
        seen.assert_healthy_neighbours();
        let fake = seen.labelled("Fake GPU").unwrap_or_else(|| panic!("{:#}", seen.survey));
        assert!(is_healthy(fake), "{fake:#}");
        assert_eq!(fake["kind"], "discrete");
        assert_eq!(fake["limits"]["memory"], 8_u64 << 30);
        assert_eq!(fake["pci"], serde_json::json!([0, 0x3b, 0, 0]));
        assert_eq!(seen.findings(), "");
    }
}

fn talks() {
    for stage in ["load-driver", "create-instance", "dispatch"] {
        let seen = Scene::vulkan(&format!("stdout:{stage}")).survey();
        seen.assert_healthy_neighbours();
        assert!(is_healthy(seen.labelled("Fake GPU").expect("it is found")), "{:#}", seen.survey);
        let said = seen.children("vulkan").iter().any(|child| child["stderr"].to_string().contains("(1000 times)"));
        assert!(said, "what it said is kept, once: {:#}", seen.survey);
    }
}

fn counts() {
    let seen = Scene::vulkan("none").survey();
    seen.assert_healthy_neighbours();
    assert_eq!(seen.views().len(), 2);
    let seen = Scene::cuda("none").survey();
    seen.assert_healthy_neighbours();

    let seen = Scene::vulkan("many").survey();
    seen.assert_healthy_neighbours();
    assert_eq!(seen.children("vulkan")[0]["devices"], 301, "an exit code cannot count so far, the records do");
    assert_eq!(seen.views().len(), 302);
    assert!(seen.findings().contains("not tried"), "{}", seen.findings());
    let seen = Scene::cuda("many").survey();
    seen.assert_healthy_neighbours();
    assert_eq!(seen.children("cuda")[0]["devices"], 300);
}

fn lies() {
    for fault in ["absurd", "lying"] {
        for scene in [Scene::vulkan(fault), Scene::cuda(fault)] {
            let seen = scene.survey();
            seen.assert_healthy_neighbours();
            let refused: Vec<_> = seen.views().into_iter().filter(|view| !is_healthy(view)).collect();
            assert_eq!(refused.len(), 1, "{:#}", seen.survey);
            assert!(refused[0]["standing"].to_string().contains("it says that"), "{}", refused[0]);
            assert!(!refused[0]["label"].to_string().contains("\\u001b"), "{}", refused[0]);
            assert!(seen.findings().contains("it says that"), "{}", seen.findings());
        }
    }
}

fn computes_wrongly() {
    for scene in [Scene::vulkan("wrong"), Scene::cuda("wrong")] {
        let seen = scene.survey();
        seen.assert_healthy_neighbours();
        assert!(!is_healthy(seen.labelled("Fake GPU").expect("it is listed")));
        assert!(seen.findings().contains("number 17"), "{}", seen.findings());
    }
}

fn killed() {
    let seen = Scene::cuda("kill:enumerate").survey();
    seen.assert_healthy_neighbours();
    assert_eq!(seen.children("cuda")[0]["verdict"], "killed");
    assert_eq!(seen.api("cuda")["disabled"], serde_json::json!([]));
}

fn manifests() {
    let drivers = impasto_testkit::drivers::drivers();
    let files = ["stale_icd.json", "garbled_icd.json"].map(|name| drivers.folder.join(name).display().to_string());
    let lavapipe = impasto_testkit::drivers::lavapipe().display().to_string();
    let seen = Scene::new().with("VK_DRIVER_FILES", format!("{}:{}:{lavapipe}", files[0], files[1])).survey();
    seen.assert_healthy_neighbours();
    let findings = seen.findings();
    assert!(findings.contains("stale_icd.json") && findings.contains("libgone.so"), "{findings}");
    assert!(findings.contains("garbled_icd.json") && findings.contains("not JSON"), "{findings}");
    // Without anything healthy the CPU is what is left.
    let seen = Scene::new().with("VK_DRIVER_FILES", files.join(":")).survey();
    assert_eq!(seen.views().len(), 1);
    assert!(seen.findings().contains("no installed driver works"), "{}", seen.findings());
}

fn refuses() {
    let manifest = impasto_testkit::drivers::drivers().manifest().display().to_string();
    let seen = Scene::new().with("VK_DRIVER_FILES", manifest).with("FAKE_VULKAN", "refuse").survey();
    assert_eq!(seen.views().len(), 1);
    assert!(seen.findings().contains("vkCreateInstance failed with -9"), "{}", seen.findings());
}

fn codes() {
    for (code, words) in [(34, "stub"), (999, "modprobe nvidia_uvm"), (803, "start the machine anew"), (3, "not ready")]
    {
        let seen = Scene::cuda(&format!("code{code}")).survey();
        seen.assert_healthy_neighbours();
        assert!(seen.findings().contains(words), "{code}: {}", seen.findings());
    }
    let path = format!("{}:/usr/local/cuda/lib64/stubs", impasto_testkit::drivers::drivers().cuda.display());
    let seen = Scene::cuda("").with("LD_LIBRARY_PATH", path).survey();
    assert!(seen.findings().contains("stubs") && is_healthy(seen.labelled("Fake GPU").expect("it is found")));
}

fn egl() {
    let folder = impasto_testkit::drivers::drivers().egl.display().to_string();
    let seen = Scene::new().with("LD_LIBRARY_PATH", folder).survey();
    seen.assert_healthy_neighbours();
    let findings = seen.findings();
    assert!(findings.contains("libEGL_nvidia.so.0") && findings.contains("library_path"), "{findings}");
}

fn one_gpu() {
    let cuda = impasto_testkit::drivers::drivers().cuda.display().to_string();
    let seen = Scene::vulkan("").with("LD_LIBRARY_PATH", cuda).survey();
    seen.assert_healthy_neighbours();
    let devices = seen.survey["devices"].as_array().expect("devices");
    let views: Vec<String> =
        devices[0]["views"].as_array().expect("views").iter().map(|v| v["name"].to_string()).collect();
    assert_eq!(views, ["\"cuda0\"", "\"vulkan0\""]);
    assert_eq!(devices.len(), 3, "the GPU, lavapipe and the CPU");
}

fn soft() {
    // The parent ends long before the hard deadline, and what the driver has started ends with it.
    for fault in ["hang:create-instance", "fork:create-instance"] {
        let seen = Scene::vulkan(fault).with("SURVEY_SOFT", "0.5").with("SURVEY_HARD", "60").survey();
        assert_eq!(seen.api("vulkan")["pending"], true);
        assert_eq!(seen.views().len(), 1, "the CPU is there");
        assert!(seen.seconds < 20.0, "{}", seen.seconds);
    }
}

/// A driver that does its own work and spoils that of others in its process: nothing is held against them, now or later.
fn disturbs() {
    for fault in DISTURBING {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = folder.path().join("cache").display().to_string();
        let scene = Scene::vulkan(fault).with("SURVEY_STORE", store);
        for _ in 0..3 {
            let seen = scene.survey();
            seen.assert_healthy_neighbours();
            let api = seen.api("vulkan");
            let against = format!("{} {}", api["disabled"], api["blocked"]);
            assert!(!against.contains("lvp_icd"), "{fault}: {against}");
            let lavapipe = seen.labelled("llvmpipe").expect("it is there");
            assert!(lavapipe["manifest"].to_string().contains("lvp_icd"), "{fault}: it is used alone: {lavapipe:#}");
        }
        let guard = std::fs::read_to_string(folder.path().join("cache/devices-guard.json")).unwrap_or_default();
        assert!(!guard.contains("lvp_icd"), "{fault}: {guard}");
        // The driver is removed.
        let seen = scene.with("VK_DRIVER_FILES", impasto_testkit::drivers::lavapipe().display().to_string()).survey();
        seen.assert_healthy_neighbours();
        assert_eq!(seen.api("vulkan")["blocked"], serde_json::json!([]), "{fault}");
    }
}

/// It has left its child's group and session and its parent, and still ends: `survey` sees to it that nothing is left.
fn daemonised() {
    for scene in [Scene::vulkan("daemon:create-instance"), Scene::cuda("daemon:dispatch")] {
        let seen = scene.survey();
        seen.assert_healthy_neighbours();
        assert!(is_healthy(seen.labelled("Fake GPU").expect("it works")), "{:#}", seen.survey);
    }
    // Also where the program ends before its children do.
    let seen = Scene::vulkan("daemon:load-driver").with("SURVEY_SOFT", "0").survey();
    assert_eq!(seen.api("vulkan")["pending"], true);
}

/// Many surveys in one process: so many, or as many as `IMPASTO_LONG_RUN` says.
fn random(count: u32) {
    let count = std::env::var("IMPASTO_LONG_RUN").unwrap_or_else(|_| count.to_string());
    let cuda = impasto_testkit::drivers::drivers().cuda.display().to_string();
    let scene =
        Scene::vulkan("").with("LD_LIBRARY_PATH", cuda).with("SURVEY_COUNT", count.clone()).with("SURVEY_HARD", "2.5");
    let seen = scene.play("random");
    assert_eq!(seen.survey["surveys"].to_string(), count);
    println!("{}", seen.survey);
}

/// In the parent: surveys with random faults in both drivers, one after the other.
pub fn random_surveys() {
    let count: u32 = std::env::var("SURVEY_COUNT").ok().and_then(|text| text.parse().ok()).expect("a count");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = SurveyOptions { fresh: true, store: Arc::new(Store::at(folder.path())), ..options() };
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    survey(&options);
    let before = (descriptors(), processes());
    let (mut faults, mut slowest) = (0, 0.0_f64);
    for number in 0..count {
        let mut fault = || match random(2) {
            0 => LIES[random(LIES.len())].to_owned(),
            _ => {
                let (fault, stage, _) = FAULTS[random(FAULTS.len())];
                format!("{fault}:{stage}")
            }
        };
        let (vulkan, cuda) = (fault(), fault());
        // SAFETY: the survey before has ended, and with it its threads: this is the only one.
        unsafe {
            std::env::set_var("FAKE_VULKAN", &vulkan);
            std::env::set_var("FAKE_CUDA", &cuda);
        }
        let seen = survey(&options);
        assert!(finds_neighbours(&seen), "survey {number}, vulkan {vulkan}, cuda {cuda}: {seen:#?}");
        assert_eq!((descriptors(), processes()), before, "survey {number}, vulkan {vulkan}, cuda {cuda}");
        faults += seen.apis.iter().filter(|api| api.fault().is_some()).count();
        slowest = slowest.max(seen.seconds);
    }
    println!("{{\"surveys\":{count},\"faults\":{faults},\"slowest_seconds\":{slowest}}}");
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

/// Children of this process, zombies too.
fn processes() -> usize {
    let own = std::process::id().to_string();
    let stats = std::fs::read_dir("/proc").expect("/proc").flatten();
    let stats = stats.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    stats.filter(|stat| stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)) == Some(&own)).count()
}
