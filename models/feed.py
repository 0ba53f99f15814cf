"""An endless stream of scenes with captions, made by worker processes beside the GPU."""
import multiprocessing
import os
import random
import time

import numpy as np

import captions
import scenes
from facts import facts, slots
from tokens import Tokens

CAPTIONS = 3  # ways to say each scene: a scene that is trained on several times is not always called the same


def batch(rng, tokens, size):
    """Packed scenes (scenes.pack), with `tokens`: (size, CAPTIONS, 77) compact ids, and `facts`: (size, CAPTIONS, SLOTS, FIELDS)."""
    some = [scenes.sample_training(rng) for _ in range(size)]
    packed = scenes.pack(some)
    said = [[captions.worded(s, rng) for _ in range(CAPTIONS)] for s in some]
    packed["tokens"] = np.array([[tokens.encode(text, distract=rng) for text, _ in ways] for ways in said], np.int16)
    packed["facts"] = np.array([[facts(s, order) for _, order in ways] for s, ways in zip(some, said)])
    return packed


def _work(queue, seed, size):
    rng, tokens = random.Random(seed), Tokens()
    while True:
        queue.put(batch(rng, tokens, size))


class Feed:
    """next(feed) is a batch. Its processes end with it, or with the program."""

    def __init__(self, size, workers=None, seed=None):
        context = multiprocessing.get_context("spawn")  # a fork would inherit the GPU's state
        workers = workers or max(1, min(10, (os.cpu_count() or 2) - 3))
        seed = time.time_ns() if seed is None else seed
        self.queue = context.Queue(4 * workers)
        self.workers = [context.Process(target=_work, args=(self.queue, seed + i, size), daemon=True) for i in range(workers)]
        for worker in self.workers:
            worker.start()

    def __next__(self):
        return self.queue.get(timeout=120)

    def close(self):
        for worker in self.workers:
            worker.terminate()


def held_out_batch(size, seed=0):
    """Scenes that training never sees, with one caption each: packed, and the captions as text. `pairs` (size, 2) are the slots of
    two groups of which the caption tells which is left, equal where it does not."""
    rng, tokens = random.Random(seed), Tokens()
    some = []
    while len(some) < size:
        if (scene := scenes.sample(rng)).held_out():
            some.append(scene)
    said = [captions.worded(s, rng) for s in some]
    texts = [text for text, _ in said]
    packed = scenes.pack(some)
    packed["tokens"] = np.array([[tokens.encode(text)] for text in texts], np.int16)
    packed["facts"] = np.array([[facts(s, order)] for s, (_, order) in zip(some, said)])
    tells = [len(order) > 1 and not {"left", "right"}.isdisjoint(text.split()) for text, order in said]
    packed["pairs"] = np.array([[slots(order).index((g, 0)) for g in (0, 1)] if t else [0, 0] for t, (_, order) in zip(tells, said)])
    return packed, texts
