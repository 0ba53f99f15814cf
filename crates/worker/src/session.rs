//! A plan that is ready to run in another process.

use std::time::Instant;

use impasto_backend::{
    BackendError, Session, SharedSource, Signature, StepTime, Streaming, WeightSource, Weights, io, step_times,
};
use impasto_graph::{Graph, HostTensor, Plan, Stream, TensorType};

use crate::memory::{self, LARGE};
use crate::message::{Payload, Reply, Request};
use crate::remote::{Question, RemoteObject};

/// The alignment of tensors in shared memory.
const ALIGNMENT: u64 = 64;

pub(crate) struct RemoteSession {
    /// Given back before the weights, which the session uses.
    held: RemoteObject,
    _weights: Weights,
    /// Where weights come from that are streamed.
    feed: Option<SharedSource>,
    signature: Signature,
    lies: Lies,
    times: Vec<StepTime>,
    allocated: u64,
    host: u64,
    flops: f64,
    streamed: u64,
    last: Option<Streaming>,
    ran: bool,
    /// Room for a tensor's bytes.
    bytes: Vec<u8>,
}

/// Where tensors lie while they are on their way.
#[derive(Default)]
struct Lies {
    inputs: Vec<Payload>,
    outputs: Vec<Payload>,
    end: u64,
}

impl Lies {
    fn new(signature: &Signature, has_memory: bool) -> Lies {
        let mut end = 0u64;
        let mut place = |(_, ty): &(String, TensorType)| match has_memory && ty.bytes() > LARGE {
            true => {
                let at = end;
                end += ty.bytes().next_multiple_of(ALIGNMENT);
                Payload::Memory(at)
            }
            false => Payload::Tail,
        };
        let inputs = signature.inputs.iter().map(&mut place).collect();
        let outputs = signature.outputs.iter().map(&mut place).collect();
        Lies { inputs, outputs, end }
    }
}

impl RemoteSession {
    pub fn new(
        held: RemoteObject,
        graph: &Graph,
        plan: &Plan,
        weights: Weights,
        feed: Option<SharedSource>,
        allocated: u64,
    ) -> RemoteSession {
        let signature = Signature::of(graph);
        let has_memory = held.inner.state().memory().is_some();
        RemoteSession {
            lies: Lies::new(&signature, has_memory),
            held,
            _weights: weights,
            feed,
            signature,
            times: step_times(graph, plan),
            allocated,
            host: plan.host_bytes(),
            flops: graph.flops() as f64,
            streamed: plan.stream().map_or(0, Stream::slot_bytes),
            last: None,
            ran: false,
            bytes: vec![],
        }
    }

    fn question(&self, request: Request, tail: Vec<u8>) -> Question<'_> {
        Question {
            request,
            tail,
            plan: None,
            source: self.feed.as_deref().map(|source| source as &dyn WeightSource),
            patience: self.held.inner.run_patience(self.flops, self.streamed, !self.ran),
            planned: 0,
            room_at: self.lies.end,
            expects: None,
        }
    }
}

impl Session for RemoteSession {
    fn inputs(&self) -> &[(String, TensorType)] {
        &self.signature.inputs
    }

    fn outputs(&self) -> &[(String, TensorType)] {
        &self.signature.outputs
    }

    fn run(&mut self, inputs: &[(&str, &HostTensor)], outputs: &mut [HostTensor]) -> Result<(), BackendError> {
        let inner = self.held.inner.clone();
        io::check_room(&self.signature.outputs, outputs)?;
        // Before anything is computed, so that what does not fit is told at once.
        io::outputs(&self.signature.outputs, outputs, |_, _| Ok(()))?;
        // A run may be over before the worker would hear of it.
        if inner.must_stop() {
            return Err(BackendError::Interrupted { device: inner.name().into() });
        }
        let mut state = inner.state();
        let mut tail = vec![];
        let no_memory = |e| inner.lost(format!("the memory that its worker process reaches cannot be used: {e}"));
        io::inputs(&self.signature.inputs, inputs, |i, tensor| match (self.lies.inputs[i], state.memory()) {
            (Payload::Memory(at), Some(file)) => {
                self.bytes.clear();
                tensor.data().append_to(&mut self.bytes);
                memory::write(file, at, &self.bytes).map_err(no_memory)
            }
            _ => {
                tensor.data().append_to(&mut tail);
                Ok(())
            }
        })?;
        let begun = Instant::now();
        let Lies { inputs, outputs: to, .. } = &self.lies;
        let request = Request::Run { id: self.held.id, inputs: inputs.clone(), outputs: to.clone() };
        let (reply, tail) = self.held.ask(&mut state, self.question(request, tail))?;
        let Reply::Ran { streaming, .. } = reply else { return Err(inner.garbled()) };
        // How fast the device is shows when nothing is left to compile.
        inner.showed(if self.ran { self.flops } else { 0.0 }, begun.elapsed().as_secs_f64());
        self.ran = true;
        self.last = streaming.map(|(bytes, copying, waiting)| Streaming { bytes, copying, waiting });
        let mut rest = &tail[..];
        io::outputs(&self.signature.outputs, outputs, |i, out| {
            let bytes = out.ty().bytes() as usize;
            match (self.lies.outputs[i], state.memory()) {
                (Payload::Memory(at), Some(file)) => {
                    self.bytes.resize(bytes, 0);
                    memory::read(file, at, &mut self.bytes).map_err(no_memory)?;
                    out.data_mut().fill_from(&self.bytes);
                }
                _ => {
                    let (own, others) = rest.split_at_checked(bytes).ok_or_else(|| inner.garbled())?;
                    out.data_mut().fill_from(own);
                    rest = others;
                }
            }
            Ok(())
        })
    }

    fn streaming(&self) -> Option<Streaming> {
        self.last
    }

    fn allocated_bytes(&self) -> u64 {
        self.allocated
    }

    fn host_bytes(&self) -> u64 {
        self.host
    }

    fn profile(&self) -> Vec<StepTime> {
        let question = self.question(Request::Times { id: self.held.id }, vec![]);
        let mut times = self.times.clone();
        if let Ok((Reply::Times, tail)) = self.held.ask(&mut self.held.inner.state(), question) {
            let seconds = tail.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
            times.iter_mut().zip(seconds).for_each(|(time, seconds)| time.seconds = seconds);
        }
        times
    }
}
