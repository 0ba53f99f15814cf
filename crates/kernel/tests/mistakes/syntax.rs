//! Kernels that say what kernels cannot say. Each `//~` gives the column and words of the message for the line above it.
use impasto_kernel::prelude::*;

#[kernel]
fn result(x: &[f32]) -> f32 {
    //~ 25 store results in a buffer
    x[0]
}

#[kernel]
async fn waits(x: &[f32]) {}
//~ 1 a kernel is not async

#[kernel]
fn parameters((a, b): (f32, f32)) {}
//~ 15 a parameter has a name

#[kernel]
fn writes(x: &mut f32) {}
//~ 19 a kernel writes to buffers

#[kernel]
fn stored(#[stored(Scalar::F16)] x: f32) {}
//~ 37 is of a buffer

#[kernel_fn]
fn stored_function(#[stored(Scalar::F16)] x: &[f32]) {}
//~ 46 a parameter of a kernel

#[kernel]
fn attribute(#[kept] x: &[f32]) {}
//~ 14 `#[comptime]` and `#[stored(..)]`

#[kernel(size = 64)]
//~ 10 workgroup = 64
fn size() {}

#[kernel]
fn expressions(n: u32, x: &[f32], y: &mut [f32]) {
    let f = |x| x + 1.0;
    //~ 13 a kernel has no closures
    let s = "text";
    //~ 13 numbers and truth values
    let r = 0..n;
    //~ 13 a range stands in `for i in a..b` only
    let part = &x[1..3];
    //~ 19 pass the first index
    let b = n as bool;
    //~ 18 compare it
    let c = x[0]?;
    //~ 13 a kernel has no `?`
    println!("{n}");
    //~ 5 the only macro in a kernel is `comptime!(..)`
    let d = *n;
    //~ 13 only a parameter `&mut T` is read with `*`
}

#[kernel]
fn statements(n: u32, y: &mut [f32]) {
    let late;
    //~ 5 give it a first value
    let fixed = n;
    fixed = 3;
    //~ 5 declare it with `let mut`
    (n, late) = (1, 2);
    //~ 5 assign to one place at a time
    let Some(z) = n else { return };
    //~ 26 no `let .. else`
    fn inner() {}
    //~ 5 declare this outside
    #[cfg(unix)]
    //~ 5 the only attribute in a kernel is `#[comptime]`
    let unix = 1;
    return 3;
    //~ 12 a kernel gives nothing
}

#[kernel]
fn control(n: u32, x: &[f32], y: &mut [f32]) {
    if let 3 = n {}
    //~ 8 write `#[comptime]` before the `if`
    for v in x {}
    //~ 14 goes over `a..b`
    for i in 0..=n {}
    //~ 14 goes over `a..b`
    match n {
        //~ 5 add an arm `_ => ..`
        0 => {}
        1 if n > 3 => {}
        //~ 14 an arm has no guard
        2.. => {}
        //~ 9 a range of a pattern has both ends
    }
    break;
    //~ 5 no such loop
    'a: loop {
        break 'b;
        //~ 9 no such loop
    }
}

#[derive(Clone, Copy, KernelStruct)]
enum Shape {
    //~ 6 only a struct
    Round,
}
