"""A step of FLUX.2 klein-4B on the CPU by PyTorch in f32: its blocks as plain PyTorch, one of each kind timed and multiplied by how many there are, so
that little memory is enough. For comparison with `impasto bench model --family klein-4b` in one run on one machine. Needs torch.

usage: torch_klein.py [SIZE [THREADS]]
"""
import sys
import time

import torch
import torch.nn.functional as F

size = int(sys.argv[1]) if sys.argv[1:] else 512
if sys.argv[2:]:
    torch.set_num_threads(int(sys.argv[2]))
H, HEADS, INNER, DOUBLE, SINGLE, TEXT = 3072, 24, 9216, 5, 20, 512
IMAGE = (size // 16) ** 2
weight = lambda out, into: torch.randn(out, into) * into**-0.5
cos, sin = torch.rand(TEXT + IMAGE, 1, 64), torch.rand(TEXT + IMAGE, 1, 64)
modulation = torch.randn(6, H) * 0.1


def modulated(x, shift, scale):
    return F.layer_norm(x, (H,), eps=1e-6) * (1 + scale) + shift


def rotated(x):
    a, b = x.unflatten(-1, (64, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def attention(q, k, v):
    q, k = (rotated(F.rms_norm(x, (128,), torch.ones(128), 1e-6)) for x in (q, k))
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).flatten(1)


def gated(x):
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


class Double:
    def __init__(self):
        stream = lambda: [weight(3 * H, H), weight(H, H), weight(2 * INNER, H), weight(H, INNER)]
        self.text, self.image = stream(), stream()

    def __call__(self, text, image):
        m = modulation
        heads = [F.linear(modulated(x, m[0], m[1]), w[0]).unflatten(-1, (3, HEADS, 128)) for x, w in ((text, self.text), (image, self.image))]
        mixed = attention(*torch.cat(heads).unbind(1)).split((TEXT, IMAGE))
        out = []
        for x, a, w in zip((text, image), mixed, (self.text, self.image)):
            x = x + m[2] * F.linear(a, w[1])
            out.append(x + m[5] * F.linear(gated(F.linear(modulated(x, m[3], m[4]), w[2])), w[3]))
        return out


class Single:
    def __init__(self):
        self.into, self.out = weight(3 * H + 2 * INNER, H), weight(H, H + INNER)

    def __call__(self, x):
        m = modulation
        qkv, mlp = F.linear(modulated(x, m[0], m[1]), self.into).split((3 * H, 2 * INNER), -1)
        mixed = attention(*qkv.unflatten(-1, (3, HEADS, 128)).unbind(1))
        return x + m[2] * F.linear(torch.cat((mixed, gated(mlp)), -1), self.out)


def seconds(run):
    best = float("inf")
    for _ in range(4):
        begun = time.monotonic()
        run()
        best = min(best, time.monotonic() - begun)
    return best


with torch.inference_mode():
    text, image = torch.randn(TEXT, H), torch.randn(IMAGE, H)
    block = Double()
    double = seconds(lambda: block(text, image))
    block = Single()
    single = seconds(lambda: block(torch.cat((text, image))))
    step = DOUBLE * double + SINGLE * single
    print(f"klein-4b step {size}, PyTorch {torch.__version__} f32, {torch.get_num_threads()} threads: {step:.1f} s (a double block {double:.2f}, a single block {single:.2f})")
