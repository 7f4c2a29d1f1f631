"""What in forward keeps autograd from seeing all of it: detach, no_grad, a hook, a new leaf."""

import contextlib
import sys
import threading
import types

import torch
from torch.autograd.grad_mode import set_grad_enabled
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from ..function.variations import applied
from ..function.calls import is_a_users
from ..function.raised import forgiving
from ..function.source import backward_by
from ..function.frames import HERE, TORCH, frame_of_a_step, source
from ..function.subject import tensors

DATA = torch.Tensor.data.__get__
CUTS = (torch.Tensor.detach, torch.detach, DATA)
EXITS = (
    torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__float__,
    torch.Tensor.__array__, torch.Tensor.data.__set__, torch.tensor,
)  # fmt: skip
CUT_OFF = "what is cut off from autograd: .detach(), .data, .item(), NumPy, torch.no_grad(), hooks"
SITES = 40  # at most


class Uncut(TorchFunctionMode):
    """Forward as if these cuts were not there; notes all that there are.

    sites: {site: (words, place)} of each cut; left: those that are made none the
           less, all if None
    exits: {expression: place} of each, and of where a tensor that has a gradient becomes a number
    within: in how many Functions of the user forward is
    """

    def __init__(self, left=()):
        super().__init__()
        self.sites, self.left, self.exits, self.within = {}, left, {}, 0

    def leaves_out(self, frame, words, leaves=True):
        """Shall this cut be left out? frame: where it is made; leaves: is it one of autograd?"""
        if frame is None:
            return False
        return self.is_left_out((frame.f_code, frame.f_lasti), source(frame), words, frame, leaves)

    def is_left_out(self, site, text, words, frame, leaves=True):
        self.sites[site] = words.format(text), place_of(frame)
        if leaves:
            self.exits[text] = place_of(frame)
        return self.left is not None and site not in self.left

    @contextlib.contextmanager
    def without_hooks(self, subject):
        """For a while, the hooks of a module and of its parameters are not there."""
        out = []
        for name, hooks in subject.hooks():
            for key, hook in list(hooks.items()):
                text = f"`{getattr(hook, '__name__', 'hook')}`, a hook of `{name}`,"
                if code := getattr(hook, "__code__", None):
                    if self.is_left_out((id(hooks), key), text, "{} were left out", code):
                        out.append((hooks, dict(hooks)))
                        del hooks[key]
        try:
            yield
        finally:
            for hooks, before in reversed(out):
                hooks.clear()
                hooks.update(before)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if self.within:  # a Function, of which autograd sees nothing anyway
            return func(*args, **(kwargs or {}))
        if func in EXITS and any(torch.is_tensor(a) and a.requires_grad for a in args):
            if frame := frame_of_a_step():
                self.exits[source(frame)] = place_of(frame)
        if func in CUTS and (func == DATA or args[0].requires_grad):
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


def place_of(frame):
    """Of a frame, or of the code of a function."""
    if isinstance(frame, types.CodeType):
        return f"line {frame.co_firstlineno}"
    return f"line {frame.f_lineno}, in `{frame.f_code.co_name}`"


def exits(subject):
    """Where tensors that have a gradient leave autograd, if they do, as a remedy; or None."""
    with forgiving():
        mode = Uncut(left=None)

        def way(apply, cls, *args, **kwargs):
            if cls is CheckpointFunction and not any(t.requires_grad for _, t in tensors(args)):
                frame = sys._getframe()
                while frame.f_code.co_filename.startswith((TORCH, HERE)):
                    frame = frame.f_back
                mode.exits[source(frame)] = place_of(frame)  # it records nothing then
            mode.within += is_a_users(cls)
            try:
                return apply(cls, *args, **kwargs)
            finally:
                mode.within -= is_a_users(cls)

        with uncut(mode), mode.without_hooks(subject), applied(way):
            subject.run(subject.values)
        if found := [f"{text} ({place})" for text, place in mode.exits.items()]:
            return f"what leaves autograd: {', '.join(found[:3])}"
    return None


@contextlib.contextmanager
def uncut(mode):
    """For a while, in this thread, the cuts are not made; other threads have their no_grad."""
    here, disable, new = threading.get_ident(), set_grad_enabled.__init__, Parameter.__new__
    packs, ends = saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__

    def made(cls, data=None, *args, **kwargs):
        if threading.get_ident() == here and torch.is_tensor(data) and data.requires_grad:
            if mode.leaves_out(frame_of_a_step(), "{} kept its gradient"):
                return data.view_as(data)
        return new(cls, data, *args, **kwargs)

    def switched(self, on):
        disable(self, on)
        by = "no_grad" if sys._getframe(1).f_code.co_name == "__enter__" else "set_grad_enabled"
        words = f"what is computed under `{by}` kept its gradient"
        off = threading.get_ident() == here and self.prev and not on
        if off and mode.leaves_out(frame_of_a_step(), words):
            self.mode = True
            torch._C._set_grad_enabled(True)

    def packed(self):
        words = "`saved_tensors_hooks` handed back what was saved"
        ours, frame = threading.get_ident() == here, frame_of_a_step()
        self.left_out = ours and mode.leaves_out(frame, words, leaves=False)
        return None if self.left_out else packs(self)

    def unpacked(self, *exception):
        return None if getattr(self, "left_out", False) else ends(self, *exception)

    def way(method, node, *grads):
        with mode if threading.get_ident() == here else contextlib.nullcontext():
            return method(node, *grads)

    set_grad_enabled.__init__, Parameter.__new__ = switched, made
    saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__ = packed, unpacked
    try:
        with mode, backward_by(way):  # the engine knows no mode
            yield mode
    finally:
        set_grad_enabled.__init__, Parameter.__new__ = disable, new
        saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__ = packs, ends


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
            each = {words: "each " * (said.count((words, place)) > 1) for words, place in said}
            return {
                "change": "right if: " + ", and ".join(n + words for words, n in each.items()),
                "place": ", and ".join(dict.fromkeys(place for _, place in said)),
            }
    return None


def is_right(cases, mode):
    for case in cases:
        with uncut(mode), mode.without_hooks(case.subject):
            run = case.subject.run(case.point.values)
            if not case.fits_rows(case.rows_of(run)):
                return False
    return True
