//! A module written again: what its functions need of what stood outside of them, in the order in which it stood, then the functions.

use rspirv::spirv::{Decoration, Op as S, StorageClass};

use super::ImportError;
use super::grammar::{self, Role};
use super::module::{At, Source};
use crate::emit::{ForeignWriter, ID_LIMIT, SourceIds};
use impasto_kernel::hash::{Map, Set};
use impasto_kernel::ir::{Kernel, Scalar};

/// The words of the module with these functions in place of those of its entry points; `kept` stay as they are.
pub(super) fn write(s: &Source, kernels: &[Kernel], kept: &Set<u32>) -> Result<Vec<u32>, ImportError> {
    let mut w = ForeignWriter::of(kernels.iter(), outer(s));
    for e in &s.entries {
        w.outside(e.function);
    }
    let raw = functions(s, &mut w, kept);
    interface(s, &mut w);
    need(s, &mut w);
    let mut words = vec![s.words[0], s.words[1], s.words[2], 0, 0];
    let is_global = |op: S| {
        grammar::has_result(op as u32) && !matches!(op, S::ExtInstImport | S::String)
            || matches!(op, S::TypeForwardPointer)
    };
    let mut globals = Vec::new();
    let mut annotations = Vec::new();
    let mut names = Vec::new();
    let mut fresh: Map<u32, u32> = Map::default();
    for &at in &s.preamble {
        let op = s.op(at);
        let operands = s.operands(at);
        let to = match op {
            S::Name | S::MemberName => {
                if w.has(operands[0]).is_none() {
                    continue;
                }
                &mut names
            }
            S::Decorate | S::DecorateId | S::DecorateString | S::MemberDecorate | S::MemberDecorateString => {
                if w.has(operands[0]).is_none() {
                    continue;
                }
                &mut annotations
            }
            S::ExecutionMode | S::ExecutionModeId if w.has(operands[0]).is_none() => continue,
            // What only debuggers read is not kept: its lines are those of instructions that are no more.
            S::Line | S::NoLine | S::ModuleProcessed | S::SourceContinued | S::SourceExtension | S::Nop => continue,
            S::Source => {
                copy(
                    s,
                    &mut w,
                    &[s.words[at as usize] & 0xFFFF | 3 << 16, operands[0], operands[1]],
                    &mut words,
                    &mut fresh,
                );
                continue;
            }
            S::String | S::ExtInstImport if w.has(operands[0]).is_none() => continue,
            S::ExtInst => continue,
            S::TypeForwardPointer if w.has(operands[0]).is_none() => continue,
            _ if is_global(op) => {
                let id = operands[usize::from(grammar::has_type(op as u32))];
                if op != S::TypeForwardPointer && w.has(id).is_none() {
                    continue;
                }
                &mut globals
            }
            _ => &mut words,
        };
        copy(s, &mut w, s.instruction(at), to, &mut fresh);
    }
    words.extend(names);
    words.extend(annotations);
    words.extend_from_slice(w.decorations());
    words.extend(globals);
    words.extend_from_slice(w.globals());
    words.extend_from_slice(w.functions());
    words.extend(raw);
    if w.bound() > u64::from(ID_LIMIT) {
        return Err(ImportError::TooManyIds { count: w.bound(), limit: ID_LIMIT });
    }
    words[3] = w.bound() as u32;
    Ok(words)
}

/// What is known of the module's own types and constants.
fn outer(s: &Source) -> SourceIds {
    let mut outer = SourceIds::new(s.bound);
    outer.selects_composites = s.words[1] >= 0x0001_0400;
    let mut scalars: Map<u32, Scalar> = Map::default();
    for &at in &s.preamble {
        let w = s.operands(at);
        let scalar = match (s.op(at), w) {
            (S::TypeBool, _) => Scalar::Bool,
            (S::TypeInt, &[_, 32, sign]) => {
                if sign == 1 {
                    Scalar::I32
                } else {
                    Scalar::U32
                }
            }
            (S::TypeInt, &[_, 64, sign]) => {
                if sign == 1 {
                    Scalar::I64
                } else {
                    Scalar::U64
                }
            }
            (S::TypeFloat, &[_, 16]) => Scalar::F16,
            (S::TypeFloat, &[_, 32]) => Scalar::F32,
            (S::Constant, &[ty, id, ref bits @ ..]) if !s.decorations.contains_key(&id) => {
                if let Some(&of) = scalars.get(&ty) {
                    let bits = bits.iter().rev().fold(0u64, |a, &x| a << 32 | u64::from(x)) & of.mask();
                    outer.knows_constant(of, bits, id);
                }
                continue;
            }
            (S::ConstantTrue | S::ConstantFalse, &[_, id]) => {
                outer.knows_constant(Scalar::Bool, u64::from(s.op(at) == S::ConstantTrue), id);
                continue;
            }
            _ => continue,
        };
        scalars.insert(w[0], scalar);
        outer.knows_scalar(scalar, w[0]);
    }
    outer
}

/// The functions that stay as they are, of those that are called or entered, with new ids.
fn functions(s: &Source, w: &mut ForeignWriter, kept: &Set<u32>) -> Vec<u32> {
    let mut needed: Vec<u32> =
        s.functions.iter().map(|f| f.id).filter(|id| kept.contains(id) && w.has(*id).is_some()).collect();
    let mut seen: Set<u32> = needed.iter().copied().collect();
    let mut next = 0;
    while next < needed.len() {
        let f = &s.functions[s.function_of[&needed[next]]];
        next += 1;
        for b in &f.blocks {
            for &at in b.body.iter().filter(|&&at| s.op(at) == S::FunctionCall) {
                let callee = s.operands(at)[2];
                if seen.insert(callee) {
                    needed.push(callee);
                }
            }
        }
    }
    let mut words = Vec::new();
    let mut fresh: Map<u32, u32> = Map::default();
    for f in s.functions.iter().filter(|f| seen.contains(&f.id)) {
        let mut at = f.at as usize;
        while at < f.end as usize {
            let length = (s.words[at] >> 16) as usize;
            let instruction = &s.words[at..at + length];
            let op = s.op(at as At);
            if !matches!(op, S::Line | S::NoLine) && !s.is_debug(at as At) {
                copy(s, w, instruction, &mut words, &mut fresh);
            }
            at += length;
        }
    }
    words
}

/// Everything that a host can see stays: entry points with their variables, bindings, and specialisation constants.
fn interface(s: &Source, w: &mut ForeignWriter) {
    for &at in &s.preamble {
        let operands = s.operands(at);
        match s.op(at) {
            S::EntryPoint => {
                let name = operands[2..].iter().position(|w| w.to_le_bytes().contains(&0)).unwrap_or(0);
                operands[3 + name..].iter().for_each(|&id| {
                    w.outside(id);
                });
            }
            S::ExecutionModeId => operands[2..].iter().for_each(|&id| {
                w.outside(id);
            }),
            S::Decorate => {
                let d = operands.get(1).copied();
                if [Decoration::Binding as u32, Decoration::SpecId as u32].map(Some).contains(&d)
                    || d == Some(Decoration::BuiltIn as u32) && s.op(s.defs[operands[0] as usize]) != S::Variable
                {
                    w.outside(operands[0]);
                }
            }
            S::Variable if operands[2] == StorageClass::PushConstant as u32 => {
                w.outside(operands[1]);
            }
            _ => {}
        }
    }
}

/// What is needed by what is needed.
fn need(s: &Source, w: &mut ForeignWriter) {
    let mut next = 0;
    loop {
        let asked: Vec<u32> = w.asked(next).to_vec();
        if asked.is_empty() {
            return;
        }
        next += asked.len();
        for id in asked {
            let at = s.defs[id as usize];
            if at == 0 || s.functions.first().is_some_and(|f| at >= f.at) {
                continue;
            }
            let instruction = s.instruction(at);
            let mut uses = Vec::new();
            let _ = grammar::walk(
                instruction,
                |id| s.case_words(id),
                |i, role| {
                    if matches!(role, Role::Type | Role::Use) {
                        uses.push(instruction[i]);
                    }
                },
            );
            for &at in s.decorations.get(&id).into_iter().flatten().filter(|&&at| s.op(at) == S::DecorateId) {
                uses.extend_from_slice(&s.operands(at)[2..]);
            }
            for id in uses {
                w.outside(id);
            }
        }
    }
}

/// An instruction with new ids. Ids of functions that stay are new where they are first seen.
fn copy(s: &Source, w: &mut ForeignWriter, instruction: &[u32], to: &mut Vec<u32>, fresh: &mut Map<u32, u32>) {
    let first = to.len();
    to.extend_from_slice(instruction);
    let mut ids = Vec::new();
    let _ = grammar::walk(
        instruction,
        |id| s.case_words(id),
        |i, role| {
            if role != Role::Literal {
                ids.push(i);
            }
        },
    );
    let start = s.functions.first().map_or(At::MAX, |f| f.at);
    for i in ids {
        let old = instruction[i];
        let outside = s.defs[old as usize] < start || s.function_of.contains_key(&old);
        to[first + i] = if outside {
            w.outside(old)
        } else if let Some(&id) = fresh.get(&old) {
            id
        } else {
            let id = w.id();
            fresh.insert(old, id);
            id
        };
    }
}
