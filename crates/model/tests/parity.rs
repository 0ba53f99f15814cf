//! The networks against diffusers and transformers, scaled down but of the true structure. What a user would lose: pictures equal to the reference.
//!
//! `tools/parity_fixtures.py` made the outputs; weights and inputs come from the same generator on both sides.

use crate::against::{compare, compare_part, fixture, given};
use impasto_graph::{HostTensor, Unary};
use impasto_model::{
    ClipConfig, ElementTypes, Heads, HiddenState, TaesdConfig, UnetConfig, VaeConfig, clip, taesd_decoder,
    taesd_encoder, unet, vae_decoder, vae_encoder,
};

fn sd1(in_channels: usize) -> UnetConfig {
    UnetConfig { in_channels, channels: vec![64, 128, 128, 128], context: 64, ..UnetConfig::sd15() }
}

#[test]
fn the_unet_of_stable_diffusion_1() {
    let inputs = [
        ("latent", given("sd1.latent", &[2, 16, 24, 4])),
        ("time", HostTensor::f32([2], vec![981.0, 7.0]).expect("two times")),
        ("context", given("sd1.context", &[2, 77, 64])),
    ];
    compare("sd1.noise", &|n| unet(&sd1(4), 2, [16, 24], 77, n).expect("it builds"), &inputs);
}

#[test]
fn the_unet_for_inpainting() {
    let inputs = [
        ("latent", given("inpaint.latent", &[1, 8, 8, 9])),
        ("time", HostTensor::f32([1], vec![500.0]).expect("one time")),
        ("context", given("inpaint.context", &[1, 77, 64])),
    ];
    compare("inpaint.noise", &|n| unet(&sd1(9), 1, [8, 8], 77, n).expect("it builds"), &inputs);
}

#[test]
fn the_unet_of_stable_diffusion_xl() {
    let config = UnetConfig {
        channels: vec![64, 128, 128],
        depth: vec![0, 1, 2],
        mid_depth: 2,
        heads: Heads::Width(64),
        context: 128,
        added: Some(256),
        ..UnetConfig::sdxl()
    };
    let inputs = [
        ("latent", given("xl.latent", &[2, 12, 20, 4])),
        ("time", HostTensor::f32([2], vec![981.0, 7.0]).expect("two times")),
        ("context", given("xl.context", &[2, 154, 128])),
        ("added", HostTensor::f32([2, 256], fixture("xl.added")).expect("pooled text and sizes")),
    ];
    compare("xl.noise", &|n| unet(&config, 2, [12, 20], 154, n).expect("it builds"), &inputs);
}

fn vae() -> VaeConfig {
    VaeConfig { channels: vec![32, 64, 64, 64], ..VaeConfig::sd() }
}

#[test]
fn the_decoder() {
    let inputs = [("latent", given("vae.latent", &[1, 6, 9, 4]))];
    compare("vae.picture", &|n| vae_decoder(&vae(), 1, [6, 9], n).expect("it builds"), &inputs);
}

#[test]
fn the_encoder() {
    let inputs = [("picture", given("vae.input", &[1, 48, 72, 3]))];
    compare("vae.moments", &|n| vae_encoder(&vae(), 1, [48, 72], n).expect("it builds"), &inputs);
}

/// A short text and one that fills the room.
fn token_ids() -> HostTensor {
    let (start, end) = (49_406, 49_407);
    let mut ids = vec![start, 320, 736, 1212, 11, 49_405];
    ids.resize(77, end);
    ids.push(start);
    ids.extend((0..75).map(|i| i * 613 % 49_406));
    ids.push(end);
    HostTensor::i32([2, 77], ids).expect("two texts")
}

/// What pipelines ask of a text encoder: the last state with its norm, the one before it without, the pooled text.
fn text_encoder(name: &str, activation: Unary) {
    let config = ClipConfig {
        width: 64,
        layers: 3,
        heads: 4,
        inner: 128,
        activation,
        projection: Some(48),
        ..ClipConfig::clip_l()
    };
    let inputs = [("ids", token_ids())];
    let build = |skip, norm| {
        let config = &config;
        move |n: ElementTypes| clip(config, 2, HiddenState { skip, norm }, n).expect("it builds")
    };
    compare(&format!("{name}.last"), &build(0, true), &inputs);
    compare(&format!("{name}.before"), &build(1, false), &inputs);
    // The first end-of-text token of each text: after its words.
    let ends = |all: Vec<f32>| [6, 77 + 76].iter().flat_map(|&row| all[row * 48..(row + 1) * 48].to_vec()).collect();
    compare_part(&format!("{name}.pooled"), &build(1, false), &inputs, 1, &ends);
}

#[test]
fn the_text_encoder_of_clip() {
    text_encoder("clip", Unary::QuickGelu);
}

#[test]
fn the_text_encoder_of_open_clip() {
    text_encoder("open_clip", Unary::Gelu);
}

#[test]
fn the_text_encoder_of_stable_diffusion_2() {
    let all =
        ClipConfig { width: 64, layers: 3, heads: 4, inner: 128, activation: Unary::Gelu, ..ClipConfig::open_clip_h() };
    let inputs = [("ids", token_ids())];
    // Original files have every layer, diffusers folders all but the last; both mean the same state.
    for (layers, skip) in [(3, 1), (2, 0)] {
        let config = ClipConfig { layers, ..all.clone() };
        let build = |n| clip(&config, 2, HiddenState { skip, norm: true }, n).expect("it builds");
        compare("sd2.text", &build, &inputs);
    }
}

#[test]
fn the_unet_of_stable_diffusion_2() {
    let config = UnetConfig {
        channels: vec![64, 128, 128, 128],
        context: 96,
        heads: Heads::Levels(vec![1, 2, 4, 4]),
        ..UnetConfig::sd21()
    };
    let inputs = [
        ("latent", given("sd2.latent", &[2, 8, 16, 4])),
        ("time", HostTensor::f32([2], vec![981.0, 7.0]).expect("two times")),
        ("context", given("sd2.context", &[2, 77, 96])),
    ];
    compare("sd2.noise", &|n| unet(&config, 2, [8, 16], 77, n).expect("it builds"), &inputs);
}

#[test]
fn the_autoencoder_with_sixteen_channels() {
    let config = VaeConfig { latent: 16, quant_conv: false, ..vae() };
    let inputs = [("latent", given("vae16.latent", &[1, 4, 5, 16]))];
    compare("vae16.picture", &|n| vae_decoder(&config, 1, [4, 5], n).expect("it builds"), &inputs);
    let inputs = [("picture", given("vae16.input", &[1, 32, 40, 3]))];
    compare("vae16.moments", &|n| vae_encoder(&config, 1, [32, 40], n).expect("it builds"), &inputs);
}

#[test]
fn the_tiny_autoencoder() {
    let config = TaesdConfig::sd();
    let far = given("taesd.latent", &[1, 5, 7, 4]).to_f32().into_iter().map(|x| 4.0 * x).collect();
    let inputs = [("latent", HostTensor::f32([1, 5, 7, 4], far).expect("a latent"))];
    compare("taesd.picture", &|n| taesd_decoder(&config, 1, [5, 7], n).expect("it builds"), &inputs);
    let inputs = [("picture", given("taesd.input", &[1, 40, 56, 3]))];
    compare("taesd.latent", &|n| taesd_encoder(&config, 1, [40, 56], n).expect("it builds"), &inputs);
}

/// That of FLUX.2, whose middle blocks have a group norm.
#[test]
fn the_tiny_autoencoder_of_flux_2() {
    let config = TaesdConfig::flux2();
    let far = given("taef2.latent", &[1, 3, 5, 32]).to_f32().into_iter().map(|x| 4.0 * x).collect();
    let inputs = [("latent", HostTensor::f32([1, 3, 5, 32], far).expect("a latent"))];
    compare("taef2.picture", &|n| taesd_decoder(&config, 1, [3, 5], n).expect("it builds"), &inputs);
    let inputs = [("picture", given("taef2.input", &[1, 24, 40, 3]))];
    compare("taef2.latent", &|n| taesd_encoder(&config, 1, [24, 40], n).expect("it builds"), &inputs);
}
