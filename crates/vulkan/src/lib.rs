//! A Vulkan device, opened: a thin, safe layer over `ash`. Nothing else in Impasto talks to `ash`.
//!
//! Each call that enters a driver is one function here, so that a probe in a child process can say before each of them what it
//! is about to do: [`Loader::open`], [`Loader::create_instance`], [`Instance::enumerate`], [`Physical::describe`],
//! [`Device::open`], [`Device::buffer`], [`Device::pipeline`], [`Device::run`].
//!
//! A driver can crash in any of them, and this layer cannot help that: open a device in this process only after
//! `impasto_device` has tried it in a child.
//!
//! ```no_run
//! use impasto_vulkan::{Device, Loader};
//!
//! let instance = Loader::open()?.create_instance()?;
//! for physical in instance.enumerate()? {
//!     let description = physical.describe();
//!     println!("{}: {} bytes", description.label, description.memory);
//!     let device = Device::open(&physical)?;
//!     let mut buffer = device.buffer(1024)?;
//!     buffer.write(&[7; 1024])?;
//! }
//! # Ok::<(), impasto_vulkan::VulkanError>(())
//! ```

#![deny(missing_docs, unsafe_code)]

mod capabilities;
#[allow(unsafe_code)]
mod commands;
#[allow(unsafe_code)]
mod device;
mod error;
#[allow(unsafe_code)]
mod features;
#[allow(unsafe_code)]
mod instance;
#[allow(unsafe_code)]
mod memory;
#[allow(unsafe_code)]
mod physical;
#[allow(unsafe_code)]
mod queue;
#[allow(unsafe_code)]
mod remembered;

pub use commands::{Part, Recorder, Recording};
pub use device::{Device, Interface, Pipeline};
pub use error::VulkanError;
pub use features::{Features, KernelLimits, Together};
pub use instance::{Instance, Loader};
pub use memory::{Buffer, Home};
pub use physical::{CooperativeMatrix, Description, Kind, Physical};
pub use queue::{Ends, Lane};
