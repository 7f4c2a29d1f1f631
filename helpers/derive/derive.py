"""Derive, try on what was not traced, and print only what was right everywhere."""

import contextlib
import inspect
import re
import warnings

import torch
import torch.autograd.forward_ad as fwAD
from torch.autograd import grad
from torch.autograd.graph import saved_tensors_hooks

from .backward import Backward
from .forward import Forward
from .reader import read
from .rules import Refused
from .source import Pattern, title_of, write
from .tape import LARGEST, SCOPE


def derive(function, *arguments, save=(), jvp=False):
    """The source of a Function that computes `function`, with its backward written out.

    function: a plain function, written with def, of tensors and Python values. It returns
    a tensor or a tuple of tensors.
    arguments: an example of each, floating-point tensors of one dtype and integer tensors
    of any size that the function takes. Sizes that differ here may differ later, unless
    `check_...` says that the text holds for these alone; sizes that are equal must be equal.
    save: names of the function's variables to keep for backward in place of computing them
    again. The second derivative is then refused.
    jvp: whether the Function has forward mode, too, of first order; not with `save`.

    The text was run, and its first and second derivatives were those of autograd, to some
    1e-11 of the largest number, at other sizes and ranks, at ties and at zeros; in float32 and
    bfloat16, to their rounding. What does not follow from the trace is checked in the function
    `check_...` below the class. Near the ends of a dtype's range, it may overflow where
    autograd does not. An output without a gradient, and a tangent that is missing, count as
    zeros, which make nan where a step is singular. `clamp` passes nan on, where autograd stops
    it, and `logsumexp` an infinity to all of its row. Sizes were tried up to 131, or to twice
    the largest of the example's and of the numbers below 1,024 that the function meets. The
    function is read statement by statement: it may bind names, decide by `if`, loop
    over at most eight items and call what is in the table; what else it does is refused.
    Raises Refused, a ValueError, with the reason, where no such text was found.
    """
    if not inspect.isfunction(function):
        raise Refused(f"a plain function is needed, got {type(function).__name__}")
    if jvp and save:
        raise Refused("jvp with save: what is saved has no tangent")
    code = function.__code__
    for name in (*code.co_varnames, *code.co_names):
        is_own = name in code.co_varnames and name in OWN
        if is_own or re.fullmatch(r"_\d+|ctx|needs_.+", name):
            raise Refused(f"`{name}` is a name that derive uses: choose another")
    bound = inspect.signature(function).bind(*arguments)
    bound.apply_defaults()
    given = bound.arguments
    tensors = {n: v for n, v in given.items() if isinstance(v, torch.Tensor)}
    constants = {n: v for n, v in given.items() if n not in tensors}
    floating = [t for t in tensors.values() if t.is_floating_point()]
    if not floating or any(t.is_complex() for t in tensors.values()):
        raise Refused(
            "at least one floating-point tensor is needed, and no complex one"
        )
    for name, value in constants.items():
        if not isinstance(value, (bool, int, float, str, type(None))):
            raise Refused(
                f"{name} must be a tensor or a Python value, got {type(value).__name__}"
            )
        if hasattr(torch.autograd.Function, name):  # as ctx.to_save
            raise Refused(f"`{name}` is a name that PyTorch uses: choose another")
    if torch.is_autocast_enabled("cpu"):
        raise Refused("under autocast: derive outside of it")
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)  # small tensors: a second thread only waits
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # about sizes that are tried
            torch.manual_seed(0)  # the same text at every call
            with contextlib.suppress(Refused):
                return Derivation(function, tensors, constants, save, jvp, False).source
            return Derivation(function, tensors, constants, save, jvp, True).source
    except Refused:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise Refused(f"a step that it does not know how to write, {reason}") from error
    finally:
        torch.set_num_threads(threads)


OWN = "torch", "F", "math", "type", "int", "float"  # of the text
DTYPES = torch.float32, torch.bfloat16  # in which the text is tried


def each(tensors, f):
    """Tensors by name, of which `f` changes what is floating."""
    return {n: f(t) if t.is_floating_point() else t for n, t in tensors.items()}


class Derivation:
    def __init__(self, function, tensors, constants, save, jvp, at_zero):
        self.function, self.constants, self.save = function, constants, save
        self.at_zero, self.jvp = at_zero, jvp
        self.random = torch.Generator().manual_seed(0)
        self.given = {n: t.detach().cpu() for n, t in tensors.items()}
        self.tensors = each(self.given, torch.Tensor.double)
        self.floating = [n for n, t in tensors.items() if t.is_floating_point()]
        walks = self.traced(self.tensors)
        self.tape, self.base, saved = walks[0].tape, self.told(walks), walks[0].saved
        self.steps = [len(walk.steps) for walk in walks]
        if None in saved or any(n.op == "input" for n in saved):
            raise Refused(
                f"save={save}: not all are variables of the function at its return"
            )
        self.pattern = Pattern(self.tape, constants)
        # A size beyond the numbers that the function meets, as the 20 of x[:, :20].
        whole = [n for n in self.tape.met if n < LARGEST]
        self.large = 3 + 2 * max([64, *whole])
        self.shapes = self.generalize()
        self.compose("")
        self.small()
        self.others()
        kept = [self.bytes(f) for f in (self.run, function)]
        line = f"keeps {kept[0]:,} bytes of its example, and autograd {kept[1]:,}."
        if save:
            line += " Its second derivative is refused."
        self.compose(line)
        self.verify()

    def traced(self, tensors):
        arguments = {**tensors, **self.constants}
        return self.walked(read(self.function, arguments, self.at_zero))

    def walked(self, tape):
        return [Backward(tape, self.save)] + [
            Forward(tape, ()) for _ in range(self.jvp)
        ]

    def told(self, walks):
        lines = [line[:2] for walk in walks for line in walk.lines]
        return lines, walks[0].tape.exact

    def compose(self, kept):
        walks = self.walked(self.tape)
        self.source = write(self.function, walks, self.pattern, kept)
        names = {}
        exec(compile(self.source, "<derived>", "exec"), names)
        self.check = names[f"check_{self.function.__name__}"]
        apply = names[title_of(self.function)].apply
        order = inspect.signature(self.function).parameters
        self.run = lambda **given: apply(*(given[name] for name in order))

    # What else has the same steps

    def sized(self, change, lead=None):
        """The example at other sizes, of numbers from the same range."""
        made, first = {}, next(iter(self.tensors.values())).shape[:1]
        for name, t in self.tensors.items():
            shape = [change.get(s, s) for s in t.shape]
            if lead is not None and t.shape[:1] == first:
                shape[:1] = lead
            drawn = torch.randint(max(t.numel(), 1), shape, generator=self.random)
            made[name] = t.flatten()[drawn]
            if t.is_floating_point():
                made[name] *= 1 - 0.1 * torch.rand(shape, generator=self.random)
            elif change and t.dtype != torch.bool:  # it may point into a smaller tensor
                within = made[name] % max(min(change.values()), 1)
                made[name] = torch.where(made[name] < 0, made[name], within)
        return made

    def same(self, tensors):
        """Whether the steps are those of the example; None where nobody can run them."""
        try:
            self.function(**tensors, **self.constants)
        except Exception:  # whatever it says to sizes that do not fit
            return None
        try:
            walks = self.traced(tensors)
            if walks[0].tape.guards == self.tape.guards:
                as_many = [len(walk.steps) for walk in walks] == self.steps
                return as_many and self.told(walks) == self.base
        except Exception:  # Refused, or of PyTorch, at what a rule makes
            return False
        # Other guards are no answer, unless one of the example's fails there.
        names = self.tape.globals | SCOPE | tensors | self.constants
        try:
            refused = any(eval(test, names) for test in self.tape.refusals())
        except Exception:  # as of another rank: the check raises it, too
            refused = True
        return None if refused else False

    def generalize(self):
        """Sizes and ranks with the same steps; what holds between sizes goes to the pattern."""
        pattern, changes = self.pattern, []
        sizes = list(pattern.letters)
        far = 3 + 2 * max([0, *sizes])  # another size may be a bound, too
        for size in sizes:
            for step in (m for m in range(1, size + 1) if size % m == 0):
                others = [
                    *range(2 * step, size + 7 * step, step),
                    step * max(self.large, 1 + far // step),
                ]
                others = [s for s in others if s not in sizes]
                outcomes = {s: self.same(self.sized({size: s})) for s in others}
                fitting = [s for s, outcome in outcomes.items() if outcome]
                if False not in outcomes.values() and len(fitting) > 1:
                    pattern.step[size] = step
                    changes += [{size: fitting[0]}, {size: fitting[-1]}]
                    break
        bound = [s for s in sizes if s not in pattern.step]
        if bound:
            factors = 2, 3, 1 + max(self.large, far) // min(bound)
            scaled = [{s: k * s for s in bound} for k in factors]
            fits = all(self.same(self.sized(change)) for change in scaled)
            if fits and not any(s % min(bound) for s in bound):
                changes += scaled
            else:  # these are those of the example
                for s in bound:
                    del pattern.letters[s]
        tried = [self.sized(change) for change in changes]
        for change, tensors in zip(changes, tried, strict=True):
            pattern.others.append((change, self.traced(tensors)))
        first = self.tape.inputs[0].shape
        elsewhere = [s for n in self.tape.inputs for s in n.shape[1:]]
        free = len(first) > 1 and pattern.step.get(first[0]) == 1
        if free and first[0] not in elsewhere:
            # No two are equal, or a size may stand in the place of another.
            a, b = [n for n in range(2, len(sizes) + 4) if n not in sizes][:2]
            found = [self.sized({}, lead) for lead in ((a, first[0]), (a, b, first[0]))]
            if all(map(self.same, found)):
                pattern.lead = len(first)
                tried += found
        return tried

    def small(self):
        """The smallest sizes, where shapes coincide and steps may be others, and equal ones."""
        lead, self.pattern.lead = self.pattern.lead, min(self.pattern.lead, 1)
        self.compose("")
        if lead and self.wrong(self.sized({}, ())):
            self.pattern.lead = lead
            self.compose("")
        for size, step in self.pattern.step.items():
            others = [s for s in self.pattern.step if s != size and s % step == 0]
            for small in (0, step, *others):
                if self.wrong(self.sized({size: small})):
                    self.pattern.never.setdefault(size, []).append(small)
        free = [s for s, step in self.pattern.step.items() if step == 1]
        for number in (2, 5):
            self.shapes.append(self.sized(dict.fromkeys(free, number)))

    def others(self):
        """Python numbers, for all of which the text may hold."""
        ways = torch.zeros_like, torch.ones_like, lambda t: 100 * t
        points = [self.tensors, *(each(self.tensors, way) for way in ways)]
        for name, node in self.tape.numbers.items():
            if str(node) in self.tape.pinned:
                continue
            value = self.constants[name]
            self.pattern.free.add(name)
            self.compose("")
            others = {1.01 * value, value / 2, 3 * value + 1, -value, 0.0} - {value}
            outcomes = set()
            for self.constants[name] in others:
                outcomes.add(self.same(self.tensors))
                if any(map(self.wrong, points)):
                    outcomes.add(False)
            if False in outcomes or True not in outcomes:
                self.pattern.free.discard(name)
            self.constants[name] = value

    # Whether it is right

    def derivatives(self, f, tensors, wanted, alone=None):
        """What f returns, and the first and second derivatives by what is wanted.

        alone: the number of the one output that has a gradient; None if all have
        """
        given = each(tensors, lambda t: t.detach().clone())
        inputs = [given[name].requires_grad_() for name in wanted]
        draw = torch.Generator().manual_seed(1)

        def like(t):
            return torch.randn(t.shape, generator=draw, dtype=torch.float64).to(t.dtype)

        def outputs():
            found = f(**given, **self.constants)
            found = [found] if isinstance(found, torch.Tensor) else found
            # What depends on nothing has a gradient, too: it is zero.
            still = 0 * sum(given[name].sum() for name in wanted)
            return [o + still for o in found]

        found = outputs()
        by = found if alone is None else found[alone : alone + 1]
        upstream = [like(o).requires_grad_() for o in by]
        options = dict(allow_unused=True, materialize_grads=True)
        first = grad(by, inputs, upstream, create_graph=not self.save, **options)
        found = [*map(torch.Tensor.detach, found), *first]
        if not self.save:
            along = sum((g * like(g)).sum() for g in first)
            found += grad(along, [*inputs, *upstream], **options)
        if self.jvp:
            with fwAD.dual_level():
                for name in wanted:
                    given[name] = fwAD.make_dual(given[name], like(given[name]))
                moved = [fwAD.unpack_dual(o).tangent for o in outputs()]
            found += map(torch.Tensor.detach, moved)
        return found

    def wrong(self, tensors, wanted=None, alone=None):
        """By how much it is; an empty string where all is right."""
        wanted = wanted or self.floating, alone
        try:
            self.check(**tensors, **self.constants)
            double = each(tensors, torch.Tensor.double)
            truth = self.derivatives(self.function, double, *wanted)
            theirs = self.derivatives(self.function, tensors, *wanted)
        except Exception:  # said to the user, or nothing to compare with
            return ""
        try:
            mine = self.derivatives(self.run, tensors, *wanted)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        eps = torch.finfo(mine[0].dtype).eps
        eps *= 1e5 if eps < 1e-12 else 8
        # By an output of -1e9, as where a mask fills, nothing would be wrong.
        least = [t.clamp(-100, 100) for t in truth[: len(self.tape.outputs)]]
        sizes = [t.flatten().abs() for t in least + truth[len(least) :]]
        sizes = torch.cat([torch.zeros(1), *sizes])
        scale = sizes[sizes.isfinite()].max()
        for right, a, b in zip(truth, mine, theirs, strict=True):
            if a.shape != b.shape or a.dtype != b.dtype:
                return (
                    f"{tuple(a.shape)} of {a.dtype} for {tuple(b.shape)} of {b.dtype}"
                )
            fine = b.isfinite() & right.isfinite()
            right, a, b = (torch.where(fine, t.double(), 0) for t in (right, a, b))
            if not right.numel():
                continue
            off, allowed = (
                (a - right).abs().max(),
                8 * (b - right).abs().max() + eps * scale,
            )
            if not off <= allowed:
                return f"off by {off:.1e}, where {allowed:.1e} is rounding"
        return ""

    def verify(self):
        def turned(t):
            return t.mT.contiguous().mT if t.dim() > 1 else t.repeat_interleave(2)[::2]

        def partly_zero(t):
            kept = torch.ones_like(t)
            if t.dim():
                kept[:1], kept[..., :1] = 0, 0
            return t * kept

        def row_zero(t):
            kept = torch.ones_like(t)
            kept.reshape(-1, t.shape[-1] if t.dim() else 1)[:1] = 0
            return t * kept

        changes = {
            "ties": torch.round,
            "a row of zeros": row_zero,
            "non-contiguous tensors": turned,
            "a row and a column of zeros": partly_zero,
            "zeros": torch.zeros_like,
            "ones": torch.ones_like,
        }
        changes |= {str(d): lambda t, d=d: t.to(d) for d in DTYPES}
        tries = [("its own sizes", self.tensors)]
        tries += [("other sizes", s) for s in self.shapes]
        tries += [(where, each(self.tensors, f)) for where, f in changes.items()]
        for name in self.floating:
            tries.append((f"its own sizes, by {name} alone", self.tensors, [name]))
            for zero in (row_zero, partly_zero):
                alone = self.tensors | {name: zero(self.tensors[name])}
                tries.append((f"zeros of {name}", alone))
        for k in range(len(self.tape.outputs) * (len(self.tape.outputs) > 1)):
            for where in ("ties", "zeros", "ones"):
                at = each(self.tensors, changes[where])
                tries.append((f"{where}, of output {k} alone", at, None, k))
        try:
            self.check(**self.tensors, **self.constants)
            truth = self.derivatives(self.function, self.tensors, self.floating)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise Refused(f"not printed: nothing to compare with, {reason}") from error
        if not all(t.isfinite().any() for t in truth if t.numel()):
            raise Refused("not printed: a derivative is nowhere finite at the example")
        for where, *tried in tries:
            if found := self.wrong(*tried):
                raise Refused(
                    f"not printed: not autograd's derivatives at {where}, {found}"
                )

    def bytes(self, f):
        kept = {}

        def pack(t):
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with saved_tensors_hooks(pack, lambda t: t):
            given = each(self.given, lambda t: t.clone().requires_grad_())
            f(**given, **self.constants)
        return sum(kept.values())
