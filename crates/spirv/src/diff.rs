//! Two modules, compared by what they do: the same random buffers into both, and what comes out, scalar by scalar.

use std::fmt;

use half::f16;
use impasto_vulkan::{Buffer, Interface, VulkanDevice, VulkanError};

use crate::import::{BlockLayout, ImportError, ModuleInterface, ScalarFormat, reflect};
use crate::run::{ModuleLaunch, execute_words, rebind};

/// How far floats may be apart that a device computed: it may fuse a product and a sum in one module and not in the other, and what
/// comes of that may cancel. Relative to the larger of both, or to one.
pub const ROUNDING: f64 = 1.0 / 1024.0;
/// Bytes of a buffer.
const MOST_BYTES: u64 = 1 << 28;

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
    /// They do not take the same.
    #[error("the modules differ in what a host sees: {0}")]
    Interface(String),
    /// A device could not run a module.
    #[error("{module}: the device says: {cause}")]
    VulkanDevice {
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
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { entry, buffer, set, binding, byte, element, values: [a, b] } = self;
        write!(f, "entry point '{entry}', set {set} binding {binding} ('{buffer}'), byte {byte}")?;
        if let Some(element) = element {
            write!(f, ", element {element}")?;
        }
        write!(f, ": {a} and {b}")
    }
}

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Scalars that were compared.
    pub scalars: usize,
    /// Scalars that the first module changed: a comparison of nothing proves nothing.
    pub changed: usize,
    /// Floats that differ by no more than a device may round differently.
    pub rounded: usize,
    /// On the executor, whether a module reads or writes outside of its buffers and arrays: then a difference is the program's own.
    pub strayed: bool,
    /// The first scalar that differs.
    pub first: Option<Difference>,
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
    options: DiffOptions,
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number that programs compute with: floats that are neither huge nor tiny; integers that are mostly small, in constants always.
    fn number(&mut self, n: ScalarFormat, constant: bool) -> u64 {
        let r = self.next();
        match n {
            ScalarFormat::Float(bits) => {
                let x = (r >> 11) as f64 / (1u64 << 53) as f64 * 16.0 - 8.0;
                match bits {
                    16 => f16::from_f64(x).to_bits().into(),
                    32 => (x as f32).to_bits().into(),
                    _ => x.to_bits(),
                }
            }
            ScalarFormat::Int { .. } if constant => 1 + r % 200,
            ScalarFormat::Int { .. } => match r % 4 {
                0 => r >> 2,
                1 => (r >> 2) % 256,
                _ => (r >> 2) % 65_536,
            },
        }
    }
}

fn fill(layout: &BlockLayout, elements: u32, random: &mut Random, constant: bool) -> Vec<u8> {
    let array = layout.array.as_ref();
    let end = array.map_or(0, |(at, stride, _)| u64::from(*at) + u64::from(*stride) * u64::from(elements));
    let size = end.max(layout.size.into()).next_multiple_of(16).clamp(16, MOST_BYTES) as usize;
    let mut bytes = vec![0u8; size];
    let mut put = |at: usize, n: ScalarFormat| {
        let x = random.number(n, constant).to_le_bytes();
        if let Some(to) = bytes.get_mut(at..at + n.bytes() as usize) {
            to.copy_from_slice(&x[..to.len()]);
        }
    };
    for &(at, n) in &layout.scalars {
        put(at as usize, n);
    }
    if let Some((at, stride, inner)) = array {
        for i in 0..elements as usize {
            inner.iter().for_each(|&(o, n)| put(*at as usize + i * *stride as usize + o as usize, n));
        }
    }
    bytes
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
        Ok(Diff { modules: [a, b], interfaces, options })
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

    /// What both modules are given.
    pub fn launch(&self, entry: &str) -> ModuleLaunch {
        let i = &self.interfaces[0];
        let mut random = Random(self.options.seed);
        let elements = self.options.elements;
        let buffers = i.buffers.iter().map(|b| fill(&b.layout, elements, &mut random, b.uniform)).collect();
        let mut constants = fill(&i.constants, 0, &mut random, true);
        constants.truncate(i.constants.size as usize);
        let workgroup = i.entries.iter().find(|e| e.name == entry).map_or([1; 3], |e| e.workgroup);
        let groups = self.options.groups.unwrap_or(workgroup.map(|n| if n > 1 { 4 } else { 1 }));
        ModuleLaunch { groups, buffers, constants, subgroup: 8, most_ops: self.options.most_ops, strayed: false }
    }

    /// Compares both on the executor, bit by bit; one NaN is as good as another.
    pub fn on_cpu(&self, entry: &str) -> Result<Comparison, DiffError> {
        let (mut results, mut strayed) = (Vec::new(), false);
        for (module, words) in ["A", "B"].into_iter().zip(self.modules) {
            let mut launch = self.launch(entry);
            execute_words(words, entry, &mut launch).map_err(|cause| DiffError::Module { module, cause })?;
            strayed |= launch.strayed;
            results.push(launch.buffers);
        }
        Ok(Comparison { strayed, ..self.compare(entry, &results[0], &results[1], 0.0) })
    }

    /// Compares both on a device. Floats may differ as a device rounds.
    ///
    /// # Safety
    ///
    /// Both modules must be valid for this device, which is not checked here, and stay inside of their buffers.
    pub unsafe fn on_device(&self, device: &VulkanDevice, entry: &str) -> Result<Comparison, DiffError> {
        let mut results = Vec::new();
        for ((module, words), interface) in ["A", "B"].into_iter().zip(self.modules).zip(&self.interfaces) {
            let wrong = |cause| DiffError::Module { module, cause };
            let failed = |cause| DiffError::VulkanDevice { module, cause };
            let words = rebind(words, interface).map_err(wrong)?;
            // SAFETY: as the caller says.
            let after = unsafe { self.run(device, &words, interface, entry) }.map_err(failed)?;
            results.push(after);
        }
        Ok(self.compare(entry, &results[0], &results[1], ROUNDING))
    }

    /// What the buffers hold after a launch on a device.
    unsafe fn run(
        &self,
        device: &VulkanDevice,
        words: &[u32],
        i: &ModuleInterface,
        entry: &str,
    ) -> Result<Vec<Vec<u8>>, VulkanError> {
        let launch = self.launch(entry);
        let uniforms: Vec<u32> = (0u32..).zip(&i.buffers).filter(|(_, b)| b.uniform).map(|(n, _)| n).collect();
        let interface = Interface {
            entry,
            buffers: i.buffers.len() as u32,
            constants: launch.constants.len() as u32,
            subgroup: None,
            uniforms: &uniforms,
            unoptimised: self.options.plain_driver,
        };
        // SAFETY: as the caller says; the interface is what the module says.
        let pipeline = unsafe { device.pipeline(words, &interface) }?;
        let mut buffers = Vec::new();
        for bytes in &launch.buffers {
            let buffer = device.buffer(bytes.len() as u64)?;
            buffer.write(bytes)?;
            buffers.push(buffer);
        }
        device.run(&pipeline, &buffers.iter().collect::<Vec<&Buffer>>(), &launch.constants, launch.groups)?;
        let mut after = launch.buffers;
        for (bytes, buffer) in after.iter_mut().zip(&buffers) {
            buffer.read(bytes)?;
        }
        Ok(after)
    }

    fn compare(&self, entry: &str, a: &[Vec<u8>], b: &[Vec<u8>], rounding: f64) -> Comparison {
        let mut found = Comparison::default();
        let before = self.launch(entry).buffers;
        for (i, buffer) in self.interfaces[0].buffers.iter().enumerate() {
            let (x, y) = (&a[i], &b[i]);
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
        found
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
