//! Attention with its projections.

use impasto_graph::{Epilogue, GraphError, Value};

use super::NetBuilder;

impl NetBuilder<'_> {
    /// `x` plus the attention of `h` over `context`.
    pub fn attention(&mut self, heads: usize, x: Value, h: Value, context: Value) -> Result<Value, GraphError> {
        let c = self.channels(x);
        let q = self.project("to_q", h, c)?;
        let k = self.project("to_k", context, c)?;
        let v = self.project("to_v", context, c)?;
        let a = self.graph.attention(q, k, v, heads, false)?;
        self.linear("to_out.0", a, c, Epilogue::new().residual(x))
    }
}
