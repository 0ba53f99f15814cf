//! Parameters where other operands stand. A learned query, a table of positions or a fixed mask goes into ops like any
//! other tensor, whatever the file stores it as.

use std::panic::{AssertUnwindSafe, catch_unwind};

use impasto_graph::{Binary, DType, Fused, Op, Pairs, Storage, Unary};

use super::common::case::Case;
use super::common::exam::{Bar, Exam};
use super::common::rng::cases;
use super::operands::{FLOATS, Operand, any_dtype, single};

#[test]
fn parameters_are_operands_like_any_other() {
    let fused = Fused { bias: true, activation: None, residual: true };
    let conv = Op::Conv2d { stride: 1, padding: [1; 4], upsample: 1, fused };
    let ops: Vec<(Op, &[&[usize]])> = vec![
        (Op::Linear { fused, geglu: false }, &[&[3, 5, 32], &[33, 32], &[3, 33], &[3, 5, 33]]),
        (Op::Linear { fused, geglu: true }, &[&[3, 5, 32], &[66, 32], &[3, 66], &[3, 5, 33]]),
        (Op::MatMul { transpose_b: false }, &[&[2, 5, 7], &[2, 7, 33]]),
        (Op::MatMul { transpose_b: true }, &[&[2, 5, 7], &[2, 33, 7]]),
        (conv, &[&[2, 5, 7, 32], &[33, 32, 3, 3], &[2, 33], &[2, 5, 7, 33]]),
        (
            Op::Attention { heads: 2, kv_heads: 2, bias: false, scale: 0.3, causal: false },
            &[&[1, 5, 16], &[1, 7, 16], &[1, 7, 32]],
        ),
        (Op::GroupNorm { groups: 4, eps: 1e-5, activation: None }, &[&[2, 5, 16], &[16], &[16]]),
        (Op::LayerNorm { eps: 1e-5 }, &[&[5, 17], &[17], &[17]]),
        (Op::RmsNorm { eps: 1e-5 }, &[&[5, 17], &[17]]),
        (Op::Softmax, &[&[5, 17]]),
        (Op::Unary(Unary::Silu), &[&[5, 17]]),
        (Op::Binary(Binary::Add), &[&[5, 17], &[5, 17]]),
        (Op::Binary(Binary::Mul), &[&[5, 1], &[1, 17]]),
        (Op::Affine { scale: 2.0, shift: 0.5 }, &[&[5, 17]]),
        (Op::Geglu, &[&[5, 34]]),
        (Op::Cast, &[&[5, 17]]),
        (Op::Upsample { factor: 2 }, &[&[1, 3, 5, 17]]),
        (Op::Pad { before: vec![1, 2], after: vec![0, 1] }, &[&[5, 17]]),
        (Op::Concat { axis: 0 }, &[&[5, 17], &[3, 17]]),
        (Op::Concat { axis: 1 }, &[&[5, 17], &[5, 2]]),
        (Op::Slice { axis: 0, start: 0, len: 3 }, &[&[5, 16]]),
        (Op::Slice { axis: 1, start: 2, len: 9 }, &[&[5, 17]]),
        (Op::Reshape { shape: vec![85] }, &[&[5, 17]]),
        (Op::Permute { axes: vec![1, 0] }, &[&[5, 17]]),
        (Op::Permute { axes: vec![1, 0] }, &[&[1, 17]]),
        (Op::TimestepEmbedding { dim: 6, max_period: 100.0 }, &[&[5]]),
        (Op::Rotary { heads: 2, pairs: Pairs::Halves }, &[&[1, 5, 32], &[5, 8], &[5, 8]]),
    ];
    let (mut exam, mut wrong) = (Exam::new("parameters"), vec![]);
    for (op, shapes) in &ops {
        let name = op.name();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            cases(6, |i, rng| {
                // The first is stored in full precision: what fails after it fails for the storage.
                let storage = |rng: &mut _| {
                    Storage::Dense(if i == 0 { DType::F32 } else { super::common::rng::Rng::pick(rng, &FLOATS) })
                };
                let operands = shapes.iter().map(|shape| Operand::Param(shape.to_vec(), storage(rng))).collect();
                let moves = matches!(name, "upsample" | "pad" | "concat" | "slice" | "reshape" | "permute");
                let dtype = if moves { None } else { any_dtype(rng) };
                let case = Case::new(single(op.clone(), operands, dtype, rng), rng);
                exam.check(&case, Bar { bf16: 8e-3, ..Bar::TIGHT }, rng);
            });
        }));
        if outcome.is_err() {
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "ops that read parameters wrongly: {}", wrong.join(", "));
}

/// A parameter under another name is the same parameter; a result may be one, too.
#[test]
fn parameters_may_be_renamed_and_may_be_results() {
    let mut exam = Exam::new("parameters, renamed");
    cases(24, |_, rng| {
        let mut graph = impasto_graph::Graph::new();
        let storage = rng.pick(&[
            Storage::Dense(DType::F32),
            Storage::Dense(DType::F16),
            Storage::Dense(DType::BF16),
            Storage::Dense(DType::I32),
            Storage::Q8_0,
            Storage::Q4_0,
        ]);
        let mut build = || {
            let p = graph.param("p", [4, 32], storage)?;
            let flat = graph.reshape(p, [128])?;
            let back = graph.reshape(flat, [1, 4, 32])?;
            let same = graph.permute(back, &[1, 0, 2])?;
            let cast = graph.cast(same, DType::BF16)?;
            for (name, value) in [("p", p), ("flat", flat), ("same", same), ("cast", cast)] {
                graph.output(name, value)?;
            }
            Ok::<_, impasto_graph::GraphError>(())
        };
        build().expect("the graph is sane");
        exam.check(&Case::new(graph, rng), Bar::TIGHT, rng);
    });
}

/// Files mix element types, also within one network: what a user would lose is every model that somebody has merged or pruned.
#[test]
fn a_parameter_may_be_stored_as_another_float_than_the_graph_says() -> Result<(), Box<dyn std::error::Error>> {
    use impasto_backend::{Backend, Params, cpu::Cpu};
    use impasto_graph::{Epilogue, Graph, HostTensor, Plan};
    // Numbers that all three hold exactly.
    let of =
        |n: usize, start: i32| (0..n as i32).map(|i| ((start + i * 7) % 31 - 15) as f32 / 8.0).collect::<Vec<f32>>();
    let cpu = Cpu::new(&Default::default())?;
    let run = |says: DType, has: DType| -> Result<Vec<f32>, Box<dyn std::error::Error>> {
        let mut g = Graph::new();
        let ids = g.input("ids", [3], DType::I32)?;
        let table = g.param("table", [600, 5], Storage::Dense(says))?;
        let w = g.param("w", [4, 5], Storage::Dense(says))?;
        let b = g.param("b", [4], Storage::Dense(says))?;
        let x = g.embedding(table, ids)?;
        let y = g.linear(x, w, Epilogue::new().bias(b))?;
        g.output("y", y)?;
        let mut params = Params::new();
        for (name, shape) in [("table", vec![600, 5]), ("w", vec![4, 5]), ("b", vec![4])] {
            let data = of(shape.iter().product(), name.len() as i32);
            params.insert(name, HostTensor::f32(shape, data)?.cast(has));
        }
        let plan = Plan::new(&g, &cpu)?;
        let weights = cpu.pack(&g, &plan, &params)?;
        assert_eq!(weights.bytes(), plan.weights().iter().map(|w| w.bytes).sum::<u64>(), "planned exactly");
        let ids = HostTensor::i32([3], vec![0, 599, 301])?;
        Ok(cpu.prepare(&g, &plan, &weights)?.run_to_new(&[("ids", &ids)])?.remove(0).to_f32())
    };
    let want = run(DType::F32, DType::F32)?;
    for says in FLOATS {
        for has in FLOATS {
            assert_eq!(run(says, has)?, want, "the graph says {says}, the file has {has}");
        }
    }
    Ok(())
}
