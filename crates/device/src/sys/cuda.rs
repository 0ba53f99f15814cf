//! The few functions of NVIDIA's driver library that a probe needs, in a child only.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use libloading::Library;

use super::library::open_library;

/// The driver's library.
pub(crate) const NAME: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

/// A call that the driver refused: the function and its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub call: &'static str,
    pub code: i32,
}

/// NVIDIA's driver library, opened.
pub(crate) struct Cuda(&'static Library);

/// An address in the memory of the current device (`CUdeviceptr`).
#[derive(Clone, Copy)]
pub(crate) struct DevicePointer(u64);

/// A kernel of the current device (`CUfunction`).
#[derive(Clone, Copy)]
pub(crate) struct CudaFunction(*mut c_void);

/// Calls a function by its name; every one of them returns a code that is 0 if all is well.
macro_rules! call {
    ($cuda:expr, $name:literal, ($($type:ty),*), $($argument:expr),*) => {{
        // SAFETY: the type is the one that the driver's interface gives to this name, for every version of it; the arguments
        // point to places that live until the call returns and are as large as the interface says.
        let code = unsafe {
            match $cuda.0.get::<unsafe extern "system" fn($($type),*) -> c_int>($name) {
                Ok(function) => function($($argument),*),
                Err(_) => NOT_FOUND,
            }
        };
        let call = name($name);
        if code == 0 { Ok(()) } else { Err(Refused { call, code }) }
    }};
}

/// What the driver itself says of a function that it lacks.
pub(crate) const NOT_FOUND: i32 = 500;

fn name(name: &'static [u8]) -> &'static str {
    std::str::from_utf8(name).unwrap_or_default().trim_end_matches('\0')
}

impl Cuda {
    pub fn open() -> Result<Cuda, String> {
        open_library(OsStr::new(NAME)).map(Cuda)
    }

    pub fn init(&self) -> Result<(), Refused> {
        call!(self, b"cuInit\0", (c_uint), 0)
    }

    /// The newest CUDA that the driver knows, as 1000 times its major version and ten times its minor one.
    pub fn version(&self) -> Result<i32, Refused> {
        let mut version = 0;
        call!(self, b"cuDriverGetVersion\0", (*mut c_int), &mut version).map(|()| version)
    }

    pub fn count(&self) -> Result<i32, Refused> {
        let mut count = 0;
        call!(self, b"cuDeviceGetCount\0", (*mut c_int), &mut count).map(|()| count)
    }

    pub fn device(&self, index: i32) -> Result<i32, Refused> {
        let mut device = 0;
        call!(self, b"cuDeviceGet\0", (*mut c_int, c_int), &mut device, index).map(|()| device)
    }

    pub fn label(&self, device: i32) -> Result<String, Refused> {
        self.text(|buffer, length| {
            call!(self, b"cuDeviceGetName\0", (*mut c_char, c_int, c_int), buffer, length, device)
        })
    }

    /// The address as text, such as `0000:3b:00.0`.
    pub fn pci(&self, device: i32) -> Result<String, Refused> {
        self.text(|buffer, length| {
            call!(self, b"cuDeviceGetPCIBusId\0", (*mut c_char, c_int, c_int), buffer, length, device)
        })
    }

    fn text(&self, ask: impl FnOnce(*mut c_char, c_int) -> Result<(), Refused>) -> Result<String, Refused> {
        let mut buffer = [0_u8; 256];
        // One byte less than there is, so that the text ends whatever the driver does.
        ask(buffer.as_mut_ptr().cast(), 255)?;
        let end = buffer.iter().position(|&byte| byte == 0).unwrap_or(buffer.len());
        Ok(String::from_utf8_lossy(&buffer[..end]).replace(|c: char| c.is_control(), "?"))
    }

    /// The second version tells parts of a card (MIG) from each other.
    pub fn uuid(&self, device: i32) -> Result<[u8; 16], Refused> {
        let mut uuid = [0_u8; 16];
        let place = uuid.as_mut_ptr().cast::<c_void>();
        let new = call!(self, b"cuDeviceGetUuid_v2\0", (*mut c_void, c_int), place, device);
        match new {
            Err(Refused { code: NOT_FOUND, .. }) => {
                call!(self, b"cuDeviceGetUuid\0", (*mut c_void, c_int), place, device)?;
            }
            other => other?,
        }
        Ok(uuid)
    }

    pub fn total_memory(&self, device: i32) -> Result<u64, Refused> {
        let mut bytes = 0_usize;
        call!(self, b"cuDeviceTotalMem_v2\0", (*mut usize, c_int), &mut bytes, device).map(|()| bytes as u64)
    }

    pub fn attribute(&self, device: i32, which: i32) -> Result<i32, Refused> {
        let mut value = 0;
        call!(self, b"cuDeviceGetAttribute\0", (*mut c_int, c_int, c_int), &mut value, which, device).map(|()| value)
    }

    /// Makes a device the one that this thread computes on.
    pub fn enter(&self, device: i32) -> Result<(), Refused> {
        let mut context = ptr::null_mut::<c_void>();
        call!(self, b"cuDevicePrimaryCtxRetain\0", (*mut *mut c_void, c_int), &mut context, device)?;
        call!(self, b"cuCtxSetCurrent\0", (*mut c_void), context)
    }

    pub fn free_memory(&self) -> Result<u64, Refused> {
        let (mut free, mut total) = (0_usize, 0_usize);
        call!(self, b"cuMemGetInfo_v2\0", (*mut usize, *mut usize), &mut free, &mut total).map(|()| free as u64)
    }

    pub fn upload(&self, numbers: &[u32]) -> Result<DevicePointer, Refused> {
        let (mut place, bytes) = (0_u64, size_of_val(numbers));
        call!(self, b"cuMemAlloc_v2\0", (*mut u64, usize), &mut place, bytes)?;
        let from = numbers.as_ptr().cast::<c_void>();
        call!(self, b"cuMemcpyHtoD_v2\0", (u64, *const c_void, usize), place, from, bytes)?;
        Ok(DevicePointer(place))
    }

    pub fn download(&self, memory: DevicePointer, numbers: &mut [u32]) -> Result<(), Refused> {
        let (to, bytes) = (numbers.as_mut_ptr().cast::<c_void>(), size_of_val(numbers));
        call!(self, b"cuMemcpyDtoH_v2\0", (*mut c_void, u64, usize), to, memory.0, bytes)
    }

    pub fn build(&self, ptx: &CStr, name: &CStr) -> Result<CudaFunction, Refused> {
        let (mut module, mut kernel) = (ptr::null_mut::<c_void>(), ptr::null_mut::<c_void>());
        let image = ptx.as_ptr().cast::<c_void>();
        call!(self, b"cuModuleLoadData\0", (*mut *mut c_void, *const c_void), &mut module, image)?;
        call!(
            self,
            b"cuModuleGetFunction\0",
            (*mut *mut c_void, *mut c_void, *const c_char),
            &mut kernel,
            module,
            name.as_ptr()
        )?;
        Ok(CudaFunction(kernel))
    }

    /// Runs a kernel whose two parameters are buffers, and waits for its end.
    pub fn run(
        &self,
        kernel: CudaFunction,
        buffers: [DevicePointer; 2],
        groups: u32,
        threads: u32,
    ) -> Result<(), Refused> {
        let mut places = buffers.map(|memory| memory.0);
        let [first, second] = &mut places;
        let mut parameters = [ptr::from_mut(first).cast::<c_void>(), ptr::from_mut(second).cast::<c_void>()];
        type Launch = unsafe extern "system" fn(
            *mut c_void,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            *mut c_void,
            *mut *mut c_void,
            *mut *mut c_void,
        ) -> c_int;
        let (stream, extra) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the type is that of the driver's interface, and `parameters` has one pointer for each parameter of the kernel.
        let code = unsafe {
            match self.0.get::<Launch>(b"cuLaunchKernel\0") {
                Ok(launch) => launch(kernel.0, groups, 1, 1, threads, 1, 1, 0, stream, parameters.as_mut_ptr(), extra),
                Err(_) => NOT_FOUND,
            }
        };
        if code != 0 {
            return Err(Refused { call: "cuLaunchKernel", code });
        }
        call!(self, b"cuCtxSynchronize\0", (),)
    }
}
