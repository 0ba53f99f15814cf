//! Modules, kernels and their launches.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::*;

/// What our machine code is: the text after the magic number of an ELF file.
const ELF: &[u8] = b"\x7fELF";

/// The text of a module.
pub struct Module(String);

/// The bytes of each parameter that is given to an entry point.
fn parameters(text: &str, entry: &str) -> Option<(usize, usize)> {
    let head = text.split_once(&format!(".visible .entry {entry}("))?.1.split_once(')')?.0;
    let buffers = head.matches(".param .u64").count();
    let block = |name: &str| head.split_once(name)?.1.split_once(']')?.0.strip_prefix('[')?.parse().ok();
    Some((buffers, block("scalars$").unwrap_or(0)))
}

unsafe fn complain_in(log: *mut c_void, bytes: usize, text: &str) {
    let n = text.len().min(bytes.max(1) - 1);
    // SAFETY: the caller has so much room.
    unsafe {
        log.cast::<u8>().copy_from(text.as_ptr(), n);
        *log.cast::<u8>().add(n) = 0;
    }
}

unsafe fn read(image: *const c_void) -> String {
    // SAFETY: an image ends with a zero, ours too.
    let bytes = unsafe { CStr::from_ptr(image.cast::<c_char>()) }.to_bytes();
    String::from_utf8_lossy(bytes.strip_prefix(ELF).unwrap_or(bytes)).into_owned()
}

/// # Safety
/// As the driver's interface says.
#[unsafe(no_mangle)]
unsafe extern "system" fn cuModuleLoadDataEx(
    module: *mut *mut c_void,
    image: *const c_void,
    count: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller gives what the driver's interface asks for.
    let text = unsafe { read(image) };
    if !text.contains(".visible .entry ") {
        for i in 0..count as usize {
            // SAFETY: as above; the option before is the log, this one its bytes.
            unsafe {
                if *options.add(i) == 6 {
                    complain_in(*values.add(i - 1), *values.add(i) as usize, "ptxas fatal: no entry point");
                }
            }
        }
        return BAD_PTX;
    }
    // SAFETY: as above.
    unsafe { *module = handle(Module(text)) };
    0
}

/// # Safety
/// As the driver's interface says.
#[unsafe(no_mangle)]
unsafe extern "system" fn cuModuleUnload(module: *mut c_void) -> c_int {
    // SAFETY: it is a module that we gave.
    drop(unsafe { Box::from_raw(module.cast::<Module>()) });
    0
}

/// # Safety
/// As the driver's interface says.
#[unsafe(no_mangle)]
unsafe extern "system" fn cuModuleGetFunction(
    function: *mut *mut c_void,
    module: *mut c_void,
    name: *const c_char,
) -> c_int {
    // SAFETY: it is a module that we gave, and the name ends with a zero.
    let (Module(text), name) = unsafe { (held::<Module>(module), CStr::from_ptr(name).to_string_lossy()) };
    // The trial's kernel is written by hand, and not in the words that the interpreter knows.
    let program = if name == "impasto_trial" { Ok(Program::default()) } else { Program::parse(text, &name) };
    let (Ok(program), Some((buffers, scalars))) = (program, parameters(text, &name)) else { return NOT_FOUND };
    let declared = |text: &str| text.split_once("shared$[")?.1.split_once(']')?.0.parse().ok();
    let shared = declared(text).unwrap_or(0);
    let kernel = Kernel { program, buffers, scalars, shared, name: name.into_owned() };
    // Functions live as long as the driver does; there are few.
    // SAFETY: as above.
    unsafe { *function = handle(Arc::new(kernel)) };
    0
}

#[unsafe(no_mangle)]
extern "system" fn cuFuncSetAttribute(_function: *mut c_void, _attribute: c_int, _value: c_int) -> c_int {
    0
}

/// # Safety
/// As the driver's interface says.
#[unsafe(no_mangle)]
unsafe extern "system" fn cuFuncGetAttribute(value: *mut c_int, _attribute: c_int, _function: *mut c_void) -> c_int {
    // SAFETY: the caller has a place for it.
    unsafe { *value = 0 };
    0
}

/// The launch of a function with parameters.
pub unsafe fn launched(function: *mut c_void, grid: [u32; 3], shared: u32, params: *mut *mut c_void) -> Launched {
    // SAFETY: it is a function that we gave, with a pointer for each of its parameters.
    unsafe {
        let kernel = held::<Arc<Kernel>>(function).clone();
        let n = kernel.buffers;
        let at = |i: usize| *params.add(i);
        let trial = kernel.name == "impasto_trial";
        let length = |i: usize| if trial { 4 * 4096 } else { at(n).cast::<u64>().add(i).read_unaligned() };
        let buffers = (0..n).map(|i| (at(i).cast::<u64>().read_unaligned(), length(i))).collect();
        let scalars = match kernel.scalars {
            0 => vec![],
            bytes => std::slice::from_raw_parts(at(n + 1).cast::<u8>(), bytes).to_vec(),
        };
        Launched { kernel, grid, shared: shared as usize, buffers, scalars }
    }
}

/// # Safety
/// As the driver's interface says.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
unsafe extern "system" fn cuLaunchKernel(
    function: *mut c_void,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    _bx: c_uint,
    _by: c_uint,
    _bz: c_uint,
    shared: c_uint,
    _stream: *mut c_void,
    params: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller gives what the driver's interface asks for.
    let launch = unsafe { launched(function, [gx, gy, gz], shared, params) };
    if launch.kernel.name == "impasto_trial" {
        // SAFETY: the trial has two buffers of so many numbers.
        let (from, to) = (launch.buffers[0].0 as *const u32, launch.buffers[1].0 as *mut u32);
        for i in 0..4096 {
            // SAFETY: as above.
            unsafe { *to.add(i) = (*from.add(i)).wrapping_mul(3).wrapping_add(i as u32) };
        }
        return 0;
    }
    launch.run()
}

/// A linker, and what it has made.
#[derive(Default)]
struct Linker(Vec<u8>);

/// # Safety
/// As the driver's interface says.
#[unsafe(no_mangle)]
unsafe extern "system" fn cuLinkCreate_v2(
    _count: c_uint,
    _options: *mut c_int,
    _values: *mut *mut c_void,
    state: *mut *mut c_void,
) -> c_int {
    unless_lost(|| {
        // SAFETY: the caller has a place for it.
        unsafe { *state = handle(Linker::default()) };
        0
    })
}

/// # Safety
/// As the driver's interface says.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
unsafe extern "system" fn cuLinkAddData_v2(
    state: *mut c_void,
    _kind: c_int,
    data: *mut c_void,
    bytes: usize,
    _name: *const c_char,
    _count: c_uint,
    _options: *mut c_int,
    _values: *mut *mut c_void,
) -> c_int {
    let linked = with(|state| {
        state.linked += 1;
        state.linked
    });
    // Only a process that runs nothing compiles so much before it launches anything.
    if mode("helpers-die").is_some() && linked > 1 && with(|state| state.memory.is_empty()) {
        if let Some(path) = std::env::var_os("FAKE_DIED") {
            let _ = std::fs::write(path, "");
        }
        std::process::abort();
    }
    // SAFETY: it is a linker that we gave, and there are so many bytes.
    let (linker, text) = unsafe { (held::<Linker>(state), std::slice::from_raw_parts(data.cast::<u8>(), bytes)) };
    linker.0 = [ELF, text].concat();
    if text.starts_with(b".version") || text.starts_with(b"\n.version") { 0 } else { BAD_PTX }
}

/// # Safety
/// As the driver's interface says.
#[unsafe(no_mangle)]
unsafe extern "system" fn cuLinkComplete(state: *mut c_void, cubin: *mut *mut c_void, bytes: *mut usize) -> c_int {
    // SAFETY: it is a linker that we gave, and the caller has places for both.
    unsafe {
        let linker = held::<Linker>(state);
        *cubin = linker.0.as_mut_ptr().cast();
        *bytes = linker.0.len();
    }
    0
}

/// # Safety
/// As the driver's interface says.
#[unsafe(no_mangle)]
unsafe extern "system" fn cuLinkDestroy(state: *mut c_void) -> c_int {
    // SAFETY: it is a linker that we gave.
    drop(unsafe { Box::from_raw(state.cast::<Linker>()) });
    0
}
