"""Write what k-diffusion and diffusers compute, for the tests of crates/generate: whole runs of a small network that both sides
know in closed form, step by step.

usage: sampling_fixtures.py [OUT]     (default crates/generate/tests/fixtures/sampling.jsonl)
needs: torch, diffusers 0.35, scipy, torchsde, torchdiffeq; k-diffusion (its package alone, without what it trains with)

Lines of JSON. The first has the noise: draw 0 is what runs begin with, draw 1 what the first step adds that adds noise, and so on.
A line of levels is a model's table, sampled. Each other line is a run: which reference computed it ("k-diffusion", "diffusers" or
"formula", which is this file's own transcription in float64), the sigmas and timesteps that it visited, and the latent after each step.
The levels of diffusers are rounded to float32 on the way, so that it can be met to about 1e-5 only.
"""
import importlib.util
import json
import math
import sys
import types
import warnings

import diffusers
import numpy as np
import torch

warnings.filterwarnings("ignore")
torch.set_default_dtype(torch.float64)

# k-diffusion's own __init__ loads everything that it trains with; its two files that sample need only each other.
package = types.ModuleType("k_diffusion")
package.__path__ = list(importlib.util.find_spec("k_diffusion").submodule_search_locations)
sys.modules["k_diffusion"] = package
utils = types.ModuleType("k_diffusion.utils")
utils.append_dims = lambda x, n: x[(...,) + (None,) * (n - x.ndim)]
sys.modules["k_diffusion.utils"] = package.utils = utils
from k_diffusion import external, sampling  # noqa: E402

N = 8
SD = dict(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
NOISE = torch.randn(24, N, generator=torch.Generator().manual_seed(7), dtype=torch.float32).double()
PICTURE = torch.tensor([math.cos(0.9 * i + 0.2) for i in range(N)])
WEIGHTS = torch.tensor([[math.cos(1.3 * i + 0.7 * j + 0.5) * 0.6 for j in range(N)] for i in range(N)])


def network(z, t):
    """What the network answers for an input of N numbers at a timestep. The tests have the same formula."""
    t = float(t) / 999
    return z * (0.3 + 0.6 * t) + 0.4 * torch.tanh(WEIGHTS @ z + 2 * t - 1)


def table(zero_snr=False, steps=1000, start=0.00085, end=0.012, scaled=True):
    betas = np.linspace(start**0.5, end**0.5, steps) ** 2 if scaled else np.linspace(start, end, steps)
    shares = np.cumprod(1 - betas)
    if zero_snr:
        root = shares**0.5
        shares = ((root - root[-1]) * root[0] / (root[0] - root[-1])) ** 2
        shares[-1] = 2**-24
    return torch.from_numpy(((1 - shares) / shares) ** 0.5)


class Model:
    """A network with its levels, as a k-diffusion denoiser."""

    def __init__(self, prediction, zero_snr):
        self.prediction, self.levels = prediction, external.DiscreteSchedule(table(zero_snr), quantize=False)

    def timestep(self, sigma):
        return float(self.levels.sigma_to_t(torch.as_tensor(sigma, dtype=torch.float64).reshape(1))[0])

    def denoised(self, x, sigma, t=None):
        sigma = float(sigma)
        t = self.timestep(sigma) if t is None else float(t)
        out = network(x / math.sqrt(sigma**2 + 1), t)
        if self.prediction == "eps":
            return x - sigma * out
        return x / (sigma**2 + 1) - sigma / math.sqrt(sigma**2 + 1) * out

    def __call__(self, x, sigma, **_):
        return self.denoised(x, sigma[0] if sigma.ndim else sigma)


def schedule(name, levels, n):
    """Sigmas, and who says so."""
    top, count = len(levels.sigmas) - 1, len(levels.sigmas)
    low, high = float(levels.sigma_min), float(levels.sigma_max)
    at = lambda ts: torch.cat([torch.stack([levels.sigmas[int(t)] for t in ts]), torch.zeros(1)])
    if name == "discrete":
        # get_sigmas(n), in which timesteps pass through float32, without that.
        t = torch.linspace(top, 0, n)
        log = levels.log_sigmas
        return torch.cat([((1 - t.frac()) * log[t.floor().long()] + t.frac() * log[t.ceil().long()]).exp(), torch.zeros(1)])
    if name == "karras":
        return sampling.get_sigmas_karras(n, low, high)
    if name == "exponential":
        return sampling.get_sigmas_exponential(n, low, high)
    if name == "sgm_uniform":  # ComfyUI, sd-cli
        t = torch.linspace(top, 0, n + 1)[:-1]
        log = levels.log_sigmas
        return torch.cat([((1 - t.frac()) * log[t.floor().long()] + t.frac() * log[t.ceil().long()]).exp(), torch.zeros(1)])
    if name == "simple":  # ComfyUI, sd-cli
        return at([top - int(i * (count / n)) for i in range(n)])
    if name == "trailing":  # diffusers
        return at(np.arange(count, 0, -count / n).round().astype(int) - 1)
    if name == "lcm":  # diffusers, sd-cli
        grid = (np.arange(1, 51) * (count // 50) - 1)[::-1]
        return at(grid[np.floor(np.linspace(0, 50, n, endpoint=False)).astype(int)])
    raise ValueError(name)


def ancestral(sigma, to, eta):
    up = min(to, eta * (to**2 * (sigma**2 - to**2) / sigma**2) ** 0.5)
    return (to**2 - up**2) ** 0.5, up


def formula(method, model, x, sigmas, eta, draw):
    """Methods that k-diffusion does not have, or not at every number of steps."""
    states, sigmas = [], [float(s) for s in sigmas]
    share = lambda s: 1 / (s**2 + 1)
    for sigma, to in zip(sigmas, sigmas[1:]):
        seen = model.denoised(x, sigma)
        if method == "lcm":
            x = seen + (to * draw() if to > 0 else 0)
        elif method == "ddim_trailing":
            # Formula (12) of the paper of DDIM, in its own scaling: latents times the square root of the picture's share.
            a, b = share(sigma), share(to)
            eps = (x - seen) / sigma
            sd = eta * math.sqrt((1 - b) / (1 - a) * (1 - a / b))
            y = math.sqrt(b) * seen + math.sqrt(max(1 - b - sd**2, 0)) * eps + (sd * draw() if sd > 0 else 0)
            x = y / math.sqrt(b)
        elif method == "dpm++2m_sde":
            x = seen
        states.append(x)
    return states


def k_diffusion(method, model, x, sigmas, eta, draw):
    seen = []
    functions = {"euler": sampling.sample_euler, "euler_a": sampling.sample_euler_ancestral, "heun": sampling.sample_heun,
                 "dpm++2m": sampling.sample_dpmpp_2m, "dpm++2m_sde": sampling.sample_dpmpp_2m_sde, "lms": sampling.sample_lms}
    more = dict(eta=eta, noise_sampler=lambda *_: draw()) if method in ("euler_a", "dpm++2m_sde") else {}
    last = functions[method](model, x, sigmas, callback=lambda d: seen.append(d["x"]), disable=True, **more)
    return seen[1:] + [last]


def diffusers_run(method, name, prediction, zero_snr, n, strength, eta, draw):
    """The same through a scheduler of diffusers, untouched but for where its steps begin. None where it does not have the schedule."""
    spacing = {"discrete": dict(timestep_spacing="linspace"), "karras": dict(use_karras_sigmas=True),
               "exponential": dict(use_exponential_sigmas=True), "trailing": dict(timestep_spacing="trailing"),
               "lcm": None}.get(name, "none")
    config = dict(SD, prediction_type={"eps": "epsilon", "v": "v_prediction"}[prediction])
    if zero_snr:
        config["rescale_betas_zero_snr"] = True
    vp = method in ("dpm++2m", "dpm++2m_sde", "ddim_trailing", "lcm")
    if method == "lcm":
        if name != "lcm" or zero_snr:
            return None
        s = diffusers.LCMScheduler(**config, clip_sample=False)
    elif spacing in ("none", None):
        return None
    elif method == "ddim_trailing":
        # Elsewhere it steps to another timestep than it then goes on from.
        if name != "trailing" or 1000 % n or zero_snr:
            return None
        s = diffusers.DDIMScheduler(**config, **spacing, clip_sample=False, set_alpha_to_one=True)
    elif method in ("dpm++2m", "dpm++2m_sde"):
        # Its "linspace" is another schedule.
        if name == "discrete":
            return None
        kind = "dpmsolver++" if method == "dpm++2m" else "sde-dpmsolver++"
        s = diffusers.DPMSolverMultistepScheduler(**config, **spacing, algorithm_type=kind)
    elif method in ("euler", "euler_a", "heun", "lms"):
        # Ancestral Euler has only spacings. LMS of diffusers, begun late, takes factors of an order that it has no slopes for.
        if method == "euler_a" and name not in ("discrete", "trailing") or method == "lms" and strength < 1:
            return None
        if zero_snr and method in ("heun", "lms"):
            return None
        kind = {"euler": "Euler", "euler_a": "EulerAncestral", "heun": "Heun", "lms": "LMS"}[method]
        s = getattr(diffusers, kind + "DiscreteScheduler")(**config, **spacing)
    else:
        return None
    if method in ("euler_a", "dpm++2m_sde") and eta != 1:
        return None
    s.set_timesteps(n)
    order = s.order
    start = n - min(int(n * strength), n)
    s.set_begin_index(start * order) if hasattr(s, "set_begin_index") else None
    if method in ("ddim_trailing", "lcm"):
        a = s.alphas_cumprod[s.timesteps].double()
        sigmas = torch.cat([((1 - a) / a) ** 0.5, torch.zeros(1)])
        if method == "lcm":
            s._step_index = start
    else:
        sigmas = s.sigmas.double()
        sigmas = torch.cat([sigmas[:-1][::2], sigmas[-1:]]) if method == "heun" else sigmas
    timesteps = torch.cat([s.timesteps[:1], s.timesteps[1::2]]) if method == "heun" else s.timesteps
    rest, timesteps = sigmas[start:], timesteps[start:]
    table_model = Model(prediction, zero_snr)
    # DPM-Solver rounds its timesteps; the network is asked at what they were before.
    if method in ("dpm++2m", "dpm++2m_sde"):
        timesteps = [table_model.timestep(sigma) for sigma in rest[:-1]]
    first = draw()
    x = first * rest[0] if strength == 1 else PICTURE + first * rest[0]
    states = []
    module = sys.modules[type(s).__module__]
    module.randn_tensor = lambda *a, **k: draw().reshape(1, N).float()
    scale = lambda sigma: math.sqrt(float(sigma) ** 2 + 1) if vp else 1.0
    # In its steps it holds latents in float32, and in its own scaling.
    y = (x / scale(rest[0])).reshape(1, N).float()
    for i in range(len(rest) - 1):
        calls = 2 if method == "heun" and i < len(rest) - 2 else 1
        for call in range(calls):
            sigma = float(rest[i + call])
            t = s.timesteps[start * order + (2 * i + call if method == "heun" else i)]
            z = y.double().reshape(N) * scale(sigma) / math.sqrt(sigma**2 + 1)
            out = network(z, timesteps[i + call]).reshape(1, N).float()
            if not vp:
                s.scale_model_input(y, t)
            y = s.step(out, t, y, **(dict(eta=eta) if method == "ddim_trailing" else {})).prev_sample
        last_lcm = method == "lcm" and i == len(rest) - 2
        states.append(y.double().reshape(N) * (1.0 if last_lcm else scale(rest[i + 1])))
    return rest, [float(t) for t in timesteps], states


def numbers(values):
    return [float("%.9g" % float(v)) for v in values]


def main(out):
    lines = [dict(noise=[numbers(row) for row in NOISE])]
    for options in [{}, dict(zero_snr=True), dict(scaled=False, start=0.0001, end=0.02), dict(steps=321)]:
        sigmas = table(**options)
        training = dict(steps=len(sigmas), beta_start=options.get("start", 0.00085), beta_end=options.get("end", 0.012),
                        betas="scaled_linear" if options.get("scaled", True) else "linear",
                        zero_terminal_snr=options.get("zero_snr", False))
        lines.append(dict(levels=training, every=40, sigmas=numbers(sigmas[::40])))

    methods = ["euler", "euler_a", "heun", "dpm++2m", "dpm++2m_sde", "lms", "lcm", "ddim_trailing"]
    schedules = ["discrete", "karras", "exponential", "sgm_uniform", "simple", "trailing", "lcm"]
    default_eta = {"euler_a": 1.0, "dpm++2m_sde": 1.0}
    cases = [(m, s, n, 1.0, "eps", False, default_eta.get(m, 0.0)) for m in methods for s in schedules for n in (7, 20)]
    cases += [(m, s, n, 1.0, "eps", False, default_eta.get(m, 0.0)) for m in methods for s in ("karras", "trailing") for n in (1, 2)]
    cases += [(m, s, 8, 1.0, "v", False, default_eta.get(m, 0.0)) for m in methods for s in ("discrete", "karras", "trailing")]
    cases += [(m, s, 8, 1.0, "v", True, default_eta.get(m, 0.0)) for m in methods for s in ("discrete", "karras", "trailing")]
    cases += [(m, s, 10, 0.6, "eps", False, default_eta.get(m, 0.0)) for m in methods for s in ("discrete", "karras", "trailing")]
    cases += [(m, "trailing", 10, 1.0, "eps", False, eta) for m in ("euler_a", "dpm++2m_sde", "ddim_trailing") for eta in (0.4, 1.0)]
    cases += [("lcm", "lcm", n, 1.0, p, False, 0.0) for n in (4, 8) for p in ("eps", "v")]
    done = set()
    for case in cases:
        if case in done:
            continue
        done.add(case)
        method, name, n, strength, prediction, zero_snr, eta = case
        model = Model(prediction, zero_snr)
        sigmas = schedule(name, model.levels, n)[n - min(int(n * strength), n):]

        def counter():
            drawn = iter(NOISE)
            return lambda: next(drawn)

        draw = counter()
        first = draw()
        x = first * sigmas[0] if strength == 1 else PICTURE + first * sigmas[0]
        # k-diffusion's dpmpp_2m_sde cannot take a single step.
        own = method in ("lcm", "ddim_trailing") or method == "dpm++2m_sde" and n == 1
        run = formula if own else k_diffusion
        states = run(method, model, x, sigmas, eta, draw)
        timesteps = [model.timestep(s) for s in sigmas[:-1]]
        runs = [("formula" if own else "k-diffusion", sigmas, timesteps, states)]
        # numpy's linspace of one number is its first, and diffusers' timesteps are upside down: it would begin at the smallest sigma.
        if n > 1 and (other := diffusers_run(method, name, prediction, zero_snr, n, strength, eta, counter())):
            runs.append(("diffusers", *other))
        for reference, sigmas, timesteps, states in runs:
            lines.append(dict(reference=reference, method=method, schedule=name, steps=n, strength=strength, prediction=prediction,
                              zero_terminal_snr=zero_snr, eta=eta, sigmas=numbers(sigmas), timesteps=numbers(timesteps),
                              states=[numbers(state) for state in states]))
    with open(out, "w") as f:
        f.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    print(len(lines), "lines")


main(sys.argv[1] if len(sys.argv) > 1 else "crates/generate/tests/fixtures/sampling.jsonl")
