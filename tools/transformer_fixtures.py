"""Make the outputs that the transformers of crates/model must reproduce, with diffusers in float32.

usage: transformer_fixtures.py [OUT]     (default crates/model/tests/fixtures/transformers.safetensors)

Weights and inputs are not stored: both sides fill each tensor from its name (parity_fixtures.py). Where diffusers joins what reads the same, the parts
have names of their own. Needs torch, diffusers, numpy and safetensors.
"""
import sys

import numpy as np
import torch
from diffusers import (AutoencoderKLFlux2, AutoencoderKLQwenImage, Flux2Transformer2DModel, FluxTransformer2DModel, QwenImageTransformer2DModel,
                       SD3Transformer2DModel, ZImageTransformer2DModel)
from safetensors.numpy import save_file

from parity_fixtures import given, image, last, numbers, parameter

FLUX = dict(in_channels=64, num_layers=2, num_single_layers=2, attention_head_dim=32, num_attention_heads=2, joint_attention_dim=48,
            pooled_projection_dim=24, axes_dims_rope=(4, 14, 14))
FLUX2 = dict(in_channels=128, num_layers=2, num_single_layers=2, attention_head_dim=32, num_attention_heads=2, joint_attention_dim=48,
             axes_dims_rope=(8, 8, 8, 8), guidance_embeds=False)
Z_IMAGE = dict(in_channels=16, dim=96, n_layers=2, n_refiner_layers=2, n_heads=3, n_kv_heads=3, cap_feat_dim=48, axes_dims=[8, 12, 12],
               axes_lens=[1024, 512, 512])
SD3 = dict(sample_size=16, in_channels=16, num_layers=3, attention_head_dim=32, num_attention_heads=2, joint_attention_dim=48, caption_projection_dim=64,
           pooled_projection_dim=24, pos_embed_max_size=12)
QWEN = dict(in_channels=64, num_layers=2, attention_head_dim=32, num_attention_heads=2, joint_attention_dim=48, axes_dims_rope=(4, 14, 14))


def tensor(name, shape):
    """A parameter under the names that our graphs have: joined tensors from their parts, tables without their first dimension."""
    if name.endswith("attn.to_qkv_mlp_proj.weight"):
        rows, width = shape[0], shape[1]
        inner = (rows - 3 * width) // 2
        parts = [("to_q", width), ("to_k", width), ("to_v", width), ("mlp_gate", inner), ("mlp_up", inner)]
        return np.concatenate([parameter(name.replace("to_qkv_mlp_proj", part), (n, width)) for part, n in parts])
    if ".to_qkv." in name:
        own = (shape[0] // 3, *shape[1:])
        return np.concatenate([parameter(name.replace("to_qkv", part), own) for part in ("to_q", "to_k", "to_v")])
    if name.endswith(".linear_in.weight"):
        halves = [parameter(name.replace("linear_in", f"linear_in.{half}"), (shape[0] // 2, shape[1])) for half in ("gate", "up")]
        return np.concatenate(halves)
    if name.endswith("pos_embed.pos_embed"):
        return parameter(name, shape[1:])[None]
    if len(shape) == 5:  # Of a picture, only the last tap in time is seen.
        whole = numbers(name + " before", shape).astype(np.float32)
        whole[:, :, -1] = parameter(name, shape[:2] + shape[3:])
        return whole
    if name.endswith(".gamma"):
        return (1 + 0.1 * numbers(name, shape)).astype(np.float32)
    if name.endswith("bn.running_mean"):
        return (0.5 * numbers(name, shape)).astype(np.float32)
    if name.endswith("bn.running_var"):
        return (1.5 + numbers(name, shape)).astype(np.float32)
    return parameter(name, shape)


def fill(model):
    state = {k: torch.from_numpy(tensor(k, tuple(v.shape))) if v.dtype.is_floating_point else v for k, v in model.state_dict().items()}
    model.load_state_dict(state)
    return model.eval()


def ids(rows, columns, axes=3):
    out = torch.zeros(rows, columns, axes)
    out[..., 1] += torch.arange(rows)[:, None]
    out[..., 2] += torch.arange(columns)[None, :]
    return out.reshape(rows * columns, axes)


def flux(results):
    for name, guided in [("flux", True), ("schnell", False)]:
        model = fill(FluxTransformer2DModel(**FLUX, guidance_embeds=guided))
        out = model(hidden_states=given(f"{name}.tokens", (2, 15, 64)), encoder_hidden_states=given(f"{name}.text", (2, 7, 48)),
                    pooled_projections=given(f"{name}.pooled", (2, 24)), timestep=torch.tensor([0.9, 0.25]),
                    guidance=torch.tensor([3.5, 2.0]) if guided else None, img_ids=ids(3, 5), txt_ids=torch.zeros(7, 3))
        results[f"{name}.velocity"] = out.sample


def flux2(results):
    model = fill(Flux2Transformer2DModel(**FLUX2))
    text_ids = torch.zeros(7, 4)
    text_ids[:, 3] = torch.arange(7)
    out = model(hidden_states=given("flux2.tokens", (2, 15, 128)), encoder_hidden_states=given("flux2.text", (2, 7, 48)),
                timestep=torch.tensor([0.9, 0.25]), guidance=None, img_ids=ids(3, 5, 4), txt_ids=text_ids)
    results["flux2.velocity"] = out.sample
    kl = dict(block_out_channels=(32, 64, 64, 64), down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
              latent_channels=32, layers_per_block=1, norm_num_groups=32)
    vae = fill(AutoencoderKLFlux2(**kl))
    results["vae32.picture"] = last(vae.decode(image("vae32.latent", (1, 4, 6, 32))).sample)
    results["vae32.moments"] = last(vae.encode(image("vae32.input", (1, 32, 48, 3))).latent_dist.parameters)


def z_image(results):
    model = fill(ZImageTransformer2DModel(**Z_IMAGE))
    # Two texts of two lengths; three rows of five tokens.
    latents = [given(f"z.latent{i}", (16, 1, 6, 10)) for i in range(2)]
    texts = [given("z.text0", (37, 48)), given("z.text1", (5, 48))]
    out = model(latents, torch.tensor([0.1, 0.75]), texts).sample
    results |= {f"z.velocity{i}": out[i] for i in range(2)}


def sd3(results):
    for name, config in [("sd3", dict()), ("sd35", dict(qk_norm="rms_norm")), ("sd35m", dict(qk_norm="rms_norm", dual_attention_layers=(0, 1)))]:
        model = fill(SD3Transformer2DModel(**SD3, **config))
        out = model(hidden_states=image(f"{name}.latent", (2, 6, 10, 16)), encoder_hidden_states=given(f"{name}.text", (2, 7, 48)),
                    pooled_projections=given(f"{name}.pooled", (2, 24)), timestep=torch.tensor([900.0, 250.0]))
        results[f"{name}.velocity"] = out.sample


def qwen(results):
    model = fill(QwenImageTransformer2DModel(**QWEN))
    for name, (rows, columns), texts in [("qwen0", (3, 5), 9), ("qwen1", (4, 2), 6)]:
        out = model(hidden_states=given(f"{name}.tokens", (1, rows * columns, 64)), encoder_hidden_states=given(f"{name}.text", (1, texts, 48)),
                    encoder_hidden_states_mask=torch.ones(1, texts, dtype=torch.bool), timestep=torch.tensor([0.9]), img_shapes=[[(1, rows, columns)]])
        results[f"{name}.velocity"] = out.sample
    vae = fill(AutoencoderKLQwenImage(base_dim=32, z_dim=16, num_res_blocks=1))
    results["vaeq.picture"] = last(vae.decode(image("vaeq.latent", (1, 4, 6, 16))[:, :, None]).sample[:, :, 0])
    results["vaeq.moments"] = last(vae.encode(image("vaeq.input", (1, 32, 48, 3))[:, :, None]).latent_dist.parameters[:, :, 0])


@torch.no_grad()
def main(out):
    torch.use_deterministic_algorithms(True)
    results = {}
    for make in (flux, flux2, z_image, sd3, qwen):
        make(results)
    results = {k: np.ascontiguousarray(v, dtype=np.float32) for k, v in results.items()}
    save_file(results, out)
    for name, value in results.items():
        print(name, value.shape, "rms %.3f" % np.sqrt((value.astype(np.float64) ** 2).mean()))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "crates/model/tests/fixtures/transformers.safetensors")
