//! Chains of launches taken backwards: a simulation of many steps, with states kept now and then.

use crate::derivatives::gradients::kernel;
use impasto_autodiff::{Chain, Cost};
use impasto_kernel::{BufferData, Kernel};

const PARTICLES: u32 = 4;

/// Particles on a line with springs between them: a step from one buffer to another.
fn springs() -> Kernel {
    kernel("springs", PARTICLES, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let i = k.global_id(0);
        let q = |d: u32| x.load((i + d) % PARTICLES);
        let force = (q(1) - q(0)).sin() + (q(PARTICLES - 1) - q(0)) * 0.7f32;
        let v = x.load(i + PARTICLES) + force * 0.1f32;
        y.store(i, q(0) + v * 0.1f32);
        y.store(i + PARTICLES, v);
    })
}

/// A kernel that no derivative flows through.
fn zero() -> Kernel {
    kernel("zero", 8, |k| k.buffer_mut::<f32>("y").store(k.global_id(0), 0.0))
}

/// Sums of squares, added to what is there.
fn energy() -> Kernel {
    kernel("energy", 8, |k| {
        let (x, e) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("e"));
        let v = x.load(k.global_id(0));
        e.atomic_sum(k.global_id(0) % 2u32, v * v);
    })
}

const STEPS: usize = 13;

/// Steps to and fro between two buffers; one of them is cleared, and the energy is summed up, on the way.
fn chain(start: &[f64]) -> Chain {
    let mut c = Chain::new();
    c.wide = true;
    let (a, b) = (c.buffer(BufferData::wide(start)), c.buffer(BufferData::wide(&[0.3; 8])));
    let e = c.buffer(BufferData::wide(&[0.0; 2]));
    let (springs, zero, energy) =
        (c.kernel(&springs()).unwrap(), c.kernel(&zero()).unwrap(), c.kernel(&energy()).unwrap());
    for i in 0..STEPS {
        let (from, to) = if i % 2 == 0 { (a, b) } else { (b, a) };
        c.launch(springs, [1; 3], &[], &[from, to]).unwrap();
        if i == 5 {
            c.launch(zero, [1; 3], &[], &[from]).unwrap();
        }
        if i % 3 == 0 {
            c.launch(energy, [1; 3], &[], &[to, e]).unwrap();
        }
    }
    c
}

const START: [f64; 8] = [0.1, -0.4, 0.8, 0.3, 0.5, -0.2, 0.1, 0.7];
const WEIGHTS: [f64; 2] = [0.7, -1.3];

fn loss(start: &[f64]) -> f64 {
    let (values, _) = chain(start).differentiate(&[], 100).unwrap();
    values[2].to_f64().unwrap().iter().zip(WEIGHTS).map(|(a, w)| a * w).sum()
}

#[test]
fn a_simulation_has_the_derivatives_that_differences_say_however_often_states_are_kept() {
    let mut first: Option<Vec<f64>> = None;
    for every in [1, 2, 3, 5, 7, 19, 100] {
        let (_, adjoints) = chain(&START).differentiate(&[(2, BufferData::wide(&WEIGHTS))], every).unwrap();
        let got = adjoints[0].to_f64().unwrap();
        assert_eq!(first.get_or_insert_with(|| got.clone()), &got, "every {every}");
        // What buffer b held at the start is overwritten.
        assert_eq!(adjoints[1].to_f64().unwrap(), [0.0; 8]);
        for i in 0..8 {
            let at = |h: f64| {
                let mut start = START;
                start[i] += h;
                loss(&start)
            };
            let slope = (at(1e-6) - at(-1e-6)) / 2e-6;
            assert!((got[i] - slope).abs() < 1e-6 * (1.0 + slope.abs()), "element {i}: {} and {slope}", got[i]);
        }
    }
}

#[test]
fn what_it_takes_is_said_in_advance() {
    let mut c = Chain::new();
    let (a, b) = (c.buffer(BufferData::from(&[0.5f32; 8][..])), c.buffer(BufferData::from(&[0f32; 8][..])));
    let springs = c.kernel(&springs()).unwrap();
    for i in 0..12 {
        c.launch(springs, [1; 3], &[], &if i % 2 == 0 { [a, b] } else { [b, a] }).unwrap();
    }
    // Each version has 32 bytes. Three states of two versions, and four that the last launches made.
    assert_eq!(c.cost(4), Cost { bytes: 32 * 10, launches: 20 });
    assert_eq!(c.cost(12), Cost { bytes: 32 * 14, launches: 12 });
    assert_eq!(c.cost(1), Cost { bytes: 32 * 14, launches: 23 });
}

#[test]
fn mistakes_are_errors() {
    let mut c = Chain::new();
    let a = c.buffer(BufferData::from(&[0.5f32; 8][..]));
    let springs = c.kernel(&springs()).unwrap();
    for (kernel, buffers) in [(7, vec![a, a]), (springs, vec![a]), (springs, vec![a, 9]), (springs, vec![a, a])] {
        assert!(c.launch(kernel, [1; 3], &[], &buffers).is_err(), "{buffers:?}");
    }
}
