//! Impasto as a library: what other programs use, and what the `impasto` command is a thin layer over.
//!
//! The first line of an embedding program's `main` must be [`probe_hook`]: drivers and instruction sets that have not
//! proved themselves are tried in a short-lived child process, which is the same program started again.
//!
//! ```
//! // In `main`, before anything else:
//! impasto::probe_hook();
//! ```

mod backends;
pub mod bench;
mod default_model;
mod inspect;

pub use impasto_backend as backend;
pub use impasto_device as device;
pub use impasto_generate as generate;
pub use impasto_graph as graph;
pub use impasto_kernel as kernel;
pub use impasto_model as model;
pub use impasto_weights as weights;
pub use impasto_worker as worker;

pub use backends::{BackendOptions, backend, machine};
pub use default_model::default_model;
pub use inspect::{Inspection, Part, TextEncoder, inspect};

/// Must be the first line of `main`. Returns at once in an ordinary process; in a child that was started for a trial, or as the worker
/// of a device, it does that work and never returns.
pub fn probe_hook() {
    let trials = [&impasto_backend::cpu::TRIALS[..], &impasto_device::PROBES, &[impasto_worker::TRIAL]].concat();
    impasto_device::hook(&trials);
}

/// Where the rates of devices are kept between runs.
pub fn rates_file() -> Option<std::path::PathBuf> {
    impasto_store::user_folder().map(|folder| folder.join("rates.json"))
}

/// How to ask which devices are here, for a program of this build: with the processor's instruction paths, and with what this
/// build can compute on.
///
/// ```
/// use impasto::device::{SurveyOptions, survey};
///
/// // No API is asked here, so no child is started.
/// let options = SurveyOptions { apis: vec![], ..impasto::survey_options() };
/// assert!(survey(&options).find("cpu").is_some());
/// ```
pub fn survey_options() -> impasto_device::SurveyOptions {
    let paths = || {
        let findings = impasto_backend::cpu::findings();
        let usable = findings.iter().filter(|finding| finding.usable).map(|finding| finding.isa.to_string()).collect();
        (usable, findings.iter().all(|finding| finding.usable || !finding.isa.claimed()))
    };
    let usable = vec![impasto_device::Api::Cpu, impasto_device::Api::Vulkan];
    impasto_device::SurveyOptions { cpu_paths: paths, usable, ..impasto_device::SurveyOptions::default() }
}
