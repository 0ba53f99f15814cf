//! The layer over Vulkan, on lavapipe.

mod kernels;
mod lavapipe;
