//! As much of the CUDA driver as a launch needs, loaded when it runs.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use impasto_kernel::{BufferData, CompiledModule, Kernel, Launch, param_bytes};
use impasto_ptx::dynamic_shared;
use libloading::Library;

const ATTRIBUTE_MAJOR: c_int = 75;
const ATTRIBUTE_MINOR: c_int = 76;
const MAX_DYNAMIC_SHARED: c_int = 8;
const JIT_ERROR_LOG: c_int = 5;
const JIT_ERROR_LOG_SIZE: c_int = 6;

type Handle = *mut c_void;

macro_rules! functions {
    ($($field:ident $symbol:literal ($($arg:ty),*);)*) => {
        /// The functions of the driver that are called.
        struct Functions {
            $($field: unsafe extern "C" fn($($arg),*) -> c_int,)*
            _library: Library,
        }

        impl Functions {
            fn load() -> Result<Functions, String> {
                let names = if cfg!(windows) { ["nvcuda.dll", "nvcuda.dll"] } else { ["libcuda.so.1", "libcuda.so"] };
                // SAFETY: loading the driver runs its initialisers, which is what anybody who uses a GPU does.
                let library = unsafe { Library::new(names[0]).or_else(|_| Library::new(names[1])) };
                let library = library.map_err(|e| e.to_string())?;
                Ok(Functions {
                    $($field: {
                        // SAFETY: the driver's header declares the function so.
                        let found = unsafe { library.get::<unsafe extern "C" fn($($arg),*) -> c_int>($symbol.as_bytes()) };
                        *found.map_err(|e| format!("the driver has no {}: {e}", $symbol))?
                    },)*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    init "cuInit" (c_uint);
    version "cuDriverGetVersion" (*mut c_int);
    device "cuDeviceGet" (*mut c_int, c_int);
    name "cuDeviceGetName" (*mut c_char, c_int, c_int);
    attribute "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    retain "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    make_current "cuCtxSetCurrent" (Handle);
    synchronise "cuCtxSynchronize" ();
    load "cuModuleLoadDataEx" (*mut Handle, *const c_void, c_uint, *mut c_int, *mut *mut c_void);
    unload "cuModuleUnload" (Handle);
    function "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    set_function "cuFuncSetAttribute" (Handle, c_int, c_int);
    allocate "cuMemAlloc_v2" (*mut u64, usize);
    free "cuMemFree_v2" (u64);
    upload "cuMemcpyHtoD_v2" (u64, *const c_void, usize);
    download "cuMemcpyDtoH_v2" (*mut c_void, u64, usize);
    launch "cuLaunchKernel" (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
    error "cuGetErrorString" (c_int, *mut *const c_char);
}

pub struct Device {
    cuda: Functions,
    pub name: String,
    pub capability: (u32, u32),
    pub version: String,
}

/// Memory of the device that is given back.
struct Memory<'a>(&'a Functions, u64);

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // SAFETY: it was allocated, and everything that used it has ended.
        unsafe { (self.0.free)(self.1) };
    }
}

struct Module<'a>(&'a Functions, Handle);

impl Drop for Module<'_> {
    fn drop(&mut self) {
        // SAFETY: it was loaded, and its kernels have ended.
        unsafe { (self.0.unload)(self.1) };
    }
}

impl Functions {
    fn check(&self, call: &str, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the driver gives a text that stays.
        let said = unsafe { (self.error)(code, &mut text) } == 0 && !text.is_null();
        // SAFETY: as above, and it ends with a zero.
        let text = if said { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() } else { String::new() };
        Err(format!("{call} failed with {code}: {text}"))
    }
}

impl Device {
    /// The first device.
    pub fn open() -> Result<Device, String> {
        let cuda = Functions::load()?;
        let (mut version, mut device, mut major, mut minor) = (0, 0, 0, 0);
        let (mut name, mut context) = ([0 as c_char; 256], null_mut());
        // SAFETY: all that is written to is there, and as large as the driver is told.
        unsafe {
            cuda.check("cuInit", (cuda.init)(0))?;
            cuda.check("cuDriverGetVersion", (cuda.version)(&mut version))?;
            cuda.check("cuDeviceGet", (cuda.device)(&mut device, 0))?;
            cuda.check("cuDeviceGetName", (cuda.name)(name.as_mut_ptr(), 256, device))?;
            cuda.check("cuDeviceGetAttribute", (cuda.attribute)(&mut major, ATTRIBUTE_MAJOR, device))?;
            cuda.check("cuDeviceGetAttribute", (cuda.attribute)(&mut minor, ATTRIBUTE_MINOR, device))?;
            cuda.check("cuDevicePrimaryCtxRetain", (cuda.retain)(&mut context, device))?;
            cuda.check("cuCtxSetCurrent", (cuda.make_current)(context))?;
        }
        // SAFETY: the driver ends the name with a zero.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let version = format!("{}.{}", version / 1000, version % 1000 / 10);
        Ok(Device { cuda, name, capability: (major as u32, minor as u32), version })
    }

    fn load(&self, module: &CompiledModule) -> Result<Module<'_>, String> {
        let mut text = module.bytes.clone();
        text.push(0);
        let mut log = vec![0u8; 4096];
        let mut options = [JIT_ERROR_LOG, JIT_ERROR_LOG_SIZE];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        let mut made = null_mut();
        // SAFETY: the text ends with a zero, and the log has the length that the driver is told.
        let code =
            unsafe { (self.cuda.load)(&mut made, text.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr()) };
        self.cuda.check("cuModuleLoadDataEx", code).map_err(|e| {
            let end = log.iter().position(|&b| b == 0).unwrap_or(0);
            format!("{e}\n{}", String::from_utf8_lossy(&log[..end]))
        })?;
        Ok(Module(&self.cuda, made))
    }

    /// What the buffers hold after a launch.
    pub fn run(&self, module: &CompiledModule, kernel: &Kernel, launch: &Launch) -> Result<Vec<BufferData>, String> {
        let cuda = &self.cuda;
        let loaded = self.load(module)?;
        let entry = module.entries.iter().find(|e| e.name == kernel.name).ok_or("no such entry point")?;
        let name = CString::new(entry.name.as_str()).map_err(|e| e.to_string())?;
        let mut function = null_mut();
        // SAFETY: the module is loaded, and the name ends with a zero.
        let code = unsafe { (cuda.function)(&mut function, loaded.1, name.as_ptr()) };
        cuda.check("cuModuleGetFunction", code)?;
        let shared = dynamic_shared(entry) as u32;
        if shared > 0 {
            // SAFETY: the function is one of the module's.
            let code = unsafe { (cuda.set_function)(function, MAX_DYNAMIC_SHARED, shared as c_int) };
            cuda.check("cuFuncSetAttribute", code)?;
        }
        let bytes = |d: &BufferData| -> Vec<u8> {
            d.bits.iter().flat_map(|b| b.to_le_bytes()[..d.ty.bytes() as usize].to_vec()).collect()
        };
        let contents: Vec<Vec<u8>> = launch.buffers.iter().map(bytes).collect();
        let mut memory = Vec::new();
        for bytes in &contents {
            let mut address = 0;
            // SAFETY: the address is written to, and the copy is as long as what it copies.
            unsafe {
                cuda.check("cuMemAlloc", (cuda.allocate)(&mut address, bytes.len().max(1)))?;
                memory.push(Memory(cuda, address));
                cuda.check("cuMemcpyHtoD", (cuda.upload)(address, bytes.as_ptr().cast(), bytes.len()))?;
            }
        }
        let mut addresses: Vec<u64> = memory.iter().map(|m| m.1).collect();
        let mut lengths: Vec<u64> = contents.iter().map(|b| b.len() as u64).collect();
        let mut scalars = param_bytes(kernel, &launch.scalars).map_err(|e| e.to_string())?;
        let mut params: Vec<*mut c_void> = addresses.iter_mut().map(|a| std::ptr::from_mut(a).cast()).collect();
        if !lengths.is_empty() {
            params.push(lengths.as_mut_ptr().cast());
        }
        if !scalars.is_empty() {
            params.push(scalars.as_mut_ptr().cast());
        }
        let ([gx, gy, gz], [x, y, z]) = (launch.groups, entry.workgroup);
        // SAFETY: the parameters are those of the entry point, in its order; the executor ran the kernel on buffers of the same sizes, and would
        // have refused an access outside of them.
        unsafe {
            let code =
                (cuda.launch)(function, gx, gy, gz, x, y, z, shared, null_mut(), params.as_mut_ptr(), null_mut());
            cuda.check("cuLaunchKernel", code)?;
            cuda.check("cuCtxSynchronize", (cuda.synchronise)())?;
        }
        let mut results = Vec::new();
        for ((data, m), mut bytes) in launch.buffers.iter().zip(&memory).zip(contents) {
            // SAFETY: the copy is as long as what it fills.
            let code = unsafe { (cuda.download)(bytes.as_mut_ptr().cast(), m.1, bytes.len()) };
            cuda.check("cuMemcpyDtoH", code)?;
            let number = |c: &[u8]| c.iter().rev().fold(0u64, |a, &b| a << 8 | u64::from(b));
            let bits = bytes.chunks_exact(data.ty.bytes() as usize).map(number).collect();
            results.push(BufferData { ty: data.ty, bits });
        }
        Ok(results)
    }
}
