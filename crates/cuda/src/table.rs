//! The driver's functions that are used, by their names. Types are those of the driver's interface; handles are pointers that only the driver looks into.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::Library;

use crate::error::CudaError;

/// A context, stream, event, module, function, graph, node or linker of the driver.
pub(crate) type Handle = *mut c_void;

/// Makes the table, and of each entry a method that calls the function or says that the driver lacks it. An entry is the method's name, the symbol, the
/// CUDA that brought it, whether nothing can be computed without it, and the parameters.
macro_rules! functions {
    ($($field:ident = $symbol:literal, $major:literal, $minor:literal, $needed:literal, ($($name:ident: $arg:ty),*);)*) => {
        /// The functions of an open driver; those that it lacks are none.
        #[derive(Debug)]
        pub(crate) struct Functions {
            $($field: Option<unsafe extern "system" fn($($arg),*) -> c_int>,)*
        }

        impl Functions {
            /// Looks up every function.
            pub(crate) fn load(library: &Library) -> Functions {
                Functions {
                    // SAFETY: the driver's header declares the function so, in every version that has the symbol.
                    $($field: unsafe { library.get::<unsafe extern "system" fn($($arg),*) -> c_int>($symbol.as_bytes()) }.ok().map(|found| *found),)*
                }
            }

            /// A function without which nothing can be computed and that the driver lacks.
            pub(crate) fn missing(&self) -> Option<CudaError> {
                $(
                    if $needed && self.$field.is_none() {
                        return Some(CudaError::Missing { function: $symbol, since: ($major, $minor) });
                    }
                )*
                None
            }

            $(
                #[allow(clippy::too_many_arguments)]
                /// Calls the function.
                ///
                /// # Safety
                /// Arguments are what the driver's interface asks for: pointers to places that live until it returns and are as large as it says, and
                /// handles that the driver gave and nobody has destroyed.
                pub(crate) unsafe fn $field(&self, $($name: $arg),*) -> Result<(), CudaError> {
                    let Some(function) = self.$field else {
                        return Err(CudaError::Missing { function: $symbol, since: ($major, $minor) });
                    };
                    // SAFETY: the caller's promise.
                    match unsafe { function($($name),*) } {
                        0 => Ok(()),
                        code => Err(CudaError::Call { call: $symbol, code }),
                    }
                }
            )*
        }
    };
}

functions! {
    init = "cuInit", 2, 0, true, (flags: c_uint);
    driver_version = "cuDriverGetVersion", 2, 2, true, (version: *mut c_int);
    device_count = "cuDeviceGetCount", 2, 0, true, (count: *mut c_int);
    device_get = "cuDeviceGet", 2, 0, true, (device: *mut c_int, index: c_int);
    device_name = "cuDeviceGetName", 2, 0, true, (name: *mut c_char, length: c_int, device: c_int);
    device_pci = "cuDeviceGetPCIBusId", 4, 1, false, (text: *mut c_char, length: c_int, device: c_int);
    device_uuid = "cuDeviceGetUuid", 9, 2, false, (uuid: *mut c_void, device: c_int);
    device_uuid_v2 = "cuDeviceGetUuid_v2", 11, 4, false, (uuid: *mut c_void, device: c_int);
    device_memory = "cuDeviceTotalMem_v2", 3, 2, true, (bytes: *mut usize, device: c_int);
    device_attribute = "cuDeviceGetAttribute", 2, 0, true, (value: *mut c_int, attribute: c_int, device: c_int);

    context_retain = "cuDevicePrimaryCtxRetain", 7, 0, true, (context: *mut Handle, device: c_int);
    context_release = "cuDevicePrimaryCtxRelease_v2", 11, 0, false, (device: c_int);
    context_create = "cuCtxCreate_v2", 3, 2, false, (context: *mut Handle, flags: c_uint, device: c_int);
    context_destroy = "cuCtxDestroy_v2", 4, 0, false, (context: Handle);
    context_set = "cuCtxSetCurrent", 4, 0, true, (context: Handle);
    context_synchronise = "cuCtxSynchronize", 2, 0, true, ();

    memory_info = "cuMemGetInfo_v2", 3, 2, true, (free: *mut usize, total: *mut usize);
    memory_allocate = "cuMemAlloc_v2", 3, 2, true, (address: *mut u64, bytes: usize);
    memory_free = "cuMemFree_v2", 3, 2, true, (address: u64);
    host_allocate = "cuMemHostAlloc", 2, 2, true, (place: *mut Handle, bytes: usize, flags: c_uint);
    host_free = "cuMemFreeHost", 2, 0, true, (place: Handle);
    host_address = "cuMemHostGetDevicePointer_v2", 3, 2, true, (address: *mut u64, place: Handle, flags: c_uint);
    copy_in = "cuMemcpyHtoD_v2", 3, 2, true, (to: u64, from: *const c_void, bytes: usize);
    copy_out = "cuMemcpyDtoH_v2", 3, 2, true, (to: *mut c_void, from: u64, bytes: usize);
    copy_async = "cuMemcpyAsync", 4, 0, true, (to: u64, from: u64, bytes: usize, stream: Handle);

    stream_create = "cuStreamCreate", 2, 0, true, (stream: *mut Handle, flags: c_uint);
    stream_destroy = "cuStreamDestroy_v2", 4, 0, true, (stream: Handle);
    stream_synchronise = "cuStreamSynchronize", 2, 0, true, (stream: Handle);
    stream_wait = "cuStreamWaitEvent", 3, 2, false, (stream: Handle, event: Handle, flags: c_uint);
    event_create = "cuEventCreate", 2, 0, true, (event: *mut Handle, flags: c_uint);
    event_destroy = "cuEventDestroy_v2", 4, 0, true, (event: Handle);
    event_record = "cuEventRecord", 2, 0, true, (event: Handle, stream: Handle);
    event_synchronise = "cuEventSynchronize", 2, 0, true, (event: Handle);
    event_elapsed = "cuEventElapsedTime", 2, 0, true, (milliseconds: *mut f32, from: Handle, to: Handle);

    module_load = "cuModuleLoadDataEx", 2, 1, true,
        (module: *mut Handle, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void);
    module_unload = "cuModuleUnload", 2, 0, true, (module: Handle);
    module_function = "cuModuleGetFunction", 2, 0, true, (function: *mut Handle, module: Handle, name: *const c_char);
    link_create = "cuLinkCreate_v2", 6, 5, true,
        (count: c_uint, options: *mut c_int, values: *mut *mut c_void, state: *mut Handle);
    link_add = "cuLinkAddData_v2", 6, 5, true,
        (state: Handle, kind: c_int, data: *mut c_void, bytes: usize, name: *const c_char, count: c_uint,
         options: *mut c_int, values: *mut *mut c_void);
    link_complete = "cuLinkComplete", 5, 5, true, (state: Handle, cubin: *mut *mut c_void, bytes: *mut usize);
    link_destroy = "cuLinkDestroy", 5, 5, true, (state: Handle);

    function_get = "cuFuncGetAttribute", 2, 2, false, (value: *mut c_int, attribute: c_int, function: Handle);
    function_set = "cuFuncSetAttribute", 9, 0, true, (function: Handle, attribute: c_int, value: c_int);
    launch = "cuLaunchKernel", 4, 0, true,
        (function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
         stream: Handle, params: *mut *mut c_void, extra: *mut *mut c_void);
    launch_ex = "cuLaunchKernelEx", 11, 8, false,
        (config: *const LaunchConfig, function: Handle, params: *mut *mut c_void, extra: *mut *mut c_void);
    occupancy_clusters = "cuOccupancyMaxActiveClusters", 11, 8, false,
        (clusters: *mut c_int, function: Handle, config: *const LaunchConfig);

    tensor_map_tiled = "cuTensorMapEncodeTiled", 12, 0, false,
        (map: *mut c_void, element: c_int, rank: c_uint, address: u64, sizes: *const u64, strides: *const u64,
         extent: *const u32, steps: *const u32, interleave: c_int, swizzle: c_int, promotion: c_int, fill: c_int);

    graph_create = "cuGraphCreate", 10, 0, true, (graph: *mut Handle, flags: c_uint);
    graph_destroy = "cuGraphDestroy", 10, 0, true, (graph: Handle);
    graph_kernel = "cuGraphAddKernelNode", 10, 0, true,
        (node: *mut Handle, graph: Handle, after: *const Handle, count: usize, params: *const KernelNode);
    graph_copy = "cuGraphAddMemcpyNode", 10, 0, true,
        (node: *mut Handle, graph: Handle, after: *const Handle, count: usize, params: *const CopyNode, context: Handle);
    graph_attribute = "cuGraphKernelNodeSetAttribute", 11, 0, false,
        (node: Handle, attribute: c_int, value: *const AttributeValue);
    graph_edges_v2 = "cuGraphAddDependencies_v2", 12, 3, false,
        (graph: Handle, from: *const Handle, to: *const Handle, data: *const EdgeData, count: usize);
    graph_instantiate = "cuGraphInstantiateWithFlags", 11, 4, true, (exec: *mut Handle, graph: Handle, flags: u64);
    graph_upload = "cuGraphUpload", 11, 1, true, (exec: Handle, stream: Handle);
    graph_launch = "cuGraphLaunch", 10, 0, true, (exec: Handle, stream: Handle);
    graph_exec_destroy = "cuGraphExecDestroy", 10, 0, true, (exec: Handle);
}

/// `CUlaunchAttributeValue`: 64 bytes, of which each attribute uses the first ones.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AttributeValue(pub(crate) [u32; 16]);

/// `CUlaunchAttribute`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attribute {
    pub(crate) id: u32,
    pub(crate) padding: u32,
    pub(crate) value: AttributeValue,
}

/// Blocks of a cluster.
pub(crate) const ATTRIBUTE_CLUSTER: u32 = 4;
/// The kernel begins while those before it in the stream end.
pub(crate) const ATTRIBUTE_PROGRAMMATIC: u32 = 6;

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared: c_uint,
    pub(crate) stream: Handle,
    pub(crate) attributes: *mut Attribute,
    pub(crate) count: c_uint,
}

/// `CUDA_KERNEL_NODE_PARAMS_v1`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct KernelNode {
    pub(crate) function: Handle,
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared: c_uint,
    pub(crate) params: *mut *mut c_void,
    pub(crate) extra: *mut *mut c_void,
}

/// One side of a `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct CopySide {
    pub(crate) x: usize,
    pub(crate) y: usize,
    pub(crate) z: usize,
    pub(crate) lod: usize,
    pub(crate) memory: c_uint,
    pub(crate) host: *mut c_void,
    pub(crate) device: u64,
    pub(crate) array: *mut c_void,
    pub(crate) reserved: *mut c_void,
    pub(crate) pitch: usize,
    pub(crate) height: usize,
}

impl CopySide {
    /// Bytes at an address that the driver knows the memory of.
    pub(crate) fn line(address: u64, bytes: usize) -> CopySide {
        const UNIFIED: c_uint = 4;
        let none = std::ptr::null_mut();
        CopySide {
            x: 0,
            y: 0,
            z: 0,
            lod: 0,
            memory: UNIFIED,
            host: none,
            device: address,
            array: none,
            reserved: none,
            pitch: bytes,
            height: 1,
        }
    }
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct CopyNode {
    pub(crate) from: CopySide,
    pub(crate) to: CopySide,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

/// `CUgraphEdgeData`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EdgeData {
    pub(crate) from_port: u8,
    pub(crate) to_port: u8,
    pub(crate) kind: u8,
    pub(crate) reserved: [u8; 5],
}

// The sizes that the driver's header gives on systems of 64 bits.
const _: () = assert!(size_of::<Attribute>() == 72);
const _: () = assert!(size_of::<LaunchConfig>() == 56);
const _: () = assert!(size_of::<KernelNode>() == 56);
const _: () = assert!(size_of::<CopySide>() == 88 && size_of::<CopyNode>() == 200);
const _: () = assert!(size_of::<EdgeData>() == 8);
