//! Networks against outputs of a reference; weights and inputs come from the same generator on both sides.
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use impasto_backend::cpu::{Cpu, CpuOptions, Precision};
use impasto_backend::{Backend, ParamError, ParamInfo, WeightSource};
use impasto_graph::{DType, Graph, HostTensor, Plan, Storage};
use impasto_model::ElementTypes;
use impasto_weights::Checkpoint;

use impasto_testkit::model::generated::{numbers, parameter};

/// An input made from its name.
pub fn given(name: &str, shape: &[usize]) -> HostTensor {
    let data = numbers(name, shape.iter().product()).map(|u| u as f32).collect();
    HostTensor::f32(shape, data).expect("as many numbers as the shape has")
}

/// Parameters made from their names: norms near one, biases near zero, weights that keep the size of activations. Each is made when it is first
/// read and dropped when all of it was.
struct Generated {
    shapes: HashMap<String, Vec<usize>>,
    made: Mutex<HashMap<String, Made>>,
}

/// The bytes of a parameter, and the elements that are still to be read.
type Made = (Arc<Vec<u8>>, u64);

impl Generated {
    fn of(graph: &Graph) -> Generated {
        let shapes = graph.params().map(|(name, v)| (name.into(), graph.ty(v).shape.clone())).collect();
        Generated { shapes, made: Mutex::default() }
    }
}

impl WeightSource for Generated {
    fn describe(&self, name: &str) -> Result<ParamInfo, ParamError> {
        let shape = self.shapes[name].clone();
        let bytes = 4 * shape.iter().product::<usize>() as u64;
        Ok(ParamInfo { storage: Storage::Dense(DType::F32), bytes, shape })
    }

    fn read_into(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), ParamError> {
        let make = || {
            let numbers = parameter(name, &self.shapes[name]);
            (Arc::new(numbers.iter().flat_map(|x| x.to_le_bytes()).collect()), numbers.len() as u64)
        };
        let made = self.made.lock().expect("nobody panics").entry(name.into()).or_insert_with(make).0.clone();
        out.copy_from_slice(&made[offset as usize..][..out.len()]);
        Ok(())
    }

    fn was_read(&self, name: &str, elements: u64) -> Result<(), ParamError> {
        let mut made = self.made.lock().expect("nobody panics");
        if let Some((_, left)) = made.get_mut(name) {
            *left -= elements;
            if *left == 0 {
                made.remove(name);
            }
        }
        Ok(())
    }
}

/// A tensor of one of the files of fixtures.
pub fn fixture(name: &str) -> Vec<f32> {
    let path = |file: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(file);
    let open = |file: &str| Checkpoint::open(&path(file)).expect("the fixture is in the repository");
    let files = ["networks.safetensors", "transformers.safetensors", "encoders.safetensors"].map(open);
    let file = files.iter().find(|file| file.tensor(name).is_some()).expect("one of them has it");
    let bytes = file.read_all(file.tensor(name).expect("the fixture has it")).expect("it is whole");
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn square(x: f32) -> f64 {
    f64::from(x) * f64::from(x)
}

/// Run a network in every precision and compare one of its outputs with the fixture: relative error in the L2 norm.
/// `pick` takes what the reference has out of the output.
pub fn compare_part(
    name: &str,
    build: &dyn Fn(ElementTypes) -> Graph,
    inputs: &[(&str, HostTensor)],
    output: usize,
    pick: &dyn Fn(Vec<f32>) -> Vec<f32>,
) {
    let want = fixture(name);
    for (precision, activations, bar) in
        [(Precision::F32, DType::F32, 1e-4), (Precision::Bf16, DType::F32, 2e-2), (Precision::Bf16, DType::BF16, 2e-2)]
    {
        let cpu = Cpu::new(&CpuOptions { precision, ..CpuOptions::default() }).expect("there is a CPU");
        let graph = build(ElementTypes { storage: Storage::Dense(DType::F32), activations });
        let plan = Plan::new(&graph, &cpu).expect("nothing limits it");
        let weights = cpu.pack(&graph, &plan, &Generated::of(&graph)).expect("every parameter is made");
        let mut session = cpu.prepare(&graph, &plan, &weights).expect("there is memory");
        let inputs: Vec<(&str, &HostTensor)> = inputs.iter().map(|(n, t)| (*n, t)).collect();
        let got = pick(session.run_to_new(&inputs).expect("the inputs fit").swap_remove(output).to_f32());
        assert_eq!(got.len(), want.len(), "{name} has another shape");
        let error: f64 = got.iter().zip(&want).map(|(a, b)| square(a - b)).sum();
        let error = (error / want.iter().map(|&b| square(b)).sum::<f64>()).sqrt();
        println!("{name} in {precision:?} with {activations} between layers: relative error {error:.1e}");
        assert!(
            error < bar,
            "{name} in {precision:?} with {activations} between layers: {error:.2e}, {bar:.0e} is allowed"
        );
    }
}

/// The same for a network with one output.
pub fn compare(name: &str, build: &dyn Fn(ElementTypes) -> Graph, inputs: &[(&str, HostTensor)]) {
    compare_part(name, build, inputs, 0, &|output| output);
}
