//! Real kernels: right on the executor before and after the pipeline.

use impasto_kernel::{execute, optimise};
use impasto_testkit::kernel::kernels::{all, right};

#[test]
fn real_kernels_compute_what_plain_rust_computes() {
    for seed in impasto_testkit::kernel::programs(3) {
        for case in all(seed) {
            for kernel in [case.kernel.clone(), optimise(&case.kernel).unwrap()] {
                let mut launch = case.launch.clone();
                execute(&kernel, &mut launch).unwrap_or_else(|e| panic!("{e}"));
                right(&case, &launch.buffers).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{kernel}"));
            }
        }
    }
}
