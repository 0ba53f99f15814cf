"""The contact sheet of docs/: the 24 prompts of sample.py with two seeds each, painted by the program itself.

usage: gallery.py IMPASTO OUT.jpg [flags of impasto ...]     needs Pillow
"""
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from prompts import GALLERY

COLUMNS, EDGE, GAP = 8, 256, 4


def main(impasto, out, *flags):
    with tempfile.TemporaryDirectory() as folder:
        sheet = Image.new("RGB", (COLUMNS * (EDGE + GAP) + GAP, len(GALLERY) * 2 // COLUMNS * (EDGE + GAP) + GAP), "white")
        for i, prompt in enumerate(GALLERY):
            pattern = Path(folder, f"{i}_%d.png")
            subprocess.run([impasto, "-p", prompt, "-b", "2", "-o", str(pattern), *flags], check=True, capture_output=True)
            for seed in range(2):
                y, x = divmod(2 * i + seed, COLUMNS)
                sheet.paste(Image.open(Path(folder, f"{i}_{seed}.png")), (GAP + x * (EDGE + GAP), GAP + y * (EDGE + GAP)))
        sheet.save(out, quality=88, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 2 else sys.exit(__doc__)
