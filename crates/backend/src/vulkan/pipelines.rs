//! Kernels, compiled for a device: each once, several at a time.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use impasto_kernel::{Compiler, Kernel, digest};
use impasto_spirv::Words;
use impasto_vulkan::{ComputePipeline, Interface, VulkanDevice};

use crate::Pulse;
use crate::gpu::GpuProfile;
use crate::gpu::kernels::matrices::Units;

/// The magic number of a saved pipeline cache, before a checksum and the bytes.
const MAGIC: &[u8; 8] = b"impastov";

/// The compiled kernels of a device, by their text.
pub(super) struct Pipelines {
    device: VulkanDevice,
    compiler: Compiler,
    units: Option<Units>,
    pulse: Pulse,
    /// Whether the driver compiles a kernel when it first runs, and not before.
    lazy: bool,
    /// The file of the driver's pipeline cache.
    kept: Option<PathBuf>,
    /// The checksum of what that file contains.
    held: Mutex<Option<u128>>,
    made: Mutex<HashMap<String, Arc<ComputePipeline>>>,
}

impl Pipelines {
    /// With a folder, compiled modules are cached there between runs.
    pub(super) fn new(
        device: VulkanDevice,
        profile: &GpuProfile,
        cache: Option<&Path>,
        pulse: Pulse,
        lazy: bool,
    ) -> Pipelines {
        let units = profile.units();
        let compiler = impasto_spirv::compiler_for(device.features()).verify(profile.verifies);
        let compiler = match cache {
            Some(folder) => compiler.cache_in(folder),
            None => compiler,
        };
        let kept = cache.map(|folder| folder.join(format!("driver-{}", device.pipeline_cache_name())));
        let mut held = None;
        // What is missing, damaged or of another driver costs time, and nothing else.
        if let Some(bytes) = kept.as_ref().and_then(|path| fs::read(path).ok()) {
            let whole = bytes.strip_prefix(MAGIC).and_then(|rest| rest.split_at_checked(16));
            let sound =
                whole.map(|(sum, bytes)| (sum, bytes, digest(bytes))).filter(|(sum, _, own)| *sum == own.to_le_bytes());
            held = sound.and_then(|(_, bytes, own)| device.load_pipeline_cache(bytes).then_some(own));
        }
        Pipelines { device, compiler, units, pulse, lazy, kept, held: Mutex::new(held), made: Mutex::default() }
    }

    /// Saves the driver's pipeline cache for the next run, if there is anything new in it.
    fn keep(&self) {
        let Some(path) = &self.kept else { return };
        let Ok(bytes) = self.device.pipeline_cache_data() else { return };
        let sum = digest(&bytes);
        let before = self.held.lock().unwrap_or_else(PoisonError::into_inner).replace(sum);
        if before != Some(sum) {
            // A folder that cannot be written to was told of by the compiler.
            let _ = impasto_store::put(path, &[&MAGIC[..], &sum.to_le_bytes(), &bytes].concat());
        }
    }

    /// The pipelines of these kernels, in order. What is missing is compiled on all cores.
    pub(super) fn all(&self, kernels: &[&Kernel]) -> Result<Vec<Arc<ComputePipeline>>, String> {
        let (pipelines, lazy) = self.all_and_lazy(kernels)?;
        lazy.iter().for_each(|_| self.device.meter().note_compiled());
        Ok(pipelines)
    }

    /// The same, and which of them the driver compiles only when they first run. Each of those counts as compiled when the caller notes it.
    pub(super) fn all_and_lazy(&self, kernels: &[&Kernel]) -> Result<(Vec<Arc<ComputePipeline>>, Vec<usize>), String> {
        let texts = texts(kernels);
        let mut missing: Vec<(&String, &Kernel)> = {
            let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            texts.iter().zip(kernels.iter().copied()).filter(|(text, _)| !made.contains_key(*text)).collect()
        };
        missing.sort_by_key(|(text, _)| *text);
        missing.dedup_by_key(|(text, _)| *text);
        self.device.meter().note_wanted(missing.len() as u64);
        let next = Mutex::new(missing.iter());
        let work = || -> Result<(), String> {
            loop {
                let Some(&(text, kernel)) = next.lock().unwrap_or_else(PoisonError::into_inner).next() else {
                    return Ok(());
                };
                if self.pulse.must_stop() {
                    return Err("interrupted".into());
                }
                let pipeline = Arc::new(self.compile(kernel)?);
                self.pulse.beat();
                self.made.lock().unwrap_or_else(PoisonError::into_inner).insert(text.clone(), pipeline);
            }
        };
        let threads = impasto_device::cpu::usable_cores().min(missing.len());
        std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let ends = running.into_iter().map(|t| t.join().unwrap_or_else(|_| Err("a compiling thread died".into())));
            ends.collect::<Result<Vec<()>, String>>()
        })?;
        if !missing.is_empty() {
            self.keep();
        }
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let find = |text: &String| made.get(text).cloned().ok_or_else(|| "a kernel was not compiled".to_owned());
        let first = |(text, _): &(&String, &Kernel)| texts.iter().position(|other| other == *text);
        let lazy = if self.lazy { missing.iter().filter_map(first).collect() } else { vec![] };
        Ok((texts.iter().map(find).collect::<Result<_, String>>()?, lazy))
    }

    fn compile(&self, kernel: &Kernel) -> Result<ComputePipeline, String> {
        let features = self.device.features();
        let module = self.compiler.compile(std::slice::from_ref(kernel)).map_err(|e| e.to_string())?;
        let entry = module.entries.first().ok_or("the compiler wrote no entry point")?;
        let counts = features.subgroup_choice && kernel.knows_matrices();
        let subgroup = self.units.filter(|_| counts).map(|units| units.subgroup);
        let interface = Interface {
            entry: &entry.name,
            buffers: entry.buffers,
            constants: entry.constants,
            subgroup,
            uniforms: &[],
            unoptimised: false,
        };
        // SAFETY: the compiler verifies what it writes; kernels are written for the shapes of the tensors that they are given, and stay
        // inside of them, which the tests of every op make sure of.
        let made = unsafe { self.device.pipeline(&module.words(), &interface) };
        if !self.lazy {
            self.device.meter().note_compiled();
        }
        made.map_err(|e| format!("kernel '{}': {e}", kernel.name))
    }
}

/// Kernels by their text, which takes a while for those of a whole network.
fn texts(kernels: &[&Kernel]) -> Vec<String> {
    let each = kernels.len().div_ceil(impasto_device::cpu::usable_cores()).max(1);
    std::thread::scope(|scope| {
        let print = |some: &[&Kernel]| some.iter().map(|kernel| kernel.to_string()).collect::<Vec<_>>();
        let running: Vec<_> = kernels.chunks(each).map(|some| (some, scope.spawn(move || print(some)))).collect();
        running.into_iter().flat_map(|(some, thread)| thread.join().unwrap_or_else(|_| print(some))).collect()
    })
}
