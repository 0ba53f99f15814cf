//! The protocol between a process and its worker.

use impasto_backend::{BackendError, DeviceOptions, FileError, Origin, ParamError, Profile};
use impasto_device::DeviceInfo;
use impasto_graph::{Limits, Plan};
use serde::{Deserialize, Serialize};

/// The version of the protocol. Both sides are of one program; another one is refused by this and by the build.
pub(crate) const VERSION: u32 = 4;

/// The build of this program.
pub(crate) fn build() -> String {
    format!("{} {}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH)
}

/// Bytes that belong to a message: in shared memory, or one after the other in the message's tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Payload {
    Memory(u64),
    Tail,
}

/// The source of parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ParamSource {
    /// The worker finds them itself.
    Origin(Origin),
    /// The worker asks for each.
    Ask,
}

/// A request of the parent. Each is answered by one [`Reply`], but for those that say so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Open the device; the first of all.
    Open { version: u32, build: String, device: Box<DeviceInfo>, options: DeviceOptions, idle_milliseconds: u64 },
    /// A graph in its textual form and its plan, of which those that follow speak; `exact` is for the device computing in 32-bit floats.
    Plan { graph: String, plan: Plan, exact: bool },
    /// Pack the plan's parameters in host memory, under an id.
    Keep { id: u64, source: ParamSource },
    /// Pack the plan's parameters on the device, or its adapters, under an id.
    Pack { id: u64, source: ParamSource, adapters: bool },
    /// Prepare a session with these parameters and adapters, under an id.
    Prepare { id: u64, weights: u64, adapters: Option<u64>, feed: Option<ParamSource> },
    /// Run a session: where its inputs are, and where its outputs go.
    Run { id: u64, inputs: Vec<Payload>, outputs: Vec<Payload> },
    /// The times of a session's steps.
    Times { id: u64 },
    /// Free the object with this id.
    Unload { id: u64 },
    /// Measure the peak rate of products.
    Peak,
    /// A parameter that was asked for. Not answered.
    Param(Result<GivenParam, Failure>),
    /// Stop what is being done; it ends as interrupted. Not answered.
    Cancel,
}

/// A parameter, or a part of its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GivenParam {
    pub storage: String,
    pub shape: Vec<usize>,
    /// All that it has, also where a part is given.
    pub bytes: u64,
    pub lies: Payload,
    /// The bits of its row scales, where none of its bytes are asked for.
    pub row_scales: Option<Vec<u32>>,
}

/// Device memory that is allocated, and kernels that were compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryUse {
    pub now: u64,
    pub peak: u64,
    /// When the device refused more.
    pub had: u64,
    /// Kernels compiled.
    pub compiled: u64,
}

/// The profile of an open device, compared with the one that was planned for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OpenedAs {
    pub about: String,
    pub limits: Limits,
    pub alignment: u64,
    pub fixed_bytes: u64,
}

impl OpenedAs {
    pub fn of(profile: &dyn Profile) -> OpenedAs {
        OpenedAs {
            about: profile.about(),
            limits: profile.limits(),
            alignment: profile.alignment(),
            fixed_bytes: profile.fixed_bytes(),
        }
    }
}

/// A message of the worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The device is open, and says this of itself.
    Opened(OpenedAs),
    /// It is done. Bytes that it took, where it took some.
    Done { bytes: u64, memory_use: MemoryUse },
    /// A run is done; its outputs are where they were to go.
    Ran { memory_use: MemoryUse, streaming: Option<(u64, f64, f64)> },
    /// Seconds, eight bytes each in the tail.
    Times,
    /// Thousand million operations a second.
    Peak(f64),
    /// It cannot be done.
    Failed { why: Failure, memory_use: MemoryUse },

    /// No answer: some elements of a parameter were read.
    WasRead { name: String, elements: u64 },
    /// No answer: a parameter's description is needed, and of its bytes so many from an offset on.
    NeedParam { name: String, offset: u64, bytes: u64 },
    /// No answer: a heartbeat with the pieces of work done so far, and the kernels that were compiled and that were to be.
    Beat { beats: u64, compiled: u64, wanted: u64 },
    /// No answer: a line of the log.
    Log(String),
}

/// An error as it goes over the channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Failure {
    Exhausted { bytes: u64 },
    Lost { reason: String },
    Unsupported { reason: String },
    Param { name: String, problem: String },
    File(FileError),
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
            BackendError::File(error) => Failure::File(error),
            BackendError::Interrupted { .. } => Failure::Interrupted,
            other => Failure::Other(other.to_string()),
        }
    }
}

impl From<ParamError> for Failure {
    fn from(error: ParamError) -> Failure {
        BackendError::from(error).into()
    }
}

impl From<Failure> for ParamError {
    fn from(failure: Failure) -> ParamError {
        match failure {
            Failure::Param { name, problem } => ParamError::Wrong { name, problem },
            Failure::File(error) => ParamError::File(error),
            Failure::Interrupted => ParamError::Interrupted { reader: "host".into() },
            Failure::Lost { reason } => ParamError::Gone { reason },
            other => ParamError::Gone { reason: other.on("host").to_string() },
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
            Failure::File(error) => BackendError::File(error),
            Failure::Interrupted => BackendError::Interrupted { device },
            Failure::Other(reason) => BackendError::Unsupported { device, reason },
        }
    }
}

/// Every message, of any content.
#[cfg(test)]
pub(crate) mod arbitrary {
    use super::*;
    use std::path::PathBuf;

    use impasto_backend::Precision;
    use impasto_device::{Api, DeviceKind};
    use impasto_graph::{Anything, DType, Graph, Storage};
    use impasto_weights::{
        BranchOrigin, BranchedLayer, FileFault, FileOrigin, FileStamp, LoraOrigin, LoraTarget, ParamLocation,
        TensorView,
    };
    use proptest::prelude::*;

    fn lies() -> impl Strategy<Value = Payload> {
        prop_oneof![any::<u64>().prop_map(Payload::Memory), Just(Payload::Tail)]
    }

    fn file_origin() -> impl Strategy<Value = FileOrigin> {
        let numbers = (any::<Option<(u64, u64)>>(), any::<u64>(), any::<Option<u64>>(), any::<Option<i64>>());
        let stamp =
            ("\\PC*", numbers, any::<Option<u64>>()).prop_map(|(path, (inode, bytes, modified, changed), links)| {
                FileStamp { path: path.into(), inode, bytes, modified, changed: changed.map(i128::from), links }
            });
        let take = prop_oneof![
            Just(TensorView::Whole),
            any::<(usize, usize)>().prop_map(|(part, parts)| TensorView::Rows(part, parts)),
            any::<(usize, usize)>().prop_map(|(first, of)| TensorView::RowsFrom(first, of)),
            any::<usize>().prop_map(TensorView::LastTap),
            Just(TensorView::Transposed),
        ];
        let location = ("\\PC*", take, prop::collection::vec(any::<usize>(), 0..4))
            .prop_map(|(tensor, take, shape)| ParamLocation::new(tensor, take, shape));
        let params = prop::collection::btree_map("\\PC*", location, 0..4);
        let target = ("\\PC*", any::<bool>(), any::<(usize, usize)>()).prop_map(|(module, bias, part)| LoraTarget {
            module,
            bias,
            part,
        });
        let targets = prop::collection::btree_map("\\PC*", prop::collection::vec(target, 0..2), 0..3);
        let lora = ("\\PC*", prop::collection::vec(stamp.clone(), 0..2), -4.0f32..4.0, targets)
            .prop_map(|(path, files, strength, targets)| LoraOrigin { path: path.into(), files, strength, targets });
        (prop::collection::vec(stamp, 0..3), params, prop::collection::vec(lora, 0..2))
            .prop_map(|(files, params, loras)| FileOrigin { files, params, loras })
    }

    /// Branches beside the layers that are these parameters.
    fn branches(files: FileOrigin) -> BranchOrigin {
        let layer = |(name, location): (String, ParamLocation)| {
            let ParamLocation { shape, .. } = location;
            (name, BranchedLayer { rank: shape.len(), shape })
        };
        BranchOrigin { loras: files.loras, layers: files.params.into_iter().map(layer).collect() }
    }

    fn source() -> impl Strategy<Value = ParamSource> {
        prop_oneof![
            file_origin().prop_map(|files| ParamSource::Origin(Origin::Files(files))),
            file_origin().prop_map(|files| ParamSource::Origin(Origin::Branches(branches(files)))),
            any::<u64>().prop_map(|id| ParamSource::Origin(Origin::Packed(id))),
            Just(ParamSource::Ask),
        ]
    }

    fn fault() -> impl Strategy<Value = FileFault> {
        prop_oneof![
            Just(FileFault::Truncated),
            Just(FileFault::Overwritten),
            Just(FileFault::Replaced),
            Just(FileFault::Missing),
            "\\PC*".prop_map(FileFault::Unreadable),
        ]
    }

    fn failure() -> impl Strategy<Value = Failure> {
        prop_oneof![
            any::<u64>().prop_map(|bytes| Failure::Exhausted { bytes }),
            "\\PC*".prop_map(|reason| Failure::Lost { reason }),
            "\\PC*".prop_map(|reason| Failure::Unsupported { reason }),
            ("\\PC*", "\\PC*").prop_map(|(name, problem)| Failure::Param { name, problem }),
            ("\\PC*", fault()).prop_map(|(path, fault)| Failure::File(FileError { path: path.into(), fault })),
            Just(Failure::Interrupted),
            "\\PC*".prop_map(Failure::Other),
        ]
    }

    fn memory_use() -> impl Strategy<Value = MemoryUse> {
        any::<[u64; 4]>().prop_map(|[now, peak, had, compiled]| MemoryUse { now, peak, had, compiled })
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
        let options = (any::<bool>(), any::<Option<u64>>(), any::<Option<u64>>(), prop::option::of("\\PC*")).prop_map(
            |(exact, memory, max_buffer, cache)| DeviceOptions {
                precision: if exact { Precision::F32 } else { Precision::Auto },
                memory,
                max_buffer,
                cache: cache.map(PathBuf::from),
                as_if_discrete: !exact,
                verify: exact,
                ..DeviceOptions::default()
            },
        );
        let api = prop_oneof![Just(Api::Cpu), Just(Api::Vulkan), Just(Api::Cuda)];
        let device = ("\\PC*", api, any::<usize>(), any::<Option<[u8; 16]>>()).prop_map(|(name, api, index, uuid)| {
            let imagined = DeviceInfo::imagined(&name, api, DeviceKind::Discrete, Limits::UNLIMITED);
            Box::new(DeviceInfo { index, uuid, ..imagined })
        });
        let open = (any::<u32>(), "\\PC*", device, options, any::<u64>());
        let given = ("\\PC*", any::<Vec<usize>>(), any::<u64>(), lies());
        let given = given.prop_map(|(storage, shape, bytes, lies)| GivenParam {
            storage,
            shape,
            bytes,
            lies,
            row_scales: (bytes % 2 == 0).then(|| vec![1, 0x7fc0_0000]),
        });
        let places = || prop::collection::vec(lies(), 0..5);
        prop_oneof![
            open.prop_map(|(version, build, device, options, idle_milliseconds)| Request::Open {
                version,
                build,
                device,
                options,
                idle_milliseconds
            }),
            (planned(), any::<bool>()).prop_map(|((graph, plan), exact)| Request::Plan {
                graph: graph.to_string(),
                plan,
                exact
            }),
            (any::<u64>(), source()).prop_map(|(id, source)| Request::Keep { id, source }),
            (any::<u64>(), source(), any::<bool>()).prop_map(|(id, source, adapters)| Request::Pack {
                id,
                source,
                adapters
            }),
            (any::<u64>(), any::<u64>(), any::<Option<u64>>(), prop::option::of(source()))
                .prop_map(|(id, weights, adapters, feed)| Request::Prepare { id, weights, adapters, feed }),
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
            ("\\PC*", limits, any::<[u64; 2]>()).prop_map(|(about, limits, [alignment, fixed_bytes])| Reply::Opened(
                OpenedAs { about, limits, alignment, fixed_bytes }
            )),
            (any::<u64>(), memory_use()).prop_map(|(bytes, memory_use)| Reply::Done { bytes, memory_use }),
            (memory_use(), streaming).prop_map(|(memory_use, streaming)| Reply::Ran { memory_use, streaming }),
            Just(Reply::Times),
            any::<u32>().prop_map(|gflops| Reply::Peak(gflops.into())),
            (failure(), memory_use()).prop_map(|(why, memory_use)| Reply::Failed { why, memory_use }),
            ("\\PC*", any::<u64>()).prop_map(|(name, elements)| Reply::WasRead { name, elements }),
            ("\\PC*", any::<u64>(), any::<u64>()).prop_map(|(name, offset, bytes)| Reply::NeedParam {
                name,
                offset,
                bytes
            }),
            any::<[u64; 3]>().prop_map(|[beats, compiled, wanted]| Reply::Beat { beats, compiled, wanted }),
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
