"""The gradient doctor against its patients; the order of causes; the slopes it rests on."""

import functools
import itertools
from collections import defaultdict

import pytest
import torch
from torch.autograd import Function

from helpers.doctor import derivative, examine
from helpers.doctor.causes import CAUSES
from helpers.doctor.effort import calls_allowed
from helpers.doctor.report import TEXTS
from helpers.doctor.screen import leveled
from helpers.doctor.slopes import Dice, slopes_along
from helpers.doctor.subject import Subject
from helpers.doctor.where import BRANCH, Spots, rule
from helpers.lessons import chapter_11
from helpers.lessons.patients import BROKEN, HEALTHY, PATIENTS
from helpers.lessons.patients.patient import Square, draw

WRONG = defaultdict(list)  # by the name of a patient: the cases of each wrong gradient


@functools.cache
def report_on(k):
    """The report on one patient, whose wrong gradients are kept in WRONG."""
    patient, diagnosis = (BROKEN + HEALTHY)[k], derivative.diagnosis

    def kept(exam, cases, *known):
        if cases[0].x.numel() < 1000:
            WRONG[patient.name].append(cases)
        return diagnosis(exam, cases, *known)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(derivative, "diagnosis", kept)
        return patient.examine()


@pytest.mark.parametrize("k", range(len(BROKEN)), ids=[p.name for p in BROKEN])
def test_the_cause_is_named(k):
    assert [f.code for f in report_on(k).findings][:1] == [BROKEN[k].code], str(report_on(k))


@pytest.mark.parametrize("k", range(len(HEALTHY)), ids=[p.name for p in HEALTHY])
def test_the_healthy_are_not_accused(k):
    report, code = report_on(len(BROKEN) + k), HEALTHY[k].code
    assert all(f.severity == "note" for f in report.findings), str(report)
    assert code is None or code in [f.code for f in report.findings], str(report)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("MeanOfSome", "another factor at each index of dimension 0: 0.75, 0.5, 1."),
        ("MeanOfBags", "multiplied by another factor at each index of dimension 0 (0.5, 0.333)"),
        ("OuterProducts", "right if grad_output were transposed before"),
        ("ExpMinusItself", "The error of the gradient of `x` is grad_output times 1."),
        ("SoftmaxOfSegments", "along the elements of one number in `segment`, times"),
        ("ScalesRows", "it is summed over dimension 0 of the output, not 1"),
        ("LeakyEdges", "grad_output: those where the output is below 0"),
        ("SumsTokens", "at index 0 of dimension 0, which `tokens` holds more than once,"),
        ("CubeOfTheMagnitude", "right where grad_output is real"),
        ("LeaksThroughTheMask", "where `mask` is False, it should be zero"),
        ("TransposesATerm", "off the diagonal it is wrong."),
        ("Kronecker", "viewed as (2, 3, 3, 2), permuted by permute(0, 2, 1, 3) and viewed back"),
        ("ReluOfSum", "set to zero wherever the output is not above 0 before."),
        ("MeanAndLargest", "rolled by half along dimension 0 before."),
        ("SineAndExp", "gradient of `x` through `output[0]` is that through `output[1]`."),
        (
            "KeepsItsShares",
            "`weight` gets no gradient, but without what an earlier call has kept",
        ),
        ("AveragesGradOutput", "right where grad_output is all ones"),
    ],
)
def test_the_sentence_is_sharp(name, words):
    assert words in report_on(BROKEN.index(PATIENTS[name])).findings[0].message


def wrong_by(factor, forward):
    """A Function of one input whose gradient is that of forward, times factor(x)."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return torch.func.vjp(forward, x)[1](grad_output)[0] * factor(x)

    return Wrong


def test_what_holds_of_every_wrong_gradient_is_not_said():
    (x,) = draw((3, 4))
    elementwise = wrong_by(torch.sigmoid, torch.sin)
    of_a_sum = wrong_by(torch.sigmoid, lambda x: x.sin().sum())
    codes = [examine(fn, x).findings[0].code for fn in (elementwise, of_a_sum)]
    assert codes == ["derivative-wrong", "gradient-wrong"]


def test_a_size_counts_only_where_something_is_summed():
    (x,) = draw((2, 3, 4))
    finding = examine(wrong_by(lambda x: 1 / 8, torch.sin), x).findings[0]
    assert finding.code == "scaled", finding.message


class SmallOfTwo(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x.exp() * w

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        return grad_output * x.exp() * torch.where(x < -2, 1.1, 1.0) * w, grad_output * x.exp()


def test_a_small_output_counts_where_all_inputs_are_moved_together():
    x = torch.tensor([-3.0, 0.5, 7, 14], dtype=torch.float64)
    (found,) = examine(SmallOfTwo, x, torch.ones_like(x)).findings
    assert found.input == "x"
    assert "at [0] (for these values) it is multiplied by 1.1" in found.message


def test_a_bound_that_fits_a_handful_is_no_rule():
    numbers = torch.tensor([0.1, 0.2, 0.9, 1.3, 2.0])
    few = Spots(torch.arange(5), numbers > 0.5, numbers < 0.5, {"x": numbers})
    assert "index 0, 1" in rule((5,), [few])[0]
    moved = Spots(few.elements, few.right.flip(0), few.wrong.flip(0), {"x": numbers.flip(0)})
    assert rule((5,), [few, moved])[0] == "where x is below about 0.55,"
    other = Spots(few.elements, few.right.roll(1), few.wrong.roll(1), {"x": numbers})
    assert rule((5,), [few, other]) == ("at index 0, 1 of dimension 0 (for these values)", BRANCH)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda i, j: j % 2 == 1, "at every odd index of dimension 1"),
        (lambda i, j: i == j, "on the diagonal"),
        (lambda i, j: i < j, "above the diagonal"),
        (lambda i, j: (i > 0) & (j > 2), "at index 1 to 5 of dimension 0 and index 3 to 5"),
        (lambda i, j: (i < 1) | (j < 2), "everywhere but at index 1 to 5 of dimension 0 and"),
    ],
)
def test_places_have_names(wrong, words):
    i, j = torch.unravel_index(torch.arange(36), (6, 6))
    spots = Spots(torch.arange(36), ~wrong(i, j), wrong(i, j), {"x": 0 * i})
    assert words in rule((6, 6), [spots])[0]


def test_every_code_has_a_patient():
    assert {p.code for p in BROKEN + HEALTHY} - {None} == set(TEXTS)
    assert len({p.name for p in BROKEN}) == len(BROKEN)


def test_one_in_a_million_is_found():
    report = report_on(BROKEN.index(PATIENTS["OneInAMillion"]))
    assert "right in part: at [700, 123] it is zero" in report.findings[0].message


def test_where_there_is_no_kink_none_is_seen():
    assert PATIENTS["square_at_zero"].examine().findings == []
    codes = [f.code for f in PATIENTS["reciprocal_near_its_pole"].examine().findings]
    assert codes == ["not-judged"]


def test_a_function_that_moves_in_steps_of_its_own_is_not_accused_by_chance(monkeypatch):
    """Of rounding, differences along some directions agree with each other, and with nothing."""
    for seed in range(40):
        monkeypatch.setattr(Dice.__init__, "__defaults__", (seed,))
        codes = [f.code for f in PATIENTS["log_cosh"].examine().findings]
        assert codes == ["not-judged"], seed


def test_causes_that_overlap_are_in_a_declared_order():
    """Every cause is tried on every wrong gradient, but for the last one, which always fits."""
    codes = [cause.text.code for cause in CAUSES[:-1]]
    declared = {(cause.text.code, later) for cause in CAUSES for later in cause.before}
    for first, later in declared:
        assert codes.index(first) < len(codes) - 1 - codes[::-1].index(later), (first, later)
    after = defaultdict(set)  # `before` of `before` counts, too
    for code in codes[::-1]:
        for later in {later for first, later in declared if first == code}:
            after[code] |= {later} | after[later]
    shown = defaultdict(set)
    for k, patient in enumerate(BROKEN + HEALTHY):
        if patient.name not in chapter_11.TOO_LARGE:
            report_on(k)
        for cases in WRONG[patient.name]:
            fit = dict.fromkeys(c.text.code for c in CAUSES[:-1] if c.test(cases))
            for pair in itertools.combinations(fit, 2):
                shown[pair].add(patient.name)
    assert {pair: names for pair, names in shown.items() if pair[1] not in after[pair[0]]} == {}
    assert declared - set(shown) == set()


@pytest.mark.parametrize("name", ["returns_nothing", "ModuleWithTwoOutputs", "Subtract"])
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


def test_the_larger_the_fewer_calls_a_diagnosis_may_take():
    """A second's worth: some 3e8 elements."""
    few, many = (calls_allowed(Subject(torch.sin, (torch.ones(n),), {})) for n in (10**6, 10**2))
    assert 10 < few < 300 and 10_000 < many < 150_000


# --- in which words -------------------------------------------------------------------------------


def test_where_a_gradient_is_wrong_another_input_may_tell():
    class Slopes(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(y)
            return torch.where(y < 0, 3 * x, 2 * x)

        @staticmethod
        def backward(ctx, grad_output):
            (y,) = ctx.saved_tensors
            return 2 * grad_output, torch.zeros_like(y)

    (found,) = examine(Slopes, *draw((3, 4), (3, 4))).findings
    assert "where `y` is below 0, it is multiplied by 0.667" in found.message


def test_indices_that_are_no_run_are_listed():
    class LosesTwoColumns(Square):
        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return grad_output * 2 * x * torch.tensor([0, 1, 0, 1])

    (found,) = examine(LosesTwoColumns, *draw((3, 4))).findings
    assert "right in part: at index 0, 2 of dimension 1 it is zero." in found.message


def test_a_forgotten_derivative_is_named_where_an_input_was_expanded():
    class SquareInEachRow(Function):
        @staticmethod
        def forward(ctx, x):
            return (x**2).repeat(3, 1)

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output.sum(0)

    (found,) = examine(SquareInEachRow, *draw((4,))).findings
    assert found.code == "inner-derivative-forgotten"


# --- numerical derivatives ------------------------------------------------------------------------


def slope_of(f, x, u=None):
    x = x.double()
    u = torch.ones_like(x) if u is None else u
    (slope,) = slopes_along(lambda v: [f(v[0])], [x], {0: u}, [f(x)], 2.2e-16)
    return slope


@pytest.mark.parametrize(
    ("f", "derivative", "at"),
    [
        (torch.sin, torch.cos, 0.3),
        (torch.exp, torch.exp, 5.0),
        (torch.sqrt, lambda x: 0.5 / x.sqrt(), 1e-2),
        (lambda x: torch.sin(50 * x), lambda x: 50 * torch.cos(50 * x), 0.7),
        (lambda x: torch.sin(x.float()).double(), torch.cos, 0.3),
    ],
)
def test_slopes_are_as_exact_as_their_error_bars_say(f, derivative, at):
    x = torch.linspace(at, 1.5 * at, 7)
    slope = slope_of(f, x, x.double())
    off = (slope.value - derivative(x.double()) * x.double()).abs()
    assert slope.trusted.all()
    assert (off <= 10 * slope.error + 1e-12).all()
    assert (slope.error < 1e-3 * slope.value.abs()).all()


@pytest.mark.parametrize("f", [torch.abs, torch.relu, torch.sign, lambda x: x.abs().sqrt()])
def test_kinks_jumps_and_singularities_are_not_believed(f):
    assert slope_of(f, torch.tensor([0.0, 1.0])).trusted.tolist() == [False, True]


def test_a_slope_that_is_lost_in_rounding_is_not_called_zero():
    slope = slope_of(lambda x: 1 + 1e-17 * x + torch.log(torch.cosh(x)), torch.tensor([1e-8]))
    assert not slope.trusted.any() or slope.error.item() > 0


def test_levels_make_all_elements_of_an_output_change_alike():
    slopes = [slope_of(f, torch.linspace(1, 2, 7)) for f in (torch.exp, torch.sin)]
    change = torch.stack([slope.value.abs() for slope in slopes]).amax(0)
    slopes[0].error[0] = 1.0  # lost in rounding
    lost, *weights = leveled(slopes).tolist()
    assert lost == 0 and weights == pytest.approx((change.max() / change)[1:].tolist())
