//! The CPU backend.
//!
//! The way of a plan: `weights` packs parameters, `session` prepares each step (`linear`, `conv`, `attention`, `norm`,
//! `elementwise`, `movement`, `lookup`) and runs them on the `pool`. Products meet in `gemm`, inner loops over rows in
//! `rows`; both exist once for each instruction path of [`Isa`].

mod attention;
mod bench;
mod blocks;
mod conv;
mod elementwise;
mod gemm;
mod isa;
mod linear;
mod lookup;
mod math;
pub(crate) mod memory;
mod movement;
mod norm;
mod pool;
pub(crate) mod rows;
mod session;
mod weights;

use std::sync::Arc;

use impasto_device::DeviceInfo;
use impasto_graph::{Capabilities, DType, Graph, Limits, Op, Plan, Used, Value, Weight};

use crate::session::may_overwrite;
use crate::{AlignedBytes, Backend, BackendError, DeviceOptions, Meter, Profile, Session, WeightSource, Weights};
use gemm::Kernel;
use memory::CpuMemory;
use pool::Pool;
use rows::Rows;

pub use crate::Precision;
pub use bench::{Stillness, next_core, peak_gflops};
pub use gemm::ProductType;
pub use isa::{Finding, Isa, TRIALS, findings};

/// [`crate::profile`] of the CPU.
pub(crate) fn profile(device: &DeviceInfo, options: &DeviceOptions) -> Result<Arc<dyn Profile>, BackendError> {
    Ok(open_cpu(device, options)?)
}

/// [`crate::open`] of the CPU.
pub(crate) fn open(device: &DeviceInfo, options: &DeviceOptions) -> Result<Arc<dyn Backend>, BackendError> {
    Ok(open_cpu(device, options)?)
}

fn open_cpu(device: &DeviceInfo, options: &DeviceOptions) -> Result<Arc<Cpu>, BackendError> {
    let DeviceOptions { precision, memory, threads, isa, verify, .. } = *options;
    // A machine that is not here may have less memory than this one.
    let memory = Some(memory.unwrap_or(u64::MAX).min(device.limits.memory));
    Ok(Arc::new(Cpu::new(&CpuOptions { threads, isa, precision, memory, verify })?))
}

/// How the CPU is to be used.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Threads; by default as many as this process may use.
    pub threads: Option<usize>,
    /// Force an instruction path.
    pub isa: Option<Isa>,
    /// What products are computed in.
    pub precision: Precision,
    /// Memory that a plan may use; by default all that this process may have, by the machine and its control groups.
    pub memory: Option<u64>,
    /// Verify each plan. Debug builds do so in any case.
    pub verify: bool,
}

impl CpuOptions {
    /// The defaults, with the instruction path that `IMPASTO_CPU` forces, if it does.
    pub fn from_env() -> Result<CpuOptions, BackendError> {
        let isa = match std::env::var("IMPASTO_CPU") {
            Ok(name) if !name.is_empty() => Some(name.parse()?),
            _ => None,
        };
        Ok(CpuOptions { isa, ..CpuOptions::default() })
    }
}

/// The CPU as a device. Cheap to clone; clones share their threads.
#[derive(Clone)]
pub struct Cpu(Arc<Inner>);

struct Inner {
    isa: Isa,
    number: ProductType,
    memory: u64,
    verifies: bool,
    /// Threads that share an L2.
    sharing: usize,
    pool: Arc<Pool>,
    meter: Arc<Meter>,
}

impl Cpu {
    /// The CPU with these options. An instruction path that was forced and cannot be used is an error.
    pub fn new(options: &CpuOptions) -> Result<Cpu, BackendError> {
        Ok(Cpu::on(isa::choose(options.isa)?, options))
    }

    /// The CPU on a path that the processor claims, without a trial: for tests of that path.
    pub fn untried(isa: Isa, options: &CpuOptions) -> Option<Cpu> {
        isa.claimed().then(|| Cpu::on(isa, options))
    }

    /// The CPU on a path that the processor may not even claim.
    ///
    /// # Safety
    /// The instructions of the path work in this process, by whatever means.
    pub unsafe fn assumed(isa: Isa, options: &CpuOptions) -> Cpu {
        Cpu::on(isa, options)
    }

    fn on(isa: Isa, options: &CpuOptions) -> Cpu {
        let number = match options.precision {
            Precision::Bf16 => ProductType::Bf16,
            Precision::Auto if isa.bf16_pays() => ProductType::Bf16,
            _ => ProductType::F32,
        };
        let threads = options.threads.unwrap_or_else(impasto_device::cpu::usable_cores);
        let memory = options.memory.or_else(|| impasto_device::cpu::memory().map(|m| m.limit)).unwrap_or(u64::MAX);
        let sharing = match isa {
            Isa::Amx if threads > 1 => threads.div_ceil(impasto_device::cpu::l2_caches().unwrap_or(threads)),
            // One thread shares with none, and the blocks of other paths are small.
            _ => 1,
        };
        let pool = Arc::new(Pool::new(threads));
        let verifies = options.verify || cfg!(debug_assertions);
        Cpu(Arc::new(Inner { isa, number, memory, verifies, sharing, pool, meter: Arc::default() }))
    }

    /// The instruction path in use.
    pub fn isa(&self) -> Isa {
        self.0.isa
    }

    /// What products are computed in.
    pub fn number(&self) -> ProductType {
        self.0.number
    }

    /// The kernel of products.
    fn kernel(&self) -> Kernel {
        Kernel { sharing: self.0.sharing, ..Kernel::of(self.isa(), self.number()) }
    }

    /// Threads that compute.
    pub fn threads(&self) -> usize {
        self.0.pool.threads()
    }

    /// The same threads and the same meter, computing in 32-bit floats.
    fn exact(&self) -> Option<Arc<Cpu>> {
        let Inner { isa, number, memory, verifies, sharing, ref pool, ref meter } = *self.0;
        let (pool, meter) = (pool.clone(), meter.clone());
        let inner = Inner { isa, number: ProductType::F32, memory, verifies, sharing, pool, meter };
        (number != ProductType::F32).then(|| Arc::new(Cpu(Arc::new(inner))))
    }

    fn rows(&self) -> &'static Rows {
        Rows::of(self.0.isa)
    }

    fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// Memory for what is written as a whole before it is read.
    fn unwritten_memory(&self, bytes: u64) -> Result<CpuMemory, BackendError> {
        CpuMemory::unwritten(bytes, &self.0.meter)
    }

    /// Memory for tensors of this device.
    fn memory(&self, bytes: u64) -> Result<CpuMemory, BackendError> {
        CpuMemory::new(bytes, &self.0.meter)
    }
}

impl Capabilities for Cpu {
    fn limits(&self) -> Limits {
        Limits { memory: self.0.memory, ..Limits::UNLIMITED }
    }

    fn alignment(&self) -> u64 {
        memory::ALIGNMENT
    }

    fn supports(&self, graph: &Graph, value: Value) -> Result<(), String> {
        match graph.node(value).op.is_copy() {
            true => Err("the host's memory is this device's own: nothing is gained by resting there".into()),
            false => Ok(()),
        }
    }

    fn scratch_bytes(&self, graph: &Graph, value: Value) -> u64 {
        match graph.node(value).op {
            Op::Linear { .. } => linear::scratch_bytes(self, graph, value),
            Op::MatMul { .. } => linear::matmul::scratch_bytes(self, graph, value),
            Op::Conv2d { .. } => conv::scratch_bytes(self, graph, value),
            Op::Attention { .. } => attention::scratch_bytes(self, graph, value),
            Op::GroupNorm { .. } => norm::group_norm_scratch(self, graph, value),
            Op::LineStatistics { .. } => norm::lines_scratch(self, graph, value),
            Op::LayerNorm { .. } | Op::RmsNorm { .. } | Op::Softmax => norm::by_row_scratch(self, graph, value),
            _ => 0,
        }
    }

    fn may_overwrite(&self, graph: &Graph, value: Value, operand: usize) -> bool {
        may_overwrite(graph, value, operand)
    }

    fn param_bytes(&self, graph: &Graph, param: Value, used: Used) -> u64 {
        weights::param_bytes(self, graph, param, used)
    }

    fn verifies_plans(&self) -> bool {
        self.0.verifies
    }
}

impl Profile for Cpu {
    fn name(&self) -> &str {
        "cpu"
    }

    fn about(&self) -> String {
        format!("{} threads, {}, {}", self.threads(), self.isa(), self.activations())
    }

    fn activations(&self) -> DType {
        self.0.number.dtype()
    }

    fn profile_in_f32(&self) -> Option<Arc<dyn Profile>> {
        Some(self.exact()?)
    }

    fn pack_one(
        &self,
        graph: &Graph,
        weight: &Weight,
        source: &dyn WeightSource,
    ) -> Result<AlignedBytes, BackendError> {
        weights::packed(self, graph, weight, source)
    }
}

impl Backend for Cpu {
    fn profile(&self) -> Arc<dyn Profile> {
        Arc::new(self.clone())
    }

    fn meter(&self) -> &Meter {
        &self.0.meter
    }

    fn peak_gflops(&self) -> Result<f64, BackendError> {
        Ok(bench::peak_gflops(self, self.number()))
    }

    fn pack(&self, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<Weights, BackendError> {
        let weights = weights::CpuWeights::new(self, graph, plan, source)?;
        Ok(Weights::new(weights.bytes(), weights))
    }

    fn pack_adapters(&self, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<Weights, BackendError> {
        let weights = weights::CpuWeights::adapters(self, graph, plan, source)?;
        Ok(Weights::new(weights.bytes(), weights))
    }

    fn prepare(&self, graph: &Graph, plan: &Plan, weights: &Weights) -> Result<Box<dyn Session>, BackendError> {
        Ok(Box::new(session::CpuSession::new(self, graph, plan, weights)?))
    }

    fn in_f32(&self) -> Option<Arc<dyn Backend>> {
        Some(self.exact()?)
    }
}
