//! Criterion's view of the kernels and the planner, for comparing a change with what was before: `cargo bench`.
//! `impasto bench cpu` gives shares of the machine's peak.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use impasto_backend::cpu::Cpu;
use impasto_backend::{Backend, Params, Profile, Session};
use impasto_graph::{DType, Epilogue, Graph, GraphError, HostTensor, Plan, Storage, Value, Window};
use impasto_model::{ElementTypes, UnetConfig, unet};

/// Numbers between -1/2 and 1/2 that are not all alike.
fn tensor(shape: &[usize], dtype: DType) -> HostTensor {
    let n: usize = shape.iter().product();
    let data = (0..n).map(|i| (i as u32).wrapping_mul(2_654_435_769) as f32 / u32::MAX as f32 - 0.5).collect();
    HostTensor::f32(shape, data).expect("as many numbers as the shape has").cast(dtype)
}

/// A session for a graph, and its inputs.
fn session(cpu: &Cpu, graph: &Graph) -> (Box<dyn Session>, Vec<(String, HostTensor)>) {
    let plan = Plan::new(graph, cpu).expect("nothing limits it");
    let mut params = Params::new();
    for (name, value) in graph.params() {
        params.insert(name, tensor(&graph.ty(value).shape, DType::F32));
    }
    let weights = cpu.pack(graph, &plan, &params).expect("all parameters are there");
    let session = cpu.prepare(graph, &plan, &weights).expect("there is memory");
    let inputs = session.inputs().iter().map(|(name, ty)| (name.clone(), tensor(&ty.shape, ty.dtype))).collect();
    (session, inputs)
}

fn kernels(c: &mut Criterion) {
    let cpu = Cpu::new(&Default::default()).expect("there is a CPU");
    let dtype = cpu.activations();
    let f32 = Storage::Dense(DType::F32);
    type Build<'a> = &'a dyn Fn(&mut Graph) -> Result<Value, GraphError>;
    let cases: [(&str, Build); 3] = [
        ("linear 1024x1280x1280", &|g| {
            let (x, w) = (g.input("x", [1024, 1280], dtype)?, g.param("w", [1280, 1280], f32)?);
            g.linear(x, w, Epilogue::new())
        }),
        ("conv 320 at 64x64", &|g| {
            let (x, w) = (g.input("x", [1, 64, 64, 320], dtype)?, g.param("w", [320, 320, 3, 3], f32)?);
            g.conv2d(x, w, Window::pad(1), Epilogue::new())
        }),
        ("attention 8x40 over 1024", &|g| {
            let x = g.input("x", [1, 1024, 320], dtype)?;
            g.attention(x, x, x, 8, false)
        }),
    ];
    let mut group = c.benchmark_group(format!("cpu {}", cpu.isa()));
    group.sample_size(10);
    for (name, build) in cases {
        let mut graph = Graph::new();
        let y = build(&mut graph).expect("the shapes fit");
        graph.output("y", y).expect("it is the only one");
        let (mut session, inputs) = session(&cpu, &graph);
        let inputs: Vec<(&str, &HostTensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let mut outputs: Vec<HostTensor> = session.outputs().iter().map(|(_, ty)| HostTensor::zeros(ty)).collect();
        group.throughput(Throughput::Elements(graph.flops()));
        group.bench_function(name, |b| b.iter(|| session.run(&inputs, &mut outputs).expect("it runs")));
    }
}

fn planner(c: &mut Criterion) {
    let cpu = Cpu::new(&Default::default()).expect("there is a CPU");
    let graph = unet(&UnetConfig::sdxl(), 2, [128, 128], 77, ElementTypes::BF16).expect("the shapes fit");
    c.benchmark_group("plan").sample_size(20).bench_function("sdxl unet 1024", |b| {
        b.iter_batched(|| (), |()| Plan::new(&graph, &cpu).expect("nothing limits it"), BatchSize::SmallInput)
    });
}

criterion_group!(benches, kernels, planner);
criterion_main!(benches);
