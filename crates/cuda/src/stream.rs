//! Work in order: copies, launches and events of a stream.

use std::ffi::{c_uint, c_void};

use crate::device::CudaDevice;
use crate::error::CudaError;
use crate::graph::GraphExec;
use crate::memory::CudaRange;
use crate::module::CudaFunction;
use crate::table::{ATTRIBUTE_CLUSTER, ATTRIBUTE_PROGRAMMATIC, Attribute, AttributeValue, Handle, LaunchConfig};

/// It does not wait for the stream that every process has.
const NON_BLOCKING: c_uint = 1;
/// An event that is waited for and not measured.
const WITHOUT_TIMING: c_uint = 2;

/// A queue of work that is done in order. Cheap calls: the device goes on by itself.
#[derive(Debug)]
pub struct CudaStream {
    device: CudaDevice,
    pub(crate) raw: Handle,
}

// SAFETY: the driver's functions on streams may be called from any thread.
unsafe impl Send for CudaStream {}
// SAFETY: as above.
unsafe impl Sync for CudaStream {}

/// A launch of a kernel: its grid, and the bytes of each of its parameters in order.
#[derive(Clone, Debug, Default)]
pub struct CudaLaunch {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// Blocks of a cluster, if that is more than one and not said by the kernel itself.
    pub cluster: Option<[u32; 3]>,
    /// The kernel begins while the one before it ends, and waits for it itself (`griddepcontrol.wait`).
    pub programmatic: bool,
    /// The bytes of each parameter.
    pub params: Vec<Vec<u8>>,
}

impl CudaLaunch {
    /// Calls `act` with a pointer to each parameter. The driver reads them while it is called, with alignments of up to 64 bytes where the bytes are aligned
    /// so.
    pub(crate) fn with_params<R>(&self, act: impl FnOnce(*mut *mut c_void) -> R) -> R {
        let mut pointers: Vec<*mut c_void> = self.params.iter().map(|p| p.as_ptr().cast_mut().cast()).collect();
        act(pointers.as_mut_ptr())
    }

    /// What the interface calls attributes.
    pub(crate) fn attributes(&self) -> Vec<Attribute> {
        let mut all = vec![];
        let mut add = |id, first: &[u32]| {
            let mut value = AttributeValue::default();
            value.0[..first.len()].copy_from_slice(first);
            all.push(Attribute { id, padding: 0, value });
        };
        if let Some(cluster) = &self.cluster {
            add(ATTRIBUTE_CLUSTER, cluster);
        }
        if self.programmatic {
            add(ATTRIBUTE_PROGRAMMATIC, &[1]);
        }
        all
    }
}

impl CudaDevice {
    /// A new stream.
    pub fn stream(&self) -> Result<CudaStream, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the handle is written to.
        unsafe { self.enter()?.stream_create(&mut raw, NON_BLOCKING) }?;
        Ok(CudaStream { device: self.clone(), raw })
    }

    /// A new event; with `timed` it has the time at which the device passed it.
    pub fn event(&self, timed: bool) -> Result<CudaEvent, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the handle is written to.
        unsafe { self.enter()?.event_create(&mut raw, if timed { 0 } else { WITHOUT_TIMING }) }?;
        Ok(CudaEvent { device: self.clone(), raw })
    }
}

impl CudaStream {
    /// Copies bytes. Both ranges stay as they are until the copy is over: freeing their memory waits for it.
    pub fn copy(&self, from: &CudaRange, to: &CudaRange) -> Result<(), CudaError> {
        from.check()?;
        to.check()?;
        let bytes = usize::try_from(from.bytes.min(to.bytes)).unwrap_or(usize::MAX);
        // SAFETY: both ranges lie in memory that the driver gave, which was just checked.
        unsafe { self.device.enter()?.copy_async(to.address(), from.address(), bytes, self.raw) }
    }

    /// Launches a kernel.
    ///
    /// # Safety
    /// The parameters are those that the kernel has, in number and size, and it stays inside of the memory that they name.
    pub unsafe fn launch(&self, function: &CudaFunction, launch: &CudaLaunch) -> Result<(), CudaError> {
        #[cfg(feature = "faults")]
        self.device.submits("cuLaunchKernel")?;
        let (functions, none) = (self.device.enter()?, std::ptr::null_mut());
        let mut attributes = launch.attributes();
        launch.with_params(|params| {
            if attributes.is_empty() {
                let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
                // SAFETY: the function's module lives; the rest is the caller's promise.
                return unsafe {
                    functions.launch(function.raw, gx, gy, gz, bx, by, bz, launch.shared, self.raw, params, none)
                };
            }
            let config = LaunchConfig {
                grid: launch.grid,
                block: launch.block,
                shared: launch.shared,
                stream: self.raw,
                attributes: attributes.as_mut_ptr(),
                count: attributes.len() as c_uint,
            };
            // SAFETY: as above.
            unsafe { functions.launch_ex(&config, function.raw, params, none) }
        })
    }

    /// Launches a whole graph.
    pub fn launch_graph(&self, graph: &GraphExec) -> Result<(), CudaError> {
        #[cfg(feature = "faults")]
        self.device.submits("cuGraphLaunch")?;
        // SAFETY: both handles live; the graph's memory is kept by who made it.
        unsafe { self.device.enter()?.graph_launch(graph.raw, self.raw) }
    }

    /// Brings a graph to the device, so that its first launch takes no longer than others.
    pub fn upload_graph(&self, graph: &GraphExec) -> Result<(), CudaError> {
        // SAFETY: both handles live.
        unsafe { self.device.enter()?.graph_upload(graph.raw, self.raw) }
    }

    /// Marks the end of what was handed over so far.
    pub fn record(&self, event: &CudaEvent) -> Result<(), CudaError> {
        // SAFETY: both handles live.
        unsafe { self.device.enter()?.event_record(event.raw, self.raw) }
    }

    /// What follows begins after an event.
    pub fn wait_for(&self, event: &CudaEvent) -> Result<(), CudaError> {
        // SAFETY: both handles live.
        unsafe { self.device.enter()?.stream_wait(self.raw, event.raw, 0) }
    }

    /// Waits for all that was handed over.
    pub fn synchronise(&self) -> Result<(), CudaError> {
        // SAFETY: the handle lives.
        unsafe { self.device.enter()?.stream_synchronise(self.raw) }
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        if let Ok(functions) = self.device.enter() {
            // SAFETY: it is this stream's; the driver lets its work end.
            let _ = unsafe { functions.stream_destroy(self.raw) };
        }
    }
}

/// A place in a stream.
#[derive(Debug)]
pub struct CudaEvent {
    device: CudaDevice,
    raw: Handle,
}

// SAFETY: the driver's functions on events may be called from any thread.
unsafe impl Send for CudaEvent {}
// SAFETY: as above.
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    /// Waits until the device has passed it.
    pub fn synchronise(&self) -> Result<(), CudaError> {
        // SAFETY: the handle lives.
        unsafe { self.device.enter()?.event_synchronise(self.raw) }
    }

    /// Seconds from an earlier event to this one; both were timed and are over.
    pub fn seconds_since(&self, earlier: &CudaEvent) -> Result<f64, CudaError> {
        let mut milliseconds = 0.0;
        // SAFETY: both handles live, and the number is written to.
        unsafe { self.device.enter()?.event_elapsed(&mut milliseconds, earlier.raw, self.raw) }?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        if let Ok(functions) = self.device.enter() {
            // SAFETY: it is this event's.
            let _ = unsafe { functions.event_destroy(self.raw) };
        }
    }
}
