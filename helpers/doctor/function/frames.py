"""The steps of backward: each call of PyTorch that its code makes, watched, and changed."""

import contextlib
import dis
import functools
import itertools
import linecache
import os
import re
import sys

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from .changes import is_real
from .source import backward_by
from .subject import has_memory

STEPS, LARGEST = 300, 20000  # at most; elements of a tensor that has a name
TORCH, HERE = (os.path.dirname(os.path.abspath(f)) + os.sep for f in (torch.__file__, __file__))
STATEMENT = r"^(return |[\w, ]+ [-+*/@]?= )"
RETURN = dis.opmap["RETURN_VALUE"]
NO_STEPS = ("grad", "backward", "requires_grad_")  # they make nothing new


def frame_of_a_step():
    """The frame that called PyTorch, unless it is a module's of PyTorch, or ours."""
    frame = sys._getframe(2)
    while frame and frame.f_code.co_filename.startswith(TORCH):
        if frame.f_code.co_name == "_call_impl":
            return None
        frame = frame.f_back
    return None if frame is None or frame.f_code.co_filename.startswith(HERE) else frame


def source(frame):
    return source_at(frame.f_code, frame.f_lasti, frame.f_lineno)


def names_in(text):
    return {f"`{name}`" for name in re.findall(r"[A-Za-z_]\w*", text)}


@functools.lru_cache(STEPS)
def source_at(code, instruction, line):
    """The expression that is computed there; before Python 3.11, that of the whole line."""
    text = linecache.getline(code.co_filename, line)
    if hasattr(code, "co_positions"):
        places = itertools.islice(code.co_positions(), instruction // 2, None)
        first, last, start, end = next(places)
        if first == last == line and start is not None:
            return f"`{text.encode()[start:end].decode()}`"
    return f"`{re.sub(STATEMENT, '', text.strip()).rstrip(',')}`"


def which(frame):
    """In words, which one, if the expression stands in its line more than once."""
    line, text = linecache.getline(frame.f_code.co_filename, frame.f_lineno), source(frame)[1:-1]
    if line.count(text) < 2 or not hasattr(frame.f_code, "co_positions"):
        return ""
    _, _, start, _ = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    before = line.encode()[:start].decode().count(text)
    return f"the {ORDINALS[before]} " if before < len(ORDINALS) else ""


ORDINALS = "first", "second", "third", "fourth", "fifth"


def held(frame):
    """(name, value) of the variables of a frame, of what is in its lists, and of its ctx."""
    for name, value in list(frame.f_locals.items()):
        if isinstance(value, (list, tuple)) and len(value) < 9:
            yield from ((f"`{name}[{k}]`", item) for k, item in enumerate(value))
        elif isinstance(value, BackwardCFunction):
            yield from ((f"`{name}.{k}`", item) for k, item in list(vars(value).items()))
        else:
            yield f"`{name}`", value


class Step:
    """One call of PyTorch in backward.

    scope: name -> value of what its code could have used; before: its first argument, as it was
    """

    def __init__(self, frame, scope, func, args, kwargs):
        self.func, self.args, self.kwargs, self.scope = func, args, kwargs, scope
        self.site, self.written = (frame.f_code, frame.f_lasti), source(frame)
        self.text = which(frame) + self.written
        self.line, self.name = frame.f_lineno, frame.f_code.co_name
        self.before = args[0].detach().clone() if args and is_real(args[0]) else None
        self.version = args[0]._version if args and torch.is_tensor(args[0]) else None
        self.edge = None

    def made(self, value, edge=False):
        changed = value._version != self.version  # `.to` may return what it is given
        self.value = value.detach().clone()
        self.in_place = changed and value is next(iter(self.args), None)
        if edge and value.requires_grad:
            self.edge = get_gradient_edge(value)

    def argument(self, where):
        return self.kwargs[where] if isinstance(where, str) else self.args[where]

    def of(self, where, new):
        """What the step makes of another argument in this place."""
        args, kwargs = list(self.args), dict(self.kwargs)
        if self.in_place:
            args[0] = self.before.clone()
        (kwargs if isinstance(where, str) else args)[where] = new
        return self.func(*args, **kwargs)

    def with_argument(self, where, new):
        """The same, if what follows can use it."""
        made = self.of(where, new)
        if not is_real(made) or made.shape != self.value.shape:
            raise ValueError("what follows could not use it")
        return made

    def named(self, name, leading=False):
        """What has this name, expanded to the shape of what is made, from its last dimension on.

        leading: from its first dimension on.
        """
        t, like = self.scope[getattr(name, "key", name)], self.value
        if leading:
            t = t.reshape(*t.shape, *[1] * (like.dim() - t.dim()))
        return t.to(like.dtype).expand(like.shape)


class Return(Step):
    """What backward returns for one input, as if it were made in a last step."""

    def __init__(self, last, watch, input, grad):
        scope = last.scope | watch.made_in(last.site[0])
        scope = {
            name: t for name, t in scope.items()
            if name.startswith("forward's ") or not names_in(name) & watch.rebound
        }  # fmt: skip
        self.func, self.args, self.kwargs, self.scope = None, (), {}, scope
        self.site, self.text = "return", f"what is returned for `{input}`"
        code = last.site[0]
        ends = {line for a, b, line in code.co_lines() if RETURN in code.co_code[a:b:2]}
        self.line = ends.pop() if code.co_name == "backward" and len(ends) == 1 else None
        self.name, self.edge = "backward", None
        self.value = grad.detach().clone()


class Watch(TorchFunctionMode):
    """Notes the steps of backward, and before, the names of forward.

    records: shall autograd record each step? changes: {site: change}, which are made
    """

    def __init__(self, names=None, records=False, changes=None):
        super().__init__()
        self.names = {} if names is None else names
        self.records, self.changes, self.backward = records, changes, names is not None
        self.steps, self.texts, self.copies = [], {}, {}
        self.bound, self.rebound, self.codes = {}, set(), set()

    def copy(self, t):
        """A copy of the tensor as it is now; the same one for as long as nothing changes it."""
        key = id(t), t._version
        if key not in self.copies:
            self.copies[key] = t, t.detach().clone()
        return self.copies[key][1]

    def note(self, text, value, code):
        self.texts[text] = value, value._version, code

    def made_in(self, code=None):
        """{expression: tensor} of this code, or of all, unless it was changed in place since."""
        return {
            text: value
            for text, (value, version, of) in self.texts.items()
            if value._version == version and code in (None, of)
        }

    def scope(self, frame):
        found = {}
        for name, value in held(frame):
            if self.bound.setdefault((frame.f_code, name), id(value)) != id(value):
                self.rebound.add(name)  # what it names at the end, nobody knows
        texts = self.made_in(frame.f_code).items()
        for name, value in itertools.chain(held(frame), texts, self.names.items()):
            if isinstance(value, torch.Tensor):
                small = 0 < value.numel() <= LARGEST and not value.is_complex()
                if small and has_memory(value):  # to read what is freed would end Python
                    found.setdefault(name, self.copy(value))
                elif value.numel() > LARGEST:  # whose sizes have a name, too
                    sizes = ((f"{name[:-1]}.shape[{d}]`", n) for d, n in enumerate(value.shape))
                    found.update((text, n) for text, n in sizes if n > 4)
            elif isinstance(value, (int, float)):
                found.setdefault(name, value)
        return found

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name, frame = kwargs or {}, getattr(func, "__name__", ""), frame_of_a_step()
        if frame is None or name in NO_STEPS or len(self.steps) >= STEPS:
            return func(*args, **kwargs)
        site = frame.f_code, frame.f_lasti
        if self.backward and (self.changes is None or site in self.changes):
            return self.step(Step(frame, self.scope(frame), func, args, kwargs))
        value = func(*args, **kwargs)
        if is_real(value):
            self.note(source(frame), value, frame.f_code)
        if not self.backward:
            self.codes.add(frame.f_code)
            self.names.update((f"forward's {name}", t) for name, t in held(frame))
        return value

    def step(self, step):
        cut = getattr(step.func, "__name__", "") == "detach"  # which autograd does not see through
        with torch.enable_grad() if self.records else contextlib.nullcontext():
            value = step.func(*step.args, **step.kwargs)
            if not is_real(value) or not value.numel():
                return value
            if self.records and not (cut or value.requires_grad or value._is_view()):
                value = value.detach().requires_grad_().clone()
        step.made(value, self.records and not cut)
        self.note(step.written, value, step.site[0])
        self.steps.append(step)
        if self.changes is None:
            return value
        with torch.no_grad():
            new = self.changes[step.site](step).to(value.dtype)
            return value.copy_(new) if step.in_place else new


CHANGING = r"^(?!requires_grad)\w*[a-z]_$|^__(i\w+|setitem)__$"
DRAWING = r"^(rand|bernoulli|normal_?$|uniform_|multinomial|poisson|exponential_)|dropout"


class Effects(TorchFunctionMode):
    """Notes where backward `changes` what was there before, and `draws`: {expression: line}."""

    def __init__(self):
        super().__init__()
        self.changes, self.draws = {}, {}
        self.made = {}  # by the address of a storage, which stays while it lives

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, frame = getattr(func, "__name__", ""), frame_of_a_step()
        value = func(*args, **(kwargs or {}))
        changed = args[0] if args and re.search(CHANGING, name) else None
        place = frame is not None and f"line {frame.f_lineno}, in `{frame.f_code.co_name}`"
        if place and re.search(DRAWING, name):
            self.draws[source(frame)] = place
        if place and is_real(changed) and address(changed) not in self.made:
            self.changes[source(frame)] = place
        elif is_real(value) and address(value) not in [address(a) for a in args if is_real(a)]:
            self.made[address(value)] = value
        return value


def address(tensor):
    return tensor.untyped_storage().data_ptr()


@contextlib.contextmanager
def watching(watch):
    """The backward of every Function in Python is watched."""

    def way(method, node, *grads):
        with watch:
            return method(node, *grads)

    with backward_by(way):
        yield watch
