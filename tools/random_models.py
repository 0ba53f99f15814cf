"""Write a model of true size with random weights: its transformer and text encoders as GGUF, its autoencoder as safetensors, each under the names that
people's files have. Pictures of it are noise; times, memory and bits are those of the real one.

usage: random_models.py FOLDER {flux-dev|z-image|klein-4b|sd35-large|qwen-image} {q4_0|q8_0|f16|bf16} [--blocks N] [--no-text]

--blocks N keeps the first N blocks of each kind, --no-text leaves the text encoders out. The last line printed is the flags for impasto. Needs numpy.
"""
import argparse
import json
import struct
from pathlib import Path

import numpy as np

ID = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}
BLOCK = {"f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "q4_0": (32, 18), "q8_0": (32, 34)}
POOL = 1 << 22  # random blocks, of which every tensor takes a run


class Tensors(list):
    """Names and shapes, outermost dimension first."""

    def add(self, name, *shape):
        self.append((name, shape))

    def linear(self, name, out, into, bias=True):
        self.add(name + ".weight", out, into)
        if bias:
            self.add(name + ".bias", out)

    def conv(self, name, out, into, *kernel):
        self.add(name + ".weight", out, into, *kernel)
        self.add(name + ".bias", out)

    def norm(self, name, n):
        self.add(name + ".weight", n)
        self.add(name + ".bias", n)


def flux_blocks(t, h, double, single, inner, fused, bias):
    for b in range(double):
        for s in ("img", "txt"):
            p = f"double_blocks.{b}.{s}_"
            if bias:
                t.linear(p + "mod.lin", 6 * h, h)
            t.linear(p + "attn.qkv", 3 * h, h, bias)
            t.linear(p + "attn.proj", h, h, bias)
            t.linear(p + "mlp.0", fused * inner, h, bias)
            t.linear(p + "mlp.2", h, inner, bias)
            for q in ("query", "key"):
                t.add(p + f"attn.norm.{q}_norm.scale", 128)
    for b in range(single):
        p = f"single_blocks.{b}."
        if bias:
            t.linear(p + "modulation.lin", 3 * h, h)
        t.linear(p + "linear1", 3 * h + fused * inner, h, bias)
        t.linear(p + "linear2", h, h + inner, bias)
        for q in ("query", "key"):
            t.add(p + f"norm.{q}_norm.scale", 128)


def flux_dev(most):
    t, h = Tensors(), 3072
    t.linear("img_in", h, 64)
    t.linear("txt_in", h, 4096)
    for name, n in (("time_in", 256), ("vector_in", 768), ("guidance_in", 256)):
        t.linear(name + ".in_layer", h, n)
        t.linear(name + ".out_layer", h, h)
    flux_blocks(t, h, min(19, most), min(38, most), 4 * h, 1, True)
    t.linear("final_layer.adaLN_modulation.1", 2 * h, h)
    t.linear("final_layer.linear", 64, h)
    return t


def klein_4b(most):
    t, h = Tensors(), 3072
    t.linear("img_in", h, 128, False)
    t.linear("txt_in", h, 7680, False)
    t.linear("time_in.in_layer", h, 256, False)
    t.linear("time_in.out_layer", h, h, False)
    for name, n in (("double_stream_modulation_img", 6), ("double_stream_modulation_txt", 6), ("single_stream_modulation", 3)):
        t.linear(name + ".lin", n * h, h, False)
    flux_blocks(t, h, min(5, most), min(20, most), 3 * h, 2, False)
    t.linear("final_layer.adaLN_modulation.1", 2 * h, h, False)
    t.linear("final_layer.linear", 128, h, False)
    return t


def z_image(most):
    t, h = Tensors(), 3840
    t.linear("x_embedder", h, 64)
    t.linear("t_embedder.mlp.0", 1024, 256)
    t.linear("t_embedder.mlp.2", 256, 1024)
    t.add("cap_embedder.0.weight", 2560)
    t.linear("cap_embedder.1", h, 2560)
    t.add("x_pad_token", 1, h)
    t.add("cap_pad_token", 1, h)
    for kind, n in (("noise_refiner", 2), ("context_refiner", 2), ("layers", min(30, most))):
        for b in range(n):
            p = f"{kind}.{b}."
            t.linear(p + "attention.qkv", 3 * h, h, False)
            t.linear(p + "attention.out", h, h, False)
            for q in ("q", "k"):
                t.add(p + f"attention.{q}_norm.weight", 128)
            for w, shape in (("w1", (10240, h)), ("w3", (10240, h)), ("w2", (h, 10240))):
                t.linear(p + f"feed_forward.{w}", *shape, False)
            for name in ("attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2"):
                t.add(p + name + ".weight", h)
            if kind != "context_refiner":
                t.linear(p + "adaLN_modulation.0", 4 * h, 256)
    t.linear("final_layer.linear", 64, h)
    t.linear("final_layer.adaLN_modulation.1", h, 256)
    return t


def sd35_large(most):
    t, h, n = Tensors(), 2432, min(38, most)
    t.conv("x_embedder.proj", h, 16, 2, 2)
    t.add("pos_embed", 1, 192 * 192, h)
    t.linear("context_embedder", h, 4096)
    for name, k in (("t_embedder", 256), ("y_embedder", 2048)):
        t.linear(name + ".mlp.0", h, k)
        t.linear(name + ".mlp.2", h, h)
    for b in range(n):
        for s in ("x_block", "context_block"):
            p, last = f"joint_blocks.{b}.{s}.", s == "context_block" and b == n - 1
            t.linear(p + "adaLN_modulation.1", (2 if last else 6) * h, h)
            t.linear(p + "attn.qkv", 3 * h, h)
            t.add(p + "attn.ln_q.weight", 64)
            t.add(p + "attn.ln_k.weight", 64)
            if not last:
                t.linear(p + "attn.proj", h, h)
                t.linear(p + "mlp.fc1", 4 * h, h)
                t.linear(p + "mlp.fc2", h, 4 * h)
    t.linear("final_layer.adaLN_modulation.1", 2 * h, h)
    t.linear("final_layer.linear", 64, h)
    return t


def qwen_image(most):
    t, h = Tensors(), 3072
    t.linear("img_in", h, 64)
    t.add("txt_norm.weight", 3584)
    t.linear("txt_in", h, 3584)
    t.linear("time_text_embed.timestep_embedder.linear_1", h, 256)
    t.linear("time_text_embed.timestep_embedder.linear_2", h, h)
    for b in range(min(60, most)):
        p = f"transformer_blocks.{b}."
        for s in ("img", "txt"):
            t.linear(p + f"{s}_mod.1", 6 * h, h)
            t.linear(p + f"{s}_mlp.net.0.proj", 4 * h, h)
            t.linear(p + f"{s}_mlp.net.2", h, 4 * h)
        for name in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"):
            t.linear(p + "attn." + name, h, h)
        for name in ("norm_q", "norm_k", "norm_added_q", "norm_added_k"):
            t.add(p + f"attn.{name}.weight", 128)
    t.linear("norm_out.linear", 2 * h, h)
    t.linear("proj_out", 64, h)
    return t


def t5xxl(most):
    t = Tensors()
    t.add("token_embd.weight", 32128, 4096)
    for b in range(min(24, most)):
        p = f"enc.blk.{b}."
        for name in ("q", "k", "v", "o"):
            t.add(p + f"attn_{name}.weight", 4096, 4096)
        if b == 0:
            t.add(p + "attn_rel_b.weight", 32, 64)
        t.add(p + "attn_norm.weight", 4096)
        t.add(p + "ffn_norm.weight", 4096)
        t.add(p + "ffn_gate.weight", 10240, 4096)
        t.add(p + "ffn_up.weight", 10240, 4096)
        t.add(p + "ffn_down.weight", 4096, 10240)
    t.add("enc.output_norm.weight", 4096)
    return t


def llm(width, layers, heads, kv, inner, vocabulary, biases, most):
    t = Tensors()
    t.add("token_embd.weight", vocabulary, width)
    for b in range(min(layers, most)):
        p = f"blk.{b}."
        for name, n in (("q", heads), ("k", kv), ("v", kv)):
            t.linear(p + f"attn_{name}", 128 * n, width, biases)
        t.add(p + "attn_output.weight", width, 128 * heads)
        if not biases:
            t.add(p + "attn_q_norm.weight", 128)
            t.add(p + "attn_k_norm.weight", 128)
        t.add(p + "attn_norm.weight", width)
        t.add(p + "ffn_norm.weight", width)
        t.add(p + "ffn_gate.weight", inner, width)
        t.add(p + "ffn_up.weight", inner, width)
        t.add(p + "ffn_down.weight", width, inner)
    t.add("output_norm.weight", width)
    return t


def clip(width, layers, inner, projection):
    t = Tensors()
    t.add("text_model.embeddings.token_embedding.weight", 49408, width)
    t.add("text_model.embeddings.position_embedding.weight", 77, width)
    for b in range(layers):
        p = f"text_model.encoder.layers.{b}."
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            t.linear(p + "self_attn." + name, width, width)
        t.norm(p + "layer_norm1", width)
        t.norm(p + "layer_norm2", width)
        t.linear(p + "mlp.fc1", inner, width)
        t.linear(p + "mlp.fc2", width, inner)
    t.norm("text_model.final_layer_norm", width)
    if projection:
        t.add("text_projection.weight", projection, width)
    return t


def resnet(t, p, a, b):
    t.norm(p + "norm1", a)
    t.conv(p + "conv1", b, a, 3, 3)
    t.norm(p + "norm2", b)
    t.conv(p + "conv2", b, b, 3, 3)
    if a != b:
        t.conv(p + "nin_shortcut", b, a, 1, 1)


def kl_vae(latent, quant):
    t, widths = Tensors(), [128, 256, 512, 512]
    for side in ("encoder", "decoder"):
        encode = side == "encoder"
        t.conv(f"{side}.conv_in", widths[0] if encode else widths[-1], 3 if encode else latent, 3, 3)
        now = widths[0] if encode else widths[-1]
        for level in range(4) if encode else reversed(range(4)):
            p = f"{side}.{'down' if encode else 'up'}.{level}."
            for i in range(2 if encode else 3):
                resnet(t, f"{p}block.{i}.", now, widths[level])
                now = widths[level]
            if encode and level < 3:
                t.conv(p + "downsample.conv", now, now, 3, 3)
            if not encode and level > 0:
                t.conv(p + "upsample.conv", now, now, 3, 3)
        for i in (1, 2):
            resnet(t, f"{side}.mid.block_{i}.", 512, 512)
        t.norm(f"{side}.mid.attn_1.norm", 512)
        for name in ("q", "k", "v", "proj_out"):
            t.conv(f"{side}.mid.attn_1.{name}", 512, 512, 1, 1)
        t.norm(f"{side}.norm_out", now)
        t.conv(f"{side}.conv_out", 2 * latent if encode else 3, now, 3, 3)
    if quant:
        t.conv("encoder.quant_conv", 2 * latent, 2 * latent, 1, 1)
        t.conv("decoder.post_quant_conv", latent, latent, 1, 1)
        t.add("bn.running_mean", 4 * latent)
        t.add("bn.running_var", 4 * latent)
    return t


def qwen_vae():
    t, widths = Tensors(), [96, 192, 384, 384]

    def block(p, a, b):
        t.add(p + "residual.0.gamma", a, 1, 1, 1)
        t.conv(p + "residual.2", b, a, 3, 3, 3)
        t.add(p + "residual.3.gamma", b, 1, 1, 1)
        t.conv(p + "residual.6", b, b, 3, 3, 3)
        if a != b:
            t.conv(p + "shortcut", b, a, 1, 1, 1)

    for side in ("encoder", "decoder"):
        encode = side == "encoder"
        now = widths[0] if encode else widths[-1]
        t.conv(f"{side}.conv1", now, 3 if encode else 16, 3, 3, 3)
        i = 0
        for level in range(4) if encode else reversed(range(4)):
            for _ in range(2 if encode else 3):
                block(f"{side}.{'downsamples' if encode else 'upsamples'}.{i}.", now, widths[level])
                now, i = widths[level], i + 1
            if level < 3 if encode else level > 0:
                to = now if encode else now // 2
                t.conv(f"{side}.{'downsamples' if encode else 'upsamples'}.{i}.resample.1", to, now, 3, 3)
                now, i = to, i + 1
        for b in (0, 2):
            block(f"{side}.middle.{b}.", 384, 384)
        t.add(f"{side}.middle.1.norm.gamma", 384, 1, 1)
        t.conv(f"{side}.middle.1.to_qkv", 3 * 384, 384, 1, 1)
        t.conv(f"{side}.middle.1.proj", 384, 384, 1, 1)
        t.add(f"{side}.head.0.gamma", now, 1, 1, 1)
        t.conv(f"{side}.head.2", 32 if encode else 3, now, 3, 3, 3)
    t.conv("conv1", 32, 32, 1, 1, 1)
    t.conv("conv2", 16, 16, 1, 1, 1)
    return t


class Numbers:
    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.normal = self.rng.standard_normal(POOL, "f4")
        self.bytes = self.rng.integers(0, 256, POOL, "u1")

    def run(self, pool, n):
        """So many of a pool, from a place of its own."""
        begin = int(self.rng.integers(0, POOL))
        return np.resize(np.roll(pool, -begin), n) if n > POOL else np.take(pool, np.arange(begin, begin + n), mode="wrap")

    def make(self, name, shape, kind):
        n, deviation = int(np.prod(shape)), float(np.prod(shape[1:])) ** -0.5
        is_scale = name.endswith((".scale", ".gamma", "running_var")) or len(shape) == 1 and name.endswith("weight")
        if is_scale:
            values = np.ones(n, "f4")
        elif len(shape) == 1:
            values = 0.02 * self.run(self.normal, n)
        elif kind in ("q4_0", "q8_0"):
            size, length = BLOCK[kind]
            raw = self.run(self.bytes, n // size * length).reshape(-1, length).copy()
            scale = np.array([deviation / (4.6 if kind == "q4_0" else 74)], "<f2").view("u1")
            raw[:, :2] = scale
            return raw
        else:
            values = deviation * self.run(self.normal, n)
        if kind == "bf16":
            return (values.astype("<f4").view("<u4") >> 16).astype("<u2")
        return values.astype("<f2" if kind == "f16" else "<f4")


def kind_of(name, shape, kind):
    if len(shape) == 1 or name.endswith((".gamma", "pad_token")):
        return "f32"
    small = "embed" in name or "rel_b" in name or name.startswith(("img_in.", "txt_in.", "time_in.", "vector_in.", "guidance_in.", "final_layer."))
    if kind in ("q4_0", "q8_0") and (small or len(shape) > 2 or shape[-1] % 32):
        return "q8_0" if name == "token_embd.weight" else "f16"
    return kind


def gguf(path, tensors, kind, architecture, numbers):
    text = lambda x: struct.pack("<Q", len(x)) + x.encode()
    keys = [text("general.architecture") + struct.pack("<I", 8) + text(architecture), text("general.quantization_version") + struct.pack("<II", 4, 2)]
    head, offset = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys), 0
    for name, shape in tensors:
        own = kind_of(name, shape, kind)
        size, length = BLOCK[own]
        dims = b"".join(struct.pack("<Q", d) for d in reversed(shape))
        head += text(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", ID[own], offset)
        offset += (int(np.prod(shape)) // size * length + 31) // 32 * 32
    head += b"\0" * (-len(head) % 32)
    with open(path, "wb") as file:
        file.write(head)
        for name, shape in tensors:
            data = numbers.make(name, shape, kind_of(name, shape, kind)).tobytes()
            file.write(data + b"\0" * (-len(data) % 32))
    print(f"{path}: {len(tensors)} tensors, {(len(head) + offset) / 1e9:.2f} GB", flush=True)


def safetensors(path, tensors, numbers):
    header, at = {}, 0
    for name, shape in tensors:
        end = at + 2 * int(np.prod(shape))
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors:
            file.write(numbers.make(name, shape, "f16").astype("<f2").tobytes())
    print(f"{path}: {len(tensors)} tensors, {at / 1e9:.2f} GB", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", choices=["flux-dev", "z-image", "klein-4b", "sd35-large", "qwen-image"])
    parser.add_argument("kind", choices=["q4_0", "q8_0", "f16", "bf16"])
    parser.add_argument("--blocks", type=int, default=1 << 20)
    parser.add_argument("--no-text", action="store_true")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    numbers, most = Numbers(), args.blocks
    qwen3 = ("--llm", "gguf", lambda: llm(2560, 36, 32, 8, 9728, 151936, False, 1 << 20), "qwen3")
    t5 = ("--t5xxl", "gguf", lambda: t5xxl(1 << 20), "t5encoder")
    clip_l = lambda projection: ("--clip_l", "safetensors", lambda: clip(768, 12, 3072, projection), None)
    kl = ("--vae", "safetensors", lambda: kl_vae(16, False), None)
    transformer, parts = {
        "flux-dev": (lambda: flux_dev(most), [clip_l(None), t5, kl]),
        "z-image": (lambda: z_image(most), [qwen3, kl]),
        "klein-4b": (lambda: klein_4b(most), [qwen3, ("--vae", "safetensors", lambda: kl_vae(32, True), None)]),
        "sd35-large": (lambda: sd35_large(most), [clip_l(768), ("--clip_g", "safetensors", lambda: clip(1280, 32, 5120, 1280), None), t5, kl]),
        "qwen-image": (lambda: qwen_image(most), [("--llm", "gguf", lambda: llm(3584, 28, 28, 4, 18944, 152064, True, 1 << 20), "qwen2vl"),
                                                  ("--vae", "safetensors", qwen_vae, None)]),
    }[args.model]
    architecture = {"z-image": "lumina2", "sd35-large": "sd3", "qwen-image": "qwen_image"}.get(args.model, "flux")
    flags = []
    for flag, form, make, arch in [("--diffusion-model", "gguf", transformer, architecture), *parts]:
        if args.no_text and flag in ("--clip_l", "--clip_g", "--t5xxl", "--llm"):
            continue
        path = args.folder / f"{args.model}-{flag.strip('-')}.{form}"
        if form == "gguf":
            gguf(path, make(), args.kind, arch, numbers)
        else:
            safetensors(path, make(), numbers)
        flags += [flag, str(path)]
    print(" ".join(flags))


if __name__ == "__main__":
    main()
