"""The ops of `impasto bench ops` on PyTorch (cuBLAS, cuDNN, its fused attention), for comparison in one run on one machine. Needs torch with CUDA.

usage: torch_ops.py [f16|bf16]
"""
import sys

import torch
import torch.nn.functional as F

dtype = torch.bfloat16 if sys.argv[1:] == ["bf16"] else torch.float16


def random(*shape):
    return torch.rand(*shape, device="cuda", dtype=torch.float32).sub(0.5).to(dtype)


def measure(name, flops, run):
    for _ in range(3):
        run()
    best = float("inf")
    for _ in range(20):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3)
    print(f"{name:<32} {best * 1e6:>9.1f} us {flops / best / 1e12:>7.1f} TFLOP/s", flush=True)


for m, n, k in [(8192, 8192, 8192), (2048, 1280, 1280), (2048, 1280, 5120), (8192, 640, 640)]:
    x, w = random(m, k), random(n, k)
    measure(f"product {m}x{n}x{k}", 2 * m * n * k, lambda: F.linear(x, w))
for batch, side, c in [(2, 64, 640), (1, 512, 256)]:
    x = random(batch, c, side, side).to(memory_format=torch.channels_last)
    w = random(c, c, 3, 3).to(memory_format=torch.channels_last)
    measure(f"convolution {batch}x{side}x{side}x{c}", 18 * batch * side * side * c * c, lambda: F.conv2d(x, w, padding=1))
for batch, tokens, heads, width in [(1, 4096, 24, 128), (2, 4096, 10, 64), (2, 4096, 8, 40)]:
    q, k, v = (random(batch, tokens, heads, width).transpose(1, 2) for _ in range(3))
    pictures = "" if batch == 1 else f"{batch}x"
    name = f"attention {pictures}{tokens} tokens, {heads}x{width}"
    measure(name, 4 * batch * heads * tokens * tokens * width, lambda: F.scaled_dot_product_attention(q, k, v))
