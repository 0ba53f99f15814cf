//! Real kernels are short, compared with what `spirv-opt -O` leaves, and become Metal. `kernel/tests/kernels.rs` holds them to what they compute.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::spirv_opt;
use impasto_spirv::{Words, compile, compile_unoptimised, count_instructions};
use impasto_testkit::kernel::kernels::all;

#[test]
fn the_passes_leave_no_more_than_spirv_opt() {
    let (mut ours, mut theirs, mut unoptimised) = (0, 0, 0);
    let (mut our_time, mut their_time) = (Duration::ZERO, Duration::ZERO);
    let cases = all(0);
    assert!(cases.len() >= 30, "only {} kernels", cases.len());
    for case in &cases {
        let begin = Instant::now();
        let a = count_instructions(&compile(&case.kernel).unwrap().words());
        our_time += begin.elapsed();
        let plain = compile_unoptimised(&case.kernel).unwrap();
        let (words, time) = spirv_opt(&plain.words());
        their_time += time;
        let b = count_instructions(&words);
        let before = count_instructions(&plain.words());
        println!("{:18} {a:4} instructions of {before:4}, spirv-opt -O {b:4}", case.kernel.name);
        unoptimised += before;
        ours += a;
        theirs += b;
    }
    println!("all                {ours:4} instructions, spirv-opt -O {theirs:4}: {:.2}", ours as f64 / theirs as f64);
    println!("{} kernels: compiled in {our_time:.1?}, spirv-opt -O takes {their_time:.1?}", cases.len());
    assert!(theirs < unoptimised, "spirv-opt did nothing, so nothing is compared");
    assert!(ours as f64 <= 1.10 * theirs as f64, "{ours} instructions, spirv-opt -O leaves {theirs}");
}

#[test]
fn real_kernels_become_metal() {
    // Metal users come through spirv-cross. Integers of 64 bits need version 2.2, of 2019.
    let folder = tempfile::tempdir().unwrap();
    for case in all(0) {
        let file = folder.path().join("in.spv");
        let module = compile(&case.kernel).unwrap();
        std::fs::write(&file, module.words().iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
        let done = Command::new("spirv-cross").args(["--msl", "--msl-version", "20200"]).arg(&file).output();
        let done = done.expect("spirv-cross cannot be run: install it, as tools/test.sh does");
        let text = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{}: {}", case.kernel.name, String::from_utf8_lossy(&done.stderr));
        // Names that Metal has for something else become others.
        assert!(text.contains("kernel void "), "{}: {text}", case.kernel.name);
    }
}
