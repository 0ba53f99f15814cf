//! Small models of the true structure, their weights made from their names, in every layout that people have files in.

pub mod families;
pub mod generated;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use impasto_graph::Unary;
use impasto_model::{
    CheckpointLayout, Clip, ClipConfig, ClipLayout, Heads, Network, RecognisedNetwork, Taesd, TaesdConfig,
    TensorShapes, TensorView, Unet, UnetConfig, Vae, VaeConfig,
};
use serde_json::json;

use generated::{numbers, parameter};

/// A tensor of a file.
pub type Tensor = (Vec<usize>, Vec<f32>);

/// The networks of a small model.
#[derive(Clone)]
pub struct Small {
    pub unet: UnetConfig,
    pub text: Vec<ClipConfig>,
    pub vae: VaeConfig,
    pub prediction: &'static str,
}

const COMPONENTS: [&str; 2] = ["text_encoder", "text_encoder_2"];

impl Small {
    pub fn sd1() -> Small {
        let unet =
            UnetConfig { channels: vec![32, 64], depth: vec![1, 0], resnets: 1, context: 64, ..UnetConfig::sd15() };
        let text = ClipConfig { width: 64, layers: 2, heads: 1, inner: 128, ..ClipConfig::clip_l() };
        let vae = VaeConfig { channels: vec![32, 64, 64, 64], resnets: 1, ..VaeConfig::sd() };
        Small { unet, text: vec![text], vae, prediction: "epsilon" }
    }

    pub fn inpainting() -> Small {
        let small = Small::sd1();
        Small { unet: UnetConfig { in_channels: 9, ..small.unet.clone() }, ..small }
    }

    pub fn sd2_v() -> Small {
        let mut small = Small::sd1();
        small.unet.channels = vec![64, 128];
        small.unet.heads = Heads::Width(64);
        small.unet.linear_projection = true;
        small.text[0].activation = Unary::Gelu;
        Small { prediction: "v_prediction", ..small }
    }

    pub fn sdxl() -> Small {
        let mut small = Small::sd2_v();
        small.unet.depth = vec![0, 2];
        small.unet.mid_depth = 2;
        small.unet.context = 128;
        small.unet.added = Some(64 + 6 * 32);
        small.text[0].activation = Unary::QuickGelu;
        small.text.push(ClipConfig { activation: Unary::Gelu, projection: Some(64), ..small.text[0].clone() });
        Small { prediction: "epsilon", ..small }
    }

    /// Stable Diffusion 1.5 in its true size.
    pub fn true_sd15() -> Small {
        let (unet, vae) = (UnetConfig::sd15(), VaeConfig::sd());
        Small { unet, text: vec![ClipConfig::clip_l()], vae, prediction: "epsilon" }
    }

    /// Stable Diffusion XL in its true size.
    pub fn true_sdxl() -> Small {
        let text = vec![ClipConfig::clip_l(), ClipConfig::open_clip_g()];
        Small { unet: UnetConfig::sdxl(), text, vae: VaeConfig::sd(), prediction: "epsilon" }
    }

    fn is_xl(&self) -> bool {
        self.text.len() == 2
    }

    fn is_sd2(&self) -> bool {
        self.unet.linear_projection && !self.is_xl()
    }

    /// A tiny autoencoder of the true size.
    pub fn write_taesd(path: &Path) {
        let mut tensors = tensors("taesd", &Taesd { config: TaesdConfig::sd(), layout: CheckpointLayout::Diffusers });
        // Without norms its numbers grow: keep pictures inside their range.
        let mut change = |name: &str, f: fn(f32) -> f32| {
            tensors.get_mut(name).expect("the last layer").1.iter_mut().for_each(|w| *w = f(*w));
        };
        change("decoder.layers.18.weight", |w| w * 0.25);
        change("decoder.layers.18.bias", |b| b + 0.5);
        write_safetensors(path, &tensors);
    }

    /// Component names, networks as a diffusers folder has them, and their files' names there.
    fn components(&self) -> Vec<(&'static str, Box<dyn Network>, &'static str)> {
        let unet = Unet { config: self.unet.clone(), layout: CheckpointLayout::Diffusers };
        let vae = Vae { config: self.vae.clone(), layout: CheckpointLayout::Diffusers };
        let file = "diffusion_pytorch_model.safetensors";
        let mut list: Vec<(_, Box<dyn Network>, _)> =
            vec![("unet", Box::new(unet), file), ("vae", Box::new(vae), file)];
        for (name, config) in COMPONENTS.into_iter().zip(&self.text) {
            let text = Clip { config: config.clone(), layout: ClipLayout::Transformers };
            list.push((name, Box::new(text), "model.safetensors"));
        }
        list
    }

    /// A diffusers folder.
    pub fn write_folder(&self, folder: &Path) {
        for (component, network, file) in self.components() {
            std::fs::create_dir_all(folder.join(component)).expect("a folder");
            write_safetensors(&folder.join(component).join(file), &tensors(component, &*network));
        }
        self.write_configs(folder);
    }

    /// A diffusers folder in halves whose numbers nobody has written, or which are any small numbers: true sizes, soon.
    pub fn write_large_folder(&self, folder: &Path, numbers: bool) {
        for (component, network, file) in self.components() {
            std::fs::create_dir_all(folder.join(component)).expect("a folder");
            write_large(&folder.join(component).join(file), &*network, numbers);
        }
        self.write_configs(folder);
    }

    fn write_configs(&self, folder: &Path) {
        let write = |name: &str, value: serde_json::Value| {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
            std::fs::write(path, value.to_string()).expect("written");
        };
        let class = if self.is_xl() { "StableDiffusionXLPipeline" } else { "StableDiffusionPipeline" };
        write("model_index.json", json!({ "_class_name": class }));
        for (component, config) in COMPONENTS.iter().zip(&self.text) {
            let act = if config.activation == Unary::Gelu { "gelu" } else { "quick_gelu" };
            write(
                &format!("{component}/config.json"),
                json!({ "hidden_act": act, "num_attention_heads": config.heads }),
            );
        }
        write("scheduler/scheduler_config.json", json!({ "prediction_type": self.prediction }));
        let scale = if self.is_xl() { 0.13025 } else { 0.18215 };
        write("vae/config.json", json!({ "scaling_factor": scale }));
    }

    /// One file in the original layout.
    pub fn write_original(&self, path: &Path) {
        let mut all = BTreeMap::new();
        let unet = Unet { config: self.unet.clone(), layout: CheckpointLayout::Original };
        let vae = Vae { config: self.vae.clone(), layout: CheckpointLayout::Original };
        all.extend(original("unet", &unet, "model.diffusion_model."));
        all.extend(original("vae", &vae, "first_stage_model."));
        for (i, config) in self.text.iter().enumerate() {
            let prefix = match (self.is_xl(), i) {
                (true, 0) => "conditioner.embedders.0.transformer.",
                (true, _) => "conditioner.embedders.1.model.",
                _ if self.is_sd2() => "cond_stage_model.model.",
                _ => "cond_stage_model.transformer.",
            };
            let layout = if prefix.ends_with("model.") { ClipLayout::OpenClip } else { ClipLayout::Transformers };
            // Original files of Stable Diffusion 2 have one more layer, which is not used.
            let layers = config.layers + usize::from(self.is_sd2());
            let network = Clip { config: ClipConfig { layers, ..config.clone() }, layout };
            all.extend(original(COMPONENTS[i], &network, prefix));
        }
        write_safetensors(path, &all);
    }

    /// Files of single components: the networks in the naming of one or the other kind.
    pub fn write_parts(&self, folder: &Path) -> BTreeMap<&'static str, PathBuf> {
        let mut parts = BTreeMap::new();
        let unet = Unet { config: self.unet.clone(), layout: CheckpointLayout::Original };
        let vae = Vae { config: self.vae.clone(), layout: CheckpointLayout::Original };
        for (flag, tensors) in
            [("diffusion-model", original("unet", &unet, "model.diffusion_model.")), ("vae", original("vae", &vae, ""))]
        {
            parts.insert(flag, folder.join(format!("{flag}.safetensors")));
            write_safetensors(&parts[flag], &tensors);
        }
        for (i, config) in self.text.iter().enumerate() {
            let flag = if i == 1 || self.is_sd2() { "clip_g" } else { "clip_l" };
            let network = Clip { config: config.clone(), layout: ClipLayout::Transformers };
            parts.insert(flag, folder.join(format!("{flag}.safetensors")));
            write_safetensors(&parts[flag], &tensors(COMPONENTS[i], &network));
        }
        parts
    }
}

/// The tensors of a network under diffusers' names.
fn tensors(component: &str, network: &dyn Network) -> BTreeMap<String, Tensor> {
    let mut tensors = BTreeMap::new();
    for graph in network.graphs().expect("it builds") {
        for (name, value) in graph.params() {
            let shape = graph.ty(value).shape.clone();
            tensors.insert(name.to_string(), (shape.clone(), parameter(&format!("{component}/{name}"), &shape)));
        }
    }
    tensors
}

/// The same under the names of an original checkpoint, joined and turned as those are.
pub fn original(component: &str, network: &(impl Network + Clone), prefix: &str) -> BTreeMap<String, Tensor> {
    let found = RecognisedNetwork::new(network.clone(), prefix);
    let ours = tensors(component, network);
    let mut shapes = TensorShapes::new();
    let mut file: BTreeMap<String, Tensor> = BTreeMap::new();
    // Where an upsampler stands depends on the attention before it, so upsamplers come last.
    let (late, early): (Vec<_>, Vec<_>) = ours.iter().partition(|(name, _)| name.contains("upsamplers"));
    for (name, (shape, data)) in early.into_iter().chain(late) {
        if name.contains("upsamplers") {
            let place = found.stored(name, &shapes).name;
            let attended = place.replace(".1.conv.", ".1.norm.");
            if shapes.contains_key(&attended.replace("bias", "weight")) {
                shapes.insert(place.replace(".1.conv.", ".2.conv."), shape.clone());
            }
        }
        let stored = found.stored(name, &shapes);
        match stored.take {
            TensorView::Whole => {
                file.insert(stored.name.clone(), (shape.clone(), data.clone()));
            }
            TensorView::Transposed => {
                let (rows, columns) = (shape[0], shape[1]);
                let turned = (0..rows * columns).map(|i| data[(i % rows) * columns + i / rows]).collect();
                file.insert(stored.name.clone(), (vec![columns, rows], turned));
            }
            TensorView::Rows(part, parts) => {
                let mut whole = shape.clone();
                whole[0] *= parts;
                let entry = file
                    .entry(stored.name.clone())
                    .or_insert_with(|| (whole.clone(), vec![0.0; whole.iter().product()]));
                entry.1[part * data.len()..][..data.len()].copy_from_slice(data);
            }
            TensorView::LastTap(taps) => {
                // What comes before it must not matter.
                let window = data.len() / (shape[0] * shape[1]);
                let others: Vec<f32> =
                    numbers(&format!("{component}/{name} before"), taps * data.len()).map(|u| u as f32).collect();
                let mut whole = others;
                for (i, last) in data.chunks_exact(window).enumerate() {
                    whole[(i * taps + taps - 1) * window..][..window].copy_from_slice(last);
                }
                let mut in_time = shape.clone();
                in_time.insert(2, taps);
                file.insert(stored.name.clone(), (in_time, whole));
            }
            TensorView::RowsFrom(first, of) => {
                let (row, mut whole) = (data.len() / shape[0], shape.clone());
                whole[0] = of;
                let entry = file.entry(stored.name.clone()).or_insert_with(|| (whole, vec![0.0; of * row]));
                entry.1[first * row..][..data.len()].copy_from_slice(data);
            }
        }
        shapes.insert(stored.name, shape.clone());
    }
    file
}

pub fn write_safetensors(path: &Path, tensors: &BTreeMap<String, Tensor>) {
    let mut header = serde_json::Map::new();
    let mut at = 0;
    for (name, (shape, data)) in tensors {
        let end = at + 4 * data.len();
        header.insert(name.clone(), json!({ "dtype": "F32", "shape": shape, "data_offsets": [at, end] }));
        at = end;
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend(tensors.values().flat_map(|(_, data)| data.iter().flat_map(|x| x.to_le_bytes())));
    std::fs::write(path, bytes).expect("written");
}

/// A file in halves, of a network's true size.
fn write_large(path: &Path, network: &dyn Network, numbers: bool) {
    let mut header = serde_json::Map::new();
    let mut at = 0;
    for graph in network.graphs().expect("it builds") {
        for (name, value) in graph.params() {
            let shape = &graph.ty(value).shape;
            let end = at + 2 * shape.iter().product::<usize>();
            if !header.contains_key(name) {
                header.insert(name.into(), json!({ "dtype": "F16", "shape": shape, "data_offsets": [at, end] }));
                at = end;
            }
        }
    }
    let mut text = serde_json::Value::Object(header).to_string();
    text += &" ".repeat((8 - text.len() % 8) % 8);
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).expect("created"));
    file.write_all(&(text.len() as u64).to_le_bytes()).expect("written");
    file.write_all(text.as_bytes()).expect("written");
    if numbers {
        // Halves between 2^-6 and 2^-5, of either sign.
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        for _ in 0..at / 8 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let four = (state & 0x83ff_83ff_83ff_83ff) | 0x2400_2400_2400_2400;
            file.write_all(&four.to_le_bytes()).expect("written");
        }
    }
    let file = file.into_inner().expect("written");
    file.set_len((8 + text.len() + at) as u64).expect("as long as it says");
}

/// Overwrite every number of a tensor.
pub fn overwrite(path: &Path, tensor: &str, value: f32) {
    let mut bytes = std::fs::read(path).expect("there");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
    let range = &header[tensor]["data_offsets"];
    let at = |i: usize| 8 + length + range[i].as_u64().expect("the tensor is there") as usize;
    let (start, end) = (at(0), at(1));
    bytes[start..end].chunks_exact_mut(4).for_each(|b| b.copy_from_slice(&value.to_le_bytes()));
    std::fs::write(path, bytes).expect("written");
}
