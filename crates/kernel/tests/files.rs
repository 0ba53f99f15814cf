//! File tests: each file in `tests/files` holds cases, each a list of passes, a kernel, and what it becomes.
//!
//! `IMPASTO_REWRITE=1 cargo test -p impasto-kernel --test files` writes what it becomes now; read the difference before committing it.

use std::fmt::Write;

use impasto_kernel::{Kernel, Pass, lower_matrices, optimise, verify};

/// The kernel after the passes of a case, or the error.
fn run(passes: &str, kernel: &str) -> Result<Kernel, String> {
    let mut now: Kernel = kernel.parse().map_err(|e: impasto_kernel::KernelError| e.to_string())?;
    verify(&now).map_err(|e| e.to_string())?;
    for name in passes.split(',').map(str::trim).filter(|n| !n.is_empty()) {
        now = match name {
            "optimise" => optimise(&now).map_err(|e| e.to_string())?,
            // For subgroups of at least 8 invocations.
            "lower_matrices" => lower_matrices(&now, 8).map_err(|e| e.to_string())?,
            name => {
                Pass::named(name).ok_or(format!("there is no pass '{name}'"))?.run(&now).map_err(|e| e.to_string())?
            }
        };
        verify(&now).map_err(|e| e.to_string())?;
    }
    Ok(now)
}

#[test]
fn passes_do_what_the_files_say() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/files");
    let mut wrong = String::new();
    for file in impasto_testkit::file_tests(folder, 9) {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut now = String::new();
        for (i, case) in text.split("==== ").enumerate() {
            if i == 0 {
                now.push_str(case);
                continue;
            }
            let (head, rest) = case.split_once('\n').unwrap();
            let kernel = rest.split("----\n").next().unwrap();
            let (what, passes) = head.split_once(':').unwrap_or((head, ""));
            let made = match run(passes, kernel) {
                Ok(k) => k.to_string(),
                Err(e) => format!("error: {e}\n"),
            };
            write!(now, "==== {what}:{passes}\n{kernel}----\n{made}").unwrap();
            if !text.contains(&format!("==== {head}\n{kernel}----\n{made}")) {
                writeln!(wrong, "{}: {what}: now\n{made}", file.display()).unwrap();
            }
        }
        assert!(now.contains("==== "), "{} has no case", file.display());
        if std::env::var_os("IMPASTO_REWRITE").is_some() {
            std::fs::write(&file, now).unwrap();
        }
    }
    assert!(wrong.is_empty() || std::env::var_os("IMPASTO_REWRITE").is_some(), "{wrong}");
}
