//! Graphs. Their nodes run in a random order that the edges allow, so that an edge that is missing shows.

use std::ffi::{c_int, c_uint, c_void};

use super::device::copy;
use super::module::launched;
use super::*;

#[derive(Clone)]
enum Work {
    Kernel(Launched),
    Copy { to: u64, from: u64, bytes: usize },
}

#[derive(Clone)]
struct Node {
    work: Work,
    after: Vec<usize>,
}

#[derive(Clone, Default)]
struct Graph(Vec<Node>);

#[repr(C)]
struct KernelNode {
    function: *mut c_void,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    params: *mut *mut c_void,
}

impl Graph {
    unsafe fn add(&mut self, node: *mut *mut c_void, work: Work, after: *const *mut c_void, count: usize) -> c_int {
        // SAFETY: the caller gives so many nodes.
        let after: Vec<usize> = (0..count).map(|i| unsafe { *after.add(i) } as usize - 1).collect();
        if after.iter().any(|&other| other >= self.0.len()) {
            return INVALID;
        }
        self.0.push(Node { work, after });
        // SAFETY: the caller has a place for it. A node is its number, from 1.
        unsafe { *node = self.0.len() as *mut c_void };
        0
    }

    fn run(&self) -> c_int {
        let mut done = vec![false; self.0.len()];
        for _ in 0..self.0.len() {
            let ready: Vec<usize> =
                (0..self.0.len()).filter(|&i| !done[i] && self.0[i].after.iter().all(|&other| done[other])).collect();
            let at = ready[with(State::next_random) as usize % ready.len()];
            done[at] = true;
            let code = match &self.0[at].work {
                Work::Kernel(launch) => launch.run(),
                // SAFETY: both sides are looked up.
                Work::Copy { to, from, bytes } => unsafe { copy(*to, *from, *bytes, [true, true]) },
            };
            if code != 0 {
                return code;
            }
        }
        0
    }
}

/// # Safety
/// As the driver's interface says.
#[unsafe(no_mangle)]
unsafe extern "system" fn cuGraphCreate(graph: *mut *mut c_void, _flags: c_uint) -> c_int {
    // SAFETY: the caller has a place for it.
    unsafe { *graph = handle(Graph::default()) };
    0
}

/// # Safety
/// As the driver's interface says.
#[unsafe(no_mangle)]
unsafe extern "system" fn cuGraphDestroy(graph: *mut c_void) -> c_int {
    // SAFETY: it is a graph that we gave.
    drop(unsafe { Box::from_raw(graph.cast::<Graph>()) });
    0
}

/// # Safety
/// As the driver's interface says.
#[unsafe(no_mangle)]
unsafe extern "system" fn cuGraphAddKernelNode(
    node: *mut *mut c_void,
    graph: *mut c_void,
    after: *const *mut c_void,
    count: usize,
    params: *const c_void,
) -> c_int {
    // SAFETY: the caller gives what the driver's interface asks for.
    unsafe {
        let given = &*params.cast::<KernelNode>();
        let launch = launched(given.function, given.grid, given.shared, given.params);
        if given.block != launch.kernel.program.size {
            complain("a block has other threads than the kernel says");
            return INVALID;
        }
        held::<Graph>(graph).add(node, Work::Kernel(launch), after, count)
    }
}

/// # Safety
/// As the driver's interface says.
#[unsafe(no_mangle)]
unsafe extern "system" fn cuGraphAddMemcpyNode(
    node: *mut *mut c_void,
    graph: *mut c_void,
    after: *const *mut c_void,
    count: usize,
    params: *const c_void,
    _context: *mut c_void,
) -> c_int {
    // The words of a `CUDA_MEMCPY3D`: addresses of both sides, and the bytes of its one line.
    // SAFETY: the caller gives a whole one.
    unsafe {
        let word = |at: usize| *params.cast::<u64>().add(at);
        let (from, to, bytes) = (word(6), word(17), word(22) as usize);
        if [word(4) as u32, word(15) as u32] != [4, 4] || [word(23), word(24)] != [1, 1] {
            complain("a copy of a graph is no line between addresses");
            return INVALID;
        }
        held::<Graph>(graph).add(node, Work::Copy { to, from, bytes }, after, count)
    }
}

/// # Safety
/// As the driver's interface says.
#[unsafe(no_mangle)]
unsafe extern "system" fn cuGraphInstantiateWithFlags(
    exec: *mut *mut c_void,
    graph: *mut c_void,
    _flags: u64,
) -> c_int {
    // SAFETY: it is a graph that we gave, and the caller has a place for the other.
    unsafe { *exec = handle(held::<Graph>(graph).clone()) };
    0
}

#[unsafe(no_mangle)]
extern "system" fn cuGraphUpload(_exec: *mut c_void, _stream: *mut c_void) -> c_int {
    unless_lost(|| 0)
}

/// # Safety
/// As the driver's interface says.
#[unsafe(no_mangle)]
unsafe extern "system" fn cuGraphLaunch(exec: *mut c_void, _stream: *mut c_void) -> c_int {
    // SAFETY: it is a graph that we gave.
    unless_lost(|| unsafe { held::<Graph>(exec) }.run())
}

/// # Safety
/// As the driver's interface says.
#[unsafe(no_mangle)]
unsafe extern "system" fn cuGraphExecDestroy(exec: *mut c_void) -> c_int {
    // SAFETY: it is a graph that we gave.
    drop(unsafe { Box::from_raw(exec.cast::<Graph>()) });
    0
}
