//! Kernels, compiled by the driver.

use std::ffi::{CString, c_int, c_uint, c_void};
use std::sync::Arc;

use crate::device::CudaDevice;
use crate::error::CudaError;
use crate::stream::CudaLaunch;
use crate::table::{Handle, LaunchConfig};

// Options of the driver's compiler.
const INFO_LOG: c_int = 3;
const INFO_LOG_BYTES: c_int = 4;
const ERROR_LOG: c_int = 5;
const ERROR_LOG_BYTES: c_int = 6;
/// Text of PTX, as an input of the linker.
const INPUT_PTX: c_int = 1;

// Attributes of functions.
const LOCAL_BYTES: c_int = 3;
const REGISTERS: c_int = 4;
const MAX_DYNAMIC_SHARED: c_int = 8;

const LOG_BYTES: usize = 8 << 10;

/// What the driver's compiler says while it works, and what it is told about that.
struct Logs {
    info: Vec<u8>,
    error: Vec<u8>,
    options: [c_int; 4],
    values: [*mut c_void; 4],
}

impl Logs {
    fn new() -> Box<Logs> {
        let (mut info, mut error) = (vec![0; LOG_BYTES], vec![0; LOG_BYTES]);
        // Numbers go where pointers go.
        let values = [
            info.as_mut_ptr().cast::<c_void>(),
            LOG_BYTES as *mut c_void,
            error.as_mut_ptr().cast(),
            LOG_BYTES as *mut c_void,
        ];
        Box::new(Logs { info, error, options: [INFO_LOG, INFO_LOG_BYTES, ERROR_LOG, ERROR_LOG_BYTES], values })
    }

    fn text(log: &[u8]) -> String {
        let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
        String::from_utf8_lossy(&log[..end]).trim().to_owned()
    }

    /// An error with the compiler's words, where it has some.
    fn explain(&self, error: CudaError) -> CudaError {
        match (error, Logs::text(&self.error)) {
            (CudaError::Call { call, code }, log) if !log.is_empty() => CudaError::Compile { call, code, log },
            (error, _) => error,
        }
    }
}

/// Kernels on a device.
#[derive(Debug)]
pub struct CudaModule {
    device: CudaDevice,
    raw: Handle,
}

// SAFETY: the driver's functions on modules may be called from any thread.
unsafe impl Send for CudaModule {}
// SAFETY: as above.
unsafe impl Sync for CudaModule {}

/// A kernel of a module.
#[derive(Clone, Debug)]
pub struct CudaFunction {
    pub(crate) module: Arc<CudaModule>,
    pub(crate) raw: Handle,
}

// SAFETY: as of modules.
unsafe impl Send for CudaFunction {}
// SAFETY: as of modules.
unsafe impl Sync for CudaFunction {}

/// Machine code for one device and driver, and what the compiler said of it.
#[derive(Clone, Debug)]
pub struct Linked {
    /// The cubin, to be [loaded](CudaDevice::load).
    pub cubin: Vec<u8>,
    /// Registers, spills and warnings.
    pub log: String,
}

impl CudaDevice {
    /// Loads a cubin, or text of PTX that ends with a zero byte, which is compiled here.
    pub fn load(&self, image: &[u8]) -> Result<Arc<CudaModule>, CudaError> {
        if !image.starts_with(b"\x7fELF") && image.last() != Some(&0) {
            return Err(CudaError::Wrong("a module is neither machine code nor a text that ends with a zero byte"));
        }
        let (mut logs, mut raw) = (Logs::new(), std::ptr::null_mut());
        let functions = self.enter()?;
        let [options, values] = [logs.options.as_mut_ptr().cast::<c_void>(), logs.values.as_mut_ptr().cast()];
        // SAFETY: the image ends by itself; the logs have the lengths that the driver is told and live until it returns.
        let loaded =
            unsafe { functions.module_load(&mut raw, image.as_ptr().cast(), 4, options.cast(), values.cast()) };
        loaded.map_err(|error| logs.explain(error))?;
        Ok(Arc::new(CudaModule { device: self.clone(), raw }))
    }

    /// Compiles text of PTX for this device. Serial inside a process: more than one at a time takes more processes.
    pub fn link(&self, ptx: &str) -> Result<Linked, CudaError> {
        let text = CString::new(ptx).map_err(|_| CudaError::Wrong("the text of a kernel has a zero byte in it"))?;
        let (mut logs, mut state) = (Logs::new(), std::ptr::null_mut());
        let functions = self.enter()?;
        let [options, values] = [logs.options.as_mut_ptr().cast::<c_void>(), logs.values.as_mut_ptr().cast()];
        // SAFETY: the logs have the lengths that the driver is told, and live until the linker is destroyed below.
        unsafe { functions.link_create(4, options.cast(), values.cast(), &mut state) }?;
        let (mut cubin, mut bytes) = (std::ptr::null_mut(), 0);
        let (no_options, no_values) = (std::ptr::null_mut(), std::ptr::null_mut());
        let text = text.as_bytes_with_nul();
        // SAFETY: the text is as long as is said, and the linker lives.
        let done = unsafe {
            functions
                .link_add(
                    state,
                    INPUT_PTX,
                    text.as_ptr().cast_mut().cast(),
                    text.len(),
                    c"kernel".as_ptr(),
                    0,
                    no_options,
                    no_values,
                )
                .and_then(|()| functions.link_complete(state, &mut cubin, &mut bytes))
        };
        // SAFETY: the driver gives so many bytes, which live until the linker is destroyed.
        let cubin = done.map(|()| unsafe { std::slice::from_raw_parts(cubin.cast::<u8>(), bytes) }.to_vec());
        // SAFETY: it is this linker's, and nothing of it is used any more.
        let _ = unsafe { functions.link_destroy(state) };
        let cubin = cubin.map_err(|error| logs.explain(error))?;
        Ok(Linked { cubin, log: Logs::text(&logs.info) })
    }
}

impl CudaModule {
    /// A kernel by its name, which may use so many bytes of dynamic shared memory.
    pub fn function(self: &Arc<CudaModule>, name: &str, shared: u32) -> Result<CudaFunction, CudaError> {
        let name = CString::new(name).map_err(|_| CudaError::Wrong("the name of a kernel has a zero byte in it"))?;
        let (functions, mut raw) = (self.device.enter()?, std::ptr::null_mut());
        // SAFETY: the module lives, and the name ends with a zero.
        unsafe { functions.module_function(&mut raw, self.raw, name.as_ptr()) }?;
        if shared > 0 {
            let bytes = c_int::try_from(shared).unwrap_or(c_int::MAX);
            // SAFETY: the function is the module's.
            unsafe { functions.function_set(raw, MAX_DYNAMIC_SHARED, bytes) }?;
        }
        Ok(CudaFunction { module: self.clone(), raw })
    }
}

impl CudaFunction {
    fn attribute(&self, which: c_int) -> Result<u32, CudaError> {
        let mut value = 0;
        // SAFETY: the function is the module's, and the number is written to.
        unsafe { self.module.device.enter()?.function_get(&mut value, which, self.raw) }?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Registers of a thread.
    pub fn registers(&self) -> Result<u32, CudaError> {
        self.attribute(REGISTERS)
    }

    /// Bytes of local memory of a thread: private arrays and spilled registers.
    pub fn local_bytes(&self) -> Result<u32, CudaError> {
        self.attribute(LOCAL_BYTES)
    }

    /// Clusters of a launch that the device runs at once.
    pub fn clusters_at_once(&self, launch: &CudaLaunch) -> Result<u32, CudaError> {
        let (mut attributes, mut count) = (launch.attributes(), 0);
        let config = LaunchConfig {
            grid: launch.grid,
            block: launch.block,
            shared: launch.shared,
            stream: std::ptr::null_mut(),
            attributes: attributes.as_mut_ptr(),
            count: attributes.len() as c_uint,
        };
        // SAFETY: the configuration lives until the call returns, and the number is written to.
        unsafe { self.module.device.enter()?.occupancy_clusters(&mut count, self.raw, &config) }?;
        Ok(u32::try_from(count).unwrap_or(0))
    }
}

impl Drop for CudaModule {
    fn drop(&mut self) {
        if let Ok(functions) = self.device.enter() {
            // SAFETY: it is this module's; its functions hold it.
            let _ = unsafe { functions.module_unload(self.raw) };
        }
    }
}
