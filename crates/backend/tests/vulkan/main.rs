//! Every op on a Vulkan device against the float64 reference, by the tests of the CPU. If one of these failed, a user of a GPU would get a
//! wrong picture, and no error.

#[path = "../ops/arithmetic.rs"]
mod arithmetic;
mod bands;
mod common;
mod encoders;
mod gated;
#[path = "../ops/lookups.rs"]
mod lookups;
#[path = "../ops/movement.rs"]
mod movement;
#[path = "../ops/norms.rs"]
mod norms;
#[path = "../ops/operands.rs"]
mod operands;
mod overflow;
#[path = "../ops/parameters.rs"]
mod parameters;
#[path = "../ops/products.rs"]
mod products;
mod rest;
mod streaming;
mod watched;
