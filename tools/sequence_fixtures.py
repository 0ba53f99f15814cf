"""Write the tokens that transformers gives prompts with T5's and with Qwen's tokenizer, for crates/generate/tests/sequences.rs:

t5_tokens.jsonl, qwen_tokens.jsonl    a prompt and its tokens a line; T5's with the end

usage: sequence_fixtures.py VOCABULARIES [FOLDER] [MORE]

VOCABULARIES has t5_tokenizer.json, qwen_vocab.json, qwen_merges.txt and qwen_tokenizer_config.json as their makers publish them. With MORE, so many
random prompts beside those picked by hand, from a fresh seed: not to be committed, but to be held to once
(IMPASTO_TOKENS=FOLDER cargo test -p impasto-generate --test sequences -- --ignored).
"""
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path

from transformers import PreTrainedTokenizerFast, Qwen2TokenizerFast

from nasty_prompts import prompts

VOCABULARIES = Path(sys.argv[1])
OUT = Path(sys.argv[2] if len(sys.argv) > 2 else "crates/generate/tests/fixtures")
MORE = int(sys.argv[3]) if len(sys.argv) > 3 else None

# What only these tokenizers care about: their special tokens, spaces of every kind and number, line ends, ligatures, other forms of letters.
SPECIAL = [
    "<|im_start|>user\na cat<|im_end|>\n<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "<|endoftext|>", "<|im_start|", "a<|im_end|>b <|im_end|> c",
    "<think>", "</think>x", "<|vision_start|><|image_pad|><|vision_end|>", "<|IM_START|>", "</s>", "a</s>b", "<pad>", "<unk>", "<extra_id_0> and <extra_id_99>", "<extra_id_100>",
    " <extra_id_1> ", "<extra_id_0>x", "x <extra_id_0>", "＜pad＞", "▁", "▁a", "a▁b", "▁▁", " ▁ a", "a  b   c    d", "  a", "a  ", "\n\n\na\n \n b \n\n", "a \n", " \n a", "\r\n\r\na",
    "a\t\tb", "a \t b", "\u3000\u3000a\u3000", "a\u00a0\u00a0b", "ﬁne ﬂow ﬃ", "ＡＢＣ　ｄｅｆ", "①②③ ㍿ ℡ ™", "e\u0301e\u0301", "ﬁ\u0301", "½\u0301", "ｶﾞｷﾞ", "한\u1100\u1161", "🇩🇪🇫🇷\u0301",
    "’s ’t 'S 'T 'Re 'VE 'lL 'ſ 'ſx", "don't DON'T don’t", "x'll y'LL", "1234 12 a1b2", "١٢٣ ½ Ⅷ", "  1  2", "!!! ???\n\n!!!\r\n", " !a !a", "a...\n\nb", "(a:1.2)", "你好  世界\n", "日本 語 ", "\u200b \u200b", "\x00\x01", "a\u0085b\u2028c",
    "ǅ ĳ ŀ ŉ", "\ufb2a\ufb2b", "\u0344", "\U0001d15e", "a\u0327\u0301b", "X" * 60, "▁" * 10, " " * 70, "\n" * 70, "ab " * 300,
]


def tokenizers():
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        t5 = PreTrainedTokenizerFast(tokenizer_file=str(VOCABULARIES / "t5_tokenizer.json"))
        for name in ["vocab.json", "merges.txt", "tokenizer_config.json"]:
            shutil.copy(VOCABULARIES / f"qwen_{name}", folder / name)
        qwen = Qwen2TokenizerFast.from_pretrained(folder)
    return {"t5": t5, "qwen": qwen}


def main():
    seed = 3 if MORE is None else random.randrange(2**32)
    texts = SPECIAL + list(prompts(seed, *([80, 120] if MORE is None else [MORE // 2, MORE - MORE // 2])))
    for name, tokenizer in tokenizers().items():
        with open(OUT / f"{name}_tokens.jsonl", "w") as f:
            for text in texts:
                f.write(json.dumps([text, tokenizer(text)["input_ids"]], separators=(",", ":")) + "\n")
        print(name, len(texts))


if __name__ == "__main__":
    main()
