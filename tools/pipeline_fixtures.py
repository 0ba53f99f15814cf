"""Make the pictures that whole pipelines must reproduce, with diffusers in float32 on small models of the true structure.

usage: pipeline_fixtures.py [OUT]     (default crates/generate/tests/fixtures/pipelines.safetensors)

Weights are not stored: both sides fill each tensor from its component and name (parity_fixtures.py). Noise is torch's on a CPU.
The fixture holds pictures, bytes (height, width, 3). Needs torch, diffusers, transformers, open_clip, numpy and safetensors.
"""
import sys

import numpy as np
import torch
from diffusers import (AutoencoderKL, AutoencoderTiny, EulerDiscreteScheduler, StableDiffusionImg2ImgPipeline, StableDiffusionInpaintPipeline,
                       StableDiffusionPipeline, StableDiffusionXLPipeline, UNet2DConditionModel)
from PIL import Image
from safetensors.numpy import save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from parity_fixtures import numbers, parameter
from tokenizer_fixtures import tokenizers

SIZE = 128
STEPS = 6
PROMPT, NEGATIVE = "A red house under a yellow sun, by the sea!", "blurry, grey"
VAE = dict(block_out_channels=(32, 64, 64, 64), down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
           latent_channels=4, layers_per_block=1, norm_num_groups=32)
SD1 = dict(block_out_channels=(32, 64), down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
           layers_per_block=1, cross_attention_dim=64, attention_head_dim=8)
SD2 = dict(block_out_channels=(64, 128), down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
           layers_per_block=1, cross_attention_dim=64, attention_head_dim=(1, 2), use_linear_projection=True)
XL = dict(block_out_channels=(64, 128), down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
          layers_per_block=1, transformer_layers_per_block=(1, 2), attention_head_dim=(1, 2), cross_attention_dim=128, use_linear_projection=True,
          addition_embed_type="text_time", addition_time_embed_dim=32, projection_class_embeddings_input_dim=64 + 6 * 32)
TEXT = dict(vocab_size=49408, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=1, max_position_embeddings=77,
            projection_dim=64, eos_token_id=49407)


def fill(model, component):
    state = {k: torch.from_numpy(parameter(f"{component}/{k}", tuple(v.shape))) for k, v in model.state_dict().items()}
    if component == "taesd":  # without norms its numbers grow: keep pictures inside their range
        state["decoder.layers.18.weight"] *= 0.25
        state["decoder.layers.18.bias"] += 0.5
    model.load_state_dict(state)
    return model.eval()


def picture(name):
    """A picture with smooth parts and edges, from its name."""
    u = numbers(name, (SIZE // 16, SIZE // 16, 3))
    return Image.fromarray(np.kron(np.round(127.5 * (u + 1)), np.ones((16, 16, 1))).astype(np.uint8))


def mask():
    m = np.zeros((SIZE, SIZE), np.uint8)
    m[32:96, 40:128] = 255
    return Image.fromarray(m)


def main(out):
    torch.use_deterministic_algorithms(True)
    end, zero, _ = tokenizers()
    end.model_max_length = zero.model_max_length = 77
    euler = lambda **kw: EulerDiscreteScheduler(**{**dict(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear",
                                                          timestep_spacing="linspace", steps_offset=1), **kw})
    vae = fill(AutoencoderKL(**VAE), "vae")
    xl_vae = fill(AutoencoderKL(**VAE, scaling_factor=0.13025), "vae")
    clip = lambda component, **kw: fill(CLIPTextModel(CLIPTextConfig(**TEXT, **kw)), component)
    unet = lambda config, **kw: fill(UNet2DConditionModel(sample_size=16, **config, **kw), "unet")
    none = dict(safety_checker=None, feature_extractor=None, requires_safety_checker=False)
    sd1 = dict(vae=vae, text_encoder=clip("text_encoder"), tokenizer=end, scheduler=euler(), **none)
    results = {}

    def make(name, pipeline, **kw):
        pipeline.set_progress_bar_config(disable=True)
        made = pipeline(prompt=PROMPT, num_inference_steps=STEPS, guidance_scale=7.0, generator=torch.Generator("cpu").manual_seed(7),
                        output_type="np", **kw).images[0]
        # Near the ends of the range pictures would agree for free.
        inside = ((made > 0.001) & (made < 0.999)).mean()
        print(f"{name}: {made.shape}, {inside:.0%} of the numbers inside the range, deviation {made.std():.3f}")
        assert inside > 0.6 and made.std() > 0.1
        results[name] = np.ascontiguousarray(np.round(made * 255).astype(np.uint8))

    size = dict(height=SIZE, width=SIZE)
    base = StableDiffusionPipeline(unet=unet(SD1), **sd1)
    make("sd1", base, negative_prompt=NEGATIVE, **size)
    make("sd1_wide", base, height=SIZE // 2, width=SIZE)
    make("sd1_odd", base, height=72, width=104)  # latents of 9 x 13, which the UNet does not halve evenly
    for spacing in ("trailing", "leading"):
        make(f"sd1_{spacing}", StableDiffusionPipeline(unet=base.unet, **{**sd1, "scheduler": euler(timestep_spacing=spacing)}), height=64, width=64)
    make("sd1_tiny", StableDiffusionPipeline(unet=base.unet, **{**sd1, "vae": fill(AutoencoderTiny(), "taesd")}), height=SIZE // 2, width=SIZE)
    make("sd2_v", StableDiffusionPipeline(vae=vae, text_encoder=clip("text_encoder", hidden_act="gelu"), tokenizer=zero, unet=unet(SD2),
                                          scheduler=euler(prediction_type="v_prediction"), **none), negative_prompt=NEGATIVE, **size)
    second = fill(CLIPTextModelWithProjection(CLIPTextConfig(**TEXT, hidden_act="gelu")), "text_encoder_2")
    xl = StableDiffusionXLPipeline(vae=xl_vae, text_encoder=clip("text_encoder"), text_encoder_2=second, tokenizer=end, tokenizer_2=zero, unet=unet(XL),
                                   scheduler=euler(), add_watermarker=False)
    make("sdxl", xl, **size)
    # Stable Diffusion 1 and 2 always have an offset of 1 in diffusers.
    xl.scheduler = euler(timestep_spacing="leading", steps_offset=3)
    make("sdxl_leading", xl, height=64, width=64)
    xl.scheduler = euler()
    make("sdxl_negative", xl, negative_prompt=NEGATIVE, **size)
    make("img2img", StableDiffusionImg2ImgPipeline(unet=base.unet, **sd1), image=picture("start"), strength=0.6)
    make("inpaint", StableDiffusionInpaintPipeline(unet=base.unet, **sd1), image=picture("start"), mask_image=mask(), strength=1.0, **size)
    make("inpaint_some", StableDiffusionInpaintPipeline(unet=base.unet, **sd1), image=picture("start"), mask_image=mask(), strength=0.6, **size)
    make("inpaint_model", StableDiffusionInpaintPipeline(unet=unet(SD1, in_channels=9), **sd1), image=picture("start"), mask_image=mask(), strength=1.0, **size)
    save_file(results, out)


if __name__ == "__main__":
    with torch.no_grad():
        main(sys.argv[1] if len(sys.argv) > 1 else "crates/generate/tests/fixtures/pipelines.safetensors")
