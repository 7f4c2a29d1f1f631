"""What in forward keeps autograd from seeing all of it: detach, no_grad, a hook."""

import contextlib

import torch

from .repair import forgiving
from .steps import Watch, frame_of_a_step, source

CUTS = (torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__)
SITES = 40  # at most


class Uncut(Watch):
    """Forward as if these cuts were not there; notes all that there are.

    sites: {site: (words, place)} of each cut; left: those that are made none the less
    """

    def __init__(self, left=()):
        super().__init__({})
        self.sites, self.left = {}, left

    def leaves_out(self, frame, words):
        """Shall this cut be left out? frame: where it is made"""
        if frame is None:
            return False
        site = frame.f_code, frame.f_lasti
        words = words.format(source(frame))
        self.sites[site] = words, f"line {frame.f_lineno}, in `{frame.f_code.co_name}`"
        return site not in self.left

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in CUTS and args[0].requires_grad:
            if self.leaves_out(frame_of_a_step(), "{} kept its gradient"):
                return args[0].view_as(args[0])
        if func is torch.Tensor.register_hook:
            if self.leaves_out(frame_of_a_step(), "{} were left out"):
                return None
        kwargs = kwargs or {}
        if func is torch.autograd.grad and not kwargs.get("create_graph") and not args[4:]:
            if self.leaves_out(frame_of_a_step(), "{} had create_graph=True"):
                kwargs = {**kwargs, "create_graph": True}
        return func(*args, **kwargs)


@contextlib.contextmanager
def uncut(mode):
    enter = torch.no_grad.__enter__

    def entered(self):
        enter(self)
        words = "what is computed under `no_grad` kept its gradient"
        if self.prev and mode.leaves_out(frame_of_a_step(), words):
            torch.set_grad_enabled(True)

    torch.no_grad.__enter__ = entered
    try:
        with mode:
            yield mode
    finally:
        torch.no_grad.__enter__ = enter


def cut(cases):
    """The words for the cuts without which this gradient is right, or None."""
    with forgiving():
        mode = Uncut()
        if is_right(cases, mode) and mode.sites and len(mode.sites) <= SITES:
            left = []
            for site in mode.sites:
                if is_right(cases, Uncut((*left, site))):
                    left.append(site)
            said = [words for site, words in mode.sites.items() if site not in left]
            return {
                "change": "right if: " + ", and ".join(dict.fromkeys(words for words, _ in said)),
                "place": ", and ".join(dict.fromkeys(place for _, place in said)),
            }
    return None


def is_right(cases, mode):
    for case in cases:
        with uncut(mode):
            run = case.subject.run(case.point.values)
        vs = [[v if o == case.o else torch.zeros_like(t) for o, t in enumerate(run.outputs)]
              for v in case.vs]  # fmt: skip
        rows = (case.row(case.subject.backward(run, v, retain=True)[case.i]) for v in vs)
        if not case.fits_rows(rows):
            return False
    return True
