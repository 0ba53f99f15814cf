"""What a caption says, as numbers that the text encoder is asked for while it is trained (reading.py).

Why it is asked at all: trained on pictures alone, the model drew both things of "a cat to the left of a dog" in their colours,
and changed sides at random. Which side a cat is on follows from two words together, neither of which helps without the other,
so there was nothing to learn step by step.

Where it is asked: a token sees what stands before it only, so at "cat" nobody knows of "left of" yet. All that is known meets in
the tokens behind the caption, the end and its copies that fill up the 77 places, and the UNet reads those too. So the end token at
place p is to tell of slot p % SLOTS: of one thing, with its colour and its box. To the UNet, the caption becomes a list of
things with places: attention at the left finds the token that says "left", and that token says "cat" and "red" as well. Two cats are
two tokens, which makes counts a matter of looking, too. The layout of the file stays Stable Diffusion's.
"""
import numpy as np

from scenes import COLOUR_INDEX, OBJECT_INDEX, SETTINGS, TIMES

THINGS = (4, 4, 2)  # slots of each group in the order of mention; a third one never has more than two things
FIRST = (0, 4, 8)
SCENE = sum(THINGS)  # the last slot tells of setting and time
SLOTS = SCENE + 1
FIELDS = 6


def facts(scene, order):
    """(SLOTS, FIELDS) float16: object + 1 (0: no such thing), colour, the middle of the box and its width and height; in the
    last slot setting + 1 (0: nothing is asked) and time. `order`: the groups as the caption mentions them."""
    out = np.zeros((SLOTS, FIELDS), np.float16)
    for thing in scene.things:
        x0, y0, x1, y1 = thing.box
        slot = FIRST[order.index(thing.group)] + thing.index
        out[slot] = OBJECT_INDEX[scene.groups[thing.group].object] + 1, COLOUR_INDEX[thing.colour], (x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0
    out[SCENE, :2] = SETTINGS.index(scene.setting) + 1, TIMES.index(scene.time)
    return out
