"""Captions to token ids of the CLIP vocabulary.

Captions are known lower-case words and commas, and CLIP splits text at spaces and punctuation before it pairs bytes, so
words.json (word -> ids) is all of the tokeniser that training needs. `tokens.py build` writes it and compares it with the
real tokeniser (package open_clip_torch) on 2,000 captions.

The text encoder is trained on a compact table: row 0 is every word it was never shown, and stays zero.
"""
import json
import random
import sys
from pathlib import Path

import numpy as np

LENGTH, START, END = 77, 49406, 49407
UNKNOWN = 0  # the compact id of all words outside words.json
FILE = Path(__file__).with_name("words.json")


def split(caption):
    return caption.replace(",", " , ").split()


class Tokens:
    def __init__(self, words=None):
        self.words = words or json.loads(FILE.read_text())
        self.clip_ids = [START, END, *sorted({i for ids in self.words.values() for i in ids})]  # clip id of compact id 1, 2, ...
        compact = {clip: i + 1 for i, clip in enumerate(self.clip_ids)}
        self.compact = {word: [compact[i] for i in ids] for word, ids in self.words.items()}
        self.start, self.end = compact[START], compact[END]

    def __len__(self):
        return len(self.clip_ids) + 1

    def encode(self, caption, distract=None):
        """Compact ids, (77,): start, words, then end to the last place, as Stable Diffusion 1 pads. With `distract` (a
        random.Random) a few words nobody knows are strewn in now and then, so that they do no harm later."""
        ids = [i for word in split(caption) for i in self.compact.get(word, [UNKNOWN])]
        if distract and ids and distract.random() < 0.08:
            for _ in range(distract.randint(1, 4)):
                ids.insert(distract.randint(0, len(ids)), UNKNOWN)
        ids = [self.start, *ids[:LENGTH - 2]]
        return np.array(ids + [self.end] * (LENGTH - len(ids)), np.int64)

    def to_clip(self, compact):
        """Ids of the CLIP vocabulary, for captions without unknown words."""
        return np.array([0, *self.clip_ids])[compact]


def build():
    """Every word of 100,000 captions, and of the lists they are made of."""
    import captions
    import scenes
    from open_clip.tokenizer import SimpleTokenizer
    clip = SimpleTokenizer()
    rng = random.Random(0)
    texts = [captions.caption(scenes.sample(rng), rng) for _ in range(100_000)]
    words = sorted({w for text in texts for w in split(text)})
    FILE.write_text(json.dumps({w: clip.encode(w) for w in words}, indent=0).replace("\n", " ").replace("], ", "],\n") + "\n")
    tokens = Tokens()
    rng = random.Random(1)
    for _ in range(2000):
        text = captions.caption(scenes.sample(rng), rng)
        ours = tokens.to_clip(tokens.encode(text)).tolist()
        theirs = [START, *clip.encode(text), END]
        assert ours[:len(theirs)] == theirs and set(ours[len(theirs):]) <= {END}, text
    print(f"{len(words)} words, {len(tokens)} rows, 2,000 captions equal; longest {max(len(clip.encode(t)) for t in texts[:5000])} tokens")


if __name__ == "__main__":
    sys.exit(build() if sys.argv[1:] == ["build"] else "usage: tokens.py build")
