"""What each object looks like: a short list of primitives in its own box, x and y in -1..1, y pointing down.

A primitive is an ellipse or a polygon of at most ten corners with rounded corners, painted in one paint. The paints
`main`, `light`, `dark` and `deep` are tones of the colour that the caption asks for; the others are fixed and depend on
the time of day only. A primitive with `clip` shows only inside the last one without it, which gives shading, stripes
and crescents without a second kind of primitive. Nothing here knows about pictures or batches: see render.py.
"""
import math

import numpy as np

CORNERS = 10

# Columns of a primitive's row. Ellipse: centre, radii, cosine and sine of its angle. Polygon: CORNERS points.
KIND, CX, CY, RX, RY, COS, SIN = range(7)
POINTS = 7
ROUND, SOFT, STROKE, ALPHA, CLIP, INVERT, PAINT, SHADOW = range(POINTS + 2 * CORNERS, POINTS + 2 * CORNERS + 8)
FIELDS = SHADOW + 1

TONES = ("main", "light", "dark", "deep")
ACCENTS = ("white", "cream", "ink", "wood", "darkwood", "glass", "glow", "flame", "tyre", "steel", "leaf", "darkleaf",
           "gold", "beak", "blush", "shadow")
PAINTS = TONES + ACCENTS


def _row(paint, alpha=1.0, round=0.0, soft=0.0, stroke=0.0, clip=False, invert=False):
    row = np.zeros(FIELDS, np.float32)
    row[[ROUND, SOFT, STROKE, ALPHA, CLIP, INVERT, PAINT]] = round, soft, stroke, alpha, clip, invert, PAINTS.index(paint)
    row[[RX, RY, COS]] = 1.0
    return row


def ellipse(cx, cy, rx, ry, paint, angle=0.0, **how):
    row = _row(paint, **how)
    turn = math.radians(angle)
    row[[CX, CY, RX, RY, COS, SIN]] = cx, cy, rx, ry, math.cos(turn), math.sin(turn)
    return row


def polygon(points, paint, **how):
    assert 2 <= len(points) <= CORNERS
    row = _row(paint, **how)
    row[KIND] = 1
    # A repeated corner is an edge of no length: it changes neither the distance nor the winding.
    filled = list(points) + [points[-1]] * (CORNERS - len(points))
    row[POINTS:POINTS + 2 * CORNERS] = np.array(filled, np.float32).reshape(-1)
    return row


def box(x0, y0, x1, y1, paint, round=0.0, **how):
    """Its sides lie where asked: the corners are moved in by the rounding, which then adds it back."""
    r = round
    return polygon([(x0 + r, y0 + r), (x1 - r, y0 + r), (x1 - r, y1 - r), (x0 + r, y1 - r)], paint, round=r, **how)


def line(a, b, width, paint, **how):
    return polygon([a, b], paint, round=width / 2, **how)


def shadow(cx=0.0, rx=0.8, cy=0.98):
    """The soft shadow on the ground, left out for things that float."""
    row = ellipse(cx, cy, rx, 0.11, "shadow", alpha=0.30, soft=0.12)
    row[SHADOW] = 1
    return row


def spikes(n, outer, inner, turn=0.0, cx=0.0, cy=0.0):
    """The corners of a star with n points."""
    return [(cx + r * math.sin(a), cy - r * math.cos(a))
            for i in range(2 * n)
            for r, a in [(outer if i % 2 == 0 else inner, math.radians(turn) + math.pi * i / n)]]


def window(cx, cy, w, h, round=0.02):
    return [box(cx - w - 0.05, cy - h - 0.05, cx + w + 0.05, cy + h + 0.05, "white", round=round),
            box(cx - w, cy - h, cx + w, cy + h, "glass", round=round)]


def house():
    return [shadow(rx=0.95),
            box(0.36, -0.86, 0.60, -0.20, "deep"),
            box(-0.74, -0.22, 0.74, 1.0, "main"),
            box(0.30, -0.3, 0.80, 1.0, "dark", alpha=0.55, clip=True),
            polygon([(-0.94, -0.12), (0.0, -0.92), (0.94, -0.12)], "dark", round=0.06),
            polygon([(0.0, -0.98), (1.1, -0.02), (0.42, -0.02)], "deep", alpha=0.6, clip=True),
            ellipse(0, -0.40, 0.15, 0.15, "white"), ellipse(0, -0.40, 0.10, 0.10, "glass"),
            box(-0.19, 0.32, 0.19, 1.04, "darkwood", round=0.04), ellipse(0.10, 0.70, 0.035, 0.035, "gold"),
            *window(-0.46, 0.30, 0.13, 0.17), *window(0.46, 0.30, 0.13, 0.17)]


def castle():
    tower = lambda x, top: [box(x - 0.24, top, x + 0.24, 1.0, "main"),
                            box(x + 0.04, top - 0.1, x + 0.3, 1.0, "dark", alpha=0.55, clip=True),
                            polygon([(x - 0.30, top), (x, top - 0.58), (x + 0.30, top)], "deep", round=0.03)]
    return [shadow(rx=1.0),
            *tower(0.0, -0.40),
            box(-0.70, 0.16, 0.70, 1.0, "light"),
            box(-0.09, -0.18, 0.09, 0.06, "glass", round=0.06),
            *tower(-0.72, -0.12), *tower(0.72, -0.12),
            box(-0.78, 0.10, -0.64, 0.36, "glass", round=0.06), box(0.64, 0.10, 0.78, 0.36, "glass", round=0.06),
            ellipse(0, 0.62, 0.23, 0.24, "darkwood"), box(-0.23, 0.62, 0.23, 1.0, "darkwood")]


def lighthouse():
    side = lambda y: 0.25 + 0.17 * (y + 0.42) / 1.42  # half the tower's width at height y
    band = lambda a, b, paint: polygon([(-side(a), a), (side(a), a), (side(b), b), (-side(b), b)], paint)
    return [shadow(rx=0.62),
            ellipse(0, -0.60, 0.60, 0.42, "glow", alpha=0.40, soft=0.5),
            band(-0.42, 1.0, "main"),
            box(-0.6, -0.10, 0.6, 0.20, "white", clip=True), box(-0.6, 0.52, 0.6, 0.80, "white", clip=True),
            box(0.12, -0.5, 0.6, 1.0, "shadow", alpha=0.18, clip=True),
            box(-0.20, -0.74, 0.20, -0.46, "glow"),
            line((0, -0.74), (0, -0.46), 0.05, "deep"),
            polygon([(-0.26, -0.74), (0, -0.98), (0.26, -0.74)], "dark", round=0.03),
            box(-0.34, -0.50, 0.34, -0.40, "deep", round=0.03),
            box(-0.12, 0.76, 0.12, 1.04, "darkwood", round=0.08)]


def tree():
    return [shadow(rx=0.6),
            polygon([(-0.10, 0.1), (0.10, 0.1), (0.17, 1.0), (-0.17, 1.0)], "wood"),
            box(0.02, 0.0, 0.3, 1.0, "darkwood", alpha=0.6, clip=True),
            ellipse(-0.38, 0.10, 0.40, 0.36, "dark"), ellipse(0.38, 0.12, 0.40, 0.36, "dark"),
            ellipse(0, -0.28, 0.62, 0.66, "main"),
            ellipse(-0.40, 0.04, 0.34, 0.30, "main"), ellipse(0.36, 0.06, 0.34, 0.30, "main"),
            ellipse(-0.20, -0.50, 0.26, 0.22, "light", alpha=0.8), ellipse(0.22, -0.16, 0.16, 0.13, "light", alpha=0.6),
            ellipse(-0.36, 0.02, 0.14, 0.11, "light", alpha=0.6)]


def pine():
    tier = lambda top, base, half: [polygon([(-half, base), (0, top), (half, base)], "main", round=0.05),
                                    polygon([(0, top - 0.1), (half + 0.1, base + 0.1), (0.08, base + 0.1)], "dark", clip=True)]
    return [shadow(rx=0.55), box(-0.12, 0.6, 0.12, 1.0, "wood"), box(0.02, 0.6, 0.12, 1.0, "darkwood", alpha=0.6),
            *tier(-0.10, 0.72, 0.66), *tier(-0.55, 0.30, 0.52), *tier(-0.94, -0.14, 0.38)]


def flower():
    petals = [ellipse(0.34 * math.sin(a), -0.42 - 0.34 * math.cos(a), 0.20, 0.27, "main" if i % 2 else "dark",
                      angle=math.degrees(a))
              for i in (0, 2, 4, 6, 1, 3, 5, 7) for a in [math.pi * i / 4]]
    return [shadow(rx=0.4),
            line((0, -0.2), (0, 0.97), 0.09, "darkleaf"),
            ellipse(0.26, 0.56, 0.27, 0.11, "leaf", angle=-28), ellipse(-0.26, 0.70, 0.27, 0.11, "leaf", angle=28),
            *petals,
            ellipse(0, -0.42, 0.21, 0.21, "gold"), ellipse(-0.04, -0.46, 0.11, 0.10, "cream", alpha=0.55)]


def mushroom():
    return [shadow(rx=0.6),
            polygon([(-0.20, 0.0), (0.20, 0.0), (0.25, 0.90), (-0.25, 0.90)], "cream", round=0.07),
            box(0.06, 0.0, 0.5, 1.0, "shadow", alpha=0.16, clip=True),
            ellipse(0, 0.12, 0.80, 0.17, "deep"),
            box(-1, -1, 1, 0.12, "main", alpha=0),
            ellipse(0, 0.12, 0.86, 0.98, "main", clip=True),
            ellipse(-0.36, -0.42, 0.26, 0.30, "light", angle=40, alpha=0.5),
            ellipse(-0.34, -0.30, 0.17, 0.15, "white", angle=-25), ellipse(0.16, -0.52, 0.15, 0.12, "white"),
            ellipse(0.46, -0.16, 0.15, 0.13, "white", angle=20), ellipse(0.02, -0.10, 0.12, 0.10, "white"),
            ellipse(-0.64, -0.02, 0.08, 0.07, "white")]


def cactus():
    return [shadow(rx=0.55),
            line((-0.58, -0.22), (-0.58, 0.18), 0.24, "main"), line((-0.58, 0.22), (-0.1, 0.30), 0.24, "main"),
            line((0.58, -0.42), (0.58, 0.02), 0.24, "main"), line((0.58, 0.04), (0.1, 0.14), 0.24, "main"),
            box(-0.28, -0.96, 0.28, 1.0, "main", round=0.26),
            box(0.08, -1, 0.5, 1.0, "dark", alpha=0.6, clip=True),
            line((-0.12, -0.66), (-0.12, 0.78), 0.05, "light"), line((0.06, -0.74), (0.06, 0.84), 0.05, "light"),
            line((-0.62, -0.18), (-0.62, 0.14), 0.05, "light"), line((0.56, -0.38), (0.56, 0.0), 0.05, "light"),
            ellipse(-0.06, -0.94, 0.15, 0.10, "blush"), ellipse(0.10, -0.96, 0.10, 0.08, "blush")]


def sun():
    return [ellipse(0, 0, 0.85, 0.85, "light", alpha=0.45, soft=0.8),
            *[polygon(spikes(4, 0.98, 0.46, turn), paint, round=0.02)
              for turn, paint in ((22.5, "light"), (67.5, "light"), (0, "main"), (45, "main"))],
            ellipse(0, 0, 0.60, 0.60, "main"), ellipse(-0.04, -0.04, 0.46, 0.46, "light", alpha=0.65)]


def moon():
    return [ellipse(-0.10, 0, 0.9, 0.9, "light", alpha=0.30, soft=0.8),
            ellipse(0, 0, 0.86, 0.86, "main", alpha=0),
            ellipse(0.42, -0.16, 0.72, 0.72, "main", clip=True, invert=True),
            ellipse(-0.48, -0.14, 0.13, 0.13, "dark", alpha=0.55), ellipse(-0.36, 0.36, 0.17, 0.15, "dark", alpha=0.55),
            ellipse(0.06, 0.66, 0.10, 0.08, "dark", alpha=0.55), ellipse(-0.62, 0.18, 0.07, 0.07, "dark", alpha=0.55)]


def star():
    facets = [polygon([(0, 0.05), spikes(5, 1.2, 0.5, cy=0.05)[2 * i], spikes(5, 1.2, 0.5, cy=0.05)[(2 * i + 1) % 10]], "dark",
                      alpha=0.5, clip=True) for i in range(5)]
    return [polygon(spikes(5, 0.92, 0.43, cy=0.05), "main", round=0.07), *facets]


def cloud():
    return [ellipse(-0.52, 0.14, 0.42, 0.36, "dark"), ellipse(0.54, 0.16, 0.40, 0.34, "dark"),
            box(-0.92, 0.10, 0.92, 0.56, "dark", round=0.22),
            ellipse(-0.50, 0.08, 0.40, 0.34, "main"), ellipse(0.52, 0.10, 0.37, 0.31, "main"),
            ellipse(0.02, -0.12, 0.52, 0.46, "main"), box(-0.86, 0.06, 0.86, 0.46, "main", round=0.19),
            ellipse(-0.06, -0.26, 0.30, 0.22, "light", alpha=0.8), ellipse(-0.56, -0.02, 0.18, 0.13, "light", alpha=0.8)]


def mountain():
    return [polygon([(-0.16, 0.9), (0.46, -0.30), (1.0, 0.9)], "dark", round=0.03),
            polygon([(0.30, 0.02), (0.46, -0.36), (0.63, 0.02), (0.54, -0.04), (0.46, 0.08), (0.38, -0.03)], "cream"),
            polygon([(-0.98, 0.9), (-0.22, -0.90), (0.60, 0.9)], "main", round=0.03),
            polygon([(-0.22, -1.0), (0.8, 1.0), (0.06, 1.0), (-0.16, 0.35), (-0.02, -0.10), (-0.18, -0.4)], "dark", clip=True),
            polygon([(-0.60, -0.10), (-0.22, -1.0), (0.20, -0.10), (0.04, -0.28), (-0.08, -0.06), (-0.24, -0.30), (-0.40, -0.04),
                     (-0.48, -0.24)], "white", clip=True)]


def boat():
    return [line((0.0, -0.94), (0.0, 0.40), 0.07, "wood"),
            polygon([(0.09, -0.84), (0.84, 0.30), (0.09, 0.30)], "white", round=0.02),
            polygon([(0.09, -0.10), (0.60, 0.30), (0.09, 0.30)], "shadow", alpha=0.10, clip=True),
            polygon([(-0.09, -0.70), (-0.09, 0.30), (-0.66, 0.30)], "main", round=0.02),
            polygon([(-0.09, -0.20), (-0.09, 0.34), (-0.4, 0.34)], "dark", alpha=0.6, clip=True),
            polygon([(-0.94, 0.42), (0.94, 0.42), (0.60, 0.92), (-0.62, 0.92)], "main", round=0.05),
            box(-1.1, 0.70, 1.1, 1.1, "dark", clip=True), box(-1.1, 0.30, 1.1, 0.47, "light", clip=True),
            ellipse(-0.40, 0.59, 0.07, 0.07, "white"), ellipse(0.0, 0.59, 0.07, 0.07, "white"), ellipse(0.40, 0.59, 0.07, 0.07, "white")]


def car():
    wheel = lambda x: [ellipse(x, 0.52, 0.235, 0.235, "tyre"), ellipse(x, 0.52, 0.125, 0.125, "steel")]
    return [shadow(rx=0.98, cy=0.74),
            polygon([(-0.50, -0.46), (0.26, -0.46), (0.56, 0.06), (-0.66, 0.06)], "light", round=0.09),
            polygon([(-0.44, -0.40), (-0.12, -0.40), (-0.12, -0.02), (-0.56, -0.02)], "glass", round=0.03),
            polygon([(0.00, -0.40), (0.20, -0.40), (0.42, -0.02), (0.00, -0.02)], "glass", round=0.03),
            box(-0.97, -0.08, 0.97, 0.52, "main", round=0.20),
            box(-1.1, 0.32, 1.1, 0.6, "dark", clip=True),
            box(-0.06, 0.06, 0.10, 0.11, "deep", round=0.025),
            ellipse(0.90, 0.12, 0.09, 0.11, "gold"), ellipse(-0.93, 0.12, 0.06, 0.10, "flame"),
            *wheel(-0.52), *wheel(0.52)]


def rocket():
    return [polygon([(-0.17, 0.58), (0.17, 0.58), (0.0, 0.99)], "flame", round=0.05),
            polygon([(-0.08, 0.58), (0.08, 0.58), (0.0, 0.82)], "gold", round=0.03),
            polygon([(-0.20, 0.12), (-0.56, 0.48), (-0.56, 0.70), (-0.18, 0.54)], "dark", round=0.04),
            polygon([(0.20, 0.12), (0.56, 0.48), (0.56, 0.70), (0.18, 0.54)], "deep", round=0.04),
            box(-0.8, -1.0, 0.8, 0.60, "main", alpha=0), ellipse(0, 0.02, 0.37, 1.0, "main", clip=True),
            ellipse(0, 0.02, 0.37, 1.0, "main", alpha=0),
            box(0.10, -1, 0.8, 0.60, "dark", alpha=0.55, clip=True), box(-0.8, -1.1, 0.8, -0.52, "deep", clip=True),
            box(-0.24, 0.52, 0.24, 0.63, "steel", round=0.03),
            ellipse(0, -0.14, 0.20, 0.20, "white"), ellipse(0, -0.14, 0.14, 0.14, "glass")]


def balloon():
    return [line((-0.26, 0.34), (-0.14, 0.78), 0.035, "darkwood"), line((0.26, 0.34), (0.14, 0.78), 0.035, "darkwood"),
            polygon([(-0.40, 0.06), (0.40, 0.06), (0.17, 0.46), (-0.17, 0.46)], "dark", round=0.04),
            ellipse(0, -0.28, 0.70, 0.70, "main"),
            ellipse(0.62, -0.28, 0.26, 0.90, "dark", clip=True), ellipse(-0.62, -0.28, 0.26, 0.90, "dark", alpha=0.5, clip=True),
            ellipse(0, -0.28, 0.30, 0.72, "light", clip=True),
            polygon([(-0.26, 0.20), (0.26, 0.20), (0.12, 0.46), (-0.12, 0.46)], "light", round=0.02),
            ellipse(0, -0.28, 0.05, 0.72, "main"),
            box(-0.18, 0.72, 0.18, 0.98, "wood", round=0.05), box(-0.20, 0.70, 0.20, 0.78, "darkwood", round=0.03)]


def umbrella():
    return [line((0, -0.92), (0, 0.74), 0.07, "darkwood"),
            polygon([(0.0, 0.74), (0.03, 0.86), (0.12, 0.92), (0.22, 0.90), (0.29, 0.80), (0.22, 0.90), (0.12, 0.92), (0.03, 0.86)],
                    "darkwood", round=0.035),
            box(-1, -1, 1, 0.08, "main", alpha=0), ellipse(0, 0.06, 0.94, 0.86, "main", clip=True),
            ellipse(0, 0.06, 0.36, 0.86, "light", alpha=0.55, clip=True),
            ellipse(-0.66, 0.08, 0.29, 0.12, "deep"), ellipse(0.66, 0.08, 0.29, 0.12, "deep"), ellipse(0, 0.08, 0.36, 0.13, "deep")]


def lamp():
    return [shadow(rx=0.5),
            ellipse(0, 0.06, 0.62, 0.50, "glow", alpha=0.45, soft=0.6),
            line((0, -0.1), (0, 0.90), 0.11, "steel"), ellipse(0, 0.58, 0.13, 0.17, "dark"),
            box(-0.36, 0.85, 0.36, 1.0, "dark", round=0.06),
            ellipse(0, 0.06, 0.22, 0.13, "glow"),
            polygon([(-0.32, -0.88), (0.32, -0.88), (0.68, 0.02), (-0.68, 0.02)], "main", round=0.06),
            polygon([(-0.24, -1), (-0.04, -1), (-0.14, 0.2), (-0.52, 0.2)], "light", alpha=0.8, clip=True),
            polygon([(0.26, -1), (0.6, -1), (0.9, 0.2), (0.46, 0.2)], "dark", alpha=0.8, clip=True)]


def apple():
    return [shadow(rx=0.6, cy=0.88),
            ellipse(-0.28, 0.20, 0.50, 0.66, "main", angle=8), ellipse(0.28, 0.20, 0.50, 0.66, "main", angle=-8),
            ellipse(0.0, 0.20, 0.4, 0.52, "main"),
            ellipse(0.28, 0.20, 0.50, 0.66, "main", angle=-8),
            ellipse(0.02, 0.04, 0.66, 0.70, "dark", alpha=0.75, clip=True, invert=True),
            ellipse(-0.40, -0.10, 0.13, 0.22, "light", angle=22),
            ellipse(0, -0.36, 0.20, 0.07, "deep"),
            line((0.0, -0.38), (0.06, -0.76), 0.09, "darkwood"), ellipse(0.32, -0.72, 0.28, 0.13, "leaf", angle=-24)]


def cat():
    ear = lambda s: [polygon([(s * 0.50, -0.46), (s * 0.42, -0.92), (s * 0.12, -0.70)], "main", round=0.04),
                     polygon([(s * 0.41, -0.60), (s * 0.38, -0.80), (s * 0.23, -0.70)], "blush", round=0.02)]
    eye = lambda s: [ellipse(s * 0.20, -0.42, 0.085, 0.10, "white"), ellipse(s * 0.19, -0.41, 0.05, 0.085, "ink")]
    return [shadow(rx=0.72),
            line((0.40, 0.86), (0.74, 0.72), 0.20, "dark"), line((0.74, 0.72), (0.80, 0.32), 0.20, "dark"),
            ellipse(0, 0.46, 0.50, 0.56, "main"), ellipse(0, 0.62, 0.28, 0.36, "light"),
            ellipse(-0.24, 0.93, 0.20, 0.10, "main"), ellipse(0.24, 0.93, 0.20, 0.10, "main"),
            *ear(-1), *ear(1), ellipse(0, -0.36, 0.54, 0.44, "main"),
            ellipse(0, -0.20, 0.24, 0.17, "light"), *eye(-1), *eye(1),
            polygon([(-0.06, -0.27), (0.06, -0.27), (0, -0.20)], "blush", round=0.02), line((0, -0.2), (0, -0.12), 0.03, "ink")]


def dog():
    eye = lambda s: ellipse(s * 0.19, -0.46, 0.07, 0.085, "ink")
    return [shadow(rx=0.72),
            line((-0.42, 0.80), (-0.78, 0.42), 0.16, "dark"),
            ellipse(0, 0.46, 0.48, 0.56, "main"), ellipse(0, 0.56, 0.26, 0.36, "light"),
            ellipse(-0.26, 0.92, 0.22, 0.11, "main"), ellipse(0.26, 0.92, 0.22, 0.11, "main"),
            ellipse(0, -0.40, 0.46, 0.48, "main"),
            ellipse(-0.50, -0.34, 0.17, 0.40, "deep", angle=14), ellipse(0.50, -0.34, 0.17, 0.40, "deep", angle=-14),
            box(-0.34, 0.02, 0.34, 0.14, "flame", round=0.06),
            ellipse(0, -0.08, 0.11, 0.15, "blush"), ellipse(0, -0.22, 0.28, 0.22, "light"),
            ellipse(0, -0.31, 0.13, 0.09, "ink"), eye(-1), eye(1)]


def fish():
    return [polygon([(0.40, 0.0), (0.96, -0.46), (0.84, 0.0), (0.96, 0.46)], "dark", round=0.04),
            polygon([(-0.24, -0.36), (0.10, -0.70), (0.34, -0.26)], "dark", round=0.05),
            polygon([(-0.10, 0.36), (0.10, 0.66), (0.28, 0.28)], "dark", round=0.05),
            ellipse(-0.18, 0, 0.76, 0.48, "main"),
            ellipse(-0.18, -0.24, 0.80, 0.50, "light", alpha=0.55, clip=True),
            box(0.02, -0.6, 0.13, 0.6, "white", alpha=0.85, clip=True), box(0.26, -0.6, 0.36, 0.6, "white", alpha=0.85, clip=True),
            ellipse(-1.10, 0.20, 0.36, 0.10, "deep", clip=True),
            ellipse(-0.14, 0.10, 0.18, 0.11, "dark", angle=20),
            ellipse(-0.56, -0.10, 0.12, 0.12, "white"), ellipse(-0.58, -0.10, 0.065, 0.065, "ink")]


def bird():
    return [shadow(rx=0.4),
            line((-0.06, 0.60), (-0.10, 0.96), 0.06, "beak"), line((0.18, 0.60), (0.18, 0.96), 0.06, "beak"),
            polygon([(0.34, 0.10), (0.98, -0.16), (0.94, 0.14), (0.44, 0.46)], "dark", round=0.04),
            polygon([(-0.72, -0.44), (-0.99, -0.28), (-0.72, -0.20)], "beak", round=0.03),
            ellipse(0.02, 0.20, 0.58, 0.50, "main"), ellipse(-0.40, -0.34, 0.40, 0.38, "main"),
            ellipse(-0.16, 0.36, 0.36, 0.32, "light"),
            ellipse(0.20, 0.12, 0.44, 0.26, "deep", angle=24), ellipse(0.16, 0.04, 0.34, 0.18, "dark", angle=24),
            ellipse(-0.50, -0.42, 0.10, 0.10, "white"), ellipse(-0.52, -0.42, 0.055, 0.055, "ink")]


def butterfly():
    wing = lambda s: [ellipse(s * 0.46, -0.36, 0.36, 0.52, "main", angle=s * 38),
                      ellipse(s * 0.38, 0.38, 0.30, 0.42, "dark", angle=-s * 34),
                      ellipse(s * 0.54, -0.42, 0.17, 0.25, "light", angle=s * 38),
                      ellipse(s * 0.42, 0.42, 0.12, 0.18, "light", angle=-s * 34)]
    return [*wing(-1), *wing(1),
            line((0, -0.5), (-0.20, -0.92), 0.04, "ink"), line((0, -0.5), (0.20, -0.92), 0.04, "ink"),
            ellipse(0, 0.02, 0.085, 0.60, "ink"), ellipse(0, -0.52, 0.11, 0.11, "ink")]


def heart():
    # A square on its corner and two half circles on its upper sides.
    d, y = 0.74, 0.10
    lobe = lambda s, paint, **how: ellipse(s * d / 2, y - d / 2, d * 0.7071, d * 0.7071, paint, **how)
    return [polygon([(0, y - d), (d, y), (0, y + d), (-d, y)], "main", round=0.02), lobe(-1, "main"), lobe(1, "main"),
            ellipse(d / 2 - 0.10, y - d / 2 + 0.08, d * 0.7071, d * 0.7071, "dark", alpha=0.55, clip=True, invert=True),
            ellipse(-0.50, -0.42, 0.14, 0.22, "light", angle=35)]


def circle():
    return [ellipse(0, 0, 0.94, 0.94, "main"), ellipse(-0.14, -0.14, 0.94, 0.94, "dark", alpha=0.55, clip=True, invert=True),
            ellipse(-0.36, -0.42, 0.24, 0.16, "light", angle=-40, alpha=0.9)]


def square():
    return [box(-0.84, -0.84, 0.84, 0.84, "main", round=0.06), polygon([(1, -1), (1, 1), (-1, 1)], "dark", alpha=0.55, clip=True),
            box(-0.66, -0.66, -0.10, -0.52, "light", round=0.07, alpha=0.9)]


def triangle():
    return [polygon([(0, -0.84), (0.90, 0.76), (-0.90, 0.76)], "main", round=0.07),
            polygon([(0, -1), (1.2, 1.0), (0.10, 1.0)], "dark", alpha=0.55, clip=True),
            line((-0.14, -0.30), (-0.40, 0.16), 0.13, "light", alpha=0.9)]


# Each object's drawings; a scene picks one of them. `pine` is a tree that captions may also call a pine.
DRAWINGS = {f.__name__: [f] for f in (house, castle, lighthouse, tree, flower, mushroom, cactus, sun, moon, star, cloud, mountain,
                                      boat, car, rocket, balloon, umbrella, lamp, apple, cat, dog, fish, bird, butterfly, heart,
                                      circle, square, triangle)}
DRAWINGS["tree"].append(pine)


def bounds(rows):
    """The box around what shows of a drawing, shadows and glows aside: x0, y0, x1, y1."""
    shown, parent = [], None
    for row in rows:
        if row[KIND] > 0.5:
            corners = row[POINTS:POINTS + 2 * CORNERS].reshape(-1, 2)
            reach = np.array([*(corners.min(0) - row[ROUND]), *(corners.max(0) + row[ROUND])])
        else:
            half = np.hypot([row[RX] * row[COS], row[RX] * row[SIN]], [row[RY] * row[SIN], row[RY] * row[COS]])
            reach = np.array([row[CX] - half[0], row[CY] - half[1], row[CX] + half[0], row[CY] + half[1]])
        if row[CLIP]:
            inside = parent if row[INVERT] else np.concatenate([np.maximum(reach[:2], parent[:2]), np.minimum(reach[2:], parent[2:])])
            reach = inside
        else:
            parent = reach
        if row[ALPHA] > 0 and not row[SOFT]:
            shown.append(reach)
    shown = np.stack(shown)
    return (*shown[:, :2].min(0).tolist(), *shown[:, 2:].max(0).tolist())
