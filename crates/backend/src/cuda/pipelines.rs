//! Kernels, compiled for a device: each once, some by other processes, and kept on disk as machine code.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use impasto_cuda::{
    CudaDevice, CudaError, CudaFeatures, CudaFunction, CudaGraph, CudaLaunch, CudaRange, CudaStream, EdgeKind,
    GraphNode,
};
use impasto_device::DeviceInfo;
use impasto_kernel::{CodeCache, CompiledModule, Compiler, Entry, Kernel, KernelError, digest};
use impasto_ptx::{Ptx, dynamic_shared};

use super::helpers::HelperProcess;
use super::profile;
use crate::{DeviceOptions, Pulse};

/// Other processes that compile at most.
const MOST_HELPERS: usize = 8;
/// Kernels that wait before another process is started, and more of them for each one that there is.
const WORTH_A_HELPER: usize = 2;
/// Memory of the device that the context of another process takes, at most.
const CONTEXT_BYTES: u64 = 768 << 20;

/// Why kernels could not be compiled.
#[derive(Debug, thiserror::Error)]
pub(super) enum CompileError {
    #[error("interrupted")]
    Interrupted,
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Driver(CudaError),
    #[error("kernel '{name}': {error}")]
    Refused { name: String, error: CudaError },
    #[error("a kernel was not compiled")]
    Missing,
}

/// A kernel that can be launched.
pub(super) struct CompiledKernel {
    function: CudaFunction,
    block: [u32; 3],
    shared: u32,
}

impl CompiledKernel {
    /// Its launch: the address of each buffer, and after them a block with the bytes of each.
    fn on(&self, ranges: &[CudaRange], groups: [u32; 3]) -> CudaLaunch {
        let mut params: Vec<Vec<u8>> = ranges.iter().map(|range| range.address().to_ne_bytes().into()).collect();
        if !ranges.is_empty() {
            params.push(ranges.iter().flat_map(|range| range.bytes.to_ne_bytes()).collect());
        }
        CudaLaunch { grid: groups, block: self.block, shared: self.shared, params, ..CudaLaunch::default() }
    }

    /// Launches it on a stream.
    pub(super) fn launch(&self, stream: &CudaStream, ranges: &[CudaRange], groups: [u32; 3]) -> Result<(), CudaError> {
        // SAFETY: the parameters are those that the emitter writes. The compiler verifies what it writes; kernels are written for the shapes of
        // the tensors that they are given, and stay inside of them, which the tests of every op make sure of.
        unsafe { stream.launch(&self.function, &self.on(ranges, groups)) }
    }

    /// Adds a launch of it to a graph.
    pub(super) fn add_to(
        &self,
        graph: &mut CudaGraph,
        ranges: &[CudaRange],
        groups: [u32; 3],
        after: &[(GraphNode, EdgeKind)],
    ) -> Result<GraphNode, CudaError> {
        // SAFETY: as above; a session keeps its memory as long as its graphs.
        unsafe { graph.add_kernel(&self.function, &self.on(ranges, groups), after) }
    }
}

/// The compiled kernels of a device, by their text.
pub(super) struct Pipelines {
    device: CudaDevice,
    /// By which another process finds the device.
    info: DeviceInfo,
    compiler: Compiler,
    cache: Option<CodeCache>,
    /// What machine code is for: the architecture and the driver.
    code_for: String,
    made: Mutex<HashMap<String, Arc<CompiledKernel>>>,
}

/// A kernel that the driver has not compiled yet.
struct Job<'k> {
    text: &'k String,
    kernel: &'k Kernel,
    /// Under which its machine code is kept.
    key: u128,
    module: CompiledModule,
}

/// Kernels that wait to be compiled, while others are still being written.
struct Queue<'k> {
    jobs: Mutex<Jobs<'k>>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs<'k> {
    waiting: VecDeque<Job<'k>>,
    /// Those that another process could not compile.
    returned: Vec<Job<'k>>,
    /// Kernels that are still being written, or compiled by another process.
    expected: usize,
    failed: Option<CompileError>,
}

impl<'k> Queue<'k> {
    fn lock(&self) -> MutexGuard<'_, Jobs<'k>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, act: impl FnOnce(&mut Jobs<'k>)) {
        act(&mut self.lock());
        self.changed.notify_all();
    }

    /// The next that `take` finds, or none if nothing is left or something failed. Waits while others may still come.
    fn next(&self, mut take: impl FnMut(&mut Jobs<'k>) -> Option<Job<'k>>) -> Option<Job<'k>> {
        let mut jobs = self.lock();
        loop {
            if jobs.failed.is_some() {
                return None;
            }
            if let Some(job) = take(&mut jobs) {
                return Some(job);
            }
            if jobs.expected == 0 && jobs.waiting.is_empty() {
                return None;
            }
            jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Pipelines {
    /// With a folder in the options, compiled kernels are cached there between runs.
    pub(super) fn new(
        device: &CudaDevice,
        info: &DeviceInfo,
        features: &CudaFeatures,
        options: &DeviceOptions,
    ) -> Result<Pipelines, String> {
        let target = profile::target(features).ok_or("this build has no kernels for it")?;
        let emitter = Ptx { target, driver: profile::newest_ptx(features.version) };
        let compiler = Compiler::new(emitter, target.target()).verify(options.verifies());
        // The release of the driver, which is finer than the CUDA that it knows.
        let release = fs::read_to_string("/sys/module/nvidia/version").unwrap_or_default();
        let code_for = format!("{:?} {:?} {}", features.capability, features.version, release.trim());
        Ok(Pipelines {
            device: device.clone(),
            info: info.clone(),
            compiler,
            cache: options.kernel_cache().map(CodeCache::at),
            code_for,
            made: Mutex::default(),
        })
    }

    fn made(&self) -> MutexGuard<'_, HashMap<String, Arc<CompiledKernel>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These kernels, in order. What is missing is compiled.
    pub(super) fn all(&self, kernels: &[&Kernel], pulse: &Pulse) -> Result<Vec<Arc<CompiledKernel>>, CompileError> {
        let texts: Vec<String> = in_parallel(kernels, |kernel| kernel.to_string());
        let mut missing: Vec<(&String, &Kernel)> = {
            let made = self.made();
            texts.iter().zip(kernels.iter().copied()).filter(|(text, _)| !made.contains_key(*text)).collect()
        };
        missing.sort_by_key(|(text, _)| *text);
        missing.dedup_by_key(|(text, _)| *text);
        self.device.meter().note_wanted(missing.len() as u64);
        self.compile(&missing, pulse)?;
        let made = self.made();
        texts.iter().map(|text| made.get(text).cloned().ok_or(CompileError::Missing)).collect()
    }

    /// Writes kernels on all cores, and compiles them meanwhile here and in other processes.
    fn compile(&self, missing: &[(&String, &Kernel)], pulse: &Pulse) -> Result<(), CompileError> {
        let queue = Queue { jobs: Mutex::default(), changed: Condvar::new() };
        queue.lock().expected = missing.len();
        let write = |&at: &usize| {
            let (text, kernel) = missing[at];
            if queue.lock().failed.is_some() {
                return;
            }
            match self.written(text, kernel, pulse) {
                Ok(job) => queue.change(|jobs| {
                    jobs.expected -= 1;
                    jobs.waiting.extend(job);
                }),
                Err(error) => queue.change(|jobs| jobs.failed = Some(error)),
            }
        };
        std::thread::scope(|scope| {
            for number in 0..MOST_HELPERS.min(impasto_device::cpu::usable_cores().saturating_sub(1)) {
                // A thread that cannot be had is done without.
                let queue = &queue;
                let help = move || self.help(number, queue, pulse);
                let _ = std::thread::Builder::new().name("impasto-helper".into()).spawn_scoped(scope, help);
            }
            let here = std::thread::Builder::new().name("impasto-compile".into());
            let here = here.spawn_scoped(scope, || self.compile_here(&queue, pulse));
            in_parallel(&(0..missing.len()).collect::<Vec<_>>(), write);
            // What no thread could be had for is compiled by this one.
            if here.is_err() {
                self.compile_here(&queue, pulse);
            }
        });
        queue.jobs.into_inner().unwrap_or_else(PoisonError::into_inner).failed.map_or(Ok(()), Err)
    }

    /// A kernel as text, to be compiled; none if its machine code is on disk, and now on the device.
    fn written<'k>(
        &self,
        text: &'k String,
        kernel: &'k Kernel,
        pulse: &Pulse,
    ) -> Result<Option<Job<'k>>, CompileError> {
        if pulse.must_stop() {
            return Err(CompileError::Interrupted);
        }
        let key = self.key(kernel);
        let cubin = self.cache.as_ref().and_then(|cache| cache.get(key));
        match cubin.map(|cubin| self.done(text, kernel, &cubin, pulse)) {
            Some(Ok(())) => return Ok(None),
            Some(Err(CompileError::Driver(error))) => return Err(CompileError::Driver(error)),
            // Whole, and still not what this driver takes.
            Some(Err(_)) | None => {}
        }
        let module = self.compiler.compile(std::slice::from_ref(kernel))?;
        pulse.beat();
        Ok(Some(Job { text, kernel, key, module }))
    }

    /// Has another process compile what waits, if that is worth its start.
    fn help<'k>(&self, number: usize, queue: &Queue<'k>, pulse: &Pulse) {
        let mut process: Option<HelperProcess> = None;
        loop {
            let enough = if process.is_some() { 0 } else { WORTH_A_HELPER * (number + 1) };
            let take = |jobs: &mut Jobs<'k>| match jobs.waiting.len() > enough {
                true => {
                    jobs.expected += 1;
                    jobs.waiting.pop_front()
                }
                false => None,
            };
            let Some(job) = queue.next(take) else { return };
            if process.is_none() && self.has_room(number) {
                process = HelperProcess::start(&self.info);
            }
            let made = process.as_mut().and_then(|process| {
                let text = std::str::from_utf8(&job.module.bytes).ok()?;
                process.compile(text).ok()
            });
            let loaded = made.map(|cubin| (self.done(job.text, job.kernel, &cubin, pulse), cubin));
            if let Some((Ok(()), cubin)) = loaded {
                self.keep(job.key, &cubin);
                queue.change(|jobs| jobs.expected -= 1);
                continue;
            }
            // This process finds out what is wrong with it.
            queue.change(|jobs| {
                jobs.expected -= 1;
                jobs.returned.push(job);
            });
            return;
        }
    }

    /// Whether the device has memory for the contexts of so many more processes, and half of what is free is left.
    fn has_room(&self, helpers: usize) -> bool {
        self.device.free_memory().is_ok_and(|free| free / 2 > (helpers as u64 + 1) * CONTEXT_BYTES)
    }

    /// Compiles what waits in this process.
    fn compile_here<'k>(&self, queue: &Queue<'k>, pulse: &Pulse) {
        while let Some(job) = queue.next(|jobs: &mut Jobs<'k>| jobs.returned.pop().or_else(|| jobs.waiting.pop_back()))
        {
            let made = match pulse.must_stop() {
                true => Err(CompileError::Interrupted),
                false => self.link(&job.module).map_err(|e| refused(&job.kernel.name, e)).and_then(|cubin| {
                    self.done(job.text, job.kernel, &cubin, pulse)?;
                    self.keep(job.key, &cubin);
                    Ok(())
                }),
            };
            // Who waits for more learns that there is less.
            queue.change(|jobs| jobs.failed = jobs.failed.take().or(made.err()));
        }
    }

    /// A kernel is compiled: it is loaded and found from now on.
    fn done(&self, text: &str, kernel: &Kernel, cubin: &[u8], pulse: &Pulse) -> Result<(), CompileError> {
        let made = self.load(kernel, cubin).map_err(|e| refused(&kernel.name, e))?;
        self.made().insert(text.to_owned(), Arc::new(made));
        self.device.meter().note_compiled();
        pulse.beat();
        Ok(())
    }

    /// Has the driver compile a module.
    fn link(&self, module: &CompiledModule) -> Result<Vec<u8>, CudaError> {
        let text = std::str::from_utf8(&module.bytes).map_err(|_| CudaError::Wrong("a kernel is no text"))?;
        Ok(self.device.link(text)?.cubin)
    }

    fn load(&self, kernel: &Kernel, cubin: &[u8]) -> Result<CompiledKernel, CudaError> {
        let entry = Entry::of(kernel);
        let shared = u32::try_from(dynamic_shared(&entry)).unwrap_or(u32::MAX);
        let function = self.device.load(cubin)?.function(&entry.name, shared)?;
        Ok(CompiledKernel { function, block: entry.workgroup, shared })
    }

    /// Names the machine code of a kernel: its module, and what that is compiled for and by.
    fn key(&self, kernel: &Kernel) -> u128 {
        let module = self.compiler.key(std::slice::from_ref(kernel)).to_le_bytes();
        digest(&[&module[..], b"machine code\0", self.code_for.as_bytes()].concat())
    }

    /// Keeps machine code for the next run.
    fn keep(&self, key: u128, cubin: &[u8]) {
        if let Some(cache) = &self.cache {
            cache.put(key, cubin, self.compiler.messages());
        }
    }
}

/// What went wrong with a kernel, or with the device.
fn refused(name: &str, error: CudaError) -> CompileError {
    match error.is_lost() || error.is_exhausted() {
        true => CompileError::Driver(error),
        false => CompileError::Refused { name: name.to_owned(), error },
    }
}

/// Calls `work` for each item on all cores, and keeps their order.
fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let run = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return };
            let result = work(item);
            *results[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..impasto_device::cpu::usable_cores().min(items.len()) {
            // A thread that cannot be had is done without.
            let _ = std::thread::Builder::new().name("impasto-compile".into()).spawn_scoped(scope, run);
        }
        run();
    });
    let taken = results.into_iter().map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner));
    taken.flatten().collect()
}
