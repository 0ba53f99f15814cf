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
import unicodedata
from pathlib import Path

import open_clip
from transformers import CLIPTokenizerFast
from transformers.models.clip.tokenization_clip import bytes_to_unicode

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


# Hand-picked: what people write, and what has gone wrong in tokenisers.
PICKED = [
    "", " ", "a", "A", "\n", "\t\r\n ", "a photo of an astronaut riding a horse on mars",
    "masterpiece, best quality, 1girl, solo, long hair, looking at viewer, (smile:1.2), [blurry], highres, 8k uhd",
    "don't won't I'm you're we've they'll he'd it's 'tis rock'n'roll O'Brien 's 't 'RE 'Ve 'LL", "''s '''t !'s 's's 'sx s'", "'", "''", "'a", "’s it’s don’t",
    "1234567890", "3.14159", "1,000,000", "2023-11-15", "v1.5", "4k8K", "½ ¼ ² ³ ① ⑳ Ⅷ ⅷ ٣ ४ 五 〇 ๕", "１２３ ＡＢＣ ａｂｃ",
    "!!!", "...", "!?!?!?", "hello!", "hello !", "wow!! ok!", ",", ",,", ", ,", "a,b,c", "a, b, c,", "#$%&*+-/=@^_`{|}~", "<>", "<|", "|>", "--ar 16:9", "a_b_c", "___",
    "(((((", ")))))", "[[]]", "((a)) (b:1.3) [c] \\(d\\) {e}", "<lora:name:0.8>", "a|b", "[cat:dog:0.5]",
    "<|startoftext|>", "<|endoftext|>", "<|EndOfText|>", "a<|endoftext|>b", "<|startoftext|><|endoftext|>", "<|endoftext|", "|endoftext|>", "<start_of_text>", "<|endoftext|>!<|endoftext|>", "<|ſtartoftext|>",
    "İstanbul", "ISTANBUL ıstanbul", "straße STRASSE ẞ ß", "ΟΔΟΣ ΟΔΟΣ. Σ σ ς ὈΔΥΣΣΕΎΣ", "ǅ ǆ Ǆ ŉ ǰ ΐ", "ﬁ ﬂ ﬀ ﬃ ﬆ", "Å Å Å K Ω ℃ ℡", "ſ ſt",
    "café cafe\u0301 cafe\u0301\u0323", "e\u0301\u0302\u0303", "\u0301", "a\u0308\u0304 a\u0304\u0308", "Zalgo: Z\u0351\u036b\u0343a\u0321\u034al\u0322\u034fg\u0489o\u035c", "ạ̈", "\u1100\u1161\u11a8 각 \u1112\u1161\u11ab", "क्षत्रिय ज़ ज\u093c", "\u0958 \u2adc \ufb1d", "ồ o\u0302\u0300", "\u0344 \u0340 \u0341 \u0374 \u037e \u0387",
    "😀", "👩‍👩‍👧‍👦", "👩🏽‍🚀 👨🏿‍⚕️", "🏳️‍🌈 🏴‍☠️", "🇩🇪🇫🇷 🇩", "❤️ ❤", "1️⃣ #️⃣", "🤦🏼‍♂️x🤦", "☺︎ ☺️", "😂😂😂😂😂😂", "a😀b", "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "中国人", "一只猫坐在椅子上", "東京タワー 夜景", "ひらがなカタカナ漢字", "ｶﾀｶﾅ ﾊﾟ", "안녕하세요 세계", "𠀀𠮷野家", "猫cat猫", "「猫」、『犬』。", "你好，世界！",
    "שלום עולם", "שָׁלוֹם", "مرحبا بالعالم", "اَلسَّلَامُ عَلَيْكُمْ", "\u202eabc\u202c", "\u200fabc\u200e", "سلام‌علیکم", "Привет, мир! Ё ё Й й", "Ὦ Ἀθῆναι", "ไทย ภาษา น้ำ", "हिन्दी नमस्ते", "தமிழ்", "ქართული ᲥᲐᲠᲗᲣᲚᲘ", "հայերեն ԵՒ և", "Ꭰꭰ ᏣᎳᎩ", "𝕳𝖊𝖑𝖑𝖔 𝒲 𝟘𝟙", "𐐀𐐨 𞤀𞤢", "ⓐⒶ", "ªº", "ʰʲˠ", "\u02b9 ʻokina",
    "a\x00b", "a\x01\x02\x1f\x7fb", "a\x80\x85\x9fb", "a\u00adb", "a\ufeffb", "\ufeffa", "a\u200bb", "a\u200cb\u200dc", "a\u2060b", "\ufffd", "a\ufffd\ufffdb", "\ue000 \uf8ff", "\uffff \ufffe \U0010ffff", "a\u00a0b", "a\u1680b\u2000c\u200ad\u2028e\u2029f\u202fg\u205fh\u3000i", "a\x1cb\x1dc\x1ed\x1fe", "a\vb\fc", "  many   spaces  ", "\u180e", "\u2800",
    "&amp; &lt;b&gt; &#39; &quot; &nbsp; &eacute;", "<b>bold</b>", "https://example.com/a?b=c&d=e#f", "user@example.com", "C:\\Users\\x", "\\", "\\\\", "“quoted” ‘single’ «guillemets» „low“", "—–‐‑‒―", "…", "©®™", "§¶†‡•", "€£¥₿", "∑∫√∞≠≤", "←↑→↓", "♥♦♣♠", "½x", "x²", "10°C", "5µm 5μm", "naïve façade Ærøskøbing Þór ŒUVRE", "Łódź Çeşme Ñandú Ōsaka Đà Nẵng", "ﷺ", "㍿ ㈱ ㎏", "Ǻ ǻ", "Dž", "ꙮ", "𒀀", "🀄", "⠓⠑", "a" * 300, "ab" * 100, "supercalifragilisticexpialidocious", "pneumonoultramicroscopicsilicovolcanoconiosis", "x" * 77, "," * 90, "é" * 64, "!" * 33, "0" * 40, "lowestlowerlow" * 12, "the " * 120, "word, " * 60,
]
WORDS = """a the of in on with portrait landscape photo realistic cat dog castle sunset woman man eyes hair blue red green lighting cinematic
detailed masterpiece Trending ArtStation greg rutkowski oil painting watercolor 4k 8K HDR bokeh f/1.8 35mm cyberpunk steampunk anime 1girl
solo high-quality ultra-detailed best_quality don't it's I'm they're volumetric, intricate, elegant, smooth sharp focus illustration by and
artgerm alphonse mucha unreal engine octane render Łódź café naïve piñata Zürich Москва 東京 猫 안녕 שלום مرحبا 😀 👩‍🚀 🔥 ❤️ ... !! ?! (a) (b:1.2)
[c] ((d)) <lora:x:1> BREAK AND 2023 3.5 100% #1 @home""".split()
SPACES = [" "] * 12 + ["  ", "\n", "\t", "\u00a0", "\u3000", ", ", ",", "", "", "-", "_", ". "]
RANGES = [(0x20, 0x7F)] * 6 + [(0, 0x20), (0x7F, 0x250), (0x250, 0x370), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE80), (0x1E00, 0x2070),
    (0x2070, 0x2C00), (0x3000, 0x3130), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xF900, 0xFFFD), (0x1F300, 0x1FA00), (0x10000, 0x10600), (0x1D400, 0x1D800), (0x20000, 0x20100)]


def settled(c):
    """Not a letter or mark that one Unicode version knows and another does not: the tables of tokenizers are of Unicode 9 and 16."""
    new_mark = unicodedata.combining(c) and not unicodedata.ucd_3_2_0.combining(c)
    return unicodedata.category(c) != "Cn" and not new_mark


def prompts(seed):
    rng = random.Random(seed)
    yield from PICKED
    for _ in range(450):  # what people write
        words = [rng.choice(WORDS) for _ in range(rng.choice([3, 8, 20, 50]))]
        words = [w.upper() if rng.random() < 0.1 else w.title() if rng.random() < 0.1 else w for w in words]
        yield "".join(w + rng.choice(SPACES) for w in words)
    for _ in range(550):  # what nobody writes
        kinds = [rng.choice(RANGES) for _ in range(rng.randint(1, 4))]
        yield "".join(filter(settled, (chr(rng.randrange(*rng.choice(kinds))) for _ in range(rng.randint(1, 40)))))


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
