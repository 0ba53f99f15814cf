//! Where ops were written in the source of the program, for messages. A kernel that was just built has a place for each op; what passes make of it has
//! none, unless they are told to take places along, so that compiling costs nothing. Places are no part of what a kernel means: neither the
//! textual form nor the words have them.

use std::panic::Location;

/// The places of a kernel's ops, four bytes each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// Whether ops that are added get a place.
    recorded: bool,
    /// Whether kernels that are made of this one take places along.
    followed: bool,
    /// The places that there are, each once.
    table: Vec<&'static Location<'static>>,
    /// For each op the number of its place, from 1; 0 is none.
    of: Vec<u32>,
}

impl Sources {
    /// Every op that is added gets a place.
    pub(crate) fn recorded() -> Sources {
        Sources { recorded: true, ..Sources::default() }
    }

    /// Whether kernels that are made of this one take places along.
    pub(crate) fn follow(&mut self, yes: bool) {
        self.followed = yes && self.recorded;
    }

    /// For a kernel that is made of this one.
    pub(super) fn header(&self) -> Sources {
        if !self.followed {
            return Sources::default();
        }
        let of = Vec::with_capacity(self.of.len());
        Sources { recorded: true, followed: true, table: self.table.clone(), of }
    }

    pub(super) fn record(&mut self, number: u32) {
        if self.recorded {
            self.of.push(number);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        4 * self.of.capacity()
    }

    /// The number of the place of an op.
    pub(super) fn number(&self, op: usize) -> u32 {
        self.of.get(op).copied().unwrap_or(0)
    }

    pub(super) fn place(&self, op: usize) -> Option<&'static Location<'static>> {
        self.table.get((self.number(op) as usize).checked_sub(1)?).copied()
    }

    pub(super) fn add(&mut self, place: &'static Location<'static>) -> u32 {
        self.table.push(place);
        self.table.len() as u32
    }
}
