"""The three networks, in the structure and with the tensor names of Stable Diffusion 1's original checkpoints.

state_dict() of each, with its prefix (see export.py), is the exported file: there is no renaming anywhere. Widths are small,
everything else is Stable Diffusion 1: group norms of 32 groups, 8 heads in every attention of the UNet, heads of 64 in the
text encoder, GEGLU, quick GELU, a causal text encoder. Pictures are (batch, 3, 256, 256) in -1..1, latents (batch, 4, 32, 32).
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

LATENT_SCALE = 0.18215

# Chosen so that all three, rounded to f16 and compressed, stay below 16,000,000 bytes.
VAE_WIDTHS = (32, 32, 64, 96)
UNET_WIDTHS = (64, 128, 64)
UNET_ATTENTION = (False, True, True)
TEXT_WIDTH, TEXT_LAYERS = 128, 5
HEADS = 8


class GroupNorm(nn.GroupNorm):
    """In the image's own precision: autocast would widen every image to float32 and back, which costs more than the norm.
    The sums inside are float32 in any case."""

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            return F.group_norm(x, self.num_groups, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


class LayerNorm(nn.LayerNorm):
    """As above."""

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


def norm(channels, eps=1e-5):
    return GroupNorm(32, channels, eps=eps)


def conv(cin, cout, size=3, stride=1):
    return nn.Conv2d(cin, cout, size, stride, size // 2)


def attend(q, k, v, heads, causal=False):
    """q (batch, n, width), k and v (batch, m, width) -> (batch, n, width)."""
    q, k, v = (t.unflatten(2, (heads, -1)).transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)


# The autoencoder: `first_stage_model.`

def spike(x, most):
    """How far the largest value that a norm gets, in deviations of its group, is beyond `most`: 0 at `most`, 1 at twice as much.

    A decoder may learn to draw one enormous value somewhere, which makes all others small after the norm: that is how it steers their
    strength past a norm that would take it away. In the picture such values are drops in rainbow colours. Training makes
    them dear (train.vae_losses). x (batch, channels, h, w)."""
    x = x.float()
    group = lambda t: t.unflatten(1, (32, -1))
    mean, square = group(x.mean((2, 3))).mean(-1, keepdim=True), group((x * x).mean((2, 3))).mean(-1, keepdim=True)
    deviation = (square - mean * mean).clamp(min=1e-6).sqrt()
    # By `max`, whose gradient goes to one place: that of `amax` is shared by all places that are equal to it, and where a compiler has rounded
    # one of the two otherwise, no place is, and the share is a division by zero.
    flat = x.flatten(2)
    far = torch.maximum(group(flat.max(2).values) - mean, mean - group(flat.min(2).values)) / deviation
    return F.relu(far / most - 1).mean()


class VaeBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.norm1, self.conv1 = norm(cin, 1e-6), conv(cin, cout)
        self.norm2, self.conv2 = norm(cout, 1e-6), conv(cout, cout)
        if cin != cout:
            self.nin_shortcut = conv(cin, cout, 1)

    def forward(self, x, spikes=None, most=0.0):
        h = self.conv1(F.silu(self.norm1(x)))
        if spikes is not None:
            spikes += [spike(x, most), spike(h, most)]
        h = self.conv2(F.silu(self.norm2(h)))
        return h + (self.nin_shortcut(x) if hasattr(self, "nin_shortcut") else x)


class VaeAttention(nn.Module):
    """One head over all places of the smallest image."""

    def __init__(self, channels):
        super().__init__()
        self.norm = norm(channels, 1e-6)
        self.q, self.k, self.v, self.proj_out = (conv(channels, channels, 1) for _ in range(4))

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (f(h).flatten(2).transpose(1, 2) for f in (self.q, self.k, self.v))
        return x + self.proj_out(attend(q, k, v, 1).transpose(1, 2).reshape(x.shape))


class VaeMiddle(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.block_1, self.attn_1, self.block_2 = VaeBlock(channels, channels), VaeAttention(channels), VaeBlock(channels, channels)

    def forward(self, x):
        return self.block_2(self.attn_1(self.block_1(x)))


class VaeDown(nn.Module):
    """Halves the image, with padding at the right and below only."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, 2, 0)

    def forward(self, x):
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Up(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = conv(channels, channels)

    def forward(self, x):
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Encoder(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.conv_in = conv(3, widths[0])
        self.down = nn.ModuleList()
        for i, w in enumerate(widths):
            level = nn.Module()
            level.block = nn.ModuleList([VaeBlock(widths[max(i - 1, 0)], w), VaeBlock(w, w)])
            if i < len(widths) - 1:
                level.downsample = VaeDown(w)
            self.down.append(level)
        self.mid = VaeMiddle(widths[-1])
        self.norm_out, self.conv_out = norm(widths[-1], 1e-6), conv(widths[-1], 8)

    def forward(self, x):
        x = self.conv_in(x)
        for level in self.down:
            for block in level.block:
                x = block(x)
            if hasattr(level, "downsample"):
                x = level.downsample(x)
        return self.conv_out(F.silu(self.norm_out(self.mid(x))))


class Decoder(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.conv_in = conv(4, widths[-1])
        self.mid = VaeMiddle(widths[-1])
        self.up = nn.ModuleList()
        for i, w in enumerate(widths):  # up.0 is the largest image and comes last
            level = nn.Module()
            level.block = nn.ModuleList([VaeBlock(widths[min(i + 1, len(widths) - 1)], w), VaeBlock(w, w), VaeBlock(w, w)])
            if i > 0:
                level.upsample = Up(w)
            self.up.append(level)
        self.norm_out, self.conv_out = norm(widths[0], 1e-6), conv(widths[0], 3)

    # What norms may get in the levels from the smallest image on, in deviations. Encoders without any drops stay within that. The largest
    # image is not watched: drops begin in the small ones, and to look there as well would cost a tenth of the time.
    MOST = (10.0, 12.0, 16.0)

    def forward(self, z, spikes=None):
        """With a list for `spikes`, also how large the norms' inputs are (see spike)."""
        x = self.mid(self.conv_in(z))
        for i, level in enumerate(reversed(self.up)):
            for block in level.block:
                x = block(x, spikes, self.MOST[i]) if i < len(self.MOST) else block(x)
            if hasattr(level, "upsample"):
                x = level.upsample(x)
        return self.conv_out(F.silu(self.norm_out(x)))


class Autoencoder(nn.Module):
    def __init__(self, widths=VAE_WIDTHS):
        super().__init__()
        self.encoder, self.decoder = Encoder(widths), Decoder(widths)
        self.quant_conv, self.post_quant_conv = conv(8, 8, 1), conv(4, 4, 1)
        # Begin with little noise in the latents: with much of it, a channel is given up before it is of use.
        nn.init.constant_(self.quant_conv.bias[4:], -6.0)

    def encode(self, pictures):
        """Mean and log variance of the latents, each (batch, 4, h / 8, w / 8)."""
        mean, logvar = self.quant_conv(self.encoder(pictures)).float().chunk(2, 1)
        return mean, logvar.clamp(-30, 20)

    def decode(self, latents, spikes=None):
        return self.decoder(self.post_quant_conv(latents), spikes)

    def forward(self, pictures):
        """As in training: the pictures again, mean and log variance of the latents, and how large the decoder's spikes are."""
        mean, logvar = self.encode(pictures)
        spikes = []
        made = self.decode(mean + torch.exp(0.5 * logvar) * torch.randn_like(mean), spikes)
        return made, mean, logvar, torch.stack(spikes).mean()

    @torch.no_grad()
    def normalise(self, mean, std):
        """Change the latents so that, times LATENT_SCALE, each channel has mean 0 and deviation 1; pictures stay the same.
        mean, std (4,): statistics of the latents as they are now."""
        s = std * LATENT_SCALE
        self.quant_conv.weight[:4] /= s[:, None, None, None]
        self.quant_conv.bias[:4] = (self.quant_conv.bias[:4] - mean) / s
        self.quant_conv.bias[4:] -= 2 * s.log()
        self.post_quant_conv.bias += self.post_quant_conv.weight[:, :, 0, 0] @ mean
        self.post_quant_conv.weight *= s[None, :, None, None]


# The text encoder: `cond_stage_model.transformer.`

class TextAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))
        self.heads = width // 64

    def forward(self, x):
        return self.out_proj(attend(self.q_proj(x), self.k_proj(x), self.v_proj(x), self.heads, causal=True))


class TextMlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = self.fc1(x)
        return self.fc2(x * torch.sigmoid(1.702 * x))  # quick GELU


class TextLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer_norm1, self.self_attn = LayerNorm(width), TextAttention(width)
        self.layer_norm2, self.mlp = LayerNorm(width), TextMlp(width)

    def forward(self, x):
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class TextEmbeddings(nn.Module):
    def __init__(self, rows, width):
        super().__init__()
        self.token_embedding, self.position_embedding = nn.Embedding(rows, width, padding_idx=0), nn.Embedding(77, width)
        nn.init.normal_(self.token_embedding.weight, std=0.05)
        nn.init.normal_(self.position_embedding.weight, std=0.02)
        nn.init.zeros_(self.token_embedding.weight[0])  # unknown words; as padding it gets no gradient

    def forward(self, ids):
        return self.token_embedding(ids) + self.position_embedding.weight


class TextEncoder(nn.Module):
    """`rows` is the compact vocabulary (tokens.py) while training, 49,408 in the exported file."""

    def __init__(self, rows, width=TEXT_WIDTH, layers=TEXT_LAYERS):
        super().__init__()
        self.text_model = model = nn.Module()
        model.embeddings = TextEmbeddings(rows, width)
        model.encoder = nn.Module()
        model.encoder.layers = nn.ModuleList(TextLayer(width) for _ in range(layers))
        model.final_layer_norm = LayerNorm(width)

    def forward(self, ids):
        """ids (batch, 77) -> (batch, 77, width)."""
        x = self.text_model.embeddings(ids)
        for layer in self.text_model.encoder.layers:
            x = layer(x)
        return self.text_model.final_layer_norm(x)


# The UNet: `model.diffusion_model.`

class ResBlock(nn.Module):
    def __init__(self, cin, cout, time):
        super().__init__()
        self.in_layers = nn.Sequential(norm(cin), nn.SiLU(), conv(cin, cout))
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(time, cout))
        self.out_layers = nn.Sequential(norm(cout), nn.SiLU(), nn.Identity(), conv(cout, cout))  # 2 is a dropout of 0
        self.skip_connection = conv(cin, cout, 1) if cin != cout else nn.Identity()
        nn.init.zeros_(self.out_layers[3].weight)
        nn.init.zeros_(self.out_layers[3].bias)

    def forward(self, x, time, text):
        h = self.in_layers(x) + self.emb_layers(time)[:, :, None, None]
        return self.skip_connection(x) + self.out_layers(h)


class CrossAttention(nn.Module):
    def __init__(self, width, context):
        super().__init__()
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k, self.to_v = nn.Linear(context, width, bias=False), nn.Linear(context, width, bias=False)
        self.to_out = nn.Sequential(nn.Linear(width, width), nn.Identity())

    def forward(self, x, context):
        return self.to_out(attend(self.to_q(x), self.to_k(context), self.to_v(context), HEADS))


class Geglu(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.proj = nn.Linear(width, 8 * width)

    def forward(self, x):
        x, gate = self.proj(x).chunk(2, -1)
        return x * F.gelu(gate)


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(Geglu(width), nn.Identity(), nn.Linear(4 * width, width))

    def forward(self, x):
        return self.net(x)


class TransformerBlock(nn.Module):
    def __init__(self, width, context):
        super().__init__()
        self.attn1, self.attn2, self.ff = CrossAttention(width, width), CrossAttention(width, context), FeedForward(width)
        self.norm1, self.norm2, self.norm3 = (LayerNorm(width) for _ in range(3))

    def forward(self, x, text):
        h = self.norm1(x)
        x = x + self.attn1(h, h)
        x = x + self.attn2(self.norm2(x), text)
        return x + self.ff(self.norm3(x))


class SpatialTransformer(nn.Module):
    def __init__(self, channels, context):
        super().__init__()
        self.norm, self.proj_in = norm(channels, 1e-6), conv(channels, channels, 1)
        self.transformer_blocks = nn.ModuleList([TransformerBlock(channels, context)])
        self.proj_out = conv(channels, channels, 1)
        nn.init.zeros_(self.proj_out.weight)
        nn.init.zeros_(self.proj_out.bias)

    def forward(self, x, time, text):
        h = self.proj_in(self.norm(x)).flatten(2).transpose(1, 2)  # (batch, places, channels)
        h = self.transformer_blocks[0](h, text).transpose(1, 2).reshape(x.shape)
        return x + self.proj_out(h)


class Down(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.op = conv(channels, channels, stride=2)

    def forward(self, x, time, text):
        return self.op(x)


class UNetUp(Up):
    def forward(self, x, time, text):
        return super().forward(x)


class First(nn.Conv2d):
    def forward(self, x, time, text):
        return super().forward(x)


class Block(nn.Sequential):
    """Parts that all take the image, the time and the text."""

    def forward(self, x, time, text):
        for part in self:
            x = part(x, time, text)
        return x


def time_waves(t, width):
    """Sines and cosines of a step, (batch,) -> (batch, width), cosines first."""
    rates = torch.exp(-math.log(10000) * torch.arange(width // 2, device=t.device) / (width // 2))
    angles = t.float()[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], 1)


class UNet(nn.Module):
    def __init__(self, widths=UNET_WIDTHS, attention=UNET_ATTENTION, context=TEXT_WIDTH):
        super().__init__()
        time = 4 * widths[0]
        self.width = widths[0]
        self.time_embed = nn.Sequential(nn.Linear(widths[0], time), nn.SiLU(), nn.Linear(time, time))
        here = lambda i, w: [SpatialTransformer(w, context)] if attention[i] else []
        self.input_blocks = nn.ModuleList([Block(First(4, widths[0], 3, 1, 1))])
        kept, x = [widths[0]], widths[0]
        for i, w in enumerate(widths):
            for _ in range(2):
                self.input_blocks.append(Block(ResBlock(x, w, time), *here(i, w)))
                kept.append(x := w)
            if i < len(widths) - 1:
                self.input_blocks.append(Block(Down(w)))
                kept.append(w)
        self.middle_block = Block(ResBlock(x, x, time), SpatialTransformer(x, context), ResBlock(x, x, time))
        self.output_blocks = nn.ModuleList()
        for i, w in reversed(list(enumerate(widths))):
            for j in range(3):
                up = [UNetUp(w)] if j == 2 and i > 0 else []
                self.output_blocks.append(Block(ResBlock(x + kept.pop(), w, time), *here(i, w), *up))
                x = w
        self.out = nn.Sequential(norm(x), nn.SiLU(), conv(x, 4))
        nn.init.zeros_(self.out[2].weight)
        nn.init.zeros_(self.out[2].bias)

    def forward(self, x, t, text):
        """x (batch, 4, h, w), t (batch,), text (batch, 77, context) -> the noise in x."""
        time = self.time_embed(time_waves(t, self.width))
        kept = []
        for block in self.input_blocks:
            kept.append(x := block(x, time, text))
        x = self.middle_block(x, time, text)
        for block in self.output_blocks:
            x = block(torch.cat([x, kept.pop()], 1), time, text)
        return self.out(x)


def alphas_bar(device=None):
    """Stable Diffusion 1's schedule, (1000,): what is left of the picture's variance at each step."""
    betas = torch.linspace(0.00085 ** 0.5, 0.012 ** 0.5, 1000, dtype=torch.float64) ** 2
    return torch.cumprod(1 - betas, 0).float().to(device)


def count(module):
    return sum(p.numel() for p in module.parameters())
