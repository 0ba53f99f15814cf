//! Plans, executed.
//!
//! A [`Backend`] is a device that computes; [`open`] opens one, whatever API it is reached by. Its way: state [`Capabilities`] so that a [`Plan`] can be made,
//! [`pack`](Backend::pack) the parameters once into the layout that its kernels read, [`prepare`](Backend::prepare) a plan
//! (all memory is taken here, exactly as planned), then [`run`](Session::run) it as often as wanted without another
//! allocation.
//!
//! ```
//! use impasto_backend::{Backend, Params, cpu::Cpu};
//! use impasto_graph::{DType, Epilogue, Graph, HostTensor, Plan, Storage};
//!
//! let mut g = Graph::new();
//! let x = g.input("x", [1, 2], DType::F32)?;
//! let w = g.param("w", [3, 2], Storage::Dense(DType::F32))?;
//! let y = g.linear(x, w, Epilogue::new())?;
//! g.output("y", y)?;
//!
//! let cpu = Cpu::new(&Default::default())?;
//! let plan = Plan::new(&g, &cpu)?;
//! let mut params = Params::new();
//! params.insert("w", HostTensor::f32([3, 2], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?);
//! let weights = cpu.pack(&g, &plan, &params)?;
//! let mut session = cpu.prepare(&g, &plan, &weights)?;
//! let x = HostTensor::f32([1, 2], vec![10.0, 1.0])?;
//! let y = session.run_to_new(&[("x", &x)])?.remove(0);
//! assert_eq!(y.to_f32(), [12.0, 34.0, 56.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::any::Any;
use std::sync::Arc;

use impasto_graph::{Capabilities, DType, Graph, HostTensor, Plan, TensorType, Weight};

pub use cpu::memory::AlignedBytes;
pub use cuda::TRIAL as HELPER;
pub use impasto_graph::Meter;
pub use impasto_weights::{FileError, FileFault, Origin, ParamError, ParamInfo, Params, SharedSource, WeightSource};
pub use pulse::Pulse;
pub use registry::{DeviceOptions, Precision, driver_memory, open, profile};
pub use session::{Signature, step_times};
pub use stored::kept_blocks;
pub use stream::{HostWeights, Streaming};
pub use with_limits::WithLimits;

pub mod cpu;
pub mod cuda;
pub mod gpu;
pub mod io;
mod pulse;
mod registry;
mod session;
mod shapes;
mod stored;
mod stream;
mod tasks;
pub mod vulkan;
mod with_limits;

/// Bytes in the user's words.
fn amount(bytes: u64) -> String {
    match bytes < 100_000 {
        true => format!("{bytes} bytes"),
        false => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

/// What can go wrong on a device. A backend never panics for want of memory.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BackendError {
    /// The device has no memory left.
    #[error("{device} has no memory left: {} that were planned were refused", amount(*bytes))]
    Exhausted {
        /// The device.
        device: String,
        /// What was asked for.
        bytes: u64,
    },
    /// The device is gone.
    #[error("{device} is lost: {reason}")]
    Lost {
        /// The device.
        device: String,
        /// What was seen.
        reason: String,
    },
    /// The device cannot do this.
    #[error("{device} cannot be used for this: {reason}")]
    Unsupported {
        /// The device.
        device: String,
        /// What is missing.
        reason: String,
    },
    /// A parameter that the model file does not have, or has in another shape or storage.
    #[error("parameter '{name}': {problem}")]
    Param {
        /// The parameter.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A model file that has changed since it was opened, or cannot be read any more. No other device helps against that.
    #[error(transparent)]
    File(#[from] FileError),
    /// An input or output that does not fit the graph.
    #[error("{kind} '{name}': {problem}")]
    Io {
        /// Input or output.
        kind: &'static str,
        /// Its name.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Somebody asked to stop.
    #[error("{device}: interrupted")]
    Interrupted {
        /// The device.
        device: String,
    },
    /// A setting that cannot be.
    #[error("{0}")]
    Setting(String),
}

impl From<ParamError> for BackendError {
    fn from(error: ParamError) -> BackendError {
        match error {
            ParamError::Wrong { name, problem } => BackendError::Param { name, problem },
            ParamError::File(error) => BackendError::File(error),
            ParamError::Interrupted { reader } => BackendError::Interrupted { device: reader },
            ParamError::Gone { reason } => BackendError::Lost { device: "host".into(), reason },
        }
    }
}

/// Parameters on a device, in the layout that its kernels read. Cheap to clone; plans of the same model share them.
#[derive(Clone)]
pub struct Weights {
    bytes: u64,
    inner: Arc<dyn Any + Send + Sync>,
    feed: Option<SharedSource>,
    adapters: Option<Arc<Weights>>,
}

impl Weights {
    /// Parameters that a backend keeps in its own way, in so many bytes of its device.
    pub fn new(bytes: u64, inner: impl Any + Send + Sync) -> Self {
        Weights { bytes, inner: Arc::new(inner), feed: None, adapters: None }
    }

    /// The same, with where those come from that are streamed to the device.
    pub fn fed_by(self, source: SharedSource) -> Self {
        Weights { feed: Some(source), ..self }
    }

    /// The same, with the [adapters](Backend::pack_adapters) of a plan in place of others.
    pub fn with_adapters(self, adapters: Option<Weights>) -> Self {
        Weights { adapters: adapters.map(Arc::new), ..self }
    }

    /// The adapters beside them.
    pub fn adapters(&self) -> Option<&Weights> {
        self.adapters.as_deref()
    }

    /// What the backend of a device keeps. Weights of another kind of backend are an error.
    pub fn of<T: Any>(&self, device: &str) -> Result<&T, BackendError> {
        let reason = "these weights are on another device";
        let elsewhere = || BackendError::Unsupported { device: device.into(), reason: reason.into() };
        self.inner.downcast_ref().ok_or_else(elsewhere)
    }

    /// Where the weights come from that are streamed.
    pub fn feed(&self, device: &str) -> Result<SharedSource, BackendError> {
        let reason = "these weights are streamed, and nobody says where they come from";
        self.feed.clone().ok_or_else(|| BackendError::Unsupported { device: device.into(), reason: reason.into() })
    }

    /// Bytes that they take on the device.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A device as planning sees it; it need not be open, nor here.
pub trait Profile: Capabilities + Send + Sync {
    /// The device's name: `cpu`, `vulkan0`, ...
    fn name(&self) -> &str;

    /// What it is and how it computes, in a few words.
    fn about(&self) -> String;

    /// The element type in which what flows between layers is best kept here.
    fn activations(&self) -> DType;

    /// The same device computing in 32-bit floats; none if it does, or cannot.
    fn profile_in_f32(&self) -> Option<Arc<dyn Profile>> {
        None
    }

    /// One parameter as the device keeps it, in as many bytes as are planned for it.
    fn pack_one(&self, graph: &Graph, weight: &Weight, source: &dyn WeightSource)
    -> Result<AlignedBytes, BackendError>;
}

/// A device that computes.
pub trait Backend: Send + Sync {
    /// The device as planning sees it.
    fn profile(&self) -> Arc<dyn Profile>;

    /// What the device was asked for.
    fn meter(&self) -> &Meter;

    /// What products could reach at best here, measured now: thousand million operations a second.
    fn peak_gflops(&self) -> Result<f64, BackendError>;

    /// The parameters of a plan without adapters, packed for the device and kept in host memory.
    fn pack_on_host(&self, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<HostWeights, BackendError> {
        HostWeights::plain(&*self.profile(), graph, plan, source)
    }

    /// Bring the parameters that stay on the device in a plan there, each read once, but for adapters. Of a plan in which others are streamed, the result
    /// must be [fed](Weights::fed_by).
    fn pack(&self, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<Weights, BackendError>;

    /// Bring the adapters of a plan to the device ([`Graph::is_adapter`]), for weights that get them by [`Weights::with_adapters`].
    fn pack_adapters(&self, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<Weights, BackendError>;

    /// Take the memory of a plan and make everything ready to run.
    fn prepare(&self, graph: &Graph, plan: &Plan, weights: &Weights) -> Result<Box<dyn Session>, BackendError>;

    /// After the device was lost it can be opened anew: true of a worker process, since what was lost is that process.
    fn reopens(&self) -> bool {
        false
    }

    /// The same open device, with the same meter, computing in 32-bit floats: where [`Profile::profile_in_f32`] is something.
    fn in_f32(&self) -> Option<Arc<dyn Backend>> {
        None
    }
}

/// A plan with its memory, ready to run.
pub trait Session: Send {
    /// The inputs that each run needs.
    fn inputs(&self) -> &[(String, TensorType)];

    /// The outputs that each run yields.
    fn outputs(&self) -> &[(String, TensorType)];

    /// Run once. Inputs are looked up by name; `outputs` are filled in the order of [`Session::outputs`]. Allocates
    /// nothing.
    fn run(&mut self, inputs: &[(&str, &HostTensor)], outputs: &mut [HostTensor]) -> Result<(), BackendError>;

    /// What bringing weights cost in the last run, where they are streamed.
    fn streaming(&self) -> Option<Streaming> {
        None
    }

    /// Bytes of device memory that this session holds; parameters not counted.
    fn allocated_bytes(&self) -> u64;

    /// Bytes of host memory that this session holds for values that rest there.
    fn host_bytes(&self) -> u64 {
        0
    }

    /// Time spent in each step of the last run, by label and op, where the session was prepared to measure it.
    fn profile(&self) -> Vec<StepTime>;

    /// Run once into new tensors.
    fn run_to_new(&mut self, inputs: &[(&str, &HostTensor)]) -> Result<Vec<HostTensor>, BackendError> {
        let mut outputs: Vec<HostTensor> = self.outputs().iter().map(|(_, ty)| HostTensor::zeros(ty)).collect();
        self.run(inputs, &mut outputs)?;
        Ok(outputs)
    }
}

/// The time of one step.
#[derive(Clone, Debug)]
pub struct StepTime {
    /// Where in the model the op stands.
    pub label: String,
    /// The op's name.
    pub op: &'static str,
    /// Seconds.
    pub seconds: f64,
    /// Useful floating-point operations.
    pub flops: u64,
}
