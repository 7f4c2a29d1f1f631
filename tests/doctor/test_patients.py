"""The doctor against its patients: the broken ones are named, the healthy ones pass."""

import functools

import pytest
import torch

from helpers.doctor import examine
from helpers.doctor.report import TEXTS
from helpers.doctor.said import Said
from helpers.lessons import chapter_11
from helpers.lessons.patients import BROKEN, HEALTHY, PATIENTS
from tests.common import no_words_yet

ALL = BROKEN + HEALTHY


@functools.cache
def report_of(k):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Said, "text", no_words_yet)
        return ALL[k].examine(lines=False)


def report_on(name):
    return report_of(ALL.index(PATIENTS[name]))


@pytest.mark.parametrize("k", range(len(BROKEN)), ids=[p.name for p in BROKEN])
def test_the_cause_is_named(k):
    assert [f.code for f in report_of(k).findings][:1] == [BROKEN[k].code], str(report_of(k))


@pytest.mark.parametrize("k", range(len(HEALTHY)), ids=[p.name for p in HEALTHY])
def test_the_healthy_are_not_accused(k):
    report, code = report_of(len(BROKEN) + k), HEALTHY[k].code
    assert all(f.severity == "note" for f in report.findings), str(report)
    assert code is None or code in [f.code for f in report.findings], str(report)


def test_every_code_has_a_patient_and_every_patient_a_name():
    # What ends a process, and what has no seconds left, is no patient.
    differ = {p.code for p in ALL} - {None} ^ set(TEXTS) - {"crashed", "stopped-looking"}
    assert not differ, f"write a patient, or a cause, for {differ}"
    assert len({p.name for p in BROKEN}) == len(BROKEN)


MESSAGES = {
    "TransposedWeight": "The gradient of `weight` is right, but transposed.",
    "MeanOverBatch": "1/3 of what it should be, and 3 is the size of dimension 0",
    "Power": "multiplied by 0.333",
    "ExpOfSquare": "lacks a factor of `x`, and is multiplied by 0.5",
    "SwappedGradients": "returned for `x` is that of `y`",
    "LeakyReLU": "where `x` is below 0, it is zero",
    "HalfOfTheElements": "at index 3 to 5 of dimension 0 it is zero",
    "Huber": "where the magnitude of `x` is above `delta` = 0.5, it is wrong",
    "MasksZeros": "where `x` is 0, it is zero",
    "RollsOn": "shifted by -3 along dimension 1",
    "MeanOfPixels": "10 times too large, and 10 is the size of dimensions 0 and 2 of `x`",
    "MinusMeanRows": "12 times too large and negated, and 12 is the size of dimension 0",
    "HalfPrecision": "is right to 3 digits only",
    "MasksTwice": "has one factor too many of `y`.",
    "ForgottenTangent": "does not change with that of `x`",
    "DetachedByTheRule": "another gradient of `x` than a loop",
    "ShiftedByOne": "shifted by -1 along dimension 0",
    "NeverAsks": "computes that of `weight` and `bias`",
    "OutputOnCtx": "`ctx.result` holds an output",
    "SavedThenChanged": "before forward returned, so the gradient of `x` is wrong",
    "ChangedByBackward": "by backward itself",
    "DrawsTwice": "because it draws random numbers",
    "NaiveSoftplus": "not in float32: backward makes nan or inf",
    "SqueezedBias": "The gradient of `bias` has shape (), but (1,) belongs there.",
    "TransposedShape": "has shape (5, 4), but (4, 5) belongs there: perhaps it is",
    "TooFewGradients": "returned 2 gradient(s), but forward has 3 argument(s)",
    "OuterProducts": "right if grad_output were transposed before",
    "ScalesRows": "The gradient of `scale` adds the right contributions in the wrong places",
    "LeakyEdges": "grad_output: those where the output is below 0",
    "SumsTokens": "at index 0 of dimension 0 it is multiplied by 0.5",
    "LeaksThroughTheMask": "where `mask` is False, it should be zero",
    "ReluOfSum": "set to zero wherever the output is not above 0 before.",
    "SineAndExp": "gradient of `x` through `output[0]` is that through `output[1]`.",
    "AveragesGradOutput": "right where grad_output is all ones",
    "OneOfMany": "right in part: at [270, 123] it is zero",
}


@pytest.mark.parametrize(("name", "words"), MESSAGES.items())
def test_the_sentence_is_sharp(name, words):
    assert words in report_on(name).findings[0].message


def test_a_lie_on_purpose_is_an_error_whose_message_admits_that_it_may_be_meant():
    for name in ("RoundStraightThrough", "ClipGradient", "reverse"):
        broken, meant = (next(p for p in ps if p.name == name) for ps in (BROKEN, HEALTHY))
        found = broken.examine(lines=False).findings[0]
        assert found.severity == "error" and "faithful=False" in found.message
        assert meant.options == {"faithful": False} and meant.examine(lines=False).ok
    # A sign error elsewhere is no deliberate reversal.
    assert "faithful" not in report_on("Subtract").findings[0].message


def test_a_name_does_not_coarsen_with_size():
    name, sizes = "VarianceIsConstant", [(40, 60), (60,)]
    patient = PATIENTS[name]
    generator = torch.Generator().manual_seed(7)
    inputs = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    large = examine(patient.fn, *inputs, lines=False).findings[0]
    small = report_on(name).findings[0]
    assert large.code == patient.code and large.message.endswith(small.message[1:])
    assert "in a corner of shape" in large.evidence and "in a corner" not in str(small.evidence)


@pytest.mark.parametrize("name", ["returns_nothing", "ModuleWithTwoOutputs", "MeanRows"])
def test_consult_shows_code_and_finding(name, capsys):
    chapter_11.consult(name)
    text = capsys.readouterr().out
    assert f"{name}" in text.splitlines()[0] and f"doctor ({PATIENTS[name].code})" in text


ONLY_ON_A_CPU = {
    "ThroughNumPy", "through_numpy", "recorded_to_numpy", "ArrayForGradient", "ReadsMemory"
}  # fmt: skip


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_same_findings_on_cuda():
    for patient in BROKEN:
        if patient.name in ONLY_ON_A_CPU | chapter_11.TOO_LARGE:
            continue
        fn = patient.fn.cuda() if isinstance(patient.fn, torch.nn.Module) else patient.fn
        inputs = [v.cuda() if isinstance(v, torch.Tensor) else v for v in patient.inputs()]
        state = torch.cuda.get_rng_state()
        report = examine(fn, *inputs, **patient.options)
        assert report.findings[0].code == patient.code, str(report)
        assert torch.equal(torch.cuda.get_rng_state(), state)
