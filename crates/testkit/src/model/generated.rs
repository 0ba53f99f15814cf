//! Numbers made from names: the same in `tools/parity_fixtures.py`, so that fixtures hold outputs only.

/// Numbers from -1 to 1: the hash of the name, then splitmix64 of a counter, the upper 24 bits of each.
pub fn numbers(name: &str, n: usize) -> impl Iterator<Item = f64> {
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    (1..=n as u64).map(move |i| {
        let mut z = seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (z >> 40) as f64 / (1 << 23) as f64 - 1.0
    })
}

/// A parameter: norms near one, biases near zero, weights that keep the size of activations.
pub fn parameter(name: &str, shape: &[usize]) -> Vec<f32> {
    let fan_in: usize = shape[1..].iter().product();
    let value = |u: f64| match shape.len() {
        1 if name.ends_with("weight") || name.ends_with("gamma") => 1.0 + 0.1 * u,
        1 => 0.1 * u,
        _ => u * (3.0 / fan_in as f64).sqrt(),
    };
    numbers(name, shape.iter().product()).map(|u| value(u) as f32).collect()
}
