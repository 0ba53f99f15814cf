"""Models of true size with random weights on a GPU: how long a plan takes, whether what was planned was allocated, and whether a run in a
tenth of the memory gives the bits of the whole one.

usage: true_size.py IMPASTO DEVICE FOLDER MODEL:TYPE[:STEPS] ... [--size N] [--budget GIB] [--max-buffer SIZE]

DEVICE is a name of `impasto devices`, such as cuda0; MODEL and TYPE are those of random_models.py, which writes the files into FOLDER, one model at a
time. --budget replaces the tenth by so many GiB. Needs numpy.
"""
import argparse
import json
import subprocess
import sys
import time
import zlib
from pathlib import Path

GIB = 1 << 30


def pixels(path):
    """The filtered rows of a PNG: two files of one program have the same if their pixels are."""
    data, at, rows = path.read_bytes(), 8, b""
    while at < len(data):
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        rows += data[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    return zlib.decompress(rows)


def lines_of_json(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("impasto")
    parser.add_argument("device")
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--budget", type=float)
    parser.add_argument("--max-buffer")
    args = parser.parse_args()
    maker = Path(__file__).with_name("random_models.py")
    print(f"{'model':<18} {'plan s':>7} {'files GB':>8} {'mode':<6} {'limit MiB':>9} {'planned':>9} {'allocated':>9} {'seconds':>8}  split", flush=True)
    failed = False
    models = [(model.split(":") + ["2"])[:3] for model in args.models]

    def make(name, kind, _):
        return subprocess.Popen([sys.executable, maker, args.folder, name, kind], stdout=subprocess.PIPE, text=True)

    # The next model is written while one runs.
    makers = iter(map(make, *zip(*models)))
    upcoming = next(makers)
    for name, kind, steps in models:
        made, upcoming = upcoming.communicate()[0], next(makers, None)
        files = made.splitlines()[-1].split()
        gb = sum(Path(file).stat().st_size for file in files[1::2]) / 1e9
        common = [*files, "-p", "a lighthouse at dawn, oil painting", "--steps", steps, "--backend", args.device]
        common += ["-W", str(args.size), "-H", str(args.size), "--json"]
        whole = None
        for mode in ("whole", "little"):
            limits = []
            if mode == "little":
                budget = int(args.budget * GIB) if args.budget else whole["bytes"] // 10
                limits = ["--max-vram", f"{args.device}={budget >> 20}MiB"]
                limits += ["--max-buffer", f"{args.device}={args.max_buffer}"] if args.max_buffer else []
            took = []
            for _ in range(3):
                begun = time.monotonic()
                planned = subprocess.run([args.impasto, "plan", *common, *limits], capture_output=True, text=True)
                took.append(time.monotonic() - begun)
            if planned.returncode:
                print(f"{name} {kind} {mode}: {planned.stderr}", flush=True)
                failed = True
                continue
            plan = json.loads(planned.stdout)
            bytes_planned = next(peak["bytes"] for peak in plan["peaks"] if peak["device"] == args.device)
            picture = args.folder / f"{name}-{mode}.png"
            begun = time.monotonic()
            run = subprocess.run([args.impasto, *common, *limits, "--profile", "--force", "-o", picture], capture_output=True, text=True)
            seconds = time.monotonic() - begun
            if run.returncode or not picture.exists():
                print(f"{name} {kind} {mode}: {run.stderr[-2000:]}", flush=True)
                failed = True
                continue
            allocated = next(line["allocated_peaks"][args.device] for line in lines_of_json(run.stdout) if "allocated_peaks" in line)
            split = ", ".join(f"{m['module']} {m['split_mode']}" + (" streamed" if m["streamed_bytes"] else "") for m in plan["modules"])
            split += "".join(f" [{line}]" for line in run.stderr.splitlines() if "warning" in line)
            limit = budget >> 20 if mode == "little" else 0
            print(
                f"{name + ' ' + kind:<18} {min(took):>7.3f} {gb:>8.2f} {mode:<6} {limit or '':>9} {bytes_planned / (1 << 20):>9.1f} "
                f"{allocated / (1 << 20):>9.1f} {seconds:>8.1f}  {split}",
                flush=True,
            )
            failed |= allocated != bytes_planned
            if mode == "whole":
                whole = {"bytes": bytes_planned, "pixels": pixels(picture)}
            elif whole:
                same = pixels(picture) == whole["pixels"]
                flat = len(set(whole["pixels"])) < 8
                print(f"{name} {kind}: {'the same bits' if same else 'OTHER BITS'}{', but one colour' if flat else ''}", flush=True)
                failed |= not same or flat
        for file in files[1::2]:
            Path(file).unlink()
    sys.exit(failed)


if __name__ == "__main__":
    main()
