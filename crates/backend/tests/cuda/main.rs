//! Every op on a CUDA device against the float64 reference, by the tests of the CPU and of Vulkan. If one of these failed, a user of an NVIDIA card would
//! get a wrong picture, and no error.

#[path = "../ops/arithmetic.rs"]
mod arithmetic;
#[path = "../vulkan/bands.rs"]
mod bands;
mod common;
#[path = "../vulkan/gated.rs"]
mod gated;
#[path = "../ops/lookups.rs"]
mod lookups;
#[path = "../ops/movement.rs"]
mod movement;
#[path = "../ops/norms.rs"]
mod norms;
#[path = "../ops/operands.rs"]
mod operands;
#[path = "../vulkan/overflow.rs"]
mod overflow;
#[path = "../ops/parameters.rs"]
mod parameters;
#[path = "../ops/products.rs"]
mod products;
#[path = "../vulkan/rest.rs"]
mod rest;
#[path = "../vulkan/streaming.rs"]
mod streaming;
#[path = "../vulkan/watched.rs"]
mod watched;
