//! The validation layer watches some of these tests: a driver may do anything with a call that breaks a rule of Vulkan.

use std::process::Command;

/// One of each kind of work: kernels with and without scratch memory, tables, products with all their endings, weights of every storage, ways
/// in and out by way of a stage.
const WATCHED: [&str; 5] = [
    "norms::group_norm_of_awkward_sizes",
    "lookups::rows_of_tables_of_every_storage",
    "movement::one_after_the_other_along_every_axis",
    "parameters::parameters_may_be_renamed_and_may_be_results",
    "products::linear_layers_of_quantised_weights",
];

impasto_testkit::trial! {
    /// That the layer is there and speaks up is tested where kernels are (`the_layer_really_watches`).
    long fn the_validation_layer_has_nothing_to_say() {
        let done = Command::new(std::env::current_exe().expect("this program"))
            .args(WATCHED)
            .args(["--exact", "--nocapture", "--test-threads", "1"])
            .env("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation")
            .output()
            .expect("the child starts");
        let said = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        let passed = done.status.success() && said.contains(&format!("{} passed", WATCHED.len()));
        assert!(passed, "install vulkan-validationlayers, as tools/test.sh does\n{said}");
        assert!(!said.contains("Validation") && !said.contains("VUID"), "{said}");
    }
}
