//! Low-rank branches beside products: `W x + up (down x)`, so that weights need not change to be adapted.
//!
//! A branch is two products more, whatever the network; planning, bands and streaming see nothing else. Its factors are parameters of their own, adapters, whose
//! names follow from the parameter's, and which a backend packs apart from the others: they come and go while those stay.

use std::collections::BTreeSet;

use crate::dtype::{DType, Storage};
use crate::error::GraphError;
use crate::graph::{Epilogue, Graph, Node, Value, Window};
use crate::op::{Binary, Fused, Op};

const DOWN: &str = ".lora_down";
const UP: &str = ".lora_up";

/// One of the two factors of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterFactor {
    /// From the inputs to the rank: `(rank, k)`, of a convolution `(rank, c, kh, kw)`.
    Down,
    /// From the rank to the outputs: `(n, rank)`, of a convolution `(n, rank, 1, 1)`.
    Up,
}

impl AdapterFactor {
    /// The parameter that a name of an adapter adapts, and which factor it is; nothing of any other parameter.
    ///
    /// ```
    /// use impasto_graph::AdapterFactor;
    /// assert_eq!(AdapterFactor::parse("to_q.weight.lora_up"), Some(("to_q.weight", AdapterFactor::Up)));
    /// assert_eq!(AdapterFactor::parse("to_q.weight"), None);
    /// ```
    pub fn parse(name: &str) -> Option<(&str, AdapterFactor)> {
        let down = name.strip_suffix(DOWN).map(|param| (param, AdapterFactor::Down));
        down.or_else(|| Some((name.strip_suffix(UP)?, AdapterFactor::Up)))
    }

    /// Its name, beside a parameter of this name.
    pub fn name(self, param: &str) -> String {
        param.to_owned() + if self == AdapterFactor::Down { DOWN } else { UP }
    }

    /// Its shape, beside a parameter of this shape.
    pub fn shape(self, param: &[usize], rank: usize) -> Vec<usize> {
        let mut shape = param.to_vec();
        match self {
            AdapterFactor::Down => shape[0] = rank,
            AdapterFactor::Up => {
                shape.iter_mut().skip(2).for_each(|d| *d = 1);
                shape[1] = rank;
            }
        }
        shape
    }
}

impl Graph {
    /// Whether a value is a factor of a branch.
    pub fn is_adapter(&self, value: Value) -> bool {
        matches!(&self.node(value).op, Op::Param { name, .. } if AdapterFactor::parse(name).is_some())
    }

    /// The parameters that are the weights of linear layers and convolutions and nothing else: those that can have branches.
    pub fn product_weights(&self) -> BTreeSet<&str> {
        let mut all: BTreeSet<&str> = self.params().map(|(name, _)| name).collect();
        let mut weights = BTreeSet::new();
        let name = |value: Value| match &self.node(value).op {
            Op::Param { name, .. } => Some(name.as_str()),
            _ => None,
        };
        for node in self.nodes() {
            let product = matches!(node.op, Op::Linear { .. } | Op::Conv2d { .. });
            for (i, param) in node.inputs.iter().enumerate().filter_map(|(i, &v)| Some((i, name(v)?))) {
                match product && i == 1 {
                    true => drop(weights.insert(param)),
                    false => drop(all.remove(param)),
                }
            }
        }
        for output in self.outputs() {
            name(output.value).map(|param| all.remove(param));
        }
        weights.retain(|param| all.contains(param));
        weights
    }

    /// The same computation with branches of these ranks beside the products of some weights.
    ///
    /// ```
    /// use impasto_graph::{DType, Epilogue, Graph, Storage};
    /// let mut graph = Graph::new();
    /// let x = graph.input("x", [4, 64], DType::F32)?;
    /// let w = graph.param("w", [32, 64], Storage::Dense(DType::F32))?;
    /// let y = graph.linear(x, w, Epilogue::new())?;
    /// graph.output("y", y)?;
    /// let adapted = graph.with_branches(|name| (name == "w").then_some(8))?;
    /// let params: Vec<&str> = adapted.params().map(|(name, _)| name).collect();
    /// assert_eq!(params, ["w", "w.lora_down", "w.lora_up"]);
    /// # Ok::<(), impasto_graph::GraphError>(())
    /// ```
    pub fn with_branches(&self, rank: impl Fn(&str) -> Option<usize>) -> Result<Graph, GraphError> {
        let mut graph = Graph::new();
        let mut new: Vec<Value> = Vec::with_capacity(self.nodes().len());
        for node in self.nodes() {
            let inputs: Vec<Value> = node.inputs.iter().map(|&v| new[v.index()]).collect();
            let weights = node.inputs.get(1).map(|&w| &self.node(w).op);
            let adapted = match (&node.op, weights) {
                (Op::Linear { .. } | Op::Conv2d { .. }, Some(Op::Param { name, .. })) => rank(name).map(|r| (name, r)),
                _ => None,
            };
            new.push(match adapted {
                Some((name, rank)) => graph.push_with_branch(node, &inputs, name, rank)?,
                None => graph.append(Node { inputs, ..node.clone() }),
            });
        }
        for output in self.outputs() {
            graph.keep(&output.name, new[output.value.index()]);
        }
        Ok(graph)
    }

    /// `activation(W x + bias + up (down x)) + residual`: the branch, and where nothing stands between also the residual, is what the product adds last.
    fn push_with_branch(
        &mut self,
        node: &Node,
        inputs: &[Value],
        name: &str,
        rank: usize,
    ) -> Result<Value, GraphError> {
        let (x, w) = (inputs[0], inputs[1]);
        let shape = self.ty(w).shape.clone();
        let dense = Storage::Dense(DType::F32);
        let [down, up] = [AdapterFactor::Down, AdapterFactor::Up]
            .map(|factor| self.param(&factor.name(name), factor.shape(&shape, rank), dense));
        let (down, up) = (down?, up?);
        let (fused, geglu) = match node.op {
            Op::Linear { fused, geglu } => (fused, geglu),
            Op::Conv2d { fused, .. } => (fused, false),
            _ => (Fused::default(), false),
        };
        let bias = fused.bias.then(|| inputs[2]);
        let residual = fused.residual.then(|| inputs[2 + usize::from(fused.bias)]);
        let ends = fused.activation.is_none() && !geglu;
        let to = node.ty.dtype;
        let narrow = Epilogue::new().dtype(self.ty(x).dtype);
        let wide = Epilogue::new().dtype(to);
        let wide = residual.filter(|_| ends).map_or(wide, |residual| wide.residual(residual));
        let branch = match node.op {
            Op::Conv2d { stride, padding, upsample, .. } => {
                let window = Window::pad(0).stride(stride).padding(padding).upsample(upsample);
                let inner = self.conv2d(x, down, window, narrow)?;
                self.conv2d(inner, up, Window::pad(0), wide)?
            }
            _ => {
                let inner = self.linear(x, down, narrow)?;
                self.linear(inner, up, wide)?
            }
        };
        let plain = Fused { activation: None, residual: true, ..fused };
        let op = match &node.op {
            Op::Conv2d { stride, padding, upsample, .. } => {
                Op::Conv2d { stride: *stride, padding: *padding, upsample: *upsample, fused: plain }
            }
            _ => Op::Linear { fused: plain, geglu: false },
        };
        let operands: Vec<Value> = [x, w].into_iter().chain(bias).chain([branch]).collect();
        let sum = self.push(op, &operands, Some(to))?;
        if ends {
            return Ok(sum);
        }
        let made = match fused.activation {
            Some(activation) => self.push(Op::Unary(activation), &[sum], Some(to))?,
            None => self.push(Op::Geglu, &[sum], Some(to))?,
        };
        match residual {
            Some(residual) => self.push(Op::Binary(Binary::Add), &[made, residual], Some(to)),
            None => Ok(made),
        }
    }
}
