//! Networks with quantised weights against the same networks with the numbers that those stand for. What a user would lose: the picture that the file
//! holds, on a device that decodes it wrongly.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use impasto_backend::cpu::{Cpu, CpuOptions, Precision};
use impasto_backend::{Backend, DeviceOptions, WeightSource};
use impasto_graph::{Graph, HostTensor, Plan, Storage};
use impasto_model::{ElementTypes, LoraPlacement, Model, ModelPaths, NetworkId};
use impasto_weights::{Params, decode, scale_rows};

use super::{cpu, found, job, paint, psnr, vulkan, write_lora};
use impasto_testkit::model::{Small, Tensor, write_safetensors};

/// Rows of whole blocks of every storage, in a network of the true structure.
fn wide(small: Small) -> Small {
    let mut small = small;
    small.unet.channels = small.unet.channels.iter().map(|_| 256).collect();
    small.unet.context = 256 * small.text.len();
    for text in &mut small.text {
        (text.width, text.heads, text.inner) = (256, 4, 512);
        text.projection = text.projection.map(|_| 256);
    }
    small.unet.added = small.unet.added.map(|_| 256 + 6 * 32);
    small
}

fn opened(small: &Small, weight_type: Option<Storage>) -> (tempfile::TempDir, Arc<Model>) {
    let folder = tempfile::tempdir().expect("a folder");
    small.write_folder(folder.path());
    let paths = ModelPaths { model: Some(folder.path().into()), weight_type, ..ModelPaths::default() };
    (folder, Arc::new(Model::open(&paths).unwrap_or_else(|e| panic!("{e}"))))
}

/// The numbers that the parameters of a graph stand for.
fn numbers(graph: &Graph, source: &dyn WeightSource) -> Params {
    let mut params = Params::new();
    for (name, value) in graph.params() {
        let (info, bytes) = source.read_all(name).unwrap_or_else(|e| panic!("{e}"));
        let mut numbers = vec![0.0; graph.ty(value).elements() as usize];
        decode(info.storage, &bytes, &mut numbers);
        if let Some(scales) = source.row_scales(name).expect("scales are read") {
            let row = numbers.len() / scales.len();
            scale_rows(&mut numbers, 0, row, &scales);
        }
        params.insert(name, HostTensor::f32(info.shape, numbers).expect("as many as the shape has"));
    }
    params
}

/// The denoiser's prediction on a device, with the weights as they are stored or as the source has them; and the bytes of weights, planned and taken.
fn predict(backend: &dyn Backend, model: &Model, source: &dyn WeightSource, stored: bool) -> (Vec<f32>, [u64; 2]) {
    let profile = backend.profile();
    let element_types = ElementTypes { activations: profile.activations(), ..ElementTypes::F32 };
    let latent = model.pipeline.latent_shape([32, 32]);
    let tokens = vec![7; model.pipeline.text().len()];
    let mut graph = model.pipeline.denoiser(2, latent, &tokens, element_types).expect("a graph");
    let network = model.network(NetworkId::Denoiser).filter(|_| stored);
    if let Some(network) = network {
        graph = network.as_stored(graph).expect("rows are whole blocks");
    }
    let plan = Plan::new(&graph, &*profile).expect("there is room");
    let mut weights = backend.pack(&graph, &plan, source).unwrap_or_else(|e| panic!("{e}"));
    let mut bytes = [plan.weight_bytes(), weights.bytes()];
    if let Some(branches) = network.and_then(|network| network.branches()) {
        let adapters = backend.pack_adapters(&graph, &plan, &**branches).unwrap_or_else(|e| panic!("{e}"));
        bytes[1] += adapters.bytes();
        weights = weights.with_adapters(Some(adapters));
    }
    let inputs: Vec<(String, HostTensor)> = graph
        .inputs()
        .map(|(name, value)| {
            let (ty, mut state) = (graph.ty(value).clone(), 0x2545_f491_4f6c_dd1du64 ^ name.len() as u64);
            let mut next = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
            };
            let data = (0..ty.elements()).map(|_| next()).collect();
            (name.to_owned(), HostTensor::f32(ty.shape.clone(), data).expect("as many").cast(ty.dtype))
        })
        .collect();
    let given: Vec<(&str, &HostTensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut session = backend.prepare(&graph, &plan, &weights).unwrap_or_else(|e| panic!("{e}"));
    let made = session.run_to_new(&given).unwrap_or_else(|e| panic!("{e}"));
    (made[0].to_f32().to_vec(), bytes)
}

fn relative(got: &[f32], want: &[f32]) -> f64 {
    let sum = |f: &dyn Fn(usize) -> f64| (0..want.len()).map(|i| f(i).powi(2)).sum::<f64>();
    (sum(&|i| f64::from(got[i]) - f64::from(want[i])) / sum(&|i| f64::from(want[i]))).sqrt()
}

fn quantised() -> impl Iterator<Item = Storage> {
    Storage::FLOATS.into_iter().filter(|storage| !matches!(storage, Storage::Dense(_)))
}

impasto_testkit::trial! {
    fn networks_of_every_storage_compute_with_the_numbers_of_their_blocks(every: usize = 5, 1) {
        let exact = cpu();
        let auto: Arc<dyn Backend> =
            Arc::new(Cpu::new(&CpuOptions { precision: Precision::Bf16, ..CpuOptions::default() }).expect("a CPU"));
        let half =
            impasto_backend::open(&found(), &DeviceOptions { precision: Precision::F16, ..DeviceOptions::default() });
        let (software, half) = (vulkan(), half.expect("it opens"));
        // The software device compiles for long: a few of them there, unless all are asked for.
        // Other ones in each run.
        let first = RandomState::new().hash_one(0) as usize % every;
        let everywhere = std::env::var_os("IMPASTO_ALL_TYPES").is_some();
        let seldom = [vec![Storage::Q4_0, Storage::F8_E4M3], vec![Storage::Q8_0, Storage::Q4_K]];
        for (small, seldom) in [Small::sd1(), Small::sdxl()].map(wide).into_iter().zip(seldom) {
            for (i, storage) in quantised().enumerate().skip(first).step_by(every) {
                let (_folder, model) = opened(&small, Some(storage));
                let network = model.network(NetworkId::Denoiser).expect("it has one");
                let source = network.source();
                assert!(network.bytes_by_storage().contains_key(&storage), "{storage}: nothing is stored so");
                let (latent, tokens) = (model.pipeline.latent_shape([32, 32]), vec![7; model.pipeline.text().len()]);
                let graph = model.pipeline.denoiser(2, latent, &tokens, ElementTypes::F32).expect("a graph");
                let params = numbers(&graph, &*source);
                let (want, _) = predict(&*exact, &model, &params, false);
                let mut devices = vec![(&exact, 1e-4), (&auto, 2e-2)];
                if everywhere || every == 1 && seldom.contains(&storage) {
                    devices.extend([[(&software, 1e-4)], [(&half, 2e-2)]][i % 2]);
                }
                if everywhere {
                    devices.extend([[(&half, 2e-2)], [(&software, 1e-4)]][i % 2]);
                }
                for (device, bar) in devices {
                    let (got, [planned, taken]) = predict(&**device, &model, &*source, true);
                    assert_eq!(planned, taken, "{storage}: planned is allocated");
                    let error = relative(&got, &want);
                    assert!(error < bar, "{storage} on {}: {error:.2e}", device.profile().about());
                }
            }
        }
    }
}

/// Layers keep their blocks beside a LoRA at run time, and compute with the sum.
#[test]
fn quantised_networks_with_a_lora_at_run_time_compute_with_the_sum() {
    let small = wide(Small::sd1());
    let (folder, model) = opened(&small, Some(Storage::Q8_0));
    let file = folder.path().join("lora.safetensors");
    write_lora(&file, &model, 8);
    let with = |mode: LoraPlacement, model: &Model| model.with_loras(&[(file.clone(), 0.8)], mode).expect("it fits");
    // Where blocks would be changed, auto leaves them as they are.
    let changed = with(LoraPlacement::Auto, &model);
    assert!(changed.as_branches && changed.merged == 0);
    let network = changed.model.network(NetworkId::Denoiser).expect("it has one");
    let kept = model.network(NetworkId::Denoiser).expect("it has one");
    assert_eq!((network.id(), network.bytes_by_storage()), (kept.id(), kept.bytes_by_storage()));
    // The numbers of the blocks, written to a file of floats and changed there.
    let (latent, tokens) = (model.pipeline.latent_shape([32, 32]), vec![7; model.pipeline.text().len()]);
    let graph = model.pipeline.denoiser(2, latent, &tokens, ElementTypes::F32).expect("a graph");
    let params = numbers(&graph, &*kept.source());
    let decoded: BTreeMap<String, Tensor> = graph
        .params()
        .map(|(name, value)| {
            let numbers = params.get(name).expect("it is there").to_f32().to_vec();
            (kept.tensor_name(name), (graph.ty(value).shape.clone(), numbers))
        })
        .collect();
    write_safetensors(&folder.path().join("unet/diffusion_pytorch_model.safetensors"), &decoded);
    let paths = ModelPaths { model: Some(folder.path().into()), ..ModelPaths::default() };
    let floats = Model::open(&paths).unwrap_or_else(|e| panic!("{e}"));
    let merged = with(LoraPlacement::Merged, &floats);
    let source = |model: &Model| model.network(NetworkId::Denoiser).expect("it has one").source();
    let (want, _) = predict(&*cpu(), &merged.model, &*source(&merged.model), false);
    let (plain, _) = predict(&*cpu(), &floats, &*source(&floats), false);
    assert!(relative(&plain, &want) > 0.1, "the LoRA counts");

    let (folder, model) = opened(&small, Some(Storage::Q8_0));
    std::fs::copy(&file, folder.path().join("lora.safetensors")).expect("copied");
    let changed = with(LoraPlacement::Branches, &model);
    let options = |precision| DeviceOptions { precision, ..DeviceOptions::default() };
    let half = impasto_backend::open(&found(), &options(Precision::F16)).expect("it opens");
    let bf16 = Cpu::new(&CpuOptions { precision: Precision::Bf16, ..CpuOptions::default() }).expect("a CPU");
    for (device, bar) in [(cpu(), 1e-4), (Arc::new(bf16) as Arc<dyn Backend>, 2e-2), (vulkan(), 1e-4), (half, 2e-2)] {
        let (got, [planned, taken]) = predict(&*device, &changed.model, &*source(&changed.model), true);
        assert_eq!(planned, taken, "planned is allocated");
        let error = relative(&got, &want);
        println!("{}: {error:.2e}", device.profile().about());
        assert!(error < bar, "{}: {error:.2e}", device.profile().about());
    }
}

/// Rules by name come before the type of all, and each layer computes with the numbers of its own blocks.
#[test]
fn rules_say_the_types_of_weights_while_they_are_loaded() {
    let folder = tempfile::tempdir().expect("a folder");
    wide(Small::sd1()).write_folder(folder.path());
    let open = |rules: &str| {
        let (model, weight_type) = (Some(folder.path().into()), Some(Storage::Q8_0));
        Model::open(&ModelPaths { model, weight_type, type_rules: Some(rules.into()), ..ModelPaths::default() })
    };
    let model = open(r"attn1\.to_q=q4_0,ff\.net\.2=f16,^conv_in\.weight$=bf16").unwrap_or_else(|e| panic!("{e}"));
    let network = model.network(NetworkId::Denoiser).expect("it has one");
    let storage_of = |param: &str| network.describe(param).expect("a parameter").storage.name();
    let block = "mid_block.attentions.0.transformer_blocks.0";
    for (param, storage) in [
        (format!("{block}.attn1.to_q.weight"), "q4_0"),
        (format!("{block}.attn2.to_q.weight"), "q8_0"),
        (format!("{block}.ff.net.2.weight"), "f16"),
        ("conv_in.weight".into(), "bf16"),
        ("conv_out.weight".into(), "f32"),
        (format!("{block}.attn1.to_out.0.bias"), "f32"),
    ] {
        assert_eq!(storage_of(&param), storage, "{param}");
    }
    let (latent, tokens) = (model.pipeline.latent_shape([32, 32]), vec![7; model.pipeline.text().len()]);
    let graph = model.pipeline.denoiser(2, latent, &tokens, ElementTypes::F32).expect("a graph");
    let source = network.source();
    let (want, _) = predict(&*cpu(), &model, &numbers(&graph, &*source), false);
    let (got, [planned, taken]) = predict(&*cpu(), &model, &*source, true);
    assert!(relative(&got, &want) < 1e-4 && planned == taken);
    let refused = open("attn1=q9").err().expect("no such type").to_string();
    assert!(refused.contains("q9"), "{refused}");
}

/// What is kept takes the bytes of the file, and a picture of eight bits is that of the whole model.
#[test]
fn weights_stay_as_small_as_they_are() {
    let small = wide(Small::sd1());
    let (_whole, model) = opened(&small, None);
    let want = paint(&job(&model), &impasto_generate::place::Placement::on(&cpu())).expect("a picture");
    for (storage, least) in [(Storage::Q8_0, 40.0), (Storage::Q4_0, 20.0)] {
        let (_folder, model) = opened(&small, Some(storage));
        let network = model.network(NetworkId::Denoiser).expect("it has one");
        let source = network.source();
        let latent = model.pipeline.latent_shape([32, 32]);
        let mut graph = model.pipeline.denoiser(2, latent, &[77], ElementTypes::F32).expect("a graph");
        graph.set_storages(|name| Some(source.describe(name).ok()?.storage)).expect("rows are whole blocks");
        let plan = Plan::new(&graph, &*cpu().profile()).expect("there is room");
        let kept = plan.weights().iter().filter(|w| graph.ty(w.value).shape.len() == 2);
        for weight in kept {
            let stored = source.describe(graph.label(weight.value)).expect("it is there").bytes;
            assert!(
                weight.bytes <= stored + stored / 50,
                "{}: {} of {stored}",
                graph.label(weight.value),
                weight.bytes
            );
        }
        let made = paint(&job(&model), &impasto_generate::place::Placement::on(&cpu())).expect("a picture");
        let quality = psnr(&made, &want);
        assert!(quality > least, "{storage}: {quality:.1} dB");
    }
}
