//! What every module must be, beyond its words: nothing is used where it is not seen, and what leads somewhere leads to what it must. What is
//! let through here, the rest of the import relies on.

use rspirv::spirv::{self, Op as S};

use super::module::{At, Source};
use super::{ImportError, at, grammar};

impl Source {
    /// What is called is a function, branches lead to blocks of their own function, and joins take values that it has.
    pub(super) fn calls(&self) -> Result<(), ImportError> {
        for f in &self.functions {
            let own = |id: u32| (f.at..f.end).contains(&self.defs[id as usize]);
            let label = |id: u32| own(id) && self.op(self.defs[id as usize]) == S::Label;
            let outside = |id: u32| self.functions.first().is_none_or(|first| self.defs[id as usize] < first.at);
            let debug = |id: u32| self.is_debug(self.defs[id as usize]);
            let value = |id: u32| !label(id) && (own(id) || outside(id)) && !debug(id);
            for b in &f.blocks {
                for &place in b.phis.iter().chain(&b.body).chain(&b.merge).chain([&b.end]) {
                    let w = self.operands(place);
                    let (labels, values): (Vec<u32>, Vec<u32>) = match self.op(place) {
                        S::ExtInst if !self.is_import(w[2]) => {
                            return Err(at(place, format!("OpExtInst: id {} is no set of instructions", w[2])));
                        }
                        S::FunctionCall if !self.function_of.contains_key(&w[2]) => {
                            return Err(at(place, format!("OpFunctionCall: id {} is no function", w[2])));
                        }
                        S::FunctionCall if self.entries.iter().any(|e| e.function == w[2]) => {
                            let problem = format!("OpFunctionCall: id {} is an entry point, which nothing calls", w[2]);
                            return Err(at(place, problem));
                        }
                        S::Branch | S::SelectionMerge => (vec![w[0]], Vec::new()),
                        S::LoopMerge => (w[..2].to_vec(), Vec::new()),
                        S::BranchConditional => (w[1..3].to_vec(), vec![w[0]]),
                        S::Switch => {
                            let words = self.case_words(w[0]);
                            let cases = w[2..].chunks_exact(words + 1).map(|c| c[words]);
                            (std::iter::once(w[1]).chain(cases).collect(), vec![w[0]])
                        }
                        S::Phi => w[2..].chunks_exact(2).map(|pair| (pair[1], pair[0])).unzip(),
                        S::FunctionCall => (Vec::new(), w[3..].to_vec()),
                        S::ExtInst => (Vec::new(), w[4..].to_vec()),
                        _ => continue,
                    };
                    let name = || grammar::name(self.op(place) as u32);
                    let value = |id: u32| value(id) && (self.op(place) == S::Phi || self.defs[id as usize] < place);
                    if let Some(id) = labels.iter().find(|&&id| !label(id)) {
                        return Err(at(place, format!("{}: id {id} is no block of this function", name())));
                    }
                    if let Some(id) = values.iter().find(|&&id| !value(id) && !self.is_debug(place)) {
                        return Err(at(place, format!("{}: id {id} is no value of this function", name())));
                    }
                }
            }
        }
        Ok(())
    }

    /// What is wrong with the ids of a decoration or an execution mode: what a host sees stands outside of functions.
    pub(super) fn misplaced(&self, place: At) -> Option<String> {
        use spirv::Decoration as D;
        let outside = |id: u32| self.functions.first().is_none_or(|f| self.defs[id as usize] < f.at);
        let (id, decoration) = match (self.op(place), self.operands(place)) {
            (S::Decorate, &[id, decoration, ..]) => (id, decoration),
            (S::DecorateId | S::ExecutionModeId, &[_, _, ref ids @ ..]) => {
                let inside = ids.iter().find(|&&id| !outside(id));
                return inside.map(|id| format!("id {id} stands in a function"));
            }
            _ => return None,
        };
        let op = self.made(id).map_or(S::Nop, |d| d.0);
        let fits = match D::from_u32(decoration)? {
            D::Binding | D::DescriptorSet => op == S::Variable,
            D::SpecId => matches!(op, S::SpecConstant | S::SpecConstantTrue | S::SpecConstantFalse),
            D::BuiltIn => true,
            _ => return None,
        };
        (!fits || !outside(id)).then(|| format!("id {id} cannot have this decoration"))
    }
}

/// Whether an instruction may name what gives no value: debug information does, and names.
pub(super) fn may_name_nothing(user: S) -> bool {
    matches!(user, S::ExtInst | S::Name | S::Decorate | S::DecorateId | S::DecorateString)
}

/// Whether an instruction may name what this one defines in a function; `around` is the function that it stands in itself, or 0.
pub(super) fn is_seen(user: S, def: S, at: At, around: At) -> bool {
    match (user, def) {
        (S::FunctionCall | S::EntryPoint | S::ExecutionMode | S::ExecutionModeId, S::Function) => true,
        (S::Name | S::Decorate | S::DecorateId | S::DecorateString, _) => true,
        // In debug information, which is not kept.
        (S::ExtInst, S::Function | S::Label) => true,
        (_, S::Function) => false,
        (S::Branch | S::BranchConditional | S::Switch | S::SelectionMerge | S::LoopMerge | S::Phi, _) => at > around,
        (_, S::Label) => false,
        _ => around > 0 && at > around,
    }
}
