//! Operands that do not fit. Whoever writes a model learns from each error which op it was, what it was given, and what
//! does not fit.

use impasto_graph::{DType, Data, Epilogue, Graph, GraphError, HostTensor, Op, Storage, Value, Window};

/// One op on operands of these types (`"param f32[3]"` for a parameter), and what the error must say of it.
type Wrong = (&'static [&'static str], &'static str, &'static str);

const PRODUCTS: &[Wrong] = &[
    (&["f32[2,3]", "param f32[4,5]"], "linear(%0, %1)", "k = 5"),
    (&["f32[]", "param f32[4,1]"], "linear(%0, %1)", "k = 1"),
    (&["f32[2,3]", "param f32[4,3,1]"], "linear(%0, %1)", "(n, k)"),
    (&["f32[2,3]", "f32[4,3]"], "linear(%0, %1)", "parameter"),
    (&["i32[2,3]", "param f32[4,3]"], "linear(%0, %1)", "floats"),
    (&["f32[2,3]", "param f32[4,3]", "f32[5]"], "linear(%0, %1, bias=%2)", "bias"),
    (&["f32[2,3]", "param f32[4,3]", "f32[3,4]"], "linear(%0, %1, bias=%2)", "bias"),
    (&["f32[3]", "param f32[4,3]", "f32[3,4]"], "linear(%0, %1, bias=%2)", "bias"),
    (&["f32[2,3]", "param f32[4,3]", "f32[2,3]"], "linear(%0, %1, residual=%2)", "[2, 4]"),
    (&["f32[2,3]", "param f32[4,3]", "i32[2,4]"], "linear(%0, %1, residual=%2)", "i32"),
    (&["f32[2,3]", "param f32[4,3]"], "linear(%0, %1) : i32[2,4]", "floats"),
    (&["f32[2,3]"], "linear(%0)", "operands"),
    (&["f32[2,3]", "param f32[5,3]"], "linear(%0, %1) geglu=1", "even"),
    (&["f32[2,3]", "param f32[4,3]"], "linear(%0, %1) act=silu geglu=1", "no other"),
    (&["f32[2,3]", "param f32[4,3]", "f32[2]"], "linear(%0, %1, bias=%2) geglu=1", "bias must be (4)"),
    (&["f32[2,3]", "param f32[4,3]", "f32[2,4]"], "linear(%0, %1, residual=%2) geglu=1", "[2, 2]"),
    (&["f32[2,3]", "f32[4,5]"], "matmul(%0, %1) transpose_b=0", "3 in a, 4 in b"),
    (&["f32[2,3]", "f32[4,5]"], "matmul(%0, %1) transpose_b=1", "3 in a, 5 in b"),
    (&["f32[3]", "f32[3]"], "matmul(%0, %1) transpose_b=0", "dimensions"),
    (&["f32[2,2,3]", "f32[3,5]"], "matmul(%0, %1) transpose_b=0", "dimensions"),
    (&["f32[2,2,3]", "f32[3,3,5]"], "matmul(%0, %1) transpose_b=0", "leading"),
    (&["f32[2,3]", "i32[3,5]"], "matmul(%0, %1) transpose_b=0", "i32"),
    (&["f32[1,8,8,3]", "param f32[4,5,3,3]"], "conv2d(%0, %1) stride=1 pad=[1,1,1,1] upsample=1", "3 channels"),
    (&["f32[8,8,3]", "param f32[4,3,3,3]"], "conv2d(%0, %1) stride=1 pad=[1,1,1,1] upsample=1", "4 dimensions"),
    (&["f32[1,8,8,3]", "param f32[4,3]"], "conv2d(%0, %1) stride=1 pad=[1,1,1,1] upsample=1", "4 dimensions"),
    (&["f32[1,8,8,3]", "param f32[4,3,3,3]"], "conv2d(%0, %1) stride=0 pad=[1,1,1,1] upsample=1", "stride"),
    (&["f32[1,8,8,3]", "param f32[4,3,3,3]"], "conv2d(%0, %1) stride=1 pad=[1,1,1,1] upsample=0", "upsample"),
    (
        &["f32[1,8,2,3]", "param f32[4,3,3,3]"],
        "conv2d(%0, %1) stride=1 pad=[0,0,0,0] upsample=1",
        "smaller than the kernel",
    ),
    (
        &["f32[1,8,8,3]", "param f32[4,3,3,3]"],
        "conv2d(%0, %1) stride=1 pad=[9223372036854775807,9223372036854775807,9223372036854775807,0] upsample=1",
        "too large",
    ),
    (&["f32[1,8,8,3]", "f32[4,3,3,3]"], "conv2d(%0, %1) stride=1 pad=[1,1,1,1] upsample=1", "parameter"),
    (
        &["f32[1,8,8,3]", "param f32[4,3,3,3]", "f32[1,8,8,4]"],
        "conv2d(%0, %1, residual=%2) stride=2 pad=[1,1,1,1] upsample=1",
        "[1, 4, 4, 4]",
    ),
    (&["f32[2,5,8]", "f32[2,7,8]", "f32[2,7,8]"], "attention(%0, %1, %2) heads=3 scale=1.0 causal=0", "3 heads"),
    (&["f32[2,5,8]", "f32[2,7,8]", "f32[2,7,8]"], "attention(%0, %1, %2) heads=0 scale=1.0 causal=0", "heads"),
    (&["f32[2,5,8]", "f32[1,7,8]", "f32[2,7,8]"], "attention(%0, %1, %2) heads=2 scale=1.0 causal=0", "batch"),
    (&["f32[2,5,8]", "f32[2,7,6]", "f32[2,7,8]"], "attention(%0, %1, %2) heads=2 scale=1.0 causal=0", "width"),
    (&["f32[2,5,8]", "f32[2,7,8]", "f32[2,6,8]"], "attention(%0, %1, %2) heads=2 scale=1.0 causal=0", "tokens"),
    (&["f32[2,5,8]", "f32[2,4,8]", "f32[2,4,8]"], "attention(%0, %1, %2) heads=2 scale=1.0 causal=1", "causal"),
    (
        &["f32[2,5,8]", "f32[2,7,4]", "f32[2,7,4]"],
        "attention(%0, %1, %2) heads=4 kv_heads=3 scale=1.0 causal=0",
        "3 heads",
    ),
    (
        &["f32[2,5,12]", "f32[2,7,8]", "f32[2,7,8]"],
        "attention(%0, %1, %2) heads=3 kv_heads=2 scale=1.0 causal=0",
        "cannot share",
    ),
    (
        &["f32[2,5,8]", "f32[2,7,8]", "f32[2,7,8]"],
        "attention(%0, %1, %2) heads=4 kv_heads=2 scale=1.0 causal=0",
        "width",
    ),
    (
        &["f32[2,5,8]", "f32[2,7,8]", "f32[2,7,8]", "f32[2,1,5]"],
        "attention(%0, %1, %2, bias=%3) heads=2 scale=1.0 causal=0",
        "4 dimensions",
    ),
    (
        &["f32[2,5,8]", "f32[2,7,8]", "f32[2,7,8]", "f32[2,1,7,5]"],
        "attention(%0, %1, %2, bias=%3) heads=2 scale=1.0 causal=0",
        "stretch",
    ),
    (
        &["f32[2,5,8]", "f32[2,7,8]", "f32[2,7,8]", "f32[2,1,5,1]"],
        "attention(%0, %1, %2, bias=%3) heads=2 scale=1.0 causal=0",
        "stretch",
    ),
    (&["f32[5,8]", "f32[2,7,8]", "f32[2,7,8]"], "attention(%0, %1, %2) heads=2 scale=1.0 causal=0", "3 dimensions"),
];

const NORMS_AND_ARITHMETIC: &[Wrong] = &[
    (&["f32[2,9]", "f32[9]", "f32[9]"], "group_norm(%0, %1, %2) groups=2 eps=1e-5", "9 channels"),
    (&["f32[2,9]", "f32[9]", "f32[9]"], "group_norm(%0, %1, %2) groups=0 eps=1e-5", "0 groups"),
    (&["f32[9]", "f32[9]", "f32[9]"], "group_norm(%0, %1, %2) groups=3 eps=1e-5", "2 dimensions"),
    (&["f32[2,9]", "f32[8]", "f32[9]"], "group_norm(%0, %1, %2) groups=3 eps=1e-5", "gamma"),
    (&["f32[2,9]", "f32[9]", "f32[1,9]"], "group_norm(%0, %1, %2) groups=3 eps=1e-5", "beta"),
    (
        &["f32[2,9]", "f32[8]", "f32[9]"],
        "layer_norm(%0, %1, %2) eps=1e-5",
        "gamma must be a vector of 9 or (batch 2, 9)",
    ),
    (&["f32[2,9]", "f32[9]", "f32[2]"], "layer_norm(%0, %1, %2) eps=1e-5", "beta must have the shape [9] of gamma"),
    (&["f32[2,9]", "f32[2]"], "rms_norm(%0, %1) eps=1e-5", "gamma must be a vector of 9"),
    (&["i32[2,9]", "f32[9]"], "rms_norm(%0, %1) eps=1e-5", "i32"),
    (&["i32[2,9]"], "softmax(%0)", "i32"),
    (&["i32[2,9]"], "silu(%0)", "i32"),
    (&["f32[2,9]"], "silu(%0) : i32[2,9]", "floats"),
    (&["f32[2,9]", "f32[2,9]"], "silu(%0, %1)", "operands"),
    (&["f32[2,9]", "f32[3,9]"], "add(%0, %1)", "2 and 3 do not broadcast"),
    (&["f32[2,9]", "f32[2]"], "mul(%0, %1)", "9 and 2 do not broadcast"),
    (&["f32[2,9]", "i32[2,9]"], "div(%0, %1)", "i32"),
    (&["i32[2,9]"], "affine(%0) scale=1.0 shift=0.0", "i32"),
    (&["f32[2,9]"], "geglu(%0)", "even"),
    (&["f32[]"], "geglu(%0)", "even"),
];

const MOVEMENT_AND_LOOKUPS: &[Wrong] = &[
    (&["f32[2,3,4]"], "upsample(%0) factor=2", "4 dimensions"),
    (&["f32[1,2,3,4]"], "upsample(%0) factor=0", "factor"),
    (&["f32[1,2,3,4]"], "upsample(%0) factor=18446744073709551615", "too large"),
    (&["f32[1,2,3,4]"], "upsample(%0) factor=1000000000", "elements"),
    (&["f32[1,2,3,4]"], "upsample(%0) factor=2 : bf16[1,4,6,4]", "keeps the element type"),
    (&["f32[2,3]"], "pad(%0) before=[1] after=[1,1]", "2 dimensions"),
    (&["f32[2,3]"], "pad(%0) before=[18446744073709551615,0] after=[1,1]", "too large"),
    (&["f32[2,3]", "f32[2,4]"], "concat(%0, %1) axis=0", "axis 0"),
    (&["f32[2,3]", "f32[2,3]"], "concat(%0, %1) axis=2", "axis 2"),
    (&["f32[2,3]", "f32[2,3,1]"], "concat(%0, %1) axis=1", "agree"),
    (&["f32[2,3]", "f16[2,3]"], "concat(%0, %1) axis=1", "element type"),
    (&[], "concat() axis=1", "at least one"),
    (&["f32[2,3]"], "slice(%0) axis=2 start=0 len=1", "axis 2"),
    (&["f32[2,3]"], "slice(%0) axis=1 start=2 len=2", "2 from 2"),
    (&["f32[2,3]"], "slice(%0) axis=1 start=18446744073709551615 len=2", "inside 3"),
    (&["f32[2,3]"], "slice(%0) axis=1 start=1 len=0", "zero"),
    (&["f32[2,3]"], "reshape(%0) shape=[7]", "6 elements"),
    (&["f32[2,3]"], "reshape(%0) shape=[0,6]", "6 elements"),
    (&["f32[2,3]"], "reshape(%0) shape=[4294967296,4294967296,6]", "6 elements"),
    (&["f32[2,3]"], "reshape(%0) shape=[2,3,1,1,1,1,1,1,1]", "9 dimensions"),
    (&["f32[2,3]"], "permute(%0) axes=[0]", "axes"),
    (&["f32[2,3]"], "permute(%0) axes=[0,0]", "axes"),
    (&["f32[2,3]"], "permute(%0) axes=[1,2]", "axes"),
    (&["f32[9,4]", "f32[3]"], "embedding(%0, %1)", "i32"),
    (&["i32[9,4]", "i32[3]"], "embedding(%0, %1)", "table"),
    (&["f32[9,4,1]", "i32[3]"], "embedding(%0, %1)", "2 dimensions"),
    (&["f32[2,3]"], "timestep_embedding(%0) dim=8 max_period=10000.0", "1 dimensions"),
    (&["f32[2]"], "timestep_embedding(%0) dim=7 max_period=10000.0", "even"),
    (&["f32[2]"], "timestep_embedding(%0) dim=0 max_period=10000.0", "even"),
    (&["i32[2]"], "timestep_embedding(%0) dim=8 max_period=10000.0", "i32"),
    (&["f32[2,5,12]", "f32[5,3]", "f32[5,3]"], "rotary(%0, %1, %2) heads=4 pairs=halves", "heads"),
    (&["f32[2,5,12]", "f32[5,3]", "f32[5,2]"], "rotary(%0, %1, %2) heads=2 pairs=halves", "[5, 3]"),
    (&["f32[5,12]", "f32[5,3]", "f32[5,3]"], "rotary(%0, %1, %2) heads=2 pairs=halves", "3 dimensions"),
    (&["f32[2,5,12]", "f32[5,3]", "f32[5,3]"], "rotary(%0, %1, %2) heads=0 pairs=halves", "heads"),
    (&["f32[2,5,12]", "f32[5,3]", "f32[5,3]"], "rotary(%0, %1, %2) heads=9223372036854775808 pairs=halves", "heads"),
];

#[test]
fn an_error_names_the_op_and_every_operand_with_its_shape() {
    for (operands, op, problem) in [PRODUCTS, NORMS_AND_ARITHMETIC, MOVEMENT_AND_LOOKUPS].into_iter().flatten() {
        let lines = operands.iter().enumerate().map(|(i, ty)| match ty.strip_prefix("param ") {
            Some(ty) => format!("%{i} = param \"layer{i}.part\" f16 : {ty}\n"),
            None => format!("%{i} = input \"x{i}\" : {ty}\n"),
        });
        let text = lines.collect::<String>() + &format!("%y = {op}\n");
        let error = match std::panic::catch_unwind(|| text.parse::<Graph>()) {
            Ok(Err(e)) => e,
            Ok(Ok(graph)) => panic!("no error:\n{graph}"),
            Err(_) => panic!("this panics:\n{text}"),
        };
        assert!(matches!(error, GraphError::Shape { .. }), "{error:?}\n{text}");
        let name = &op[..=op.find('(').expect("an op has operands")];
        let parts = operands.iter().map(|t| t.trim_start_matches("param ")).chain([name, problem]);
        for part in parts {
            assert!(error.to_string().contains(part), "'{part}' is not in '{error}'\n{text}");
        }
    }
}

/// Whoever debugs a model of a thousand layers needs the name of the one that is wrong.
#[test]
fn an_error_says_where_in_the_model_it_is() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let x = graph.input("x", [2, 3], DType::F32)?;
    let w = graph.param("decoder.mid.fc1.weight", [4, 5], Storage::Dense(DType::F16))?;
    let error = graph.linear(x, w, Default::default()).expect_err("k differs");
    assert_eq!(
        error.to_string(),
        "decoder.mid.fc1: linear(x f32[2,3], w f32[4,5]): the last dimension of x must be k = 5 as in w (n, k)"
    );
    Ok(())
}

/// GEGLU makes one column of two, which only a linear layer does as its end.
#[test]
fn a_convolution_does_not_end_with_geglu() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let x = graph.input("x", [1, 8, 8, 3], DType::F32)?;
    let w = graph.param("conv.weight", [4, 3, 1, 1], Storage::Dense(DType::F16))?;
    let error = graph.conv2d(x, w, Window::pad(0), Epilogue::new().geglu()).expect_err("it is a convolution");
    assert_eq!(
        error.to_string(),
        "conv: conv2d(x f32[1,8,8,3], w f32[4,3,1,1]): geglu ends linear layers only; after a convolution use the op of that name"
    );
    Ok(())
}

#[test]
fn sources_that_cannot_be_are_refused() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let q8 = Storage::Q8_0;
    let wrong = [
        graph.input("zero", [2, 0, 3], DType::F32),
        graph.input("rank", [1; 9], DType::F32),
        graph.input("huge", [1 << 40, 1 << 40], DType::F32),
        graph.input("beyond", [usize::MAX, usize::MAX], DType::F32),
        graph.param("row", [2, 33], q8),
        graph.param("rows", [32, 1], q8),
        graph.param("vector", [31], Storage::Q4_0),
        graph.param("kernel", [5, 3, 3, 3], Storage::Q4_0),
        graph.param("beyond", [usize::MAX, 32], q8),
    ];
    for (i, result) in wrong.into_iter().enumerate() {
        let error = result.expect_err(&format!("case {i}"));
        assert!(matches!(error, GraphError::Shape { .. }), "{error}");
    }
    // A kernel is cut into blocks along all of a filter, not along its innermost side.
    graph.param("filters", [4, 32, 3, 3], q8)?;
    Ok(())
}

#[test]
fn one_name_is_one_tensor() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let f16 = Storage::Dense(DType::F16);
    let x = graph.input("x", [2], DType::F32)?;
    let w = graph.param("x", [2], f16)?;
    assert_eq!(graph.param("x", [2], f16)?, w, "asking twice for a parameter is sharing");
    graph.output("x", x)?;
    let wrong = [
        graph.input("x", [2], DType::F32),
        graph.param("x", [3], f16),
        graph.param("x", [2], Storage::Dense(DType::F32)),
        graph.output("x", w).map(|()| w),
    ];
    for result in wrong {
        let error = result.expect_err("the name is taken");
        assert!(matches!(&error, GraphError::Duplicate { name, .. } if name == "x"), "{error}");
    }
    Ok(())
}

#[test]
fn values_of_another_graph_are_refused() -> Result<(), GraphError> {
    let mut large = Graph::new();
    let values: Vec<Value> = (0..9).map(|i| large.input(&i.to_string(), [2], DType::F32)).collect::<Result<_, _>>()?;
    let mut small = Graph::new();
    let x = small.input("x", [2], DType::F32)?;
    let wrong = [
        small.add(x, values[8]),
        small.push(Op::Softmax, &values[8..], None),
        small.output("y", values[8]).map(|()| x),
    ];
    for result in wrong {
        assert!(matches!(result, Err(GraphError::Undefined { value: 8, .. })), "{result:?}");
    }
    Ok(())
}

#[test]
fn a_host_tensor_has_as_many_elements_as_its_shape_says() {
    assert!(HostTensor::f32([2, 3], vec![0.5; 6]).is_ok());
    assert!(HostTensor::f32([], vec![0.5]).is_ok());
    let wrong: [(&[usize], usize); 5] =
        [(&[2, 3], 5), (&[2, 3], 7), (&[], 0), (&[1 << 32, 1 << 32], 0), (&[usize::MAX, 3], 1)];
    for (shape, given) in wrong {
        let result = std::panic::catch_unwind(|| HostTensor::new(shape, Data::F32(vec![0.5; given])));
        let result = result.unwrap_or_else(|_| panic!("{shape:?} with {given} elements panics"));
        match result {
            Err(e @ GraphError::WrongLength { .. }) => assert!(!e.to_string().is_empty()),
            other => panic!("{shape:?} with {given} elements: {other:?}"),
        }
    }
}
