//! The real networks, planned: what a user would lose is the promise that every byte is known before the first allocation.

use impasto::backend::cpu::{Cpu, CpuOptions, Precision};
use impasto::graph::{DType, Graph, Plan, PlanError};
use impasto::model::{ElementTypes, UnetConfig, VaeConfig, unet, vae_decoder, vae_encoder};

/// A CPU with so much memory, whatever this machine has.
fn cpu(precision: Precision, memory: u64) -> Cpu {
    let options = CpuOptions { threads: Some(2), precision, memory: Some(memory), ..CpuOptions::default() };
    Cpu::new(&options).expect("there is a CPU")
}

fn networks(numbers: ElementTypes) -> Vec<(String, Graph)> {
    let (sd15, sd21, sdxl, vae) = (UnetConfig::sd15(), UnetConfig::sd21(), UnetConfig::sdxl(), VaeConfig::sd());
    let mut list = vec![];
    for (name, config, side) in
        [("sd15", &sd15, 64), ("sd15", &sd15, 128), ("sd21", &sd21, 96), ("sdxl", &sdxl, 128), ("sdxl", &sdxl, 96)]
    {
        list.push((format!("{name} unet {side}"), unet(config, 2, [side, side], 77, numbers).expect("it builds")));
    }
    for side in [64, 128, 256] {
        list.push((format!("vae decoder {side}"), vae_decoder(&vae, 1, [side, side], numbers).expect("it builds")));
        let size = [8 * side, 8 * side];
        list.push((format!("vae encoder {side}"), vae_encoder(&vae, 1, size, numbers).expect("it builds")));
    }
    list
}

#[test]
fn arenas_are_near_the_lower_bound_and_plans_hold() {
    for precision in [Precision::F32, Precision::Bf16] {
        let cpu = cpu(precision, u64::MAX);
        for numbers in [ElementTypes::F32, ElementTypes::BF16] {
            for (name, graph) in networks(numbers) {
                let plan = Plan::new(&graph, &cpu).expect("nothing limits it");
                plan.verify(&graph, &cpu).expect(&name);
                let ratio = plan.arena_bytes() as f64 / plan.lower_bound() as f64;
                assert!(ratio <= 1.10, "{name}: the arena is {ratio:.3} x the lower bound");
            }
        }
    }
}

#[test]
fn the_decoder_needs_little_memory() {
    let decoder = |side| vae_decoder(&VaeConfig::sd(), 1, [side, side], ElementTypes::F32).expect("it builds");
    for precision in [Precision::F32, Precision::Bf16] {
        let cpu = cpu(precision, u64::MAX);
        let arena = |side| Plan::new(&decoder(side), &cpu).expect("nothing limits it").arena_bytes();
        assert!(arena(64) <= 560_000_000, "512x512 takes {}", arena(64));
        assert!(arena(128) <= 2_200_000_000, "1024x1024 takes {}", arena(128));
    }
}

#[test]
fn the_order_does_not_depend_on_how_the_model_is_written() {
    // A residual block whose author computed the shortcut last: the planner must move it first, since the norm can
    // take the input's place only when nobody needs the input any more.
    let mut g = Graph::new();
    let text = "
        %x = input \"x\" : f32[1,64,64,256]
        %g = param \"norm.weight\" f32 : f32[256]
        %b = param \"norm.bias\" f32 : f32[256]
        %w1 = param \"conv1.weight\" f32 : f32[128,256,3,3]
        %w2 = param \"conv2.weight\" f32 : f32[128,128,3,3]
        %ws = param \"shortcut.weight\" f32 : f32[128,256,1,1]
        %in = affine(%x) scale=2.0 shift=0.0
        %n = group_norm(%in, %g, %b) groups=32 eps=1e-6 act=silu
        %h = conv2d(%n, %w1) stride=1 pad=[1,1,1,1] upsample=1
        %s = conv2d(%in, %ws) stride=1 pad=[0,0,0,0] upsample=1
        %y = conv2d(%h, %w2, residual=%s) stride=1 pad=[1,1,1,1] upsample=1
        output \"y\" = %y";
    g.clone_from(&text.parse().expect("it is a graph"));
    let plan = Plan::new(&g, &impasto::graph::Anything).expect("nothing limits it");
    let (large, small) = (64 * 64 * 256 * 4, 64 * 64 * 128 * 4);
    assert_eq!(plan.arena_bytes(), large + 2 * small);
}

#[test]
fn a_plan_that_does_not_fit_is_refused_with_the_numbers() {
    let graph = vae_decoder(&VaeConfig::sd(), 1, [64, 64], ElementTypes::F32).expect("it builds");
    let refused = Plan::new(&graph, &cpu(Precision::F32, 500_000_000)).expect_err("500 MB are too few");
    let PlanError::Memory { label, need, weights, arena, limit, .. } = &refused else { panic!("{refused}") };
    assert_eq!((*limit, *need), (500_000_000, weights + arena));
    assert!(label.starts_with("decoder.up_blocks.3"), "the peak is at the last level, not at {label}");
    let text = refused.to_string();
    assert!(text.contains("500000000") && text.contains(&need.to_string()), "{text}");
}

#[test]
fn activations_in_bf16_halve_what_flows_and_keep_the_stream() {
    let graph = unet(&UnetConfig::sd15(), 1, [8, 8], 77, ElementTypes::BF16).expect("it builds");
    let f32_sums = graph.values().filter(|&v| {
        let node = graph.node(v);
        node.op.roles().is_some_and(|r| r.contains(&"residual")) && node.ty.dtype == DType::F32
    });
    // 22 residual blocks and 16 transformers with four additions each.
    assert_eq!(f32_sums.count(), 22 + 16 * 4);
}
