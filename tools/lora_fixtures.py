"""Make the pictures that LoRAs of every dialect must give, with diffusers, PEFT and torch in float32 on small models of the true structure.

usage: lora_fixtures.py [OUT]     (default crates/generate/tests/fixtures/loras: .json and .safetensors)

Weights are not stored, neither the model's nor a LoRA's: both sides fill each tensor from its name (parity_fixtures.py). The .json has, for each case, the
names of the LoRA's tensors with shape, mean and amplitude; the .safetensors has pictures, bytes (height, width, 3). Needs torch, diffusers, peft, transformers,
open_clip, numpy and safetensors.
"""
import copy
import json
import os
import sys
import tempfile

import numpy as np
import torch
from diffusers import (AutoencoderKL, EulerDiscreteScheduler, StableDiffusionPipeline, StableDiffusionXLPipeline, UNet2DConditionModel)
from peft import LoraConfig
from peft.tuners.loha.layer import HadaWeight, HadaWeightCP
from peft.tuners.lokr.layer import make_kron, make_weight_cp
from safetensors.numpy import save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from parity_fixtures import numbers
from pipeline_fixtures import SD1, STEPS, TEXT, VAE, XL, fill
from tokenizer_fixtures import tokenizers

PROMPT, SIDE, RANK = "A red house under a yellow sun, by the sea!", 64, 4
ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")


def tensor(name, spec):
    shape, mean, amplitude = spec
    values = np.asarray(mean + amplitude * numbers(name, tuple(shape)), np.float32)
    return torch.from_numpy(values.reshape(shape))


class Case:
    """A LoRA file: the shape, mean and amplitude of each tensor, and metadata."""

    def __init__(self, name, base, strength=1.0, metadata=None):
        self.name, self.base, self.strength, self.metadata, self.tensors = name, base, strength, metadata or {}, {}

    def add(self, name, shape, mean=0.0, amplitude=0.5):
        self.tensors[name] = (list(shape), mean, amplitude)
        return tensor(name, self.tensors[name])

    def pair(self, module, weight, ends, alpha=None, rank=RANK, alpha_end=".alpha"):
        """Down and up for a weight, and the difference of the weight."""
        out, rest = weight.shape[0], tuple(weight.shape[1:])
        down = self.add(module + ends[0], (rank, *rest))
        up = self.add(module + ends[1], (out, rank, *[1] * (len(rest) - 1)))
        if alpha is not None:
            self.add(module + alpha_end, (), alpha, 0.0)
        scale = 1.0 if alpha is None else alpha / rank
        return scale * (up.reshape(out, -1) @ down.reshape(rank, -1)).reshape(weight.shape)

    def state(self):
        return {name: tensor(name, spec) for name, spec in self.tensors.items()}


def weights(model, ends):
    """Modules of a model whose names end so, with their weights."""
    found = {n[:-len(".weight")]: p for n, p in model.state_dict().items() if n.endswith(".weight") and any(n[:-7].endswith(e) for e in ends)}
    assert found, ends
    return found


def change(model, deltas):
    """A copy with differences of parameters added."""
    model = copy.deepcopy(model)
    state = model.state_dict()
    for name, delta in deltas.items():
        state[name] = state[name] + delta
    model.load_state_dict(state)
    return model


# Original names of the blocks of these small UNets: one residual block a level, attention at one level.
ORIGINAL = {
    "sd1": [("down_blocks.0.attentions.0.", "input_blocks.1.1."), ("mid_block.attentions.0.", "middle_block.1."),
            ("up_blocks.1.attentions.0.", "output_blocks.2.1."), ("up_blocks.1.attentions.1.", "output_blocks.3.1."),
            ("down_blocks.0.resnets.0.conv1", "input_blocks.1.0.in_layers.2"), ("down_blocks.0.resnets.0.conv2", "input_blocks.1.0.out_layers.3"),
            ("down_blocks.0.downsamplers.0.conv", "input_blocks.2.0.op"), ("up_blocks.0.upsamplers.0.conv", "output_blocks.1.1.conv"),
            ("up_blocks.1.resnets.0.conv_shortcut", "output_blocks.2.0.skip_connection"), ("conv_in", "input_blocks.0.0"),
            ("time_embedding.linear_1", "time_embed.0")],
    "xl": [("down_blocks.1.attentions.0.", "input_blocks.3.1."), ("mid_block.attentions.0.", "middle_block.1."),
           ("up_blocks.0.attentions.0.", "output_blocks.0.1."), ("up_blocks.0.attentions.1.", "output_blocks.1.1."),
           ("up_blocks.0.upsamplers.0.conv", "output_blocks.1.2.conv"), ("add_embedding.linear_1", "label_emb.0.0")],
}


def original(base, name):
    return next((new + name[len(old):] for old, new in ORIGINAL[base] if name.startswith(old)), None)


def flat(name):
    return name.replace(".", "_")


KOHYA, PEFT = (".lora_down.weight", ".lora_up.weight"), (".lora_A.weight", ".lora_B.weight")


def sd1_cases(pipe):
    unet, text = pipe.unet, pipe.text_encoder
    layers = weights(unet, ATTENTION + ("ff.net.0.proj", "proj_in"))
    words = weights(text, ("q_proj", "v_proj", "fc1"))

    case = Case("kohya", "sd1", 0.8)
    merged = lambda model, prefix, some: change(model, {
        name + ".weight": case.strength * case.pair(prefix + flat(name), w, KOHYA, alpha=2.0) for name, w in some.items()})
    yield case, dict(unet=merged(unet, "lora_unet_", layers), text_encoder=merged(text, "lora_te_", words))

    # The same names without text, by diffusers' loader.
    case = Case("kohya_in_diffusers", "sd1", 0.8)
    for name, w in layers.items():
        case.pair("lora_unet_" + flat(name), w, KOHYA, alpha=2.0)
    yield case, None

    said = lambda component, targets, alpha, **more: {f"{component}.{key}": value for key, value in json.loads(json.dumps(LoraConfig(
        r=RANK, lora_alpha=alpha, target_modules=targets, **more).to_dict(), default=sorted)).items()}
    case = Case("peft", "sd1", metadata={"lora_adapter_metadata": json.dumps({
        **said("unet", list(ATTENTION), 3, alpha_pattern={"mid_block.attentions.0.transformer_blocks.0.attn1.to_q": 12}),
        **said("text_encoder", ["q_proj", "v_proj"], 6, use_rslora=True)})})
    for name, w in weights(unet, ATTENTION).items():
        case.pair("unet." + name, w, PEFT)
    for name, w in weights(text, ("q_proj", "v_proj")).items():
        case.pair("text_encoder." + name, w, PEFT)
    yield case, None

    case = Case("first_diffusers", "sd1", 0.5)
    for name, w in weights(unet, ATTENTION).items():
        name = name.replace(".to_", ".processor.to_").replace("to_out.0", "to_out")
        case.pair("unet." + name, w, ("_lora.down.weight", "_lora.up.weight"))
    for name, w in weights(text, ("q_proj", "out_proj")).items():
        case.pair("text_encoder." + name, w, (".lora_linear_layer.down.weight", ".lora_linear_layer.up.weight"))
    yield case, None

    case, deltas = Case("original_convolutions", "sd1", 0.7), {}
    for name, w in weights(unet, ATTENTION + ("conv1", "conv2", "downsamplers.0.conv", "upsamplers.0.conv", "conv_shortcut", "conv_in", "linear_1")).items():
        if (theirs := original("sd1", name)) and "attn" not in name:
            deltas[name + ".weight"] = case.pair("lora_unet_" + flat(theirs), w, KOHYA, alpha=1.0)
        elif theirs:
            deltas[name + ".weight"] = case.pair("diffusion_model." + theirs, w, PEFT)
    yield case, dict(unet=change(unet, {n: case.strength * d for n, d in deltas.items()}))

    case, deltas = Case("tucker", "sd1"), {}
    for name, w in weights(unet, ("resnets.0.conv1", "resnets.0.conv2")).items():
        module, (out, into, h, k) = "lora_unet_" + flat(name), w.shape
        down, mid = case.add(module + ".lora_down.weight", (RANK, into, 1, 1)), case.add(module + ".lora_mid.weight", (RANK, RANK, h, k))
        up = case.add(module + ".lora_up.weight", (out, RANK, 1, 1))
        case.add(module + ".alpha", (), 2.0, 0.0)
        deltas[name + ".weight"] = 0.5 * torch.einsum("or,rshk,si->oihk", up[..., 0, 0], mid, down[..., 0, 0])
    yield case, dict(unet=change(unet, deltas))

    case, deltas = Case("loha", "sd1", 0.9), {}
    for i, (name, w) in enumerate(weights(unet, ATTENTION + ("resnets.0.conv1", "resnets.0.conv2")).items()):
        module, (out, into) = "lora_unet_" + flat(name), w.shape[:2]
        scale = torch.tensor(3.0 / RANK)
        case.add(module + ".alpha", (), 3.0, 0.0)
        if w.dim() == 4 and "conv1" in name:
            parts = [case.add(module + end, shape) for end, shape in [
                (".hada_t1", (RANK, RANK, 3, 3)), (".hada_w1_a", (RANK, out)), (".hada_w1_b", (RANK, into)),
                (".hada_t2", (RANK, RANK, 3, 3)), (".hada_w2_a", (RANK, out)), (".hada_w2_b", (RANK, into))]]
            t1, a1, b1, t2, a2, b2 = parts
            delta = HadaWeightCP.apply(t1, a1, b1, t2, a2, b2, scale)
        else:
            inner = w[0].numel()
            a1, b1, a2, b2 = [case.add(module + end, shape) for end, shape in [
                (".hada_w1_a", (out, RANK)), (".hada_w1_b", (RANK, inner)), (".hada_w2_a", (out, RANK)), (".hada_w2_b", (RANK, inner))]]
            delta = HadaWeight.apply(a1, b1, a2, b2, scale)
        deltas[name + ".weight"] = case.strength * delta.reshape(w.shape)
    yield case, dict(unet=change(unet, deltas))

    case, deltas = Case("lokr", "sd1"), {}
    for i, (name, w) in enumerate(weights(unet, ATTENTION + ("resnets.0.conv1", "resnets.0.conv2")).items()):
        module, (out, into) = "lycoris_" + flat(name), w.shape[:2]
        kernel, scale = tuple(w.shape[2:]), 1.0
        case.add(module + ".alpha", (), 2.0, 0.0)
        if i % 3 == 0:
            w1 = case.add(module + ".lokr_w1", (4, 8))
        else:
            w1 = case.add(module + ".lokr_w1_a", (4, RANK)) @ case.add(module + ".lokr_w1_b", (RANK, 8))
            scale = 2.0 / RANK
        shape = (out // 4, into // 8, *kernel)
        if i % 2 == 0 and i % 3 == 0 or not kernel and i % 4 == 1:
            w2 = case.add(module + ".lokr_w2", shape)
        elif kernel and "conv1" in name:
            t2 = case.add(module + ".lokr_t2", (RANK, RANK, *kernel))
            w2 = make_weight_cp(t2, case.add(module + ".lokr_w2_a", (RANK, shape[0])), case.add(module + ".lokr_w2_b", (RANK, shape[1])))
            scale = 2.0 / RANK
        else:
            w2 = case.add(module + ".lokr_w2_a", (shape[0], RANK)) @ case.add(module + ".lokr_w2_b", (RANK, int(np.prod(shape[1:]))))
            w2, scale = w2.reshape(shape), 2.0 / RANK
        deltas[name + ".weight"] = make_kron(w1, w2, scale).reshape(w.shape)
    yield case, dict(unet=change(unet, deltas))

    case, deltas = Case("full", "sd1", 0.6), {}
    for name, w in weights(unet, ("to_k", "conv2", "norm1", "conv_norm_out")).items():
        module = "lora_unet_" + flat(name)
        end = ".w_norm" if "norm2" in name else ".diff"
        deltas[name + ".weight"] = case.strength * case.add(module + end, w.shape, amplitude=0.1)
        if name + ".bias" in unet.state_dict():
            deltas[name + ".bias"] = case.strength * case.add(module + ".diff_b", w.shape[:1], amplitude=0.3)
    yield case, dict(unet=change(unet, deltas))

    case = Case("dora_of_peft", "sd1")
    for name, w in weights(unet, ("to_q", "to_v", "resnets.0.conv2")).items():
        case.pair("unet." + name, w, PEFT)
        case.add(f"unet.{name}.lora_magnitude_vector", (w.shape[0],) if w.dim() == 2 else (1, w.shape[0], 1, 1), 1.0, 0.3)
    yield case, None

    case, deltas = Case("dora_of_both_axes", "sd1", 0.7), {}
    for i, (name, w) in enumerate(weights(unet, ATTENTION + ("resnets.0.conv1",)).items()):
        module, ones = "lora_unet_" + flat(name), [1] * (w.dim() - 2)
        whole = w + case.pair(module, w, KOHYA, alpha=2.0)
        if i % 2:
            norm = whole.reshape(w.shape[0], -1).norm(dim=1).reshape(-1, 1, *ones)
            lengths = case.add(module + ".dora_scale", (w.shape[0], 1, *ones), 1.0, 0.3)
        else:
            norm = whole.transpose(0, 1).reshape(w.shape[1], -1).norm(dim=1).reshape(1, -1, *ones)
            lengths = case.add(module + ".dora_scale", (1, w.shape[1], *ones), 1.0, 0.3)
        deltas[name + ".weight"] = case.strength * (whole * lengths / norm - w)
    yield case, dict(unet=change(unet, deltas))


def xl_cases(pipe):
    unet, one, two = pipe.unet, pipe.text_encoder, pipe.text_encoder_2
    case = Case("xl_kohya", "xl", 0.8)
    for name, w in weights(unet, ATTENTION + ("ff.net.2",)).items():
        case.pair("lora_unet_" + flat(original("xl", name)), w, KOHYA, alpha=2.0)
    for number, model in ((1, one), (2, two)):
        for name, w in weights(model, ("q_proj", "k_proj", "fc2")).items():
            case.pair(f"lora_te{number}_" + flat(name), w, KOHYA, alpha=4.0)
    changed = {}
    for prefix, part, model in (("lora_unet_", "unet", unet), ("lora_te1_", "text_encoder", one), ("lora_te2_", "text_encoder_2", two)):
        deltas, state = {}, case.state()
        for name, w in weights(model, ATTENTION + ("ff.net.2", "q_proj", "k_proj", "fc2")).items():
            module = prefix + flat(original("xl", name) or name if part == "unet" else name)
            if module + KOHYA[0] in state:
                scale = case.strength * state[module + ".alpha"] / RANK
                deltas[name + ".weight"] = scale * state[module + KOHYA[1]] @ state[module + KOHYA[0]]
        changed[part] = change(model, deltas)
    yield case, changed

    case = Case("xl_peft", "xl", 1.0)
    for name, w in weights(unet, ATTENTION).items():
        case.pair("unet." + name, w, PEFT)
    for prefix, model in (("text_encoder.", one), ("text_encoder_2.", two)):
        for name, w in weights(model, ("q_proj", "v_proj", "out_proj")).items():
            case.pair(prefix + name, w, PEFT)
    yield case, None

    case, deltas, mine = Case("xl_open_clip", "xl", 0.9), {}, {}
    for i in range(2):
        layer = f"text_model.encoder.layers.{i}."
        joined = torch.cat([two.state_dict()[f"{layer}self_attn.{x}_proj.weight"] for x in "qkv"])
        delta = case.strength * case.pair(f"lora_te2_transformer_resblocks_{i}_attn_in_proj", joined, KOHYA, alpha=2.0)
        for x, rows in zip("qkv", delta.chunk(3)):
            deltas[f"{layer}self_attn.{x}_proj.weight"] = rows
        for theirs, ours in (("mlp_c_fc", "mlp.fc1"), ("mlp_c_proj", "mlp.fc2"), ("attn_out_proj", "self_attn.out_proj")):
            w = two.state_dict()[f"{layer}{ours}.weight"]
            deltas[f"{layer}{ours}.weight"] = case.strength * case.pair(f"lora_te2_transformer_resblocks_{i}_{theirs}", w, KOHYA)
    for name, w in weights(unet, ("upsamplers.0.conv", "add_embedding.linear_1")).items():
        mine[name + ".weight"] = case.strength * case.pair("lora_unet_" + flat(original("xl", name)), w, KOHYA)
    yield case, dict(text_encoder_2=change(two, deltas), unet=change(unet, mine))


def main(out):
    torch.use_deterministic_algorithms(True)
    end, zero, _ = tokenizers()
    end.model_max_length = zero.model_max_length = 77
    euler = EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", timestep_spacing="linspace", steps_offset=1)
    clip = lambda: fill(CLIPTextModel(CLIPTextConfig(**TEXT)), "text_encoder")
    unet = lambda config: fill(UNet2DConditionModel(sample_size=16, **config), "unet")

    def sd1(**parts):
        parts = {**dict(unet=unet(SD1), text_encoder=clip()), **parts}
        return StableDiffusionPipeline(vae=fill(AutoencoderKL(**VAE), "vae"), tokenizer=end, scheduler=euler, safety_checker=None,
                                       feature_extractor=None, requires_safety_checker=False, **parts)

    def xl(**parts):
        second = lambda: fill(CLIPTextModelWithProjection(CLIPTextConfig(**TEXT, hidden_act="gelu")), "text_encoder_2")
        parts = {**dict(unet=unet(XL), text_encoder=clip(), text_encoder_2=second()), **parts}
        return StableDiffusionXLPipeline(vae=fill(AutoencoderKL(**VAE, scaling_factor=0.13025), "vae"), tokenizer=end, tokenizer_2=zero, scheduler=euler,
                                         add_watermarker=False, **parts)

    def make(pipeline):
        pipeline.set_progress_bar_config(disable=True)
        made = pipeline(prompt=PROMPT, num_inference_steps=STEPS, guidance_scale=7.0, generator=torch.Generator("cpu").manual_seed(7), output_type="np",
                        height=SIDE, width=SIDE).images[0]
        inside = ((made > 0.001) & (made < 0.999)).mean()
        assert inside > 0.5 and made.std() > 0.05, (inside, made.std())
        return np.ascontiguousarray(np.round(made * 255).astype(np.uint8))

    cases, pictures = [], {}
    for base, new, all_cases in (("sd1", sd1, sd1_cases), ("xl", xl, xl_cases)):
        plain = make(new())
        for case, changed in all_cases(new()):
            if changed is None:
                # Whole files go through diffusers' own loader.
                from safetensors.torch import save_file as save
                with tempfile.TemporaryDirectory() as folder:
                    save(case.state(), os.path.join(folder, "x.safetensors"), metadata={"format": "pt", **case.metadata})
                    pipeline = new()
                    pipeline.load_lora_weights(folder, weight_name="x.safetensors", adapter_name="x")
                    # Which forgets that a scale is by the root of the rank.
                    if case.strength != 1.0:
                        pipeline.set_adapters(["x"], [case.strength])
            else:
                pipeline = new(**changed)
            made = make(pipeline)
            error = ((made.astype(float) - plain) ** 2).mean()
            print(f"{case.name}: {len(case.tensors)} tensors, {10 * np.log10(255 ** 2 / error):.1f} dB from the picture without it")
            assert error > 20, "the LoRA hardly matters"
            pictures[case.name] = made
            cases.append(dict(name=case.name, base=base, strength=case.strength, metadata=case.metadata, tensors=case.tensors))
    with open(out + ".json", "w") as file:
        file.write("[" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "]\n")
    save_file(pictures, out + ".safetensors")


if __name__ == "__main__":
    with torch.no_grad():
        main(sys.argv[1] if len(sys.argv) > 1 else "crates/generate/tests/fixtures/loras")
