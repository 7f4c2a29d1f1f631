"""Where the course explains a finding, and its language, where it is installed."""

import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from .words import _

CHAPTERS = Path(__file__).parents[2] / "notebooks"
HERE = (CHAPTERS / "11_when_gradients_lie.ipynb").exists()
SECTIONS = {  # the number of a chapter and a heading in it: codes
    "02 Work that is not needed: "
    "ctx.needs_input_grad": "needs-input-grad-ignored needs-input-grad-wrong",
    "02 Leave out the sum": "engine-sums",
    "02 An output without a derivative: "
    "mark_non_differentiable": "marked-non-differentiable",
    "02 Deeper: an input that is changed in place, mark_dirty (4 "
    "minutes)": "input-modified in-place-leaf dirty-not-returned",
    "02 Deeper: a view returned from forward (5 minutes)": "view-returned",
    "03 A constant argument: its gradient is "
    "None": "gradient-count gradient-for-constant",
    "03 When no gradient arrives: set_materialize_grads": "none-not-handled",
    "03 What may live on ctx, and what save_for_backward is "
    "for": "tensor-on-ctx reference-cycle",
    "05 Surprise: a second derivative that is silently wrong": "double-backward-wrong",
    "05 A backward in NumPy or C: "
    "once_differentiable": "double-backward-missing numpy-detour",
    "10 A rule for vmap: generate_vmap_rule, or your own": "vmap-wrong vmap-fails",
    "10 Forward mode: dual numbers and jvp": "jvp-wrong jvp-fails",
    '11 Which line is wrong: "right if"': "scaled negated derivative-wrong",
    "11 Choose the inputs: branches, extreme values, "
    "repeats": "contribution-lost right-here-only",
    "11 No mistake: a kink, and a gradient by decision": "kink estimator",
    "11 Deeper: wrong formulas: transpose, grad_output, one side, sum for mean (7 "
    "minutes)": "transposed jacobian-transposed sum-for-mean mean-for-sum "
    "grad-output-ignored "
    "grad-output-partly-ignored right-only-for-ones symmetric-only",
    "11 Deeper: memory and state: layout, in-place changes, class attributes, random "
    "numbers "
    "(7 minutes)": "grad-output-layout grad-output-modified saved-modified "
    "state-between-calls "
    "backward-not-deterministic",
    "11 Deeper: numbers: nan, overflow, complex, straight-through (9 "
    "minutes)": "backward-not-finite low-precision conjugate straight-through",
}


OF_CODE = {code: place for place, codes in SECTIONS.items() for code in codes.split()}


def section_of(code):
    """The number of a chapter and a heading in it; "" without the course."""
    return OF_CODE.get(code, "") if HERE else ""


def to_read(findings):
    """Lines that name the sections that explain them, each once."""
    lines = []
    for place in dict.fromkeys(f.section for f in findings):
        chapter, _space, heading = place.partition(" ")
        if place:
            gaps = {"chapter": chapter, "heading": _(heading)}
            lines.append(_("read: chapter {chapter} {heading}", **gaps))
    return lines


def speak_its_language():
    """What the variable EXTENDING_PYTORCH_LANGUAGE says; English without the course."""
    if os.environ.get("EXTENDING_PYTORCH_LANGUAGE"):
        with suppress(ImportError):
            import_module("..lessons.language", __package__)
