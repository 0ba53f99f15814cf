//! A case, whole and in bands.

use impasto_graph::{Banded, Cutting, HostTensor};

use super::case::Case;
use super::machine::{Machine, same_bits};
use super::rng::Rng;

/// The results of a case in bands, as the case itself has them.
pub fn run(case: &Case, banded: &Banded, machine: &Machine) -> Vec<HostTensor> {
    let names = banded.graph.outputs().iter().map(|o| o.name.as_str());
    banded.cuts.join(names, machine.run(&case.in_bands(banded))).expect("bands fit together")
}

/// Where results that should be the same begin to differ, and by how much.
pub fn difference(whole: &[HostTensor], bands: &[HostTensor]) -> String {
    let one = |(a, b): (&HostTensor, &HostTensor)| {
        let (x, y) = (a.to_f32(), b.to_f32());
        let other = (0..x.len()).filter(|&i| x[i].to_bits() != y[i].to_bits());
        let most = x.iter().zip(&y).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        let (first, count) = (other.clone().next(), other.count());
        format!("{} against {}: {count} of {} differ, first at {first:?}, at most {most:e}\n", a.ty(), b.ty(), x.len())
    };
    whole.iter().zip(bands).map(one).collect()
}

/// Panics where bands yield other bits than the whole. Returns the number of bands.
pub fn check(case: &Case, cutting: &Cutting, machine: &Machine) -> usize {
    let banded = Banded::new(&case.graph, cutting).unwrap_or_else(|e| panic!("{e}\n{cutting:?}\n{}", case.graph));
    let whole = machine.run(case);
    let bands = run(case, &banded, machine);
    if !same_bits(&whole, &bands) {
        println!("{}", difference(&whole, &bands));
        panic!("{machine}: other bits in {} bands, {cutting:?}\n{}\n{}", banded.cuts.bands(), case.graph, banded.graph);
    }
    banded.cuts.bands()
}

/// Some limits for a random graph: from two bands to one for each row; now and then inputs and outputs are cut too.
pub fn random_cutting(case: &Case, rng: &mut Rng) -> Cutting {
    let bands = rng.pick(&[2, 3, 4, 8, 16, 1000]);
    let cut = Cutting::bands(&case.graph, bands);
    let buffer_bytes = if rng.chance(30) { cut.band_bytes } else { u64::MAX };
    Cutting { buffer_bytes, axis: if rng.chance(85) { 1 } else { 2 }, ..cut }
}
