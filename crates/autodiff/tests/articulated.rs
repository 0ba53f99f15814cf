//! The chain of rigid bodies, taken backwards.

use crate::derivatives::articulated;
use crate::derivatives::gradients::wide;
use impasto_autodiff::Differentiate;
use impasto_kernel::{BufferData, Launch, execute};

fn launch(bodies: usize, steps: u32, start: &[f64]) -> Launch {
    wide(
        1,
        vec![BufferData::wide(start), BufferData::from(&[steps][..]), BufferData::wide(&vec![0.0; 3 * (bodies + 1)])],
    )
}

/// Where the bodies' middles are on average, by height, after some steps.
fn height(bodies: usize, steps: u32, start: &[f64]) -> f64 {
    let mut l = launch(bodies, steps, start);
    execute(&articulated::kernel(bodies).unwrap(), &mut l).unwrap();
    let y = l.buffers[2].to_f64().unwrap();
    (0..bodies).map(|i| (y[3 * i + 2] + y[3 * i + 5]) / 2.0).sum::<f64>() / bodies as f64
}

#[test]
fn a_chain_falls_as_a_stone_does_whatever_happens_inside_of_it() {
    for bodies in [2, 5, 8] {
        let start = articulated::start(bodies);
        let (a, b, c) = (height(bodies, 0, &start), height(bodies, 1, &start), height(bodies, 2, &start));
        let acceleration = (c - 2.0 * b + a) / (0.01 * 0.01);
        // The air takes a little.
        assert!((acceleration + 9.81).abs() < 0.35, "{bodies} bodies: {acceleration}");
    }
}

#[test]
fn the_gradient_of_a_chain_is_that_of_differences() {
    for (bodies, steps) in [(2, 60), (8, 6), (32, 2)] {
        let kernel = articulated::kernel(bodies).unwrap();
        let grad = kernel.grad().unwrap_or_else(|e| panic!("{e}"));
        let start = articulated::start(bodies);
        let n = 3 * (bodies + 1);
        let w: Vec<f64> = (0..n).map(|i| (i * 5 % 7) as f64 / 4.0 - 0.8).collect();
        let got = grad.execute(&launch(bodies, steps, &start), &[(2, BufferData::wide(&w))]).unwrap();
        let got = got.of(0).and_then(BufferData::to_f64).unwrap();
        let loss = |s: &[f64]| {
            let mut l = launch(bodies, steps, s);
            execute(&kernel, &mut l).unwrap();
            l.buffers[2].to_f64().unwrap().iter().zip(&w).map(|(a, b)| a * b).sum::<f64>()
        };
        for i in 0..start.len() {
            let at = |h: f64| {
                let mut s = start.clone();
                s[i] += h;
                loss(&s)
            };
            let slope = (at(1e-6) - at(-1e-6)) / 2e-6;
            assert!(
                (got[i] - slope).abs() <= 1e-6 * (1.0 + slope.abs()),
                "{bodies} bodies, {i}: {} and {slope}",
                got[i]
            );
        }
    }
}
