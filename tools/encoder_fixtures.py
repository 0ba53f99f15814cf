"""Make the states of texts that the text encoders of crates/model must reproduce, with transformers in float32.

usage: encoder_fixtures.py [OUT]     (default crates/model/tests/fixtures/encoders.safetensors)

Weights are not stored: both sides fill each tensor from its name (parity_fixtures.py). Beside it, encoder_names.json: what gguf calls the tensors of each.
Needs torch, transformers, numpy, safetensors and gguf.
"""
import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import MistralConfig, MistralModel, Qwen3Config, Qwen3Model, T5Config, T5EncoderModel
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextModel

from parity_fixtures import parameter

VOCABULARY = 100
T5 = dict(vocab_size=VOCABULARY, d_model=48, d_kv=4, d_ff=96, num_layers=3, num_heads=8, feed_forward_proj="gated-gelu", dropout_rate=0.0)
LLM = dict(vocab_size=VOCABULARY, hidden_size=48, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
           rms_norm_eps=1e-6, use_cache=False, attn_implementation="eager")


def ids(batch, tokens):
    return torch.arange(batch * tokens).reshape(batch, tokens) * 37 % VOCABULARY


def mask(lengths, tokens):
    return torch.stack([(torch.arange(tokens) < length).long() for length in lengths])


def fill(model, change=lambda name, numbers: numbers):
    def tensor(name, shape):
        name = "shared.weight" if name == "encoder.embed_tokens.weight" else name
        return torch.from_numpy(np.ascontiguousarray(change(name, parameter(name, shape))))

    model.load_state_dict({k: tensor(k, tuple(v.shape)) for k, v in model.state_dict().items()})
    return model.eval()


def t5(results):
    model = fill(T5EncoderModel(T5Config(**T5)))
    # Long enough for distances that are all alike.
    results["t5.hidden"] = model(input_ids=ids(2, 150)).last_hidden_state
    results["t5.masked"] = model(input_ids=ids(2, 20), attention_mask=mask([20, 7], 20)).last_hidden_state


def qwen3(results):
    model = fill(Qwen3Model(Qwen3Config(**LLM, rope_parameters=dict(rope_type="default", rope_theta=1e6))))
    states = model(input_ids=ids(2, 33), attention_mask=mask([33, 12], 33), output_hidden_states=True).hidden_states
    results["qwen3.three"] = torch.cat([states[i] for i in (1, 2, 3)], dim=-1)
    results["qwen3.before_last"] = model(input_ids=ids(1, 33), output_hidden_states=True).hidden_states[-2]


def qwen25(results):
    config = Qwen2_5_VLTextConfig(**LLM | dict(hidden_size=64), rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=[2, 3, 3]))
    model = fill(Qwen2_5_VLTextModel(config))
    results["qwen25.hidden"] = model(input_ids=ids(2, 33), attention_mask=mask([33, 12], 33)).last_hidden_state


def mistral(results):
    config = MistralConfig(**LLM | dict(rms_norm_eps=1e-5), rope_parameters=dict(rope_type="default", rope_theta=1e9), sliding_window=None)
    states = fill(MistralModel(config))(input_ids=ids(2, 33), output_hidden_states=True).hidden_states
    results["mistral.two"] = torch.cat([states[1], states[3]], dim=-1)

    def from_gguf(name, numbers):
        """What transformers has where llama.cpp has these rows of queries and keys."""
        if not name.endswith(("q_proj.weight", "k_proj.weight")):
            return numbers
        heads = numbers.shape[0] // LLM["head_dim"]
        return numbers.reshape(heads, LLM["head_dim"] // 2, 2, -1).swapaxes(1, 2).reshape(numbers.shape)

    results["mistral.gguf"] = fill(MistralModel(config), from_gguf)(input_ids=ids(2, 33)).last_hidden_state


def names():
    """By architecture, the names that transformers and GGUF have for a tensor."""
    arch = gguf.MODEL_ARCH
    small = LLM | dict(num_hidden_layers=2)
    rope = dict(rope_parameters=dict(rope_type="default", rope_theta=1e6))
    vl = Qwen2_5_VLTextConfig(**small | dict(hidden_size=64), rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=[2, 3, 3]))
    models = {
        "t5": (arch.T5ENCODER, T5EncoderModel(T5Config(**T5 | dict(num_layers=2))), ""),
        "qwen3": (arch.QWEN3, Qwen3Model(Qwen3Config(**small, **rope)), "model."),
        "qwen2": (arch.QWEN2VL, Qwen2_5_VLTextModel(vl), "model."),
        "mistral": (arch.LLAMA, MistralModel(MistralConfig(**small, **rope)), "model."),
    }
    found = {}
    for name, (architecture, model, prefix) in models.items():
        of = gguf.get_tensor_name_map(architecture, 2)
        ours = [(key, tuple(tensor.shape)) for key, tensor in model.state_dict().items() if key != "encoder.embed_tokens.weight"]
        found[name] = [[key, of.get_name(prefix + key, (".weight", ".bias")), shape] for key, shape in ours]
    return found


@torch.no_grad()
def main(out):
    torch.use_deterministic_algorithms(True)
    results = {}
    for make in (t5, qwen3, qwen25, mistral):
        make(results)
    results = {k: np.ascontiguousarray(v, dtype=np.float32) for k, v in results.items()}
    save_file(results, out)
    Path(out).with_name("encoder_names.json").write_text(json.dumps(names(), separators=(",", ":")))
    for name, value in results.items():
        print(name, value.shape, "rms %.3f" % np.sqrt((value.astype(np.float64) ** 2).mean()))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "crates/model/tests/fixtures/encoders.safetensors")
