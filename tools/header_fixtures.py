"""Write the names, shapes and element types of popular model files, for the tests of crates/model. No weights: models are made on the
meta device.

usage: header_fixtures.py [OUT]     (default crates/model/tests/fixtures/headers)

OUT/parts/NAME.txt has the tensors of one network, one a line: how many characters the name shares with the line before, the rest of it,
the shape. OUT/NAME.txt is a file as people have it: `+ PREFIX PART ELEMENT` takes in a part, `= NAME ELEMENT SHAPE` one tensor, and
replaces one of the same name. OUT/configs/NAME.json are the config.json files of diffusers folders.

Original names are checked: diffusers' own converter must turn them into the names that its models have. Needs torch, diffusers,
transformers, open_clip.
"""
import json
import os
import re
import sys

import open_clip
import torch
from diffusers import AutoencoderKL, AutoencoderTiny, UNet2DConditionModel
from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint, convert_ldm_vae_checkpoint
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

CROSS_DOWN, CROSS_UP = "CrossAttnDownBlock2D", "CrossAttnUpBlock2D"
SD1 = dict(sample_size=64, cross_attention_dim=768, attention_head_dim=8)
SD2 = dict(sample_size=64, cross_attention_dim=1024, attention_head_dim=[5, 10, 20, 20], use_linear_projection=True)
XL = dict(sample_size=128, cross_attention_dim=2048, attention_head_dim=[5, 10, 20], use_linear_projection=True,
          block_out_channels=[320, 640, 1280], down_block_types=["DownBlock2D", CROSS_DOWN, CROSS_DOWN],
          up_block_types=[CROSS_UP, CROSS_UP, "UpBlock2D"], transformer_layers_per_block=[1, 2, 10],
          addition_embed_type="text_time", addition_time_embed_dim=256, projection_class_embeddings_input_dim=2816)
REFINER = dict(sample_size=128, cross_attention_dim=1280, attention_head_dim=[6, 12, 24, 24], use_linear_projection=True,
               block_out_channels=[384, 768, 1536, 1536], down_block_types=["DownBlock2D", CROSS_DOWN, CROSS_DOWN, "DownBlock2D"],
               up_block_types=["UpBlock2D", CROSS_UP, CROSS_UP, "UpBlock2D"], transformer_layers_per_block=4,
               addition_embed_type="text_time", addition_time_embed_dim=256, projection_class_embeddings_input_dim=2560)
VAE = dict(block_out_channels=[128, 256, 512, 512], down_block_types=["DownEncoderBlock2D"] * 4,
           up_block_types=["UpDecoderBlock2D"] * 4, latent_channels=4, layers_per_block=2, sample_size=512)
CLIP_L = dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12, projection_dim=768)
CLIP_H = dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=23, num_attention_heads=16, hidden_act="gelu", projection_dim=512)
CLIP_G = dict(hidden_size=1280, intermediate_size=5120, num_hidden_layers=32, num_attention_heads=20, hidden_act="gelu", projection_dim=1280)


def shapes(model):
    return {k: list(v.shape) for k, v in model.state_dict().items()}


def first(name, pairs):
    for a, b in pairs:
        if name.startswith(a):
            return b + name[len(a):]
    return name


RESNET = [("norm1.", "in_layers.0."), ("conv1.", "in_layers.2."), ("time_emb_proj.", "emb_layers.1."), ("norm2.", "out_layers.0."),
          ("conv2.", "out_layers.3."), ("conv_shortcut.", "skip_connection.")]
TOP = [("conv_in.", "input_blocks.0.0."), ("conv_norm_out.", "out.0."), ("conv_out.", "out.2."),
       ("time_embedding.linear_1.", "time_embed.0."), ("time_embedding.linear_2.", "time_embed.2."),
       ("add_embedding.linear_1.", "label_emb.0.0."), ("add_embedding.linear_2.", "label_emb.0.2.")]


def ldm_unet(name, attends):
    """The original name of a UNet's tensor; two residual blocks a level. `attends` says which up blocks have attention."""
    if m := re.match(r"mid_block\.(resnets|attentions)\.(\d)\.(.*)", name):
        kind, i, rest = m[1], int(m[2]), m[3]
        return f"middle_block.{2 * i}.{first(rest, RESNET)}" if kind == "resnets" else f"middle_block.1.{rest}"
    m = re.match(r"(down|up)_blocks\.(\d)\.(resnets|attentions|downsamplers|upsamplers)\.(\d)\.(.*)", name)
    if not m:
        return first(name, TOP)
    side, level, kind, i, rest = m[1], int(m[2]), m[3], int(m[4]), m[5]
    if kind == "downsamplers":
        return f"input_blocks.{3 * level + 3}.0.op.{rest.removeprefix('conv.')}"
    if kind == "upsamplers":
        return f"output_blocks.{3 * level + 2}.{2 if attends[level] else 1}.{rest}"
    at = f"input_blocks.{3 * level + 1 + i}" if side == "down" else f"output_blocks.{3 * level + i}"
    return f"{at}.0.{first(rest, RESNET)}" if kind == "resnets" else f"{at}.1.{rest}"


def ldm_vae(name):
    m = re.match(r"(encoder|decoder)\.(down|up)_blocks\.(\d)\.(resnets|downsamplers|upsamplers)\.(\d)\.(.*)", name)
    if m:
        side, way, level, kind, i, rest = m.groups()
        level = int(level) if way == "down" else 3 - int(level)
        if kind == "resnets":
            return f"{side}.{way}.{level}.block.{i}.{rest.replace('conv_shortcut', 'nin_shortcut')}"
        return f"{side}.{way}.{level}.{way}sample.{rest}"
    for a, b in [("mid_block.resnets.0", "mid.block_1"), ("mid_block.resnets.1", "mid.block_2"), ("mid_block.attentions.0.group_norm", "mid.attn_1.norm"),
                 ("mid_block.attentions.0.to_out.0", "mid.attn_1.proj_out"), ("conv_norm_out", "norm_out")]:
        name = name.replace(a, b)
    return re.sub(r"mid_block\.attentions\.0\.to_([qkv])", r"mid.attn_1.\1", name)


def original_unet(model):
    attends = ["CrossAttn" in kind for kind in model.config.up_block_types]
    names = {k: ldm_unet(k, attends) for k in shapes(model)}
    state = {"model.diffusion_model." + names[k]: v for k, v in model.state_dict().items()}
    back = convert_ldm_unet_checkpoint(state, dict(model.config))
    assert {k: list(v.shape) for k, v in back.items()} == shapes(model), "the names do not convert back"
    return {names[k]: s for k, s in shapes(model).items()}


def original_vae(model):
    # The attention is made of 1x1 convolutions there.
    wide = lambda k, s: s + [1, 1] if ".attentions." in k and len(s) == 2 else s
    state = {"first_stage_model." + ldm_vae(k): torch.empty(wide(k, list(v.shape)), device="meta") for k, v in model.state_dict().items()}
    back = convert_ldm_vae_checkpoint(state, dict(model.config))
    assert {k: list(v.shape) for k, v in back.items()} == shapes(model), "the names do not convert back"
    return {ldm_vae(k): wide(k, s) for k, s in shapes(model).items()}


def old_vae(model):
    """As diffusers named the attention until 2023, and as the folders of Stable Diffusion 1 still have it."""
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    return {re.sub(r"(attentions\.0\.)(to_q|to_k|to_v|to_out\.0)\.", lambda m: m[1] + old[m[2]] + ".", k): s for k, s in shapes(model).items()}


def open_clip_text(name):
    model = open_clip.create_model(name, device="meta")
    return {k: s for k, s in shapes(model).items() if not k.startswith("visual.")}


def lora(unet):
    """Factors for every linear layer of the attention, named by the layer they belong to."""
    out = {}
    for name, (n, k) in ((k, s) for k, s in unet.items() if re.search(r"attn\d\.to_(q|k|v|out\.0)\.weight", k)):
        at = "lora_unet_" + name.removesuffix(".weight").replace(".", "_")
        out |= {f"{at}.alpha": [], f"{at}.lora_down.weight": [16, k], f"{at}.lora_up.weight": [n, 16]}
    return out


def main(out):
    os.makedirs(f"{out}/parts", exist_ok=True)
    os.makedirs(f"{out}/configs", exist_ok=True)

    def part(name, tensors):
        before, lines = "", []
        for key in sorted(tensors):
            shared = len(os.path.commonprefix([before, key]))
            lines.append(f"{shared} {key[shared:]} {','.join(map(str, tensors[key]))}".rstrip())
            before = key
        with open(f"{out}/parts/{name}.txt", "w") as f:
            f.write("\n".join(lines) + "\n")

    def file(name, parts, single=()):
        with open(f"{out}/{name}.txt", "w") as f:
            f.writelines(f"+ {prefix or '-'} {part} {element}\n" for prefix, part, element in parts)
            f.writelines(f"= {key} {element} {','.join(map(str, shape))}".rstrip() + "\n" for key, element, shape in single)

    def config(name, model):
        # What people's folders have; private fields are the library's.
        fields = model.to_json_string(use_diff=True) if hasattr(model, "to_json_string") else json.dumps(dict(model), default=list)
        with open(f"{out}/configs/{name}.json", "w") as f:
            json.dump(json.loads(fields), f, sort_keys=True)
            f.write("\n")

    with torch.device("meta"):
        unets = {k: UNet2DConditionModel(**c) for k, c in [("sd1", SD1), ("sd2", SD2), ("xl", XL), ("refiner", REFINER)]}
        vae, tiny = AutoencoderKL(**VAE), AutoencoderTiny()
        clip_l = CLIPTextModel(CLIPTextConfig(**CLIP_L))
        clip_l_projected = CLIPTextModelWithProjection(CLIPTextConfig(**CLIP_L))
        clip_h = CLIPTextModel(CLIPTextConfig(**CLIP_H))
        clip_g = CLIPTextModelWithProjection(CLIPTextConfig(**CLIP_G))
    for name, model in unets.items():
        part(f"unet_{name}", original_unet(model))
        if name != "refiner":
            part(f"unet_{name}_diffusers", shapes(model))
            config(f"unet_{name}", {"_class_name": "UNet2DConditionModel", **{k: v for k, v in model.config.items() if not k.startswith("_")}})
    part("vae", original_vae(vae))
    part("vae_diffusers", shapes(vae))
    part("vae_diffusers_old", old_vae(vae))
    for name, scale in [("sd1", 0.18215), ("xl", 0.13025)]:
        fields = {k: v for k, v in vae.config.items() if not k.startswith("_")}
        config(f"vae_{name}", {"_class_name": "AutoencoderKL", **fields, "scaling_factor": scale})
    for name, model in [("clip_l", clip_l), ("clip_l_projected", clip_l_projected), ("clip_h", clip_h), ("clip_g", clip_g)]:
        part(name, shapes(model))
        config(name, model.config)
    part("open_clip_h", open_clip_text("ViT-H-14"))
    part("open_clip_g", open_clip_text("ViT-bigG-14"))
    part("taesd_diffusers", shapes(tiny))
    part("taesd_decoder", {f"{int(m[1]) + 1}.{m[2]}": s for k, s in shapes(tiny).items() if (m := re.match(r"decoder\.layers\.(\d+)\.(.*)", k))})
    part("lora", lora(shapes(unets["sd1"])))
    # The running average keeps names without their dots.
    part("ema", {"diffusion_model" + k.replace(".", ""): s for k, s in original_unet(unets["sd1"]).items()} | {"decay": [], "num_updates": []})

    unet, first_stage, cond = "model.diffusion_model.", "first_stage_model.", "cond_stage_model."
    places = (cond + "transformer.text_model.embeddings.position_ids", "I64", [1, 77])
    sd1 = lambda e: [(unet, "unet_sd1", e), (first_stage, "vae", e), (cond + "transformer.", "clip_l", e)]
    sd2 = lambda e: [(unet, "unet_sd2", e), (first_stage, "vae", e), (cond + "model.", "open_clip_h", e)]
    xl = lambda e: [(unet, "unet_xl", e), (first_stage, "vae", e), ("conditioner.embedders.0.transformer.", "clip_l", e),
                    ("conditioner.embedders.1.model.", "open_clip_g", e)]
    xl_places = ("conditioner.embedders.0.transformer.text_model.embeddings.position_ids", "I64", [1, 77])
    schedule = [(k, "F32", [1000]) for k in SCHEDULE]
    wider = lambda name, e: [(unet + "input_blocks.0.0.weight", e, [320, 9, 3, 3])]
    file("sd15_pruned_emaonly_f16", sd1("F16"), [places])
    file("sd15_full", sd1("F32") + [("model_ema.", "ema", "F32")], [places, *schedule])
    file("sd15_inpainting", sd1("F32"), [places, *schedule, *wider("sd1", "F32")])
    # Before transformers put `text_model.` in front, and with the autoencoder kept in full precision.
    file("sd15_merged", [(unet, "unet_sd1", "F16"), (first_stage, "vae", "F32"), (cond + "transformer.", "clip_l_bare", "BF16")],
         [(cond + "transformer.embeddings.position_ids", "I64", [1, 77]), ("state_dict", "F32", [1])])
    part("clip_l_bare", {k.removeprefix("text_model."): s for k, s in shapes(clip_l).items()})
    file("sd21_base", sd2("F16"))
    file("sd21_768v", sd2("F32"), schedule)
    file("sd2_inpainting", sd2("F32"), [*schedule, *wider("sd2", "F32")])
    file("sdxl_base", xl("F16"), [xl_places, ("denoiser.sigmas", "F32", [1000])])
    file("sdxl_turbo", xl("F16"), [xl_places])
    file("sdxl_vpred", xl("BF16"), [xl_places, ("v_pred", "F32", []), ("ztsnr", "F32", [])])
    file("sdxl_inpainting", xl("F16"), [xl_places, *wider("xl", "F16")])
    file("sdxl_refiner", [(unet, "unet_refiner", "F16"), (first_stage, "vae", "F16"), ("conditioner.embedders.0.model.", "open_clip_g", "F16")])
    file("vae_ft_mse_840000", [("", "vae", "F32")])
    file("clip_l", [("", "clip_l_projected", "F16")], [("logit_scale", "F32", [])])
    file("clip_g", [("", "clip_g", "F16")], [("logit_scale", "F32", [])])
    file("unet_only_sdxl", [("", "unet_xl", "F16")])
    file("taesd_decoder", [("", "taesd_decoder", "F32")])
    file("taesd_diffusers", [("", "taesd_diffusers", "F16")])
    file("lora", [("", "lora", "F16")])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "crates/model/tests/fixtures/headers")
