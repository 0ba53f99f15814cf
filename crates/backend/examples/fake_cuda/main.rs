//! A `libcuda.so.1` that computes: kernels are interpreted, memory is the host's, nodes of a graph run in a random order that its edges allow. It is for
//! tests of the CUDA backend on machines without a GPU; what is wrong (a node that does not wait for another, an address outside of all memory, a handle
//! that was destroyed) shows as a wrong result or as an error of the driver, with a line on stderr.
//!
//! It is a card of capability 8.0 unless `FAKE_CUDA` says otherwise: words with commas between them. `memory:BYTES` is all that it has, `full:BYTES` what
//! can be had of it although it says more, `lost:N` loses the context with the Nth launch, `version:12020` is another driver, `capability:75` another
//! card, `code34` an answer of `cuInit`, `helpers-die` ends processes that only compile, with their second kernel, and leaves the
//! file that `FAKE_DIED` names.

#![allow(missing_docs, reason = "its interface is the driver's")]

mod device;
mod graph;
mod module;

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use impasto_testkit::ptx::interpreter;
use impasto_testkit::ptx::interpreter::Program;

pub const INVALID: c_int = 1;
pub const OUT_OF_MEMORY: c_int = 2;
pub const BAD_PTX: c_int = 218;
pub const NOT_FOUND: c_int = 500;
pub const ILLEGAL_ADDRESS: c_int = 700;
pub const LAUNCH_FAILED: c_int = 719;

/// What is said of what goes wrong.
pub fn complain(what: &str) {
    eprintln!("fake libcuda: {what}");
}

/// What stands after a word in `FAKE_CUDA`.
pub fn mode(word: &str) -> Option<String> {
    std::env::var("FAKE_CUDA").ok()?.split(',').find_map(|item| item.strip_prefix(word).map(str::to_owned))
}

/// An entry point, ready to be interpreted.
pub struct Kernel {
    pub program: Program,
    pub buffers: usize,
    pub scalars: usize,
    /// Bytes of shared memory that it declares itself.
    pub shared: usize,
    pub name: String,
}

/// A launch with its parameters, as the driver copies them.
#[derive(Clone)]
pub struct Launched {
    pub kernel: Arc<Kernel>,
    pub grid: [u32; 3],
    pub shared: usize,
    /// Addresses and bytes.
    pub buffers: Vec<(u64, u64)>,
    pub scalars: Vec<u8>,
}

#[derive(Default)]
pub struct State {
    /// Bytes at addresses, of the device and of the host.
    pub memory: HashMap<u64, u64>,
    pub allocated: u64,
    pub launches: u64,
    pub linked: u64,
    /// What every call answers once a kernel went wrong.
    pub lost: c_int,
    pub random: u64,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

pub fn state() -> MutexGuard<'static, Option<State>> {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    state.get_or_insert_with(|| State { random: 0x9E37_79B9_7F4A_7C15, ..State::default() });
    state
}

pub fn with<R>(act: impl FnOnce(&mut State) -> R) -> R {
    act(state().as_mut().expect("it was made"))
}

/// The code of a lost context, or what the action answers.
pub fn unless_lost(act: impl FnOnce() -> c_int) -> c_int {
    match with(|state| state.lost) {
        0 => act(),
        lost => lost,
    }
}

impl State {
    /// Whether so many bytes at an address were allocated.
    pub fn has(&self, address: u64, bytes: u64) -> bool {
        self.memory.iter().any(|(&at, &size)| at <= address && address + bytes <= at + size)
    }

    pub fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

impl Launched {
    /// Runs it now.
    pub fn run(&self) -> c_int {
        let lost = with(|state| {
            state.launches += 1;
            let at = mode("lost:").and_then(|text| text.parse::<u64>().ok());
            if at.is_some_and(|at| state.launches >= at) {
                state.lost = LAUNCH_FAILED;
            }
            if state.lost == 0 && !self.buffers.iter().all(|&(at, bytes)| state.has(at, bytes)) {
                complain(&format!("{} is given memory that nobody allocated: {:x?}", self.kernel.name, self.buffers));
                state.lost = ILLEGAL_ADDRESS;
            }
            state.lost
        });
        if lost != 0 {
            return lost;
        }
        // SAFETY: the ranges were allocated, and work is done in the order of the caller's streams.
        let read =
            |&(at, bytes): &(u64, u64)| unsafe { std::slice::from_raw_parts(at as *const u8, bytes as usize) }.to_vec();
        let launch = interpreter::RawLaunch {
            buffers: self.buffers.iter().map(read).collect(),
            scalars: self.scalars.clone(),
            shared: self.kernel.shared.max(self.shared),
            groups: self.grid,
        };
        let before = launch.buffers.clone();
        match interpreter::run_raw(&self.kernel.program, launch) {
            Ok(after) => {
                for ((&(at, bytes), after), _) in
                    self.buffers.iter().zip(&after).zip(&before).filter(|((_, after), before)| after != before)
                {
                    // SAFETY: as above.
                    unsafe { std::ptr::copy_nonoverlapping(after.as_ptr(), at as *mut u8, bytes as usize) };
                }
                0
            }
            Err(why) => {
                complain(&format!("{}: {why}", self.kernel.name));
                with(|state| state.lost = ILLEGAL_ADDRESS);
                ILLEGAL_ADDRESS
            }
        }
    }
}

/// A handle that stands for a value of ours.
pub fn handle<T>(value: T) -> *mut c_void {
    Box::into_raw(Box::new(value)).cast()
}

/// The value of a handle that we gave.
///
/// # Safety
/// It is a handle of this type that was not destroyed.
pub unsafe fn held<'a, T>(handle: *mut c_void) -> &'a mut T {
    // SAFETY: the caller's promise.
    unsafe { &mut *handle.cast() }
}
