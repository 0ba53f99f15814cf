"""What the check needs in Rust (crates/impasto/tests/default_model), and rendered truth with the verdicts of check.py on it.

usage: check_fixtures.py [OUT_DIR]     (default ../crates/impasto/tests/fixtures)

Writes
  check.safetensors.zst  by time of day the colours that pixels are compared with; every object's silhouettes in every colour and light,
                         in quarters; the pictures of the truth, bytes (n, height, width, 3)
  check_cases.jsonl      the held-out captions, those of one thing first, and what they ask for
  check_truth.jsonl      a line for each thing said of a picture: true, or false in one word; which overlaps were found, and the verdict
Needs torch, numpy, safetensors and the `zstd` command. Takes some minutes on a CPU.
"""
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

import check
import scenes
from captions import INVERSE
from render import Renderer
from scenes import COLOURS, KINDS, TIMES

CASES = 120  # of each kind
TRUTH = 24  # of each kind, the first ones
SIZE = 256


def asked(case):
    """What a caption asks for, as the Rust check reads it."""
    scene = case.scene
    return dict(time=scene.time, things=[[g.object, g.colour] for g in scene.groups], relation=scene.relation)


def references():
    out = {}
    for time in TIMES:
        known, which = check.references(time)
        out[f"references.{time}"] = known.numpy()
        out[f"colours.{time}"] = which.numpy().astype(np.uint8)
    return out


def silhouettes():
    """One row for each shape, (time, colour, object, height, width), and all shapes' cells in the same order. Masks are means of two
    by two pixels here, so quarters are exact."""
    rows, cells = [], []
    # The same drawing in other colours is almost the same: neighbours compress.
    for time in TIMES:
        for o, name in enumerate(KINDS):
            for c, colour in enumerate(COLOURS):
                for shape in check.silhouettes(colour, time)[name]:
                    rows.append((TIMES.index(time), c, o, *shape.shape))
                    quarters = shape.numpy() * 4
                    assert (quarters == quarters.round()).all()
                    cells.append(quarters.astype(np.uint8).ravel())
    return dict(shapes=np.array(rows, np.uint8), cells=np.concatenate(cells))


def false(case):
    """The case in three false wordings, as check.lie has them: what is wrong, and the case."""
    first, *rest = case.scene.groups
    swap = lambda **change: check.Case(replace(case.scene, groups=(replace(first, **change), *rest)), "")
    following = lambda names, name, n: names[(names.index(name) + n) % len(names)]
    yield "colour", swap(colour=following(COLOURS, first.colour, 5))
    if case.scene.relation:
        yield "relation", check.Case(replace(case.scene, relation=INVERSE[case.scene.relation]), "")
    else:
        yield "object", swap(object=following(list(KINDS), first.object, 9))


def judged(picture, number, case, lie):
    """A line of the truth. What `judge` looked for is kept too."""
    found, find = {}, check.find

    def recorded(name, colour, time, mask):
        result = find(name, colour, time, mask)
        found[f"{colour} {name}"] = round(result[0], 3)
        return result

    check.find = recorded
    verdict = check.judge(case, picture)
    check.find = find
    keep = {k: bool(verdict[k]) for k in ("colour", "object", "relation") if k in verdict}
    return dict(picture=number, lie=lie, **asked(case), verdict=keep, found=found)


def main(out):
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    torch.set_grad_enabled(False)
    kinds = [check.cases(CASES, related) for related in (False, True)]
    with open(out / "check_cases.jsonl", "w") as file:
        for case in (c for kind in kinds for c in kind):
            file.write(json.dumps(dict(caption=case.caption, **asked(case))) + "\n")

    some = [c for kind in kinds for c in kind[:TRUTH]]
    rendered = Renderer("cpu", SIZE)(scenes.pack([c.scene for c in some]))
    pictures = (rendered.clamp(0, 1) * 255).round().to(torch.uint8)  # the bytes are what both sides judge
    with open(out / "check_truth.jsonl", "w") as file:
        for number, (case, picture) in enumerate(zip(some, pictures)):
            for lie, claim in [(None, case), *false(case)]:
                file.write(json.dumps(judged(picture.float() / 255, number, claim, lie)) + "\n")
            print(f"{number + 1} of {len(some)}", flush=True)

    plain = out / "check.safetensors"
    save_file({**references(), **silhouettes(), "pictures": pictures.permute(0, 2, 3, 1).contiguous().numpy()}, plain,
              dict(times=" ".join(TIMES), colours=" ".join(COLOURS), objects=" ".join(KINDS)))
    subprocess.run(["zstd", "--ultra", "-22", "-q", "-f", "--rm", str(plain)], check=True)
    for file in sorted(out.glob("check*")):
        print(f"{file.name}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent / "crates/impasto/tests/fixtures")
