"""A call of forward that computes the same, and passes its gradient on in another way."""

from .scalings import scaled_by
from .through import is_plain


def weighing(part, factor, chosen=None):
    """A change: what passes a call through this part of its arguments is multiplied."""

    def change(step):
        if chosen and not chosen(step.round, len(step.rounds) - 1):
            return step.call()
        t = step.argument(part[0])
        new = t.detach() + factor * (t - t.detach()) if factor else t.detach()
        return step.call(dict.fromkeys(part, new))

    return change


def weighing_said(step, part, factor):
    name, one = step.written_as(part), step.parts == [part]
    if factor == 0 and 0 in part and step.in_place:
        return f"autograd did not see {step.whole}"
    if factor == 0:
        return f"{step.whole} were a constant" if one else f"{name} were a constant in {step.whole}"
    what = step.text if one and is_plain(name) else f"{step.text} with respect to {name}"
    return f"{what} were {'negated' if factor == -1 else scaled_by(factor, step.scope)}"


def deriving(change, factor):
    """The value of a call as it is, with another derivative."""

    def makes(step):
        step.value = step.call()
        way = factor * change.direction(step).expand(step.value.shape)
        way = way + step.value if change.keeps else way
        return step.value.detach() + way - way.detach()

    return makes


def exchanging(i, j):
    def change(step):
        made = step.call()
        pieces = list(made)
        for k, other in ((i, j), (j, i)):
            pieces[k] = made[k].detach() + made[other] - made[other].detach()
        return type(made)(pieces)

    return change


def at_another_place(other):
    def change(step):
        value, way = step.call(), step.call({1: other.args[1]})
        return value.detach() + way - way.detach()

    return change
