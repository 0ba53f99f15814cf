//! The transformer layer of UNets, and the feed-forward layer of text encoders.

use impasto_graph::{Binary, DType, Epilogue, GraphError, Unary, Value};

use super::NetBuilder;

/// What gated products in halves are divided by.
const ROOM: f32 = 64.0;

impl NetBuilder<'_> {
    /// Self-attention, attention over `context` and a gated feed-forward layer, each after a norm and around a shortcut.
    pub fn transformer_layer(&mut self, heads: usize, x: Value, context: Value) -> Result<Value, GraphError> {
        // x (batch, tokens, c)
        let c = self.channels(x);
        let h = self.layer_norm("norm1", x)?;
        let x = self.at("attn1").attention(heads, x, h, h)?;
        let h = self.layer_norm("norm2", x)?;
        let x = self.at("attn2").attention(heads, x, h, context)?;
        let h = self.layer_norm("norm3", x)?;
        let h = self.linear("ff.net.0.proj", h, 8 * c, Epilogue::new().geglu())?; // (batch, tokens, 4 c)
        self.linear("ff.net.2", h, c, Epilogue::new().residual(x))
    }

    /// `residual + out(activation(gate(x)) * up(x))`, without biases.
    pub fn gated_feed_forward(
        &mut self,
        [gate, up, out]: [&str; 3],
        x: Value,
        inner: usize,
        activation: Unary,
        residual: Value,
    ) -> Result<Value, GraphError> {
        let y = self.gated_product([gate, up, out], x, inner, activation)?;
        self.graph.add(residual, y)
    }

    /// `out(activation(gate(x)) * up(x))` without biases, in `f32`.
    ///
    /// What is between the products reaches tens of thousands in some models. Halves have no room for that: there it is divided by a power of two, which
    /// changes no digit of what is not small, and the result is multiplied by it.
    pub fn gated_product(
        &mut self,
        [gate, up, out]: [&str; 3],
        x: Value,
        inner: usize,
        activation: Unary,
    ) -> Result<Value, GraphError> {
        let (c, activations) = (self.channels(x), self.numbers.activations);
        let gate = self.projected(gate, x, inner, Epilogue::new().activation(activation).dtype(activations))?;
        let halves = activations == DType::F16;
        let smaller = if halves { self.graph.affine(x, 1.0 / ROOM, 0.0)? } else { x };
        let up = self.projected(up, smaller, inner, Epilogue::new().dtype(activations))?;
        let h = self.graph.binary(Binary::Mul, gate, up)?;
        let y = self.projected(out, h, c, Epilogue::new().dtype(DType::F32))?;
        if halves { self.graph.affine(y, ROOM, 0.0) } else { Ok(y) }
    }
}
