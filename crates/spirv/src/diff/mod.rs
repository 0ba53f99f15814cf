//! Two modules, compared by what they do: the same inputs into both, and what comes out, scalar by scalar.

mod align;
mod influence;
mod inputs;
mod search;
mod specialise;

use std::fmt;

use half::f16;
use impasto_vulkan::{Buffer, ComputePipeline, Interface, VulkanDevice, VulkanError};

use crate::import::{ImportError, ModuleInterface, ScalarFormat, reflect};
use crate::run::{ModuleLaunch, ModuleProgram, rebind};
use inputs::{BufferContents, Inputs};
use search::Search;
use specialise::{SpecConstant, Specialisation, spec_constants, specialised};

/// How far floats may be apart that a device computed: it may fuse a product and a sum in one module and not in the other, and what
/// comes of that may cancel. Relative to the larger of both, or to one.
pub const ROUNDING: f64 = 1.0 / 1024.0;

/// Why two modules were not compared.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    /// A module could not be read or run.
    #[error("{module}: {cause}")]
    Module {
        /// Which of both: A or B.
        module: &'static str,
        /// Why.
        cause: ImportError,
    },
    /// One ends, and the other one does not.
    #[error("in '{entry}' A ends after {ends} ops, and B has not ended after {ops}")]
    Endless {
        /// The entry point.
        entry: String,
        /// Ops that A takes.
        ends: u64,
        /// Ops after which B was stopped.
        ops: u64,
    },
    /// They do not take the same.
    #[error("the modules differ in what a host sees: {0}")]
    Interface(String),
    /// A device could not run a module.
    #[error("{module}: the device says: {cause}")]
    Device {
        /// Which of both: A or B.
        module: &'static str,
        /// What.
        cause: VulkanError,
    },
}

/// The first scalar that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The entry point.
    pub entry: String,
    /// The buffer: its name, its set and its binding.
    pub buffer: String,
    /// The set of the buffer.
    pub set: u32,
    /// The binding of the buffer.
    pub binding: u32,
    /// The byte at which the scalar lies.
    pub byte: usize,
    /// The element of the array at the end of the buffer, if it is in one.
    pub element: Option<usize>,
    /// What the first module wrote, and the second.
    pub values: [String; 2],
    /// The specialisation constants that were set, by their `constant_id`.
    pub specialisation: Vec<(u32, u32)>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { entry, buffer, set, binding, byte, element, values: [a, b], specialisation } = self;
        write!(f, "entry point '{entry}', set {set} binding {binding} ('{buffer}'), byte {byte}")?;
        if let Some(element) = element {
            write!(f, ", element {element}")?;
        }
        write!(f, ": {a} and {b}")?;
        for (i, (id, n)) in specialisation.iter().enumerate() {
            write!(f, "{} constant_id {id} = {n}", if i == 0 { ", with" } else { "," })?;
        }
        Ok(())
    }
}

/// How much of two modules ran: of both together, on all inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Stores and atomics that an invocation ran.
    pub stores: usize,
    /// Stores and atomics that there are.
    pub all_stores: usize,
    /// Instructions that compute or move something, and that an invocation ran.
    pub instructions: usize,
    /// Those that there are.
    pub all_instructions: usize,
}

impl Reach {
    /// Whether everything ran.
    pub fn is_whole(&self) -> bool {
        self.stores == self.all_stores && self.instructions == self.all_instructions
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reach { stores, all_stores, instructions, all_instructions } = self;
        write!(f, "{stores} of {all_stores} stores and {instructions} of {all_instructions} instructions")
    }
}

/// The instructions of two modules that stand in the same place and differ, where the modules are the same but for these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DifferingInstructions {
    /// Those that there are; none if the modules are the same, or differ in their form, as after an optimiser.
    pub all: usize,
    /// Those whose results differed.
    pub differed: usize,
    /// Those whose results were the same each time, with operands that were varied enough for that to mean something.
    pub agreed: usize,
}

impl fmt::Display for DifferingInstructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DifferingInstructions { all, differed, agreed } = self;
        write!(
            f,
            "{all} instructions differ: {differed} gave other results, which nothing came of, {agreed} gave the same with varied operands, {} \
             did not run with operands that tell",
            all - differed - agreed
        )
    }
}

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Scalars that were compared.
    pub scalars: usize,
    /// Scalars that the first module changed.
    pub changed: usize,
    /// What both modules reached with these inputs, if the executor could tell.
    pub reach: Option<Reach>,
    /// The instructions that differ, if the executor could tell.
    pub differing: DifferingInstructions,
    /// Launches that were compared.
    pub launches: usize,
    /// Floats that differ by no more than a device may round differently.
    pub rounded: usize,
    /// On the executor, whether a module reads or writes outside of its buffers and arrays: then a difference is the program's own.
    pub strayed: bool,
    /// The first scalar that differs.
    pub first: Option<Difference>,
}

/// What a comparison shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiffVerdict {
    /// The modules compute different things.
    Different,
    /// They compute the same with inputs that reach all of both.
    Equal,
    /// They compute the same, but the inputs do not reach enough to call them equal, or nothing came of an instruction that differs.
    NotReached,
}

impl Comparison {
    /// What this shows. Nothing that was changed, or code that did not run, is no evidence. Nor are equal results of two modules that are the same
    /// but for one instruction, unless both forms of it gave the same with varied operands: else its result was lost on the way, or never differed.
    pub fn verdict(&self) -> DiffVerdict {
        let unsettled = self.differing.agreed < self.differing.all;
        match (&self.first, self.reach) {
            (Some(_), _) => DiffVerdict::Different,
            (None, reach) if self.changed == 0 || unsettled || reach.is_some_and(|r| !r.is_whole()) => {
                DiffVerdict::NotReached
            }
            _ => DiffVerdict::Equal,
        }
    }
}

/// How modules are launched to be compared.
#[derive(Clone, Copy, Debug)]
pub struct DiffOptions {
    /// The seed of what is in the buffers.
    pub seed: u64,
    /// Workgroups; as many as the workgroup has axes if nothing is said.
    pub groups: Option<[u32; 3]>,
    /// Elements of the arrays at the ends of buffers.
    pub elements: u32,
    /// Ops after which a run on the executor is stopped.
    pub most_ops: u64,
    /// Ask the device's driver not to optimise, for modules that its optimiser cannot digest.
    pub plain_driver: bool,
}

impl Default for DiffOptions {
    fn default() -> DiffOptions {
        DiffOptions { seed: 1, groups: None, elements: 4096, most_ops: 1 << 28, plain_driver: false }
    }
}

/// Two modules and what both are given.
pub struct Diff<'a> {
    modules: [&'a [u32]; 2],
    interfaces: [ModuleInterface; 2],
    constants: Vec<SpecConstant>,
    options: DiffOptions,
}

impl<'a> Diff<'a> {
    /// Both modules must take the same buffers and push constants, and have the same entry points.
    pub fn new(a: &'a [u32], b: &'a [u32], options: DiffOptions) -> Result<Diff<'a>, DiffError> {
        let read = |module: &'static str, words| reflect(words).map_err(|cause| DiffError::Module { module, cause });
        let interfaces = [read("A", a)?, read("B", b)?];
        let differ = |what: String| Err(DiffError::Interface(what));
        let [x, y] = &interfaces;
        if x.entries != y.entries {
            return differ(format!("entry points {:?} and {:?}", x.entries, y.entries));
        }
        if x.constants != y.constants {
            return differ("push constants".to_owned());
        }
        let place = |i: &ModuleInterface| i.buffers.iter().map(|b| (b.set, b.binding)).collect::<Vec<_>>();
        if place(x) != place(y) {
            return differ(format!("bindings {:?} and {:?}", place(x), place(y)));
        }
        if let Some((p, _)) =
            x.buffers.iter().zip(&y.buffers).find(|(p, q)| p.layout != q.layout || p.uniform != q.uniform)
        {
            return differ(format!("the layout of '{}'", p.name));
        }
        let read =
            |module: &'static str, words| spec_constants(words).map_err(|cause| DiffError::Module { module, cause });
        let (constants, others) = (read("A", a)?, read("B", b)?);
        // An optimiser may have removed some.
        let contradict = |c: &SpecConstant, d: &SpecConstant| {
            c.id == d.id && !c.values.is_subset(&d.values) && !d.values.is_subset(&c.values)
        };
        if let Some(c) = constants.iter().find(|c| others.iter().any(|d| contradict(c, d))) {
            return differ(format!("the value of the specialisation constant {}", c.id));
        }
        Ok(Diff { modules: [a, b], interfaces, constants, options })
    }

    /// The entry points.
    pub fn entries(&self) -> impl Iterator<Item = &str> {
        self.interfaces[0].entries.iter().map(|e| e.name.as_str())
    }

    /// The capabilities that one of them needs: what a device must be opened for.
    pub fn capabilities(&self) -> Vec<u32> {
        let all = self.interfaces.iter().flat_map(|i| i.capabilities.iter().copied());
        all.collect::<std::collections::BTreeSet<u32>>().into_iter().collect()
    }

    /// What both modules are given that a search finds nothing better for: random numbers.
    fn random(&self, entry: &str) -> Inputs {
        let open = self.constants.iter().filter(|c| c.is_open());
        Inputs {
            specialisation: open.map(|c| (c.id, c.first())).collect(),
            ..Inputs::random(&self.interfaces[0], entry, &self.options)
        }
    }

    /// Both modules, ready to run.
    fn programs(&self, entry: &str, constants: &Specialisation) -> Result<[ModuleProgram; 2], DiffError> {
        let read = |i: usize, module: &'static str| {
            let made = specialised(self.modules[i], constants).and_then(|words| ModuleProgram::new(&words, entry));
            made.map_err(|cause| DiffError::Module { module, cause })
        };
        Ok([read(0, "A")?, read(1, "B")?])
    }

    /// Compares both on the executor, bit by bit; one NaN is as good as another. The inputs are those of a search that reaches as much of both
    /// modules as it can.
    pub fn on_cpu(&self, entry: &str) -> Result<Comparison, DiffError> {
        let mut search = Search::new(self, entry)?;
        search.run()?;
        Ok(search.finish())
    }

    /// Inputs which reach what either module does.
    fn inputs(&self, entry: &str) -> Result<Vec<Inputs>, DiffError> {
        let mut search = Search::new(self, entry)?;
        search.run()?;
        Ok(search.found)
    }

    /// Compares both on a device. Floats may differ as a device rounds.
    ///
    /// # Safety
    ///
    /// Both modules must be valid for this device, which is not checked here, and stay inside of their buffers.
    pub unsafe fn on_device(&self, device: &VulkanDevice, entry: &str) -> Result<Comparison, DiffError> {
        // What the executor cannot run is given random numbers.
        let mut all = self.inputs(entry).unwrap_or_else(|_| vec![self.random(entry)]);
        // What leaves its buffers may do anything on a device.
        if all.iter().any(|inputs| !inputs.strays) {
            all.retain(|inputs| !inputs.strays);
        }
        // A driver may compile for minutes: only what the first inputs say.
        let constants = all.first().map_or_else(Specialisation::new, |inputs| inputs.specialisation.clone());
        all.retain(|inputs| inputs.specialisation == constants);
        let mut pipelines = Vec::new();
        for ((module, words), interface) in ["A", "B"].into_iter().zip(self.modules).zip(&self.interfaces) {
            let wrong = |cause| DiffError::Module { module, cause };
            let failed = |cause| DiffError::Device { module, cause };
            let words = specialised(words, &constants).map_err(wrong)?;
            let words = rebind(&words, interface).map_err(wrong)?;
            // SAFETY: as the caller says.
            pipelines.push(unsafe { self.pipeline(device, &words, interface, entry) }.map_err(failed)?);
        }
        let mut found = Comparison::default();
        let mut contents = BufferContents::default();
        for inputs in &all {
            let launch = inputs.launch(&self.interfaces[0], &self.options, &mut contents);
            let mut results = Vec::new();
            for (module, pipeline) in ["A", "B"].into_iter().zip(&pipelines) {
                let after = self.run(device, pipeline, &launch);
                results.push(after.map_err(|cause| DiffError::Device { module, cause })?);
            }
            self.compare(
                (entry, &inputs.specialisation),
                &launch.buffers,
                [&results[0], &results[1]],
                ROUNDING,
                &mut found,
            );
        }
        Ok(found)
    }

    /// The pipeline of an entry point, which is compiled once for all inputs.
    unsafe fn pipeline(
        &self,
        device: &VulkanDevice,
        words: &[u32],
        i: &ModuleInterface,
        entry: &str,
    ) -> Result<ComputePipeline, VulkanError> {
        let uniforms: Vec<u32> = (0u32..).zip(&i.buffers).filter(|(_, b)| b.uniform).map(|(n, _)| n).collect();
        let interface = Interface {
            entry,
            buffers: i.buffers.len() as u32,
            constants: i.constants.size,
            subgroup: None,
            uniforms: &uniforms,
            unoptimised: self.options.plain_driver,
        };
        // SAFETY: as the caller says; the interface is what the module says.
        unsafe { device.pipeline(words, &interface) }
    }

    /// What the buffers hold after a launch on a device.
    fn run(
        &self,
        device: &VulkanDevice,
        pipeline: &ComputePipeline,
        launch: &ModuleLaunch,
    ) -> Result<Vec<Vec<u8>>, VulkanError> {
        let mut buffers = Vec::new();
        for bytes in &launch.buffers {
            let buffer = device.buffer(bytes.len() as u64)?;
            buffer.write(bytes)?;
            buffers.push(buffer);
        }
        device.run(pipeline, &buffers.iter().collect::<Vec<&Buffer>>(), &launch.constants, launch.groups)?;
        let mut after = launch.buffers.clone();
        for (bytes, buffer) in after.iter_mut().zip(&buffers) {
            buffer.read(bytes)?;
        }
        Ok(after)
    }

    /// Adds what both wrote, with what the buffers held before.
    fn compare(
        &self,
        (entry, specialisation): (&str, &Specialisation),
        before: &[Vec<u8>],
        [a, b]: [&[Vec<u8>]; 2],
        rounding: f64,
        found: &mut Comparison,
    ) {
        found.launches += 1;
        for (i, buffer) in self.interfaces[0].buffers.iter().enumerate() {
            let (x, y) = (&a[i], &b[i]);
            if *x == before[i] && x == y {
                let array = buffer.layout.array.as_ref().map_or(0, |a| a.2.len() * self.options.elements as usize);
                found.scalars += buffer.layout.scalars.len() + array;
                continue;
            }
            let mut one = |at: usize, n: ScalarFormat, element: Option<usize>| {
                let (Some(p), Some(q)) = (scalar(x, at, n), scalar(y, at, n)) else { return };
                found.scalars += 1;
                found.changed += usize::from(scalar(&before[i], at, n) != Some(p));
                match apart(n, p, q) {
                    None => {}
                    Some(far) if far <= rounding => found.rounded += 1,
                    Some(_) if found.first.is_none() => {
                        found.first = Some(Difference {
                            entry: entry.to_owned(),
                            buffer: buffer.name.clone(),
                            set: buffer.set,
                            binding: buffer.binding,
                            byte: at,
                            element,
                            values: [shown(n, p), shown(n, q)],
                            specialisation: specialisation.iter().map(|(&id, &n)| (id, n)).collect(),
                        });
                    }
                    Some(_) => {}
                }
            };
            for &(at, n) in &buffer.layout.scalars {
                one(at as usize, n, None);
            }
            if let Some((at, stride, inner)) = &buffer.layout.array {
                for e in 0..self.options.elements as usize {
                    inner.iter().for_each(|&(o, n)| one(*at as usize + e * *stride as usize + o as usize, n, Some(e)));
                }
            }
        }
    }
}

fn scalar(bytes: &[u8], at: usize, n: ScalarFormat) -> Option<u64> {
    let found = bytes.get(at..at + n.bytes() as usize)?;
    Some(found.iter().rev().fold(0, |a, &b| a << 8 | u64::from(b)))
}

fn float(n: ScalarFormat, bits: u64) -> Option<f64> {
    match n {
        ScalarFormat::Float(16) => Some(f16::from_bits(bits as u16).to_f64()),
        ScalarFormat::Float(32) => Some(f32::from_bits(bits as u32).into()),
        ScalarFormat::Float(_) => Some(f64::from_bits(bits)),
        ScalarFormat::Int { .. } => None,
    }
}

/// How far two scalars are apart that differ.
fn apart(n: ScalarFormat, p: u64, q: u64) -> Option<f64> {
    if p == q {
        return None;
    }
    match (float(n, p), float(n, q)) {
        (Some(x), Some(y)) if x.is_nan() && y.is_nan() || x == y => None,
        (Some(x), Some(y)) if x.is_finite() && y.is_finite() => Some((x - y).abs() / x.abs().max(y.abs()).max(1.0)),
        _ => Some(f64::INFINITY),
    }
}

fn shown(n: ScalarFormat, bits: u64) -> String {
    match (n, float(n, bits)) {
        (_, Some(x)) => format!("{x:?} ({bits:#x})"),
        (ScalarFormat::Int { bits: width, signed: true }, _) => {
            let unused = 64 - width.min(64);
            format!("{}", ((bits << unused) as i64) >> unused)
        }
        _ => format!("{bits}"),
    }
}
