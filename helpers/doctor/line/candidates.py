"""What a wrong local of backward may be meant to hold.

Each is (`Target`, relation): how the local differs from it, as (template, what fills its
gaps), or None.
"""

import itertools
from dataclasses import replace

import torch

from ..report import brief
from ..words import _, listed
from .chain import Target
from .matches import alike, is_flat
from .sentences import IN_A_RUN, MULTIPLE, OF_RUN, PART, THE_ARGUMENT

PATHS = 200  # through forward, at most


class Candidates:
    """Of these `Matches`; their `Sentences` name the uses and runs."""

    def __init__(self, matches, sentences):
        self.matches, self.sentences, self.paths = matches, sentences, 0
        self.values, self.record = matches.values, matches.record

    def likely(self, key):
        """By its value, or by its name."""
        matches, name, value = self.matches, key.name, self.values[key]
        whole = [t for t in matches.targets_like(value) if t.uses is None]
        telling = [] if is_flat(value) else whole
        for target in telling:
            if part := self.part_of(key, target):
                yield target, part
        yield from ((target, None) for target in matches.next_sums(name))
        yield from self.less_a_path(key, telling)
        if not self.may_be_more(key):
            return
        for target in telling:
            if off := self.factor_of(key, target) or self.path_missing(key, target):
                yield target, off
        # What a loop fills is no gradient before its last turn.
        of_a_loop = [t for t in whole if self.record.locals[t.local].line]
        for target in whole if matches.turns(key) == 1 else of_a_loop:
            if matches.is_mate(name, target):
                yield target, None
        for j, local in enumerate(self.record.locals):
            if local.name == name and local.value.numel() == value.numel():
                yield Target(j, value=True), None

    def unlikely(self, key):
        """Whatever has as many elements, in a loop what a loop has made."""
        value = self.values[key]
        if self.may_be_more(key) and not is_flat(value):
            alone, locals_ = self.matches.turns(key) == 1, self.record.locals
            for target in self.matches.targets_like(value):
                is_of_loop = locals_[target.local].line and target.uses is None
                if alone or is_of_loop:
                    yield target, None

    def may_be_more(self, key):
        """May it be meant for more than it holds?

        That what is returned should be the gradient says nothing; and what was handed
        over, or is a use, is what it is.
        """
        matches, target = self.matches, self.matches.targets[key]
        by_a_loop = any(matches.turns(k) > 1 for k in matches.filled_after(key))
        is_begun = by_a_loop and is_flat(self.values[key])  # as by zeros_like
        given = any(alike(self.values[key], g) for g in self.record.grads)
        is_use = target and target.uses is not None
        is_returned, is_right = key.name is None, key in matches.right
        return not (is_returned or is_begun or given or is_use or is_right)

    # --- only a part of it ------------------------------------------------------------

    def part_of(self, key, target):
        """Which uses are missing, if it holds the sum of some but not all; or None."""
        local = self.record.locals[target.local]
        if self.is_term(key, local):
            return None
        for size in reversed(local.parts[1:]):
            for uses in itertools.combinations(local.parts, size):
                if self.matches.holds(key, replace(target, uses=uses)):
                    lost = [k for k in local.parts if k not in uses]
                    due = [k for k in lost if not self.adds(key, local.uses[k][1])]
                    return PART, self.sentences.missing(local, due or lost)
        return None

    def is_term(self, key, local):
        """Is it, in each run of a loop, a term of a gradient that the loop adds up?"""
        binding, in_a_loop = key.binding, self.matches.turns(key) > 1
        of_one = len(self.record.versions(local)) == 1
        return of_one and in_a_loop and not (binding.again or binding.fills)

    def adds(self, key, part):
        """Does the next line that binds this name add only that, as a loop's next run?"""
        after = (k for k in self.matches.after(key) if k.name == key.name)
        value, later = self.values[key], self.values.get(next(after, None))
        same = later is not None and later.shape == value.shape
        return same and alike(later - value, part)

    def less_a_path(self, key, targets):
        """Of what is returned, if only a path is missing."""
        argument = self.matches.chain.forward.argument
        returned = key.name is None and argument(key.item or 0)
        for target in targets:
            is_its = self.record.locals[target.local].name == returned
            if is_its and (part := self.path_missing(key, target)):
                yield target, part

    def path_missing(self, key, target):
        """The use of another local through which nothing comes to this one, or None."""
        matches = self.matches
        if matches.turns(key) > 1 or key.name and not matches.is_mate(key.name, target):
            return None
        for j, local in enumerate(self.record.locals):
            for k in local.parts if j != target.local else ():
                if self.paths >= PATHS:
                    return None
                self.paths += 1
                if matches.holds(key, replace(target, lost=(j, k))):
                    return PART, self.sentences.missing(local, [k], whole=False)
        return None

    # --- a multiple of it -------------------------------------------------------------

    def factor_of(self, key, target):
        """The factor of the right gradient, the same at two draws, or None."""
        found = []
        for values, record in self.matches.draws:
            value = values[key]
            right = target.of(record, value)
            size = right.norm() ** 2
            factor = (torch.vdot(right.flatten(), value.flatten()) / size).item()
            is_right = alike(value, right)  # in this run, if not in others
            if not factor or is_right or not alike(value, factor * right):
                return None
            found.append(factor)
        if abs(found[0] - found[1]) > 1e-6 * abs(found[0]):
            return None
        return MULTIPLE, {"factor": brief(found[0])}

    # --- what another run of the loop needs -------------------------------------------

    def of_another_run(self, key):
        """What forward has in one run of a loop, and another run needs.

        All that one line binds there is taken together, and then each alone.
        """
        targets = self.matches.targets
        line = [k for k in targets if k.binding.node is key.binding.node]
        found = {k: self.run_of(k) for k in line if k.turn == key.turn}
        found = {k: run for k, run in found.items() if run}
        together = [*found] if [*found][:1] == [key] else []
        alone = [key] if key in found and found.keys() != {key} else []
        for keys, steps in itertools.product((together, alone), (0, 1)):
            puts = {
                k: Target(j, value=True, skipped=run + steps)
                for k, (j, run) in found.items()
                if k in keys
            }
            said = [*filter(None, itertools.starmap(self.differs, puts.items()))]
            if said:
                (_key, target), *others = puts.items()
                relation = "{each}", {"each": listed(said, last=_(", and "))}
                yield replace(target, beside=tuple(others)), relation

    def run_of(self, key):
        """(number of a local, which run, counted from the last) that it holds, or None."""
        for j, local in enumerate(self.record.locals):
            if local.line and local.gradient is not None:
                for run, x in enumerate(self.record.versions(local)):
                    if alike(self.values[key], x.value):
                        return j, run
        return None

    def differs(self, key, target):
        """In words, in which run this local first differs from what it should be."""
        due = self.record.versions(self.record.locals[target.local])
        runs = [k for k in self.values if k == key._replace(turn=k.turn)]
        numbers = range(len(due) - 1 - target.skipped, -1, -1)
        for k, right, run in zip(runs, due[target.skipped :], numbers, strict=False):
            if not alike(self.values[k], right.value):
                named = {"name": right.name, "line": right.line}
                there = _(THE_ARGUMENT, name=right.name)
                if right.line:
                    there = _(IN_A_RUN, run=run, runs=len(due) - 1, **named)
                return _(OF_RUN, here=self.sentences.here(k), there=there)
        return None
