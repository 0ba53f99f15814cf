//! A CUDA device, opened, with nothing but NVIDIA's driver installed. Nothing else in Impasto calls the driver.
//!
//! The driver's functions are a table (`table.rs`), each looked up by its name when the library is opened. One that an old driver lacks is no error until
//! it is called; then [`CudaError::Missing`] names it and the CUDA that has it. Nothing here panics, whatever a driver says.
//!
//! Each call that enters a driver is one function here, so that a probe in a child process can say before each of them what it is about to do:
//! [`CudaDriver::open`], [`CudaDriver::init`], [`CudaDriver::count`], [`CudaDriver::describe`], [`CudaDevice::open`], [`CudaDevice::allocate`],
//! [`CudaDevice::load`], [`CudaStream::launch`]. A driver can crash in any of them, and this layer cannot help that: open a device in this process only
//! after `impasto_device` has tried it in a child.
//!
//! ```no_run
//! use impasto_cuda::{CudaDevice, CudaDriver};
//!
//! let driver = CudaDriver::open()?;
//! driver.init()?;
//! for index in 0..driver.count()? {
//!     let description = driver.describe(index)?;
//!     println!("{}: {} bytes", description.label, description.memory);
//!     let device = CudaDevice::open(&driver, index)?;
//!     println!("{} of them are free", device.free_memory()?);
//! }
//! # Ok::<(), impasto_cuda::CudaError>(())
//! ```
//!
//! A context in which a kernel went wrong (an address outside of all memory, an illegal instruction) is lost with all that is in it:
//! [`CudaError::is_lost`].

#![deny(missing_docs, unsafe_code)]

#[allow(unsafe_code)]
mod device;
#[allow(unsafe_code)]
mod driver;
mod error;
#[allow(unsafe_code)]
mod graph;
#[allow(unsafe_code)]
mod memory;
#[allow(unsafe_code)]
mod module;
#[allow(unsafe_code)]
mod stream;
#[allow(unsafe_code)]
mod table;
#[allow(unsafe_code)]
mod tensor_map;

pub use device::CudaDevice;
pub use driver::{CudaDescription, CudaDriver, CudaFeatures, LIBRARY};
pub use error::CudaError;
pub use graph::{CudaGraph, EdgeKind, GraphExec, GraphNode};
pub use memory::{CudaBuffer, CudaLocation, CudaRange};
pub use module::{CudaFunction, CudaModule, Linked};
pub use stream::{CudaEvent, CudaLaunch, CudaStream};
pub use tensor_map::{TensorElement, TensorMap, TensorMapLayout, TensorSwizzle};
