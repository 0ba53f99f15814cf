//! Graphs in bands against the same graphs whole, bit by bit, on a Vulkan device. `IMPASTO_BAND_CASES=1` tries all networks.

use impasto_graph::{Banded, Cutting, Graph, GraphError, May, Plan, PlanError};
use impasto_model::{ElementTypes, vae_decoder};

use super::common::banded::{check, random_cutting, run};
use super::common::case::Case;
use super::common::cpus::{machines, open};
use super::common::machine::{Factors, Machine, same_bits};
use super::common::networks::{tiny_networks, tiny_vae};
use super::common::rng::{Rng, cases, seed};
use impasto_testkit::graph::random_graph::{Kind, random_graph};

#[test]
fn random_graphs_yield_the_same_bits_in_bands() {
    cases(3, |i, rng| {
        let case = Case::new(random_graph(rng, 4 + 2 * i, Kind::Tame), rng);
        let cutting = random_cutting(&case, rng);
        check(&case, &cutting, &machines()[rng.below(machines().len())]);
    });
}

impasto_testkit::trial! {
    long fn networks_yield_the_same_bits_in_bands() -> Result<(), GraphError> {
        let rng = &mut Rng::new(seed());
        // Each run of the tests tries one of them: a software device compiles for seconds.
        let networks: [Graph; 4] = tiny_networks(ElementTypes::F32)?;
        let all = std::env::var_os("IMPASTO_BAND_CASES").is_some();
        let some = if all { networks.to_vec() } else { vec![rng.pick(&networks)] };
        for case in some.into_iter().map(|graph| Case::new(graph, rng)).collect::<Vec<_>>() {
            let bands = check(&case, &Cutting::bands(&case.graph, 2 + rng.below(3) as u64), &machines()[0]);
            assert!(bands > 1, "nothing was cut");
        }
        Ok(())
    }
}

/// A device whose largest buffer is too small for the whole: the bands that fit it yield what a larger device yields whole.
#[test]
fn a_small_binding_limit_is_met_exactly() -> Result<(), GraphError> {
    use impasto_backend::{DeviceOptions, Precision};
    // Large enough that tensors are larger than weights.
    let decoder = vae_decoder(&tiny_vae(), 1, [20, 22], ElementTypes::F32)?;
    let case = Case::new(decoder, &mut Rng::new(seed()));
    let largest = Plan::new(&case.graph, &*machines()[0].backend.profile()).expect("it fits").largest_binding();
    let options =
        DeviceOptions { precision: Precision::F32, max_buffer: Some(largest / 3), ..DeviceOptions::default() };
    let small = open(&options);
    let refused = Plan::new(&case.graph, &*small.profile());
    assert!(matches!(refused, Err(PlanError::Binding { .. } | PlanError::Allocation { .. })), "{refused:?}");
    let (banded, plan) = Banded::fit(&case.graph, &*small.profile(), 1, May::default()).expect("bands fit");
    assert!(plan.largest_binding() <= largest / 3 && banded.cuts.bands() > 1);
    let small = Machine { backend: small, name: "small".into(), factors: Factors::F32, threads: 1, least: 0.0 };
    let whole = machines()[0].run(&case);
    let bands = run(&case, &banded, &small);
    assert!(same_bits(&whole, &bands), "other bits in {} bands", banded.cuts.bands());
    Ok(())
}
