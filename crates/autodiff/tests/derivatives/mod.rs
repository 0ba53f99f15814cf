//! What tests of derivatives use: kernels with derivatives, and derivatives by differences.
pub mod articulated;
pub mod cases;
pub mod differentiable;
pub mod gradients;
pub mod poses;
pub mod together;
