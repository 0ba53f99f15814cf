//! What modules are given to be compared: numbers of push constants and uniform buffers, contents of storage buffers, workgroups.

use half::f16;
use impasto_kernel::hash::Map;

use super::DiffOptions;
use super::specialise::Specialisation;
use crate::import::{BlockLayout, ModuleInterface, ScalarFormat};
use crate::run::ModuleLaunch;

/// Bytes of a buffer.
const MOST_BYTES: u64 = 1 << 28;
/// Bytes of contents that are kept for other inputs.
const MOST_KEPT: usize = 1 << 26;

/// Invocations in a subgroup that most modules are written for: some have arrays of as many elements as a workgroup then has subgroups.
const COMMON_SUBGROUP: u32 = 32;

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// A number that programs compute with: floats that are neither huge nor tiny; integers that are mostly small, in constants always.
    fn number(&mut self, n: ScalarFormat, constant: bool) -> u64 {
        let r = self.next();
        match n {
            ScalarFormat::Float(bits) => float_bits(bits, (r >> 11) as f64 / (1u64 << 53) as f64 * 16.0 - 8.0),
            ScalarFormat::Int { .. } if constant => 1 + r % 200,
            ScalarFormat::Int { .. } => match r % 4 {
                0 => r >> 2,
                1 => (r >> 2) % 256,
                _ => (r >> 2) % 65_536,
            },
        }
    }
}

pub(super) fn float_bits(bits: u32, x: f64) -> u64 {
    match bits {
        16 => f16::from_f64(x).to_bits().into(),
        32 => (x as f32).to_bits().into(),
        _ => x.to_bits(),
    }
}

/// What the integers of a storage buffer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum IntegerFill {
    /// Some of any size.
    Any,
    /// All below this.
    Below(u64),
    /// Some that are floats near 1 for a module that takes their bits so: as f32, or each half as f16 or bf16, or each byte as an exponent.
    Floats,
}

/// The bits of two floats of 16 bits, each of which is between 1/128 and 128 as bf16 and between 1 and 4 as f16.
fn float_like(x: u64) -> u64 {
    let one = |x: u64| (0x3C00 + x % 0x0700) | ((x >> 16 & 1) << 15);
    one(x) << 16 | one(x >> 24)
}

/// What a module is given: everything that a search may change.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Inputs {
    pub(super) seed: u64,
    pub(super) groups: [u32; 3],
    /// Invocations in a subgroup.
    pub(super) subgroup: u32,
    /// Numbers of push constants and of uniform buffers that are not random, by their order.
    pub(super) fixed: Vec<Option<u64>>,
    /// The integers of each buffer.
    pub(super) fills: Vec<IntegerFill>,
    /// Specialisation constants.
    pub(super) specialisation: Specialisation,
    /// Whether a module leaves its buffers or arrays with these inputs.
    pub(super) strays: bool,
}

impl Inputs {
    /// Random numbers of this seed.
    pub(super) fn random(i: &ModuleInterface, entry: &str, options: &DiffOptions) -> Inputs {
        let workgroup = i.entries.iter().find(|e| e.name == entry).map_or([1; 3], |e| e.workgroup);
        let groups = options.groups.unwrap_or(workgroup.map(|n| if n > 1 { 4 } else { 1 }));
        let uniform = i.buffers.iter().filter(|b| b.uniform).map(|b| b.layout.scalars.len()).sum::<usize>();
        Inputs {
            seed: options.seed,
            groups,
            subgroup: COMMON_SUBGROUP,
            fixed: vec![None; uniform + i.constants.scalars.len()],
            fills: vec![IntegerFill::Any; i.buffers.len()],
            specialisation: Specialisation::new(),
            strays: false,
        }
    }

    /// The launch with these inputs, with storage buffers that are made once for all inputs that agree in them.
    pub(super) fn launch(
        &self,
        i: &ModuleInterface,
        options: &DiffOptions,
        known: &mut BufferContents,
    ) -> ModuleLaunch {
        let mut random = Random(self.seed);
        let mut fixed = self.fixed.iter().copied();
        let mut buffers = Vec::new();
        for (n, (b, &integers)) in i.buffers.iter().zip(&self.fills).enumerate() {
            buffers.push(match b.uniform {
                true => fill(&b.layout, options.elements, &mut |n| given(&mut fixed, &mut random, n)),
                false => known.get(n, &b.layout, options.elements, self.seed, integers).clone(),
            });
        }
        let mut constants = fill(&i.constants, 0, &mut |n| given(&mut fixed, &mut random, n));
        constants.truncate(i.constants.size as usize);
        let (groups, subgroup) = (self.groups, self.subgroup);
        ModuleLaunch { groups, buffers, constants, subgroup, most_ops: options.most_ops, strayed: false }
    }
}

/// What storage buffers hold, by their number, the seed, and the kind of their integers.
#[derive(Default)]
pub(super) struct BufferContents {
    made: Map<(usize, u64, IntegerFill), Vec<u8>>,
    bytes: usize,
}

impl BufferContents {
    fn get(
        &mut self,
        buffer: usize,
        layout: &BlockLayout,
        elements: u32,
        seed: u64,
        integers: IntegerFill,
    ) -> &Vec<u8> {
        if self.bytes > MOST_KEPT {
            *self = BufferContents::default();
        }
        let bytes = &mut self.bytes;
        self.made.entry((buffer, seed, integers)).or_insert_with(|| {
            let mut random = Random(seed ^ (buffer as u64 + 1) << 32);
            let made = fill(layout, elements, &mut |n| match (n, random.number(n, false), integers) {
                (ScalarFormat::Int { .. }, x, IntegerFill::Below(most)) => x % most,
                (ScalarFormat::Int { bits: 8, .. }, x, IntegerFill::Floats) => 0x70 + x % 0x18,
                (ScalarFormat::Int { .. }, x, IntegerFill::Floats) => float_like(x),
                (_, x, _) => x,
            });
            *bytes += made.len();
            made
        })
    }
}

/// The next number of a constant block: the one that is fixed, or a random one.
fn given(fixed: &mut dyn Iterator<Item = Option<u64>>, random: &mut Random, n: ScalarFormat) -> u64 {
    let number = random.number(n, true);
    fixed.next().flatten().unwrap_or(number)
}

fn fill(layout: &BlockLayout, elements: u32, number: &mut dyn FnMut(ScalarFormat) -> u64) -> Vec<u8> {
    let array = layout.array.as_ref();
    let end = array.map_or(0, |(at, stride, _)| u64::from(*at) + u64::from(*stride) * u64::from(elements));
    let size = end.max(layout.size.into()).next_multiple_of(16).clamp(16, MOST_BYTES) as usize;
    let mut bytes = vec![0u8; size];
    let mut put = |at: usize, n: ScalarFormat| {
        let x = number(n).to_le_bytes();
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
