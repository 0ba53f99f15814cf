//! Modules of others on lavapipe, before and after our optimiser.

use crate::support::modules;
use impasto_kernel::blowup::Case;
use impasto_spirv::{Diff, DiffOptions, ModuleOptions, Words, compile_unoptimised, optimise_words};
use impasto_testkit::in_child;
use impasto_testkit::vulkan::open_for;
use std::collections::HashMap;

/// Devices by the capabilities that they were opened for.
type Devices = HashMap<Vec<u32>, impasto_vulkan::VulkanDevice>;

/// Compares a module with what we make of it; how many scalars the device rounded differently.
fn same(devices: &mut Devices, name: &str, words: &[u32], options: DiffOptions) -> usize {
    let made = optimise_words(words, ModuleOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}")).words;
    let diff = Diff::new(words, &made, options).unwrap_or_else(|e| panic!("{name}: {e}"));
    let capabilities = diff.capabilities();
    let device = devices.entry(capabilities.clone()).or_insert_with(|| open_for(&capabilities));
    let mut rounded = 0;
    for entry in diff.entries() {
        // SAFETY: spirv-val accepts both, which tests/modules.rs sees to; the executor ran both on the same buffers.
        let found = unsafe { diff.on_device(device, entry) }.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(found.first.is_none(), "{name}: {}", found.first.unwrap());
        assert!(found.changed > 0, "{name}: nothing was computed, so nothing is compared");
        rounded += found.rounded;
    }
    rounded
}

#[test]
fn shaders_compute_the_same_on_lavapipe() {
    if !in_child!("shaders_compute_the_same_on_lavapipe") {
        return;
    }
    let mut devices = Devices::new();
    let mut shaders = modules::glsl(1);
    shaders.extend(modules::wgsl(1));
    // This one Mesa 22.3 computes wrongly when it is optimised, by us or by spirv-opt: docs/kernel-opt.md.
    shaders.retain(|s| s.0 != "random_xorshift.comp");
    let mut rounded = Vec::new();
    for seed in impasto_testkit::kernel::programs(1) {
        for (name, words) in &shaders {
            let n = same(&mut devices, name, words, DiffOptions { seed, ..DiffOptions::default() });
            rounded.extend((n > 0).then(|| format!("{name} ({n})")));
        }
    }
    println!("{} modules; with other rounding: {rounded:?}", shaders.len());
}

#[test]
fn variables_across_joins_compute_the_same_on_lavapipe() {
    if !in_child!("variables_across_joins_compute_the_same_on_lavapipe") {
        return;
    }
    let mut devices = Devices::new();
    for case in ["sparse 120 120 2", "sparse 500 500 2", "loop 50 50 2", "loop 200 200 2"] {
        let case: Case = case.parse().unwrap();
        let words = compile_unoptimised(&case.kernel().unwrap()).unwrap().words();
        let elements = 64 * case.variables.max(case.joins);
        for plain_driver in [false, true] {
            let options = DiffOptions { groups: Some([1; 3]), elements, plain_driver, ..DiffOptions::default() };
            same(&mut devices, &case.to_string(), &words, options);
        }
    }
}
