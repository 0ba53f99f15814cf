//! `impasto devices`, and what `generate` says of GPUs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use impasto::backend::{DeviceOptions, profile};
use impasto::device::{
    Device, DeviceInfo, DeviceKind, Standing, Store, Survey, SurveyOptions, context_memory, free_memory, survey,
};
use serde_json::json;

use super::Devices;
use super::show::{self, bytes, rows};

/// `--list-devices` in the first place is another way to write `devices`.
pub fn spelled_out(mut args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut all: Vec<OsString> = args.by_ref().take(2).collect();
    if all.get(1).is_some_and(|first| first == "--list-devices") {
        all[1] = "devices".into();
    }
    all.extend(args);
    all
}

/// The command.
pub fn devices(args: &Devices) -> anyhow::Result<()> {
    if args.forget {
        return forget();
    }
    if !(args.timeout.is_finite() && (0.1..=3600.0).contains(&args.timeout)) {
        bail!("--timeout {}: not between 0.1 and 3600 seconds", args.timeout);
    }
    let options =
        SurveyOptions { fresh: args.fresh, hard: Duration::from_secs_f64(args.timeout), ..impasto::survey_options() };
    let survey = survey(&options);
    let free: Vec<(String, Option<u64>)> =
        survey.views().map(|view| (view.name.clone(), free_memory(view, &options))).collect();
    let contexts: BTreeMap<&str, u64> =
        survey.views().filter_map(|view| Some((&view.name[..], context_memory(view, &options)?))).collect();
    let free_of = |name: &str| free.iter().find(|(known, _)| known == name).and_then(|(_, bytes)| *bytes);
    if let Some(file) = &args.report {
        write_report(file, &survey, &free, &contexts)?;
    }
    if args.json {
        show::json(&as_json(&survey, &free, &contexts));
        return Ok(());
    }
    table(&survey, &free_of);
    for (name, taken) in contexts {
        show::line(format_args!("{name}: free is what is left beside a context of CUDA, which takes {}", bytes(taken)));
    }
    Ok(())
}

fn as_json(survey: &Survey, free: &[(String, Option<u64>)], contexts: &BTreeMap<&str, u64>) -> serde_json::Value {
    let free: BTreeMap<&str, Option<u64>> = free.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
    json!({ "version": env!("CARGO_PKG_VERSION"), "free_memory": free, "context_memory": contexts, "survey": survey })
}

fn forget() -> anyhow::Result<()> {
    let store = Store::of_user();
    let removed = store.forget().context("the verdicts of earlier runs could not be removed")?;
    match (removed.len(), store.folder()) {
        (0, _) => show::line(format_args!("nothing was remembered")),
        (n, folder) => {
            let folder = folder.map_or_else(String::new, |folder| format!(" from {}", folder.display()));
            show::line(format_args!("{n} files removed{folder}; every driver is asked anew"));
        }
    }
    Ok(())
}

/// A row for each piece of hardware, a line for each thing that is wrong.
fn table(survey: &Survey, free: &dyn Fn(&str) -> Option<u64>) {
    let head = ["name", "what it is", "memory free / total", "largest allocation / binding", "driver", "verdict"];
    let mut lines: Vec<[String; 6]> = vec![head.map(str::to_owned)];
    for device in &survey.devices {
        lines.extend(row(device, free));
    }
    rows(&lines);
    if !survey.findings.is_empty() {
        show::line(format_args!(""));
    }
    survey.findings.iter().for_each(|finding| show::line(format_args!("! {finding}")));
}

fn row(device: &Device, free: &dyn Fn(&str) -> Option<u64>) -> Option<[String; 6]> {
    let view = device.best()?;
    let free = device.views.iter().find_map(|view| free(&view.name));
    Some([
        device.names(),
        format!("{}: {}", view.kind, view.label),
        format!("{} / {}", free.map_or_else(|| "?".into(), bytes), bytes(view.limits.memory)),
        match view.kind {
            DeviceKind::Cpu => view.cores.map_or_else(String::new, |cores| format!("{cores} cores")),
            _ => format!("{} / {}", bytes(view.limits.max_allocation), bytes(view.limits.max_binding)),
        },
        driver(device),
        verdict(device),
    ])
}

fn driver(device: &Device) -> String {
    let one = |view: &DeviceInfo| match view.kind {
        DeviceKind::Cpu => view.features.paths.join(", "),
        _ => {
            format!("{} {} {}", view.driver, view.driver_version, view.api_version).replace("  ", " ").trim().to_owned()
        }
    };
    device.views.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn verdict(device: &Device) -> String {
    let refused = |view: &DeviceInfo| profile(view, &DeviceOptions::default()).err();
    let may = device.views.iter().filter(|v| v.standing == Standing::Usable && refused(v).is_none());
    let usable: Vec<&str> = may.map(|v| &v.name[..]).collect();
    let Some(view) = device.views.first() else { return String::new() };
    match &view.standing {
        _ if !usable.is_empty() && usable.len() < device.views.len() => format!("usable as {}", usable.join(", ")),
        Standing::Usable => refused(view).map_or("usable".into(), |why| why.to_string()),
        Standing::NotYet { instead } if view.is_gpu() => format!("seen, not usable yet: use {instead}"),
        Standing::NotYet { instead } => format!("seen, no GPU, not usable yet: use {instead}"),
        Standing::Refused { why } => format!("refused: {why}"),
    }
}

/// Everything, without what names the user or the machine.
fn write_report(
    file: &Path,
    survey: &Survey,
    free: &[(String, Option<u64>)],
    contexts: &BTreeMap<&str, u64>,
) -> anyhow::Result<()> {
    let environment: BTreeMap<String, String> = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .filter(|(name, _)| REPORTED.iter().any(|begin| name.starts_with(begin)))
        .collect();
    let mut all = as_json(survey, free, contexts);
    all["environment"] = json!(environment);
    all["system"] = json!({
        "os": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
        "kernel": std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        "nvidia": std::fs::read_to_string("/proc/driver/nvidia/version").ok(),
    });
    let text = serde_json::to_string_pretty(&all).context("the report is plain data")?;
    let text = without_names(&text, &private_names());
    std::fs::write(file, text + "\n").with_context(|| format!("{} could not be written", file.display()))?;
    eprintln!("report written to {}; read it before you send it", file.display());
    Ok(())
}

/// Variables that matter to drivers; no others leave the machine.
const REPORTED: &[&str] = &[
    "CUDA_",
    "DISPLAY",
    "DRI_",
    "HIP_",
    "LD_",
    "LIBGL_",
    "MESA_",
    "NVIDIA_",
    "ROCR_",
    "VK_",
    "WAYLAND_DISPLAY",
    "IMPASTO_",
];

/// What is replaced by what: the home folder, the user and the host. Short names are left, since they are part of other words.
fn private_names() -> Vec<(String, &'static str)> {
    let variable = |name: &str| std::env::var(name).ok();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| variable("COMPUTERNAME"));
    let names = [
        (variable("HOME").or_else(|| variable("USERPROFILE")), "~"),
        (host, "HOST"),
        (variable("HOSTNAME"), "HOST"),
        (variable("USER").or_else(|| variable("USERNAME")), "USER"),
    ];
    let known = names
        .into_iter()
        .filter_map(|(name, instead)| Some((name?.trim().trim_end_matches(['/', '\\']).to_owned(), instead)));
    known.filter(|(name, _)| name.len() > 2 && name != "root" && name != "localhost").collect()
}

fn without_names(text: &str, names: &[(String, &'static str)]) -> String {
    let mut text = text.to_owned();
    for (name, instead) in names {
        // As it is, and as JSON writes it.
        let written = serde_json::to_string(name).unwrap_or_default();
        text = text.replace(written.trim_matches('"'), instead).replace(name.as_str(), instead);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_neither_the_user_nor_the_machine() {
        let names =
            vec![("/home/anna".to_owned(), "~"), ("C:\\Users\\anna".to_owned(), "~"), ("studio7".to_owned(), "HOST")];
        let text = serde_json::to_string(&json!({
            "a": "/home/anna/.local/share", "b": "C:\\Users\\anna\\x", "c": "anna on studio7.local"
        }));
        let clean = without_names(&text.expect("plain data"), &names);
        assert!(clean.contains("~/.local/share") && !clean.contains("studio7") && !clean.contains("Users"), "{clean}");
    }

    #[test]
    fn list_devices_is_devices_only_in_the_first_place() {
        let spelled = |args: &[&str]| spelled_out(args.iter().map(OsString::from)).join(&OsString::from(" "));
        assert_eq!(spelled(&["impasto", "--list-devices", "--json"]), "impasto devices --json");
        assert_eq!(spelled(&["impasto", "-p", "--list-devices"]), "impasto -p --list-devices");
        assert_eq!(spelled(&["impasto"]), "impasto");
        assert_eq!(spelled(&[]), "");
    }
}
