//! A small model with real numbers, in the original layout of XL. What a user would lose: weights that arrive where they belong.

use std::collections::BTreeMap;
use std::path::Path;

use crate::headers::{Tensors, sparse, sparse_with};
use impasto_backend::cpu::{Cpu, CpuOptions, Precision};
use impasto_backend::{Backend, ParamError, ParamInfo, WeightSource};
use impasto_graph::{DType, Graph, HostTensor, Plan, Storage};
use impasto_model::{
    CheckpointLayout, Clip, ClipConfig, ClipLayout, ElementTypes, Heads, HiddenState, LatentDiffusion, Model,
    ModelPaths, NetworkId, RecognisedNetwork, TensorShapes, TensorView, Unet, UnetConfig, Vae, VaeConfig, clip, unet,
    vae_decoder,
};
use impasto_testkit::model::generated::parameter;
use tempfile::TempDir;

fn networks() -> [RecognisedNetwork; 4] {
    let text =
        ClipConfig { vocabulary: 99, tokens: 7, width: 64, layers: 2, heads: 1, inner: 96, ..ClipConfig::clip_l() };
    let second = ClipConfig { width: 128, heads: 2, projection: Some(48), ..text.clone() };
    let second = ClipConfig { activation: ClipConfig::open_clip_g().activation, ..second };
    let unet = UnetConfig {
        channels: vec![64, 128],
        depth: vec![0, 2],
        mid_depth: 2,
        resnets: 2,
        heads: Heads::Width(64),
        context: 64 + 128,
        added: Some(48 + 6 * 8),
        ..UnetConfig::sdxl()
    };
    let vae = VaeConfig { channels: vec![32, 64], ..VaeConfig::sd() };
    let (text, second) = (
        Clip { config: text, layout: ClipLayout::Transformers },
        Clip { config: second, layout: ClipLayout::OpenClip },
    );
    [
        RecognisedNetwork::new(text, "conditioner.embedders.0.transformer."),
        RecognisedNetwork::new(second, "conditioner.embedders.1.model."),
        RecognisedNetwork::new(Unet { config: unet, layout: CheckpointLayout::Original }, "model.diffusion_model."),
        RecognisedNetwork::new(Vae { config: vae, layout: CheckpointLayout::Original }, "first_stage_model."),
    ]
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// The same numbers without any file.
struct Named(BTreeMap<String, Vec<usize>>, &'static str);

impl WeightSource for Named {
    fn describe(&self, name: &str) -> Result<ParamInfo, ParamError> {
        let shape = self.0[name].clone();
        let bytes = 4 * shape.iter().product::<usize>() as u64;
        Ok(ParamInfo { storage: Storage::Dense(DType::F32), bytes, shape })
    }

    fn read_into(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), ParamError> {
        let bytes = bytes(&parameter(&format!("{} {name}", self.1), &self.0[name]));
        out.copy_from_slice(&bytes[offset as usize..][..out.len()]);
        Ok(())
    }
}

const KEYS: [&str; 4] = ["l", "g", "unet", "vae"];

/// All tensors as the original layout has them: joined, turned and with dimensions of one.
fn original() -> (Tensors, BTreeMap<String, Vec<u8>>) {
    let (mut tensors, mut data) = (Tensors::new(), BTreeMap::new());
    for (found, key) in networks().iter().zip(KEYS) {
        // Of the two places of an upsampler, the one behind an attention.
        let mut shapes = TensorShapes::new();
        shapes.insert("model.diffusion_model.output_blocks.2.2.conv.weight".into(), vec![]);
        shapes.insert("model.diffusion_model.output_blocks.2.2.conv.bias".into(), vec![]);
        for graph in found.graphs().expect("they build") {
            for (name, value) in graph.params() {
                let mut shape = graph.ty(value).shape.clone();
                let values = parameter(&format!("{key} {name}"), &shape);
                let stored = found.stored(name, &shapes);
                let room: &mut Vec<u8> = data.entry(stored.name.clone()).or_default();
                match stored.take {
                    TensorView::Whole => *room = bytes(&values),
                    TensorView::Rows(part, parts) => {
                        let each = 4 * values.len();
                        room.resize(parts * each, 0);
                        room[part * each..(part + 1) * each].copy_from_slice(&bytes(&values));
                        shape[0] *= parts;
                    }
                    TensorView::RowsFrom(first, of) => {
                        let row = 4 * values.len() / shape[0];
                        room.resize(of * row, 0);
                        room[first * row..][..4 * values.len()].copy_from_slice(&bytes(&values));
                        shape[0] = of;
                    }
                    TensorView::LastTap(_) => panic!("{name} is no window in time"),
                    TensorView::Transposed => {
                        let [rows, columns] = shape[..] else { panic!("{name} is a matrix") };
                        let turned: Vec<f32> =
                            (0..rows * columns).map(|i| values[i % rows * columns + i / rows]).collect();
                        *room = bytes(&turned);
                        shape.reverse();
                    }
                }
                if stored.name.contains("attn_1.") && shape.len() == 2 {
                    shape.extend([1, 1]);
                }
                tensors.insert(stored.name, ("F32".into(), shape));
            }
        }
    }
    (tensors, data)
}

fn file(path: &Path) -> Model {
    let (tensors, data) = original();
    sparse_with(path, &tensors, &[], &|name, _| data.get(name).cloned());
    let paths = ModelPaths { model: Some(path.into()), ..ModelPaths::default() };
    Model::open(&paths).unwrap_or_else(|e| panic!("{e}"))
}

fn run(graph: &Graph, source: &dyn WeightSource, inputs: &[(&str, HostTensor)]) -> Vec<Vec<f32>> {
    let cpu = Cpu::new(&CpuOptions { precision: Precision::F32, ..CpuOptions::default() }).expect("there is a CPU");
    let plan = Plan::new(graph, &cpu).expect("nothing limits it");
    let weights = cpu.pack(graph, &plan, source).unwrap_or_else(|e| panic!("{e}"));
    let mut session = cpu.prepare(graph, &plan, &weights).expect("there is memory");
    let inputs: Vec<(&str, &HostTensor)> = inputs.iter().map(|(n, t)| (*n, t)).collect();
    session.run_to_new(&inputs).expect("the inputs fit").iter().map(|t| t.to_f32()).collect()
}

#[test]
fn a_file_computes_what_its_numbers_say() {
    let folder = TempDir::new().expect("a temporary folder");
    let model = file(&folder.path().join("small.safetensors"));
    assert_eq!(model.unused, [""; 0]);
    let given =
        |name: &str, shape: &[usize]| HostTensor::f32(shape, parameter(name, shape)).expect("as many as needed");
    let check = |graph: Graph, source: &dyn WeightSource, key: &'static str, inputs: &[(&str, HostTensor)]| {
        let named = Named(graph.params().map(|(n, v)| (n.into(), graph.ty(v).shape.clone())).collect(), key);
        assert_eq!(run(&graph, source, inputs), run(&graph, &named, inputs), "{key}");
    };
    let n = ElementTypes::F32;
    let ids = [("ids", HostTensor::i32([1, 7], vec![3, 98, 0, 5, 5, 1, 2]).expect("a text"))];
    let sd = model.pipeline.downcast::<LatentDiffusion>().expect("Stable Diffusion");
    let network = |id| &***model.network(id).expect("it has that");
    for (i, key) in ["l", "g"].into_iter().enumerate() {
        let graph = clip(&sd.text[i], 1, HiddenState { skip: 0, norm: true }, n).expect("it builds");
        check(graph, network(NetworkId::TextEncoder(i)), key, &ids);
    }
    let inputs = [
        ("latent", given("latent", &[1, 4, 6, 4])),
        ("time", HostTensor::f32([1], vec![500.0]).expect("one time")),
        ("context", given("context", &[1, 7, 192])),
        ("added", given("added", &[1, 96])),
    ];
    check(unet(&sd.unet, 1, [4, 6], 7, n).expect("it builds"), network(NetworkId::Denoiser), "unet", &inputs);
    let inputs = [("latent", given("latent", &[1, 4, 6, 4]))];
    check(vae_decoder(sd.vae(), 1, [4, 6], n).expect("it builds"), network(NetworkId::VaeDecoder), "vae", &inputs);
}

/// Damage of every kind to names, shapes and types: a model is opened or refused, and nothing else.
#[test]
fn damaged_models_never_panic() {
    let folder = TempDir::new().expect("a temporary folder");
    let path = folder.path().join("m.safetensors");
    let tensors = original().0;
    let names: Vec<String> = tensors.keys().cloned().collect();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % n.max(1)
    };
    let (mut opened, mut refused) = (0, 0);
    for _ in 0..1500 {
        let mut damaged = tensors.clone();
        for _ in 0..=next(3) {
            // Networks are recognised by few tensors: hit those often.
            let wide = [
                "0.weight",
                "conv_in.weight",
                "_embedding.weight",
                "proj_in.weight",
                "to_k.weight",
                "label_emb.0.0.weight",
            ];
            let some: Vec<&String> = names.iter().filter(|n| n.ends_with(wide[next(wide.len())])).collect();
            let name = if next(2) == 0 { &names[next(names.len())] } else { some[next(some.len())] };
            let Some((element, shape)) = damaged.get_mut(name) else { continue };
            match next(6) {
                0 => drop(damaged.remove(name)),
                1 => *element = ["F16", "F8_E4M3", "I64", "BF16"][next(4)].into(),
                2 => drop(shape.pop()),
                3 => *shape = [0].into_iter().chain(vec![usize::MAX >> 3; shape.len()]).collect(),
                4 => {
                    let moved = damaged.remove(name).expect("it is there");
                    damaged.insert(name.replace(['0', '1'], ["7", "2", "", "99999999999999999999"][next(4)]), moved);
                }
                _ => {
                    let at = next(shape.len());
                    if let Some(d) = shape.get_mut(at) {
                        *d = [0, 1, 3, *d + 1, 2 * *d, 31][next(6)];
                    }
                }
            }
        }
        sparse(&path, &damaged, &[]);
        match Model::open(&ModelPaths { model: Some(path.clone()), ..ModelPaths::default() }) {
            Ok(_) => opened += 1,
            Err(error) => {
                refused += 1;
                assert!(
                    error.to_string().contains("m.safetensors") || error.to_string().contains("diffusion model"),
                    "{error}"
                );
            }
        }
    }
    assert!(opened > 20 && refused > 800, "{opened} opened, {refused} refused: damage that tests nothing");
}
