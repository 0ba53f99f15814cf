//! The layers and blocks that networks are made of, each with its parameters under one path.

mod attention;
pub(crate) mod dit;
mod resnet;
mod transformer;

use impasto_graph::{DType, Epilogue, Graph, GraphError, Storage, Unary, Value, Window};

/// Element types of a network: how its parameters are stored, and how it keeps what flows between layers. What is
/// added to over and over (the residual stream) is always `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementTypes {
    /// How the model file stores the parameters.
    pub storage: Storage,
    /// Element type of results that are read by a product and by nothing else.
    pub activations: DType,
}

impl ElementTypes {
    /// Everything in 32-bit floats.
    pub const F32: ElementTypes = ElementTypes { storage: Storage::Dense(DType::F32), activations: DType::F32 };
    /// Parameters in half precision, products on bf16.
    pub const BF16: ElementTypes = ElementTypes { storage: Storage::Dense(DType::F16), activations: DType::BF16 };
}

/// A graph under construction, and the path of its next parameters. Parameters have the names of a diffusers folder.
///
/// ```
/// use impasto_graph::{DType, Epilogue, Graph};
/// use impasto_model::{ElementTypes, NetBuilder};
/// let mut graph = Graph::new();
/// let x = graph.input("x", [1, 8], DType::F32)?;
/// let y = NetBuilder::new(&mut graph, ElementTypes::F32).at("mlp").linear("fc1", x, 16, Epilogue::new())?;
/// assert_eq!(graph.params().map(|(name, _)| name).collect::<Vec<_>>(), ["mlp.fc1.weight", "mlp.fc1.bias"]);
/// # graph.output("y", y)?;
/// # Ok::<(), impasto_graph::GraphError>(())
/// ```
pub struct NetBuilder<'a> {
    /// The graph.
    pub graph: &'a mut Graph,
    /// Its element types.
    pub numbers: ElementTypes,
    path: String,
}

impl<'a> NetBuilder<'a> {
    /// At the root of the network.
    pub fn new(graph: &'a mut Graph, numbers: ElementTypes) -> Self {
        NetBuilder { graph, numbers, path: String::new() }
    }

    /// The part of the network below `name`.
    pub fn at(&mut self, name: &str) -> NetBuilder<'_> {
        NetBuilder { path: self.named(name), graph: self.graph, numbers: self.numbers }
    }

    fn named(&self, name: &str) -> String {
        if self.path.is_empty() { name.into() } else { format!("{}.{name}", self.path) }
    }

    /// A parameter.
    pub fn param(&mut self, name: &str, shape: &[usize]) -> Result<Value, GraphError> {
        let name = self.named(name);
        self.graph.param(&name, shape, self.numbers.storage)
    }

    /// The last dimension of a value.
    pub fn channels(&self, x: Value) -> usize {
        self.graph.ty(x).channels()
    }

    /// A linear layer without a bias.
    pub fn project(&mut self, name: &str, x: Value, n: usize) -> Result<Value, GraphError> {
        self.projected(name, x, n, Epilogue::new())
    }

    /// A linear layer without a bias, then what `then` says.
    pub fn projected(&mut self, name: &str, x: Value, n: usize, then: Epilogue) -> Result<Value, GraphError> {
        let w = self.param(&format!("{name}.weight"), &[n, self.channels(x)])?;
        self.graph.linear(x, w, then)
    }

    /// A linear layer with a bias, then what `then` says.
    pub fn linear(&mut self, name: &str, x: Value, n: usize, then: Epilogue) -> Result<Value, GraphError> {
        let w = self.param(&format!("{name}.weight"), &[n, self.channels(x)])?;
        let b = self.param(&format!("{name}.bias"), &[n])?;
        self.graph.linear(x, w, then.bias(b))
    }

    /// A convolution with a bias, then what `then` says.
    pub fn conv(
        &mut self,
        name: &str,
        x: Value,
        n: usize,
        kernel: usize,
        window: Window,
        then: Epilogue,
    ) -> Result<Value, GraphError> {
        let w = self.param(&format!("{name}.weight"), &[n, self.channels(x), kernel, kernel])?;
        let b = self.param(&format!("{name}.bias"), &[n])?;
        self.graph.conv2d(x, w, window, then.bias(b))
    }

    /// A 3x3 convolution that keeps the size.
    pub fn conv3(&mut self, name: &str, x: Value, n: usize, then: Epilogue) -> Result<Value, GraphError> {
        self.conv(name, x, n, 3, Window::pad(1), then)
    }

    /// Weight and bias of a norm.
    pub fn scale_and_shift(&mut self, name: &str, x: Value) -> Result<[Value; 2], GraphError> {
        let c = self.channels(x);
        Ok([self.param(&format!("{name}.weight"), &[c])?, self.param(&format!("{name}.bias"), &[c])?])
    }

    /// Group norm over 32 groups; its result goes into a product.
    pub fn group_norm(&mut self, name: &str, x: Value, eps: f32, act: Option<Unary>) -> Result<Value, GraphError> {
        let params = self.scale_and_shift(name, x)?;
        self.graph.group_norm(x, params, 32, eps, act, self.numbers.activations)
    }

    /// RMS norm; its result goes into a product.
    pub fn rms_norm(&mut self, name: &str, x: Value, eps: f32) -> Result<Value, GraphError> {
        let gamma = self.param(&format!("{name}.weight"), &[self.channels(x)])?;
        self.graph.rms_norm(x, gamma, eps, self.numbers.activations)
    }

    /// Layer norm; its result goes into a product.
    pub fn layer_norm(&mut self, name: &str, x: Value) -> Result<Value, GraphError> {
        let params = self.scale_and_shift(name, x)?;
        self.graph.layer_norm(x, params, 1e-5, self.numbers.activations)
    }
}
