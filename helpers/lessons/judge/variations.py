"""An attempt is tried on inputs that were not written for it.

An exercise declares what its answer may be fed, as `Inputs`, from which variations are
made. What does not apply to an exercise is left out by name, with the reason.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from helpers.lessons.judge.compare import find_difference
from helpers.lessons.judge.later import calls_apart, overlooks_changes
from helpers.lessons.judge.numbers import as_tuple
from helpers.lessons.judge.properties import random
from helpers.lessons.language import N_, _, at, listed

SIZES = (4, 5, 3), (8, 6, 7)  # of the axes, in order; no two are equal
# What "..." stands for.
ANY = (4, 5), (7,), (), (1,), (1, 1), (2, 3, 4), (2, 1, 3, 2), (6, 11)
LEADING = (3,), (), (1,), (4, 3), (2, 1, 3)  # the same, before other axes
SHAPES = "other", "one", "square", "empty"
NUMBERS = "zero", "equal", "tiny", "far"
LAYOUTS = {
    "transposed": (
        N_("for an input that is transposed in memory"),
        lambda x: x.mT.contiguous().mT,
    ),
    "sliced": (
        N_("for an input that is every second column of a matrix"),
        lambda x: x.repeat_interleave(2, -1)[..., ::2],
    ),
    "expanded": (
        N_("for an input whose rows are one row, expanded"),
        lambda x: x[:1].expand(x.shape),
    ),
    "float32": (N_("in float32"), lambda x: x.float()),
}


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What the answer to an exercise may be fed.

    shapes:    of the tensors, as "N D, V D": a letter is a size, "..." are any
               dimensions; or a list, each a tuple with the shape of each tensor
    constants: what follows the tensors, the usual one first; a tuple where there are
               several; what can be called is called with the tensors
    names:     of the constants, as a verdict names them, such as "low high"
    of:        makes of any real numbers what may be fed, such as torch.exp
    far:       how large numbers may be
    numbers:   {where: tensor}, more numbers for the first tensor, or a tuple of all
               tensors
    without:   {"other", "one", "square", "empty"; "zero", "equal", "tiny", "far";
               "transposed", "sliced", "expanded", "float32": why this does not apply}
    """

    shapes: str | list
    constants: tuple = ((),)
    names: str = ""
    of: Callable = lambda x: x
    far: float = 20.0
    numbers: dict = field(default_factory=dict)
    without: dict = field(default_factory=dict)

    def __post_init__(self):
        unknown = {*self.without} - {*SHAPES, *NUMBERS, *LAYOUTS}
        if unknown:
            raise ValueError(f"without must name variations, got {unknown}")

    def plain(self):
        """(where, inputs) for each tuple of constants, in the usual shape."""
        shapes = next(self._shapes())[1]
        for constants in self.constants:
            yield self._with(constants), self._inputs(shapes, constants)

    def shaped(self):
        """(where, inputs) for each shape."""
        for _kind, shapes in self._shapes():
            yield _of(shapes), self._inputs(shapes, self.constants[0])

    def varied(self):
        """(kind, where, inputs) for each variation; `where` begins a verdict."""
        usual, *others = self._shapes()
        usual = usual[1]
        for constants in self.constants[:2]:
            also = self._with(constants)
            for kind, shapes in others:
                yield kind, _place(_of(shapes), also), self._inputs(shapes, constants)
            for kind, where, change in self._numbers():
                yield (
                    kind,
                    _place(where, also),
                    self._inputs(usual, constants, before=change),
                )
            for kind, (where, change) in LAYOUTS.items():
                if min(map(len, usual)) > 1 or kind == "float32":
                    yield (
                        kind,
                        _place(_(where), also),
                        self._inputs(usual, constants, after=change),
                    )
            for where, given in self.numbers.items():
                if not isinstance(given, tuple):
                    given = given, *map(self.of, self._tensors(usual)[1:])
                yield "", _place(_(where), also), self._completed(given, constants)

    def _shapes(self):
        """(kind, shape of each tensor), the usual shapes first."""
        if isinstance(self.shapes, list):
            yield from (("other", shapes) for shapes in self.shapes)
            return
        axes = [tensor.split() for tensor in self.shapes.split(",")]
        if all(tensor == ["..."] for tensor in axes):
            yield from (("other", (shape,) * len(axes)) for shape in ANY)
            yield "empty", ((0, 5),) * len(axes)
            return
        letters = list(
            dict.fromkeys(a for tensor in axes for a in tensor if a != "...")
        )
        usual, larger = (dict(zip(letters, sizes, strict=False)) for sizes in SIZES)
        for leading in (
            LEADING if any("..." in tensor for tensor in axes) else LEADING[:1]
        ):
            yield "other", _sized(axes, usual, leading)
        yield "other", _sized(axes, larger, (2,))
        for letter in letters:
            yield "one", _sized(axes, usual | {letter: 1}, (3,))
        yield "one", _sized(axes, dict.fromkeys(letters, 1), (1,))
        yield "square", _sized(axes, dict.fromkeys(letters, 6), (6,))
        empty = {} if any("..." in tensor for tensor in axes) else {letters[0]: 0}
        yield "empty", _sized(axes, usual | empty, (0,))

    def _numbers(self):
        def far(words):
            if self.of is not Inputs.of:  # which makes other numbers of these
                return _("at large or small numbers")
            return words.format(far=self.far)

        yield "zero", _("at 0"), torch.zeros_like
        yield (
            "equal",
            _("where all numbers are equal"),
            lambda x: torch.full_like(x, 0.7),
        )
        yield "tiny", _("at numbers near 0"), lambda x: 1e-12 * x
        spread = lambda x: x.sign() * self.far ** x.frac().abs()  # noqa: E731
        yield "far", far(_("at numbers up to {far:g}")), spread
        yield "far", far(_("at numbers near {far:g}")), lambda x: self.far + x
        yield "far", far(_("at numbers near -{far:g}")), lambda x: x - self.far
        yield (
            "far",
            far(_("at numbers near ±{far:g}")),
            lambda x: x + self.far * x.sign(),
        )

    def _tensors(self, shapes):
        return [random(*shape, seed=seed) for seed, shape in enumerate(shapes, start=1)]

    def _inputs(self, shapes, constants, before=None, after=None):
        tensors = self._tensors(shapes)
        tensors = [self.of(before(tensor) if before else tensor) for tensor in tensors]
        return self._completed(
            [after(t) for t in tensors] if after else tensors, constants
        )

    def _completed(self, tensors, constants):
        return [
            *tensors,
            *(c(*tensors) if callable(c) else c for c in as_tuple(constants)),
        ]

    def _with(self, constants):
        pairs = zip(self.names.split(), as_tuple(constants), strict=False)
        pairs = [f"{name} = {value}" for name, value in pairs]
        return (
            _("with {constants}", constants=listed(pairs, last=" and "))
            if pairs
            else ""
        )


def _sized(axes, sizes, leading):
    """The shape of each tensor; `leading` stands for "..."."""
    shapes = (
        [leading if axis == "..." else (sizes[axis],) for axis in a] for a in axes
    )
    return tuple(sum(shape, ()) for shape in shapes)


def _of(shapes):
    if len(shapes) == 1:
        return _("with an input of shape {shape}", shape=shapes[0])
    return _("with inputs of shapes {shapes}", shapes=listed(shapes, last=" and "))


def _place(place, constants):
    if not constants:
        return place
    return _("{place}, {constants}", place=place, constants=constants)


def caught(compared, function, like, given, explained=None):
    """Sentences on where the two differ, and None for where they do not.

    compared:  `find_difference` or `silently_wrong`
    explained: makes of inputs on which they differ a better sentence, if there is one
    """
    usual = [("", where, inputs) for where, inputs in given.plain()]
    # The oddest last.
    cases = sorted((*usual, *given.varied()), key=lambda case: case[0] == "empty")
    for kind, where, inputs in cases:
        if kind not in given.without:
            wrong = compared(function, like, inputs)
            if (
                wrong
                and explained
                and all(x.numel() for x in inputs if torch.is_tensor(x))
            ):
                wrong = explained(inputs) or wrong
            yield at(where, wrong)


def disturbed(function, like, given):
    """What other calls and changes in place do before backward, in sentences."""
    (where, first), *others = given.plain()
    others += [
        (where, inputs) for kind, where, inputs in given.varied() if kind == "other"
    ][:1]
    for _where, inputs in others:
        yield calls_apart(function, like, first, inputs)
    yield overlooks_changes(function, like, first)
    if [torch.is_tensor(value) and value.shape for value in first] == 2 * [
        first[0].shape
    ]:
        twice = [lambda x, f=f: f(x, x) for f in (function, like)]
        yield at(_("for the same tensor twice"), find_difference(*twice, first[:1]))
