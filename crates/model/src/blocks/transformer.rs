//! The transformer layer of UNets.

use impasto_graph::{Epilogue, GraphError, Value};

use super::NetBuilder;

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
}
