"""A scene as plain data, and a sampler of scenes: what is there, in which colour, how many, where, in which light.

A scene is sampled from its meaning downwards: groups of equal things, how they relate, the setting and the time come first,
places follow from them. The ground truth (boxes, colours, relation) is therefore exact, and captions.py only words it.
Only numpy is needed here, so that scenes can be made in worker processes.
"""
import random
from dataclasses import dataclass

import numpy as np

import objects as O

SETTINGS = ("plain", "sea", "meadow", "desert", "snow", "city", "forest")
TIMES = ("day", "sunset", "night")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white", "grey", "turquoise")
SIZES = ("small", "normal", "big")
RELATIONS = ("left of", "right of", "above", "below", "in front of")

# Where things are at home, how large they are beside a house, and the colour that goes without saying.
LAND, FAR, SKY, WATER, FREE = "land", "far", "sky", "water", "free"
KINDS = {
    "house": (LAND, 1.15, None), "castle": (LAND, 1.25, "grey"), "lighthouse": (LAND, 1.30, "red"), "tree": (LAND, 1.15, "green"),
    "flower": (LAND, 0.90, "red"), "mushroom": (LAND, 0.80, "red"), "cactus": (LAND, 0.95, "green"), "sun": (SKY, 0.90, "yellow"),
    "moon": (SKY, 0.75, "yellow"), "star": (SKY, 0.70, "yellow"), "cloud": (SKY, 0.95, "white"), "mountain": (FAR, 1.60, "grey"),
    "boat": (WATER, 1.10, None), "car": (LAND, 1.10, None), "rocket": (SKY, 1.10, None), "balloon": (SKY, 1.05, None),
    "umbrella": (LAND, 0.95, None), "lamp": (LAND, 0.95, None), "apple": (LAND, 0.75, "red"), "cat": (LAND, 0.95, None),
    "dog": (LAND, 0.95, "brown"), "fish": (WATER, 0.85, None), "bird": (SKY, 0.75, None), "butterfly": (SKY, 0.75, None),
    "heart": (FREE, 0.85, "red"), "circle": (FREE, 0.85, None), "square": (FREE, 0.85, None), "triangle": (FREE, 0.85, None),
}
OBJECT_INDEX = {name: i for i, name in enumerate(KINDS)}
COLOUR_INDEX = {name: i for i, name in enumerate(COLOURS)}
TEMPLATE_START = dict(zip(KINDS, np.cumsum([0] + [len(O.DRAWINGS[k]) for k in KINDS]).tolist()))
MOST_THINGS = 8
DRAWING_OF = [i for name in KINDS for i in range(len(O.DRAWINGS[name]))]  # by template
PRIMITIVES = np.array([len(draw()) for name in KINDS for draw in O.DRAWINGS[name]])  # by template
BOUNDS = [O.bounds(draw()) for name in KINDS for draw in O.DRAWINGS[name]]  # by template

SCALE = {"small": 0.105, "normal": 0.160, "big": 0.250}  # half a house's height, in fractions of the picture


@dataclass(frozen=True)
class Group:
    """One to four equal things: what a noun phrase of the caption speaks of."""
    object: str
    colour: str
    count: int = 1
    size: str = "normal"


@dataclass(frozen=True)
class Thing:
    """One drawing in its place. x and y are where its own origin lies, scale is half its box, in fractions of the picture."""
    group: int
    template: int
    colour: str
    x: float
    y: float
    scale: float
    mirrored: bool
    tilt: float
    grounded: bool
    index: int = 0  # among its group, row by row

    @property
    def drawing(self):
        """Which of its object's drawings it is."""
        return DRAWING_OF[self.template]

    @property
    def box(self):
        """x0, y0, x1, y1 of what shows, the small tilt aside."""
        x0, y0, x1, y1 = BOUNDS[self.template]
        if self.mirrored:
            x0, x1 = -x1, -x0
        return (self.x + x0 * self.scale, self.y + y0 * self.scale, self.x + x1 * self.scale, self.y + y1 * self.scale)


@dataclass(frozen=True)
class Scene:
    """groups[0] stands in `relation` to groups[1]; `side` is where a lone group was put on purpose; `told` says which of
    setting and time the caption speaks of. things are in painter's order."""
    groups: tuple
    relation: str | None
    side: str | None
    setting: str
    time: str
    told: frozenset
    things: tuple
    seed: int

    def held_out(self):
        """A twentieth of all first groups by object, colour, setting and time is never trained on."""
        g = self.groups[0]
        key = (OBJECT_INDEX[g.object] * 12 + COLOUR_INDEX[g.colour]) * 21 + SETTINGS.index(self.setting) * 3 + TIMES.index(self.time)
        return (key * 2654435761 >> 7) % 20 == 0


def home(object):
    return KINDS[object][0]


def pick(rng, weighted):
    """A key of a dictionary of weights."""
    return rng.choices(list(weighted), list(weighted.values()))[0]


def cells(region, count, wide):
    """A region cut into one cell per thing: a row where it is wide, else two columns."""
    x0, y0, x1, y1 = region
    columns = count if wide else min(count, 2)
    rows = -(-count // columns)
    w, h = (x1 - x0) / columns, (y1 - y0) / rows
    out = []
    for i in range(count):
        row, column = divmod(i, columns)
        short = (columns - (count - row * columns)) * w / 2 if row == rows - 1 else 0  # centre an unfilled last row
        out.append((x0 + column * w + short, y0 + row * h, x0 + (column + 1) * w + short, y0 + (row + 1) * h))
    return out


def place(rng, group, index, region, stands, wide, wanted=None):
    """The things of one group inside a region, in a row if `wide`; if it stands, near the lower edge."""
    template = TEMPLATE_START[group.object] + rng.randrange(len(O.DRAWINGS[group.object]))
    bx0, by0, bx1, by1 = BOUNDS[template]
    wanted = (wanted or SCALE[group.size] * KINDS[group.object][1]) * rng.uniform(0.90, 1.12)
    mirrored = rng.random() < 0.5
    left, right = (-bx1, -bx0) if mirrored else (bx0, bx1)
    things = []
    for i, (x0, y0, x1, y1) in enumerate(cells(region, group.count, wide)):
        fits = min((x1 - x0) / (bx1 - bx0), (y1 - y0) / (by1 - by0)) * (0.94 if group.count > 1 else 1.0)
        s = min(wanted, fits) * rng.uniform(0.94, 1.0)
        x = rng.uniform(x0 - left * s, x1 - right * s)
        if group.count > 1:  # rows look orderly: half way towards the middle of the cell
            x = 0.5 * x + 0.5 * ((x0 + x1) / 2 - (left + right) / 2 * s)
        highest, lowest = y0 - by0 * s, y1 - by1 * s
        y = max(highest, lowest - rng.uniform(0, 0.05)) if stands else rng.uniform(highest, lowest)
        tilt = 0.0 if stands else rng.gauss(0, 0.06)
        things.append(Thing(index, template, group.colour, x, y, s, mirrored, tilt, stands and home(group.object) != FAR, i))
    return things


def heights(rng, object, setting):
    """Where an object is found when nothing is said about above or below: top, bottom, and whether it stands on the ground."""
    where = home(object)
    if setting == "plain":
        return 0.16, 0.84, where in (LAND, FAR)
    if where == SKY:
        return 0.05, 0.50, False
    if where == FAR:
        return 0.16, 0.72, True
    if where == WATER and setting == "sea":
        return 0.40, 0.84, False
    return 0.32, 0.94, where != FREE or rng.random() < 0.4


def lay_out(rng, groups, relation, side, setting):
    """Places for all groups, in painter's order."""
    first, far, near = groups[0], [], []
    top = 0.05
    if len(groups) == 3:  # the third is always something in the sky
        x0 = rng.uniform(0.04, 0.62)
        far = place(rng, groups[2], 2, (x0, 0.04, x0 + 0.34, 0.33), False, True)
        top = 0.36
    if len(groups) == 1:
        y0, y1, stands = heights(rng, first.object, setting)
        alone = first.count == 1 and side is None
        x0, x1 = (0.14, 0.86) if alone else {"left": (0.03, 0.46), "right": (0.54, 0.97), None: (0.04, 0.96)}[side]
        size = SCALE[first.size] * KINDS[first.object][1] * (1.25 if alone else 1.0)
        things = place(rng, first, 0, (x0, y0, x1, y1), stands, first.count < 4, size)
    elif relation in ("left of", "right of"):
        things = []
        halves = ((0.03, 0.485), (0.515, 0.97))
        for i, (x0, x1) in enumerate(halves if relation == "left of" else halves[::-1]):
            y0, y1, stands = heights(rng, groups[i].object, setting)
            things += place(rng, groups[i], i, (x0, max(top, y0), x1, max(y1, top + 0.28)), stands, groups[i].count < 3)
    elif relation in ("above", "below"):
        upper, lower = (0, 1) if relation == "above" else (1, 0)
        x = rng.uniform(0.40, 0.60)
        low = 0.86 if setting == "plain" else 0.95
        half = lambda g: 0.38 if g.count > 1 else 0.27
        a, b = half(groups[upper]), half(groups[lower])
        things = place(rng, groups[upper], upper, (x - a, 0.04, x + a, 0.46), False, True)
        things += place(rng, groups[lower], lower, (x - b, 0.50, x + b, low), home(groups[lower].object) in (LAND, FAR), True)
    else:  # in front of: the one behind is larger and further up, the one in front covers a part of it
        things = place(rng, groups[1], 1, (0.16, 0.20, 0.84, 0.78), True, True, 0.21 * min(1.25, KINDS[groups[1].object][1]))
        x0, _, x1, foot = things[0].box
        x = (x0 + x1) / 2 + rng.choice((-1, 1)) * rng.uniform(0.20, 0.42) * (x1 - x0)
        x, foot = min(0.80, max(0.20, x)), min(0.95, foot + rng.uniform(0.06, 0.14))
        near = place(rng, first, 0, (x - 0.18, 0.40, x + 0.18, foot), True, True, 0.125 * KINDS[first.object][1] ** 0.5)
    # The sky is furthest; then whatever has its foot higher up.
    return (*far, *sorted(things, key=lambda t: t.box[3]), *near)


def sample_group(rng, counts, sizes, allowed=None):
    object = rng.choice(allowed or list(KINDS))
    natural = KINDS[object][2]
    colour = natural if natural and rng.random() < 0.25 else rng.choice(COLOURS)
    count = pick(rng, counts)
    return Group(object, colour, count, pick(rng, sizes) if count == 1 else "normal")  # several share the room there is


def sample(rng):
    """A random scene. rng: random.Random."""
    told = frozenset(what for what, chance in (("setting", 0.68), ("time", 0.45)) if rng.random() < chance)
    if "setting" in told:
        setting = pick(rng, dict(plain=1, sea=2, meadow=2, desert=2, snow=2, city=2, forest=2))
    else:  # what goes without saying
        setting = pick(rng, dict(plain=70, meadow=24, sea=2, desert=1, snow=1, city=1, forest=1))
    time = pick(rng, dict(day=3, sunset=3, night=3)) if "time" in told else pick(rng, dict(day=96, sunset=2, night=2))
    n = pick(rng, {1: 42, 2: 44, 3: 14})
    any_size = dict(small=15, normal=70, big=15)
    groups = [sample_group(rng, {1: 70, 2: 12, 3: 9, 4: 9} if n < 3 else {1: 88, 2: 12}, any_size if n < 3 else dict(normal=1))]
    relation, side = None, None
    if n == 1:
        side = pick(rng, {None: 84, "left": 8, "right": 8}) if groups[0].count == 1 else None
    else:
        relation = pick(rng, {"left of": 25, "right of": 25, "above": 20, "below": 20, "in front of": 10} if n == 2 else {"left of": 1, "right of": 1})
        if relation == "in front of":
            land = [k for k in KINDS if home(k) in (LAND, WATER)]
            groups = [sample_group(rng, {1: 85, 2: 15}, dict(normal=1), land)]
        while len(groups) < 2 or groups[1].object == groups[0].object and groups[1].colour == groups[0].colour:
            allowed = [k for k in KINDS if home(k) == LAND] if relation == "in front of" else None
            second = sample_group(rng, {1: 86, 2: 10, 3: 4} if n == 2 and relation != "in front of" else {1: 1}, dict(normal=1), allowed)
            groups = [groups[0], second]
        if n == 3:
            groups.append(sample_group(rng, {1: 92, 2: 8}, dict(normal=1), ["sun", "moon", "cloud", "star", "bird", "balloon"]))
    groups = tuple(groups)
    return Scene(groups, relation, side, setting, time, told, lay_out(rng, groups, relation, side, setting), rng.randrange(1 << 30))


def sample_training(rng):
    while (scene := sample(rng)).held_out():
        pass
    return scene


PACKED = ("setting", "time", "seed", "count", "length", "template", "colour", "grounded", "place")


def pack(scenes):
    """Scenes as arrays for render.Renderer: setting, time, seed, count (of things) and length (in primitives) (batch,);
    template, colour and grounded (batch, MOST_THINGS); place (batch, MOST_THINGS, 6) with x, y, scale, mirrored, cosine and
    sine of the tilt."""
    batch = len(scenes)
    out = dict(setting=np.array([SETTINGS.index(s.setting) for s in scenes]), time=np.array([TIMES.index(s.time) for s in scenes]),
               seed=np.array([s.seed for s in scenes]), count=np.array([len(s.things) for s in scenes]),
               length=np.array([PRIMITIVES[[t.template for t in s.things]].sum() for s in scenes]),
               template=np.zeros((batch, MOST_THINGS), np.int64), colour=np.zeros((batch, MOST_THINGS), np.int64),
               grounded=np.zeros((batch, MOST_THINGS), bool), place=np.zeros((batch, MOST_THINGS, 6), np.float32))
    out["place"][..., 2] = 1
    for i, scene in enumerate(scenes):
        for j, t in enumerate(scene.things):
            out["template"][i, j], out["colour"][i, j], out["grounded"][i, j] = t.template, COLOUR_INDEX[t.colour], t.grounded
            out["place"][i, j] = t.x, t.y, t.scale, -1 if t.mirrored else 1, np.cos(t.tilt), np.sin(t.tilt)
    return out
