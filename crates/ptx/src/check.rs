//! The last look at a module before it is shipped, in every build: registers are declared once, written before they are read and of the size that each
//! instruction takes; a register that joins several ways is written by moves only, any other by one instruction; labels are defined once and
//! reached, nothing else stands after a branch; parameters and arrays are within their limits. It knows the instructions that this compiler
//! writes, and refuses all others. One walk, linear in the text.
//!
//! It is no assembler: the tests ask `ptxas` for that. That a write dominates its reads is checked as far as the order of lines tells.

mod instructions;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use crate::emit::STATIC_SHARED;
use crate::target::PtxTarget;
use instructions::{Kind, Size, Spot, signature};

/// Bytes of parameters of an entry point.
const MOST_PARAMS: u32 = 4096;
const MOST_LOCAL: u32 = 512 * 1024;
/// Registers of one size: more than any kernel has.
const MOST_REGISTERS: u32 = 1 << 26;

type Checked<T = ()> = Result<T, String>;

fn need(ok: bool, problem: &str) -> Checked {
    if ok { Ok(()) } else { Err(problem.to_owned()) }
}

/// Whether this is a module that may be shipped; the error says what is wrong and in which line.
pub(crate) fn check(text: &str) -> Result<(), String> {
    need(text.ends_with('\n'), "the last line does not end")?;
    let mut lines = text.lines().enumerate().map(|(i, line)| (i + 1, line));
    let mut module = Module { isa: (0, 0), target: PtxTarget::Sm75, dynamic: false, entries: Vec::new() };
    let mut next = |what: &str| lines.next().ok_or_else(|| format!("the module ends before {what}"));
    for step in [Module::version, Module::target, Module::address_size] {
        let (number, line) = next("its head is complete")?;
        step(&mut module, line).map_err(|problem| in_line(number, line, &problem))?;
    }
    let mut entry: Option<Entry> = None;
    for (number, line) in lines {
        let done = match &mut entry {
            Some(entry) => entry.line(line),
            None => module.outside(line).map(|begun| {
                entry = begun;
                false
            }),
        };
        if done.map_err(|problem| in_line(number, line, &problem))? {
            entry = None;
        }
    }
    need(entry.is_none(), "the last entry point does not end")?;
    need(!module.entries.is_empty(), "there is no entry point")
}

fn in_line(number: usize, line: &str, problem: &str) -> String {
    format!("line {number}: `{}`: {problem}", line.trim())
}

struct Module {
    isa: (u32, u32),
    target: PtxTarget,
    /// Whether there is shared memory that a launch gives.
    dynamic: bool,
    entries: Vec<String>,
}

impl Module {
    fn version(&mut self, line: &str) -> Checked {
        let known =
            PtxTarget::ALL.into_iter().map(PtxTarget::isa).find(|i| line == format!(".version {}.{}", i.0, i.1));
        self.isa = known.ok_or("this is no version that modules are written in")?;
        Ok(())
    }

    fn target(&mut self, line: &str) -> Checked {
        let found = PtxTarget::ALL.into_iter().find(|t| line == format!(".target {t}"));
        self.target = found.ok_or("there is no such target")?;
        need(self.isa == self.target.isa(), "modules for it are of another version")
    }

    fn address_size(&mut self, line: &str) -> Checked {
        need(line == ".address_size 64", "addresses have 64 bits")
    }

    /// A line between entry points; the entry point that it begins.
    fn outside(&mut self, line: &str) -> Checked<Option<Entry>> {
        match line {
            "" => return Ok(None),
            ".extern .shared .align 32 .b8 dynamic$[];" | ".extern .shared .align 1024 .b8 dynamic$[];" => {
                need(!self.dynamic, "this was said before")?;
                self.dynamic = true;
                return Ok(None);
            }
            _ => {}
        }
        let name = line.strip_prefix(".visible .entry ").and_then(|l| l.strip_suffix('('));
        let name = name.ok_or("this stands in no entry point")?;
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        need(
            !name.is_empty() && name.chars().all(plain) && !name.starts_with(|c: char| c.is_ascii_digit()),
            "no name",
        )?;
        need(!self.entries.iter().any(|n| n == name), "there is another entry point of this name")?;
        self.entries.push(name.to_owned());
        Ok(Some(Entry::new(self.target, self.dynamic)))
    }
}

/// What comes next in an entry point.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Params,
    Threads,
    Open,
    Declarations,
    Code,
}

/// How a register came to its value.
#[derive(Clone, Copy, PartialEq)]
enum Written {
    Never,
    /// By one instruction.
    Once,
    /// By moves.
    Joined,
}

#[derive(Default)]
struct LabelUse {
    defined: bool,
    used: bool,
}

struct Entry {
    target: PtxTarget,
    place: Place,
    /// Bytes of what has a name.
    names: HashMap<String, u32>,
    params: u32,
    shared: u32,
    local: u32,
    registers: [Vec<Written>; 4],
    labels: BTreeMap<String, LabelUse>,
    /// Whether control comes to the next line.
    live: bool,
}

impl Entry {
    fn new(target: PtxTarget, dynamic: bool) -> Entry {
        let names = dynamic.then(|| ("dynamic$".to_owned(), u32::MAX)).into_iter().collect();
        let registers = [const { Vec::new() }; 4];
        let (params, shared, local) = (0, 0, 0);
        let labels = BTreeMap::new();
        Entry { target, place: Place::Params, names, params, shared, local, registers, labels, live: true }
    }

    /// One line; whether it ends the entry point.
    fn line(&mut self, line: &str) -> Checked<bool> {
        match self.place {
            Place::Params if line == ")" => self.place = Place::Threads,
            Place::Params if line.is_empty() => {}
            Place::Params => self.param(line.trim_end_matches(','))?,
            Place::Threads => {
                let sizes = line.strip_prefix(".reqntid ").ok_or("the size of a block is missing")?;
                let sizes: Vec<u32> = sizes.split(", ").filter_map(|n| n.parse().ok()).collect();
                let all = sizes.iter().try_fold(1u32, |a, &b| a.checked_mul(b)).unwrap_or(0);
                need(sizes.len() == 3 && (1..=1024).contains(&all), "a block has 1 to 1024 invocations")?;
                self.place = Place::Open;
            }
            Place::Open if line.strip_prefix(".minnctapersm ").is_some_and(|n| matches!(n, "1" | "2" | "3" | "4")) => {}
            Place::Open => {
                need(line == "{", "the body does not begin")?;
                self.place = Place::Declarations;
            }
            Place::Declarations if line.starts_with("\t.") => self.declaration(line)?,
            Place::Declarations | Place::Code if line == "}" => return self.end().map(|()| true),
            Place::Declarations | Place::Code => {
                self.place = Place::Code;
                self.code(line)?;
            }
        }
        Ok(false)
    }

    fn name(&mut self, name: &str, bytes: u32) -> Checked {
        need(self.names.insert(name.to_owned(), bytes).is_none(), "this name was taken before")
    }

    fn param(&mut self, line: &str) -> Checked {
        let (name, bytes) = match line.strip_prefix("\t.param .u64 .ptr .global .align 16 ") {
            Some(name) => (name, 8),
            None => array(line, "\t.param .align 8 .b8 ")?,
        };
        self.params = self.params.next_multiple_of(8).saturating_add(bytes);
        need(self.params <= MOST_PARAMS, "there are too many bytes of parameters")?;
        self.name(name, bytes)
    }

    fn declaration(&mut self, line: &str) -> Checked {
        let line = line.strip_suffix(';').ok_or("a declaration ends with ;")?;
        for size in Size::ALL {
            let head = format!("\t.reg .{} %{}<", size.name(), size.letter());
            if let Some(rest) = line.strip_prefix(&head) {
                let n: u32 = rest.strip_suffix('>').and_then(|n| n.parse().ok()).ok_or("how many registers?")?;
                let own = &mut self.registers[size as usize];
                need(own.is_empty(), "these registers were declared before")?;
                need((1..=MOST_REGISTERS).contains(&n), "no module has so many registers")?;
                *own = vec![Written::Never; n as usize];
                return Ok(());
            }
        }
        if line.starts_with("\t.shared ") {
            let (name, bytes) =
                array(line, "\t.shared .align 32 .b8 ").or_else(|_| array(line, "\t.shared .align 1024 .b8 "))?;
            self.shared = self.shared.saturating_add(bytes);
            need(u64::from(self.shared) <= STATIC_SHARED, "this is more than 48 KiB of shared memory")?;
            return self.name(name, bytes);
        }
        let (name, bytes) = array(line, "\t.local .align 32 .b8 ")?;
        self.local = self.local.saturating_add(bytes);
        need(self.local <= MOST_LOCAL, "this is more than 512 KiB of local memory")?;
        self.name(name, bytes)
    }

    fn end(&mut self) -> Checked {
        need(!self.live, "control runs past the end")?;
        for (name, label) in &self.labels {
            need(label.defined, &format!("there is no label {name}"))?;
            need(label.used, &format!("nothing leads to the label {name}"))?;
        }
        Ok(())
    }

    fn code(&mut self, line: &str) -> Checked {
        if let Some(label) = line.strip_suffix(':') {
            need(label.starts_with("$L"), "this is no label")?;
            let label = self.labels.entry(label.to_owned()).or_default();
            need(!label.defined, "this label was defined before")?;
            label.defined = true;
            // What control falls into is reached.
            label.used |= self.live;
            self.live = true;
            return Ok(());
        }
        let line = line.strip_prefix('\t').and_then(|l| l.strip_suffix(';')).ok_or("this is no instruction")?;
        need(self.live, "nothing leads here")?;
        let (guard, line) = match line.strip_prefix('@') {
            Some(rest) => {
                let (guard, rest) = rest.split_once(' ').ok_or("what is guarded?")?;
                (Some(guard.trim_start_matches('!')), rest)
            }
            None => (None, line),
        };
        let (op, operands) = line.split_once(' ').unwrap_or((line, ""));
        if let Some(guard) = guard {
            need(op == "bra", "only branches are guarded")?;
            self.read(guard, Size::Pred)?;
        }
        match op {
            "bra" => {
                self.labels.entry(operands.to_owned()).or_default().used = true;
                self.live = guard.is_some();
                return Ok(());
            }
            "ret" => {
                self.live = false;
                return need(operands.is_empty(), "it takes nothing");
            }
            _ => {}
        }
        let operands = split(operands)?;
        let kinds = signature(op, self.target, operands.len()).ok_or("there is no such instruction on this target")?;
        need(operands.len() == kinds.len(), &format!("it takes {} operands", kinds.len()))?;
        // A move of one register or number is what joins are made of.
        let joins = matches!(op, "mov.pred" | "mov.b16" | "mov.b32" | "mov.b64")
            && !operands.iter().any(|o| o.starts_with('{'));
        // What is read must be there before what is written.
        let writes = |kind: &Kind| matches!(kind, Kind::Write(_) | Kind::WriteList(..));
        for (kind, operand) in kinds.iter().zip(&operands).filter(|(k, _)| !writes(k)) {
            self.operand(kind, operand)?;
        }
        for (kind, operand) in kinds.iter().zip(&operands) {
            match *kind {
                Kind::Write(size) if operand.starts_with('{') => {
                    // A register taken apart.
                    need(op == "mov.b32" && size == Size::B32, "only registers of 32 bits are taken apart")?;
                    self.list(operand, 2, |e, o| e.write(o, Size::B16, false))?;
                }
                Kind::Write(size) => self.write(operand, size, joins)?,
                Kind::WriteList(n, size) => self.list(operand, n, |e, o| e.write(o, size, false))?,
                _ => {}
            }
        }
        Ok(())
    }

    fn operand(&mut self, kind: &Kind, operand: &str) -> Checked {
        match *kind {
            // Two halves that become one register.
            Kind::Any(Size::B32) if operand.starts_with('{') => self.list(operand, 2, |e, o| e.read(o, Size::B16)),
            Kind::Any(Size::B64) if operand.starts_with('{') => {
                self.list(operand, 2, |e, o| e.any(o, Size::B32, false))
            }
            Kind::Any(size) => self.any(operand, size, false),
            Kind::Float(size) => self.any(operand, size, true),
            Kind::Read(size) => self.read(operand, size),
            Kind::ReadList(n, size) => self.list(operand, n, |e, o| e.read(o, size)),
            Kind::AnyList(n, size) => self.list(operand, n, |e, o| e.any(o, size, false)),
            Kind::Address(spot, bytes) => self.address(operand, spot, bytes),
            Kind::Special => {
                let known = ["%tid", "%ctaid", "%nctaid"]
                    .iter()
                    .any(|n| operand.strip_prefix(n).is_some_and(|axis| matches!(axis, ".x" | ".y" | ".z")));
                let array = ["shared$", "dynamic$", "private$"].iter().any(|n| operand.starts_with(n));
                need(known || array && self.names.contains_key(operand), "there is nothing of this name")
            }
            Kind::Number => need(operand.parse::<i64>().is_ok(), "it takes a number"),
            // What a product adds to was given a value by moves, and may be written again.
            Kind::UpdateList(n, size) => self.list(operand, n, |e, o| {
                let joined = *e.register(o, size)? == Written::Joined;
                need(joined, &format!("{o} is no register of an array"))
            }),
            Kind::Write(_) | Kind::WriteList(..) => Ok(()),
        }
    }

    /// A register of this size.
    fn register(&mut self, operand: &str, size: Size) -> Checked<&mut Written> {
        let number = operand.strip_prefix('%').and_then(|o| o.strip_prefix(size.letter()));
        let number = number.filter(|n| n.bytes().all(|b| b.is_ascii_digit())).and_then(|n| n.parse::<usize>().ok());
        let number = number.ok_or_else(|| format!("{operand} is no register of .{}", size.name()))?;
        let declared = self.registers[size as usize].get_mut(number);
        declared.ok_or_else(|| format!("{operand} is not declared"))
    }

    fn read(&mut self, operand: &str, size: Size) -> Checked {
        let written = *self.register(operand, size)?;
        need(written != Written::Never, &format!("{operand} is read and not written before"))
    }

    fn write(&mut self, operand: &str, size: Size, joins: bool) -> Checked {
        let register = self.register(operand, size)?;
        let ok = if joins { *register != Written::Once } else { *register == Written::Never };
        *register = if joins { Written::Joined } else { Written::Once };
        need(ok, &format!("{operand} is written twice"))
    }

    /// A register or a number.
    fn any(&mut self, operand: &str, size: Size, float: bool) -> Checked {
        if operand.starts_with('%') {
            return self.read(operand, size);
        }
        let fits = |n: i64| match size {
            Size::Pred => (0..=1).contains(&n),
            Size::B16 => (0..1 << 16).contains(&n),
            Size::B32 => (-(1i64 << 31)..1 << 32).contains(&n),
            Size::B64 => true,
        };
        let hex = |n: &str| n.len() == 8 && n.bytes().all(|b| b.is_ascii_digit() || (b'A'..=b'F').contains(&b));
        let ok =
            if float { operand.strip_prefix("0f").is_some_and(hex) } else { operand.parse::<i64>().is_ok_and(fits) };
        need(ok, &format!("{operand} is neither a register nor such a number"))
    }

    fn list(&mut self, operand: &str, n: usize, mut each: impl FnMut(&mut Self, &str) -> Checked) -> Checked {
        let inner = operand.strip_prefix('{').and_then(|o| o.strip_suffix('}')).ok_or("it takes a list in braces")?;
        let all: Vec<&str> = inner.split(", ").collect();
        need(all.len() == n, &format!("it takes a list of {n}"))?;
        all.into_iter().try_for_each(|o| each(self, o))
    }

    /// `[base]` or `[base+bytes]`, aligned for so many bytes.
    fn address(&mut self, operand: &str, spot: Spot, bytes: u32) -> Checked {
        let inner = operand.strip_prefix('[').and_then(|o| o.strip_suffix(']')).ok_or("it takes an address")?;
        let (base, offset) = match inner.split_once('+') {
            Some((base, offset)) => (base, offset.parse::<u32>().map_err(|_| "an address is moved by a number")?),
            None => (inner, 0),
        };
        need(offset.is_multiple_of(bytes), &format!("the address is not aligned to {bytes} bytes"))?;
        match spot {
            Spot::Param => {
                let is_param = ["buffer$", "lengths$", "scalars$"].iter().any(|n| base.starts_with(n));
                let size = *self.names.get(base).filter(|_| is_param).ok_or("there is no such parameter")?;
                need(offset.checked_add(bytes).is_some_and(|end| end <= size), "this is after the end of the parameter")
            }
            Spot::Global => self.read(base, Size::B64),
            Spot::Inside => self.read(base, Size::B32),
        }
    }
}

/// The name and the bytes of an array that is declared.
fn array<'a>(line: &'a str, head: &str) -> Checked<(&'a str, u32)> {
    let rest = line.strip_prefix(head).and_then(|l| l.strip_suffix(']')).ok_or("this is no declaration")?;
    let (name, bytes) = rest.split_once('[').ok_or("an array has a length")?;
    let bytes: u32 = bytes.parse().map_err(|_| "an array has a length")?;
    need(bytes > 0 && !name.is_empty(), "an array has a length and a name")?;
    Ok((name, bytes))
}

/// Operands between commas; a list in braces is one.
fn split(operands: &str) -> Checked<Vec<&str>> {
    let mut found = Vec::new();
    let mut rest = operands;
    while !rest.is_empty() {
        let end = if rest.starts_with('{') {
            rest.find('}').ok_or("a list does not end")? + 1
        } else {
            rest.find(", ").unwrap_or(rest.len())
        };
        found.push(&rest[..end]);
        rest = &rest[end..];
        if !rest.is_empty() {
            rest = rest.strip_prefix(", ").filter(|r| !r.is_empty()).ok_or("operands stand between commas")?;
        }
    }
    Ok(found)
}
