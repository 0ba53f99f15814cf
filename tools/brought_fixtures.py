"""Small tokenizers in every form that files bring them in, and the tokens that the reference gives prompts with each: crates/generate/tests/fixtures/brought/

t5/          tokenizer.json, spiece.model          pieces by SentencePiece, with a table of letters of its own
qwen/        tokenizer.json
qwen_parts/  vocab.json, merges.txt, tokenizer_config.json    the same
t5.gguf, qwen.gguf                                 the same in metadata
tekken.safetensors                                 Mistral's form in a tensor
tokens.jsonl                                       a prompt, its tokens by t5, by qwen, by tekken

usage: brought_fixtures.py [FOLDER]

Needs tokenizers, sentencepiece, tiktoken, gguf, safetensors and numpy.
"""
import base64
import io
import json
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
import sentencepiece
import tiktoken
from safetensors.numpy import save_file
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from nasty_prompts import PICKED, prompts

OUT = Path(sys.argv[1] if len(sys.argv) > 1 else "crates/generate/tests/fixtures/brought")
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
          r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = [text for text in prompts(5, 300, 100) if text.strip()]


def t5():
    OUT.joinpath("t5").mkdir(parents=True, exist_ok=True)
    table = OUT / "table.tsv"
    pairs = [("ﬁ", "fi"), ("ﬂ", "fl"), ("\t", " "), ("\n", " "), ("Ａ", "A"), ("e\u0301", "é"), ("½", "1/2"), ("\u3000", " ")]
    code = lambda text: " ".join(f"{ord(c):X}" for c in text)
    table.write_text("".join(f"{code(a)}\t{code(b)}\n" for a, b in pairs))
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=1200, model_type="unigram", character_coverage=0.98, hard_vocab_limit=False, pad_id=0, eos_id=1, unk_id=2,
        bos_id=-1, normalization_rule_tsv=str(table), pad_piece="<pad>", minloglevel=2)
    table.unlink()
    (OUT / "t5/spiece.model").write_bytes(model.getvalue())
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    tokenizer = Tokenizer(models.Unigram([(piece.piece, piece.score) for piece in proto.pieces], unk_id=2, byte_fallback=False))
    charsmap = proto.normalizer_spec.precompiled_charsmap
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(charsmap), normalizers.Strip(left=False), normalizers.Replace(Regex(" {2,}"), "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.save(str(OUT / "t5/tokenizer.json"), pretty=False)

    writer = gguf.GGUFWriter(OUT / "t5.gguf", "t5encoder")
    writer.add_tokenizer_model("t5")
    writer.add_token_list([piece.piece for piece in proto.pieces])
    writer.add_token_scores([piece.score for piece in proto.pieces])
    writer.add_token_types([piece.type for piece in proto.pieces])
    writer.add_precompiled_charsmap(charsmap)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(2)
    finish(writer)
    return lambda text: tokenizer.encode(text).ids


def finish(writer):
    writer.add_tensor("x", np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def qwen():
    for name in ("qwen", "qwen_parts"):
        OUT.joinpath(name).mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(QWEN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    tokenizer.save(str(OUT / "qwen/tokenizer.json"), pretty=False)
    config = {"eos_token": "<|im_end|>", "pad_token": {"content": "<|endoftext|>"}}
    (OUT / "qwen/tokenizer_config.json").write_text(json.dumps(config))
    model = json.loads(tokenizer.to_str())["model"]
    merges = [" ".join(merge) for merge in model["merges"]]
    (OUT / "qwen_parts/vocab.json").write_text(json.dumps(model["vocab"]))
    (OUT / "qwen_parts/merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    added = {tokenizer.token_to_id(text): {"content": text, "special": True} for text in SPECIALS}
    (OUT / "qwen_parts/tokenizer_config.json").write_text(json.dumps(config | {"added_tokens_decoder": added}))
    words = sorted(tokenizer.get_vocab(), key=tokenizer.token_to_id)

    writer = gguf.GGUFWriter(OUT / "qwen.gguf", "qwen3")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(words)
    writer.add_token_types([3 if word in SPECIALS else 1 for word in words])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(tokenizer.token_to_id("<|im_end|>"))
    writer.add_pad_token_id(tokenizer.token_to_id("<|endoftext|>"))
    finish(writer)
    letters = {letter: byte for byte, letter in gpt2_letters().items()}
    return lambda text: tokenizer.encode(text).ids, [bytes(letters[c] for c in word) for word in words if word not in SPECIALS]


def gpt2_letters():
    prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in prints]
    return {b: chr(b) for b in prints} | {b: chr(256 + i) for i, b in enumerate(others)}


def tekken(words):
    """The same words, ranked by their place, after ten special tokens."""
    specials = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[a]", "[b]", "[c]", "[d]", "<pad>"]
    file = {"config": {"pattern": TEKKEN, "num_vocab_tokens": len(words) + 5, "default_vocab_size": len(words) + 10, "default_num_special_tokens": 10, "version": "v7"},
            "vocab": [{"rank": i, "token_bytes": base64.b64encode(word).decode(), "token_str": None} for i, word in enumerate(words + [b"never%d" % i for i in range(5)])],
            "special_tokens": [{"rank": i, "token_str": text, "is_control": True} for i, text in enumerate(specials)]}
    data = np.frombuffer(json.dumps(file).encode(), np.uint8)
    save_file({"tekken_model": data}, OUT / "tekken.safetensors")
    encoding = tiktoken.Encoding("small", pat_str=TEKKEN, mergeable_ranks={word: i for i, word in enumerate(words)}, special_tokens={})
    import re
    cut = re.compile("(" + "|".join(map(re.escape, specials)) + ")")
    ids = lambda part: [specials.index(part)] if part in specials else [10 + i for i in encoding.encode_ordinary(part)]
    return lambda text: [i for part in cut.split(text) for i in ids(part)]


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    by_t5 = t5()
    by_qwen, words = qwen()
    by_tekken = tekken(words)
    special = ["<s>[INST]a cat[/INST]", "<|im_start|>user\na cat<|im_end|>\n", "ﬁne ﬂow e\u0301 ½", "</s>a<pad> b", "CamelCase HTTPServer/a//b don't", "a  b\n\n c"]
    texts = special + PICKED[::3] + TEXTS[-60:]
    with open(OUT / "tokens.jsonl", "w") as f:
        for text in texts:
            f.write(json.dumps([text, by_t5(text), by_qwen(text), by_tekken(text)], separators=(",", ":")) + "\n")
    print(len(texts), "prompts")


if __name__ == "__main__":
    main()
