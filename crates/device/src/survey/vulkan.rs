//! Vulkan, from the outside: all drivers together list the devices, and then each driver alone. Devices are tried and used with their own
//! driver alone, so that no driver is judged by what another one does in its process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cuda::try_all;
use super::diagnose::EGL_MANIFEST;
use super::in_use::blocked_record;
use super::manifest::{Manifest, Reading};
use super::record::{Child, is_fault};
use super::{Answer, Api, ApiReport, Context, DeviceInfo, Phase, Standing, believe, in_parallel};
use crate::probe::vulkan::{AloneDriver, VulkanRecord};
use crate::{Outcome, Verdict};

pub(super) fn ask(context: &Context) -> Answer {
    let mut report = ApiReport::new(Api::Vulkan);
    let manifests = &context.evidence.manifests;
    let trusting = context.options.fresh || context.options.asked_for;
    let against = |manifest: &Manifest| match trusting {
        true => None,
        false => blocked_record(&context.guard, &id(&manifest.path), &context.evidence.driver_key(manifest)),
    };
    report.blocked = manifests.iter().filter_map(against).collect();
    let key = context.cache_key(Api::Vulkan, &report.blocked);
    if let Some(views) = context.recall(Api::Vulkan, &key) {
        report.from_cache = true;
        return Answer { views, report };
    }

    let mut views = Vec::new();
    if report.blocked.is_empty() {
        let outcome = context.child("vulkan-enumerate", String::new(), None, context.options.hard);
        report.children.push(Child::new(Phase::Enumerate, "all drivers", None, &outcome));
        views = listed(&outcome, None);
    }
    // A loader without a single driver that works fails too; asking each one alone then says why.
    let went_wrong = |child: &Child| child.is_fault() || matches!(child.verdict, Verdict::Failed { .. });
    if !report.blocked.is_empty() || report.children.iter().any(went_wrong) {
        views = alone(context, &mut report);
    } else if !views.is_empty() && libraries(context, &report).len() > 1 {
        views = separated(views, context, &mut report);
    }
    for (index, view) in views.iter_mut().enumerate() {
        view.name = format!("vulkan{index}");
    }
    let culprit = |view: &DeviceInfo| view.manifest.as_deref().map(|path| library_of(context, path));
    try_all(context, "vulkan-trial", &mut views, &mut report, &culprit);
    blame_trials(context, &mut report, &views);
    let broken = !report.blocked.is_empty() || report.fault().is_some();
    views.iter_mut().for_each(|view| view.must_be_alone = broken && view.manifest.is_some());
    advise(context, &mut report, &views);
    if report.is_clean() {
        let worked: Vec<String> = manifests.iter().map(|manifest| id(&manifest.path)).collect();
        let held: Vec<&str> = report.blocked.iter().map(|known| known.driver.as_str()).collect();
        let worked: Vec<String> = worked.into_iter().filter(|driver| !held.contains(&driver.as_str())).collect();
        context.guard.worked(&worked);
        context.keep(Api::Vulkan, key, &views);
    }
    Answer { views, report }
}

pub(super) fn id(manifest: &Path) -> String {
    manifest.to_string_lossy().into_owned()
}

fn library_of(context: &Context, path: &Path) -> String {
    let known = context.evidence.manifests.iter().find(|manifest| manifest.path == path);
    known.map_or_else(|| super::manifest::file_name(path), Manifest::library_name)
}

fn listed(outcome: &Outcome, manifest: Option<&PathBuf>) -> Vec<DeviceInfo> {
    if !outcome.verdict.passed() {
        return Vec::new();
    }
    let seen = outcome.records.iter().map(|record| serde_json::from_value::<VulkanRecord>(record.clone()));
    seen.flatten().map(|seen| believe::vulkan(seen, manifest.cloned())).collect()
}

/// Asks each driver that may be asked, for itself. Those that go wrong are left out and remembered.
fn alone(context: &Context, report: &mut ApiReport) -> Vec<DeviceInfo> {
    let mut views = Vec::new();
    let asked = each_alone(context, report, idle(report));
    report.together_only = !asked.is_empty() && is_deaf(context);
    for (manifest, outcome) in asked {
        // Where they cannot be separated, only what a library did when we opened it ourselves is its own doing.
        if report.together_only && outcome.stage.as_deref() != Some("load-driver") {
            continue;
        }
        let child = Child::new(Phase::Alone, id(&manifest.path), Some(manifest.library_name()), &outcome);
        if child.is_fault() {
            report.disabled.push(manifest.path.clone());
            context.guard.crashed(&id(&manifest.path), &context.evidence.driver_key(manifest), &child.in_short());
        }
        views.extend(listed(&outcome, Some(&manifest.path)));
        report.children.push(child);
    }
    views
}

/// The devices that all drivers together have listed, in that order, each with the one driver that shows it: in its trial and in use no other
/// is loaded, since a driver can spoil the work of others in its process (a thread that crashes, floating-point exceptions, limits).
fn separated(views: Vec<DeviceInfo>, context: &Context, report: &mut ApiReport) -> Vec<DeviceInfo> {
    let mut shown = alone(context, report);
    if report.together_only {
        return views;
    }
    let crashed = report.children.iter().find(|child| child.phase == Phase::Alone && child.is_fault());
    let why = crashed.map(|child| format!("not shown by a driver alone, of which one {}", child.in_short()));
    let one = |view: DeviceInfo| {
        let is_it =
            |other: &DeviceInfo| (&other.label, other.uuid, &other.driver) == (&view.label, view.uuid, &view.driver);
        match (shown.iter().position(is_it), &why) {
            (Some(at), _) => DeviceInfo { manifest: shown.remove(at).manifest, ..view },
            (None, Some(why)) => DeviceInfo { standing: Standing::Refused { why: why.clone() }, ..view },
            // Its driver is installed in a place that we do not know of.
            (None, None) => view,
        }
    };
    let mut views: Vec<DeviceInfo> = views.into_iter().map(one).collect();
    // A driver that cannot be loaded beside another one is passed over by the loader.
    views.append(&mut shown);
    views
}

/// The drivers that may be loaded.
fn libraries<'a>(context: &'a Context, report: &ApiReport) -> Vec<&'a Manifest> {
    let is_blocked = |manifest: &Manifest| report.blocked.iter().any(|known| known.driver == id(&manifest.path));
    let readable = |manifest: &&Manifest| matches!(manifest.reading, Reading::Library { .. }) && !is_blocked(manifest);
    context.evidence.manifests.iter().filter(readable).collect()
}

/// How long a driver that is asked alone stays loaded, so that a thread of it which crashed others shows itself: as long as they lived.
fn idle(report: &ApiReport) -> Duration {
    const MARGIN: f64 = 0.1;
    const LONGEST: f64 = 2.0;
    let crashed = report.children.iter().filter(|child| matches!(child.verdict, Verdict::Crashed { .. }));
    let lived = crashed.map(|child| child.seconds + MARGIN).fold(0.0, f64::max);
    Duration::from_secs_f64(lived.min(LONGEST))
}

/// Whether the loader does not respect which driver it is to load, found out by naming one that is not there: nothing may come of that.
/// On Windows it ignores variables in a process with the rights of an administrator, and every driver would be blamed for one.
fn is_deaf(context: &Context) -> bool {
    if !cfg!(windows) {
        return false;
    }
    let nowhere = std::env::temp_dir().join(format!("impasto-no-driver-{}.json", std::process::id()));
    let outcome = context.child("vulkan-enumerate", String::new(), Some(&nowhere), context.options.hard);
    is_fault(&outcome.verdict) || !outcome.records.is_empty()
}

fn each_alone<'a>(context: &'a Context, report: &ApiReport, idle: Duration) -> Vec<(&'a Manifest, Outcome)> {
    let manifests = libraries(context, report);
    let outcomes = ask_alone(context, &manifests, idle);
    manifests.into_iter().zip(outcomes).collect()
}

fn ask_alone(context: &Context, manifests: &[&Manifest], idle: Duration) -> Vec<Outcome> {
    in_parallel(manifests, |manifest| {
        let driver = AloneDriver { library: manifest.library().unwrap_or_default(), idle };
        context.child("vulkan-enumerate", driver.to_argument(), Some(&manifest.path), context.options.hard)
    })
}

/// The driver that shows a device, found out by asking each one alone.
pub(super) fn of_device<'a>(
    context: &Context,
    manifests: &[&'a Manifest],
    device: &DeviceInfo,
) -> Option<&'a Manifest> {
    if is_deaf(context) {
        return None;
    }
    let outcomes = ask_alone(context, manifests, Duration::ZERO);
    let shows = |outcome: &Outcome| {
        listed(outcome, None).iter().any(|other| other.label == device.label && other.uuid == device.uuid)
    };
    manifests.iter().zip(outcomes).find(|(_, outcome)| shows(outcome)).map(|(manifest, _)| *manifest)
}

/// Where an NVIDIA GPU is here and Vulkan does not show it, its EGL driver is tried: where there is no X server it works and the
/// GLX one does not.
fn advise(context: &Context, report: &mut ApiReport, views: &[DeviceInfo]) {
    let evidence = &context.evidence;
    let shown = views.iter().any(|view| view.ids.is_some_and(|(vendor, _)| vendor == 0x10de));
    let no_loader = report.children.iter().any(|child| {
        child.phase == Phase::Enumerate && matches!(child.verdict, Verdict::CouldNotLoad { .. } | Verdict::NoHook)
    });
    if shown || no_loader || !(evidence.has_nvidia() || evidence.nvidia_egl) {
        return;
    }
    let path = std::env::temp_dir().join(format!("impasto-egl-{}.json", std::process::id()));
    if std::fs::write(&path, EGL_MANIFEST).is_err() {
        return;
    }
    let library = "libEGL_nvidia.so.0";
    let driver = AloneDriver { library: library.into(), idle: Duration::ZERO };
    let outcome = context.child("vulkan-enumerate", driver.to_argument(), Some(&path), context.options.hard);
    let _ = std::fs::remove_file(&path);
    report.children.push(Child::new(Phase::Advice, library, Some(library.into()), &outcome));
}

/// A device that died in its trial was found among those of all drivers: which driver it belongs to is found out by asking each
/// one alone, so that it can be named and remembered.
fn blame_trials(context: &Context, report: &mut ApiReport, views: &[DeviceInfo]) {
    let died: Vec<usize> = (0..report.children.len())
        .filter(|&at| report.children[at].phase == Phase::Trial && report.children[at].is_fault())
        .collect();
    if died.is_empty() {
        return;
    }
    let view_of = |child: &Child| views.iter().find(|view| child.subject == format!("{} {}", view.name, view.label));
    let unknown = died.iter().any(|&at| view_of(&report.children[at]).is_some_and(|view| view.manifest.is_none()));
    let asked = if unknown && !report.together_only && !is_deaf(context) {
        each_alone(context, report, Duration::ZERO)
    } else {
        Vec::new()
    };
    let mut blamed: Vec<PathBuf> = Vec::new();
    for at in died {
        let Some(view) = view_of(&report.children[at]) else { continue };
        let shows = |outcome: &Outcome| {
            listed(outcome, None).iter().any(|other| other.label == view.label && other.uuid == view.uuid)
        };
        let found = asked.iter().find(|(_, outcome)| shows(outcome)).map(|(manifest, _)| manifest.path.clone());
        let Some(path) = view.manifest.clone().or(found) else { continue };
        let child = &mut report.children[at];
        child.culprit = Some(library_of(context, &path));
        let what = child.in_short();
        let manifest = context.evidence.manifests.iter().find(|manifest| manifest.path == path);
        if let Some(manifest) = manifest.filter(|_| !blamed.contains(&path)) {
            // One survey is one crash, however many devices the driver has.
            context.guard.crashed(&id(&path), &context.evidence.driver_key(manifest), &what);
            report.disabled.push(path.clone());
            blamed.push(path);
        }
    }
}
