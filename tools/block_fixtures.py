"""Write blocks of every storage with the numbers that reference implementations give them, for the tests of crates/weights.

usage: block_fixtures.py LIBGGML [OUT]     (default crates/weights/tests/fixtures/blocks.safetensors)

LIBGGML is a shared library with ggml_quantize_chunk, such as one made of src/ggml*.c of any release:
    gcc -O2 -shared -fPIC -Iinclude -Isrc src/ggml-quants.c src/ggml.c src/ggml-alloc.c src/ggml-threading.cpp src/ggml-backend.cpp -lm -lstdc++

decode.T.bytes, decode.T.numbers    blocks (random, and with zero, subnormal, infinite and NaN scales), decoded by PyPI's gguf
encode.x                            numbers of six distributions, (6, n)
encode.T.bytes                      what gguf (torch for fp8) makes of encode.x
ggml.T                              squared error of what ggml makes of each row of encode.x
fp8.x, fp8.T.bytes                  numbers of all sizes, as torch casts them
fp8.T.numbers                       all 256 bytes, as torch widens them

Needs gguf, numpy, safetensors, torch.
"""
import ctypes
import sys

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file

T = gguf.GGMLQuantizationType
DECODE = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4".split()
SAME_BYTES = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 MXFP4 BF16".split()
SEARCHED = "Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS".split()
# Where the half-precision scales stand in a block.
SCALES = {"Q4_1": [0, 2], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
EDGES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0x7C00, 0xFC00, 0x7E00]
FP8 = {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}


def blocks(rng, name):
    elements, size = gguf.GGML_QUANT_SIZES[T[name]]
    out = rng.integers(0, 256, (48 if elements == 32 else 20, size), dtype=np.uint8)
    if name == "MXFP4":
        out[:6, 0] = [0, 1, 2, 127, 254, 255]
        return out
    for at in SCALES.get(name, [0]):
        # Scales of weights, but for the edge blocks.
        scale = rng.normal(0, 0.01, len(out)).astype(np.float16).view(np.uint16)
        scale[:len(EDGES)] = rng.permutation(EDGES)
        out[:, at:at + 2] = scale.view(np.uint8).reshape(-1, 2)
    return out


def distributions(rng, n):
    outliers = rng.normal(0, 0.02, n) * np.where(rng.random(n) < 0.01, 12, 1)
    rows = [rng.normal(0, 0.03, n), rng.uniform(-1, 1, n), rng.laplace(0, 0.05, n), rng.standard_t(4, n) * 0.02, outliers,
            np.abs(rng.normal(0.4, 0.2, n))]
    x = np.stack(rows).astype(np.float16)
    # What real tensors have too: a row of zeros, one number alone, equal numbers.
    x[0, :256] = 0
    x[1, :256] = 0
    x[1, 77] = 0.25
    x[2, :256] = 0.125
    return x


def main():
    lib = ctypes.CDLL(sys.argv[1])
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    rng = np.random.default_rng(24)
    out = {}
    with np.errstate(all="ignore"):
        for name in DECODE:
            given = blocks(rng, name)
            out[f"decode.{name.lower()}.bytes"] = given
            out[f"decode.{name.lower()}.numbers"] = dequantize(given, T[name])
        x = distributions(rng, 12 * 256)
        out["encode.x"] = x
        x = x.astype(np.float32)
        for name in SAME_BYTES:
            out[f"encode.{name.lower()}.bytes"] = quantize(x, T[name]).reshape(-1).view(np.uint8)
    for name in SEARCHED:
        elements, size = gguf.GGML_QUANT_SIZES[T[name]]
        made = np.zeros((len(x), x.shape[1] // elements * size), dtype=np.uint8)
        lib.ggml_quantize_chunk(int(T[name]), x.ctypes.data, made.ctypes.data, 0, len(x), x.shape[1], None)
        error = dequantize(made, T[name]).astype(np.float64) - x
        out[f"ggml.{name.lower()}"] = (error ** 2).sum(-1).astype(np.float32)
    # Random bits are numbers of all sizes; half of them are of the sizes that eight bits can have.
    y = np.concatenate([rng.integers(0, 1 << 32, 2048, dtype=np.uint32).view(np.float32),
                        (rng.normal(0, 1, 2048) * 2.0 ** rng.integers(-18, 18, 2048)).astype(np.float32)])
    y = np.concatenate([y[~np.isnan(y)], np.array([0, -0.0, 448, 464, 465, 480, 57344, 61440, 61441, np.inf, -np.inf, np.nan], dtype=np.float32)])
    out["fp8.x"] = y
    for name, dtype in FP8.items():
        out[f"fp8.{name.lower()}.bytes"] = torch.from_numpy(y).to(dtype).view(torch.uint8).numpy()
        out[f"fp8.{name.lower()}.numbers"] = torch.arange(256, dtype=torch.uint8).view(dtype).float().numpy()
    path = sys.argv[2] if len(sys.argv) > 2 else "crates/weights/tests/fixtures/blocks.safetensors"
    save_file({k: np.ascontiguousarray(v) for k, v in out.items()}, path)


main()
