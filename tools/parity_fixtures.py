"""Make the outputs that the networks of crates/model must reproduce, with diffusers and
transformers in float32.

usage: parity_fixtures.py [OUT]     (default crates/model/tests/fixtures/networks.safetensors)

Weights and inputs are not stored: both sides fill each tensor from a counter-based generator keyed by its name, so the
fixture holds outputs only. Needs torch, diffusers, transformers, numpy and safetensors.
"""
import sys

import numpy as np
import torch
from diffusers import AutoencoderKL, AutoencoderTiny, UNet2DConditionModel
from safetensors.numpy import save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection


def numbers(name, shape):
    """Numbers from -1 to 1: the hash of the name, then splitmix64 of a counter, the upper 24 bits of each."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 & (1 << 64) - 1
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + (np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return ((z >> np.uint64(40)).astype(np.float64) / (1 << 23) - 1).reshape(shape)


def parameter(name, shape):
    """Norms near one, biases near zero, weights so large that activations keep their size."""
    u = numbers(name, shape)
    if len(shape) == 1:
        return (1 + 0.1 * u if name.endswith("weight") else 0.1 * u).astype(np.float32)
    return (u * np.sqrt(3 / np.prod(shape[1:]))).astype(np.float32)


def fill(model):
    state = {k: torch.from_numpy(parameter(k, tuple(v.shape))) for k, v in model.state_dict().items()}
    model.load_state_dict(state)
    return model.eval()


def given(name, shape, scale=1.0):
    return torch.from_numpy((scale * numbers(name, shape)).astype(np.float32))


def image(name, shape):
    """An input that is (batch, height, width, channels) on our side and channels first here."""
    return given(name, shape).permute(0, 3, 1, 2).contiguous()


def last(x):
    return x.permute(0, 2, 3, 1).contiguous().numpy()


VAE = dict(block_out_channels=(32, 64, 64, 64), down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
           latent_channels=4, layers_per_block=2, norm_num_groups=32)
SD1 = dict(block_out_channels=(64, 128, 128, 128), cross_attention_dim=64, attention_head_dim=8)
# Linear projections, and heads by level: the last level has more than width 64 would give.
SD2 = dict(block_out_channels=(64, 128, 128, 128), cross_attention_dim=96, attention_head_dim=(1, 2, 4, 4), use_linear_projection=True)
XL = dict(block_out_channels=(64, 128, 128), down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
          up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), transformer_layers_per_block=(1, 1, 2),
          attention_head_dim=(1, 2, 2), cross_attention_dim=128, use_linear_projection=True, addition_embed_type="text_time",
          addition_time_embed_dim=32, projection_class_embeddings_input_dim=64 + 6 * 32)


CLIP = dict(vocab_size=49408, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
            max_position_embeddings=77, projection_dim=48, eos_token_id=49407)


def token_ids():
    ids = torch.full((2, 77), 49407)
    ids[:, 0] = 49406
    ids[0, 1:6] = torch.tensor([320, 736, 1212, 11, 49405])
    ids[1, 1:76] = torch.arange(75) * 613 % 49406
    return ids


def text_encoder(results, name, activation):
    """All that pipelines ask of a text encoder: the last state with its norm, the one before without, the pooled text."""
    model = fill(CLIPTextModelWithProjection(CLIPTextConfig(hidden_act=activation, **CLIP)))
    out = model(token_ids(), output_hidden_states=True)
    results |= {f"{name}.last": out.last_hidden_state, f"{name}.before": out.hidden_states[-2], f"{name}.pooled": out.text_embeds}


class PooledBlock(torch.nn.Module):
    """A block of TAEF2 at the resolution of latents, which diffusers does not have: a group norm between two 1x1 convolutions is added to its input."""

    def __init__(self, block, width):
        super().__init__()
        self.conv, self.skip, self.fuse = block.conv, block.skip, block.fuse
        one = lambda a, b: torch.nn.Conv2d(a, b, 1, bias=False)
        self.pool = torch.nn.Sequential(one(width, 4 * width), torch.nn.GroupNorm(4, 4 * width), torch.nn.ReLU(), one(4 * width, width))

    def forward(self, x):
        x = x + self.pool(x)
        return self.fuse(self.conv(x) + self.skip(x))


def taef2(results):
    tiny = AutoencoderTiny(latent_channels=32)
    decoder, encoder = tiny.decoder.layers, tiny.encoder.layers
    for layers, blocks in ((decoder, (2, 3, 4)), (encoder, range(len(encoder) - 4, len(encoder) - 1))):
        for i in blocks:
            layers[i] = PooledBlock(layers[i], 64)
    fill(tiny)
    results["taef2.picture"] = last(tiny.decode(4 * image("taef2.latent", (1, 3, 5, 32))).sample)
    results["taef2.latent"] = last(tiny.encode(image("taef2.input", (1, 24, 40, 3))).latents)


@torch.no_grad()
def main(out):
    torch.use_deterministic_algorithms(True)
    results = {}
    # Sizes that are not square, and not all multiples of 16.
    unet = fill(UNet2DConditionModel(sample_size=16, **SD1))
    time = torch.tensor([981.0, 7.0])
    noise = unet(image("sd1.latent", (2, 16, 24, 4)), time, given("sd1.context", (2, 77, 64))).sample
    results["sd1.noise"] = last(noise)

    unet = fill(UNet2DConditionModel(sample_size=16, in_channels=9, **SD1))
    noise = unet(image("inpaint.latent", (1, 8, 8, 9)), torch.tensor([500.0]), given("inpaint.context", (1, 77, 64))).sample
    results["inpaint.noise"] = last(noise)

    unet = fill(UNet2DConditionModel(sample_size=16, **XL))
    sizes = torch.tensor([[1024.0, 768.0, 0.0, 16.0, 1024.0, 768.0]] * 2)
    added = {"text_embeds": given("xl.pooled", (2, 64)), "time_ids": sizes}
    noise = unet(image("xl.latent", (2, 12, 20, 4)), time, given("xl.context", (2, 154, 128)), added_cond_kwargs=added).sample
    results["xl.noise"] = last(noise)
    embedded = unet.add_time_proj(sizes.flatten()).reshape(2, -1)
    results["xl.added"] = torch.cat([added["text_embeds"], embedded], 1).numpy()

    text_encoder(results, "clip", "quick_gelu")
    text_encoder(results, "open_clip", "gelu")

    # Stable Diffusion 2 conditions on the layer before the last, behind the final norm. Its diffusers folders do without the last layer.
    whole = fill(CLIPTextModel(CLIPTextConfig(hidden_act="gelu", **CLIP)))
    short = fill(CLIPTextModel(CLIPTextConfig(hidden_act="gelu", **{**CLIP, "num_hidden_layers": CLIP["num_hidden_layers"] - 1})))
    states = whole(token_ids(), output_hidden_states=True).hidden_states
    results["sd2.text"] = short(token_ids()).last_hidden_state
    assert torch.allclose(results["sd2.text"], whole.text_model.final_layer_norm(states[-2]), atol=1e-5)
    unet = fill(UNet2DConditionModel(sample_size=16, **SD2))
    noise = unet(image("sd2.latent", (2, 8, 16, 4)), time, given("sd2.context", (2, 77, 96))).sample
    results["sd2.noise"] = last(noise)

    vae = fill(AutoencoderKL(**VAE))
    results["vae.picture"] = last(vae.decode(image("vae.latent", (1, 6, 9, 4))).sample)
    results["vae.moments"] = last(vae.encode(image("vae.input", (1, 48, 72, 3))).latent_dist.parameters)
    # Sixteen channels without convolutions beside the latent.
    vae = fill(AutoencoderKL(**{**VAE, "latent_channels": 16}, use_quant_conv=False, use_post_quant_conv=False))
    results["vae16.picture"] = last(vae.decode(image("vae16.latent", (1, 4, 5, 16))).sample)
    results["vae16.moments"] = last(vae.encode(image("vae16.input", (1, 32, 40, 3))).latent_dist.parameters)

    tiny = fill(AutoencoderTiny())
    # Far out, so that the clamp of latents is seen.
    results["taesd.picture"] = last(tiny.decode(4 * image("taesd.latent", (1, 5, 7, 4))).sample)
    results["taesd.latent"] = last(tiny.encode(image("taesd.input", (1, 40, 56, 3))).latents)
    taef2(results)
    save_file({k: np.ascontiguousarray(v, dtype=np.float32) for k, v in results.items()}, out)
    for name, value in results.items():
        print(name, tuple(value.shape), "rms %.3f" % np.sqrt((np.asarray(value, dtype=np.float64) ** 2).mean()))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "crates/model/tests/fixtures/networks.safetensors")
