"""All primitives of a picture in one Triton kernel: what render.paint_primitive does for one primitive of a batch, done for each tile
of pixels from the first primitive to the last, with the canvas in registers. Compiled one by one, some 70 launches for every 32
pictures kept the CPU busy and the GPU waiting. train.py compares both and takes the other where this one fails; `python3
paint_kernel.py` compares them without a GPU, in Triton's interpreter."""
import os

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"  # is read at the import
import triton
import triton.language as tl

import objects as O

TILE = 1024
COLUMNS = {name: tl.constexpr(getattr(O, name)) for name in
           ("KIND", "CX", "CY", "RX", "RY", "COS", "SIN", "POINTS", "CORNERS", "ROUND", "SOFT", "ALPHA", "CLIP", "INVERT", "FIELDS")}
KIND, CX, CY, RX, RY, COS, SIN, POINTS, CORNERS, ROUND, SOFT, ALPHA, CLIP, INVERT, FIELDS = COLUMNS.values()


@triton.jit
def paint_tile(pictures, place, rows, rgb, lengths, batch, size, TILE: tl.constexpr):
    """pictures (batch, 3, size, size), changed in place; place (slots, batch, 6), rows (slots, batch, FIELDS), rgb (slots, batch, 3),
    lengths (batch,): primitives of each picture."""
    picture = tl.program_id(0)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside_picture = at < size * size
    px, py = ((at % size).to(tl.float32) + 0.5) / size, ((at // size).to(tl.float32) + 0.5) / size
    canvas = pictures + picture.to(tl.int64) * 3 * size * size + at
    red = tl.load(canvas, mask=inside_picture)
    green = tl.load(canvas + size * size, mask=inside_picture)
    blue = tl.load(canvas + 2 * size * size, mask=inside_picture)
    parent = tl.zeros([TILE], tl.float32)
    length = tl.load(lengths + picture)
    slot = 0
    while slot < length:
        where, row, colour = place + (slot * batch + picture) * 6, rows + (slot * batch + picture) * FIELDS, rgb + (slot * batch + picture) * 3
        scale, mirrored, cos, sin = tl.load(where + 2), tl.load(where + 3), tl.load(where + 4), tl.load(where + 5)
        dx, dy = px - tl.load(where), py - tl.load(where + 1)
        x, y = mirrored * (dx * cos + dy * sin) / scale, (dy * cos - dx * sin) / scale
        if tl.load(row + KIND) > 0.5:
            nearest = tl.full([TILE], 1e30, tl.float32)
            inside = tl.zeros([TILE], tl.int32)
            bx, by = tl.load(row + POINTS + 2 * CORNERS - 2), tl.load(row + POINTS + 2 * CORNERS - 1)
            for i in range(CORNERS):
                ax, ay = tl.load(row + POINTS + 2 * i), tl.load(row + POINTS + 2 * i + 1)
                ex, ey = bx - ax, by - ay
                wx, wy = x - ax, y - ay
                along = tl.minimum(tl.maximum((wx * ex + wy * ey) / (ex * ex + ey * ey + 1e-9), 0.0), 1.0)
                nearest = tl.minimum(nearest, (wx - ex * along) * (wx - ex * along) + (wy - ey * along) * (wy - ey * along))
                between = (ay <= y) != (by <= y)
                side = (ex * wy - ey * wx > 0) == (ey > 0)
                inside = inside ^ (between & side).to(tl.int32)
                bx, by = ax, ay
            distance = tl.where(inside != 0, -1.0, 1.0) * tl.sqrt(nearest)
        else:
            cx, cy = x - tl.load(row + CX), y - tl.load(row + CY)
            rx, ry, c, s = tl.load(row + RX), tl.load(row + RY), tl.load(row + COS), tl.load(row + SIN)
            u, v = (cx * c + cy * s) / rx, (cy * c - cx * s) / ry
            f = tl.sqrt(u * u + v * v)
            distance = f * (f - 1) / (tl.sqrt((u / rx) * (u / rx) + (v / ry) * (v / ry)) + 1e-6)
        pixels = size * scale
        t = tl.minimum(tl.maximum(0.5 - (distance - tl.load(row + ROUND)) * pixels / (1.3 + tl.load(row + SOFT) * 2 * pixels), 0.0), 1.0)
        cover = t * t * (3 - 2 * t)
        cover = tl.where(tl.load(row + INVERT) > 0.5, 1 - cover, cover)
        clipped = tl.load(row + CLIP) > 0.5
        cover = tl.where(clipped, cover * parent, cover)
        alpha = cover * tl.load(row + ALPHA)
        red += (tl.load(colour) - red) * alpha
        green += (tl.load(colour + 1) - green) * alpha
        blue += (tl.load(colour + 2) - blue) * alpha
        parent = tl.where(clipped, parent, cover)
        slot += 1
    tl.store(canvas, red, mask=inside_picture)
    tl.store(canvas + size * size, green, mask=inside_picture)
    tl.store(canvas + 2 * size * size, blue, mask=inside_picture)


def paint(pictures, place, rows, rgb, lengths):
    batch, _, _, size = pictures.shape
    paint_tile[(batch, triton.cdiv(size * size, TILE))](pictures, place, rows, rgb, lengths, batch, size, TILE)


def main():
    import random

    import scenes
    from render import Renderer
    rng = random.Random(4)
    some = scenes.pack([scenes.sample(rng) for _ in range(6)])
    plain, fast = (Renderer("cpu", 40, how)(some) for how in ("plain", "kernel"))
    print(f"largest difference {(plain - fast).abs().max().item():.1e}")
    assert (plain - fast).abs().max() < 1e-4


if __name__ == "__main__":
    main()
