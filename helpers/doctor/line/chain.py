"""Forward and backward of one Function, each with its locals watched.

A `Target` says what a local of backward should hold. A chain can put it there.
"""

import contextlib
from dataclasses import dataclass, replace

import torch

from ..function.private import methods, takes_ctx
from ..function.source import UnsuitableError, harmless
from ..function.tensors import is_number
from .goals import backward_of
from .record import Record, copied, is_kept
from .watched import Method


@dataclass(frozen=True)
class Target:
    """What a local of backward should hold, by the number of a local of forward.

    That is its gradient, or the sum of some of its uses, or its value.

    turned:  is it transposed?
    lost:    (j, k): of its gradient, what comes through use k of local j is left out
    skipped: in each run of a loop, the gradient of what forward assigned to this name in
             this line, the last first, but for so many; then of what had this name at
             first. None if there is no loop.
    beside:  (key, target) of what should be put in place together with it
    """

    local: int
    uses: tuple | None = None
    value: bool = False
    turned: bool = False
    lost: tuple | None = None
    skipped: int | None = None
    beside: tuple = ()

    def of(self, record, like, run=0):
        """It, in the shape of `like`; `like` itself in a run for which there is none."""
        local = record.locals[self.local]
        if self.skipped is not None:
            left = record.versions(local)[self.skipped + run :]
            if not left:
                return like
            local = left[0]
        found = local.value if self.value else local.gradient
        found = torch.zeros_like(local.value) if found is None else found
        if self.uses is not None:
            found = sum(local.uses[k][1] for k in self.uses)
        if self.lost:
            found = record.without(local, *self.lost)
        found = (found.mT if self.turned else found).to(like.dtype)
        # The engine sums what broadcast, as far as the input's shape.
        return found.reshape_as(like) if found.numel() == like.numel() else found


class Chain:
    """The forward and backward of one Function, each with its locals watched.

    A reference of the same arguments, if one is given, takes the place of forward.
    """

    def __init__(self, cls, reference=None):
        self.cls, self.reference, self.by_forward = cls, reference, takes_ctx(cls)
        self.forward = Method(reference or cls, cls, from_arguments=True)
        self.backward = Method(backward_of(cls), cls)
        # A kernel may take no memory but what its own code has prepared.
        if not all(harmless(code, cls) for code in self.backward.codes):
            raise UnsuitableError

    @contextlib.contextmanager
    def running(self, of_call):
        """For a while, of_call(record, backward, ctx, grads) runs as backward."""
        calls = {}

        def heard(method, cls, *args):
            if cls is self.cls:
                forward = self.reference or (method if self.by_forward else cls.forward)
                given = args[1:] if self.by_forward else args[1]
                ctx_too = self.by_forward and not self.reference
                random = torch.get_rng_state()
                calls[args[0]] = forward, ctx_too, [*map(copied, given)], random
            return method(*args)

        def back(method, cls, ctx, *grads):
            if ctx not in calls:
                return method(ctx, *grads)
            record = Record(self.forward, grads, *calls[ctx])
            return of_call(record, method, ctx, grads)

        name = "forward" if self.by_forward else "setup_context"
        with methods(name, heard), methods("backward", back):
            yield

    def instead(self):
        """forward's own gradients in place of those that backward returns."""
        return self.running(lambda record, *_others: record.gradients)

    def putting(self, key, target, known):
        """The same backward, but for one local, which holds what it should.

        known: the `Record` by whose numbers the target is given
        """
        every = target.skipped is not None

        def of_call(record, backward, ctx, grads):
            def number(local):
                return record.marks.index(known.marks[local])

            def here_too(one):
                lost = one.lost and (number(one.lost[0]), one.lost[1])
                return replace(one, local=number(one.local), lost=lost)

            puts = {k: here_too(one) for k, one in ((key, target), *target.beside)}

            def seen(here, value):
                put = puts.get(here._replace(turn=key.turn) if every else here)
                if not put or not torch.is_tensor(value):
                    return value
                # A copy, for backward may write into it.
                return copied(put.of(record, value, here.turn))

            with self.backward.running(seen):
                return backward(ctx, *grads)

        return self.running(of_call)

    def draw(self, subject, values, vs):
        """({key: value} of the locals, record) of a backward pass's first call."""
        found = []

        def of_call(record, backward, ctx, grads):
            events, last = {}, {}

            def seen(key, value):
                here = (id(value), getattr(value, "_version", 0))
                is_new = last.get(key.name, 0) != here
                if is_new and (is_number(value) or is_kept(value)):
                    events[key] = copied(value)
                last[key.name] = here
                return value

            with self.backward.running(seen):
                result = backward(ctx, *grads)
            found.append((events, record))
            return result

        with self.running(of_call):
            subject.backward(subject.run(values), vs)
        return found[0]
