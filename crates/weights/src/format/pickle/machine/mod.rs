//! A pickle, read without running anything.
//!
//! A pickle is a program for a stack machine. This one knows the opcodes that weights need, and plain values. Calls are understood for the few functions
//! that make tensors and dictionaries; every other call gives an opaque value. Containers are held once and referred to by number, so that a pickle that
//! doubles a list by reference a hundred times stays as small as it is; everything that takes memory is counted before it is taken. [`calls`] says what calls
//! mean.

mod calls;

use std::collections::HashMap;
use std::ops::Range;

use super::globals::is_harmless;
use crate::ElementType;

/// Why a pickle cannot be read.
#[derive(Debug)]
pub(super) enum Fault {
    /// The bytes end before the pickle does.
    Cut,
    /// Something is wrong at a byte.
    At(usize, String),
    /// A name that weights do not need.
    Global(usize, String),
}

type Outcome<T> = Result<T, Fault>;

/// A value. Texts are ranges of the pickle; containers, names, storages and tensors are numbers of theirs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    None,
    Integer(i64),
    /// A text, bytes, or a whole number too long for anything else.
    Text(u32, u32),
    Sequence(u32),
    Dict(u32),
    Global(u32),
    Storage(u32),
    Tensor(u32),
    /// A value that is nobody's business: carried and ignored.
    Opaque,
}

/// Bytes of a tensor or of several.
#[derive(Debug)]
pub(super) struct Storage {
    pub(super) key: String,
    /// The type of its elements; bytes where they have none.
    pub(super) element: Option<ElementType>,
    pub(super) count: u64,
}

/// A tensor, as its pickle describes it.
#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) storage: u32,
    pub(super) element: Option<ElementType>,
    pub(super) offset: u64,
    pub(super) shape: Vec<u64>,
    pub(super) strides: Vec<u64>,
    /// Where in the pickle it is made.
    pub(super) at: usize,
}

/// A name of Python.
struct Global {
    module: Range<usize>,
    name: Range<usize>,
}

/// The machine, and what it holds after a pickle ended.
pub(super) struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the opcode begins that is carried out.
    opcode_at: usize,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    sequences: Vec<Vec<Value>>,
    dicts: Vec<Vec<(Value, Value)>>,
    globals: Vec<Global>,
    pub(super) storages: Vec<Storage>,
    by_key: HashMap<String, u32>,
    pub(super) tensors: Vec<Tensor>,
    /// Bytes that may still be taken.
    memory_left: usize,
}

/// A value on the stack or in a container, doubled since vectors grow by doubling.
const SLOT: usize = 2 * size_of::<Value>();

impl<'a> Machine<'a> {
    /// A machine for the pickles in these bytes, which may take so much memory.
    pub(super) fn new(bytes: &'a [u8], memory: usize) -> Machine<'a> {
        Machine {
            bytes,
            at: 0,
            opcode_at: 0,
            stack: vec![],
            marks: vec![],
            memo: HashMap::new(),
            sequences: vec![],
            dicts: vec![],
            globals: vec![],
            storages: vec![],
            by_key: HashMap::new(),
            tensors: vec![],
            memory_left: memory,
        }
    }

    /// Where the next pickle begins.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// The value of the next pickle.
    pub(super) fn run(&mut self) -> Outcome<Value> {
        self.stack.clear();
        self.marks.clear();
        self.memo.clear();
        loop {
            self.opcode_at = self.at;
            let opcode = self.take(1)?[0];
            if opcode == b'.' {
                return self.pop();
            }
            self.step(opcode)?;
        }
    }

    fn wrong<T>(&self, problem: impl Into<String>) -> Outcome<T> {
        Err(Fault::At(self.opcode_at, problem.into()))
    }

    fn spend(&mut self, bytes: usize) -> Outcome<()> {
        match self.memory_left.checked_sub(bytes) {
            Some(left) => {
                self.memory_left = left;
                Ok(())
            }
            None => self.wrong("the pickle holds more than any checkpoint: it is made to fill memory"),
        }
    }

    fn take(&mut self, count: usize) -> Outcome<&'a [u8]> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len()).ok_or(Fault::Cut)?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// A number of so many bytes, lowest first.
    fn number(&mut self, bytes: usize) -> Outcome<u64> {
        Ok(self.take(bytes)?.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
    }

    /// The rest of a line, without its end.
    fn line(&mut self) -> Outcome<Range<usize>> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|&b| b == b'\n').ok_or(Fault::Cut)?;
        let start = self.at;
        self.at += length + 1;
        Ok(start..start + length)
    }

    /// A whole number in the rest of a line.
    fn line_number(&mut self) -> Outcome<Option<i64>> {
        let line = self.line()?;
        Ok(std::str::from_utf8(&self.bytes[line]).ok().and_then(|text| text.trim_end_matches('L').parse().ok()))
    }

    fn push(&mut self, value: Value) -> Outcome<()> {
        // What is taken off again is given back by nobody: a bound for what the whole pickle does.
        if self.stack.len() == self.stack.capacity() {
            self.spend(SLOT * self.stack.len().max(64))?;
        }
        self.stack.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Outcome<Value> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.len() > floor {
            true => self.stack.pop().map_or_else(|| self.wrong("the stack is empty"), Ok),
            false => self.wrong("the stack is empty"),
        }
    }

    fn top(&self) -> Outcome<Value> {
        self.stack.last().copied().map_or_else(|| self.wrong("the stack is empty"), Ok)
    }

    /// Where the values behind the last mark begin; the mark is taken away.
    fn mark(&mut self) -> Outcome<usize> {
        self.marks.pop().map_or_else(|| self.wrong("no mark is on the stack"), Ok)
    }

    fn text(&mut self, range: Range<usize>) -> Outcome<()> {
        self.push(Value::Text(range.start as u32, range.len() as u32))
    }

    /// A text of so many bytes.
    fn counted_text(&mut self, count: u64) -> Outcome<()> {
        let start = self.at;
        self.take(usize::try_from(count).unwrap_or(usize::MAX))?;
        self.text(start..self.at)
    }

    fn sequence(&mut self, values: Vec<Value>) -> Outcome<()> {
        self.spend(64 + SLOT * values.len())?;
        self.sequences.push(values);
        self.push(Value::Sequence(self.sequences.len() as u32 - 1))
    }

    /// A sequence of the last `count` values.
    fn tuple(&mut self, count: usize) -> Outcome<()> {
        let mut values = vec![Value::None; count];
        for value in values.iter_mut().rev() {
            *value = self.pop()?;
        }
        self.sequence(values)
    }

    fn dict(&mut self, pairs: Vec<(Value, Value)>) -> Outcome<Value> {
        self.spend(64 + 2 * SLOT * pairs.len())?;
        self.dicts.push(pairs);
        Ok(Value::Dict(self.dicts.len() as u32 - 1))
    }

    /// Pairs of keys and values from a place of the stack on.
    fn pairs(&mut self, begin: usize) -> Outcome<Vec<(Value, Value)>> {
        let (pairs, rest) = self.stack[begin..].as_chunks::<2>();
        if !rest.is_empty() {
            return self.wrong("a key has no value");
        }
        let pairs = pairs.iter().map(|[key, value]| (*key, *value)).collect();
        self.stack.truncate(begin);
        Ok(pairs)
    }

    fn remember(&mut self, key: u32) -> Outcome<()> {
        self.spend(48)?;
        let value = self.top()?;
        self.memo.insert(key, value);
        Ok(())
    }

    fn recall(&mut self, key: u32) -> Outcome<()> {
        match self.memo.get(&key).copied() {
            Some(value) => self.push(value),
            None => self.wrong(format!("nothing was remembered as {key}")),
        }
    }

    fn step(&mut self, opcode: u8) -> Outcome<()> {
        match opcode {
            // PROTO, FRAME
            0x80 => self.take(1).map(drop),
            0x95 => self.take(8).map(drop),
            b'(' => {
                self.spend(16)?;
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'0' => match self.marks.last() == Some(&self.stack.len()) {
                true => self.mark().map(drop),
                false => self.pop().map(drop),
            },
            b'1' => {
                let begin = self.mark()?;
                self.stack.truncate(begin);
                Ok(())
            }
            b'2' => self.top().and_then(|value| self.push(value)),
            b'N' => self.push(Value::None),
            0x88 | 0x89 => self.push(Value::Opaque),
            b'J' => self.number(4).and_then(|n| self.push(Value::Integer((n as u32 as i32).into()))),
            b'K' => self.number(1).and_then(|n| self.push(Value::Integer(n as i64))),
            b'M' => self.number(2).and_then(|n| self.push(Value::Integer(n as i64))),
            b'I' | b'L' => match self.line_number()? {
                Some(n) => self.push(Value::Integer(n)),
                None => self.push(Value::Opaque),
            },
            0x8a => self.number(1).and_then(|count| self.long(count)),
            0x8b => self.number(4).and_then(|count| self.long(count)),
            b'G' => {
                self.take(8)?;
                self.push(Value::Opaque)
            }
            b'F' => {
                self.line()?;
                self.push(Value::Opaque)
            }
            // Texts and bytes: with a count of one, four or eight bytes.
            0x8c | b'C' | b'U' => self.number(1).and_then(|count| self.counted_text(count)),
            b'X' | b'B' | b'T' => self.number(4).and_then(|count| self.counted_text(count)),
            0x8d | 0x8e | 0x96 => self.number(8).and_then(|count| self.counted_text(count)),
            b'V' => self.line().and_then(|line| self.text(line)),
            b'S' => {
                // In quotes; escapes stay as they are, and no tensor has them in its name.
                let line = self.line()?;
                match line.len() {
                    0 | 1 => self.wrong("a text has no quotes"),
                    _ => self.text(line.start + 1..line.end - 1),
                }
            }
            b')' => self.sequence(vec![]),
            b']' | 0x8f => self.sequence(vec![]),
            b'}' => self.dict(vec![]).and_then(|dict| self.push(dict)),
            0x85 => self.tuple(1),
            0x86 => self.tuple(2),
            0x87 => self.tuple(3),
            // TUPLE, LIST, FROZENSET
            b't' | b'l' | 0x91 => {
                let begin = self.mark()?;
                let values: Vec<Value> = self.stack.drain(begin..).collect();
                self.sequence(values)
            }
            b'd' => {
                let begin = self.mark()?;
                let pairs = self.pairs(begin)?;
                self.dict(pairs).and_then(|dict| self.push(dict))
            }
            // APPEND, then APPENDS and ADDITEMS
            b'a' => {
                let value = self.pop()?;
                self.extend(&[value])
            }
            b'e' | 0x90 => {
                let begin = self.mark()?;
                let values: Vec<Value> = self.stack.drain(begin..).collect();
                self.extend(&values)
            }
            // SETITEM, SETITEMS
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set(vec![(key, value)])
            }
            b'u' => {
                let begin = self.mark()?;
                let pairs = self.pairs(begin)?;
                self.set(pairs)
            }
            b'q' => self.number(1).and_then(|key| self.remember(key as u32)),
            b'r' => self.number(4).and_then(|key| self.remember(key as u32)),
            0x94 => self.remember(self.memo.len() as u32),
            b'h' => self.number(1).and_then(|key| self.recall(key as u32)),
            b'j' => self.number(4).and_then(|key| self.recall(key as u32)),
            b'p' | b'g' => match self.line_number()?.and_then(|key| u32::try_from(key).ok()) {
                Some(key) if opcode == b'p' => self.remember(key),
                Some(key) => self.recall(key),
                None => self.wrong("a number is needed to remember something by"),
            },
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)
            }
            // STACK_GLOBAL
            0x93 => match (self.pop()?, self.pop()?) {
                (Value::Text(name, m), Value::Text(module, n)) => {
                    let range = |start: u32, length: u32| start as usize..start as usize + length as usize;
                    self.global(range(module, n), range(name, m))
                }
                _ => self.wrong("a name of Python should be two texts"),
            },
            // BINPERSID
            b'Q' => {
                let id = self.pop()?;
                self.persistent(id)
            }
            // REDUCE and NEWOBJ have a callable and its arguments, NEWOBJ_EX also named ones; BUILD has a state that no tensor needs.
            b'R' | 0x81 => {
                let (arguments, callable) = (self.pop()?, self.pop()?);
                let value = self.call(callable, arguments)?;
                self.push(value)
            }
            0x92 => {
                let (_named, arguments, callable) = (self.pop()?, self.pop()?, self.pop()?);
                let value = self.call(callable, arguments)?;
                self.push(value)
            }
            b'b' => self.pop().map(drop),
            other => self.wrong(format!("the opcode {other:#04x} is none that weights need")),
        }
    }

    /// A whole number of so many bytes.
    fn long(&mut self, count: u64) -> Outcome<()> {
        match count {
            0..=8 => {
                let number = self.number(count as usize)?;
                let unused = 64 - 8 * count as u32;
                let signed = if count == 0 { 0 } else { (number << unused) as i64 >> unused };
                self.push(Value::Integer(signed))
            }
            _ => self.counted_text(count),
        }
    }

    fn extend(&mut self, values: &[Value]) -> Outcome<()> {
        match self.top()? {
            Value::Sequence(list) => {
                self.spend(SLOT * values.len())?;
                self.sequences[list as usize].extend_from_slice(values);
                Ok(())
            }
            Value::Opaque => Ok(()),
            _ => self.wrong("something that is no list should be extended"),
        }
    }

    fn set(&mut self, pairs: Vec<(Value, Value)>) -> Outcome<()> {
        match self.top()? {
            Value::Dict(dict) => {
                self.spend(2 * SLOT * pairs.len())?;
                self.dicts[dict as usize].extend(pairs);
                Ok(())
            }
            Value::Opaque => Ok(()),
            _ => self.wrong("something that is no dictionary should get a key"),
        }
    }

    fn global(&mut self, module: Range<usize>, name: Range<usize>) -> Outcome<()> {
        let text = |range: &Range<usize>| String::from_utf8_lossy(&self.bytes[range.clone()]);
        if !is_harmless(&text(&module), &text(&name)) {
            let full: String = format!("{}.{}", text(&module), text(&name)).chars().take(200).collect();
            return Err(Fault::Global(self.opcode_at, full));
        }
        self.spend(2 * size_of::<Global>())?;
        self.globals.push(Global { module, name });
        self.push(Value::Global(self.globals.len() as u32 - 1))
    }

    /// Module and name of a global.
    fn names(&self, value: Value) -> Option<(&str, &str)> {
        let Value::Global(global) = value else { return None };
        let Global { module, name } = self.globals.get(global as usize)?;
        let text = |range: &Range<usize>| std::str::from_utf8(&self.bytes[range.clone()]).ok();
        Some((text(module)?, text(name)?))
    }

    /// The text of a value, if it is one.
    pub(super) fn text_of(&self, value: Value) -> Option<&'a str> {
        std::str::from_utf8(self.bytes_of(value)?).ok()
    }

    /// The bytes of a text.
    pub(super) fn bytes_of(&self, value: Value) -> Option<&'a [u8]> {
        let Value::Text(start, length) = value else { return None };
        self.bytes.get(start as usize..start as usize + length as usize)
    }

    /// The values of a list or a tuple.
    pub(super) fn values_of(&self, value: Value) -> Option<&[Value]> {
        let Value::Sequence(number) = value else { return None };
        self.sequences.get(number as usize).map(Vec::as_slice)
    }

    /// The pairs of a dictionary, in the order in which they were set.
    pub(super) fn pairs_of(&self, value: Value) -> Option<&[(Value, Value)]> {
        let Value::Dict(number) = value else { return None };
        self.dicts.get(number as usize).map(Vec::as_slice)
    }
}
