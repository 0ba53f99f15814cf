"""Make the pictures that the pipelines of FLUX.1, FLUX.2, Z-Image, Stable Diffusion 3 and Qwen-Image must reproduce, with diffusers in float32 on small
models of the true structure; and the noise levels that they go through.

usage: family_fixtures.py VOCABULARIES [OUT]     (default crates/generate/tests/fixtures/families.safetensors)

VOCABULARIES has t5_tokenizer.json, qwen_vocab.json, qwen_merges.txt and qwen_tokenizer_config.json as their makers publish them. Weights are not stored:
both sides fill each tensor from its component and name (transformer_fixtures.py). Noise is torch's on a CPU. Needs torch, diffusers, transformers,
open_clip (for CLIP's words), numpy and safetensors.
"""
import gzip
import importlib.util
import re
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from diffusers import (AutoencoderKL, AutoencoderKLFlux2, AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, Flux2KleinPipeline, Flux2Transformer2DModel,
                       FluxImg2ImgPipeline, FluxInpaintPipeline, FluxPipeline, FluxTransformer2DModel, QwenImageImg2ImgPipeline, QwenImagePipeline,
                       QwenImageTransformer2DModel, SD3Transformer2DModel, StableDiffusion3Img2ImgPipeline, StableDiffusion3Pipeline, ZImageImg2ImgPipeline,
                       ZImagePipeline, ZImageTransformer2DModel)
from PIL import Image
from safetensors.numpy import save_file
from transformers import (CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer, PreTrainedTokenizerFast, Qwen2_5_VLConfig,
                          Qwen2_5_VLForConditionalGeneration, Qwen2TokenizerFast, Qwen3Config, Qwen3ForCausalLM, T5Config, T5EncoderModel)

from parity_fixtures import numbers
from transformer_fixtures import FLUX, FLUX2, QWEN, SD3, Z_IMAGE, tensor

PROMPT, NEGATIVE = "A red house under a yellow sun, by the (blue) sea!", "blurry, grey"
STEPS = 4
VAE = dict(block_out_channels=(32, 64, 64, 64), down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4, latent_channels=16,
           layers_per_block=1, norm_num_groups=32, use_quant_conv=False, use_post_quant_conv=False)
CLIP = dict(vocab_size=49408, hidden_size=24, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=77, projection_dim=24,
            eos_token_id=49407, bos_token_id=49406, pad_token_id=49407)
T5 = dict(vocab_size=32128, d_model=48, d_kv=16, d_ff=96, num_layers=2, num_heads=3, feed_forward_proj="gated-gelu", dropout_rate=0.0)
QWEN3 = dict(vocab_size=151936, hidden_size=48, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=16, rope_theta=1e6,
             rms_norm_eps=1e-6, tie_word_embeddings=True)


def words(folder):
    """Tokenizers of CLIP, padding with the end and with "!", of T5 and of Qwen."""
    shipped = gzip.open(Path(importlib.util.find_spec("open_clip").origin).parent / "bpe_simple_vocab_16e6.txt.gz").read().decode()
    merges = [tuple(line.split()) for line in shipped.split("\n")[1:48895]]
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    ids = {word: i for i, word in enumerate(letters + [c + "</w>" for c in letters] + [a + b for a, b in merges] + ["<|startoftext|>", "<|endoftext|>"])}
    clip = [CLIPTokenizer(vocab=ids, merges=merges, pad_token=pad, model_max_length=77) for pad in ("<|endoftext|>", "!")]
    t5 = PreTrainedTokenizerFast(tokenizer_file=str(folder / "t5_tokenizer.json"), pad_token="<pad>", eos_token="</s>", model_max_length=512)
    with tempfile.TemporaryDirectory() as copy:
        for name in ["vocab.json", "merges.txt", "tokenizer_config.json"]:
            shutil.copy(folder / f"qwen_{name}", Path(copy) / name)
        qwen = Qwen2TokenizerFast.from_pretrained(copy)
    # Qwen3's template for one message; the vocabulary comes with that of Qwen2.5.
    qwen.chat_template = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"
                          "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}")
    return *clip, t5, qwen


def plain(model, name):
    """The name of a parameter as our graphs have it, whatever the version of transformers."""
    if "CLIP" in type(model).__name__ and not name.startswith(("text_model.", "text_projection.")):
        return "text_model." + name
    return re.sub(r"^model\.(language_model\.)?", "", name)


def fill(model, component):
    own = {k: v for k, v in model.state_dict().items() if v.dtype.is_floating_point}
    state = {k: torch.from_numpy(tensor(f"{component}/{plain(model, k)}", tuple(v.shape))) for k, v in own.items()}
    # Tables that one names twice are one.
    if "lm_head.weight" in state and "model.embed_tokens.weight" in state:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    if "encoder.embed_tokens.weight" in state:
        state["encoder.embed_tokens.weight"] = state["shared.weight"]
    missing = model.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys, missing
    return model.eval()


def picture(height, width):
    u = numbers("start", (height // 16, width // 16, 3))
    return Image.fromarray(np.kron(np.round(127.5 * (u + 1)), np.ones((16, 16, 1))).astype(np.uint8))


def mask(height, width):
    m = np.zeros((height, width), np.uint8)
    m[height // 4:3 * height // 4, width // 3:] = 255
    return Image.fromarray(m)


class Maker:
    def __init__(self, results):
        self.results = results

    def __call__(self, name, pipeline, seed=7, prompt=PROMPT, **kw):
        pipeline.set_progress_bar_config(disable=True)
        made = pipeline(prompt=prompt, num_inference_steps=STEPS, generator=torch.Generator("cpu").manual_seed(seed), output_type="np", **kw).images[0]
        inside = ((made > 0.001) & (made < 0.999)).mean()
        print(f"{name}: {made.shape}, {inside:.0%} of the numbers inside the range, deviation {made.std():.3f}", flush=True)
        assert inside > 0.6 and made.std() > 0.08
        self.results[name] = np.ascontiguousarray(np.round(made * 255).astype(np.uint8))
        # The levels that it went through.
        self.results[f"{name}.sigmas"] = pipeline.scheduler.sigmas.numpy().astype(np.float32)


WIDE, TALL = dict(height=64, width=96), dict(height=96, width=48)


def flux(make, clip, t5):
    vae = fill(AutoencoderKL(**VAE, scaling_factor=0.3611, shift_factor=0.1159), "vae")
    parts = dict(vae=vae, text_encoder=fill(CLIPTextModel(CLIPTextConfig(**CLIP)), "text_encoder"), tokenizer=clip,
                 text_encoder_2=fill(T5EncoderModel(T5Config(**T5)), "text_encoder_2"), tokenizer_2=t5)
    levels = dict(base_image_seq_len=256, base_shift=0.5, max_image_seq_len=4096, max_shift=1.15, shift=3.0, use_dynamic_shifting=True)
    dev = dict(**parts, transformer=fill(FluxTransformer2DModel(**FLUX, guidance_embeds=True), "transformer"),
               scheduler=FlowMatchEulerDiscreteScheduler(**levels))
    pipeline = FluxPipeline(**dev)
    for seed in (7, 8, 9):
        make(f"flux.{seed}", pipeline, seed=seed, guidance_scale=3.5, max_sequence_length=512, **WIDE)
    make("flux.tall", pipeline, guidance_scale=3.5, max_sequence_length=512, **TALL)
    make("flux.cfg", pipeline, guidance_scale=3.5, max_sequence_length=512, negative_prompt=NEGATIVE, true_cfg_scale=2.5, **WIDE)
    # More words than CLIP reads.
    make("flux.long", pipeline, prompt=" ".join([PROMPT] * 9), guidance_scale=2.0, max_sequence_length=512, **WIDE)
    make("flux.img2img", FluxImg2ImgPipeline(**dev), image=picture(64, 96), strength=0.6, guidance_scale=3.5, max_sequence_length=512, **WIDE)
    make("flux.inpaint", FluxInpaintPipeline(**dev), image=picture(64, 96), mask_image=mask(64, 96), strength=0.6, guidance_scale=3.5,
         max_sequence_length=512, **WIDE)
    schnell = FluxPipeline(**parts, transformer=fill(FluxTransformer2DModel(**FLUX, guidance_embeds=False), "transformer"),
                           scheduler=FlowMatchEulerDiscreteScheduler(**{**levels, "shift": 1.0, "use_dynamic_shifting": False}))
    make("schnell", schnell, guidance_scale=0.0, max_sequence_length=256, **WIDE)


def z_image(make, qwen):
    vae = fill(AutoencoderKL(**VAE, scaling_factor=0.3611, shift_factor=0.1159), "vae")
    parts = dict(vae=vae, text_encoder=fill(Qwen3ForCausalLM(Qwen3Config(**QWEN3, num_hidden_layers=3)), "text_encoder"), tokenizer=qwen,
                 transformer=fill(ZImageTransformer2DModel(**Z_IMAGE), "transformer"), scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0))
    pipeline = ZImagePipeline(**parts)
    for seed in (7, 8, 9):
        make(f"z.{seed}", pipeline, seed=seed, guidance_scale=0.0, **WIDE)
    make("z.tall", pipeline, guidance_scale=0.0, **TALL)
    make("z.cfg", pipeline, guidance_scale=3.0, negative_prompt=NEGATIVE, **WIDE)
    make("z.img2img", ZImageImg2ImgPipeline(**parts), image=picture(64, 96), strength=0.6, guidance_scale=0.0, **WIDE)


def klein(make, qwen):
    kl = dict(VAE, latent_channels=32, use_quant_conv=True, use_post_quant_conv=True)
    vae = fill(AutoencoderKLFlux2(**kl), "vae")
    text = dict(QWEN3, num_hidden_layers=28, hidden_size=16, intermediate_size=32, head_dim=8)
    parts = dict(vae=vae, text_encoder=fill(Qwen3ForCausalLM(Qwen3Config(**text)), "text_encoder"), tokenizer=qwen,
                 transformer=fill(Flux2Transformer2DModel(**FLUX2), "transformer"), scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True))
    pipeline = Flux2KleinPipeline(**parts, is_distilled=False)
    for seed in (7, 8, 9):
        make(f"klein.{seed}", pipeline, seed=seed, guidance_scale=1.0, **WIDE)
    make("klein.tall", pipeline, guidance_scale=1.0, **TALL)
    make("klein.cfg", pipeline, guidance_scale=2.5, **WIDE)


def sd3(make, end, zero, t5):
    vae = fill(AutoencoderKL(**VAE, scaling_factor=1.5305, shift_factor=0.0609), "vae")
    second = fill(CLIPTextModelWithProjection(CLIPTextConfig(**{**CLIP, "hidden_act": "gelu"})), "text_encoder_2")
    config = dict(SD3, pooled_projection_dim=48, qk_norm="rms_norm", dual_attention_layers=(0, 1))
    parts = dict(vae=vae, text_encoder=fill(CLIPTextModelWithProjection(CLIPTextConfig(**CLIP)), "text_encoder"), tokenizer=end, text_encoder_2=second,
                 tokenizer_2=zero, text_encoder_3=fill(T5EncoderModel(T5Config(**T5)), "text_encoder_3"), tokenizer_3=t5,
                 transformer=fill(SD3Transformer2DModel(**config), "transformer"), scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0))
    pipeline = StableDiffusion3Pipeline(**parts)
    for seed in (7, 8, 9):
        make(f"sd3.{seed}", pipeline, seed=seed, guidance_scale=5.0, negative_prompt=NEGATIVE, **WIDE)
    make("sd3.tall", pipeline, guidance_scale=1.0, **TALL)
    make("sd3.img2img", StableDiffusion3Img2ImgPipeline(**parts), image=picture(64, 96), strength=0.6, guidance_scale=5.0, **WIDE)
    make("sd3.short", StableDiffusion3Pipeline(**{**parts, "text_encoder_3": None, "tokenizer_3": None}), guidance_scale=5.0, **WIDE)


def qwen_image(make, qwen):
    vae = fill(AutoencoderKLQwenImage(base_dim=32, z_dim=16, num_res_blocks=1), "vae")
    text = dict(vocab_size=152064, hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6,
                rope_theta=1e6, rope_scaling={"type": "mrope", "mrope_section": [1, 2, 3]}, tie_word_embeddings=False)
    vision = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=48)
    encoder = fill(Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision)), "text_encoder")
    levels = dict(base_image_seq_len=256, base_shift=0.5, max_image_seq_len=8192, max_shift=0.9, shift_terminal=0.02, use_dynamic_shifting=True,
                  time_shift_type="exponential")
    parts = dict(vae=vae, text_encoder=encoder, tokenizer=qwen, transformer=fill(QwenImageTransformer2DModel(**QWEN), "transformer"),
                 scheduler=FlowMatchEulerDiscreteScheduler(**levels))
    pipeline = QwenImagePipeline(**parts)
    for seed in (7, 8, 9):
        make(f"qwen.{seed}", pipeline, seed=seed, true_cfg_scale=4.0, negative_prompt=NEGATIVE, **WIDE)
    make("qwen.tall", pipeline, true_cfg_scale=1.0, **TALL)
    make("qwen.empty", pipeline, true_cfg_scale=4.0, negative_prompt=" ", **WIDE)
    make("qwen.img2img", QwenImageImg2ImgPipeline(**parts), image=picture(64, 96), strength=0.6, true_cfg_scale=1.0, **WIDE)


@torch.no_grad()
def main(folder, out):
    torch.use_deterministic_algorithms(True)
    end, zero, t5, qwen = words(folder)
    results = {}
    make = Maker(results)
    flux(make, end, t5)
    z_image(make, qwen)
    klein(make, qwen)
    sd3(make, end, zero, t5)
    qwen_image(make, qwen)
    save_file(results, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "crates/generate/tests/fixtures/families.safetensors")
