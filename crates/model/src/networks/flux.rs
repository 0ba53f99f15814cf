//! The transformer of FLUX.1: blocks with weights of their own for text and picture, then blocks for both in a row.

use std::fmt;
use std::sync::Arc;

use impasto_graph::{DType, Epilogue, Graph, GraphError, HostTensor, Unary, Value};
use impasto_weights::TensorView;

use super::{Network, NetworkKind, PrefixedTensors, Recogniser, TensorProblem};
use crate::blocks::dit::{EPS, Rotation, grid, rotary_tables};
use crate::blocks::{ElementTypes, NetBuilder};
use crate::layout::{CheckpointLayout, TensorRef, numbered, replace_start};

/// What distinguishes one transformer of this kind from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FluxConfig {
    /// Numbers of a token that come in: of four pixels of the latent, and more where the model reads a picture beside it.
    pub in_channels: usize,
    /// Numbers of a token that come out.
    pub out_channels: usize,
    /// Width of a token inside.
    pub width: usize,
    /// Width of a head.
    pub head: usize,
    /// Width inside the feed-forward layers.
    pub inner: usize,
    /// Blocks with weights of their own for text and picture.
    pub double_blocks: usize,
    /// Blocks for both in a row.
    pub single_blocks: usize,
    /// Width of a token of the text.
    pub text: usize,
    /// Width of the pooled text.
    pub pooled: usize,
    /// It reads the guidance.
    pub guidance: bool,
}

impl FluxConfig {
    /// FLUX.1 dev and Krea.
    pub fn dev() -> Self {
        FluxConfig {
            in_channels: 64,
            out_channels: 64,
            width: 3072,
            head: 128,
            inner: 12_288,
            double_blocks: 19,
            single_blocks: 38,
            text: 4096,
            pooled: 768,
            guidance: true,
        }
    }

    fn heads(&self) -> usize {
        self.width / self.head
    }

    /// The slices of a head that turn with each axis of a position: 16, 56 and 56 of 128.
    pub fn axes(&self) -> [usize; 3] {
        let first = (self.head / 8) & !1;
        [first, (self.head - first) / 2, (self.head - first) / 2]
    }
}

/// How the last norm's factors lie in its layer: diffusers exchanged them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastNorm {
    ShiftFirst,
    ScaleFirst,
}

impl LastNorm {
    pub(crate) fn of(layout: CheckpointLayout) -> LastNorm {
        match layout {
            CheckpointLayout::Original => LastNorm::ShiftFirst,
            CheckpointLayout::Diffusers => LastNorm::ScaleFirst,
        }
    }

    /// The norm of `x` by what its layer gave, `(batch, 2 width)`.
    pub(crate) fn apply(self, net: &mut NetBuilder, factors: Value, x: Value) -> Result<Value, GraphError> {
        let [first, second] = net.parts(factors)?;
        match self {
            LastNorm::ShiftFirst => net.modulated_norm(x, second, first),
            LastNorm::ScaleFirst => net.modulated_norm(x, first, second),
        }
    }
}

/// The transformer in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flux {
    /// Its sizes.
    pub config: FluxConfig,
    /// How the file names its tensors.
    pub layout: CheckpointLayout,
}

impl Flux {
    /// The graph for `[tokens of the picture, tokens of the text]`.
    ///
    /// Inputs: `tokens (batch, tokens, in_channels)`, `text (batch, text tokens, text)`, `pooled (batch, pooled)`, `time (batch)` from 0 to 1000,
    /// `guidance (batch)` times 1000 where it is read, `cos` and `sin (text tokens + tokens, head / 2)`. Output: `velocity (batch, tokens,
    /// out_channels)`.
    pub fn graph(&self, batch: usize, [tokens, texts]: [usize; 2], numbers: ElementTypes) -> Result<Graph, GraphError> {
        let c = &self.config;
        let mut graph = Graph::new();
        let mut given = |name, shape: &[usize]| graph.input(name, shape, DType::F32);
        let x = given("tokens", &[batch, tokens, c.in_channels])?;
        let text = given("text", &[batch, texts, c.text])?;
        let pooled = given("pooled", &[batch, c.pooled])?;
        let time = given("time", &[batch])?;
        let guidance = if c.guidance { Some(given("guidance", &[batch])?) } else { None };
        let mut net = NetBuilder::new(&mut graph, numbers);
        let rotation = net.rotation(texts + tokens, c.head)?;

        let mut embed = net.at("time_text_embed");
        let mut condition = embed.number_embedding("timestep_embedder", time, c.width)?;
        if let Some(guidance) = guidance {
            let guidance = embed.number_embedding("guidance_embedder", guidance, c.width)?;
            condition = embed.graph.add(condition, guidance)?;
        }
        let pooled = embed.vector_embedding("text_embedder", pooled, c.width)?;
        condition = embed.graph.add(condition, pooled)?;
        // Every block reads this of it.
        let condition = net.graph.unary(Unary::Silu, condition)?; // (batch, width)

        let wide = || Epilogue::new().dtype(DType::F32);
        let mut x = net.linear("x_embedder", x, c.width, wide())?;
        let mut text = net.linear("context_embedder", text, c.width, wide())?;
        for i in 0..c.double_blocks {
            let mut block = net.at(&format!("transformer_blocks.{i}"));
            [text, x] = double_block(&mut block, c, [text, x], condition, rotation)?;
        }
        let mut x = net.graph.concat(1, &[text, x])?; // (batch, text tokens + tokens, width)
        for i in 0..c.single_blocks {
            let mut block = net.at(&format!("single_transformer_blocks.{i}"));
            x = single_block(&mut block, c, x, condition, rotation)?;
        }
        let x = net.graph.slice(x, 1, texts, tokens)?;
        let factors = net.linear("norm_out.linear", condition, 2 * c.width, wide())?;
        let x = LastNorm::of(self.layout).apply(&mut net, factors, x)?;
        let velocity = net.linear("proj_out", x, c.out_channels, wide())?;
        graph.output("velocity", velocity)?;
        Ok(graph)
    }
}

impl Flux {
    /// `cos` and `sin` for a picture of `[rows, columns]` tokens after a text, which has no place.
    pub fn tables(&self, texts: usize, picture: [usize; 2]) -> Result<[HostTensor; 2], GraphError> {
        let places = grid(picture).map(|[row, column]| [0.0, row, column]);
        let positions: Vec<[f32; 3]> = std::iter::repeat_n([0.0; 3], texts).chain(places).collect();
        rotary_tables(&positions, self.config.axes(), 10_000.0)
    }
}

/// Text and picture with weights of their own, which see each other in one attention.
fn double_block(
    net: &mut NetBuilder,
    config: &FluxConfig,
    [text, x]: [Value; 2],
    condition: Value,
    rotation: Rotation,
) -> Result<[Value; 2], GraphError> {
    let texts = net.graph.ty(text).shape[1];
    let tokens = net.graph.ty(x).shape[1];
    let (width, heads) = (config.width, config.heads());
    let of_x = net.modulation::<6>("norm1.linear", condition, width)?;
    let of_text = net.modulation::<6>("norm1_context.linear", condition, width)?;
    let h = net.modulated_norm(x, of_x[1], of_x[0])?;
    let t = net.modulated_norm(text, of_text[1], of_text[0])?;
    let mut attn = net.at("attn");
    let mut project = |name: &str, norm: Option<&str>, x: Value| {
        let y = attn.linear(name, x, width, Epilogue::new())?;
        norm.map_or(Ok(y), |norm| attn.head_norm(norm, y, heads, EPS))
    };
    let q = [project("add_q_proj", Some("norm_added_q"), t)?, project("to_q", Some("norm_q"), h)?];
    let k = [project("add_k_proj", Some("norm_added_k"), t)?, project("to_k", Some("norm_k"), h)?];
    let v = [project("add_v_proj", None, t)?, project("to_v", None, h)?];
    let [q, k, v] = [attn.graph.concat(1, &q)?, attn.graph.concat(1, &k)?, attn.graph.concat(1, &v)?];
    let [q, k] = [attn.rotated(q, heads, rotation)?, attn.rotated(k, heads, rotation)?];
    let a = attn.graph.attention(q, k, v, heads, false)?; // (batch, text tokens + tokens, width)
    let seen = attn.graph.slice(a, 1, texts, tokens)?;
    let h = attn.linear("to_out.0", seen, width, Epilogue::new().dtype(DType::F32))?;
    let seen = attn.graph.slice(a, 1, 0, texts)?;
    let t = attn.linear("to_add_out", seen, width, Epilogue::new().dtype(DType::F32))?;

    let mut rest = |x: Value, y: Value, by: [Value; 6], name: &str| {
        let x = net.gated(x, y, by[2])?;
        let h = net.modulated_norm(x, by[4], by[3])?;
        let h = net.gelu_mlp(name, h, config.inner)?;
        net.gated(x, h, by[5])
    };
    Ok([rest(text, t, of_text, "ff_context")?, rest(x, h, of_x, "ff")?])
}

/// Attention and feed-forward layer side by side.
fn single_block(
    net: &mut NetBuilder,
    config: &FluxConfig,
    x: Value,
    condition: Value,
    rotation: Rotation,
) -> Result<Value, GraphError> {
    let (width, heads) = (config.width, config.heads());
    let [shift, scale, gate] = net.modulation("norm.linear", condition, width)?;
    let h = net.modulated_norm(x, scale, shift)?;
    let gelu = Epilogue::new().activation(Unary::GeluTanh).dtype(net.numbers.activations);
    let inner = net.linear("proj_mlp", h, config.inner, gelu)?;
    let mut attn = net.at("attn");
    let q = attn.linear("to_q", h, width, Epilogue::new())?;
    let k = attn.linear("to_k", h, width, Epilogue::new())?;
    let v = attn.linear("to_v", h, width, Epilogue::new())?;
    let [q, k] = [attn.head_norm("norm_q", q, heads, EPS)?, attn.head_norm("norm_k", k, heads, EPS)?];
    let [q, k] = [attn.rotated(q, heads, rotation)?, attn.rotated(k, heads, rotation)?];
    let a = attn.graph.attention(q, k, v, heads, false)?;
    let both = net.graph.concat(2, &[a, inner])?; // (batch, tokens, width + inner)
    let h = net.linear("proj_out", both, width, Epilogue::new().dtype(DType::F32))?;
    net.gated(x, h, gate)
}

/// Finds transformers of this kind.
pub static FLUX: Recogniser =
    Recogniser { kind: NetworkKind::Denoiser, prefixes: &["model.diffusion_model.", "diffusion_model.", ""], find };

impl fmt::Display for Flux {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FluxConfig { double_blocks, single_blocks, width, .. } = &self.config;
        write!(f, "FLUX.1 transformer, {double_blocks} + {single_blocks} blocks of width {width}")
    }
}

impl Network for Flux {
    fn kind(&self) -> NetworkKind {
        NetworkKind::Denoiser
    }

    fn graphs(&self) -> Result<Vec<Graph>, GraphError> {
        Ok(vec![self.graph(1, [1, 1], ElementTypes::F32)?])
    }

    fn stored(&self, name: &str, _: &dyn Fn(&str) -> bool) -> TensorRef {
        match self.layout {
            CheckpointLayout::Diffusers => TensorRef::whole(name.into()),
            CheckpointLayout::Original => original_flux(name, &self.config),
        }
    }

    fn spellings(&self, name: &str) -> Vec<TensorRef> {
        vec![TensorRef::whole(name.into()), original_flux(name, &self.config)]
    }
}

fn find(tensors: &PrefixedTensors) -> Result<Option<Arc<dyn Network>>, TensorProblem> {
    let layout = if tensors.any("double_blocks.") && tensors.any("single_blocks.") {
        CheckpointLayout::Original
    } else if tensors.any("single_transformer_blocks.") && tensors.any("time_text_embed.") {
        CheckpointLayout::Diffusers
    } else {
        return Ok(None);
    };
    // Kin of other sizes and with other parts: FLUX.2, Chroma, HunyuanVideo.
    let others = ["double_stream_modulation_img.", "distilled_guidance_layer.", "txt_in.individual_token_refiner."];
    if others.iter().any(|start| tensors.any(start)) {
        return Ok(None);
    }
    let need = |diffusers: &str, original: &str, axis: usize| match layout {
        CheckpointLayout::Diffusers => tensors.need(diffusers, axis),
        CheckpointLayout::Original => tensors.need(original, axis),
    };
    let count = |diffusers: &str, original: &str| match layout {
        CheckpointLayout::Diffusers => tensors.count(diffusers),
        CheckpointLayout::Original => tensors.count(original),
    };
    let [double, single] = ["transformer_blocks.0", "double_blocks.0"];
    let config = FluxConfig {
        in_channels: need("x_embedder.weight", "img_in.weight", 1)?,
        out_channels: need("proj_out.weight", "final_layer.linear.weight", 0)?,
        width: need("x_embedder.weight", "img_in.weight", 0)?,
        head: need(&format!("{double}.attn.norm_q.weight"), &format!("{single}.img_attn.norm.query_norm.scale"), 0)?,
        inner: need(&format!("{double}.ff.net.0.proj.weight"), &format!("{single}.img_mlp.0.weight"), 0)?,
        double_blocks: count("transformer_blocks.", "double_blocks."),
        single_blocks: count("single_transformer_blocks.", "single_blocks."),
        text: need("context_embedder.weight", "txt_in.weight", 1)?,
        pooled: need("time_text_embed.text_embedder.linear_1.weight", "vector_in.in_layer.weight", 1)?,
        guidance: tensors.any("guidance_in.") || tensors.any("time_text_embed.guidance_embedder."),
    };
    let fits = config.width.is_multiple_of(config.head) && config.head.is_multiple_of(4);
    Ok(fits.then(|| Arc::new(Flux { config, layout }) as Arc<dyn Network>))
}

/// A parameter in the files of its authors, of ComfyUI and of GGUF, where what reads the same is joined.
fn original_flux(name: &str, config: &FluxConfig) -> TensorRef {
    let whole = |name: String| TensorRef::whole(name);
    if let Some((i, rest)) = numbered(name, "transformer_blocks.") {
        let joined = [
            ("attn.to_q.", "img_attn.qkv.", 0),
            ("attn.to_k.", "img_attn.qkv.", 1),
            ("attn.to_v.", "img_attn.qkv.", 2),
            ("attn.add_q_proj.", "txt_attn.qkv.", 0),
            ("attn.add_k_proj.", "txt_attn.qkv.", 1),
            ("attn.add_v_proj.", "txt_attn.qkv.", 2),
        ];
        for (ours, theirs, part) in joined {
            if let Some(rest) = rest.strip_prefix(ours) {
                return TensorRef {
                    name: format!("double_blocks.{i}.{theirs}{rest}"),
                    take: TensorView::Rows(part, 3),
                };
            }
        }
        let renamed = [
            ("norm1.linear.", "img_mod.lin."),
            ("norm1_context.linear.", "txt_mod.lin."),
            ("attn.norm_q.weight", "img_attn.norm.query_norm.scale"),
            ("attn.norm_k.weight", "img_attn.norm.key_norm.scale"),
            ("attn.norm_added_q.weight", "txt_attn.norm.query_norm.scale"),
            ("attn.norm_added_k.weight", "txt_attn.norm.key_norm.scale"),
            ("attn.to_out.0.", "img_attn.proj."),
            ("attn.to_add_out.", "txt_attn.proj."),
            ("ff.net.0.proj.", "img_mlp.0."),
            ("ff.net.2.", "img_mlp.2."),
            ("ff_context.net.0.proj.", "txt_mlp.0."),
            ("ff_context.net.2.", "txt_mlp.2."),
        ];
        return whole(format!("double_blocks.{i}.{}", replace_start(rest, &renamed).unwrap_or_else(|| rest.into())));
    }
    if let Some((i, rest)) = numbered(name, "single_transformer_blocks.") {
        let (width, of) = (config.width, 3 * config.width + config.inner);
        for (part, ours) in ["attn.to_q.", "attn.to_k.", "attn.to_v.", "proj_mlp."].into_iter().enumerate() {
            if let Some(rest) = rest.strip_prefix(ours) {
                let take = TensorView::RowsFrom(part * width, of);
                return TensorRef { name: format!("single_blocks.{i}.linear1.{rest}"), take };
            }
        }
        let renamed = [
            ("norm.linear.", "modulation.lin."),
            ("attn.norm_q.weight", "norm.query_norm.scale"),
            ("attn.norm_k.weight", "norm.key_norm.scale"),
            ("proj_out.", "linear2."),
        ];
        return whole(format!("single_blocks.{i}.{}", replace_start(rest, &renamed).unwrap_or_else(|| rest.into())));
    }
    let renamed = [
        ("x_embedder.", "img_in."),
        ("context_embedder.", "txt_in."),
        ("time_text_embed.timestep_embedder.linear_1.", "time_in.in_layer."),
        ("time_text_embed.timestep_embedder.linear_2.", "time_in.out_layer."),
        ("time_text_embed.guidance_embedder.linear_1.", "guidance_in.in_layer."),
        ("time_text_embed.guidance_embedder.linear_2.", "guidance_in.out_layer."),
        ("time_text_embed.text_embedder.linear_1.", "vector_in.in_layer."),
        ("time_text_embed.text_embedder.linear_2.", "vector_in.out_layer."),
        ("norm_out.linear.", "final_layer.adaLN_modulation.1."),
        ("proj_out.", "final_layer.linear."),
    ];
    whole(replace_start(name, &renamed).unwrap_or_else(|| name.into()))
}
