"""Does a picture show what was asked for? Colour masks and the shapes of drawings, no network.

usage: check.py truth [--n 120]                                  how often the check is right about rendered scenes
       check.py eval MODEL.safetensors [--n 120] [--sheet DIR]   how often the model follows held-out captions

A colour's mask is where that colour is near, and nearer than the eleven others and the backdrops. An object is looked for by
its silhouette: what its drawing has in the asked colour, at several sizes, moved over the mask; the best overlap (intersection
over union, 0..1) says how well it is found, and where. Colour: among the masks of all colours, the asked one fits the asked
silhouette best, and well. Object: no other object's silhouette fits much better. Relation: both are found, and the places are
as told.
"""
import argparse
import functools
import json
import random
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

import backdrop
import objects as O
import scenes
from captions import INVERSE
from picture import save_sheet
from render import Renderer, paint_table
from scenes import COLOURS, COLOUR_INDEX, KINDS, SETTINGS, TEMPLATE_START, TIMES, Group, Scene, Thing

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GRID = 48  # masks are compared at this size
FULL = 3 * GRID  # room to move a silhouette over the edges without meeting the other side
FILL = 0.48
SIZES = [0.06 * 1.18 ** i for i in range(11)]  # half heights of the drawing's box, in fractions of the picture
NEAR = 0.075  # in OKLab
FOUND = 0.40  # an overlap from here on counts
LIKE = 0.90  # the asked object's overlap against the best of all objects
PLACED = 0.30  # enough to say where something is: others may cover a part of it


def oklab(rgb):
    """(..., 3) in 0..1 -> perceptual coordinates."""
    linear = torch.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    lms = linear @ torch.tensor([[0.4122214708, 0.2119034982, 0.0883024619], [0.5363325363, 0.6806995451, 0.2817188376],
                                 [0.0514459929, 0.1073969566, 0.6299787005]], device=rgb.device)
    return lms.clamp(min=0) ** (1 / 3) @ torch.tensor([[0.2104542553, 1.9779984951, 0.0259040371], [0.7936177850, -2.4285922050, 0.7827717662],
                                                       [-0.0040720468, 0.4505937099, -0.8086757660]], device=rgb.device)


@functools.cache
def references(time):
    """What pixels are compared with: the main and dark tones of every colour at this time of day, and the colours of all
    backdrops at this time, which stand for no colour. (n, 3) in OKLab, and which colour each is (n,)."""
    t = TIMES.index(time)
    tones = torch.from_numpy(paint_table())[t][:, [O.PAINTS.index("main"), O.PAINTS.index("dark")]].reshape(-1, 3)
    settings = torch.arange(len(SETTINGS)).repeat(4)
    empty = backdrop.paint(settings, torch.full_like(settings, t), torch.arange(len(settings)), 64)
    behind = ((empty.permute(0, 2, 3, 1).reshape(-1, 3) * 20).round() / 20).unique(dim=0)
    which = torch.cat([torch.arange(len(COLOURS)).repeat_interleave(2), torch.full((len(behind),), len(COLOURS))])
    return oklab(torch.cat([tones, behind])), which


def masks(picture, time):
    """(3, h, w) in 0..1 -> how much of each cell has each colour: (colours, GRID, GRID)."""
    known, which = references(time)
    distance = torch.cdist(oklab(picture.permute(1, 2, 0).float()).flatten(0, 1), known)  # (h * w, n)
    nearest = distance.min(1)
    colour = torch.where(nearest.values < NEAR, which[nearest.indices], len(COLOURS))
    one_hot = F.one_hot(colour, len(COLOURS) + 1)[:, :-1].float().T.reshape(-1, *picture.shape[1:])
    return F.adaptive_avg_pool2d(one_hot, GRID)


@functools.cache
def silhouettes(colour, time):
    """What every drawing has in its own colour, the box around it only, and mirrored where that differs: name -> [(h, w)]. The
    drawings fill the picture."""
    drawings = [(name, TEMPLATE_START[name] + i) for name in KINDS for i in range(len(O.DRAWINGS[name]))]
    alone = [Scene((Group(name, colour),), None, None, "plain", time, frozenset(), (Thing(0, t, colour, 0.5, 0.5, FILL, False, 0.0, False),), 0)
             for name, t in drawings]
    out = {}
    for (name, _), picture in zip(drawings, Renderer("cpu", 2 * GRID)(scenes.pack(alone))):
        mask = masks(picture, time)[COLOUR_INDEX[colour]]
        rows, columns = (mask.amax(d).gt(0.2).nonzero().flatten() for d in (1, 0))
        shape = mask[rows[0]:rows[-1] + 1, columns[0]:columns[-1] + 1]
        out.setdefault(name, []).append(shape)
        if torch.minimum(shape, shape.flip(1)).sum() < 0.95 * shape.sum():
            out[name].append(shape.flip(1))
    return out


@functools.lru_cache(maxsize=256)
def spectra(name, colour, time):
    """An object's silhouettes at all sizes, ready to be moved over a mask: spectra of the shapes and of their windows (n, ...),
    the shapes' areas (n,), and where their middles lie (n, 2)."""
    framed, window, area, middle = [], [], [], []
    for shape in silhouettes(colour, time)[name]:
        for size in SIZES:
            h, w = (max(3, round(n * size / FILL)) for n in shape.shape)
            if max(h, w) > GRID:
                continue
            small = F.interpolate(shape[None, None], (h, w), mode="area")[0, 0]
            frame = 1 + round(0.35 * max(h, w))  # around it, the colour should be absent
            full = (0, FULL - w - 2 * frame, 0, FULL - h - 2 * frame)
            framed.append(F.pad(F.pad(small, (frame,) * 4), full))
            window.append(F.pad(torch.ones(h + 2 * frame, w + 2 * frame), full))
            area.append(small.sum())
            middle.append((frame + h / 2, frame + w / 2))
    transform = lambda shapes: torch.fft.rfft2(torch.stack(shapes).to(DEVICE)).conj()
    return transform(framed), transform(window), torch.stack(area).to(DEVICE), middle


def find(name, colour, time, mask):
    """The object's silhouette moved over the colour's mask (GRID, GRID): the best overlap and its place, y and x in 0..1."""
    framed, window, area, middle = spectra(name, colour, time)
    spectrum = torch.fft.rfft2(F.pad(mask.to(DEVICE), (GRID // 2, FULL - GRID - GRID // 2) * 2))
    both, inside = (torch.fft.irfft2(spectrum * s, (FULL, FULL)) for s in (framed, window))
    overlap = both / (area[:, None, None] + inside - both)
    at = overlap.argmax().item()
    i, y, x = at // FULL ** 2, at // FULL % FULL, at % FULL
    # Offsets go around: what begins before the picture is found at the far end.
    place = [((start + half + GRID // 2) % FULL - GRID) / GRID for start, half in zip((y, x), middle[i])]
    return overlap[i, y, x].item(), *place


@dataclass
class Case:
    """A held-out scene and its caption in the plain form of the check."""
    scene: Scene
    caption: str


def wording(scene):
    article = lambda g: f"{'an' if g.colour[0] in 'aeiou' else 'a'} {g.colour} {g.object}"
    words = article(scene.groups[0])
    if scene.relation:
        told = {"left of": "to the left of", "right of": "to the right of"}.get(scene.relation, scene.relation)
        words = f"{words} {told} {article(scene.groups[1])}"
    if "setting" in scene.told:
        words += " " + dict(plain="on a plain background", sea="by the sea", meadow="in a meadow", desert="in the desert", snow="in the snow",
                            city="in the city", forest="in the forest")[scene.setting]
    if "time" in scene.told:
        words += " " + dict(day="during the day", sunset="at sunset", night="at night")[scene.time]
    return words


def cases(n, related, seed=11):
    """Held-out scenes of one thing, or of two with a relation, in different colours."""
    rng, out = random.Random(seed), []
    while len(out) < n:
        scene = scenes.sample(rng)
        simple = scene.held_out() and all(g.count == 1 and g.size == "normal" for g in scene.groups) and not scene.side
        told = (scene.setting in ("plain", "meadow") or "setting" in scene.told) and (scene.time == "day" or "time" in scene.told)
        if not (simple and told):
            continue
        if related and len(scene.groups) == 2 and scene.relation != "in front of" and scene.groups[0].colour != scene.groups[1].colour:
            out.append(Case(scene, wording(scene)))
        if not related and len(scene.groups) == 1:
            out.append(Case(scene, wording(scene)))
    return out


def judge(case, picture):
    """What was found: the colour (and how well), whether it looks like the object rather than another one, and the relation if asked for."""
    scene, time = case.scene, case.scene.time
    g, mask = scene.groups[0], masks(picture, time)
    fits = {c: find(g.object, c, time, mask[i])[0] for i, c in enumerate(COLOURS)}
    own, y, x = find(g.object, g.colour, time, mask[COLOUR_INDEX[g.colour]])
    looks = max(fits, key=fits.get)
    verdict = dict(caption=case.caption, overlap=round(own, 3), looks=looks, colour=looks == g.colour and own >= FOUND)
    if scene.relation:
        other = scene.groups[1]
        there, other_y, other_x = find(other.object, other.colour, time, mask[COLOUR_INDEX[other.colour]])
        ahead = {"left of": other_x - x, "right of": x - other_x, "above": other_y - y, "below": y - other_y}[scene.relation]
        verdict["sideways"] = scene.relation in ("left of", "right of")
        verdict["relation"] = ahead > 0.04 and min(own, there) >= PLACED
    else:
        rivals = {name: find(name, g.colour, time, mask[COLOUR_INDEX[g.colour]])[0] for name in KINDS}
        verdict["object"] = own >= LIKE * max(rivals.values())
        verdict["most_like"] = max(rivals, key=rivals.get)
    return verdict


def lie(case, picture):
    """Of three false captions for a picture, which does the check believe? Another colour, another object, the relation turned around."""
    first, *rest = case.scene.groups
    swap = lambda **change: Case(replace(case.scene, groups=(replace(first, **change), *rest)), "")
    following = lambda names, name, n: names[(names.index(name) + n) % len(names)]
    believed = dict(colour=judge(swap(colour=following(COLOURS, first.colour, 5)), picture)["colour"],
                    object=judge(swap(object=following(list(KINDS), first.object, 9)), picture).get("object"))
    if case.scene.relation:
        del believed["object"]
        believed["relation"] = judge(Case(replace(case.scene, relation=INVERSE[case.scene.relation]), ""), picture)["relation"]
    return believed


def summary(alone, related):
    return dict(captions=len(alone), colour=np.mean([v["colour"] for v in alone]).round(3).item(),
                colour_and_object=np.mean([v["colour"] and v["object"] for v in alone]).round(3).item(),
                relations=len(related), relation=np.mean([v["relation"] for v in related]).round(3).item(),
                sideways=np.mean([v["relation"] for v in related if v["sideways"]]).round(3).item(),
                colour_in_relations=np.mean([v["colour"] for v in related]).round(3).item())


def run(n, paint, sheet=None, lies=False):
    """paint: cases -> pictures. With `lies`, also how often the check believes false captions."""
    verdicts, believed, shown = [], {}, []
    for related in (False, True):
        some = cases(n, related)
        pictures = paint(some)
        verdicts.append([judge(case, picture) for case, picture in zip(some, pictures)])
        for verdict in verdicts[-1]:
            if not verdict.get("relation", verdict["colour"]):
                print(json.dumps(verdict))
        for case, picture in zip(some, pictures if lies else ()):
            for what, was in lie(case, picture).items():
                believed.setdefault(what, []).append(was)
        shown.append(pictures[:72])
    if sheet:
        save_sheet(f"{sheet}/check.png", torch.cat(shown), 12)
    print(json.dumps(summary(*verdicts)), flush=True)
    if lies:
        print("false captions believed:", json.dumps({what: round(float(np.mean(was)), 3) for what, was in believed.items()}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["truth", "eval"])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--n", type=int, default=120)
    parser.add_argument("--sheet")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--guidance", type=float, default=6.0)
    args = parser.parse_args()
    if args.what == "truth":
        return run(args.n, lambda some: Renderer("cpu", 256)(scenes.pack([c.scene for c in some])), args.sheet, lies=True)
    import sample
    from export import load
    from tokens import Tokens
    vae, text, unet = (m.to(DEVICE) for m in load(args.model))
    tokens = Tokens()

    def paint(some):
        return sample.pictures(vae, text, unet, tokens, [c.caption for c in some], list(range(len(some))), DEVICE, args.steps, args.guidance,
                               encode=lambda caption: tokens.to_clip(tokens.encode(caption)))

    run(args.n, paint, args.sheet)


if __name__ == "__main__":
    main()
