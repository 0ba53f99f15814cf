//! Values that rest in host memory: in ever less memory of the device the same bits, and no byte more than was planned.

use std::sync::Arc;

use impasto_backend::{Backend, DeviceOptions, Precision};
use impasto_graph::{Banded, Graph, GraphError, May, Plan, PlanError};
use impasto_model::{ElementTypes, VaeConfig, vae_decoder, vae_encoder};

use super::common::banded::{difference, run};
use super::common::case::Case;
use super::common::cpus::{machines, open};
use super::common::machine::{Factors, Machine, same_bits};
use super::common::networks::tiny_vae;
use super::common::rng::{Rng, seed};

/// The software device as one with memory of its own, and with so much of it.
fn discrete(memory: Option<u64>) -> Arc<dyn Backend> {
    let options = DeviceOptions { precision: Precision::F32, as_if_discrete: true, memory, ..DeviceOptions::default() };
    open(&options)
}

fn check(graph: Graph, shares: &[u64]) {
    let case = Case::new(graph, &mut Rng::new(seed()));
    let whole = machines()[0].run(&case);
    let roomy = discrete(None);
    let plan = Plan::new(&case.graph, &*roomy.profile()).expect("it fits");
    let (weights, arena) = (plan.weight_bytes(), plan.arena_bytes());
    let mut rested = 0;
    for share in shares {
        // What is taken once for the device depends on its memory, and is small.
        let memory = weights + arena * share / 100 + discrete(Some(weights + arena)).profile().fixed_bytes();
        let device = discrete(Some(memory));
        let rest = May { rest: true, ..May::default() };
        let (banded, plan) =
            Banded::fit(&case.graph, &*device.profile(), 2, rest).unwrap_or_else(|e| panic!("{share} %: {e}"));
        plan.verify(&banded.graph, &*device.profile()).expect("it is right");
        assert!(weights + plan.arena_bytes() + device.profile().fixed_bytes() <= memory);
        rested += usize::from(plan.host_bytes() > 0);
        println!(
            "{share} %: {} bands, {} of {arena} bytes on the device, {} in host memory, {} copied",
            banded.cuts.bands(),
            plan.arena_bytes(),
            plan.host_bytes(),
            plan.rested_bytes(&banded.graph)
        );
        let small = device;
        let name = "discrete".into();
        let machine = Machine { backend: small.clone(), name, factors: Factors::F32, threads: 1, least: 0.0 };
        let session = machine.prepare(&case.in_bands(&banded));
        assert_eq!([session.allocated_bytes(), session.host_bytes()], [plan.arena_bytes(), plan.host_bytes()]);
        drop(session);
        let made = run(&case, &banded, &machine);
        assert!(same_bits(&whole, &made), "{share} %: other bits\n{}", difference(&whole, &made));
        assert!(small.meter().peak() <= memory, "{share} %: {} of {memory} bytes", small.meter().peak());
    }
    assert!(rested > 0, "nothing rested");
}

#[test]
fn a_decoder_in_a_third_of_the_memory() -> Result<(), GraphError> {
    check(vae_decoder(&tiny_vae(), 1, [40, 22], ElementTypes::F32)?, &[33]);
    Ok(())
}

impasto_testkit::trial! {
    long fn an_encoder_in_half_of_the_memory() -> Result<(), GraphError> {
        check(vae_encoder(&tiny_vae(), 1, [96, 64], ElementTypes::F32)?, &[50]);
        Ok(())
    }
}

/// The true size, by hand: `IMPASTO_REST_SIZE` is the side of the picture, `IMPASTO_TEST_DEVICE` may name a GPU.
#[test]
fn a_decoder_of_true_size_in_a_third_of_the_memory() -> Result<(), GraphError> {
    let Some(size) = std::env::var("IMPASTO_REST_SIZE").ok().and_then(|size| size.parse::<usize>().ok()) else {
        return Ok(());
    };
    let limited = |memory, max_buffer| {
        let options = DeviceOptions {
            precision: Precision::F32,
            as_if_discrete: true,
            memory,
            max_buffer,
            ..DeviceOptions::default()
        };
        open(&options)
    };
    let case = Case::new(vae_decoder(&VaeConfig::sd(), 1, [size / 8; 2], ElementTypes::F32)?, &mut Rng::new(seed()));
    let roomy = limited(None, None);
    // The whole, or where its largest tensor is too large for one buffer the bands that fit.
    let (whole, plan) = Banded::fit(&case.graph, &*roomy.profile(), 1, May::default()).expect("it fits");
    let need = plan.weight_bytes() + plan.arena_bytes() + roomy.profile().fixed_bytes();
    let small = limited(Some(need / 3), Some(256 << 20));
    let rest = May { rest: true, ..May::default() };
    let (banded, plan) = Banded::fit(&case.graph, &*small.profile(), 2, rest).unwrap_or_else(|e| panic!("{e}"));
    assert!(plan.largest_binding() <= 256 << 20);
    let (bands, copied) = (banded.cuts.bands(), plan.rested_bytes(&banded.graph));
    println!("{need} bytes whole; {bands} bands, {} bytes rest, {copied} are copied", plan.host_bytes());
    let machine = |device: Arc<dyn Backend>| Machine {
        backend: device,
        name: "discrete".into(),
        factors: Factors::F32,
        threads: 1,
        least: 0.0,
    };
    let timed = |banded: &Banded, device: Arc<dyn Backend>| {
        let machine = machine(device);
        let cut = case.in_bands(banded);
        let mut session = machine.prepare(&cut);
        // Twice: the first run is not the time of the second.
        let mut results = session.run_to_new(&cut.inputs()).expect("it runs");
        let begun = std::time::Instant::now();
        session.run(&cut.inputs(), &mut results).expect("it runs again");
        println!("{} bands: {:.3} s", banded.cuts.bands(), begun.elapsed().as_secs_f64());
        let names = banded.graph.outputs().iter().map(|o| o.name.as_str());
        let made = banded.cuts.join(names, results).expect("bands fit together");
        (made, machine.backend.meter().peak())
    };
    let (want, _) = timed(&whole, roomy);
    let (made, peak) = timed(&banded, small);
    assert!(same_bits(&want, &made), "other bits\n{}", difference(&want, &made));
    assert!(peak <= need / 3, "{peak} of {} bytes", need / 3);
    Ok(())
}

#[test]
fn nothing_rests_where_host_and_device_share_their_memory() -> Result<(), GraphError> {
    let graph = vae_decoder(&tiny_vae(), 1, [20, 22], ElementTypes::F32)?;
    let unified = &machines()[0].backend;
    let whole = Plan::new(&graph, &*unified.profile()).expect("it fits");
    let options =
        DeviceOptions { precision: Precision::F32, memory: Some(whole.arena_bytes() / 4), ..DeviceOptions::default() };
    let small = open(&options);
    let refused = Plan::fit(graph, &*small.profile(), May { rest: true, ..May::default() });
    assert!(matches!(refused, Err(PlanError::Memory { .. })));
    Ok(())
}
