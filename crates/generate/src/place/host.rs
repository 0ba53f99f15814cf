//! The memory of the host, which plans share with the program itself and with every other program.

use std::sync::Mutex;
use std::sync::PoisonError;

use impasto_device::cpu;

/// What a program of ours takes beside its plans and pictures while it works: graphs, plans, threads, buffers to read files with, and what
/// the allocator keeps. At most 24 MiB were measured (SDXL at 1024x1024).
const WORKING: u64 = 40 << 20;

/// The memory of the host as one run sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostBudget {
    /// Bytes that plans may take together.
    pub plans: u64,
    /// Bytes that the program takes beside them.
    pub process: u64,
}

impl HostBudget {
    /// A host on which nobody counts.
    pub const UNLIMITED: HostBudget = HostBudget { plans: u64::MAX, process: 0 };
}

/// What of the host's memory is free, asked for each run. Small changes are overlooked: the next picture of the same kind is to have the same
/// plan.
#[derive(Default)]
pub(super) struct HostRoom(Mutex<Option<u64>>);

impl HostRoom {
    /// The budget of a run, where `free` bytes are free, plans hold `held`, and pictures will take `pictures`.
    pub fn budget(&self, free: u64, held: u64, pictures: u64) -> HostBudget {
        let beside = WORKING + pictures;
        let own = cpu::own_memory().unwrap_or(0).saturating_sub(held);
        let room = self.steady(free.saturating_add(held));
        // In steps: what a larger picture takes more changes no plan of a network that does not depend on it.
        let step = (room / 64).next_power_of_two();
        HostBudget { plans: room.saturating_sub(beside) / step * step, process: own + beside }
    }

    /// What was said before, unless this is another situation.
    fn steady(&self, room: u64) -> u64 {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match *kept {
            // What may be wrong by this is less than what is left for work.
            Some(before) if before.abs_diff(room) <= (before / 16).max(WORKING / 4) && room > before / 2 => before,
            _ => *kept.insert(room),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_changes_are_overlooked_and_large_ones_are_not() {
        let room = HostRoom::default();
        let plans = |free: u64, held: u64| room.budget(free, held, 0).plans;
        let roomy = plans(8 << 30, 0);
        assert!((7 << 30..8 << 30).contains(&roomy), "{roomy}");
        assert_eq!(plans((8 << 30) - (100 << 20), 0), roomy);
        // What plans hold already can be had again, and a picture of some pixels more is no other plan.
        assert_eq!(plans(6 << 30, 2 << 30), roomy);
        assert_eq!(room.budget(8 << 30, 0, 1 << 20).plans, roomy);
        for less in [3 << 30, 200 << 20, 150 << 20] {
            assert!((less * 7 / 8..=less).contains(&(plans(less, 0) + WORKING)), "{less}");
        }
    }

    #[test]
    fn what_the_program_takes_is_left_out_of_the_plans() {
        let room = HostRoom::default();
        let budget = room.budget(100 << 20, 0, 36 << 20);
        assert_eq!(budget.plans, (24 << 20), "what is left, in steps of 2 MiB");
        assert!(budget.process >= WORKING + (36 << 20));
        assert_eq!(room.budget(0, 0, 1 << 40).plans, 0);
    }
}
