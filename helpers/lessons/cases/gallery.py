"""What chapter 11 shows of the cases: a consultation, two Jacobians, totals."""

import re
import textwrap

import matplotlib.pyplot as plt
import torch

from helpers.lessons.judge.source import source_of
from helpers.lessons.language import N_, _, followed

from . import BROKEN, HEALTHY, PATIENTS

TOO_LARGE = {"Gated", "OneOfMany"}  # for gradcheck


def consult(name):
    """Print a patient's code, what gradcheck says, and the doctor's first finding."""
    if name not in PATIENTS:
        raise ValueError(
            f"name must be one of {', '.join(sorted(PATIENTS))}; got {name!r}"
        )
    patient = PATIENTS[name]
    fn = patient.fn if hasattr(patient.fn, "__name__") else type(patient.fn)  # a module
    source = source_of(fn)
    start = re.search(r"^ *(class|def) ", source, re.MULTILINE).start()
    print(source[start:].rstrip())  # without the decorator that registers it
    for method in ("forward", "backward") if isinstance(patient.fn, type) else ():
        if method not in vars(fn):
            print(f"\n    # {method}, inherited:")
            print(source_of(getattr(fn, method)).rstrip())
    print("\ninputs:", *map(_shape, patient.inputs()), sep="  ")
    opinion = patient.gradcheck() or "passes"
    print("gradcheck:", re.split(r",? i\.e\.,|,?\n", opinion)[0])
    report = patient.examine()
    finding = report.findings[0]
    # Without the line's number, which is that of a file of the helpers.
    look = _("look at: {remedy}", remedy=finding.remedy)
    advice = finding.change or look
    said = followed(finding.message, finding.meant)
    lines = [f"doctor ({finding.code}): {said}", advice]
    for line in lines:
        print(textwrap.fill(line, 96, break_on_hyphens=False, break_long_words=False))


def _shape(value):
    if not torch.is_tensor(value):
        return value
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"


def jacobians(names):
    """Draw the right Jacobian and the given one of each; print how they differ."""
    fig, axes = plt.subplots(
        2, len(names), figsize=(2.3 * len(names), 4.4), squeeze=False
    )
    for column, name in enumerate(names):
        finding = PATIENTS[name].examine().findings[0]
        pair = [finding.values[k] for k in ("expected_jacobian", "given_jacobian")]
        limit = max(float(matrix.abs().max()) for matrix in pair)
        for ax, matrix, what in zip(
            axes[:, column], pair, (N_("right"), N_("given")), strict=True
        ):
            ax.imshow(matrix, cmap="RdBu", vmin=-limit, vmax=limit)
            title = f"{name}: {_(what)}" if what == "right" else what
            ax.set_title(title, fontsize=9)
            ax.set(xticks=[], yticks=[])
            ax.set(xlabel=N_("inputs →"), ylabel=N_("← outputs"))
            ax.grid(False)
        wrong = (pair[0] - pair[1]).abs() > 1e-6
        entries = f"{int(wrong.sum())} of {wrong.numel()} entries"
        print(f"{name} ({finding.code}): {entries} are wrong")


def totals():
    """Print how many are found, so roughly that one more changes no word."""
    broken = [patient for patient in BROKEN if patient.name not in TOO_LARGE]
    missed = 0
    for patient in broken:
        first = patient.examine(lines=False).findings[:1]
        missed += [finding.code for finding in first] != [patient.code]
    accused = sum(not patient.examine(lines=False).ok for patient in HEALTHY)
    passed = sum(patient.gradcheck() is None for patient in broken)
    print(f"more than {len(broken) // 20 * 20} broken functions")
    print(f"    the doctor names: {f'all but {missed}' if missed else 'all'}")
    print(f"    gradcheck passes: about {10 * passed / len(broken):.0f} in 10")
    print(f"more than {len(HEALTHY) // 20 * 20} healthy functions")
    print(f"    the doctor accuses: {accused or 'none'}")
