"""Packs the vocabularies that the program has with it: crates/generate/src/prompt/vocabularies/{t5,qwen}.zst.

    python3 tools/vocabularies.py FOLDER

FOLDER has the files as their makers publish them: t5_tokenizer.json (T5 v1.1), qwen_merges.txt and qwen_vocab.json (Qwen2.5, Qwen3).
Needs the program zstd. What the files hold is said in embedded.rs, which reads them.
"""

import base64
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
    t5(folder)
    qwen(folder)
