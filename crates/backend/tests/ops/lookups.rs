//! Embeddings, timestep embeddings and rotary embeddings.

use impasto_graph::{DType, Op, Pairs, Storage};

use super::common::case::{Case, blocks};
use super::common::exam::{Bar, Exam};
use super::common::rng::cases;
use super::operands::{FLOATS, Operand, any_dtype, input, single};

#[test]
fn rows_of_tables_of_every_storage() {
    let mut exam = Exam::new("embedding");
    cases(60, |i, rng| {
        let storages = blocks().into_iter().chain(FLOATS.map(Storage::Dense));
        let storage = storages.cycle().nth(i).expect("a cycle has no end");
        let width = match storage {
            Storage::Dense(_) => rng.pick(&[1, 3, 16, 33, 100]),
            _ => storage.block_elements() as usize * rng.pick(&[1, 3]),
        };
        let rows = rng.pick(&[1, 5, 49]);
        let ids = rng.pick(&[vec![], vec![1], vec![77], vec![2, 5]]);
        let n: usize = ids.iter().product();
        let table = match storage {
            Storage::Dense(dtype) if rng.chance(30) => Operand::Input(vec![rows, width], dtype),
            _ => Operand::Param(vec![rows, width], storage),
        };
        let dtype = any_dtype(rng);
        let mut case = Case::new(single(Op::Embedding, vec![table, Operand::Input(ids, DType::I32)], dtype, rng), rng);
        // Ids that the table does not have are no numbers, and touch no memory.
        let odd = [-1.0, rows as f64, i32::MAX.into(), i32::MIN.into()];
        let id = |_| if rng.chance(20) { rng.pick(&odd) } else { rng.below(rows) as f64 };
        case.set("x1", (0..n).map(id).collect::<Vec<_>>());
        exam.check(&case, Bar { f32: 1e-7, bf16: 1e-7, exact: 1e-7 }, rng);
    });
}

#[test]
fn times_from_zero_to_a_thousand() {
    let mut exam = Exam::new("timestep_embedding");
    cases(20, |_, rng| {
        let (batch, dim) = (rng.pick(&[1, 2, 5]), 2 * rng.pick(&[1, 2, 5, 16, 160, 163]));
        let op = Op::TimestepEmbedding { dim, max_period: rng.pick(&[10_000.0, 100.0]) };
        let dtype = any_dtype(rng);
        let mut case = Case::new(single(op, vec![Operand::Input(vec![batch], DType::F32)], dtype, rng), rng);
        case.set("x0", (0..batch).map(|_| 1000.0 * rng.unit()).collect::<Vec<_>>());
        // Angles of a thousand have too few digits in f32 for this: they are to be reduced exactly.
        exam.check(&case, Bar { f32: 1e-6, bf16: 1e-6, exact: 1e-6 }, rng);
    });
}

#[test]
fn pairs_turned_by_an_angle() {
    let mut exam = Exam::new("rotary");
    cases(60, |_, rng| {
        let (batch, tokens, heads) = (rng.between(1, 3), rng.pick(&[1, 5, 77]), rng.between(1, 4));
        let half = rng.pick(&[1, 3, 8, 16, 20, 33]);
        let pairs = rng.pick(&[Pairs::Adjacent, Pairs::Halves]);
        let x = input([batch, tokens, heads * 2 * half], rng);
        let operands = vec![x, input([tokens, half], rng), input([tokens, half], rng)];
        let dtype = any_dtype(rng);
        let case = Case::new(single(Op::Rotary { heads, pairs }, operands, dtype, rng), rng);
        exam.check(&case, Bar::TIGHT, rng);
    });
}
