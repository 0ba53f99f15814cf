"""Trains the autoencoder, the text encoder's reading, then text encoder and UNet together, in time boxes.

usage: train.py vae  --minutes 8   --minutes-total 8  --state DIR --out DIR
       train.py text --minutes 0.6 --state DIR --out DIR
       train.py unet --minutes 9   --minutes-total 17 --state DIR --out DIR

A stage may be spread over several calls: each goes on where the last one stopped, and the learning rate follows the share of
--minutes-total that is over. --state keeps everything (weights, averages, optimiser) on a local disk; --out gets what is small
enough to carry away (weights of both kinds, sheets, log), and --from resumes from that when the disk is gone.
"""
import argparse
import copy
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import facts as told
import networks as N
import sample
from feed import CAPTIONS, Feed, held_out_batch
from picture import save_sheet
from reading import Reader, asked, reading_loss, understood
from render import Renderer, upload
from tokens import LENGTH, Tokens
from trainer import Trainer, compiled, half_precision

EMPTY_SHARE = 0.10  # captions left out, for guidance
BLANK_FROM, BLANK_SHARE = 940, 0.5  # steps that are sometimes shown without a trace of the picture, and how often
READING_SHARE = 0.01  # of the reading's loss beside the painting's, which ends near 0.04
THINGS_MORE = 2.0  # how much more a place with a thing weighs than one without, where there is no noise


def renderer(args):
    """The fastest way to render that works here and gives the same pictures as the plain one."""
    plain = Renderer(args.device, args.size)
    packed, _ = held_out_batch(Renderer.CHUNK)
    for how in ("kernel", "compiled") if args.compile else ():
        try:
            fast = Renderer(args.device, args.size, how)
            error = (fast(packed) - plain(packed)).abs()
            print(f"renderer, {how}: mean difference {error.mean().item():.1e}, largest {error.max().item():.1e}", flush=True)
            if error.mean().item() < 1e-4:
                return fast
        except Exception as error:
            print(f"renderer, {how}: {type(error).__name__}: {str(error)[:500]}", flush=True)
    return plain


def file_of(args, name):
    """Where an earlier stage left its result, or None."""
    folders = (args.state, args.out, *([args.from_] if args.from_ else []))
    return next((p for d in folders if (p := Path(d) / name).exists()), None)


# The autoencoder

def edges(x):
    return x[..., 1:] - x[..., :-1], x[..., 1:, :] - x[..., :-1, :]


def worst(made, pictures, share=1 / 64):
    """The mean error of the worst cells of 4 x 4 pixels of each picture. A bird's eye or a drop in the sky is so few pixels that no mean
    over all of them minds; edges that are off by half a pixel cancel out within a cell."""
    cells = F.avg_pool2d(made - pictures, 4).abs().mean(1).flatten(1)
    return cells.topk(max(1, int(share * cells.shape[1])), 1).values.mean()


def vae_losses(made, pictures, mean, logvar, spike):
    """made, pictures (batch, 3, h, w) in -1..1. Differences between neighbours at three sizes stand in for a perceptual loss:
    what the eye sees in flat pictures is their edges. For `spike` see networks.spike."""
    made = made.float()
    l1, mse = (made - pictures).abs().mean(), F.mse_loss(made, pictures)
    edge, a, b = 0.0, made, pictures
    for _ in range(3):
        edge = edge + sum((ea - eb).abs().mean() for ea, eb in zip(edges(a), edges(b)))
        a, b = F.avg_pool2d(a, 2), F.avg_pool2d(b, 2)
    kl = 0.5 * (mean ** 2 + logvar.exp() - 1 - logvar).mean()
    bad = worst(made, pictures)
    return dict(loss=l1 + 4 * mse + 0.5 * edge + 1e-3 * kl + 0.1 * bad + 0.2 * spike, l1=l1, mse=mse, edge=edge, kl=kl, worst=bad, spike=spike)


@torch.no_grad()
def reconstruct(vae, pictures, device, batch=32):
    """Pictures in 0..1 through encoder and decoder."""
    out = []
    for p in pictures.split(batch):
        with half_precision(device):
            mean, _ = vae.encode(p * 2 - 1)
            out.append((vae.decode(mean).float() * 0.5 + 0.5).clamp(0, 1))
    return torch.cat(out)


def psnr(a, b):
    """Mean over pictures, in dB."""
    return (-10 * ((a - b) ** 2).mean((1, 2, 3)).log10()).mean().item()


@torch.no_grad()
def normalised(vae, render, feed, device, batches):
    """A copy whose latents have unit variance after LATENT_SCALE."""
    vae = copy.deepcopy(vae)
    total = torch.zeros(3, 4, dtype=torch.float64, device=device)
    for _ in range(batches):
        pictures = render(next(feed)) * 2 - 1
        with half_precision(device):
            z = vae.encode(pictures)[0].double()
        total += torch.stack([torch.ones_like(z).sum((0, 2, 3)), z.sum((0, 2, 3)), (z ** 2).sum((0, 2, 3))])
    mean = total[1] / total[0]
    std = (total[2] / total[0] - mean ** 2).sqrt()
    vae.normalise(mean.float(), std.float())
    return vae, mean.tolist(), std.tolist()


def train_vae(args):
    feed = Feed(args.batch, args.workers)
    render = renderer(args)
    trainer = Trainer("vae", N.Autoencoder(), 8e-4, args)
    held, _ = held_out_batch(args.held)
    held = render(held)

    def losses_of(model, pictures):
        with half_precision(args.device):
            out = model(pictures)
        return vae_losses(out[0], pictures, *out[1:])

    def draw():
        return (render(next(feed)) * 2 - 1).contiguous(memory_format=torch.channels_last)

    model = compiled(trainer.model, args.compile, lambda m: losses_of(m, draw())["loss"].backward())
    trainer.optimizer.zero_grad(set_to_none=True)
    profile = trainer.profile
    while not trainer.over():
        profile.mark()
        pictures = draw()
        profile.mark("scenes and rendering")
        losses = losses_of(model, pictures)
        profile.mark("forward and loss")
        trainer.step(losses["loss"])
        trainer.report(losses)
        if time.monotonic() - trainer.last_save > 60:
            trainer.log(f"held out {psnr(reconstruct(trainer.ema, held, args.device), held):.2f} dB")
            trainer.save()
    trainer.save()
    final, mean, std = normalised(trainer.ema, render, feed, args.device, batches=max(1, 4 * args.held // args.batch))
    again = reconstruct(final, held, args.device)
    trainer.log(f"final: held out {psnr(again, held):.2f} dB; latents had mean {mean} deviation {std}")
    save_file({k: v.contiguous() for k, v in final.state_dict().items()}, trainer.out / "vae.safetensors")
    save_file({k: v.contiguous() for k, v in final.state_dict().items()}, trainer.state / "vae.safetensors")
    save_sheet(trainer.out / "vae.png", torch.stack([held[:24], again[:24]], 1).flatten(0, 1), 8)
    feed.close()


# The text encoder alone

class Listener(nn.Module):
    """Text encoder with the head that shows what it understood (reading.py)."""

    def __init__(self, rows):
        super().__init__()
        self.text, self.reader = N.TextEncoder(rows), Reader()

    def forward(self, ids):
        return self.reader(self.text(ids))


class Exam:
    """Held-out captions, and how well they are understood."""

    def __init__(self, packed, end, device):
        self.ids, self.facts, self.pairs = (torch.from_numpy(a).to(device) for a in (packed["tokens"][:, 0], packed["facts"][:, 0], packed["pairs"]))
        self.ids, self.end = self.ids.long(), end

    def __call__(self, model):
        return " ".join(f"{k} {v:.3f}" for k, v in understood(model.text, model.reader, self.ids, self.facts, self.end, self.pairs).items())


def train_text(args):
    """Without pictures, so that it takes seconds: when the painter begins, captions are already lists of things with places."""
    feed, tokens = Feed(max(1, args.batch // CAPTIONS), args.workers), Tokens()
    args.batch = max(1, args.batch // CAPTIONS) * CAPTIONS
    trainer = Trainer("text", Listener(len(tokens)), 1.5e-3, args)
    exam = Exam(held_out_batch(args.held)[0], tokens.end, args.device)
    while not trainer.over():
        trainer.profile.mark()
        packed = next(feed)
        ids, facts = (upload(packed[k], args.device).flatten(0, 1) for k in ("tokens", "facts"))
        trainer.profile.mark("captions")
        with half_precision(args.device):
            found = trainer.model(ids.long())
        loss = reading_loss(found, *asked(ids, facts, tokens.end))
        trainer.profile.mark("forward and loss")
        trainer.step(loss)
        trainer.report(dict(reading=loss))
    feed.close()
    trainer.save()
    trainer.log(f"held out, understood: {exam(trainer.ema)}")
    for folder in (trainer.out, trainer.state):
        save_file({k: v.contiguous() for k, v in trainer.ema.state_dict().items()}, folder / "text.safetensors")


# Text encoder and UNet

class Painter(Listener):
    """Text encoder and UNet, trained as one; the text encoder goes on showing what it understood."""

    def __init__(self, rows):
        super().__init__(rows)
        self.unet = N.UNet()

    def forward(self, x, t, ids):
        states = self.text(ids)
        return self.unet(x, t, states), self.reader(states)


class Pool:
    """The latest latents with their captions, on the device: each is trained on a few times before it is overwritten."""

    def __init__(self, size, side, device):
        self.latents = torch.zeros(size, 4, side, side, dtype=torch.float16, device=device)
        self.ids = torch.zeros(size, CAPTIONS, LENGTH, dtype=torch.int16, device=device)
        self.facts = torch.zeros(size, CAPTIONS, told.SLOTS, told.FIELDS, dtype=torch.float16, device=device)
        self.filled = self.next = 0

    def add(self, latents, ids, facts):
        at = (self.next + torch.arange(len(latents), device=latents.device)) % len(self.latents)
        self.latents[at], self.ids[at], self.facts[at] = latents.to(self.latents.dtype), ids, facts
        self.next = (self.next + len(latents)) % len(self.latents)
        self.filled = min(self.filled + len(latents), len(self.latents))

    def draw(self, n):
        device = self.latents.device
        which = torch.randint(self.filled, (n,), device=device)
        caption = torch.randint(CAPTIONS, (n,), device=device)
        return self.latents[which].float(), self.ids[which, caption].long(), self.facts[which, caption]


def importance(snr):
    """The weight of a step's squared error. With little noise, min-SNR weighting (5): such steps are easy and many. With much,
    the error in the noise is small while that in the picture is large, and it is there that the composition is decided."""
    return snr.clamp(max=5) / snr * snr.clamp(max=1) ** -0.5


def noisy(latents, bar):
    """What the UNet sees, the step, the noise it should find, and the weight of each picture in the loss.

    At the last steps a sampler starts from noise alone, but this schedule leaves a trace of the picture there, above all its
    brightness. So some of them are shown without the trace and asked for what leads to the picture all the same.
    """
    n, device = len(latents), latents.device
    t = ((torch.arange(n, device=device) + torch.rand(n, device=device)) / n * 1000).long().clamp(max=999)  # evenly spread
    kept, noise_level = bar[t].sqrt()[:, None, None, None], (1 - bar[t]).sqrt()[:, None, None, None]
    noise = torch.randn_like(latents)
    blank = ((t >= BLANK_FROM) & (torch.rand(n, device=device) < BLANK_SHARE))[:, None, None, None]
    x = torch.where(blank, noise_level * noise, kept * latents + noise_level * noise)
    target = torch.where(blank, noise - kept / noise_level * latents, noise)
    return x, t, target, importance(bar[t] / (1 - bar[t]))


def covered(facts, side):
    """Which places of the latents lie in the box of a thing: (batch, side, side), 0 or 1."""
    x, y, w, h = (facts[:, :told.SCENE, i, None].float() for i in range(2, 6))  # (batch, slots, 1)
    at = (torch.arange(side, device=facts.device) + 0.5) / side
    margin = 0.5 / side
    across, down = (at - x).abs() <= w / 2 + margin, (at - y).abs() <= h / 2 + margin
    return (across[:, :, None, :] & down[:, :, :, None] & (facts[:, :told.SCENE, 0] > 0)[..., None, None]).any(1).float()


def painter_losses(painter, latents, ids, facts, things, bar, end, device):
    """things: covered(). Things are small and their backdrop is large, so places with things weigh more; but only as far as the noise
    leaves room to see them. Under much noise it is open where things are, and there such weights would ask for too many of them."""
    x, t, target, weight = noisy(latents, bar)
    with half_precision(device):
        found, read = painter(x.contiguous(memory_format=torch.channels_last), t, ids)
    error = ((found.float() - target) ** 2).mean(1)  # (batch, h, w)
    more = 1 + THINGS_MORE * bar[t][:, None, None] * things
    more = more / more.mean((1, 2), keepdim=True)
    paint = (weight * (error * more).mean((1, 2))).mean()
    reading = reading_loss(read, *asked(ids, facts, end))
    return dict(loss=paint + READING_SHARE * reading, paint=(weight * error.mean((1, 2))).mean(), reading=reading)


@torch.no_grad()
def held_out_loss(painter, latents, exam, bar, device):
    """The same noise every time, so that the numbers of all runs can be compared; all places weigh the same."""
    with torch.random.fork_rng(devices=[0] if device == "cuda" else []):
        torch.manual_seed(7)
        nothing = torch.zeros_like(latents[:, 0])
        return painter_losses(painter, latents, exam.ids, exam.facts, nothing, bar, exam.end, device)["paint"].item()


def train_unet(args):
    feed, tokens = Feed(args.fresh, args.workers), Tokens()
    render = renderer(args)
    vae, painter = N.Autoencoder(), Painter(len(tokens))
    if path := file_of(args, "vae.safetensors"):
        vae.load_state_dict(load_file(path))
    elif not args.rehearse:
        sys.exit("there is no vae.safetensors in --state, --out or --from: train the autoencoder first")
    vae = vae.to(args.device, memory_format=torch.channels_last).eval().requires_grad_(False)
    taught = file_of(args, "text.safetensors")
    if taught:
        painter.load_state_dict(load_file(taught), strict=False)
    trainer = Trainer("painter", painter, 7e-4, args)
    trainer.log(f"autoencoder {path}; text encoder begins with {taught or 'nothing'}")
    bar = N.alphas_bar(args.device)
    empty = torch.from_numpy(tokens.encode("")).to(args.device)

    @torch.no_grad()
    def encode(packed, encoder):
        pictures = (render(packed) * 2 - 1).contiguous(memory_format=torch.channels_last)
        with half_precision(args.device):
            mean, _ = encoder(pictures)
        return mean * N.LATENT_SCALE

    def add_fresh():
        packed = next(feed)
        pool.add(encode(packed, encoder), upload(packed["tokens"], args.device), upload(packed["facts"], args.device))

    def next_losses(painter):
        latents, ids, facts = pool.draw(args.batch)
        things = covered(facts, latents.shape[-1])
        without = torch.rand(len(ids), 1, device=args.device) < EMPTY_SHARE
        ids, facts = torch.where(without, empty, ids), facts * ~without[..., None]
        return painter_losses(painter, latents, ids, facts, things, bar, tokens.end, args.device)

    encoder = compiled(vae.encode, args.compile, lambda e: encode(next(feed), e))
    pool = Pool(args.pool, args.size // 8, args.device)
    while pool.filled < args.pool // 8:
        add_fresh()
    trainer.log(f"pool has {pool.filled:,} latents, deviation {pool.latents[:pool.filled].float().std():.3f}")
    held, texts = held_out_batch(args.held)
    exam, held_latents = Exam(held, tokens.end, args.device), encode(held, vae.encode)
    told_of = lambda: f"held out loss {held_out_loss(trainer.ema, held_latents, exam, bar, args.device):.5f}, understood: {exam(trainer.ema)}"
    fast = compiled(trainer.model, args.compile, lambda m: next_losses(m)["loss"].backward())
    trainer.optimizer.zero_grad(set_to_none=True)
    profile = trainer.profile
    while not trainer.over():
        profile.mark()
        if trainer.steps % max(1, args.fresh * args.reuse // args.batch) == 0:
            add_fresh()
        profile.mark("render and encode")
        losses = next_losses(fast)
        profile.mark("forward and loss")
        trainer.step(losses["loss"])
        trainer.report(losses)
        if time.monotonic() - trainer.last_save > 60:
            trainer.log(told_of())
            trainer.save()
    feed.close()
    if args.rehearse:
        return
    trainer.save()
    trainer.log(f"final: {told_of()}")
    prompts = [p for p in (*sample.GALLERY[:args.gallery], *texts[:args.gallery]) for _ in range(2)]
    made = sample.pictures(vae, trainer.ema.text, trainer.ema.unet, tokens, prompts, [0, 1] * (len(prompts) // 2), args.device, size=args.size)
    save_sheet(trainer.out / "pictures.png", made, 12)
    trainer.log("pictures.png: the gallery of sample.py, then held-out captions: " + " | ".join(texts[:args.gallery]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["vae", "text", "unet"])
    parser.add_argument("--minutes", type=float, default=8, help="this call's share, its start-up included")
    parser.add_argument("--minutes-total", type=float, help="the whole stage's; default: --minutes")
    parser.add_argument("--state", default="state")
    parser.add_argument("--out", default="out")
    parser.add_argument("--from", dest="from_")
    parser.add_argument("--batch", type=int, help="per update: 32 pictures for the autoencoder, 768 captions for the text encoder, 512 latents for the UNet")
    parser.add_argument("--reuse", type=int, default=8, help="how often a latent is trained on")
    parser.add_argument("--fresh", type=int, default=256, help="pictures rendered and encoded together")
    parser.add_argument("--pool", type=int, default=131072)
    parser.add_argument("--held", type=int, default=512)
    parser.add_argument("--gallery", type=int, default=24)
    parser.add_argument("--ema", type=float, default=0.999)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--steps", type=int, help="stop after so many updates; for tests")
    parser.add_argument("--profile", type=int, default=0, metavar="N", help="after a warm-up, say where the time of N steps goes")
    parser.add_argument("--rehearse", action="store_true", help="unet: without a trained autoencoder and without results; fills the compiler's cache")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.minutes_total = args.minutes_total or args.minutes
    args.batch = args.batch or dict(vae=32, text=768, unet=512)[args.stage]
    Path(args.out).mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    dict(vae=train_vae, text=train_text, unet=train_unet)[args.stage](args)


if __name__ == "__main__":
    main()
