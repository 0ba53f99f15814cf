"""Packs the vocabularies that the program has with it: crates/generate/src/prompt/vocabularies/{clip,t5,qwen}.zst.

    python3 tools/vocabularies.py FOLDER

FOLDER has the files as their makers publish them: bpe_simple_vocab_16e6.txt.gz (CLIP), t5_tokenizer.json (T5 v1.1), qwen_merges.txt and qwen_vocab.json
(Qwen2.5, Qwen3). What is not there is left as it is.
Needs the program zstd. What the files hold is said in embedded.rs, which reads them.
"""

import base64
import gzip
import json
import struct
import subprocess
import sys
from pathlib import Path

TO = Path(__file__).parent.parent / "crates/generate/src/prompt/vocabularies"


def planes(numbers, bytes_each):
    """All lowest bytes, then all second ones, ...: what is alike stands together, and packs better."""
    return b"".join(bytes(n >> (8 * plane) & 255 for n in numbers) for plane in range(bytes_each))


def pack(name, data):
    TO.mkdir(exist_ok=True)
    packed = subprocess.run(["zstd", "--ultra", "-22", "-c"], input=data, stdout=subprocess.PIPE, check=True).stdout
    (TO / name).write_bytes(packed)
    print(f"{name}: {len(data)} bytes, packed {len(packed)}")


def clip(folder):
    lines = gzip.open(folder / "bpe_simple_vocab_16e6.txt.gz").read().decode().split("\n")
    # The list goes on after what CLIP has of it.
    merges = [line.split(" ") for line in lines[1:48895]]
    # Bytes, the printable ones first, inside a word and at its end; then each merge is the next token.
    prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in prints] + [chr(256 + i) for i in range(256 - len(prints))]
    words = letters + [letter + "</w>" for letter in letters] + [a + b for a, b in merges]
    ids = {word: i for i, word in enumerate(words)}
    assert len(ids) == 49406
    pack("clip.zst", planes([ids[a] for a, _ in merges], 2) + planes([ids[b] for _, b in merges], 2))


def t5(folder):
    file = json.loads((folder / "t5_tokenizer.json").read_text())
    vocabulary = file["model"]["vocab"]
    charsmap = base64.b64decode(file["normalizer"]["normalizers"][0]["precompiled_charsmap"])
    # Scores fall, so the bits of their floats rise.
    bits = [struct.unpack("<I", struct.pack("<f", score))[0] for _, score in vocabulary]
    assert all(struct.unpack("<f", struct.pack("<f", score))[0] == score for _, score in vocabulary)
    steps = [(now - before) & 0xFFFFFFFF for before, now in zip([0] + bits, bits)]
    pieces = "\n".join(piece for piece, _ in vocabulary)
    assert pieces.count("\n") == len(vocabulary) - 1
    head = struct.pack("<II", len(vocabulary), len(charsmap))
    pack("t5.zst", head + planes(steps, 4) + charsmap + pieces.encode())


def qwen(folder):
    ids = json.loads((folder / "qwen_vocab.json").read_text())
    lines = (folder / "qwen_merges.txt").read_text().split("\n")
    merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    # Tokens 0 to 255 are bytes, and each merge is the next token.
    assert all(ids[a + b] == 256 + rank for rank, (a, b) in enumerate(merges))
    assert len(ids) == 256 + len(merges)
    pack("qwen.zst", planes([ids[a] for a, _ in merges], 3) + planes([ids[b] for _, b in merges], 3))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name, make in {"bpe_simple_vocab_16e6.txt.gz": clip, "t5_tokenizer.json": t5, "qwen_merges.txt": qwen}.items():
        if (folder / name).exists():
            make(folder)
