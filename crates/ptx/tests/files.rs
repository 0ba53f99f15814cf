//! File tests: kernels and the modules that they become. What the modules compute is seen to by the interpreter.
//!
//! `IMPASTO_REWRITE=1 cargo test -p impasto-ptx --test files` writes what they become now; read the difference before committing it.

use std::fmt::Write;

use impasto_kernel::{Kernel, KernelError};
use impasto_ptx::{PtxTarget, compiler};
use impasto_testkit::ptx::files::{FILES, kernels, right, split};
use impasto_testkit::ptx::interpreter::run;
use impasto_testkit::ptx::{assemble, targets};

/// The module of a case, or the error. The heading ends with a target, and `as written` where it is not optimised.
fn made(head: &str, kernel: &str) -> Result<String, String> {
    let kernel: Kernel = kernel.parse().map_err(|e: KernelError| e.to_string())?;
    let (_, how) = head.rsplit_once(": ").ok_or("the heading names no target")?;
    let (name, written) = how.strip_suffix(", as written").map_or((how, false), |name| (name, true));
    let target = PtxTarget::ALL.into_iter().find(|t| t.name() == name).ok_or(format!("no target {name}"))?;
    let compiler = if written { compiler(target).unoptimised() } else { compiler(target) };
    let module = compiler.compile(&[kernel]).map_err(|e| e.to_string())?;
    String::from_utf8(module.bytes).map_err(|e| e.to_string())
}

#[test]
fn kernels_become_what_the_files_say() {
    let (mut cases, mut wrong) = (0, String::new());
    for (file, text) in FILES {
        let (intro, all) = split(text);
        let mut now = intro.to_owned();
        for (head, kernel, module) in all {
            cases += 1;
            let made = made(head, kernel).unwrap_or_else(|e| format!("error: {e}\n"));
            write!(now, "==== {head}\n{kernel}----\n{made}").unwrap();
            if made.trim_end() != module.trim_end() {
                writeln!(wrong, "{file}: {head}: now\n{made}").unwrap();
            }
        }
        if std::env::var_os("IMPASTO_REWRITE").is_some() {
            std::fs::write(format!("{}/tests/files/{file}", env!("CARGO_MANIFEST_DIR")), now).unwrap();
        }
    }
    assert!(cases >= 20, "only {cases} cases were found");
    assert!(wrong.is_empty() || std::env::var_os("IMPASTO_REWRITE").is_some(), "{wrong}");
}

#[test]
fn kernels_of_files_compute_what_the_executor_computes() {
    for case in kernels() {
        for target in [PtxTarget::Sm75, PtxTarget::Sm80] {
            let module = match compiler(target).compile(std::slice::from_ref(&case.kernel)) {
                Ok(module) => module,
                // Some are for newer targets.
                Err(KernelError::NoMatrix { .. } | KernelError::TooLarge { .. }) if target == PtxTarget::Sm75 => {
                    continue;
                }
                // And some for one alone.
                Err(KernelError::Lacks { .. }) => continue,
                Err(e) => panic!("{e}"),
            };
            let got = run(&module, &case.kernel, &case.launch).and_then(|got| right(&case, &got));
            got.unwrap_or_else(|e| panic!("{}, {target}: {e}", case.kernel.name));
        }
    }
}

#[test]
fn kernels_of_files_are_assembled() {
    for target in targets() {
        let taken = |k: &Kernel| compiler(target).compile(std::slice::from_ref(k)).is_ok();
        let all: Vec<Kernel> = kernels().into_iter().map(|c| c.kernel).filter(taken).collect();
        assert!(all.len() >= 15, "{target}: only {}", all.len());
        let module = compiler(target).compile(&all).unwrap();
        assemble(&module.bytes, target).unwrap_or_else(|e| panic!("{target}: {e}"));
    }
}
