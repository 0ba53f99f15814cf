//! The encoder of T5 (version 1.1): T5-XXL beside FLUX.1 and Stable Diffusion 3.

use std::fmt;
use std::sync::Arc;

use impasto_graph::{DType, Epilogue, Graph, GraphError, HostTensor, Scores, Unary, Value};

use super::{Network, NetworkKind, PrefixedTensors, Recogniser, TensorProblem};
use crate::blocks::{ElementTypes, NetBuilder};
use crate::config::Config;
use crate::layout::{TensorRef, numbered, replace_start};
use crate::{Inputs, ModelError, NetworkInFile};

const EPS: f32 = 1e-6;

/// Distances from this one on are alike.
const FAR: usize = 128;

/// What distinguishes one encoder from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct T5Config {
    /// Rows of the token table.
    pub vocabulary: usize,
    /// Width of a token.
    pub width: usize,
    /// Transformer layers.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Width of a head.
    pub head: usize,
    /// Width inside the feed-forward layers.
    pub inner: usize,
    /// Kinds of distances between two tokens.
    pub buckets: usize,
}

impl T5Config {
    /// T5-XXL.
    pub fn xxl() -> T5Config {
        T5Config { vocabulary: 32_128, width: 4096, layers: 24, heads: 64, head: 64, inner: 10_240, buckets: 32 }
    }

    /// Take in what `config.json` says.
    pub(crate) fn apply(&self, json: &Config) -> Result<(), ModelError> {
        json.only(&[
            ("layer_norm_epsilon", f64::from(EPS).into()),
            ("feed_forward_proj", "gated-gelu".into()),
            ("relative_attention_max_distance", FAR.into()),
        ])?;
        json.same_sizes("num_layers", &[self.layers])?;
        json.same_sizes("num_heads", &[self.heads])
    }
}

/// How an encoder's tensors are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum T5Layout {
    /// As transformers does.
    Transformers,
    /// As llama.cpp does.
    Gguf,
}

/// An encoder in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct T5 {
    /// Its sizes.
    pub config: T5Config,
    /// How the file names its tensors.
    pub layout: T5Layout,
}

impl T5 {
    /// The encoder that was found in a file, held to its configuration.
    pub fn of(pick: &NetworkInFile) -> Result<Option<T5>, ModelError> {
        let Some(t5) = pick.network::<T5>() else { return Ok(None) };
        if let Some(json) = pick.source.config_of_kind(&["t5"])? {
            t5.config.apply(json)?;
        }
        Ok(Some(t5))
    }

    /// The encoder for so many `[texts, tokens]`.
    ///
    /// Inputs: `ids (batch, tokens)`, `distances (tokens, tokens)`, and where padding is `masked`, `hidden_keys (batch, 1, 1, tokens)`. Output:
    /// `hidden (batch, tokens, width)`.
    pub fn graph(&self, [batch, tokens]: [usize; 2], masked: bool, numbers: ElementTypes) -> Result<Graph, GraphError> {
        let T5Config { vocabulary, width, layers, heads, buckets, .. } = self.config;
        let mut graph = Graph::new();
        let ids = graph.input("ids", [batch, tokens], DType::I32)?;
        let distances = graph.input("distances", [tokens, tokens], DType::I32)?;
        let hidden_keys = match masked {
            true => Some(graph.input("hidden_keys", [batch, 1, 1, tokens], DType::F32)?),
            false => None,
        };
        let mut net = NetBuilder::new(&mut graph, numbers);
        let table = net.param("shared.weight", &[vocabulary, width])?;
        let words = net.graph.embedding(table, ids)?;
        let mut x = net.graph.cast(words, DType::F32)?; // (batch, tokens, width)

        let mut net = net.at("encoder");
        let table = net.param("block.0.layer.0.SelfAttention.relative_attention_bias.weight", &[buckets, heads])?;
        let bias = net.graph.embedding(table, distances)?; // (tokens, tokens, heads)
        let bias = net.graph.permute(bias, &[2, 0, 1])?;
        let mut bias = net.graph.reshape(bias, [1, heads, tokens, tokens])?;
        if let Some(hidden) = hidden_keys {
            bias = net.graph.add(bias, hidden)?; // (batch, heads, tokens, tokens)
        }
        for i in 0..layers {
            x = self.layer(&mut net.at(&format!("block.{i}")), x, bias)?;
        }
        let gamma = net.param("final_layer_norm.weight", &[width])?;
        let hidden = net.graph.rms_norm(x, gamma, EPS, DType::F32)?;
        graph.output("hidden", hidden)?;
        Ok(graph)
    }

    /// Attention, then feed-forward, each around a shortcut. Scores are not scaled.
    fn layer(&self, net: &mut NetBuilder, x: Value, bias: Value) -> Result<Value, GraphError> {
        let T5Config { width, heads, head, inner, .. } = self.config;
        let mut part = net.at("layer.0");
        let h = part.rms_norm("layer_norm", x, EPS)?;
        let mut attention = part.at("SelfAttention");
        let q = attention.project("q", h, heads * head)?;
        let k = attention.project("k", h, heads * head)?;
        let v = attention.project("v", h, heads * head)?;
        let scores = Scores { scale: Some(1.0), causal: false, bias: Some(bias) };
        let a = attention.graph.grouped_attention([q, k, v], [heads, heads], scores)?;
        let x = attention.projected("o", a, width, Epilogue::new().residual(x))?;

        let mut part = net.at("layer.1");
        let h = part.rms_norm("layer_norm", x, EPS)?;
        part.at("DenseReluDense").gated_feed_forward(["wi_0", "wi_1", "wo"], h, inner, Unary::GeluTanh, x)
    }

    /// The inputs of that graph for `ids (batch, tokens)`; with lengths, what is behind them is hidden.
    pub fn inputs(&self, ids: HostTensor, lengths: Option<&[usize]>) -> Result<Inputs, GraphError> {
        let tokens = ids.shape().get(1).copied().unwrap_or(0);
        let places = (0..tokens).flat_map(|from| (0..tokens).map(move |to| (from, to)));
        let distances = places.map(|(from, to)| bucket(from, to, self.config.buckets)).collect();
        let mut inputs = vec![("ids", ids), ("distances", HostTensor::i32([tokens, tokens], distances)?)];
        if let Some(lengths) = lengths {
            inputs.push(("hidden_keys", hidden_keys(lengths, tokens)?));
        }
        Ok(inputs)
    }
}

/// What hides the keys behind the length of each text: `(batch, 1, 1, tokens)`.
pub(super) fn hidden_keys(lengths: &[usize], tokens: usize) -> Result<HostTensor, GraphError> {
    let hidden = |length: &usize| {
        let length = *length;
        (0..tokens).map(move |at| if at < length { 0.0 } else { f32::NEG_INFINITY })
    };
    HostTensor::f32([lengths.len(), 1, 1, tokens], lengths.iter().flat_map(hidden).collect())
}

/// The kind of distance between two tokens: half of the kinds for each direction, half of those for single steps, and the others ever wider, up to
/// [`FAR`].
fn bucket(from: usize, to: usize, buckets: usize) -> i32 {
    let each = buckets / 2;
    let exact = each / 2;
    let distance = from.abs_diff(to);
    let kind = if distance < exact {
        distance
    } else {
        let ratio = (distance as f32 / exact as f32).ln() / (FAR as f32 / exact as f32).ln();
        (exact + (ratio * (each - exact) as f32) as usize).min(each - 1)
    };
    (kind + if to > from { each } else { 0 }) as i32
}

/// Finds encoders of T5.
pub static T5_ENCODER: Recogniser = Recogniser {
    kind: NetworkKind::TextEncoder,
    prefixes: &[
        "text_encoders.t5xxl.transformer.",
        "text_encoders.t5xxl.",
        "text_encoder_3.",
        "text_encoder_2.",
        "text_encoder.",
        "t5xxl.transformer.",
        "t5xxl.",
        "",
    ],
    find,
};

impl fmt::Display for T5 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "T5 text encoder, width {}, {} layers", self.config.width, self.config.layers)
    }
}

impl Network for T5 {
    fn kind(&self) -> NetworkKind {
        NetworkKind::TextEncoder
    }

    fn graphs(&self) -> Result<Vec<Graph>, GraphError> {
        Ok(vec![self.graph([1, 1], false, ElementTypes::F32)?])
    }

    fn stored(&self, name: &str, has: &dyn Fn(&str) -> bool) -> TensorRef {
        match self.layout {
            T5Layout::Gguf => gguf(name),
            T5Layout::Transformers if name == "shared.weight" && !has(name) && has(TIED) => {
                TensorRef::whole(TIED.into())
            }
            T5Layout::Transformers => TensorRef::whole(name.into()),
        }
    }

    fn spellings(&self, name: &str) -> Vec<TensorRef> {
        vec![TensorRef::whole(name.into()), gguf(name)]
    }
}

/// The other name of the table of tokens.
const TIED: &str = "encoder.embed_tokens.weight";

fn find(tensors: &PrefixedTensors) -> Result<Option<Arc<dyn Network>>, TensorProblem> {
    let (layout, layers) = if tensors.any("enc.blk.") {
        (T5Layout::Gguf, "enc.blk.")
    } else if tensors.any("encoder.block.") {
        (T5Layout::Transformers, "encoder.block.")
    } else {
        return Ok(None);
    };
    let of = |name: &str| match layout {
        T5Layout::Gguf => gguf(name).name,
        T5Layout::Transformers => name.to_string(),
    };
    let table = Some(of("shared.weight")).filter(|name| tensors.has(name)).unwrap_or_else(|| match layout {
        T5Layout::Gguf => of("shared.weight"),
        T5Layout::Transformers => TIED.into(),
    });
    let bias = of("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight");
    let heads = tensors.need(&bias, 1)?;
    let config = T5Config {
        vocabulary: tensors.need(&table, 0)?,
        width: tensors.need(&table, 1)?,
        layers: tensors.count(layers),
        heads,
        head: tensors.need(&of("encoder.block.0.layer.0.SelfAttention.q.weight"), 0)? / heads,
        // Without a gate it is the first T5, which no picture model has.
        inner: tensors.need(&of("encoder.block.0.layer.1.DenseReluDense.wi_0.weight"), 0)?,
        buckets: tensors.need(&bias, 0)?,
    };
    Ok(Some(Arc::new(T5 { config, layout })))
}

/// A parameter as llama.cpp names it.
fn gguf(name: &str) -> TensorRef {
    let pairs = [("shared.", "token_embd."), ("encoder.final_layer_norm.", "enc.output_norm.")];
    if let Some(renamed) = replace_start(name, &pairs) {
        return TensorRef::whole(renamed);
    }
    let Some((i, rest)) = numbered(name, "encoder.block.") else { return TensorRef::whole(name.into()) };
    let pairs = [
        ("layer.0.SelfAttention.relative_attention_bias.", "attn_rel_b."),
        ("layer.0.SelfAttention.q.", "attn_q."),
        ("layer.0.SelfAttention.k.", "attn_k."),
        ("layer.0.SelfAttention.v.", "attn_v."),
        ("layer.0.SelfAttention.o.", "attn_o."),
        ("layer.0.layer_norm.", "attn_norm."),
        ("layer.1.DenseReluDense.wi_0.", "ffn_gate."),
        ("layer.1.DenseReluDense.wi_1.", "ffn_up."),
        ("layer.1.DenseReluDense.wo.", "ffn_down."),
        ("layer.1.layer_norm.", "ffn_norm."),
    ];
    TensorRef::whole(format!("enc.blk.{i}.{}", replace_start(rest, &pairs).unwrap_or_else(|| rest.into())))
}
