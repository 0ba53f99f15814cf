//! A backend whose device is open in a process of its own.
//!
//! A driver that crashes, aborts, hangs or leaves takes its process with it. So that this is never the process that holds a run, [`Remote`]
//! is a [`Backend`](impasto_backend::Backend) whose device is open in a worker: this same program, started again by the hook that trials
//! use. Graphs, plans and small tensors go over a channel, large tensors through shared memory; model files are read by the
//! worker itself. However the worker ends, the answer here is [`Lost`](impasto_backend::BackendError::Lost) with one sentence that says how.
//!
//! `message` is the protocol, `frame` its framing; `serve` is the worker's side, `sources` its weights; `worker` is the process as its
//! parent sees it, `watch` its watchdog; `remote` is the backend. [docs/worker.md](https://github.com/impasto/impasto/blob/main/docs/worker.md) has it on one page.

#![deny(missing_docs, unsafe_code)]

mod frame;
mod memory;
mod message;
mod options;
mod remote;
mod serve;
mod session;
mod sources;
mod watch;
mod worker;

pub use options::{Log, WorkerOptions};
pub use remote::Remote;
pub use serve::TRIAL;
