"""What must hold before time on a GPU is spent. Runs on a CPU in seconds: selftest.py"""
import random
import tempfile
from dataclasses import replace

import numpy as np
import torch
from safetensors.torch import save_file

import captions
import export
import facts
import networks as N
import reading
import sample
import scenes
import train
from render import Renderer
from tokens import UNKNOWN, Tokens

CENTRE = {"left of": (0, 1), "right of": (0, -1), "above": (1, 1), "below": (1, -1)}


def places_are_as_the_caption_tells():
    rng = random.Random(2)
    for _ in range(3000):
        scene = scenes.sample(rng)
        for thing in scene.things:
            x0, y0, x1, y1 = thing.box
            assert -0.08 < x0 < x1 < 1.08 and -0.08 < y0 < y1 < 1.08, (scene, thing)
        assert [sum(t.group == i for t in scene.things) for i in range(len(scene.groups))] == [g.count for g in scene.groups]
        if scene.relation in CENTRE:
            axis, sign = CENTRE[scene.relation]
            middle = [[(t.box[axis] + t.box[axis + 2]) / 2 for t in scene.things if t.group == i] for i in (0, 1)]
            assert sign * (min(middle[1], key=lambda v: sign * v) - max(middle[0], key=lambda v: sign * v)) > 0, scene


def every_caption_is_in_the_vocabulary():
    rng, tokens = random.Random(3), Tokens()
    for _ in range(3000):
        ids = tokens.encode(text := captions.caption(scenes.sample(rng), rng))
        assert UNKNOWN not in ids and ids[0] == tokens.start and ids[-1] == tokens.end, text
    assert UNKNOWN in tokens.encode("a zebra"), "words outside the model's world are told apart"


def groups_are_told_in_the_order_that_is_said():
    rng = random.Random(5)
    names = lambda group: {w for name in (*captions.NAMES[group.object], *captions.PINE_NAMES * (group.object == "tree"))
                           for w in (name.split()[-1], captions.plural(name).split()[-1])}
    for _ in range(3000):
        scene = replace(scenes.sample(rng), told=frozenset())  # "among trees" has nouns of its own
        text, order = captions.worded(scene, rng)
        assert sorted(order) == list(range(len(scene.groups)))
        if len({g.object for g in scene.groups}) == len(scene.groups):
            first = [min(i for i, word in enumerate(text.split()) if word.strip(",") in names(scene.groups[g])) for g in order]
            assert first == sorted(first), (text, order)


def facts_are_those_of_the_scene():
    rng, tokens = random.Random(6), Tokens()
    boxes = lambda scene: np.array([((x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0) for x0, y0, x1, y1 in (t.box for t in scene.things)], np.float16)
    for _ in range(2000):
        scene = scenes.sample(rng)
        text, order = captions.worded(scene, rng)
        told, ids = facts.facts(scene, order), tokens.encode(text, distract=rng)
        assert (ids == tokens.end).sum() >= facts.SLOTS, "every slot has a token to tell it"
        assert {tuple(row[2:6]) for row in told[:facts.SCENE]} == {tuple(row) for row in boxes(scene)}, "every thing has a slot"
        for (g, i), row in zip(facts.slots(order), told):
            group = scene.groups[g]
            assert row[0] == scenes.OBJECT_INDEX[group.object] + 1 and row[1] == scenes.COLOUR_INDEX[group.colour] and row[6] == group.count - 1
        if scene.relation in ("left of", "right of"):
            left, right = (told[facts.slots(order).index((g, 0)), 2] for g in ((0, 1) if scene.relation == "left of" else (1, 0)))
            assert left < right, text


def a_perfect_reader_has_no_loss():
    rng, tokens = random.Random(7), Tokens()
    scene = scenes.sample(rng)
    text, order = captions.worded(scene, rng)
    ids, told = torch.from_numpy(tokens.encode(text))[None], torch.from_numpy(facts.facts(scene, order))[None]
    wanted, is_asked = reading.asked(ids, told, tokens.end)
    assert is_asked.sum() == (ids == tokens.end).sum() and (wanted[0, 2 * facts.SLOTS + 3] == told[0, 3].float()).all()
    sure = lambda values, n: 50.0 * torch.nn.functional.one_hot(values.long().clamp(0, n - 1), n).float()
    kind, which = wanted[..., 0], wanted[..., 1]
    parts = dict(object=kind, colour=which, count=wanted[..., 6], setting=kind - 1, time=which)
    found = {part: sure(values, reading.PARTS[part]) for part, values in parts.items()} | dict(box=wanted[..., 2:6])
    assert reading.reading_loss(found, wanted, is_asked) < 1e-4
    found["box"] = 1 - wanted[..., 2:6]
    assert reading.reading_loss(found, wanted, is_asked) > 0.1


def spikes_are_seen_and_textures_are_not():
    x = torch.randn(2, 64, 64, 64)
    assert N.spike(x, 10.0) == 0
    x[1, 5, 20, 30] = 300.0
    assert N.spike(x, 10.0) > 0.01


def a_picture_does_not_depend_on_its_neighbours():
    rng, render = random.Random(4), Renderer("cpu", 48)
    some = [scenes.sample(rng) for _ in range(9)]
    together = render(scenes.pack(some))
    for i in (0, 4, 8):
        assert (render(scenes.pack([some[i]]))[0] - together[i]).abs().max() < 1e-5
    assert together.isfinite().all()


def normalised_latents_decode_to_the_same_picture():
    vae, pictures = N.Autoencoder(), torch.rand(2, 3, 64, 64) * 2 - 1
    with torch.no_grad():
        before = vae.decode(vae.encode(pictures)[0])
        z = vae.encode(pictures)[0]
        vae.normalise(z.mean((0, 2, 3)), z.std((0, 2, 3)))
        z = vae.encode(pictures)[0] * N.LATENT_SCALE
        assert (z.mean((0, 2, 3)).abs() < 1e-4).all() and ((z.std((0, 2, 3)) - 1).abs() < 1e-4).all()
        assert (vae.decode(z / N.LATENT_SCALE) - before).abs().max() < 1e-4


def the_sampler_reaches_the_picture_of_a_perfect_network():
    latents, bar = torch.randn(2, 4, 8, 8), N.alphas_bar()
    x, t, target, _ = train.noisy(latents.repeat(500, 1, 1, 1), bar)
    kept, level = bar[t].sqrt()[:, None, None, None], (1 - bar[t]).sqrt()[:, None, None, None]
    error = (x - level * target) / kept - latents.repeat(500, 1, 1, 1)
    assert error.abs().max() < 1e-3, "the target always leads to the picture, also where it is left out of what is seen"

    def perfect(seen, t, text):
        log = ((1 - bar) / bar).sqrt().log()
        low = t.floor().long().clamp(max=998)
        sigma = torch.lerp(log[low], log[low + 1], t - low).exp()[:, None, None, None]
        return (seen * (sigma ** 2 + 1).sqrt() - latents.repeat(2, 1, 1, 1)) / sigma
    text = torch.zeros(2, 77, 8)
    assert (sample.sample(perfect, text, torch.randn(2, 4, 8, 8), empty=text) - latents).abs().max() < 1e-3


def the_exported_file_is_the_trained_model():
    tokens = Tokens()
    vae, painter = N.Autoencoder(), train.Painter(len(tokens))
    for p in painter.parameters():
        p.data += 0.02 * torch.randn_like(p)
    painter.text.text_model.embeddings.token_embedding.weight.data[0] = 0
    with tempfile.TemporaryDirectory() as folder:
        save_file(vae.state_dict(), f"{folder}/vae.safetensors")
        save_file({k: v.half() for k, v in painter.state_dict().items()}, f"{folder}/painter-ema.safetensors")
        tensors = export.gather(folder, tokens)
        save_file({k: v.half() for k, v in tensors.items()}, f"{folder}/model.safetensors", export.METADATA)
        _, text, unet = export.load(f"{folder}/model.safetensors")
        zero_rows = (text.text_model.embeddings.token_embedding.weight == 0).all(1).sum().item()
    assert zero_rows == 49408 - len(tokens.clip_ids)
    ids = torch.from_numpy(tokens.encode("two red houses by the sea"))[None]
    x, t = torch.randn(1, 4, 32, 32), torch.tensor([500])
    with torch.no_grad():
        ours, theirs = painter(x, t, ids)[0], unet(x, t, text(torch.from_numpy(tokens.to_clip(ids.numpy()))))
    assert ((ours - theirs).norm() / ours.norm()) < 5e-3


def rounding_keeps_the_asked_bits():
    x = (torch.randn(10000) * torch.randn(10000).exp()).half()
    for bits in (10, 8, 6):
        y = export.round_mantissa(x, bits)
        assert ((y.float() - x.float()).abs() <= x.float().abs() * 2.0 ** -(bits + 1) + 1e-7).all()
        assert (y.view(torch.int16) & ((1 << (10 - bits)) - 1) == 0).all()


if __name__ == "__main__":
    torch.manual_seed(0)
    for name, test in list(globals().items()):
        if callable(test) and getattr(test, "__module__", "") == "__main__":
            test()
            print("ok", name.replace("_", " "), flush=True)
