//! CUDA, from the outside.

use std::collections::BTreeMap;
use std::time::Instant;

use impasto_cuda::LIBRARY as NAME;

use super::in_use::blocked_record;
use super::record::{Child, is_fault};
use super::{Answer, Api, ApiReport, Context, DeviceInfo, Phase, Standing, argument, believe, in_parallel};
use crate::probe::cuda::CudaRecord;

/// More devices than this are listed, not tried.
pub(super) const MAX_TRIALS: usize = 16;

pub(super) fn ask(context: &Context) -> Answer {
    let mut report = ApiReport::new(Api::Cuda);
    if context.evidence.rules_out_cuda() {
        report.absent = true;
        return Answer { views: Vec::new(), report };
    }
    let driver_key = context.evidence.cuda_key();
    let trusting = context.options.fresh || context.options.asked_for;
    let held = blocked_record(&context.guard, NAME, &driver_key).filter(|_| !trusting);
    if let Some(known) = held {
        report.blocked.push(known);
        return Answer { views: Vec::new(), report };
    }
    let key = context.cache_key(Api::Cuda, &[]);
    if let Some(views) = context.recall(Api::Cuda, &key) {
        report.from_cache = true;
        return Answer { views, report };
    }
    let outcome = context.child("cuda-enumerate", String::new(), None, context.options.hard);
    let child = Child::new(Phase::Enumerate, NAME, Some(NAME.into()), &outcome);
    let mut views = Vec::new();
    if outcome.verdict.passed() {
        let seen = outcome.records.into_iter().map(serde_json::from_value::<CudaRecord>);
        views = seen.flatten().map(believe::cuda).collect();
    } else if child.is_fault() {
        context.guard.crashed(NAME, &driver_key, &child.in_short());
        report.disabled.push(NAME.into());
    }
    report.children.push(child);
    try_all(context, "cuda-trial", &mut views, &mut report, &|_| Some(NAME.to_owned()));
    if report.children.iter().any(|child| child.phase == Phase::Trial && child.is_fault()) {
        let what = report.fault().map(Child::in_short).unwrap_or_default();
        context.guard.crashed(NAME, &driver_key, &what);
    }
    if report.is_clean() {
        context.guard.worked(&[NAME.to_owned()]);
        context.keep(Api::Cuda, key, &views);
    }
    Answer { views, report }
}

/// Gives each healthy device a child in which it must compute; one that does not is refused. All together may take as long as one
/// child may.
pub(super) fn try_all(
    context: &Context,
    probe: &str,
    views: &mut [DeviceInfo],
    report: &mut ApiReport,
    culprit: &(dyn Fn(&DeviceInfo) -> Option<String> + Sync),
) {
    let begun = Instant::now();
    let healthy: Vec<usize> = (0..views.len()).filter(|&at| views[at].is_healthy()).collect();
    let healthy = in_turn(healthy, |&at| views[at].driver.clone());
    let (tried, rest) = healthy.split_at(healthy.len().min(MAX_TRIALS));
    let shared = &*views;
    let outcomes = in_parallel(tried, |&at| {
        let left = context.options.hard.saturating_sub(begun.elapsed());
        let view = &shared[at];
        (!left.is_zero()).then(|| context.child(probe, argument(view), view.manifest.as_deref(), left))
    });
    for (&at, outcome) in tried.iter().zip(outcomes) {
        let view = &mut views[at];
        let Some(outcome) = outcome else {
            report.untried += 1;
            view.standing = Standing::Refused { why: "not tried: other devices took all the time".into() };
            continue;
        };
        let subject = format!("{} {}", view.name, view.label);
        let mut child = Child::new(Phase::Trial, subject, culprit(view), &outcome);
        child.devices = 1;
        if !outcome.verdict.passed() {
            if child.culprit.is_none() && is_fault(&child.verdict) {
                child.culprit = Some(format!("{} ({})", view.label, view.driver));
            }
            view.standing = Standing::Refused { why: child.in_short() };
        }
        report.children.push(child);
    }
    for &at in rest {
        report.untried += 1;
        views[at].standing = Standing::Refused { why: format!("not tried: more than {MAX_TRIALS} devices") };
    }
}

/// The same items, one of each group at a time, so that a driver with hundreds of devices does not keep another one from its turn.
fn in_turn<T>(items: Vec<T>, group: impl Fn(&T) -> String) -> Vec<T> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut ranked: Vec<(usize, T)> = items
        .into_iter()
        .map(|item| {
            let rank = seen.entry(group(&item)).or_default();
            *rank += 1;
            (*rank, item)
        })
        .collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, item)| item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_driver_has_its_turn() {
        let items = ["a1", "a2", "a3", "b1", "c1", "c2"].to_vec();
        assert_eq!(in_turn(items, |item| item[..1].to_owned()), ["a1", "b1", "c1", "a2", "c2", "a3"]);
    }
}
