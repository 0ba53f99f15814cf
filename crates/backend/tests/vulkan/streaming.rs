//! Streamed weights, from host memory that the device reads itself and from memory like any other: the same bits in ever less memory
//! of the device, and no byte more than was planned.

use std::sync::Arc;

use impasto_backend::{DeviceOptions, HostWeights, Precision, SharedSource, WeightSource};
use impasto_graph::{GraphError, Plan};
use impasto_model::{ElementTypes, vae_decoder};

use super::common::banded::difference;
use super::common::case::Case;
use super::common::cpus::{machines, open};
use super::common::machine::same_bits;
use super::common::networks::tiny_vae;
use super::common::rng::{Rng, seed};

#[test]
fn weights_are_streamed_from_every_memory() -> Result<(), GraphError> {
    let case = Case::new(vae_decoder(&tiny_vae(), 1, [10, 6], ElementTypes::F32)?, &mut Rng::new(seed()));
    let whole = machines()[0].run(&case);
    let limited = |memory| {
        let options =
            DeviceOptions { precision: Precision::F32, as_if_discrete: true, memory, ..DeviceOptions::default() };
        open(&options)
    };
    let roomy = limited(None);
    let plan = Plan::new(&case.graph, &*roomy.profile()).expect("it fits");
    let mapped_elsewhere = roomy.pack_on_host(&case.graph, &plan, &case).expect("it packs");
    assert!(mapped_elsewhere.host_mapped().is_some() && mapped_elsewhere.bytes() == plan.weight_bytes());
    let mut streamed = 0;
    for share in [90, 60, 40] {
        let fixed = limited(Some(plan.weight_bytes() + plan.arena_bytes())).profile().fixed_bytes();
        let budget = plan.weight_bytes() * share / 100 + plan.arena_bytes() + fixed;
        let device = limited(Some(budget));
        let Ok(plan) = Plan::streamed(&case.graph, &*device.profile()) else { continue };
        streamed += usize::from(plan.stream().is_some());
        let mapped = device.pack_on_host(&case.graph, &plan, &case).expect("it packs");
        let plain = HostWeights::plain(&*device.profile(), &case.graph, &plan, &case).expect("it packs");
        assert!(mapped.host_mapped().is_some() && plain.host_mapped().is_none());
        // Of the same device, of the same card opened another time, and of no device.
        let again = HostWeights::plain(&*device.profile(), &case.graph, &plan, &plain).expect("it packs");
        let another = roomy.pack_on_host(&case.graph, &plan, &again).expect("it packs");
        for host in [mapped, plain, another] {
            let host: SharedSource = Arc::new(host);
            let weights = device.pack(&case.graph, &plan, &*host).expect("it packs").fed_by(host);
            let mut session = device.prepare(&case.graph, &plan, &weights).expect("it is prepared");
            for _ in 0..3 {
                let made = session.run_to_new(&case.inputs()).expect("it runs");
                assert!(same_bits(&whole, &made), "{share} %: other bits\n{}", difference(&whole, &made));
            }
            assert_eq!(session.streaming().map(|s| s.bytes), plan.stream().map(|s| s.streamed_bytes()));
        }
        assert!(device.meter().peak() <= budget, "{share} %: {} of {budget} bytes", device.meter().peak());
    }
    assert!(streamed > 0, "no weight was streamed");
    Ok(())
}
