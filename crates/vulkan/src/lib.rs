//! A Vulkan device, opened: a thin, safe layer over `ash`. Nothing else in Impasto talks to `ash`.
//!
//! Each call that enters a driver is one function here, so that a probe in a child process can say before each of them what it
//! is about to do: [`Loader::open`], [`Loader::create_instance`], [`Instance::enumerate`], [`PhysicalDevice::describe`],
//! [`VulkanDevice::open`], [`VulkanDevice::buffer`], [`VulkanDevice::pipeline`], [`VulkanDevice::run`].
//!
//! A driver can crash in any of them, and this layer cannot help that: open a device in this process only after
//! `impasto_device` has tried it in a child.
//!
//! ```no_run
//! use impasto_vulkan::{VulkanDevice, Loader};
//!
//! let instance = Loader::open()?.create_instance()?;
//! for physical in instance.enumerate()? {
//!     let description = physical.describe();
//!     println!("{}: {} bytes", description.label, description.memory);
//!     let device = VulkanDevice::open(&physical)?;
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
mod pipeline_cache;
#[allow(unsafe_code)]
mod queue;

pub use commands::{BufferRange, Recorder, Recording};
pub use device::{ComputePipeline, Interface, VulkanDevice};
pub use error::VulkanError;
pub use features::{KernelLimits, SubgroupOps, VulkanFeatures};
pub use instance::{Instance, Loader};
pub use memory::{Buffer, MemoryLocation};
pub use physical::{CooperativeMatrix, Description, PhysicalDevice, PhysicalDeviceType};
pub use queue::{QueueKind, TimelinePoint};
