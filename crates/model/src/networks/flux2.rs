//! The transformer of FLUX.2: that of FLUX.1 with one modulation for all blocks, gated feed-forward layers and no biases.

use std::fmt;
use std::sync::Arc;

use impasto_graph::{Binary, DType, Epilogue, Graph, GraphError, HostTensor, Unary, Value};
use impasto_weights::TensorView;

use super::flux::LastNorm;
use super::{Network, NetworkKind, PrefixedTensors, Recogniser, TensorProblem};
use crate::blocks::dit::{EPS, Rotation, grid, rotary_tables};
use crate::blocks::{ElementTypes, NetBuilder};
use crate::layout::{CheckpointLayout, TensorRef, numbered, replace_start};

/// What distinguishes one transformer of this kind from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flux2Config {
    /// Channels of a latent, which is a token a pixel.
    pub channels: usize,
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
    /// Width of a token of the text: three states of the text encoder.
    pub text: usize,
    /// It reads the guidance.
    pub guidance: bool,
}

impl Flux2Config {
    /// FLUX.2 klein 4B.
    pub fn klein_4b() -> Self {
        Flux2Config {
            channels: 128,
            width: 3072,
            head: 128,
            inner: 9216,
            double_blocks: 5,
            single_blocks: 20,
            text: 7680,
            guidance: false,
        }
    }

    fn heads(&self) -> usize {
        self.width / self.head
    }

    /// The slices of a head that turn with each axis of a position.
    pub fn axes(&self) -> [usize; 4] {
        [self.head / 4; 4]
    }
}

/// The transformer in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flux2 {
    /// Its sizes.
    pub config: Flux2Config,
    /// How the file names its tensors.
    pub layout: CheckpointLayout,
}

impl Flux2 {
    /// The graph for `[tokens of the picture, tokens of the text]`.
    ///
    /// Inputs: `tokens (batch, tokens, channels)`, `text (batch, text tokens, text)`, `time (batch)` from 0 to 1000, `guidance (batch)` times 1000 where
    /// it is read, `cos` and `sin (text tokens + tokens, head / 2)`. Output: `velocity (batch, tokens, channels)`.
    pub fn graph(&self, batch: usize, [tokens, texts]: [usize; 2], numbers: ElementTypes) -> Result<Graph, GraphError> {
        let c = &self.config;
        let mut graph = Graph::new();
        let mut given = |name, shape: &[usize]| graph.input(name, shape, DType::F32);
        let x = given("tokens", &[batch, tokens, c.channels])?;
        let text = given("text", &[batch, texts, c.text])?;
        let time = given("time", &[batch])?;
        let guidance = if c.guidance { Some(given("guidance", &[batch])?) } else { None };
        let mut net = NetBuilder::new(&mut graph, numbers);
        let rotation = net.rotation(texts + tokens, c.head)?;

        let mut embed = net.at("time_guidance_embed");
        let mut condition = embedded(&mut embed.at("timestep_embedder"), time, c.width)?;
        if let Some(guidance) = guidance {
            let guidance = embedded(&mut embed.at("guidance_embedder"), guidance, c.width)?;
            condition = embed.graph.add(condition, guidance)?;
        }
        let condition = net.graph.unary(Unary::Silu, condition)?; // (batch, width)
        let mut modulation = |name: &str, parts: usize| {
            net.projected(name, condition, parts * c.width, Epilogue::new().dtype(DType::F32))
        };
        let of_x = modulation("double_stream_modulation_img.linear", 6)?;
        let of_text = modulation("double_stream_modulation_txt.linear", 6)?;
        let of_both = modulation("single_stream_modulation.linear", 3)?;
        let doubles: [[Value; 6]; 2] = [net.parts(of_text)?, net.parts(of_x)?];
        let singles: [Value; 3] = net.parts(of_both)?;

        let mut x = net.projected("x_embedder", x, c.width, Epilogue::new().dtype(DType::F32))?;
        let mut text = net.projected("context_embedder", text, c.width, Epilogue::new().dtype(DType::F32))?;
        for i in 0..c.double_blocks {
            let mut block = net.at(&format!("transformer_blocks.{i}"));
            [text, x] = double_block(&mut block, c, [text, x], doubles, rotation)?;
        }
        let mut x = net.graph.concat(1, &[text, x])?; // (batch, text tokens + tokens, width)
        for i in 0..c.single_blocks {
            let mut block = net.at(&format!("single_transformer_blocks.{i}"));
            x = single_block(&mut block, c, x, singles, rotation)?;
        }
        let x = net.graph.slice(x, 1, texts, tokens)?;
        let factors = net.projected("norm_out.linear", condition, 2 * c.width, Epilogue::new().dtype(DType::F32))?;
        let x = LastNorm::of(self.layout).apply(&mut net, factors, x)?;
        let velocity = net.projected("proj_out", x, c.channels, Epilogue::new().dtype(DType::F32))?;
        graph.output("velocity", velocity)?;
        Ok(graph)
    }
}

impl Flux2 {
    /// `cos` and `sin` for a picture of `[rows, columns]` tokens after a text.
    pub fn tables(&self, texts: usize, picture: [usize; 2]) -> Result<[HostTensor; 2], GraphError> {
        let text = (0..texts).map(|n| [0.0, 0.0, 0.0, n as f32]);
        let places = grid(picture).map(|[row, column]| [0.0, row, column, 0.0]);
        rotary_tables(&text.chain(places).collect::<Vec<_>>(), self.config.axes(), 2000.0)
    }
}

/// A number for each picture as waves, then two layers.
fn embedded(net: &mut NetBuilder, t: Value, width: usize) -> Result<Value, GraphError> {
    let waves = net.graph.timestep_embedding(t, 256)?;
    let silu = Epilogue::new().activation(Unary::Silu).dtype(DType::F32);
    let h = net.projected("linear_1", waves, width, silu)?;
    net.projected("linear_2", h, width, Epilogue::new().dtype(DType::F32))
}

/// Text and picture with weights of their own, which see each other in one attention.
fn double_block(
    net: &mut NetBuilder,
    config: &Flux2Config,
    [text, x]: [Value; 2],
    [of_text, of_x]: [[Value; 6]; 2],
    rotation: Rotation,
) -> Result<[Value; 2], GraphError> {
    let texts = net.graph.ty(text).shape[1];
    let tokens = net.graph.ty(x).shape[1];
    let (width, heads) = (config.width, config.heads());
    let h = net.modulated_norm(x, of_x[1], of_x[0])?;
    let t = net.modulated_norm(text, of_text[1], of_text[0])?;
    let mut attn = net.at("attn");
    let mut project = |name: &str, norm: Option<&str>, x: Value| {
        let y = attn.project(name, x, width)?;
        norm.map_or(Ok(y), |norm| attn.head_norm(norm, y, heads, EPS))
    };
    let q = [project("add_q_proj", Some("norm_added_q"), t)?, project("to_q", Some("norm_q"), h)?];
    let k = [project("add_k_proj", Some("norm_added_k"), t)?, project("to_k", Some("norm_k"), h)?];
    let v = [project("add_v_proj", None, t)?, project("to_v", None, h)?];
    let [q, k, v] = [attn.graph.concat(1, &q)?, attn.graph.concat(1, &k)?, attn.graph.concat(1, &v)?];
    let [q, k] = [attn.rotated(q, heads, rotation)?, attn.rotated(k, heads, rotation)?];
    let a = attn.graph.attention(q, k, v, heads, false)?; // (batch, text tokens + tokens, width)
    let seen = attn.graph.slice(a, 1, texts, tokens)?;
    let h = attn.projected("to_out.0", seen, width, Epilogue::new().dtype(DType::F32))?;
    let seen = attn.graph.slice(a, 1, 0, texts)?;
    let t = attn.projected("to_add_out", seen, width, Epilogue::new().dtype(DType::F32))?;

    let mut rest = |x: Value, y: Value, by: [Value; 6], name: &str| {
        let x = net.gated(x, y, by[2])?;
        let h = net.modulated_norm(x, by[4], by[3])?;
        let h = net.at(name).gated_product(
            ["linear_in.gate", "linear_in.up", "linear_out"],
            h,
            config.inner,
            Unary::Silu,
        )?;
        net.gated(x, h, by[5])
    };
    Ok([rest(text, t, of_text, "ff_context")?, rest(x, h, of_x, "ff")?])
}

/// Attention and feed-forward layer side by side.
fn single_block(
    net: &mut NetBuilder,
    config: &Flux2Config,
    x: Value,
    [shift, scale, gate]: [Value; 3],
    rotation: Rotation,
) -> Result<Value, GraphError> {
    let (width, inner, heads, activations) = (config.width, config.inner, config.heads(), net.numbers.activations);
    let h = net.modulated_norm(x, scale, shift)?;
    let mut attn = net.at("attn");
    let silu = Epilogue::new().activation(Unary::Silu).dtype(activations);
    let gated = attn.projected("mlp_gate", h, inner, silu)?;
    let up = attn.projected("mlp_up", h, inner, Epilogue::new().dtype(activations))?;
    let inside = attn.graph.binary(Binary::Mul, gated, up)?;
    let q = attn.project("to_q", h, width)?;
    let k = attn.project("to_k", h, width)?;
    let v = attn.project("to_v", h, width)?;
    let [q, k] = [attn.head_norm("norm_q", q, heads, EPS)?, attn.head_norm("norm_k", k, heads, EPS)?];
    let [q, k] = [attn.rotated(q, heads, rotation)?, attn.rotated(k, heads, rotation)?];
    let a = attn.graph.attention(q, k, v, heads, false)?;
    let both = attn.graph.concat(2, &[a, inside])?; // (batch, tokens, width + inner)
    let h = attn.projected("to_out", both, width, Epilogue::new().dtype(DType::F32))?;
    net.gated(x, h, gate)
}

/// Finds transformers of this kind.
pub static FLUX2: Recogniser =
    Recogniser { kind: NetworkKind::Denoiser, prefixes: &["model.diffusion_model.", "diffusion_model.", ""], find };

impl fmt::Display for Flux2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Flux2Config { double_blocks, single_blocks, width, .. } = &self.config;
        write!(f, "FLUX.2 transformer, {double_blocks} + {single_blocks} blocks of width {width}")
    }
}

impl Network for Flux2 {
    fn kind(&self) -> NetworkKind {
        NetworkKind::Denoiser
    }

    fn graphs(&self) -> Result<Vec<Graph>, GraphError> {
        Ok(vec![self.graph(1, [1, 1], ElementTypes::F32)?])
    }

    fn stored(&self, name: &str, _: &dyn Fn(&str) -> bool) -> TensorRef {
        let joined = joined(name, &self.config);
        match self.layout {
            CheckpointLayout::Diffusers => joined,
            CheckpointLayout::Original => original_flux2(joined),
        }
    }

    fn spellings(&self, name: &str) -> Vec<TensorRef> {
        let joined = joined(name, &self.config);
        vec![joined.clone(), original_flux2(joined)]
    }
}

fn find(tensors: &PrefixedTensors) -> Result<Option<Arc<dyn Network>>, TensorProblem> {
    let layout = if tensors.any("double_stream_modulation_img.lin.") {
        CheckpointLayout::Original
    } else if tensors.any("double_stream_modulation_img.linear.") {
        CheckpointLayout::Diffusers
    } else {
        return Ok(None);
    };
    let need = |diffusers: &str, original: &str, axis: usize| match layout {
        CheckpointLayout::Diffusers => tensors.need(diffusers, axis),
        CheckpointLayout::Original => tensors.need(original, axis),
    };
    let count = |diffusers: &str, original: &str| match layout {
        CheckpointLayout::Diffusers => tensors.count(diffusers),
        CheckpointLayout::Original => tensors.count(original),
    };
    let config = Flux2Config {
        channels: need("x_embedder.weight", "img_in.weight", 1)?,
        width: need("x_embedder.weight", "img_in.weight", 0)?,
        head: need("transformer_blocks.0.attn.norm_q.weight", "double_blocks.0.img_attn.norm.query_norm.scale", 0)?,
        inner: need("transformer_blocks.0.ff.linear_out.weight", "double_blocks.0.img_mlp.2.weight", 1)?,
        double_blocks: count("transformer_blocks.", "double_blocks."),
        single_blocks: count("single_transformer_blocks.", "single_blocks."),
        text: need("context_embedder.weight", "txt_in.weight", 1)?,
        guidance: tensors.any("guidance_in.") || tensors.any("time_guidance_embed.guidance_embedder."),
    };
    let fits = config.width.is_multiple_of(config.head) && config.head.is_multiple_of(8);
    Ok(fits.then(|| Arc::new(Flux2 { config, layout }) as Arc<dyn Network>))
}

/// A parameter in a diffusers folder, where most that reads the same is joined.
fn joined(name: &str, config: &Flux2Config) -> TensorRef {
    if let Some((i, rest)) = numbered(name, "single_transformer_blocks.") {
        let (width, inner) = (config.width, config.inner);
        let parts = [
            ("attn.to_q.", 0),
            ("attn.to_k.", width),
            ("attn.to_v.", 2 * width),
            ("attn.mlp_gate.", 3 * width),
            ("attn.mlp_up.", 3 * width + inner),
        ];
        for (ours, first) in parts {
            if let Some(rest) = rest.strip_prefix(ours) {
                let name = format!("single_transformer_blocks.{i}.attn.to_qkv_mlp_proj.{rest}");
                return TensorRef { name, take: TensorView::RowsFrom(first, 3 * width + 2 * inner) };
            }
        }
    }
    for (part, ours) in [".linear_in.gate.", ".linear_in.up."].into_iter().enumerate() {
        if name.contains(ours) {
            return TensorRef { name: name.replace(ours, ".linear_in."), take: TensorView::Rows(part, 2) };
        }
    }
    TensorRef::whole(name.into())
}

/// The same in the files of its authors, of ComfyUI and of GGUF.
fn original_flux2(TensorRef { name, take }: TensorRef) -> TensorRef {
    if let Some((i, rest)) = numbered(&name, "transformer_blocks.") {
        let qkv = [
            ("attn.to_q.", "img_attn.qkv.", 0),
            ("attn.to_k.", "img_attn.qkv.", 1),
            ("attn.to_v.", "img_attn.qkv.", 2),
            ("attn.add_q_proj.", "txt_attn.qkv.", 0),
            ("attn.add_k_proj.", "txt_attn.qkv.", 1),
            ("attn.add_v_proj.", "txt_attn.qkv.", 2),
        ];
        for (ours, theirs, part) in qkv {
            if let Some(rest) = rest.strip_prefix(ours) {
                return TensorRef {
                    name: format!("double_blocks.{i}.{theirs}{rest}"),
                    take: TensorView::Rows(part, 3),
                };
            }
        }
        let renamed = [
            ("attn.norm_q.weight", "img_attn.norm.query_norm.scale"),
            ("attn.norm_k.weight", "img_attn.norm.key_norm.scale"),
            ("attn.norm_added_q.weight", "txt_attn.norm.query_norm.scale"),
            ("attn.norm_added_k.weight", "txt_attn.norm.key_norm.scale"),
            ("attn.to_out.0.", "img_attn.proj."),
            ("attn.to_add_out.", "txt_attn.proj."),
            ("ff.linear_in.", "img_mlp.0."),
            ("ff.linear_out.", "img_mlp.2."),
            ("ff_context.linear_in.", "txt_mlp.0."),
            ("ff_context.linear_out.", "txt_mlp.2."),
        ];
        let rest = replace_start(rest, &renamed).unwrap_or_else(|| rest.into());
        return TensorRef { name: format!("double_blocks.{i}.{rest}"), take };
    }
    if let Some((i, rest)) = numbered(&name, "single_transformer_blocks.") {
        let renamed = [
            ("attn.to_qkv_mlp_proj.", "linear1."),
            ("attn.to_out.", "linear2."),
            ("attn.norm_q.weight", "norm.query_norm.scale"),
            ("attn.norm_k.weight", "norm.key_norm.scale"),
        ];
        let rest = replace_start(rest, &renamed).unwrap_or_else(|| rest.into());
        return TensorRef { name: format!("single_blocks.{i}.{rest}"), take };
    }
    let renamed = [
        ("x_embedder.", "img_in."),
        ("context_embedder.", "txt_in."),
        ("time_guidance_embed.timestep_embedder.linear_1.", "time_in.in_layer."),
        ("time_guidance_embed.timestep_embedder.linear_2.", "time_in.out_layer."),
        ("time_guidance_embed.guidance_embedder.linear_1.", "guidance_in.in_layer."),
        ("time_guidance_embed.guidance_embedder.linear_2.", "guidance_in.out_layer."),
        ("double_stream_modulation_img.linear.", "double_stream_modulation_img.lin."),
        ("double_stream_modulation_txt.linear.", "double_stream_modulation_txt.lin."),
        ("single_stream_modulation.linear.", "single_stream_modulation.lin."),
        ("norm_out.linear.", "final_layer.adaLN_modulation.1."),
        ("proj_out.", "final_layer.linear."),
    ];
    TensorRef { name: replace_start(&name, &renamed).unwrap_or(name), take }
}
