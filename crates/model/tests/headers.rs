//! Files like those that people have, without their weights: a header, and a hole where the numbers would be.
//! `tools/header_fixtures.py` made the lists and says how they are written.
use std::collections::BTreeMap;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The tensors of a file: element type and shape by name.
pub type Tensors = BTreeMap<String, (String, Vec<usize>)>;

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/headers").join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn shape(text: Option<&str>) -> Vec<usize> {
    text.map(|t| t.split(',').map(|d| d.parse().expect("a number")).collect()).unwrap_or_default()
}

/// The tensors of one network, below a prefix.
pub fn part(name: &str, prefix: &str, element: &str) -> Tensors {
    let mut tensors = Tensors::new();
    let mut last = String::new();
    for line in fixture(&format!("parts/{name}.txt")).lines() {
        let mut fields = line.split(' ');
        let shared = fields.next().and_then(|n| n.parse().ok()).expect("how much of the last name");
        last.truncate(shared);
        last.push_str(fields.next().expect("the rest of the name"));
        tensors.insert(format!("{prefix}{last}"), (element.into(), shape(fields.next())));
    }
    tensors
}

/// A file as people have it.
pub fn layout(name: &str) -> Tensors {
    let mut tensors = Tensors::new();
    for line in fixture(&format!("{name}.txt")).lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        match fields[..] {
            ["+", prefix, name, element] => tensors.extend(part(name, prefix.trim_start_matches('-'), element)),
            ["=", name, element, ..] => {
                tensors.insert(name.into(), (element.into(), shape(fields.get(3).copied())));
            }
            _ => panic!("{name}: '{line}'"),
        }
    }
    tensors
}

/// The config.json of a component.
pub fn config(name: &str) -> String {
    fixture(&format!("configs/{name}.json"))
}

fn bytes_of(element: &str) -> usize {
    match element {
        "F64" | "I64" => 8,
        "F32" | "I32" => 4,
        "F16" | "BF16" | "I16" => 2,
        _ => 1,
    }
}

/// The bytes of the tensors that are not zero, by name and shape.
pub type Bytes<'a> = &'a dyn Fn(&str, &[usize]) -> Option<Vec<u8>>;

/// Write a file with these tensors, all zero but those of `numbers`. It takes no room on a disk that knows holes.
pub fn sparse_with(path: &Path, tensors: &Tensors, metadata: &[(&str, &str)], numbers: Bytes) -> PathBuf {
    let mut fields = vec![];
    if !metadata.is_empty() {
        let pairs: Vec<String> = metadata.iter().map(|(k, v)| format!("{k:?}:{v:?}")).collect();
        fields.push(format!("\"__metadata__\":{{{}}}", pairs.join(",")));
    }
    let (mut at, mut given) = (0, vec![]);
    for (name, (element, shape)) in tensors {
        let elements = if shape.contains(&0) { 0 } else { shape.iter().product::<usize>() };
        let end = at + elements * bytes_of(element);
        fields.push(format!(r#""{name}":{{"dtype":"{element}","shape":{shape:?},"data_offsets":[{at},{end}]}}"#));
        given.extend(numbers(name, shape).map(|bytes| (at, bytes)));
        at = end;
    }
    let header = format!("{{{}}}", fields.join(","));
    let start = 8 + header.len();
    fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("it can be made");
    let mut file = fs::File::create(path).expect("it can be made");
    file.write_all(&(header.len() as u64).to_le_bytes()).expect("it can be written");
    file.write_all(header.as_bytes()).expect("it can be written");
    file.set_len((start + at) as u64).expect("a hole costs nothing");
    for (at, bytes) in given {
        file.seek(SeekFrom::Start((start + at) as u64)).expect("it is inside");
        file.write_all(&bytes).expect("it can be written");
    }
    path.into()
}

/// Write a file with these tensors, all zero.
pub fn sparse(path: &Path, tensors: &Tensors, metadata: &[(&str, &str)]) -> PathBuf {
    sparse_with(path, tensors, metadata, &|_, _| None)
}

/// Write a text file, and the folders that it is in.
pub fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("it can be made");
    fs::write(path, text).expect("it can be written");
}

/// A whole diffusers folder.
pub struct Folder {
    /// `sd1`, `sd2` or `xl`.
    pub family: &'static str,
    /// What stands before `.safetensors`: nothing, or `.fp16`.
    pub variant: &'static str,
    /// The scheduler's configuration.
    pub scheduler: &'static str,
}

pub const SCHEDULER: &str = r#"{"_class_name":"PNDMScheduler","beta_end":0.012,"beta_schedule":"scaled_linear",
    "beta_start":0.00085,"num_train_timesteps":1000,"prediction_type":"epsilon","timestep_spacing":"leading","trained_betas":null}"#;

impl Folder {
    pub fn write(&self, folder: &Path) {
        let Folder { family, variant, scheduler } = self;
        let class = if *family == "xl" { "StableDiffusionXLPipeline" } else { "StableDiffusionPipeline" };
        write(
            &folder.join("model_index.json"),
            &format!(r#"{{"_class_name":"{class}","unet":["diffusers","UNet2DConditionModel"]}}"#),
        );
        write(&folder.join("scheduler/scheduler_config.json"), scheduler);
        let (text, vae, vae_config): (&[&str], _, _) = match *family {
            "sd1" => (&["clip_l"], "vae_diffusers_old", "vae_sd1"),
            "sd2" => (&["clip_h"], "vae_diffusers", "vae_sd1"),
            _ => (&["clip_l", "clip_g"], "vae_diffusers", "vae_xl"),
        };
        let unet = format!("unet_{family}");
        let mut components = vec![
            ("unet", "diffusion_pytorch_model", format!("{unet}_diffusers"), unet.as_str()),
            ("vae", "diffusion_pytorch_model", vae.to_string(), vae_config),
        ];
        for (i, name) in text.iter().enumerate() {
            components.push((["text_encoder", "text_encoder_2"][i], "model", name.to_string(), name));
            write(&folder.join(["tokenizer", "tokenizer_2"][i]).join("vocab.json"), "{}");
        }
        for (component, file, tensors, json) in components {
            let at = folder.join(component);
            write(&at.join("config.json"), &config(json));
            sparse(&at.join(format!("{file}{variant}.safetensors")), &part(&tensors, "", "F16"), &[]);
        }
    }
}
