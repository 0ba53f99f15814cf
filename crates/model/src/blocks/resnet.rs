//! The residual block of UNets and autoencoders.

use impasto_graph::{DType, Epilogue, GraphError, Unary, Value, Window};

use super::NetBuilder;

impl NetBuilder<'_> {
    /// The element type of sums before a norm: in some autoencoders they overflow f16.
    fn wide(&self) -> DType {
        match self.numbers.activations {
            DType::F16 => DType::F32,
            other => other,
        }
    }

    /// Two convolutions and a shortcut. `time (batch, width)` shifts each channel between them.
    pub fn resnet(&mut self, x: Value, n: usize, time: Option<Value>, eps: f32) -> Result<Value, GraphError> {
        // x (batch, h, w, c)
        let shortcut = match self.channels(x) == n {
            true => x,
            false => self.conv("conv_shortcut", x, n, 1, Window::pad(0), Epilogue::new().dtype(DType::F32))?,
        };
        let h = self.group_norm("norm1", x, eps, Some(Unary::Silu))?;
        let h = match time {
            None => self.conv3("conv1", h, n, Epilogue::new().dtype(self.wide()))?,
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
