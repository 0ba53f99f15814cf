"""Pictures to PNG files, with nothing but zlib."""
import struct
import zlib
from pathlib import Path

import numpy as np


def to_bytes(pictures):
    """(n, 3, h, w) in 0..1 -> (n, h, w, 3) uint8."""
    return (pictures.detach().float().clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()


def save_png(path, rgb):
    """rgb (h, w, 3) uint8."""
    h, w, _ = rgb.shape
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = np.concatenate([np.zeros((h, 1), np.uint8), np.ascontiguousarray(rgb).reshape(h, -1)], 1)
    Path(path).write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0))
                           + chunk(b"IDAT", zlib.compress(rows.tobytes(), 6)) + chunk(b"IEND", b""))


def save_sheet(path, pictures, columns, gap=4):
    """A contact sheet, row by row."""
    pixels = to_bytes(pictures)
    n, h, w, _ = pixels.shape
    rows = -(-n // columns)
    sheet = np.full((rows * (h + gap) - gap, columns * (w + gap) - gap, 3), 255, np.uint8)
    for i, picture in enumerate(pixels):
        y, x = i // columns * (h + gap), i % columns * (w + gap)
        sheet[y:y + h, x:x + w] = picture
    save_png(path, sheet)
