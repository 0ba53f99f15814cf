//! Kernels with types that do not fit. Each `//~` gives the column and words of the message for the line above it.
use impasto_kernel::prelude::*;

#[derive(Clone, Copy, KernelStruct)]
struct Complex {
    re: f32,
    im: f32,
}

#[kernel_fn]
fn half(x: f32) -> f32 {
    x * 0.5
}

#[kernel]
fn arithmetic(n: u32, a: f32, x: &[f32], y: &mut [f32]) {
    let i = global_id(0);
    y[i] = a * n;
    //~ 14 expected a `f32`, found `Val<'_, u32>`
    y[i] = x[i] + 1;
    //~ 17 expected a `f32`, found `{integer}`
    y[i] = 1 + x[i];
    //~ 14 cannot add `Val<'_, f32>` to `{integer}`
    y[a] = 0.0;
    //~ 7 expected a `u32`, found `Val<'_, f32>`
    y[i] = n;
    //~ 7 expected a `f32`, found `Val<'_, u32>`
    x[i] = a;
    //~ 7 `Buf<'_, f32>` has no element
    y[i] = half(n);
    //~ 17 expected a `f32`, found `Val<'_, u32>`
    y[i] = half(a, a);
    //~ 12 takes 2 arguments but 3 arguments were supplied
    y[i] = x[i].squirt();
    //~ 17 no method named `squirt`
    y[i] = missing;
    //~ 12 cannot find value `missing`
}

#[kernel]
fn conditions(n: u32, a: f32, x: &[f32], y: &mut [f32]) {
    if n {
        //~ 8 a condition is a `bool`
        y[0] = 1.0;
    }
    if a < n {
        //~ 10 expected a `f32`, found `Val<'_, u32>`
        y[0] = 2.0;
    }
    if n > 3 && a {
        //~ 14 `&&` and `||` are of `bool`
        y[0] = 3.0;
    }
}

#[kernel]
fn branches(n: u32, a: f32, x: &[f32], y: &mut [f32]) {
    let t = if n > 3 { a } else { n };
    //~ 33 expected a `f32`, found `Val<'_, u32>`
    match a {
        //~ 11 a `match` is on a `u32` or an `i32`
        _ => {}
    }
}

#[kernel]
fn members(n: u32, a: f32, y: &mut [f32]) {
    let z = Complex { re: a, im: n };
    //~ 34 expected `Val<'_, f32>`, found `Val<'_, u32>`
    let w = Complex { re: a };
    //~ 13 missing field `im`
    y[0] = z.phase;
    //~ 14 no field `phase`
    y[0] = a.re;
    //~ 12 `f32` has no members
}

#[kernel_fn]
fn results(x: u32) -> f32 {
    if x > 3 {
        return x;
        //~ 16 found `Val<'_, u32>`
    }
    x
    //~ 5 found `Val<'_, u32>`
}

#[kernel]
fn arrays(n: u32, y: &mut [f32]) {
    let t = [1.0, 2.0];
    y[0] = t[n];
    //~ 14 expected `u32`, found `Val<'_, u32>`
}

#[kernel_fn(grad = missing)]
//~ 20 cannot find function `missing`
fn lost_gradient(x: f32) -> f32 {
    x
}

#[kernel(grad = nowhere)]
//~ 17 cannot find function `nowhere`
fn lost_backward(x: &[f32], y: &mut [f32]) {
    y[0] = x[0];
}
