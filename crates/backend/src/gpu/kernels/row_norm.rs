//! Layer norm and RMS norm of rows that are whole vec4s: each is read once, and held by the invocations of a workgroup until it is written.

use impasto_graph::{DType, Op};
use impasto_kernel::{Builder, Kernel, KernelError};

use super::vec4::{From4, To4};
use super::{F, U, piece};

/// Invocations of a workgroup, and the fewest that go through a row together.
const INVOCATIONS: u32 = 128;
const SMALLEST_TEAM: u32 = 16;
/// How many of a team add up the numbers of the others first.
const ADDERS: u32 = 8;
/// The most vec4s that an invocation holds.
const MOST_HELD: u32 = 10;

/// Layer norm or RMS norm, and the rows that a workgroup takes, each by a team of its invocations; none for other ops, and for rows that are too long or no whole vec4s. Buffers: operand, gamma,
/// beta where the op has one, result. `size` is rows, their width, and how many rows have the same gamma and beta.
pub(crate) fn by_row(
    op: &Op,
    size: [u32; 3],
    types: &[DType],
    to: DType,
) -> Option<(Result<Kernel, KernelError>, u32)> {
    let (eps, centred) = match *op {
        Op::LayerNorm { eps } => (eps, true),
        Op::RmsNorm { eps } => (eps, false),
        _ => return None,
    };
    let [rows, width, together] = size;
    let team = (width / 4).next_power_of_two().clamp(SMALLEST_TEAM, INVOCATIONS);
    let (held, at_once) = ((width / 4).div_ceil(team), INVOCATIONS / team);
    if !width.is_multiple_of(4) || held > MOST_HELD {
        return None;
    }
    let name = if centred { "layer_norm" } else { "rms_norm" };
    let kernel = Builder::kernel(name, [INVOCATIONS, 1, 1], |k| {
        let x = From4::new(k, "x", types[0], width);
        let gamma = From4::new(k, "gamma", types[1], width);
        let beta = centred.then(|| From4::new(k, "beta", types[2], width));
        let out = To4::new(k, "out", to, width);
        // Teams of rows after the last one compute that one, and write nothing.
        let (t, four) = (k.local_index() % team, k.lit(4u32));
        let own_row = piece(k) * at_once + k.local_index() / team;
        let (row, there) = (own_row.min(rows - 1), own_row.lt(rows));
        let places: Vec<U> = (0..held).map(|i| (t + i * team) * 4u32).collect();
        let zeros = k.vector([k.lit(0f32); 4]);
        let values: Vec<[F; 4]> = places
            .iter()
            .map(|&at| {
                let load = || k.vector(x.at(k, row * width + at, four));
                let four = k.if_value(at.lt(width), load, || zeros);
                [0, 1, 2, 3].map(|c| four.component(c))
            })
            .collect();
        let all = || values.iter().flatten().copied();
        let mean = match centred {
            true => total(k, team, sum(k, all()), "sums") / width as f32,
            false => k.lit(0f32),
        };
        // What an invocation holds beyond the end of a row counts for nothing.
        let whole = held * team * 4 == width;
        let squares = values.iter().zip(&places).map(|(four, &at)| {
            let four = sum(k, four.iter().map(|&x| if centred { (x - mean) * (x - mean) } else { x * x }));
            if whole || !centred { four } else { at.lt(width).select(four, 0f32) }
        });
        let squares = total(k, team, sum(k, squares), "squares");
        let scale = (squares / width as f32 + eps).inverse_sqrt();
        let factors = row / together * width;
        for (&x, &at) in values.iter().zip(&places) {
            let write = || {
                let gamma = gamma.at(k, factors + at, four);
                let beta = beta.map(|beta| beta.at(k, factors + at, four));
                let y = [0, 1, 2, 3].map(|c| match beta {
                    Some(beta) => (x[c] - mean) * scale * gamma[c] + beta[c],
                    None => x[c] * scale * gamma[c],
                });
                out.set(k, row * width + at, four, y);
            };
            let all_rows = rows.is_multiple_of(at_once);
            match (whole, all_rows) {
                (true, true) => write(),
                (true, false) => k.if_(there, write),
                (false, true) => k.if_(at.lt(width), write),
                (false, false) => k.if_(there & at.lt(width), write),
            }
        }
    });
    Some((kernel, at_once))
}

fn sum<'k>(k: &'k Builder, numbers: impl Iterator<Item = F<'k>>) -> F<'k> {
    numbers.reduce(|a, b| a + b).unwrap_or(k.lit(0f32))
}

/// The sum of one number of each invocation of a team, in the same order always.
fn total<'k>(k: &'k Builder, team: u32, own: F<'k>, name: &str) -> F<'k> {
    let parts = k.shared::<f32>(name, INVOCATIONS);
    let few = k.shared::<f32>(&format!("few_{name}"), INVOCATIONS / team * ADDERS);
    let (t, begin) = (k.local_index() % team, k.local_index() / team * team);
    parts.store(k.local_index(), own);
    k.barrier();
    let few_begin = k.local_index() / team * ADDERS;
    k.if_(t.lt(ADDERS), || {
        few.store(few_begin + t, sum(k, (0..team / ADDERS).map(|i| parts.load(begin + t + i * ADDERS))));
    });
    k.barrier();
    sum(k, (0..ADDERS).map(|i| few.load(few_begin + i)))
}
