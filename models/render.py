"""Scenes to pictures, in batches on whatever device torch has: a background, then every primitive in painter's order.

Edges are smooth because coverage comes from a distance in pixels, not from a test of the pixel's centre. On a GPU all primitives are
one kernel (paint_kernel.py), or, should that fail, one kernel each, so a picture costs some tens of microseconds. All coordinates are fractions of the picture, x to the right and y down; colours are 0..1.
"""
import numpy as np
import torch

import backdrop
import objects as O
import scenes
from scenes import COLOUR_INDEX, OBJECT_INDEX, TIMES

# Colours asked for by name, as the middle tone of an object. They are kept apart from each other and from the backdrops.
PALETTE = {
    "red": (0.87, 0.17, 0.17), "orange": (0.96, 0.50, 0.10), "yellow": (0.98, 0.81, 0.14), "green": (0.17, 0.60, 0.27),
    "blue": (0.15, 0.38, 0.84), "purple": (0.50, 0.24, 0.70), "pink": (0.97, 0.50, 0.69), "brown": (0.52, 0.31, 0.16),
    "black": (0.15, 0.15, 0.18), "white": (0.96, 0.96, 0.96), "grey": (0.55, 0.56, 0.58), "turquoise": (0.10, 0.69, 0.69),
}

ACCENT_RGB = {
    "white": (0.99, 0.99, 0.98), "cream": (0.97, 0.92, 0.82), "ink": (0.13, 0.12, 0.15), "wood": (0.58, 0.39, 0.24),
    "darkwood": (0.42, 0.27, 0.17), "glass": (0.74, 0.88, 0.95), "glow": (1.0, 0.92, 0.62), "flame": (0.95, 0.38, 0.15),
    "tyre": (0.19, 0.20, 0.23), "steel": (0.78, 0.80, 0.83), "leaf": (0.42, 0.69, 0.31), "darkleaf": (0.27, 0.53, 0.24),
    "gold": (0.98, 0.77, 0.25), "beak": (0.98, 0.62, 0.16), "blush": (0.96, 0.60, 0.64), "shadow": (0.10, 0.12, 0.22),
}
# What a time of day does to the things in the picture. It stays mild: a red house is a red house at night, too.
LIGHT_ON_THINGS = {"day": (1.0, 1.0, 1.0), "sunset": (1.0, 0.94, 0.90), "night": (0.84, 0.86, 0.95)}
LIT_AT_NIGHT = {"glass": (1.0, 0.86, 0.48), "glow": (1.0, 0.90, 0.55)}


def tones(rgb):
    """main, light, dark and deep of a colour: (4, 3)."""
    main = np.array(rgb, np.float32)
    night_blue = np.array((0.16, 0.10, 0.30), np.float32)
    is_black = main.max() < 0.25
    light = main + (1 - main) * (0.22 if is_black else 0.34)
    return np.stack([main, light, main * 0.80 + night_blue * 0.06, main * 0.62 + night_blue * 0.10])


def paint_table():
    """Every paint by time and colour: (times, colours, paints, 3)."""
    table = np.zeros((len(TIMES), len(COLOUR_INDEX), len(O.PAINTS), 3), np.float32)
    for t, time in enumerate(TIMES):
        light = np.array(LIGHT_ON_THINGS[time], np.float32)
        accents = [LIT_AT_NIGHT[a] if time == "night" and a in LIT_AT_NIGHT else np.array(ACCENT_RGB[a]) * light for a in O.ACCENTS]
        for colour, c in COLOUR_INDEX.items():
            table[t, c] = np.concatenate([tones(PALETTE[colour]) * light, np.array(accents, np.float32)])
    return table


NOTHING = -1  # the kind of a primitive that is only padding


def template_table():
    """All drawings, padded with invisible primitives: (templates, primitives, FIELDS), in the order of scenes.TEMPLATE_START."""
    drawings = [np.stack(draw()) for name in OBJECT_INDEX for draw in O.DRAWINGS[name]]
    table = np.zeros((len(drawings), max(map(len, drawings)), O.FIELDS), np.float32)
    table[..., O.KIND], table[..., [O.RX, O.RY, O.COS]] = NOTHING, 1.0
    for row, drawing in zip(table, drawings):
        row[:len(drawing)] = drawing
    return table


def distance_to_ellipse(x, y, p):
    """A signed distance that is exact at the edge, which is where it is looked at. x, y: (batch, h, w)."""
    dx, dy = x - p[O.CX], y - p[O.CY]
    u, v = (dx * p[O.COS] + dy * p[O.SIN]) / p[O.RX], (dy * p[O.COS] - dx * p[O.SIN]) / p[O.RY]
    f = torch.sqrt(u * u + v * v)
    g = torch.sqrt((u / p[O.RX]) ** 2 + (v / p[O.RY]) ** 2)
    return f * (f - 1) / (g + 1e-6)


def distance_to_polygon(x, y, p):
    """Signed distance to a closed polygon, concave ones too: the nearest edge, and the parity of the edges crossed."""
    nearest, inside = None, None
    for i in range(O.CORNERS):
        j = (i + O.CORNERS - 1) % O.CORNERS
        ax, ay, bx, by = (p[O.POINTS + k] for k in (2 * i, 2 * i + 1, 2 * j, 2 * j + 1))
        ex, ey = bx - ax, by - ay
        wx, wy = x - ax, y - ay
        along = torch.clamp((wx * ex + wy * ey) / (ex * ex + ey * ey + 1e-9), 0, 1)
        d = (wx - ex * along) ** 2 + (wy - ey * along) ** 2
        crossed = ((ay <= y) != (by <= y)) & ((ex * wy - ey * wx > 0) == (ey > 0))
        nearest = d if nearest is None else torch.minimum(nearest, d)
        inside = crossed if inside is None else inside ^ crossed
    return torch.where(inside, -1.0, 1.0) * torch.sqrt(nearest)


def paint_primitive(canvas, parent, place, row, rgb):
    """One primitive per scene over the canvas.

    canvas (batch, 3, h, w), parent (batch, h, w): coverage of the last primitive that was not clipped,
    place (batch, 6): x, y, scale, mirrored (1 or -1), cosine and sine of the tilt, row (batch, FIELDS), rgb (batch, 3).
    """
    h, w = parent.shape[1:]
    p = [row[:, i, None, None] for i in range(O.FIELDS)]
    cx, cy, scale, mirrored, cos, sin = (place[:, i, None, None] for i in range(6))
    px = (torch.arange(w, device=canvas.device, dtype=torch.float32)[None, None, :] + 0.5) / w - cx
    py = (torch.arange(h, device=canvas.device, dtype=torch.float32)[None, :, None] + 0.5) / h - cy
    x, y = mirrored * (px * cos + py * sin) / scale, (py * cos - px * sin) / scale
    distance = torch.where(p[O.KIND] > 0.5, distance_to_polygon(x, y, p), distance_to_ellipse(x, y, p)) - p[O.ROUND]
    pixels = h * scale  # pixels per unit of the drawing
    t = torch.clamp(0.5 - distance * pixels / (1.3 + p[O.SOFT] * 2 * pixels), 0, 1)
    cover = t * t * (3 - 2 * t)
    cover = torch.where(p[O.INVERT] > 0.5, 1 - cover, cover)
    clipped = p[O.CLIP] > 0.5
    cover = torch.where(clipped, cover * parent, cover)
    alpha = (cover * p[O.ALPHA])[:, None]
    return canvas + (rgb[:, :, None, None] - canvas) * alpha, torch.where(clipped, parent, cover)


def upload(array, device):
    """An array on the device, without waiting for what the device does now."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if torch.device(device).type == "cuda" else tensor.to(device)


class Renderer:
    """Turns batches of packed scenes (scenes.pack) into pictures: (batch, 3, size, size) in 0..1, float32."""

    CHUNK = 32  # scenes painted together: they are sorted by length first, so that short scenes do not wait for long ones

    def __init__(self, device, size=256, how="plain"):
        """how: plain, compiled (each primitive one kernel) or kernel (all of them in one, for CUDA devices)."""
        self.device, self.size, self.how = torch.device(device), size, how
        self.templates = torch.from_numpy(template_table()).to(device)
        self.paints = torch.from_numpy(paint_table()).to(device)
        self.paint_primitive = torch.compile(paint_primitive, dynamic=False) if how == "compiled" else paint_primitive

    @torch.no_grad()
    def __call__(self, packed):
        return (self.at_once if self.how == "kernel" else self.one_by_one)(packed).clamp_(0, 1)

    def at_once(self, packed):
        from paint_kernel import paint  # Triton is not everywhere
        packed = {k: upload(packed[k], self.device) for k in scenes.PACKED}
        pictures = backdrop.paint(packed["setting"], packed["time"], packed["seed"], self.size).contiguous()
        paint(pictures, *self.flatten(packed), packed["length"])
        return pictures

    def one_by_one(self, packed):
        # Lengths are known here, not only on the device: nothing below waits for it.
        order = np.argsort(packed["length"], kind="stable")
        lengths = packed["length"][order]
        packed = {k: upload(packed[k][order], self.device) for k in scenes.PACKED}
        pictures = backdrop.paint(packed["setting"], packed["time"], packed["seed"], self.size)
        place, rows, rgb = self.flatten(packed)
        painted = []
        for start in range(0, len(order), self.CHUNK):
            some = slice(start, start + self.CHUNK)
            canvas = pictures[some]
            parent = torch.zeros_like(canvas[:, 0])
            for slot in range(lengths[some][-1]):
                canvas, parent = self.paint_primitive(canvas, parent, place[slot, some], rows[slot, some], rgb[slot, some])
            painted.append(canvas)
        back = upload(np.argsort(order), self.device)
        return torch.cat(painted)[back]

    def flatten(self, packed):
        """Primitives of all things of each scene, in painter's order, padding last: place, row and colour of each, all
        (slots, batch, fields)."""
        batch, n = packed["template"].shape
        rows = self.templates[packed["template"]]  # (batch, n, primitives, FIELDS)
        slots = n * rows.shape[2]
        paints = self.paints[packed["time"][:, None], packed["colour"]]  # (batch, n, paints, 3)
        which = rows[..., O.PAINT].long()[..., None].expand(-1, -1, -1, 3)
        rgb = torch.gather(paints, 2, which)
        place = packed["place"][:, :, None].expand(-1, -1, rows.shape[2], -1)
        there = torch.arange(n, device=rows.device) < packed["count"][:, None]  # (batch, n)
        used = (rows[..., O.KIND] != NOTHING) & there[..., None]
        floats = (rows[..., O.SHADOW] > 0) & ~packed["grounded"][..., None]
        rows[..., O.ALPHA] *= used & ~floats
        order = torch.argsort((~used).reshape(batch, slots).int(), dim=1, stable=True)
        pick = lambda t: torch.gather(t.reshape(batch, slots, -1), 1, order[..., None].expand(-1, -1, t.shape[-1])).transpose(0, 1).contiguous()
        return pick(place), pick(rows), pick(rgb)
