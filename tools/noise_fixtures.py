"""Write what torch.randn gives, for the tests of crates/generate: a line for each seed, with the sizes drawn in turn, which of the
numbers were kept (every n-th), and those.

usage: noise_fixtures.py cpu|cuda [OUT]     (default crates/generate/tests/fixtures/torch_{cpu,cuda}.txt)
"""
import sys

import torch

SEEDS = [0, 1, 42, 123, 1234, 4294967295, 4294967296, 123456789012345, 2**63 - 1, 31337]
device = sys.argv[1]
with open(sys.argv[2] if len(sys.argv) > 2 else f"crates/generate/tests/fixtures/torch_{device}.txt", "w") as f:
    for i, seed in enumerate(SEEDS):
        # On a CPU whole groups of 16, a rest, and fewer than a group; on CUDA the latents of common pictures.
        sizes = [16, 5, 40, 17, 3][i % 5:] + [64] if device == "cpu" else [16384, 4096, 37, 65536][i % 4:] + [4096]
        every = 1 if device == "cpu" else 509
        generator = torch.Generator(device).manual_seed(seed)
        numbers = [x for n in sizes for x in torch.randn(n, generator=generator, device=device).tolist()][::every]
        f.write(f"{seed} {','.join(map(str, sizes))} {every} {','.join('%.9g' % x for x in numbers)}\n")
