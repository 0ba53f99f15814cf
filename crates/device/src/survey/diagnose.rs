//! What is wrong, what it means, and what to do: one line for each thing.

use std::fmt;

use serde::Serialize;

use super::manifest::{Reading, file_name};
use super::record::Child;
use super::{Api, ApiReport, Context, Device, DeviceInfo, DeviceKind, FORGET_COMMAND, Phase, Standing};
use crate::Verdict;
use impasto_cuda::LIBRARY as CUDA;

/// The manifest that makes NVIDIA's driver work where there is no X server.
pub(super) const EGL_MANIFEST: &str =
    r#"{"file_format_version":"1.0.0","ICD":{"library_path":"libEGL_nvidia.so.0","api_version":"1.4.312"}}"#;

/// Something that is wrong.
///
/// ```
/// use impasto_device::Diagnosis;
///
/// let finding = Diagnosis {
///     about: "driver manifest x.json".into(),
///     seen: "it is not JSON".into(),
///     stage: None,
///     means: "no driver is loaded by it".into(),
///     to_do: "reinstall the package that it belongs to".into(),
/// };
/// assert_eq!(
///     finding.to_string(),
///     "driver manifest x.json: it is not JSON: no driver is loaded by it; reinstall the package that it belongs to"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// The driver, file or device.
    pub about: String,
    /// What was seen.
    pub seen: String,
    /// At what stage of a probe.
    pub stage: Option<String>,
    /// What that means.
    pub means: String,
    /// What to do.
    pub to_do: String,
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}; {}", self.about, self.seen, self.means, self.to_do)
    }
}

fn finding(
    about: impl Into<String>,
    seen: impl Into<String>,
    means: impl Into<String>,
    to_do: impl Into<String>,
) -> Diagnosis {
    Diagnosis { about: about.into(), seen: seen.into(), stage: None, means: means.into(), to_do: to_do.into() }
}

pub(super) fn diagnose(context: &Context, reports: &[ApiReport], devices: &[Device]) -> Vec<Diagnosis> {
    let mut found = Vec::new();
    for report in reports {
        found.extend(of_report(report));
        match report.api {
            Api::Vulkan => found.extend(of_vulkan(context, report)),
            Api::Cuda => found.extend(of_cuda(context, report)),
            Api::Cpu => {}
        }
    }
    let views: Vec<&DeviceInfo> = devices.iter().flat_map(|device| &device.views).collect();
    found.extend(of_devices(reports, &views));
    found.extend(of_system(context, reports, &views));
    found
}

/// What went wrong in children, whatever the API.
fn of_report(report: &ApiReport) -> Vec<Diagnosis> {
    let api = report.api;
    let mut found = Vec::new();
    if report.pending {
        found.push(finding(
            api.name(),
            "its driver has not answered yet",
            "it is slow or hangs, and this run goes on without it",
            "`impasto devices` waits longer and says more",
        ));
    }
    let faults: Vec<&Child> =
        report.children.iter().filter(|child| child.is_fault() && child.phase != Phase::Advice).collect();
    let alone_is_well = !faults.iter().any(|child| child.culprit.is_some());
    for child in faults {
        if child.phase == Phase::Enumerate && child.culprit.is_none() && !alone_is_well {
            continue; // said below of the driver that is to blame
        }
        let driver = child.culprit.as_deref().unwrap_or("the drivers together");
        let (means, to_do) = match (child.phase, api) {
            (Phase::Enumerate, Api::Vulkan) if !report.children.iter().any(|child| child.phase == Phase::Alone) => (
                "which of them is to blame is not known, and Vulkan is not used",
                "update the driver of your GPU".to_owned(),
            ),
            (Phase::Enumerate, Api::Vulkan) => {
                ("each of them works alone, and each is used alone", "remove the one that is not needed".to_owned())
            }
            (_, Api::Vulkan) => (
                "only the probe's own process was hurt, and the driver is left out",
                format!(
                    "update or remove it; after a second crash it is left alone until `{FORGET_COMMAND}` or a day forgives it; \
                     VK_LOADER_DRIVERS_DISABLE={} keeps it out of every Vulkan program",
                    manifest_name(report, child)
                ),
            ),
            _ => (
                "only the probe's own process was hurt, and CUDA is not used",
                format!(
                    "update the driver; after a second crash it is left alone until `{FORGET_COMMAND}` or a day forgives it"
                ),
            ),
        };
        let mut one = finding(format!("{api}: {driver}"), child.in_short(), means, to_do);
        one.stage.clone_from(&child.stage);
        found.push(one);
    }
    for known in &report.blocked {
        found.push(finding(
            format!("{api}: {}", known.driver),
            format!("crashed {} times ({})", known.crashes, known.what),
            "it is left alone for now",
            format!("`{FORGET_COMMAND}` tries it again, and so does --gpu {api}"),
        ));
    }
    if let Some(child) = report
        .children
        .iter()
        .find(|child| matches!(child.verdict, Verdict::SpawnFailed { .. } | Verdict::NoHook | Verdict::Killed))
    {
        found.push(finding(
            api.name(),
            child.in_short(),
            "nothing is known of its devices, and none is used",
            match child.verdict {
                Verdict::NoHook => {
                    "a program that embeds Impasto calls `impasto::probe_hook()` first in `main`, or names a helper"
                }
                Verdict::Killed => "mostly memory ran out; try again",
                _ => "see that this program can be started again from where it is",
            },
        ));
    }
    found
}

/// The file that `VK_LOADER_DRIVERS_DISABLE` must name.
fn manifest_name(report: &ApiReport, child: &Child) -> String {
    match child.phase {
        Phase::Alone => file_name(child.subject.as_ref()),
        _ => report.disabled.first().map_or_else(|| "FILE".into(), |path| file_name(path)),
    }
}

fn of_vulkan(context: &Context, report: &ApiReport) -> Vec<Diagnosis> {
    let mut found = Vec::new();
    for manifest in &context.evidence.manifests {
        let (seen, to_do) = match &manifest.reading {
            Reading::Library { .. } => continue,
            Reading::Unreadable(why) => (why.clone(), "remove it or reinstall the package that it belongs to"),
            Reading::Stale { named } => (
                format!("it names {named}, which is not there"),
                "remove it, or reinstall the driver that it belonged to",
            ),
        };
        found.push(finding(
            format!("driver manifest {}", manifest.path.display()),
            seen,
            "no driver is loaded by it",
            to_do,
        ));
    }
    if report.together_only {
        found.push(finding(
            "vulkan: the loader",
            "it loads drivers that it was told to leave out, as it does in a process with an administrator's rights",
            "none can be asked alone, and one that goes wrong takes the others with it",
            "start this program without an administrator's rights",
        ));
    }
    let asked = |phase| report.children.iter().filter(move |child| child.phase == phase);
    let advice = asked(Phase::Advice).find(|child| child.verdict.passed() && child.devices > 0);
    let glx = asked(Phase::Alone)
        .find(|child| child.culprit.as_deref().is_some_and(|name| name.starts_with("libGLX_nvidia")));
    if advice.is_some() {
        let seen = match glx {
            Some(child) => format!("{} {}", child.culprit.as_deref().unwrap_or_default(), child.in_short()),
            None => "no NVIDIA device is shown".into(),
        };
        found.push(finding(
            "vulkan: NVIDIA",
            seen,
            "the GLX driver needs an X server; the EGL driver works here",
            format!("put this line into ~/.local/share/vulkan/icd.d/nvidia_egl_icd.json, or name such a file in VK_DRIVER_FILES: {EGL_MANIFEST}"),
        ));
    }
    let enumerated = asked(Phase::Enumerate).next();
    // Where the others work, a driver that is not all there is no trouble.
    let others_work = enumerated.is_some_and(|child| child.verdict.passed());
    for child in asked(Phase::Alone).filter(|_| !others_work) {
        if let Verdict::CouldNotLoad { reason: Some(reason), .. } = &child.verdict {
            let about = format!("vulkan: {}", child.culprit.as_deref().unwrap_or(&child.subject));
            found.push(finding(
                about,
                format!("could not be loaded: {reason}"),
                "the driver or a library that it needs is not installed",
                format!("install it, or remove {}", child.subject),
            ));
        }
    }
    match enumerated.map(|child| &child.verdict) {
        Some(Verdict::CouldNotLoad { reason: Some(reason), .. }) if !context.evidence.gpus.is_empty() => {
            found.push(finding(
                "vulkan",
                reason.clone(),
                "no Vulkan device can be seen",
                "install the loader (Debian and Ubuntu: libvulkan1; Fedora: vulkan-loader) and the driver of your GPU",
            ));
        }
        Some(Verdict::Failed { reason }) if advice.is_none() => found.push(finding(
            "vulkan",
            reason.clone(),
            "no installed driver works here",
            "install the Vulkan driver of your GPU (Debian and Ubuntu: mesa-vulkan-drivers; NVIDIA: its own)",
        )),
        _ => {}
    }
    found
}

fn of_cuda(context: &Context, report: &ApiReport) -> Vec<Diagnosis> {
    let evidence = &context.evidence;
    let mut found = Vec::new();
    for folder in &evidence.stubs {
        found.push(finding(
            format!("LD_LIBRARY_PATH names {}", folder.display()),
            "a folder of stubs",
            "the libcuda in it is for linking and cannot run; probes leave it out",
            "take it out of LD_LIBRARY_PATH",
        ));
    }
    let hidden = evidence
        .variables
        .iter()
        .find(|(name, value)| name == "CUDA_VISIBLE_DEVICES" && (value.is_empty() || value.starts_with('-')));
    if hidden.is_some() && evidence.has_nvidia() {
        found.push(finding("CUDA_VISIBLE_DEVICES", "it names no device", "CUDA shows none", "unset it to use the GPU"));
    }
    match report.children.first().map(|child| &child.verdict) {
        Some(Verdict::Failed { reason }) => {
            let (means, to_do) = cuda_failure(reason, evidence.has_nvidia());
            // Where there is no NVIDIA GPU, a CUDA without devices is as it should be.
            if evidence.has_nvidia() || !reason.contains("with 100 ") {
                found.push(finding(format!("cuda: {CUDA}"), reason.clone(), means, to_do));
            }
        }
        Some(Verdict::CouldNotLoad { reason: Some(reason), .. }) if evidence.has_nvidia() => found.push(finding(
            "cuda",
            reason.clone(),
            "an NVIDIA GPU is here but its driver library is not found",
            "install NVIDIA's driver; in a container, start it with the driver mounted (--gpus all)",
        )),
        _ => {}
    }
    found
}

fn cuda_failure(reason: &str, has_nvidia: bool) -> (&'static str, &'static str) {
    let code = reason.split(" failed with ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<i32>().ok());
    match code {
        Some(34) => (
            "a stub of libcuda is found before the real one",
            "take folders named stubs out of LD_LIBRARY_PATH and of the system's library folders",
        ),
        Some(100) if has_nvidia => {
            ("the GPU is hidden from CUDA", "look at CUDA_VISIBLE_DEVICES, and in a container at its GPU options")
        }
        Some(999) => (
            "the kernel module lost its state, mostly in a suspend",
            "`sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm`, or start the machine anew",
        ),
        Some(803) => ("the driver was updated while it ran", "start the machine anew"),
        Some(804) => {
            ("a forward-compatibility library is found that this GPU cannot use", "remove the cuda-compat package")
        }
        Some(3 | 4 | 802) => {
            ("the driver is not ready", "try again in a moment; if that does not help, start the machine anew")
        }
        _ => ("CUDA cannot be used", "look at the output of nvidia-smi"),
    }
}

fn of_devices(reports: &[ApiReport], views: &[&DeviceInfo]) -> Vec<Diagnosis> {
    let mut found = Vec::new();
    for view in views {
        let Standing::Refused { why } = &view.standing else { continue };
        let subject = format!("{} {}", view.name, view.label);
        let child = reports.iter().flat_map(|report| &report.children).find(|child| child.subject == subject);
        // A fault has its line already, and so have devices that were only too many.
        if child.is_some_and(Child::is_fault) || why.starts_with("not tried") {
            continue;
        }
        let mut one = finding(subject, why.clone(), "it is not used", "update its driver");
        one.stage = child.and_then(|child| child.stage.clone());
        found.push(one);
    }
    for report in reports.iter().filter(|report| report.untried > 0) {
        found.push(finding(
            report.api.name(),
            format!("{} devices were not tried", report.untried),
            "so many, or so slow, that there was no time for them; they are not used",
            "hide what is not needed (CUDA_VISIBLE_DEVICES, VK_DRIVER_FILES)",
        ));
    }
    found
}

fn of_system(context: &Context, reports: &[ApiReport], views: &[&DeviceInfo]) -> Vec<Diagnosis> {
    let evidence = &context.evidence;
    let mut found = Vec::new();
    for node in evidence.nodes.iter().filter(|node| !node.usable) {
        let group = node.group.as_deref().unwrap_or("render");
        found.push(finding(
            node.path.display().to_string(),
            "this user may not open it",
            "its GPU stays invisible, and a software rasteriser is all that is left",
            format!("join its group: sudo usermod -aG {group} $USER, then log in again"),
        ));
    }
    let has_gpu = views.iter().any(|view| view.kind != DeviceKind::Software && view.api != Api::Cpu);
    let all_quiet = found.is_empty()
        && reports.iter().all(|report| !report.pending && report.blocked.is_empty() && report.fault().is_none());
    if let Some(gpu) = evidence.gpus.iter().find(|gpu| [0x10de, 0x1002, 0x8086].contains(&gpu.vendor))
        && !has_gpu
        && all_quiet
    {
        {
            found.push(finding(
                format!("PCI device {} ({:04x}:{:04x})", gpu.address, gpu.vendor, gpu.device),
                "a GPU that no driver shows",
                "its user-space driver is not installed, or hidden",
                match gpu.vendor {
                    0x10de => "install NVIDIA's driver",
                    _ => "install its Vulkan driver (Debian and Ubuntu: mesa-vulkan-drivers)",
                },
            ));
        }
    }
    if let Some(trouble) = context.options.store.trouble() {
        found.push(finding(
            "cache",
            trouble,
            "that costs time, nothing else",
            "set XDG_CACHE_HOME to a folder that can be written to",
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::evidence::{DeviceNode, Evidence, PciGpu};
    use super::super::guard::{CrashRecord, Guard};
    use super::super::info::tests::view;
    use super::super::{Store, SurveyOptions};
    use super::*;

    fn lines(evidence: Evidence, report: ApiReport, views: Vec<DeviceInfo>) -> String {
        let store = Arc::new(Store::none());
        let options = SurveyOptions { store: store.clone(), ..SurveyOptions::default() };
        let context = Context { options, evidence, guard: Guard::open(store) };
        let found = diagnose(&context, &[report], &super::super::info::merge(views));
        found.iter().map(|one| format!("{one}\n")).collect()
    }

    fn amd() -> Vec<PciGpu> {
        vec![PciGpu { address: "0000:03:00.0".into(), vendor: 0x1002, device: 0x744c }]
    }

    #[test]
    fn nothing_wrong_is_nothing_said() {
        assert_eq!(lines(Evidence::default(), ApiReport::new(Api::Vulkan), vec![]), "");
        let evidence = Evidence { gpus: amd(), ..Evidence::default() };
        assert_eq!(lines(evidence, ApiReport::new(Api::Vulkan), vec![view(Api::Vulkan, 0, None, None)]), "");
    }

    #[test]
    fn a_device_file_that_may_not_be_opened_names_the_group_to_join() {
        let node = DeviceNode { path: "/dev/dri/renderD128".into(), usable: false, group: Some("render".into()) };
        let evidence = Evidence { nodes: vec![node], gpus: amd(), ..Evidence::default() };
        let said = lines(evidence, ApiReport::new(Api::Vulkan), vec![]);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("/dev/dri/renderD128") && said.contains("usermod -aG render"), "{said}");
    }

    #[test]
    fn a_gpu_that_no_driver_shows_is_named_with_what_to_install() {
        let evidence = Evidence { gpus: amd(), ..Evidence::default() };
        let software = DeviceInfo { kind: DeviceKind::Software, ..view(Api::Vulkan, 0, None, None) };
        let said = lines(evidence, ApiReport::new(Api::Vulkan), vec![software]);
        assert!(said.contains("1002:744c") && said.contains("mesa-vulkan-drivers"), "{said}");
    }

    #[test]
    fn a_driver_that_is_left_alone_is_named_with_the_way_back() {
        let known = CrashRecord {
            driver: "/usr/share/vulkan/icd.d/x.json".into(),
            key: vec![],
            crashes: 2,
            last: 0,
            what: "crashed during device probe (signal 11 in enumerate, driver libX)".into(),
        };
        let report = ApiReport { blocked: vec![known], ..ApiReport::new(Api::Vulkan) };
        let line = report.line().expect("a line for the user");
        assert!(line.contains("x.json") && line.contains(FORGET_COMMAND) && line.contains("signal 11"), "{line}");
        let said = lines(Evidence::default(), report, vec![]);
        assert!(said.contains(FORGET_COMMAND) && said.contains("--gpu vulkan"), "{said}");
    }

    #[test]
    fn drivers_that_could_not_be_asked_alone_are_not_said_to_work_alone() {
        let crashed = |phase, culprit| Child {
            phase,
            subject: "all drivers".into(),
            culprit,
            verdict: Verdict::Crashed { code: Some(-1_073_741_819), signal: None },
            stage: Some("create-instance".into()),
            devices: 0,
            stderr: String::new(),
            seconds: 0.1,
        };
        let children = vec![crashed(Phase::Enumerate, None)];
        let report = ApiReport { children, together_only: true, ..ApiReport::new(Api::Vulkan) };
        let said = lines(Evidence::default(), report, vec![]);
        assert!(said.contains("is not known, and Vulkan is not used") && said.contains("administrator"), "{said}");
        assert!(!said.contains("works alone"), "{said}");
        let children = vec![crashed(Phase::Enumerate, None), crashed(Phase::Alone, Some("x.dll".into()))];
        let said = lines(Evidence::default(), ApiReport { children, ..ApiReport::new(Api::Vulkan) }, vec![]);
        assert!(said.contains("driver x.dll") && said.lines().count() == 1, "{said}");
    }

    #[test]
    fn a_code_is_read_out_of_any_sentence() {
        assert!(cuda_failure("cuInit failed with 34 (a stub)", true).1.contains("stubs"));
        for odd in ["", "failed with", "cuInit failed with x", " failed with ", "cuInit failed with 99999999999 "] {
            assert!(cuda_failure(odd, false).1.contains("nvidia-smi"), "{odd}");
        }
    }
}
