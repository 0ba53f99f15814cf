"""Write what torch.randn gives on a CPU, for the tests of crates/generate: a line for each seed and list of sizes drawn in turn.

usage: noise_fixtures.py [OUT]     (default crates/generate/tests/fixtures/torch_cpu.txt)
"""
import sys

import torch

SEEDS = [0, 1, 42, 123, 1234, 4294967295, 4294967296, 123456789012345, 2**63 - 1, 31337]
with open(sys.argv[1] if len(sys.argv) > 1 else "crates/generate/tests/fixtures/torch_cpu.txt", "w") as f:
    for i, seed in enumerate(SEEDS):
        # Whole groups of 16, a rest, and fewer than a group.
        sizes = [16, 5, 40, 17, 3][i % 5:] + [64]
        generator = torch.Generator().manual_seed(seed)
        numbers = [x for n in sizes for x in torch.randn(n, generator=generator).tolist()]
        f.write(f"{seed} {','.join(map(str, sizes))} {','.join('%.9g' % x for x in numbers)}\n")
