//! The words of a module, taken apart and believed only as far as they were checked. Cost: linear in the words, whatever the header says.

use rspirv::spirv::{self, Op as S};

use super::grammar::{self, Role};
use super::rules::{is_seen, may_name_nothing};
use super::{ImportError, at};
use impasto_kernel::hash::Map;

/// The largest bound that is read: what other optimisers can be told to write, and more than any device takes.
pub(crate) const BOUND_LIMIT: u32 = 0x3FF_FFFF;
/// The most words that are read: 256 MB.
pub(crate) const WORD_LIMIT: usize = 1 << 26;

/// The place of an instruction in the words.
pub(crate) type At = u32;

/// A function: where its instructions are, without `OpFunction`, its parameters and `OpFunctionEnd`.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) id: u32,
    pub(crate) at: At,
    /// Behind its last word.
    pub(crate) end: At,
    pub(crate) params: Vec<u32>,
    pub(crate) blocks: Vec<Block>,
}

/// A block: its label, its instructions without label, merge and terminator, then these.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) label: u32,
    pub(crate) phis: Vec<At>,
    pub(crate) body: Vec<At>,
    pub(crate) merge: Option<At>,
    pub(crate) end: At,
}

/// An entry point.
#[derive(Clone, Debug)]
pub(crate) struct EntryPoint {
    pub(crate) function: u32,
    pub(crate) name: String,
}

/// A module, in tables. Ids are below `bound`, which is not above the number of words.
pub(crate) struct Source {
    pub(crate) words: Vec<u32>,
    pub(crate) bound: u32,
    /// Everything before the functions, in order.
    pub(crate) preamble: Vec<At>,
    pub(crate) entries: Vec<EntryPoint>,
    pub(crate) functions: Vec<Function>,
    /// The instruction that defines each id; 0 where there is none.
    pub(crate) defs: Vec<At>,
    /// The place in `functions` of each function, by its id.
    pub(crate) function_of: Map<u32, usize>,
    /// Decorations of each id that has some: the instructions.
    pub(crate) decorations: Map<u32, Vec<At>>,
    pub(crate) is_decorated: Vec<bool>,
    pub(crate) names: Map<u32, String>,
}

/// The text in these words, as far as it is one.
pub(crate) fn text(words: &[u32]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).take_while(|&b| b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Source {
    /// The words of an instruction.
    pub(crate) fn instruction(&self, at: At) -> &[u32] {
        let at = at as usize;
        &self.words[at..at + (self.words[at] >> 16) as usize]
    }

    /// What kind of instruction it is.
    pub(crate) fn op(&self, at: At) -> S {
        op_at(&self.words, at as usize)
    }

    /// The operands of an instruction, type and result included.
    pub(crate) fn operands(&self, at: At) -> &[u32] {
        &self.instruction(at)[1..]
    }

    /// The instruction that defines an id, and its operands.
    pub(crate) fn made(&self, id: u32) -> Option<(S, &[u32])> {
        let at = *self.defs.get(id as usize)?;
        (at != 0).then(|| (self.op(at), self.operands(at)))
    }

    /// The type of a value.
    pub(crate) fn type_of(&self, id: u32) -> Option<u32> {
        let (op, operands) = self.made(id)?;
        grammar::has_type(op as u32).then(|| operands[0])
    }

    /// How a function is called in messages.
    pub(crate) fn function_name(&self, id: u32) -> String {
        self.names.get(&id).filter(|n| !n.is_empty()).cloned().unwrap_or_else(|| format!("%{id}"))
    }

    /// The words of each case of a switch on this selector.
    pub(crate) fn case_words(&self, selector: u32) -> usize {
        case_words(|id| self.made(id), selector)
    }

    /// Reads a module.
    pub(crate) fn read(words: &[u32]) -> Result<Source, ImportError> {
        let bound = header(words)?;
        let mut words = words.to_vec();
        let at = scan(&words)?;
        let bound = compact(&mut words, &at, bound)?;
        let mut defs = vec![0; bound as usize];
        let mut source = Source {
            bound,
            preamble: Vec::new(),
            entries: Vec::new(),
            functions: Vec::new(),
            defs: Vec::new(),
            function_of: Map::default(),
            decorations: Map::default(),
            is_decorated: vec![false; bound as usize],
            names: Map::default(),
            words,
        };
        check_ids(&source.words, bound, &at, &mut defs)?;
        source.defs = defs;
        source.sections(&at)?;
        source.interface()?;
        source.calls()?;
        Ok(source)
    }

    /// Preamble, functions, blocks.
    fn sections(&mut self, all: &[At]) -> Result<(), ImportError> {
        let mut function: Option<Function> = None;
        let mut block: Option<Block> = None;
        let mut part = 0;
        for &place in all {
            let op = self.op(place);
            let own = grammar::part(op);
            let operands =
                &self.words[place as usize + 1..place as usize + (self.words[place as usize] >> 16) as usize];
            let wrong = |problem: &str| Err(at(place, format!("{}: {problem}", grammar::name(op as u32))));
            match (op, &mut function, &mut block) {
                (S::Line | S::NoLine, Some(_), _) => {}
                (_, Some(_), _) if own.is_some() => {
                    return wrong("it stands in a function, and belongs before all of them");
                }
                (S::Variable, f, _) if f.is_some() != (operands[2] == spirv::StorageClass::Function as u32) => {
                    return wrong("a variable of a function stands in it, and every other one outside");
                }
                (S::Function, None, None) => {
                    let id = operands[1];
                    function = Some(Function { id, at: place, end: place, params: Vec::new(), blocks: Vec::new() });
                }
                (S::Function, ..) => return wrong("the function before it does not end"),
                (S::FunctionParameter, Some(f), None) if f.blocks.is_empty() => f.params.push(operands[1]),
                (S::Label, Some(_), None) => {
                    let label = operands[0];
                    block = Some(Block { label, phis: Vec::new(), body: Vec::new(), merge: None, end: 0 });
                }
                (S::FunctionEnd, Some(_), None) => {
                    if let Some(mut f) = function.take() {
                        f.end = place + 1;
                        if f.blocks.is_empty() {
                            return wrong(
                                "a function without blocks is imported from elsewhere, which Vulkan does not have",
                            );
                        }
                        self.function_of.insert(f.id, self.functions.len());
                        self.functions.push(f);
                    }
                }
                (S::Phi, Some(_), Some(b)) if b.body.is_empty() => b.phis.push(place),
                (S::Phi, Some(_), Some(_)) => return wrong("it stands after other instructions of its block"),
                (S::SelectionMerge | S::LoopMerge, Some(_), Some(b)) => {
                    if b.merge.replace(place).is_some() {
                        return wrong("the block has two merges");
                    }
                }
                (_, Some(f), Some(b)) if is_terminator(op) => {
                    b.end = place;
                    f.blocks.extend(block.take());
                }
                (_, Some(_), Some(b)) if b.merge.is_some() => return wrong("it stands after the merge of its block"),
                (_, Some(_), Some(b)) => b.body.push(place),
                (_, Some(_), None) => return wrong("it stands outside of a block"),
                (_, None, _) if !self.functions.is_empty() => return wrong("it stands after a function"),
                (S::Line | S::NoLine | S::ExtInst | S::Nop, None, _) => self.preamble.push(place),
                (_, None, _) => {
                    let own = own.or(matches!(op, S::Variable | S::Undef).then_some(8));
                    match own {
                        None => return wrong("it stands outside of a function"),
                        Some(own) if own < part => return wrong("it stands after what it belongs before"),
                        Some(own) => part = own,
                    }
                    self.preamble.push(place);
                }
            }
        }
        if function.is_some() {
            return Err(at(self.words.len() as At, "the last function does not end".to_owned()));
        }
        Ok(())
    }

    pub(super) fn is_import(&self, id: u32) -> bool {
        matches!(self.made(id), Some((S::ExtInstImport, _)))
    }

    /// Whether an instruction is only read by debuggers. One that gives a value is not, whatever the name of its set.
    pub(crate) fn is_debug(&self, place: At) -> bool {
        let set = match (self.op(place), self.operands(place)) {
            (S::ExtInst, &[ty, _, set, ..]) if self.is_void(ty) => self.made(set),
            _ => None,
        };
        matches!(set, Some((S::ExtInstImport, name)) if text(&name[1..]).contains("DebugInfo"))
    }

    pub(super) fn is_void(&self, ty: u32) -> bool {
        matches!(self.made(ty), Some((S::TypeVoid, _)))
    }

    /// Entry points, names and decorations.
    fn interface(&mut self) -> Result<(), ImportError> {
        for &place in &self.preamble {
            let w = &self.words[place as usize + 1..place as usize + (self.words[place as usize] >> 16) as usize];
            match self.op(place) {
                S::ExtInst if !self.is_import(w[2]) => {
                    return Err(at(place, format!("OpExtInst: id {} is no set of instructions", w[2])));
                }
                S::ExtInst if !self.is_void(w[0]) => {
                    return Err(at(place, "OpExtInst: a value outside of functions".to_owned()));
                }
                S::EntryPoint => {
                    let name = text(&w[2..]);
                    if w[0] != spirv::ExecutionModel::GLCompute as u32 {
                        let stage =
                            spirv::ExecutionModel::from_u32(w[0]).map_or("unknown".to_owned(), |m| format!("{m:?}"));
                        return Err(ImportError::Graphics { word: place as usize, name, stage });
                    }
                    if !self.function_of.contains_key(&w[1]) {
                        return Err(at(place, format!("the entry point '{name}' is no function")));
                    }
                    let listed = w[2..].iter().position(|w| w.to_le_bytes().contains(&0)).map_or(w.len(), |n| n + 3);
                    if let Some(id) = w[listed..].iter().find(|&&id| self.made(id).is_none_or(|d| d.0 != S::Variable)) {
                        return Err(at(place, format!("the entry point '{name}' lists id {id}, which is no variable")));
                    }
                    self.entries.push(EntryPoint { function: w[1], name });
                }
                S::ExecutionMode | S::ExecutionModeId => {
                    if !self.function_of.contains_key(&w[0]) {
                        return Err(at(place, format!("id {} is no function, and has no execution mode", w[0])));
                    }
                    if let Some(problem) = self.misplaced(place) {
                        return Err(at(place, problem));
                    }
                }
                S::Name => {
                    self.names.insert(w[0], text(&w[1..]));
                }
                S::Decorate | S::DecorateId | S::DecorateString | S::MemberDecorate | S::MemberDecorateString => {
                    if let Some(problem) = self.misplaced(place) {
                        return Err(at(place, format!("{}: {problem}", grammar::name(self.op(place) as u32))));
                    }
                    self.decorations.entry(w[0]).or_default().push(place);
                    self.is_decorated[w[0] as usize] = true;
                }
                S::DecorationGroup | S::GroupDecorate | S::GroupMemberDecorate => {
                    let problem = "groups of decorations are deprecated and not read; write each decoration by itself";
                    return Err(at(place, problem.to_owned()));
                }
                S::Capability if w[0] == spirv::Capability::Kernel as u32 => {
                    return Err(at(place, "the module is of OpenCL (capability Kernel), not of Vulkan".to_owned()));
                }
                S::MemoryModel
                    if w[0] != spirv::AddressingModel::Logical as u32
                        && w[0] != spirv::AddressingModel::PhysicalStorageBuffer64 as u32 =>
                {
                    return Err(at(place, "the addressing model is not one of Vulkan".to_owned()));
                }
                _ => {}
            }
        }
        if self.entries.is_empty() {
            return Err(at(5, "the module has no entry point".to_owned()));
        }
        Ok(())
    }
}

fn header(words: &[u32]) -> Result<u32, ImportError> {
    match words {
        [first, ..] if first.swap_bytes() == spirv::MAGIC_NUMBER => {
            Err(at(0, "the words are in the other byte order; swap the bytes of each".to_owned()))
        }
        [first, ..] if *first != spirv::MAGIC_NUMBER => {
            Err(at(0, "this is no SPIR-V: it does not begin with 0x07230203".to_owned()))
        }
        [_, version, ..] if version & 0xFF00_00FF != 0 || !(0x0001_0000..=0x0001_0600).contains(version) => {
            Err(at(1, format!("version {version:#x} is not one of SPIR-V 1.0 to 1.6")))
        }
        [_, _, _, 0, _, ..] => Err(at(3, "the bound on ids is 0".to_owned())),
        [_, _, _, bound, _, ..] if *bound > BOUND_LIMIT => {
            Err(at(3, format!("the bound on ids is {bound}, and more than {BOUND_LIMIT} are not read")))
        }
        [_, _, _, _, schema, ..] if *schema != 0 => Err(at(4, "the schema is not 0".to_owned())),
        [_, _, _, bound, _, ..] => Ok(*bound),
        _ => Err(at(words.len() as At, "the header has five words".to_owned())),
    }
}

/// Every id is below the bound, and defined once; what is used before it is defined is a label, a function, or a name of something.
fn check_ids(words: &[u32], bound: u32, all: &[At], defs: &mut [At]) -> Result<(), ImportError> {
    let made = |defs: &[At], id: u32| -> Option<(S, &[u32])> {
        let at = *defs.get(id as usize)? as usize;
        (at != 0).then(|| (op_at(words, at), &words[at + 1..at + (words[at] >> 16) as usize]))
    };
    // What debug information and the like give, which is no value and not kept.
    let is_nothing = |defs: &[At], id: u32| match made(defs, id) {
        Some((S::ExtInst, &[ty, ..])) => matches!(made(defs, ty), Some((S::TypeVoid, _))),
        _ => false,
    };
    let mut forward: Vec<(At, u32, At)> = Vec::new();
    // Where the first function begins, and the one around; nothing is outside of them after the first.
    let (mut first, mut around) = (At::MAX, 0);
    for &place in all {
        let from = place as usize;
        let instruction = &words[from..from + (words[from] >> 16) as usize];
        let op = op_at(words, from);
        let early = may_come_before(op);
        if op == S::Function {
            (first, around) = (first.min(place), place);
        }
        let mut wrong = None;
        let mut result = None;
        let walked = grammar::walk(
            instruction,
            |id| case_words(|id| made(defs, id), id),
            |i, role| {
                let id = instruction[i];
                match role {
                    Role::Literal => {}
                    _ if id == 0 || id >= bound => wrong = Some(format!("id {id} is not below the bound {bound}")),
                    Role::Result => result = Some(id),
                    Role::Type if !made(defs, id).is_none_or(|d| grammar::is_type(d.0 as u32)) => {
                        wrong = Some(format!("id {id} is no type"));
                    }
                    Role::Type | Role::Use if defs[id as usize] != 0 => {
                        let def = defs[id as usize];
                        let unseen = || def >= first && !is_seen(op, op_at(words, def as usize), def, around);
                        if unseen() || role == Role::Use && !may_name_nothing(op) && is_nothing(defs, id) {
                            wrong = Some(format!("id {id} is of another function, or no value"));
                        }
                    }
                    Role::Use if early => forward.push((place, id, around)),
                    Role::Type | Role::Use => wrong = Some(format!("id {id} is used and not defined before")),
                }
            },
        );
        let name = || grammar::name(instruction[0] & 0xFFFF);
        if let Err(problem) = walked {
            return Err(at(place, format!("{}: {problem}", name())));
        }
        if let Some(problem) = wrong {
            return Err(at(place, format!("{}: {problem}", name())));
        }
        let twice = |id: &u32| std::mem::replace(&mut defs[*id as usize], place) != 0;
        if let Some(id) = result.filter(twice) {
            return Err(at(place, format!("id {id} is defined twice")));
        }
    }
    for (place, id, around) in forward {
        let (op, def) = (op_at(words, place as usize), defs[id as usize]);
        match def {
            0 => return Err(at(place, format!("id {id} is used and nowhere defined"))),
            _ if def >= first && !is_seen(op, op_at(words, def as usize), def, around)
                || !may_name_nothing(op) && is_nothing(defs, id) =>
            {
                let problem = format!("{}: id {id} is of another function, or no value", grammar::name(op as u32));
                return Err(at(place, problem));
            }
            def if op == S::TypeStruct && op_at(words, def as usize) != S::TypePointer => {
                let problem = format!(
                    "the struct has a member of the type {id}, which is defined after it: no type contains itself"
                );
                return Err(at(place, problem));
            }
            _ => {}
        }
    }
    Ok(())
}

fn op_at(words: &[u32], at: usize) -> S {
    S::from_u32(words[at] & 0xFFFF).unwrap_or(S::Nop)
}

/// Whether written words are a module in which each id below the bound is defined once, and used after its definition.
pub(super) fn last_look(words: &[u32]) -> Result<(), ImportError> {
    let bound = header(words)?;
    if bound as usize > words.len() {
        return Err(at(3, "ids are not dense".to_owned()));
    }
    let mut defs = vec![0; bound as usize];
    check_ids(words, bound, &scan(words)?, &mut defs)?;
    match defs.iter().skip(1).position(|&d| d == 0) {
        Some(i) => Err(at(3, format!("id {} is below the bound and not defined", i + 1))),
        None => Ok(()),
    }
}

/// The places of all instructions.
fn scan(words: &[u32]) -> Result<Vec<At>, ImportError> {
    if words.len() > WORD_LIMIT {
        return Err(at(WORD_LIMIT as At, format!("more than {WORD_LIMIT} words are not read")));
    }
    let mut all = Vec::with_capacity(words.len() / 4);
    let mut place = 5;
    while place < words.len() {
        let length = (words[place] >> 16) as usize;
        if length == 0 {
            return Err(at(place as At, "an instruction has no words".to_owned()));
        }
        if place + length > words.len() {
            let left = words.len() - place;
            return Err(at(
                place as At,
                format!("the module ends within an instruction: {length} words, {left} are left"),
            ));
        }
        all.push(place as At);
        place += length;
    }
    Ok(all)
}

/// Gives ids other numbers where the bound says nothing about how many there are, so that tables are as large as the module.
fn compact(words: &mut [u32], all: &[At], bound: u32) -> Result<u32, ImportError> {
    if bound as usize <= words.len() {
        return Ok(bound);
    }
    let mut numbers: Map<u32, u32> = Map::default();
    let mut wide: Map<u32, usize> = Map::default();
    let mut types: Map<u32, u32> = Map::default();
    let mut ids = Vec::new();
    for &place in all {
        let from = place as usize;
        let to = from + (words[from] >> 16) as usize;
        let instruction = &words[from..to];
        let op = S::from_u32(instruction[0] & 0xFFFF);
        // The width of switches must be known before ids have tables.
        if let (Some(S::TypeInt), [_, id, bits, _]) = (op, instruction) {
            wide.insert(*id, bits.div_ceil(32).max(1) as usize);
        }
        ids.clear();
        let width = |id: u32| types.get(&id).and_then(|t| wide.get(t)).copied().unwrap_or(1);
        let (mut ty, mut result, mut wrong) = (None, None, None);
        let walked = grammar::walk(instruction, width, |i, role| {
            let id = instruction[i];
            match role {
                Role::Literal => return,
                Role::Type => ty = Some(id),
                Role::Result => result = Some(id),
                Role::Use => {}
            }
            if id == 0 || id >= bound {
                wrong = Some(format!("id {id} is not below the bound {bound}"));
            }
            ids.push(i);
        });
        if let Err(problem) = walked {
            return Err(at(place, format!("{}: {problem}", grammar::name(instruction[0] & 0xFFFF))));
        }
        if let Some(problem) = wrong {
            return Err(at(place, problem));
        }
        if let (Some(t), Some(r)) = (ty, result) {
            types.insert(r, t);
        }
        for &i in &ids {
            let next = numbers.len() as u32 + 1;
            let word = &mut words[from + i];
            *word = *numbers.entry(*word).or_insert(next);
        }
    }
    Ok(numbers.len() as u32 + 1)
}

fn case_words<'a>(made: impl Fn(u32) -> Option<(S, &'a [u32])>, selector: u32) -> usize {
    let Some((_, &[ty, ..])) = made(selector) else { return 1 };
    match made(ty) {
        Some((S::TypeInt, &[_, bits, _])) => bits.div_ceil(32).clamp(1, 2) as usize,
        _ => 1,
    }
}

/// Whether an instruction may name what is defined further down.
fn may_come_before(op: S) -> bool {
    matches!(
        op,
        S::EntryPoint
            | S::ExecutionMode
            | S::ExecutionModeId
            | S::Name
            | S::MemberName
            | S::Decorate
            | S::DecorateId
            | S::DecorateString
            | S::MemberDecorate
            | S::MemberDecorateString
            | S::GroupDecorate
            | S::GroupMemberDecorate
            | S::TypeForwardPointer
            | S::TypeStruct
            | S::ExtInst
            | S::Phi
            | S::Branch
            | S::BranchConditional
            | S::Switch
            | S::SelectionMerge
            | S::LoopMerge
            | S::FunctionCall
    )
}

pub(crate) fn is_terminator(op: S) -> bool {
    matches!(
        op,
        S::Branch
            | S::BranchConditional
            | S::Switch
            | S::Kill
            | S::Return
            | S::ReturnValue
            | S::Unreachable
            | S::TerminateInvocation
            | S::IgnoreIntersectionKHR
            | S::TerminateRayKHR
            | S::EmitMeshTasksEXT
    )
}
