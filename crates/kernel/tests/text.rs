//! The textual form. Whoever reads a dump, or writes a file test, relies on it saying all of the kernel.

use impasto_kernel::{Builder, Kernel, KernelError, execute, verify};
use impasto_testkit::kernel::{gemm, outputs, programs, random, same};

#[test]
fn reading_what_was_printed_gives_the_same_kernel() {
    for seed in programs(100) {
        let kernel = random::kernel(seed, 30);
        let text = kernel.to_string();
        let again: Kernel = text.parse().unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
        verify(&again).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(again.to_string(), text, "seed {seed}");
        let (a, b) = (outputs(&kernel, seed), outputs(&again, seed));
        same(&a.unwrap(), &b.unwrap()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn damaged_text_is_an_error_or_a_kernel_and_never_a_panic() {
    let mut rng = random::Rng::new(1);
    for seed in programs(60) {
        let matrices = seed % 4 == 0;
        let text = if matrices {
            gemm::kernel(&gemm::case(seed, 32)).to_string()
        } else {
            random::kernel(seed, 12).to_string()
        };
        for _ in 0..40 {
            let mut damaged = text.clone().into_bytes();
            let at = rng.below(damaged.len());
            match rng.below(4) {
                0 => damaged.truncate(at),
                1 => damaged[at] = b" %@0123f{}[](),=.:;#x-\n"[rng.below(23)],
                2 => drop(damaged.drain(at..(at + 1 + rng.below(20)).min(text.len()))),
                _ => {
                    let from = rng.below(text.len());
                    let piece = text.as_bytes()[from..(from + 30).min(text.len())].to_vec();
                    damaged.splice(at..at, piece);
                }
            }
            let Ok(damaged) = String::from_utf8(damaged) else { continue };
            let Ok(kernel) = damaged.parse::<Kernel>() else { continue };
            let _ = kernel.to_string();
            if verify(&kernel).is_ok() {
                // It may run forever or out of bounds now: that is an error, too.
                let mut launch = if matrices { gemm::launch(&gemm::case(seed, 32)) } else { random::launch(seed) };
                launch.max_ops = 100_000;
                let _ = execute(&kernel, &mut launch);
            }
        }
    }
}

#[test]
fn errors_name_the_line_and_the_op() {
    let parse = |body: &str| format!("kernel k(1, 1, 1) {{\n  buffer x: f32 read\n{body}}}\n").parse::<Kernel>();
    for (body, line, problem) in [
        ("  %0 = const 1 : u33\n", 3, "'u33' is no type"),
        ("  %0 = add %7, %7 : u32\n", 3, "%7 is not defined"),
        ("  %0 = load y[%0] : f32\n", 3, "no buffer or array 'y'"),
        ("  break @3\n", 3, "@3 is no loop around this"),
        ("  return return\n", 3, "after the terminator"),
        ("  frobnicate\n", 3, "'frobnicate' is no op"),
        ("  %0 = const -1 : u32\n", 3, "is no constant of this type"),
        ("  return\n  ", 4, "expected the end"),
    ] {
        let text = if problem == "expected the end" { format!("{body}}}\n") } else { body.to_owned() };
        match parse(&text) {
            Err(KernelError::Parse { line: l, problem: p }) => {
                assert!(p.contains(problem), "{body}: {p}");
                assert!(l == line, "{body}: line {l}: {p}");
            }
            other => panic!("{body}: {other:?}"),
        }
    }
    let invalid = |body: &str| match parse(body).and_then(|k| verify(&k)) {
        Err(e @ KernelError::Invalid { .. }) => e.to_string(),
        other => panic!("{body}: {other:?}"),
    };
    for (body, op, problem) in [
        ("%0 = const 1 : u32 %1 = add %0, %0 : i32 return", "%1 = add %0, %0 : i32", "same type"),
        ("%0 = const 1 : u32 store x[%0], %0 return", "store x[%0], %0", "read only"),
        ("%0 = const 1.0 : bf16 %1 = add %0, %0 : bf16 return", "%1 = add %0, %0 : bf16", "convert bf16 to f32"),
        (
            "%0 = const true : bool if %0 { %1 = const 1 : u32 yield } else { %2 = neg %1 : u32 yield } return",
            "%2 = neg",
            "not defined here",
        ),
        ("loop @0 () { continue @0 } unreachable", "", ""),
        ("%0 = const true : bool if %0 { yield } else { return } unreachable", "unreachable", "can be reached"),
        ("loop @0 () { yield } unreachable", "yield", "only a region of an if"),
        (
            "%0 = const 1 : u32 loop @0 (%1: u32 = %0) { continue @0 } unreachable",
            "continue @0",
            "carried values of the loop: (u32), not ()",
        ),
        ("%0 = const 1 : u32", "kernel", "ends in"),
        ("%0 = const 1 : u32 %1 = subgroup_any %0 : u32 return", "%1 = subgroup_any %0", "bool"),
    ] {
        if op.is_empty() {
            verify(&parse(body).unwrap()).unwrap();
            continue;
        }
        let e = invalid(body);
        let op = if op == "kernel" { "%0 = const 1" } else { op };
        assert!(e.contains("kernel 'k'") && e.contains(op) && e.contains(problem), "{body}: {e}");
    }
}

#[test]
fn deep_nesting_is_refused_and_not_a_stack_overflow() {
    let n = 100_000;
    let text = format!("kernel k(1, 1, 1) {{ %0 = const true : bool {} return }}", "if %0 {".repeat(n));
    assert!(text.parse::<Kernel>().unwrap_err().to_string().contains("deeper than 128"));
    let text = format!("kernel k(1, 1, 1) {{ buffer x: {}f32", "[".repeat(n));
    assert!(text.parse::<Kernel>().unwrap_err().to_string().contains("deeper than 16"));
}

#[test]
fn mistakes_that_types_allow_are_errors_of_the_builder() {
    let twice = Builder::kernel("k", [1, 1, 1], |k| {
        k.param::<u32>("n");
        k.buffer::<f32>("n");
    });
    assert!(twice.unwrap_err().to_string().contains("'n' is used twice"));
    let escaped = Builder::kernel("k", [1, 1, 1], |k| {
        let y = k.buffer_mut::<f32>("y");
        let out = std::cell::Cell::new(k.lit(0f32));
        k.if_(k.lit(true), || out.set(k.lit(1f32)));
        y.store(0u32, out.get());
    });
    assert!(escaped.unwrap_err().to_string().contains("not defined here"));
    let big = Builder::kernel("k", [2048, 1, 1], |_| ());
    assert!(big.unwrap_err().to_string().contains("1 to 1024 invocations"));
}
