"""Trains the autoencoder, then text encoder and UNet together, in time boxes.

usage: train.py vae   --minutes 8 --minutes-total 8  --state DIR --out DIR
       train.py unet  --minutes 9 --minutes-total 17 --state DIR --out DIR
       train.py smoke --out DIR

A stage may be spread over several calls: each goes on where the last one stopped, and the learning rate follows the share of
--minutes-total that is over. --state keeps everything (weights, averages, optimiser) on a local disk; --out gets what is small
enough to carry away (weights of both kinds, sheets, log), and --from resumes from that when the disk is gone.
"""
import argparse
import copy
import math
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import networks as N
import sample
from feed import Feed, held_out_batch
from picture import save_sheet
from render import Renderer, upload
from tokens import LENGTH, Tokens

START = time.monotonic()
EMPTY_SHARE = 0.10  # captions left out, for guidance
BLANK_FROM, BLANK_SHARE = 940, 0.5  # steps that are sometimes shown without a trace of the picture, and how often


class Painter(nn.Module):
    """Text encoder and UNet, trained as one."""

    def __init__(self, rows):
        super().__init__()
        self.text, self.unet = N.TextEncoder(rows), N.UNet()

    def forward(self, x, t, ids):
        return self.unet(x, t, self.text(ids))


class Trainer:
    """Weights, their running average, the optimiser, the clock and the log of one stage."""

    def __init__(self, name, model, rate, args):
        self.name, self.rate, self.args = name, rate, args
        self.model = model.to(args.device, memory_format=torch.channels_last)
        self.seconds_before, self.seen, self.steps = 0.0, 0, 0
        self.ema = copy.deepcopy(self.model).eval().requires_grad_(False)
        self.optimizer = self.new_optimizer()
        self.out, self.state = Path(args.out), Path(args.state)
        self.out.mkdir(parents=True, exist_ok=True)
        self.state.mkdir(parents=True, exist_ok=True)
        self.resume()
        self.good = self.snapshot()
        self.last_log, self.last_save, self.last_seen = time.monotonic(), time.monotonic(), self.seen

    def new_optimizer(self):
        matrices = [p for p in self.model.parameters() if p.ndim >= 2]
        vectors = [p for p in self.model.parameters() if p.ndim < 2]
        groups = [dict(params=matrices, weight_decay=0.01), dict(params=vectors, weight_decay=0.0)]
        return torch.optim.AdamW(groups, lr=self.rate, betas=(0.9, 0.99), fused=self.args.device == "cuda")

    def snapshot(self):
        return [p.detach().clone() for m in (self.model, self.ema) for p in m.parameters()]

    def share(self):
        """How much of the whole stage is over, 0..1."""
        return min(1.0, (self.seconds_before + time.monotonic() - START) / (60 * self.args.minutes_total))

    def over(self):
        return time.monotonic() - START >= 60 * self.args.minutes or (self.args.steps and self.steps >= self.args.steps)

    def step(self, loss):
        """One update. A new process warms up again, since it may have lost the optimiser's memory."""
        warm = min(1.0, (self.steps + 1) / 200)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * self.share())))
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        total = self.seen // self.args.batch
        decay = min(self.args.ema, (1 + total) / (10 + total))
        torch._foreach_lerp_(list(self.ema.parameters()), list(self.model.parameters()), 1 - decay)
        self.seen += self.args.batch

    def log(self, text):
        line = f"[{time.monotonic() - START:6.1f}s] {self.name} {text}"
        print(line, flush=True)
        with open(self.out / f"log-{self.name}.txt", "a") as f:
            f.write(line + "\n")

    def report(self, losses, every=10.0):
        """Log now and then; if a loss is not a number any more, go back to the last weights that were good."""
        now = time.monotonic()
        if now - self.last_log < every and not self.over():
            return
        values = {k: v.item() for k, v in losses.items()}
        rate = (self.seen - self.last_seen) / (now - self.last_log)
        self.log(f"step {self.steps} seen {self.seen:,} ({self.share():.0%}) {rate:,.0f}/s lr {self.optimizer.param_groups[0]['lr']:.1e} "
                 + " ".join(f"{k} {v:.5f}" for k, v in values.items()))
        if all(map(math.isfinite, values.values())):
            self.good = self.snapshot()
        else:
            self.log("not finite: back to the last good weights")
            with torch.no_grad():
                for p, good in zip((p for m in (self.model, self.ema) for p in m.parameters()), self.good):
                    p.copy_(good)
            self.optimizer = self.new_optimizer()
        self.last_log, self.last_seen = time.monotonic(), self.seen

    def save(self):
        """Everything to --state; weights in f16, which is small, to --out."""
        seconds = self.seconds_before + time.monotonic() - START
        whole = dict(model=self.model.state_dict(), ema=self.ema.state_dict(), optimizer=self.optimizer.state_dict(), seconds=seconds, seen=self.seen)
        torch.save(whole, self.state / f"{self.name}.tmp")
        (self.state / f"{self.name}.tmp").replace(self.state / f"{self.name}.pt")
        for kind, module in (("ema", self.ema), ("raw", self.model)):
            small = {k: v.half().contiguous() for k, v in module.state_dict().items()}
            save_file(small, self.out / f"{self.name}-{kind}.safetensors", {"seconds": str(seconds), "seen": str(self.seen)})
        self.last_save = time.monotonic()

    def resume(self):
        whole, small = self.state / f"{self.name}.pt", Path(self.args.from_ or self.state) / f"{self.name}-raw.safetensors"
        if whole.exists():
            saved = torch.load(whole, map_location=self.args.device, weights_only=True)
            self.model.load_state_dict(saved["model"])
            self.ema.load_state_dict(saved["ema"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.seconds_before, self.seen = saved["seconds"], saved["seen"]
        elif small.exists():
            from safetensors import safe_open
            self.model.load_state_dict(load_file(small))
            self.ema.load_state_dict(load_file(small.with_name(f"{self.name}-ema.safetensors")))
            with safe_open(small, "pt") as f:
                self.seconds_before, self.seen = float(f.metadata()["seconds"]), int(f.metadata()["seen"])
        if self.seen:
            self.log(f"goes on after {self.seconds_before:.0f} s and {self.seen:,} pictures")


def half_precision(device):
    return torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")


def compiled(f, wanted, trial):
    """f compiled, if that works here: a compiler's error must not cost the run. `trial` calls what it is given once."""
    if not wanted:
        return f
    fast, begun = torch.compile(f, dynamic=False), time.monotonic()
    try:
        trial(fast)
        print(f"compiled {getattr(f, '__name__', type(f).__name__)} in {time.monotonic() - begun:.0f} s", flush=True)
        return fast
    except Exception as error:
        print(f"runs uncompiled: {type(error).__name__}: {str(error)[:500]}", flush=True)
        return f


def renderer(args):
    fallback, wanted = Renderer(args.device, args.size), args.compile
    if wanted:
        fast = Renderer(args.device, args.size, compiled=True)
        try:
            packed, _ = held_out_batch(Renderer.CHUNK)
            error = (fast(packed) - fallback(packed)).abs().max().item()
            print(f"compiled the renderer; largest difference {error:.5f}", flush=True)
            if error < 0.02:
                return fast
        except Exception as error:
            print(f"renders uncompiled: {type(error).__name__}: {str(error)[:500]}", flush=True)
    return fallback


# The autoencoder

def edges(x):
    return x[..., 1:] - x[..., :-1], x[..., 1:, :] - x[..., :-1, :]


def vae_losses(made, pictures, mean, logvar):
    """made, pictures (batch, 3, h, w) in -1..1. Differences between neighbours at three sizes stand in for a perceptual loss:
    what the eye sees in flat pictures is their edges."""
    made = made.float()
    l1, mse = (made - pictures).abs().mean(), F.mse_loss(made, pictures)
    edge, a, b = 0.0, made, pictures
    for _ in range(3):
        edge = edge + sum((ea - eb).abs().mean() for ea, eb in zip(edges(a), edges(b)))
        a, b = F.avg_pool2d(a, 2), F.avg_pool2d(b, 2)
    kl = 0.5 * (mean ** 2 + logvar.exp() - 1 - logvar).mean()
    return dict(loss=l1 + 4 * mse + 0.5 * edge + 1e-3 * kl, l1=l1, mse=mse, edge=edge, kl=kl)


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
            made, mean, logvar = model(pictures)
        return vae_losses(made, pictures, mean, logvar)

    def draw():
        return (render(next(feed)) * 2 - 1).contiguous(memory_format=torch.channels_last)

    model = compiled(trainer.model, args.compile, lambda m: losses_of(m, draw())["loss"].backward())
    trainer.optimizer.zero_grad(set_to_none=True)
    while not trainer.over():
        losses = losses_of(model, draw())
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


# Text encoder and UNet

class Pool:
    """The latest latents with their captions, on the device: each is trained on a few times before it is overwritten."""

    def __init__(self, size, side, captions, device):
        self.latents = torch.zeros(size, 4, side, side, dtype=torch.float16, device=device)
        self.ids = torch.zeros(size, captions, LENGTH, dtype=torch.int16, device=device)
        self.filled = self.next = 0

    def add(self, latents, ids):
        at = (self.next + torch.arange(len(latents), device=latents.device)) % len(self.latents)
        self.latents[at], self.ids[at] = latents.to(self.latents.dtype), ids.to(self.ids.dtype)
        self.next = (self.next + len(latents)) % len(self.latents)
        self.filled = min(self.filled + len(latents), len(self.latents))

    def draw(self, n):
        device = self.latents.device
        which = torch.randint(self.filled, (n,), device=device)
        caption = torch.randint(self.ids.shape[1], (n,), device=device)
        return self.latents[which].float(), self.ids[which, caption].long()


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


def painter_loss(painter, latents, ids, bar, device):
    x, t, target, weight = noisy(latents, bar)
    with half_precision(device):
        found = painter(x.contiguous(memory_format=torch.channels_last), t, ids)
    return (weight * ((found.float() - target) ** 2).mean((1, 2, 3))).mean()


@torch.no_grad()
def held_out_loss(painter, latents, ids, bar, device):
    """The same noise every time, so that the numbers of one run can be compared."""
    with torch.random.fork_rng(devices=[0] if device == "cuda" else []):
        torch.manual_seed(7)
        return painter_loss(painter, latents, ids, bar, device).item()


def train_unet(args):
    fresh = max(Renderer.CHUNK, args.batch // args.reuse) if args.device == "cuda" else args.batch
    feed, tokens = Feed(fresh, args.workers), Tokens()
    render = renderer(args)
    vae = N.Autoencoder()
    folders = (args.state, args.from_ or args.out, args.out)
    vae.load_state_dict(load_file(next(p for d in folders if (p := Path(d) / "vae.safetensors").exists())))
    vae = vae.to(args.device, memory_format=torch.channels_last).eval().requires_grad_(False)
    trainer = Trainer("painter", Painter(len(tokens)), 7e-4, args)
    bar = N.alphas_bar(args.device)
    empty = torch.from_numpy(tokens.encode("")).to(args.device)

    @torch.no_grad()
    def encode(packed, encoder):
        pictures = (render(packed) * 2 - 1).contiguous(memory_format=torch.channels_last)
        with half_precision(args.device):
            mean, _ = encoder(pictures)
        return mean * N.LATENT_SCALE

    encoder = compiled(vae.encode, args.compile, lambda e: encode(next(feed), e))
    pool = Pool(args.pool, args.size // 8, 3, args.device)
    while pool.filled < args.pool // 8:
        packed = next(feed)
        pool.add(encode(packed, encoder), upload(packed["tokens"], args.device))
    trainer.log(f"pool has {pool.filled:,} latents, deviation {pool.latents[:pool.filled].float().std():.3f}")
    held, texts = held_out_batch(args.held)
    held_latents, held_ids = encode(held, vae.encode), torch.from_numpy(held["tokens"][:, 0]).to(args.device)

    def next_loss(painter):
        latents, ids = pool.draw(args.batch)
        ids = torch.where(torch.rand(len(ids), 1, device=args.device) < EMPTY_SHARE, empty, ids)
        return painter_loss(painter, latents, ids, bar, args.device)

    painter = compiled(trainer.model, args.compile, lambda m: next_loss(m).backward())
    trainer.optimizer.zero_grad(set_to_none=True)
    while not trainer.over():
        if trainer.steps % max(1, fresh * args.reuse // args.batch) == 0:
            packed = next(feed)
            pool.add(encode(packed, encoder), upload(packed["tokens"], args.device))
        loss = next_loss(painter)
        trainer.step(loss)
        trainer.report(dict(loss=loss))
        if time.monotonic() - trainer.last_save > 60:
            trainer.log(f"held out loss {held_out_loss(trainer.ema, held_latents, held_ids, bar, args.device):.5f}")
            trainer.save()
    trainer.save()
    trainer.log(f"final: held out loss {held_out_loss(trainer.ema, held_latents, held_ids, bar, args.device):.5f}")
    feed.close()
    prompts = [p for p in (*sample.GALLERY[:args.gallery], *texts[:args.gallery]) for _ in range(2)]
    made = sample.pictures(vae, trainer.ema.text, trainer.ema.unet, tokens, prompts, [0, 1] * (len(prompts) // 2), args.device, size=args.size)
    save_sheet(trainer.out / "gallery.png", made[:2 * args.gallery], 8)
    save_sheet(trainer.out / "held-out.png", made[2 * args.gallery:], 8)
    trainer.log("held-out.png: " + " | ".join(texts[:args.gallery]))


# Throughput

def smoke(args):
    """A few steps of everything, timed, so that batch sizes can be chosen. Leaves a compiler's cache for the stages."""

    gpu, device = args.device == "cuda", args.device

    def wait():
        if gpu:
            torch.cuda.synchronize()

    def timed(name, n, f, times=8):
        f()
        wait()
        begun = time.monotonic()
        for _ in range(times):
            f()
        wait()
        spent = (time.monotonic() - begun) / times
        memory = torch.cuda.max_memory_allocated() / 2**30 if gpu else 0
        print(f"[{time.monotonic() - START:6.1f}s] {name}: {n / spent:,.0f}/s ({1000 * spent:.1f} ms for {n}), peak {memory:.1f} GiB", flush=True)
        if gpu:
            torch.cuda.reset_peak_memory_stats()

    print(torch.__version__, torch.cuda.get_device_name() if gpu else "CPU", flush=True)
    feed, tokens = Feed(64, args.workers), Tokens()
    packed, _ = held_out_batch(args.held)
    render = renderer(args)
    timed("renderer", args.held, lambda: render(packed))
    pictures = render(packed)
    save_sheet(Path(args.out) / "rendered.png", pictures[:48], 8)
    pictures = (pictures * 2 - 1).contiguous(memory_format=torch.channels_last)
    some, fresh = pictures[:args.vae_batch], pictures[:args.batch // args.reuse]
    ids = torch.from_numpy(tokens.encode("a red house")).to(device).expand(args.batch, -1)
    bar, latents = N.alphas_bar(device), torch.randn(args.batch, 4, args.size // 8, args.size // 8, device=device)

    def vae_step(model):
        with half_precision(device):
            out = model(some)
        vae_losses(out[0], some, *out[1:])["loss"].backward()

    def encode(encoder):
        with torch.no_grad(), half_precision(device):
            encoder(fresh)

    def painter_step(model):
        painter_loss(model, latents, ids, bar, device).backward()

    vae = N.Autoencoder().to(device, memory_format=torch.channels_last)
    painter = Painter(len(tokens)).to(device, memory_format=torch.channels_last)
    for name, module, step, n in (("autoencoder step", vae, vae_step, len(some)), ("painter step", painter, painter_step, args.batch),
                                  ("encoder", vae.encode, encode, len(fresh))):
        fast = compiled(module, args.compile, step)
        timed(name, n, lambda: step(fast))
    next(feed)
    timed("scenes with captions from the workers", 64, lambda: next(feed), 40)
    feed.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["vae", "unet", "smoke"])
    parser.add_argument("--minutes", type=float, default=8, help="this call's share, its start-up included")
    parser.add_argument("--minutes-total", type=float, help="the whole stage's; default: --minutes")
    parser.add_argument("--state", default="state")
    parser.add_argument("--out", default="out")
    parser.add_argument("--from", dest="from_")
    parser.add_argument("--batch", type=int, help="pictures per update: 32 for the autoencoder, 512 for the UNet")
    parser.add_argument("--vae-batch", type=int, default=32, help="the autoencoder's batch in the smoke test")
    parser.add_argument("--reuse", type=int, default=4, help="how often a latent is trained on")
    parser.add_argument("--pool", type=int, default=131072)
    parser.add_argument("--held", type=int, default=512)
    parser.add_argument("--gallery", type=int, default=24)
    parser.add_argument("--ema", type=float, default=0.999)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--steps", type=int, help="stop after so many updates; for tests")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.minutes_total = args.minutes_total or args.minutes
    args.batch = args.batch or dict(vae=32, unet=512, smoke=512)[args.stage]
    Path(args.out).mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    dict(vae=train_vae, unet=train_unet, smoke=smoke)[args.stage](args)


if __name__ == "__main__":
    main()
