//! Inputs that reach what two modules do, and that tell them apart. Random push constants make many shaders return at once: sizes that are 0 or
//! larger than the buffers, modes that do not exist. So inputs are searched for, by what the executor reaches with them: every op that is reached
//! for the first time makes an input worth keeping, and others are made of it by changing a few numbers. Both modules run with every input, and
//! where they are the same but for some instructions, the search goes on until these give different results and something comes of it.

use std::collections::BTreeMap;
use std::rc::Rc;

use impasto_kernel::exec::Coverage;
use impasto_kernel::hash::Set;
use impasto_kernel::ir::OpId;

use super::align::{self, AlignedPrograms, DifferingPair};
use super::influence::{self, Influence, InputPlace};
use super::inputs::{BufferContents, Inputs, IntegerFill, Random, float_bits};
use super::specialise::{SpecConstant, Specialisation};
use super::{Comparison, Diff, DiffError, DiffOptions, DifferingInstructions, Reach};
use crate::import::ScalarFormat;
use crate::run::{ModuleProgram, Observer, VARIED};

/// Ops of one run with inputs that were chosen, counted for each invocation and once for all; ops of all runs together.
const RUN_WORK: u64 = 1 << 24;
const RUN_OPS: u64 = 1 << 18;
/// How often a run may take twice as many ops, and of the last eight runs how many must have been stopped for that.
const MOST_PATIENCE: u32 = 2;
const MANY_STOPPED: u32 = 3;
const SEARCH_WORK: u64 = 3 << 27;
/// How much more is searched after modules were told apart by inputs that leave their buffers: others are better.
const STRAY_WORK: u64 = 1 << 26;
/// How much less is searched where modules are the same, or differ in their form: then there is nothing that must still show itself.
const FORM_SHARE: u64 = 8;
/// What an op costs besides what it costs for each invocation.
const OP_WORK: u64 = 12;
/// What a word of a module costs that is specialised anew.
const WORD_WORK: u64 = 128;
/// Bytes that take as long to prepare and compare as one op of one invocation.
const BYTES_OF_AN_OP: u64 = 8;
/// Runs of the search, runs after which all that was reached is enough, and inputs that are kept.
const SEARCH_RUNS: usize = 1200;
const FEW_RUNS: usize = 32;
/// Runs with both modules in any case.
const BOTH_RUNS: usize = 8;
/// Runs that begin with numbers that all differ.
const MIXED_RUNS: usize = 16;
const MOST_INPUTS: usize = 24;
const MOST_AGREEING: usize = 8;
/// Workgroups of a run.
const MOST_GROUPS: u32 = 8;
/// Integers of the module that are tried.
const MOST_INTEGERS: usize = 64;
/// Bytes that a run changes, from which on it shows enough by itself.
const MANY_BYTES: usize = 512;
/// Ops that a module may take for each op of the other one, and ops that it may always take; one that takes more is called endless.
const ENDLESS: u64 = 16;
const SHORT: u64 = 1 << 14;

/// What storage buffers are filled with.
const FILLS: [IntegerFill; 5] =
    [IntegerFill::Any, IntegerFill::Below(2), IntegerFill::Below(8), IntegerFill::Below(64), IntegerFill::Floats];

/// Sizes: some of one tile, and some of more.
const SIZES_TO_TRY: [u64; 14] = [1, 2, 16, 32, 64, 65, 100, 128, 130, 256, 260, 512, 600, 1024];
/// Invocations of workgroups that are tried where one after the other cannot end.
const SIZES: [u32; 3] = [256, 128, 32];
/// Invocations in a subgroup.
const SUBGROUPS: [u32; 4] = [4, 8, 32, 64];

/// What became of the instructions in one place that differ.
#[derive(Clone, Debug, Default)]
struct PairState {
    /// Whether their results differed in a run.
    differed: bool,
    /// Different values of each operand in the first module, and whether it is a constant there.
    operands: Vec<(Vec<u64>, bool)>,
}

impl PairState {
    /// Whether both gave the same result each time, with operands that are varied enough for that to mean something.
    fn agreed(&self) -> bool {
        !self.differed && self.operands.iter().all(|(seen, constant)| *constant || seen.len() >= VARIED)
    }
}

/// A search for inputs of one entry point.
pub(super) struct Search<'a> {
    diff: &'a Diff<'a>,
    entry: &'a str,
    /// Both modules as the first inputs specialise them, and as others do.
    programs: Rc<[ModuleProgram; 2]>,
    specialised: BTreeMap<Specialisation, Option<Rc<[ModuleProgram; 2]>>>,
    formats: Vec<ScalarFormat>,
    /// Integers that are worth trying.
    pool: Vec<u64>,
    /// The ops that count.
    wanted: [Vec<usize>; 2],
    /// Ops that were reached, by a run that stays inside of its buffers and by any.
    clean: [Vec<bool>; 2],
    any: [Vec<bool>; 2],
    /// The instructions that differ, if that is all that does.
    pairs: Vec<(DifferingPair, Option<PairState>)>,
    /// All instructions that stand in the same place, if the modules are aligned.
    same: Vec<(OpId, OpId)>,
    contents: BufferContents,
    pub(super) found: Vec<Inputs>,
    pub(super) comparison: Comparison,
    work: u64,
    runs: usize,
    /// The most bytes that a run changes.
    most_changed: usize,
    /// Inputs with which instructions gave different results that nothing came of, and the most bytes that such a run changes.
    telling: Vec<Inputs>,
    /// Inputs with which instructions that differ ran, and gave the same.
    agreeing: Vec<Inputs>,
    /// What the instructions depend on that differ.
    influences: Vec<Influence>,
    /// Buffers that their results meet.
    data: Vec<usize>,
    most_telling: usize,
    /// Inputs that leave buffers and tell the modules apart, and the work until they were found.
    stray_difference: Option<(Inputs, u64)>,
    /// Runs that were stopped because they took too long, which of the last ones these were, and how often more ops were allowed for that.
    stopped: usize,
    stopped_lately: u8,
    patience: u32,
    /// Whether the executor could not even begin.
    hopeless: bool,
    first_error: Option<DiffError>,
}

impl<'a> Search<'a> {
    pub(super) fn new(diff: &'a Diff<'a>, entry: &'a str) -> Result<Search<'a>, DiffError> {
        let first = diff.random(entry).specialisation;
        let programs = Rc::new(diff.programs(entry, &first)?);
        let AlignedPrograms { differing, all } = align::aligned(&programs[0], &programs[1]).unwrap_or_default();
        let interface = &diff.interfaces[0];
        let influences: Vec<Influence> =
            differing.iter().map(|pair| Influence::on(&programs[0], interface, pair.ops[0])).collect();
        let uniform = interface.buffers.iter().filter(|b| b.uniform).flat_map(|b| &b.layout.scalars);
        let formats: Vec<ScalarFormat> = uniform.chain(&interface.constants.scalars).map(|s| s.1).collect();
        let wanted =
            [0, 1].map(|i| programs[i].instructions().into_iter().map(|(op, _)| op.index()).collect::<Vec<_>>());
        let none = [0, 1].map(|i| vec![false; programs[i].kernel.op_count()]);
        Ok(Search {
            diff,
            entry,
            pool: pool(&programs, &diff.options),
            specialised: BTreeMap::from([(first, Some(programs.clone()))]),
            programs,
            formats,
            wanted,
            clean: none.clone(),
            any: none,
            pairs: differing.into_iter().map(|p| (p, None)).collect(),
            same: all,
            contents: BufferContents::default(),
            found: Vec::new(),
            comparison: Comparison::default(),
            work: 0,
            runs: 0,
            most_changed: 0,
            telling: Vec::new(),
            agreeing: Vec::new(),
            data: influence::data_buffers(&influences),
            influences,
            most_telling: 0,
            stray_difference: None,
            stopped: 0,
            stopped_lately: 0,
            patience: 0,
            hopeless: false,
            first_error: None,
        })
    }

    /// Searches until the modules are told apart, until there is nothing more to find, or until there is no time.
    pub(super) fn run(&mut self) -> Result<(), DiffError> {
        let options = &self.diff.options;
        let mut first = self.diff.random(self.entry);
        // Where there is nothing to choose, this one must do.
        let most_ops = self.most_run_ops();
        self.attempt(&first, if first.fixed.is_empty() { options.most_ops } else { most_ops })?;
        let mut random = Random(options.seed ^ 0x5EED);
        let starts = [64u64, 1, 8, 256, 1024, 2, 32, options.elements.into(), 0];
        for (k, size) in starts.into_iter().enumerate() {
            if self.done() && self.most_changed >= MANY_BYTES {
                break;
            }
            // Tiles that are longer than a workgroup make some modules endless.
            if self.found.is_empty() && self.stopped >= 2 && k < 2 * SIZES.len() + 2 {
                let sizes = self.diff.constants.iter().filter(|c| c.is_size && c.is_open());
                first.specialisation.extend(sizes.map(|c| (c.id, SIZES[k.saturating_sub(2) / 2])));
            }
            let mut inputs = first.clone();
            for (fixed, n) in inputs.fixed.iter_mut().zip(&self.formats) {
                *fixed = matches!(n, ScalarFormat::Int { .. }).then_some(size);
            }
            if k % 2 == 1 {
                inputs.fills.fill(IntegerFill::Below(8));
            }
            self.attempt(&inputs, most_ops)?;
        }
        for k in 0..SEARCH_RUNS {
            if self.done() {
                break;
            }
            let mut inputs = self.parent(&first, &mut random);
            if k < MIXED_RUNS || random.below(8) == 0 {
                self.mix(&mut inputs, &mut random);
            } else if !self.pairs.is_empty() && random.below(2) == 0 {
                (0..=random.below(3)).for_each(|_| self.change_directed(&mut inputs, &mut random));
            } else {
                (0..=random.below(4)).for_each(|_| self.change(&mut inputs, &mut random));
            }
            let most_ops = self.most_ops();
            self.attempt(&inputs, most_ops)?;
        }
        self.compare_strays()?;
        match (self.found.is_empty(), self.first_error.take()) {
            (true, Some(e)) => Err(e),
            _ => Ok(()),
        }
    }

    fn most_run_ops(&self) -> u64 {
        (RUN_WORK / self.programs[0].lanes().max(1)).min(RUN_OPS)
    }

    /// Ops of a run of the search: few at first, more if many runs were stopped.
    fn most_ops(&mut self) -> u64 {
        if self.stopped_lately.count_ones() > MANY_STOPPED && self.patience < MOST_PATIENCE {
            (self.stopped_lately, self.patience) = (0, self.patience + 1);
        }
        self.most_run_ops() >> (MOST_PATIENCE - self.patience)
    }

    /// Whether there is nothing more to find, or no time.
    fn done(&self) -> bool {
        let reached = |i: usize| self.wanted[i].iter().all(|&op| self.clean[i][op]);
        let settled = || self.pairs.iter().all(|(_, state)| state.as_ref().is_some_and(PairState::agreed));
        self.hopeless
            || self.comparison.first.is_some()
            || self.work > if self.pairs.is_empty() { SEARCH_WORK / FORM_SHARE } else { SEARCH_WORK }
            || self.stray_difference.as_ref().is_some_and(|(_, work)| self.work > work + STRAY_WORK)
            || !self.found.is_empty() && self.runs >= FEW_RUNS && reached(0) && reached(1) && settled()
    }

    /// Inputs that others are made of: with which the instructions differ that differ, or that were kept lately.
    fn parent(&self, first: &Inputs, random: &mut Random) -> Inputs {
        let kept = match self.telling.len() {
            n if n > 0 && random.below(2) == 0 => Some(&self.telling[random.below(n)]),
            _ if self.telling.is_empty() && !self.agreeing.is_empty() && random.below(2) == 0 => {
                Some(&self.agreeing[random.below(self.agreeing.len())])
            }
            _ => {
                let n = self.found.len();
                n.checked_sub(1 + random.below(n).min(random.below(n))).map(|i| &self.found[i])
            }
        };
        kept.unwrap_or(first).clone()
    }

    /// Other numbers everywhere: small ones, which differ from each other.
    fn mix(&self, inputs: &mut Inputs, random: &mut Random) {
        for (fixed, n) in inputs.fixed.iter_mut().zip(&self.formats) {
            if let ScalarFormat::Int { .. } = n {
                *fixed = Some([1, 2, 3, 4, 5, 8, 16, 32, 64][random.below(9)]);
            }
        }
        inputs.fills.iter_mut().for_each(|fill| *fill = FILLS[random.below(FILLS.len())]);
        if random.below(2) == 0 {
            self.enrich(inputs, random);
        }
        self.change_groups(inputs, random.below(3), random);
    }

    /// Another number of workgroups on an axis; all together are few.
    fn change_groups(&self, inputs: &mut Inputs, axis: usize, random: &mut Random) {
        if self.diff.options.groups.is_some() {
            return;
        }
        inputs.groups[axis] = [1, 2, 2, 3, 4][random.below(5)];
        for other in [1, 2].map(|i| (axis + i) % 3) {
            if inputs.groups.iter().product::<u32>() > MOST_GROUPS {
                inputs.groups[other] = 1;
            }
        }
    }

    /// Another number where it may let the instructions run that differ, or give them other operands.
    fn change_directed(&self, inputs: &mut Inputs, random: &mut Random) {
        let n = random.below(self.pairs.len());
        if self.pairs.get(n).is_some_and(|(_, s)| s.as_ref().is_some_and(|s| s.differed)) && random.below(4) == 0 {
            return self.enrich(inputs, random);
        }
        let (Some((_, state)), Some(influence)) = (self.pairs.get(n), self.influences.get(n)) else { return };
        // An operand that never varied may be what hides a difference.
        let choice = random.next() as usize;
        let stuck = |s: &PairState| {
            let same = s
                .operands
                .iter()
                .zip(&influence.operands)
                .filter(|((seen, constant), _)| !constant && seen.len() < VARIED);
            let same: Vec<&Vec<InputPlace>> =
                same.map(|(_, places)| places).filter(|places| !places.is_empty()).collect();
            same.get(choice % same.len().max(1)).copied()
        };
        let places = match state {
            Some(s) if !s.differed && random.below(2) == 0 => stuck(s),
            Some(s) if s.differed && random.below(3) == 0 => Some(&influence.downstream),
            Some(_) if random.below(4) == 0 => influence.operands.get(random.below(influence.operands.len())),
            _ => Some(&influence.guards),
        };
        let Some(places) = places.filter(|places| !places.is_empty()) else { return self.change(inputs, random) };
        match places[random.below(places.len())] {
            InputPlace::Number(at) if at < inputs.fixed.len() => self.change_number(inputs, at, random),
            InputPlace::Buffer(b) if b < inputs.fills.len() => inputs.fills[b] = FILLS[random.below(FILLS.len())],
            InputPlace::Groups(axis) => self.change_groups(inputs, axis, random),
            InputPlace::Specialisation(id) => {
                self.diff.constants.iter().filter(|c| c.id == id).for_each(|c| self.respecialise(inputs, c, random));
            }
            _ => {}
        }
    }

    /// Numbers without many zeros in the buffers that the results meet which differ: a product with 0 hides everything.
    fn enrich(&self, inputs: &mut Inputs, random: &mut Random) {
        for &b in &self.data {
            if let Some(fill) = inputs.fills.get_mut(b) {
                *fill = [IntegerFill::Any, IntegerFill::Floats][random.below(2)];
            }
        }
    }

    fn respecialise(&self, inputs: &mut Inputs, c: &SpecConstant, random: &mut Random) {
        let candidates = c.candidates();
        inputs.specialisation.insert(c.id, candidates[random.below(candidates.len())]);
    }

    fn change_number(&self, inputs: &mut Inputs, at: usize, random: &mut Random) {
        let floats = [0.0, 1.0, -1.0, 0.5, 2.0, 8.0, 100.0];
        inputs.fixed[at] = Some(match self.formats[at] {
            ScalarFormat::Int { .. } => match random.below(6) {
                0 | 1 => random.below(9) as u64,
                2 | 3 => SIZES_TO_TRY[random.below(SIZES_TO_TRY.len())],
                // Small numbers, packed into bytes.
                4 if random.below(2) == 0 => random.next() & 0x0707_0707,
                _ => self.pool[random.below(self.pool.len())],
            },
            ScalarFormat::Float(bits) => float_bits(bits, floats[random.below(floats.len())]),
        });
    }

    /// Another number in one place.
    fn change(&self, inputs: &mut Inputs, random: &mut Random) {
        let (numbers, buffers, constants) = (inputs.fixed.len(), inputs.fills.len(), self.diff.constants.len());
        match random.below(10) {
            0 if random.below(4) == 0 => inputs.subgroup = SUBGROUPS[random.below(SUBGROUPS.len())],
            0 => inputs.seed = inputs.seed.wrapping_add(1 + random.next() % 1000),
            1 => self.change_groups(inputs, random.below(3), random),
            2 if constants > 0 => self.respecialise(inputs, &self.diff.constants[random.below(constants)], random),
            2 | 3 if buffers > 0 => inputs.fills[random.below(buffers)] = FILLS[random.below(FILLS.len())],
            _ if numbers > 0 => self.change_number(inputs, random.below(numbers), random),
            _ => {}
        }
    }

    /// Runs both with these inputs, compares them, and keeps the inputs if they reach something for the first time.
    fn attempt(&mut self, inputs: &Inputs, most_ops: u64) -> Result<(), DiffError> {
        let Some(both) = self.run_both(inputs, most_ops)? else { return Ok(()) };
        let mut news = self.found.is_empty();
        for i in [0, 1] {
            for &op in &self.wanted[i] {
                if both.reached[i][op] {
                    news |= !std::mem::replace(&mut self.any[i][op], true);
                    news |= !both.strayed && !std::mem::replace(&mut self.clean[i][op], true);
                }
            }
        }
        if both.strayed {
            self.keep(inputs, news, true);
            if !self.pairs.is_empty() && self.stray_difference.is_none() && both.after[0] != both.after[1] {
                self.stray_difference = Some((inputs.clone(), self.work));
            }
            return Ok(());
        }
        // Few numbers hide much: an offset of 0, a product with 1.
        let changed = |(a, b): (&Vec<u8>, &Vec<u8>)| a.iter().zip(b).filter(|(x, y)| x != y).count();
        let changed: usize = both.before.iter().zip(&both.after[0]).map(changed).sum();
        if changed > 2 * self.most_changed {
            (self.most_changed, news) = (changed, true);
        }
        let (differ, first) = self.trace(&both.observers);
        if !differ && self.telling.is_empty() && !both.observers[0].traces.is_empty() {
            if self.agreeing.len() >= MOST_AGREEING {
                self.agreeing.remove(0);
            }
            self.agreeing.push(inputs.clone());
        }
        if first || differ && changed > self.most_telling {
            self.most_telling = self.most_telling.max(changed);
            self.telling.push(inputs.clone());
        }
        self.keep(inputs, news, false);
        self.compare(inputs, &both);
        Ok(())
    }

    /// Compares what both modules made of the same inputs, bit by bit.
    fn compare(&mut self, inputs: &Inputs, both: &BothRuns) {
        let [a, b] = [&both.after[0], &both.after[1]];
        self.diff.compare((self.entry, &inputs.specialisation), &both.before, [a, b], 0.0, &mut self.comparison);
    }

    fn keep(&mut self, inputs: &Inputs, news: bool, strays: bool) {
        if news && self.found.len() < MOST_INPUTS {
            self.found.push(Inputs { strays, ..inputs.clone() });
        }
    }

    /// Adds what the instructions did that differ; whether the results of one of them differed, and did for the first time.
    fn trace(&mut self, observers: &[Observer; 2]) -> (bool, bool) {
        let (mut any, mut news) = (false, false);
        for (pair, state) in &mut self.pairs {
            let traces = [0, 1].map(|i| observers[i].traces.get(&pair.ops[i]));
            let Some(first) = traces[0].or(traces[1]) else { continue };
            let program = &self.programs[usize::from(traces[0].is_none())];
            let op = pair.ops[usize::from(traces[0].is_none())];
            let state = state.get_or_insert_default();
            state.operands.resize(first.operands.len(), Default::default());
            for ((known, constant), (seen, v)) in
                state.operands.iter_mut().zip(first.operands.iter().zip(program.kernel.args(op)))
            {
                *constant = program.constants.contains_key(v);
                let new: Vec<u64> = seen.iter().copied().filter(|x| !known.contains(x)).collect();
                known.extend(new);
            }
            let differ = traces[0].map(|t| t.results) != traces[1].map(|t| t.results);
            any |= differ;
            news |= differ && !state.differed;
            state.differed |= differ;
        }
        (any, news)
    }

    /// Both modules as they are specialised, if they can be run so.
    fn specialised(&mut self, constants: &Specialisation) -> Option<Rc<[ModuleProgram; 2]>> {
        if let Some(known) = self.specialised.get(constants) {
            return known.clone();
        }
        let made = self.diff.programs(self.entry, constants).ok();
        self.work += WORD_WORK * self.diff.modules.iter().map(|m| m.len() as u64).sum::<u64>();
        // All that is counted by op stands for the same in both.
        let same =
            |p: &[ModuleProgram; 2]| (0..2).all(|i| p[i].kernel.op_count() == self.programs[i].kernel.op_count());
        let made = made.filter(same).map(Rc::new);
        self.specialised.insert(constants.clone(), made.clone());
        made
    }

    /// Runs both. Nothing comes back if one of them could not end.
    fn run_both(&mut self, inputs: &Inputs, most_ops: u64) -> Result<Option<BothRuns>, DiffError> {
        let Some(programs) = self.specialised(&inputs.specialisation) else { return Ok(None) };
        let first = Rc::ptr_eq(&programs, &self.programs);
        let mut after = Vec::new();
        let mut reached = Vec::new();
        let mut observers = [0, 1].map(|i| Observer::new(self.pairs.iter().map(|(p, _)| p.ops[i])));
        // Optimisers may make anything of memory that nothing was written to.
        observers.iter_mut().for_each(|o| o.arbitrary_memory = !self.pairs.is_empty());
        let mut ends: Option<u64> = None;
        let mut strayed = true;
        let (interface, options) = (&self.diff.interfaces[0], &self.diff.options);
        let before = inputs.launch(interface, options, &mut self.contents);
        self.runs += 1;
        self.stopped_lately <<= 1;
        self.work += before.buffers.iter().map(|b| b.len() as u64).sum::<u64>() / BYTES_OF_AN_OP;
        for (i, (module, program)) in ["A", "B"].into_iter().zip(&*programs).enumerate() {
            let mut launch = before.clone();
            let most = ends.map_or(most_ops, |n| ENDLESS * n + SHORT);
            launch.most_ops = most.min(options.most_ops);
            let (result, Coverage { reached: own, ops, work }) = program.run(&mut launch, &mut observers[i]);
            self.work += work + OP_WORK * ops;
            match (result, ends) {
                (Err(_), Some(ends)) if ops > most && !(strayed && launch.strayed) => {
                    return Err(DiffError::Endless { entry: self.entry.to_owned(), ends, ops: most });
                }
                (Err(cause), _) => {
                    self.stopped += usize::from(ops > launch.most_ops);
                    self.stopped_lately |= u8::from(ops > launch.most_ops);
                    self.hopeless |= ops == 0 && first;
                    self.first_error.get_or_insert(DiffError::Module { module, cause });
                    return Ok(None);
                }
                (Ok(()), _) => {}
            }
            ends = Some(ops);
            // Where only one of them leaves its buffers, what comes of it is a difference.
            strayed &= launch.strayed;
            after.push(launch.buffers);
            reached.push(own);
            // Programs that are the same but for instructions that did not run do the same.
            if i == 0 && self.runs > BOTH_RUNS && !self.pairs.is_empty() && observers[0].traces.is_empty() {
                let mut other = vec![false; programs[1].kernel.op_count()];
                self.same.iter().for_each(|(p, q)| other[q.index()] = reached[0][p.index()]);
                reached.push(other);
                after.push(after[0].clone());
                break;
            }
        }
        Ok(Some(BothRuns { before: before.buffers, after, reached, strayed, observers }))
    }

    /// What was found, what was reached, and what became of the instructions that differ.
    pub(super) fn finish(self) -> Comparison {
        let mut reach = Reach::default();
        for (program, any) in self.programs.iter().zip(&self.any) {
            for (op, writes) in program.instructions() {
                let ran = usize::from(any[op.index()]);
                reach.instructions += ran;
                reach.all_instructions += 1;
                reach.stores += ran * usize::from(writes);
                reach.all_stores += usize::from(writes);
            }
        }
        let states = || self.pairs.iter().filter_map(|(_, state)| state.as_ref());
        let differing = DifferingInstructions {
            all: self.pairs.len(),
            differed: states().filter(|s| s.differed).count(),
            agreed: states().filter(|s| s.agreed()).count(),
        };
        Comparison { reach: Some(reach), differing, ..self.comparison }
    }

    /// Compares with the inputs that leave buffers. They are of use only where no others reach what they reach, and a difference is then the
    /// program's own.
    fn compare_strays(&mut self) -> Result<(), DiffError> {
        self.found.sort_by_key(|inputs| inputs.strays);
        let reached = |i: usize| self.wanted[i].iter().all(|&op| self.clean[i][op]);
        let known = self.stray_difference.take();
        if self.comparison.first.is_some() || known.is_none() && reached(0) && reached(1) {
            return Ok(());
        }
        let kept = self.found.iter().filter(|inputs| inputs.strays).cloned();
        for inputs in &known.into_iter().map(|k| k.0).chain(kept).collect::<Vec<_>>() {
            let Some(both) = self.run_both(inputs, self.diff.options.most_ops)? else { continue };
            self.comparison.strayed = true;
            self.compare(inputs, &both);
            if self.comparison.first.is_some() {
                break;
            }
        }
        Ok(())
    }
}

/// What two modules did with the same inputs.
struct BothRuns {
    before: Vec<Vec<u8>>,
    after: Vec<Vec<Vec<u8>>>,
    reached: Vec<Vec<bool>>,
    /// Whether both leave their buffers or arrays.
    strayed: bool,
    observers: [Observer; 2],
}

/// Integers that decide something: sizes, and what the modules have as constants.
fn pool(programs: &[ModuleProgram; 2], options: &DiffOptions) -> Vec<u64> {
    let elements = u64::from(options.elements);
    let mut pool: Vec<u64> =
        vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 100, 128, 256, 512, 1024, elements, 8 * elements];
    let own: Set<u32> = programs.iter().flat_map(ModuleProgram::integers).filter(|&n| n <= 1 << 20).collect();
    let mut own: Vec<u32> = own.into_iter().collect();
    own.sort_unstable();
    pool.extend(
        own.into_iter().take(MOST_INTEGERS).flat_map(|n| [u64::from(n).saturating_sub(1), n.into(), u64::from(n) + 1]),
    );
    pool.sort_unstable();
    pool.dedup();
    pool
}
