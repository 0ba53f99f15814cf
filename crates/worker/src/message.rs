//! All that a process and its worker say to each other.

use std::path::PathBuf;

use impasto_backend::vulkan::VulkanOptions;
use impasto_backend::{BackendError, Origin, Pulse};
use impasto_device::DeviceInfo;
use impasto_graph::{Limits, Plan};
use serde::{Deserialize, Serialize};

/// Changed whenever what is said changes its meaning. Both sides are of one program; another one is refused by this and by the build.
pub(crate) const VERSION: u32 = 1;

/// What this program was built from.
pub(crate) fn build() -> String {
    format!("{} {}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH)
}

/// The device that is meant: by its UUID, at its place in the loader's order or elsewhere in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Target {
    pub name: String,
    pub index: usize,
    pub uuid: Option<[u8; 16]>,
}

impl Target {
    pub fn of(device: &DeviceInfo) -> Target {
        Target { name: device.name.clone(), index: device.index, uuid: device.uuid }
    }
}

/// How the device is to be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HowToUse {
    pub exact: bool,
    pub memory: Option<u64>,
    pub max_buffer: Option<u64>,
    pub cache: Option<PathBuf>,
    pub as_if_discrete: bool,
}

impl HowToUse {
    pub fn of(options: &VulkanOptions) -> HowToUse {
        let VulkanOptions { exact, memory, max_buffer, cache, as_if_discrete, pulse: _ } = options;
        HowToUse {
            exact: *exact,
            memory: *memory,
            max_buffer: *max_buffer,
            cache: cache.clone(),
            as_if_discrete: *as_if_discrete,
        }
    }

    pub fn options(self, pulse: &Pulse) -> VulkanOptions {
        let HowToUse { exact, memory, max_buffer, cache, as_if_discrete } = self;
        VulkanOptions { exact, memory, max_buffer, cache, as_if_discrete, pulse: pulse.clone() }
    }
}

/// Bytes that belong to a message: in the memory that both reach, or one behind the other in the message's tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Where {
    Memory(u64),
    Tail,
}

/// Where parameters come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Source {
    /// The worker finds them itself.
    Origin(Origin),
    /// The worker asks for each.
    Ask,
}

/// What the parent asks for. Each is answered by one [`Reply`], but for those that say so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Open the device; the first of all.
    Open { version: u32, build: String, target: Target, how: HowToUse, idle_milliseconds: u64 },
    /// A graph in its textual form and its plan, of which those that follow speak; `exact` is for the device computing in 32-bit floats.
    Plan { graph: String, plan: Plan, exact: bool },
    /// Pack the plan's parameters and keep them in host memory, under a number.
    Keep { id: u64, source: Source },
    /// Bring the plan's parameters to the device, under a number.
    Pack { id: u64, source: Source },
    /// Take the plan's memory, with these parameters, under a number.
    Prepare { id: u64, weights: u64, feed: Option<Source> },
    /// Run a session: where its inputs are, and where its outputs go.
    Run { id: u64, inputs: Vec<Where>, outputs: Vec<Where> },
    /// The times of a session's steps.
    Times { id: u64 },
    /// Give back what has this number.
    Unload { id: u64 },
    /// How fast products could be.
    Peak,
    /// A parameter that was asked for. Not answered.
    Param(Result<GivenParam, Failure>),
    /// Stop what is being done; it ends as interrupted. Not answered.
    Cancel,
}

/// A parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GivenParam {
    pub storage: String,
    pub shape: Vec<usize>,
    pub bytes: u64,
    pub lies: Where,
}

/// Bytes of the device that are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Taken {
    pub now: u64,
    pub peak: u64,
    /// When the device refused more.
    pub had: u64,
}

/// What the worker says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The device is open, and says this of itself.
    Opened { about: String, limits: Limits, alignment: u64, fixed_bytes: u64, has_units: bool },
    /// It is done. Bytes that it took, where it took some.
    Done { bytes: u64, taken: Taken },
    /// A run is done; its outputs are where they were to go.
    Ran { taken: Taken, streaming: Option<(u64, f64, f64)> },
    /// Seconds, eight bytes each in the tail.
    Times,
    /// Thousand million operations a second.
    Peak(f64),
    /// It cannot be done.
    Failed { why: Failure, taken: Taken },

    /// No answer: a parameter was read.
    WasRead { name: String, elements: u64 },
    /// No answer: a parameter is needed.
    NeedParam { name: String },
    /// No answer: the worker lives, and has done so many pieces of work.
    Beat { beats: u64 },
    /// No answer: something that a user may want to read.
    Log(String),
}

/// What went wrong, as it goes over the channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Failure {
    Exhausted { bytes: u64 },
    Lost { reason: String },
    Unsupported { reason: String },
    Param { name: String, problem: String },
    Interrupted,
    Other(String),
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Failure {
        match error {
            BackendError::Exhausted { bytes, .. } => Failure::Exhausted { bytes },
            BackendError::Lost { reason, .. } => Failure::Lost { reason },
            BackendError::Unsupported { reason, .. } => Failure::Unsupported { reason },
            BackendError::Param { name, problem } => Failure::Param { name, problem },
            BackendError::Interrupted { .. } => Failure::Interrupted,
            other => Failure::Other(other.to_string()),
        }
    }
}

impl Failure {
    pub fn on(self, device: &str) -> BackendError {
        let device = device.to_owned();
        match self {
            Failure::Exhausted { bytes } => BackendError::Exhausted { device, bytes },
            Failure::Lost { reason } => BackendError::Lost { device, reason },
            Failure::Unsupported { reason } => BackendError::Unsupported { device, reason },
            Failure::Param { name, problem } => BackendError::Param { name, problem },
            Failure::Interrupted => BackendError::Interrupted { device },
            Failure::Other(reason) => BackendError::Unsupported { device, reason },
        }
    }
}

/// Every message, of any content.
#[cfg(test)]
pub(crate) mod arbitrary {
    use super::*;
    use impasto_graph::{Anything, DType, Graph, Storage};
    use proptest::prelude::*;

    fn lies() -> impl Strategy<Value = Where> {
        prop_oneof![any::<u64>().prop_map(Where::Memory), Just(Where::Tail)]
    }

    fn source() -> impl Strategy<Value = Source> {
        prop_oneof![
            "\\PC*".prop_map(|text| Source::Origin(Origin::Model(text))),
            any::<u64>().prop_map(|id| Source::Origin(Origin::Kept(id))),
            Just(Source::Ask),
        ]
    }

    fn failure() -> impl Strategy<Value = Failure> {
        prop_oneof![
            any::<u64>().prop_map(|bytes| Failure::Exhausted { bytes }),
            "\\PC*".prop_map(|reason| Failure::Lost { reason }),
            "\\PC*".prop_map(|reason| Failure::Unsupported { reason }),
            ("\\PC*", "\\PC*").prop_map(|(name, problem)| Failure::Param { name, problem }),
            Just(Failure::Interrupted),
            "\\PC*".prop_map(Failure::Other),
        ]
    }

    fn taken() -> impl Strategy<Value = Taken> {
        any::<[u64; 3]>().prop_map(|[now, peak, had]| Taken { now, peak, had })
    }

    /// A graph of some size with its plan.
    pub fn planned() -> impl Strategy<Value = (Graph, Plan)> {
        (1..20usize, 1..9usize, any::<bool>()).prop_map(|(layers, width, streams)| {
            let mut graph = Graph::new();
            let mut at = graph.input("x", [3, width], DType::F32).expect("a graph");
            for i in 0..layers {
                let name = format!("layer \"{i}\"");
                let w = graph.param(&name, [width, width], Storage::Dense(DType::F16)).expect("a graph");
                let scale = 1.0 / (i + 3) as f32;
                at = graph.linear(at, w, impasto_graph::Epilogue::new().residual(at)).expect("a graph");
                at = graph.push(impasto_graph::Op::Affine { scale, shift: -scale }, &[at], None).expect("a graph");
            }
            graph.output("y", at).expect("a graph");
            let plan = if streams { Plan::streamed(&graph, &Anything) } else { Plan::new(&graph, &Anything) };
            let plan = plan.expect("everything fits");
            (graph, plan)
        })
    }

    pub fn request() -> impl Strategy<Value = Request> {
        let how = (any::<bool>(), any::<Option<u64>>(), any::<Option<u64>>(), prop::option::of("\\PC*")).prop_map(
            |(exact, memory, max_buffer, cache)| HowToUse {
                exact,
                memory,
                max_buffer,
                cache: cache.map(PathBuf::from),
                as_if_discrete: !exact,
            },
        );
        let target = ("\\PC*", any::<usize>(), any::<Option<[u8; 16]>>());
        let target = target.prop_map(|(name, index, uuid)| Target { name, index, uuid });
        let open = (any::<u32>(), "\\PC*", target, how, any::<u64>());
        let given = ("\\PC*", any::<Vec<usize>>(), any::<u64>(), lies());
        let given = given.prop_map(|(storage, shape, bytes, lies)| GivenParam { storage, shape, bytes, lies });
        let places = || prop::collection::vec(lies(), 0..5);
        prop_oneof![
            open.prop_map(|(version, build, target, how, idle_milliseconds)| Request::Open {
                version,
                build,
                target,
                how,
                idle_milliseconds
            }),
            (planned(), any::<bool>()).prop_map(|((graph, plan), exact)| Request::Plan {
                graph: graph.to_string(),
                plan,
                exact
            }),
            (any::<u64>(), source()).prop_map(|(id, source)| Request::Keep { id, source }),
            (any::<u64>(), source()).prop_map(|(id, source)| Request::Pack { id, source }),
            (any::<u64>(), any::<u64>(), prop::option::of(source())).prop_map(|(id, weights, feed)| Request::Prepare {
                id,
                weights,
                feed
            }),
            (any::<u64>(), places(), places()).prop_map(|(id, inputs, outputs)| Request::Run { id, inputs, outputs }),
            any::<u64>().prop_map(|id| Request::Times { id }),
            any::<u64>().prop_map(|id| Request::Unload { id }),
            Just(Request::Peak),
            prop_oneof![given.prop_map(Ok), failure().prop_map(Err)].prop_map(Request::Param),
            Just(Request::Cancel),
        ]
    }

    pub fn reply() -> impl Strategy<Value = Reply> {
        let limits = any::<[u64; 3]>().prop_map(|[memory, max_allocation, max_binding]| Limits {
            memory,
            max_allocation,
            max_binding,
        });
        let streaming = prop::option::of((any::<u64>(), 0.0..1e3f64, 0.0..1e3f64));
        // What is written as decimals is read back to a last digit that may differ.
        let streaming = streaming.prop_map(|s| s.map(|(bytes, a, b)| (bytes, a.floor(), b.floor())));
        prop_oneof![
            ("\\PC*", limits, any::<[u64; 2]>(), any::<bool>()).prop_map(
                |(about, limits, [alignment, fixed_bytes], has_units)| Reply::Opened {
                    about,
                    limits,
                    alignment,
                    fixed_bytes,
                    has_units
                }
            ),
            (any::<u64>(), taken()).prop_map(|(bytes, taken)| Reply::Done { bytes, taken }),
            (taken(), streaming).prop_map(|(taken, streaming)| Reply::Ran { taken, streaming }),
            Just(Reply::Times),
            any::<u32>().prop_map(|gflops| Reply::Peak(gflops.into())),
            (failure(), taken()).prop_map(|(why, taken)| Reply::Failed { why, taken }),
            ("\\PC*", any::<u64>()).prop_map(|(name, elements)| Reply::WasRead { name, elements }),
            "\\PC*".prop_map(|name| Reply::NeedParam { name }),
            any::<u64>().prop_map(|beats| Reply::Beat { beats }),
            "\\PC*".prop_map(Reply::Log),
        ]
    }

    proptest! {
        /// What a driver's process dies of, this one must not: a plan that is not of its graph is refused, whatever it says.
        #[test]
        fn a_plan_that_was_changed_is_refused_or_harmless((graph, plan) in planned(), at in any::<usize>(), to in any::<u64>()) {
            prop_assert_eq!(graph.to_string().parse::<Graph>().expect("it reads back"), graph.clone());
            prop_assert_eq!(plan.check(&graph, &Anything), Ok(()));
            let mut value = serde_json::to_value(&plan).expect("plain data");
            let mut numbers = vec![];
            collect(&mut value, &mut numbers);
            let at = at % numbers.len();
            // Near to what it was, or anything.
            let was = numbers[at].as_u64().unwrap_or(0);
            *numbers[at] = if to % 2 == 0 { (was.wrapping_add(to % 7).wrapping_sub(3)).into() } else { to.into() };
            if let Ok(changed) = serde_json::from_value::<Plan>(value) {
                // It must not panic; what it says depends on what was changed.
                let _ = changed.check(&graph, &Anything);
            }
        }
    }

    fn collect<'a>(value: &'a mut serde_json::Value, to: &mut Vec<&'a mut serde_json::Value>) {
        match value {
            serde_json::Value::Number(_) => to.push(value),
            serde_json::Value::Array(all) => all.iter_mut().for_each(|value| collect(value, to)),
            serde_json::Value::Object(all) => all.values_mut().for_each(|value| collect(value, to)),
            _ => {}
        }
    }
}
