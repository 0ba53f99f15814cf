"""What lies behind the things: a sky in three tones, up to four layers of land or water, specks, and city windows.

A layer is everything below a line over x, its profile: hills, dunes, waves, roofs or treetops. Each scene's own look comes
from its seed by an integer hash, so that the same scene gives the same picture on every device.
"""
import functools
import math

import torch

from scenes import SETTINGS, TIMES

# Sky: colours at the top, in the middle and at the horizon.
SKY = {
    "day": ((0.36, 0.66, 0.90), (0.62, 0.83, 0.95), (0.88, 0.95, 0.97)),
    "sunset": ((0.33, 0.28, 0.52), (0.86, 0.48, 0.50), (1.00, 0.78, 0.50)),
    "night": ((0.05, 0.07, 0.19), (0.10, 0.14, 0.32), (0.22, 0.28, 0.50)),
}
# A plain backdrop is one of these, paler in the middle.
PASTELS = {
    "day": ((0.78, 0.87, 0.92), (0.93, 0.86, 0.77), (0.80, 0.89, 0.82), (0.86, 0.82, 0.91), (0.91, 0.89, 0.79), (0.91, 0.82, 0.82)),
    "sunset": ((0.97, 0.80, 0.68), (0.96, 0.76, 0.72), (0.94, 0.82, 0.66), (0.90, 0.74, 0.76), (0.98, 0.83, 0.74), (0.92, 0.78, 0.80)),
    "night": ((0.14, 0.17, 0.33), (0.17, 0.16, 0.32), (0.12, 0.19, 0.32), (0.15, 0.18, 0.36), (0.18, 0.18, 0.30), (0.11, 0.16, 0.30)),
}
# What a time of day does to the land: a factor, then a share of haze.
LIGHT_ON_LAND = {"day": (1.0, 1.0, 1.0), "sunset": (0.98, 0.78, 0.72), "night": (0.36, 0.43, 0.62)}
HAZE_ON_LAND = {"day": (0.0, 0.0, 0.0, 0.0), "sunset": (0.78, 0.45, 0.48, 0.10), "night": (0.11, 0.16, 0.34, 0.40)}

HILLS, WAVES, DUNES, ROOFS, PINES, FLAT = range(6)
# Layers from far to near: profile, height of its line, swing, swings across the picture, colour at the line and further down,
# and how much lighter its rim is.
LAYERS = {
    "plain": [],
    "sea": [(FLAT, 0.56, 0.0, 1.0, (0.47, 0.76, 0.86), (0.22, 0.55, 0.76), 0.5),
            (WAVES, 0.64, 0.012, 6.0, (0.30, 0.64, 0.80), (0.20, 0.52, 0.74), 0.35),
            (WAVES, 0.73, 0.014, 4.5, (0.24, 0.57, 0.77), (0.16, 0.46, 0.69), 0.35),
            (HILLS, 0.85, 0.016, 1.1, (0.96, 0.87, 0.68), (0.90, 0.77, 0.56), 0.75)],
    "meadow": [(HILLS, 0.56, 0.035, 1.6, (0.62, 0.80, 0.68), (0.56, 0.76, 0.60), 0.15),
               (HILLS, 0.63, 0.030, 1.1, (0.62, 0.81, 0.46), (0.54, 0.76, 0.40), 0.2),
               (HILLS, 0.72, 0.018, 0.9, (0.66, 0.84, 0.40), (0.50, 0.74, 0.34), 0.3)],
    "desert": [(DUNES, 0.57, 0.035, 1.7, (0.93, 0.76, 0.58), (0.90, 0.70, 0.52), 0.15),
               (DUNES, 0.66, 0.035, 1.2, (0.95, 0.79, 0.53), (0.90, 0.69, 0.44), 0.25),
               (DUNES, 0.76, 0.025, 0.9, (0.97, 0.83, 0.58), (0.89, 0.69, 0.43), 0.3)],
    "snow": [(PINES, 0.60, 0.10, 15.0, (0.60, 0.73, 0.80), (0.72, 0.82, 0.88), 0.0),
             (HILLS, 0.62, 0.030, 1.2, (0.86, 0.92, 0.97), (0.78, 0.86, 0.94), 0.5),
             (HILLS, 0.73, 0.022, 0.9, (0.91, 0.95, 0.98), (0.82, 0.89, 0.96), 0.6)],
    "city": [(ROOFS, 0.62, 0.38, 11.0, (0.70, 0.78, 0.86), (0.74, 0.81, 0.87), 0.0),
             (ROOFS, 0.68, 0.26, 8.0, (0.53, 0.62, 0.74), (0.58, 0.66, 0.76), 0.0),
             (FLAT, 0.74, 0.0, 1.0, (0.80, 0.82, 0.82), (0.74, 0.76, 0.78), 0.3),
             (FLAT, 0.86, 0.0, 1.0, (0.44, 0.47, 0.53), (0.38, 0.41, 0.47), 0.5)],
    "forest": [(PINES, 0.56, 0.16, 10.0, (0.66, 0.80, 0.72), (0.60, 0.76, 0.68), 0.0),
               (PINES, 0.66, 0.20, 7.0, (0.42, 0.63, 0.52), (0.38, 0.58, 0.48), 0.0),
               (HILLS, 0.70, 0.018, 1.1, (0.58, 0.74, 0.40), (0.44, 0.62, 0.33), 0.25)],
}
MOST_LAYERS = 4
LAYERS_WITH_ROOFS = {i for layers in LAYERS.values() for i, layer in enumerate(layers) if layer[0] == ROOFS}
COLUMNS = 64  # where the hash's indices for roofs and treetops begin


def _layer_table():
    """(settings, layers, 5 numbers + 2 colours + rim); an absent layer lies below the picture."""
    table = torch.zeros(len(SETTINGS), MOST_LAYERS, 11)
    table[..., 1] = 2.0
    for s, setting in enumerate(SETTINGS):
        for i, (kind, y, swing, across, near, far, rim) in enumerate(LAYERS[setting]):
            table[s, i] = torch.tensor([kind, y, swing, across, *near, *far, rim])
    return table


LAYER_TABLE = _layer_table()
SKY_TABLE = torch.tensor([SKY[t] for t in TIMES])  # (times, 3, 3)
PASTEL_TABLE = torch.tensor([PASTELS[t] for t in TIMES])  # (times, 6, 3)
LAND_LIGHT = torch.tensor([LIGHT_ON_LAND[t] for t in TIMES])  # (times, 3)
LAND_HAZE = torch.tensor([HAZE_ON_LAND[t] for t in TIMES])  # (times, 4)


@functools.cache
def tables(device):
    """The tables on the device. They are sent once: sending from ordinary memory makes the host wait until the device is idle."""
    return tuple(t.to(device) for t in (LAYER_TABLE, SKY_TABLE, PASTEL_TABLE, LAND_LIGHT, LAND_HAZE))


@functools.cache
def colour(rgb, device):
    """(1, 3, 1, 1), sent once as well."""
    return torch.tensor(rgb, device=device)[None, :, None, None]


def hash01(seed, index):
    """Numbers in 0..1 from integers, the same everywhere. seed and index broadcast; both int64."""
    v = (seed * 747796405 + index * 277803737 + 2891336453) & 0xFFFFFFFF
    v = ((v ^ (v >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    v = ((v ^ (v >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    return ((v ^ (v >> 16)) & 0xFFFFFF).float() / float(1 << 24)


def mix(a, b, t):
    return a + (b - a) * t


def profiles(layer, seed, size):
    """Where each layer begins over x: height and slope, and for roofs the column at each x and the place in it; all (batch, layers, size)."""
    kind, base, swing, across = (layer[..., i, None] for i in range(4))
    n = torch.arange(MOST_LAYERS, device=seed.device)
    rand = lambda k: hash01(seed[:, None], 8 * n + k)[..., None]  # (batch, layers, 1)
    x = ((torch.arange(size, device=seed.device) + 0.5) / size)[None, None, :]
    turn = 2 * math.pi * (x * across * (0.8 + 0.4 * rand(0)) + rand(1))
    hills = swing * (torch.sin(turn) + 0.4 * torch.sin(2.3 * turn + 6 * rand(2)))
    waves = swing * (1 - 2 * torch.sin(turn / 2).abs())
    dunes = swing * torch.sin(turn + 0.7 * torch.sin(turn))
    place = x * across + rand(1)
    column = place.floor().long()
    tall = hash01(seed[:, None, None] + 31 * n[None, :, None], COLUMNS + column)
    roofs = -swing * (0.25 + 0.75 * tall)
    pines = -swing * (0.5 + 0.5 * tall) * (1 - 2 * (place - place.floor() - 0.5).abs())
    offset = torch.zeros_like(turn)
    for which, shape in ((HILLS, hills), (WAVES, waves), (DUNES, dunes), (ROOFS, roofs), (PINES, pines)):
        offset = torch.where(kind == which, shape.expand_as(offset), offset)
    line = base + 0.02 * (rand(3) - 0.5) * (swing > 0) + offset
    slope = torch.gradient(line, dim=2)[0] * size * (kind != ROOFS)
    return line, slope, column, place - place.floor()


FLOORS = 34  # rows of windows from the top of the picture to its bottom


def windows(picture, line, column, across, seed, lit):
    """Rows of windows in one layer of roofs. line, column, across: (batch, size); lit: (batch,), how strongly they shine."""
    size = picture.shape[-1]
    y = (torch.arange(size, device=seed.device) + 0.5) / size
    floor = (y * FLOORS).floor().long()
    up = (y * FLOORS - floor)[None, :, None]
    # Which windows are lit is drawn once per floor, not per pixel.
    pane = (across * 3).floor().long()[:, None]
    floors = torch.arange(FLOORS, device=seed.device)[None, :, None]
    on = hash01(seed[:, None, None], column[:, None] * 977 + floors * 131 + pane) < 0.55  # (batch, FLOORS, size)
    beside = (across * 3) % 1.0
    glass = ((beside > 0.28) & (beside < 0.72) & (across > 0.08) & (across < 0.92))[:, None]
    cover = on[:, floor] & glass & (up > 0.3) & (up < 0.75) & (y[None, :, None] > line[:, None] + 0.025)
    return mix(picture, colour((1.0, 0.88, 0.55), picture.device), (cover * lit[:, None, None])[:, None])


def specks(picture, seed, salt, cells, radius, rgb, share, low, high):
    """Small soft dots, one per cell of a grid, in the band low <= y < high. share (batch,): how many of the cells have one;
    radius in fractions of the picture; low and high broadcast to (batch, size, size)."""
    size = picture.shape[-1]
    at = (torch.arange(size, device=seed.device) + 0.5) / size * cells
    cell, inner = at.floor().long(), at - at.floor()
    grid = torch.arange(cells * cells, device=seed.device).reshape(cells, cells)
    rand = lambda k: hash01(seed[:, None, None] + salt * 7919, grid * 4 + k)[:, cell[:, None], cell[None, :]]  # (batch, size, size)
    dx, dy = inner[None, None, :] - (0.2 + 0.6 * rand(0)), inner[None, :, None] - (0.2 + 0.6 * rand(1))
    bright = rand(2)
    distance = torch.sqrt(dx * dx + dy * dy) / cells - radius * (0.5 + 0.7 * bright)
    y = ((torch.arange(size, device=seed.device) + 0.5) / size)[None, :, None]
    there = (rand(3) < share[:, None, None]) & (y >= low) & (y < high)
    cover = torch.clamp(0.5 - distance * size / 1.3, 0, 1) * there * (0.45 + 0.55 * bright)
    return mix(picture, colour(rgb, picture.device), cover[:, None])


def paint(setting, time, seed, size):
    """Backdrops for a batch: setting, time and seed are (batch,) integers. Returns (batch, 3, size, size)."""
    device = seed.device
    layers, skies, pastels, land_light, land_haze = tables(device)
    layer = layers[setting]  # (batch, layers, 11)
    light, haze = land_light[time][:, :, None, None], land_haze[time][:, :, None, None]
    y = ((torch.arange(size, device=device) + 0.5) / size)[None, :, None]  # (1, size, 1)
    x = y.transpose(1, 2)

    sky = skies[time][..., None, None]  # (batch, 3 stops, 3, 1, 1)
    down = (y / 0.62).clamp(0, 1)[:, None]
    outdoors = torch.where(down < 0.5, mix(sky[:, 0], sky[:, 1], 2 * down), mix(sky[:, 1], sky[:, 2], 2 * down - 1))
    pick = (hash01(seed, 5) * PASTEL_TABLE.shape[1]).long()
    pastel = pastels[time, pick][..., None, None]
    middle = torch.exp(-3.5 * ((x - 0.5) ** 2 + (y - 0.48) ** 2))[:, None]
    indoors = mix(pastel, torch.ones_like(pastel), 0.42 * middle * torch.where(time == TIMES.index("night"), 0.25, 1.0)[:, None, None, None])
    plain = (setting == SETTINGS.index("plain"))[:, None, None, None]
    picture = torch.where(plain, indoors, outdoors)

    night = (time == TIMES.index("night")).float()
    snow = (setting == SETTINGS.index("snow")).float()
    picture = specks(picture, seed, 1, 13, 0.0042, (1.0, 0.98, 0.90), night * 0.5, 0.0, 0.58)
    line, slope, column, across = profiles(layer, seed, size)
    for i in range(MOST_LAYERS):
        below = y - line[:, i, None, :]  # (batch, size, size)
        steep = torch.sqrt(1 + slope[:, i, None, :] ** 2)
        cover = torch.clamp(0.5 + below * size / steep, 0, 1)[:, None]
        near, far, rim = layer[:, i, 4:7, None, None], layer[:, i, 7:10, None, None], layer[:, i, 10, None, None]
        land = mix(near, far, (below / 0.22).clamp(0, 1)[:, None])
        band = torch.clamp(0.5 + (0.010 - below) * size / steep, 0, 1) * rim
        land = mix(land, torch.ones_like(land), band[:, None]) * light
        picture = mix(picture, mix(land, haze[:, :3], haze[:, 3:]), cover)
        if i in LAYERS_WITH_ROOFS:
            lit = (layer[:, i, 0] == ROOFS) * torch.where(night > 0, 0.85, 0.35)
            picture = windows(picture, line[:, i], column[:, i], across[:, i], seed + i, lit)
    ground = line[:, 2, None, :]
    meadow = (setting == SETTINGS.index("meadow")).float()
    picture = specks(picture, seed, 2, 15, 0.0065, (1.0, 0.97, 0.80), meadow * 0.35 * (1 - 0.6 * night), ground + 0.03, 2.0)
    return specks(picture, seed, 3, 10, 0.0075, (0.99, 0.99, 1.0), snow * 0.6, 0.0, ground)
