//! Fault injection. Crates ask here at the places where the world can fail them; a build without the feature `faults` does not contain this
//! crate at all.
//!
//! What is to fail is said by `IMPASTO_FAULT`, or by [`plan`], as items separated by commas:
//!
//! | item | what fails |
//! |---|---|
//! | `vulkan0:alloc:7` | the seventh allocation on that device |
//! | `vulkan0:alloc:7+` | the seventh and all that follow |
//! | `vulkan0:alloc:>1000` | every allocation of more than 1000 bytes |
//! | `cpu:submit:3` | the third piece of work handed to that device: it is lost, and so is all that follows |
//! | `cpu:nan:12` | the result of the twelfth op, or of the twelfth run where ops cannot be told apart, is NaN |
//! | `disk:write:2`, `disk:write:2+` | the second file that is written, in the middle; and all that follow |
//!
//! ```
//! impasto_faults::plan("vulkan0:alloc:2,disk:write:1").unwrap();
//! assert!(!impasto_faults::alloc("vulkan0", 10) && impasto_faults::alloc("vulkan0", 10) && !impasto_faults::alloc("vulkan0", 10));
//! assert_eq!(impasto_faults::fired(), ["vulkan0:alloc:2"]);
//! assert!(impasto_faults::plan("vulkan0:smoke:1").is_err());
//! ```

#![deny(missing_docs, unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What fails.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Alloc,
    Submit,
    Nan,
    Write,
}

#[derive(Clone, Copy)]
enum When {
    /// The one of this number, and perhaps all that follow.
    At(u64, bool),
    /// Those of more bytes than this.
    Above(u64),
}

struct Fault {
    device: String,
    kind: Kind,
    when: When,
    text: String,
}

struct State {
    /// Somebody has said what is to fail, be it nothing. Else nothing is counted either: a test build runs like a release.
    asked: bool,
    faults: Vec<Fault>,
    /// How often each was asked about.
    counts: BTreeMap<(String, Kind), u64>,
    fired: Vec<String>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn read(text: &str) -> Result<Vec<Fault>, String> {
    let one = |item: &str| {
        let wrong = || format!("'{item}' is no fault; one is written as vulkan0:alloc:7");
        let parts: Vec<&str> = item.split(':').collect();
        let [device, kind, when] = parts[..] else { return Err(wrong()) };
        let kind = match kind {
            "alloc" => Kind::Alloc,
            "submit" => Kind::Submit,
            "nan" => Kind::Nan,
            "write" => Kind::Write,
            _ => return Err(wrong()),
        };
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        let when = match (when.strip_prefix('>'), when.strip_suffix('+')) {
            (Some(bytes), _) => When::Above(number(bytes)?),
            (_, Some(first)) => When::At(number(first)?, true),
            // What is lost stays lost.
            _ => When::At(number(when)?, kind == Kind::Submit),
        };
        Ok(Fault { device: device.into(), kind, when, text: item.into() })
    };
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(one).collect()
}

fn state() -> MutexGuard<'static, Option<State>> {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if state.is_none() {
        let text = std::env::var("IMPASTO_FAULT").ok();
        let faults = read(text.as_deref().unwrap_or_default()).unwrap_or_else(|problem| {
            eprintln!("IMPASTO_FAULT: {problem}");
            std::process::exit(2)
        });
        *state = Some(State { asked: text.is_some(), faults, counts: BTreeMap::new(), fired: vec![] });
    }
    state
}

/// From now on these fail, and nothing has been counted yet.
pub fn plan(text: &str) -> Result<(), String> {
    let faults = read(text)?;
    *state() = Some(State { asked: true, faults, counts: BTreeMap::new(), fired: vec![] });
    Ok(())
}

fn fails(device: &str, kind: Kind, bytes: u64) -> bool {
    let mut state = state();
    let Some(State { asked: true, faults, counts, fired }) = state.as_mut() else { return false };
    let count = counts.entry((device.to_owned(), kind)).or_default();
    *count += 1;
    let hits = |fault: &&Fault| {
        let now = match fault.when {
            When::At(number, on) => *count == number || on && *count > number,
            When::Above(limit) => bytes > limit,
        };
        now && fault.device == device && fault.kind == kind
    };
    let Some(fault) = faults.iter().find(hits) else { return false };
    if !fired.contains(&fault.text) {
        eprintln!("fault: {}", fault.text);
        fired.push(fault.text.clone());
    }
    true
}

/// Whether this allocation fails.
pub fn alloc(device: &str, bytes: u64) -> bool {
    fails(device, Kind::Alloc, bytes)
}

/// Whether the device is lost with this piece of work.
pub fn submit(device: &str) -> bool {
    fails(device, Kind::Submit, 0)
}

/// Whether this result is no number.
pub fn nan(device: &str) -> bool {
    fails(device, Kind::Nan, 0)
}

/// Whether the disk is full in the middle of this file.
pub fn write() -> bool {
    fails("disk", Kind::Write, 0)
}

/// The faults that have come true.
pub fn fired() -> Vec<String> {
    state().as_ref().map_or(vec![], |state| state.fired.clone())
}

/// How often a device was asked for allocations, pieces of work and results.
pub fn counts(device: &str) -> [u64; 3] {
    let state = state();
    let of = |kind| state.as_ref().and_then(|state| state.counts.get(&(device.to_owned(), kind)).copied()).unwrap_or(0);
    [Kind::Alloc, Kind::Submit, Kind::Nan].map(of)
}
