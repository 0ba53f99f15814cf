"""Write what transformers and webui make of prompts, for the tests of crates/generate:

clip_tokens.jsonl      the checksum of the merges; then a prompt and its tokens a line, and where they differ those of a tokeniser that pads with "!"
webui_prompts.jsonl    a prompt, its pieces [text, weight] (null is a break), and its chunks [tokens, [[weight, how often], ...]]

The tokens are CLIPTokenizerFast's, with the vocabulary that the package open_clip ships. The pieces and chunks come from the rules below,
which say in the plainest way what webui documents.

usage: tokenizer_fixtures.py [FOLDER]     (default crates/generate/tests/fixtures)
"""
import gzip
import json
import random
import re
import sys
import tempfile
from pathlib import Path

import open_clip
from transformers import CLIPTokenizerFast
from transformers.models.clip.tokenization_clip import bytes_to_unicode

from nasty_prompts import prompts

OUT = Path(sys.argv[1] if len(sys.argv) > 1 else "crates/generate/tests/fixtures")
START, END = "<|startoftext|>", "<|endoftext|>"


def tokenizers():
    """The tokeniser that pads with the end, the one that pads with "!", and the merges as pairs of ids."""
    shipped = gzip.open(Path(open_clip.__file__).parent / "bpe_simple_vocab_16e6.txt.gz").read().decode()
    merges = [tuple(line.split()) for line in shipped.split("\n")[1:48895]]
    letters = list(bytes_to_unicode().values())
    words = letters + [c + "</w>" for c in letters] + [a + b for a, b in merges] + [START, END]
    ids = {word: i for i, word in enumerate(words)}
    assert len(ids) == 49408
    with tempfile.TemporaryDirectory() as folder:
        vocab, rules = Path(folder, "vocab.json"), Path(folder, "merges.txt")
        vocab.write_text(json.dumps(ids))
        rules.write_text("#version: 0.2\n" + "\n".join(map(" ".join, merges)) + "\n")
        both = [CLIPTokenizerFast(str(vocab), str(rules), pad_token=pad) for pad in (END, "!")]
    return *both, [(ids[a], ids[b]) for a, b in merges]


def fnv(numbers):
    """FNV-1a of 32-bit numbers, little end first."""
    h = 0xCBF29CE484222325
    for n in numbers:
        for byte in n.to_bytes(4, "little"):
            h = ((h ^ byte) * 0x100000001B3) % 2**64
    return h


# --- webui's rules ---------------------------------------------------------------------------------------------------------------------

def pieces(prompt):
    """Lists of text and weight, a break is None. Brackets multiply everything that was read since they opened."""
    found, opened = [], {"(": [], "[": []}

    def scale(since, factor):
        for piece in found[since:]:
            if piece:
                piece[1] *= factor

    number = re.compile(r":\s*([+-]?[.0-9]+)\s*\)")
    at = 0
    while at < len(prompt):
        c, weight = prompt[at], number.match(prompt, at)
        if c == "\\":
            literal = prompt[at + 1:at + 2] if prompt[at + 1:at + 2] in tuple("\\()[]") else ""
            found.append([literal, 1.0])
            at += 1 + len(literal)
        elif c in "([":
            opened[c].append(len(found))
            at += 1
        elif weight and opened["("]:
            scale(opened["("].pop(), float(weight[1]))
            at = weight.end()
        elif c in ")]" and opened["(" if c == ")" else "["]:
            scale(opened["(" if c == ")" else "["].pop(), 1.1 if c == ")" else 1 / 1.1)
            at += 1
        else:
            end = weight.end() if weight else at + 1 if c in ":)]" else re.compile(r"[^\\()\[\]:]+").match(prompt, at).end()
            for i, part in enumerate(re.split(r"\s*\bBREAK\b\s*", prompt[at:end])):
                found += [None] * (i > 0) + [[part, 1.0]]
            at = end
    for shape, factor in (("(", 1.1), ("[", 1 / 1.1)):
        for since in opened[shape]:
            scale(since, factor)
    joined = []
    for piece in found or [["", 1.0]]:
        if piece and joined and joined[-1] and joined[-1][1] == piece[1]:
            joined[-1][0] += piece[0]
        else:
            joined.append(piece)
    return joined


def chunks(tokenizer, found):
    """75 tokens each. A full chunk gives what follows its last comma to the next one, if that is at most 20 tokens back."""
    done, tokens, comma = [], [], None
    for piece in found:
        if piece is None:
            done.append(tokens)
            tokens, comma = [], None
            continue
        for token in tokenizer(piece[0], add_special_tokens=False)["input_ids"]:
            moved = []
            if token == 267:
                comma = len(tokens)
            elif len(tokens) == 75 and comma is not None and 75 - comma <= 20:
                tokens, moved = tokens[:comma + 1], tokens[comma + 1:]
                done.append(tokens)
                tokens, comma = moved, None
            if len(tokens) == 75:
                done.append(tokens)
                tokens, comma = [], None
            tokens.append((token, piece[1]))
    if tokens or not done:
        done.append(tokens)
    return done


DOCUMENTED = ["normal text", "an (important) word", "(unbalanced", r"\(literal\]", "(unnecessary)(parens)", "a (((house:1.3)) [on] a (hill:0.5), sun, (((sky)))."]
ATOMS = "( ( ( [ ) ) ) ] ] : :1.3) :0.5) :-1) :.5) :1.) : :+2) \\ \\( \\) \\[ \\] \\\\ BREAK BREAK AND xBREAK BREAK_ a b, cat dog, , 1.5 ( (( )) [[ ]] é 猫".split() + [" "] * 12


def webui_prompts(seed):
    rng = random.Random(seed)
    yield from DOCUMENTED
    yield from ["", "()", "[]", "(a:1.2", "a:1.2)", "(a: 1.2 )", "(a :1.2)", "((a:1.2):1.3)", "BREAK", "BREAK a", "a BREAK", "a BREAK BREAK b", "a\nBREAK\nb", "(a BREAK b:1.2)",
        "aBREAK b", "a,BREAK,b", "([a)]", "[(a])", "(a)\\(b)", "\\a", "a\\", "\\\\(a)", "(:1.2)", "(a:)", "(a:b:1.2)", "(a::1.2)", "))((", "(a:0)", "(a:-0.5) b"]
    for _ in range(400):
        yield "".join(rng.choice(ATOMS) for _ in range(rng.randint(1, 25)))
    for words in range(52, 77):  # the last comma just within reach, and just not
        yield "cat " * words + ", " + "dog " * rng.choice([10, 75 - words, 40]) + rng.choice(["", ",", "sun"])
    for _ in range(60):  # long: words with and without commas
        commas = rng.choice([0.0, 0.02, 0.1, 0.4])
        words = rng.choices(["cat", "house", "sky", "(big)", "[tree", "sun]", "(sea:1.2)", "BREAK"], [8, 8, 8, 2, 1, 1, 2, 0.3], k=rng.randint(60, 260))
        yield " ".join(w + "," * (rng.random() < commas) for w in words)


def main():
    clip, padded, merges = tokenizers()
    ids = lambda tokenizer, text: tokenizer(text, add_special_tokens=False)["input_ids"]
    line = lambda value: json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n"
    with open(OUT / "clip_tokens.jsonl", "w") as f:
        f.write(line({"merges": len(merges), "fnv": f"{fnv(n for pair in merges for n in pair):016x}"}))
        for prompt in prompts(1):
            a, b = ids(clip, prompt), ids(padded, prompt)
            f.write(line([prompt, a] + [b] * (a != b)))
    with open(OUT / "webui_prompts.jsonl", "w") as f:
        for prompt in webui_prompts(2):
            found = pieces(prompt)
            runs = []
            for chunk in chunks(clip, found):
                weights = []
                for _, w in chunk:
                    if weights and weights[-1][0] == w:
                        weights[-1][1] += 1
                    else:
                        weights.append([w, 1])
                runs.append([[t for t, _ in chunk], weights])
            # Numbers as text: not every reader of JSON gives back the last bit.
            written = [piece and [piece[0], repr(piece[1])] for piece in found]
            f.write(line([prompt, written, [[t, [[repr(w), n] for w, n in ws]] for t, ws in runs]]))


if __name__ == "__main__":
    main()
