//! Language models as text encoders: Qwen3 (FLUX.2 klein, Z-Image), the language half of Qwen2.5-VL (Qwen-Image), Mistral (FLUX.2 dev). One decoder;
//! what distinguishes them is seen in their tensors.

use std::fmt;
use std::sync::Arc;

use impasto_graph::{DType, Epilogue, Graph, GraphError, HostTensor, Pairs, Scores, Unary, Value};

use super::t5::hidden_keys;
use super::{Network, NetworkKind, PrefixedTensors, Recogniser, TensorProblem};
use crate::blocks::dit::rotary_tables;
use crate::blocks::{ElementTypes, NetBuilder};
use crate::config::Config;
use crate::layout::{TensorRef, numbered, replace_start};
use crate::{Inputs, ModelError, NetworkInFile};

/// What distinguishes one model from another.
#[derive(Clone, Debug, PartialEq)]
pub struct LlmConfig {
    /// Rows of the token table.
    pub vocabulary: usize,
    /// Width of a token.
    pub width: usize,
    /// Transformer layers that the file has.
    pub layers: usize,
    /// Heads of queries, and of keys and values.
    pub heads: [usize; 2],
    /// Width of a head.
    pub head: usize,
    /// Width inside the feed-forward layers.
    pub inner: usize,
    /// Heads of queries and keys are normed (Qwen3).
    pub head_norms: bool,
    /// Queries, keys and values have biases (Qwen2).
    pub biases: bool,
    /// The base of the angles by which queries and keys are turned.
    pub theta: f64,
    /// How norms keep away from zero.
    pub eps: f32,
    /// The file has the norm after the last layer.
    pub final_norm: bool,
}

impl LlmConfig {
    /// Qwen3-4B.
    pub fn qwen3_4b() -> LlmConfig {
        LlmConfig {
            vocabulary: 151_936,
            width: 2560,
            layers: 36,
            heads: [32, 8],
            head: 128,
            inner: 9728,
            head_norms: true,
            biases: false,
            theta: 1e6,
            eps: 1e-6,
            final_norm: true,
        }
    }

    /// Qwen3-8B.
    pub fn qwen3_8b() -> LlmConfig {
        LlmConfig { width: 4096, inner: 12_288, ..Self::qwen3_4b() }
    }

    /// The language half of Qwen2.5-VL-7B.
    pub fn qwen25_vl_7b() -> LlmConfig {
        LlmConfig {
            vocabulary: 152_064,
            width: 3584,
            layers: 28,
            heads: [28, 4],
            inner: 18_944,
            head_norms: false,
            biases: true,
            ..Self::qwen3_4b()
        }
    }

    /// Mistral-Small-3.2-24B.
    pub fn mistral_small() -> LlmConfig {
        LlmConfig {
            vocabulary: 131_072,
            width: 5120,
            layers: 40,
            inner: 32_768,
            head_norms: false,
            theta: 1e9,
            eps: 1e-5,
            ..Self::qwen3_4b()
        }
    }

    /// Take in what `config.json` says, of the model itself or of its language half.
    pub(crate) fn apply(&mut self, json: &Config) -> Result<(), ModelError> {
        let text = json.part("text_config")?;
        let json = text.as_ref().unwrap_or(json);
        json.only(&[("hidden_act", "silu".into())])?;
        json.same_sizes("hidden_size", &[self.width])?;
        json.same_sizes("intermediate_size", &[self.inner])?;
        if let Some(heads) = json.count("num_attention_heads")? {
            self.set_heads(heads).map_err(|problem| json.wrong("num_attention_heads", problem))?;
        }
        let theta = match json.part("rope_parameters")? {
            Some(rope) => rope.number("rope_theta")?,
            None => json.number("rope_theta")?,
        };
        self.theta = theta.filter(|theta| *theta > 0.0).map_or(self.theta, f64::from);
        self.eps = json.number("rms_norm_eps")?.unwrap_or(self.eps);
        Ok(())
    }
}

impl LlmConfig {
    /// So many heads of queries, where the widths of queries and keys allow it.
    fn set_heads(&mut self, heads: usize) -> Result<(), String> {
        let all = self.heads.map(|n| n * self.head);
        let head = all[0].checked_div(heads).unwrap_or(0);
        if head == 0 || !all.iter().all(|n| n.is_multiple_of(head)) {
            return Err(format!("is {heads}, which the widths {} and {} do not allow", all[0], all[1]));
        }
        (self.head, self.heads) = (head, all.map(|n| n / head));
        Ok(())
    }

    /// Take in what the metadata of GGUF says.
    fn take_metadata(&mut self, pick: &NetworkInFile) -> Result<(), ModelError> {
        let Some(architecture) = pick.metadata("general.architecture") else { return Ok(()) };
        let field = |key: &str| format!("{architecture}.{key}");
        let number = |key: &str| pick.metadata(&field(key)).and_then(|text| text.parse::<f64>().ok());
        let positive = |key: &str| number(key).filter(|x| x.is_finite() && *x > 0.0);
        if let Some(heads) = positive("attention.head_count") {
            let wrong = |problem| ModelError::Setting {
                path: pick.path().into(),
                field: field("attention.head_count"),
                problem,
            };
            self.set_heads(heads as usize).map_err(wrong)?;
        }
        self.theta = positive("rope.freq_base").unwrap_or(self.theta);
        self.eps = positive("attention.layer_norm_rms_epsilon").map_or(self.eps, |eps| eps as f32);
        Ok(())
    }
}

/// How a model's tensors are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LlmLayout {
    /// As transformers does.
    Transformers,
    /// As llama.cpp does. Of Mistral (and other models of its architecture `llama`) it exchanges the rows of queries and keys, so that pairs are
    /// adjacent.
    Gguf,
}

/// Which states of a text are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LlmStates {
    /// After how many layers, in ascending order: these lie beside each other in the result. Layers after the last of them are not computed.
    pub after: Vec<usize>,
    /// The norm after the last layer is applied to it.
    pub norm: bool,
    /// What is behind the length of a text is hidden from all of it.
    pub masked: bool,
}

/// A language model in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Llm {
    /// Its sizes.
    pub config: LlmConfig,
    /// How the file names its tensors.
    pub layout: LlmLayout,
}

impl Llm {
    /// The language model that was found in a file, with what shapes cannot say.
    pub fn of(pick: &NetworkInFile) -> Result<Option<Llm>, ModelError> {
        let Some(mut llm) = pick.network::<Llm>() else { return Ok(None) };
        if llm.layout == LlmLayout::Gguf {
            llm.config.take_metadata(pick)?;
        }
        let kinds = ["qwen3", "qwen2", "qwen2_5_vl", "qwen3_vl", "mistral", "mistral3"];
        if let Some(json) = pick.source.config_of_kind(&kinds)? {
            llm.config.apply(json)?;
        }
        Ok(Some(llm))
    }

    /// The model for so many `[texts, tokens]`.
    ///
    /// Inputs: `ids (batch, tokens)`, `cos` and `sin (tokens, head / 2)`, and where padding is masked, `hidden_keys (batch, 1, 1, tokens)`. Output:
    /// `hidden (batch, tokens, states x width)`.
    pub fn graph(
        &self,
        [batch, tokens]: [usize; 2],
        states: &LlmStates,
        numbers: ElementTypes,
    ) -> Result<Graph, GraphError> {
        let LlmConfig { vocabulary, width, layers, head, eps, .. } = self.config;
        let mut graph = Graph::new();
        let ids = graph.input("ids", [batch, tokens], DType::I32)?;
        let mut net = NetBuilder::new(&mut graph, numbers);
        let rotation = net.rotation(tokens, head)?;
        let hidden_keys = match states.masked {
            true => Some(net.graph.input("hidden_keys", [batch, 1, 1, tokens], DType::F32)?),
            false => None,
        };
        let table = net.param("embed_tokens.weight", &[vocabulary, width])?;
        let words = net.graph.embedding(table, ids)?;
        let mut x = net.graph.cast(words, DType::F32)?; // (batch, tokens, width)
        let mut taken = vec![];
        let last = states.after.iter().copied().max().unwrap_or(layers).min(layers);
        for i in 0..=last {
            if states.after.contains(&i) {
                let normed = i == layers && states.norm;
                taken.push(match normed {
                    true => {
                        let gamma = net.param("norm.weight", &[width])?;
                        net.graph.rms_norm(x, gamma, eps, DType::F32)?
                    }
                    false => x,
                });
            }
            if i < last {
                x = self.layer(&mut net.at(&format!("layers.{i}")), x, [rotation.cos, rotation.sin], hidden_keys)?;
            }
        }
        let hidden = match taken[..] {
            [one] => one,
            _ => graph.concat(2, &taken)?,
        };
        graph.output("hidden", hidden)?;
        Ok(graph)
    }

    /// Causal attention, then feed-forward, each around a shortcut.
    fn layer(
        &self,
        net: &mut NetBuilder,
        x: Value,
        [cos, sin]: [Value; 2],
        bias: Option<Value>,
    ) -> Result<Value, GraphError> {
        let LlmConfig { width, heads: [heads, kv_heads], head, inner, head_norms, biases, eps, .. } = self.config;
        let h = net.rms_norm("input_layernorm", x, eps)?;
        let mut attention = net.at("self_attn");
        let mut side = |name: &str, n: usize| match biases {
            true => attention.linear(name, h, n, Epilogue::new()),
            false => attention.project(name, h, n),
        };
        let (mut q, mut k) = (side("q_proj", heads * head)?, side("k_proj", kv_heads * head)?);
        let v = side("v_proj", kv_heads * head)?;
        if head_norms {
            q = attention.head_norm("q_norm", q, heads, eps)?;
            k = attention.head_norm("k_norm", k, kv_heads, eps)?;
        }
        let q = attention.graph.rotary(q, cos, sin, heads, self.pairs())?;
        let k = attention.graph.rotary(k, cos, sin, kv_heads, self.pairs())?;
        let scores = Scores { scale: None, causal: true, bias };
        let a = attention.graph.grouped_attention([q, k, v], [heads, kv_heads], scores)?;
        let x = attention.projected("o_proj", a, width, Epilogue::new().residual(x))?;
        let h = net.rms_norm("post_attention_layernorm", x, eps)?;
        net.at("mlp").gated_feed_forward(["gate_proj", "up_proj", "down_proj"], h, inner, Unary::Silu, x)
    }

    /// How pairs lie in the heads of this file.
    fn pairs(&self) -> Pairs {
        let is_llama = !self.config.head_norms && !self.config.biases;
        match self.layout {
            LlmLayout::Gguf if is_llama => Pairs::Adjacent,
            _ => Pairs::Halves,
        }
    }

    /// The inputs of that graph for `ids (batch, tokens)`, of whose texts so many tokens are no padding.
    pub fn inputs(&self, ids: HostTensor, lengths: &[usize], states: &LlmStates) -> Result<Inputs, GraphError> {
        let tokens = ids.shape().get(1).copied().unwrap_or(0);
        let places: Vec<[f32; 1]> = (0..tokens).map(|at| [at as f32]).collect();
        let [cos, sin] = rotary_tables(&places, [self.config.head], self.config.theta)?;
        let mut inputs = vec![("ids", ids), ("cos", cos), ("sin", sin)];
        if states.masked {
            inputs.push(("hidden_keys", hidden_keys(lengths, tokens)?));
        }
        Ok(inputs)
    }
}

/// Finds language models.
pub static LLM: Recogniser = Recogniser {
    kind: NetworkKind::TextEncoder,
    prefixes: &[
        "text_encoders.qwen3_4b.transformer.model.",
        "text_encoders.qwen3_8b.transformer.model.",
        "text_encoders.qwen25_7b.transformer.model.",
        "text_encoders.mistral3_24b.transformer.model.",
        "text_encoders.llm.model.",
        "text_encoders.llm.",
        "text_encoder.model.language_model.",
        "text_encoder.model.",
        "model.language_model.",
        "language_model.model.",
        "language_model.",
        "model.",
        "",
    ],
    find,
};

impl fmt::Display for Llm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LlmConfig { width, layers, head_norms, biases, .. } = self.config;
        let kind = match (head_norms, biases) {
            (true, _) => "Qwen3",
            (false, true) => "Qwen2.5",
            (false, false) => "Mistral",
        };
        write!(f, "{kind} text encoder, width {width}, {layers} layers")
    }
}

impl Network for Llm {
    fn kind(&self) -> NetworkKind {
        NetworkKind::TextEncoder
    }

    fn graphs(&self) -> Result<Vec<Graph>, GraphError> {
        let LlmConfig { layers, final_norm, .. } = self.config;
        let all = LlmStates { after: vec![layers], norm: final_norm, masked: false };
        Ok(vec![self.graph([1, 1], &all, ElementTypes::F32)?])
    }

    fn stored(&self, name: &str, _: &dyn Fn(&str) -> bool) -> TensorRef {
        match self.layout {
            LlmLayout::Transformers => TensorRef::whole(name.into()),
            LlmLayout::Gguf => gguf(name),
        }
    }

    fn spellings(&self, name: &str) -> Vec<TensorRef> {
        vec![TensorRef::whole(name.into()), TensorRef::whole(format!("model.{name}")), gguf(name)]
    }
}

fn find(tensors: &PrefixedTensors) -> Result<Option<Arc<dyn Network>>, TensorProblem> {
    let (layout, layers) = if tensors.any("blk.0.attn_q.") {
        (LlmLayout::Gguf, "blk.")
    } else if tensors.any("layers.0.self_attn.q_proj.") {
        (LlmLayout::Transformers, "layers.")
    } else {
        return Ok(None);
    };
    let of = |name: &str| match layout {
        LlmLayout::Gguf => gguf(name).name,
        LlmLayout::Transformers => name.to_string(),
    };
    let table = of("embed_tokens.weight");
    let side = |name: &str| tensors.need(&of(&format!("layers.0.self_attn.{name}_proj.weight")), 0);
    let (queries, keys) = (side("q")?, side("k")?);
    let width = tensors.need(&table, 1)?;
    let head_norms = tensors.has(&of("layers.0.self_attn.q_norm.weight"));
    let biases = tensors.has(&of("layers.0.self_attn.q_proj.bias"));
    let head = match head_norms {
        true => tensors.need(&of("layers.0.self_attn.q_norm.weight"), 0)?,
        // Heads cannot be seen in shapes: those of all of these models are 128 wide.
        false => Some(128).filter(|head| [queries, keys].iter().all(|n| n.is_multiple_of(*head))).unwrap_or(keys),
    };
    let published = if head_norms || biases { LlmConfig::qwen3_4b() } else { LlmConfig::mistral_small() };
    let config = LlmConfig {
        vocabulary: tensors.need(&table, 0)?,
        width,
        layers: tensors.count(layers),
        heads: [queries, keys].map(|n| n / head),
        head,
        inner: tensors.need(&of("layers.0.mlp.gate_proj.weight"), 0)?,
        head_norms,
        biases,
        theta: published.theta,
        eps: published.eps,
        final_norm: tensors.has(&of("norm.weight")),
    };
    Ok(Some(Arc::new(Llm { config, layout })))
}

/// A parameter as llama.cpp names it.
fn gguf(name: &str) -> TensorRef {
    let pairs = [("embed_tokens.", "token_embd."), ("norm.", "output_norm.")];
    if let Some(renamed) = replace_start(name, &pairs) {
        return TensorRef::whole(renamed);
    }
    let Some((i, rest)) = numbered(name, "layers.") else { return TensorRef::whole(name.into()) };
    let pairs = [
        ("self_attn.q_proj.", "attn_q."),
        ("self_attn.k_proj.", "attn_k."),
        ("self_attn.v_proj.", "attn_v."),
        ("self_attn.o_proj.", "attn_output."),
        ("self_attn.q_norm.", "attn_q_norm."),
        ("self_attn.k_norm.", "attn_k_norm."),
        ("mlp.gate_proj.", "ffn_gate."),
        ("mlp.up_proj.", "ffn_up."),
        ("mlp.down_proj.", "ffn_down."),
        ("input_layernorm.", "attn_norm."),
        ("post_attention_layernorm.", "ffn_norm."),
    ];
    TensorRef::whole(format!("blk.{i}.{}", replace_start(rest, &pairs).unwrap_or_else(|| rest.into())))
}
