//! Mistakes in kernels are compile errors that point at what the user wrote.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library as it was built for this test.
fn library() -> (PathBuf, PathBuf) {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let is_library = |p: &PathBuf| {
        let name = p.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("libimpasto_kernel-") && name.ends_with(".rlib")
    };
    let newest = std::fs::read_dir(&deps).unwrap().map(|f| f.unwrap().path()).filter(is_library);
    let newest = newest.max_by_key(|p| p.metadata().and_then(|m| m.modified()).unwrap());
    (newest.expect("the library was built for this test"), deps)
}

/// What rustc says: line, column, message.
fn errors(file: &Path) -> Vec<(usize, usize, String)> {
    let (library, deps) = library();
    let folder = tempfile::tempdir().unwrap();
    let done = Command::new(std::env::var("RUSTC").unwrap_or("rustc".to_owned()))
        .args(["--edition=2024", "--crate-type=lib", "--emit=metadata", "--error-format=short"])
        .arg("--out-dir")
        .arg(folder.path())
        .arg(file)
        .arg(format!("--extern=impasto_kernel={}", library.display()))
        .arg(format!("-Ldependency={}", deps.display()))
        .output()
        .unwrap();
    assert!(!done.status.success(), "rustc found nothing wrong");
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    let of_line = |line: &str| {
        let (place, message) = line.split_once(": error")?;
        let mut parts = place.rsplitn(3, ':');
        let (column, row) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some((row, column, message.to_owned()))
    };
    text.lines().filter_map(of_line).collect()
}

/// Every mistake is told where it is, with these words, and nothing is told elsewhere.
fn check(name: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mistakes").join(name);
    let text = std::fs::read_to_string(&file).unwrap();
    let mut found = errors(&file);
    let (mut line_above, mut told) = (0, Vec::new());
    for (i, line) in text.lines().enumerate() {
        let Some(expected) = line.trim().strip_prefix("//~ ") else {
            line_above = i + 1;
            continue;
        };
        let (column, words) = expected.split_once(' ').unwrap();
        let column: usize = column.parse().unwrap();
        told.push(line_above);
        let at = found.iter().position(|(l, c, m)| *l == line_above && *c == column && m.contains(words));
        match at {
            Some(at) => drop(found.remove(at)),
            None => panic!("{name}:{line_above}:{column} should say '{words}', what is left: {found:#?}"),
        }
    }
    // rustc may say the same in other words, about the same line.
    found.retain(|f| !told.contains(&f.0));
    assert!(found.is_empty(), "{name}: these say too much: {found:#?}");
}

#[test]
fn what_a_kernel_cannot_say_is_told_where_it_is_said() {
    check("syntax.rs");
}

#[test]
fn wrong_types_are_told_where_they_are() {
    check("types.rs");
}

#[test]
fn gradients_that_do_not_fit_are_told_where_they_are_named() {
    check("gradients.rs");
}
