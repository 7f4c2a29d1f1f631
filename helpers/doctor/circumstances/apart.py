"""The Functions that are applied within what is examined, each by itself, as they were called last.

What is wrong with one of them is found sooner there, and mended: whether that mends the whole, too,
is tried.
"""

import itertools

from ..function.calls import Call, heard_by, is_a_users
from .forward import nodes
from ..function.harmless import is_data
from ..function.raised import forgiving
from .repair import Known
from .rewritten import Mended
from ..measure.slopes import is_symmetric
from ..function.subject import tensors

MOST = 3  # Functions


class Mends:
    """What made gradients right, of one examination or of another, is tried first for the next.

    changes, forwards, edits: of what backward computes, of forward, and of the source
    of, finding: the Function within that is wrong by itself, and what is wrong with it
    """

    def __init__(self, known=None):
        self.changes = Known(known.changes if known else ())
        self.edits, self.forwards = Mended(known.edits if known else ()), []
        self.edits.here = known.edits.here if known else None
        self.of, self.finding = (known.of, known.finding) if known else (None, None)


def apart(exam, trial):
    """The mends of the Functions within, each examined by this trial alone."""
    mends = Mends()
    if exam.subject.cls:  # it is one itself
        return mends
    calls, own = {}, {node._forward_cls for node in nodes(exam)}

    def hears(cls, *call):
        if cls in own and is_a_users(cls):
            calls[cls] = Call.of(cls, *call, 0)

    with forgiving(), heard_by(hears):
        exam.subject.run(exam.subject.values)
    for cls, call in itertools.islice(calls.items(), MOST):
        with forgiving():
            fn, args, kwargs = call.again()
            given = *args, *kwargs.values()
            if not all(map(is_data, given)) or any(is_symmetric(t) for _, t in tensors(given)):
                continue  # what a module holds, or what is symmetric, is another thing there
            alone = type(exam)(fn, args, kwargs, True)
            alone.mends = mends
            for finding in alone.report([(trial, ())]).findings:
                if finding.severity == "error" and finding.input and not mends.finding:
                    mends.of, mends.finding = cls.__name__, finding
    return Mends(mends)  # anew, with nothing tried yet
