"""What each local of backward holds: of which local of forward is it the gradient?

A match of values is no proof. It says where to look, and `search.py` proves it.
"""

import ast
import itertools
import re
from dataclasses import replace

import torch

from ..function.isolation import forgiving
from ..function.source import names_in, root
from ..function.tensors import as_vector, is_number, of_the_same_kind
from ..measure.gradient import nearly_equal
from .chain import Target


class Matches:
    """What the locals of backward hold at two draws, and what of it is right.

    values:   {Key: value}; record: forward's `Record`
    targets:  {Key: the `Target` that this number holds, or None}
    right:    {Key: `Target`} of those that hold what their name says
    wrong:    other Keys; of_runs: those of a loop that forward has, perhaps of another run
    suspects: Keys of which nothing is known
    elsewhere: what they hold where the signs are others, if backward does the same there
    """

    def __init__(self, chain, wrong):
        self.chain = chain
        # At other values, where there are some, or all that is no gradient is a constant.
        others = (*wrong.at[1:], *wrong.in_reverse, wrong.here)
        first, second = draw(chain, wrong.here, 0), draw(chain, others[0], 1)
        if first[1].outline != second[1].outline:  # forward took another branch there
            second = draw(chain, wrong.here, 1)
        self.draws, self.record = (first, second), first[1]
        self.values = {key: v for key, v in first[0].items() if key in second[0]}
        self.sums = {}  # by name: the last `Target` that is a sum of uses
        numbers = [key for key, value in self.values.items() if is_number(value)]
        self.elsewhere = {}, None
        returned = {k: self.target_of(k) for k in numbers if k.name is None}
        with forgiving():
            third = draw(chain, wrong.here, 0, other_signs)
            if is_like(third, returned, self.record):
                self.elsewhere = third
        self.targets = {key: self.target_of(key) for key in numbers}
        self.right, self.wrong, self.of_runs = {}, [], []
        self.sort_out()
        self.suspects = self.unknown()

    def sort_out(self):
        for key, target in self.targets.items():
            if target and target.uses is None and not self.is_of_another(key, target):
                self.right[key] = target
            elif not self.is_forwards(key):
                self.wrong.append(key)
            elif self.turns(key) > 1 and not key.binding.fills:
                self.of_runs.append(key)
        # What is filled later is right so far only if it is right then, too.
        after = [(k, j) for k in self.right for j in self.filled_after(k)]
        for key in {k for k, j in after if j not in self.right}:
            del self.right[key]

    def unknown(self):
        """The locals that may be wrong: numbers, then masks, indices and factors."""
        into = (k for key in self.right for k in self.going_into(key))
        proven = {(k.binding, k.turn) for k in into}  # other runs may be wrong
        left = [
            k for k in (*self.wrong, *self.of_runs) if (k.binding, k.turn) not in proven
        ]
        others = self.values.keys() - self.targets.keys()
        return {k for k in left if self.stays(k) or not self.is_taken(k)} | {
            k for k in others if k.name and not self.is_known(k)
        }

    # --- what a local holds -----------------------------------------------------------

    def holds(self, key, target):
        """Does this local hold it, at both draws, and elsewhere?"""
        pairs = ((values[key], record) for values, record in self.draws)
        if not all(alike(value, target.of(record, value)) for value, record in pairs):
            return False
        # By a mask that was the same everywhere, two gradients may have been one.
        values, record = self.elsewhere
        there = values.get(key)
        return there is None or nearly_equal(there, target.of(record, there))

    def target_of(self, key):
        """The `Target` whose value this local holds at two draws, or None."""
        if is_flat(self.values[key]):
            return None
        name = key.name
        # One value may be the gradient of several locals, and a part of others.
        targets = sorted(
            self.targets_like(self.values[key]),
            key=lambda t: (t.uses is not None, not (name and self.is_mate(name, t))),
        )
        for target in (*targets, *self.next_sums(name)):
            if self.holds(key, target):
                if name and target.uses:
                    self.sums[name] = target
                return target
        return None

    def targets_like(self, value):
        """The gradients of forward's locals, and their parts, of this many elements."""
        for j, local in enumerate(self.record.locals):
            right = local.gradient
            if (
                right is None
                or right.numel() != value.numel()
                or right.is_complex() != value.is_complex()
            ):
                continue
            turnable = right.dim() > 1 and right.mT.shape == value.shape != right.shape
            for turned in (True, False) if turnable else (False,):
                yield Target(j, turned=turned)
                for k in local.parts:
                    yield Target(j, (k,), turned=turned)

    def next_sums(self, name):
        """What a local that sums uses, one after the other, may hold next."""
        last = self.sums.get(name)
        bound = [b for b in self.chain.backward.bindings if b.name == name]
        if last and (len(bound) > 1 or any(b.fills for b in bound)):
            n = len(self.record.locals[last.local].uses)
            for k in range(n):
                if k not in last.uses and len(last.uses) + 1 < n:
                    yield replace(last, uses=(*last.uses, k))

    # --- is that what it is meant for? ------------------------------------------------

    def is_mate(self, name, target):
        """Does this name say that it holds that local's gradient: `grad_gate`, `dgate`?"""
        bare = re.sub(r"^(grad|d|g)_?|_?(grad|bar)$", "", name, flags=re.I)
        other = self.record.locals[target.local].name
        return bare.lower().replace("_", "") == other.lower().replace("_", "")

    def is_of_another(self, key, target):
        """Does its name say that it should hold the gradient of another local?

        Or does another name hold this one already, another run of its loop, or in a
        loop another line, so that this one has not moved on?
        """
        name, holding = key.name, [k for k, t in self.targets.items() if t == target]
        runs = [k for k in holding if k._replace(turn=key.turn) == key]
        lines = [k for k in holding if k.name == name and self.turns(k) > 1]
        bare = [local.name.partition("[")[0] for local in self.record.locals]
        moves_on = runs == [key] and (lines or [key])[0] == key
        if bare.count(bare[target.local]) > 1 and not moves_on:
            return True
        if name is None:
            x = self.chain.forward.argument(key.item or 0)
            own = (j for j, local in enumerate(self.record.locals) if local.name == x)
            return not any(self.holds(key, Target(j)) for j in itertools.islice(own, 1))
        if self.is_mate(name, target):
            return False
        known = {k.name for k, t in self.right.items() if t.local == target.local}
        mates = (self.is_mate(name, t) for t in self.targets_like(self.values[key]))
        return bool(known - {None, name}) or any(mates)

    def is_forwards(self, key):
        """Is it right as it is, for forward has computed it, too, by no other name?

        Of a list, another name says that its items may be meant for something else.
        """
        of_forward = [local for local in self.record.locals if local.name == key.name]
        known = of_forward or (self.record.locals if key.item is None else ())
        return any(alike(self.values[key], local.value) for local in known)

    def stays(self, key):
        """Does it hold in a loop what another line or run of it held already?"""
        return self.turns(key) > 1 and self.targets[key] and key not in self.right

    def is_taken(self, key):
        """Is it one number, or are all its elements those of something right?"""
        value = self.values[key]
        right = [*self.record.grads, *(self.values[k] for k in self.right)]
        akin = [v for v in right if v.is_complex() == value.is_complex()]
        every = torch.cat([*map(as_vector, akin or right)])
        return is_flat(value) or bool(torch.isin(as_vector(value), every).all())

    def is_known(self, key):
        """Has forward the same mask, index or factor?"""
        value = self.values[key]
        akin = [x for x in self.record.others if type(x) is type(value)]
        if not torch.is_tensor(value):
            return value in akin
        return any(torch.equal(x, value) for x in akin if x.dtype == value.dtype)

    # --- lines ------------------------------------------------------------------------

    def turns(self, key):
        """How often this line ran."""
        return len({k.turn for k in self.values if k.binding is key.binding})

    def before(self, key):
        """What was bound before this local."""
        return itertools.takewhile(lambda k: k != key, self.values)

    def after(self, key):
        """What was bound after this local."""
        later = itertools.dropwhile(lambda k: k != key, self.values)
        return itertools.islice(later, 1, None)

    def filled_after(self, key):
        """What this local is when a line after this one has changed it."""
        later = self.after(key)
        return [k for k in later if k.name == key.name and k.binding.fills]

    def going_into(self, key):
        """What the names in the line of this local hold there."""
        last = {(k.binding.name, k.item): k for k in self.before(key)}
        node = key.binding.node
        items = getattr(getattr(node, "value", None), "elts", ())
        target = getattr(node, "targets", [None])[0]
        names = [*map(root, getattr(target, "elts", ()))]
        if not any(isinstance(x, ast.Starred) for x in items):
            if len(names) == len(items) and key.binding.name in names:
                node = items[names.index(key.binding.name)]
            elif items and key.item is not None:
                node = items[key.item]
        read = names_in(node)
        return [k for (name, _item), k in last.items() if name in read]

    def suspects_of(self, key):
        """What may be wrong of that which goes into this local."""
        return [k for k in self.going_into(key) if k in self.suspects]


def draw(chain, gradient, turn, moved=lambda value: value):
    """({key: value} of the locals, record) of one backward pass at moved(its values)."""
    point = gradient.point
    # All outputs together, so that no path is silent.
    vs = [vs[turn] for vs in point.vs]
    return chain.draw(gradient.subject, [*map(moved, point.values)], vs)


def other_signs(value):
    """Every other element has the opposite sign, unless it is of a kind."""
    signs = torch.arange(value.numel(), device=value.device).reshape(value.shape) % 2
    return of_the_same_kind(value, value * (1 - 2 * signs).to(value.dtype))


def is_like(there, returned, record):
    """Is a Function there what it is here, and is what is right here returned, too?

    there: a `draw`; returned: {Key: what is returned here, a `Target` or None}
    """
    (values, other), right = there, {k: t for k, t in returned.items() if t}
    is_finite = all(g.isfinite().all() for g in other.gradients if g is not None)
    same = right and is_finite and other.outline == record.outline
    return same and all(
        k in values and nearly_equal(values[k], t.of(other, values[k]))
        for k, t in right.items()
    )


def is_flat(value):
    """Does it say nothing: the same number everywhere, or a whole number alone?"""
    if value.numel() == 1:
        return value.is_complex() or bool(value == value.round())
    return bool((value == value.reshape(-1)[:1]).all())


def alike(value, right):
    """Are they the same but for rounding, and do they say anything?"""
    if value.shape != right.shape or value.dtype != right.dtype or is_flat(right):
        return False
    return nearly_equal(value, right)
