//! Real layouts, recognised by structure. What a user would lose: a model file that just works.
//!
//! `fixtures/headers` has the names and shapes of true-size checkpoints.

use crate::headers;
use impasto_graph::{Graph, Unary};
use impasto_model::{
    CheckpointLayout, Clip, ClipConfig, ClipLayout, ElementTypes, FAMILIES, HiddenState, Network, RecognisedNetwork,
    TensorShapes, TensorView, Unet, UnetConfig, Vae, VaeConfig, clip, recognise, unet, usage, vae_decoder, vae_encoder,
};

fn header(name: &str) -> TensorShapes {
    headers::layout(name).into_iter().map(|(name, (_, shape))| (name, shape)).collect()
}

fn text(config: ClipConfig, layout: ClipLayout) -> Clip {
    Clip { config, layout }
}

/// The networks are these, in this order.
#[track_caller]
fn same(found: &[RecognisedNetwork], wanted: &[&dyn Network]) {
    let show = |network: &dyn Network| format!("{network:?}");
    let found: Vec<String> = found.iter().map(|f| show(&*f.network)).collect();
    assert_eq!(found, wanted.iter().map(|network| show(*network)).collect::<Vec<_>>());
}

/// The family that a UNet belongs to.
fn family(config: UnetConfig) -> Option<&'static str> {
    let unet = Unet { config, layout: CheckpointLayout::Original };
    FAMILIES.iter().find_map(|family| family.recognises(&unet))
}

/// Every parameter is in the file, in its shape.
fn check_params(found: &RecognisedNetwork, shapes: &TensorShapes) {
    let ones = |shape: &[usize]| shape.iter().copied().filter(|&d| d != 1).collect::<Vec<_>>();
    for graph in found.graphs().expect("they build") {
        for (name, value) in graph.params() {
            let stored = found.stored(name, shapes);
            let Some(shape) = shapes.get(&stored.name) else { panic!("{name} is not in the file as {}", stored.name) };
            let mut want = graph.ty(value).shape.clone();
            match stored.take {
                TensorView::Whole => {}
                TensorView::Rows(part, parts) => {
                    assert!(part < parts);
                    want[0] *= parts;
                }
                TensorView::RowsFrom(first, of) => {
                    assert!(first + want[0] <= of);
                    want[0] = of;
                }
                TensorView::LastTap(taps) => want.insert(2, taps),
                TensorView::Transposed => want.reverse(),
            }
            assert_eq!(ones(shape), ones(&want), "{name} as {}", stored.name);
        }
    }
}

/// Recognise a file, check all parameters, and return its networks and what nobody uses.
fn examine(shapes: &TensorShapes) -> (Vec<RecognisedNetwork>, Vec<String>) {
    let (found, _) = recognise(FAMILIES, shapes);
    found.iter().for_each(|f| check_params(f, shapes));
    let (_, rest) = usage(shapes, &found).expect("they build");
    (found, rest)
}

#[test]
fn stable_diffusion_1_in_one_file() {
    let (found, rest) = examine(&header("sd15_pruned_emaonly_f16"));
    same(
        &found,
        &[
            &text(ClipConfig::clip_l(), ClipLayout::Transformers),
            &Unet { config: UnetConfig::sd15(), layout: CheckpointLayout::Original },
            &Vae { config: VaeConfig::sd(), layout: CheckpointLayout::Original },
        ],
    );
    assert_eq!(family(UnetConfig::sd15()), Some("Stable Diffusion 1"));
    assert_eq!(family(UnetConfig::sd21()), Some("Stable Diffusion 2"));
    assert_eq!(rest, ["cond_stage_model.transformer.text_model.embeddings.position_ids"]);
}

#[test]
fn stable_diffusion_xl_in_one_file() {
    let (found, rest) = examine(&header("sdxl_base"));
    same(
        &found,
        &[
            &text(ClipConfig::clip_l(), ClipLayout::Transformers),
            &text(ClipConfig::open_clip_g(), ClipLayout::OpenClip),
            &Unet { config: UnetConfig::sdxl(), layout: CheckpointLayout::Original },
            &Vae { config: VaeConfig::sd(), layout: CheckpointLayout::Original },
        ],
    );
    assert_eq!(family(UnetConfig::sdxl()), Some("Stable Diffusion XL"));
    let places = "conditioner.embedders.0.transformer.text_model.embeddings.position_ids";
    assert_eq!(rest, [places, "conditioner.embedders.1.model.logit_scale", "denoiser.sigmas"]);
}

#[test]
fn inpainting_has_nine_channels_in() {
    let (found, _) = examine(&header("sd15_inpainting"));
    let Some(unet) = found[1].network.downcast::<Unet>() else { panic!("{:?}", found[1]) };
    assert_eq!(unet.config, UnetConfig { in_channels: 9, ..UnetConfig::sd15() });
}

#[test]
fn what_real_files_carry_besides_is_reported_and_harmless() {
    let mut shapes = header("sd15_pruned_emaonly_f16");
    let extra = [
        ("model_ema.decay", vec![]),
        ("betas", vec![1000]),
        ("cond_stage_model.transformer.text_model.embeddings.position_ids", vec![1, 77]),
        ("optimizer_states.0", vec![3]),
    ];
    shapes.extend(extra.iter().map(|(name, shape)| (name.to_string(), shape.clone())));
    let (found, rest) = examine(&shapes);
    assert_eq!(found.len(), 3);
    let mut names: Vec<&str> = extra.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    assert_eq!(rest, names);
}

#[test]
fn diffusers_components_and_small_models_are_recognised_by_the_same_code() {
    let sizes = |graph: &Graph| {
        graph.params().map(|(n, v)| (n.to_string(), graph.ty(v).shape.clone())).collect::<TensorShapes>()
    };
    let configs = [
        UnetConfig::sd15(),
        UnetConfig::sd21(),
        UnetConfig::sdxl(),
        UnetConfig { channels: vec![64, 128, 64], depth: vec![0, 1, 1], context: 128, ..UnetConfig::sd15() },
        UnetConfig {
            in_channels: 9,
            channels: vec![64, 128],
            depth: vec![1, 2],
            mid_depth: 2,
            resnets: 1,
            ..UnetConfig::sd21()
        },
    ];
    for config in configs {
        let shapes = sizes(&unet(&config, 1, [8, 8], 77, ElementTypes::F32).expect("it builds"));
        let (found, rest) = examine(&shapes);
        same(&found, &[&Unet { config, layout: CheckpointLayout::Diffusers }]);
        assert_eq!(found[0].prefix, "");
        assert_eq!(rest, [""; 0]);
    }
    let small = VaeConfig { channels: vec![32, 32, 64, 96], latent: 16, quant_conv: false, ..VaeConfig::sd() };
    for config in [VaeConfig::sd(), small] {
        let mut shapes = sizes(&vae_decoder(&config, 1, [8, 8], ElementTypes::F32).expect("it builds"));
        shapes.extend(sizes(&vae_encoder(&config, 1, [64, 64], ElementTypes::F32).expect("it builds")));
        let wanted = Vae { config, layout: CheckpointLayout::Diffusers };
        assert_eq!(examine(&shapes).0[0].network.downcast::<Vae>(), Some(&wanted));
    }
    for config in [ClipConfig::clip_l(), ClipConfig::open_clip_g()] {
        let shapes =
            sizes(&clip(&config, 1, HiddenState { skip: 0, norm: true }, ElementTypes::F32).expect("it builds"));
        let (found, _) = examine(&shapes);
        let clip = found[0].network.downcast::<Clip>().expect("a text encoder");
        assert_eq!((&clip.config, clip.layout), (&config, ClipLayout::Transformers));
        assert!(matches!(clip.config.activation, Unary::QuickGelu | Unary::Gelu));
    }
}

#[test]
fn a_file_of_something_else_has_no_networks() {
    let shapes: TensorShapes = [("model.embed_tokens.weight".to_string(), vec![32_000, 4096])].into();
    assert!(recognise(FAMILIES, &shapes).0.is_empty());
    assert!(recognise(FAMILIES, &TensorShapes::new()).0.is_empty());
}
