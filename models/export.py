"""The trained parts as one file in Stable Diffusion 1's original layout, f16, and compressed.

usage: export.py TRAINED_DIR OUT.safetensors [--rough]

With --rough, f16 as it is and not compressed, which is quick. TRAINED_DIR holds vae.safetensors and painter-ema.safetensors (train.py). Writes OUT.safetensors and, where the `zstd` command is
there, OUT.safetensors.zst. Weights are rounded to as many bits of f16's ten as still fit the limit: the last ones are noise
to the networks and cost most of the bytes, since they do not compress.
"""
import random
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import networks as N
import scenes
from render import Renderer
from tokens import Tokens

LIMIT = 16_000_000
PREFIXES = {"vae": "first_stage_model.", "text": "cond_stage_model.transformer.", "unet": "model.diffusion_model."}
TABLE = "text_model.embeddings.token_embedding.weight"
METADATA = {"format": "pt", "modelspec.architecture": "stable-diffusion-v1", "modelspec.title": "Impasto default",
            "modelspec.resolution": "256x256", "modelspec.prediction_type": "epsilon", "text_heads": str(N.TEXT_WIDTH // 64),
            "impasto.cfg_scale": "5"}


def full_table(compact, tokens):
    """Rows of the whole CLIP vocabulary, zero for words never seen: (rows, width) -> (49408, width)."""
    table = torch.zeros(49408, compact.shape[1])
    table[torch.tensor(tokens.clip_ids)] = compact[1:].float()
    return table


def round_mantissa(x, bits):
    """f16 with only `bits` of its ten mantissa bits, rounded to nearest. The carry into the exponent is what rounding up means."""
    drop = 10 - bits
    if drop == 0:
        return x
    raw = x.contiguous().view(torch.int16).int()
    raw = (raw + (1 << (drop - 1)) - 1 + ((raw >> drop) & 1)) >> drop << drop
    return raw.to(torch.int16).view(torch.float16)


def gather(folder, tokens):
    """All tensors by their names in the file, float32."""
    vae = load_file(Path(folder) / "vae.safetensors")
    painter = load_file(Path(folder) / "painter-ema.safetensors")
    tensors = {PREFIXES["vae"] + k: v for k, v in vae.items()}
    for name, v in painter.items():
        part, k = name.split(".", 1)
        if part == "reader":  # was of use in training only
            continue
        tensors[PREFIXES[part] + k] = full_table(v, tokens) if k == TABLE else v
    return {k: v.float() for k, v in tensors.items()}


def load(path):
    """The three networks from an exported file, in float32: autoencoder, text encoder, UNet."""
    tensors = load_file(path)
    part = lambda p: {k[len(p):]: v.float() for k, v in tensors.items() if k.startswith(p)}
    vae, text, unet = N.Autoencoder(), N.TextEncoder(49408), N.UNet()
    for network, prefix in ((vae, PREFIXES["vae"]), (text, PREFIXES["text"]), (unet, PREFIXES["unet"])):
        network.load_state_dict(part(prefix))
        network.eval()
    return vae, text, unet


@torch.no_grad()
def colours(vae, count=64):
    """What a latent looks like without a network, for `--preview proj`: red, green and blue of each channel and of none, by least squares."""
    some = scenes.pack([scenes.sample(random.Random(f"colours {i}")) for i in range(count)])
    pictures = Renderer("cpu", 256)(some) * 2 - 1
    latents = torch.cat([vae.encode(p)[0] for p in pictures.split(8)]) * N.LATENT_SCALE
    small = torch.nn.functional.avg_pool2d(pictures, 8)
    columns = lambda x: x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
    known = torch.cat([columns(latents), torch.ones(latents.numel() // latents.shape[1], 1)], 1)
    mix = torch.linalg.lstsq(known, columns(small)).solution
    return ";".join(" ".join(f"{v:.4f}" for v in row) for row in mix.tolist())


def compress(path):
    packed = Path(f"{path}.zst")
    subprocess.run(["zstd", "--ultra", "-22", "--long=27", "-q", "-f", str(path), "-o", str(packed)], check=True)
    return packed.stat().st_size


def main(folder, out, rough=None):
    tensors = gather(folder, Tokens())
    assert all(v.isfinite().all() and v.abs().max() < 65504 for v in tensors.values()), "a weight does not fit f16"
    said = METADATA
    if not rough:
        vae = N.Autoencoder()
        vae.load_state_dict({k.removeprefix(PREFIXES["vae"]): v for k, v in tensors.items() if k.startswith(PREFIXES["vae"])})
        said = METADATA | {"impasto.preview": colours(vae.eval())}
    for bits in range(10, 4, -1):
        save_file({k: round_mantissa(v.half(), bits).contiguous() for k, v in sorted(tensors.items())}, out, said)
        if rough or shutil.which("zstd") is None:
            print(f"{out}: {Path(out).stat().st_size:,} bytes, neither rounded nor compressed")
            return
        size = compress(out)
        print(f"{bits} bits: {Path(out).stat().st_size:,} bytes, compressed {size:,}")
        if size <= LIMIT:
            return
    sys.exit(f"does not fit {LIMIT:,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) == 3 or sys.argv[3:] == ["--rough"] else sys.exit(__doc__)
