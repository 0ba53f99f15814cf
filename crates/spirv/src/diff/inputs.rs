//! Inputs that reach what a module does. Random push constants make many shaders return at once: sizes that are 0 or larger than the buffers, modes
//! that do not exist. So inputs are searched for, by what the executor reaches with them: every op that is reached for the first time makes an
//! input worth keeping, and others are made of it by changing a few numbers.

use half::f16;
use impasto_kernel::exec::Coverage;
use impasto_kernel::hash::Set;

use super::DiffOptions;
use crate::import::{BlockLayout, ImportError, ModuleInterface, ScalarFormat};
use crate::run::{ModuleLaunch, ModuleProgram};

/// Bytes of a buffer.
const MOST_BYTES: u64 = 1 << 28;
/// Ops of the first run, of each later one, and invocations times ops of all later ones.
const FIRST_OPS: u64 = 1 << 19;
const SEARCH_OPS: u64 = 1 << 16;
const SEARCH_WORK: u64 = 1 << 25;
/// Runs of the search, and inputs that are kept.
const SEARCH_RUNS: usize = 600;
const MOST_INPUTS: usize = 24;
/// Integers of the module that are tried.
const MOST_INTEGERS: usize = 64;
/// Bytes that a run changes, from which on it shows enough by itself.
const MANY_BYTES: usize = 512;

pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
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

fn float_bits(bits: u32, x: f64) -> u64 {
    match bits {
        16 => f16::from_f64(x).to_bits().into(),
        32 => (x as f32).to_bits().into(),
        _ => x.to_bits(),
    }
}

/// What the integers of a storage buffer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IntegerFill {
    /// Some of any size.
    Any,
    /// All below this.
    Below(u64),
}

/// What a module is given: everything that a search may change.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Inputs {
    seed: u64,
    groups: [u32; 3],
    /// Numbers of push constants and of uniform buffers that are not random, by their order.
    fixed: Vec<Option<u64>>,
    /// The integers of each buffer.
    fills: Vec<IntegerFill>,
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
            fixed: vec![None; uniform + i.constants.scalars.len()],
            fills: vec![IntegerFill::Any; i.buffers.len()],
            strays: false,
        }
    }

    /// The launch with these inputs.
    pub(super) fn launch(&self, i: &ModuleInterface, options: &DiffOptions) -> ModuleLaunch {
        let mut random = Random(self.seed);
        let mut fixed = self.fixed.iter().copied();
        let mut buffers = Vec::new();
        for (b, &integers) in i.buffers.iter().zip(&self.fills) {
            buffers.push(match b.uniform {
                true => fill(&b.layout, options.elements, &mut |n| given(&mut fixed, &mut random, n)),
                false => fill(&b.layout, options.elements, &mut |n| match (n, random.number(n, false), integers) {
                    (ScalarFormat::Int { .. }, x, IntegerFill::Below(most)) => x % most,
                    (_, x, _) => x,
                }),
            });
        }
        let mut constants = fill(&i.constants, 0, &mut |n| given(&mut fixed, &mut random, n));
        constants.truncate(i.constants.size as usize);
        let groups = self.groups;
        ModuleLaunch { groups, buffers, constants, subgroup: 8, most_ops: options.most_ops, strayed: false }
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

/// A search for inputs of one entry point.
struct Search<'a> {
    program: &'a ModuleProgram,
    interface: &'a ModuleInterface,
    options: &'a DiffOptions,
    formats: Vec<ScalarFormat>,
    /// Integers that are worth trying.
    pool: Vec<u64>,
    /// The ops that count.
    wanted: Vec<usize>,
    /// Ops that were reached, by a run that stays inside of its buffers and by any.
    clean: Vec<bool>,
    any: Vec<bool>,
    found: Vec<Inputs>,
    work: u64,
    /// The most bytes that one of them changes.
    most_changed: usize,
    /// Whether the executor could not even begin.
    hopeless: bool,
    first_error: Option<ImportError>,
}

/// Inputs which together with the `known` ones reach what can be reached of an entry point, best first.
pub(super) fn search(
    program: &ModuleProgram,
    interface: &ModuleInterface,
    entry: &str,
    options: &DiffOptions,
    known: &[Inputs],
) -> Result<Vec<Inputs>, ImportError> {
    let uniform = interface.buffers.iter().filter(|b| b.uniform).flat_map(|b| &b.layout.scalars);
    let formats: Vec<ScalarFormat> = uniform.chain(&interface.constants.scalars).map(|s| s.1).collect();
    let elements = u64::from(options.elements);
    let mut pool: Vec<u64> =
        vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 100, 128, 256, 512, 1024, elements, 8 * elements];
    let own: Set<u32> = program.integers().filter(|&n| n <= 1 << 20).collect();
    let mut own: Vec<u32> = own.into_iter().collect();
    own.sort_unstable();
    pool.extend(
        own.into_iter().take(MOST_INTEGERS).flat_map(|n| [u64::from(n).saturating_sub(1), n.into(), u64::from(n) + 1]),
    );
    pool.sort_unstable();
    pool.dedup();
    let wanted: Vec<usize> = program.instructions().into_iter().map(|(op, _)| op.index()).collect();
    let ops = wanted.iter().max().map_or(0, |&m| m + 1);
    let mut s = Search {
        program,
        interface,
        options,
        formats,
        pool,
        wanted,
        clean: vec![false; ops],
        any: vec![false; ops],
        found: Vec::new(),
        work: 0,
        most_changed: 0,
        hopeless: false,
        first_error: None,
    };
    known.iter().for_each(|inputs| s.attempt(inputs, FIRST_OPS));
    s.run(Inputs::random(interface, entry, options));
    s.found.retain(|inputs| !known.contains(inputs));
    // Inputs that leave the buffers are of use only where no others reach what they reach.
    s.found.sort_by_key(|inputs| inputs.strays);
    match (s.found.is_empty(), s.first_error) {
        (true, Some(e)) if known.is_empty() => Err(e),
        _ => Ok(s.found),
    }
}

impl Search<'_> {
    fn run(&mut self, first: Inputs) {
        if !self.done() {
            // Where there is nothing to choose, this one must do.
            self.attempt(&first, if first.fixed.is_empty() { self.options.most_ops } else { FIRST_OPS });
        }
        let mut random = Random(self.options.seed ^ 0x5EED);
        let starts = [64u64, 1, 8, 256, 1024, 2, 32, self.options.elements.into(), 0];
        for (k, size) in starts.into_iter().enumerate() {
            if self.done() && self.most_changed >= MANY_BYTES || self.hopeless {
                return;
            }
            let mut inputs = first.clone();
            for (fixed, n) in inputs.fixed.iter_mut().zip(&self.formats) {
                *fixed = matches!(n, ScalarFormat::Int { .. }).then_some(size);
            }
            if k % 2 == 1 {
                inputs.fills.fill(IntegerFill::Below(8));
            }
            self.attempt(&inputs, SEARCH_OPS);
        }
        for _ in 0..SEARCH_RUNS {
            if self.done() || self.hopeless {
                return;
            }
            let mut inputs = match self.found.len() {
                0 => first.clone(),
                n => self.found[n - 1 - random.below(n).min(random.below(n))].clone(),
            };
            for _ in 0..=random.below(3) {
                self.change(&mut inputs, &mut random);
            }
            self.attempt(&inputs, SEARCH_OPS);
        }
    }

    /// Whether there is nothing more to find, or no time.
    fn done(&self) -> bool {
        self.work > SEARCH_WORK
            || self.found.len() >= MOST_INPUTS
            || (!self.found.is_empty() && self.wanted.iter().all(|&op| self.clean[op]))
    }

    /// Another number in one place.
    fn change(&self, inputs: &mut Inputs, random: &mut Random) {
        let (numbers, buffers) = (inputs.fixed.len(), inputs.fills.len());
        let at = random.below(4 * numbers + buffers + 1);
        if at < 4 * numbers {
            let at = at / 4;
            inputs.fixed[at] = Some(match self.formats[at] {
                ScalarFormat::Int { .. } => self.pool[random.below(self.pool.len())],
                ScalarFormat::Float(bits) => float_bits(bits, [0.0, 1.0, -1.0, 0.5, 2.0, 8.0, 100.0][random.below(7)]),
            });
        } else if at < 4 * numbers + buffers {
            inputs.fills[at - 4 * numbers] =
                [IntegerFill::Any, IntegerFill::Below(2), IntegerFill::Below(8), IntegerFill::Below(64)]
                    [random.below(4)];
        } else {
            inputs.seed = inputs.seed.wrapping_add(1 + random.next() % 1000);
        }
    }

    /// Runs with these inputs, and keeps them if they reach something for the first time.
    fn attempt(&mut self, inputs: &Inputs, most_ops: u64) {
        let mut launch = inputs.launch(self.interface, self.options);
        launch.most_ops = most_ops.min(self.options.most_ops);
        let before = launch.buffers.clone();
        let (result, Coverage { reached, ops }) = self.program.run(&mut launch);
        self.work += ops * self.program.lanes();
        if let Err(e) = result {
            self.hopeless |= ops == 0;
            self.first_error.get_or_insert(e);
            return;
        }
        let mut news = self.found.is_empty();
        for &op in &self.wanted {
            if reached[op] {
                news |= !std::mem::replace(&mut self.any[op], true);
                news |= !launch.strayed && !std::mem::replace(&mut self.clean[op], true);
            }
        }
        // Few numbers hide much: an offset of 0, a product with 1.
        let changed = |(a, b): (&Vec<u8>, &Vec<u8>)| a.iter().zip(b).filter(|(x, y)| x != y).count();
        let changed: usize = before.iter().zip(&launch.buffers).map(changed).sum();
        if !launch.strayed && changed > 2 * self.most_changed {
            (self.most_changed, news) = (changed, true);
        }
        if news {
            self.found.push(Inputs { strays: launch.strayed, ..inputs.clone() });
        }
    }
}
