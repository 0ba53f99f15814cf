//! Noise against torch's own numbers. What a user would lose: the picture that a seed gives elsewhere.

use impasto_generate::{Noise, NoiseKind};

/// Each line is a seed, the sizes drawn in turn, which of the numbers were kept (every n-th), and those.
fn compare(kind: NoiseKind, fixture: &str) {
    let mut seeds = 0;
    for line in fixture.lines() {
        let mut fields = line.split(' ');
        let mut next = || fields.next().expect("seed, sizes, every, numbers");
        let seed: u64 = next().parse().expect("a seed");
        let sizes: Vec<usize> = next().split(',').map(|n| n.parse().expect("a size")).collect();
        let every: usize = next().parse().expect("which were kept");
        let want: Vec<f32> = next().split(',').map(|n| n.parse().expect("a number")).collect();
        let mut noise = Noise::new(kind, seed);
        let got: Vec<f32> = sizes.iter().flat_map(|&n| noise.draw(n)).step_by(every).collect();
        assert_eq!(got.len(), want.len());
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            assert!(
                (g - w).abs() <= 1e-6 * w.abs().max(1.0),
                "{kind:?}, seed {seed}, number {}: {g}, torch has {w} ({sizes:?})",
                i * every
            );
        }
        seeds += 1;
    }
    assert_eq!(seeds, 10);
}

#[test]
fn cpu_noise_is_that_of_torch() {
    compare(NoiseKind::Cpu, include_str!("fixtures/torch_cpu.txt"));
}

#[test]
fn cuda_noise_is_that_of_torch() {
    compare(NoiseKind::Cuda, include_str!("fixtures/torch_cuda.txt"));
}

/// What a user would lose: a run that was interrupted would go on with other noise.
#[test]
fn noise_goes_on_where_it_was_stored() {
    for kind in [NoiseKind::Cuda, NoiseKind::Cpu] {
        let mut noise = Noise::new(kind, 1 << 40 | 7);
        // Small and large draws in turn: 5 leaves half of a pair in the Twister, 40 a rest, 1000 uses its words up.
        for n in [5, 16, 40, 3, 1000, 1, 0, 17] {
            let stored = serde_json::to_string(&noise).expect("noise can be stored");
            assert!(stored.len() < 6000, "{} bytes", stored.len());
            let mut again: Noise = serde_json::from_str(&stored).expect("and read");
            let bits = |x: Vec<f32>| x.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            assert_eq!(bits(noise.draw(n)), bits(again.draw(n)), "{kind:?}, {n} numbers");
        }
    }
}

#[test]
fn damaged_noise_is_refused() {
    let stored = serde_json::to_string(&Noise::new(NoiseKind::Cpu, 1)).expect("noise can be stored");
    for (from, to) in
        [("\"at\":624", "\"at\":625"), ("\"words\":\"", "\"words\":\"00"), ("\"words\":\"0", "\"words\":\"é")]
    {
        let damaged = stored.replacen(from, to, 1);
        assert_ne!(damaged, stored, "{from}");
        assert!(serde_json::from_str::<Noise>(&damaged).is_err(), "{to}");
    }
    // The last possible draw is followed by the first, without a panic.
    let mut last: Noise = serde_json::from_str("{\"philox\":{\"seed\":1,\"draws\":4294967295}}").expect("noise");
    assert_ne!(last.draw(3), last.draw(3));
    assert_eq!(last.draw(3), {
        let mut n = Noise::new(NoiseKind::Cuda, 1);
        n.draw(3);
        n.draw(3)
    });
}
