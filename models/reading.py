"""Does the text encoder understand captions? A head that reads the facts (facts.py) off its states; it is trained with the text
encoder and left out of the exported file."""
import torch
import torch.nn as nn
import torch.nn.functional as F

from facts import SCENE, SLOTS
from networks import TEXT_WIDTH
from scenes import COLOURS, KINDS, SETTINGS, TIMES

PARTS = dict(object=len(KINDS) + 1, colour=len(COLOURS), count=4, setting=len(SETTINGS), time=len(TIMES), box=4)


class Reader(nn.Linear):
    """One linear map for all slots: what it can read, the UNet's attention can use."""

    def __init__(self, width=TEXT_WIDTH):
        super().__init__(width, sum(PARTS.values()))

    def forward(self, states):
        return dict(zip(PARTS, super().forward(states).float().split(list(PARTS.values()), -1)))


def asked(ids, facts, end):
    """What every token should tell, (batch, 77, fields), and whether it is asked at all, (batch, 77): end tokens only."""
    slot = torch.arange(ids.shape[1], device=ids.device) % SLOTS
    return facts[:, slot].float(), ids == end


def reading_loss(found, wanted, is_asked):
    """Cross entropy for what, which colour, how many, setting and time; the squared error of the boxes, in units of about a tenth of the
    picture, so that the wrong side weighs as much as a wrong colour."""
    slot = torch.arange(wanted.shape[1], device=wanted.device) % SLOTS
    thing, scene = is_asked & (slot != SCENE), is_asked & (slot == SCENE) & (wanted[..., 0] > 0)
    there = thing & (wanted[..., 0] > 0)
    share = lambda error, where: (error * where).sum() / where.sum().clamp(min=1)
    choice = lambda part, target: F.cross_entropy(found[part].transpose(1, 2), target.long().clamp(min=0), reduction="none")
    return (share(choice("object", wanted[..., 0] * thing), thing) + share(choice("colour", wanted[..., 1] * there), there)
            + share(choice("count", wanted[..., 6] * there), there) + share(50 * ((found["box"] - wanted[..., 2:6]) ** 2).mean(-1), there)
            + 0.3 * share(choice("setting", (wanted[..., 0] - 1) * scene) + choice("time", wanted[..., 1] * scene), scene))


@torch.no_grad()
def understood(text, reader, ids, facts, end, pairs):
    """Shares of captions read rightly, from all copies of each slot together: every object, every colour, how many of each there
    are, and which of two groups is further left. pairs (batch, 2): slots of those two, equal ones where the caption
    does not tell."""
    _, is_asked = asked(ids, facts, end)
    slot = torch.arange(ids.shape[1], device=ids.device) % SLOTS
    copies = F.one_hot(slot, SLOTS).float() * is_asked[..., None]
    copies = copies / copies.sum(1, keepdim=True).clamp(min=1)
    found = {part: torch.einsum("bps,bpf->bsf", copies, values)[:, :SCENE] for part, values in reader(text(ids)).items()}
    wanted = facts.float()[:, :SCENE]
    right = lambda part, field: (found[part].argmax(-1) == wanted[..., field]).all(1)
    told = pairs[:, 0] != pairs[:, 1]
    side = lambda x: (x.gather(1, pairs[:, :1]) < x.gather(1, pairs[:, 1:]))[told]
    share = lambda values: values.float().mean().item()
    return dict(objects=share(right("object", 0)), colours=share(right("colour", 1)), counts=share(right("count", 6)),
                sides=share(side(found["box"][..., 0]) == side(wanted[..., 2])))
