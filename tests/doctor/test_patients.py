"""The doctor against its patients and against the cases of this folder: what is said of whom."""

import functools

import pytest
import torch

from helpers.doctor import examine
from helpers.doctor.function.tensors import Dice
from helpers.doctor.report import TEXTS
from helpers.doctor.said import Said
from helpers.lessons import chapter_11
from helpers.lessons.patients import BROKEN, HEALTHY, PATIENTS
from tests.common import no_words_yet
from tests.doctor import (
    cases_causes,
    cases_exceptions,
    cases_judged,
    cases_lines,
    cases_pitfalls,
    cases_right,
    cases_trials,
)
from tests.doctor.cases import ones, serious

TABLES = {"broken": BROKEN, "healthy": HEALTHY} | {
    module.__name__.split("_")[-1]: module.CASES
    for module in (
        cases_causes,
        cases_exceptions,
        cases_judged,
        cases_lines,
        cases_pitfalls,
        cases_right,
        cases_trials,
    )  # fmt: skip
}
ALL = [
    pytest.param(patient, id=f"{table}: {patient.code or 'right'}: {patient.name}")
    for table, patients in TABLES.items()
    for patient in patients
]


@functools.cache
def report_on(name):
    return PATIENTS[name].examine(lines=False)


@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta")
@pytest.mark.parametrize("patient", ALL)
def test_what_is_said(patient, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Said, "text", no_words_yet)
        report = patient.examine(**{"lines": False, **patient.options})
    codes = list(dict.fromkeys(finding.code for finding in serious(report)))
    due = f"due is {patient.codes or 'nothing'}: is its row in its table, above others that fit?"
    assert codes == patient.codes.split(), f"{due}\n{report}"
    notes = [finding.code for finding in report.findings if finding.severity == "note"]
    assert patient.note is None or patient.note in notes, str(report)
    text = " ".join([*str(report).split(), *(f"look at: {f.remedy}" for f in report.findings)])
    assert "lines" in patient.options or "` stood in place of `" not in text, text
    assert all(words in text for words in patient.says), text
    assert not any(words in text for words in patient.never), text


def test_every_code_has_a_patient_and_every_patient_a_name():
    # What ends a process, and what has no seconds left, is no patient.
    seen = {patient.code for patient in BROKEN + HEALTHY} - {None}
    differ = seen ^ set(TEXTS) - {"crashed", "stopped-looking"}
    assert not differ, f"write a patient, or a cause, for {differ}"
    assert len({p.name for p in BROKEN}) == len(BROKEN)


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


def test_a_message_does_not_announce_a_list_that_is_left_out():
    (finding,) = examine(lambda x: x.mean(keepdim=True), ones(3)).findings
    assert finding.evidence["message"].endswith("got (keepdim=bool, )"), finding.evidence


def test_what_moves_in_steps_of_its_own_is_not_accused_by_chance(monkeypatch):
    """Of rounding, differences along some directions agree with each other, and with nothing."""
    for seed in range(10):
        monkeypatch.setattr(Dice.__init__, "__defaults__", (seed,))
        report = PATIENTS["log_cosh"].examine(lines=False)
        assert [f.code for f in report.findings] == ["not-judged"], seed


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
