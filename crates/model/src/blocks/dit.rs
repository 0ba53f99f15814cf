//! What diffusion transformers are made of: norms whose scale and shift come from the time, gates, heads that are normed and rotated.
//!
//! A gated residual, `x + gate * y`, is a product, a multiplication and an addition; the last two are one kernel on a GPU and two passes over
//! memory on a CPU.

use impasto_graph::{Binary, DType, Epilogue, GraphError, HostTensor, Pairs, Unary, Value};

use super::NetBuilder;

/// How the norms inside of a transformer keep away from zero.
pub(crate) const EPS: f32 = 1e-6;

/// Tables of a rotation, `(tokens, pairs)` each.
#[derive(Clone, Copy)]
pub(crate) struct Rotation {
    pub cos: Value,
    pub sin: Value,
}

impl NetBuilder<'_> {
    /// Inputs `cos` and `sin` for heads of this width.
    pub(crate) fn rotation(&mut self, tokens: usize, head: usize) -> Result<Rotation, GraphError> {
        let mut table = |name| self.graph.input(name, [tokens, head / 2], DType::F32);
        Ok(Rotation { cos: table("cos")?, sin: table("sin")? })
    }

    /// A number for each picture as waves, then two linear layers: `t (batch)` to `(batch, n)`.
    pub(crate) fn number_embedding(&mut self, name: &str, t: Value, n: usize) -> Result<Value, GraphError> {
        let waves = self.graph.timestep_embedding(t, 256)?;
        self.vector_embedding(name, waves, n)
    }

    /// Two linear layers: `x (batch, k)` to `(batch, n)`.
    pub(crate) fn vector_embedding(&mut self, name: &str, x: Value, n: usize) -> Result<Value, GraphError> {
        let silu = Epilogue::new().activation(Unary::Silu).dtype(DType::F32);
        let h = self.linear(&format!("{name}.linear_1"), x, n, silu)?;
        self.linear(&format!("{name}.linear_2"), h, n, Epilogue::new().dtype(DType::F32))
    }

    /// What a linear layer makes of `condition (batch, k)`, in so many parts `(batch, n)`.
    pub(crate) fn modulation<const PARTS: usize>(
        &mut self,
        name: &str,
        condition: Value,
        n: usize,
    ) -> Result<[Value; PARTS], GraphError> {
        let all = self.linear(name, condition, PARTS * n, Epilogue::new().dtype(DType::F32))?;
        self.parts(all)
    }

    /// Equal parts of the last dimension of `x (batch, parts n)`.
    pub(crate) fn parts<const PARTS: usize>(&mut self, x: Value) -> Result<[Value; PARTS], GraphError> {
        let n = self.channels(x) / PARTS;
        let mut parts = [x; PARTS];
        for (i, part) in parts.iter_mut().enumerate() {
            *part = self.graph.slice(x, 1, i * n, n)?;
        }
        Ok(parts)
    }

    /// Layer norm, times one more than `scale (batch, c)`, plus `shift (batch, c)`; its result goes into a product.
    pub(crate) fn modulated_norm(&mut self, x: Value, scale: Value, shift: Value) -> Result<Value, GraphError> {
        let gamma = self.graph.affine(scale, 1.0, 1.0)?;
        self.graph.layer_norm(x, [gamma, shift], EPS, self.numbers.activations)
    }

    /// `x (batch, tokens, c)` plus `y` times `gate (batch, c)`.
    pub(crate) fn gated(&mut self, x: Value, y: Value, gate: Value) -> Result<Value, GraphError> {
        let [batch, c] = self.graph.ty(gate).shape[..] else { unreachable!("a gate is a vector for each picture") };
        let gate = self.graph.reshape(gate, [batch, 1, c])?;
        let y = self.graph.binary(Binary::Mul, y, gate)?;
        self.graph.add(x, y)
    }

    /// RMS norm of each head of `x (batch, tokens, heads d)`.
    pub(crate) fn head_norm(&mut self, name: &str, x: Value, heads: usize, eps: f32) -> Result<Value, GraphError> {
        let ty = self.graph.ty(x);
        let ([batch, tokens, c], dtype) = (ty.shape[..].try_into().unwrap_or([1; 3]), ty.dtype);
        let gamma = self.param(&format!("{name}.weight"), &[c / heads])?;
        let by_head = self.graph.reshape(x, [batch, tokens, heads, c / heads])?;
        let normed = self.graph.rms_norm(by_head, gamma, eps, dtype)?;
        self.graph.reshape(normed, [batch, tokens, c])
    }

    /// Adjacent pairs of each head, turned.
    pub(crate) fn rotated(&mut self, x: Value, heads: usize, by: Rotation) -> Result<Value, GraphError> {
        self.graph.rotary(x, by.cos, by.sin, heads, Pairs::Adjacent)
    }

    /// Two linear layers with GELU (tanh) between them, as diffusers names them; the result is `f32`, for a gate.
    pub(crate) fn gelu_mlp(&mut self, name: &str, x: Value, inner: usize) -> Result<Value, GraphError> {
        let c = self.channels(x);
        let gelu = Epilogue::new().activation(Unary::GeluTanh).dtype(self.numbers.activations);
        let h = self.linear(&format!("{name}.net.0.proj"), x, inner, gelu)?;
        self.linear(&format!("{name}.net.2"), h, c, Epilogue::new().dtype(DType::F32))
    }
}

/// Cosines and sines of the angles of each token's head, `(tokens, pairs)`: one slice of the head for each axis of the token's position, and in it
/// `position * theta ^ (-2i / width)`.
pub(crate) fn rotary_tables<const AXES: usize>(
    positions: &[[f32; AXES]],
    widths: [usize; AXES],
    theta: f64,
) -> Result<[HostTensor; 2], GraphError> {
    let turns: Vec<(usize, f64)> = (0..AXES)
        .flat_map(|axis| (0..widths[axis] / 2).map(move |i| (axis, i)))
        .map(|(axis, i)| (axis, theta.powf(-((2 * i) as f64) / widths[axis] as f64)))
        .collect();
    let table = |f: fn(f64) -> f64| {
        let angles = positions.iter().flat_map(|at| turns.iter().map(|(axis, turn)| f64::from(at[*axis]) * turn));
        HostTensor::f32([positions.len(), turns.len()], angles.map(|angle| f(angle) as f32).collect())
    };
    Ok([table(f64::cos)?, table(f64::sin)?])
}

/// The positions `(row, column)` of a picture of `[rows, columns]` tokens.
pub(crate) fn grid([rows, columns]: [usize; 2]) -> impl Iterator<Item = [f32; 2]> {
    (0..rows).flat_map(move |row| (0..columns).map(move |column| [row as f32, column as f32]))
}
