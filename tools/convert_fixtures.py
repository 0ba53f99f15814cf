"""Write a small model and what PyPI's gguf makes of it in every type that it can quantise, for crates/weights/tests/convert.rs.

usage: convert_fixtures.py [OUT]     (default crates/weights/tests/fixtures/convert)

model.safetensors      tensors of all kinds that converters treat differently, under names of FLUX.1
TYPE.gguf              the same by GGUFWriter, quantised by gguf.quants

Which tensors stay dense is said here once more, by hand: vectors and small tensors (in f32 if they were bf16), the layers at the ends of the
network, and rows that are no whole blocks. Needs gguf, safetensors, torch.
"""
import json
import os
import sys

import gguf
import torch
from safetensors.torch import save_file

OUT = sys.argv[1] if len(sys.argv) > 1 else "crates/weights/tests/fixtures/convert"
T = gguf.GGMLQuantizationType
FILE_TYPES = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "BF16": 32, "MXFP4": 38}
DENSE = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}

torch.manual_seed(24)
random = lambda *shape: torch.randn(*shape) * 0.05
# In the order of the file, which is that of safetensors: wide types first, then names.
MODEL = {
    "double_blocks.0.img_attn.proj.weight": (random(8, 192), "blocks"),
    "double_blocks.0.odd.weight": (random(41, 50), "odd"),
    "double_blocks.0.img_attn.proj.bias": (random(192), "vector"),
    "img_in.weight": (random(24, 64), "end"),
    "double_blocks.0.img_mlp.0.bias": (random(64).bfloat16(), "vector"),
    "double_blocks.0.img_mlp.0.weight": (random(16, 128).bfloat16(), "blocks"),
    "double_blocks.0.odd_bf16.weight": (random(40, 33).bfloat16(), "odd"),
    "final_layer.linear.weight": (random(24, 64).bfloat16(), "end"),
    "double_blocks.0.small.weight": (random(32, 32).bfloat16(), "vector"),
    "double_blocks.0.conv.weight": (random(1, 3, 16, 32).half(), "blocks"),
    "double_blocks.0.txt_attn.proj.bias": (random(64).half(), "vector"),
}


def written(kind, tensor, wanted):
    source = DENSE[tensor.dtype]
    if kind == "vector" and (wanted not in ("F32", "F16")):
        return "F32" if source == "BF16" else source
    if wanted in ("F32", "F16", "BF16") or kind == "blocks":
        return wanted
    return source if kind == "end" or source == "BF16" else "F16"


def main():
    os.makedirs(OUT, exist_ok=True)
    save_file({name: tensor for name, (tensor, _) in MODEL.items()}, f"{OUT}/model.safetensors")
    with open(f"{OUT}/model.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    order = sorted((n for n in header if n != "__metadata__"), key=lambda name: header[name]["data_offsets"])
    for wanted, number in FILE_TYPES.items():
        writer = gguf.GGUFWriter(f"{OUT}/{wanted.lower()}.gguf", "flux")
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        writer.add_file_type(number)
        for name in order:
            tensor, kind = MODEL[name]
            ty = T[written(kind, tensor, wanted)]
            writer.add_tensor(name, gguf.quants.quantize(tensor.float().numpy(), ty), raw_dtype=ty)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


main()
