"""Write small model files as other programs write them, for the tests of crates/weights.

usage: file_fixtures.py LIBGGML [OUT]     (default crates/weights/tests/fixtures/files)

LIBGGML is a shared library of ggml with its src/gguf.cpp, made as block_fixtures.py says: its writer is the one that stable-diffusion.cpp converts with.

expected.safetensors has the numbers of every tensor of every file as float32, under FILE/TENSOR: what torch, gguf and safetensors read from them.
Needs torch, pytorch_lightning, gguf, numpy, safetensors.
"""
import argparse
import collections
import ctypes
import json
import os
import pathlib
import pickle
import sys
import tempfile

import gguf
import numpy as np
import pytorch_lightning as pl
import torch
from safetensors.torch import save_file

OUT = sys.argv[2] if len(sys.argv) > 2 else "crates/weights/tests/fixtures/files"
EXPECTED = {}
torch.manual_seed(24)


def at(name):
    return os.path.join(OUT, name)


def expect(file, tensors):
    for name, tensor in tensors.items():
        EXPECTED[f"{file}/{name}"] = tensor.detach().float().contiguous().clone()


class Net(pl.LightningModule):
    def __init__(self, width):
        super().__init__()
        self.save_hyperparameters()
        self.first = torch.nn.Linear(width, 4)
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.first(x))

    def training_step(self, batch, _):
        loss = self(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


def lightning():
    """A checkpoint of a real training, with optimiser state, callbacks and loops."""
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 6)), batch_size=4)
    with tempfile.TemporaryDirectory() as folder:
        keep = pl.callbacks.ModelCheckpoint(dirpath=folder, monitor="loss")
        trainer = pl.Trainer(max_epochs=2, callbacks=[keep, pl.callbacks.EarlyStopping("loss")], logger=False, accelerator="cpu",
                             enable_progress_bar=False, enable_model_summary=False)
        net = Net(6)
        trainer.fit(net, data)
        trainer.save_checkpoint(at("lightning.ckpt"))
    expect("lightning.ckpt", net.state_dict())


def state():
    """Tensors of all kinds, and what trainers put beside them."""
    base = torch.randn(5, 7)
    tensors = collections.OrderedDict(
        single=torch.randn(3, 4), double=torch.randn(2, 3).double(), half=torch.randn(4, 3, 3, 3).half(), brain=torch.randn(6, 2).bfloat16(),
        long=torch.arange(5), short=torch.arange(4, dtype=torch.int16), byte=torch.arange(7, dtype=torch.uint8), bool=torch.tensor([True, False]),
        parameter=torch.nn.Parameter(torch.randn(3)), view=base[1:3], transposed=base.t(), permuted=torch.randn(2, 3, 4).permute(2, 0, 1).half(),
        scalar=torch.tensor(2.5), empty=torch.zeros(0, 3))
    tensors["tied"] = tensors["single"]
    optimiser = torch.optim.Adam([tensors["parameter"]], lr=0.1)
    tensors["parameter"].grad = torch.ones(3)
    optimiser.step()
    return tensors, {
        "state_dict": tensors, "optimizer_states": [optimiser.state_dict()], "epoch": 3, "global_step": np.int64(77), "best": np.float32(0.5),
        "array": np.arange(3.0), "hyper_parameters": argparse.Namespace(lr=0.1, name="x"), "size": torch.Size([1, 2]), "dtype": torch.float16,
        "callbacks": {pl.callbacks.ModelCheckpoint: {"monitor": "loss"}}, "deep": [{"a": (1, 2.0, None, True, b"bytes", "ü")}] * 3,
        "rng": torch.get_rng_state(), "device": torch.device("cpu"), "large": 1 << 70, "negative": -3, "set": {1, 2}}


def pickles():
    tensors, everything = state()
    torch.save(everything, at("zip.ckpt"))
    torch.save(everything, at("legacy.ckpt"), _use_new_zipfile_serialization=False)
    torch.save(everything, at("protocol4.ckpt"), pickle_protocol=4)
    torch.save(everything, at("legacy4.ckpt"), _use_new_zipfile_serialization=False, pickle_protocol=4)
    for name in ["zip.ckpt", "legacy.ckpt", "protocol4.ckpt", "legacy4.ckpt"]:
        expect(name, tensors)
    torch.save({"params": {"a": torch.ones(2)}, "params_ema": {"conv.weight": tensors["half"]}}, at("params.pth"))
    expect("params.pth", {"conv.weight": tensors["half"]})
    plain = {"e4m3": torch.randn(4, 8).to(torch.float8_e4m3fn), "e5m2": torch.randn(4, 8).to(torch.float8_e5m2)}
    torch.save(plain, at("fp8.pt"))
    expect("fp8.pt", plain)
    save_file(plain, at("fp8.safetensors"))
    expect("fp8.safetensors", plain)
    for i, names in enumerate([["single", "half"], ["brain"]], 1):
        torch.save({name: tensors[name] for name in names}, at(f"pytorch_model-{i:05}-of-00002.bin"))
    index = {"single": 1, "half": 1, "brain": 2}
    with open(at("pytorch_model.bin.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": {k: f"pytorch_model-{i:05}-of-00002.bin" for k, i in index.items()}}, f)
    expect("pytorch_model.bin.index.json", {name: tensors[name] for name in index})

    class Harm:
        def __reduce__(self):
            return os.system, ("touch /tmp/harmed",)

    harmful = {"state_dict": {"w": torch.ones(2)}, "x": Harm()}
    torch.save(harmful, at("system.ckpt"))
    torch.save(harmful, at("system_legacy.ckpt"), _use_new_zipfile_serialization=False)
    torch.save(harmful, at("system4.ckpt"), pickle_protocol=4)
    with open(at("plain.pkl"), "wb") as f:
        pickle.dump({"w": [1.0, 2.0]}, f, protocol=2)


def scaled():
    """Eight-bit weights with scales, in the dialects of ComfyUI."""
    weight, fp8 = torch.randn(6, 8), torch.float8_e4m3fn
    one = weight.abs().max() / 448
    rows = weight.abs().amax(1, keepdim=True) / 448
    integer = weight.abs().amax(1, keepdim=True) / 127
    other = {"plain.weight": torch.randn(3, 4).bfloat16(), "first.bias": torch.randn(6)}
    bits = lambda text: torch.tensor(list(json.dumps(text).encode()), dtype=torch.uint8)

    def write(name, tensors, true, metadata=None):
        save_file({**tensors, **other}, at(name), metadata=metadata)
        expect(name, {**other, **true})

    stored = (weight / one).to(fp8)
    dense = {"kept.weight": torch.randn(2, 8).half(), "kept.scale_weight": torch.tensor(0.5)}
    write("scaled_old.safetensors",
          {"scaled_fp8": torch.zeros(2).to(fp8), "first.weight": stored, "first.scale_weight": one, "first.scale_input": torch.tensor(1.5), **dense},
          {"first.weight": stored.float() * one, "kept.weight": dense["kept.weight"].float() * 0.5})
    layers = json.dumps({"format_version": "1.0", "layers": {"first": {"format": "float8_e4m3fn"}}})
    write("scaled_new.safetensors", {"first.weight": stored, "first.weight_scale": one, "first.input_scale": torch.tensor(1.5)},
          {"first.weight": stored.float() * one}, {"_quantization_metadata": layers})
    by_row = (weight / rows).to(fp8)
    write("scaled_rows.safetensors", {"first.weight": by_row, "first.weight_scale": rows, "first.comfy_quant": bits({"format": "float8_e4m3fn"})},
          {"first.weight": by_row.float() * rows})
    whole = (weight / integer).round().to(torch.int8)
    write("int8.safetensors", {"first.weight": whole, "first.weight_scale": integer, "first.comfy_quant": bits({"format": "int8_tensorwise"})},
          {"first.weight": whole.float() * integer})
    write("convrot.safetensors", {"first.weight": whole, "first.weight_scale": integer,
                                  "first.comfy_quant": bits({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 256})}, {})


def ggufs():
    rng = np.random.default_rng(24)
    T = gguf.GGMLQuantizationType

    def fill(w, arch="sdxl"):
        w.add_uint8("t.u8", 200); w.add_int8("t.i8", -5); w.add_uint16("t.u16", 60000); w.add_int16("t.i16", -300)
        w.add_uint32("t.u32", 4000000000); w.add_int32("t.i32", -70000); w.add_uint64("t.u64", 1 << 63); w.add_int64("t.i64", -(1 << 62))
        w.add_float32("t.f32", 0.5); w.add_float64("t.f64", 0.1); w.add_bool("t.yes", True); w.add_bool("t.no", False)
        w.add_string("t.text", "grüße"); w.add_array("t.numbers", [1, -2, 3]); w.add_array("t.floats", [0.5, 0.25]); w.add_array("t.flags", [True, False])
        w.add_token_list(["<s>", "hello", "wörld"]); w.add_token_scores([0.0, -1.5, -2.5])
        w.add_array("comfy.gguf.orig_shape.reshaped", [4, 12, 16])

    w = gguf.GGUFWriter(at("all.gguf"), "sdxl")
    fill(w)
    for name, kind in [("f32", T.F32), ("f16", T.F16), ("bf16", T.BF16), ("q4_0", T.Q4_0), ("q4_1", T.Q4_1), ("q5_0", T.Q5_0), ("q5_1", T.Q5_1),
                       ("q8_0", T.Q8_0), ("mxfp4", T.MXFP4)]:
        x = rng.normal(0, 0.1, (3, 64)).astype(np.float32)
        data = gguf.quants.quantize(x, kind)
        w.add_tensor(name, data, raw_dtype=kind)
        EXPECTED[f"all.gguf/{name}"] = torch.from_numpy(np.array(gguf.quants.dequantize(data, kind)))
    for name, kind in [("q4_k", T.Q4_K), ("q6_k", T.Q6_K), ("reshaped", T.Q5_K), ("iq2_xxs", T.IQ2_XXS)]:
        rows = 3
        data = rng.integers(0, 256, (rows, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
        for scale in {T.Q6_K: [208]}.get(kind, [0, 2]):
            data[:, scale:scale + 2] = np.float16(0.01).view(np.uint16).reshape(1, 1).view(np.uint8)
        w.add_tensor(name, data, raw_dtype=kind)
        if kind != T.IQ2_XXS:
            EXPECTED[f"all.gguf/{name}"] = torch.from_numpy(np.array(gguf.quants.dequantize(data, kind)))
    EXPECTED["all.gguf/reshaped"] = EXPECTED["all.gguf/reshaped"].reshape(4, 12, 16)
    w.add_tensor("i32", np.arange(6, dtype=np.int32).reshape(2, 3))
    w.add_tensor("f64", np.linspace(0, 1, 5))
    EXPECTED["all.gguf/f64"] = torch.linspace(0, 1, 5, dtype=torch.float64).float()
    finish(w)

    w = gguf.GGUFWriter(at("aligned.gguf"), "flux")
    w.add_custom_alignment(256)
    x = rng.normal(0, 1, (2, 3, 4, 5)).astype(np.float32)
    w.add_tensor("x", x)
    w.add_tensor("y", x[0, 0, 0])
    EXPECTED["aligned.gguf/x"], EXPECTED["aligned.gguf/y"] = torch.from_numpy(x), torch.from_numpy(x[0, 0, 0].copy())
    finish(w)

    w = gguf.GGUFWriter(at("parts"), "flux", split_max_tensors=2)
    for i in range(5):
        x = rng.normal(0, 1, (2, 3)).astype(np.float32)
        w.add_tensor(f"x{i}", x)
        EXPECTED[f"parts-00001-of-00003.gguf/x{i}"] = torch.from_numpy(x)
    w.write_header_to_file(pathlib.Path(at("parts.gguf")))
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


class Memory(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def ggml():
    """A file without any metadata, as stable-diffusion.cpp makes it."""
    lib = ctypes.CDLL(sys.argv[1])
    for function in "ggml_init ggml_new_tensor_2d ggml_set_name ggml_get_data gguf_init_empty".split():
        getattr(lib, function).restype = ctypes.c_void_p
    lib.ggml_init.argtypes = [Memory]
    lib.ggml_new_tensor_2d.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    lib.ggml_set_name.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    lib.ggml_get_data.argtypes = [ctypes.c_void_p]
    lib.gguf_add_tensor.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    lib.gguf_write_to_file.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_bool]
    lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    context, out = lib.ggml_init(Memory(1 << 20, None, False)), lib.gguf_init_empty()
    for kind in "F16 Q8_0 Q4_K Q3_K Q2_K IQ4_NL IQ4_XS".split():
        kind = gguf.GGMLQuantizationType[kind]
        name = f"model.diffusion_model.{kind.name}.weight"
        x = np.random.default_rng(int(kind)).normal(0, 0.1, (2, 256)).astype(np.float32)
        tensor = lib.ggml_new_tensor_2d(context, int(kind), 256, 2)
        lib.ggml_set_name(tensor, name.encode())
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        data = lib.ggml_get_data(tensor)
        lib.ggml_quantize_chunk(int(kind), x.ctypes.data, data, 0, 2, 256, None)
        made = np.frombuffer(ctypes.string_at(data, x.size // elements * size), dtype=np.uint8).reshape(2, -1)
        lib.gguf_add_tensor(out, tensor)
        EXPECTED[f"ggml.gguf/{name}"] = torch.from_numpy(np.array(gguf.quants.dequantize(made, kind)).reshape(2, 256))
    assert lib.gguf_write_to_file(out, at("ggml.gguf").encode(), False)


os.makedirs(OUT, exist_ok=True)
lightning()
pickles()
scaled()
ggufs()
ggml()
save_file(EXPECTED, at("expected.safetensors"))
