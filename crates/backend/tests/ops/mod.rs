//! Every op on every instruction path against the float64 reference, on fresh random inputs of awkward sizes. If one of
//! these failed, a user of that processor would get a wrong picture, and no error.
//!
//! `IMPASTO_TEST_SEED` repeats a run; `--nocapture` shows how far each path was off at worst.

mod arithmetic;
mod attention;
mod leaks;
mod lookups;
mod movement;
mod norms;
mod operands;
mod parameters;
mod products;

use crate::common;
