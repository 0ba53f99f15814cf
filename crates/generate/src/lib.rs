//! A picture, made. So far: the noise that it begins with, and its words ([`prompt`]).
//!
//! Noise is drawn on the host in the two ways that users know, so that the same seed gives the same picture on every device.
//!
//! ```
//! use impasto_generate::{Noise, NoiseKind};
//! let mut noise = Noise::new(NoiseKind::Cpu, 42);
//! let first = noise.draw(4 * 64 * 64);
//! assert_eq!(first[0], 1.9269154);
//! ```

mod noise;
pub mod prompt;

pub use noise::{Noise, NoiseKind};
