//! The graph, and the builder that model code is written in.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::dtype::{DType, Storage};
use crate::error::{GraphError, Operand, Operands};
use crate::infer::{check_source, infer};
use crate::op::{Binary, Fused, Op, Pairs, Unary};
use crate::tensor::TensorType;

/// A tensor of the graph: the result of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Value(pub(crate) u32);

impl Value {
    /// Its place among the graph's nodes.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// One operation with its operands and the type of its result.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// From what; every operand stands earlier in the graph.
    pub inputs: Vec<Value>,
    /// What comes out.
    pub ty: TensorType,
}

/// A result that the caller gets to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The name it is asked for by.
    pub name: String,
    /// The tensor.
    pub value: Value,
}

/// What goes into the scores of attention beside queries and keys: `scale q kᵀ + bias`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scores {
    /// One over the root of a head's width, where nothing else is said.
    pub scale: Option<f32>,
    /// Query `i` sees keys up to `i + s - t`.
    pub causal: bool,
    /// `(batch or 1, heads or 1, t or 1, s)`. Negative infinity hides a key.
    pub bias: Option<Value>,
}

/// What a product does before it stores an element: `activation(sum + bias) + residual`, in an element type. Of a linear layer the activation
/// may be GEGLU, which makes one column of two.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue {
    bias: Option<Value>,
    activation: Option<Unary>,
    geglu: bool,
    residual: Option<Value>,
    dtype: Option<DType>,
}

impl Epilogue {
    /// Store the product as it is.
    pub fn new() -> Self {
        Self::default()
    }

    /// Add a vector `(n)`, or one vector a picture `(batch, n)`.
    pub fn bias(self, bias: Value) -> Self {
        Epilogue { bias: Some(bias), ..self }
    }

    /// Then apply a function.
    pub fn activation(self, activation: Unary) -> Self {
        Epilogue { activation: Some(activation), ..self }
    }

    /// Then multiply the first half of the columns with the exact GELU of the second half: the result of a linear layer with weights
    /// `(2n, k)` is `(.., n)`.
    pub fn geglu(self) -> Self {
        Epilogue { geglu: true, ..self }
    }

    /// Then add a tensor of the result's shape. The result has its element type, unless one is asked for.
    pub fn residual(self, residual: Value) -> Self {
        Epilogue { residual: Some(residual), ..self }
    }

    /// Store in this element type.
    pub fn dtype(self, dtype: DType) -> Self {
        Epilogue { dtype: Some(dtype), ..self }
    }

    fn fused(&self) -> Fused {
        Fused { bias: self.bias.is_some(), activation: self.activation, residual: self.residual.is_some() }
    }

    fn operands(&self, x: Value, w: Value) -> Vec<Value> {
        [x, w].into_iter().chain(self.bias).chain(self.residual).collect()
    }
}

/// How a convolution steps over its image.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    stride: usize,
    padding: [isize; 4],
    upsample: usize,
}

impl Window {
    /// Stride 1 with the same padding on all sides: 1 keeps the size under a 3x3 kernel, 0 under a 1x1 kernel.
    pub fn pad(padding: usize) -> Self {
        Window { stride: 1, padding: [padding as isize; 4], upsample: 1 }
    }

    /// Other paddings: top, left, bottom, right. A negative one takes pixels of the enlarged input away.
    pub fn padding(self, padding: [isize; 4]) -> Self {
        Window { padding, ..self }
    }

    /// Take every `stride`-th pixel.
    pub fn stride(self, stride: usize) -> Self {
        Window { stride, ..self }
    }

    /// Enlarge the input first, nearest neighbour.
    pub fn upsample(self, upsample: usize) -> Self {
        Window { upsample, ..self }
    }
}

/// A computation over tensors of known shape: plain data, every operand defined before its use.
///
/// ```
/// use impasto_graph::{DType, Epilogue, Graph, Storage, Unary, Window};
/// let mut g = Graph::new();
/// let x = g.input("x", [1, 8, 8, 4], DType::F32)?;
/// let w = g.param("conv.weight", [16, 4, 3, 3], Storage::Dense(DType::F16))?;
/// let b = g.param("conv.bias", [16], Storage::Dense(DType::F16))?;
/// let y = g.conv2d(x, w, Window::pad(1), Epilogue::new().bias(b).activation(Unary::Silu))?;
/// g.output("y", y)?;
/// assert_eq!(g.ty(y).shape, [1, 8, 8, 16]);
/// # Ok::<(), impasto_graph::GraphError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    nodes: Vec<Node>,
    outputs: Vec<Output>,
    sources: HashMap<(&'static str, String), Value>,
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// The nodes; operands come before their users.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The results.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// Every tensor, in the order of the nodes.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = Value> + use<> {
        (0..self.nodes.len() as u32).map(Value)
    }

    /// The node that defines a value.
    pub fn node(&self, value: Value) -> &Node {
        &self.nodes[value.index()]
    }

    /// The type of a value.
    pub fn ty(&self, value: Value) -> &TensorType {
        &self.node(value).ty
    }

    /// The types of a node's operands.
    pub fn operand_types(&self, value: Value) -> Vec<&TensorType> {
        self.node(value).inputs.iter().map(|&v| self.ty(v)).collect()
    }

    /// Graph inputs with their names.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, Value)> {
        self.values().filter_map(|v| match &self.node(v).op {
            Op::Input { name } => Some((name.as_str(), v)),
            _ => None,
        })
    }

    /// Parameters with their names.
    pub fn params(&self) -> impl Iterator<Item = (&str, Value)> {
        self.values().filter_map(|v| match &self.node(v).op {
            Op::Param { name, .. } => Some((name.as_str(), v)),
            _ => None,
        })
    }

    /// Useful floating-point operations of the whole graph.
    pub fn flops(&self) -> u64 {
        self.values().map(|v| self.node(v).op.flops(&self.operand_types(v), self.ty(v))).sum()
    }

    /// Where in the model a value stands, as a reader of the model file would say: the name of the nearest parameter
    /// without its last part (`decoder.mid.block_1.conv1`), else that of an input.
    pub fn label(&self, value: Value) -> &str {
        let mut at = value;
        loop {
            let node = self.node(at);
            if let Some(name) = node.inputs.iter().find_map(|&i| self.param_path(i)) {
                return name;
            }
            match (&node.op, node.inputs.first()) {
                (Op::Input { name } | Op::Param { name, .. }, _) => return name,
                (_, Some(&first)) => at = first,
                (_, None) => return "graph",
            }
        }
    }

    fn param_path(&self, value: Value) -> Option<&str> {
        match &self.node(value).op {
            Op::Param { name, .. } => Some(name.rsplit_once('.').map_or(name.as_str(), |(path, _)| path)),
            _ => None,
        }
    }

    /// Append an op. `dtype` asks for an element type of the result where the op lets one choose.
    pub fn push(&mut self, op: Op, inputs: &[Value], dtype: Option<DType>) -> Result<Value, GraphError> {
        if let Some(v) = inputs.iter().find(|v| v.index() >= self.nodes.len()) {
            return Err(GraphError::Undefined { value: v.0, op: op.name() });
        }
        let types: Vec<&TensorType> = inputs.iter().map(|&v| self.ty(v)).collect();
        let is_param = |&value: &Value| matches!(self.node(value).op, Op::Param { .. });
        let rests = |value: &Value| self.node(*value).op == Op::Rest;
        let weights_are_params =
            !matches!(op, Op::Linear { .. } | Op::Conv2d { .. }) || inputs.get(1).is_none_or(is_param);
        let inferred = if !weights_are_params {
            Err("w must be a parameter of the model; use matmul for computed operands".into())
        } else if op == Op::Fetch && !inputs.iter().all(rests) {
            Err("x does not rest in the host's memory".into())
        } else if op != Op::Fetch && inputs.iter().any(rests) {
            Err("what rests in the host's memory must be fetched first".into())
        } else if op == Op::Rest && inputs.iter().any(is_param) {
            Err("a parameter is not the graph's to put aside".into())
        } else {
            infer(&op, &types, dtype)
        };
        match inferred {
            Ok(ty) => {
                self.nodes.push(Node { op, inputs: inputs.to_vec(), ty });
                Ok(Value(self.nodes.len() as u32 - 1))
            }
            Err(problem) => Err(self.shape_error(&op, inputs, problem)),
        }
    }

    /// Append a node of another graph, whose type is known and whose name, if it has one, is new here.
    pub(crate) fn append(&mut self, node: Node) -> Value {
        let value = Value(self.nodes.len() as u32);
        match &node.op {
            Op::Input { name } => drop(self.sources.insert(("input", name.clone()), value)),
            Op::Param { name, .. } => drop(self.sources.insert(("param", name.clone()), value)),
            _ => {}
        }
        self.nodes.push(node);
        value
    }

    /// Make a value a result under a name that is new here.
    pub(crate) fn keep(&mut self, name: &str, value: Value) {
        self.outputs.push(Output { name: name.into(), value });
    }

    fn shape_error(&self, op: &Op, inputs: &[Value], problem: String) -> GraphError {
        let roles = op.roles().unwrap_or_default();
        let operands = inputs.iter().enumerate().map(|(i, &v)| Operand {
            role: roles.get(i).map_or_else(|| format!("#{i}"), |r| r.to_string()),
            ty: self.ty(v).clone(),
        });
        let label = inputs
            .iter()
            .find_map(|&v| self.param_path(v))
            .or_else(|| inputs.first().map(|&v| self.label(v)))
            .unwrap_or("graph")
            .to_string();
        GraphError::Shape { label, op: op.name(), operands: Operands(operands.collect()), problem }
    }

    fn source(&mut self, kind: &'static str, name: &str, op: Op, ty: TensorType) -> Result<Value, GraphError> {
        if let Err(problem) = check_source(&op, &ty) {
            let operands = Operands(vec![Operand { role: kind.into(), ty }]);
            return Err(GraphError::Shape { label: name.into(), op: op.name(), operands, problem });
        }
        Ok(self.append(Node { op, inputs: vec![], ty }))
    }

    /// A tensor given at each run.
    pub fn input(&mut self, name: &str, shape: impl Into<Vec<usize>>, dtype: DType) -> Result<Value, GraphError> {
        let ty = TensorType::new(shape, dtype);
        if let Some(&first) = self.sources.get(&("input", name.to_string())) {
            let first = self.ty(first).clone();
            return Err(GraphError::Duplicate { kind: "input", name: name.into(), first, second: ty });
        }
        self.source("input", name, Op::Input { name: name.into() }, ty)
    }

    /// A tensor of the model file, in the shape that the file has. Asking twice for the same one is sharing.
    pub fn param(&mut self, name: &str, shape: impl Into<Vec<usize>>, storage: Storage) -> Result<Value, GraphError> {
        let dtype = if storage == Storage::Dense(DType::I32) { DType::I32 } else { DType::F32 };
        let ty = TensorType::new(shape, dtype);
        let op = Op::Param { name: name.into(), storage };
        match self.sources.get(&("param", name.to_string())) {
            Some(&v) if self.node(v).ty == ty && self.node(v).op == op => Ok(v),
            Some(&v) => {
                let first = self.ty(v).clone();
                Err(GraphError::Duplicate { kind: "parameter", name: name.into(), first, second: ty })
            }
            None => self.source("param", name, op, ty),
        }
    }

    /// Says how parameters are stored: as `of` has it, by their names, or as it was where that says nothing.
    ///
    /// ```
    /// use impasto_graph::{DType, Epilogue, Graph, Storage};
    /// let mut graph = Graph::new();
    /// let x = graph.input("x", [1, 64], DType::F32)?;
    /// let w = graph.param("w", [8, 64], Storage::Dense(DType::F32))?;
    /// graph.linear(x, w, Epilogue::new())?;
    /// graph.set_storages(|name| (name == "w").then_some(Storage::Q8_0))?;
    /// assert!(graph.to_string().contains("q8_0"));
    /// # Ok::<(), impasto_graph::GraphError>(())
    /// ```
    pub fn set_storages(&mut self, of: impl Fn(&str) -> Option<Storage>) -> Result<(), GraphError> {
        for node in &mut self.nodes {
            let Op::Param { name, storage } = &mut node.op else { continue };
            let (label, op) = (name.clone(), "param");
            *storage = of(name).unwrap_or(*storage);
            if let Err(problem) = check_source(&node.op, &node.ty) {
                let operands = Operands(vec![Operand { role: op.into(), ty: node.ty.clone() }]);
                return Err(GraphError::Shape { label, op, operands, problem });
            }
        }
        Ok(())
    }

    /// Make a value a result of the graph.
    pub fn output(&mut self, name: &str, value: Value) -> Result<(), GraphError> {
        if value.index() >= self.nodes.len() {
            return Err(GraphError::Undefined { value: value.0, op: "output" });
        }
        if let Some(o) = self.outputs.iter().find(|o| o.name == name) {
            let (first, second) = (self.ty(o.value).clone(), self.ty(value).clone());
            return Err(GraphError::Duplicate { kind: "output", name: name.into(), first, second });
        }
        self.keep(name, value);
        Ok(())
    }

    /// `x (.., k)` times `w (n, k)` transposed, with an epilogue.
    pub fn linear(&mut self, x: Value, w: Value, then: Epilogue) -> Result<Value, GraphError> {
        self.push(Op::Linear { fused: then.fused(), geglu: then.geglu }, &then.operands(x, w), then.dtype)
    }

    /// `x (batch, h, w, c)` with `w (n, c, kh, kw)`, with an epilogue.
    pub fn conv2d(&mut self, x: Value, w: Value, window: Window, then: Epilogue) -> Result<Value, GraphError> {
        let Window { stride, padding, upsample } = window;
        let op = Op::Conv2d { stride, padding, upsample, fused: then.fused() };
        let operands = then.operands(x, w);
        if then.geglu && operands.iter().all(|v| v.index() < self.nodes.len()) {
            return Err(self.shape_error(
                &op,
                &operands,
                "geglu ends linear layers only; after a convolution use the op of that name".into(),
            ));
        }
        self.push(op, &operands, then.dtype)
    }

    /// `a (.., m, k)` times `b (.., k, n)`.
    pub fn matmul(&mut self, a: Value, b: Value) -> Result<Value, GraphError> {
        self.push(Op::MatMul { transpose_b: false }, &[a, b], None)
    }

    /// `a (.., m, k)` times `b (.., n, k)` transposed.
    pub fn matmul_transposed(&mut self, a: Value, b: Value) -> Result<Value, GraphError> {
        self.push(Op::MatMul { transpose_b: true }, &[a, b], None)
    }

    /// Scaled-dot-product attention over `heads` heads, scaled by the root of the head's width.
    pub fn attention(&mut self, q: Value, k: Value, v: Value, heads: usize, causal: bool) -> Result<Value, GraphError> {
        self.grouped_attention([q, k, v], [heads, heads], Scores { causal, ..Scores::default() })
    }

    /// Attention of so many heads of queries over so many of keys and values, and what else goes into its scores.
    pub fn grouped_attention(
        &mut self,
        [q, k, v]: [Value; 3],
        [heads, kv_heads]: [usize; 2],
        Scores { scale, causal, bias }: Scores,
    ) -> Result<Value, GraphError> {
        let width = self.ty(q).channels() / heads.max(1);
        let scale = scale.unwrap_or(1.0 / (width.max(1) as f32).sqrt());
        let operands: Vec<Value> = [q, k, v].into_iter().chain(bias).collect();
        self.push(Op::Attention { heads, kv_heads, scale, causal, bias: bias.is_some() }, &operands, None)
    }

    /// Group norm, with an activation after it, stored as `dtype`.
    pub fn group_norm(
        &mut self,
        x: Value,
        [gamma, beta]: [Value; 2],
        groups: usize,
        eps: f32,
        activation: Option<Unary>,
        dtype: DType,
    ) -> Result<Value, GraphError> {
        self.push(Op::GroupNorm { groups, eps, activation }, &[x, gamma, beta], Some(dtype))
    }

    /// Layer norm over the last dimension, stored as `dtype`.
    pub fn layer_norm(
        &mut self,
        x: Value,
        [gamma, beta]: [Value; 2],
        eps: f32,
        dtype: DType,
    ) -> Result<Value, GraphError> {
        self.push(Op::LayerNorm { eps }, &[x, gamma, beta], Some(dtype))
    }

    /// Root-mean-square norm over the last dimension, stored as `dtype`.
    pub fn rms_norm(&mut self, x: Value, gamma: Value, eps: f32, dtype: DType) -> Result<Value, GraphError> {
        self.push(Op::RmsNorm { eps }, &[x, gamma], Some(dtype))
    }

    /// Softmax over the last dimension.
    pub fn softmax(&mut self, x: Value) -> Result<Value, GraphError> {
        self.push(Op::Softmax, &[x], None)
    }

    /// A function of each element.
    pub fn unary(&mut self, function: Unary, x: Value) -> Result<Value, GraphError> {
        self.push(Op::Unary(function), &[x], None)
    }

    /// A function of each pair of elements, broadcasting.
    pub fn binary(&mut self, function: Binary, a: Value, b: Value) -> Result<Value, GraphError> {
        self.push(Op::Binary(function), &[a, b], None)
    }

    /// `a + b`, broadcasting.
    pub fn add(&mut self, a: Value, b: Value) -> Result<Value, GraphError> {
        self.binary(Binary::Add, a, b)
    }

    /// `x * scale + shift`.
    pub fn affine(&mut self, x: Value, scale: f32, shift: f32) -> Result<Value, GraphError> {
        self.push(Op::Affine { scale, shift }, &[x], None)
    }

    /// `x (.., 2n)`: first half times GELU of the second.
    pub fn geglu(&mut self, x: Value) -> Result<Value, GraphError> {
        self.push(Op::Geglu, &[x], None)
    }

    /// The same values in another element type.
    pub fn cast(&mut self, x: Value, dtype: DType) -> Result<Value, GraphError> {
        self.push(Op::Cast, &[x], Some(dtype))
    }

    /// An image enlarged, nearest neighbour.
    pub fn upsample(&mut self, x: Value, factor: usize) -> Result<Value, GraphError> {
        self.push(Op::Upsample { factor }, &[x], None)
    }

    /// Zeros around a tensor.
    pub fn pad(&mut self, x: Value, before: &[usize], after: &[usize]) -> Result<Value, GraphError> {
        self.push(Op::Pad { before: before.to_vec(), after: after.to_vec() }, &[x], None)
    }

    /// Tensors one after the other along an axis.
    pub fn concat(&mut self, axis: usize, parts: &[Value]) -> Result<Value, GraphError> {
        self.push(Op::Concat { axis }, parts, None)
    }

    /// The same bytes in the host's memory, until they are needed again.
    pub fn rest(&mut self, x: Value) -> Result<Value, GraphError> {
        self.push(Op::Rest, &[x], None)
    }

    /// What rests, on the device again.
    pub fn fetch(&mut self, x: Value) -> Result<Value, GraphError> {
        self.push(Op::Fetch, &[x], None)
    }

    /// A part of an axis.
    pub fn slice(&mut self, x: Value, axis: usize, start: usize, len: usize) -> Result<Value, GraphError> {
        self.push(Op::Slice { axis, start, len }, &[x], None)
    }

    /// The same elements in another shape.
    pub fn reshape(&mut self, x: Value, shape: impl Into<Vec<usize>>) -> Result<Value, GraphError> {
        self.push(Op::Reshape { shape: shape.into() }, &[x], None)
    }

    /// Axes in another order.
    pub fn permute(&mut self, x: Value, axes: &[usize]) -> Result<Value, GraphError> {
        self.push(Op::Permute { axes: axes.to_vec() }, &[x], None)
    }

    /// Rows of a table by number.
    pub fn embedding(&mut self, table: Value, ids: Value) -> Result<Value, GraphError> {
        self.push(Op::Embedding, &[table, ids], None)
    }

    /// Sines and cosines of a time.
    pub fn timestep_embedding(&mut self, t: Value, dim: usize) -> Result<Value, GraphError> {
        self.push(Op::TimestepEmbedding { dim, max_period: 10_000.0 }, &[t], None)
    }

    /// Pairs of numbers turned by given angles.
    pub fn rotary(
        &mut self,
        x: Value,
        cos: Value,
        sin: Value,
        heads: usize,
        pairs: Pairs,
    ) -> Result<Value, GraphError> {
        self.push(Op::Rotary { heads, pairs }, &[x, cos, sin], None)
    }
}
