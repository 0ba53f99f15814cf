//! What the early count knows of a value: a number that equal values share, and what no pass can do with it.
//!
//! A value *stays* if it takes an id wherever it is needed: no pass makes a constant or another value of it. Values whose numbers differ have
//! different ids; those whose numbers agree may have one, and count once. What is unsure has no number.

use crate::hash::Mix;
use crate::ir::Scalar;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Class(pub(super) u64);

/// Bits of a class that are not its number.
const MARKS: u64 = 0xFF;

impl Class {
    pub(super) const UNSURE: Class = Class(0);
    /// A constant; one that may make an op vanish (0, 1 and the like); a value that stays.
    pub(super) const PLAIN: u64 = 1;
    pub(super) const SPECIAL: u64 = 2;
    pub(super) const STAYS: u64 = 3;

    /// A whole number plus a constant: another constant may come to nothing with it.
    pub(super) const SUM: u64 = 4;
    /// A member of a vector; a vector made of members.
    pub(super) const PART: u64 = 8;
    pub(super) const MADE: u64 = 16;
    /// What the same op, or its opposite, may undo.
    pub(super) const TURNED: u64 = 32;
    /// It stays if what loops carry does, which is not proven yet.
    pub(super) const ASSUMED: u64 = 64;

    /// A value that stays, whatever it is made of.
    pub(super) fn source(words: &[u64]) -> Class {
        Class(hash(words) & !MARKS | Class::STAYS)
    }

    /// A value that stays if one of these does.
    pub(super) fn made_of(words: &[u64], of: &[Class]) -> Class {
        let proven = of.iter().any(|c| c.stays() && !c.has(Class::ASSUMED));
        let class = Class::source(words);
        if proven { class } else { class.with(Class::ASSUMED) }
    }

    pub(super) fn constant(s: Scalar, bits: u64) -> Class {
        let one = crate::eval::convert(Scalar::U32, s, 1);
        let minus = if s.is_float() { one | sign(s) } else { s.mask() };
        let tag = if [0, one, minus, sign(s)].contains(&bits) { Class::SPECIAL } else { Class::PLAIN };
        Class(hash(&[0xC0, s as u64, bits]) & !MARKS | tag)
    }

    pub(super) fn with(self, mark: u64) -> Class {
        Class(self.0 | mark)
    }

    pub(super) fn has(self, mark: u64) -> bool {
        self.0 & mark != 0
    }

    pub(super) fn stays(self) -> bool {
        self.0 & 3 == Class::STAYS
    }

    pub(super) fn is_constant(self) -> bool {
        self.is_plain() || self.is_special()
    }

    pub(super) fn is_plain(self) -> bool {
        self.0 & 3 == Class::PLAIN
    }

    pub(super) fn is_special(self) -> bool {
        self.0 & 3 == Class::SPECIAL
    }

    pub(super) fn is_known(self) -> bool {
        self != Class::UNSURE
    }

    pub(super) fn is_zero(self, s: Scalar) -> bool {
        [0, sign(s)].iter().any(|&bits| self == Class::constant(s, bits))
    }
}

/// The bit of the sign.
fn sign(s: Scalar) -> u64 {
    1u64.checked_shl(s.bits() - 1).unwrap_or(0)
}

pub(super) fn hash(numbers: &[u64]) -> u64 {
    use std::hash::Hasher;
    let mut mix = Mix::default();
    numbers.iter().for_each(|&n| mix.write_u64(n));
    mix.finish()
}
