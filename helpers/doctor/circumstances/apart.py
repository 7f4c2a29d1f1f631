"""The Functions that are applied within what is examined, each by itself, as called last."""

import itertools

from ..function.calls import Call, heard_by
from ..function.private import is_a_users
from ..function.source import is_data
from ..function.surroundings import forgiving
from ..function.tensors import is_symmetric, tensors
from .kept import nodes

MOST = 3  # Functions


def apart(exam, trial):
    """(name, finding) of the first of them that is wrong by itself, by this trial alone; or ()."""
    if exam.subject.cls:  # it is one itself
        return ()
    calls, own = {}, {node._forward_cls for node in nodes(exam)}

    def hears(cls, args):
        if cls in own and is_a_users(cls):
            calls[cls] = Call.of(cls, args, {}, 0)

    with forgiving(), heard_by(hears):
        exam.subject.run(exam.subject.values)
    for cls, call in itertools.islice(calls.items(), MOST):
        with forgiving():
            fn, args, kwargs = call.again()
            given = *args, *kwargs.values()
            if not all(map(is_data, given)) or any(is_symmetric(t) for _, t in tensors(given)):
                continue  # what a module holds, or what is symmetric, is another thing there
            alone = type(exam)(fn, args, kwargs, True, lines=exam.lines)
            alone.budget = exam.budget  # what mends it is tried first on the whole
            for finding in alone.report([(trial, ())]).findings:
                if finding.severity == "error" and finding.input:
                    return cls.__qualname__.rpartition("<locals>.")[2], finding
    return ()
