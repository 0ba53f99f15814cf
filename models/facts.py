"""What a caption says, as numbers that the text encoder is asked for while it is trained (reading.py).

Why it is asked at all: trained on pictures alone, the model drew both things of "a cat to the left of a dog" in their colours,
and changed sides at random. Which side a cat is on follows from two words together, neither of which helps without the other,
so there was nothing to learn step by step.

Where it is asked: a token sees what stands before it only, so at "cat" nobody knows of "left of" yet. All that is known meets in
the tokens behind the caption, the end and its copies that fill up the 77 places, and the UNet reads those too. So the end token at
place p is to tell of slot p % SLOTS: of one thing, with its colour, its box and how many there are of it. To the UNet, the caption
becomes a list of things with places: attention at the left finds the token that says "left", and that token says "cat" and "red" as
well. Two cats are two tokens, which makes counts a matter of looking, too. A slot without a thing of its own repeats one that is
there, so that no token is wasted: attention that cannot yet tell tokens apart still gets nothing but things. The layout of the file
stays Stable Diffusion's.
"""
import numpy as np

from scenes import COLOUR_INDEX, OBJECT_INDEX, SETTINGS, TIMES

OWNERS = ((0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 1))  # group by mention, thing of the group
SCENE = len(OWNERS)  # the last slot tells of setting and time
SLOTS = SCENE + 1
FIELDS = 7


def slots(order):
    """(group of the scene, thing of the group) for each slot but the last; the thing may be beyond the group's count."""
    return [(order[mention % len(order)], thing) for mention, thing in OWNERS]


def facts(scene, order):
    """(SLOTS, FIELDS) float16: object + 1 (0, for no caption: no such thing), colour, the middle of the box and its width and
    height, and the group's count - 1; in the last slot setting + 1 (0: nothing is asked) and time. `order`: the groups as the
    caption mentions them."""
    things = {(t.group, t.index): t for t in scene.things}
    out = np.zeros((SLOTS, FIELDS), np.float16)
    for slot, (g, i) in enumerate(slots(order)):
        thing, group = things[g, i % scene.groups[g].count], scene.groups[g]
        x0, y0, x1, y1 = thing.box
        out[slot] = OBJECT_INDEX[group.object] + 1, COLOUR_INDEX[thing.colour], (x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0, group.count - 1
    out[SCENE, :2] = SETTINGS.index(scene.setting) + 1, TIMES.index(scene.time)
    return out
