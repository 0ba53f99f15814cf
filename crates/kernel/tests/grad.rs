//! Derivatives of kernels, each held to differences in f64, to forward mode, and to the closed form where there is one.

mod common;

use common::gradients::{self, hold};

#[test]
fn smoke() {
    use impasto_kernel::Data;
    let k = gradients::kernel("a", 4, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let i = k.global_id(0);
        let a = x.load(i);
        y.store(i, a * a.sin() + a.exp() * x.load((i + 1u32) % 4u32));
    });
    let launch = gradients::wide(1, vec![Data::wide(&[0.1, 0.7, -0.4, 1.2]), Data::wide(&[0.0; 4])]);
    let g = hold(&k, &launch, 1).unwrap_or_else(|e| panic!("{e}"));
    println!("{}{}", g.kernel, g.report);
    let k = gradients::kernel("b", 1, |k| {
        let (x, n, y) = (k.buffer::<f32>("x"), k.buffer::<u32>("n"), k.buffer_mut::<f32>("y"));
        let p = k.var(1f32);
        k.for_(0u32, n.load(0), |l, i| {
            k.if_(p.get().gt(5.0), || l.break_());
            k.if_(x.load(i).lt(0.0), || l.continue_());
            p.set(p.get() * x.load(i));
            k.for_(0u32, i, |_, j| p.set((p.get() + x.load(j)).sin() + p.get()));
        });
        y.store(0, p.get());
    });
    let launch = gradients::wide(
        1,
        vec![Data::wide(&[1.1, 0.7, -0.4, 1.2, 2.0]), Data::from(&[5u32][..]), Data::wide(&[0.0; 1])],
    );
    let g = hold(&k, &launch, 1).unwrap_or_else(|e| panic!("{e}"));
    println!("{}{}", g.kernel, g.report);
}
