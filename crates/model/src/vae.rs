//! The variational autoencoder of Stable Diffusion: pictures to latents and back.

use impasto_graph::{DType, Epilogue, Graph, GraphError, Unary, Value, Window};

use crate::layers::{Net, Numbers};

/// What distinguishes one autoencoder from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VaeConfig {
    /// Channels of a latent.
    pub latent: usize,
    /// Channels at each resolution, full resolution first.
    pub channels: Vec<usize>,
    /// Residual blocks at each resolution of the encoder; the decoder has one more.
    pub resnets: usize,
    /// There are 1x1 convolutions beside the latent.
    pub quant_conv: bool,
}

impl VaeConfig {
    /// Stable Diffusion 1, 2 and XL.
    pub fn sd() -> Self {
        VaeConfig { latent: 4, channels: vec![128, 256, 512, 512], resnets: 2, quant_conv: true }
    }

    /// Pixels of a picture for one of a latent, along a side.
    pub fn factor(&self) -> usize {
        1 << (self.channels.len() - 1)
    }
}

const EPS: f32 = 1e-6;

/// The decoder for latents of `[height, width]`.
///
/// Input: `latent (batch, height, width, latent)`. Output: `picture (batch, f height, f width, 3)`, from -1 to 1.
pub fn vae_decoder(
    config: &VaeConfig,
    batch: usize,
    [height, width]: [usize; 2],
    numbers: Numbers,
) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let latent = graph.input("latent", [batch, height, width, config.latent], DType::F32)?;
    let mut net = Net::new(&mut graph, numbers);
    let mut h = latent;
    if config.quant_conv {
        h = net.conv("post_quant_conv", h, config.latent, 1, Window::pad(0), Epilogue::new())?;
    }
    let mut net = net.at("decoder");
    let levels = config.channels.len();
    h = net.conv3("conv_in", h, config.channels[levels - 1], Epilogue::new())?;
    h = middle(&mut net.at("mid_block"), h)?;
    for level in (0..levels).rev() {
        let mut block = net.at(&format!("up_blocks.{}", levels - 1 - level));
        let n = config.channels[level];
        for i in 0..=config.resnets {
            h = block.at(&format!("resnets.{i}")).resnet(h, n, None, EPS)?;
        }
        if level > 0 {
            h = block.conv("upsamplers.0.conv", h, n, 3, Window::pad(1).upsample(2), Epilogue::new())?;
        }
    }
    let h = net.group_norm("conv_norm_out", h, EPS, Some(Unary::Silu))?;
    let picture = net.conv3("conv_out", h, 3, Epilogue::new().dtype(DType::F32))?;
    graph.output("picture", picture)?;
    Ok(graph)
}

/// The encoder for pictures of `[height, width]`.
///
/// Input: `picture (batch, height, width, 3)`, from -1 to 1. Output: `moments (batch, height/f, width/f, 2 latent)`, the
/// means and the logarithms of the variances.
pub fn vae_encoder(
    config: &VaeConfig,
    batch: usize,
    [height, width]: [usize; 2],
    numbers: Numbers,
) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let picture = graph.input("picture", [batch, height, width, 3], DType::F32)?;
    let mut whole = Net::new(&mut graph, numbers);
    let mut net = whole.at("encoder");
    let levels = config.channels.len();
    let mut h = net.conv3("conv_in", picture, config.channels[0], Epilogue::new())?;
    for (level, &n) in config.channels.iter().enumerate() {
        let mut block = net.at(&format!("down_blocks.{level}"));
        for i in 0..config.resnets {
            h = block.at(&format!("resnets.{i}")).resnet(h, n, None, EPS)?;
        }
        if level + 1 < levels {
            // The picture is padded below and to the right only.
            let window = Window::pad(0).padding([0, 0, 1, 1]).stride(2);
            h = block.conv("downsamplers.0.conv", h, n, 3, window, Epilogue::new())?;
        }
    }
    h = middle(&mut net.at("mid_block"), h)?;
    let h = net.group_norm("conv_norm_out", h, EPS, Some(Unary::Silu))?;
    let mut h = net.conv3("conv_out", h, 2 * config.latent, Epilogue::new().dtype(DType::F32))?;
    if config.quant_conv {
        h = whole.conv("quant_conv", h, 2 * config.latent, 1, Window::pad(0), Epilogue::new())?;
    }
    graph.output("moments", h)?;
    Ok(graph)
}

/// Two residual blocks around one attention over all pixels.
fn middle(net: &mut Net, x: Value) -> Result<Value, GraphError> {
    let [batch, height, width, c] = net.graph.ty(x).shape[..] else { unreachable!("x is an image") };
    let x = net.at("resnets.0").resnet(x, c, None, EPS)?;
    let mut attn = net.at("attentions.0");
    let h = attn.group_norm("group_norm", x, EPS, None)?;
    let h = attn.graph.reshape(h, [batch, height * width, c])?; // pixels are tokens
    let q = attn.linear("to_q", h, c, Epilogue::new())?;
    let k = attn.linear("to_k", h, c, Epilogue::new())?;
    let v = attn.linear("to_v", h, c, Epilogue::new())?;
    let a = attn.graph.attention(q, k, v, 1, false)?;
    let tokens = attn.graph.reshape(x, [batch, height * width, c])?;
    let h = attn.linear("to_out.0", a, c, Epilogue::new().residual(tokens))?;
    let x = attn.graph.reshape(h, [batch, height, width, c])?;
    net.at("resnets.1").resnet(x, c, None, EPS)
}
