//! Devices, contexts, memory, streams and events.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::time::Instant;

use super::*;

const MEMORY: u64 = 8 << 30;

fn total() -> u64 {
    mode("memory:").and_then(|text| text.parse().ok()).unwrap_or(MEMORY)
}

fn number(word: &str, otherwise: c_int) -> c_int {
    mode(word).and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[unsafe(no_mangle)]
extern "system" fn cuInit(_flags: c_uint) -> c_int {
    number("code", 0)
}

macro_rules! answers {
    ($($name:ident($($arg:ident: $ty:ty),*) $body:block)*) => {
        $(
            /// # Safety
            /// As the driver's interface says.
            #[unsafe(no_mangle)]
            #[allow(unused_unsafe, reason = "some of them touch no pointer")]
            unsafe extern "system" fn $name($($arg: $ty),*) -> c_int {
                // SAFETY: the caller gives what the driver's interface asks for.
                unsafe { $body }
            }
        )*
    };
}

answers! {
    cuDriverGetVersion(version: *mut c_int) { *version = number("version:", 13000); 0 }
    cuDeviceGetCount(count: *mut c_int) { *count = if mode("none").is_some() { 0 } else { 1 }; 0 }
    cuDeviceGet(device: *mut c_int, index: c_int) { *device = index; if index == 0 { 0 } else { 101 } }
    cuDeviceGetName(name: *mut c_char, length: c_int, _device: c_int) { text(name, length, "Interpreted GPU"); 0 }
    cuDeviceGetPCIBusId(name: *mut c_char, length: c_int, _device: c_int) { text(name, length, "0000:3b:00.0"); 0 }
    cuDeviceGetUuid_v2(uuid: *mut u8, _device: c_int) { uuid.copy_from(b"interpreted--gpu".as_ptr(), 16); 0 }
    cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) { *bytes = total() as usize; 0 }
    cuDeviceGetAttribute(value: *mut c_int, which: c_int, _device: c_int) {
        let capability = number("capability:", 80);
        *value = match which {
            10 => 32,
            13 => 1_980_000,
            16 => 132,
            38 => 60 << 20,
            75 => capability / 10,
            76 => capability % 10,
            97 => 227 << 10,
            _ => 0,
        };
        0
    }
    cuDevicePrimaryCtxRetain(context: *mut *mut c_void, _device: c_int) { *context = 16 as *mut c_void; 0 }
    cuDevicePrimaryCtxRelease_v2(_device: c_int) { 0 }
    cuCtxSetCurrent(context: *mut c_void) { if context.is_null() { INVALID } else { 0 } }
    cuCtxSynchronize() { unless_lost(|| 0) }

    cuMemGetInfo_v2(free: *mut usize, all: *mut usize) {
        *all = total() as usize;
        *free = *all - with(|state| state.allocated) as usize;
        0
    }
    cuMemAlloc_v2(address: *mut u64, bytes: usize) {
        let most = mode("full:").and_then(|text| text.parse().ok()).unwrap_or(total());
        unless_lost(|| match with(|state| state.allocated + bytes as u64 > most) {
            true => OUT_OF_MEMORY,
            false => {
                *address = take(bytes) as u64;
                with(|state| state.allocated += bytes as u64);
                0
            }
        })
    }
    cuMemFree_v2(address: u64) {
        match with(|state| state.memory.get(&address).copied()) {
            Some(bytes) => {
                with(|state| state.allocated -= bytes);
                give_back(address)
            }
            None => INVALID,
        }
    }
    cuMemHostAlloc(place: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        unless_lost(|| {
            *place = take(bytes).cast();
            0
        })
    }
    cuMemFreeHost(place: *mut c_void) { give_back(place as u64) }
    cuMemHostGetDevicePointer_v2(address: *mut u64, place: *mut c_void, _flags: c_uint) { *address = place as u64; 0 }
    cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) { copy(to, from as u64, bytes, [true, false]) }
    cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) { copy(to as u64, from, bytes, [false, true]) }
    cuMemcpyAsync(to: u64, from: u64, bytes: usize, _stream: *mut c_void) { copy(to, from, bytes, [true, true]) }

    cuStreamCreate(stream: *mut *mut c_void, _flags: c_uint) { *stream = handle(0_u64); 0 }
    cuStreamDestroy_v2(stream: *mut c_void) { drop(Box::from_raw(stream.cast::<u64>())); 0 }
    cuStreamSynchronize(_stream: *mut c_void) { unless_lost(|| 0) }
    cuStreamWaitEvent(_stream: *mut c_void, _event: *mut c_void, _flags: c_uint) { 0 }
    cuEventCreate(event: *mut *mut c_void, _flags: c_uint) { *event = handle(None::<Instant>); 0 }
    cuEventDestroy_v2(event: *mut c_void) { drop(Box::from_raw(event.cast::<Option<Instant>>())); 0 }
    cuEventRecord(event: *mut c_void, _stream: *mut c_void) { *held::<Option<Instant>>(event) = Some(Instant::now()); 0 }
    cuEventSynchronize(_event: *mut c_void) { unless_lost(|| 0) }
    cuEventElapsedTime(milliseconds: *mut f32, from: *mut c_void, to: *mut c_void) {
        match (*held::<Option<Instant>>(from), *held::<Option<Instant>>(to)) {
            (Some(from), Some(to)) => {
                *milliseconds = to.duration_since(from).as_secs_f32() * 1e3;
                0
            }
            _ => 400,
        }
    }
}

unsafe fn text(to: *mut c_char, length: c_int, text: &str) {
    let n = text.len().min(length.max(1) as usize - 1);
    // SAFETY: the caller has so much room.
    unsafe {
        to.cast::<u8>().copy_from(text.as_ptr(), n);
        *to.add(n) = 0;
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.max(1), 256).expect("a size")
}

fn take(bytes: usize) -> *mut u8 {
    // SAFETY: the size is not 0.
    let place = unsafe { alloc_zeroed(layout(bytes)) };
    // Memory of a device is full of what was there before.
    // SAFETY: it was just allocated.
    unsafe { place.write_bytes(0xA5, bytes.min(1 << 20)) };
    with(|state| state.memory.insert(place as u64, bytes as u64));
    place
}

fn give_back(address: u64) -> c_int {
    match with(|state| state.memory.remove(&address)) {
        Some(bytes) => {
            // SAFETY: it was allocated with this layout, and nobody has it any more.
            unsafe { dealloc(address as *mut u8, layout(bytes as usize)) };
            0
        }
        None => {
            complain("memory is freed that nobody has");
            INVALID
        }
    }
}

/// Copies bytes; those sides that are ours must have been allocated.
pub unsafe fn copy(to: u64, from: u64, bytes: usize, ours: [bool; 2]) -> c_int {
    unless_lost(|| {
        let has = |at: u64| with(|state| state.has(at, bytes as u64));
        if ours[0] && !has(to) || ours[1] && !has(from) {
            complain(&format!("a copy of {bytes} bytes from {from:x} to {to:x} is outside of all memory"));
            return INVALID;
        }
        // SAFETY: our sides were just looked up, the other is the caller's.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
        0
    })
}
