//! Many launches and copies as one: a graph, made once and launched again and again.

use std::ffi::c_int;

use crate::device::CudaDevice;
use crate::error::CudaError;
use crate::memory::CudaRange;
use crate::module::{CudaFunction, CudaModule};
use crate::stream::CudaLaunch;
use crate::table::{ATTRIBUTE_CLUSTER, CopyNode, CopySide, EdgeData, Handle, KernelNode};

/// Launches and copies, and what each of them waits for.
#[derive(Debug)]
pub struct CudaGraph {
    device: CudaDevice,
    raw: Handle,
    nodes: Vec<Handle>,
    /// What nodes use.
    modules: Vec<std::sync::Arc<CudaModule>>,
}

/// A launch or a copy of a graph, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GraphNode(usize);

/// How a node waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeKind {
    /// It begins when the other is over.
    Whole,
    /// It begins when all blocks of the other have said so (`griddepcontrol.launch_dependents`), and waits itself for its results.
    Programmatic,
}

/// A graph that can be launched.
#[derive(Debug)]
pub struct GraphExec {
    device: CudaDevice,
    pub(crate) raw: Handle,
    _modules: Vec<std::sync::Arc<CudaModule>>,
}

// SAFETY: the driver's functions on one graph are called by one thread at a time, since it is borrowed.
unsafe impl Send for CudaGraph {}
// SAFETY: as above.
unsafe impl Send for GraphExec {}

impl CudaDevice {
    /// An empty graph.
    pub fn graph(&self) -> Result<CudaGraph, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the handle is written to.
        unsafe { self.enter()?.graph_create(&mut raw, 0) }?;
        Ok(CudaGraph { device: self.clone(), raw, nodes: vec![], modules: vec![] })
    }
}

impl CudaGraph {
    /// Adds a launch after others.
    ///
    /// # Safety
    /// As of [`CudaStream::launch`](crate::CudaStream::launch), whenever the graph is launched.
    pub unsafe fn add_kernel(
        &mut self,
        function: &CudaFunction,
        launch: &CudaLaunch,
        after: &[(GraphNode, EdgeKind)],
    ) -> Result<GraphNode, CudaError> {
        let (functions, mut node) = (self.device.enter()?, std::ptr::null_mut());
        let of_kind = |kind| after.iter().filter(move |edge| edge.1 == kind).map(|edge| self.nodes[edge.0.0]);
        let whole: Vec<Handle> = of_kind(EdgeKind::Whole).collect();
        launch.with_params(|params| {
            let params = KernelNode {
                function: function.raw,
                grid: launch.grid,
                block: launch.block,
                shared: launch.shared,
                params,
                extra: std::ptr::null_mut(),
            };
            // SAFETY: the driver copies the parameters; the module is held as long as the graph.
            unsafe { functions.graph_kernel(&mut node, self.raw, whole.as_ptr(), whole.len(), &params) }
        })?;
        for attribute in launch.attributes().iter().filter(|attribute| attribute.id == ATTRIBUTE_CLUSTER) {
            // SAFETY: the node is the graph's.
            unsafe { functions.graph_attribute(node, attribute.id as c_int, &attribute.value) }?;
        }
        let early: Vec<Handle> = of_kind(EdgeKind::Programmatic).collect();
        if !early.is_empty() {
            // From the port of a kernel that says itself when others may begin.
            let edge = EdgeData { from_port: 1, kind: 1, ..EdgeData::default() };
            let (to, edges) = (vec![node; early.len()], vec![edge; early.len()]);
            // SAFETY: all lists have the length that is said, and the nodes are the graph's.
            unsafe { functions.graph_edges_v2(self.raw, early.as_ptr(), to.as_ptr(), edges.as_ptr(), early.len()) }?;
        }
        self.modules.push(function.module.clone());
        self.nodes.push(node);
        Ok(GraphNode(self.nodes.len() - 1))
    }

    /// Adds a copy after others.
    pub fn add_copy(&mut self, from: &CudaRange, to: &CudaRange, after: &[GraphNode]) -> Result<GraphNode, CudaError> {
        from.check()?;
        to.check()?;
        let bytes = usize::try_from(from.bytes.min(to.bytes)).unwrap_or(usize::MAX);
        let (functions, mut node) = (self.device.enter()?, std::ptr::null_mut());
        let after: Vec<Handle> = after.iter().map(|node| self.nodes[node.0]).collect();
        let copy = CopyNode {
            from: CopySide::line(from.address(), bytes),
            to: CopySide::line(to.address(), bytes),
            width: bytes,
            height: 1,
            depth: 1,
        };
        // SAFETY: both ranges lie in memory that the driver gave, which was just checked; who made the graph keeps it.
        unsafe {
            functions.graph_copy(&mut node, self.raw, after.as_ptr(), after.len(), &copy, self.device.0.context)
        }?;
        self.nodes.push(node);
        Ok(GraphNode(self.nodes.len() - 1))
    }

    /// Makes it ready to be launched.
    pub fn instantiate(mut self) -> Result<GraphExec, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the graph lives, and the handle is written to.
        unsafe { self.device.enter()?.graph_instantiate(&mut raw, self.raw, 0) }?;
        Ok(GraphExec { device: self.device.clone(), raw, _modules: std::mem::take(&mut self.modules) })
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if let Ok(functions) = self.device.enter() {
            // SAFETY: it is this graph's.
            let _ = unsafe { functions.graph_destroy(self.raw) };
        }
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        if let Ok(functions) = self.device.enter() {
            // SAFETY: it is this graph's; the driver lets its launches end.
            let _ = unsafe { functions.graph_exec_destroy(self.raw) };
        }
    }
}
