//! The transformer of Z-Image: text and picture are refined apart, then go through the same blocks in one row.

use std::fmt;
use std::sync::Arc;

use impasto_graph::{Binary, DType, Epilogue, Graph, GraphError, HostTensor, Scores, Unary, Value};
use impasto_weights::TensorView;

use super::{Network, NetworkKind, PrefixedTensors, Recogniser, TensorProblem};
use crate::blocks::dit::{EPS, Rotation, grid, rotary_tables};
use crate::blocks::{ElementTypes, NetBuilder};
use crate::layout::{CheckpointLayout, TensorRef, numbered, replace_start};

/// What distinguishes one transformer of this kind from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZImageConfig {
    /// Numbers of a token: of four pixels of the latent.
    pub channels: usize,
    /// Width of a token inside.
    pub width: usize,
    /// Width of a head.
    pub head: usize,
    /// Width inside the feed-forward layers.
    pub inner: usize,
    /// Blocks.
    pub blocks: usize,
    /// Blocks for the text alone, and as many for the picture alone.
    pub refiners: usize,
    /// Width of a token of the text.
    pub text: usize,
    /// Width of the embedded time.
    pub time: usize,
    /// Width between the layers that embed it.
    pub time_inner: usize,
}

impl ZImageConfig {
    /// Z-Image and Z-Image-Turbo.
    pub fn published() -> Self {
        ZImageConfig {
            channels: 64,
            width: 3840,
            head: 128,
            inner: 10_240,
            blocks: 30,
            refiners: 2,
            text: 2560,
            time: 256,
            time_inner: 1024,
        }
    }

    /// The slices of a head that turn with each axis of a position: 32, 48 and 48 of 128.
    pub fn axes(&self) -> [usize; 3] {
        let first = (self.head / 4) & !1;
        [first, (self.head - first) / 2, (self.head - first) / 2]
    }
}

/// Text and picture are filled up to multiples of this.
pub(crate) const FILLED: usize = 32;

const NORM_EPS: f32 = 1e-5;

/// The transformer in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZImage {
    /// Its sizes.
    pub config: ZImageConfig,
    /// How the file names its tensors.
    pub layout: CheckpointLayout,
}

impl ZImage {
    /// The graph for `[tokens of the picture, tokens of the text]`, both filled up to multiples of 32.
    ///
    /// Inputs: `tokens (batch, tokens, channels)`, `text (batch, text tokens, text)`, `time (batch)` from 0 to 1000 and growing with the picture; `filled
    /// (batch, tokens + text tokens, 1)`, 1 where there is nothing and the model's own token stands; `hidden (batch, 1, 1, tokens + text tokens)`, 0
    /// or where nobody should look negative infinity; `cos` and `sin (tokens + text tokens, head / 2)`. Output: `velocity (batch, tokens, channels)`,
    /// towards the picture.
    pub fn graph(&self, batch: usize, [tokens, texts]: [usize; 2], numbers: ElementTypes) -> Result<Graph, GraphError> {
        let c = &self.config;
        let mut graph = Graph::new();
        let mut given = |name, shape: &[usize]| graph.input(name, shape, DType::F32);
        let x = given("tokens", &[batch, tokens, c.channels])?;
        let text = given("text", &[batch, texts, c.text])?;
        let time = given("time", &[batch])?;
        let filled = given("filled", &[batch, tokens + texts, 1])?;
        let hidden = given("hidden", &[batch, 1, 1, tokens + texts])?;
        let mut net = NetBuilder::new(&mut graph, numbers);
        let rotation = net.rotation(tokens + texts, c.head)?;

        let waves = net.graph.timestep_embedding(time, 256)?;
        let silu = Epilogue::new().activation(Unary::Silu).dtype(DType::F32);
        let time = net.linear("t_embedder.mlp.0", waves, c.time_inner, silu)?;
        let time = net.linear("t_embedder.mlp.2", time, c.time, Epilogue::new().dtype(DType::F32))?; // (batch, time)

        let x = net.linear("all_x_embedder.2-1", x, c.width, Epilogue::new().dtype(DType::F32))?;
        let mut x = fill(&mut net, "x_pad_token", x, filled, 0)?;
        let own = Rows { rotation: part(&mut net, rotation, 0, tokens)?, hidden: None };
        for i in 0..c.refiners {
            x = block(&mut net.at(&format!("noise_refiner.{i}")), c, x, Some(time), own)?;
        }
        let gamma = net.param("cap_embedder.0.weight", &[c.text])?;
        let text = net.graph.rms_norm(text, gamma, NORM_EPS, numbers.activations)?;
        let text = net.linear("cap_embedder.1", text, c.width, Epilogue::new().dtype(DType::F32))?;
        let mut text = fill(&mut net, "cap_pad_token", text, filled, tokens)?;
        let of_text = net.graph.slice(hidden, 3, tokens, texts)?;
        let own = Rows { rotation: part(&mut net, rotation, tokens, texts)?, hidden: Some(of_text) };
        for i in 0..c.refiners {
            text = block(&mut net.at(&format!("context_refiner.{i}")), c, text, None, own)?;
        }
        let mut x = net.graph.concat(1, &[x, text])?; // (batch, tokens + text tokens, width)
        let all = Rows { rotation, hidden: Some(hidden) };
        for i in 0..c.blocks {
            x = block(&mut net.at(&format!("layers.{i}")), c, x, Some(time), all)?;
        }
        let x = net.graph.slice(x, 1, 0, tokens)?;
        let mut last = net.at("all_final_layer.2-1");
        let time = last.graph.unary(Unary::Silu, time)?;
        let scale = last.linear("adaLN_modulation.1", time, c.width, Epilogue::new().dtype(DType::F32))?;
        let gamma = last.graph.affine(scale, 1.0, 1.0)?;
        let zero = last.graph.affine(scale, 0.0, 0.0)?;
        let x = last.graph.layer_norm(x, [gamma, zero], EPS, numbers.activations)?;
        let velocity = last.linear("linear", x, c.channels, Epilogue::new().dtype(DType::F32))?;
        graph.output("velocity", velocity)?;
        Ok(graph)
    }
}

impl ZImage {
    /// `cos` and `sin` for a picture of `[rows, columns]` tokens and a text of so many; both are filled up. What fills the picture has no place, what
    /// fills the text goes on behind it.
    pub fn tables(&self, texts: usize, [rows, columns]: [usize; 2]) -> Result<[HostTensor; 2], GraphError> {
        let after = texts.next_multiple_of(FILLED) as f32 + 1.0;
        let fill = (rows * columns).next_multiple_of(FILLED) - rows * columns;
        let places = grid([rows, columns]).map(|[row, column]| [after, row, column]);
        let text = (0..texts.next_multiple_of(FILLED)).map(|n| [n as f32 + 1.0, 0.0, 0.0]);
        let positions: Vec<[f32; 3]> = places.chain(std::iter::repeat_n([0.0; 3], fill)).chain(text).collect();
        rotary_tables(&positions, self.config.axes(), 256.0)
    }
}

/// What the tokens of an attention share.
#[derive(Clone, Copy)]
struct Rows {
    rotation: Rotation,
    /// What nobody should look at.
    hidden: Option<Value>,
}

/// Some rows of the tables.
fn part(net: &mut NetBuilder, Rotation { cos, sin }: Rotation, first: usize, n: usize) -> Result<Rotation, GraphError> {
    Ok(Rotation { cos: net.graph.slice(cos, 0, first, n)?, sin: net.graph.slice(sin, 0, first, n)? })
}

/// The model's own token where there is nothing.
fn fill(net: &mut NetBuilder, name: &str, x: Value, filled: Value, first: usize) -> Result<Value, GraphError> {
    let [tokens, width] = [net.graph.ty(x).shape[1], net.channels(x)];
    let filled = net.graph.slice(filled, 1, first, tokens)?; // (batch, tokens, 1)
    let there = net.graph.affine(filled, -1.0, 1.0)?;
    let own = net.param(name, &[1, width])?;
    let own = net.graph.binary(Binary::Mul, filled, own)?;
    let x = net.graph.binary(Binary::Mul, x, there)?;
    net.graph.add(x, own)
}

/// Attention and a gated feed-forward layer, each between two norms. `time` scales what goes in and gates what comes out.
fn block(
    net: &mut NetBuilder,
    config: &ZImageConfig,
    x: Value,
    time: Option<Value>,
    rows: Rows,
) -> Result<Value, GraphError> {
    let (width, heads, activations) = (config.width, config.width / config.head, net.numbers.activations);
    // (scale, gate) of the attention and of the feed-forward layer.
    let by = match time {
        None => [None; 2],
        Some(time) => {
            let [scale_a, gate_a, scale_f, gate_f] = net.modulation("adaLN_modulation.0", time, width)?;
            let [gate_a, gate_f] = [net.graph.unary(Unary::Tanh, gate_a)?, net.graph.unary(Unary::Tanh, gate_f)?];
            [Some((scale_a, gate_a)), Some((scale_f, gate_f))]
        }
    };
    let norm_in = |net: &mut NetBuilder, name: &str, x: Value, by: Option<(Value, Value)>| {
        let mut gamma = net.param(&format!("{name}.weight"), &[width])?;
        if let Some((scale, _)) = by {
            let scale = net.graph.affine(scale, 1.0, 1.0)?;
            gamma = net.graph.binary(Binary::Mul, scale, gamma)?; // (batch, width)
        }
        net.graph.rms_norm(x, gamma, NORM_EPS, activations)
    };
    let norm_out = |net: &mut NetBuilder, name: &str, x: Value, y: Value, by: Option<(Value, Value)>| {
        let mut gamma = net.param(&format!("{name}.weight"), &[width])?;
        if let Some((_, gate)) = by {
            gamma = net.graph.binary(Binary::Mul, gate, gamma)?; // (batch, width)
        }
        let y = net.graph.rms_norm(y, gamma, NORM_EPS, DType::F32)?;
        net.graph.add(x, y)
    };
    let h = norm_in(net, "attention_norm1", x, by[0])?;
    let mut attn = net.at("attention");
    let q = attn.project("to_q", h, width)?;
    let k = attn.project("to_k", h, width)?;
    let v = attn.project("to_v", h, width)?;
    let [q, k] = [attn.head_norm("norm_q", q, heads, NORM_EPS)?, attn.head_norm("norm_k", k, heads, NORM_EPS)?];
    let [q, k] = [attn.rotated(q, heads, rows.rotation)?, attn.rotated(k, heads, rows.rotation)?];
    let scores = Scores { bias: rows.hidden, ..Scores::default() };
    let a = attn.graph.grouped_attention([q, k, v], [heads, heads], scores)?;
    let a = attn.projected("to_out.0", a, width, Epilogue::new().dtype(DType::F32))?;
    let x = norm_out(net, "attention_norm2", x, a, by[0])?;

    let h = norm_in(net, "ffn_norm1", x, by[1])?;
    let h = net.at("feed_forward").gated_product(["w1", "w3", "w2"], h, config.inner, Unary::Silu)?;
    norm_out(net, "ffn_norm2", x, h, by[1])
}

/// Finds transformers of this kind.
pub static Z_IMAGE: Recogniser =
    Recogniser { kind: NetworkKind::Denoiser, prefixes: &["model.diffusion_model.", "diffusion_model.", ""], find };

impl fmt::Display for ZImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ZImageConfig { blocks, width, .. } = &self.config;
        write!(f, "Z-Image transformer, {blocks} blocks of width {width}")
    }
}

impl Network for ZImage {
    fn kind(&self) -> NetworkKind {
        NetworkKind::Denoiser
    }

    fn graphs(&self) -> Result<Vec<Graph>, GraphError> {
        Ok(vec![self.graph(1, [FILLED, FILLED], ElementTypes::F32)?])
    }

    fn stored(&self, name: &str, _: &dyn Fn(&str) -> bool) -> TensorRef {
        match self.layout {
            CheckpointLayout::Diffusers => TensorRef::whole(name.into()),
            CheckpointLayout::Original => original_z_image(name),
        }
    }

    fn spellings(&self, name: &str) -> Vec<TensorRef> {
        vec![TensorRef::whole(name.into()), original_z_image(name)]
    }
}

fn find(tensors: &PrefixedTensors) -> Result<Option<Arc<dyn Network>>, TensorProblem> {
    // Lumina 2 has the rest of it, and another name for what the time does.
    if !tensors.any("cap_embedder.0.") || !tensors.any("layers.0.adaLN_modulation.0.") {
        return Ok(None);
    }
    let layout = match tensors.any("all_x_embedder.") {
        true => CheckpointLayout::Diffusers,
        false => CheckpointLayout::Original,
    };
    let stored = |name: &str| match layout {
        CheckpointLayout::Diffusers => name.to_string(),
        CheckpointLayout::Original => original_z_image(name).name,
    };
    let need = |name: &str, axis: usize| tensors.need(&stored(name), axis);
    let config = ZImageConfig {
        channels: need("all_x_embedder.2-1.weight", 1)?,
        width: need("all_x_embedder.2-1.weight", 0)?,
        head: need("layers.0.attention.norm_q.weight", 0)?,
        inner: need("layers.0.feed_forward.w1.weight", 0)?,
        blocks: tensors.count("layers."),
        refiners: tensors.count("context_refiner."),
        text: need("cap_embedder.1.weight", 1)?,
        time: need("t_embedder.mlp.2.weight", 0)?,
        time_inner: need("t_embedder.mlp.0.weight", 0)?,
    };
    let fits = config.width.is_multiple_of(config.head) && config.head.is_multiple_of(4);
    Ok(fits.then(|| Arc::new(ZImage { config, layout }) as Arc<dyn Network>))
}

/// A parameter in the files of ComfyUI and of GGUF, where what reads the same is joined.
fn original_z_image(name: &str) -> TensorRef {
    let pairs = [("all_x_embedder.2-1.", "x_embedder."), ("all_final_layer.2-1.", "final_layer.")];
    if let Some(name) = replace_start(name, &pairs) {
        return TensorRef::whole(name);
    }
    for blocks in ["layers.", "noise_refiner.", "context_refiner."] {
        let Some((i, rest)) = numbered(name, blocks) else { continue };
        let joined = ["attention.to_q.", "attention.to_k.", "attention.to_v."];
        for (part, ours) in joined.into_iter().enumerate() {
            if let Some(rest) = rest.strip_prefix(ours) {
                return TensorRef {
                    name: format!("{blocks}{i}.attention.qkv.{rest}"),
                    take: TensorView::Rows(part, 3),
                };
            }
        }
        let renamed = [
            ("attention.to_out.0.", "attention.out."),
            ("attention.norm_q.", "attention.q_norm."),
            ("attention.norm_k.", "attention.k_norm."),
        ];
        let rest = replace_start(rest, &renamed).unwrap_or_else(|| rest.into());
        return TensorRef::whole(format!("{blocks}{i}.{rest}"));
    }
    TensorRef::whole(name.into())
}
