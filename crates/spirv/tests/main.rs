//! SPIR-V of kernels, and modules of others.

mod compiler;
mod device;
mod kernels;
mod large;
mod matrix;
mod modules;
mod modules_damage;
mod modules_device;
mod planted_faults;
mod refused;
mod spirv;
mod support;
mod target;
