//! A refusal names the line and the column of what it refuses. `//~ name: text` says that the kernel with this name is refused in the
//! next line, at the column where the text begins.

use impasto_autodiff::Differentiate;
use impasto_kernel::prelude::*;
use impasto_kernel::{Builder, KernelError, optimise};
use impasto_spirv::compile;

#[kernel(workgroup = 4)]
fn overwrite(y: &mut [f32]) {
    let i = global_id(0);
    //~ overwrite: i]
    let before = y[i];
    y[i] = before * before;
}

#[kernel_fn]
fn squared(y: &[f32], i: u32) -> f32 {
    //~ overwrite_in_a_function: i]
    let x = y[i];
    x * x
}

#[kernel(workgroup = 4)]
fn overwrite_in_a_function(y: &mut [f32]) {
    let i = global_id(0);
    y[i] = squared(y, i);
}

#[kernel(workgroup = 4)]
fn maximum(x: &[f32], y: &mut [u32], z: &mut [f32]) {
    let i = global_id(0);
    //~ maximum: x[i]
    let bits = x[i].bits_as::<u32>();
    y.atomic_max(0, bits);
    z[i] = x[i];
}

#[kernel(workgroup = 4)]
fn cast(x: &[f32], y: &mut [f32]) {
    let i = global_id(0);
    let a = x[i];
    //~ cast: i32
    let whole = a as i32;
    y[i] = a * whole as f32;
}

#[kernel(workgroup = 1)]
fn unbounded(x: &[f32], y: &mut [f32]) {
    let mut s = x[0];
    //~ unbounded: s < 10
    while s < 10.0 {
        s = s * s;
    }
    y[0] = s;
}

#[kernel(workgroup = 1)]
fn endless(x: &[f32], y: &mut [f32]) {
    let mut s = x[0];
    //~ endless: loop
    loop {
        s = s * s;
        if s > 10.0 {
            break;
        }
    }
    y[0] = s;
}

#[kernel(workgroup = 4)]
fn race(x: &[f32], y: &mut [f32]) {
    let product = x[0] * x[1];
    //~ race: 0]
    y[0] = product;
}

fn built(name: &str, body: impl FnOnce(&Builder)) -> Result<Kernel, KernelError> {
    Builder::kernel(name, [4, 1, 1], body)
}

fn kernels() -> Vec<Kernel> {
    let all = [
        overwrite(),
        overwrite_in_a_function(),
        maximum(),
        cast(),
        unbounded(),
        endless(),
        race(),
        built("built_overwrite", |k| {
            let (y, i) = (k.buffer_mut::<f32>("y"), k.global_id(0));
            //~ built_overwrite: load
            let before = y.load(i);
            y.store(i, before * before);
        }),
        built("built_minimum", |k| {
            let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<i32>("y"));
            let a = x.load(k.global_id(0));
            //~ built_minimum: to::
            let whole = a.to::<i32>();
            y.atomic_min(0, whole);
            k.buffer_mut::<f32>("z").store(k.global_id(0), a);
        }),
        built("built_exchange", |k| {
            let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<u32>("y"));
            let a = x.load(k.global_id(0));
            //~ built_exchange: bits_as
            y.atomic_exchange(0, a.bits_as::<u32>());
            k.buffer_mut::<f32>("z").store(k.global_id(0), a);
        }),
        built("built_unbounded", |k| {
            let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
            let s = k.var(x.load(k.global_id(0)));
            //~ built_unbounded: while_
            k.while_(|| s.get().lt(10.0), |_| s.set(s.get() * s.get()));
            y.store(k.global_id(0), s.get());
        }),
        built("built_race", |k| {
            let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
            //~ built_race: store
            k.if_(x.len().gt(1), || y.store(0, x.load(0) * x.load(1)));
        }),
        built("built_ticket", |k| {
            let (x, n, y) = (k.buffer::<f32>("x"), k.buffer_mut::<u32>("n"), k.buffer_mut::<f32>("y"));
            //~ built_ticket: atomic_add
            let at = n.atomic_add(0, 1u32);
            y.store(at, x.load(at));
        }),
    ];
    all.into_iter().map(Result::unwrap).collect()
}

/// The marks of this file: name, line, column.
fn marks() -> Vec<(String, u32, u32)> {
    let mut all = Vec::new();
    let lines: Vec<&str> = include_str!("places.rs").lines().collect();
    for (i, pair) in lines.windows(2).enumerate() {
        let Some((name, text)) = pair[0].trim().strip_prefix("//~ ").and_then(|m| m.split_once(": ")) else { continue };
        let column = pair[1].find(text).unwrap_or_else(|| panic!("line {}: no '{text}'", i + 2));
        all.push((name.to_owned(), i as u32 + 2, column as u32 + 1));
    }
    all
}

#[test]
fn a_refusal_names_file_line_and_column_of_what_it_refuses() {
    let (kernels, marks) = (kernels(), marks());
    assert_eq!(kernels.len(), marks.len());
    for kernel in kernels {
        let (_, line, column) = marks.iter().find(|m| m.0 == kernel.name).unwrap();
        let error = kernel.grad().expect_err(&kernel.name);
        let KernelError::Gradient { place: Some(place), .. } = &error else { panic!("{}: {error}", kernel.name) };
        assert!(place.file().ends_with("tests/places.rs"), "{error}");
        assert_eq!((place.line(), place.column()), (*line, *column), "{error}");
        assert!(
            error.to_string().starts_with(&format!("{}:{line}:{column}: kernel '{}'", place.file(), kernel.name)),
            "{error}"
        );
    }
}

#[test]
fn places_are_no_part_of_what_a_kernel_is() {
    let here = || built("k", |k| k.buffer_mut::<f32>("y").store(k.global_id(0), 1.5));
    let there = || built("k", |k| k.buffer_mut::<f32>("y").store(k.global_id(0), 1.5));
    let (a, b) = (here().unwrap(), there().unwrap());
    let last = |k: &Kernel| k.region_ops(k.body()).iter().rev().find_map(|&op| k.place(op)).map(|p| p.line());
    assert!(last(&a).is_some());
    assert_eq!(a.to_string(), b.to_string());
    assert_eq!(compile(&a).unwrap(), compile(&b).unwrap());
    // The passes of the compiler do not carry them.
    assert_eq!(last(&optimise(&a).unwrap()), None);
}
