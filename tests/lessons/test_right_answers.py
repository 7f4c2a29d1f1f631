"""Right answers that are written otherwise than the solutions."""

import numpy as np
import pytest
import torch

from helpers.lessons.exercise import RIGHT
from tests.lessons.judged import EXERCISES, judged


def test_other_right_answers_are_accepted():
    def output_pixel(y, x, i, j, out_height, out_width, stride, padding, dilation):
        places = np.array([y, x]) + padding - np.array([i, j]) * dilation
        places, rest = np.divmod(places, stride)
        inside = (places >= 0) & (places < [out_height, out_width]) & (rest == 0)
        return tuple(places) if inside.all() else None

    def fake_windows(x, size, step):
        starts = range(size)
        columns = [x[i : x.shape[0] - size + 1 + i : step] for i in starts]
        return torch.stack(columns).t().contiguous()

    def as_a_list(*arguments):
        found = output_pixel(*arguments)
        return found and list(found)

    def as_a_tensor(*arguments):
        found = output_pixel(*arguments)
        return found and torch.tensor(found)

    pixels = [("7.3", answer) for answer in (output_pixel, as_a_list, as_a_tensor)]
    start = "scan(Tensor x, Tensor decay,"
    schemas = [
        ("16.3", f"{start} {rest}) -> Tensor")
        for rest in (
            "int reverse=0, Scalar scale=1",
            "bool reverse=0, Tensor? scale=None",
        )
    ]
    for number, answer in (*pixels, ("9.1", fake_windows), *schemas):
        verdict = EXERCISES[number].judge(answer)
        assert verdict.mark == RIGHT, verdict.message


@pytest.mark.parametrize(
    "number, edits",
    [
        ("7.1", {"__global__ void": "void __global__ __launch_bounds__(32 * 8, 4)"}),
        ("7.1", {"void depthwise": "void /* mine */ depthwise"}),
        (
            "7.1",
            {
                "element >= channels * height * width": "element / (height * width) >= channels"
            },
        ),
        ("7.1", {"sum += weight": "sum = __fmaf_rn(1, sum, 0); sum += weight"}),
        ("8.1", {"int64_t i": "size_t i"}),
        ("8.1", {"exp(x[i])": "exp10(x[i] * M_LOG10E)"}),
        ("8.2", {"for (int64_t r": "for (ptrdiff_t r"}),
        (
            "15.2",
            {"factors[k] = weight": "factors[k] = make_float3(1, 1, 1).z * weight"},
        ),
        ("15.3", {", mask=mine, other=0": ", mask=mine"}),
        (
            "15.3",
            {
                "def ": "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef "
            },
        ),
        (
            "2.3",
            {
                "smallest, largest = x.min(dim=1), x.max(dim=1)": "values, order = x.sort(dim=1)",
                "smallest.indices, largest.indices": "order",
                "at_min, at_max = ctx.saved_tensors": "at_min, at_max = ctx.saved_tensors[0][:, [0, -1]].T",
                "smallest.values, largest.values": "values[:, 0], values[:, -1]",
            },
        ),
        (
            "4.2",
            {
                "result = largest.squeeze(-1) + (x - largest).exp().sum(-1).log()": "result = x[..., 0]\n        for i in range(1, "
                "x.shape[-1]):\n            result = torch.logaddexp(result, "
                "x[..., i])"
            },
        ),
        ("5.2", {"    x =": "    assert f(x).dim() == 0\n    x ="}),
        (
            "5.2",
            {
                "return grad": "def product(): return product and grad",
                "[0]": "[0]\n    return product()",
            },
        ),
        (
            "6.1",
            {
                # A parameter's name stays reserved.
                'self.register_parameter("bias", None)': "self.bias = nn.Parameter(torch.zeros(0)); self.bias = None"
            },
        ),
        ("4.1", {"* result * (1 - result)": "* (result - result * result)"}),
        (
            "2.4",
            {
                "g * (b @ W.T), (g * a).T @ b, g * (a @ W)": "torch.einsum('n,nq,pq->np', grad_output, b, W), torch.einsum('n,np,nq->pq', grad_output, a, b), torch.einsum('n,np,pq->nq', grad_output, a, W)"
            },
        ),
        (
            "14.4",
            {
                "summed(grad_output)": "grad_output.contiguous() + 0; dist.reduce(total, 0)",
                "torch.zeros_like(total)": "None",
            },
        ),
        (
            "10.4",  # a loop over the samples
            {
                "t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)": "[t] * info.batch_size if dim is None else t.unbind(dim)",
                "        first =": "        slices = map(Take.apply, x, index)\n        return torch.stack([*slices]), 0\n        first =",
            },
        ),
        (
            "10.4",  # only what has a batch is moved
            {
                "        x, index = (\n": "        if in_dims[0] is None:\n            return Take.apply(x, index), in_dims[1]\n        x, index = (\n"
            },
        ),
        ("17.4", {").half()": ")"}),  # the engine rounds to the dtype of x
        (
            "17.4",
            {
                "(grad_output * x.float() * (2 / x.numel())).half()": "(2 * grad_output.double() * x.double() / x.numel()).half()"
            },
        ),
        (
            "6.2",
            {
                "self.mean += 0.1 * (x.detach().mean(0) - self.mean)": "self.mean.lerp_(x.detach().mean(0), 0.1)"
            },
        ),
        (
            "10.1",
            {
                "class Squash(Function):\n    generate_vmap_rule = True": "class Other:",
                "** 3": "** 3\nclass Squash(Function):\n    generate_vmap_rule = True\n"
                "    forward, setup_context = Other.forward, Other.setup_context\n"
                "    backward = Other.backward",
            },
        ),
        ("11.5", {"torch.log(torch.cosh(x))": "torch.logaddexp(x, -x) - log(2)"}),
        ("12.2", {"ctx.size = size": "ctx.size = size; x.view(len(x), -1)"}),
        (
            "13.3",
            {
                "        z = torch": "        if (a <= 0).any(): raise ValueError\n        z = "
                "torch"
            },
        ),
        (
            "13.3",
            {
                "                break\n": "                break\n        else: raise RuntimeError\n"
            },
        ),
        ("13.3", {"grad_output / (2 * z)": "0.5 * grad_output * z**-1"}),
        (
            "13.3",
            {
                "ctx.save_for_backward(z)": "ctx.save_for_backward(a)",
                "(z,)": "(a,)",
                "(2 * z)": "(2 * a.sqrt())",
            },
        ),
    ],
)
def test_other_ways_are_accepted(number, edits, given):
    verdict = judged(number, edits)
    assert verdict.mark == RIGHT, verdict.message


def test_a_subclass_of_an_answer_is_an_answer():
    answer = EXERCISES["2.1"].reference
    verdict = EXERCISES["2.1"].judge(type("Square", (answer,), {}))
    assert verdict.mark == RIGHT, verdict.message


def test_a_backward_that_works_at_first_order_only_is_accepted():
    class Multiply(EXERCISES["2.2"].reference):
        @staticmethod
        def backward(ctx, grad_output):
            a, b = ctx.saved_tensors
            to_a, to_b = ((grad_output * other).numpy() for other in (b, a))
            sums = (torch.from_numpy(np.asarray(g)) for g in (to_a, to_b))
            return tuple(
                g.sum_to_size(t.shape) for g, t in zip(sums, (a, b), strict=True)
            )

    refuses = "@torch.autograd.function.once_differentiable\n    def backward"
    once = [judged(number, {"def backward": refuses}) for number in ("2.1", "14.1")]
    for verdict in (EXERCISES["2.2"].judge(Multiply), *once):
        assert verdict.mark == RIGHT, verdict.message
