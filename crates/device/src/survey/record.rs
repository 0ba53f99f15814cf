//! What happened while an API was asked, child by child: for the user's one line, for a bug report, and for the cache.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::guard::CrashRecord;
use super::{Api, Context, DeviceInfo};
use crate::{Outcome, Verdict};

/// What a child was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// All drivers of an API together.
    Enumerate,
    /// One driver alone.
    Alone,
    /// One device that must compute, with its driver alone.
    Trial,
    /// A driver that is not installed for this API, to find out whether it would help.
    Advice,
}

/// One child and its end.
#[derive(Clone, Debug, Serialize)]
pub struct Child {
    /// What it was for.
    pub phase: Phase,
    /// What it asked: all drivers, a manifest, a device.
    pub subject: String,
    /// The library or device that is to blame if it went wrong, as far as that is known.
    pub culprit: Option<String>,
    /// How it ended.
    pub verdict: Verdict,
    /// The stage that it entered last.
    pub stage: Option<String>,
    /// How many devices it reported.
    pub devices: usize,
    /// The end of what it and its driver printed.
    pub stderr: String,
    /// How many seconds it took.
    pub seconds: f64,
}

impl Child {
    pub(super) fn new(phase: Phase, subject: impl Into<String>, culprit: Option<String>, outcome: &Outcome) -> Child {
        Child {
            phase,
            subject: subject.into(),
            culprit,
            verdict: outcome.verdict.clone(),
            stage: outcome.stage.clone(),
            devices: outcome.records.len(),
            stderr: outcome.stderr_tail.clone(),
            seconds: outcome.elapsed.as_secs_f64(),
        }
    }

    /// Whether the driver is to blame: it crashed, hung or talked nonsense. A kill from outside or a child that could not be started
    /// says nothing about it.
    pub fn is_fault(&self) -> bool {
        is_fault(&self.verdict)
    }

    /// What happened in a few words: `crashed during device probe (signal 11 in create-instance, driver libX)`.
    pub fn in_short(&self) -> String {
        let what = match &self.verdict {
            Verdict::Passed => return format!("found {} devices", self.devices),
            Verdict::Crashed { signal: Some(signal), .. } => ("crashed", format!("signal {signal}")),
            Verdict::Crashed { code: Some(code), .. } if *code < 0 => ("crashed", format!("code {code:#010x}")),
            Verdict::Crashed { code: Some(code), .. } => ("left", format!("exit code {code}")),
            Verdict::Crashed { .. } => ("crashed", "for an unknown reason".into()),
            Verdict::TimedOut { after } => ("hung", format!("no answer within {:.1} s", after.as_secs_f64())),
            Verdict::Killed => ("was killed from outside", "SIGKILL".into()),
            Verdict::Garbled { why } => ("gave no usable answer", why.clone()),
            Verdict::Failed { reason } => ("failed", reason.clone()),
            Verdict::CouldNotLoad { reason: Some(reason), .. } => return format!("could not be loaded ({reason})"),
            Verdict::CouldNotLoad { code, .. } => return format!("could not be probed (exit code {code})"),
            Verdict::SpawnFailed { why } => return format!("could not be probed ({why})"),
            Verdict::NoHook => return "not probed (this program has no probe hook and names no helper)".into(),
        };
        let stage = self.stage.as_ref().map_or_else(String::new, |stage| format!(" in {stage}"));
        let driver = self.culprit.as_ref().map_or_else(String::new, |culprit| format!(", driver {culprit}"));
        format!("{} during device probe ({}{stage}{driver})", what.0, what.1)
    }
}

pub(super) fn is_fault(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Crashed { .. } | Verdict::TimedOut { .. } | Verdict::Garbled { .. })
}

/// What happened with one API.
#[derive(Clone, Debug, Serialize)]
pub struct ApiReport {
    /// The API.
    pub api: Api,
    /// Whether the answer is an earlier one, still good.
    pub from_cache: bool,
    /// Whether it had not answered at the soft deadline.
    pub pending: bool,
    /// Whether no child was needed to know that it is not here: neither its library nor its hardware is.
    pub absent: bool,
    /// The children, in order.
    pub children: Vec<Child>,
    /// Drivers that were left alone since they have crashed before.
    pub blocked: Vec<CrashRecord>,
    /// Drivers that were left out in this survey, since they went wrong: manifests or libraries.
    pub disabled: Vec<PathBuf>,
    /// Whether the loader loads other drivers than the one that it is told to, so that none can be asked alone.
    pub together_only: bool,
    /// Devices that were listed but not tried, since there were too many or time ran out.
    pub untried: usize,
}

impl ApiReport {
    pub(super) fn new(api: Api) -> ApiReport {
        ApiReport {
            api,
            from_cache: false,
            pending: false,
            absent: false,
            children: Vec::new(),
            blocked: Vec::new(),
            disabled: Vec::new(),
            together_only: false,
            untried: 0,
        }
    }

    /// Whether one driver disturbs the others: children went wrong with all drivers loaded, and each driver works alone.
    pub(super) fn disturbed_only(&self) -> bool {
        let mut wrong = self.children.iter().filter(|child| child.is_fault() && child.phase != Phase::Advice);
        wrong.all(|child| child.phase == Phase::Enumerate)
            && self.children.iter().any(|child| child.phase == Phase::Alone)
    }

    /// The child whose end says most about what is wrong: of one driver alone before all together.
    pub fn fault(&self) -> Option<&Child> {
        let faults = || self.children.iter().filter(|child| child.is_fault() && child.phase != Phase::Advice);
        faults().find(|child| child.culprit.is_some()).or_else(|| faults().next())
    }

    /// One line for the user if a driver went wrong:
    /// `vulkan: crashed during device probe (signal 11 in create-instance, driver libX); trying next backend`.
    pub fn line(&self) -> Option<String> {
        let api = self.api;
        if self.pending {
            return Some(format!("{api}: no answer from the device probe yet; going on without it"));
        }
        if let Some(fault) = self.fault() {
            if self.disturbed_only() {
                return Some(format!("{api}: {} with all drivers loaded; each is used alone", fault.in_short()));
            }
            return Some(format!("{api}: {}; trying next backend", fault.in_short()));
        }
        let blocked = self.blocked.first()?;
        let driver = super::manifest::file_name(blocked.driver.as_ref());
        Some(format!(
            "{api}: driver {driver} is left alone, it crashed {} times ({}); `{}` tries it again",
            blocked.crashes,
            blocked.what,
            super::FORGET_COMMAND
        ))
    }

    /// Whether everything that was asked answered well, so that the answer may be kept.
    pub(super) fn is_clean(&self) -> bool {
        let is_well = |child: &Child| match child.phase {
            Phase::Enumerate | Phase::Trial => child.verdict.passed(),
            // A driver without hardware may well refuse.
            Phase::Alone => !child.is_fault(),
            Phase::Advice => true,
        };
        self.untried == 0 && self.children.iter().all(is_well)
    }
}

/// An API's answer in the cache.
#[derive(Serialize, Deserialize)]
struct CachedAnswer {
    key: Vec<String>,
    views: Vec<DeviceInfo>,
}

#[derive(Serialize, Deserialize)]
struct CachedPaths {
    key: Vec<String>,
    paths: Vec<String>,
}

impl Context {
    /// The key of an answer: what was read, and which drivers are left alone.
    pub(super) fn cache_key(&self, api: Api, blocked: &[CrashRecord]) -> Vec<String> {
        let mut key = self.evidence.key(api);
        key.extend(blocked.iter().map(|known| format!("blocked {}", known.driver)));
        key
    }

    /// An earlier answer to the same question.
    pub(super) fn recall(&self, api: Api, key: &[String]) -> Option<Vec<DeviceInfo>> {
        if self.options.fresh {
            return None;
        }
        let kept: CachedAnswer = serde_json::from_str(&self.options.store.read(&format!("{api}.json"))?).ok()?;
        (kept.key == key && !kept.views.is_empty()).then_some(kept.views)
    }

    /// Paths of the processor that passed in an earlier run.
    pub(super) fn recall_paths(&self, key: &[String]) -> Option<Vec<String>> {
        if self.options.fresh {
            return None;
        }
        let kept: CachedPaths = serde_json::from_str(&self.options.store.read("cpu.json")?).ok()?;
        (kept.key == key && !kept.paths.is_empty()).then_some(kept.paths)
    }

    pub(super) fn keep_paths(&self, key: Vec<String>, paths: &[String]) {
        if let Ok(text) = serde_json::to_string(&CachedPaths { key, paths: paths.to_vec() }) {
            self.options.store.write("cpu.json", &text);
        }
    }

    /// Only good answers are kept: an empty one may be good again in a minute.
    pub(super) fn keep(&self, api: Api, key: Vec<String>, views: &[DeviceInfo]) {
        if views.is_empty() || !views.iter().all(DeviceInfo::is_healthy) {
            return;
        }
        if let Ok(text) = serde_json::to_string(&CachedAnswer { key, views: views.to_vec() }) {
            self.options.store.write(&format!("{api}.json"), &text);
        }
    }
}
