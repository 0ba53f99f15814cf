//! The text of one entry point as instructions.

use std::collections::HashMap;

#[derive(Clone, Debug)]
pub enum Operand {
    /// Its size (p, h, r, l) and number.
    Reg(usize, usize),
    /// The bits.
    Number(u64),
    Address(Box<Operand>, u64),
    List(Vec<Operand>),
    Name(String),
    Special(String, usize),
}

impl Operand {
    /// The operands of a list, or the one that it is.
    pub fn list(&self) -> &[Operand] {
        match self {
            Operand::List(all) => all,
            one => std::slice::from_ref(one),
        }
    }

    fn parse(text: &str) -> Result<Operand, String> {
        let text = text.trim();
        if let Some(inner) = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
            return Ok(Operand::List(inner.split(',').map(Operand::parse).collect::<Result<_, _>>()?));
        }
        if let Some(inner) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
            let (base, offset) = inner.split_once('+').unwrap_or((inner, "0"));
            let offset = offset.parse().map_err(|_| format!("{text}?"))?;
            return Ok(Operand::Address(Box::new(Operand::parse(base)?), offset));
        }
        if let Some(hex) = text.strip_prefix("0f") {
            return u64::from_str_radix(hex, 16).map(Operand::Number).map_err(|e| e.to_string());
        }
        if let Some(name) = text.strip_prefix('%') {
            if let Some((name, axis)) = name.split_once('.') {
                let axis = ["x", "y", "z"].iter().position(|a| *a == axis).ok_or("no axis")?;
                return Ok(Operand::Special(name.to_owned(), axis));
            }
            let class = "phrl".find(&name[..1]).ok_or_else(|| format!("{text}?"))?;
            return Ok(Operand::Reg(class, name[1..].parse().map_err(|_| format!("{text}?"))?));
        }
        match text.parse::<i64>() {
            Ok(n) => Ok(Operand::Number(n as u64)),
            Err(_) => Ok(Operand::Name(text.to_owned())),
        }
    }
}

pub struct Ins {
    pub text: String,
    pub op: Vec<String>,
    pub operands: Vec<Operand>,
    /// The predicate, and what it must be.
    pub guard: Option<(usize, bool)>,
    /// Where a branch goes.
    pub target: usize,
}

#[derive(Default)]
pub struct Program {
    pub code: Vec<Ins>,
    pub registers: [usize; 4],
    pub size: [u32; 3],
    /// Where arrays begin, in shared or in local memory.
    pub arrays: HashMap<String, u64>,
    pub local: u64,
}

/// Bits of a type.
pub fn bits(ty: &str) -> Result<usize, String> {
    let digits = ty.trim_start_matches(|c: char| !c.is_ascii_digit());
    digits.parse().map_err(|_| format!("{ty} has no size"))
}

/// Operands between commas that stand in no braces.
fn split(text: &str) -> Vec<String> {
    let (mut all, mut depth) = (vec![String::new()], 0);
    for c in text.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        match all.last_mut() {
            Some(_) if c == ',' && depth == 0 => all.push(String::new()),
            Some(last) => last.push(c),
            None => {}
        }
    }
    all.retain(|o| !o.trim().is_empty());
    all
}

impl Program {
    pub fn parse(text: &str, entry: &str) -> Result<Program, String> {
        let begin = format!(".visible .entry {entry}(\n");
        let from = text.find(&begin).ok_or("the entry point is not there")?;
        let body = &text[from..];
        let body = &body[..body.find("\n}\n").ok_or("it does not end")?];
        let mut program = Program::default();
        program.arrays.insert("dynamic$".into(), 0);
        let mut labels = HashMap::new();
        let mut branches = Vec::new();
        for line in body.lines().map(str::trim) {
            if let Some(sizes) = line.strip_prefix(".reqntid ") {
                let sizes: Vec<u32> = sizes.split(", ").filter_map(|n| n.parse().ok()).collect();
                program.size = sizes.try_into().map_err(|_| "three sizes")?;
            } else if let Some(rest) = line.strip_prefix(".reg .") {
                let (name, n) = rest.split_once('<').ok_or("no number")?;
                let class = "phrl".find(&name[name.len() - 1..]).ok_or("no class")?;
                program.registers[class] = n.trim_end_matches(">;").parse().map_err(|_| "no number")?;
            } else if line.starts_with(".shared ") || line.starts_with(".local ") {
                let name = line.split(' ').next_back().ok_or("no name")?;
                let (name, bytes) = name.split_once('[').ok_or("no array")?;
                let bytes: u64 = bytes.trim_end_matches("];").parse().map_err(|_| "no number")?;
                let at = if line.starts_with(".shared") { 0 } else { program.local.next_multiple_of(32) };
                program.arrays.insert(name.to_owned(), at);
                if line.starts_with(".local") {
                    program.local = at + bytes;
                }
            } else if let Some(label) = line.strip_suffix(':') {
                labels.insert(label.to_owned(), program.code.len());
            } else if let Some(code) = line.strip_suffix(';') {
                let mut ins = Ins { text: code.to_owned(), op: vec![], operands: vec![], guard: None, target: 0 };
                let mut rest = code;
                if let Some((guard, after)) = code.strip_prefix('@').and_then(|c| c.split_once(' ')) {
                    let p = guard.trim_start_matches('!').trim_start_matches("%p");
                    ins.guard = Some((p.parse().map_err(|_| "no predicate")?, !guard.starts_with('!')));
                    rest = after;
                }
                let (op, operands) = rest.split_once(' ').unwrap_or((rest, ""));
                ins.op = op.split('.').map(str::to_owned).collect();
                if op == "bra" {
                    branches.push((program.code.len(), operands.to_owned()));
                } else {
                    ins.operands = split(operands).iter().map(|o| Operand::parse(o)).collect::<Result<_, _>>()?;
                }
                program.code.push(ins);
            }
        }
        for (at, label) in branches {
            program.code[at].target = *labels.get(&label).ok_or_else(|| format!("no label {label}"))?;
        }
        Ok(program)
    }
}
