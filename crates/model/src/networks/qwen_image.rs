//! The transformer of Qwen-Image: text and picture with weights of their own in every block.

use std::fmt;
use std::sync::Arc;

use impasto_graph::{DType, Epilogue, Graph, GraphError, HostTensor, Scores, Unary, Value};

use super::flux::LastNorm;
use super::{Network, NetworkKind, PrefixedTensors, Recogniser, TensorProblem};
use crate::blocks::dit::{EPS, Rotation, rotary_tables};
use crate::blocks::{ElementTypes, NetBuilder};
use crate::layout::TensorRef;

/// What distinguishes one transformer of this kind from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QwenImageConfig {
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
    /// Width of a token of the text.
    pub text: usize,
}

impl QwenImageConfig {
    /// Qwen-Image.
    pub fn published() -> Self {
        QwenImageConfig { channels: 64, width: 3072, head: 128, inner: 12_288, blocks: 60, text: 3584 }
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

/// The transformer in a file; all files have the same names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QwenImage {
    /// Its sizes.
    pub config: QwenImageConfig,
}

impl QwenImage {
    /// The graph for `[tokens of the picture, tokens of the text]`.
    ///
    /// Inputs: `tokens (batch, tokens, channels)`, `text (batch, text tokens, text)`, `time (batch)` from 0 to 1000, `hidden (batch, 1, 1, text
    /// tokens + tokens)`, 0 or where nobody should look negative infinity, `cos` and `sin (text tokens + tokens, head / 2)`. Output:
    /// `velocity (batch, tokens, channels)`.
    pub fn graph(&self, batch: usize, [tokens, texts]: [usize; 2], numbers: ElementTypes) -> Result<Graph, GraphError> {
        let c = &self.config;
        let mut graph = Graph::new();
        let mut given = |name, shape: &[usize]| graph.input(name, shape, DType::F32);
        let x = given("tokens", &[batch, tokens, c.channels])?;
        let text = given("text", &[batch, texts, c.text])?;
        let time = given("time", &[batch])?;
        let hidden = given("hidden", &[batch, 1, 1, texts + tokens])?;
        let mut net = NetBuilder::new(&mut graph, numbers);
        let rotation = net.rotation(texts + tokens, c.head)?;
        let condition = net.at("time_text_embed").number_embedding("timestep_embedder", time, c.width)?;
        let condition = net.graph.unary(Unary::Silu, condition)?; // (batch, width)

        let wide = || Epilogue::new().dtype(DType::F32);
        let mut x = net.linear("img_in", x, c.width, wide())?;
        let gamma = net.param("txt_norm.weight", &[c.text])?;
        let text = net.graph.rms_norm(text, gamma, EPS, numbers.activations)?;
        let mut text = net.linear("txt_in", text, c.width, wide())?;
        for i in 0..c.blocks {
            let mut block = net.at(&format!("transformer_blocks.{i}"));
            [text, x] = self.block(&mut block, [text, x], condition, rotation, hidden)?;
        }
        let factors = net.linear("norm_out.linear", condition, 2 * c.width, wide())?;
        let x = LastNorm::ScaleFirst.apply(&mut net, factors, x)?;
        let velocity = net.linear("proj_out", x, c.channels, wide())?;
        graph.output("velocity", velocity)?;
        Ok(graph)
    }

    /// `cos` and `sin` for a picture of `[rows, columns]` tokens, whose middle is the origin, after a text, which goes on along all axes from its corner.
    pub fn tables(&self, texts: usize, [rows, columns]: [usize; 2]) -> Result<[HostTensor; 2], GraphError> {
        let first = (rows / 2).max(columns / 2);
        let text = (first..first + texts).map(|n| [n as f32; 3]);
        // Of an odd side the larger half lies before the origin.
        let centred = |i: usize, n: usize| i as f32 - (n - n / 2) as f32;
        let place = |i: usize| [0.0, centred(i / columns, rows), centred(i % columns, columns)];
        let positions: Vec<[f32; 3]> = text.chain((0..rows * columns).map(place)).collect();
        rotary_tables(&positions, self.config.axes(), 10_000.0)
    }

    fn block(
        &self,
        net: &mut NetBuilder,
        [text, x]: [Value; 2],
        condition: Value,
        rotation: Rotation,
        hidden: Value,
    ) -> Result<[Value; 2], GraphError> {
        let c = &self.config;
        let texts = net.graph.ty(text).shape[1];
        let tokens = net.graph.ty(x).shape[1];
        let (width, heads) = (c.width, c.heads());
        let of_x = net.modulation::<6>("img_mod.1", condition, width)?;
        let of_text = net.modulation::<6>("txt_mod.1", condition, width)?;
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
        let scores = Scores { bias: Some(hidden), ..Scores::default() };
        let a = attn.graph.grouped_attention([q, k, v], [heads, heads], scores)?; // (batch, text tokens + tokens, width)
        let wide = || Epilogue::new().dtype(DType::F32);
        let seen = attn.graph.slice(a, 1, texts, tokens)?;
        let h = attn.linear("to_out.0", seen, width, wide())?;
        let seen = attn.graph.slice(a, 1, 0, texts)?;
        let t = attn.linear("to_add_out", seen, width, wide())?;
        let mut rest = |x: Value, y: Value, by: [Value; 6], name: &str| {
            let x = net.gated(x, y, by[2])?;
            let h = net.modulated_norm(x, by[4], by[3])?;
            let h = net.gelu_mlp(name, h, c.inner)?;
            net.gated(x, h, by[5])
        };
        Ok([rest(text, t, of_text, "txt_mlp")?, rest(x, h, of_x, "img_mlp")?])
    }
}

/// Finds transformers of this kind.
pub static QWEN_IMAGE: Recogniser =
    Recogniser { kind: NetworkKind::Denoiser, prefixes: &["model.diffusion_model.", "diffusion_model.", ""], find };

impl fmt::Display for QwenImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QwenImageConfig { blocks, width, .. } = &self.config;
        write!(f, "Qwen-Image transformer, {blocks} blocks of width {width}")
    }
}

impl Network for QwenImage {
    fn kind(&self) -> NetworkKind {
        NetworkKind::Denoiser
    }

    fn graphs(&self) -> Result<Vec<Graph>, GraphError> {
        Ok(vec![self.graph(1, [1, 1], ElementTypes::F32)?])
    }

    fn stored(&self, name: &str, _: &dyn Fn(&str) -> bool) -> TensorRef {
        TensorRef::whole(name.into())
    }
}

fn find(tensors: &PrefixedTensors) -> Result<Option<Arc<dyn Network>>, TensorProblem> {
    if !tensors.any("transformer_blocks.0.img_mod.1.") {
        return Ok(None);
    }
    let config = QwenImageConfig {
        channels: tensors.need("img_in.weight", 1)?,
        width: tensors.need("img_in.weight", 0)?,
        head: tensors.need("transformer_blocks.0.attn.norm_q.weight", 0)?,
        inner: tensors.need("transformer_blocks.0.img_mlp.net.0.proj.weight", 0)?,
        blocks: tensors.count("transformer_blocks."),
        text: tensors.need("txt_in.weight", 1)?,
    };
    let fits = config.width.is_multiple_of(config.head) && config.head.is_multiple_of(4);
    Ok(fits.then(|| Arc::new(QwenImage { config }) as Arc<dyn Network>))
}
