//! What hardware is here, found out without trusting it.
//!
//! A driver can crash, hang, print garbage or leave the process; a processor can claim instructions that it then refuses.
//! So whatever may kill its process is first done in a child that we can lose. This crate has four parts:
//!
//! - [`survey()`] tells which devices are here and healthy;
//! - [`trial()`] runs a risky function in a re-executed child with a deadline and returns a typed [`Verdict`];
//! - [`cpu`] tells which part of the processor and of its memory this process may use;
//! - [`Limits`] says how much a device can hold, which is all that planning needs to know of it.
//!
//! # How to begin
//!
//! The child is this same program, started again. For that [`hook`] must be the first line of `main`: it returns at once in
//! the ordinary process, and in a child it runs the one trial that was asked for and never returns.
//!
//! ```standalone_crate
//! use impasto_device::{TrialOptions, TrialReport, Trial, Verdict, hook, leave_at_once, trial};
//!
//! const TRIALS: &[Trial] = &[
//!     Trial { name: "multiply", run: multiply },
//!     Trial { name: "bad-driver", run: |_| std::process::abort() },
//! ];
//!
//! fn multiply(report: &mut TrialReport) -> Result<(), String> {
//!     report.stage("first product");
//!     let product = std::hint::black_box(6) * 7;
//!     report.record(&product);
//!     if product == 42 { Ok(()) } else { Err(format!("6 x 7 gave {product}")) }
//! }
//!
//! fn main() {
//!     hook(TRIALS);
//!
//!     let good = trial("multiply", &TrialOptions::default());
//!     assert!(good.verdict.passed(), "{good}");
//!     assert_eq!(good.records, [42]);
//!
//!     // The child is gone, this process is not.
//!     let bad = trial("bad-driver", &TrialOptions::default());
//!     assert!(!bad.verdict.passed());
//!     println!("bad-driver: {bad}");
//! }
//! ```
//!
//! # What holds for every trial
//!
//! It ends soon after its deadline at the latest, leaves no process, zombie or descriptor behind, writes no core file, and
//! cannot mix its output into ours. A trial that did not say it was done has not passed, whatever its exit code.

#![deny(missing_docs, unsafe_code)]

pub mod cpu;
mod probe;
mod survey;
#[allow(unsafe_code)]
mod sys;
mod trial;

pub use impasto_graph::Limits;
pub use probe::PROBES;
pub use survey::{
    Api, ApiReport, Attempt, Child, CooperativeMatrix, CrashRecord, Device, DeviceInfo, DeviceKind, Diagnosis,
    FORGET_COMMAND, Features, Phase, Standing, Store, Survey, SurveyOptions, UseGuard, context_memory, cuda_info,
    free_memory, survey, vulkan_info,
};
pub use trial::{
    Channel, Companion, Link, Outcome, Trial, TrialOptions, TrialReport, Verdict, hook, leave_at_once, trial,
};
