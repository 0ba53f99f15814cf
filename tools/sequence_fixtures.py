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

from nasty_prompts import SPECIAL, prompts

VOCABULARIES = Path(sys.argv[1])
OUT = Path(sys.argv[2] if len(sys.argv) > 2 else "crates/generate/tests/fixtures")
MORE = int(sys.argv[3]) if len(sys.argv) > 3 else None


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
