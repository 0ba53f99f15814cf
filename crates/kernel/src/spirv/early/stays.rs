//! Which loops with constant ends are surely not written out: those that hold too many ops when that is decided. What counts are ops that depend on
//! what the loop carries or on its index, so that they stand nowhere else, and that are there whatever of the loop is needed.

use super::look::{Def, Look, NONE};
use super::loops::{Carried, Walked};
use crate::ir::{OpKind, Space};
use crate::passes::{MOST_UNROLLED, SMALL_UNROLLED};

/// What some values are made of, as far as it stands in a loop.
#[derive(Default)]
pub(super) struct Slice {
    /// By value: the number of the slice that met it last, and whether it depends on the loop.
    met: Vec<(u32, bool)>,
    number: u32,
    /// Values, and whether their operands were followed.
    open: Vec<(u32, bool)>,
    /// The different ops.
    ops: Vec<u64>,
}

impl Look<'_> {
    /// So many ops in a loop, and it is not written out.
    pub(super) fn enough(&self, turns: u64) -> usize {
        let private = self.k.memories().iter().any(|m| matches!(m.space, Space::Private(_)));
        let most = if private { MOST_UNROLLED } else { SMALL_UNROLLED };
        (most / turns.max(1)) as usize + 1
    }

    /// Whether a loop is surely not written out. What it carries and what alone would not keep it becomes unsure: then it is to be walked again.
    pub(super) fn stays_a_loop(&mut self, walked: &Walked<'_>, carried: &mut [Carried], enough: usize) -> Option<bool> {
        let (frame, k) = (walked.frame, self.k);
        // One that is left early, or goes on early, is never written out.
        if frame.breaks.len() + frame.continues.len() > 1 {
            return Some(true);
        }
        let mut slice = std::mem::take(&mut self.slice);
        let mut holds = |look: &Self, from: &mut dyn Iterator<Item = u32>| {
            look.follow(&mut slice, from, walked, enough);
            slice.ops.len() >= enough
        };
        let stays = if self.happens.len() > walked.happened || self.private.len() > walked.private {
            let stores = self.happens[walked.happened..].iter().filter(|&&op| !k.kind(op).is_structure());
            let mut needed = stores.flat_map(|&op| k.args(op)).map(|&v| self.root(v));
            holds(self, &mut needed).then_some(true)
        } else {
            let mut all = true;
            for (i, c) in carried.iter_mut().enumerate().filter(|(_, c)| c.joins) {
                let next = frame.continues.first().map_or(NONE, |e| e.value(i));
                if !holds(self, &mut std::iter::once(next)) {
                    (c.value, c.joins, all) = (NONE, false, false);
                }
            }
            Some(all)
        };
        self.slice = slice;
        stays
    }

    /// Goes back from values through a loop, until there are enough ops.
    fn follow(&self, slice: &mut Slice, from: &mut dyn Iterator<Item = u32>, walked: &Walked<'_>, enough: usize) {
        let index = self.k.region_args(walked.region).next().map(|v| v.0);
        let is_of_loop = |v: u32| match self.join(v) {
            Some(join) => v >= walked.first_join && matches!(self.k.kind(join.of), OpKind::Loop | OpKind::For(_)),
            None => Some(v) == index,
        };
        let Slice { met, number, open, ops } = slice;
        met.resize(self.value_count(), (0, false));
        *number += 1;
        ops.clear();
        open.clear();
        open.extend(from.map(|v| (v, false)));
        let mut left = 2 * walked.ops;
        while let Some((v, followed)) = open.pop() {
            let Some(at) = met.get(v as usize).copied() else { continue };
            if followed {
                let mut depends = false;
                self.made_of(v, walked, |x| depends |= met.get(x as usize) == Some(&(*number, true)));
                if depends {
                    met[v as usize].1 = true;
                    let class = self.class_at(v);
                    if matches!(self.def(v), Def::Op(_)) && class.stays() && !ops.contains(&class.0) {
                        ops.push(class.0);
                    }
                }
            } else if at.0 != *number && left > 0 {
                left -= 1;
                met[v as usize] = (*number, is_of_loop(v));
                open.push((v, true));
                self.made_of(v, walked, |x| open.push((x, false)));
            }
            if ops.len() >= enough {
                break;
            }
        }
    }

    /// What a value is made of, of what may stand in the loop.
    fn made_of(&self, v: u32, walked: &Walked<'_>, mut tell: impl FnMut(u32)) {
        match (self.join(v), self.def(v)) {
            (Some(_), _) if v < walked.first_join => {}
            (Some(join), _) => {
                let before = usize::from(self.k.regions(join.of).first() == Some(&walked.region));
                self.inputs(join)[before..].iter().for_each(|&x| tell(x));
            }
            (None, Def::Op(op)) => self.k.args(op).iter().for_each(|&x| tell(self.root(x))),
            (None, Def::Same(other)) => tell(other),
            (None, Def::Nothing | Def::Constant(_)) => {}
        }
    }
}
