//! What the GPU APIs share: kernels, how ops become runs of them, the layout of weights, and the session that executes a plan.
//!
//! A device of any API is known by its [`GpuProfile`], which is plain data, so that plans need no driver. From a plan, `session` prepares
//! each step (`linear`, `conv`, `attention`, `norm`, `elementwise`, `movement`, `lookup`) as `Run`s of kernels over `Binding`s, and
//! `weights` brings parameters to the device; none of that knows an API. An API is an implementation of `Gpu`: memory, and commands that are
//! recorded once and submitted again and again.

mod attention;
mod conv;
mod elementwise;
mod gated;
mod host_mapped;
pub mod kernels;
mod linear;
mod lookup;
mod movement;
mod norm;
mod profile;
mod session;
pub(crate) mod trial;
mod weights;

use std::sync::Arc;

use impasto_graph::{Graph, Plan};
use impasto_kernel::{Kernel, KernelError};

use crate::stored::ParamSet;
use crate::{Backend, BackendError, HostWeights, Meter, Profile, Session, StepTime, WeightSource, Weights};
use host_mapped::HostMapped;
pub use profile::GpuProfile;
use session::GpuSession;
use weights::GpuWeights;

/// The most operations that are handed to a device at once: with more, a weak device that also draws a desktop would be taken for hung.
pub const MAX_SUBMITTED_FLOPS: u64 = 50_000_000_000;

/// The memories of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// The plan's arena.
    Arena,
    /// Host memory in which values rest.
    Host,
    /// Weights that stay on the device.
    Weights,
    /// Slots of streamed weights.
    Slots,
    /// Adapters beside the weights.
    Adapters,
}

/// Bytes of one of a session's memories that a kernel reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    pub(crate) space: Space,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

impl Binding {
    /// Whether both have a byte in common.
    pub(crate) fn overlaps(&self, other: &Binding) -> bool {
        self.space == other.space
            && self.address < other.address + other.bytes
            && other.address < self.address + self.bytes
    }

    /// A part of it.
    pub(crate) fn within(&self, offset: u64, bytes: u64) -> Binding {
        Binding { address: self.address + offset, bytes, ..*self }
    }
}

/// One run of a kernel. It reads its bindings and writes the last of them.
pub(crate) struct Run {
    pub(crate) kernel: Kernel,
    pub(crate) bindings: Vec<Binding>,
    pub(crate) groups: [u32; 3],
}

/// The runs of a step.
pub(crate) type Runs = Result<Vec<Run>, KernelError>;

/// What a step does.
pub(crate) enum Work {
    Runs(Vec<Run>),
    Copy { from: Binding, to: Binding },
}

impl Work {
    /// Its runs of kernels.
    pub(crate) fn runs(&self) -> &[Run] {
        match self {
            Work::Runs(runs) => runs,
            Work::Copy { .. } => &[],
        }
    }
}

/// A step, with the operations that it counts as.
pub(crate) struct GpuStep {
    pub(crate) work: Work,
    pub(crate) flops: u64,
}

/// Where memory is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residence {
    /// The memory in which kernels are fastest.
    Device,
    /// Host memory that the device reaches.
    HostMapped,
}

/// A copy from an address of one memory to an address of another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryCopy {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) bytes: u64,
}

/// Allocations of a device as one space of addresses. What a plan puts at an address lies in one allocation.
pub(crate) trait GpuMemory: Send + Sync {
    /// Bytes that the device was asked for.
    fn bytes(&self) -> u64;

    /// Copies bytes from the host to an address. They are there after [`GpuMemory::settle`]: the host goes on meanwhile.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), BackendError>;

    /// Fills memory on as many threads as this process may use: `task` is called for each number below `count`, with a state of its thread and
    /// that thread's [`MemoryWriter`]. All is there when this returns.
    fn fill<S: Default>(&self, count: usize, task: &FillTask<S>) -> Result<(), BackendError>;

    /// Copies what lies in another memory that the device reaches, all at once, and waits for it.
    fn copy_from(&self, other: &Self, copies: &[MemoryCopy]) -> Result<(), BackendError>;

    /// Waits until all that was written has arrived.
    fn settle(&self) -> Result<(), BackendError>;

    /// Copies bytes from an address to the host.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), BackendError>;
}

/// What writes bytes to where they go; it is told whether the host reads there as fast as in its own memory.
pub(crate) type WriteBytes<'w> = dyn FnMut(&mut [u8], bool) -> Result<(), BackendError> + 'w;

/// One of the tasks that fill memory: with the state of its thread, that thread's writer, and its number.
pub(crate) type FillTask<'t, S> = dyn Fn(&mut S, &mut dyn MemoryWriter, usize) -> Result<(), BackendError> + Sync + 't;

/// One thread's access to the memory of a device.
pub(crate) trait MemoryWriter {
    /// Has `write` write bytes to an address, or to a staging buffer that the device copies from.
    fn fill(&mut self, address: u64, bytes: usize, write: &mut WriteBytes) -> Result<(), BackendError>;
}

/// The memories of a session by their [`Space`].
pub(crate) struct Spaces<'a, M> {
    pub(crate) arena: &'a M,
    pub(crate) host: &'a M,
    pub(crate) weights: &'a M,
    pub(crate) slots: &'a M,
    /// None where a session has no adapters.
    pub(crate) adapters: Option<&'a M>,
}

impl<M> Spaces<'_, M> {
    pub(crate) fn of(&self, space: Space) -> &M {
        match space {
            Space::Arena => self.arena,
            Space::Host => self.host,
            Space::Weights => self.weights,
            Space::Slots => self.slots,
            Space::Adapters => self.adapters.unwrap_or(self.weights),
        }
    }
}

/// An open device of a GPU API, which makes it a [`Backend`]. Clones are the same device.
pub(crate) trait Gpu: Clone + Send + Sync + 'static {
    /// Memory of the device.
    type Memory: GpuMemory;
    /// Recorded steps, ready to be submitted.
    type Commands: Send;

    /// The device as planning sees it.
    fn gpu_profile(&self) -> &Arc<GpuProfile>;

    /// What the device was asked for.
    fn device_meter(&self) -> &Meter;

    /// Thousand million operations a second that products could reach at best, measured now.
    fn measure_peak(&self) -> Result<f64, BackendError>;

    /// The same open device, with the same meter, computing in 32-bit floats; none if it does already.
    fn exact(&self) -> Option<Self>;

    /// Allocates memory of these lengths, one after the other.
    fn allocate(&self, home: Residence, lengths: impl Iterator<Item = u64>) -> Result<Self::Memory, BackendError>;

    /// Compiles the kernels of all steps and records them; `cuts` are the steps with which segments begin.
    fn record(
        &self,
        steps: Vec<GpuStep>,
        cuts: &[usize],
        spaces: &Spaces<Self::Memory>,
    ) -> Result<Self::Commands, BackendError>;

    /// Submits the steps of a segment and waits for their end.
    fn submit(&self, commands: &mut Self::Commands, segment: usize) -> Result<(), BackendError>;

    /// Notes what each step took in the last run, where the device has a clock.
    fn note_times(&self, commands: &Self::Commands, times: &mut [StepTime]) -> Result<(), BackendError>;

    /// An error of this device.
    fn unsupported(&self, reason: impl Into<String>) -> BackendError {
        BackendError::Unsupported { device: self.gpu_profile().name.clone(), reason: reason.into() }
    }
}

impl<G: Gpu> Backend for G {
    fn profile(&self) -> Arc<dyn Profile> {
        self.gpu_profile().clone()
    }

    fn meter(&self) -> &Meter {
        self.device_meter()
    }

    fn peak_gflops(&self) -> Result<f64, BackendError> {
        self.measure_peak()
    }

    fn pack_on_host(&self, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<HostWeights, BackendError> {
        match HostMapped::pack(self, graph, plan, source)? {
            Some(mapped) => Ok(mapped),
            None => HostWeights::plain(&**self.gpu_profile(), graph, plan, source),
        }
    }

    fn pack(&self, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<Weights, BackendError> {
        let weights = GpuWeights::new(self, graph, plan, source, ParamSet::Model)?;
        Ok(Weights::new(weights.bytes(), weights))
    }

    fn pack_adapters(&self, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<Weights, BackendError> {
        let weights = GpuWeights::new(self, graph, plan, source, ParamSet::Adapters)?;
        Ok(Weights::new(weights.bytes(), weights))
    }

    fn prepare(&self, graph: &Graph, plan: &Plan, weights: &Weights) -> Result<Box<dyn Session>, BackendError> {
        Ok(Box::new(GpuSession::new(self, graph, plan, weights)?))
    }

    fn in_f32(&self) -> Option<Arc<dyn Backend>> {
        Some(Arc::new(self.exact()?))
    }
}
