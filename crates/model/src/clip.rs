//! The text encoders: CLIP-L (Stable Diffusion 1 and XL), OpenCLIP-H (2) and OpenCLIP-G (XL).

use impasto_graph::{DType, Epilogue, Graph, GraphError, Unary, Value};

use crate::layers::{Net, Numbers};

/// What distinguishes one text encoder from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClipConfig {
    /// Rows of the token table.
    pub vocabulary: usize,
    /// Tokens of a text.
    pub tokens: usize,
    /// Width of a token.
    pub width: usize,
    /// Transformer layers.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Width inside the feed-forward layers.
    pub inner: usize,
    /// The feed-forward layers' function: quick-GELU for CLIP, GELU for OpenCLIP.
    pub activation: Unary,
    /// Width of the pooled text, where the model has a projection for it.
    pub projection: Option<usize>,
}

impl ClipConfig {
    /// CLIP-L.
    pub fn clip_l() -> Self {
        ClipConfig {
            vocabulary: 49_408,
            tokens: 77,
            width: 768,
            layers: 12,
            heads: 12,
            inner: 3072,
            activation: Unary::QuickGelu,
            projection: None,
        }
    }

    /// OpenCLIP-G, the second encoder of SDXL.
    pub fn open_clip_g() -> Self {
        ClipConfig {
            width: 1280,
            layers: 32,
            heads: 20,
            inner: 5120,
            activation: Unary::Gelu,
            projection: Some(1280),
            ..Self::clip_l()
        }
    }

    /// OpenCLIP-H, the encoder of Stable Diffusion 2.
    pub fn open_clip_h() -> Self {
        ClipConfig { width: 1024, layers: 24, heads: 16, inner: 4096, activation: Unary::Gelu, ..Self::clip_l() }
    }
}

/// Which state of the text conditions the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// Layers at the end that are left out: 0 for Stable Diffusion 1, 1 for 2 and XL (clip-skip minus one).
    pub skip: usize,
    /// Whether the final norm is applied to it: not for SDXL.
    pub norm: bool,
}

/// The encoder for `batch` texts.
///
/// Input: `ids (batch, tokens)`. Outputs: `hidden (batch, tokens, width)`; where the model has a projection, `pooled
/// (batch, tokens, projection)`, of which the row of the end-of-text token is the pooled text.
pub fn clip(config: &ClipConfig, batch: usize, hidden: Hidden, numbers: Numbers) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let ids = graph.input("ids", [batch, config.tokens], DType::I32)?;
    let mut net = Net::new(&mut graph, numbers);
    let mut text = net.at("text_model");
    let table = text.param("embeddings.token_embedding.weight", &[config.vocabulary, config.width])?;
    let places = text.param("embeddings.position_embedding.weight", &[config.tokens, config.width])?;
    let words = text.graph.embedding(table, ids)?; // (batch, tokens, width)
    let mut x = text.graph.add(words, places)?;

    let wanted = config.layers.saturating_sub(hidden.skip);
    let mut state = x;
    // Without a projection nobody needs the layers behind the wanted state.
    let needed = if config.projection.is_some() { config.layers } else { wanted };
    for i in 0..needed {
        x = layer(&mut text.at(&format!("encoder.layers.{i}")), config, x)?;
        if i + 1 == wanted {
            state = x;
        }
    }
    if hidden.norm {
        state = text.final_norm(state)?;
    }
    let pooled = match config.projection {
        Some(n) => {
            let last = text.final_norm(x)?;
            Some(net.project("text_projection", last, n)?)
        }
        None => None,
    };
    graph.output("hidden", state)?;
    if let Some(pooled) = pooled {
        graph.output("pooled", pooled)?;
    }
    Ok(graph)
}

impl Net<'_> {
    /// The norm behind the last layer; what conditions a picture stays `f32`.
    fn final_norm(&mut self, x: Value) -> Result<Value, GraphError> {
        let params = self.scale_and_shift("final_layer_norm", x)?;
        self.graph.layer_norm(x, params, 1e-5, DType::F32)
    }
}

/// Causal attention, then feed-forward, each around a shortcut.
fn layer(net: &mut Net, config: &ClipConfig, x: Value) -> Result<Value, GraphError> {
    // x (batch, tokens, width)
    let n = config.width;
    let h = net.layer_norm("layer_norm1", x)?;
    let q = net.linear("self_attn.q_proj", h, n, Epilogue::new())?;
    let k = net.linear("self_attn.k_proj", h, n, Epilogue::new())?;
    let v = net.linear("self_attn.v_proj", h, n, Epilogue::new())?;
    let a = net.graph.attention(q, k, v, config.heads, true)?;
    let x = net.linear("self_attn.out_proj", a, n, Epilogue::new().residual(x))?;
    let h = net.layer_norm("layer_norm2", x)?;
    let h = net.linear("mlp.fc1", h, config.inner, Epilogue::new().activation(config.activation))?;
    net.linear("mlp.fc2", h, n, Epilogue::new().residual(x))
}
