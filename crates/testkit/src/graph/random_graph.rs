//! Random graphs: every op, views, values used twice, results that are used later, inputs that are results, dead nodes.

use impasto_graph::{Binary, DType, Epilogue, Graph, GraphError, Op, Pairs, Scores, Storage, Unary, Value, Window};

use super::rng::Rng;

/// No tensor grows beyond this many elements.
const LARGE: u64 = 6000;
const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
/// So large that rows of almost equal numbers are not blown up: what is rounding stays rounding.
const EPS: f32 = 1.0;
/// Functions that neither explode nor have a pole: what goes through them can be compared after many ops.
const TAME: [Unary; 9] = [
    Unary::Silu,
    Unary::Gelu,
    Unary::GeluTanh,
    Unary::QuickGelu,
    Unary::Relu,
    Unary::Sigmoid,
    Unary::Tanh,
    Unary::Neg,
    Unary::Abs,
];

/// What kind of graphs are wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Can be executed and compared.
    Tame,
    /// Anything that can be built, with odd names.
    Wild,
}

/// A graph of about `ops` ops.
pub fn random_graph(rng: &mut Rng, ops: usize, kind: Kind) -> Graph {
    let mut maker = Maker { graph: Graph::new(), rng, kind, values: vec![], sources: 0 };
    for _ in 0..maker.rng.between(1, 3) {
        let shape = maker.shape();
        let dtype = maker.float();
        maker.input(&shape, dtype);
    }
    let mut tries = 0;
    while maker.values.len() < ops + 1 && tries < 20 * ops {
        tries += 1;
        // An op that does not fit its operands is no loss: another one is tried.
        if let Ok(value) = maker.op() {
            maker.values.push(value);
        }
    }
    maker.outputs();
    maker.graph
}

struct Maker<'a> {
    graph: Graph,
    rng: &'a mut Rng,
    kind: Kind,
    /// What ops may read.
    values: Vec<Value>,
    sources: usize,
}

type Made = Result<Value, GraphError>;

impl Maker<'_> {
    fn outputs(&mut self) {
        let last = *self.values.last().expect("there is an input");
        self.graph.output("last", last).expect("the name is new");
        for (i, value) in self.graph.values().enumerate() {
            if self.rng.chance(8) {
                self.graph.output(&format!("out{i}"), value).expect("the name is new");
            }
        }
    }

    fn shape(&mut self) -> Vec<usize> {
        let b = self.rng.between(1, 2);
        match self.rng.below(4) {
            0 => vec![b, self.rng.between(1, 5), self.rng.between(1, 6), self.channels()],
            1 => vec![b, self.rng.between(1, 9), self.channels()],
            2 => vec![self.rng.between(1, 9), self.channels()],
            _ => vec![self.channels()],
        }
    }

    fn channels(&mut self) -> usize {
        self.rng.pick(&[1, 2, 3, 4, 6, 8, 16, 16, 16, 32])
    }

    fn float(&mut self) -> DType {
        self.rng.pick(&[DType::F32, DType::F32, DType::F32, DType::BF16, DType::F16])
    }

    fn name(&mut self, what: &str) -> String {
        self.sources += 1;
        match self.kind {
            Kind::Wild if self.rng.chance(20) => format!("{what} \"{}\"\\\n%ä;", self.sources),
            _ => format!("{what}{}.part", self.sources),
        }
    }

    fn input(&mut self, shape: &[usize], dtype: DType) -> Value {
        let name = self.name("x");
        let value = self.graph.input(&name, shape, dtype).expect("shape and type are sane");
        self.values.push(value);
        value
    }

    fn param(&mut self, shape: &[usize]) -> Value {
        let known: Vec<Value> =
            self.graph.params().map(|(_, v)| v).filter(|&v| self.graph.ty(v).shape == shape).collect();
        if !known.is_empty() && self.rng.chance(50) {
            return self.rng.pick(&known);
        }
        let quantised = shape.len() == 2 && shape[1].is_multiple_of(32) && self.rng.chance(40);
        let storage = match quantised {
            true => self.rng.pick(&[Storage::Q8_0, Storage::Q4_0]),
            false => Storage::Dense(self.rng.pick(&FLOATS)),
        };
        let name = self.name("p");
        self.graph.param(&name, shape, storage).expect("shape and storage are sane")
    }

    /// Something to read, most often what was just computed: long chains are where results take their operands' place.
    fn value(&mut self) -> Value {
        let n = self.values.len();
        match self.rng.below(10) {
            0..6 => self.values[n - 1 - self.rng.below(n.min(3))],
            6..9 => self.rng.pick(&self.values),
            _ if self.rng.chance(30) => {
                let shape = self.shape();
                self.param(&shape)
            }
            _ => {
                let (shape, dtype) = (self.shape(), self.float());
                self.input(&shape, dtype)
            }
        }
    }

    /// A value of this shape: one that is there, or a new one.
    fn shaped(&mut self, shape: &[usize]) -> Value {
        let fits = |v: &Value| self.graph.ty(*v).shape == shape && self.graph.ty(*v).dtype.is_float();
        let known: Vec<Value> = self.values.iter().copied().filter(fits).collect();
        match known.is_empty() || self.rng.chance(10) {
            true if self.rng.chance(30) => self.param(shape),
            true => {
                let dtype = self.float();
                self.input(shape, dtype)
            }
            false => self.rng.pick(&known),
        }
    }

    fn shape_of(&self, value: Value) -> Vec<usize> {
        self.graph.ty(value).shape.clone()
    }

    fn may_grow(&self, value: Value) -> bool {
        self.graph.ty(value).elements() <= LARGE / 4
    }

    /// Most ops let one choose the element type of the result.
    fn dtype(&mut self) -> Option<DType> {
        self.rng.chance(25).then(|| self.float())
    }

    fn function(&mut self) -> Unary {
        match self.kind {
            Kind::Tame => self.rng.pick(&TAME),
            Kind::Wild => self.rng.pick(&Unary::ALL),
        }
    }

    fn op(&mut self) -> Made {
        let x = self.value();
        match self.rng.below(26) {
            0 | 1 => self.linear(x),
            2 | 3 => self.conv(x),
            4 => self.matmul(x),
            5 => self.attention(x),
            6..=8 => self.norm(x),
            9..=11 => {
                let (function, dtype) = (self.function(), self.dtype());
                self.graph.push(Op::Unary(function), &[x], dtype)
            }
            12..=15 => self.binary(x),
            16 => {
                let op = Op::Affine { scale: self.rng.normal() as f32, shift: self.rng.normal() as f32 };
                let dtype = self.dtype();
                self.graph.push(op, &[x], dtype)
            }
            17 => {
                let dtype = self.dtype();
                self.graph.push(Op::Geglu, &[x], dtype)
            }
            18 => {
                let to = if self.kind == Kind::Wild { self.rng.pick(&DType::ALL) } else { self.float() };
                self.graph.cast(x, to)
            }
            19 => self.enlarge(x),
            20 | 21 => self.slice(x),
            22 => self.reshape(x),
            23 => self.permute(x),
            24 => self.concat(x),
            _ => self.lookup(x),
        }
    }

    /// For a product of `n` columns whose result has this shape.
    fn epilogue(&mut self, n: usize, shape: &[usize]) -> Epilogue {
        let mut then = Epilogue::new();
        then = match self.rng.below(3) {
            0 => then.bias(self.param(&[n])),
            1 if shape.len() > 1 => then.bias(self.shaped(&[shape[0], n])),
            _ => then,
        };
        if n != shape[shape.len() - 1] {
            then = then.geglu();
        } else if self.rng.chance(30) {
            then = then.activation(self.function());
        }
        if self.rng.chance(50) {
            then = then.residual(self.shaped(shape));
        }
        match self.dtype() {
            Some(dtype) => then.dtype(dtype),
            None => then,
        }
    }

    fn linear(&mut self, x: Value) -> Made {
        let mut shape = self.shape_of(x);
        let k = shape.pop().unwrap_or(1);
        shape.push(if self.rng.chance(50) { k } else { self.channels() });
        let n = shape[shape.len() - 1] * if self.rng.chance(30) { 2 } else { 1 };
        let w = self.param(&[n, k]);
        let then = self.epilogue(n, &shape);
        self.graph.linear(x, w, then)
    }

    fn conv(&mut self, x: Value) -> Made {
        let [b, h, v, c] = self.shape_of(x)[..] else { return self.norm(x) };
        let n = if self.rng.chance(50) { c } else { self.channels() };
        let [kh, kw] = self.rng.pick(&[[1, 1], [3, 3], [3, 3], [2, 3]]);
        let (stride, upsample) = (self.rng.pick(&[1, 1, 2]), self.rng.pick(&[1, 1, 2]));
        let mut padding = if self.rng.chance(60) {
            [kh as isize / 2; 4]
        } else {
            std::array::from_fn(|_| self.rng.below(3) as isize)
        };
        if self.rng.chance(20) {
            padding[self.rng.below(4)] = -1;
        }
        let w = self.param(&[n, c, kh, kw]);
        let side = |size: usize, pads: isize, kernel: usize| {
            (size * upsample).checked_add_signed(pads)?.checked_sub(kernel).map(|r| r / stride + 1)
        };
        let (h, v) = (side(h, padding[0] + padding[2], kh), side(v, padding[1] + padding[3], kw));
        let then = match (h, v) {
            (Some(h), Some(v)) if ((b * h * v * n) as u64) < LARGE => self.epilogue(n, &[b, h, v, n]),
            _ => return self.norm(x),
        };
        self.graph.conv2d(x, w, Window::pad(0).padding(padding).stride(stride).upsample(upsample), then)
    }

    fn matmul(&mut self, x: Value) -> Made {
        let mut shape = self.shape_of(x);
        if shape.len() < 2 {
            return self.linear(x);
        }
        if self.rng.chance(25) {
            return self.graph.matmul_transposed(x, x);
        }
        let (at, n) = (shape.len() - 2, self.channels());
        let k = shape[at + 1];
        let transpose_b = self.rng.chance(50);
        (shape[at], shape[at + 1]) = if transpose_b { (n, k) } else { (k, n) };
        let (b, dtype) = (self.shaped(&shape), self.dtype());
        self.graph.push(Op::MatMul { transpose_b }, &[x, b], dtype)
    }

    fn attention(&mut self, x: Value) -> Made {
        let [b, t, c] = self.shape_of(x)[..] else { return self.norm(x) };
        let s = self.rng.pick(&[t, t, 3, 7]);
        let heads = self.rng.pick(&[1, 1, 2, 4]);
        let kv_heads = if c.is_multiple_of(heads) && self.rng.chance(30) { 1 } else { heads };
        let shared = c * kv_heads / heads;
        let (k, v) = (self.shaped(&[b, s, shared]), self.shaped(&[b, s, shared]));
        let causal = s >= t && self.rng.chance(30);
        let mut or_one = |n: usize| if self.rng.chance(50) { n } else { 1 };
        let shape = [or_one(b), or_one(heads), or_one(t), s];
        let bias = self.rng.chance(30).then(|| self.shaped(&shape));
        self.graph.grouped_attention([x, k, v], [heads, kv_heads], Scores { scale: None, causal, bias })
    }

    fn norm(&mut self, x: Value) -> Made {
        let c = self.graph.ty(x).channels();
        let mut vector = || if self.rng.chance(60) { self.param(&[c]) } else { self.shaped(&[c]) };
        let (gamma, beta) = (vector(), vector());
        let dtype = self.dtype();
        let (op, params): (Op, &[Value]) = match self.rng.below(4) {
            0 => {
                let groups = self.rng.pick(&[1, c, 2, 4]);
                let activation = self.rng.chance(50).then(|| self.function());
                (Op::GroupNorm { groups, eps: EPS, activation }, &[x, gamma, beta])
            }
            1 => (Op::LayerNorm { eps: EPS }, &[x, gamma, beta]),
            2 => (Op::RmsNorm { eps: EPS }, &[x, gamma]),
            _ => (Op::Softmax, &[x]),
        };
        if let (Op::GroupNorm { groups, eps, activation }, &[_, _, ref rest @ .., _], true) =
            (&op, &self.shape_of(x)[..], self.rng.chance(40))
        {
            // The same in its three parts.
            let stats = self.graph.push(Op::LineStatistics { groups: *groups }, &[x], None)?;
            let pixels = rest.iter().product();
            let factors = self.graph.push(Op::NormFactors { pixels, eps: *eps }, &[stats, gamma, beta], None)?;
            self.values.push(factors);
            return self.graph.push(Op::Normalise { activation: *activation }, &[x, factors], dtype);
        }
        self.graph.push(op, params, dtype)
    }

    fn binary(&mut self, x: Value) -> Made {
        let mut shape = self.shape_of(x);
        for d in shape.iter_mut() {
            if self.rng.chance(20) {
                *d = 1;
            }
        }
        if shape.len() > 1 && self.rng.chance(20) {
            shape.remove(0);
        }
        let other = if self.rng.chance(15) { x } else { self.shaped(&shape) };
        let functions: &[Binary] = match self.kind {
            Kind::Tame => &[Binary::Add, Binary::Sub, Binary::Mul, Binary::Max, Binary::Min],
            Kind::Wild => &Binary::ALL,
        };
        let (function, dtype) = (self.rng.pick(functions), self.dtype());
        let operands = if self.rng.chance(50) { [x, other] } else { [other, x] };
        self.graph.push(Op::Binary(function), &operands, dtype)
    }

    fn enlarge(&mut self, x: Value) -> Made {
        let rank = self.shape_of(x).len();
        if !self.may_grow(x) {
            return self.slice(x);
        }
        if rank == 4 && self.rng.chance(50) {
            let factor = self.rng.between(1, 2);
            return self.graph.upsample(x, factor);
        }
        let mut amount = || (0..rank).map(|_| self.rng.pick(&[0, 0, 0, 1])).collect::<Vec<_>>();
        let (before, after) = (amount(), amount());
        self.graph.pad(x, &before, &after)
    }

    fn slice(&mut self, x: Value) -> Made {
        let shape = self.shape_of(x);
        if shape.is_empty() {
            return self.reshape(x);
        }
        let axis = self.rng.below(shape.len());
        let len = self.rng.between(1, shape[axis]);
        let start = self.rng.below(shape[axis] - len + 1);
        self.graph.slice(x, axis, start, len)
    }

    fn reshape(&mut self, x: Value) -> Made {
        let mut shape = self.shape_of(x);
        if shape.len() > 1 && self.rng.chance(60) {
            let at = self.rng.below(shape.len() - 1);
            let merged = shape.remove(at) * shape[at];
            shape[at] = merged;
        } else if !shape.is_empty() {
            let at = self.rng.below(shape.len());
            let parts: Vec<usize> = (1..=shape[at]).filter(|d| shape[at].is_multiple_of(*d)).collect();
            let part = self.rng.pick(&parts);
            shape[at] /= part;
            shape.insert(at, part);
        }
        self.graph.reshape(x, shape)
    }

    fn permute(&mut self, x: Value) -> Made {
        let mut left: Vec<usize> = (0..self.shape_of(x).len()).collect();
        let axes: Vec<usize> = (0..left.len()).map(|_| left.swap_remove(self.rng.below(left.len()))).collect();
        self.graph.permute(x, &axes)
    }

    fn concat(&mut self, x: Value) -> Made {
        let shape = self.shape_of(x);
        if shape.is_empty() || !self.may_grow(x) {
            return self.slice(x);
        }
        let axis = self.rng.below(shape.len());
        let dtype = self.graph.ty(x).dtype;
        let fits = |v: &Value| self.graph.ty(*v).shape == shape && self.graph.ty(*v).dtype == dtype;
        let known: Vec<Value> = self.values.iter().copied().filter(fits).chain([x]).collect();
        let parts: Vec<Value> = (0..self.rng.between(1, 3)).map(|_| self.rng.pick(&known)).collect();
        self.graph.concat(axis, &parts)
    }

    fn lookup(&mut self, x: Value) -> Made {
        match (self.rng.below(3), &self.shape_of(x)[..]) {
            (0, &[_, t, c]) => {
                let heads = self.rng.between(1, 2);
                let angles = [t, c / heads / 2];
                if angles[1] == 0 {
                    return self.slice(x);
                }
                let (cos, sin) = (self.shaped(&angles), self.shaped(&angles));
                let pairs = self.rng.pick(&[Pairs::Adjacent, Pairs::Halves]);
                self.graph.rotary(x, cos, sin, heads, pairs)
            }
            (1, &[_]) => {
                let dim = 2 * self.rng.between(1, 9);
                self.graph.timestep_embedding(x, dim)
            }
            _ => {
                let rows = self.rng.between(4, 9);
                let width = self.channels();
                let ids: Vec<usize> = (0..self.rng.between(0, 2)).map(|_| self.rng.between(1, 4)).collect();
                let table = self.param(&[rows, width]);
                let ids = self.input(&ids, DType::I32);
                self.graph.embedding(table, ids)
            }
        }
    }
}
