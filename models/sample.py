"""The reference sampler: Euler over Stable Diffusion 1's schedule, with guidance. Writes contact sheets.

usage: sample.py MODEL.safetensors OUT.png [--seeds 2] [--steps 20] [--guidance 6] ["a prompt" ...]
MODEL is an exported file (export.py); without prompts, the 24 of the gallery.
"""
import argparse

import torch

from networks import LATENT_SCALE, alphas_bar
from picture import save_sheet
from prompts import GALLERY
from tokens import Tokens


def schedule(steps, device):
    """Steps from 999 down to 0 and their noise levels, the last level 0: (steps,) and (steps + 1,)."""
    bar = alphas_bar(device)
    t = torch.linspace(999, 0, steps, device=device)
    log_sigmas = ((1 - bar) / bar).sqrt().log()
    low = t.floor().long()
    high = (low + 1).clamp(max=999)
    sigmas = torch.lerp(log_sigmas[low], log_sigmas[high], t - low).exp()
    return t, torch.cat([sigmas, sigmas.new_zeros(1)])


@torch.no_grad()
def sample(unet, text, noise, steps=20, guidance=6.0, empty=None):
    """noise (batch, 4, h, w), text and empty (batch, 77, width) -> latents of unit variance."""
    t, sigmas = schedule(steps, noise.device)
    x = noise * sigmas[0]
    both = torch.cat([empty, text])
    for i in range(steps):
        seen = (x / (sigmas[i] ** 2 + 1).sqrt()).repeat(2, 1, 1, 1)
        without, with_ = unet(seen, t[i].expand(len(seen)), both).float().chunk(2)
        x = x + (without + guidance * (with_ - without)) * (sigmas[i + 1] - sigmas[i])
    return x


@torch.no_grad()
def pictures(vae, text_encoder, unet, tokens, prompts, seeds, device, steps=20, guidance=6.0, size=256, batch=64, encode=None):
    """One picture per prompt and seed, (n, 3, size, size) in 0..1. `encode` turns a caption into the text encoder's ids:
    compact ones while training, those of CLIP for an exported file."""
    encode = encode or tokens.encode
    out = []
    for start in range(0, len(prompts), batch):
        some = prompts[start:start + batch]
        ids = torch.stack([torch.from_numpy(encode(p)) for p in [*some, ""]]).to(device)
        text = text_encoder(ids)
        # Noise is drawn on the CPU, one generator per picture, so that a picture depends on its own seed alone.
        noise = torch.stack([torch.randn(4, size // 8, size // 8, generator=torch.Generator().manual_seed(s)) for s in seeds[start:start + batch]])
        latents = sample(unet, text[:-1], noise.to(device), steps, guidance, text[-1:].expand(len(some), -1, -1))
        out.append((vae.decode(latents / LATENT_SCALE).float() * 0.5 + 0.5).clamp(0, 1).cpu())
    return torch.cat(out)


def main():
    from export import load
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("prompts", nargs="*", default=list(GALLERY))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--guidance", type=float, default=6.0)
    parser.add_argument("--size", type=int, default=256)
    args = parser.parse_intermixed_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    vae, text, unet = (m.to(device) for m in load(args.model))
    tokens = Tokens()
    prompts = [p for p in args.prompts for _ in range(args.seeds)]
    seeds = list(range(args.seeds)) * len(args.prompts)
    made = pictures(vae, text, unet, tokens, prompts, seeds, device, args.steps, args.guidance, args.size, 16,
                    encode=lambda caption: tokens.to_clip(tokens.encode(caption)))
    save_sheet(args.out, made, 4 * args.seeds if args.seeds < 3 else args.seeds)


if __name__ == "__main__":
    main()
