//! From files to networks. What a user would lose: a model that just works, or a sentence that says why it does not.

mod common;

use std::path::{Path, PathBuf};

use common::{Entry, sparse};
use impasto_backend::WeightSource;
use impasto_graph::{DType, Storage};
use impasto_model::{ClipConfig, Family, Hidden, Model, ModelPaths, Prediction, UnetConfig, VaeConfig};
use tempfile::TempDir;

fn header(name: &str) -> Vec<Entry> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/headers/{name}.txt"));
    let text = std::fs::read_to_string(path).expect("the fixture is in the repository");
    let line = |line: &str| {
        let (name, shape) = line.split_once(' ').expect("a name and a shape");
        (name.to_string(), "F16", shape.split(',').map(|d| d.parse().expect("a number")).collect())
    };
    text.lines().map(line).collect()
}

fn whole(path: PathBuf) -> ModelPaths {
    ModelPaths { model: Some(path), ..ModelPaths::default() }
}

#[test]
fn one_file_is_a_whole_model() {
    let folder = TempDir::new().expect("a temporary folder");
    let path = sparse(&folder.path().join("sd15.safetensors"), &header("sd15_original"), &[]);
    let model = Model::open(&whole(path)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((model.family, model.prediction, model.turbo), (Family::Sd1, Prediction::Epsilon, false));
    assert_eq!(model.text[0].config, ClipConfig::clip_l());
    assert_eq!(model.hidden, [Hidden { skip: 0, norm: true }]);
    assert_eq!((&model.unet.config, &model.vae.config), (&UnetConfig::sd15(), &VaeConfig::sd()));
    assert_eq!((model.latent.factor, model.latent.shift, model.size), (0.18215, 0.0, [512, 512]));
    assert_eq!(model.unused, [""; 0]);
    assert_eq!(model.unet.storage(), Storage::Dense(DType::F16));
    // A 1x1 convolution that we compute as a matrix.
    let q = model.vae.read("decoder.mid_block.attentions.0.to_q.weight").expect("it is there");
    assert_eq!((q.shape, q.bytes.len()), (vec![512, 512], 2 * 512 * 512));

    let path = sparse(&folder.path().join("sdxl_turbo.safetensors"), &header("sdxl_original"), &[]);
    let model = Model::open(&whole(path)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((model.family, model.turbo, model.latent.factor), (Family::Sdxl, true, 0.13025));
    assert_eq!([&model.text[0].config, &model.text[1].config], [&ClipConfig::clip_l(), &ClipConfig::open_clip_g()]);
    assert_eq!(model.hidden, [Hidden { skip: 1, norm: false }; 2]);
    assert_eq!(model.unused, [""; 0]);
}
