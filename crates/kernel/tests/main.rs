//! The kernel compiler: language, text, passes, executor.

mod differential;
mod executor;
mod files;
mod kernels;
mod language;
mod matrix;
mod mistakes;
mod text;
mod warpgroup;
