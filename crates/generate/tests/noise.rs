//! Noise against torch's own numbers. What a user would lose: the picture that a seed gives elsewhere.

use impasto_generate::{Noise, NoiseKind};

#[test]
fn cpu_noise_is_that_of_torch() {
    let fixture = include_str!("fixtures/torch_cpu.txt");
    let mut seeds = 0;
    for line in fixture.lines() {
        let mut fields = line.split(' ');
        let mut next = || fields.next().expect("seed, sizes, numbers");
        let seed: u64 = next().parse().expect("a seed");
        let sizes: Vec<usize> = next().split(',').map(|n| n.parse().expect("a size")).collect();
        let want: Vec<f32> = next().split(',').map(|n| n.parse().expect("a number")).collect();
        let mut noise = Noise::new(NoiseKind::Cpu, seed);
        let got: Vec<f32> = sizes.iter().flat_map(|&n| noise.draw(n)).collect();
        assert_eq!(got.len(), want.len());
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            assert!(
                (g - w).abs() <= 1e-6 * w.abs().max(1.0),
                "seed {seed}, number {i}: {g}, torch has {w} ({sizes:?})"
            );
        }
        seeds += 1;
    }
    assert_eq!(seeds, 10);
}
