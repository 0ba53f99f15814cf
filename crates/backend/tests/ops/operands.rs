//! Graphs of one op.

use impasto_graph::{DType, Graph, Op, Storage};

use super::common::rng::Rng;

pub const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// An operand of the op that is examined.
pub enum Operand {
    Input(Vec<usize>, DType),
    Param(Vec<usize>, Storage),
}

/// A vector of any float type: given at each run, or from the model file.
pub fn vector(n: usize, rng: &mut Rng) -> Operand {
    let dtype = rng.pick(&FLOATS);
    match rng.chance(50) {
        true => Operand::Input(vec![n], dtype),
        false => Operand::Param(vec![n], Storage::Dense(dtype)),
    }
}

/// An input of this shape and any float type.
pub fn input(shape: impl Into<Vec<usize>>, rng: &mut Rng) -> Operand {
    Operand::Input(shape.into(), rng.pick(&FLOATS))
}

/// Any float type for the result, or the op's own choice.
pub fn any_dtype(rng: &mut Rng) -> Option<DType> {
    rng.chance(70).then(|| rng.pick(&FLOATS))
}

/// A graph of one op. Now and then its first operand is a result too: then the op cannot work in its place, and must not
/// harm it.
pub fn single(op: Op, operands: Vec<Operand>, dtype: Option<DType>, rng: &mut Rng) -> Graph {
    let mut graph = Graph::new();
    let mut values = vec![];
    for (i, operand) in operands.into_iter().enumerate() {
        values.push(match operand {
            Operand::Input(shape, dtype) => graph.input(&format!("x{i}"), shape, dtype),
            Operand::Param(shape, storage) => graph.param(&format!("x{i}"), shape, storage),
        });
    }
    let values: Vec<_> = values.into_iter().collect::<Result<_, _>>().expect("operands are sane");
    let y = graph.push(op, &values, dtype).expect("the operands fit the op");
    graph.output("y", y).expect("the name is new");
    if rng.chance(40) {
        graph.output("first operand", values[0]).expect("the name is new");
    }
    graph
}
