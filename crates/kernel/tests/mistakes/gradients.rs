//! Gradients that do not fit their functions. Each `//~` gives the column and words of the message for the line above it.
use impasto_kernel::prelude::*;

#[kernel_fn]
fn one(x: f32) -> f32 {
    x
}

#[kernel_fn]
fn whole(x: f32) -> u32 {
    x as u32
}

#[kernel_fn(grad = one)]
//~ 20 takes 2 arguments but 3 arguments were supplied
fn b(x: f32, y: f32) -> f32 {
    x * y
}

#[kernel_fn(grad = whole)]
//~ 20 mismatched types
fn c(x: f32) -> f32 {
    x
}

#[kernel_fn(grad = one)]
//~ 20 mismatched types
fn d(x: f32) -> (f32, f32) {
    (x, x)
}

#[kernel_fn(grad = one)]
//~ 20 a function with a gradient of its own gives `f32`
fn e(x: f32) -> u32 {
    x as u32
}

#[kernel_fn(grad = one)]
fn f(x: f32, table: &[f32]) -> f32 {
    //~ 21 read it before, and pass the values
    table[0] * x
}

#[kernel_fn(grad = one)]
fn g(x: f32, to: &mut f32) -> f32 {
    //~ 18 says nothing about what it changes
    x
}

#[kernel_fn(grad = one)]
//~ 20 none of the parameters is a float
fn h(x: u32) -> f32 {
    1.0
}

#[kernel_fn(gradient = one)]
//~ 13 takes `grad = gradient`, and nothing else
fn i(x: f32) -> f32 {
    x
}

#[kernel(grad = plain, grad = plain)]
//~ 24 `grad` stands here twice
fn k(x: &[f32], y: &mut [f32]) {
    y[0] = x[0];
}

#[kernel]
fn plain(x: &[f32], d_x: &mut [f32], d_y: &[f32]) {
    d_x[0] += d_y[0] * x[0];
}

#[kernel(grad = plain)]
//~ 17 takes 0 arguments but 1 argument was supplied
fn l(#[comptime] n: u32, x: &[f32], y: &mut [f32]) {
    y[n] = x[n];
}

#[kernel(workgroup = 4, grad)]
//~ 25 write `#[kernel(workgroup = 64)]`
fn m(x: &[f32], y: &mut [f32]) {
    y[0] = x[0];
}
