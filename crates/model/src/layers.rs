//! The layers that networks are made of, each with its parameters under one path.

use impasto_graph::{DType, Epilogue, Graph, GraphError, Storage, Unary, Value, Window};

/// Element types of a network: how its parameters are stored, and how it keeps what flows between layers. What is
/// added to over and over (the residual stream) is always `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// How the model file stores the parameters.
    pub storage: Storage,
    /// Element type of results that are read by a product and by nothing else.
    pub activations: DType,
}

impl Numbers {
    /// Everything in 32-bit floats.
    pub const F32: Numbers = Numbers { storage: Storage::Dense(DType::F32), activations: DType::F32 };
    /// Parameters in half precision, products on bf16.
    pub const BF16: Numbers = Numbers { storage: Storage::Dense(DType::F16), activations: DType::BF16 };
}

/// The graph being built, and where in the model file its next parameters are.
pub(crate) struct Net<'a> {
    pub(crate) graph: &'a mut Graph,
    pub(crate) numbers: Numbers,
    path: String,
}

impl<'a> Net<'a> {
    pub(crate) fn new(graph: &'a mut Graph, numbers: Numbers) -> Self {
        Net { graph, numbers, path: String::new() }
    }

    /// The part of the network below `name`.
    pub(crate) fn at(&mut self, name: &str) -> Net<'_> {
        Net { path: self.named(name), graph: self.graph, numbers: self.numbers }
    }

    fn named(&self, name: &str) -> String {
        if self.path.is_empty() { name.into() } else { format!("{}.{name}", self.path) }
    }

    pub(crate) fn param(&mut self, name: &str, shape: &[usize]) -> Result<Value, GraphError> {
        let name = self.named(name);
        self.graph.param(&name, shape, self.numbers.storage)
    }

    pub(crate) fn channels(&self, x: Value) -> usize {
        self.graph.ty(x).channels()
    }

    /// A linear layer without a bias.
    pub(crate) fn project(&mut self, name: &str, x: Value, n: usize) -> Result<Value, GraphError> {
        let w = self.param(&format!("{name}.weight"), &[n, self.channels(x)])?;
        self.graph.linear(x, w, Epilogue::new())
    }

    /// A linear layer with a bias, then what `then` says.
    pub(crate) fn linear(&mut self, name: &str, x: Value, n: usize, then: Epilogue) -> Result<Value, GraphError> {
        let w = self.param(&format!("{name}.weight"), &[n, self.channels(x)])?;
        let b = self.param(&format!("{name}.bias"), &[n])?;
        self.graph.linear(x, w, then.bias(b))
    }

    /// A convolution with a bias, then what `then` says.
    pub(crate) fn conv(
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
    pub(crate) fn conv3(&mut self, name: &str, x: Value, n: usize, then: Epilogue) -> Result<Value, GraphError> {
        self.conv(name, x, n, 3, Window::pad(1), then)
    }

    pub(crate) fn scale_and_shift(&mut self, name: &str, x: Value) -> Result<[Value; 2], GraphError> {
        let c = self.channels(x);
        Ok([self.param(&format!("{name}.weight"), &[c])?, self.param(&format!("{name}.bias"), &[c])?])
    }

    /// Group norm over 32 groups; its result goes into a product.
    pub(crate) fn group_norm(
        &mut self,
        name: &str,
        x: Value,
        eps: f32,
        act: Option<Unary>,
    ) -> Result<Value, GraphError> {
        let params = self.scale_and_shift(name, x)?;
        self.graph.group_norm(x, params, 32, eps, act, self.numbers.activations)
    }

    /// Layer norm; its result goes into a product.
    pub(crate) fn layer_norm(&mut self, name: &str, x: Value) -> Result<Value, GraphError> {
        let params = self.scale_and_shift(name, x)?;
        self.graph.layer_norm(x, params, 1e-5, self.numbers.activations)
    }

    /// How to keep sums that a norm will make small again: in some autoencoders they are larger than a half can be.
    fn roomy(&self) -> DType {
        match self.numbers.activations {
            DType::F16 => DType::F32,
            other => other,
        }
    }

    /// Two convolutions and a shortcut. `time (batch, width)` shifts each channel between them.
    pub(crate) fn resnet(&mut self, x: Value, n: usize, time: Option<Value>, eps: f32) -> Result<Value, GraphError> {
        // x (batch, h, w, c)
        let shortcut = match self.channels(x) == n {
            true => x,
            false => self.conv("conv_shortcut", x, n, 1, Window::pad(0), Epilogue::new().dtype(DType::F32))?,
        };
        let h = self.group_norm("norm1", x, eps, Some(Unary::Silu))?;
        let h = match time {
            None => self.conv3("conv1", h, n, Epilogue::new().dtype(self.roomy()))?,
            Some(time) => {
                let w = self.param("conv1.weight", &[n, self.channels(h), 3, 3])?;
                let b = self.param("conv1.bias", &[n])?;
                let shift = self.linear("time_emb_proj", time, n, Epilogue::new())?; // (batch, n)
                let shift = self.graph.add(shift, b)?;
                self.graph.conv2d(h, w, Window::pad(1), Epilogue::new().bias(shift))?
            }
        };
        let h = self.group_norm("norm2", h, eps, Some(Unary::Silu))?;
        self.conv3("conv2", h, n, Epilogue::new().residual(shortcut)) // (batch, h, w, n)
    }
}
