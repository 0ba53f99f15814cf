//! The textual form of a graph, printed and parsed: what file tests are written in and what a dump shows.
//!
//! ```text
//! %0 = input "x" : f32[1,8,8,4]
//! %1 = param "conv.weight" f16 : f32[16,4,3,3]
//! %2 = param "conv.bias" f16 : f32[16]
//! %3 = conv2d(%0, %1, bias=%2) stride=1 pad=[1,1,1,1] upsample=1 act=silu : f32[1,8,8,16]
//! output "y" = %3
//! ```
//!
//! A line is a node or an output; `;` begins a comment. Values may have any name of letters, digits, `_` and `.`.
//! The type after the colon is needed for sources; elsewhere it may be left out, and is checked if it stands there.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use crate::dtype::{DType, Storage};
use crate::error::GraphError;
use crate::graph::{Graph, Value};
use crate::op::{Binary, Fused, Op, Pairs, Unary};
use crate::tensor::TensorType;

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for value in self.values() {
            let node = self.node(value);
            write!(f, "{value} = {}", node.op.name())?;
            match &node.op {
                Op::Input { name } => write!(f, " {}", Quoted(name))?,
                Op::Param { name, storage } => write!(f, " {} {storage}", Quoted(name))?,
                op => {
                    let roles = op.roles().unwrap_or_default();
                    f.write_str("(")?;
                    for (i, v) in node.inputs.iter().enumerate() {
                        let comma = if i == 0 { "" } else { ", " };
                        match roles.get(i) {
                            Some(role @ (&"bias" | &"residual")) => write!(f, "{comma}{role}={v}")?,
                            _ => write!(f, "{comma}{v}")?,
                        }
                    }
                    f.write_str(")")?;
                    for (key, attribute) in attributes(op) {
                        write!(f, " {key}={attribute}")?;
                    }
                }
            }
            writeln!(f, " : {}", node.ty)?;
        }
        for output in self.outputs() {
            writeln!(f, "output {} = {}", Quoted(&output.name), output.value)?;
        }
        Ok(())
    }
}

/// A name between quotes; quotes and backslashes inside are escaped.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                '\n' => f.write_str("\\n")?,
                c => write!(f, "{c}")?,
            }
        }
        f.write_str("\"")
    }
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
enum Attribute {
    Int(usize),
    Ints(Vec<usize>),
    Signed([isize; 4]),
    Float(f32),
    Word(&'static str),
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attribute::Int(i) => write!(f, "{i}"),
            Attribute::Ints(v) => {
                let parts: Vec<String> = v.iter().map(usize::to_string).collect();
                write!(f, "[{}]", parts.join(","))
            }
            Attribute::Signed([a, b, c, d]) => write!(f, "[{a},{b},{c},{d}]"),
            // The shortest digits that read back as the same float.
            Attribute::Float(x) => write!(f, "{x:?}"),
            Attribute::Word(w) => f.write_str(w),
        }
    }
}

fn attributes(op: &Op) -> Vec<(&'static str, Attribute)> {
    use Attribute::{Float, Int, Ints, Signed, Word};
    let act = |a: &Option<Unary>| a.map(|a| ("act", Word(a.name())));
    match op {
        Op::Linear { fused, geglu } => {
            act(&fused.activation).into_iter().chain(geglu.then_some(("geglu", Int(1)))).collect()
        }
        Op::MatMul { transpose_b } => vec![("transpose_b", Int(usize::from(*transpose_b)))],
        Op::Conv2d { stride, padding, upsample, fused } => {
            let mut list = vec![("stride", Int(*stride)), ("pad", Signed(*padding)), ("upsample", Int(*upsample))];
            list.extend(act(&fused.activation));
            list
        }
        Op::Attention { heads, kv_heads, scale, causal, .. } => {
            let shared = (kv_heads != heads).then_some(("kv_heads", Int(*kv_heads)));
            let rest = [("scale", Float(*scale)), ("causal", Int(usize::from(*causal)))];
            [("heads", Int(*heads))].into_iter().chain(shared).chain(rest).collect()
        }
        Op::GroupNorm { groups, eps, activation } => {
            let mut list = vec![("groups", Int(*groups)), ("eps", Float(*eps))];
            list.extend(act(activation));
            list
        }
        Op::LineStatistics { groups } => vec![("groups", Int(*groups))],
        Op::NormFactors { pixels, eps } => vec![("pixels", Int(*pixels)), ("eps", Float(*eps))],
        Op::Normalise { activation } => act(activation).into_iter().collect(),
        Op::LayerNorm { eps } | Op::RmsNorm { eps } => vec![("eps", Float(*eps))],
        Op::Affine { scale, shift } => vec![("scale", Float(*scale)), ("shift", Float(*shift))],
        Op::Upsample { factor } => vec![("factor", Int(*factor))],
        Op::Pad { before, after } => vec![("before", Ints(before.clone())), ("after", Ints(after.clone()))],
        Op::Concat { axis } => vec![("axis", Int(*axis))],
        Op::Slice { axis, start, len } => vec![("axis", Int(*axis)), ("start", Int(*start)), ("len", Int(*len))],
        Op::Reshape { shape } => vec![("shape", Ints(shape.clone()))],
        Op::Permute { axes } => vec![("axes", Ints(axes.clone()))],
        Op::TimestepEmbedding { dim, max_period } => vec![("dim", Int(*dim)), ("max_period", Float(*max_period))],
        Op::Rotary { heads, pairs } => {
            let pairs = match pairs {
                Pairs::Adjacent => "adjacent",
                Pairs::Halves => "halves",
            };
            vec![("heads", Int(*heads)), ("pairs", Word(pairs))]
        }
        Op::Input { .. }
        | Op::Param { .. }
        | Op::Softmax
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Geglu
        | Op::Cast
        | Op::Embedding
        | Op::Rest
        | Op::Fetch => vec![],
    }
}

impl FromStr for Graph {
    type Err = GraphError;

    fn from_str(text: &str) -> Result<Graph, GraphError> {
        let mut graph = Graph::new();
        let mut names = HashMap::new();
        for (i, line) in text.lines().enumerate() {
            let mut line = Line { text: line, at: 0, number: i + 1 };
            line.skip_space();
            if !line.done() {
                statement(&mut line, &mut graph, &mut names)?;
            }
        }
        Ok(graph)
    }
}

/// One line being read.
struct Line<'a> {
    text: &'a str,
    at: usize,
    number: usize,
}

impl<'a> Line<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn done(&self) -> bool {
        self.rest().is_empty() || self.rest().starts_with(';')
    }

    fn error(&self, problem: impl Into<String>) -> GraphError {
        let column = self.text[..self.at].chars().count() + 1;
        GraphError::Syntax { line: self.number, column, problem: problem.into() }
    }

    /// Take `token` if it comes next.
    fn take(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
            self.skip_space();
        }
        found
    }

    fn expect(&mut self, token: &str) -> Result<(), GraphError> {
        if self.take(token) { Ok(()) } else { Err(self.error(format!("expected '{token}'"))) }
    }

    /// The longest run of the characters that `part` accepts.
    fn run(&mut self, what: &str, part: impl Fn(char) -> bool) -> Result<&'a str, GraphError> {
        let rest = self.rest();
        let end = rest.find(|c| !part(c)).unwrap_or(rest.len());
        if end == 0 {
            return Err(self.error(format!("expected {what}")));
        }
        self.at += end;
        self.skip_space();
        Ok(&rest[..end])
    }

    fn word(&mut self, what: &str) -> Result<&'a str, GraphError> {
        self.run(what, |c| c.is_ascii_alphanumeric() || c == '_')
    }

    fn number<T: FromStr>(&mut self) -> Result<T, GraphError> {
        let start = self.at;
        let text = self.run("a number", |c| c.is_ascii_alphanumeric() || "+-.".contains(c))?;
        text.parse().map_err(|_| {
            self.at = start;
            self.error(format!("'{text}' is no number that fits here"))
        })
    }

    fn numbers<T: FromStr>(&mut self) -> Result<Vec<T>, GraphError> {
        self.expect("[")?;
        let mut list = vec![];
        while !self.take("]") {
            if !list.is_empty() {
                self.expect(",")?;
            }
            list.push(self.number()?);
        }
        Ok(list)
    }

    fn quoted(&mut self) -> Result<String, GraphError> {
        if !self.rest().starts_with('"') {
            return Err(self.error("expected a name between quotes"));
        }
        let mut name = String::new();
        let mut escaped = false;
        for (i, c) in self.rest().char_indices().skip(1) {
            match (escaped, c) {
                (true, 'n') => name.push('\n'),
                (true, c) => name.push(c),
                (false, '\\') => {
                    escaped = true;
                    continue;
                }
                (false, '"') => {
                    self.at += i + 1;
                    self.skip_space();
                    return Ok(name);
                }
                (false, c) => name.push(c),
            }
            escaped = false;
        }
        Err(self.error("the quote is not closed"))
    }

    fn value_name(&mut self) -> Result<&'a str, GraphError> {
        self.run("a value such as %0", |c| c.is_ascii_alphanumeric() || "%_.".contains(c)).and_then(|name| {
            name.strip_prefix('%').ok_or_else(|| self.error(format!("'{name}' is no value; values begin with %")))
        })
    }

    fn value(&mut self, names: &HashMap<String, Value>) -> Result<Value, GraphError> {
        let start = self.at;
        let name = self.value_name()?;
        names.get(name).copied().ok_or_else(|| {
            self.at = start;
            self.error(format!("%{name} is not defined above"))
        })
    }

    fn tensor_type(&mut self) -> Result<TensorType, GraphError> {
        let dtype: DType = self.word("an element type")?.parse().map_err(|e: String| self.error(e))?;
        Ok(TensorType::new(self.numbers()?, dtype))
    }
}

fn statement(line: &mut Line, graph: &mut Graph, names: &mut HashMap<String, Value>) -> Result<(), GraphError> {
    if line.take("output") {
        let name = line.quoted()?;
        line.expect("=")?;
        let value = line.value(names)?;
        graph.output(&name, value)?;
    } else {
        let name = line.value_name()?.to_string();
        if names.contains_key(&name) {
            return Err(line.error(format!("%{name} is defined twice")));
        }
        line.expect("=")?;
        let value = node(line, graph, names)?;
        names.insert(name, value);
    }
    if line.done() { Ok(()) } else { Err(line.error("nothing more is expected on this line")) }
}

fn node(line: &mut Line, graph: &mut Graph, names: &HashMap<String, Value>) -> Result<Value, GraphError> {
    let start = line.at;
    let op = line.word("an op")?;
    if op == "input" || op == "param" {
        let name = line.quoted()?;
        let storage: Option<Storage> = match op {
            "param" => Some(line.word("a storage")?.parse().map_err(|e: String| line.error(e))?),
            _ => None,
        };
        line.expect(":")?;
        let ty = line.tensor_type()?;
        return match storage {
            Some(storage) => {
                let value = graph.param(&name, ty.shape.clone(), storage)?;
                agree(line, &ty, graph.ty(value)).map(|()| value)
            }
            None => graph.input(&name, ty.shape, ty.dtype),
        };
    }

    line.expect("(")?;
    let mut operands = vec![];
    let (mut bias, mut residual) = (None, None);
    let mut first = true;
    while !line.take(")") {
        if !std::mem::take(&mut first) {
            line.expect(",")?;
        }
        let named = match () {
            () if line.take("bias=") => &mut bias,
            () if line.take("residual=") => &mut residual,
            () if bias.or(residual).is_some() => return Err(line.error("named operands come last")),
            () => {
                operands.push(line.value(names)?);
                continue;
            }
        };
        if !matches!(op, "linear" | "conv2d" | "attention") {
            return Err(line.error(format!("{op} has no named operands")));
        }
        if named.replace(line.value(names)?).is_some() {
            return Err(line.error("the operand stands twice"));
        }
    }
    if op == "attention" && residual.is_some() {
        return Err(line.error("attention has no residual"));
    }
    let fused = Fused { bias: bias.is_some(), activation: None, residual: residual.is_some() };
    operands.extend(bias.into_iter().chain(residual));

    let mut given = HashMap::new();
    while !line.done() && !line.rest().starts_with(':') {
        let key = line.word("an attribute")?;
        line.expect("=")?;
        let from = line.at;
        let end = line.rest().find([' ', '\t', ';']).map_or(line.text.len(), |i| from + i);
        if given.insert(key, (from, end)).is_some() {
            return Err(line.error(format!("the attribute '{key}' stands twice")));
        }
        line.at = end;
        line.skip_space();
    }
    let ty = if line.take(":") { Some(line.tensor_type()?) } else { None };
    let mut attributes = Given { given, line: Line { text: line.text, at: start, number: line.number } };
    let op = attributes.op(op, fused)?;
    if let Some(key) = attributes.given.keys().next() {
        return Err(line.error(format!("{} has no attribute '{key}'", op.name())));
    }
    let value = graph.push(op, &operands, ty.as_ref().map(|t| t.dtype))?;
    match ty {
        Some(ty) => agree(line, &ty, graph.ty(value)).map(|()| value),
        None => Ok(value),
    }
}

fn agree(line: &Line, stated: &TensorType, inferred: &TensorType) -> Result<(), GraphError> {
    if stated == inferred { Ok(()) } else { Err(line.error(format!("the type is {inferred}, not {stated}"))) }
}

/// The attributes that stand on a line: where each value begins and ends.
struct Given<'a> {
    given: HashMap<&'a str, (usize, usize)>,
    line: Line<'a>,
}

impl<'a> Given<'a> {
    /// Read the value of an attribute, if it stands there: all of it.
    fn maybe<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(&mut Line<'a>) -> Result<T, GraphError>,
    ) -> Result<Option<T>, GraphError> {
        let Some((from, end)) = self.given.remove(key) else {
            return Ok(None);
        };
        self.line.at = from;
        let value = read(&mut self.line)?;
        if self.line.at < end {
            return Err(self.line.error(format!("'{}' does not belong there", &self.line.text[self.line.at..end])));
        }
        Ok(Some(value))
    }

    fn need<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(&mut Line<'a>) -> Result<T, GraphError>,
    ) -> Result<T, GraphError> {
        match self.maybe(key, read)? {
            Some(value) => Ok(value),
            None => Err(self.line.error(format!("the attribute '{key}' is missing"))),
        }
    }

    fn int(&mut self, key: &str) -> Result<usize, GraphError> {
        self.need(key, Line::number)
    }

    fn float(&mut self, key: &str) -> Result<f32, GraphError> {
        self.need(key, Line::number)
    }

    fn flag(&mut self, key: &str) -> Result<bool, GraphError> {
        self.need(key, |line| match line.number()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(line.error(format!("'{key}' is 0 or 1"))),
        })
    }

    fn ints<T: FromStr>(&mut self, key: &str) -> Result<Vec<T>, GraphError> {
        self.need(key, Line::numbers)
    }

    fn activation(&mut self) -> Result<Option<Unary>, GraphError> {
        self.maybe("act", |line| {
            let name = line.word("a function")?;
            Unary::named(name).ok_or_else(|| line.error(format!("'{name}' is no activation")))
        })
    }

    fn op(&mut self, name: &str, fused: Fused) -> Result<Op, GraphError> {
        Ok(match name {
            "linear" => {
                let geglu = if self.given.contains_key("geglu") { self.flag("geglu")? } else { false };
                Op::Linear { fused: Fused { activation: self.activation()?, ..fused }, geglu }
            }
            "matmul" => Op::MatMul { transpose_b: self.flag("transpose_b")? },
            "conv2d" => {
                let (stride, upsample) = (self.int("stride")?, self.int("upsample")?);
                let padding = self.ints("pad")?;
                let padding = padding
                    .try_into()
                    .map_err(|_| self.line.error("'pad' has four numbers: top, left, bottom, right"))?;
                Op::Conv2d { stride, padding, upsample, fused: Fused { activation: self.activation()?, ..fused } }
            }
            "attention" => {
                let heads = self.int("heads")?;
                let kv_heads = self.maybe("kv_heads", Line::number)?.unwrap_or(heads);
                let (scale, causal) = (self.float("scale")?, self.flag("causal")?);
                Op::Attention { heads, kv_heads, scale, causal, bias: fused.bias }
            }
            "group_norm" => {
                Op::GroupNorm { groups: self.int("groups")?, eps: self.float("eps")?, activation: self.activation()? }
            }
            "line_statistics" => Op::LineStatistics { groups: self.int("groups")? },
            "norm_factors" => Op::NormFactors { pixels: self.int("pixels")?, eps: self.float("eps")? },
            "normalise" => Op::Normalise { activation: self.activation()? },
            "layer_norm" => Op::LayerNorm { eps: self.float("eps")? },
            "rms_norm" => Op::RmsNorm { eps: self.float("eps")? },
            "softmax" => Op::Softmax,
            "affine" => Op::Affine { scale: self.float("scale")?, shift: self.float("shift")? },
            "geglu" => Op::Geglu,
            "cast" => Op::Cast,
            "upsample" => Op::Upsample { factor: self.int("factor")? },
            "pad" => Op::Pad { before: self.ints("before")?, after: self.ints("after")? },
            "concat" => Op::Concat { axis: self.int("axis")? },
            "slice" => Op::Slice { axis: self.int("axis")?, start: self.int("start")?, len: self.int("len")? },
            "reshape" => Op::Reshape { shape: self.ints("shape")? },
            "permute" => Op::Permute { axes: self.ints("axes")? },
            "embedding" => Op::Embedding,
            "rest" => Op::Rest,
            "fetch" => Op::Fetch,
            "timestep_embedding" => {
                Op::TimestepEmbedding { dim: self.int("dim")?, max_period: self.float("max_period")? }
            }
            "rotary" => {
                let heads = self.int("heads")?;
                let pairs = self.need("pairs", |line| match line.word("adjacent or halves")? {
                    "adjacent" => Ok(Pairs::Adjacent),
                    "halves" => Ok(Pairs::Halves),
                    other => Err(line.error(format!("'{other}' is neither adjacent nor halves"))),
                })?;
                Op::Rotary { heads, pairs }
            }
            name => match (Unary::named(name), Binary::named(name)) {
                (Some(unary), _) => Op::Unary(unary),
                (_, Some(binary)) => Op::Binary(binary),
                _ => return Err(self.line.error(format!("'{name}' is no op"))),
            },
        })
    }
}
