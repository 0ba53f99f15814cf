"""What all stages of train.py share: weights with their running average, the clock, the log, resuming, and a profile of the steps."""
import copy
import math
import time
from pathlib import Path

import torch
import torch.nn as nn
from safetensors import safe_open
from safetensors.torch import load_file, save_file

START = time.monotonic()


class Trainer:
    """Weights, their running average, the optimiser, the clock and the log of one stage."""

    def __init__(self, name, model, rate, args):
        self.name, self.rate, self.args = name, rate, args
        self.model = model.to(args.device, memory_format=torch.channels_last)
        self.seconds_before, self.seen, self.steps = 0.0, 0, 0
        self.ema = copy.deepcopy(self.model).eval().requires_grad_(False)
        self.weights, self.averages = list(self.model.parameters()), list(self.ema.parameters())
        self.optimizer = self.new_optimizer()
        self.out, self.state = Path(args.out), Path(args.state)
        self.out.mkdir(parents=True, exist_ok=True)
        self.state.mkdir(parents=True, exist_ok=True)
        self.profile = Profile(args.profile, args.device, self.log)
        self.resume()
        self.good = self.snapshot()
        self.last_log, self.last_save, self.last_seen = time.monotonic(), time.monotonic(), self.seen

    def new_optimizer(self):
        matrices = [p for p in self.model.parameters() if p.ndim >= 2]
        vectors = [p for p in self.model.parameters() if p.ndim < 2]
        groups = [dict(params=matrices, weight_decay=0.01), dict(params=vectors, weight_decay=0.0)]
        return torch.optim.AdamW(groups, lr=self.rate, betas=(0.9, 0.99), fused=self.args.device == "cuda")

    def snapshot(self):
        return [p.detach().clone() for p in (*self.weights, *self.averages)]

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
        self.profile.mark("backward")
        norm = nn.utils.clip_grad_norm_(self.weights, 1.0)
        # A gradient that is no number must not reach the weights; without asking the host, which would have to wait for the device.
        for weight in self.weights:
            if weight.grad is not None:
                weight.grad.copy_(torch.where(norm.isfinite(), weight.grad, 0))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        total = self.seen // self.args.batch
        decay = min(self.args.ema, (1 + total) / (10 + total))
        torch._foreach_lerp_(self.averages, self.weights, 1 - decay)
        self.seen += self.args.batch
        self.profile.mark("clip, optimiser, average")
        self.profile.step_over()

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
                for p, good in zip((*self.weights, *self.averages), self.good):
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
            self.model.load_state_dict(load_file(small))
            self.ema.load_state_dict(load_file(small.with_name(f"{self.name}-ema.safetensors")))
            with safe_open(small, "pt") as f:
                self.seconds_before, self.seen = float(f.metadata()["seconds"]), int(f.metadata()["seen"])
        if self.seen:
            self.log(f"goes on after {self.seconds_before:.0f} s and {self.seen:,} pictures")


class Profile:
    """Where the time of a step goes: mark() ends a part. After a warm-up of as many, at most 30, `steps` steps are timed, on the host
    and on the device; then three more show the device's most expensive kernels. If the host's column adds up to about the device's,
    the device waits for the host. With steps = 0 all of it does nothing."""

    WARM_UP, TRACED = 30, 3

    def __init__(self, steps, device, log):
        self.steps, self.gpu, self.log = steps, device == "cuda", log
        self.done, self.marks, self.tracer = -min(self.WARM_UP, steps), [], None

    def mark(self, part=None):
        """Ends a part; without a name, begins a step."""
        if 0 <= self.done < self.steps:
            event = torch.cuda.Event(enable_timing=True) if self.gpu else None
            if event:
                event.record()
            self.marks.append((part, time.perf_counter(), event))

    def step_over(self):
        if self.steps == 0 or self.done >= self.steps + self.TRACED:
            return
        self.done += 1
        try:
            if self.done == self.steps:
                self.table()
                self.begin_trace()
            elif self.done == self.steps + self.TRACED:
                self.end_trace()
        except Exception as error:  # to know is not worth a run
            self.log(f"profile: {type(error).__name__}: {str(error)[:200]}")
            self.tracer = None

    def begin_trace(self):
        if self.gpu:
            self.tracer = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self.tracer.start()

    def end_trace(self):
        if not self.tracer:
            return
        torch.cuda.synchronize()
        self.tracer.stop()
        rows = sorted(self.tracer.key_averages(), key=lambda r: -r.self_device_time_total)
        total = sum(r.self_device_time_total for r in rows)
        self.log(f"profile: {self.TRACED} steps keep the device busy for {total / 1000:.1f} ms, {sum(r.count for r in rows)} kernels")
        for r in rows[:16]:
            self.log(f"profile: {r.self_device_time_total / total:6.1%} {r.count:5d} x {r.key[:110]}")
        self.tracer = None

    def table(self):
        if self.gpu:
            torch.cuda.synchronize()
        parts = {}
        for (_, before, event_before), (part, at, event) in zip(self.marks, self.marks[1:]):
            if part:
                spent = parts.setdefault(part, [0.0, 0.0])
                spent[0] += 1000 * (at - before)
                spent[1] += event_before.elapsed_time(event) if event else 0.0
        parts["all"] = [sum(p[i] for p in parts.values()) for i in (0, 1)]
        for part, (host, device) in parts.items():
            self.log(f"profile: {part:24s} host {host / self.steps:7.2f} ms, device {device / self.steps:7.2f} ms")


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
