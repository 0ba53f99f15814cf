//! The text encoders: CLIP-L (Stable Diffusion 1 and XL), OpenCLIP-H (2) and OpenCLIP-G (XL).

use std::fmt;
use std::sync::Arc;

use impasto_graph::{DType, Epilogue, Graph, GraphError, Unary, Value};

use super::{Network, NetworkKind, PrefixedTensors, Recogniser, TensorProblem};
use crate::ModelError;
use crate::blocks::{ElementTypes, NetBuilder};
use crate::config::Config;
use impasto_weights::TensorView;

use crate::layout::{TensorRef, numbered, replace_start};

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

impl ClipConfig {
    /// Take in what `text_encoder/config.json` says.
    pub(crate) fn apply(&mut self, json: &Config) -> Result<(), ModelError> {
        json.only(&[("layer_norm_eps", 1e-5.into())])?;
        json.same_sizes("num_hidden_layers", &[self.layers])?;
        json.same_sizes("hidden_size", &[self.width])?;
        json.same_sizes("intermediate_size", &[self.inner])?;
        json.same_sizes("max_position_embeddings", &[self.tokens])?;
        self.activation = match json.text("hidden_act")? {
            None | Some("quick_gelu") => Unary::QuickGelu,
            Some("gelu") => Unary::Gelu,
            Some(other) => {
                let problem = format!("is '{other}'; quick_gelu and gelu are supported");
                return Err(json.wrong("hidden_act", problem));
            }
        };
        if let Some(heads) = json.count("num_attention_heads")? {
            self.heads = heads;
            if !self.width.is_multiple_of(heads) {
                let problem = format!("is {heads}, by which the width {} cannot be divided", self.width);
                return Err(json.wrong("num_attention_heads", problem));
            }
        }
        Ok(())
    }
}

/// Which state of the text conditions the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HiddenState {
    /// Layers at the end that are left out: 0 for Stable Diffusion 1, 1 for 2 and XL (clip-skip minus one).
    pub skip: usize,
    /// Whether the final norm is applied to it: not for SDXL.
    pub norm: bool,
}

/// The encoder for `batch` texts.
///
/// Input: `ids (batch, tokens)`. Outputs: `hidden (batch, tokens, width)`; where the model has a projection, `pooled
/// (batch, tokens, projection)`, of which the row of the end-of-text token is the pooled text.
pub fn clip(
    config: &ClipConfig,
    batch: usize,
    hidden: HiddenState,
    numbers: ElementTypes,
) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let ids = graph.input("ids", [batch, config.tokens], DType::I32)?;
    let mut net = NetBuilder::new(&mut graph, numbers);
    let mut text = net.at("text_model");
    let table = text.param("embeddings.token_embedding.weight", &[config.vocabulary, config.width])?;
    let places = text.param("embeddings.position_embedding.weight", &[config.tokens, config.width])?;
    let words = text.graph.embedding(table, ids)?; // (batch, tokens, width)
    let mut x = text.graph.add(words, places)?;

    let wanted = config.layers.saturating_sub(hidden.skip);
    let mut state = x;
    // Without a projection nobody needs the layers after the wanted state.
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

impl NetBuilder<'_> {
    /// The norm after the last layer; what conditions a picture stays `f32`.
    fn final_norm(&mut self, x: Value) -> Result<Value, GraphError> {
        let params = self.scale_and_shift("final_layer_norm", x)?;
        self.graph.layer_norm(x, params, 1e-5, DType::F32)
    }
}

/// Causal attention, then feed-forward, each around a shortcut.
fn layer(net: &mut NetBuilder, config: &ClipConfig, x: Value) -> Result<Value, GraphError> {
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

/// How a text encoder's tensors are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClipLayout {
    /// As transformers does.
    Transformers,
    /// As transformers did first and does again, without `text_model.`.
    Bare,
    /// As OpenCLIP does.
    OpenClip,
}

/// A text encoder in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clip {
    /// Its sizes.
    pub config: ClipConfig,
    /// How the file names its tensors.
    pub layout: ClipLayout,
}

/// Finds text encoders of this kind.
pub static CLIP: Recogniser = Recogniser {
    kind: NetworkKind::TextEncoder,
    prefixes: &[
        "cond_stage_model.transformer.",
        "conditioner.embedders.0.transformer.",
        "cond_stage_model.model.",
        "conditioner.embedders.1.model.",
        "conditioner.embedders.0.model.",
        "text_encoders.clip_l.transformer.",
        "text_encoders.clip_g.transformer.",
        "text_encoder.",
        "text_encoder_2.",
        "clip_l.",
        "clip_g.",
        "",
    ],
    find,
};

impl fmt::Display for Clip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "text encoder, width {}, {} layers", self.config.width, self.config.layers)
    }
}

impl Network for Clip {
    fn kind(&self) -> NetworkKind {
        NetworkKind::TextEncoder
    }

    fn graphs(&self) -> Result<Vec<Graph>, GraphError> {
        Ok(vec![clip(&self.config, 1, HiddenState { skip: 0, norm: true }, ElementTypes::F32)?])
    }

    fn stored(&self, name: &str, has: &dyn Fn(&str) -> bool) -> TensorRef {
        match self.layout {
            ClipLayout::OpenClip => open_clip(name),
            layout => transformers_clip(name, layout == ClipLayout::Bare, has),
        }
    }

    fn spellings(&self, name: &str) -> Vec<TensorRef> {
        let transformers = [false, true].map(|bare| transformers_clip(name, bare, &|_| false));
        transformers.into_iter().chain([open_clip(name)]).collect()
    }

    /// Newer folders leave out what all names begin with.
    fn original(&self, name: &str, shape: &[usize], _: &dyn Fn(&str) -> bool) -> Option<(String, Vec<usize>)> {
        (self.layout == ClipLayout::Bare).then(|| (name.to_owned(), shape.to_vec()))
    }
}

fn find(tensors: &PrefixedTensors) -> Result<Option<Arc<dyn Network>>, TensorProblem> {
    let any = |starts: &[&str]| starts.iter().any(|start| tensors.any(start));
    let (layout, table, places, layers, inner) =
        if any(&["token_embedding.", "positional_embedding", "transformer.resblocks."]) {
            let (table, places) = ("token_embedding.weight", "positional_embedding");
            (ClipLayout::OpenClip, table, places, "transformer.resblocks.", "mlp.c_fc.weight")
        } else if any(&["embeddings.token_embedding.", "embeddings.position_embedding."]) {
            let (table, places) = ("embeddings.token_embedding.weight", "embeddings.position_embedding.weight");
            (ClipLayout::Bare, table, places, "encoder.layers.", "mlp.fc1.weight")
        } else if any(&["text_model."]) {
            let table = "text_model.embeddings.token_embedding.weight";
            let places = "text_model.embeddings.position_embedding.weight";
            (ClipLayout::Transformers, table, places, "text_model.encoder.layers.", "mlp.fc1.weight")
        } else {
            return Ok(None);
        };
    let projection = match layout {
        ClipLayout::OpenClip => tensors.size("text_projection", 1),
        _ => tensors.size("text_projection.weight", 0).or_else(|| tensors.size("text_projection", 1)),
    };
    let width = tensors.need(table, 1)?;
    let config = ClipConfig {
        vocabulary: tensors.need(table, 0)?,
        tokens: tensors.need(places, 0)?,
        width,
        layers: tensors.count(layers),
        // Heads cannot be seen in shapes: all of these encoders have heads of 64.
        heads: (width / 64).max(1),
        inner: tensors.need(&format!("{layers}0.{inner}"), 0)?,
        // CLIP-L is the one with the quick function; the OpenCLIP models, which all have a projection, have the exact one.
        activation: match (layout, projection) {
            (ClipLayout::Transformers | ClipLayout::Bare, None) => Unary::QuickGelu,
            _ => Unary::Gelu,
        },
        projection,
    };
    Ok(Some(Arc::new(Clip { config, layout })))
}

/// A parameter of a text encoder as OpenCLIP names it, without its prefix.
fn open_clip(name: &str) -> TensorRef {
    if name == "text_projection.weight" {
        return TensorRef { name: "text_projection".into(), take: TensorView::Transposed };
    }
    let name = name.strip_prefix("text_model.").unwrap_or(name);
    let pairs = [
        ("embeddings.token_embedding.weight", "token_embedding.weight"),
        ("embeddings.position_embedding.weight", "positional_embedding"),
        ("final_layer_norm.", "ln_final."),
    ];
    if let Some(renamed) = replace_start(name, &pairs) {
        return TensorRef::whole(renamed);
    }
    let Some((i, rest)) = numbered(name, "encoder.layers.") else { return TensorRef::whole(name.into()) };
    let layer = format!("transformer.resblocks.{i}");
    // Queries, keys and values are one tensor there.
    for (part, letter) in ["q", "k", "v"].into_iter().enumerate() {
        if let Some(kind) = rest.strip_prefix(&format!("self_attn.{letter}_proj.")) {
            return TensorRef { name: format!("{layer}.attn.in_proj_{kind}"), take: TensorView::Rows(part, 3) };
        }
    }
    let pairs = [
        ("layer_norm1.", "ln_1."),
        ("layer_norm2.", "ln_2."),
        ("mlp.fc1.", "mlp.c_fc."),
        ("mlp.fc2.", "mlp.c_proj."),
        ("self_attn.out_proj.", "attn.out_proj."),
    ];
    TensorRef::whole(format!("{layer}.{}", replace_start(rest, &pairs).unwrap_or_else(|| rest.into())))
}

/// A parameter of a text encoder as transformers names it. The name begins with `text_model.` or, in `bare` files, after it; some
/// programs keep OpenCLIP's turned projection.
fn transformers_clip(name: &str, bare: bool, has: &dyn Fn(&str) -> bool) -> TensorRef {
    if name == "text_projection.weight" && !has(name) && has("text_projection") {
        return TensorRef { name: "text_projection".into(), take: TensorView::Transposed };
    }
    let short = if bare { name.strip_prefix("text_model.") } else { None };
    TensorRef::whole(short.unwrap_or(name).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_open_clip() {
        let v = open_clip("text_model.encoder.layers.7.self_attn.v_proj.weight");
        assert_eq!((v.name.as_str(), v.take), ("transformer.resblocks.7.attn.in_proj_weight", TensorView::Rows(2, 3)));
        assert_eq!(open_clip("text_projection.weight").take, TensorView::Transposed);
    }
}
