"""Compares our tokens with those of transformers on generated lines of many scripts, and says how fast both are.

    cargo build --release -p impasto-generate --example tokens
    python3 tools/compare_tokens.py VOCABULARIES target/release/examples/tokens [LINES] [SEED]

VOCABULARIES has t5_tokenizer.json, qwen_vocab.json, qwen_merges.txt and qwen_tokenizer_config.json as their makers publish them. Needs transformers,
and open_clip_torch for the list of CLIP (`pip install --no-deps`: nothing of it runs). Each vocabulary is compared as the program has it and as a folder
brings it. With LINES of `all`, every code point has a line of its own.
"""
import gzip
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread, as ours

from transformers import CLIPTokenizerFast, PreTrainedTokenizerFast, Qwen2TokenizerFast

from nasty_prompts import PICKED, SPACES, SPECIAL, prompts

BROUGHT = Path(__file__).parent.parent / "crates/generate/tests/fixtures/brought"
# Letters with the marks that go with them; what is not assigned in a block is met as well.
SCRIPTS = {
    "latin": [(0x41, 0x5B), (0x61, 0x7B), (0xC0, 0x250), (0x1E00, 0x1F00)],
    "latin and marks": [(0x41, 0x5B), (0x61, 0x7B), (0x61, 0x7B), (0x300, 0x370), (0x1AB0, 0x1B00), (0x1DC0, 0x1E00), (0x20D0, 0x2100)],
    "modifiers and phonetics": [(0x250, 0x300), (0x1D00, 0x1DC0), (0x2C60, 0x2C80), (0xA720, 0xA800), (0xAB30, 0xAB70), (0x10780, 0x107C0)],
    "greek": [(0x370, 0x400), (0x1F00, 0x2000)],
    "cyrillic": [(0x400, 0x530), (0x1C80, 0x1C90), (0x2DE0, 0x2E00), (0xA640, 0xA6A0), (0x1E030, 0x1E090)],
    "armenian, georgian": [(0x530, 0x590), (0x10A0, 0x1100), (0x1C90, 0x1CC0), (0x2D00, 0x2D30)],
    "hebrew": [(0x590, 0x600), (0x5D0, 0x5EB), (0xFB1D, 0xFB50)],
    "arabic": [(0x600, 0x700), (0x621, 0x64B), (0x750, 0x780), (0x870, 0x900), (0xFB50, 0xFE00), (0xFE70, 0xFF00), (0x1EE00, 0x1EF00)],
    "syriac, thaana, nko": [(0x700, 0x750), (0x780, 0x870)],
    "devanagari": [(0x900, 0x980), (0xA8E0, 0xA900), (0x1CD0, 0x1D00), (0x11B00, 0x11B0A)],
    "indic": [(0x980, 0xDE0 + 0x20)],
    "thai, lao, tibetan": [(0xE00, 0x1000)],
    "burmese, khmer, mongolian": [(0x1000, 0x10A0), (0x1780, 0x18B0), (0x1900, 0x1AB0), (0xAA60, 0xAA80)],
    "ethiopic, cherokee, canadian": [(0x1200, 0x1680), (0x13A0, 0x1400), (0x18B0, 0x1900), (0xAB70, 0xABC0)],
    "han": [(0x4E00, 0x9FFF), (0x3400, 0x4DC0), (0xF900, 0xFB00), (0x20000, 0x2A6E0), (0x2F00, 0x2FE0), (0x2F800, 0x2FA20)],
    "kana": [(0x3040, 0x3100), (0x3000, 0x3040), (0x31F0, 0x3200), (0xFF61, 0xFFA0), (0x1B000, 0x1B170)],
    "hangul": [(0xAC00, 0xD7A4)],
    "jamo": [(0x1100, 0x1113), (0x1161, 0x1176), (0x11A8, 0x11C3), (0x1100, 0x1200), (0x3130, 0x3190), (0xA960, 0xA980), (0xD7B0, 0xD800), (0xFFA0, 0xFFDD)],
    "old and small scripts": [(0x10000, 0x12000)],
    "cuneiform and hieroglyphs": [(0x12000, 0x14700), (0x16800, 0x17000), (0x1BC00, 0x1BCB0), (0x1E000, 0x1EE00)],
    "mathematical": [(0x1D400, 0x1D800), (0x2070, 0x20A0), (0x2100, 0x2190), (0x1D100, 0x1D250)],
    "symbols": [(0x2190, 0x2C00), (0x3200, 0x3400), (0x1F100, 0x1F300)],
    "wide and narrow": [(0xFF00, 0xFFF0), (0xFE10, 0xFE70)],
    "punctuation": [(0x21, 0x30), (0x3A, 0x41), (0x5B, 0x61), (0xA0, 0xC0), (0x2000, 0x2070), (0x2E00, 0x2E80), (0x3000, 0x3020)],
    "control": [(0, 0x21), (0x7F, 0xA1), (0x2000, 0x2010), (0x2028, 0x2030), (0x61, 0x7B)],
    "private and none": [(0xE000, 0xF900), (0xFDD0, 0xFDF0), (0xFFF0, 0x10000), (0xE0000, 0xE0200), (0xF0000, 0x110000), (0x61, 0x7B)],
}
PEOPLE = [*range(0x1F466, 0x1F47A), 0x1F9D1, 0x1F469, 0x1F468, 0x1F9DA, 0x1F926]
TAILS = ["\u200d\u2695\ufe0f", "\u200d\U0001f680", "\ufe0f", "\ufe0e", "\u20e3", "\u200d\u2640\ufe0f", "\u200d\U0001f469\u200d\U0001f466", ""]
DIGITS = [0x30, 0x660, 0x6F0, 0x7C0, 0x966, 0x9E6, 0xA66, 0xAE6, 0xB66, 0xBE6, 0xC66, 0xCE6, 0xD66, 0xE50, 0xED0, 0xF20, 0x1040, 0x17E0, 0x1810, 0xFF10, 0x104A0, 0x1D7CE, 0x1E950, 0x1FBF0]
NUMBERS = [*range(0x2150, 0x218C), *range(0x2460, 0x249C), *range(0xB2, 0xB4), 0xB9, *range(0xBC, 0xBF), 0x3007, *range(0x3021, 0x302A), *range(0x4E00, 0x4E0A)]
WHITE = " \t\n\r\v\f\x1c\x1d\x1e\x1f\x85\u00a0\u1680\u2000\u2003\u2009\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"


def is_text(code):
    return not 0xD800 <= code < 0xE000


def of_script(rng, ranges):
    words = []
    for _ in range(rng.randint(1, 12)):
        letters = (rng.randrange(*rng.choice(ranges)) for _ in range(rng.randint(1, 9)))
        words.append("".join(chr(c) for c in letters if is_text(c)) + rng.choice(SPACES))
    return "".join(words)


def emoji(rng):
    one = lambda: chr(rng.choice(PEOPLE) if rng.random() < 0.6 else rng.randrange(0x1F300, 0x1FB00)) + rng.choice(["", "", chr(rng.randrange(0x1F3FB, 0x1F400))]) + rng.choice(TAILS)
    flag = lambda: chr(rng.randrange(0x1F1E6, 0x1F200)) * rng.randint(1, 3)
    return "".join(rng.choice([one, one, one, flag, lambda: rng.choice(["a cat", " ", "1", "#\ufe0f\u20e3", "\u2764\ufe0f"])])() for _ in range(rng.randint(1, 10)))


def digits(rng):
    one = lambda: chr(rng.choice(DIGITS) + rng.randrange(10)) if rng.random() < 0.7 else chr(rng.choice(NUMBERS))
    return "".join(one() * rng.randint(1, 3) + rng.choice(["", "", ".", ",", " ", "a", "-", "/"]) for _ in range(rng.randint(1, 12)))


def white(rng):
    return "".join(rng.choice(WHITE) * rng.randint(1, 3) if rng.random() < 0.6 else rng.choice(["a", "cat", "1", "!", "\u732b", "'s", "e\u0301"]) for _ in range(rng.randint(1, 20)))


def specials(rng):
    cut = lambda text: text if rng.random() < 0.7 else text[:rng.randrange(len(text) + 1)]
    one = lambda: rng.choice(SPECIAL + PICKED) if rng.random() < 0.8 else rng.choice(["<|EndOfText|>", "<|STARTOFTEXT|>", "<|endoftext|>"])
    return "".join(cut(one()) + rng.choice(SPACES) for _ in range(rng.randint(1, 3)))


def anything(rng):
    codes = (rng.randrange(0x110000) if rng.random() < 0.2 else rng.randrange(0x20000) if rng.random() < 0.5 else rng.randrange(0x3000) for _ in range(rng.randint(1, 40)))
    return "".join(chr(c) for c in codes if is_text(c))


def lines(count, seed):
    """So many lines with the name of what each is of."""
    rng = random.Random(seed)
    fixed = [("picked", text) for text in [*PICKED, *SPECIAL]]
    kinds = [(name, lambda rng, ranges=ranges: of_script(rng, ranges)) for name, ranges in SCRIPTS.items()]
    mixed = list(SCRIPTS.values())
    kinds += [("mixed scripts", lambda rng: of_script(rng, rng.choice(mixed)) + of_script(rng, rng.choice(mixed)))] * 3
    kinds += [("emoji", emoji)] * 2 + [("digits", digits)] * 2 + [("white space", white)] * 2 + [("special tokens", specials)] * 2 + [("anything", anything)] * 3
    sensible = prompts(seed, count // 4, 0)
    fixed += [("prompts", text) for text in list(sensible)[len(PICKED):]]
    fixed = fixed[:count]
    return fixed + [(name, make(rng)) for name, make in (rng.choice(kinds) for _ in range(count - len(fixed)))]


def clip(folder, pad, is_listed=True):
    """CLIP's list as the files of a folder, and its tokenizer; its special tokens as the folders of Stable Diffusion XL list them, or as older ones name them."""
    spec = importlib.util.find_spec("open_clip")
    shipped = gzip.open(Path(spec.submodule_search_locations[0]) / "bpe_simple_vocab_16e6.txt.gz").read().decode()
    merges = [tuple(line.split()) for line in shipped.split("\n")[1:48895]]
    prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in prints] + [chr(256 + i) for i in range(256 - len(prints))]
    words = letters + [c + "</w>" for c in letters] + [a + b for a, b in merges] + ["<|startoftext|>", "<|endoftext|>"]
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, merges)) + "\n")
    token = lambda text, normalized=True: {"content": text, "lstrip": False, "normalized": normalized, "rstrip": False, "single_word": False}
    start, end = token("<|startoftext|>"), token("<|endoftext|>")
    config = {"bos_token": start, "eos_token": end, "unk_token": end, "pad_token": pad}
    if is_listed:
        listed = {"49406": start, "49407": end} | ({"0": token("!", False)} if pad == "!" else {})
        listed = {id: entry | {"special": True} for id, entry in listed.items()}
        config = {name: entry if isinstance(entry, str) else entry["content"] for name, entry in config.items()} | {"added_tokens_decoder": listed}
    else:
        (folder / "special_tokens_map.json").write_text(json.dumps(config))
        config = {name: entry if isinstance(entry, str) else entry | {"__type": "AddedToken"} for name, entry in config.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77}))
    return CLIPTokenizerFast.from_pretrained(folder)


def main():
    vocabularies, program = Path(sys.argv[1]), sys.argv[2]
    count = sys.argv[3] if len(sys.argv) > 3 else "100000"
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else random.randrange(2**32)
    if count == "all":
        texts = [(f"plane {c >> 16}", f"{chr(c)} a{chr(c)}b e{chr(c)}\u0301 1{chr(c)}{chr(c)}") for c in range(0x110000) if is_text(c)]
    else:
        texts = lines(int(count), seed)
    print(f"{len(texts)} lines, seed {seed}")
    with tempfile.TemporaryDirectory() as temporary:
        temporary = Path(temporary)
        given = temporary / "texts.jsonl"
        given.write_text("".join(json.dumps(text) + "\n" for _, text in texts))
        folders = {name: temporary / name for name in ["clip", "clip_padded_with_zero", "clip_named", "t5", "t5_older", "qwen", "qwen_parts"]}
        reference = {"clip": clip(folders["clip"], "<|endoftext|>"), "clip_padded_with_zero": clip(folders["clip_padded_with_zero"], "!")}
        reference |= {"clip_named": clip(folders["clip_named"], "<|endoftext|>", False), "t5": PreTrainedTokenizerFast(tokenizer_file=str(vocabularies / "t5_tokenizer.json"))}
        for name in ["t5", "qwen", "qwen_parts"]:
            folders[name].mkdir()
        for name in ["vocab.json", "merges.txt", "tokenizer_config.json"]:
            shutil.copy(vocabularies / f"qwen_{name}", folders["qwen_parts"] / name)
        reference["qwen"] = Qwen2TokenizerFast.from_pretrained(folders["qwen_parts"])
        reference["qwen"].backend_tokenizer.save(str(folders["qwen"] / "tokenizer.json"))
        shutil.copy(vocabularies / "t5_tokenizer.json", folders["t5"] / "tokenizer.json")
        # As transformers wrote it until 4.33.
        older = json.loads((vocabularies / "t5_tokenizer.json").read_text())
        older["normalizer"]["normalizers"][1:] = [{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]
        metaspace = {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True}
        older["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]}
        folders["t5_older"].mkdir()
        (folders["t5_older"] / "tokenizer.json").write_text(json.dumps(older))
        reference["t5_older"] = PreTrainedTokenizerFast(tokenizer_file=str(folders["t5_older"] / "tokenizer.json"))
        reference |= {f"small {name}": PreTrainedTokenizerFast(tokenizer_file=str(BROUGHT / name / "tokenizer.json")) for name in ["t5", "qwen"]}
        # What is compared: the reference, what our program is given.
        clips = ["clip", "clip_padded_with_zero", "clip_named"]
        pairs = [(name, name) for name in clips[:2]] + [(name, f"clip:{folders[name]}") for name in clips] + [("t5", "t5"), ("t5", folders["t5"]), ("t5_older", folders["t5_older"]), ("qwen", "qwen"), ("qwen", folders["qwen"]), ("qwen", folders["qwen_parts"]),
            ("small t5", BROUGHT / "t5"), ("small t5", BROUGHT / "t5.gguf"), ("small qwen", BROUGHT / "qwen"), ("small qwen", BROUGHT / "qwen.gguf")]
        wanted, differ = {}, 0
        for name, ours in pairs:
            if name not in wanted:
                backend, begun = reference[name].backend_tokenizer, time.perf_counter()
                found = [backend.encode(text, add_special_tokens=name not in clips).ids for _, text in texts]
                wanted[name] = found, time.perf_counter() - begun
            want, seconds = wanted[name]
            ran = subprocess.run([program, str(ours)], stdin=given.open(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            if ran.returncode:
                print(f"{name} by {ours}: {ran.stderr}")
                differ += 1
                continue
            got = [json.loads(line) for line in ran.stdout.splitlines()]
            assert len(got) == len(want)
            wrong = [i for i in range(len(want)) if want[i] != got[i]]
            differ += len(wrong)
            print(f"{name} by {Path(ours).name}: {len(wrong)} of {len(want)} lines differ; ours {ran.stderr.strip()}, theirs {seconds:.3f} s")
            for kind, many in Counter(texts[i][0] for i in wrong).most_common():
                print(f"    {many} of {kind}")
            for i in sorted(wrong, key=lambda i: len(texts[i][1]))[:8]:
                print(f"    {texts[i][1]!a}: {got[i]}, not {want[i]}")
            if os.environ.get("DIFFERING"):
                Path(os.environ["DIFFERING"], f"{name}-{Path(ours).name}.jsonl").write_text("".join(json.dumps([texts[i][1], got[i], want[i]]) + "\n" for i in wrong))
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
