//! Linear layers with GEGLU whose product is computed in parts of its rows, since as one tensor it would be larger than all others.

use impasto_graph::{DType, Epilogue, Graph, GraphError, Plan, Storage};

use super::common::case::Case;
use super::common::cpus::machines;
use super::common::exam::{Bar, Exam};
use super::common::rng::cases;

/// A layer whose product has `rows` times 4000 bytes in 16 bits, and twice as many in 32.
fn layer(rows: usize, dtype: DType, residual: bool) -> Result<Graph, GraphError> {
    let (n, k) = (1000, 7);
    let mut g = Graph::new();
    let x = g.input("x", [rows, k], dtype)?;
    let w = g.param("w", [2 * n, k], Storage::Dense(DType::F32))?;
    let b = g.param("b", [2 * n], Storage::Dense(DType::F32))?;
    let mut then = Epilogue::new().bias(b).geglu().dtype(dtype);
    if residual {
        then = then.residual(g.input("r", [rows, n], dtype)?);
    }
    let y = g.linear(x, w, then)?;
    g.output("y", y)?;
    Ok(g)
}

#[test]
fn a_wide_product_in_parts() {
    let mut exam = Exam::new("linear, geglu, parts");
    cases(2, |i, rng| {
        // Two parts, of which the second has fewer rows.
        let graph = layer(4500, DType::F32, i == 1).expect("the graph is sane");
        for machine in machines() {
            let plan = Plan::new(&graph, &*machine.backend.profile()).expect("it fits");
            let wide = 4500 * 2000 * 4;
            let all = plan.arena_bytes() - graph.inputs().map(|(_, v)| graph.ty(v).bytes()).sum::<u64>();
            assert!(all < wide + wide / 2, "{machine}: {all} bytes for a result of {}", wide / 2);
        }
        exam.check(&Case::new(graph, rng), Bar::TIGHT, rng);
    });
}
