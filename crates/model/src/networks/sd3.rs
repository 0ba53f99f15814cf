//! The transformer of Stable Diffusion 3 and 3.5: text and picture with weights of their own in every block.

use std::fmt;
use std::sync::Arc;

use impasto_graph::{DType, Epilogue, Graph, GraphError, HostTensor, Unary, Value, Window};
use impasto_weights::TensorView;

use super::flux::LastNorm;
use super::{MAX_SIZE, Network, NetworkKind, PrefixedTensors, Recogniser, TensorProblem};
use crate::blocks::dit::EPS;
use crate::blocks::{ElementTypes, NetBuilder};
use crate::layout::{CheckpointLayout, TensorRef, numbered, replace_start};

/// What distinguishes one transformer of this kind from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sd3Config {
    /// Channels of a latent.
    pub channels: usize,
    /// Width of a token inside.
    pub width: usize,
    /// Width of a head.
    pub head: usize,
    /// Width inside the feed-forward layers.
    pub inner: usize,
    /// Blocks.
    pub blocks: usize,
    /// The first of them that also look at the picture alone.
    pub dual_blocks: usize,
    /// Heads are normed before they meet.
    pub head_norms: bool,
    /// Tokens along a side of the largest picture that has places.
    pub side: usize,
    /// Width of a token of the text.
    pub text: usize,
    /// Width of the pooled text.
    pub pooled: usize,
}

impl Sd3Config {
    /// Stable Diffusion 3.5 Large.
    pub fn large() -> Self {
        Sd3Config {
            channels: 16,
            width: 2432,
            head: 64,
            inner: 9728,
            blocks: 38,
            dual_blocks: 0,
            head_norms: true,
            side: 192,
            text: 4096,
            pooled: 2048,
        }
    }

    fn heads(&self) -> usize {
        self.width / self.head
    }
}

/// The transformer in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sd3 {
    /// Its sizes.
    pub config: Sd3Config,
    /// How the file names its tensors.
    pub layout: CheckpointLayout,
}

impl Sd3 {
    /// The graph for a latent of `[height, width]` and a text of so many tokens.
    ///
    /// Inputs: `latent (batch, height, width, channels)`, `text (batch, tokens, text)`, `pooled (batch, pooled)`, `time (batch)` from 0 to 1000, `places
    /// (height/2 width/2)`. Output: `velocity (batch, height/2 width/2, 4 channels)`, channels last in each token.
    pub fn graph(
        &self,
        batch: usize,
        [height, width]: [usize; 2],
        texts: usize,
        numbers: ElementTypes,
    ) -> Result<Graph, GraphError> {
        let c = &self.config;
        let tokens = height / 2 * (width / 2);
        let mut graph = Graph::new();
        let mut given = |name, shape: &[usize]| graph.input(name, shape, DType::F32);
        let latent = given("latent", &[batch, height, width, c.channels])?;
        let text = given("text", &[batch, texts, c.text])?;
        let pooled = given("pooled", &[batch, c.pooled])?;
        let time = given("time", &[batch])?;
        let places = graph.input("places", [tokens], DType::I32)?;
        let mut net = NetBuilder::new(&mut graph, numbers);

        let mut embed = net.at("time_text_embed");
        let condition = embed.number_embedding("timestep_embedder", time, c.width)?;
        let pooled = embed.vector_embedding("text_embedder", pooled, c.width)?;
        let condition = embed.graph.add(condition, pooled)?;
        let condition = net.graph.unary(Unary::Silu, condition)?; // (batch, width)

        let mut embed = net.at("pos_embed");
        let wide = || Epilogue::new().dtype(DType::F32);
        let x = embed.conv("proj", latent, c.width, 2, Window::pad(0).stride(2), wide())?;
        let x = embed.graph.reshape(x, [batch, tokens, c.width])?;
        let table = embed.param("pos_embed", &[c.side * c.side, c.width])?;
        let places = embed.graph.embedding(table, places)?; // (tokens, width)
        let mut x = embed.graph.add(x, places)?;
        let mut text = net.linear("context_embedder", text, c.width, wide())?;
        for i in 0..c.blocks {
            let mut block = net.at(&format!("transformer_blocks.{i}"));
            let (next, rest) = self.block(&mut block, i, [text, x], condition)?;
            x = next;
            text = rest.unwrap_or(text);
        }
        let factors = net.linear("norm_out.linear", condition, 2 * c.width, wide())?;
        let x = LastNorm::of(self.layout).apply(&mut net, factors, x)?;
        let velocity = net.linear("proj_out", x, 4 * c.channels, wide())?;
        graph.output("velocity", velocity)?;
        Ok(graph)
    }

    /// `places` for a picture of `[rows, columns]` tokens: the middle of the largest.
    pub fn places(&self, [rows, columns]: [usize; 2]) -> Result<HostTensor, GraphError> {
        let side = self.config.side;
        let (top, left) = (side.saturating_sub(rows) / 2, side.saturating_sub(columns) / 2);
        let place = |i: usize| ((top + i / columns) * side + left + i % columns) as i32;
        HostTensor::i32([rows * columns], (0..rows * columns).map(place).collect())
    }

    /// A block: the picture, and the text where a block follows.
    fn block(
        &self,
        net: &mut NetBuilder,
        index: usize,
        [text, x]: [Value; 2],
        condition: Value,
    ) -> Result<(Value, Option<Value>), GraphError> {
        let c = &self.config;
        let texts = net.graph.ty(text).shape[1];
        let tokens = net.graph.ty(x).shape[1];
        let (width, heads) = (c.width, c.heads());
        let (last, dual) = (index + 1 == c.blocks, index < c.dual_blocks);
        let (by, twice) = match dual {
            false => (net.modulation::<6>("norm1.linear", condition, width)?, None),
            true => {
                let [a, b, c, d, e, f, shift, scale, gate] = net.modulation::<9>("norm1.linear", condition, width)?;
                ([a, b, c, d, e, f], Some([shift, scale, gate]))
            }
        };
        let h = net.modulated_norm(x, by[1], by[0])?;
        let (t, of_text) = match last {
            true => {
                let wide = Epilogue::new().dtype(DType::F32);
                let factors = net.linear("norm1_context.linear", condition, 2 * width, wide)?;
                (LastNorm::of(self.layout).apply(net, factors, text)?, None)
            }
            false => {
                let by = net.modulation::<6>("norm1_context.linear", condition, width)?;
                (net.modulated_norm(text, by[1], by[0])?, Some(by))
            }
        };
        let mut attn = net.at("attn");
        let q = [
            self.heads_of(&mut attn, "to_q", "norm_q", h)?,
            self.heads_of(&mut attn, "add_q_proj", "norm_added_q", t)?,
        ];
        let k = [
            self.heads_of(&mut attn, "to_k", "norm_k", h)?,
            self.heads_of(&mut attn, "add_k_proj", "norm_added_k", t)?,
        ];
        let v =
            [attn.linear("to_v", h, width, Epilogue::new())?, attn.linear("add_v_proj", t, width, Epilogue::new())?];
        let [q, k, v] = [attn.graph.concat(1, &q)?, attn.graph.concat(1, &k)?, attn.graph.concat(1, &v)?];
        let a = attn.graph.attention(q, k, v, heads, false)?; // (batch, tokens + text tokens, width)
        let wide = || Epilogue::new().dtype(DType::F32);
        let seen = attn.graph.slice(a, 1, 0, tokens)?;
        let of_x = attn.linear("to_out.0", seen, width, wide())?;
        let of_text = match of_text {
            None => None,
            Some(by) => {
                let seen = attn.graph.slice(a, 1, tokens, texts)?;
                Some((attn.linear("to_add_out", seen, width, wide())?, by))
            }
        };
        let alone = match twice {
            None => None,
            Some([shift, scale, gate]) => {
                let h = net.modulated_norm(x, scale, shift)?;
                let mut attn = net.at("attn2");
                let q = self.heads_of(&mut attn, "to_q", "norm_q", h)?;
                let k = self.heads_of(&mut attn, "to_k", "norm_k", h)?;
                let v = attn.linear("to_v", h, width, Epilogue::new())?;
                let a = attn.graph.attention(q, k, v, heads, false)?;
                Some((attn.linear("to_out.0", a, width, wide())?, gate))
            }
        };
        let mut x = net.gated(x, of_x, by[2])?;
        if let Some((seen, gate)) = alone {
            x = net.gated(x, seen, gate)?;
        }
        let mut rest = |x: Value, by: [Value; 6], name: &str| {
            let h = net.modulated_norm(x, by[4], by[3])?;
            let h = net.gelu_mlp(name, h, c.inner)?;
            net.gated(x, h, by[5])
        };
        let x = rest(x, by, "ff")?;
        let text = match of_text {
            None => None,
            Some((seen, by)) => {
                let text = net.gated(text, seen, by[2])?;
                let h = net.modulated_norm(text, by[4], by[3])?;
                let h = net.gelu_mlp("ff_context", h, c.inner)?;
                Some(net.gated(text, h, by[5])?)
            }
        };
        Ok((x, text))
    }

    /// Queries or keys, normed where the model does that.
    fn heads_of(&self, attn: &mut NetBuilder, name: &str, norm: &str, x: Value) -> Result<Value, GraphError> {
        let y = attn.linear(name, x, self.config.width, Epilogue::new())?;
        match self.config.head_norms {
            true => attn.head_norm(norm, y, self.config.heads(), EPS),
            false => Ok(y),
        }
    }
}

/// Finds transformers of this kind.
pub static SD3: Recogniser =
    Recogniser { kind: NetworkKind::Denoiser, prefixes: &["model.diffusion_model.", "diffusion_model.", ""], find };

impl fmt::Display for Sd3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sd3Config { blocks, width, .. } = &self.config;
        write!(f, "Stable Diffusion 3 transformer, {blocks} blocks of width {width}")
    }
}

impl Network for Sd3 {
    fn kind(&self) -> NetworkKind {
        NetworkKind::Denoiser
    }

    fn graphs(&self) -> Result<Vec<Graph>, GraphError> {
        Ok(vec![self.graph(1, [2, 2], 1, ElementTypes::F32)?])
    }

    fn stored(&self, name: &str, _: &dyn Fn(&str) -> bool) -> TensorRef {
        match self.layout {
            CheckpointLayout::Diffusers => TensorRef::whole(name.into()),
            CheckpointLayout::Original => original_sd3(name),
        }
    }

    fn spellings(&self, name: &str) -> Vec<TensorRef> {
        vec![TensorRef::whole(name.into()), original_sd3(name)]
    }
}

fn find(tensors: &PrefixedTensors) -> Result<Option<Arc<dyn Network>>, TensorProblem> {
    let layout = if tensors.any("joint_blocks.") && tensors.any("x_embedder.proj.") {
        CheckpointLayout::Original
    } else if tensors.any("pos_embed.proj.") && tensors.any("transformer_blocks.0.attn.add_q_proj.") {
        CheckpointLayout::Diffusers
    } else {
        return Ok(None);
    };
    let stored = |name: &str| match layout {
        CheckpointLayout::Diffusers => name.to_string(),
        CheckpointLayout::Original => original_sd3(name).name,
    };
    let need = |name: &str, axis: usize| tensors.need(&stored(name), axis);
    let places = tensors.need_shape(&stored("pos_embed.pos_embed"))?;
    let places = places.iter().rev().nth(1).copied().unwrap_or(0).min(MAX_SIZE);
    let blocks = tensors.count(match layout {
        CheckpointLayout::Diffusers => "transformer_blocks.",
        CheckpointLayout::Original => "joint_blocks.",
    });
    let dual = |i: &usize| tensors.has(&stored(&format!("transformer_blocks.{i}.attn2.to_out.0.weight")));
    let width = need("pos_embed.proj.weight", 0)?;
    let norm = tensors.size(&stored("transformer_blocks.0.attn.norm_q.weight"), 0);
    let config = Sd3Config {
        channels: need("pos_embed.proj.weight", 1)?,
        width,
        // Without norms nothing tells it; all models of this kind have the same.
        head: norm.unwrap_or(64),
        inner: need("transformer_blocks.0.ff.net.0.proj.weight", 0)?,
        blocks,
        dual_blocks: (0..blocks).take_while(dual).count(),
        head_norms: norm.is_some(),
        side: places.isqrt(),
        text: need("context_embedder.weight", 1)?,
        pooled: need("time_text_embed.text_embedder.linear_1.weight", 1)?,
    };
    let fits = config.width.is_multiple_of(config.head) && config.side * config.side == places && places > 0;
    Ok(fits.then(|| Arc::new(Sd3 { config, layout }) as Arc<dyn Network>))
}

/// A parameter in the files of its authors, of ComfyUI and of GGUF, where what reads the same is joined.
fn original_sd3(name: &str) -> TensorRef {
    if let Some((i, rest)) = numbered(name, "transformer_blocks.") {
        let qkv = [
            ("attn.to_q.", "x_block.attn.qkv.", 0),
            ("attn.to_k.", "x_block.attn.qkv.", 1),
            ("attn.to_v.", "x_block.attn.qkv.", 2),
            ("attn.add_q_proj.", "context_block.attn.qkv.", 0),
            ("attn.add_k_proj.", "context_block.attn.qkv.", 1),
            ("attn.add_v_proj.", "context_block.attn.qkv.", 2),
            ("attn2.to_q.", "x_block.attn2.qkv.", 0),
            ("attn2.to_k.", "x_block.attn2.qkv.", 1),
            ("attn2.to_v.", "x_block.attn2.qkv.", 2),
        ];
        for (ours, theirs, part) in qkv {
            if let Some(rest) = rest.strip_prefix(ours) {
                return TensorRef { name: format!("joint_blocks.{i}.{theirs}{rest}"), take: TensorView::Rows(part, 3) };
            }
        }
        let renamed = [
            ("norm1.linear.", "x_block.adaLN_modulation.1."),
            ("norm1_context.linear.", "context_block.adaLN_modulation.1."),
            ("attn.norm_q.", "x_block.attn.ln_q."),
            ("attn.norm_k.", "x_block.attn.ln_k."),
            ("attn.norm_added_q.", "context_block.attn.ln_q."),
            ("attn.norm_added_k.", "context_block.attn.ln_k."),
            ("attn.to_out.0.", "x_block.attn.proj."),
            ("attn.to_add_out.", "context_block.attn.proj."),
            ("attn2.norm_q.", "x_block.attn2.ln_q."),
            ("attn2.norm_k.", "x_block.attn2.ln_k."),
            ("attn2.to_out.0.", "x_block.attn2.proj."),
            ("ff.net.0.proj.", "x_block.mlp.fc1."),
            ("ff.net.2.", "x_block.mlp.fc2."),
            ("ff_context.net.0.proj.", "context_block.mlp.fc1."),
            ("ff_context.net.2.", "context_block.mlp.fc2."),
        ];
        let rest = replace_start(rest, &renamed).unwrap_or_else(|| rest.into());
        return TensorRef::whole(format!("joint_blocks.{i}.{rest}"));
    }
    let renamed = [
        ("pos_embed.proj.", "x_embedder.proj."),
        ("pos_embed.pos_embed", "pos_embed"),
        ("time_text_embed.timestep_embedder.linear_1.", "t_embedder.mlp.0."),
        ("time_text_embed.timestep_embedder.linear_2.", "t_embedder.mlp.2."),
        ("time_text_embed.text_embedder.linear_1.", "y_embedder.mlp.0."),
        ("time_text_embed.text_embedder.linear_2.", "y_embedder.mlp.2."),
        ("norm_out.linear.", "final_layer.adaLN_modulation.1."),
        ("proj_out.", "final_layer.linear."),
    ];
    TensorRef::whole(replace_start(name, &renamed).unwrap_or_else(|| name.into()))
}
