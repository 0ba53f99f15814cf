//! A graph with everything that it needs to run, filled with random numbers.

use std::collections::HashMap;

use impasto_backend::{ParamError, ParamInfo, WeightSource};
use impasto_graph::{Banded, DType, Data, Graph, HostTensor, Op, Storage, Value};

use impasto_weights::{decode, encode};

use super::rng::Rng;

/// A graph with its inputs and parameters.
pub struct Case {
    pub graph: Graph,
    /// What the sources hold; quantised parameters as the numbers that their blocks stand for.
    pub given: HashMap<Value, HostTensor>,
    /// What a model file has of the parameters, by name.
    stored: HashMap<String, Vec<u8>>,
    /// Scales of the rows of some of them.
    scales: HashMap<String, Vec<f32>>,
}

impl Case {
    /// Inputs are normally distributed, ids small; the weights of products keep the size of what they multiply.
    pub fn new(graph: Graph, rng: &mut Rng) -> Case {
        let mut case = Case { graph, given: HashMap::new(), stored: HashMap::new(), scales: HashMap::new() };
        for value in case.graph.values() {
            let ty = case.graph.ty(value).clone();
            let n = ty.elements() as usize;
            let size = 1.0 / (ty.shape.iter().skip(1).product::<usize>() as f64).sqrt();
            let tensor = match &case.graph.node(value).op {
                Op::Input { .. } if ty.dtype == DType::I32 => {
                    tensor(&ty.shape, DType::I32, (0..n).map(|_| rng.below(4) as f64))
                }
                Op::Input { .. } => tensor(&ty.shape, ty.dtype, (0..n).map(|_| rng.normal())),
                Op::Param { storage: Storage::Dense(dtype), name } => {
                    let tensor = tensor(&ty.shape, *dtype, (0..n).map(|_| size * rng.normal()));
                    case.stored.insert(name.clone(), bytes(&tensor));
                    tensor
                }
                Op::Param { storage, name } => {
                    // Eight-bit floats have no room for small numbers: their rows have scales.
                    let scaled = matches!(storage, Storage::F8_E4M3 | Storage::F8_E5M2) && rng.chance(70);
                    let (bytes, mut numbers) = random_blocks(*storage, n, if scaled { 4.0 } else { size }, rng);
                    case.stored.insert(name.clone(), bytes);
                    if scaled {
                        let rows = ty.shape[0];
                        let scales: Vec<f32> = (0..rows).map(|_| ((0.5 + rng.unit()) * size / 4.0) as f32).collect();
                        numbers.iter_mut().enumerate().for_each(|(i, x)| *x *= scales[i / (n / rows)]);
                        case.scales.insert(name.clone(), scales);
                    }
                    tensor(&ty.shape, DType::F32, numbers.into_iter().map(f64::from))
                }
                _ => continue,
            };
            case.given.insert(value, tensor);
        }
        case
    }

    /// Other numbers for one of the sources.
    pub fn set(&mut self, name: &str, numbers: impl IntoIterator<Item = f64>) {
        let found = self.graph.inputs().chain(self.graph.params()).find(|(n, _)| *n == name);
        let value = found.unwrap_or_else(|| panic!("the graph has no '{name}'")).1;
        let old = self.given[&value].ty().clone();
        self.put(value, tensor(&old.shape, old.dtype, numbers));
    }

    /// Another tensor for one of the sources.
    pub fn put(&mut self, value: Value, tensor: HostTensor) {
        if let Op::Param { name, .. } = &self.graph.node(value).op {
            self.stored.insert(name.clone(), bytes(&tensor));
        }
        self.given.insert(value, tensor);
    }

    /// The same numbers for the same graph in bands.
    pub fn in_bands(&self, banded: &Banded) -> Case {
        let sources: HashMap<&str, &HostTensor> =
            self.graph.inputs().chain(self.graph.params()).map(|(name, v)| (name, &self.given[&v])).collect();
        let whole: Vec<(&str, &HostTensor)> = sources.iter().map(|(name, tensor)| (*name, *tensor)).collect();
        let parts: HashMap<String, HostTensor> =
            banded.cuts.parts(&whole).expect("ranges lie inside").into_iter().collect();
        let sources_of = |name: &str| parts.get(name).unwrap_or_else(|| sources[name]).clone();
        let all = banded.graph.inputs().chain(banded.graph.params());
        let given = all.map(|(name, value)| (value, sources_of(name))).collect();
        Case { graph: banded.graph.clone(), given, stored: self.stored.clone(), scales: self.scales.clone() }
    }

    /// The inputs, as a run takes them.
    pub fn inputs(&self) -> Vec<(&str, &HostTensor)> {
        self.graph.inputs().map(|(name, v)| (name, &self.given[&v])).collect()
    }
}

/// A tensor of these numbers, each rounded to the element type.
pub fn tensor(shape: &[usize], dtype: DType, numbers: impl IntoIterator<Item = f64>) -> HostTensor {
    let numbers = numbers.into_iter();
    let data = match dtype {
        DType::I32 => Data::I32(numbers.map(|x| x as i32).collect()),
        _ => Data::F32(numbers.map(|x| x as f32).collect()),
    };
    HostTensor::new(shape, data).expect("there are as many numbers as the shape has places").cast(dtype)
}

/// A dense tensor as a file stores it.
pub fn bytes(tensor: &HostTensor) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(tensor.ty().bytes() as usize);
    match tensor.data() {
        Data::F32(v) => v.iter().for_each(|x| bytes.extend_from_slice(&x.to_le_bytes())),
        Data::F16(v) => v.iter().for_each(|x| bytes.extend_from_slice(&x.to_le_bytes())),
        Data::BF16(v) => v.iter().for_each(|x| bytes.extend_from_slice(&x.to_le_bytes())),
        Data::I32(v) => v.iter().for_each(|x| bytes.extend_from_slice(&x.to_le_bytes())),
    }
    bytes
}

/// Quantised storages: those of tests that take any.
pub fn blocks() -> Vec<Storage> {
    Storage::FLOATS.into_iter().filter(|storage| !matches!(storage, Storage::Dense(_))).collect()
}

/// A storage whose blocks rows of so many numbers are made of.
pub fn any_blocks(k: usize, rng: &mut Rng) -> Storage {
    let fit: Vec<Storage> = blocks().into_iter().filter(|s| (k as u64).is_multiple_of(s.block_elements())).collect();
    rng.pick(&fit)
}

/// Blocks of random numbers as a file stores them, and the numbers that they stand for before rows are scaled. That blocks are decoded as the reference
/// does is tested where they are decoded.
fn random_blocks(storage: Storage, elements: usize, size: f64, rng: &mut Rng) -> (Vec<u8>, Vec<f32>) {
    let mut numbers: Vec<f32> = (0..elements).map(|_| (size * rng.normal()) as f32).collect();
    let mut bytes = vec![0; storage.bytes_of(elements as u64).expect("few") as usize];
    encode(storage, &numbers, &mut bytes);
    decode(storage, &bytes, &mut numbers);
    (bytes, numbers)
}

impl WeightSource for Case {
    fn describe(&self, name: &str) -> Result<ParamInfo, ParamError> {
        let missing = || ParamError::Wrong { name: name.into(), problem: "is missing".into() };
        let value = self.graph.params().find(|(n, _)| *n == name).ok_or_else(missing)?.1;
        let Op::Param { storage, .. } = self.graph.node(value).op else { return Err(missing()) };
        Ok(ParamInfo { storage, shape: self.graph.ty(value).shape.clone(), bytes: self.stored[name].len() as u64 })
    }

    fn row_scales(&self, name: &str) -> Result<Option<Vec<f32>>, ParamError> {
        Ok(self.scales.get(name).cloned())
    }

    fn read_into(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), ParamError> {
        out.copy_from_slice(&self.stored[name][offset as usize..][..out.len()]);
        Ok(())
    }

    /// Every second one, so that both ways are gone.
    fn in_memory(&self, name: &str) -> Option<&[u8]> {
        let stored = self.stored.get(name)?;
        stored.len().is_multiple_of(2).then_some(stored)
    }
}
