//! Diffusion transformers and their autoencoders against diffusers, scaled down but of the true structure. What a user would lose: pictures equal to the
//! reference.
//!
//! `tools/transformer_fixtures.py` made the outputs.

use crate::against::{compare, compare_part, given};
use impasto_graph::HostTensor;
use impasto_model::{
    CheckpointLayout, Flux, Flux2, Flux2Config, FluxConfig, QwenImage, QwenImageConfig, QwenVaeConfig, Sd3, Sd3Config,
    VaeConfig, ZImage, ZImageConfig, qwen_vae_decoder, qwen_vae_encoder, vae_decoder, vae_encoder,
};

const LAYOUT: CheckpointLayout = CheckpointLayout::Diffusers;

fn times<const N: usize>(of: [f32; N]) -> HostTensor {
    HostTensor::f32([N], of.to_vec()).expect("a number for each")
}

#[test]
fn flux_1() {
    for (name, guidance) in [("flux", true), ("schnell", false)] {
        let config = FluxConfig {
            width: 64,
            head: 32,
            inner: 256,
            double_blocks: 2,
            single_blocks: 2,
            text: 48,
            pooled: 24,
            guidance,
            ..FluxConfig::dev()
        };
        let flux = Flux { config, layout: LAYOUT };
        let [cos, sin] = flux.tables(7, [3, 5]).expect("tables");
        let mut inputs = vec![
            ("tokens", given(&format!("{name}.tokens"), &[2, 15, 64])),
            ("text", given(&format!("{name}.text"), &[2, 7, 48])),
            ("pooled", given(&format!("{name}.pooled"), &[2, 24])),
            ("time", times([900.0, 250.0])),
            ("cos", cos),
            ("sin", sin),
        ];
        if guidance {
            inputs.push(("guidance", times([3500.0, 2000.0])));
        }
        compare(&format!("{name}.velocity"), &|n| flux.graph(2, [15, 7], n).expect("it builds"), &inputs);
    }
}

#[test]
fn flux_2() {
    let config = Flux2Config {
        width: 64,
        head: 32,
        inner: 192,
        double_blocks: 2,
        single_blocks: 2,
        text: 48,
        ..Flux2Config::klein_4b()
    };
    let flux = Flux2 { config, layout: LAYOUT };
    let [cos, sin] = flux.tables(7, [3, 5]).expect("tables");
    let inputs = [
        ("tokens", given("flux2.tokens", &[2, 15, 128])),
        ("text", given("flux2.text", &[2, 7, 48])),
        ("time", times([900.0, 250.0])),
        ("cos", cos),
        ("sin", sin),
    ];
    compare("flux2.velocity", &|n| flux.graph(2, [15, 7], n).expect("it builds"), &inputs);
}

/// Tokens whose channels stand last, as a latent.
fn latent(tokens: &[f32], [channels, rows, columns]: [usize; 3]) -> Vec<f32> {
    let mut latent = vec![0.0; 4 * channels * rows * columns];
    for (i, x) in tokens.iter().take(latent.len()).enumerate() {
        let (token, place, c) = (i / (4 * channels), i / channels % 4, i % channels);
        let (row, column) = (2 * (token / columns) + place / 2, 2 * (token % columns) + place % 2);
        latent[(c * 2 * rows + row) * 2 * columns + column] = *x;
    }
    latent
}

/// A latent as tokens whose channels stand last.
fn tokens(of: &[f32], [channels, rows, columns]: [usize; 3]) -> Vec<f32> {
    let at: Vec<f32> = (0..of.len()).map(|i| i as f32).collect();
    let from = latent(&at, [channels, rows, columns]);
    let mut tokens = vec![0.0; of.len()];
    from.iter().zip(of).for_each(|(at, x)| tokens[*at as usize] = *x);
    tokens
}

/// Both texts in the room of the longer one: what the shorter does not fill is hidden.
#[test]
fn z_image() {
    let config =
        ZImageConfig { width: 96, head: 32, inner: 256, blocks: 2, text: 48, time: 96, ..ZImageConfig::published() };
    let z = ZImage { config, layout: LAYOUT };
    for (i, (text, time)) in [(37, 100.0), (5, 750.0)].into_iter().enumerate() {
        let filled_to = 32 * usize::div_ceil(text, 32);
        let picture = tokens(&given(&format!("z.latent{i}"), &[16, 6, 10]).to_f32(), [16, 3, 5]);
        let picture = [picture, vec![0.0; 17 * 64]].concat();
        let states = [given(&format!("z.text{i}"), &[text, 48]).to_f32(), vec![0.0; (64 - text) * 48]].concat();
        let fills = |at: &usize| (15..32).contains(at) || *at >= 32 + text;
        let [cos, sin] = z.tables(text, [3, 5]).expect("tables").map(|table| {
            let rows = table.shape()[0];
            HostTensor::f32([96, 16], [table.to_f32(), vec![0.0; (96 - rows) * 16]].concat()).expect("it fits")
        });
        let hidden = (0..96).map(|at| if at >= 32 + filled_to { f32::NEG_INFINITY } else { 0.0 }).collect();
        let inputs = [
            ("tokens", HostTensor::f32([1, 32, 64], picture).expect("it fits")),
            ("text", HostTensor::f32([1, 64, 48], states).expect("it fits")),
            ("time", times([time])),
            (
                "filled",
                HostTensor::f32([1, 96, 1], (0..96).map(|at| f32::from(u8::from(fills(&at)))).collect())
                    .expect("it fits"),
            ),
            ("hidden", HostTensor::f32([1, 1, 1, 96], hidden).expect("it fits")),
            ("cos", cos),
            ("sin", sin),
        ];
        let build = |n| z.graph(1, [32, 64], n).expect("it builds");
        compare_part(&format!("z.velocity{i}"), &build, &inputs, 0, &|out| latent(&out, [16, 3, 5]));
    }
}

#[test]
fn stable_diffusion_3() {
    for (name, head_norms, dual_blocks) in [("sd3", false, 0), ("sd35", true, 0), ("sd35m", true, 2)] {
        let config = Sd3Config {
            width: 64,
            head: 32,
            inner: 256,
            blocks: 3,
            dual_blocks,
            head_norms,
            side: 12,
            text: 48,
            pooled: 24,
            ..Sd3Config::large()
        };
        let sd3 = Sd3 { config, layout: LAYOUT };
        let inputs = [
            ("latent", given(&format!("{name}.latent"), &[2, 6, 10, 16])),
            ("text", given(&format!("{name}.text"), &[2, 7, 48])),
            ("pooled", given(&format!("{name}.pooled"), &[2, 24])),
            ("time", times([900.0, 250.0])),
            ("places", sd3.places([3, 5]).expect("places")),
        ];
        let build = |n| sd3.graph(2, [6, 10], 7, n).expect("it builds");
        let pick = |out: Vec<f32>| out.chunks(960).flat_map(|one| latent(one, [16, 3, 5])).collect();
        compare_part(&format!("{name}.velocity"), &build, &inputs, 0, &pick);
    }
}

/// Sides that are odd and even; some of the text's room is hidden.
#[test]
fn qwen_image() {
    let config =
        QwenImageConfig { width: 64, head: 32, inner: 256, blocks: 2, text: 48, ..QwenImageConfig::published() };
    let qwen = QwenImage { config };
    for (name, size, text) in [("qwen0", [3, 5], 9), ("qwen1", [4, 2], 6)] {
        let tokens = size[0] * size[1];
        let [cos, sin] = qwen.tables(9, size).expect("tables");
        let states = [given(&format!("{name}.text"), &[text, 48]).to_f32(), vec![0.0; (9 - text) * 48]].concat();
        let hidden = (0..9 + tokens).map(|at| if (text..9).contains(&at) { f32::NEG_INFINITY } else { 0.0 }).collect();
        let inputs = [
            ("tokens", given(&format!("{name}.tokens"), &[1, tokens, 64])),
            ("text", HostTensor::f32([1, 9, 48], states).expect("it fits")),
            ("time", times([900.0])),
            ("hidden", HostTensor::f32([1, 1, 1, 9 + tokens], hidden).expect("it fits")),
            ("cos", cos),
            ("sin", sin),
        ];
        compare(&format!("{name}.velocity"), &|n| qwen.graph(1, [tokens, 9], n).expect("it builds"), &inputs);
    }
}

#[test]
fn the_autoencoder_of_qwen_image() {
    let vae = QwenVaeConfig { latent: 16, channels: vec![32, 64, 128, 128], resnets: 1 };
    let inputs = [("latent", given("vaeq.latent", &[1, 4, 6, 16]))];
    // The reference keeps colours inside of their range.
    let clamped = |out: Vec<f32>| out.into_iter().map(|x| x.clamp(-1.0, 1.0)).collect();
    let build = |n| qwen_vae_decoder(&vae, [4, 6], n).expect("it builds");
    compare_part("vaeq.picture", &build, &inputs, 0, &clamped);
    let inputs = [("picture", given("vaeq.input", &[1, 32, 48, 3]))];
    compare("vaeq.moments", &|n| qwen_vae_encoder(&vae, [32, 48], n).expect("it builds"), &inputs);
}

#[test]
fn the_autoencoder_of_flux_2() {
    let vae = VaeConfig { latent: 32, channels: vec![32, 64, 64, 64], resnets: 1, quant_conv: true };
    let inputs = [("latent", given("vae32.latent", &[1, 4, 6, 32]))];
    compare("vae32.picture", &|n| vae_decoder(&vae, 1, [4, 6], n).expect("it builds"), &inputs);
    let inputs = [("picture", given("vae32.input", &[1, 32, 48, 3]))];
    compare("vae32.moments", &|n| vae_encoder(&vae, 1, [32, 48], n).expect("it builds"), &inputs);
}
